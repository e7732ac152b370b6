"""Claims that came along with a machine, and that are deleted, detached or released before their new node has marked
them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from devalloc.api import meta
from devalloc.api.views import MachineView
from devalloc.store import Object
from devalloc_solver import solve_manifests
from tests.support.machine_allocator import machine_allocator
from tests.support.toy_machines import vm
from tests.unit.node.test_vms import NODE, World, world

__all__ = ["world"]
MACHINE = "default/web"


def deleted(world: World) -> None:
    world.store.delete("DeviceClaim", "default", "card")


def created_anew(world: World) -> None:
    deleted(world)
    world.claim("card", "b/slot-0", node="node-b")


def out_of_its_spec(world: World) -> None:
    now = world.store.get("VirtualMachine", "default", "web")
    world.store.replace({**now, "spec": {**now["spec"], "claims": []}})


CHANGES: list[Callable[[World], None]] = [deleted, created_anew, out_of_its_spec]


def arrived(world: World) -> Object:
    """The machine with the device of this node, while its claim has still that of the node that it came from, which has
    given it up; the claim."""
    claim = world.claim("card", "b/slot-0", node="node-b")
    made = world.apply(vm("web", "card"))
    moved = [{"devicePoolName": "a", "deviceName": "slot-0"}]
    status = {
        "nodeName": NODE,
        "movedClaims": [{"name": "card", "uid": claim["metadata"]["uid"], "allocations": moved}],
    }
    world.store.replace_status({**made, "status": status})
    world.round(times=2)
    assert devices(world) == ["a/slot-0"]
    return claim


def devices(world: World) -> list[str]:
    return [f"{one['pool']}/{one['device']}" for one in world.status().get("devices", [])]


def prepared(world: World) -> list[str]:
    return [record.ref.uid for record in world.bench.claims.journal.claims()]


def waiting(world: World) -> list[Any]:
    return list(MachineView(world.store.get("VirtualMachine", "default", "web")).moved_claims)


@pytest.mark.parametrize("change", CHANGES)
def test_devices_of_a_lost_claim_are_unplugged_and_free(world: World, change: Callable[[World], None]) -> None:
    arrived(world)
    change(world)
    world.round(times=2)
    assert (devices(world), prepared(world)) == ([], []), "no claim has them"
    assert world.machines.views[MACHINE].runs, "the machine goes on"
    for _ in range(3):
        machine_allocator(world.store, solve=solve_manifests).round()
        world.round()
    assert waiting(world) == []
    assert (devices(world), prepared(world)) == ([], [])


@pytest.mark.parametrize("change", CHANGES)
def test_devices_of_a_lost_claim_are_free_if_the_machine_has_ended(
    world: World, change: Callable[[World], None]
) -> None:
    arrived(world)
    world.machines.fail.add("start")
    world.machines.end(MACHINE)
    change(world)
    world.round(times=2)
    assert prepared(world) == []


def test_a_lost_claim_that_another_machine_has_by_now_stays(world: World) -> None:
    """Its claim got the device, and left the spec, before the controller had taken note of both."""
    claim = arrived(world)
    out_of_its_spec(world)
    world.round()
    world.allocate("card", "a/slot-0")
    world.apply(vm("other", "card"))
    world.round(times=2)
    assert waiting(world)
    assert prepared(world) == [claim["metadata"]["uid"]]
    now = world.store.get("DeviceClaim", "default", "card")
    assert now["metadata"]["annotations"][meta.PREPARED_ON] == NODE
    assert world.status("other")["devices"]


@pytest.mark.parametrize("is_given", [False, True])
@pytest.mark.parametrize("runs", [True, False])
def test_a_claim_that_is_released_leaves_the_machine_and_is_free(world: World, is_given: bool, runs: bool) -> None:
    """Its release was asked of the node that the machine left, or of none: no node had marked it."""
    arrived(world)
    controller = machine_allocator(world.store, solve=solve_manifests)
    if is_given:
        controller.round()
    if not runs:
        world.machines.fail.add("start")
        world.machines.end(MACHINE)
    world.annotate("DeviceClaim", "card", meta.RELEASE, "forced")
    controller.round()
    world.round(times=2)
    for _ in range(3):  # the controller does not look meanwhile
        world.round()
        assert (devices(world), prepared(world)) == ([], []), "no one has them"
    assert world.machines.views[MACHINE].runs == runs
    for _ in range(3):
        controller.round()
        world.round()
    card = world.store.get("DeviceClaim", "default", "card")
    assert waiting(world) == []
    assert meta.RELEASE not in card["metadata"]["annotations"]
    assert "status" not in card
    assert not card["metadata"].get("finalizers")
