"""One process publishes a node's devices to a store, and the node plugin goes before others."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from devalloc.controller import host_inventory
from devalloc.controller.pool_publisher import PublishLock
from devalloc.inventory import watch
from devalloc.store.sqlite import SQLiteStore
from tests.support.fleet_manifests import gpu_pool
from tests.support.waiting import until
from tests.unit.controller.test_up import Host, pools, running


def turn(path: Path, node: str = "n", *, first: bool = False) -> closing[PublishLock]:
    return closing(PublishLock(path, node, first=first))


def test_it_is_one_processs_turn_until_it_gives_it_back_or_ends(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with turn(path) as one, turn(path, "other") as elsewhere:
        with turn(path) as two:
            assert two.take()
            assert not one.take()
            two.give()
            assert one.take()
            one.give()
            assert two.take()
        assert one.take(), "who is gone has nothing"
        assert elsewhere.take(), "another node is another matter"


def test_who_goes_first_is_let_through(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with turn(path) as one:
        assert one.take()
        assert not one.is_yield_requested()
        with turn(path, first=True) as plugin, turn(path, first=True) as successor:
            assert one.is_yield_requested()
            assert not plugin.take(), "nothing is taken away"
            one.give()
            assert not one.take()
            assert plugin.take()
            assert not successor.take(), "in a rolling update one after the other"
            plugin.give()
            assert successor.take()
        assert not one.is_yield_requested()
        assert one.take()


def test_the_files_are_the_users_alone(tmp_path: Path) -> None:
    with turn(tmp_path / "db", "../../etc"):
        assert {(file.parent, file.stat().st_mode & 0o777) for file in tmp_path.iterdir()} == {(tmp_path, 0o600)}


def test_the_loops_stop_publishing_for_a_node_plugin_and_go_on_after_it(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_inventory, "_LOCK_POLL_SECONDS", 0.05)
    monkeypatch.setattr(watch, "WatchSettings", partial(watch.WatchSettings, quiet=0.01, min_interval=0.05))
    node_host = Host(gpu_pool("p"))
    with running(store, node_host) as up:
        until(lambda: pools(store) == {"p"})
        with turn(store.path, first=True) as plugin:
            until(plugin.take)
            node_host.pools = (gpu_pool("q"),)
            up.rescan()
            store.delete("DevicePool", None, "p")  # as the plugin may
        until(lambda: pools(store) == {"q"})
