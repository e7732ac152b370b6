"""In which order sets of edits are tried, of which the first that helps is proposed."""

from __future__ import annotations

from devalloc_solver.explain.relaxations import Relaxation, relaxation_sets


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
