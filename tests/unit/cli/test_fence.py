"""`devalloc fence` and `unfence` as admins see them: the plan, the question, what is taken away, and what is shown."""

from __future__ import annotations

from contextlib import closing

import pytest

from devalloc.api import meta
from devalloc.store.sqlite import SQLiteStore
from tests.support.cli_shell import Shell, claim, device_class, pool, text
from tests.support.host_pools import host, machine
from tests.support.migration_nodes import ScriptedNodes, migration
from tests.support.waiting import until
from tests.unit.cli.test_drain import a_machine, add_node_b, controller, take


@pytest.fixture
def fleet(devalloc: Shell) -> Shell:
    """A machine that runs on node-a with a claim, and another claim that node-a has prepared."""
    objects = (host("node-a"), pool(), device_class(), claim("card"), claim("alone"), a_machine("web", "card"))
    devalloc("apply", "-f", "-", stdin=text(*objects))
    devalloc.allocate()
    take(devalloc)
    with closing(SQLiteStore(devalloc.store)) as store:
        for name in ("card", "alone"):
            obj = store.get("DeviceClaim", "default", name)
            notes = {**obj["metadata"]["annotations"], meta.PREPARED_ON: "node-a"}
            store.replace(
                {**obj, "metadata": {**obj["metadata"], "finalizers": [meta.NODE_FINALIZER], "annotations": notes}}
            )
    return devalloc


def test_the_plan_names_what_moves_and_what_is_released_and_changes_nothing(fleet: Shell) -> None:
    add_node_b(fleet)
    result = fleet("fence", "node/node-a", "--dry-run")
    assert (result.code, result.out.splitlines()) == (
        0,
        [
            "will fence node node-a: it gets nothing new, and what it holds is taken away",
            "virtualmachine default/web: will start on node node-b",
            "deviceclaim default/alone: will lose its devices and get devices of node node-b",
        ],
    )
    assert fleet("cordon").out == "nothing is cordoned\n"


def test_a_machine_whose_disk_only_this_node_has_will_wait(devalloc: Shell) -> None:
    start = {"kernel": "/srv/vmlinuz", "disks": [{"path": "/srv/web.raw", "format": "raw"}]}
    devalloc("apply", "-f", "-", stdin=text(host("node-a"), a_machine("web", start=start)))
    devalloc.allocate()
    take(devalloc)
    shown = devalloc("fence", "node/node-a", "--dry-run").out
    assert "virtualmachine default/web: will wait for node node-a: only node node-a has its disk /srv/web.raw" in shown


def test_what_moves_to_it_stays_where_it_is(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(host("node-a"), machine("web", "1", "1Gi")))
    devalloc.allocate()
    with closing(SQLiteStore(devalloc.store)) as store:
        nodes = ScriptedNodes(store)
        nodes.take("node-a")
    devalloc("apply", "-f", "-", stdin=text(host("node-b"), migration()))
    devalloc.allocate()
    words = "virtualmachine default/web: will stay on node node-a: its migration to node node-b ends"
    assert words in devalloc("fence", "node/node-b", "--dry-run").out
    with closing(SQLiteStore(devalloc.store)) as store:
        nodes = ScriptedNodes(store)
        nodes.hand_over()
    assert words in devalloc("fence", "node/node-b", "--dry-run").out


def test_without_an_answer_to_the_question_nothing_is_done(fleet: Shell) -> None:
    result = fleet("fence", "node/node-a")
    assert result.code == 2
    assert "is node node-a powered off? To state that it is, add --yes" in result.err
    assert fleet("cordon").out == "nothing is cordoned\n"


def test_what_it_held_is_taken_away_and_allocated_elsewhere_and_the_node_shows_as_fenced(fleet: Shell) -> None:
    add_node_b(fleet)
    with controller(fleet):
        result = fleet("fence", "node-a", "--yes", "--reason", "no power", "--timeout", "60s")
    assert result.code == 0, result.err
    assert result.out.splitlines()[3:] == [
        "node node-a fenced",
        "deviceclaim default/alone taken away from node node-a",
        "deviceclaim default/card taken away from node node-a",
        "virtualmachine default/web taken away from node node-a",
    ]
    until(lambda: _is_placed_on(fleet, "node-b"), "another node has it")
    assert "fenced: by " in fleet("top", "--once", "-o", "wide").out
    listed = fleet("cordon").out
    assert ("fenced: node, by " in listed, "no power" in listed) == (True, True)
    assert fleet("unfence", "node/node-a").out == "node node-a is no longer fenced\n"
    assert fleet("unfence", "node/node-a").out == "node node-a was not fenced\n"
    assert fleet("cordon").out == "nothing is cordoned\n"


def _is_placed_on(fleet: Shell, node: str) -> bool:
    fleet.allocate()
    return bool(fleet("get", "vmachine/web", "-o", "json").json["status"].get("nodeName") == node)


def test_a_second_fence_keeps_the_first_reason_unless_it_has_one(fleet: Shell) -> None:
    def reasons() -> set[str]:
        pools = fleet("get", "pools", "-o", "json").json["items"]
        return {one["metadata"]["annotations"][meta.FENCED_NODE].partition(": ")[2] for one in pools}

    for given, expected in ((), ""), (("--reason", "no power"), "no power"), ((), "no power"), (("--reason", "x"), "x"):
        fleet("fence", "node/node-a", "--yes", "--timeout", "0s", *given)
        assert reasons() == {expected}
    with closing(SQLiteStore(fleet.store)) as store:
        first = store.list("DevicePool").objects[0]
        notes = {k: v for k, v in first["metadata"]["annotations"].items() if k != meta.FENCED_NODE}
        store.replace({**first, "metadata": {**first["metadata"], "annotations": notes}})
    fleet("fence", "node/node-a", "--yes", "--timeout", "0s")
    assert reasons() == {"x"}, "a pool that came later gets the reason of the others"


def test_nodes_are_listed_with_their_states_and_what_they_hold(fleet: Shell) -> None:
    add_node_b(fleet)
    fleet("cordon", "node/node-b", "--reason", "new fan")
    fleet("fence", "node/node-a", "--yes", "--reason", "no power", "--timeout", "0s")
    header, a, b = fleet("get", "nodes").out.splitlines()
    assert header.split() == ["NAME", "STATE", "POOLS", "MACHINES", "CLAIMS", "REASON"]
    assert (a.split()[:5], "no power" in a) == (["node-a", "Fenced", "2", "1", "2"], True)
    assert (b.split()[:2], "new fan" in b) == (["node-b", "Cordoned"], True)
    assert fleet("get", "nodes", "-o", "name").out.split() == ["node/node-a", "node/node-b"]
    assert fleet("get", "node/node-a", "-o", "json").json["status"]["state"] == "Fenced"
    assert fleet("get", "nodes", "-o", "jsonpath={.items[*].status.state}").out == "Fenced Cordoned"
    assert fleet("get", "nodes", "node-b", "--no-headers").out.split()[0] == "node-b"
    missing = fleet("get", "node/node-c", "node/node-b")
    assert (missing.code, "there is no node node-c" in missing.err, "node-b" in missing.out) == (4, True, True)
    for wrong in (("nodes", "-w"), ("node/a", "pool/b"), ("nodes", "node/a"), ("node/",)):
        assert fleet("get", *wrong).code == 2, wrong


def test_a_fleet_without_nodes_has_none(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(device_class()))
    result = devalloc("get", "nodes")
    assert (result.code, result.out, "no nodes" in result.err) == (0, "", True)


def test_without_a_controller_it_says_so(fleet: Shell) -> None:
    result = fleet("fence", "node/node-a", "--yes", "--timeout", "0s")
    assert result.code == 1
    assert "virtualmachine default/web was not taken away within 0 s; is the controller running" in result.err


def test_a_node_that_publishes_nothing_any_more_is_taken_from_at_once(fleet: Shell) -> None:
    with closing(SQLiteStore(fleet.store)) as store:
        for obj in store.list("DevicePool").objects:
            store.delete("DevicePool", None, obj["metadata"]["name"])
    result = fleet("fence", "node/node-a", "--yes", "--timeout", "0s")
    assert (result.code, "what it held was taken away" in result.out) == (0, True)
    assert "finalizers" not in fleet("get", "vmachine/web", "-o", "json").json["metadata"]


def test_the_help_says_that_a_node_of_kubernetes_has_no_reason(fleet: Shell) -> None:
    assert "Not stored if the node has a Node of Kubernetes" in " ".join(fleet("fence", "--help-all").out.split())


def test_only_nodes_that_there_are_can_be_fenced(fleet: Shell) -> None:
    assert "cannot fence pool/x, only nodes" in fleet("fence", "pool/x", "--yes").err
    assert fleet("fence", "pool/x", "--yes").code == 2, "invalid as it is written"
    for verb in (("fence", "--yes"), ("unfence",), ("cordon",), ("uncordon",), ("drain",)):
        unknown = fleet(*verb, "node/elsewhere")
        assert (unknown.code, "there is no node" in unknown.err) == (4, True), verb


def test_a_missing_name_is_a_usage_error(fleet: Shell) -> None:
    for verb in (("fence", "--yes"), ("unfence",), ("drain",), ("cordon",), ("uncordon",)):
        for word in ("", "node/"):
            refused = fleet(*verb, word)
            assert (refused.code, "error: the name is missing; write node/NAME" in refused.err) == (2, True), verb


def test_a_pool_that_is_applied_again_stays_fenced(fleet: Shell) -> None:
    fleet("fence", "node/node-a", "--yes", "--timeout", "0s")
    fleet("apply", "-f", "-", stdin=text(pool()))
    notes = fleet("get", "pools", "-o", "json").json["items"]
    assert all(meta.FENCED_NODE in one["metadata"]["annotations"] for one in notes)
