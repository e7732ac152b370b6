"""ResourceClaims of an embedded store: allocated from its slices, without pods, in one transaction for each round."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from devalloc.controller.reconcile.resource_claims import stored
from devalloc.controller.reconcile.resource_claims.stored import StoredClaimAllocator
from devalloc.store import Key, WriteRejected
from devalloc.store.sqlite import SQLiteStore
from devalloc_solver.fleet.waiting import REFRESH_SECONDS
from tests.support.dra_builders import device_class
from tests.support.resource_manifests import device, resource_claim, slice_of, taint_rule

Object = dict[str, Any]
CLASS = device_class("gpu", "device.driver == 'devalloc.io'")


class World:
    """A store and its allocator."""

    def __init__(self, store: SQLiteStore) -> None:
        self.store, self.granted = store, list[Key]()
        self.allocator = StoredClaimAllocator(store, granted=self.granted.extend)

    def apply(self, *objects: Object) -> None:
        for each in objects:
            self.store.create({**each, "metadata": {k: v for k, v in each["metadata"].items() if k != "uid"}})

    def claim(self, name: str) -> Object:
        return self.store.get("ResourceClaim", "default", name)

    def devices(self) -> dict[str, str]:
        """By claim its device, or why it has none, after a round."""
        for _ in range(2):  # the first may say only that others of the round won
            self.allocator.round()
        held = {}
        for each in self.store.list("ResourceClaim").objects:
            allocation = (each.get("status") or {}).get("allocation")
            annotations = each["metadata"].get("annotations", {})
            results = allocation["devices"].get("results", ()) if allocation else ()
            names = ", ".join(result["device"] for result in results)
            held[each["metadata"]["name"]] = names or annotations.get("devalloc.io/reason", "")
        return held


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with closing(SQLiteStore(tmp_path / "store.db")) as store:
        yield World(store)


def test_claims_get_devices_and_the_others_a_reason(world: World) -> None:
    world.apply(CLASS, slice_of("p", "n", [device("d0")]), resource_claim("a"), resource_claim("b"))
    assert world.devices() == {"a": "d0", "b": "DevicesInUse"}
    assert world.granted == [Key("ResourceClaim", "default", "a")]
    assert world.claim("a")["status"]["allocation"]["allocationTimestamp"]
    assert "default/a" in world.claim("b")["metadata"]["annotations"]["devalloc.io/message"]


def test_what_a_deleted_claim_had_goes_to_the_next_which_loses_its_reason(world: World) -> None:
    world.apply(CLASS, slice_of("p", "n", [device("d0")]), resource_claim("a"), resource_claim("b"))
    world.devices()
    world.store.delete("ResourceClaim", "default", "a")
    assert world.devices() == {"b": "d0"}
    assert "devalloc.io/reason" not in world.claim("b")["metadata"].get("annotations", {})


def test_no_message_stays_that_names_a_claim_which_is_gone(world: World) -> None:
    """Not even of the claims that wait for the same and come later (kubernetes#140831)."""
    seconds = 0.0
    world.allocator = StoredClaimAllocator(world.store, clock=lambda: seconds)
    world.apply(CLASS, slice_of("p", "n", [device("d0"), device("d1")]), *map(resource_claim, "abcde"))
    world.devices()
    world.store.delete("ResourceClaim", "default", "a")
    for _ in range(3):
        world.devices()
        seconds += REFRESH_SECONDS
    for name in "de":
        message = world.claim(name)["metadata"]["annotations"]["devalloc.io/message"]
        assert "default/a" not in message
        assert "default/b" in message


def test_nothing_is_written_while_nothing_changes(world: World) -> None:
    world.apply(CLASS, slice_of("p", "n", [device("d0")]), resource_claim("a"), resource_claim("b"))
    world.devices()
    before = world.store.list().resource_version
    world.devices()
    assert world.store.list().resource_version == before


def test_slices_classes_and_rules_that_come_later_count(world: World) -> None:
    world.apply(resource_claim("a"))
    assert world.devices() == {"a": "ClassNotFound"}
    world.apply(CLASS, taint_rule("broken", device="d0"))
    assert world.devices() == {"a": "NoMatchingDevices"}
    world.apply(slice_of("p", "n", [device("d0"), device("d1")]))
    assert world.devices() == {"a": "d1"}


def test_a_group_is_written_whole_or_not_at_all(world: World) -> None:
    """A user labels one of its claims while the round decides: that one cannot be written."""
    group = [
        {**claim, "metadata": {**claim["metadata"], "annotations": {"devalloc.io/group": "g"}}}
        for claim in (resource_claim("a"), resource_claim("b"))
    ]
    world.apply(CLASS, slice_of("p", "n", [device("d0"), device("d1")]), *group)
    solve = world.allocator._solver.solve

    def solved(*args: Any) -> Any:
        answers = solve(*args)
        one = world.claim("b")
        world.store.replace({**one, "metadata": {**one["metadata"], "labels": {"team": "blue"}}})
        return answers

    world.allocator._solver.solve = solved  # type: ignore[method-assign, assignment]
    world.allocator.round()
    assert "status" not in world.claim("a")
    assert world.granted == []
    world.allocator._solver.solve = solve  # type: ignore[method-assign]
    assert set(world.devices().values()) == {"d0", "d1"}


def test_a_claim_whose_allocation_the_store_refuses_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.apply(CLASS, slice_of("p", "n", [device("d0")]), resource_claim("a"))
    commit, tries = world.store.commit_each, 0

    def refusing(units: Any, fence: Any) -> Any:
        nonlocal tries
        if any((change.status or {}).get("allocation") for unit in units for change in unit):
            tries += 1
            return [WriteRejected({}, "it is too large") for _ in units]
        return commit(units, fence)

    monkeypatch.setattr(world.store, "commit_each", refusing)
    assert world.devices() == {"a": "Refused"}
    world.devices()
    assert tries == 1, "it is not tried again at once"
    message = "the allocation could not be written: it is too large"
    assert world.claim("a")["metadata"]["annotations"]["devalloc.io/message"] == message


def test_a_slice_that_goes_meanwhile_gives_nothing(world: World) -> None:
    """The round that had read it writes nothing; the next one sees what there is."""
    world.apply(CLASS, slice_of("p", "n", [device("d0")]), resource_claim("a"))
    solve = world.allocator._solver.solve

    def solved(*args: Any) -> Any:
        answers = solve(*args)
        name = world.store.list("ResourceSlice").objects[0]["metadata"]["name"]
        world.store.delete("ResourceSlice", None, name)
        return answers

    world.allocator._solver.solve = solved  # type: ignore[method-assign, assignment]
    world.allocator.round()
    assert "status" not in world.claim("a")
    world.allocator._solver.solve = solve  # type: ignore[method-assign]
    assert world.devices() == {"a": "NoMatchingDevices"}


def test_the_solver_of_the_dialect_is_loaded_only_for_the_first_claim(tmp_path: Path) -> None:
    """A host without ResourceClaims, which is most of them, does not pay for it."""
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from devalloc.controller.reconcile.resource_claims.stored import StoredClaimAllocator\n"
        "from devalloc.store.sqlite import SQLiteStore\n"
        "from tests.support.resource_manifests import resource_claim\n"
        "store = SQLiteStore(Path(sys.argv[1]))\n"
        "allocator = StoredClaimAllocator(store)\n"
        "for claim in (None, resource_claim('a')):\n"
        "    if claim: claim['metadata'].pop('uid', None); store.create(claim)\n"
        "    allocator.round()\n"
        "    print('cel_expr_python' in sys.modules)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "store.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["False", "True"], done.stderr


def test_while_nothing_changes_no_claim_is_looked_at(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be 10,000, of which each round would read all."""
    world.apply(CLASS, slice_of("p", "n", [device("d0")]), resource_claim("a"), resource_claim("b"))
    world.devices()
    world.allocator.round()
    with monkeypatch.context() as patch:
        patch.setattr(stored, "_is_pending", None)
        world.allocator.round()
    world.store.delete("ResourceClaim", "default", "a")
    assert world.devices() == {"b": "d0"}


def test_a_round_that_failed_is_made_again_though_nothing_changes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.apply(CLASS, slice_of("p", "n", [device("d0")]), resource_claim("a"))
    with monkeypatch.context() as patch:
        patch.setattr(stored, "_change", None)
        with pytest.raises(TypeError):
            world.allocator.round()
    assert world.devices() == {"a": "d0"}


def test_claims_without_a_spec_request_nothing_and_hold_up_no_other(world: World) -> None:
    bare = [{k: v for k, v in resource_claim(name).items() if k != "spec"} for name in ("a", "b")]
    world.apply(CLASS, slice_of("p", "n", [device("d0")]), *bare, resource_claim("c"))
    assert world.devices() == {"a": "", "b": "", "c": "d0"}
    assert "allocation" in world.claim("a")["status"]
