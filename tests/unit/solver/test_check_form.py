"""The check of answers: their form (settled L2), the annotation that tells details apart (S18), and oneOf (S16)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from devalloc.api import meta
from devalloc.api.claim import DeviceClaim
from devalloc_solver.check import check
from tests.support.answer_builders import answer, assert_refused, claim, device, pool, unallocated

GPUS = pool("p", device("g0"), device("g1"), device("g2"))


def judge(one: DeviceClaim, *answers: dict[str, Any]) -> list[str]:
    return check([GPUS], [], [one], answers)


class TestForm:
    """What an answer looks like (settled L2, S18)."""

    RIGHT = answer("a", "p/g0")

    def test_a_right_answer(self) -> None:
        assert judge(claim("a"), self.RIGHT) == []

    def test_a_claim_may_get_nothing(self) -> None:
        assert judge(claim("a"), unallocated("a")) == []

    def test_the_sentence_names_claim_detail_and_device(self) -> None:
        taken = judge(claim("a", {"constraints": "false"}), self.RIGHT)
        assert taken == ["default/a: detail 0: device n1/p/g0 does not match 'false' (S6)"]

    def test_every_claim_has_an_answer(self) -> None:
        assert_refused(judge(claim("a")), "default/a: has no answers")

    def test_a_claim_has_one_answer(self) -> None:
        assert_refused(judge(claim("a"), self.RIGHT, unallocated("a")), "default/a: has 2 answers")

    def test_only_valid_claims_get_devices(self) -> None:
        assert_refused(check([GPUS], [], [], [self.RIGHT]), "no valid claim has that name (S16)")
        assert check([GPUS], [], [], [unallocated("a")]) == []

    def test_two_claims_of_one_name_are_both_invalid(self) -> None:
        assert_refused(check([GPUS], [], [claim("a"), claim("a")], [self.RIGHT]), "no valid claim has that name")

    def test_what_is_not_allocated_has_no_devices(self) -> None:
        assert_refused(judge(claim("a"), {**self.RIGHT, "allocated": False}), "not allocated, and has")

    def test_a_pending_claim_that_is_being_deleted_is_not_solved(self) -> None:
        leaving = claim("a", deletionTimestamp="2026-01-01T00:00:00Z")
        assert_refused(judge(leaving, self.RIGHT), "is being deleted")
        assert judge(leaving, unallocated("a")) == []

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("namespace", 1),
            ("name", None),
            ("allocated", "yes"),
            ("allocated", None),
            ("node", 3),
            ("node", ""),
            ("allocations", None),
            ("allocations", {}),
            ("allocations", ["p/g0"]),
            ("allocations", [{"devicePoolName": "p"}]),
            ("allocations", [{"devicePoolName": "p", "deviceName": "g0", "allocations": 1}]),
            ("allocations", [{"devicePoolName": "p", "deviceName": "g0", "allocations": [{}]}]),
            ("allocations", [{"devicePoolName": "p", "deviceName": "g0", "allocations": ["memory"]}]),
            (
                "allocations",
                [{"devicePoolName": "p", "deviceName": "g0", "allocations": [{"name": "m", "allocation": "1x"}]}],
            ),
            (
                "allocations",
                [{"devicePoolName": "p", "deviceName": "g0", "allocations": [{"name": "m", "allocation": "1"}] * 2}],
            ),
            ("oneOf", 0),
            ("oneOf", [True]),
            ("annotations", [1]),
            ("annotations", {meta.ALLOCATION_DETAILS: ["0"]}),
        ],
    )
    def test_a_malformed_answer_is_named_not_raised(self, key: str, value: object) -> None:
        violations = judge(claim("a"), {**self.RIGHT, key: value})
        assert violations
        assert "has no answers" in violations[-1]

    @pytest.mark.parametrize("content", [None, 1, "a", [], {}, [[]]])
    def test_what_is_no_answer_at_all(self, content: object) -> None:
        assert check([GPUS], [], [], [content])

    def test_answers_are_a_list(self) -> None:
        assert_refused(check([GPUS], [], [], 3), "the answers are a list")  # type: ignore[arg-type]


class TestAllocationDetails:
    """The annotation that tells the details apart (S18)."""

    TWO = claim("a", {"requests": {"count": 1}}, {"requests": {"count": 1}})

    def noted(self, indexes: object) -> dict[str, Any]:
        right = answer("a", "p/g0", "p/g1", details="0 1")
        text = indexes if isinstance(indexes, str) else json.dumps(indexes)
        return {**right, "annotations": {**right["annotations"], meta.ALLOCATION_DETAILS: text}}

    def test_one_index_per_allocation(self) -> None:
        assert judge(self.TWO, self.noted(["0", "1"])) == []

    @pytest.mark.parametrize(
        "text", ["", "{}", '["0"]', '["0","1","1"]', "[0,1]", '["0","x"]', '["0","-1"]', "[" * 9999]
    )
    def test_what_is_no_such_list(self, text: str) -> None:
        assert_refused(judge(self.TWO, self.noted(text)), "allocation-details", "(S18)")

    def test_it_is_there(self) -> None:
        assert_refused(judge(self.TWO, {**self.noted(""), "annotations": {}}), "allocation-details is missing")

    def test_the_details_exist(self) -> None:
        violations = judge(self.TWO, self.noted(["0", "2"]))
        assert any("an allocation is for detail 2, which was not chosen" in each for each in violations)

    def test_allocations_are_in_the_order_of_the_details(self) -> None:
        assert_refused(judge(self.TWO, self.noted(["1", "0"])), "not in the order of the details (S18)")

    def test_every_detail_has_a_device(self) -> None:
        violations = judge(self.TWO, {**answer("a", "p/g0"), "oneOf": [None, None]})
        assert_refused(violations, "default/a: detail 1: has no device (S8)")

    def test_a_device_has_one_entry_per_detail(self) -> None:
        twice = claim("a", {"requests": {"count": 2}})
        violations = judge(twice, answer("a", "p/g0", "p/g0"))
        assert any("has 2 entries for device n1/p/g0 (S18)" in each for each in violations)


class TestOneOf:
    """Exactly one alternative, and the one that is said (S16)."""

    EITHER = claim("a", {"oneOf": [{"requests": {"count": 2}}, {"requests": {"count": 1}}]}, {"requests": {"count": 1}})

    def test_either_alternative_is_right(self) -> None:
        assert judge(self.EITHER, answer("a", "p/g0", "p/g1", "p/g2", details="0.0 0.0 1")) == []
        assert judge(self.EITHER, answer("a", "p/g0", "p/g1", details="0.1 1")) == []

    def test_the_chosen_alternative_counts(self) -> None:
        violations = judge(self.EITHER, answer("a", "p/g0", "p/g1", details="0.0 1"))
        assert_refused(violations, "default/a: detail 0.0: has 1 devices, and 2 are requested (S8)")

    @pytest.mark.parametrize("one_of", [None, [], [1], [None, None], [2, None], [-1, None], [1, 0], [1, None, None]])
    def test_one_index_per_oneof_and_null_elsewhere(self, one_of: object) -> None:
        right = answer("a", "p/g0", "p/g1", details="0.1 1")
        assert_refused(judge(self.EITHER, {**right, "oneOf": one_of}), "oneOf", "(S16)")

    def test_the_allocations_are_for_the_chosen_alternative(self) -> None:
        right = answer("a", "p/g0", "p/g1", details="0.1 1")
        violations = judge(self.EITHER, {**right, "oneOf": [0, None]})
        assert "default/a: an allocation is for detail 0.1, which was not chosen (S16, S18)" in violations
