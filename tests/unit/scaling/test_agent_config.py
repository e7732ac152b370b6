"""What an agent is configured with is read from the files that agents in use have, with every problem told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from devalloc.scaling.agent_config import (
    AGENT_SETTINGS,
    UNUSED_SETTINGS,
    AgentConfig,
    default_agent_config,
    read_agent_config,
)
from devalloc.scaling.health import HealthLimits
from devalloc.scaling.resources import Resources
from devalloc.scaling.state import ScalingTiming
from devalloc.scaling.versions import ProtocolEra

DEFAULTS = {"loadAverageFractionTarget": 0.9, "memoryUsageFractionTarget": 0.75, "enableLFCMetrics": False}
LEAST: dict[str, Any] = {"scaling": {"defaultConfig": DEFAULTS}}


def _with(path: str, value: object) -> dict[str, Any]:
    content: dict[str, Any] = {"scaling": {"defaultConfig": DEFAULTS}}
    *parents, name = path.split(".")
    place = content
    for parent in parents:
        place = place.setdefault(parent, {})
    place[name] = value
    return content


def test_what_is_left_out_is_as_it_is_shipped() -> None:
    assert read_agent_config(LEAST, ProtocolEra.V0_31).value == default_agent_config(ProtocolEra.V0_31)
    assert (default_agent_config(ProtocolEra.V0_31).plugin_tick, default_agent_config(ProtocolEra.V0_31).lfc_port) == (
        5_000,
        9399,
    )
    assert (default_agent_config().plugin_tick, default_agent_config().lfc_port) == (15_000, 9499)


def test_each_setting_is_read_into_its_own_place() -> None:
    values = {"seconds": (7.25, 7250), "port": (4242, 4242), "count": (0, 0), "text": ("other", "other")}
    values["unit"] = ({"vCPUs": "500m", "mem": "2Gi"}, Resources(500, 2**31))  # type: ignore[assignment]
    for setting in AGENT_SETTINGS:
        given, meant = values[setting.form]
        read = read_agent_config(_with(setting.path, given), ProtocolEra.V0_31)
        assert read.problems == [], setting
        assert read.value is not None
        changed = {
            name
            for name in AgentConfig.__slots__
            if getattr(read.value, name) != getattr(default_agent_config(ProtocolEra.V0_31), name)
        }
        assert changed == {setting.attribute}
        assert getattr(read.value, setting.attribute) == meant


def test_all_wrong_values_are_listed_by_their_paths() -> None:
    wrong: dict[str, list[object]] = {
        "seconds": [0, -1, "5", True, float("nan"), 10**9, 1e-9],
        "port": [0, 65_536, 80.0, "80", True],
        "count": [-1, 1.5, "2"],
        "text": ["", 3, "x" * 300],
        "unit": [{}, {"vCPUs": 1}, {"vCPUs": 0, "mem": "1Gi"}, {"vCPUs": -1, "mem": 1}, "1", None],
    }
    for setting in AGENT_SETTINGS:
        for value in wrong[setting.form]:
            read = read_agent_config(_with(setting.path, value), ProtocolEra.V0_31)
            assert read.value is None, (setting, value)
            assert [problem.path for problem in read.problems] == [setting.path], (setting, value)
    content = _with("monitor.serverPort", 0)
    content["scheduler"] = {"requestPort": 0}
    content["scaling"] = {}
    read = read_agent_config(content)
    assert sorted(problem.path for problem in read.problems) == [
        "monitor.serverPort",
        "scaling.defaultConfig",
        "scheduler.requestPort",
    ]


def test_unknown_settings_are_warnings_and_those_of_other_parts_are_not() -> None:
    content = _with("monitor.serverPrt", 1)
    content |= {"billing": {"x": 1}, "refereshStateIntervalSeconds": 5}
    read = read_agent_config(content, ProtocolEra.V0_31)
    assert read.value == default_agent_config(ProtocolEra.V0_31)
    [problem] = read.problems
    assert str(problem) == (
        "warning: monitor.serverPrt: is ignored: there is no such setting; did you mean monitor.serverPort?"
    )
    for content in ([], None, "x", 3):  # type: ignore[assignment]
        assert read_agent_config(content).value is None


def test_waits_and_limits_come_from_it() -> None:
    config = default_agent_config(ProtocolEra.V0_31)
    assert (config.timing.plugin_tick, config.timing.upscale_valid) == (5_000, 10_000)
    assert (config.limits.silence, config.limits.window, config.limits.plugin_failures) == (20_000, 120_000, 5)


def test_default_waits_are_those_of_the_shipped_configuration() -> None:
    assert ScalingTiming() == default_agent_config().timing
    assert HealthLimits() == default_agent_config().limits


def test_the_guide_has_a_row_for_each_setting() -> None:
    text = (Path(__file__).parents[3] / "docs" / "development" / "scaling-differs.md").read_text("utf-8")
    _, _, section = text.partition("### Of the agent")
    named = set(re.findall(r"`([A-Za-z.]+)`", section.partition("\n## ")[0]))
    settings = {setting.path for setting in AGENT_SETTINGS} | UNUSED_SETTINGS
    assert not settings - named
