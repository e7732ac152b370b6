"""Options of the node plugin about machines that are scaled: what they come to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devalloc.cli.verb import BadInput

if TYPE_CHECKING:
    from devalloc.scaling.agentconfig import AgentConfig
    from devalloc.scaling.eras import Era
    from devalloc.scaling.resources import Resources
    from devalloc_node.agent.settings import Network, ScalingSettings

_NOT_OF_AGENTS = {
    "scheduler_name": "machines name no scheduler",
    "plugin_port": "--permits has it",
    "monitor_port": "each machine says its own",
    "system_port": "each machine says its own",
    "lfc_port": "each machine says its own",
    "machine_timeout": "a change of a machine ends when QEMU has made it, or its own time is over",
    "dump_port": "--dump-port has it",
    "dump_timeout": "the state is shown at once",
}
"""What is not taken from a configuration of agents in use, and why."""


def scaling_settings(
    permits: str | None,
    token: Path | None,
    file: Path | None,
    unit: str | None,
    compat: str | None,
    networks: Sequence[str],
    dump_port: int | None,
) -> ScalingSettings:
    """What options say of the agent and of its server of permits. Raises BadInput."""
    from urllib.parse import urlsplit

    from devalloc.scaling.eras import Era
    from devalloc_node.agent.settings import ScalingSettings

    plain, era = ScalingSettings(), None if compat is None else Era(compat)
    agent = _agent(file, era or plain.era)
    if permits is not None and (urlsplit(permits).scheme not in ("http", "https") or not urlsplit(permits).hostname):
        raise BadInput(f"--permits must be a URL such as http://127.0.0.1:10299/, not {permits}")
    guests = networks_of("--guest-network", networks)
    return replace(
        plain,
        permits=permits or plain.permits,
        token=None if token is None else _token(token),
        unit=_whole(agent.unit, "scaling.computeUnit") if unit is None else _unit(unit),
        agent=agent,
        compat=era,
        guests=guests or plain.guests,
        dump_port=dump_port,
    )


def _agent(path: Path | None, era: Era) -> AgentConfig:
    """What agents of the era are shipped with, and what the file says otherwise."""
    from devalloc.scaling.agentconfig import SETTINGS, read_agent_config, shipped

    plain = shipped(era)
    if path is None:
        return plain
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"--agent-config {path}: {error}") from None
    read = read_agent_config(content, era)
    for problem in read.problems:
        if not problem.is_error:
            click.echo(f"--agent-config {path}: {problem}", err=True)
    if read.config is None:
        wrong = "; ".join(str(problem) for problem in read.problems if problem.is_error)
        raise BadInput(f"--agent-config {path}: {wrong}")
    for setting in SETTINGS:
        why, value = _NOT_OF_AGENTS.get(setting.attribute), getattr(read.config, setting.attribute)
        if why is not None and value != getattr(plain, setting.attribute):
            click.echo(f"--agent-config {path}: warning: {setting.path}: is ignored: {why}", err=True)
    return read.config


def _unit(text: str) -> Resources:
    from devalloc.api.quantity import QuantityError
    from devalloc.scaling.resources import Resources
    from devalloc.scaling.scalars import ScalarError, bytes_from_json, cpu_from_json

    try:
        cpu, memory = text.split(",")
        unit = Resources(cpu_from_json(cpu), bytes_from_json(memory))
    except (ValueError, ScalarError, QuantityError):
        raise BadInput(f"--compute-unit must be CPU and memory, such as 250m,1Gi, not {text}") from None
    return _whole(unit, "--compute-unit")


def _whole(unit: Resources, name: str) -> Resources:
    from devalloc.api.virtualmachine import MEMORY_BLOCK
    from devalloc.scaling.scalars import bytes_to_quantity, cpu_to_quantity

    if unit.cpu == 0 or unit.memory == 0 or unit.memory % MEMORY_BLOCK:
        shown = f"{cpu_to_quantity(unit.cpu)},{bytes_to_quantity(unit.memory)}"
        raise BadInput(f"{name} must have some CPU, and memory in multiples of 2Mi, not {shown}")
    return unit


def _token(path: Path) -> str:
    try:
        text = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--permits-token-file {path}: {error}") from None
    if not text.isprintable() or len(text) < 16:
        raise BadInput(f"--permits-token-file {path} must have one line of 16 characters or more")
    return text


def networks_of(option: str, texts: Sequence[str]) -> tuple[Network, ...]:
    from ipaddress import ip_network

    try:
        return tuple(ip_network(text) for text in texts)
    except ValueError as error:
        raise BadInput(f"{option} must be a network such as 10.1.0.0/16: {error}") from None
