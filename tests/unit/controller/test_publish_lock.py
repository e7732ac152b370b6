"""One process publishes a node's devices to a store, and the node plugin goes before others."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from devalloc.controller import host_inventory
from devalloc.controller.pool_publisher import PublishLock
from devalloc.inventory import watch
from devalloc.store import StoreLocked
from devalloc.store.sqlite import SQLiteStore
from tests.support.fleet_manifests import gpu_pool
from tests.support.waiting import until
from tests.unit.controller.test_up import Host, pools, running


def turn(path: Path, node: str = "n", *, first: bool = False) -> closing[PublishLock]:
    return closing(PublishLock(path, node, first=first, wait=0.0))


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
        with turn(path, first=True) as plugin:
            assert one.is_yield_requested()
            assert not plugin.take(), "nothing is taken away"
            one.give()
            assert not one.take()
            assert plugin.take()
        assert not one.is_yield_requested()
        assert one.take()


def test_a_node_has_one_plugin(tmp_path: Path) -> None:
    path = tmp_path / "db"
    words = rf"process {os.getpid()} .* the plugin of node n on {path}; .*--no-node.*--node-name, --state and --socket"
    with turn(path, first=True) as plugin:
        assert plugin.take()
        for _ in range(2):  # one that is refused leaves nothing behind
            with pytest.raises(StoreLocked, match=words):
                turn(path, first=True)
        with turn(tmp_path / "other", first=True) as elsewhere:
            assert elsewhere.take(), "another store is another matter"
    with turn(path, first=True) as successor:
        assert successor.take()


def test_a_plugin_waits_for_its_predecessor_to_end(tmp_path: Path) -> None:
    predecessor = PublishLock(tmp_path / "db", "n", first=True)
    ending = threading.Timer(0.2, predecessor.close)
    ending.start()
    with closing(PublishLock(tmp_path / "db", "n", first=True, wait=60.0)) as plugin:
        assert plugin.take()
    ending.join(60)


def test_a_killed_plugin_leaves_its_place_to_the_next_one(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys, time; from devalloc.controller.pool_publisher import PublishLock; "
        "lock = PublishLock(pathlib.Path(sys.argv[1]), 'n', first=True); "
        "print(lock.take(), flush=True); time.sleep(600)"
    )
    path = tmp_path / "db"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) as plugin:
        try:
            assert plugin.stdout is not None
            assert plugin.stdout.readline() == "True\n"
            with pytest.raises(StoreLocked, match=f"process {plugin.pid} "):
                turn(path, first=True)
        finally:
            plugin.kill()
    with turn(path, first=True) as successor:
        assert successor.take()


def test_a_plugin_warns_of_the_plugin_of_another_node_on_its_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "db"
    with turn(path, first=True), turn(path, first=False), turn(tmp_path / "db2", "other", first=True):
        assert not caplog.messages
        with turn(path, "second", first=True):
            (warning,) = caplog.messages
    assert f"process {os.getpid()} " in warning
    assert "CPUs, memory and devices" in warning
    caplog.clear()
    with turn(path, "second", first=True):
        assert not caplog.messages, "the other one has ended"


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
