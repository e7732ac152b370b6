"""Options of the node plugin about machines that are scaled: what they come to."""

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

from devalloc.cli.verb import BadInput

if TYPE_CHECKING:
    from devalloc.scaling.agentconfig import AgentConfig
    from devalloc.scaling.eras import Era
    from devalloc.scaling.resources import Resources
    from devalloc_node.agent.settings import Network, ScalingSettings, ServerPorts

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
_LEAST_TOKEN, _LONGEST_TOKEN = 16, 2048
"""Characters; a header has room for some more."""


def scaling_settings(
    scaling: bool, options: Mapping[str, Any], metrics: str | None, door: Path
) -> ScalingSettings | None:
    """What options say of the agent and of its server of permits; None where nothing is scaled.

    ``options``: their values by name, None where nothing is said; ``metrics``: where these are served; ``door``: the
    node plugin's own socket, beside which people of this host find what is shown. Raises BadInput.
    """
    from devalloc.scaling.eras import Era
    from devalloc_node.agent.settings import ScalingSettings

    given = [name for name, value in options.items() if value is not None]
    if not scaling:
        if given:
            raise BadInput(f"{' and '.join(given)} need{'s' if len(given) == 1 else ''} --scaling")
        return None
    permits, compat, unit, token = (
        options[name] for name in ("--permits", "--compat", "--compute-unit", "--permits-token-file")
    )
    plain, era = ScalingSettings(), None if compat is None else Era(compat)
    agent = _agent(options["--agent-config"], era or plain.era)
    server = _server(options, door)
    dump = _place(options["--dump-port"], door, "agent")
    _check_ports({"--dump-port": dump, "--metrics": _port_of(metrics)}, server)
    secret = None if token is None else _token(token)
    has_own_token = server is not None and secret is None and not options["--permits-without-token"]
    if has_own_token:
        # Who asks is this process. Everybody else who gets to loopback, guests among them, would be believed as well.
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
        guests=networks_of("--guest-network", options["--guest-network"] or ()),
        dump=dump,
    )


def _place(port: int | None, door: Path, what: str) -> Path | int | None:
    """Where something is shown: at the port that was asked for (0: nowhere), by default at a socket of this user's."""
    return door.with_name(f"{door.stem}-{what}.sock") if port is None else port or None


def _server(options: Mapping[str, Any], door: Path) -> ServerPorts | None:
    """That of this host; None where another one is asked."""
    port, dump = (options[name] for name in ("--permits-port", "--permits-dump-port"))
    if options["--permits"] is None:
        from devalloc.controller.permits.settings import PORT
        from devalloc_node.agent.settings import ServerPorts

        if options["--permits-without-token"] and options["--permits-token-file"] is not None:
            raise BadInput("--permits-without-token and --permits-token-file say different things; choose one")
        return ServerPorts(PORT if port is None else port, _place(dump, door, "permits"))
    for name in ("--permits-port", "--permits-dump-port", "--permits-without-token"):
        if options[name] is not None:
            raise BadInput(f"{name} is of the server of permits that is run here; with --permits there is none")
    return None


def _check_ports(ports: Mapping[str, Path | int | None], server: ServerPorts | None) -> None:
    """That we ourselves do not want one twice. Raises BadInput."""
    wanted = dict(ports)
    if server is not None:
        wanted |= {"--permits-port": server.requests, "--permits-dump-port": server.dump}
    owners: dict[int, str] = {}
    for name, port in wanted.items():
        if isinstance(port, int) and (other := owners.setdefault(port, name)) != name:
            raise BadInput(f"{other} and {name} are both port {port}; choose another one for either")


def _port_of(metrics: str | None) -> int | None:
    """Where metrics are served at 127.0.0.1."""
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
    from devalloc.api.machinebounds import MEMORY_BLOCK
    from devalloc.scaling.scalars import bytes_to_quantity, cpu_to_quantity

    if unit.cpu == 0 or unit.memory == 0 or unit.memory % MEMORY_BLOCK:
        shown = f"{cpu_to_quantity(unit.cpu)},{bytes_to_quantity(unit.memory)}"
        raise BadInput(f"{name} must have some CPU, and memory in multiples of 2Mi, not {shown}")
    return unit


def _token(path: Path) -> str:
    try:
        with path.open("rb") as file:
            mode, content = os.fstat(file.fileno()).st_mode, file.read(_LONGEST_TOKEN + 1)
    except OSError as error:
        raise BadInput(f"--permits-token-file {path}: {error.strerror}") from None
    if stat.S_ISREG(mode) and mode & 0o077:
        raise BadInput(
            f"--permits-token-file {path} is open to others (mode {stat.S_IMODE(mode):04o}), who could then ask for "
            f"permits as this node; `chmod 600 {path}`"
        )
    text = content.decode("ascii", "replace").strip()
    if not text.isascii() or not text.isprintable() or not _LEAST_TOKEN <= len(text) <= _LONGEST_TOKEN:
        raise BadInput(
            f"--permits-token-file {path} must have one line of {_LEAST_TOKEN} to {_LONGEST_TOKEN} ASCII characters "
            "that can be printed"
        )
    return text


def networks_of(option: str, texts: Sequence[str]) -> tuple[Network, ...]:
    from ipaddress import ip_network

    try:
        return tuple(ip_network(text) for text in texts)
    except ValueError as error:
        raise BadInput(f"{option} must be a network such as 10.1.0.0/16: {error}") from None
