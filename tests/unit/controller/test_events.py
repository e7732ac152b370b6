"""Events: what they say of a write, that each is written once and counted after, and that no loop waits for it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from devalloc.controller.event_recorder import MAX_NOTE, EventRecorder
from devalloc.controller.reconcile.events import ObjectEvent
from devalloc.controller.reconcile.requester import events_of_write
from devalloc.machines.schedule.requester import requesters
from tests.support.waiting import until

Object = dict[str, Any]
START = datetime(2026, 1, 1, tzinfo=UTC)


def claim(status: Object | None = None, **annotations: str) -> Object:
    noted = {f"devalloc.io/{name.replace('_', '-')}": text for name, text in annotations.items()}
    metadata = {"name": "a", "namespace": "team", "uid": "u1", "resourceVersion": "7", "annotations": noted}
    obj = {"apiVersion": "devmgmtproto.k8s.io/v1alpha1", "kind": "DeviceClaim", "metadata": metadata}
    return obj if status is None else {**obj, "status": status}


def held(*devices: str, **more: Any) -> Object:
    return {"allocations": [{"devicePoolName": "p", "deviceName": name} for name in devices], **more}


def events_of(before: Object, after: Object) -> list[tuple[str, str, str]]:
    return [(each.type, each.reason, each.note) for each in events_of_write(before, after, requesters())]


class TestEventsOfWrites:
    def test_of_a_claim_that_got_and_gave_back(self) -> None:
        has = claim(held("d0", "d1"), allocated_node="n")
        assert events_of(claim(), has) == [("Normal", "Allocated", "2 devices on node n: p/d0, p/d1")]
        assert events_of(has, claim()) == [("Normal", "Released", "2 devices taken back: p/d0, p/d1")]
        (event,) = events_of_write(claim(), has, requesters())
        assert event.regarding["uid"] == "u1"
        assert event.regarding["namespace"] == "team"

    def test_a_new_reason_is_an_event(self) -> None:
        refused = claim(reason="DevicesInUse", message="1 is used by x")
        assert events_of(claim(), refused) == [("Warning", "DevicesInUse", "1 is used by x")]
        assert events_of(refused, claim(reason="DevicesInUse", message="2 are used")) == [], "only its numbers changed"
        assert events_of(refused, claim(reason="NotEnoughDevices", message="m")) == [
            ("Warning", "NotEnoughDevices", "m")
        ]
        assert events_of(refused, claim(held("d0"))) == [("Normal", "Allocated", "1 device: p/d0")]

    def test_of_an_allocated_claim_that_has_something_wrong(self) -> None:
        has = claim(held("d0"))
        assert events_of(has, claim(held("d0"), reason="SpecChanged", message="m")) == [("Warning", "SpecChanged", "m")]
        conditions = [{"type": "DeviceLost", "status": "True"}]
        statuses = [{"devicePoolName": "p", "deviceName": "d0", "conditions": conditions}]
        lost = claim(held("d0", deviceStatuses=statuses))
        assert events_of(has, lost) == [("Warning", "DeviceLost", "device p/d0 no longer exists")]
        assert events_of(lost, lost) == []

    def test_of_a_machine(self) -> None:
        def machine(*conditions: tuple[str, str, str], node: str | None = None) -> Object:
            entries = [{"type": t, "status": s, "reason": r, "message": f"{r}!"} for t, s, r in conditions]
            metadata = {"name": "web", "namespace": "team", "uid": "u2"}
            status = {"conditions": entries, "nodeName": node}
            return {"apiVersion": "v1", "kind": "VirtualMachine", "metadata": metadata, "status": status}

        new, refused = machine(), machine(("Placed", "False", "NoRoom"))
        placed = machine(("Placed", "True", "Placed"), node="n1")
        assert events_of(new, refused) == [("Warning", "NoRoom", "NoRoom!")]
        assert events_of(refused, refused) == []
        assert events_of(refused, placed) == [("Normal", "Placed", "Placed!")]
        grown = machine(("Placed", "True", "Placed"), ("Fits", "False", "NoRoom"), node="n1")
        assert events_of(placed, grown) == [("Warning", "NoRoom", "NoRoom!")]
        assert events_of(placed, new) == [("Normal", "Released", "node n1 no longer reserves anything for it")]

    def test_of_a_migration(self) -> None:
        def migration(phase: str | None = None, **status: str) -> Object:
            nodes = {"sourceNode": "n1", "targetNode": "n2"} if phase in ("Scheduled", "Succeeded") else {}
            metadata = {"name": "move", "namespace": "team", "uid": "u3"}
            now = {**({"phase": phase} if phase else {}), **nodes, **status}
            return {"apiVersion": "v1", "kind": "VirtualMachineMigration", "metadata": metadata, "status": now}

        new, waits = migration(), migration("Pending", reason="NoRoom", message="no node has room")
        assert events_of(new, migration("Pending")) == []
        assert events_of(new, waits) == [("Warning", "NoRoom", "no node has room")]
        assert events_of(waits, migration("Pending", reason="NoRoom", message="still none")) == []
        assert events_of(waits, migration("Scheduled")) == [("Normal", "Scheduled", "from node n1 to node n2")]
        assert events_of(migration("Scheduled"), migration("Running")) == []
        assert events_of(migration("Running"), migration("Running", reason="Slow")) == [], "its node reports that"
        assert events_of(migration("Running"), migration("Succeeded")) == [
            ("Normal", "Succeeded", "from node n1 to node n2")
        ]
        failed = migration("Failed", reason="TargetUnreachable", message="no answer")
        assert events_of(migration("Running"), failed) == [("Warning", "TargetUnreachable", "no answer")]
        assert events_of(new, migration("Failed")) == [("Warning", "Failed", "")]

    def test_a_write_to_a_pool_is_no_event(self) -> None:
        pool = {"apiVersion": "v1", "kind": "DevicePool", "metadata": {"name": "p"}}
        assert events_of_write(pool, {**pool, "status": {"availableDevices": 1}}, requesters()) == []


class Server:
    """Takes events, slowly or not at all."""

    def __init__(self) -> None:
        self.events: dict[str, Object] = {}
        self.requests = 0
        self.is_away = False
        self.gate = threading.Event()
        self.gate.set()

    def create(self, path: str, body: Object, /) -> Object:
        self.gate.wait(60)
        self.requests += 1
        if self.is_away:
            raise OSError("away")
        name = f"{path}/{body['metadata']['name']}"
        assert name not in self.events, "names are unique"
        self.events[name] = body
        return body

    def replace(self, path: str, body: Object, /) -> Object:
        self.gate.wait(60)
        self.requests += 1
        if self.is_away or path not in self.events:
            raise OSError("not found")
        self.events[path] = body
        return body


class Clock:
    now = START

    def __call__(self) -> datetime:
        self.now += timedelta(microseconds=1)
        return self.now


def make_event(name: str = "a", reason: str = "DevicesInUse", note: str = "why", **more: str) -> ObjectEvent:
    regarding: Mapping[str, str] = {"apiVersion": "v1", "kind": "DeviceClaim", "name": name, "uid": name, **more}
    return ObjectEvent(regarding, "Warning", reason, "Allocate", note)


def drain(recorder: EventRecorder) -> None:
    """Write all that waits."""
    stop = threading.Event()
    stop.set()
    recorder.run(stop)


def test_an_event_has_what_the_api_wants() -> None:
    server, clock = Server(), Clock()
    recorder = EventRecorder(server, "host-1", now=clock)
    recorder.record([make_event(namespace="team", note="ä" * 2000)])
    drain(recorder)
    ((path, event),) = server.events.items()
    assert path.startswith("/apis/events.k8s.io/v1/namespaces/team/events/a.")
    assert event["metadata"]["namespace"] == event["regarding"]["namespace"] == "team"
    assert (event["reason"], event["action"], event["type"]) == ("DevicesInUse", "Allocate", "Warning")
    assert (event["reportingController"], event["reportingInstance"]) == ("devalloc.io/controller", "host-1")
    assert event["eventTime"] == "2026-01-01T00:00:00.000001Z"
    assert len(event["note"].encode()) <= MAX_NOTE
    assert "series" not in event


def test_a_repeated_event_is_counted() -> None:
    server, clock = Server(), Clock()
    recorder = EventRecorder(server, "i", now=clock)
    recorder.record([make_event(), make_event(note="later"), make_event(reason="Other")])
    drain(recorder)
    assert sorted(e.get("series", {}).get("count", 1) for e in server.events.values()) == [1, 2]
    recorder.record([make_event(note="again")])
    drain(recorder)
    counted = next(event for event in server.events.values() if event["reason"] == "DevicesInUse")
    assert (counted["series"]["count"], counted["note"], server.requests) == (3, "again", 3)
    clock.now += timedelta(minutes=7)
    recorder.record([make_event()])
    drain(recorder)
    assert len(server.events) == 3, "long after, it is another event"


def test_an_event_that_was_deleted_is_created_again() -> None:
    server = Server()
    recorder = EventRecorder(server, "i", now=Clock())
    recorder.record([make_event()])
    drain(recorder)
    server.events.clear()
    recorder.record([make_event()])
    drain(recorder)
    assert len(server.events) == 1
    assert recorder.dropped == 0


def test_recording_does_not_wait_for_a_silent_server() -> None:
    server = Server()
    server.gate.clear()
    recorder = EventRecorder(server, "i", now=Clock(), most_waiting=10)
    stop = threading.Event()
    thread = threading.Thread(target=recorder.run, args=(stop,))
    thread.start()
    recorder.record(make_event(str(number)) for number in range(50))  # returns: else the test never ends
    assert recorder.dropped >= 39
    server.gate.set()
    until(lambda: recorder.written >= 50 - recorder.dropped, "all others are written")
    stop.set()
    thread.join(60)
    assert recorder.written + recorder.dropped == 50


def test_what_the_server_does_not_take_is_dropped_and_the_next_is_written() -> None:
    server = Server()
    recorder = EventRecorder(server, "i", now=Clock())
    server.is_away = True
    recorder.record([make_event("a")])
    drain(recorder)
    server.is_away = False
    recorder.record([make_event("b")])
    drain(recorder)
    assert (recorder.dropped, recorder.written) == (1, 1)
