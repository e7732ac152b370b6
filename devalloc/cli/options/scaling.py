"""The node plugin's settings for scaling, from its options."""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.command import BadInput

if TYPE_CHECKING:
    from devalloc.scaling.agentconfig import AgentConfig
    from devalloc.scaling.resources import Resources
    from devalloc.scaling.versions import ProtocolEra
    from devalloc_node.agent.settings import Network, ScalingSettings, ServerPorts

_NOT_OF_AGENTS = {
    "scheduler_name": "machines have no scheduler name",
    "plugin_port": "use --permits",
    "monitor_port": "set it in each machine",
    "system_port": "set it in each machine",
    "lfc_port": "set it in each machine",
    "machine_timeout": "a change ends when QEMU has made it, or at its own time limit",
    "dump_port": "use --dump-port",
    "dump_timeout": "the state is available at once",
}
"""Ignored settings of existing agents' configuration files, and why."""
_MIN_TOKEN, _MAX_TOKEN = 16, 2048
"""Maximum characters of a token; a header has room for a few more."""


def scaling_settings(
    scaling: bool, options: Mapping[str, Any], metrics: str | None, door: Path
) -> ScalingSettings | None:
    """The settings of the agent and its permit server; None without --scaling.

    ``options``: their values by name, None if not given; ``metrics``: the address of the metrics; ``door``: the node
    plugin's own socket, beside which the sockets with the agent's state are. Raises BadInput.
    """
    from devalloc.scaling.versions import ProtocolEra
    from devalloc_node.agent.settings import ScalingSettings

    given = [name for name, value in options.items() if value is not None]
    if not scaling:
        if given:
            raise BadInput(f"{' and '.join(given)} need{'s' if len(given) == 1 else ''} --scaling")
        return None
    permits, compat, unit, token = (
        options[name] for name in ("--permits", "--compat", "--compute-unit", "--permits-token-file")
    )
    plain, era = ScalingSettings(), None if compat is None else ProtocolEra(compat)
    agent = _agent(options["--agent-config"], era or plain.era)
    server = _server_ports(options, door)
    dump = _listen_place(options["--dump-port"], door, "agent")
    _check_ports({"--dump-port": dump, "--metrics": _port_of(metrics)}, server)
    secret = None if token is None else _token(token)
    has_own_token = server is not None and secret is None and not options["--permits-without-token"]
    if has_own_token:
        # Only this process asks. Without a token, everything that reaches loopback, even guests, would be trusted.
        secret = secrets.token_urlsafe(32)
    return replace(
        plain,
        permits=_url(permits) if server is None else f"http://127.0.0.1:{server.requests}/",
        server=server,
        token=secret,
        has_own_token=has_own_token,
        unit=_whole(agent.unit, "scaling.computeUnit") if unit is None else _unit(unit),
        agent=agent,
        compat=era,
        guests=parse_networks("--guest-network", options["--guest-network"] or ()),
        dump=dump,
    )


def _listen_place(port: int | None, door: Path, what: str) -> Path | int | None:
    """Where to show some state: at ``port`` (0: nowhere), by default at a socket that only this user can open."""
    return door.with_name(f"{door.stem}-{what}.sock") if port is None else port or None


def _server_ports(options: Mapping[str, Any], door: Path) -> ServerPorts | None:
    """The local permit server; None if another one is used."""
    port, dump = (options[name] for name in ("--permits-port", "--permits-dump-port"))
    if options["--permits"] is None:
        from devalloc.controller.permits.settings import PORT
        from devalloc_node.agent.settings import ServerPorts

        if options["--permits-without-token"] and options["--permits-token-file"] is not None:
            raise BadInput("--permits-without-token and --permits-token-file exclude each other")
        return ServerPorts(PORT if port is None else port, _listen_place(dump, door, "permits"))
    for name in ("--permits-port", "--permits-dump-port", "--permits-without-token"):
        if options[name] is not None:
            raise BadInput(f"{name} configures the local permit server, which does not run with --permits")
    return None


def _check_ports(ports: Mapping[str, Path | int | None], server: ServerPorts | None) -> None:
    """Refuse a port that two options use. Raises BadInput."""
    wanted = dict(ports)
    if server is not None:
        wanted |= {"--permits-port": server.requests, "--permits-dump-port": server.dump}
    owners: dict[int, str] = {}
    for name, port in wanted.items():
        if isinstance(port, int) and (other := owners.setdefault(port, name)) != name:
            raise BadInput(f"{other} and {name} both use port {port}; change one")


def _port_of(metrics: str | None) -> int | None:
    """The port of the metrics, if they are served at 127.0.0.1."""
    host, _, port = (metrics or "").rpartition(":")
    return int(port) if host in ("127.0.0.1", "localhost") and port.isdecimal() and int(port) else None


def _url(text: str) -> str:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        good = good and parts.username is None and parts.password is None and not (parts.query or parts.fragment)
    except ValueError:  # no port, no address
        good = False
    if not good or not text.isascii() or not text.isprintable() or " " in text:
        raise BadInput(
            f"--permits must be a URL such as http://127.0.0.1:10299/, without user, query and fragment, not {text}"
        )
    return text


def _agent(path: Path | None, era: ProtocolEra) -> AgentConfig:
    """The defaults of agents of that era, changed by the file."""
    from devalloc.scaling.agentconfig import AGENT_SETTINGS, default_agent_config, read_agent_config

    plain = default_agent_config(era)
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
    for setting in AGENT_SETTINGS:
        why, value = _NOT_OF_AGENTS.get(setting.attribute), getattr(read.config, setting.attribute)
        if why is not None and value != getattr(plain, setting.attribute):
            click.echo(f"--agent-config {path}: warning: {setting.path}: is ignored: {why}", err=True)
    return read.config


def _unit(text: str) -> Resources:
    from devalloc.api.quantity import QuantityError
    from devalloc.scaling.peer_json import WireAmountError, bytes_from_json, cpu_from_json
    from devalloc.scaling.resources import Resources

    try:
        cpu, memory = text.split(",")
        unit = Resources(cpu_from_json(cpu), bytes_from_json(memory))
    except (ValueError, WireAmountError, QuantityError):
        raise BadInput(f"--compute-unit must be CPU and memory, such as 250m,1Gi, not {text}") from None
    return _whole(unit, "--compute-unit")


def _whole(unit: Resources, name: str) -> Resources:
    from devalloc.api.machine_bounds import MEMORY_BLOCK
    from devalloc.scaling.peer_json import bytes_to_quantity, cpu_to_quantity

    if unit.cpu == 0 or unit.memory == 0 or unit.memory % MEMORY_BLOCK:
        shown = f"{cpu_to_quantity(unit.cpu)},{bytes_to_quantity(unit.memory)}"
        raise BadInput(f"{name} must have some CPU, and memory in multiples of 2Mi, not {shown}")
    return unit


def _token(path: Path) -> str:
    try:
        with path.open("rb") as file:
            mode, content = os.fstat(file.fileno()).st_mode, file.read(_MAX_TOKEN + 1)
    except OSError as error:
        raise BadInput(f"--permits-token-file {path}: {error.strerror}") from None
    if stat.S_ISREG(mode) and mode & 0o077:
        raise BadInput(
            f"--permits-token-file {path} is open to other users (mode {stat.S_IMODE(mode):04o}), who could ask for "
            f"permits as this node; `chmod 600 {path}`"
        )
    text = content.decode("ascii", "replace").strip()
    if not text.isascii() or not text.isprintable() or not _MIN_TOKEN <= len(text) <= _MAX_TOKEN:
        raise BadInput(
            f"--permits-token-file {path} must contain one line of {_MIN_TOKEN} to {_MAX_TOKEN} printable ASCII "
            "characters"
        )
    return text


def parse_networks(option: str, texts: Sequence[str]) -> tuple[Network, ...]:
    from ipaddress import ip_network

    try:
        return tuple(ip_network(text) for text in texts)
    except ValueError as error:
        raise BadInput(f"{option} must be a network such as 10.1.0.0/16: {error}") from None
