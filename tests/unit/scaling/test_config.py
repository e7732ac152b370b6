"""The scaling configuration: what is read, what is refused with which paths, and how overrides and defaults meet."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devalloc.scaling.config import (
    ScalingConfig,
    ScalingOverrides,
    merge_overrides,
    read_config_annotation,
    read_defaults,
    read_overrides,
)
from devalloc.scaling.versions import ProtocolEra
from tests.support.scaling_config_json import defaults_to_json, overrides_to_json

V0_31 = {"loadAverageFractionTarget": 0.9, "memoryUsageFractionTarget": 0.75, "enableLFCMetrics": False}
NEWEST = {
    **V0_31,
    "memoryTotalFractionTarget": 0.9,
    "lfcToMemoryRatio": 0.75,
    "lfcWindowSizeMinutes": 5,
    "lfcMinWaitBeforeDownscaleMinutes": 5,
    "cpuStableZoneRatio": 0,
    "cpuMixedZoneRatio": 0,
}
OF_ERA = {ProtocolEra.V0_31: V0_31, ProtocolEra.NEWEST: NEWEST}


def _paths(problems: list[Any]) -> list[str]:
    return sorted(problem.path for problem in problems)


def test_shipped_defaults_of_each_era_are_the_defaults() -> None:
    for era, content in OF_ERA.items():
        read = read_defaults(content, era)
        assert (read.value, read.problems) == (ScalingConfig(), []), era


def test_each_required_default_is_missed_by_its_path() -> None:
    for era, content in OF_ERA.items():
        assert _paths(read_defaults({}, era, "scaling.defaultConfig").problems) == sorted(
            f"scaling.defaultConfig.{name}" for name in content
        )
        for name in content:
            without = {key: value for key, value in content.items() if key != name}
            for lacking in (without, {**without, name: None}):
                read = read_defaults(lacking, era)
                assert read.value is None
                assert [(problem.path, problem.message) for problem in read.problems] == [(name, "is required")]


def test_what_is_required_of_defaults_is_optional_in_overrides() -> None:
    for era in ProtocolEra:
        assert read_overrides({}, era).value == ScalingOverrides()


REFUSED: dict[str, list[object]] = {
    "loadAverageFractionTarget": [0, -0.1, 2, 2.5, "0.9", True, float("nan"), float("inf"), 10**400, [], {}],
    "memoryUsageFractionTarget": [0, -1, 1, 1.5, "x", False, float("nan")],
    "memoryTotalFractionTarget": [0, -1, 1, 1.5, "x", False, float("nan")],
    "enableLFCMetrics": [0, 1, "true", []],
    "lfcUseLargestWindow": [0, 1, "true", []],
    "lfcToMemoryRatio": [0, -0.5, "0.75", float("inf"), 10**400],
    "lfcWindowSizeMinutes": [1, 0, -5, 1.5, 5.0, True, "5", 1441, 10**30],
    "lfcMinWaitBeforeDownscaleMinutes": [0, -1, 2.0, True, 1441],
    "cpuStableZoneRatio": [-0.1, "0", True, float("inf")],
    "cpuMixedZoneRatio": [-0.1, "0", True, float("nan")],
}


def test_all_refused_values_are_listed_at_once_by_their_paths() -> None:
    for name, values in REFUSED.items():
        for value in values:
            read = read_overrides({name: value}, path="annotation")
            assert read.value is None, (name, value)
            assert _paths(read.problems) == [f"annotation.{name}"], (name, value)
    everything = read_defaults({name: values[0] for name, values in REFUSED.items()})
    assert _paths(everything.problems) == sorted(REFUSED)


@pytest.mark.parametrize(
    ("name", "value", "attribute"),
    [
        ("loadAverageFractionTarget", 1.999, "load_average_fraction_target"),
        ("memoryUsageFractionTarget", 0.999, "memory_usage_fraction_target"),
        ("memoryTotalFractionTarget", 0.001, "memory_total_fraction_target"),
        ("lfcToMemoryRatio", 1, "lfc_to_memory_ratio"),
        ("lfcWindowSizeMinutes", 2, "lfc_window_size_minutes"),
        ("cpuStableZoneRatio", 0, "cpu_stable_zone_ratio"),
        ("cpuMixedZoneRatio", 3.5, "cpu_mixed_zone_ratio"),
        ("LOADaverageFractionTARGET", 0.5, "load_average_fraction_target"),
    ],
)
def test_values_at_the_edge_are_taken_and_names_are_matched_without_case(
    name: str, value: float, attribute: str
) -> None:
    read = read_overrides({name: value})
    assert read.problems == []
    assert read.value is not None
    assert getattr(read.value, attribute) == value


def test_window_longer_than_the_wait_is_refused_where_it_comes_to_be() -> None:
    assert _paths(read_defaults({**NEWEST, "lfcWindowSizeMinutes": 6}).problems) == ["lfcMinWaitBeforeDownscaleMinutes"]
    alone = read_overrides({"lfcWindowSizeMinutes": 6})
    assert alone.value is not None
    merged = merge_overrides(ScalingConfig(), alone.value)
    assert merged.value is None
    assert _paths(merged.problems) == ["lfcMinWaitBeforeDownscaleMinutes"]
    assert merge_overrides(ScalingConfig(lfc_min_wait_before_downscale_minutes=6), alone.value).value is not None


def test_window_may_be_longer_than_the_wait_where_the_largest_is_used_anyway() -> None:
    short = {**NEWEST, "lfcUseLargestWindow": True, "lfcMinWaitBeforeDownscaleMinutes": 1}
    config = read_defaults(short).value
    assert config is not None
    # A comparison of windows needs a wait for them.
    back = read_overrides({"lfcUseLargestWindow": False}).value
    assert _paths(merge_overrides(config, back).problems) == ["lfcMinWaitBeforeDownscaleMinutes"]


def test_unknown_fields_are_ignored_with_a_word() -> None:
    read = read_overrides({"loadAverageFraction": 0.5, "cpuStableZoneRatio": 0.5}, ProtocolEra.V0_31)
    assert read.value == ScalingOverrides()
    assert [str(problem) for problem in read.problems] == [
        "warning: loadAverageFraction: is ignored: there is no such field; did you mean loadAverageFractionTarget?",
        "warning: cpuStableZoneRatio: is ignored: v0.31 does not know it",
    ]


def test_an_annotation_other_than_an_object_is_a_problem() -> None:
    for text, message in {
        "{": "is not valid JSON",
        "[" * 100_000: "must be at most",
        "[" * 10_000: "is not valid JSON",
        "[]": "must be an object, not a list",
        "3": "must be an object, not a number",
    }.items():
        read = read_config_annotation(text, path="config")
        assert read.value is None
        [problem] = read.problems
        assert problem.path == "config"
        assert message in problem.message
    assert read_config_annotation("null").value == ScalingOverrides()


OVERRIDES = st.builds(
    ScalingOverrides,
    load_average_fraction_target=st.none() | st.floats(0.01, 1.99),
    memory_usage_fraction_target=st.none() | st.floats(0.01, 0.99),
    enable_lfc_metrics=st.none() | st.booleans(),
    lfc_window_size_minutes=st.none() | st.integers(2, 5),
    cpu_mixed_zone_ratio=st.none() | st.floats(0, 10),
)


@given(OVERRIDES)
def test_overrides_survive_being_written_and_replace_what_they_set_and_nothing_else(
    overrides: ScalingOverrides,
) -> None:
    content = overrides_to_json(overrides)
    read = read_config_annotation(json.dumps(content))
    assert (read.value, read.problems) == (overrides, [])
    defaults = ScalingConfig(load_average_fraction_target=0.33)
    config = merge_overrides(defaults, overrides).value
    assert config is not None
    assert defaults_to_json(config) == {**defaults_to_json(defaults), **content}
    assert merge_overrides(defaults, None).value == defaults
