"""In which order sets of edits are tried, of which the first that helps is proposed; and how far one goes."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from devalloc_solver.explain.relaxations import Relaxation, apply_relaxations, reduce_amount, relaxation_sets


def edits(*alike: object | None) -> list[Relaxation]:
    return [
        Relaxation({"kind": f"{number}"}, lambda question: question, alike=each) for number, each in enumerate(alike)
    ]


def tried(*alike: object | None) -> list[str]:
    return ["".join(edit.kind for edit in chosen) for chosen in relaxation_sets(edits(*alike))]


def test_small_sets_come_before_large_ones_and_none_is_empty() -> None:
    assert tried() == []
    assert tried(None, None, None) == ["0", "1", "2", "01", "02", "12", "012"]


def test_of_edits_that_are_alike_the_first_so_many_stand_for_all() -> None:
    assert tried("a", "a", "a") == ["0", "01", "012"]
    assert tried("a", None, "a") == ["0", "1", "01", "02", "012"]
    assert tried("a", "b", "a", "b") == ["0", "1", "01", "02", "13", "012", "013", "0123"]


def test_members_leave_a_group_all_at_once_because_each_time_costs_as_much_as_the_group_is_large() -> None:
    keys = [("default", f"c{number}") for number in range(3)]
    question = Mock(source=None)
    left = question.without_members.return_value
    left.source = None
    others = Mock()
    leaving = [Relaxation({}, lambda before, key=key: before.without_members({key}), member=key) for key in keys]

    apply_relaxations(question, [leaving[0], Relaxation({}, others, order=1), *leaving[1:]])

    question.without_members.assert_called_once_with({*keys})
    others.assert_called_once_with(left)


@pytest.mark.parametrize(
    ("requested", "there", "most_questions"),
    [(7 << 30, 6 << 30, 6), (10, 9, 6), (2, 1, 1), (97, 61, 12)],
)
def test_the_most_that_fits_is_found_with_few_questions_where_it_is_round(
    requested: int, there: int, most_questions: int
) -> None:
    questions: list[int] = []

    def works(amount: int) -> bool:
        questions.append(amount)
        return amount <= there

    def reduced_to(amount: int) -> Relaxation:
        return Relaxation({"kind": "amount", "most": amount}, lambda question: question)

    narrow = reduce_amount(1, requested, reduced_to).narrow
    assert narrow is not None
    (narrowed,) = narrow(lambda edits: edits[0].entry["most"] if edits else None, Mock(works=works))  # type: ignore[arg-type, return-value]

    assert narrowed.entry["most"] == there
    assert len(questions) <= most_questions
