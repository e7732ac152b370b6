"""Guests that a benchmark plays: what counts as a decision, and how late it comes."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from benchmarks.fake_guests import Guest, address
from devalloc.scaling.messages.monitor import DownscaleRequest, DownscaleResult, UpscaleNotification
from devalloc.scaling.metrics import read_system_metrics
from devalloc_node.net.http import HttpRequest
from tests.support.scaling_world import UNIT

REQUEST = HttpRequest("GET", "/metrics", b"")


class Drawn(random.Random):
    """Draws this, if it can be drawn."""

    def __init__(self, drawn: int) -> None:
        super().__init__()
        self._drawn = drawn

    def choice(self, seq: Any) -> Any:
        assert self._drawn in seq
        return self._drawn


def test_each_has_an_address_of_its_own_on_loopback() -> None:
    addresses = {address(number) for number in range(600)}
    assert len(addresses) == 600
    assert {where.rsplit(".", 2)[0] for where in addresses} == {"127.1"}


def test_a_decision_counts_from_when_it_could_be_known_until_the_guest_hears_what_it_needs() -> None:
    async def scenario() -> None:
        guest = Guest(3)
        await guest.handle(UpscaleNotification(UNIT))  # of what it never said
        assert guest.late == []
        metrics = read_system_metrics((await guest.respond(REQUEST)).body)
        assert (metrics.load1, metrics.load5) == (2.5 * UNIT.cpu / 1000,) * 2
        await guest.handle(UpscaleNotification(UNIT * 2))  # not enough
        assert guest.late == []
        await asyncio.sleep(0.02)
        await guest.handle(UpscaleNotification(UNIT * 3))
        await guest.handle(UpscaleNotification(UNIT * 3))
        assert [took >= 0.02 for _, took in guest.late] == [True]
        await guest.respond(REQUEST)  # the same again is no news
        await guest.handle(UpscaleNotification(UNIT * 3))
        assert len(guest.late) == 1

    asyncio.run(scenario())


def test_a_need_that_was_not_met_before_the_next_counts_too() -> None:
    async def scenario() -> None:
        guest = Guest(3)
        await guest.respond(REQUEST)
        guest.change(random.Random(1))
        needs = round((read_system_metrics((await guest.respond(REQUEST)).body).load1 * 1000 / UNIT.cpu) + 0.5)
        assert len(guest.late) == 1
        assert await guest.handle(DownscaleRequest(UNIT * needs)) == DownscaleResult(True)
        assert len(guest.late) == 2

    asyncio.run(scenario())


def test_a_guest_that_needs_again_what_it_has_does_not_wait() -> None:
    async def scenario() -> None:
        guest = Guest(1)
        for units in (3, 1):
            guest.change(Drawn(units))
            assert read_system_metrics((await guest.respond(REQUEST)).body).load1 == (units - 0.5) * UNIT.cpu / 1000
        overtaken = len(guest.late)
        await guest.handle(UpscaleNotification(UNIT))
        assert len(guest.late) == overtaken

    asyncio.run(scenario())
