"""Sentences for a tenant name no claims and machines of others, and all else that they name to an admin."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.api.cordon import apply_all_cordons
from devalloc.api.findings import (
    ADMIN,
    AT_LENGTH,
    Cause,
    Finding,
    Reader,
    claim_ref,
    fact,
    finding_of,
    message_of,
    visible,
)
from devalloc.api.meta import CORDONED, CORDONED_NODE
from devalloc.api.owner_names import is_object
from devalloc.machines.schedule.solver_input import scheduling_input
from devalloc.machines.schedule.what_if import solve_with_machines
from devalloc.store.sqlite import SQLiteStore
from devalloc_solver import Fleet, solve_manifests
from devalloc_solver.dra import solve_manifests as solve_resource_claims
from tests.support import dra_builders as dra
from tests.support.examples import examples
from tests.support.fleet_manifests import fill, gpu_claim, gpu_class, gpu_pool
from tests.support.host_pools import host, machine
from tests.support.machine_allocator import machine_allocator

Ref = Mapping[str, Any]
OWN, SECRET, PLAN = ("team-a", "own"), ("team-b", "secret"), ("team-b", "plan.v2")
TENANT = Reader("team-a")
FULL = fact(Cause.TOO_FEW, wanted=2, most="1", free=True)


def holder(key: tuple[str, str], kind: str = "claim", **more: Any) -> Ref:
    return {**claim_ref(key), "kind": kind, "priority": 0, **more}


@pytest.mark.parametrize(
    ("blockers", "remedy"),
    [
        ([holder(OWN)], "delete claim team-a/own, or wait for it"),
        ([holder(SECRET)], "wait for a claim of another namespace"),
        ([holder(SECRET), holder(PLAN)], "wait for 2 claims of other namespaces"),
        ([holder(SECRET, "machine")], "wait for a machine of another namespace"),
        ([holder(SECRET, "machine"), holder(PLAN)], "wait for 1 claim and 1 machine of other namespaces"),
        ([holder(SECRET), holder(OWN)], "delete claim team-a/own and wait for a claim of another namespace"),
        (
            [{"kind": "node", "node": "n", "path": "spec.nodeName"}, holder(SECRET)],
            "wait for a claim of another namespace, and remove spec.nodeName",
        ),
        ([holder(SECRET, "machine", idle="DiskInUse")], "wait for a machine of another namespace"),
    ],
)
def test_a_tenant_releases_its_own_and_waits_for_others(blockers: Sequence[Ref], remedy: str) -> None:
    assert message_of(Finding([FULL], blockers), TENANT) == f"no node has 2 free devices (at most 1); {remedy}"


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        (
            fact(Cause.UNPUBLISHED, holder=claim_ref(SECRET), pool="pool-1", device="0000-17-00-0"),
            "a claim of another namespace holds device pool-1/0000-17-00-0, which no longer exists",
        ),
        (
            fact(Cause.SEVERAL_OWNERS, devices=["pool-1/d0"], holders=[claim_ref(OWN), claim_ref(SECRET)]),
            "device pool-1/d0 has several owners: claim team-a/own and a claim of another namespace",
        ),
        (
            fact(Cause.OVER_COMMITTED, devices=["p/d"], resource="memory", holders=[*map(claim_ref, (SECRET, PLAN))]),
            "2 claims of other namespaces hold more memory of device p/d than it has",
        ),
    ],
)
def test_causes_count_the_holders_that_a_tenant_does_not_see(cause: Ref, text: str) -> None:
    assert message_of(Finding([cause]), Reader("team-a", width=None)).startswith(text)


def test_no_cut_of_names_hides_what_a_tenant_waits_for() -> None:
    edit = {"kind": "request", "request": "r" * 60}
    shown = message_of(Finding([fact(Cause.NO_DEVICES)], [edit, holder(SECRET)]), TENANT)
    assert shown.endswith(", and wait for a claim of another namespace"), shown
    assert "…" in shown


def test_an_admin_sees_all_names() -> None:
    finding = Finding([FULL], [holder(SECRET), holder(OWN)])
    assert message_of(finding, ADMIN).endswith("; delete claims team-b/secret and team-a/own, or wait for them")
    assert visible(finding, ADMIN) is finding


def test_other_things_than_claims_and_machines_stay_as_they_are() -> None:
    """Pools and devices can be called as a namespace and a claim of it."""
    edits = [
        {"kind": "unavailable", "pool": "team-b", "device": "secret", "node": "n", "why": "cordoned: by team-b/plan"}
    ]
    finding = Finding([fact(Cause.TEXT, text="team-b/secret is a label here")], edits, edits)
    assert visible(finding, TENANT) == finding


def test_a_text_that_is_cut_keeps_what_to_do() -> None:
    """Of a text that is as it is, because it was written before any search."""
    text = f"spec.claims[0].constraints: {'device.model ' * 10}is too expensive; make it simpler"
    shown = message_of(Finding([fact(Cause.TEXT, text=text)]), TENANT)
    assert shown.startswith("claims[0].constraints: device.model ")
    assert shown.endswith("…; make it simpler")


# -- whatever the names are --------------------------------------------------------------------------------------------

OTHER_KEYS = st.tuples(st.text("QX", min_size=4, max_size=12), st.text("QX-.", min_size=4, max_size=80))
"""Names of no letter that any other word has, which no cut hides: each part of one of them is known."""
OWN_KEYS = st.tuples(st.just("team-a"), st.text("bcd", min_size=1, max_size=80))
REFS = st.builds(
    lambda key, kind, title: {**claim_ref(key), "kind": kind, **title},
    OTHER_KEYS | OWN_KEYS,
    st.sampled_from(["claim", "machine"]),
    st.sampled_from([{}, {"objectKind": "DeviceClaim"}]),
)
MANY = st.lists(REFS, min_size=1, max_size=12)
DEVICES = st.lists(st.text("efg/", min_size=1, max_size=40), min_size=1, max_size=4)
CAUSES = st.one_of(
    st.just(FULL),
    st.builds(
        lambda ref, less, more: fact(Cause.UNPUBLISHED, holder=ref, pool="p", device="d", less=less, more=more),
        REFS,
        st.booleans(),
        st.integers(0, 3),
    ),
    st.builds(lambda refs, devices: fact(Cause.SEVERAL_OWNERS, devices=devices, holders=refs), MANY, DEVICES),
    st.builds(
        lambda refs, devices: fact(Cause.OVER_COMMITTED, devices=devices, resource="memory", holders=refs),
        MANY,
        DEVICES,
    ),
    st.builds(
        lambda refs, devices, more: fact(
            Cause.OVER_DRAWN, devices=devices, resource="memory", holders=refs, more=more, moreDevices=more
        ),
        MANY,
        DEVICES,
        st.integers(0, 3),
    ),
)
NESTED = CAUSES | st.builds(
    lambda ref, cause: fact(Cause.MEMBER_FAILS, member=ref, group="g", reason="DevicesInUse", cause=cause), REFS, CAUSES
)
EDITS = st.sampled_from(
    [
        {"kind": "node", "node": "n", "path": "spec.nodeName"},
        {"kind": "amount", "path": "spec.claims[0].requests.count", "requested": "3", "most": "2"},
    ]
)
BLOCKERS = st.lists(EDITS | REFS | REFS.map(lambda ref: {**ref, "idle": "DiskInUse"}), max_size=8)
FINDINGS = st.builds(
    Finding,
    st.lists(NESTED, max_size=3),
    BLOCKERS,
    st.lists(EDITS | REFS, max_size=2),
    st.lists(st.sampled_from(["notSmallest", "notEnough", "othersUnknown", "nothingLeft"]), max_size=2, unique=True),
)


@settings(max_examples=examples(100))
@given(FINDINGS, st.sampled_from([None, 120, 60]))
def test_no_sentence_and_no_data_for_a_tenant_has_a_name_of_another_namespace(
    finding: Finding, width: int | None
) -> None:
    reader = Reader("team-a", width)
    seen = visible(finding, reader)
    for text in (message_of(finding, reader), json.dumps([seen.causes, seen.blockers, seen.alternatives])):
        assert not {"Q", "X"} & {*text}, text
    assert message_of(seen, Reader(None, width)) == message_of(finding, reader)


@settings(max_examples=examples(100))
@given(FINDINGS, st.sampled_from(["team-a", None]))
def test_a_sentence_is_as_long_as_its_reader_can_show(finding: Finding, namespace: str | None) -> None:
    assert len(message_of(finding, Reader(namespace))) <= 120
    assert "\n" not in message_of(finding, AT_LENGTH)


# -- whatever is solved ------------------------------------------------------------------------------------------------

FOREIGN = "zxq"
"""In each name of the other tenant, and in no other word."""


def world(random: Random) -> list[dict[str, Any]]:
    """Nodes, some of them or of their devices cordoned, with claims and machines of two tenants that all want them."""
    documents: list[dict[str, Any]] = [gpu_class()]
    for node in "abc"[: random.randint(1, 3)]:
        pools = [host(node, cpus=random.choice([2, 4])), gpu_pool(f"p{node}", random.randint(1, 3), node, numa="1")]
        cordon = random.choice([{}, {}, {CORDONED_NODE: "by root: fan"}, {CORDONED: json.dumps({"d0": "by root"})}])
        documents += [{**pool, "metadata": {**pool["metadata"], "annotations": dict(cordon)}} for pool in pools]
    for namespace, name in ((FOREIGN, f"{FOREIGN}-"), ("team-a", "own-")):
        notes = {"priority": "9" if namespace == FOREIGN else "0"}
        for number in range(random.randint(1, 3)):
            group = {"group": f"{name}g"} if random.random() < 0.4 else {}
            match = {"group-match": "numa"} if group and random.random() < 0.5 else {}
            count = random.choice([1, 1, 2, 5])
            documents.append(gpu_claim(f"{name}{number}", count, namespace, **notes, **group, **match))
        for number in range(random.randint(0, 2)):
            own = [f"{name}0"] if number == 0 and random.random() < 0.5 else []
            web = machine(f"{name}vm{number}", random.choice(["1", "2", "7"]), "1Gi", *own)
            web["metadata"].update(namespace=namespace, annotations={"devalloc.io/priority": notes["priority"]})
            documents.append(web)
    return apply_all_cordons(documents)


def crowded(random: Random) -> list[dict[str, Any]]:
    """The same once it is placed, with as many claims and machines that come too late."""
    documents = world(random)
    answer = solve_with_machines(documents)
    given = {("DeviceClaim", one["namespace"], one["name"]): one for one in answer["claims"] if one["allocated"]}
    for one in answer.get("machines", ()):
        given |= {("VirtualMachine", one["namespace"], one["name"]): one} if one["allocated"] else {}
    late: list[dict[str, Any]] = []
    for one in documents:
        metadata = one["metadata"]
        if one["kind"] in ("DeviceClaim", "VirtualMachine"):
            copy = deepcopy(one)
            copy["metadata"]["name"] = f"{metadata['name']}-late"
            if one["kind"] == "VirtualMachine":
                copy["spec"]["claims"] = [f"{name}-late" for name in one["spec"]["claims"]]
            late.append(copy)
        if (held := given.get((one["kind"], metadata.get("namespace"), metadata["name"]))) is not None:
            metadata["annotations"] = {**metadata.get("annotations", {}), **held.get("annotations", {})}
            node = {"nodeName": held["node"], "phase": "Pending"} if one["kind"] == "VirtualMachine" else {}
            one["status"] = {"allocations": held["allocations"], **node}
    return [*documents, *late]


def cluster(random: Random) -> list[dict[str, Any]]:
    """The same with ResourceClaims, some of the other tenant's allocated already, and devices with taints."""
    taints = [{"key": "k", "value": "v", "effect": "NoSchedule"}]
    names = [f"d{number}" for number in range(random.randint(1, 4))]
    content = [dra.device(name, {"m": random.randint(1, 2)}, taints=random.choice([[], [], taints])) for name in names]
    documents = [dra.ANY, dra.slice_("s", content)]
    for namespace, name in ((FOREIGN, f"{FOREIGN}-"), ("team-a", "own-")):
        for number in range(random.randint(1, 3)):
            wanted = dra.request("r", random.choice([1, 2, 6]))
            marks = {"priority": "9" if namespace == FOREIGN else "0"} | random.choice([{}, {"group": f"{name}g"}])
            one = dra.claim(wanted, name=f"{name}{number}", namespace=namespace, marks=marks)
            documents.append(dra.held(one, names.pop()) if namespace == FOREIGN and names and number == 0 else one)
    return documents


def named(content: Any) -> Iterator[tuple[str, str, str]]:
    """What data of an answer names: kind, namespace and name."""
    if isinstance(content, dict):
        if "namespace" in content and "name" in content:
            kind = content.get("title") or content.get("kind", "claim")
            yield "machine" if kind == "machine" else "claim", content["namespace"], content["name"]
        is_group = "group" in content  # its machine is of the claim's own namespace, which is left out
        for field in set() if is_group else {"claim", "machine"} & content.keys():
            yield field, *content[field].split("/", 1)
    for each in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        yield from named(each)


def test_the_solver_names_only_claims_and_machines_that_there_are() -> None:
    """Whatever it says of machines, also before the controller puts that into words of machines."""
    met: Counter[str] = Counter()
    for seed in range(examples(60)):
        documents = crowded(Random(f"owners {seed}"))
        names = {"DeviceClaim": "claim", "VirtualMachine": "machine"}
        there = {
            (names[one["kind"]], one["metadata"]["namespace"], one["metadata"]["name"])
            for one in documents
            if one["kind"] in names
        }
        placing = scheduling_input(documents)
        keys = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in placing.documents]
        assert len({*keys}) == len(keys)
        waiting = [one for one in placing.documents if one["kind"] == "DeviceClaim" and "status" not in one]
        answer = solve_manifests(placing.documents)
        fleet = Fleet.from_manifests([one for one in placing.documents if one not in waiting])
        for each in (*answer["claims"], *map(fleet.allocate, waiting)):
            data = [each.get(part) for part in ("causes", "blockers", "alternatives", "funnel")]
            assert {*named(data)} <= there, each
            met.update(kind for kind, *_ in named(data))
            if not is_object((each["namespace"], each["name"])):
                met["of a machine"] += 1
            elif each["message"]:
                assert r"\u001f" not in json.dumps([data, each["message"]]), each
        assert r"\u001f" not in json.dumps(answer["problems"])
    assert min(met[kind] for kind in ("claim", "machine", "of a machine")) >= 20, met


def test_all_that_the_controller_writes_and_reports_names_objects_only(tmp_path: Path) -> None:
    """Claims and machines come to a fleet, and others once it is crowded."""
    waited: Counter[str] = Counter()
    for seed in range(examples(10)):
        documents = crowded(Random(f"owners {seed}"))
        first = [one for one in documents if not one["metadata"]["name"].endswith("-late")]
        with closing(SQLiteStore(tmp_path / f"{seed}.db")) as store:
            allocator, reported = machine_allocator(store), []
            for some in (first, [one for one in documents if one not in first]):
                fill(store, *({name: part for name, part in one.items() if name != "status"} for one in some))
                reported += [problem for _ in range(3) for problem in allocator.round().problems]
            objects = store.list(None).objects
        assert r"\u001f" not in json.dumps([objects, reported])
        waited.update(one["kind"] for one in objects if "reason" in json.dumps(one))
    assert min(waited[kind] for kind in ("DeviceClaim", "VirtualMachine")) >= 10, waited


def refusals(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What the tenant's claims and machines are answered that get nothing."""
    for one in (*answer["claims"], *answer.get("machines", ())):
        if one["namespace"] == "team-a" and one.get("reason"):
            yield one


@pytest.mark.parametrize(
    ("documents", "solve", "kinds"),
    [
        (world, solve_with_machines, ("hidden", "step", "cordoned", "nodes")),
        (cluster, solve_resource_claims, ("hidden", "step", "taint")),
    ],
    ids=["claims and machines", "ResourceClaims"],
)
def test_what_is_solved_names_nothing_of_another_namespace_to_a_tenant(
    documents: Callable[[Random], list[dict[str, Any]]],
    solve: Callable[[list[dict[str, Any]]], Mapping[str, Any]],
    kinds: Sequence[str],
) -> None:
    """Also the steps of funnels, which hold no claims; who uses the devices is for an admin."""
    met: Counter[str] = Counter()
    for seed in range(examples(60)):
        for answer in refusals(solve(documents(Random(f"tenants {seed}")))):
            finding = finding_of(answer)
            seen = visible(finding, TENANT)
            steps = [funnel["steps"] for funnel in answer.get("funnel", ())]
            data = json.dumps([seen.causes, seen.blockers, seen.alternatives, seen.caveats, steps])
            for text in (message_of(finding, TENANT), message_of(finding, Reader("team-a", None)), data):
                assert FOREIGN not in text, text
            met["hidden"] += FOREIGN in json.dumps([finding.causes, finding.blockers, finding.alternatives])
            met["step"] += any(steps)
            met.update(kind for kind in kinds if kind in data)
    assert min(met[kind] for kind in kinds) >= 3, met
