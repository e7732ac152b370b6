"""Who leads, on a store that several have: taking over, giving back, and ending at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from devalloc.api.meta import LEADER
from devalloc.controller.leader.election import LeaderElection, Loop
from devalloc.controller.leader.lease import Lease, LeaseLost, LeaseTerm
from devalloc.store import NotFound, Unavailable
from devalloc.store.sqlite import SQLiteStore
from tests.support.fleet_manifests import fill, gpu_claim
from tests.support.waiting import until

NAME, NAMESPACE = "devalloc-controller", "devalloc-system"


class Shared(SQLiteStore):
    """One that several processes have, as on a cluster."""

    def __init__(self, path: Path, log: list[str]) -> None:
        super().__init__(path)
        self.log = log

    def refresh(self) -> None:
        self.log.append("refresh")

    def recover(self) -> None:
        self.log.append("recover")


class Bed:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.own = SQLiteStore(path)
        self.log: list[str] = []
        self.offset = 0.0
        """How much later it is for those who stand still."""

    def clock(self) -> float:
        return time.monotonic() + self.offset

    def controller(self, holder: str, *loops: Loop, seconds: float = 3.0) -> LeaderElection:
        lease = Lease(
            SQLiteStore(self.path), holder, NAME, namespace=NAMESPACE, term=LeaseTerm(seconds, seconds * 2 / 3),
            clock=self.clock,
        )  # fmt: skip

        def made() -> Mapping[str, Loop]:
            self.log.append(f"{holder} leads")
            return {str(number): loop for number, loop in enumerate(loops or (waits,))}

        return LeaderElection(lease, Shared(self.path, self.log), made, on_state=self.log_state, grace=20)

    def log_state(self, state: str, text: str) -> None:
        self.log.append(state)

    def lease(self) -> dict[str, Any]:
        return self.own.get("Lease", NAMESPACE, NAME)

    def holder(self) -> str | None:
        with suppress(NotFound):
            return self.lease()["spec"].get("holderIdentity")
        return None


def waits(stop: threading.Event) -> None:
    stop.wait()


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path / "store.db")


class Run:
    """A controller in a thread, and how it ended."""

    def __init__(self, controller: LeaderElection) -> None:
        self.controller = controller
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.controller.run()
        except BaseException as error:
            self.error = error

    def ended(self) -> None:
        self.thread.join(60)
        assert not self.thread.is_alive()


@contextmanager
def running(controller: LeaderElection) -> Iterator[Run]:
    run = Run(controller)
    try:
        yield run
    finally:
        controller.stop()
        run.ended()


def test_it_seals_and_recovers_before_it_decides_and_gives_the_lease_back(bed: Bed) -> None:
    fill(bed.own, gpu_claim("a"))
    first = bed.controller("first")
    with running(first) as run:
        until(lambda: first.state == "leading")
        assert bed.own.get("DeviceClaim", "default", "a")["metadata"]["annotations"][LEADER] == "0 first"
    assert run.error is None
    steps = ["taking over", "refresh", "recover", "refresh", "first leads", "leading", "stopping"]
    assert bed.log == steps
    assert bed.holder() is None, "the next one need not wait"


def test_the_other_stands_by_and_leads_when_the_first_one_stops(bed: Bed) -> None:
    first, second = bed.controller("first", seconds=15), bed.controller("second", seconds=15)
    with running(second) as other:
        until(lambda: second.state != "waiting" or bed.log.count("waiting") > 0 or second.state == "leading")
        with running(first):
            until(lambda: "leading" in (first.state, second.state))
            leads, stands = (first, second) if first.state == "leading" else (second, first)
            until(lambda: "held by" in stands.summary)
            assert stands.state == "waiting"
            leads.stop()
            until(lambda: stands.state == "leading")
    assert other.error is None


def test_a_controller_that_stood_still_ends(bed: Bed) -> None:
    controller = bed.controller("first")
    with running(controller) as run:
        until(lambda: controller.state == "leading")
        bed.offset += 60
        assert not controller.lease.is_valid, "by its clock, before any message"
        run.ended()
    assert isinstance(run.error, LeaseLost)
    assert bed.holder() == "first", "it gives nothing back: it may be another's"


def test_a_controller_whose_lease_another_took_ends(bed: Bed) -> None:
    controller = bed.controller("first")
    with running(controller) as run:
        until(lambda: controller.state == "leading")
        current = bed.own.get("Lease", NAMESPACE, NAME)
        bed.own.replace({**current, "spec": {**current["spec"], "holderIdentity": "other"}})
        run.ended()
    assert isinstance(run.error, LeaseLost)
    assert bed.holder() == "other"


def test_a_lease_that_cannot_be_renewed_in_time_is_lost(bed: Bed) -> None:
    controller = bed.controller("first")
    with running(controller) as run:
        until(lambda: controller.state == "leading")

        def away(obj: object) -> None:
            raise Unavailable("no route")

        controller.lease._store.replace = away  # type: ignore
        run.ended()
    assert isinstance(run.error, LeaseLost)


def test_the_lease_is_given_back_only_after_all_loops_have_ended(bed: Bed) -> None:
    goes_on, ended = threading.Event(), threading.Event()

    def slow(stop: threading.Event) -> None:
        stop.wait()
        goes_on.wait(60)
        ended.set()

    controller = bed.controller("first", slow)
    with running(controller):
        until(lambda: controller.state == "leading")
        controller.stop()
        until(lambda: controller.state == "stopping")
        before = bed.lease()["metadata"]["resourceVersion"]
        until(lambda: bed.lease()["metadata"]["resourceVersion"] != before, "it is renewed or given back")
        assert bed.holder() == "first"
        goes_on.set()
    assert ended.is_set()
    assert bed.holder() is None


def test_a_loop_that_ends_ends_all(bed: Bed) -> None:
    def breaks(stop: threading.Event) -> None:
        raise ValueError("broken")

    with running(bed.controller("first", waits, breaks)) as run:
        run.ended()
    assert str(run.error) == "broken"
    assert bed.holder() is None


def test_a_store_that_is_away_is_tried_again_from_the_beginning(bed: Bed) -> None:
    controller = bed.controller("first", seconds=30)
    recover = controller._store.recover

    def away() -> None:
        controller._store.recover = recover  # type: ignore
        raise Unavailable("away")

    controller._store.recover = away  # type: ignore
    with running(controller):
        until(lambda: controller.state == "leading")
    assert bed.log[:4] == ["taking over", "refresh", "refresh", "recover"]
