"""Objects that the API server refuses to write on: reported, left alone, and in no other's way."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from devalloc.api.meta import NODE_FINALIZER, PREPARED_ON, TRANSACTION
from devalloc.controller.fencing import state_fence, withdraw_fence
from devalloc.controller.reconcile.device_claims import AllocatorListener
from devalloc.controller.reconcile.events import ObjectEvent
from devalloc.controller.reconcile.fenced import take_from_fenced
from devalloc.controller.reconcile.loop import AllocatorSettings
from devalloc.controller.reconcile.requester import events_of_write
from devalloc.controller.reconcile.write_backoff import WriteBackoff
from devalloc.machines.schedule.requester import requesters
from devalloc.store import Invalid, Key
from devalloc.store.kubernetes import ApiError, KubernetesStore
from tests.support.fake_kube import FakeClient, FakeKube
from tests.support.fleet_manifests import annotations, fill, gpu_claim, gpu_class, gpu_pool, held
from tests.support.host_pools import host, machine, node_by_machine, status
from tests.support.machine_allocator import machine_allocator
from tests.support.refusing_store import RefusingStore


class Bed:
    """A controller's allocator, and an API server that refuses writes whose words contain one of ``refused``."""

    def __init__(self) -> None:
        kube = FakeKube()
        self.client, self.refused = FakeClient(kube), ["claims/a/status"]
        self.attempts: list[str] = []
        """Writes that were refused."""
        self.client.before = self._before
        self.store = KubernetesStore(self.client)  # type: ignore[arg-type]
        self.users = KubernetesStore(FakeClient(kube))  # type: ignore[arg-type]
        self.now = 0.0
        self.allocator = machine_allocator(self.store, clock=lambda: self.now)

    def _before(self, number: int, what: str) -> None:
        if any(each in what for each in self.refused):
            self.attempts.append(what)
            raise ApiError(422, "Invalid", "metadata.annotations: Too long")

    def rounds(self, number: int = 3) -> list[str]:
        """So many; the writes of the last one."""
        for _ in range(number):
            self.client.writes.clear()
            self.allocator.round()
        return self.client.writes

    def hold(self, name: str, node: str) -> None:
        """As the node's plugin does that has the machine."""
        obj = self.users.get("VirtualMachine", "default", name)
        held_by = {"finalizers": [NODE_FINALIZER], "annotations": {PREPARED_ON: node}}
        self.users.replace({**obj, "metadata": {**obj["metadata"], **held_by}})
        self.store.refresh()

    def fence(self, node: str) -> None:
        state_fence(self.users, node, "by ada")
        self.store.refresh()

    def annotate(self, name: str, **noted: str) -> None:
        """As a user does, of whom the controller has heard."""
        obj = self.users.get("DeviceClaim", "default", name)
        metadata = {**obj["metadata"], "annotations": {**obj["metadata"].get("annotations", {}), **noted}}
        written = self.users.replace({**obj, "metadata": metadata})
        self._heard(written)

    def _heard(self, obj: dict[str, Any]) -> None:
        self.store.refresh()


@pytest.fixture
def bed() -> Iterator[Bed]:
    made = Bed()
    with closing(made.store), closing(made.users):
        yield made


def test_a_claim_that_cannot_be_written_says_so_and_others_get_its_devices(bed: Bed) -> None:
    fill(bed.users, gpu_class(), gpu_pool(devices=1), gpu_claim("a", priority="9"), gpu_claim("b"))
    bed.rounds()
    assert annotations(bed.users, "a")["reason"] == "Refused"
    assert "annotations: Too long" in annotations(bed.users, "a")["message"]
    assert held(bed.users, "b") == ["p/d0"]
    assert bed.rounds() == [], "nothing is tried in vain"


def test_a_machine_that_cannot_be_taken_from_a_fenced_node_is_tried_again_later(bed: Bed) -> None:
    fill(bed.users, host("a"), machine("web"))
    bed.rounds()
    bed.hold("web", "a")
    bed.fence("a")
    bed.refused = ["virtualmachines/web"]
    for tries in (1, 2):
        bed.rounds(5)
        assert len(bed.attempts) == tries
        bed.now += 61 * tries
    bed.refused = []
    bed.now += 600
    bed.rounds()
    assert PREPARED_ON not in bed.users.get("VirtualMachine", "default", "web")["metadata"]["annotations"]


def test_what_a_fenced_node_could_not_give_up_is_forgotten_when_the_fence_is_withdrawn(bed: Bed) -> None:
    fill(bed.users, host("a"), machine("web"))
    bed.rounds()
    bed.hold("web", "a")
    bed.refused = ["virtualmachines/web"]
    for tries in (1, 2):
        bed.fence("a")
        bed.rounds()
        assert len(bed.attempts) == tries, "a new fence tries again at once"
        withdraw_fence(bed.users, "a")
        bed.store.refresh()
        bed.rounds()


class OtherWriter(RefusingStore):
    """A store in which another one writes an object after its status was written."""

    def replace_status(self, obj: Any) -> Any:
        written = self._store.replace_status(obj)
        other = self._store.get("VirtualMachine", "default", obj["metadata"]["name"])
        self._store.replace({**other, "metadata": {**other["metadata"], "labels": {"other": "writer"}}})
        return written


@pytest.mark.parametrize("is_refused", [True, False])
def test_a_machine_of_which_only_the_status_was_written_was_not_taken_away(
    bed: Bed, is_refused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Another one wrote it before its mark was taken off, or before its status was put back."""
    fill(bed.users, host("a"), machine("web"))
    bed.rounds()
    bed.hold("web", "a")
    bed.fence("a")
    bed.store.refresh()
    other: Any = OtherWriter(bed.store, **({"web": Invalid("a policy says no")} if is_refused else {}))
    objects = [one for one in bed.store.list().objects if one["kind"] != "DeviceClaim"]
    backoff = WriteBackoff(lambda: 0.0)
    caplog.clear()
    assert take_from_fenced(other, objects, backoff) == []
    assert PREPARED_ON in bed.users.get("VirtualMachine", "default", "web")["metadata"]["annotations"]
    assert backoff.has_entries() == is_refused
    logged = [record.getMessage() for record in caplog.records]
    assert ["a policy says no" in text for text in logged] == [True] * is_refused, logged


def test_refused_writes_of_a_fenced_node_do_not_look_at_all_other_objects(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 100,000 objects, 100 refused writes took 38 s, in each round of the allocator."""
    names = [f"web-{number}" for number in range(5)]
    fill(bed.users, host("a"), *map(machine, names))
    for name in names:
        bed.hold(name, "a")
    bed.fence("a")
    bed.refused = ["virtualmachines/web"]
    objects = bed.store.list().objects
    others = [{**machine(f"other-{number}"), "status": {"nodeName": "b"}} for number in range(1000)]
    keys: list[Key] = []
    key_of = Key.of
    monkeypatch.setattr(Key, "of", lambda obj: keys.append(key_of(obj)) or keys[-1])
    take_from_fenced(bed.store, [*objects, *others], WriteBackoff(lambda: 0.0))
    assert len(bed.attempts) == len(names)
    assert not {key.name for key in keys} & {one["metadata"]["name"] for one in others}


def test_the_next_round_is_due_at_once(bed: Bed) -> None:
    """Nothing has changed that would wake the loop up, and devices were set aside for what was refused."""
    fill(bed.users, gpu_class(), gpu_pool(devices=1), gpu_claim("a", priority="9"), gpu_claim("b"))
    stop, due = threading.Event(), []

    def progress(done: Any) -> None:
        due.append(held(bed.users, "b"))
        if due[-1] or len(due) > 5:
            stop.set()

    allocator = machine_allocator(bed.store, listener=AllocatorListener(progress))
    ended = threading.Thread(target=allocator.run, args=(stop,))
    ended.start()
    ended.join(50)
    stop.set()
    ended.join(60)
    assert due[-1] == ["p/d0"]


def test_a_refusal_is_logged_once(bed: Bed, caplog: pytest.LogCaptureFixture) -> None:
    fill(bed.users, gpu_class(), gpu_pool(), gpu_claim("a"))
    bed.refused = ["claims/a"]
    with caplog.at_level(logging.INFO):
        assert bed.rounds(2) != [], "that it is refused cannot be told either"
        assert bed.rounds(5) == []
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 2, "its devices, and why it has none"
    assert all("DeviceClaim default/a" in error for error in errors)


def test_an_event_reports_what_cannot_be_written_on_the_object(bed: Bed) -> None:
    """By an Event: an object that takes no more annotations would else wait without a word."""
    events: list[ObjectEvent] = []
    bed.allocator = machine_allocator(
        bed.store,
        clock=lambda: bed.now,
        listener=AllocatorListener(wrote=lambda old, new: events.extend(events_of_write(old, new, requesters()))),
    )
    fill(bed.users, gpu_class(), gpu_pool(devices=1), gpu_claim("a"))
    bed.refused = ["claims/a"]
    bed.rounds(5)
    assert [(each.regarding["name"], each.type, each.reason) for each in events] == [("a", "Warning", "Refused")]
    assert "annotations: Too long" in events[0].note


@pytest.mark.parametrize("change", ["annotation", "class", "time"])
def test_a_refused_claim_is_tried_again_when_something_has_changed(bed: Bed, change: str) -> None:
    fill(bed.users, gpu_class(), gpu_pool(), gpu_claim("a"))
    bed.rounds()
    bed.refused = []
    assert bed.rounds() == []
    if change == "annotation":
        bed.annotate("a", less="1")
    elif change == "class":
        obj = bed.users.get("DeviceClass", None, "gpu")
        bed.users.replace({**obj, "spec": {**obj["spec"], "constraints": "true"}})
        bed.store.refresh()
    else:
        bed.now += 61
    bed.rounds()
    assert held(bed.users, "a") == ["p/d0"]
    assert "reason" not in annotations(bed.users, "a")


def test_a_refused_claim_is_tried_less_and_less_often(bed: Bed) -> None:
    fill(bed.users, gpu_class(), gpu_pool(), gpu_claim("a"))
    tried = []
    for second in range(0, 600, 10):
        bed.now = float(second)
        if any(what.endswith("/a/status") for what in bed.rounds(1)):
            tried.append(second)
    assert tried == [0, 60, 180, 420]


def test_a_refused_group_is_tried_again_without_the_member_that_was_too_much(bed: Bed) -> None:
    fill(bed.users, gpu_class(), gpu_pool(devices=4), *(gpu_claim(name, group="g") for name in "ab"))
    bed.rounds()
    assert [held(bed.users, name) for name in "ab"] == [[], []]
    assert {annotations(bed.users, name)["reason"] for name in "ab"} == {"Refused"}
    fill(bed.users, gpu_claim("c", group="g"))
    bed.store.refresh()
    bed.rounds()
    assert held(bed.users, "c") == [], "all of a group or none"
    assert annotations(bed.users, "c")["reason"] == "GroupUnsatisfiable"
    bed.users.delete("DeviceClaim", "default", "a")
    bed.store.refresh()
    bed.rounds()
    assert [len(held(bed.users, name)) for name in "bc"] == [1, 1]


def test_a_machine_whose_claim_is_refused_waits_with_it_and_another_has_its_room(bed: Bed) -> None:
    fill(bed.users, gpu_class(), gpu_pool(devices=2), host("n", cpus=2), gpu_claim("a"))
    fill(bed.users, machine("first", "2", "1Gi", "a"), machine("second", "2", "1Gi"))
    bed.rounds()
    assert node_by_machine(bed.users) == {"second": "n"}
    assert status(bed.users, "first")["reason"] == "Refused"
    assert annotations(bed.users, "a")["reason"] == "Refused"
    assert bed.rounds() == []


def test_another_machine_gets_what_a_refused_one_cannot_grow_by(bed: Bed) -> None:
    first = machine("first", "1", "1Gi")
    first["metadata"]["annotations"] = {"devalloc.io/priority": "9"}
    fill(bed.users, host("n", cpus=4), first)
    bed.rounds()
    bed.refused = ["machines/first/status"]
    grown = bed.users.get("VirtualMachine", "default", "first")
    held_by_node = {
        "finalizers": [NODE_FINALIZER],
        "annotations": {**first["metadata"]["annotations"], PREPARED_ON: "n"},
    }
    grown = bed.users.replace_status({**grown, "status": {**grown["status"], "phase": "Running"}})
    more = {**grown["spec"], "cpu": {"min": "3", "max": "8"}}
    bed.users.replace({**grown, "metadata": {**grown["metadata"], **held_by_node}, "spec": more})
    fill(bed.users, machine("second", "3", "1Gi"))
    bed.store.refresh()
    bed.rounds()
    assert node_by_machine(bed.users) == {"first": "n", "second": "n"}
    assert bed.rounds() == []


def test_a_refused_message_on_an_allocated_claim_is_not_tried_in_each_round(bed: Bed) -> None:
    """Its annotations are written and put back, which makes another state of it."""
    bed.refused = []
    fill(bed.users, gpu_class(), gpu_pool(), gpu_claim("a"))
    bed.rounds()
    bed.annotate("a", **{"devalloc.io/allocated-devices": "none at all"})
    bed.users.delete("DevicePool", None, "p")
    bed.store.refresh()
    bed.refused = ["claims/a/status"]
    assert len(bed.rounds(1)) == 3
    assert bed.rounds(2) == []
    bed.now += 61
    bed.refused = []
    bed.rounds(1)
    (device,) = bed.users.get("DeviceClaim", "default", "a")["status"]["deviceStatuses"]
    assert device["conditions"][0]["type"] == "DeviceLost"


def test_marks_that_could_not_be_removed_go_as_soon_as_they_can(bed: Bed) -> None:
    """Nodes take nothing for given that has one, and on a quiet cluster nothing else is to be written."""
    quiet = AllocatorSettings(availability=1000)
    bed.allocator = machine_allocator(bed.store, settings=quiet, clock=lambda: bed.now)
    fill(bed.users, gpu_class(), gpu_pool(devices=2))
    bed.refused = []
    bed.rounds()
    fill(bed.users, *(gpu_claim(name, group="g") for name in "ab"))
    bed.store.refresh()
    committed, failed = threading.Event(), list[str]()

    def after(number: int, what: str) -> None:
        if what.startswith("update") and "/configmaps/" in what:
            committed.set()

    def before(number: int, what: str) -> None:
        if committed.is_set() and what.endswith("/deviceclaims/a"):
            committed.clear()
            failed.append("a")
            bed.client.after = lambda number, what: None
            raise ApiError(0, "NoConnection", what)

    bed.client.before, bed.client.after = before, after
    bed.rounds(2)
    assert failed == ["a"]
    for name in "ab":
        assert TRANSACTION not in bed.users.get("DeviceClaim", "default", name)["metadata"]["annotations"]
        assert held(bed.users, name)
