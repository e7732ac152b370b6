"""Agents: what they are shipped with, which devalloc does by default, and when their machines are stuck."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from devalloc.scaling.agent_config import AGENT_SETTINGS, UNUSED_SETTINGS, default_agent_config, read_agent_config
from devalloc.scaling.health import ChannelHealth, stuck_reasons
from devalloc.scaling.versions import ProtocolEra
from tests.support.tables.table_form import CaseVerdict, Failure, TableForm, each, has, section, unjudged, verdict


def era_of(content: dict[str, Any]) -> ProtocolEra:
    """By the fields of the default scaling configuration, of which each era has more."""
    given = content["scaling"]["defaultConfig"]
    return ProtocolEra.NEWEST if "memoryTotalFractionTarget" in given else ProtocolEra.V0_31


def _agent(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    era = era_of(content)
    read, ours = read_agent_config(content, era), default_agent_config(era)
    yield CaseVerdict(f"agent of {era.value} can be read", [Failure("no problems", str(one)) for one in read.problems])
    if read.value is None:
        return
    yield from unjudged(content, sorted(UNUSED_SETTINGS), "devalloc's agent has no such settings")
    attributes = [setting.attribute for setting in AGENT_SETTINGS if has(content, setting.path)]
    for attribute in ["scaling", *attributes]:
        theirs, own = getattr(read.value, attribute), getattr(ours, attribute)
        yield CaseVerdict(f"{attribute} of {era.value}", [] if theirs == own else [Failure(repr(theirs), repr(own))])


def _is_agent(content: dict[str, Any]) -> bool:
    scaling = content.get("scaling")
    return isinstance(scaling, dict) and isinstance(scaling.get("defaultConfig"), dict)


def _stuck(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    """Times in seconds since the agent began; a machine that tells nothing else heard of all at that instant."""

    def one(case: dict[str, Any]) -> CaseVerdict:
        now, counts = round(1000 * case["at"]), {name: case[name] for name in _COUNTS if name in case}
        heard = {name: case.get(name, case["at"]) for name in _HEARD}
        seen = {name: None if seconds is None else round(1000 * seconds) for name, seconds in heard.items()}
        reasons = stuck_reasons(ChannelHealth(0, **counts, **seen), now)
        return verdict(case["name"], case["expected"], lambda: [reason.code for reason in reasons])

    yield from each(content["stuck"], one)


_COUNTS = ("monitor_failures", "plugin_failures", "plugin_denials", "machine_failures")
_HEARD = ("monitor_success", "metrics_success")
FORMS = [TableForm("settings of agents", _is_agent, _agent), section("when machines are stuck", "stuck", _stuck)]
