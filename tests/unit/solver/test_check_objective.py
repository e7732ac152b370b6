"""The goal values 1 to 4 of S17, recomputed from the answers alone."""

from __future__ import annotations

from devalloc_solver.check import Level, Objective, objective
from tests.support.answers import answer, claim, device, held, pool, unallocated

LEFT = "2026-01-01T00:00:00Z"


class TestObjective:
    """Goals 1 to 4 of S17, from the answers alone."""

    FLEET = (
        pool("p", device("g0"), device("g1")),
        pool("p", device("g0"), node="n2"),
        pool("net", device("d0", has={"bw": "8"}), node=None),
    )

    def test_an_empty_answer(self) -> None:
        assert objective([], [], []) == Objective((), (), 0, 0)

    def test_levels_from_high_to_low_and_members_by_time_namespace_and_name(self) -> None:
        claims = [
            claim("late"),
            claim("z", creationTimestamp="2026-01-01T01:30:00+02:00"),
            claim("a", creationTimestamp="2026-01-01T00:00:00Z"),
            claim("high", priority="7"),
            claim("low", priority="-1"),
            held(claim("old"), "p/g0"),
            claim("leaving", deletionTimestamp=LEFT),
        ]
        answers = [answer("z", "p/g0"), answer("low", "p/g1"), unallocated("a"), None]
        assert objective(self.FLEET, claims, answers) == Objective(
            levels=(Level(7, (False,)), Level(0, (True, False, False)), Level(-1, (True,))),
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
        assert objective(self.FLEET, claims, answers).one_of == (2, 0, 1)

    def test_pools_and_devices_are_counted_once(self) -> None:
        claims = [claim(name, {"requests": {"bw": "1"}}) for name in ("a", "b")]
        shares = [answer(name, ("net/d0", {"bw": "1"}), node=node) for name, node in (("a", "n1"), ("b", "n2"))]
        found = objective(self.FLEET, claims, shares)
        assert (found.pools, found.devices) == (1, 1)
        apart = [answer("a", "p/g0"), answer("b", "p/g0", node="n2")]
        found = objective(self.FLEET, claims, apart)
        assert (found.pools, found.devices) == (2, 2)
