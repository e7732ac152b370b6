"""Any sequence of operations does what a dictionary with the same rules would do, and every watch tells it all."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from devalloc.store import AlreadyExists, Change, Conflict, EventType, Expired, Fence, Key, NotFound
from devalloc.store.kubernetes import KubernetesStore
from devalloc.store.sqlite import SQLiteStore
from tests.support.examples import examples
from tests.support.fake_kube import FakeClient, FakeKube

Object = dict[str, Any]
API = "devmgmtproto.k8s.io/v1alpha1"
NAMESPACED, CLUSTER = "DeviceClaim", "DevicePool"
KEYS = [Key(CLUSTER, None, "x"), Key(NAMESPACED, "n", "x"), Key(NAMESPACED, "n", "y"), Key(CLUSTER, None, "y")]
keys = st.sampled_from(KEYS)
values = st.integers(0, 2)
finalizers = st.lists(st.sampled_from(["f", "g"]), unique=True)


class Embedded:
    """A file, and the stores that are opened on it one after the other."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()

    def open(self) -> SQLiteStore:
        return SQLiteStore(Path(self.folder.name) / "db", deletions_kept=5)

    def end(self, store: Any) -> None:
        assert store.check() == []
        store.close()
        self.folder.cleanup()


class OnCluster:
    """The same of an API server, in memory."""

    def __init__(self) -> None:
        self.kube = FakeKube()

    def open(self) -> KubernetesStore:
        return KubernetesStore(FakeClient(self.kube), deletions_kept=5)  # type: ignore[arg-type]

    def end(self, store: Any) -> None:
        store.close()
        assert not any("/configmaps/" in path for path in self.kube.objects)


class StoreMachine(RuleBasedStateMachine):
    """The model holds spec, status, finalizers and label of each key, and the number of writes to each."""

    listings = Bundle("listings")
    reads = Bundle("reads")
    place: type[Embedded | OnCluster] = Embedded

    def __init__(self) -> None:
        super().__init__()
        self.at = self.place()
        self.store: SQLiteStore | KubernetesStore = self.at.open()
        self.model: dict[Key, Object] = {}
        self.status_writes: dict[str, int] = {}
        """By UID: the place in the history at which it was written last."""
        self.followed: dict[Key, Object] = {}
        self.position = "0"

    def teardown(self) -> None:
        self.at.end(self.store)

    def now(self) -> int:
        return int(self.store.list([]).resource_version)

    @rule(key=keys, value=values, names=finalizers, target=reads)
    def create(self, key: Key, value: int, names: list[str]) -> Any:
        metadata = {"name": key.name, "finalizers": names}
        if key.namespace:
            metadata["namespace"] = key.namespace
        obj = {"apiVersion": API, "kind": key.kind, "metadata": metadata, "spec": value, "status": {"v": 9}}
        try:
            made = self.store.create(obj)
        except AlreadyExists:
            assert key in self.model
            return multiple()
        assert key not in self.model
        self.model[key] = made
        return made

    @rule(key=keys, target=reads)
    def read(self, key: Key) -> Any:
        try:
            stored = self.store.get(*key)
        except NotFound:
            assert key not in self.model
            return multiple()
        assert stored == self.model[key]
        return stored

    def is_current(self, obj: Object) -> bool:
        now = self.model.get(Key.of(obj))
        return now is not None and now["metadata"]["resourceVersion"] == obj["metadata"]["resourceVersion"]

    def written(self, after: Object, **expected: Any) -> None:
        """The model takes over what was stored; only what is expected may differ from what was there."""
        before = self.model[Key.of(after)]
        for name in ("spec", "status"):
            assert after.get(name) == expected.get(name, before.get(name))
        changed = after["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]
        assert changed == (after != before)
        self.model[Key.of(after)] = after

    @rule(obj=reads, value=values, names=finalizers)
    def replace(self, obj: Object, value: int, names: list[str]) -> None:
        key, new = Key.of(obj), copy.deepcopy(obj)
        new["spec"] = value
        deleting = key in self.model and "deletionTimestamp" in self.model[key]["metadata"]
        new["metadata"]["finalizers"] = (
            [name for name in names if name in obj["metadata"].get("finalizers", [])] if deleting else names
        )
        try:
            after = self.store.replace(new)
        except (Conflict, NotFound) as error:
            assert not self.is_current(obj)
            missing = isinstance(error, NotFound)
        else:
            missing = None
        if missing is not None:
            assert missing == (key not in self.model)
            return
        assert self.is_current(obj)
        assert after["metadata"].get("finalizers", []) == new["metadata"]["finalizers"]
        grown = after["metadata"]["generation"] - obj["metadata"]["generation"]
        assert grown == (value != obj["spec"])
        self.written(after, spec=value)
        if deleting and not new["metadata"]["finalizers"]:
            del self.model[key]

    @rule(obj=reads, value=values)
    def replace_status(self, obj: Object, value: int) -> None:
        try:
            after = self.store.replace_status({**obj, "spec": "ignored", "status": {"v": value}})
        except (Conflict, NotFound):
            assert not self.is_current(obj)
            return
        assert self.is_current(obj)
        if self.model[Key.of(obj)].get("status") != {"v": value}:
            self.status_writes[after["metadata"]["uid"]] = self.now()
        self.written(after, status={"v": value})

    @rule(target=listings)
    def take_listing(self) -> Any:
        listing = self.store.list()
        assert {Key.of(obj): obj for obj in listing.objects} == self.model
        return listing

    @rule(listing=listings, value=values, fenced=st.booleans())
    def commit(self, listing: Any, value: int, fenced: bool) -> None:
        fence = Fence(listing.resource_version, statuses=frozenset({NAMESPACED, CLUSTER})) if fenced else None
        changes = [
            Change(Key.of(obj), obj["metadata"]["resourceVersion"], {"v": value}, {"n": str(value)})
            for obj in listing.objects
        ]
        blocked = not all(self.is_current(obj) for obj in listing.objects)
        if fenced:
            since = int(listing.resource_version)
            there = [obj["metadata"]["uid"] for obj in self.model.values()]
            blocked |= any(self.status_writes.get(uid, 0) > since for uid in there)
        try:
            done = self.store.commit(changes, fence).objects
        except Conflict:
            assert blocked
            return
        except Expired:
            assert fenced
            return
        assert not blocked
        for old, after in zip(listing.objects, done, strict=True):
            if old.get("status") != {"v": value}:
                self.status_writes[after["metadata"]["uid"]] = self.now()
            self.written(after, status={"v": value})

    @rule(key=keys)
    def delete(self, key: Key) -> None:
        try:
            last = self.store.delete(*key)
        except NotFound:
            assert key not in self.model
            return
        if self.model[key]["metadata"].get("finalizers"):
            self.written(last)
            assert last["metadata"]["deletionTimestamp"]
        else:
            del self.model[key]

    @rule(listing=listings, kinds=st.sampled_from([None, NAMESPACED, CLUSTER]))
    def watch_from(self, listing: Any, kinds: str | None) -> None:
        """What a watch tells, put on top of the listing it starts from, is what there is now."""
        state = {Key.of(obj): obj for obj in listing.objects if kinds in (None, obj["kind"])}
        try:
            events = list(self.store.watch(kinds, listing.resource_version, timeout=0))
        except Expired:
            return
        for event in events:
            key = Key.of(event.object)
            assert not (key in state and event.type is EventType.ADDED)
            assert not (key not in state and event.type is EventType.MODIFIED)
            if event.type is EventType.DELETED:
                state.pop(key, None)
            else:
                state[key] = event.object
        assert state == {key: obj for key, obj in self.model.items() if kinds in (None, key.kind)}

    @rule()
    def follow(self) -> None:
        """One who always resumes from the last event it saw stays up to date."""
        try:
            events = list(self.store.watch(None, self.position, timeout=0))
        except Expired:
            listing = self.store.list()
            self.followed, self.position = {Key.of(o): o for o in listing.objects}, listing.resource_version
            return
        for event in events:
            if event.type is EventType.DELETED:
                self.followed.pop(Key.of(event.object), None)
            else:
                self.followed[Key.of(event.object)] = event.object
            self.position = event.resource_version
        assert self.followed == self.model

    @rule()
    def open_again(self) -> None:
        self.store.close()
        self.store = self.at.open()

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        assert {Key.of(obj): obj for obj in self.store.list().objects} == self.model


StoreMachine.TestCase.settings = settings(max_examples=examples(12, 0.1), stateful_step_count=30, deadline=None)
TestStoreAgainstModel = StoreMachine.TestCase


class ClusterMachine(StoreMachine):
    place = OnCluster


ClusterMachine.TestCase.settings = settings(max_examples=examples(12, 0.1), stateful_step_count=30, deadline=None)
TestClusterStoreAgainstModel = ClusterMachine.TestCase
