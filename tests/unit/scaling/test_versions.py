"""Versions: their names, what each has, and the latest that two peers share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devalloc.scaling.versions import MonitorVersion, PluginVersion, Version, VersionRange
from devalloc_neon.informant_messages import InformantVersion


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (PluginVersion, ["v1.0", "v1.1", "v2.0", "v2.1", "v3.0", "v4.0", "v5.0"]),
        (InformantVersion, ["v1.0", "v1.1", "v1.2", "v2.0"]),
        (MonitorVersion, ["v1.0"]),
    ],
)
def test_versions_have_names_also_those_that_are_not_known(kind: type[Version], names: list[str]) -> None:
    latest = len(names)
    assert [str(kind(number)) for number in range(latest + 1)] == ["<invalid: zero>", *names]
    assert f"{kind(latest + 2)}" == f"<unknown = {names[-1]} + 2>"
    assert [kind(number).is_valid for number in (0, 1)] == [False, True]


def test_what_each_version_has() -> None:
    def those_with(kind: type[Version], what: str) -> list[int]:
        return [number for number in range(1, 10) if getattr(kind(number), what)]

    assert those_with(PluginVersion, "allows_no_metrics") == [2, 3, 4, 5, 6, 7, 8, 9]
    assert those_with(PluginVersion, "has_fractional_cpu") == [3, 4, 5, 6, 7, 8, 9]
    assert those_with(PluginVersion, "server_sends_unit") == [1, 2, 3, 4]
    assert those_with(PluginVersion, "agent_sends_unit") == [6, 7, 8, 9]
    assert those_with(PluginVersion, "memory_is_bytes") == [6, 7, 8, 9]
    assert those_with(PluginVersion, "has_extended_metrics") == [1, 2, 3, 4, 5, 6]
    assert those_with(InformantVersion, "has_try_upscale") == [2, 3, 4, 5, 6, 7, 8, 9]
    assert those_with(InformantVersion, "has_health_check") == [3, 4, 5, 6, 7, 8, 9]
    assert those_with(InformantVersion, "signs_resources") == [4, 5, 6, 7, 8, 9]


def test_a_range_tells_its_ends_or_its_only_version() -> None:
    assert str(VersionRange(PluginVersion(1), PluginVersion(7))) == "v1.0 to v5.0"
    assert str(VersionRange(PluginVersion(3), PluginVersion(3))) == "v2.0"


_ends = st.tuples(st.integers(0, 5), st.integers(0, 5)).map(lambda ends: VersionRange(*map(InformantVersion, ends)))


@given(_ends, _ends)
def test_the_latest_shared_version_is_the_largest_in_both(
    one: VersionRange[InformantVersion], other: VersionRange[InformantVersion]
) -> None:
    shared = [number for number in range(6) if number in one and number in other]
    assert one.latest_shared(other) == (max(shared) if shared else None)
