"""Decisions, and that a server which begins anew makes the same ledger of what is written down."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from devalloc.machines.permits.decide import PermitGrant, PermitTransaction, RetryLater
from devalloc.machines.permits.ledger import Host, PermitLedgers, dump_ledgers, machines_to_migrate
from devalloc.machines.permits.settings import Settings
from devalloc.scaling.messages.permits import RequestError, decode_request
from devalloc.scaling.permits.ledger import next_to_migrate
from devalloc.scaling.resources import NO_RESOURCES, Resources
from devalloc.scaling.versions import ProtocolEra
from devalloc.store import Object
from tests.support.examples import examples
from tests.support.permit_bench import GIB, amounts, machine
from tests.support.permit_records import SOURCES, changes_of

NOW = "2026-02-02T00:00:00Z"
LIMIT = amounts(10_000, 20)
NAMES = ("a", "b", "c")


class World:
    """A book, and a store that keeps what is written."""

    def __init__(self, era: ProtocolEra = ProtocolEra.V0_31, limit: Resources = LIMIT, **more: Any) -> None:
        self.settings = Settings(era=era, **more)
        self.hosts = {"node-a": Host(limit)}
        self.objects: dict[str, Object] = {}
        self.book = PermitLedgers(self.settings, SOURCES)
        self.book.begin(self.hosts)

    def write(self, obj: Object, **status: Any) -> None:
        """As its node or a user writes it."""
        name = obj["metadata"]["name"]
        version = str(1 + max((int(o["metadata"]["resourceVersion"]) for o in self.objects.values()), default=0))
        merged = {k: v for k, v in {**obj.get("status", {}), **status}.items() if v is not None}
        self.objects[name] = {
            **obj,
            "metadata": {**obj["metadata"], "resourceVersion": version},
            "status": merged,
        }
        self.book.put(self.objects[name])

    def runs(self, name: str, use: Resources = NO_RESOURCES, **more: Any) -> None:
        observed = {"cpus": f"{use.cpu}m", "memory": use.memory}
        self.write(machine(name, **more), phase="Running", machineID="1", observed=observed)

    def ask(self, name: str, cpu: Any, memory: Any, *, last: Any = None, version: int = 7, load: float = 0.5) -> Any:
        """What is granted, after it is written; or the status of the refusal."""
        metrics: dict[str, float] = {"loadAvg1M": load}
        message = {
            "protoVersion": version,
            "pod": {"namespace": "default", "name": name},
            "resources": {"vCPUs": cpu, "mem": memory},
            "lastPermit": last,
            "metrics": metrics,
        }
        if version >= 6:
            message["computeUnit"] = {"vCPUs": "250m", "mem": "1Gi"}
        if version < 7:
            metrics |= {"loadAvg5M": 0.5, "memoryUsageBytes": 1.0}
        draft = PermitTransaction(self.book, "server", NOW)
        try:
            granted = draft.answer(decode_request(json.dumps(message).encode()))
        except RequestError as refused:
            assert draft.records() == []
            return refused.status
        self.commit(draft)
        return granted

    def commit(self, draft: PermitTransaction) -> None:
        stored = []
        for change in changes_of(draft, self.book):
            obj = self.objects[change.key.name]
            assert change.resource_version == obj["metadata"]["resourceVersion"]
            if change.status != obj.get("status"):
                version = str(int(obj["metadata"]["resourceVersion"]) + 1000)
                obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": version}, "status": change.status}
            self.objects[change.key.name] = obj
            stored.append(obj)
        draft.adopt(stored)

    def reserved(self, book: PermitLedgers | None = None) -> dict[str, Resources]:
        node = (book or self.book).nodes["node-a"]
        return {key[1]: one.reserved for key, one in node.machines.items()}

    def anew(self) -> PermitLedgers:
        """What the next server makes of what is written."""
        book = PermitLedgers(self.settings, SOURCES)
        book.begin(self.hosts)
        for obj in self.objects.values():
            book.put(obj, starting=True)
        return book


def permit(granted: Any) -> Resources:
    assert isinstance(granted, PermitGrant)
    return granted.permit


wanted = st.integers(1, 48)
steps = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from(NAMES), wanted, st.sampled_from([7, 6, 5, 3, 2])),
    st.tuples(st.just("read back"), st.sampled_from(NAMES), wanted, st.none()),
    st.tuples(st.just("new run"), st.sampled_from(NAMES), wanted, st.none()),
    st.tuples(st.just("fails"), st.sampled_from(NAMES), wanted, st.none()),
)


@settings(max_examples=examples(10, 0.0875), deadline=None)
@given(st.lists(steps, max_size=15), st.sampled_from(list(ProtocolEra)))
def test_a_server_that_begins_anew_has_the_same_ledger(
    history: list[tuple[str, str, int, Any]], era: ProtocolEra
) -> None:
    world = World(era)
    for name in NAMES:
        world.runs(name)
        world.ask(name, 1, "1Gi")
    used: dict[str, Resources] = dict.fromkeys(NAMES, NO_RESOURCES)
    for what, name, amount, version in history:
        before = world.book.nodes["node-a"].counted
        if what == "ask":
            memory: Any = f"{amount}Gi" if version >= 6 else amount * 512
            world.ask(name, amount if version < 3 else f"{amount * 250}m", memory, version=version)
            assert not world.book.nodes["node-a"].counted.exceeds(LIMIT.most(before))
        elif what == "fails":
            draft = PermitTransaction(world.book, "server", NOW)
            body = json.dumps(
                {
                    "protoVersion": 7,
                    "pod": {"namespace": "default", "name": name},
                    "resources": {"vCPUs": amount, "mem": 1},
                    "computeUnit": {"vCPUs": 1, "mem": "2Mi"},
                }
            )
            draft.answer(decode_request(body.encode()))
            assert world.book.nodes["node-a"].counted == before, "no ledger has it"
        else:
            obj, run = world.objects[name], "1" if what == "read back" else str(amount + 1)
            used[name] = Resources(amount * 100, amount * GIB // 4)
            observed = {"cpus": f"{amount * 100}m", "memory": used[name].memory}
            world.write(obj, observed=observed, machineID=run)
        anew = world.anew()
        if all(record.permit is not None for record in anew.records.values()):
            assert world.reserved(anew) == world.reserved()
        for name_, amount_ in world.reserved().items():
            assert not used[name_].exceeds(amount_), "what was read back counts"
        total = NO_RESOURCES
        for amount_ in world.reserved().values():
            total = total + amount_
        assert world.book.nodes["node-a"].counted == total


def test_a_machine_without_a_request_since_the_start_counts_with_its_maximum() -> None:
    world = World()
    world.runs("a", amounts(2000, 4))
    world.runs("b")
    book = world.anew()
    assert world.reserved(book) == {"a": amounts(8000, 16), "b": amounts(8000, 16)}
    assert world.reserved() == {"a": amounts(2000, 4), "b": amounts(250, 1)}, "one that comes while it runs has nothing"


def test_the_oldest_protocols_get_whole_units_and_leave_the_system_its_part() -> None:
    world = World(system=amounts(500, 0.5))
    world.runs("a", slot=GIB, least=amounts(1000, 1))
    assert permit(world.ask("a", "99750m", 99, version=3)) == amounts(9500, 19)
    other = World(system=amounts(500, 0.5))
    other.runs("a", slot=GIB, least=amounts(1000, 1))
    assert permit(other.ask("a", 99, 99, version=2)) == amounts(9000, 19)


def test_the_newest_protocol_permits_more_than_the_capacity_with_overcommit() -> None:
    world = World(ProtocolEra.NEWEST)
    world.runs("a", annotations={"vm.neon.tech/overcommit": '{"cpu":"2","memory":1}'})
    assert permit(world.ask("a", 30, "30Gi")) == Resources(19_750 + 250, 20 * GIB)
    assert world.book.nodes["node-a"].counted == LIMIT
    assert world.book.nodes["node-a"].pressure == NO_RESOURCES


def test_newest_form_says_who_leaves_by_age() -> None:
    world = World(ProtocolEra.NEWEST)
    labels = {"autoscaling.neon.tech/enabled": "true", "autoscaling.neon.tech/auto-migration-enabled": "true"}
    for name, created in (("a", "2026-01-03"), ("b", "2026-01-01"), ("c", "2026-01-02")):
        obj = machine(name, labels=labels, **({"claims": ["gpu"]} if name == "b" else {}))
        obj["metadata"]["creationTimestamp"] = f"{created}T00:00:00Z"
        world.write(obj, phase="Running", machineID="1", observed={"cpus": "3", "memory": "1Gi"})
    assert machines_to_migrate(world.book) == []
    world.ask("a", 5, "1Gi")
    assert machines_to_migrate(world.book) == [("default", "c")]


@pytest.mark.parametrize("left", ["label", "bounds"])
def test_what_a_machine_was_permitted_stays_its_own_when_its_object_changes(left: str) -> None:
    world = World()
    world.runs("a")
    world.ask("a", 12, "12Gi")
    obj = world.objects["a"]
    if left == "label":
        world.write({**obj, "metadata": {**obj["metadata"], "labels": {}}})
        assert world.book.nodes["node-a"].pressure == NO_RESOURCES, "it does not ask any more"
        draft = PermitTransaction(world.book, "server", NOW)
        draft.retract(("default", "a"))
        world.commit(draft)
        assert world.reserved() == {"a": amounts(250, 1)}
    else:
        world.write({**obj, "spec": {**obj["spec"], "cpu": {"min": "1", "max": "2"}}})
        assert world.reserved()["a"].cpu == 10_000
        assert world.book.nodes["node-a"].pressure.cpu == 2000


def test_a_pod_of_others_counts_until_it_is_gone_and_a_machine_of_its_name_takes_its_place() -> None:
    world = World()
    world.hosts = {"node-a": Host(LIMIT, {("default", "pod"): amounts(4000, 1), ("default", "a"): amounts(1000, 1)})}
    world.book.limit(world.hosts)
    assert world.book.nodes["node-a"].counted == amounts(5000, 2)
    assert world.ask("pod", 1, "1Gi") == 400
    world.runs("a")
    assert world.book.nodes["node-a"].counted == amounts(4250, 2)
    world.book.limit({"node-a": Host(LIMIT)})
    assert world.book.nodes["node-a"].counted == amounts(250, 1)
    assert world.ask("pod", 1, "1Gi") == 404


def test_a_machine_can_leave_once_another_node_receives_it_though_its_object_does_not_change() -> None:
    world = World()
    world.book = PermitLedgers(world.settings, SOURCES, migrates=True)
    world.book.begin(world.hosts, lambda obj: False)
    world.runs("a", labels={"autoscaling.neon.tech/auto-migration-enabled": "true"})
    world.runs("b")
    for does, first in ((False, None), (True, ("default", "a")), (False, None)):
        world.book.limit(world.hosts, (lambda obj: True) if does else (lambda obj: False))
        assert next_to_migrate(world.book.nodes["node-a"]) == first


def test_the_whole_maximum_counts() -> None:
    world = World()
    world.runs("a", reserveMax=True)
    assert world.book.nodes["node-a"].counted == amounts(8000, 16)
    world.runs("b")
    assert world.book.nodes["node-a"].counted == amounts(8250, 17)
    assert permit(world.ask("b", 8, "8Gi")) == amounts(2000, 4)
    assert permit(world.ask("a", 8, "16Gi")) == amounts(8000, 16)


def test_machines_that_go_or_move_give_back_all_they_had() -> None:
    world = World()
    world.hosts |= {"node-b": Host(LIMIT)}
    world.book.limit(world.hosts)
    world.runs("a")
    world.ask("a", 4, "4Gi")
    obj = world.objects["a"]
    world.write({**obj, "spec": {**obj["spec"], "nodeName": "node-b"}})
    assert [world.book.nodes[name].counted for name in ("node-a", "node-b")] == [NO_RESOURCES, amounts(4000, 4)]
    world.book.drop(("default", "a"))
    assert world.book.nodes["node-b"].counted == NO_RESOURCES
    assert world.ask("a", 1, "1Gi") == 404
    world.book.put(replace_version(obj, "99999"))
    world.book.put({**replace_version(obj, "99998"), "spec": {}})
    assert world.reserved() == {"a": amounts(4000, 4)}, "what is older is left aside"


def replace_version(obj: Object, version: str) -> Object:
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": version}}


def test_marks_of_settings_count() -> None:
    world = World()
    world.book.settings = replace(world.settings, watermark=(0.5, 0.9))
    world.book.limit(world.hosts)
    assert world.book.nodes["node-a"].watermark == Resources(5000, 18 * GIB)


def test_a_late_deletion_does_not_drop_the_newer_machine() -> None:
    world = World()
    world.runs("a")
    world.ask("a", 4, "4Gi")
    world.book.drop(("default", "a"), "1")
    assert world.reserved() == {"a": amounts(4000, 4)}
    world.book.drop(("default", "a"), "99999")
    assert world.reserved() == {}


@pytest.mark.parametrize("goes", ["first", "second"])
def test_a_pod_that_goes_to_another_node_leaves_nothing_behind(goes: str) -> None:
    world = World()
    pod = {("default", "pod"): amounts(4000, 1)}
    there = [Host(LIMIT, pod), Host(LIMIT)] if goes == "first" else [Host(LIMIT), Host(LIMIT, pod)]
    world.book.limit(dict(zip(("node-a", "node-b"), there, strict=True)))
    world.book.limit(dict(zip(("node-a", "node-b"), reversed(there), strict=True)))
    counted = [world.book.nodes[name].counted for name in ("node-a", "node-b")]
    assert sorted(counted, key=lambda r: r.cpu) == [NO_RESOURCES, amounts(4000, 1)]


def test_a_pod_keeps_its_machine_when_another_one_lets_go_of_it() -> None:
    world = World()
    for name in ("a", "b"):
        world.runs(name)
        world.write(world.objects[name], runnerPod="pod")
    world.book.drop(("default", "a"))
    assert permit(world.ask("pod", 1, "1Gi")) == amounts(1000, 1)


def test_a_node_that_names_the_pod_of_another_nodes_machine_takes_nothing_from_that() -> None:
    world, pod = World(), ("default", "pod")
    world.runs("a")
    world.write(world.objects["a"], runnerPod="pod")
    world.runs("b", node="node-b")
    world.write(world.objects["b"], runnerPod="pod")
    assert [world.book.find(pod, node).node for node in ("node-a", "node-b", "node-c")] == [
        "node-a",
        "node-b",
        "node-b",
    ]
    world.write(world.objects["b"], runnerPod="other")
    assert world.book.find(pod).key == ("default", "a")
    world.book.drop(("default", "a"))
    with pytest.raises(RequestError):
        world.book.find(pod)


@pytest.mark.parametrize("created", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "yesterday", ""])
def test_a_machine_of_any_age_is_known(created: str) -> None:
    world = World()
    obj = machine("a")
    obj["metadata"]["creationTimestamp"] = created
    world.write(obj, phase="Running")
    assert permit(world.ask("a", 1, "1Gi")) == amounts(1000, 1)


def test_the_state_can_be_shown_after_huge_requests() -> None:
    world = World()
    for name in NAMES:
        world.runs(name)
        world.ask(name, "4294967295m", "18446744073709551615")
    shown = dump_ledgers(world.book)["nodes"]["node-a"]
    assert shown["pressure"] == {"cpu": "4294967295m", "memory": "18446744073709551615"}


# -- requests that were late on their way ----------------------------------------------------------------------------


def wire_amounts(cpu: int, gib: int) -> dict[str, Any]:
    """As an agent says it."""
    return {"vCPUs": cpu, "mem": f"{gib}Gi"}


def room_beside(world: World, name: str = "b") -> Resources:
    """What another machine gets of all there is."""
    anew = World()
    anew.objects, anew.hosts = dict(world.objects), world.hosts
    anew.book = world.anew()
    return permit(anew.ask(name, 10, "20Gi"))


@pytest.mark.parametrize("version", [7, 6, 5, 4])
def test_a_request_with_an_older_permit_makes_no_room_until_its_agent_has_the_new_one(version: int) -> None:
    world = World()
    memory: Any = (lambda gib: f"{gib}Gi") if version >= 6 else int
    last: Any = lambda cpu, gib: {"vCPUs": cpu, "mem": memory(gib)}  # noqa: E731
    for name in ("a", "b"):
        world.runs(name, slot=GIB)
        world.ask(name, 1, memory(1), version=version)
    assert permit(world.ask("a", 8, memory(16), last=last(1, 1), version=version)) == amounts(8000, 16)
    late = world.ask("a", 2, memory(2), last=last(1, 1), version=version)  # sent before that, and its answer is lost
    assert permit(late) == amounts(2000, 2)
    assert room_beside(world) == amounts(2000, 4), "a may take 8 CPUs, also where the server was killed since"
    assert permit(world.ask("a", 8, memory(16), last=last(8, 16), version=version)) == amounts(8000, 16), "it still can"
    assert permit(world.ask("a", 2, memory(2), last=last(8, 16), version=version)) == amounts(2000, 2)
    assert room_beside(world) == amounts(8000, 18), "who knows what it has and wants less makes room at once"


def test_a_reply_that_was_lost_keeps_room_until_the_next_request() -> None:
    world = World()
    for name in ("a", "b"):
        world.runs(name)
        world.ask(name, 1, "1Gi")
    world.ask("a", 8, "16Gi", last=wire_amounts(1, 1))  # the reply is lost
    assert permit(world.ask("a", 3, "3Gi", last=wire_amounts(1, 1))) == amounts(3000, 3)
    assert room_beside(world) == amounts(2000, 4)
    world.ask("a", 3, "3Gi", last=wire_amounts(3, 3))
    assert room_beside(world) == amounts(7000, 17)
    assert "kept" not in world.objects["a"]["status"]["permitted"]


def test_a_claimed_permit_counts_at_most_as_written_and_ends_with_the_run() -> None:
    world = World()
    for name in ("a", "b"):
        world.runs(name)
        world.ask(name, 4, "4Gi")
    forged = wire_amounts(9, 19)
    for _ in range(3):
        assert permit(world.ask("a", 1, "1Gi", last=forged)) == amounts(1000, 1)
    assert world.reserved()["a"] == amounts(4000, 4)
    assert permit(world.ask("a", 10, "20Gi", last=forged)) == amounts(6000, 16)
    assert permit(world.ask("a", 1, "1Gi", last=None)) == amounts(1000, 1), "an agent that begins knows of nothing"
    assert world.reserved()["a"] == amounts(1000, 1)
    world.ask("a", 6, "6Gi")
    world.ask("a", 1, "1Gi", last=forged)
    world.write(world.objects["a"], machineID="2", observed={"cpus": "1", "memory": "1Gi"})
    assert world.reserved()["a"] == amounts(1000, 1)


def test_a_removed_permit_is_written_again() -> None:
    world = World()
    for name in ("a", "b"):
        world.runs(name)
        world.ask(name, 4, "4Gi")
    world.write(world.objects["a"], permitted=None)
    assert world.reserved()["a"] == amounts(4000, 4)
    assert permit(world.ask("b", 10, "20Gi")) == amounts(6000, 16)
    assert permit(world.ask("a", 4, "4Gi", last=wire_amounts(4, 4))) == amounts(4000, 4)
    assert world.objects["a"]["status"]["permitted"]["cpus"] == "4"
    world.write(world.objects["a"], permitted=None, machineID="2")
    assert world.reserved()["a"] == amounts(250, 1), "another run"


def test_another_machine_of_the_same_name_has_nothing_of_the_one_before() -> None:
    world = World()
    obj = machine("a")
    for uid in ("first", "second"):
        world.write({**obj, "metadata": {**obj["metadata"], "uid": uid}}, phase="Running", machineID="1")
        assert world.reserved() == {"a": amounts(250, 1)}
        world.ask("a", 8, "8Gi")


def test_a_server_of_one_node_knows_its_machines_only() -> None:
    world = World()
    world.book = PermitLedgers(world.settings, SOURCES, node="node-a")
    world.book.begin(world.hosts)
    world.runs("a")
    world.runs("b", node="node-b")
    assert sorted(world.book.nodes) == ["node-a"]
    assert world.ask("b", 1, "1Gi") == 404
    obj = world.objects["a"]
    world.write({**obj, "spec": {**obj["spec"], "nodeName": "node-b"}})
    assert world.ask("a", 1, "1Gi") == 404
    assert world.book.nodes["node-a"].counted == NO_RESOURCES


# -- several machines at once ------------------------------------------------------------------------------------------


def request(name: str, wanted: Resources, last: Resources | None = None) -> Any:
    """As it comes."""
    content = {
        "protoVersion": 7,
        "pod": {"namespace": "default", "name": name},
        "computeUnit": {"vCPUs": "250m", "mem": "1Gi"},
        "resources": {"vCPUs": f"{wanted.cpu}m", "mem": str(wanted.memory)},
        "lastPermit": None if last is None else {"vCPUs": f"{last.cpu}m", "mem": str(last.memory)},
        "metrics": {"loadAvg1M": 0.5},
    }
    return decode_request(json.dumps(content).encode())


def test_what_one_gives_back_another_gets_when_that_is_written() -> None:
    world = World()
    for name, cpu in (("a", 8), ("b", 2)):
        world.runs(name)
        world.ask(name, cpu, "2Gi")
    draft = PermitTransaction(world.book, "server", NOW)
    assert permit(draft.answer(request("a", amounts(1000, 2)))) == amounts(1000, 2)
    with pytest.raises(RetryLater):
        draft.answer(request("b", amounts(6000, 2)))
    world.commit(draft)
    assert permit(world.ask("b", 6, "2Gi")) == amounts(6000, 2)


def test_what_there_is_anyway_need_not_wait() -> None:
    world = World()
    for name in ("a", "b"):
        world.runs(name)
        world.ask(name, 4, "2Gi")
    draft = PermitTransaction(world.book, "server", NOW)
    draft.answer(request("a", amounts(1000, 2)))
    assert permit(draft.answer(request("b", amounts(6000, 2)))) == amounts(6000, 2)


amount_of = st.builds(amounts, st.integers(1, 6).map(lambda cpus: cpus * 1000), st.sampled_from([1, 6, 8]))


@settings(max_examples=examples(18, 0.15), deadline=None)
@given(
    before=st.lists(st.tuples(st.sampled_from(NAMES), amount_of), max_size=6),
    uses=st.lists(st.tuples(st.sampled_from(NAMES), amount_of), max_size=2),
    requests=st.lists(
        st.tuples(st.sampled_from(NAMES), amount_of, st.none() | amount_of), min_size=2, unique_by=lambda each: each[0]
    ),
    written=st.sets(st.sampled_from(NAMES)),
)
@example([], [], [("a", amounts(1000, 1), None), ("b", amounts(5000, 6), None)], {"b"})
def test_whatever_part_of_a_draft_is_written_no_node_has_given_more_than_it_has(
    before: list[tuple[str, Resources]],
    uses: list[tuple[str, Resources]],
    requests: list[tuple[str, Resources, Resources | None]],
    written: set[str],
) -> None:
    """In any order, and whichever server goes on from there: this server, or the next one."""
    world = World()
    for name in NAMES:
        world.runs(name)
        world.ask(name, 3, "6Gi")
    for name, amount in before:
        world.ask(name, f"{amount.cpu}m", str(amount.memory))
    for name, amount in uses:
        has = world.book.nodes["node-a"].machines["default", name].reserved
        use = {"cpus": f"{min(amount.cpu, has.cpu)}m", "memory": str(min(amount.memory, has.memory))}
        world.write(world.objects[name], observed=use)
    draft = PermitTransaction(world.book, "server", NOW)
    for name, amount, last in requests:
        with suppress(RetryLater):
            draft.answer(request(name, amount, last))
    stored, lost = [], []
    for change in changes_of(draft, world.book):
        key = (change.key.namespace or "default", change.key.name)
        if key[1] not in written:
            lost.append(key)
            continue
        obj = world.objects[key[1]]
        version = str(int(obj["metadata"]["resourceVersion"]) + 1000)
        world.objects[key[1]] = {**replace_version(obj, version), "status": change.status}
        stored.append(world.objects[key[1]])
    draft.adopt(stored, lost)
    for book in (world.book, world.anew()):
        assert not book.nodes["node-a"].counted.exceeds(LIMIT)
    assert world.reserved() == {
        key[1]: machine.reserved for key, machine in world.anew().nodes["node-a"].machines.items()
    }
