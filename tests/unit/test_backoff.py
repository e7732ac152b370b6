"""Back-off: the delays after failures in a row, and what the log says of them."""

from __future__ import annotations

import logging
from itertools import pairwise
from random import Random

import pytest

from devalloc.backoff import Backoff, Retry, backoff_delay


def test_a_delay_doubles_with_each_failure_up_to_the_maximum() -> None:
    assert [backoff_delay(failures, 1.5, 10.0) for failures in range(1, 6)] == [1.5, 3.0, 6.0, 10.0, 10.0]
    assert [backoff_delay(failures, 2, factor=3) for failures in range(1, 4)] == [2, 6, 18]
    assert backoff_delay(10**9, 0.001, 300.0) == 300.0, "however often"
    assert backoff_delay(1, 5.0, 2.0) == 2.0, "also the first one"


def test_a_success_begins_anew() -> None:
    backoff = Backoff(1.0, 4.0)
    assert [backoff.next_delay() for _ in range(4)] == [1.0, 2.0, 4.0, 4.0]
    assert backoff.failures == 4
    backoff.reset()
    assert (backoff.failures, backoff.next_delay()) == (0, 1.0)


def test_jitter_spreads_delays_around_those_without() -> None:
    plain, spread = Backoff(1.0, 8.0), Backoff(1.0, 8.0, jitter=0.5, rng=Random(1))
    pairs = [(plain.next_delay(), spread.next_delay()) for _ in range(200)]
    assert all(0.5 * exact <= delay <= 1.5 * exact for exact, delay in pairs)
    assert max(delay for _, delay in pairs) > 11.0
    assert len({*pairwise(pairs)}) > 100
    again = Backoff(1.0, 8.0, jitter=0.5, rng=Random(1))
    assert [again.next_delay() for _ in range(200)] == [delay for _, delay in pairs]


class Full(Exception):
    """An error that is expected."""


class MuchChanged(Full):
    """An error that is logged as news."""


def test_the_log_has_an_error_once_while_it_stays_the_same_and_a_bug_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    retry = Retry(logging.getLogger("devalloc"), "cannot watch", 1.0, 60.0, expected=(Full,), quiet=(MuchChanged,))

    def logged(error: Exception) -> tuple[str, str, bool]:
        caplog.clear()
        with caplog.at_level(logging.DEBUG):
            retry.failed(error)
        (record,) = caplog.records
        return record.levelname, record.getMessage(), record.exc_info is not None

    assert logged(Full("disk")) == ("ERROR", "cannot watch; next try in 1 s: disk", False)
    assert logged(Full("disk"))[0] == "DEBUG"
    assert logged(Full("tape"))[0] == "ERROR"
    assert logged(MuchChanged("too old"))[0] == "INFO", "as while thousands of claims are deleted: all is read again"
    assert [logged(KeyError("x"))[0::2] for _ in range(2)] == [("ERROR", True)] * 2
    retry.succeeded()
    assert logged(Full("disk")) == ("ERROR", "cannot watch; next try in 1 s: disk", False)
