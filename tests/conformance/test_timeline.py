"""The picture in docs/scaling.md is of the record beside it, and that record keeps to the order that the page tells."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.support import scaling_plot
from tests.support.scaling_record import GIB, Amounts, Event, steps_wait_for_each_other

RECORD = json.loads(scaling_plot.DATA.read_text())
EVENTS = [Event(**event) for event in RECORD["events"]]
LEAST, MOST = Amounts(1, GIB), max(event.cpus for event in EVENTS if event.what == "told" and event.cpus)


def test_the_picture_is_of_the_record() -> None:
    assert scaling_plot.svg(RECORD) == scaling_plot.PICTURE.read_text(), "`make timeline` makes both"


def test_no_step_of_the_record_comes_before_its_cause() -> None:
    steps_wait_for_each_other(EVENTS, LEAST)
    assert {"asked", "permitted", "told", "heard", "denied", "agreed", "device"} <= {event.what for event in EVENTS}


def late(which: Callable[[Event], bool]) -> list[Event]:
    """The record, had these come at its very end."""
    return [*(event for event in EVENTS if not which(event)), *filter(which, EVENTS)]


@pytest.mark.parametrize(
    ("which", "says"),
    [
        (lambda event: event.what == "permitted" and event.cpus > 1, "permitted are"),
        (lambda event: event.what == "has" and (event.cpus or event.memory / GIB) == MOST, "it has"),
        (lambda event: event.what == "agreed", "agreed to are"),
        (lambda event: event.what == "has" and (event.cpus or event.memory / GIB) == 1, "it still has"),
    ],
    ids=["permitted", "plugged", "agreed", "unplugged"],
)
def test_a_record_with_a_step_before_its_cause_is_refused(which: Callable[[Event], bool], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        steps_wait_for_each_other(late(which), LEAST)
