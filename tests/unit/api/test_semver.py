"""Semantic versions: the grammar and the precedence of semver.org 2.0.0."""

from __future__ import annotations

from itertools import pairwise

import pytest

from devalloc.api.semver import SemVer, SemVerError

ASCENDING = [
    "0.0.0-0",
    "0.0.0",
    "0.9.9",
    "1.0.0-alpha",
    "1.0.0-alpha.1",
    "1.0.0-alpha.beta",
    "1.0.0-beta",
    "1.0.0-beta.2",
    "1.0.0-beta.11",
    "1.0.0-rc.1",
    "1.0.0",
    "1.0.9",
    "1.0.10",
    "1.9.0",
    "1.11.0",
    "2.0.0--",
    "2.0.0",
    "10.0.0",
]


@pytest.mark.parametrize(("lower", "higher"), list(pairwise(ASCENDING)))
def test_precedence_is_that_of_semver_org(lower: str, higher: str) -> None:
    assert SemVer.parse(lower).precedence < SemVer.parse(higher).precedence


def test_build_metadata_has_no_part_in_precedence_but_in_equality() -> None:
    one, other = SemVer.parse("1.0.0+a"), SemVer.parse("1.0.0+b")
    assert one.precedence == other.precedence
    assert one != other


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1.2",
        "1.2.3.4",
        "01.2.3",
        "1.02.3",
        "1.2.03",
        "1.2.3-",
        "1.2.3-01",
        "1.2.3-a..b",
        "1.2.3+",
        "v1.2.3",
        "1.2.3 ",
        "1.2.3\n",
        "-1.2.3",
        "1.2.3-a_b",
        "1.2.\u0663",
        "1.2.3+" + "a" * 251,
    ],
)
def test_an_invalid_version_is_an_error(text: str) -> None:
    with pytest.raises(SemVerError):
        SemVer.parse(text)


@pytest.mark.parametrize(
    "text", ["1.2.3", "1.2.3-0", "1.2.3-x.7.z.92", "1.2.3-0a", "1.2.3+001", "1.2.3----RC.--.1+0", "1.2.3+" + "a" * 250]
)
def test_a_version_keeps_its_text(text: str) -> None:
    assert str(SemVer.parse(text)) == text


@pytest.mark.parametrize("value", [None, 1, 1.2, True, [], {}])
def test_a_version_is_a_text(value: object) -> None:
    with pytest.raises(SemVerError, match="quotes"):
        SemVer.parse(value)
