"""Configurations that agents are shipped with: each setting is read, and is what devalloc does by default."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from devalloc.scaling.agentconfig import SETTINGS, read_agent_config, shipped
from devalloc.scaling.eras import Era
from tests.support.tables.forms import Failure, Form, Verdict


def era_of(content: dict[str, Any]) -> Era:
    """By the fields of the default scaling configuration, of which each era has more."""
    given = content["scaling"]["defaultConfig"]
    if "memoryTotalFractionTarget" in given:
        return Era.NEWEST
    return Era.V0_31 if "memoryUsageFractionTarget" in given else Era.V0_12


def _agent(content: dict[str, Any]) -> Iterator[Verdict]:
    era = era_of(content)
    read, ours = read_agent_config(content, era), shipped(era)
    yield Verdict(f"agent of {era.value} can be read", [Failure("no problems", str(one)) for one in read.problems])
    if read.config is None:
        return
    for attribute in ["scaling", *(setting.attribute for setting in SETTINGS)]:
        theirs, own = getattr(read.config, attribute), getattr(ours, attribute)
        yield Verdict(f"{attribute} of {era.value}", [] if theirs == own else [Failure(repr(theirs), repr(own))])


def _is_agent(content: dict[str, Any]) -> bool:
    scaling = content.get("scaling")
    return isinstance(scaling, dict) and isinstance(scaling.get("defaultConfig"), dict)


FORMS = [Form("settings of agents", _is_agent, _agent)]
