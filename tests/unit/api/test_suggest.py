"""The word that a user most likely meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devalloc.api.problems import closest_match


@pytest.mark.parametrize(
    ("word", "words", "meant"),
    [
        ("modle", ["model", "mode", "numa"], "model"),  # two swapped, rather than one too many
        ("A10O", ["A10", "A100", "H100"], "A100"),  # one wrong, rather than one too many
        ("H1OO", ["A100", "H100", "L4"], "H100"),  # letters for digits
        ("pcie_root", ["root", "pcie-root"], "pcie-root"),
        ("Memory", ["memory", "cores"], "memory"),
        ("memroy", ["memory", "cores"], "memory"),
        ("numa", ["model", "driver"], None),
        ("", ["model"], None),
        ("model", [], None),
    ],
)
def test_nearest(word: str, words: list[str], meant: str | None) -> None:
    assert closest_match(word, words) == meant


@given(st.text(max_size=12), st.lists(st.text(max_size=12), max_size=6))
def test_it_is_one_of_the_known_words_in_whatever_order_they_come(word: str, words: list[str]) -> None:
    match = closest_match(word, words)
    assert match is None or match in words
    assert match == closest_match(word, reversed(words))


@given(st.text(min_size=1, max_size=12), st.lists(st.text(max_size=12), max_size=6))
def test_a_known_word_is_its_own_nearest_but_for_case_and_dashes(word: str, words: list[str]) -> None:
    match = closest_match(word, [*words, word])
    if word.strip("-_"):
        alike = str.maketrans({"-": None, "_": None, "o": "0", "l": "1"})
        assert match is not None
        assert match.lower().translate(alike) == word.lower().translate(alike)
