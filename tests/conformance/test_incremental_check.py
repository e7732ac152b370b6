"""The judge that keeps up with a fleet says of one claim what the check of the whole answer says."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.api.claim import DeviceClaim
from devalloc.api.device_class import DeviceClass
from devalloc.api.pool import DevicePool
from devalloc_solver import solve_manifests
from devalloc_solver.check import IncrementalChecker, check
from devalloc_solver.dialects.device_claims.manifest_records import read_documents
from devalloc_solver.dialects.device_claims.manifests import ProblemInput
from tests.support.answer_builders import answer, claim, device, device_class, held_claim, pool
from tests.support.examples import examples
from tests.support.manifest_mutations import mutated
from tests.support.random_fleets import documents

Manifest = dict[str, Any]


def informed_judge(problem_input: ProblemInput) -> IncrementalChecker:
    """A judge that knows of everything but the pending claims, told in an order of its own."""
    judge = IncrementalChecker()
    for each in problem_input.claims:
        if each.is_allocated:
            judge.hold(each)
    for refused in problem_input.refused:
        if refused.status is not None:
            judge.hold_rejected(refused)
    judge.set_classes(problem_input.classes.values())
    by_name: dict[str, list[DevicePool]] = {}
    for each_pool in problem_input.pools:
        by_name.setdefault(each_pool.metadata.name, []).append(each_pool)
    for name, same in by_name.items():
        judge.set_pools(name, same)
    return judge


def whole(problem_input: ProblemInput, judged: DeviceClaim, answer: Manifest) -> list[str]:
    """What the check says of that one claim's answer, all others being echoed or unsatisfied."""
    solved = solve_manifests_of(problem_input)
    others = [a for a in solved if (a["namespace"], a["name"]) != judged.key and holds(problem_input, a)]
    claims = [c for c in problem_input.claims if c.is_allocated or c.key == judged.key]
    return check(
        problem_input.pools, problem_input.classes.values(), claims, [*others, answer], left_out=problem_input.refused
    )


def solve_manifests_of(problem_input: ProblemInput) -> list[Manifest]:
    held_claims = [c.to_manifest() for c in problem_input.claims if c.is_allocated]
    objects = [*problem_input.pools, *problem_input.classes.values()]
    answers: list[Manifest] = solve_manifests([*(o.to_manifest() for o in objects), *held_claims])["claims"]
    return answers


def holds(problem_input: ProblemInput, each: Manifest) -> bool:
    return any(c.is_allocated and c.key == (each["namespace"], each["name"]) for c in problem_input.claims)


@given(st.randoms(use_true_random=False))
@settings(max_examples=examples(18, 0.15), deadline=None)
def test_it_refuses_what_the_check_of_the_whole_answer_refuses(random: Random) -> None:
    manifests = documents(random)
    problem_input = read_documents(manifests)
    pending = [c for c in problem_input.claims if not c.is_allocated and not c.is_deleting and c.group is None]
    judge = informed_judge(problem_input)
    for each in pending:
        others = [d for d in manifests if d["kind"] != "DeviceClaim" or d.get("status", {}).get("allocations")]
        (right,) = [a for a in solve_manifests([*others, each.to_manifest()])["claims"] if a["name"] == each.key[1]]
        assert judge.judge(each, right) == []
        if not right["allocated"]:
            continue
        for _ in range(4):
            wrong = mutated(json.loads(json.dumps(right)), random)
            assert bool(judge.judge(each, wrong)) == bool(whole(problem_input, each, wrong)), wrong


def test_a_granted_allocation_counts_until_it_is_released() -> None:
    judge = IncrementalChecker()
    judge.set_pools("p", [pool("p", device("d"))])
    first, second = claim("a", {}), claim("b", {})
    judge.grant(first, answer("a", "p/d"))
    assert judge.judge(second, answer("b", "p/d")) == [
        "default/b: detail 0: device n1/p/d is used whole by default/a and whole here (S10)"
    ]
    judge.release(first.key)
    assert judge.judge(second, answer("b", "p/d")) == []


def test_an_allocation_that_was_judged_first_counts_the_same() -> None:
    """`grant` after `judge` takes a short way; the account must not know the difference."""
    accounts = []
    for judged_first in (True, False):
        judge = IncrementalChecker()
        judge.set_pools("p", [pool("p", device("d"), device("e"))])
        right = answer("a", "p/d")
        if judged_first:
            assert judge.judge(claim("a", {}), right) == []
        judge.grant(claim("a", {}), right)
        accounts.append([judge.judge(claim("b", {}), answer("b", name)) for name in ("p/d", "p/e")])
        judge.set_pools("p", [pool("p", device("d"))])
        accounts[-1].append(judge.judge(claim("b", {}), answer("b", "p/d")))
    assert [[bool(complaints) for complaints in account] for account in accounts] == [[True, False, True]] * 2


def test_the_answer_may_change_after_it_was_found_right() -> None:
    """Only the very answer that was judged is taken as judged, as it was then."""
    judge = IncrementalChecker()
    judge.set_pools("p", [pool("p", device("d"), device("e"))])
    right = answer("a", "p/d")
    assert judge.judge(claim("a", {}), right) == []
    later = copy.deepcopy(right)
    later["allocations"][0]["deviceName"] = "e"
    judge.grant(claim("a", {}), later)
    assert judge.judge(claim("b", {}), answer("b", "p/e"))
    assert judge.judge(claim("b", {}), answer("b", "p/d")) == []


def test_a_pool_that_changes_is_looked_at_again() -> None:
    judge = IncrementalChecker()
    judge.set_pools("p", [pool("p", device("d"))])
    judge.hold(held_claim(claim("a", {}, node="n1"), "p/d", details=["0"]))
    judge.set_pools("p", [])
    judge.set_pools("q", [pool("q", device("d"))])
    assert judge.judge(claim("b", {}), answer("b", "q/d")) == []
    judge.set_pools("p", [pool("p", device("d"), device("e"))])
    assert judge.judge(claim("b", {}), answer("b", "p/d"))
    assert judge.judge(claim("b", {}), answer("b", "p/e")) == []


def test_a_judgement_of_earlier_pools_is_repeated() -> None:
    """A pool that changes between `judge` and `grant` has other devices of the same names."""
    judge = IncrementalChecker()
    judge.set_pools("p", [pool("p", device("d"))])
    right = answer("a", "p/d")
    assert judge.judge(claim("a", {}), right) == []
    judge.set_pools("p", [pool("p", device("d"), device("e"))])
    judge.grant(claim("a", {}), right)
    assert judge.judge(claim("b", {}), answer("b", "p/d"))


def test_a_judgement_of_earlier_classes_is_repeated() -> None:
    judge = IncrementalChecker()
    judge.set_pools("p", [pool("p", device("d"))])
    judge.set_classes([device_class("c")])
    right, wanting = answer("a", "p/d"), claim("a", {"deviceClass": "c"})
    assert judge.judge(wanting, right) == []
    judge.set_classes([device_class("c", adminAccess=True)])
    judge.grant(wanting, right)
    assert judge.judge(claim("b", {}), answer("b", "p/d")) == []


def test_a_group_without_a_name_is_one_like_any_other() -> None:
    """An empty text is a value too (S12a)."""
    judge = IncrementalChecker()
    group = "devalloc.io/compatibilityGroup"
    judge.set_pools("p", [pool("p", device("d", {group: "4Q"}), device("e", {group: ""}))])
    judge.grant(claim("a", {}), answer("a", "p/d"))
    assert "(S12a)" in judge.judge(claim("b", {}), answer("b", "p/e"))[0]


def test_classes_decide_anew_what_is_accepted_and_what_is_held() -> None:
    judge = IncrementalChecker()
    judge.set_pools("p", [pool("p", device("d", {"kind": "x"}))])
    named: list[DeviceClass] = [device_class("c", constraints="device.kind == 'x'")]
    wanting = claim("b", {"deviceClass": "c"})
    assert judge.judge(wanting, answer("b", "p/d"))
    judge.set_classes(named)
    assert judge.judge(wanting, answer("b", "p/d")) == []
    judge.set_classes([device_class("c", constraints="device.kind == 'y'")])
    assert judge.judge(wanting, answer("b", "p/d"))
    judge.set_classes(named)
    judge.grant(wanting, answer("b", "p/d"))
    other = claim("o", {})
    assert judge.judge(other, answer("o", "p/d"))
    judge.set_classes([device_class("c", adminAccess=True)])
    assert judge.judge(other, answer("o", "p/d")) == []


def test_members_of_groups_and_holders_are_refused() -> None:
    judge = IncrementalChecker()
    judge.set_pools("p", [pool("p", device("d"), device("e"))])
    assert "(S7)" in judge.judge(claim("a", {}, group="vm"), answer("a", "p/d"))[0]
    judge.grant(claim("a", {}), answer("a", "p/d"))
    assert "(S18)" in judge.judge(claim("a", {}), answer("a", "p/e"))[0]
