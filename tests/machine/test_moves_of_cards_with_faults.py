"""Must show: a machine that moves with a card, killed or failing anywhere, has one card afterwards, on its own node."""

from __future__ import annotations

import itertools
from contextlib import closing
from pathlib import Path

import pytest

from devalloc.store.sqlite import SQLiteStore
from devalloc_solver import solve_manifests, testing
from tests.machine.test_migration import IS_WHOLE, MEANWHILE, STEP, TwoNodes, await_run, nodes, qemu, small
from tests.support.deadlines import soon
from tests.support.fleet_manifests import held
from tests.support.machine_allocator import machine_allocator
from tests.support.migration_device_kills import TwoPluginsWithCards, two_plugins_with_cards
from tests.support.migration_kills import Fault
from tests.support.waiting import until

__all__ = ["nodes", "qemu", "small"]
SAMPLE = (40, 105, 128)
"""Gates of about 145: the target plugs the card in, the source gives its own back, the claim gets the other one."""


def folders_of(small: TwoNodes) -> dict[str, tuple[Path, object]]:
    return {"a": (small.first.state.parent, small.first), "b": (small.second.state.parent, small.second)}


def begin(plugins: TwoPluginsWithCards, small: TwoNodes) -> None:
    """The machine runs on node a with its card."""
    manifest = small.machine.to_manifest()
    plugins.begin({**manifest, "spec": {**manifest["spec"], "nodeName": None}}, "a")
    with plugins.node("a") as first:
        until(
            lambda: first.turn() and plugins.machine()["status"].get("phase") == "Running",
            "it runs",
            context=plugins.described,
        )
        first.turn()
    plugins.check("a", "its start")


@pytest.mark.parametrize("how", ["kill", *(["fail", "kill-source", "kill-target"] if IS_WHOLE else [])])
def test_a_fault_anywhere_leaves_the_card_on_the_node_of_the_machine(
    small: TwoNodes, tmp_path: Path, how: Fault
) -> None:
    with two_plugins_with_cards(tmp_path / "store.db", folders_of(small)) as plugins:
        begin(plugins, small)
        source, gates, moved = "a", list[str](), 0
        run = plugins.machine()["status"]["machineID"]
        for number in itertools.count(0, STEP) if IS_WHOLE else SAMPLE:
            target = "b" if source == "a" else "a"
            plugins.book(name := f"{how}-{number}", source, target)
            gates.append(gate := plugins.run_until(number, how, source, target))
            before = plugins.run_states()
            meanwhile = MEANWHILE[len(gates) % 4] if how == "kill" and gate else MEANWHILE[0]
            where = f"{how} {number}, {gate}, {meanwhile}"
            assert list(before.values()).count("running") <= 1, f"two owners after {where}: {before}"
            if meanwhile == MEANWHILE[1]:
                plugins.delete_migration(name)
            off = {MEANWHILE[2]: target, MEANWHILE[3]: source}.get(meanwhile, "")
            is_lost = bool(off) and plugins.power_off(off) and off == plugins.owner()
            with plugins.node(source) as a, plugins.node(target) as b:
                plugins.settle(lambda what: None, b, a)
                owner = plugins.owner()
                lives, gone = (b, a) if owner == target else (a, b)
                await_run(plugins, (b, a), lives, is_new=is_lost, before=run)
                plugins.settle(lambda what: None, b, a)
                assert plugins.run_states() == {lives.name: "running", gone.name: ""}, where
                lives.machines.scale(plugins.key, "cpu", 0, soon())  # it may be changed again
            plugins.check(owner, where)
            moved, source, run = moved + (owner == target), owner, plugins.machine()["status"]["machineID"]
            if not gate:
                break
        print(f"{how}: {len(gates)} tries, {moved} moved: {gates}")
        assert moved, "none has moved"
        assert len(gates) > (40 if how in ("kill-source", "kill-target") else 100) // STEP if IS_WHOLE else all(gates)


def test_a_machine_whose_card_is_another_one_there_goes_on_where_it_is(small: TwoNodes, tmp_path: Path) -> None:
    """The controller sees no difference: revisions are not published."""
    with two_plugins_with_cards(tmp_path / "store.db", folders_of(small), b="0xb2") as plugins:
        begin(plugins, small)
        run = plugins.machine()["status"]["machineID"]
        plugins.book("move", "a", "b")
        with plugins.node("a") as a, plugins.node("b") as b:
            plugins.settle(lambda what: None, a, b)
            await_run(plugins, (a, b), a, is_new=False, before=run)
            plugins.settle(lambda what: None, a, b)
        seen = plugins.migration("move")
        assert seen is not None
        assert (seen.phase, seen.status["reason"]) == ("Failed", "DeviceDiffers")
        assert "0xa1" in seen.status["message"], "which one it has"
        assert "0xb2" in seen.status["message"], "which one it would get"
        plugins.check("a", "a refused move")
        assert plugins.run_states() == {"a": "running", "b": ""}
        with closing(SQLiteStore(plugins.store)) as store:
            store.create(testing.claim("other", testing.request("card", 1), namespace="default"))
            machine_allocator(store, solve=solve_manifests).round()
            assert held(store, "other") == ["b-0000-01-00/0000-01-00-0"], "others get what was booked there"
