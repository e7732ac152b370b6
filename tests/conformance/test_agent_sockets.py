"""The benchmark of the agent with its sockets: its processes find each other, and machines come to what they need."""

from __future__ import annotations

from benchmarks.bench_agent_sockets import measured


def test_the_measured_agent_scales_played_guests_and_nothing_fails() -> None:
    row = measured("agent", "restless", 3, runs=1, seconds=1.0)
    assert row.what["failed"] == 0
    assert row.seconds[0] > 0
