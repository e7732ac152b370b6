"""The controller of VirtualMachineReplicaSets: it converges, has never too many, and deletes no healthy machine that is
wanted."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.api.conditions import find_condition
from devalloc.api.decode import decode
from devalloc.api.kinds import find_kind
from devalloc.api.replica_set import MAX_NAME
from devalloc.machines import replica_sets
from devalloc.machines.replica_sets import KIND, MACHINE, ReplicaSets, plan
from devalloc.store import Forbidden, NotFound, Object, StoreError, UnknownOutcome
from devalloc.store.sqlite import SQLiteStore
from devalloc.store.watcher import Listed
from tests.support.examples import examples
from tests.support.refusing_store import DENIED, RefusingStore
from tests.support.waiting import in_threads, until

SPEC = {
    "cpu": {"min": 1, "max": 1},
    "memory": {"min": "256Mi", "max": "256Mi"},
    "disk": "4Gi",
    "restartPolicy": "Never",
    "start": {"disks": [{"path": "/images/shared/web.raw", "format": "raw", "clone": "overlay"}]},
}


def replica_set(replicas: int = 3, name: str = "web", **spec: Any) -> Object:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {**SPEC, **spec}}
    metadata = {"name": name, "namespace": "team"}
    return {
        "apiVersion": "devalloc.io/v1alpha1",
        "kind": KIND,
        "metadata": metadata,
        "spec": {"replicas": replicas, "template": template},
    }


def list_to(controller: ReplicaSets, store: Any) -> str:
    """Tell all objects; the place in the store's history."""
    listing = store.list((KIND, MACHINE))
    controller.worker.tell(Listed(listing.objects))
    return str(listing.resource_version)


class World:
    """A store, a controller on it, and what users, nodes and time do. Rounds are made by hand."""

    def __init__(self, path: Path) -> None:
        self.store: Any = RefusingStore(SQLiteStore(path))
        self.seconds = 0.0
        self.age = 0.0
        """How much older machines are than the store says, which goes by the real time."""
        self.controller = self.restarted()
        self.version = "0"

    def restarted(self) -> ReplicaSets:
        self.controller = ReplicaSets(
            self.store,
            collects=True,
            clock=lambda: self.seconds,
            now=lambda: datetime.now(UTC) + timedelta(seconds=self.age),
        )
        self.version = list_to(self.controller, self.store)
        return self.controller

    def hear(self) -> None:
        for event in self.store.watch((KIND, MACHINE), self.version, timeout=0.0):
            self.controller.worker.tell(event)
            self.version = event.resource_version

    def round(self) -> float:
        """Seconds until something is due, at most those until the next listing."""
        pause = self.controller.worker.round()
        return replica_sets.RESYNC_SECONDS if pause is None else min(pause, replica_sets.RESYNC_SECONDS)

    def settle(self, rounds: int = 50) -> None:
        for _ in range(rounds):
            self.hear()
            if self.round() > 0:
                return
        raise AssertionError("it never comes to rest")

    def apply(self, wanted: Object) -> None:
        try:
            there = self.store.get(KIND, "team", wanted["metadata"]["name"])
        except NotFound:
            self.store.create(wanted)
            return
        self.store.replace({**there, "spec": wanted["spec"]})

    def machines(self, *, live: bool = True) -> dict[str, Object]:
        listed = self.store.list(MACHINE).objects
        return {
            obj["metadata"]["name"]: obj
            for obj in listed
            if not live or (obj.get("status") or {}).get("phase") != "Stopped"
        }

    def report(self, name: str, phase: str, reason: str = "") -> None:
        there = self.store.get(MACHINE, "team", name)
        self.store.replace_status({**there, "status": {"phase": phase, "reason": reason}})

    def status(self) -> Object:
        status: Object = self.store.get(KIND, "team", "web")["status"]
        return status

    def failures(self) -> list[tuple[str, str]]:
        """Reasons and messages of the condition ReplicaFailure."""
        conditions = [one for one in self.status()["conditions"] if one["type"] == "ReplicaFailure"]
        return [(one["reason"], one["message"]) for one in conditions]

    def ready(self) -> tuple[str, str, str]:
        """Status, reason and message of the condition Ready."""
        one = find_condition(self.status()["conditions"], "Ready")
        assert one["observedGeneration"] == self.status()["observedGeneration"]
        return one["status"], one["reason"], one["message"]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "store.db")
    yield made
    made.store.close()


def test_machines_of_a_set_are_made_from_its_template(world: World) -> None:
    world.apply(replica_set(2))
    world.settle()
    uid = world.store.get(KIND, "team", "web")["metadata"]["uid"]
    assert list(world.machines()) == ["web-1", "web-2"]
    one = world.machines()["web-1"]
    assert one["metadata"]["labels"] == {"app": "web", "devalloc.io/replica-set": "web"}
    owner = {"apiVersion": "devalloc.io/v1alpha1", "kind": KIND, "name": "web", "uid": uid, "controller": True}
    assert one["metadata"]["ownerReferences"] == [owner]
    assert one["spec"] == SPEC
    assert decode(one).problems == []
    assert {name: world.status()[name] for name in ("replicas", "readyReplicas", "selector")} == {
        "replicas": 2,
        "readyReplicas": 0,
        "selector": "devalloc.io/replica-set=web",
    }
    assert world.failures() == []
    world.report("web-2", "Running")
    world.settle()
    assert world.status()["readyReplicas"] == 1
    assert decode(world.store.get(KIND, "team", "web")).problems == []


def test_a_machine_that_is_deleted_or_ended_is_replaced_and_one_that_its_node_starts_again_is_not(
    world: World,
) -> None:
    world.apply(replica_set(3))
    world.settle()
    for name in world.machines():
        world.report(name, "Running")
    world.store.delete(MACHINE, "team", "web-2")
    world.settle()
    assert list(world.machines()) == ["web-1", "web-2", "web-3"]
    world.age = 3600
    world.report("web-1", "Stopped", "MachineEnded")
    world.settle()
    assert list(world.machines(live=False)) == ["web-2", "web-3", "web-4"], "the ended one went with its replacement"
    world.report("web-3", "Failed", "PathMissing")
    world.report("web-4", "Stopped", "StoppedOnRequest")
    world.settle()
    assert list(world.machines(live=False)) == ["web-2", "web-3", "web-4"]


def test_how_a_machine_ended_outlives_the_machine(world: World) -> None:
    world.apply(replica_set(2))
    world.settle()
    world.age = 3600
    for name, time, signal in (("web-1", "2026-01-01T00:00:01Z", 9), ("web-2", "2026-01-01T00:00:00Z", 11)):
        there = world.store.get(MACHINE, "team", name)
        end = {"time": time, "signal": signal, "message": "qemu: bye"}
        content = {"phase": "Stopped", "reason": "MachineEnded", "lastEnd": end}
        world.store.replace_status({**there, "status": content})
    world.settle()
    assert "web-1" not in world.machines()
    last = {"machine": "web-1", "time": "2026-01-01T00:00:01Z", "signal": 9, "message": "qemu: bye"}
    assert world.status()["lastEnd"] == last, "the latest one"
    world.settle()
    assert world.status()["lastEnd"] == last
    assert decode(world.store.get(KIND, "team", "web")).problems == []


def test_those_that_do_not_run_go_first_and_of_these_the_newest(world: World) -> None:
    world.apply(replica_set(5))
    world.settle()
    for name in ("web-2", "web-4", "web-5"):
        world.report(name, "Running")
    for wanted, left in ((4, "1245"), (3, "245"), (1, "2"), (0, "")):
        world.apply(replica_set(wanted))
        world.settle()
        assert list(world.machines()) == [f"web-{number}" for number in left]


def test_machines_whose_guests_report_are_ready_when_these_say_so(world: World) -> None:
    world.apply(replica_set(3, guestReports=True))
    world.settle()
    for name, status in (("web-1", "False"), ("web-2", "True"), ("web-3", "")):
        there = world.store.get(MACHINE, "team", name)
        one = {"type": "Ready", "status": status, "reason": "GuestReady", "message": "", "lastTransitionTime": ""}
        content = {"phase": "Running", "conditions": [one] if status else []}
        world.store.replace_status({**there, "status": content})
    world.settle()
    assert (world.status()["replicas"], world.status()["readyReplicas"]) == (3, 1)
    world.report("web-1", "Pending")
    world.apply(replica_set(2, guestReports=True))
    world.settle()
    assert list(world.machines()) == ["web-2", "web-3"], "one that does not run goes before one that is not ready"
    world.apply(replica_set(1, guestReports=True))
    world.settle()
    assert list(world.machines()) == ["web-2"], "the one that is ready stays"
    world.age = 3600
    world.report("web-2", "Stopped", "GuestFinished")
    world.settle()
    assert list(world.machines(live=False)) == ["web-1"], "one that has finished is replaced"


def test_machines_that_end_at_once_are_replaced_more_and_more_slowly_and_stay_to_be_looked_at(world: World) -> None:
    world.apply(replica_set(1))
    world.settle()
    waits = []
    for _ in range(12):
        (name,) = world.machines()
        world.report(name, "Stopped", "MachineEnded")
        world.hear()
        wait = 0.0
        begun = world.seconds
        while not world.machines():
            world.hear()
            wait = world.round()
            assert wait <= replica_sets.RESYNC_SECONDS
            assert world.machines() or list(world.machines(live=False)) == [name], "its log can be read until then"
            world.seconds += wait if not world.machines() else 0
        waits.append(world.seconds - begun)
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    (name,) = world.machines()
    world.report(name, "Running")
    world.age = 61
    world.settle()
    world.report(name, "Stopped", "MachineEnded")
    world.settle()
    assert len(world.machines()) == 1, "one that lasted is replaced at once"


def test_a_set_whose_machines_are_refused_says_so_and_tries_again_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.apply(replica_set(2))
    world.apply(replica_set(1, name="other"))

    def refused(obj: Object) -> Object:
        if obj["metadata"]["name"].startswith("web"):
            raise Forbidden("exceeded quota: count/virtualmachines")
        return real(obj)

    real = world.store.create
    monkeypatch.setattr(world.store, "create", refused)
    world.settle()
    condition = find_condition(world.status()["conditions"], "ReplicaFailure")
    assert (condition["type"], condition["status"], condition["reason"]) == ("ReplicaFailure", "True", "FailedCreate")
    assert "machine team/web-1 cannot be created: exceeded quota" in condition["message"]
    assert world.ready()[:2] == ("False", "FailedCreate")
    assert world.ready()[2].startswith(
        "0 of 2 machines are ready; machine team/web-1 cannot be created: exceeded quota"
    )
    assert list(world.machines()) == ["other-1"], "other sets do not wait"
    monkeypatch.setattr(world.store, "create", real)
    world.settle()
    assert list(world.machines()) == ["other-1"], "not before its time"
    world.seconds += 1.5
    world.settle()
    assert list(world.machines()) == ["other-1", "web-1", "web-2"]
    assert world.failures() == []


def test_a_set_is_ready_when_it_has_as_many_machines_as_wanted_and_all_are_ready(world: World) -> None:
    world.apply(replica_set(2))
    world.settle()
    waits = "2 machines are ready: `devalloc explain vmrs/web -n team` shows why"
    assert world.ready() == ("False", "MachinesNotReady", f"0 of {waits}")
    world.report("web-1", "Running")
    world.settle()
    assert world.ready() == ("False", "MachinesNotReady", f"1 of {waits}")
    world.report("web-2", "Running")
    world.settle()
    assert world.ready() == ("True", "MachinesReady", "2 of 2 machines are ready")
    world.apply(replica_set(3))
    world.settle()
    assert world.ready()[:2] == ("False", "MachinesNotReady")
    world.apply(replica_set(0))
    world.settle()
    assert world.ready() == ("True", "MachinesReady", "0 of 0 machines are ready")


def test_a_set_with_a_machine_that_cannot_be_deleted_is_not_ready(world: World) -> None:
    world.apply(replica_set(2))
    world.settle()
    for name in ("web-1", "web-2"):
        world.report(name, "Running")
    world.store.refused["web-2"] = DENIED
    world.apply(replica_set(1))
    world.settle()
    status, reason, message = world.ready()
    assert (status, reason) == ("False", "FailedDelete")
    assert message.startswith("2 of 1 machines are ready; machine team/web-2 cannot be deleted"), message


def test_ready_costs_a_set_no_write_of_its_own(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Object] = []
    real = world.store.replace_status

    def noted(obj: Object) -> Object:
        written.append(obj)
        stored: Object = real(obj)
        return stored

    world.apply(replica_set(1))
    world.settle()
    world.report("web-1", "Starting")
    monkeypatch.setattr(world.store, "replace_status", noted)
    world.settle()
    world.age += 100.0
    world.restarted()
    world.settle()
    assert written == [], "nothing that the status counts has changed"


def test_a_set_that_needs_no_more_machines_does_not_say_that_they_cannot_be_created(world: World) -> None:
    world.store.refused["web-3"] = Forbidden("exceeded quota: count/virtualmachines")
    world.apply(replica_set(3))
    world.settle()
    assert [reason for reason, _ in world.failures()] == ["FailedCreate"]
    world.apply(replica_set(2))
    world.settle()
    assert (world.failures(), world.status()["replicas"]) == ([], 2)


@pytest.mark.parametrize("error", [DENIED, UnknownOutcome("failed calling webhook: no answer")])
@pytest.mark.parametrize("first", ["created", "deleted"])
def test_a_machine_that_cannot_be_created_or_deleted_does_not_block_the_other_sets(
    world: World, error: StoreError, first: str
) -> None:
    """Neither where a policy refuses it, nor where a webhook for it fails."""
    before, after = (1, 2) if first == "created" else (2, 1)
    for name in ("web", "zeta"):
        world.apply(replica_set(before, name=name))
    world.settle()
    world.store.refused["web-2"] = error
    for name in ("web", "zeta"):
        world.apply(replica_set(after, name=name))
    world.settle()
    assert [name for name in world.machines() if name.startswith("zeta")] == ["zeta-1", "zeta-2"][:after]
    ((reason, message),) = world.failures()
    assert (reason, world.status()["replicas"]) == ("FailedCreate" if first == "created" else "FailedDelete", before)
    assert message == f"machine team/web-2 cannot be {first}: {error}"
    world.store.refused.clear()
    world.settle()
    assert world.status()["replicas"] == before, "not before its time"
    world.seconds += 1.5
    world.settle()
    assert (world.status()["replicas"], world.failures()) == (after, [])


def test_of_one_set_the_machines_that_cannot_be_deleted_stay_and_all_else_goes_on(world: World) -> None:
    world.apply(replica_set(4))
    world.settle()
    world.store.refused["web-4"] = DENIED
    for wanted, there in ((2, "124"), (1, "14"), (0, "4"), (2, "14"), (3, "124")):
        world.apply(replica_set(wanted))
        world.settle()
        assert list(world.machines()) == [f"web-{number}" for number in there]
        assert world.status()["replicas"] == len(there)
        assert [reason for reason, _ in world.failures()] == (["FailedDelete"] if len(there) > wanted else [])


def test_a_namespace_creates_many_machines_at_a_bounded_rate_and_the_others_do_not_wait_for_it(world: World) -> None:
    world.store.create(replica_set(1000))
    world.settle()
    assert len(world.machines()) == replica_sets.BURST
    world.seconds += 2.0
    world.settle()
    assert len(world.machines()) == replica_sets.BURST + 2 * replica_sets.CREATIONS_PER_SECOND
    world.store.create({**replica_set(30), "metadata": {"name": "api", "namespace": "other"}})
    world.settle()
    assert sum(name.startswith("api-") for name in world.machines()) == 30


def test_a_name_that_is_taken_is_passed_over(world: World) -> None:
    other = {"apiVersion": "devalloc.io/v1alpha1", "kind": MACHINE, "metadata": {"name": "web-1", "namespace": "team"}}
    world.store.create({**other, "spec": SPEC})
    world.apply(replica_set(2))
    world.settle()
    assert list(world.machines()) == ["web-1", "web-2", "web-3"]
    world.apply(replica_set(0))
    world.settle()
    assert list(world.machines()) == ["web-1"], "that of another owner stays"


def test_without_a_garbage_collector_machines_go_with_their_set(world: World) -> None:
    world.apply(replica_set(2))
    world.apply(replica_set(1, name="other"))
    world.settle()
    world.store.delete(KIND, "team", "web")
    world.settle()
    assert list(world.machines()) == ["other-1"]
    world.store.delete(KIND, "team", "other")
    world.apply(replica_set(1, name="other"))  # another one of its name
    world.restarted()
    world.settle()
    (one,) = world.machines().values()
    assert one["metadata"]["ownerReferences"][0]["uid"] == world.store.get(KIND, "team", "other")["metadata"]["uid"]


def test_a_controller_that_knows_too_little_creates_nothing_twice(world: World) -> None:
    """Another one, or this one before it died, has created them, and its listing does not have them."""
    world.apply(replica_set(3))
    stale = ReplicaSets(world.store, collects=True, clock=lambda: 0.0)
    list_to(stale, world.store)
    world.settle()
    stale.worker.round()
    assert list(world.machines()) == ["web-1", "web-2", "web-3"]


@settings(max_examples=examples(8, 0.0625), deadline=None)
@given(data=st.data())
def test_whatever_happens_it_converges_and_never_has_too_many_or_deletes_one_that_is_wanted(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = World(tmp_path_factory.mktemp("w") / "store.db")
    try:
        wanted = 3
        world.apply(replica_set(wanted))
        for _ in range(data.draw(st.integers(1, 12))):
            names = sorted(world.machines(live=False))
            act = data.draw(st.sampled_from(["scale", "delete", "end", "run", "restart", "hear", "later"]))
            if act == "scale":
                world.apply(replica_set(wanted := data.draw(st.integers(0, 6))))
            elif act == "later":
                world.seconds += data.draw(st.sampled_from([0.5, 70.0, 400.0]))
            elif act == "restart":
                world.restarted()
            elif act == "hear":
                world.hear()
            elif names:
                name = data.draw(st.sampled_from(names))
                if act == "delete":
                    world.store.delete(MACHINE, "team", name)
                else:
                    world.report(name, *(("Stopped", "MachineEnded") if act == "end" else ("Running",)))
            before = world.machines()
            world.round()
            after = world.machines()
            lost = before.keys() - after.keys()
            spare = len(before) - wanted
            assert len(lost) <= max(0, spare), "it deleted one that was wanted"
            running = {name for name in before if before[name].get("status", {}).get("phase") == "Running"}
            assert not lost & running or len(running) > wanted or not (before.keys() - lost - running), (
                "it deleted one that runs and left one that does not"
            )
            assert len(after) <= max(len(before), wanted)
        for _ in range(2):  # what ended last may be a failure that is waited for
            world.settle()
            world.seconds += 1000
        world.settle()
        assert len(world.machines()) == wanted
        assert world.status()["replicas"] == wanted
    finally:
        world.store.close()


@given(
    wanted=st.integers(0, 8),
    there=st.lists(
        st.tuples(st.sampled_from(["Running", "Pending", "Stopped", "gone"]), st.integers(0, 3)), max_size=8
    ),
)
def test_a_plan_leaves_the_oldest_that_run(wanted: int, there: list[tuple[str, int]]) -> None:
    rng = random.Random(1)
    machines = []
    for number, (phase, age) in enumerate(there, 1):
        metadata = {"name": f"w-{number}", "uid": f"u{number}", "creationTimestamp": f"2026-01-01T00:00:0{age}Z"}
        metadata |= {"namespace": "team"} | ({"deletionTimestamp": "2026-01-02T00:00:00Z"} if phase == "gone" else {})
        status = {
            "phase": "Running" if phase == "gone" else phase,
            "reason": "MachineEnded" if phase == "Stopped" else "",
        }
        machines.append(
            {
                "apiVersion": "devalloc.io/v1alpha1",
                "kind": MACHINE,
                "metadata": metadata,
                "spec": SPEC,
                "status": status,
            }
        )
    rng.shuffle(machines)
    names = {machine["metadata"]["name"] for machine in machines}
    made = plan("w", wanted, machines, names.__contains__)
    live = [
        m
        for m in machines
        if m["status"]["phase"] in ("Running", "Pending") and "deletionTimestamp" not in m["metadata"]
    ]
    deleted = [m for m in made.delete if m in live]
    assert len(live) - len(deleted) + len(made.create) == wanted
    assert not deleted or not made.create
    assert not names & set(made.create)
    assert len(set(made.create)) == len(made.create)
    assert all("deletionTimestamp" not in m["metadata"] for m in made.delete)
    rank = {m["metadata"]["uid"]: (m["status"]["phase"] == "Running", m["metadata"]["creationTimestamp"]) for m in live}
    for gone in deleted:
        for stays in (m for m in live if m not in deleted):
            ready, since = rank[stays["metadata"]["uid"]]
            was_ready, was_since = rank[gone["metadata"]["uid"]]
            assert ready >= was_ready
            assert ready > was_ready or since <= was_since


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"claims": ["gpu"]}, "spec.template.spec.claims"),
        ({"nics": [{"mac": "02:00:00:00:00:01"}]}, "spec.template.spec.nics[0].mac"),
        ({"nics": [{"backend": "tap", "interface": "team.a"}]}, "spec.template.spec.nics[0].interface"),
        ({"scaling": {"address": "10.0.0.2"}}, "spec.template.spec.scaling"),
        ({"runner": {"address": "10.0.0.2"}}, "spec.template.spec.runner"),
        ({"start": {"disks": [{"path": "/a", "format": "raw"}]}}, "spec.template.spec.start.disks[0].clone"),
        ({"cpu": {"min": 0, "max": 1}}, "spec.template.spec.cpu.min"),
    ],
)
def test_what_only_one_machine_can_have_is_refused_in_a_template(change: Any, path: str) -> None:
    assert [problem.path for problem in decode(replica_set(**change)).problems] == [path]
    assert decode(replica_set()).problems == []


def test_names_and_labels_that_machines_could_not_have_are_refused() -> None:
    for name, is_good in (("a" * MAX_NAME, True), ("a" * (MAX_NAME + 1), False), ("a.b", False)):
        assert (decode(replica_set(name=name)).object is not None) == is_good
    forged = replica_set()
    forged["spec"]["template"]["metadata"]["annotations"] = {"devalloc.io/priority": "1"}
    (problem,) = decode(forged).problems
    assert "is of devalloc" in problem.message
    kind = find_kind("vmrs")
    assert kind is not None
    assert kind.kind == KIND


def test_the_loop_sees_changes_and_ends_when_it_is_stopped(world: World) -> None:
    with in_threads(ReplicaSets(world.store, collects=True).run):
        world.apply(replica_set(2))
        until(lambda: len(world.machines()) == 2, "two machines")
        world.store.delete(MACHINE, "team", "web-1")
        until(lambda: list(world.machines()) == ["web-1", "web-2"], "it is replaced")
        world.apply(replica_set(1))
        until(lambda: list(world.machines()) == ["web-1"] or list(world.machines()) == ["web-2"], "one is left")
        world.store.delete(KIND, "team", "web")
        until(lambda: not world.machines(), "all went with the set")


def test_a_listing_from_before_a_deletion_has_no_other_machine_deleted(world: World) -> None:
    world.apply(replica_set())
    world.settle()
    for name in world.machines():
        world.report(name, "Running")
    world.settle()
    world.apply(replica_set(2))
    world.hear()
    world.report("web-1", "Starting")
    before = Listed(world.store.list((KIND, MACHINE)).objects)
    uids = {name: obj["metadata"]["uid"] for name, obj in world.machines().items()}
    world.round()
    assert world.machines().keys() == {"web-1", "web-2"}
    world.controller.worker.tell(before)  # the watcher has listed meanwhile, and has not heard of the deletion yet
    world.round()
    world.settle()
    assert {name: obj["metadata"]["uid"] for name, obj in world.machines().items()} == {
        name: uids[name] for name in ("web-1", "web-2")
    }
