"""What goes on behind a pool of warm setups. The setups are of toy parts, the clock stands still."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from devalloc_machines.warm.pool import Pool, PoolBackground
from devalloc_machines.warm.settings import WarmConfig
from devalloc_machines.warm.setup import Setup
from tests.support.toy_setups import BOOT, ToyPart, opened


@pytest.fixture
def toy() -> ToyPart:
    return ToyPart()


def test_a_setup_without_processes_for_long_enough_is_taken_back(
    tmp_path: Path, toy: ToyPart, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    lived_in: list[str] = []
    monkeypatch.setattr(
        "devalloc_machines.warm.builder.occupants",
        lambda setups, own: {setup.id: ["somebody"] for setup in setups if setup.id in lived_in},
    )
    with opened(tmp_path, toy, lease_seconds=300.0) as pool:
        keeper = PoolBackground(pool, clock=lambda: now)
        left, used = pool.take("a").setup.id, pool.take("b").setup.id
        for now, lives in ((0.0, []), (200.0, [used]), (299.0, []), (300.0, []), (598.0, []), (599.0, [])):
            lived_in[:] = lives
            keeper.take_back_forgotten()
            expected = {left, used} if now < 300 else {used} if now < 599 else set()
            assert set(toy.there) == expected, now


@pytest.mark.parametrize("target", [0, 2])
def test_a_plugin_that_keeps_fewer_than_the_killed_one_removes_the_others(
    tmp_path: Path, toy: ToyPart, monkeypatch: pytest.MonkeyPatch, target: int
) -> None:
    monkeypatch.setattr("devalloc_machines.warm.builder.occupants", lambda setups, own: {})
    config = WarmConfig(run=tmp_path / "run", namespaces=tmp_path / "netns", target=3)
    killed = Pool(config, BOOT, parts=[toy])
    killed.open()
    taken = killed.take("a").setup.id
    killed.refill()
    assert killed._lock is not None
    killed._lock.close()  # as kill -9
    assert len(toy.there) == 4
    with opened(tmp_path, toy, target=target) as pool:
        assert pool.status().ready == 3
        stop = threading.Event()
        monkeypatch.setattr(pool, "await_change", lambda seconds: stop.set())
        PoolBackground(pool, clock=lambda: 0.0).keep(stop)
        status = pool.status()
        assert (status.ready, status.removing, [each.setup.id for each in status.taken]) == (target, 0, [taken])
        assert len(toy.there) == target + 1
        assert taken in toy.there


def test_what_cannot_be_made_is_tried_again_after_a_while_and_each_time_a_longer_one(
    tmp_path: Path, toy: ToyPart, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout or 0.0)
            if len(pauses) == 8:
                toy.making = lambda setup: None
            return True

    stop = Stop()

    def broken(setup: Setup) -> None:
        raise OSError(errno.EIO, "broken")

    toy.making = broken
    with opened(tmp_path, toy, target=1) as pool:
        monkeypatch.setattr(pool, "await_change", lambda seconds: stop.set())  # what is wanted is there
        PoolBackground(pool, clock=lambda: 0.0).keep(stop)
        assert (pauses, pool.status().ready) == ([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0], 1)
