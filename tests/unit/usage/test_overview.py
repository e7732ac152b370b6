"""The overview: each device once, in one state, and the numbers of the store and of the command's tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from devalloc.api.host_pool_names import node_of_host_pool
from devalloc.api.manifests import load
from devalloc.cli.render.columns import header_and_rows
from devalloc.store.sqlite import SQLiteStore
from devalloc.usage.overview import MAX_TEXT, UNREADABLE, DeviceSummary, Overview, build_overview
from devalloc_solver.problem.ordering import natural_key
from tests.support.fleet_manifests import fill, gpu_claim, gpu_class, gpu_pool
from tests.support.machine_allocator import machine_allocator
from tests.support.overview_checks import adds_up, devices_of

Object = dict[str, Any]
EXAMPLES = sorted(path.parent for path in Path("examples").glob("*/pools.yaml"))


def only_device(summary: Overview, name: str) -> DeviceSummary:
    return next(device for _, device in devices_of(summary) if device.name == name)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_numbers_are_those_of_the_store_and_of_the_tables(store: SQLiteStore, example: Path) -> None:
    for manifest in load([example]).documents:
        store.create(manifest.content)
    done = machine_allocator(store).round()
    listed = store.list().objects
    summary = build_overview(listed)
    adds_up(summary)
    assert summary.is_settled
    counts = summary.counts
    assert (counts.devices, counts.available) == (done.devices, done.available)
    hosts = sum(node_of_host_pool(obj) is not None for obj in listed)
    assert summary.cards == done.pools - hosts, "what a host has for machines is no card"
    assert (summary.pending, summary.allocated) == (done.waiting, done.allocated)
    pools = [obj for obj in listed if obj["kind"] == "DevicePool"]
    headers, rows = header_and_rows("DevicePool", pools, wide=False, namespaces=False)
    by_pool = {row[0]: (row[headers.index("DEVICES")], row[headers.index("AVAILABLE")]) for row in rows}
    cards = [card for node in summary.nodes for card in node.cards]
    assert by_pool == {card.name: (str(card.counts.devices), str(card.counts.available)) for card in cards}
    headers, rows = header_and_rows(
        "DeviceClaim", [obj for obj in listed if obj["kind"] == "DeviceClaim"], wide=True, namespaces=True
    )
    words = {(row[0] or "default", row[1]): (row[2].text, row[3], row[4], row[9]) for row in rows}
    assert words == {(c.namespace, c.name): (c.state, c.wants, c.node, c.message) for c in summary.claims}


def test_each_state_of_a_device() -> None:
    card = gpu_pool("card")
    card["spec"] |= {
        "resources": [{"name": "slices", "capacity": "4"}],
        "devices": [
            {"name": "whole", "requests": {"slices": "4"}},
            {"name": "a", "requests": {"slices": "1"}, "resources": [{"name": "memory", "capacity": "4Gi"}]},
            {"name": "b", "requests": {"slices": "1"}},
            {"name": "c", "requests": {"slices": "1"}},
            {"name": "d", "attributes": [{"name": "devalloc.io/unavailable", "stringValue": "in use: qemu"}]},
        ],
    }
    part = gpu_claim("part")
    part["status"] = {
        "allocations": [
            {"devicePoolName": "card", "deviceName": "a", "allocations": [{"name": "memory", "allocation": "1Gi"}]}
        ]
    }
    whole = {**gpu_claim("one"), "status": {"allocations": [{"devicePoolName": "card", "deviceName": "b"}]}}
    summary = build_overview([card, part, whole, gpu_class()])
    adds_up(summary)
    assert {device.name: device.state for _, device in devices_of(summary)} == {
        "whole": "excluded",
        "a": "shared",
        "b": "held",
        "c": "free",
        "d": "unavailable",
    }
    assert only_device(summary, "d").why == "in use: qemu"
    (holder,) = only_device(summary, "a").holders
    assert (holder.kind, holder.namespace, holder.name, holder.amounts) == (
        "DeviceClaim",
        "default",
        "part",
        "memory 1Gi",
    )
    assert not summary.is_settled, "no status says a number yet"


def test_parts_follow_what_they_are_parts_of() -> None:
    def device(name: str, **attributes: str) -> Object:
        return {"name": name, "attributes": [{"name": k, "stringValue": v} for k, v in attributes.items()]}

    pool = gpu_pool("card")
    pool["spec"]["devices"] = [
        device("vf-10", function="vf", pciBusID="0:10", pfPciBusID="0:0"),
        device("vf-9", function="vf", pciBusID="0:9", pfPciBusID="0:0"),
        device("vgpu", function="mdev", pciBusID="0:9", pfPciBusID="0:0", profile="A2-4Q"),
        device("card", function="whole", pciBusID="0:0"),
        device("alone", function="vf", pciBusID="1:1", pfPciBusID="1:0"),
    ]
    (node,) = build_overview([pool]).nodes
    assert [(each.name, each.level, each.what) for each in node.cards[0].devices] == [
        ("card", 0, "whole"),
        ("vf-9", 1, "vf"),
        ("vgpu", 2, "mdev A2-4Q"),
        ("vf-10", 1, "vf"),
        ("alone", 0, "vf"),
    ]


def test_devices_that_are_parts_of_each_other_are_there_once() -> None:
    pool = gpu_pool("card", devices=0)
    for name, above in (("a", "b"), ("b", "a")):
        attributes = {"function": "pf", "pciBusID": name, "pfPciBusID": above}
        pool["spec"]["devices"].append(
            {"name": name, "attributes": [{"name": k, "stringValue": v} for k, v in attributes.items()]}
        )
    adds_up(build_overview([pool]))


def test_cordons_say_why() -> None:
    card, other = gpu_pool("card", devices=1), gpu_pool("other", devices=2)
    card["metadata"]["annotations"] = {"devalloc.io/cordoned-node": "ada: new disks"}
    other["metadata"]["annotations"] = {"devalloc.io/cordoned": '{"d1": "ada: smells"}'}
    summary = build_overview([card, other])
    adds_up(summary)
    assert (summary.nodes[0].cordoned, summary.counts.unavailable) == ("ada: new disks", 2)
    assert only_device(build_overview([other]), "d1").why == "cordoned: ada: smells"


def test_machines_tell_their_amounts_and_whose_claims_they_have(store: SQLiteStore) -> None:
    claim = {**gpu_claim("disk"), "status": {"allocations": [{"devicePoolName": "p", "deviceName": "d0"}]}}
    machine = {
        "apiVersion": "devalloc.io/v1alpha1",
        "kind": "VirtualMachine",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "cpu": {"min": "1", "max": "4", "use": "2"},
            "memory": {"min": "1Gi", "max": "4Gi"},
            "claims": ["disk"],
        },
        "status": {"phase": "Running", "permitted": {"cpus": "3"}, "observed": {"cpus": 2, "memory": "1Gi"}},
    }
    summary = build_overview([gpu_pool(), claim, machine, gpu_class()])
    (web,) = summary.machines
    assert [(each.cpus, each.memory) for each in (web.wanted, web.permitted, web.applied, web.observed)] == [
        ("2", "1Gi"),
        ("3", ""),
        ("", ""),
        ("2", "1Gi"),
    ]
    assert only_device(summary, "d0").holders[0].machine == summary.claims[0].machine == "web"


def test_a_machine_that_is_not_to_run_does_not_look_as_if_it_waited() -> None:
    spec = {"cpu": {"min": "1", "max": "1"}, "memory": {"min": "1Gi", "max": "1Gi"}, "running": False}
    metadata = {"name": "web", "namespace": "default"}
    machine = {"apiVersion": "devalloc.io/v1alpha1", "kind": "VirtualMachine", "metadata": metadata, "spec": spec}
    (web,) = build_overview([machine]).machines
    assert (web.phase, web.reason) == ("Stopped", "StoppedOnRequest")


def test_what_a_machine_is_kept_is_its_own(store: SQLiteStore) -> None:
    """Of the CPUs of a node: no claim of a user stands for it."""
    for manifest in load(["examples/placed-machines"]).documents:
        store.create(manifest.content)
    machine_allocator(store).round()
    summary = build_overview(store.list().objects)
    holders = [holder for _, device in devices_of(summary) for holder in device.holders]
    keepers = {each.name for each in holders if each.kind == "VirtualMachine"}
    assert keepers
    assert keepers <= {machine.name for machine in summary.machines}
    written = {claim.name for claim in summary.claims}
    assert all(each.name in written for each in holders if each.kind == "DeviceClaim")


def test_unreadable_parts_are_marked_and_the_rest_is_shown() -> None:
    bad_pool = gpu_pool("bad")
    bad_pool["spec"]["devices"] = [{"name": "x"}, {"name": "x"}]
    claim = {**gpu_claim("odd"), "status": {"allocations": [7]}}
    claim["metadata"]["annotations"] = {"devalloc.io/message": "m" * 9999 + "\x1b[31m", "devalloc.io/reason": "\u202e"}
    claim["spec"]["claims"] = [7]
    machine = {"apiVersion": "devalloc.io/v1alpha1", "kind": "VirtualMachine", "metadata": {"name": "m"}, "spec": 1}
    summary = build_overview([gpu_pool("good"), bad_pool, claim, machine])
    adds_up(summary)
    assert [node.cards[0].name for node in summary.nodes] == ["good"]
    assert len(summary.problems) == 3
    assert "DevicePool bad: " in "".join(summary.problems)
    (odd,) = summary.claims
    assert (odd.wants, odd.devices, len(odd.message)) == (UNREADABLE, UNREADABLE, MAX_TEXT)
    assert odd.reason == "\\u202e", "what turns text around is escaped"
    assert summary.machines[0].node == UNREADABLE


names = st.integers(0, 3).map(lambda number: f"d{number}")
parts = st.lists(st.just({"name": "memory", "allocation": "1Gi"}), max_size=1)
entries = st.lists(
    st.builds(
        lambda pool, device, amounts: {"devicePoolName": f"p{pool}", "deviceName": device, "allocations": amounts},
        st.integers(0, 2),
        names,
        parts,
    ),
    max_size=4,
)


@st.composite
def fleets(draw: st.DrawFn) -> list[Object]:
    """Pools whose devices draw on each other, and claims that hold anything at all, also more than there is."""
    objects: list[Object] = [gpu_class(adminAccess=draw(st.booleans()))]
    for number in range(draw(st.integers(0, 3))):
        pool = gpu_pool(f"p{number}", node=draw(st.sampled_from(["n1", "n2", None])))
        pool["spec"]["resources"] = [{"name": "slices", "capacity": str(draw(st.integers(0, 4)))}]
        pool["spec"]["devices"] = [
            {
                "name": name,
                "requests": {"slices": str(draw(st.integers(0, 3)))},
                "resources": [{"name": "memory", "capacity": "2Gi"}] if draw(st.booleans()) else [],
                "attributes": draw(
                    st.lists(st.just({"name": "devalloc.io/unavailable", "stringValue": "why"}), max_size=1)
                ),
            }
            for name in draw(st.sets(names))
        ]
        objects.append(pool)
    for number in range(draw(st.integers(0, 4))):
        objects.append({**gpu_claim(f"c{number}"), "status": {"allocations": draw(entries)}})
    return objects


@given(fleets())
def test_sums_are_those_of_their_parts(objects: list[Object]) -> None:
    summary = build_overview(objects)
    adds_up(summary)
    assert [node.name for node in summary.nodes] == sorted((node.name for node in summary.nodes), key=natural_key)


def test_pending_claims_come_first(store: SQLiteStore) -> None:
    fill(store, gpu_class(), gpu_pool(), gpu_claim("a"), gpu_claim("b", count=9))
    machine_allocator(store).round()
    summary = build_overview(store.list().objects)
    assert [(claim.name, claim.is_pending) for claim in summary.claims] == [("b", True), ("a", False)]
    assert summary.claims[0].reason
    assert summary.claims[0].message


def test_recorded_fleets_add_up() -> None:
    for path in Path("devalloc/cli/data").glob("fleet-*.yaml"):
        adds_up(build_overview(list(yaml.safe_load_all(path.read_text()))))


def holding(name: str, device: str, memory: str = "") -> Object:
    """A DeviceClaim that holds a device of the pool p, or so much of its memory."""
    part = {"allocations": [{"name": "memory", "allocation": memory}]} if memory else {}
    entry = {"devicePoolName": "p", "deviceName": device, **part}
    return gpu_claim(name, **{"allocated-node": "n"}) | {"status": {"allocations": [entry]}}


def alarms_of(*documents: Object) -> list[tuple[str, tuple[str, ...], list[str]]]:
    return [(a.dialect, a.devices, [h[-1] for h in a.holders]) for a in build_overview(documents).alarms]


def test_claims_that_hold_together_what_they_cannot_are_an_alarm() -> None:
    shared, parts = gpu_pool("p"), gpu_pool("p")
    shared["spec"]["devices"] = [{"name": "d0", "resources": [{"name": "memory", "capacity": "4Gi"}]}]
    parts["spec"] |= {
        "resources": [{"name": "slices", "capacity": "4"}],
        "devices": [{"name": f"d{i}", "requests": {"slices": "3"}} for i in range(2)],
    }
    assert alarms_of(gpu_pool("p"), holding("a", "d0"), holding("b", "d1")) == []
    assert alarms_of(gpu_pool("p"), holding("a", "d0"), holding("b", "d0")) == [("DevicePool", ("p/d0",), ["a", "b"])]
    assert alarms_of(holding("a", "d0"), holding("b", "d0")) == [("DevicePool", ("p/d0",), ["a", "b"])], "gone"
    assert alarms_of(shared, holding("a", "d0", "2Gi"), holding("b", "d0", "2Gi")) == []
    assert alarms_of(shared, holding("a", "d0", "2Gi"), holding("b", "d0", "3Gi")) == [
        ("DevicePool", ("p/d0",), ["a", "b"])
    ]
    assert alarms_of(parts, holding("a", "d0")) == []
    assert alarms_of(parts, holding("a", "d0"), holding("b", "d1")) == [("DevicePool", ("p/d0", "p/d1"), ["a", "b"])]


def test_admin_access_is_no_ownership() -> None:
    watching = holding("b", "d0")
    watching["spec"]["claims"][0]["deviceClass"] = "admin"
    assert alarms_of(gpu_pool("p"), gpu_class("admin", adminAccess=True), holding("a", "d0"), watching) == []
