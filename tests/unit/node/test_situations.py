"""Whose a machine is follows from its object and what this node has of it, and each situation has a step."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from devalloc.api import meta
from devalloc.store.sqlite import SQLiteStore
from devalloc_machines.qemu.records import MachineView, State
from devalloc_machines.vms import situation
from devalloc_machines.vms.situation import Whose, read_situation, request_situation, whose
from devalloc_machines.vms.steps import STEPS, step_for
from devalloc_node.errors import Unknown
from tests.support.toy_machines import ToyMachines, machine_of, vm

NODE, OTHER = "node-a", "node-b"
HERE = MachineView("default/web", "u1", State.RUNNING)
DELETED = {"deletionTimestamp": "2026-11-30T12:00:00Z"}
EVICTED = {meta.EVICT: NODE, meta.LAST_NODE: NODE}
FENCED = {meta.FENCED_FROM: NODE}


def obj(
    holder: str | None = NODE,
    *,
    node: str | None = NODE,
    notes: dict[str, str] | None = None,
    status: dict[str, Any] | None = None,
    running: bool = True,
    **metadata: Any,
) -> Any:
    """A VirtualMachine of the store."""
    made = vm("web", uid="u1", nodeName=node, running=running)
    if holder is not None:
        metadata = {"finalizers": [meta.NODE_FINALIZER], **metadata}
        notes = {meta.PREPARED_ON: holder, **(notes or {})}
    return {**made, "metadata": {**made["metadata"], **metadata, "annotations": notes or {}}, "status": status or {}}


def seen(
    of: Any, here: MachineView | None = HERE, *, is_unplaced: bool = False, is_valid: bool = True, is_over: bool = False
) -> Whose:
    content = machine_of(of) if of is not None and is_valid else None
    return whose(of, content, NODE, here, is_unplaced=is_unplaced, is_over=is_over)


def test_a_machine_that_this_node_holds_is_run_or_rests_as_its_object_wants() -> None:
    assert seen(obj()) is Whose.OURS
    assert seen(obj(running=False)) is Whose.RESTING
    assert seen(obj(), is_valid=False) is Whose.INVALID
    assert seen(obj(), is_unplaced=True) is Whose.OURS, "it has been started, and keeps what it has"


def test_a_run_that_began_before_a_request_to_restart_is_to_be_ended() -> None:
    requesting = obj(notes={meta.RESTART: "2"})
    begun = replace(HERE, created_as=machine_of(vm("web")))
    assert seen(requesting, begun) is Whose.RESTARTING
    assert seen(requesting, replace(begun, created_as=machine_of(requesting))) is Whose.OURS
    assert seen(requesting, replace(begun, state=State.STOPPED)) is Whose.OURS, "its next run is begun anyhow"
    assert seen(requesting, replace(begun, uid="another")) is Whose.OURS, "it is not the object's"


@pytest.mark.parametrize("holder", [NODE, OTHER, None])
def test_a_deleted_machine_and_one_that_is_elsewhere_end_here_in_any_hands(holder: str | None) -> None:
    assert seen(obj(holder, **DELETED)) is Whose.DELETED
    assert seen(obj(holder, node=OTHER)) is Whose.ELSEWHERE


def test_an_evicted_machine_leaves_what_it_keeps_here() -> None:
    assert seen(obj(notes=EVICTED)) is Whose.EVICTED
    assert seen(obj(notes=EVICTED, **DELETED)) is Whose.DELETED, "nothing of it is kept then"
    assert seen(obj(None, node=None, notes={meta.LAST_NODE: NODE})) is Whose.EVICTED, "it waits for a node"


def test_an_object_is_taken_once_no_other_node_holds_it_and_there_is_room() -> None:
    assert seen(obj(OTHER)) is Whose.AWAITED
    assert seen(obj(None)) is Whose.FREE
    assert seen(obj(None), is_unplaced=True) is Whose.UNPLACED
    assert seen(obj(None, running=False), is_unplaced=True) is Whose.FREE, "it needs no room"
    assert seen(obj(None), is_unplaced=True, is_valid=False) is Whose.FREE, "its node says what is wrong with it"
    refused = {"conditions": [{"type": "Startable", "status": "False"}]}
    assert seen(obj(None, status=refused), is_unplaced=True) is Whose.FREE, "its node alone takes its refusal back"
    unnamed = obj(finalizers=[meta.NODE_FINALIZER], holder=None)
    assert seen(unnamed) is Whose.FREE, "a user removed the node's name by hand"


@pytest.mark.parametrize("of", [obj(), obj(OTHER), obj(node=OTHER), obj(**DELETED), obj(notes=EVICTED)])
def test_what_was_taken_away_ends_before_anything_else_is_done(of: Any) -> None:
    of["metadata"]["annotations"] |= FENCED
    assert seen(of) is Whose.TAKEN


@pytest.mark.parametrize("of", [None, obj(), obj(OTHER), obj(node=OTHER), obj(**DELETED), obj(notes=FENCED)])
def test_only_its_migration_changes_a_machine_that_moves(of: Any) -> None:
    assert seen(of, MachineView("default/web", "u1", State.RUNNING, is_moving=True)) is Whose.MOVING


def test_a_machine_without_an_object_is_the_services_or_its_object_is_gone() -> None:
    assert seen(None) is seen(None, None) is Whose.GONE
    assert seen(None, is_over=True) is Whose.ORPHANED
    assert seen(None, MachineView("default/web", "", State.RUNNING)) is Whose.SERVICE


class OneNode:
    """What a node has of a machine of a store."""

    def __init__(self, store: SQLiteStore, holder: str | None = NODE, **status: Any) -> None:
        self.store, self.machines = store, ToyMachines()
        made = obj(holder)
        stored = store.create({**made, "metadata": made["metadata"] | {"uid": "u1"}})
        self.obj = store.replace_status({**stored, "status": status})
        self.here = replace(HERE, uid=stored["metadata"]["uid"])

    def state(self) -> State:
        operations: Any = SimpleNamespace(node_name=NODE, machines=self.machines)
        return read_situation(self.store, operations, self.obj).state


def test_a_machine_that_lives_without_a_record_is_looked_for_where_its_object_is_held(store: SQLiteStore) -> None:
    node = OneNode(store)
    assert node.state() is State.ABSENT
    node.machines.forgotten["default/web"] = node.here
    assert node.state() is State.LOST
    node.machines.views["default/web"] = node.here
    assert node.state() is State.RUNNING


def test_a_machine_with_its_name_is_not_the_machine_of_an_object(store: SQLiteStore) -> None:
    node = OneNode(store)
    node.machines.views["default/web"] = replace(node.here, uid="another")
    assert node.state() is State.OTHER
    node.machines.views["default/web"] = replace(node.here, uid="", state=State.UNREADABLE)
    assert node.state() is State.UNREADABLE, "it may be"


def test_a_request_is_the_object_of_its_machine() -> None:
    machines = ToyMachines()
    operations: Any = SimpleNamespace(node_name=NODE, machines=machines)
    assert request_situation(operations, "default/web").whose is Whose.GONE
    machines.views["default/web"] = replace(HERE, uid="", created_as=(request := machine_of(vm("web"))))
    now = request_situation(operations, "default/web")
    assert (now.whose, now.state, now.vm) == (Whose.SERVICE, State.RUNNING, request)


@pytest.mark.parametrize("holder", [OTHER, None])
def test_nothing_that_lives_is_taken_for_the_machine_of_an_object_that_another_node_holds(
    store: SQLiteStore, holder: str | None
) -> None:
    node = OneNode(store, holder)
    node.machines.forgotten["default/web"] = node.here
    assert node.state() is State.ABSENT


def test_a_machine_may_be_lost_while_its_life_cannot_be_read(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(self: ToyMachines, key: str) -> None:
        raise Unknown("HostUnreadable", "its life file cannot be read")

    monkeypatch.setattr(ToyMachines, "lost", unknown)
    assert OneNode(store).state() is State.LOST


def test_a_run_that_its_object_names_is_foreign_unless_this_plugin_knows_it(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(situation, "qemu_uuid", lambda pid: "run-1")
    node = OneNode(store, machineID="run-1", pid=7)
    assert node.state() is State.FOREIGN
    node.machines.views["default/web"] = replace(node.here, state=State.STOPPED, id="run-0")
    assert node.state() is State.FOREIGN, "what is recorded here is an older run"
    for state, run in ((State.STOPPED, "run-1"), (State.RUNNING, "run-1"), (State.RUNNING, "run-2")):
        node.machines.views["default/web"] = replace(node.here, state=state, id=run)
        assert node.state() is state


def test_each_situation_has_a_step() -> None:
    for owner, state in product(Whose, State):
        assert callable(step_for(owner, state)), (owner, state)


def test_each_row_is_a_situation_of_its_own() -> None:
    """A row for every state, and one for each state, would hide a state that was forgotten."""
    for owner in Whose:
        has_rest = (owner, None) in STEPS
        assert has_rest is ({state for of, state in STEPS if of is owner} != set(State)), owner
