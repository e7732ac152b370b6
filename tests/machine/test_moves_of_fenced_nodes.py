"""Must show: a fenced node that comes back ends a machine that was just moving, from it or to it (T34)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from devalloc.api.fencing import fenced_from
from devalloc.controller.reconcile.fenced import take_away
from devalloc.programs.node_parts import store_machines, store_source
from devalloc.store.sqlite import SQLiteStore
from devalloc_machines.part import MachineSettings, machines_of
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_machines.service.operations import MachineOperations
from devalloc_machines.vms import MigrationLoop, VirtualMachineLoop, fencing
from devalloc_node import daemon
from devalloc_node.binding.binding import BindingConfig
from devalloc_node.errors import Failed
from devalloc_node.node import open_node
from devalloc_node.parts import NodePart
from tests.machine.test_migration import TwoNodes, nodes, qemu, small
from tests.support.fake_host import FakeHost, LocalHost
from tests.support.migration_kills import MovingNode, TwoPlugins
from tests.support.waiting import in_threads, until

__all__ = ["nodes", "qemu", "small"]
WHY = "by ada: no power"


def begun(small: TwoNodes, folder: Path) -> TwoPlugins:
    """A machine that runs on node a, and is booked to move to node b."""
    folders: dict[str, tuple[Path, MachineConfig]] = {
        name: (settings.state.parent, settings) for name, settings in (("a", small.first), ("b", small.second))
    }
    plugins = TwoPlugins(folder / "store.db", folders)
    manifest = small.machine.to_manifest()
    plugins.begin({**manifest, "spec": {**manifest["spec"], "nodeName": None}}, "a")
    with plugins.node("a") as a:
        until(lambda: a.turn() and plugins.machine()["status"].get("phase") == "Running", "it runs")
    plugins.book("move", "a", "b")
    return plugins


def received(a: MovingNode, b: MovingNode, plugins: TwoPlugins) -> None:
    def waits() -> bool:
        a.turn()
        b.turn()
        seen = plugins.migration("move")
        return seen is not None and seen.phase == "TargetReady"

    until(waits, "node b waits for it")


def handed_over(a: MovingNode, b: MovingNode, plugins: TwoPlugins) -> None:
    received(a, b, plugins)
    until(lambda: a.turn() or plugins.owner() == "b", "it is handed over")


def fence(plugins: TwoPlugins, node: str) -> None:
    """What the controller does in each round while the node is stated to be off."""
    with closing(SQLiteStore(plugins.store)) as store:
        take_away(store, store.list(("VirtualMachine", "DeviceClaim")).objects, node, WHY)


def come_back(plugins: TwoPlugins, here: MovingNode) -> None:
    """What a plugin does before anything else, while its node is still stated to be off."""
    with closing(SQLiteStore(plugins.store)) as store:
        fencing.settle(store, here.migrations._operations, lambda: WHY)


@pytest.mark.parametrize("how_far", [received, handed_over])
@pytest.mark.parametrize("lost", ["a", "b"])
def test_a_fenced_node_that_comes_back_ends_what_was_moving(
    small: TwoNodes, tmp_path: Path, how_far: Callable[[MovingNode, MovingNode, TwoPlugins], None], lost: str
) -> None:
    plugins = begun(small, tmp_path)
    with plugins.node("a") as a, plugins.node("b") as b:
        how_far(a, b, plugins)
    assert all(plugins.run_states().values()), "both have a QEMU, and no plugin"
    fence(plugins, lost)
    with plugins.node(lost) as back:
        come_back(plugins, back)
        assert plugins.run_states()[lost] == "", "it is ended before anything is served"
        assert back.machines.get(plugins.key) is None
        come_back(plugins, back)
    assert not [*small.first.run.glob("*/tls"), *small.second.run.glob("*/tls")][1:], "of the other node at most"
    assert not fenced_from(plugins.machine()), "it is confirmed"


def test_a_plugin_ends_what_was_taken_away_from_it_before_it_changes_machines(
    small: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "SETTLE_SECONDS", 0.01)
    host = FakeHost(tmp_path / "host")
    host.proc("sys/kernel/random/boot_id", "boot-1\n")
    settings = MachineSettings(
        "a", BindingConfig("a"), root=tmp_path / "host", state=tmp_path / "plugin", machines=small.first
    )
    did: list[str] = []

    def settle(operations: MachineOperations) -> None:
        did.append("settle")
        if len(did) == 1:
            raise Failed("StoreUnavailable", "it is not known whether this node was fenced")

    for loop, name in ((VirtualMachineLoop, "machines"), (MigrationLoop, "migrations")):
        monkeypatch.setattr(loop, "run", lambda self, stop, name=name: did.append(name))
    with (
        closing(SQLiteStore(tmp_path / "store.db")) as store,
        open_node(settings, LocalHost(host), store_source(store, "a")) as node,
    ):
        part = machines_of(node)
        part.source = replace(part.source, settle=settle)
        for run in store_machines(store, node):
            run(threading.Event())
        part.machines.close()
    assert did == ["settle", "settle", "machines", "settle", "migrations"]


def test_nothing_moves_before_it_is_settled_what_was_taken_away(
    small: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "SETTLE_SECONDS", 0.01)
    plugins = begun(small, tmp_path)
    with plugins.node("a") as a, plugins.node("b") as b:
        handed_over(a, b, plugins)
    seen: list[str] = []

    class Unknown(NodePart):
        def settle(self) -> None:
            seen.append(plugins.run_states()["b"])
            if len(seen) < 3:
                raise Failed("StoreUnavailable", "it is not known whether this node was fenced")

    with plugins.node("b") as b:
        node = SimpleNamespace(settings=SimpleNamespace(dry_run=False), parts=[Unknown()])
        with in_threads(partial(daemon.when_settled, node, b.migrations.run)):  # type: ignore[arg-type]
            until(lambda: plugins.run_states()["b"] == "running", "it is taken over")
    assert seen == ["paused"] * 3
