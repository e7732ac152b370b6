"""What did not change is not read again, and what was made of it is known."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from devalloc.controller.reconcile import availability, decision
from devalloc.controller.reconcile.device_claims import DeviceClaimAllocator
from devalloc.controller.reconcile.snapshot import Memo, SnapshotReader
from devalloc.store import Expired, Key, Listing, Store
from devalloc.store.kubernetes import KubernetesStore
from devalloc.store.sqlite import SQLiteStore
from tests.support.fake_kube import FakeClient, FakeKube
from tests.support.fleet_manifests import annotations, fill, gpu_claim, gpu_class, gpu_pool


def test_an_object_that_did_not_change_is_the_same_one(store: Store) -> None:
    fill(store, gpu_pool("p"), gpu_pool("r"), gpu_class())
    reading = SnapshotReader(store, None)
    before = reading.look()
    assert not reading.look().is_new
    pool = store.get("DevicePool", None, "r")
    store.replace({**pool, "spec": {**pool["spec"], "devices": []}})
    store.delete("DeviceClass", None, "gpu")
    fill(store, gpu_pool("q"))
    after = reading.look()
    assert after.is_new
    assert [*after.objects.values()] == store.list().objects
    assert after.objects[Key("DevicePool", None, "p")] is before.objects[Key("DevicePool", None, "p")]
    assert before.objects.keys() != after.objects.keys(), "a look stays as it is"


@pytest.mark.parametrize("deletions_kept", [1, 1000], ids=["listed anew", "heard"])
def test_changes_add_up_until_they_are_taken(tmp_path: Path, deletions_kept: int) -> None:
    store = SQLiteStore(tmp_path / "store.db", deletions_kept=deletions_kept)
    fill(store, gpu_pool("d"), gpu_pool("m"), gpu_pool("r"), gpu_class("x"))
    reading = SnapshotReader(store, None)
    assert reading.look().objects.keys() == reading.take_changes(), "all have come"
    assert reading.take_changes() == set()

    store.delete("DevicePool", None, "r")
    fill(store, gpu_pool("p"), gpu_pool("a"), gpu_claim("c"))
    reading.look()
    store.delete("DevicePool", None, "m")
    store.delete("DevicePool", None, "a")
    pool = store.get("DevicePool", None, "d")
    store.replace({**pool, "spec": {**pool["spec"], "devices": []}})
    fill(store, gpu_class("b"), gpu_pool("z"), gpu_pool("m", devices=7))
    seen = reading.look()

    assert seen.objects == {Key.of(obj): obj for obj in store.list().objects}
    named = {(key.kind, key.name) for key in reading.take_changes()}
    pools = {("DevicePool", name) for name in "adrmpz"}
    assert named == {*pools, ("DeviceClaim", "c"), ("DeviceClass", "b")}
    store.close()


def test_one_of_the_same_name_is_another_object(store: Store) -> None:
    fill(store, gpu_pool("p"))
    reading = SnapshotReader(store, ["DevicePool"])
    before = reading.look()
    store.delete("DevicePool", None, "p")
    fill(store, gpu_pool("p"), gpu_class())
    assert [*reading.look().objects.values()] == store.list("DevicePool").objects != [*before.objects.values()]


def test_what_was_missed_is_listed_anew_and_the_rest_known_again(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "store.db", deletions_kept=1)
    fill(store, gpu_pool("p"), gpu_pool("q"), gpu_pool("r"))
    reading = SnapshotReader(store, None)
    before = reading.look()
    for name in ("q", "r"):
        store.delete("DevicePool", None, name)
    after = reading.look()
    assert [*after.objects.values()] == store.list().objects
    assert after.objects[Key("DevicePool", None, "p")] is before.objects[Key("DevicePool", None, "p")]
    store.close()


def test_an_object_of_a_restored_store_is_not_taken_for_the_one_of_its_version(store: Store) -> None:
    """A backup was put back, and the object was written with another content under the same resourceVersion."""
    fill(store, gpu_pool("p"))
    (before,) = store.list("DevicePool").objects
    after = {**before, "spec": {**before["spec"], "devices": []}}
    listings = iter(([before], [after]))

    class Restored:
        def list(self, kinds: Any) -> Listing:
            return Listing(next(listings), "1")

        def watch(self, kinds: Any, since: str, *, timeout: float) -> Any:
            raise Expired("list again")

    reading = SnapshotReader(Restored(), ["DevicePool"])  # type: ignore[arg-type]  all that it needs
    assert [*reading.look().objects.values()] == [before]
    assert [*reading.look().objects.values()] == [after]


def test_the_memo_forgets_what_two_rounds_did_not_ask_for() -> None:
    memo, numbers, obj = Memo(), iter(range(10)), {"a": 1}

    def ask(given: Any = None) -> int:
        return memo.of("number", obj, lambda: next(numbers), given)

    assert [ask(), ask()] == [0, 0]
    memo.turn()
    assert [ask(), ask("other")] == [0, 1]
    memo.turn()
    memo.turn()
    assert ask("other") == 2
    assert memo.of("number", dict(obj), lambda: next(numbers)) == 3, "an equal object is not the same one"


def test_a_round_reads_what_has_changed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, gpu_class(), *(gpu_pool(f"p{n}", node=f"n{n}") for n in range(3)), gpu_claim("a"), gpu_claim("b"))
    solves, read = [], []
    allocator = DeviceClaimAllocator(store)
    monkeypatch.setattr(allocator, "_solve", _noting(allocator._solve, lambda *_: solves.append(1)))
    while allocator.round().granted:
        pass
    allocator.round()
    for module, name in ((availability, "_pool_numbers"), (decision, "_keep_change")):
        noting = _noting(getattr(module, name), lambda doc, *_: read.append(doc["metadata"]["name"]))
        monkeypatch.setattr(module, name, noting)
    solves.clear()
    first, again = allocator.round(), allocator.round()
    assert (solves, read) == ([], []), "nothing has changed"
    assert (first.claims, first.allocated, first.available) == (2, 2, 4)
    assert again.granted == again.stale == []
    fill(store, gpu_claim("c"))
    assert [key.name for key in allocator.round().granted] == ["c"]
    assert solves == [1]
    assert len(read) == 1, "of the pool alone that it got a device of"


def test_rounds_do_not_change_the_cached_objects(store: Store) -> None:
    fill(store, gpu_class(), gpu_pool("p"), gpu_claim("a"), gpu_claim("b", release="now"))
    allocator = DeviceClaimAllocator(store)
    for _ in range(4):
        allocator.round()
    assert [*allocator.loop.reading.look().objects.values()] == store.list().objects


def _noting(method: Any, note: Any) -> Any:
    def noting(*arguments: Any, **named: Any) -> Any:
        note(*arguments)
        return method(*arguments, **named)

    return noting


def test_a_loser_of_a_batch_is_written_once_with_the_owner() -> None:
    kube = FakeKube()
    client = FakeClient(kube)
    with closing(KubernetesStore(client)) as store:  # type: ignore[arg-type]
        fill(store, gpu_class(), gpu_pool(devices=2), *(gpu_claim(f"c{number}") for number in range(6)))
        allocator = DeviceClaimAllocator(store)
        client.writes.clear()
        for _ in range(4):
            allocator.round()
        written = Counter(what.split("/")[-1] for what in client.writes if "deviceclaims" in what)
        assert written == {"status": 2} | {f"c{number}": 1 for number in range(6)}
        assert {annotations(store, f"c{number}").get("reason") for number in range(6)} == {None, "DevicesInUse"}


def test_a_loser_gets_its_reason_also_after_a_round_that_could_not_write(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, gpu_class(), gpu_pool(devices=1), gpu_claim("a"), gpu_claim("b"))
    allocator, broken = DeviceClaimAllocator(store), [1]
    commit = allocator._commit
    monkeypatch.setattr(
        allocator, "_commit", lambda *given, **more: {} if broken and broken.pop() else commit(*given, **more)
    )
    for _ in range(10):
        allocator.round()
        if not allocator.loop.is_again:  # else it comes at once
            break
    assert [annotations(store, name).get("reason") for name in "ab"] == [None, "DevicesInUse"]
