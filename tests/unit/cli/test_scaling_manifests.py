"""``spec.scaling``: what it may say, and that it can say all that goals are computed from."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from devalloc.api.decode import decode
from devalloc.api.quantity import NANO, Quantity
from devalloc.api.virtual_machine import MachineScaling
from devalloc.scaling.config import ANNOTATION, ScalingOverrides, read_overrides
from tests.support.cli_shell import Shell, text
from tests.support.toy_machines import vm

HERE = {"address": "10.0.0.5"}
PATH = f"metadata.annotations[{ANNOTATION}]"


def problems(**scaling: Any) -> list[tuple[str, str]]:
    return [(each.path, each.message) for each in decode(vm("web", scaling={**HERE, **scaling})).problems]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("protocol", "agent", "'monitor' or 'informant'"),
        ("loadAverageFractionTarget", 2, "less than 2"),
        ("memoryUsageFractionTarget", "1", "less than 1"),
        ("memoryTotalFractionTarget", "1001m", "less than 1"),
        ("lfcToMemoryRatio", 0, "more than 0"),
        ("lfcWindowSizeMinutes", 1, "at least 2"),
        ("lfcMinWaitBeforeDownscaleMinutes", 0, "at least 1"),
        ("lfcMinWaitBeforeDownscaleMinutes", 1441, "at most 1440"),
        ("cpuStableZoneRatio", "-1m", "negative"),
        ("enableLFCMetrics", "yes", "true or false"),
        ("lfcMetricsPort", 0, "at least 1"),
        ("lfcUseLargestWindows", True, "did you mean"),
    ],
)
def test_what_cannot_be_is_refused_at_its_place(field: str, value: object, words: str) -> None:
    ((path, message),) = problems(**{field: value})
    assert path == f"spec.scaling.{field}"
    assert words in message


def test_a_window_lies_within_the_time_that_always_counts() -> None:
    assert problems(lfcWindowSizeMinutes=6, lfcMinWaitBeforeDownscaleMinutes=5) == [
        ("spec.scaling.lfcMinWaitBeforeDownscaleMinutes", "must be at least lfcWindowSizeMinutes (6), but is 5")
    ]
    assert problems(lfcWindowSizeMinutes=6) == [], "the node says how long that is"
    largest = {"lfcWindowSizeMinutes": 6, "lfcMinWaitBeforeDownscaleMinutes": 5, "lfcUseLargestWindow": True}
    assert problems(**largest) == [], "windows are not compared"


def test_the_spec_can_say_all_that_the_annotation_can_and_between_the_same_bounds() -> None:
    tried: dict[str, list[Any]] = {
        "int | None": [0, 1, 2, 5, 1440, 1441],
        "bool | None": [True, False],
        "float | None": [-0.5, 0, 0.25, 0.999, 1, 1.5, 1.999, 2, 3],
    }
    for each in fields(ScalingOverrides):
        field = MachineScaling.model_fields[each.name]
        alias = field.alias or each.name
        for value in tried[str(each.type)]:
            number = str(Quantity(round(value * NANO))) if each.type == "float | None" else value
            is_good = read_overrides({alias: value}).value is not None
            assert (problems(**{alias: number}) == []) is is_good, (alias, value)


class TestAnnotation:
    def validated(
        self, devalloc: Shell, tmp_path: Path, annotation: str, others: dict[str, str] | None = None, **spec: Any
    ) -> tuple[int, str]:
        manifest = vm("web", **{"scaling": HERE, **spec})
        manifest["metadata"]["annotations"] = {ANNOTATION: annotation, **(others or {})}
        file = tmp_path / "vm.yaml"
        file.write_text(text(manifest))
        output = devalloc("validate", "-f", file)
        applied = devalloc("apply", "-f", file)
        assert applied.err == output.err
        assert ("created" in applied.out) == (output.code == 0)
        return output.code, output.err

    def test_every_invalid_field_is_reported_with_its_path(self, devalloc: Shell, tmp_path: Path) -> None:
        wrong = json.dumps({"loadAverageFractionTarget": 2, "lfcWindowSizeMinutes": "five", "enableLFCMetrics": True})
        code, printed = self.validated(devalloc, tmp_path, wrong)
        assert code == 2
        first, second = printed.splitlines()
        assert f"{PATH}.loadAverageFractionTarget: must be a number above 0 and below 2, not 2" in first
        assert f"{PATH}.lfcWindowSizeMinutes: must be a whole number of minutes" in second
        assert "VirtualMachine default/web" in first

    def test_invalid_json_is_reported(self, devalloc: Shell, tmp_path: Path) -> None:
        code, printed = self.validated(devalloc, tmp_path, "{")
        assert code == 2
        assert f"{PATH}: is not valid JSON" in printed

    def test_an_ignored_field_is_a_warning(self, devalloc: Shell, tmp_path: Path) -> None:
        code, printed = self.validated(devalloc, tmp_path, '{"loadAverageFractionTargets": 1}')
        assert code == 0
        assert "warning" in printed
        assert "did you mean loadAverageFractionTarget?" in printed

    def test_bounds_that_are_not_the_specs_are_ignored_with_a_warning(self, devalloc: Shell, tmp_path: Path) -> None:
        bounds = {"autoscaling.neon.tech/bounds": "{}"}
        code, printed = self.validated(devalloc, tmp_path, "{}", others=bounds)
        assert code == 0
        assert (
            "metadata.annotations[autoscaling.neon.tech/bounds]: is ignored: "
            "set min and max in spec.cpu and spec.memory" in printed
        )

    def test_without_scaling_it_says_nothing(self, devalloc: Shell, tmp_path: Path) -> None:
        code, printed = self.validated(devalloc, tmp_path, "{}", scaling=None)
        assert code == 0
        assert f"{PATH}: is ignored: the machine has no spec.scaling" in printed
