"""The goal values 1 to 4 of S17, recomputed from the answers alone."""

from __future__ import annotations

from devalloc_solver.check import GoalValues, PriorityLevel, goal_values
from tests.support.answer_builders import answer, claim, device, held_claim, pool, unallocated

LEFT = "2026-01-01T00:00:00Z"


class TestObjective:
    """Goals 1 to 4 of S17, from the answers alone."""

    FLEET = (
        pool("p", device("g0"), device("g1")),
        pool("p", device("g0"), node="n2"),
        pool("net", device("d0", has={"bw": "8"}), node=None),
    )

    def test_an_empty_answer(self) -> None:
        assert goal_values([], [], []) == GoalValues((), (), 0, 0)

    def test_levels_from_high_to_low_and_members_by_time_namespace_and_name(self) -> None:
        claims = [
            claim("late"),
            claim("z", creationTimestamp="2026-01-01T01:30:00+02:00"),
            claim("a", creationTimestamp="2026-01-01T00:00:00Z"),
            claim("high", priority="7"),
            claim("low", priority="-1"),
            held_claim(claim("old"), "p/g0"),
            claim("leaving", deletionTimestamp=LEFT),
        ]
        answers = [answer("z", "p/g0"), answer("low", "p/g1"), unallocated("a"), None]
        assert goal_values(self.FLEET, claims, answers) == GoalValues(
            levels=(PriorityLevel(7, (False,)), PriorityLevel(0, (True, False, False)), PriorityLevel(-1, (True,))),
            one_of=(),
            pools=1,
            devices=2,
        )

    def test_chosen_alternatives_in_the_same_order(self) -> None:
        either = {"oneOf": [{"requests": {"count": 1}}] * 3}
        claims = [claim("b", either, {}), claim("a", either, either, priority="1"), claim("c", either)]
        answers = [
            answer("a", "p/g0", "p/g1", details="0.2 1.0"),
            answer("b", "p/g0", "net/d0", node="n2", details="0.1 1"),
            unallocated("c"),
        ]
        assert goal_values(self.FLEET, claims, answers).one_of == (2, 0, 1)

    def test_pools_and_devices_are_counted_once(self) -> None:
        claims = [claim(name, {"requests": {"bw": "1"}}) for name in ("a", "b")]
        shares = [answer(name, ("net/d0", {"bw": "1"}), node=node) for name, node in (("a", "n1"), ("b", "n2"))]
        totals = goal_values(self.FLEET, claims, shares)
        assert (totals.pools, totals.devices) == (1, 1)
        apart = [answer("a", "p/g0"), answer("b", "p/g0", node="n2")]
        totals = goal_values(self.FLEET, claims, apart)
        assert (totals.pools, totals.devices) == (2, 2)
