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

from devalloc.controller import host_inventory, pool_publisher
from devalloc.controller.pool_publisher import PublishLock
from devalloc.inventory import watch
from devalloc.programs import store_loops
from devalloc.store import StoreLocked
from devalloc.store.sqlite import SQLiteStore
from devalloc_machines.warm import part as warm_part
from devalloc_node import daemon
from tests.support.fleet_manifests import gpu_pool
from tests.support.waiting import until
from tests.unit.controller.test_up import Host, pools, running


def turn(path: Path, node: str = "n", *, is_plugin: bool = False) -> closing[PublishLock]:
    return closing(PublishLock(path, node, is_plugin=is_plugin, wait=0.0))


def test_it_is_one_processs_turn_until_it_gives_it_back_or_ends(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with turn(path) as one, turn(path, "other") as elsewhere:
        with turn(path) as two:
            assert two.acquire()
            assert not one.acquire()
            two.release()
            assert one.acquire()
            one.release()
            assert two.acquire()
        assert one.acquire(), "who is gone has nothing"
        assert elsewhere.acquire(), "another node is another matter"


def test_the_plugin_is_let_through(tmp_path: Path) -> None:
    path = tmp_path / "db"
    with turn(path) as one:
        assert one.acquire()
        assert not one.is_yield_requested()
        with turn(path, is_plugin=True) as plugin:
            assert one.is_yield_requested()
            assert not plugin.acquire(), "nothing is taken away"
            one.release()
            assert not one.acquire()
            assert plugin.acquire()
        assert not one.is_yield_requested()
        assert one.acquire()


def test_a_node_has_one_plugin(tmp_path: Path) -> None:
    path = tmp_path / "db"
    advice = r"On a store, .*--no-node.*--node-name, --state and --socket"
    words = rf"process {os.getpid()} .* the plugin of node n on {path}; .*{advice}"
    with turn(path, is_plugin=True) as plugin:
        assert plugin.acquire()
        for _ in range(2):  # one that is refused leaves nothing behind
            with pytest.raises(StoreLocked, match=words):
                turn(path, is_plugin=True)
        with turn(tmp_path / "other", is_plugin=True) as elsewhere:
            assert elsewhere.acquire(), "another store is another matter"
    with turn(path, is_plugin=True) as successor:
        assert successor.acquire()


def test_two_plugins_of_a_cluster_run_for_the_time_of_a_rolling_update(tmp_path: Path) -> None:
    path = tmp_path / "pools"
    with turn(path) as dry_run, closing(PublishLock(path, "n", is_plugin=True, is_shared=True)) as old:
        assert old.acquire()
        with closing(PublishLock(path, "n", is_plugin=True, is_shared=True)) as new:
            assert not new.acquire(), "the old one publishes until it ends"
            assert dry_run.is_yield_requested()
            old.close()
            assert new.acquire()


def test_a_plugin_says_for_which_predecessor_it_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "db"
    monkeypatch.setattr(pool_publisher, "_NOTICE_SECONDS", 0.01)
    predecessor = PublishLock(path, "n", is_plugin=True)

    def end() -> None:
        until(lambda: caplog.messages)
        predecessor.close()

    ending = threading.Thread(target=end)
    ending.start()
    with closing(PublishLock(path, "n", is_plugin=True, wait=60.01)) as plugin:
        assert plugin.acquire()
    ending.join(60)
    (line,) = caplog.messages
    assert f"process {os.getpid()} " in line
    assert line.endswith(f" already runs the plugin of node n on {path}; waiting 60 s for it to end")


def test_a_plugin_waits_long_enough_for_a_predecessor_that_makes_warm_setups() -> None:
    of_node = daemon.LOOP_SECONDS + warm_part.CLOSE_SECONDS
    of_up = store_loops.GRACE_SECONDS + store_loops.PLUGIN_SECONDS
    assert max(of_node, of_up) + 5.0 <= pool_publisher.PLUGIN_WAIT_SECONDS


def test_a_killed_plugin_leaves_its_place_to_the_next_one(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys, time; from devalloc.controller.pool_publisher import PublishLock; "
        "lock = PublishLock(pathlib.Path(sys.argv[1]), 'n', is_plugin=True); "
        "print(lock.acquire(), flush=True); time.sleep(600)"
    )
    path = tmp_path / "db"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) as plugin:
        try:
            assert plugin.stdout is not None
            assert plugin.stdout.readline() == "True\n"
            with pytest.raises(StoreLocked, match=f"process {plugin.pid} "):
                turn(path, is_plugin=True)
        finally:
            plugin.kill()
    with turn(path, is_plugin=True) as successor:
        assert successor.acquire()


def test_a_plugin_warns_of_the_plugin_of_another_node_on_its_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "db"
    with turn(path, is_plugin=True), turn(path, is_plugin=False), turn(tmp_path / "db2", "other", is_plugin=True):
        assert not caplog.messages
        with turn(path, "second", is_plugin=True):
            (warning,) = caplog.messages
    assert f"process {os.getpid()} " in warning
    assert "CPUs, memory and devices" in warning
    caplog.clear()
    with turn(path, "second", is_plugin=True):
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
        with turn(store.path, is_plugin=True) as plugin:
            until(plugin.acquire)
            node_host.pools = (gpu_pool("q"),)
            up.rescan()
            store.delete("DevicePool", None, "p")  # as the plugin may
        until(lambda: pools(store) == {"q"})
