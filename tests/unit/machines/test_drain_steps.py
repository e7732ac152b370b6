"""What a drain does next, from one listing and what it did before: the table of states, and what ends each."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from devalloc.api import meta
from devalloc.api.views import MachineView
from devalloc.machines.drain import DrainedMachine, Fate
from devalloc.machines.drain_steps import (
    SETTLE_SECONDS,
    Action,
    Entry,
    Look,
    State,
    Write,
    became,
    next_actions,
    take_look,
    too_late,
)
from devalloc.store import Key
from tests.support.fleet_manifests import gpu_claim
from tests.support.host_pools import machine
from tests.support.migration_nodes import KIND, migration

Object = dict[str, Any]
WEB = Key("VirtualMachine", "default", "web")
TRAIN = Key("DeviceClaim", "default", "train")
OWN = Key(KIND, "default", "web-drain-00c0ffee")


def web(*, holder: str | None = "a", **status: Any) -> Object:
    """The machine web, which the node a has."""
    obj = {**machine("web"), "status": status}
    held = {"annotations": {meta.PREPARED_ON: holder}, "finalizers": [meta.NODE_FINALIZER]} if holder else {}
    return {**obj, "metadata": {**obj["metadata"], **held}}


def planned(fate: Fate, obj: Object | None = None) -> DrainedMachine:
    return DrainedMachine(MachineView(obj or web()), fate, "why", runs=True)


def look(*machines: DrainedMachine, objects: tuple[Object, ...] = (), is_cordoned: bool = True) -> Look:
    return Look("a", [*(one.machine.content for one in machines), *objects], is_cordoned, machines)


def before(state: State | None, fate: Fate = Fate.MIGRATE, **fields: Any) -> dict[Key, Entry]:
    return {WEB: Entry(state, planned(fate), **fields)}


def step(actions: list[Action]) -> tuple[Write | None, State | None] | None:
    """What is written for the one object, and its state then; None: nothing, and it stays as it is."""
    if not actions:
        return None
    (action,) = actions
    return action.write, action.entry.state if action.entry is not None else None


NEXT = {
    **{(None, fate): (None, State.REQUESTED) for fate in (Fate.LEAVING, Fate.STOPPING)},
    **{(None, fate): (Write.EVICT, State.REQUESTED) for fate in (Fate.MOVE, Fate.STOP)},
    (None, Fate.MIGRATE): (Write.MIGRATE, State.MIGRATING),
    (None, Fate.STAY): None,
    **{(State.REFUSED, fate): None for fate in Fate},
    (State.REFUSED, Fate.LEAVING): (None, State.REQUESTED),
    **{(State.FAILED, fate): (None, State.POWERING_DOWN) for fate in (Fate.LEAVING, Fate.STOPPING)},
    **{(State.FAILED, fate): (Write.EVICT, State.POWERING_DOWN) for fate in (Fate.MOVE, Fate.STOP)},
    (State.FAILED, Fate.STAY): None,
}
"""What follows from the state and the plan, if the machine has no migration."""
NEXT |= {(state, fate): NEXT[None, fate] for state in (State.REQUESTED, State.MIGRATING, State.LEFT) for fate in Fate}
NEXT |= {(State.POWERING_DOWN, fate): NEXT[State.FAILED, fate] for fate in Fate if fate is not Fate.MIGRATE}
NEVER = {(State.FAILED, Fate.MIGRATE), (State.POWERING_DOWN, Fate.MIGRATE)}
"""The plan knows which machines did not move while they ran."""


@pytest.mark.parametrize(("state", "fate"), sorted({*product((None, *State), Fate)} - NEVER, key=str))
def test_what_follows_from_a_state_and_the_plan(state: State | None, fate: Fate) -> None:
    entries = {} if state is None else before(state)
    assert step(next_actions(look(planned(fate)), entries, 0.0)) == NEXT[state, fate]


@pytest.mark.parametrize("fate", Fate)
def test_without_a_cordon_nothing_is_asked(fate: Fate) -> None:
    expected = (None, State.REQUESTED) if fate is Fate.LEAVING else None
    assert step(next_actions(look(planned(fate), is_cordoned=False), {}, 0.0)) == expected


def test_the_plan_knows_which_machines_did_not_move_while_they_ran() -> None:
    status = {"phase": "Running", "nodeName": "a"}
    for state in (State.FAILED, State.POWERING_DOWN):
        entries = before(state, why="it took too long")
        seen = take_look([web(**status)], "a", entries, force=False, live=True, is_cordoned=True)
        assert "cannot move while it does: it took too long" in seen.machines[0].why
    seen = take_look([web(**status)], "a", before(State.MIGRATING), force=False, live=True, is_cordoned=True)
    assert "too long" not in seen.machines[0].why


class TestMigrations:
    def test_a_pending_one_of_a_user_moves_the_machine_and_says_so_once(self) -> None:
        seen = look(planned(Fate.MIGRATE), objects=(migration("move", "web"),))
        (action,) = next_actions(seen, {}, 0.0)
        assert (action.write, action.lines) == (
            None,
            ("virtualmachine default/web will move by its pending migration default/move",),
        )
        assert action.entry is not None
        assert (action.entry.state, action.entry.drains_migration) == (State.MIGRATING, None)
        (again,) = next_actions(seen, {WEB: action.entry}, 0.0)
        assert (again.entry, again.lines) == (action.entry, ())

    def test_its_progress_is_said_when_it_changes(self) -> None:
        entries = before(State.MIGRATING, migration=OWN)
        texts = []
        for phase in ("Scheduled", "Running", "Running"):
            moving = {**migration(OWN.name, "web"), "status": {"phase": phase, "targetNode": "b"}}
            (action,) = next_actions(look(planned(Fate.MIGRATE), objects=(moving,)), entries, 0.0)
            assert action.entry is not None
            texts += action.lines
            entries = {WEB: action.entry}
        assert texts == [f"virtualmachine default/web moves to node b: {phase}" for phase in ("Scheduled", "Running")]

    def test_a_failure_is_the_migrations_only_if_the_machine_can_still_move_after_a_while(self) -> None:
        failed = {**migration(OWN.name, "web"), "status": {"phase": "Failed", "reason": "Why", "message": "not"}}
        seen = look(planned(Fate.MIGRATE), objects=(failed,))
        (first,) = next_actions(seen, before(State.MIGRATING, migration=OWN), 100.0)
        assert first.entry is not None
        assert (first.entry.state, first.notes) == (State.MIGRATING, ())
        (early,) = next_actions(seen, {WEB: first.entry}, 100.0 + SETTLE_SECONDS - 0.1)
        assert early.entry == first.entry
        (late,) = next_actions(seen, {WEB: first.entry}, 100.0 + SETTLE_SECONDS)
        assert late.notes == ("error: virtualmachine default/web did not move while it ran: Why: not",)
        assert late.entry is not None
        assert (late.write, late.entry.state, late.entry.why) == (None, State.FAILED, "Why: not")

    def test_one_that_is_there_again_has_not_failed(self) -> None:
        """An older list may lack it."""
        entries = before(State.MIGRATING, migration=OWN)
        (gone,) = next_actions(look(planned(Fate.MIGRATE)), entries, 100.0)
        assert gone.entry is not None
        assert gone.entry.why == "its migration was deleted"
        back = look(planned(Fate.MIGRATE), objects=(migration(OWN.name, "web"),))
        (action,) = next_actions(back, {WEB: gone.entry}, 200.0)
        assert action.entry is not None
        assert (action.entry.state, action.entry.why, action.entry.failed_at) == (State.MIGRATING, "", None)

    def test_those_of_drains_are_withdrawn_when_the_machine_is_to_stay(self) -> None:
        seen = look(planned(Fate.STAY), objects=(migration(OWN.name, "web"),))
        (action,) = next_actions(seen, before(State.MIGRATING, migration=OWN), 0.0)
        assert (action.write, action.migration) == (Write.WITHDRAW, OWN)
        assert action.entry is not None
        assert action.entry.migration is None

    @pytest.mark.parametrize(
        ("fate", "state", "is_late"),
        [
            (Fate.MIGRATE, State.MIGRATING, True),
            (Fate.MIGRATE, State.REFUSED, False),
            (Fate.LEAVING, State.MIGRATING, True),
            (Fate.MOVE, State.REQUESTED, False),
        ],
    )
    def test_when_the_time_is_up_those_that_run_are_late(self, fate: Fate, state: State, is_late: bool) -> None:
        moving = web(migrationState={"targetNode": "b"}) if fate is Fate.LEAVING else web()
        own = OWN if state is State.MIGRATING else None
        late = too_late(look(planned(fate, moving)), before(state, migration=own))
        assert ({key: one.why for key, one in late.items()}) == ({WEB: "it took too long"} if is_late else {})

    def test_a_machine_is_late_once(self) -> None:
        seen = look(planned(Fate.MIGRATE))
        assert too_late(seen, too_late(seen, before(State.MIGRATING))) == {}

    def test_a_machine_that_moves_to_the_node_stays_where_it_is(self) -> None:
        state = {"targetNode": "a", "migrationName": "in"}
        seen = look(objects=(web(holder="b", nodeName="b", migrationState=state),))
        (action,) = next_actions(seen, {}, 0.0)
        key = Key(KIND, "default", "in")
        assert (action.key, action.write, action.migration) == (key, Write.WITHDRAW, key)
        for state_then in (State.REQUESTED, State.REFUSED):
            assert next_actions(seen, {key: Entry(state_then)}, 0.0) == []
        assert became(seen, {key: Entry(State.REQUESTED)}) == []
        assert became(look(), {key: Entry(State.REQUESTED)}) == [Action(key, None)]


class TestWhatBecameOfThem:
    def lines(self, obj: Object | None, entry: Entry, *machines: DrainedMachine) -> tuple[list[str], bool]:
        """What is texts, and whether the drain still waits."""
        seen = look(*machines, objects=() if obj is None or machines else (obj,))
        actions = became(seen, {WEB: entry})
        return [line for one in actions for line in (*one.lines, *one.notes)], not any(
            one.entry is None for one in actions
        )

    def test_one_that_is_deleted_is_gone(self) -> None:
        assert self.lines(None, Entry(State.REQUESTED, planned(Fate.MOVE))) == (
            ["virtualmachine default/web is gone"],
            False,
        )

    def test_one_that_is_there_is_waited_for(self) -> None:
        one = planned(Fate.LEAVING)
        assert self.lines(one.machine, Entry(State.REQUESTED, one), one) == ([], True)

    def test_one_that_is_to_stay_is_waited_for_no_more(self) -> None:
        one = planned(Fate.STAY)
        assert self.lines(one.machine, Entry(State.REQUESTED, planned(Fate.STOPPING)), one) == ([], False)

    @pytest.mark.parametrize(
        ("status", "texts", "waits"),
        [
            ({}, [], True),
            ({"nodeName": "b"}, ["virtualmachine default/web placed on node b"], False),
            (
                {"reason": "NoRoom", "message": "no room"},
                ["virtualmachine default/web waits for a node: no room"],
                False,
            ),
        ],
    )
    def test_one_that_has_left_is_waited_for_until_it_has_a_node_or_a_reason(
        self, status: Object, texts: list[str], waits: bool
    ) -> None:
        there = web(holder=None, **status)
        entry = Entry(State.REQUESTED, planned(Fate.MOVE))
        left = "virtualmachine default/web left node a"
        assert self.lines(there, entry) == ([left, *texts], waits)
        assert self.lines(there, replace(entry, state=State.LEFT)) == (texts, waits), "it is said once"

    def test_one_that_cannot_start_elsewhere_is_not_waited_for(self) -> None:
        lines, waits = self.lines(web(holder=None), Entry(State.REQUESTED, planned(Fate.STOP)))
        assert (lines[1:], waits) == (
            ["virtualmachine default/web starts again on node a after `devalloc uncordon node/a`"],
            False,
        )


class TestClaims:
    def claim(self) -> Object:
        obj = gpu_claim("train")
        annotations = {**obj["metadata"].get("annotations", {}), meta.ALLOCATED_NODE: "a"}
        status = {"allocations": [{"devicePoolName": "gpus", "deviceName": "d0"}]}
        return {**obj, "metadata": {**obj["metadata"], "annotations": annotations}, "status": status}

    @pytest.mark.parametrize("state", [None, *State])
    @pytest.mark.parametrize("is_cordoned", [False, True])
    def test_it_is_released_until_it_is_refused(self, state: State | None, is_cordoned: bool) -> None:
        entries = {} if state is None else {TRAIN: Entry(state)}
        actions = next_actions(look(objects=(self.claim(),), is_cordoned=is_cordoned), entries, 0.0)
        is_tried = state is State.REQUESTED or (is_cordoned and state is not State.REFUSED)
        assert step(actions) == ((Write.RELEASE, State.REQUESTED) if is_tried else None)

    def test_one_that_its_node_gave_up_is_released(self) -> None:
        assert became(look(), {TRAIN: Entry(State.REQUESTED)}) == [
            Action(TRAIN, None, lines=("DeviceClaim default/train released",))
        ]
        assert became(look(), {TRAIN: Entry(State.FAILED)}) == [Action(TRAIN, None)]
        assert became(look(objects=(self.claim(),)), {TRAIN: Entry(State.REQUESTED)}) == []
