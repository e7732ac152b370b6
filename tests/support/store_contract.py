"""What every store must do: the semantics of the Kubernetes API for custom resources.

A test module has these tests run by importing them, beside a fixture ``store``: an empty store that remembers the last
20 deletions, with the namespaces default, other and z. What differs between stores is described in
``devalloc.store.protocol`` and tested with each of them.
"""

from __future__ import annotations

import copy
import re
import threading
import time
from typing import Any

import pytest

from devalloc.store import (
    AlreadyExists,
    Change,
    Conflict,
    Event,
    EventType,
    Expired,
    Fence,
    FenceBroken,
    Invalid,
    Key,
    NotFound,
    Store,
)
from tests.support.minimal_manifests import a_class, claim, pool

Object = dict[str, Any]
A = Key("DeviceClaim", "default", "a")


def version(obj: Object) -> str:
    return str(obj["metadata"]["resourceVersion"])


def now(store: Store) -> str:
    """The place in the store's history that it is at."""
    return store.list([]).resource_version


def wants(device_class: str) -> Object:
    """A spec of a claim."""
    return {"claims": [{"deviceClass": device_class}]}


def seen(store: Store, since: str = "0", kinds: str | None = None) -> list[tuple[EventType, str]]:
    return [(e.type, e.object["metadata"]["name"]) for e in store.watch(kinds, since, timeout=0)]


class TestCreate:
    def test_sets_what_the_server_owns(self, store: Store) -> None:
        made = store.create(claim())
        metadata = made["metadata"]
        assert metadata["generation"] == 1
        assert int(metadata["resourceVersion"]) > 0
        assert re.fullmatch(r"[0-9a-f-]{36}", metadata["uid"])
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?Z", metadata["creationTimestamp"])
        assert made["spec"] == claim()["spec"]
        assert store.get(*A) == made

    def test_ignores_what_a_caller_puts_in_the_servers_fields_and_status(self, store: Store) -> None:
        copied = store.create(claim("a"))
        copied["metadata"]["name"] = "b"
        made = store.create({**copied, "status": {"allocations": [{"devicePoolName": "p", "deviceName": "d"}]}})
        assert "status" not in made
        assert made["metadata"]["uid"] != copied["metadata"]["uid"]
        assert int(version(made)) > int(version(copied))

    def test_refuses_a_second_object_of_the_same_key(self, store: Store) -> None:
        store.create(claim())
        with pytest.raises(AlreadyExists, match="DeviceClaim default/a"):
            store.create(claim())


class TestReplace:
    def test_writes_spec_and_metadata_but_no_status(self, store: Store) -> None:
        made = store.replace_status({**store.create(claim()), "status": {"podNames": ["x"]}})
        made["spec"] = {"claims": [{"deviceClass": "nic"}]}
        made["metadata"]["labels"] = {"l": "1"}
        made["status"] = {"podNames": ["forged"]}
        after = store.replace(made)
        assert after["spec"] == {"claims": [{"deviceClass": "nic"}]}
        assert after["metadata"]["labels"] == {"l": "1"}
        assert after["status"] == {"podNames": ["x"]}
        assert store.get(*A) == after

    def test_generation_counts_changes_of_spec_only(self, store: Store) -> None:
        made = store.create(claim())
        made["metadata"]["annotations"] = {"x": "1"}
        made = store.replace(made)
        assert made["metadata"]["generation"] == 1
        made = store.replace_status({**made, "status": {"podNames": ["x"]}})
        assert made["metadata"]["generation"] == 1
        made["spec"]["matchAttributes"] = ["numa"]
        assert store.replace(made)["metadata"]["generation"] == 2

    def test_the_servers_fields_stay(self, store: Store) -> None:
        made = store.create(claim())
        forged = copy.deepcopy(made)
        forged["metadata"].update(generation=7, creationTimestamp="x", deletionTimestamp="x", labels={"l": "1"})
        after = store.replace(forged)["metadata"]
        for name in ("uid", "generation", "creationTimestamp"):
            assert after[name] == made["metadata"][name]
        assert "deletionTimestamp" not in after

    @pytest.mark.parametrize("operation", ["replace", "replace_status"])
    def test_needs_to_know_what_it_is_based_on(self, store: Store, operation: str) -> None:
        old = store.create(claim())
        write = getattr(store, operation)
        with pytest.raises(Invalid, match="resourceVersion"):
            write(claim())
        store.replace_status({**old, "status": {"podNames": ["x"]}})
        with pytest.raises(Conflict, match="DeviceClaim default/a changed"):
            write({**old, "status": {"podNames": ["y"]}})
        with pytest.raises(NotFound):
            write(claim("b", resourceVersion="1"))
        assert store.get(*A)["status"] == {"podNames": ["x"]}

    def test_another_object_of_the_same_name_is_a_conflict(self, store: Store) -> None:
        old = store.create(claim())
        store.delete(*A)
        new = store.create(claim())
        with pytest.raises(Conflict, match="another object"):
            store.replace({**old, "metadata": {**old["metadata"], "resourceVersion": version(new)}})

    def test_another_api_group_is_refused(self, store: Store) -> None:
        made = store.create(claim())
        with pytest.raises(Invalid, match=r"resource\.k8s\.io"):
            store.replace({**made, "apiVersion": "resource.k8s.io/v1"})

    def test_content_that_json_cannot_express_is_refused(self, store: Store) -> None:
        made = store.create(claim())
        with pytest.raises(Invalid):
            store.create({**claim("b"), "spec": {"claims": {1, 2}}})
        with pytest.raises(Invalid):
            store.replace_status({**made, "status": {"podNames": [float("inf")]}})
        assert store.list().objects == [made]

    def test_nothing_new_writes_nothing(self, store: Store) -> None:
        made = store.replace_status({**store.create(claim()), "status": {"podNames": ["x"]}})
        listed = store.list()
        assert store.replace(made) == made
        assert store.replace_status(made) == made
        assert store.commit([Change(A, version(made), made["status"], {"absent": None})]).objects == [made]
        assert store.list() == listed
        assert seen(store, listed.resource_version) == []


class TestReplaceStatus:
    def test_writes_status_only(self, store: Store) -> None:
        made = store.create(claim())
        forged = {**made, "spec": {}, "status": {"podNames": ["x"]}}
        forged["metadata"] = {**made["metadata"], "labels": {"l": "1"}}
        after = store.replace_status(forged)
        assert after["spec"] == made["spec"]
        assert "labels" not in after["metadata"]
        assert after["status"] == {"podNames": ["x"]}

    @pytest.mark.parametrize("empty", [{}, {"status": None}, {"status": {}}])
    def test_an_empty_status_removes_it(self, store: Store, empty: Object) -> None:
        made = store.replace_status({**store.create(claim()), "status": {"podNames": ["x"]}})
        del made["status"]
        assert "status" not in store.replace_status({**made, **empty})


class TestCommit:
    def test_writes_status_and_annotations_of_all(self, store: Store) -> None:
        a = store.create(claim("a", annotations={"keep": "1", "drop": "1"}))
        b = store.create(claim("b"))
        after = store.commit(
            [
                Change(A, version(a), {"podNames": ["x"]}, {"drop": None, "new": "2"}),
                Change(Key("DeviceClaim", "default", "b"), version(b), None, {"reason": "Nothing"}),
            ]
        ).objects
        assert list(after) == store.list().objects
        assert after[0]["status"] == {"podNames": ["x"]}
        assert after[0]["metadata"]["annotations"] == {"keep": "1", "new": "2"}
        assert after[1]["metadata"]["annotations"] == {"reason": "Nothing"}

    def test_is_all_or_nothing_and_names_everything_in_the_way(self, store: Store) -> None:
        objects = {name: store.create(claim(name)) for name in "abc"}
        store.replace_status({**objects["b"], "status": {"podNames": ["mine"]}})
        store.delete("DeviceClaim", "default", "c")
        before = store.list()
        changes = [Change(Key.of(obj), version(obj), {"podNames": ["other"]}, {"x": "1"}) for obj in objects.values()]
        with pytest.raises(Conflict) as caught:
            store.commit(changes)
        assert [key.name for key in caught.value.conflicts] == ["b", "c"]
        assert store.list() == before

    def test_a_change_that_cannot_be_stored_takes_those_before_it_along(self, store: Store) -> None:
        a, b = store.create(claim("a")), store.create(claim("b"))
        before = store.list()
        with pytest.raises(Invalid):
            store.commit(
                [
                    Change(Key.of(a), version(a), {"podNames": ["x"]}),
                    Change(Key.of(b), version(b), {"podNames": [object()]}),
                ]
            )
        assert store.list() == before

    @pytest.mark.parametrize(
        ("what", "holds"),
        [
            ("nothing", True),
            ("claim created", True),
            ("claim deleted", True),
            ("claim annotated", True),
            ("claim spec", True),
            ("claim status", False),
            ("claim status written and taken back", False),
            ("pool status", True),
            ("pool labelled", True),
            ("pool spec", False),
            ("pool created", False),
            ("pool deleted", False),
            ("other kind created", True),
        ],
    )
    def test_a_fence_holds_while_nothing_it_names_changed(self, store: Store, what: str, holds: bool) -> None:
        own_claim, other, devices = store.create(claim()), store.create(claim("other")), store.create(pool())
        fence = Fence(store.list().resource_version, frozenset({"DevicePool"}), frozenset({"DeviceClaim"}))
        match what:
            case "claim created":
                store.create(claim("new"))
            case "claim deleted":
                store.delete(*Key.of(other))
            case "claim annotated":
                store.replace({**other, "metadata": {**other["metadata"], "annotations": {"x": "1"}}})
            case "claim spec":
                store.replace({**other, "spec": wants("other")})
            case "claim status":
                store.replace_status({**other, "status": {"podNames": ["x"]}})
            case "claim status written and taken back":
                store.replace_status({**store.replace_status({**other, "status": {"podNames": ["x"]}}), "status": {}})
            case "pool status":
                store.replace_status({**devices, "status": {"availableDevices": 1}})
            case "pool labelled":
                store.replace({**devices, "metadata": {**devices["metadata"], "labels": {"x": "1"}}})
            case "pool spec":
                store.replace({**devices, "spec": {"driver": "d", "attributes": [{"name": "a", "intValue": 1}]}})
            case "pool created":
                store.create(pool("q"))
            case "pool deleted":
                store.delete(*Key.of(devices))
            case "other kind created":
                store.create(a_class("z"))
        change = Change(A, version(own_claim), {"podNames": ["x"]})
        if holds:
            store.commit([change], fence)
            assert store.get(*A)["status"] == {"podNames": ["x"]}
        else:
            with pytest.raises(FenceBroken, match="meanwhile"):
                store.commit([change], fence)
            assert "status" not in store.get(*A)

    def test_two_who_decided_from_one_listing_cannot_both_commit(self, store: Store) -> None:
        a, b = store.create(claim("a")), store.create(claim("b"))
        fence = Fence(store.list().resource_version, statuses=frozenset({"DeviceClaim"}))
        store.commit([Change(Key.of(a), version(a), {"podNames": ["the device"]})], fence)
        with pytest.raises(Conflict):
            store.commit([Change(Key.of(b), version(b), {"podNames": ["the device"]})], fence)

    def test_a_fence_too_old_to_tell_is_expired(self, store: Store) -> None:
        made = store.create(claim())
        fence = Fence(store.list().resource_version, specs=frozenset({"DevicePool"}))
        for number in range(60):
            store.delete(*Key.of(store.create(claim(f"n{number}"))))
        with pytest.raises(Expired):
            store.commit([Change(A, version(made), {"podNames": ["x"]})], fence)

    def test_a_fence_of_another_store_is_expired(self, store: Store) -> None:
        """As of one in whose place an older backup was put."""
        made = store.create(claim())
        fence = Fence(str(int(now(store)) + 1), specs=frozenset({"DevicePool"}))
        with pytest.raises(Expired):
            store.commit([Change(A, version(made), {"podNames": ["x"]})], fence)
        assert store.get(*A) == made


class TestCommitEach:
    def test_a_unit_that_conflicts_costs_only_itself(self, store: Store) -> None:
        a, b, c, d = (store.create(claim(name)) for name in "abcd")
        late = store.replace_status({**c, "status": {"podNames": ["mine"]}})
        store.delete(*Key.of(d))

        def change(obj: Object) -> Change:
            return Change(Key.of(obj), version(obj), {"podNames": ["x"]}, {"x": "1"})

        first, second, third = store.commit_each([[change(a)], [change(b), change(c)], [change(d)]])
        assert not isinstance(first, Conflict)
        assert [obj["metadata"]["name"] for obj in first] == ["a"]
        assert isinstance(second, Conflict)
        assert [key.name for key in second.conflicts] == ["c"]
        assert isinstance(third, Conflict)
        assert [key.name for key in third.conflicts] == ["d"]
        assert store.list().objects == [*first, b, late]
        assert first[0]["status"] == {"podNames": ["x"]}
        assert first[0]["metadata"]["annotations"] == {"x": "1"}

    def test_a_broken_fence_stops_all(self, store: Store) -> None:
        a, b = store.create(claim("a")), store.create(claim("b"))
        fence = Fence(store.list().resource_version, specs=frozenset({"DevicePool"}))
        store.create(pool())
        before = store.list()
        with pytest.raises(FenceBroken):
            store.commit_each([[Change(Key.of(obj), version(obj), {"podNames": ["x"]})] for obj in (a, b)], fence)
        assert store.list() == before

    def test_nothing_is_nothing(self, store: Store) -> None:
        assert store.commit_each([]) == []

    def test_a_fence_goes_on_from_what_was_written_under_it(self, store: Store) -> None:
        kinds, objects = frozenset({"DeviceClaim"}), [store.create(claim(name)) for name in "ab"]
        at = store.list().resource_version
        for number in range(3):
            units = [[Change(Key.of(obj), version(obj), {"podNames": [str(number)]})] for obj in objects]
            done = store.commit_each(units, Fence(at, statuses=kinds))
            objects, at = [], done.resource_version
            for unit in done:
                assert not isinstance(unit, Conflict)
                objects += unit
        a, b = objects
        store.replace_status({**a, "status": {}})
        with pytest.raises(FenceBroken):
            store.commit_each([[Change(Key.of(b), version(b), {"podNames": ["x"]})]], Fence(at, statuses=kinds))


def test_a_fence_goes_on_from_what_was_written_under_it(store: Store) -> None:
    a = store.create(claim("a"))
    kinds = frozenset({"DeviceClaim"})
    at = store.list().resource_version
    for number in range(3):
        (a,), at = store.commit([Change(A, version(a), {"podNames": [str(number)]})], Fence(at, statuses=kinds))
    store.replace_status({**a, "status": {}})
    with pytest.raises(FenceBroken):
        store.commit([Change(A, version(a), {"podNames": ["x"]})], Fence(at, statuses=kinds))


class TestDelete:
    def test_an_object_without_finalizers_is_gone(self, store: Store) -> None:
        made = store.create(claim())
        last = store.delete(*A)
        assert last["metadata"]["uid"] == made["metadata"]["uid"]
        with pytest.raises(NotFound):
            store.get(*A)
        with pytest.raises(NotFound, match="DeviceClaim default/a"):
            store.delete(*A)

    def test_with_finalizers_it_is_marked_and_goes_with_the_last(self, store: Store) -> None:
        store.create(claim(finalizers=["one", "two"]))
        marked = store.delete(*A)
        assert marked["metadata"]["deletionTimestamp"]
        assert marked["metadata"]["generation"] == 2
        assert store.delete(*A) == marked  # asking twice changes nothing
        marked["metadata"]["finalizers"] = ["two"]
        marked = store.replace(marked)
        assert store.get(*A) == marked
        marked["metadata"]["finalizers"] = []
        store.replace(marked)
        with pytest.raises(NotFound):
            store.get(*A)

    def test_no_finalizer_joins_an_object_that_is_being_deleted(self, store: Store) -> None:
        store.create(claim(finalizers=["one"]))
        marked = store.delete(*A)
        marked["metadata"]["finalizers"] = ["one", "late"]
        with pytest.raises(Invalid, match="late"):
            store.replace(marked)

    def test_status_can_still_be_written_while_deleting(self, store: Store) -> None:
        store.create(claim(finalizers=["one"]))
        marked = store.delete(*A)
        assert store.replace_status({**marked, "status": {"podNames": ["x"]}})["status"] == {"podNames": ["x"]}

    def test_preconditions(self, store: Store) -> None:
        old = store.create(claim())
        new = store.replace({**old, "spec": wants("other")})
        with pytest.raises(Conflict):
            store.delete(*A, uid="another")
        with pytest.raises(Conflict):
            store.delete(*A, resource_version=version(old))
        store.delete(*A, uid=old["metadata"]["uid"], resource_version=version(new))
        assert store.list().objects == []


class TestList:
    def test_is_ordered_and_by_kind(self, store: Store) -> None:
        for made in (claim("b"), claim("a", "z"), claim("a"), pool("p")):
            store.create(made)
        everything = [str(Key.of(obj)) for obj in store.list().objects]
        claims = ["DeviceClaim default/a", "DeviceClaim default/b", "DeviceClaim z/a"]
        assert everything == [*claims, "DevicePool p"]
        assert [str(Key.of(obj)) for obj in store.list("DeviceClaim").objects] == claims
        assert len(store.list(["DeviceClaim", "DevicePool"]).objects) == 4
        assert len(store.list(["DeviceClaim", "DevicePool"], "z").objects) == 1
        assert store.list([]).objects == []

    def test_its_version_is_where_a_watch_goes_on(self, store: Store) -> None:
        store.create(claim("a"))
        listed = store.list()
        store.create(claim("b"))
        assert seen(store, listed.resource_version) == [(EventType.ADDED, "b")]


class TestWatch:
    def test_from_the_start_adds_what_there_is(self, store: Store) -> None:
        store.create(claim("a"))
        store.replace_status({**store.create(claim("b")), "status": {"podNames": ["x"]}})
        store.create(pool())
        assert seen(store) == [(EventType.ADDED, "a"), (EventType.ADDED, "b"), (EventType.ADDED, "p")]
        assert seen(store, kinds="DevicePool") == [(EventType.ADDED, "p")]

    def test_tells_changes_in_order_with_the_object(self, store: Store) -> None:
        a = store.create(claim("a"))
        b = store.create(claim("b"))
        since = store.list().resource_version
        store.create(claim("c"))
        a = store.replace({**a, "spec": wants("other")})
        gone = store.delete(*Key.of(b))
        events = list(store.watch("DeviceClaim", since, timeout=0))
        assert [(e.type, e.object["metadata"]["name"]) for e in events] == [
            (EventType.ADDED, "c"),
            (EventType.MODIFIED, "a"),
            (EventType.DELETED, "b"),
        ]
        assert events[1].object == a
        assert events[2].object == gone
        assert [e.resource_version for e in events] == sorted((e.resource_version for e in events), key=int)

    def test_resumes_after_any_event(self, store: Store) -> None:
        store.create(pool())
        since = store.list().resource_version
        for name in "abc":
            store.create(claim(name))
        store.delete(*A)
        events = list(store.watch(None, since, timeout=0))
        assert [event.object["metadata"]["name"] for event in events] == ["b", "c", "a"]
        for position, event in enumerate(events):
            assert list(store.watch(None, event.resource_version, timeout=0)) == events[position + 1 :]

    def test_an_object_deleted_and_made_again_is_seen_as_both(self, store: Store) -> None:
        store.create(claim())
        since = store.list().resource_version
        store.delete(*A)
        store.create(claim())
        assert seen(store, since) == [(EventType.DELETED, "a"), (EventType.ADDED, "a")]

    def test_a_watch_sees_every_deletion(self, store: Store) -> None:
        """Even of an object that came and went between two looks: another reader may have seen it."""
        store.create(pool())
        since = store.list().resource_version
        store.create(claim())
        store.delete(*A)
        assert seen(store, since)[-1] == (EventType.DELETED, "a")

    def test_tells_of_marking_and_of_the_end(self, store: Store) -> None:
        store.create(claim(finalizers=["f"]))
        since = store.list().resource_version
        marked = store.delete(*A)
        (event,) = store.watch(None, since, timeout=0)
        assert event == Event(EventType.MODIFIED, marked, event.resource_version)
        del marked["metadata"]["finalizers"]
        store.replace(marked)
        assert seen(store, event.resource_version) == [(EventType.DELETED, "a")]

    def test_a_watch_waits_for_writes_of_others_until_it_is_stopped(self, store: Store) -> None:
        stop = threading.Event()
        got: list[str] = []
        arrived = threading.Semaphore(0)

        def follow() -> None:
            for event in store.watch("DeviceClaim", "0", stop=stop):
                got.append(event.object["metadata"]["name"])
                arrived.release()

        follower = threading.Thread(target=follow)
        follower.start()
        for name in "abc":
            store.create(pool(name))
            store.create(claim(name))
            assert arrived.acquire(timeout=30)
        stop.set()
        follower.join(60)
        assert not follower.is_alive()
        assert got == ["a", "b", "c"]

    def test_a_watch_from_the_start_of_an_empty_store_sees_deletions(self, store: Store) -> None:
        stop, gone = threading.Event(), threading.Event()

        def follow() -> None:
            for event in store.watch(None, "0", stop=stop):
                if event.type is EventType.DELETED:
                    gone.set()

        follower = threading.Thread(target=follow)
        follower.start()
        try:
            while not gone.wait(0.1):  # the first look may come late
                store.create(claim())
                store.delete(*A)
        finally:
            stop.set()
            follower.join()

    def test_a_watch_from_a_list_of_an_empty_store_sees_what_came_and_went(self, store: Store) -> None:
        since = store.list([]).resource_version
        store.create(claim("a"))
        store.delete(*A)
        assert seen(store, since)[-1:] == [(EventType.DELETED, "a")]

    def test_ends_after_its_timeout(self, store: Store) -> None:
        started = time.monotonic()
        assert list(store.watch(timeout=0.05)) == []
        assert time.monotonic() - started >= 0.05

    def test_expired_when_deletions_are_forgotten(self, store: Store) -> None:
        store.create(claim("stays"))
        since = store.list().resource_version
        for number in range(60):
            store.delete(*Key.of(store.create(claim(f"n{number}"))))
        with pytest.raises(Expired, match="list again"):
            list(store.watch(None, since, timeout=0))
        # No reader that starts over, and none that is nearly up to date, is turned away.
        assert seen(store) == [(EventType.ADDED, "stays")]
        assert list(store.watch(None, store.list().resource_version, timeout=0)) == []
        assert len(seen(store, str(int(store.list().resource_version) - 1))) == 1

    def test_a_watch_from_any_version_sees_all_deletions_or_is_expired(self, store: Store) -> None:
        first, deleted = int(store.list().resource_version) + 1, {}
        for number in range(60):
            last = store.delete(*Key.of(store.create(claim(f"n{number}"))))
            deleted[int(now(store))] = last["metadata"]["name"]
        expired = 0
        for since in range(first, int(now(store)) + 1):
            try:
                names = [name for _, name in seen(store, str(since))]
            except Expired:
                expired += 1
            else:
                assert names == [name for at, name in deleted.items() if at > since]
        assert 0 < expired < 100

    def test_a_version_from_the_future_is_expired_too(self, store: Store) -> None:
        with pytest.raises(Expired):
            list(store.watch(None, str(int(now(store)) + 1), timeout=0))

    @pytest.mark.parametrize("text", ["", "x", "-1", "1.0", "9" * 30])
    def test_a_watch_from_an_invalid_version_is_refused(self, store: Store, text: str) -> None:
        with pytest.raises(Invalid):
            list(store.watch(None, text, timeout=0))


def test_what_a_caller_does_to_an_object_does_not_reach_the_store(store: Store) -> None:
    own_claim = claim()
    made = store.create(own_claim)
    made["spec"]["claims"].clear()
    own_claim["spec"]["claims"].append({})
    store.list().objects[0]["metadata"]["name"] = "x"
    assert store.get(*A)["spec"] == claim()["spec"]


def test_threads_share_a_store_and_lose_no_update(store: Store) -> None:
    store.create({**claim(), "spec": wants("c0")})

    def count() -> None:
        done = 0
        while done < 20:
            obj = store.get(*A)
            obj["spec"] = wants(f"c{int(obj['spec']['claims'][0]['deviceClass'][1:]) + 1}")
            try:
                store.replace(obj)
                done += 1
            except Conflict:
                continue

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.get(*A)["spec"] == wants("c80")
    assert store.get(*A)["metadata"]["generation"] == 81
