"""How many devices claims select, for messages: counted in bounded time, and only anew where something changed."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc_solver.cel.budget import OutOfTime
from devalloc_solver.dialects.resource_k8s import matching
from devalloc_solver.dialects.resource_k8s.matching import MatchCounts
from tests.support.dra_builders import device_class
from tests.support.resource_manifests import device, resource_claim, slice_of

Object = dict[str, Any]
CLASS = device_class("gpu", "device.driver == 'devalloc.io'")


def of_name(name: str) -> Object:
    """A claim that no other is equal to, with an expression of its own."""
    claim = resource_claim(name)
    (request,) = claim["spec"]["devices"]["requests"]
    request["exactly"]["selectors"] = [{"cel": {"expression": f"'{name}' != ''"}}]
    return claim


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many objects each call had read."""
    read, counts = matching.read_documents, list[int]()

    def counting(documents: Any, *args: Any) -> Any:
        documents = [*documents]
        counts.append(len(documents))
        return read(documents, *args)

    monkeypatch.setattr(matching, "read_documents", counting)
    return counts


def test_devices_are_read_once_however_many_claims_ask(reads: list[int]) -> None:
    counts = MatchCounts()
    counts.look((CLASS, *(slice_of(f"p{n}", "n", [device("d0"), device("d1")]) for n in range(20))))
    assert [counts.matching(of_name(f"c{n}")) for n in range(5)] == [{"devalloc.io": 40}] * 5
    assert sorted(reads) == [1] * 5 + [21]


def test_a_slice_that_comes_counts_and_one_that_goes_does_not() -> None:
    counts, one, two = MatchCounts(), slice_of("p", "n", [device("d0")]), slice_of("q", "n", [device("d0")])
    for slices, number in (((one,), 1), ((one, two), 2), ((two,), 1), ((slice_of("q", "n", [device("d")] * 0),), 0)):
        counts.look((CLASS, *slices))
        assert sum(counts.matching(of_name("c")).values()) == number


def test_without_time_what_was_counted_before_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = MatchCounts(seconds=60)
    counts.look((CLASS, slice_of("p", "n", [device("d0")])))
    assert counts.matching(of_name("a")) == {"devalloc.io": 1}
    assert not counts.is_behind
    counts.look((CLASS, slice_of("p", "n", [device("d0"), device("d1")])))
    counts._spent = 60
    assert (counts.matching(of_name("a")), counts.matching(of_name("b"))) == ({"devalloc.io": 1}, {})
    assert counts.is_behind
    counts.look((CLASS, slice_of("p", "n", [device("d0"), device("d1")])))
    assert (counts.matching(of_name("a")), counts.matching(of_name("b"))) == ({"devalloc.io": 2}, {"devalloc.io": 2})
    assert not counts.is_behind


def test_an_expression_that_has_no_time_left_is_counted_later(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = MatchCounts(seconds=60)
    counts.look((CLASS, slice_of("p", "n", [device("d0")])))
    count = counts._count
    monkeypatch.setattr(MatchCounts, "_count", lambda *args: (_ for _ in ()).throw(OutOfTime))
    assert counts.matching(of_name("a")) == {}
    assert counts.is_behind
    monkeypatch.setattr(MatchCounts, "_count", lambda self, *args: count(*args))
    assert counts.matching(of_name("a")) == {"devalloc.io": 1}
