"""Options of scaling, and the node plugin's settings that they come to."""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from devalloc.controller.settings import DEFAULT_MIGRATION_LIMITS, MigrationLimits
from devalloc.programs.permit_options import (
    COMPAT,
    COMPUTE_UNIT,
    OF_PERMITS,
    PermitsOptions,
    amounts,
    permit_arithmetic,
)
from devalloc.settings import EXISTING_FILE, PORT, BadSetting, Whole, declared, given_options, group, setting

if TYPE_CHECKING:
    from devalloc.scaling.agent_config import AgentConfig
    from devalloc.scaling.resources import Resources
    from devalloc.scaling.versions import ProtocolEra
    from devalloc_machines.agent.settings import Network, ScalingSettings, ServerPorts

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingOptions:
    """How machines with spec.scaling follow the load of their guests, and which permit server decides."""

    dump_port: int | None = setting(
        "Show the state of the scaling agent at this port of 127.0.0.1, as JSON, to every process of this host; 0: "
        "nowhere.",
        type=PORT,
        metavar="PORT",
        env="DEVALLOC_DUMP_PORT",
        unset="at a socket that only this user can open, node-agent.sock beside --socket",
    )
    runner_networks: tuple[str, ...] = setting(
        "Allow runners of machines (spec.runner) at this host's addresses in this network. Every controller in the "
        "network can use them, without a password. Repeatable.",
        flag="--runner-network",
        default=(),
        metavar="CIDR",
        unset="none",
    )
    guest_networks: tuple[str, ...] = setting(
        "Network in which guests of scaled machines may have addresses. Repeatable.",
        flag="--guest-network",
        default=(),
        metavar="CIDR",
        env="DEVALLOC_GUEST_NETWORK",
        unset="only addresses behind a TAP interface of their own machine",
    )
    compat: str | None = declared(COMPAT)
    compute_unit: str | None = declared(COMPUTE_UNIT)
    agent_config: Path | None = setting(
        "Compute unit, parameters of goals, and delays of the agent: a JSON file in the format of existing agents.",
        type=EXISTING_FILE,
        metavar="PATH",
        env="DEVALLOC_AGENT_CONFIG",
    )
    permits_without_token: bool = setting(
        "Let the local permit server answer every process of this host at 127.0.0.1, for other agents, which send no "
        "token.",
        default=False,
        env="DEVALLOC_PERMITS_WITHOUT_TOKEN",
    )
    permits_token_file: Path | None = setting(
        "File of the token that the permit server expects. Without it, the local permit server uses a random token.",
        type=EXISTING_FILE,
        metavar="PATH",
        env="DEVALLOC_PERMITS_TOKEN_FILE",
    )
    permits_dump_port: int | None = setting(
        "Show the local permit server's state and metrics at this port of 127.0.0.1, to every process of this host; "
        "0: nowhere.",
        type=PORT,
        metavar="PORT",
        env="DEVALLOC_PERMITS_DUMP_PORT",
        unset="the state at a socket that only this user can open, node-permits.sock beside --socket",
    )
    permits_port: int | None = setting(
        "Port of the local permit server at 127.0.0.1.",
        type=Whole(1, 65535),
        metavar="PORT",
        env="DEVALLOC_PERMITS_PORT",
        unset="10299",
    )
    permits: str | None = setting(
        "Use this permit server.",
        metavar="URL",
        env="DEVALLOC_PERMITS",
        unset="that of the cluster's controller, or without a cluster a local one at http://127.0.0.1:10299/",
    )
    enabled: bool = setting(
        "Scale machines with spec.scaling by the load of their guests.",
        flag="--scaling",
        default=False,
        env="DEVALLOC_SCALING",
        usual=True,
    )
    arithmetic: PermitsOptions = group(PermitsOptions)


_NOT_OF_THE_AGENT = ("--scaling", "--runner-network")
_OF_LOCAL_SERVER = ("--permits-port", "--permits-dump-port", "--permits-without-token", *OF_PERMITS)
OF_PERMIT_SERVER = (*_OF_LOCAL_SERVER, "--permits-token-file")
"""Options that have no effect if a cluster's controller names the permit server."""


def scaling_settings(
    options: ScalingOptions,
    metrics: str | None,
    door: Path,
    note: Callable[[str], None],
    migrations: MigrationLimits = DEFAULT_MIGRATION_LIMITS,
) -> ScalingSettings | None:
    """The settings of the agent and its permit server; None without --scaling.

    ``metrics``: the address of the metrics; ``door``: the node plugin's own socket, beside which the sockets with the
    agent's state are; ``note``: gets warnings; ``migrations``: those of the controller. Raises BadSetting.
    """
    from devalloc.scaling.versions import ProtocolEra
    from devalloc_machines.agent.settings import ScalingSettings

    if not options.enabled:
        given = [name for name in reversed(given_options(options)) if name not in _NOT_OF_THE_AGENT]
        if given:
            raise BadSetting(" and ".join(given), f"need{'s' if len(given) == 1 else ''} --scaling")
        return None
    plain, era = ScalingSettings(), None if options.compat is None else ProtocolEra(options.compat)
    agent = _agent(options.agent_config, era or plain.era, note)
    server = _server_ports(options, door, migrations.timeout)
    dump = _listen_place(options.dump_port, door, "agent")
    _check_ports({"--dump-port": dump, "--metrics": _port_of(metrics)}, server)
    secret = None if options.permits_token_file is None else _token(options.permits_token_file)
    has_own_token = server is not None and secret is None and not options.permits_without_token
    if has_own_token:
        # Only this process asks. Without a token, everything that reaches loopback, even guests, would be trusted.
        secret = secrets.token_urlsafe(32)
    return replace(
        plain,
        permits=_url(options.permits or "") if server is None else f"http://127.0.0.1:{server.requests}/",
        server=server,
        token=secret,
        has_own_token=has_own_token,
        unit=_whole(agent.unit, "scaling.computeUnit")
        if options.compute_unit is None
        else compute_unit(options.compute_unit),
        agent=agent,
        compat=era,
        guests=parse_networks("--guest-network", options.guest_networks),
        asks_pods=server is None,
        dump=dump,
    )


def _listen_place(port: int | None, door: Path, what: str) -> Path | int | None:
    """Where to show some state: at ``port`` (0: nowhere), by default at a socket that only this user can open."""
    return door.with_name(f"{door.stem}-{what}.sock") if port is None else port or None


def _server_ports(options: ScalingOptions, door: Path, migration_seconds: float) -> ServerPorts | None:
    """The local permit server; None if another one is used."""
    if options.permits is None:
        from devalloc.machines.permits.settings import PORT as DEFAULT_PORT
        from devalloc_machines.agent.settings import ServerPorts

        if options.permits_without_token and options.permits_token_file is not None:
            raise BadSetting("--permits-without-token", "and --permits-token-file exclude each other")
        requests = DEFAULT_PORT if options.permits_port is None else options.permits_port
        dump = _listen_place(options.permits_dump_port, door, "permits")
        return ServerPorts(requests, dump, permit_arithmetic(options.arithmetic, options.compat), migration_seconds)
    for name in reversed(given_options(options)):
        if name in _OF_LOCAL_SERVER:
            raise BadSetting(name, "configures the local permit server, which does not run with --permits")
    return None


def _check_ports(ports: Mapping[str, Path | int | None], server: ServerPorts | None) -> None:
    """Refuse a port that two options use. Raises BadSetting."""
    wanted = dict(ports)
    if server is not None:
        wanted |= {"--permits-port": server.requests, "--permits-dump-port": server.dump}
    owners: dict[int, str] = {}
    for name, port in wanted.items():
        if isinstance(port, int) and (other := owners.setdefault(port, name)) != name:
            raise BadSetting(other, f"and {name} both use port {port}; change one")


def _port_of(metrics: str | None) -> int | None:
    """The port of the metrics, if they are served at 127.0.0.1."""
    host, _, port = (metrics or "").rpartition(":")
    return int(port) if host in ("127.0.0.1", "localhost") and port.isdecimal() and int(port) else None


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        good = good and parts.username is None and parts.password is None and not (parts.query or parts.fragment)
    except ValueError:  # no port, no address
        good = False
    if not good or not text.isascii() or not text.isprintable() or " " in text:
        raise BadSetting(
            "--permits", f"must be a URL such as http://127.0.0.1:10299/, without user, query and fragment, not {text}"
        )
    return text


def _agent(path: Path | None, era: ProtocolEra, note: Callable[[str], None]) -> AgentConfig:
    """The defaults of agents of that era, changed by the file."""
    from devalloc.scaling.agent_config import AGENT_SETTINGS, default_agent_config, read_agent_config

    plain = default_agent_config(era)
    if path is None:
        return plain
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadSetting("--agent-config", f"{path}: {error}") from None
    read = read_agent_config(content, era)
    for problem in read.problems:
        if not problem.is_error:
            note(f"--agent-config {path}: {problem}")
    if read.config is None:
        wrong = "; ".join(str(problem) for problem in read.problems if problem.is_error)
        raise BadSetting("--agent-config", f"{path}: {wrong}")
    for each in AGENT_SETTINGS:
        why, value = _NOT_OF_AGENTS.get(each.attribute), getattr(read.config, each.attribute)
        if why is not None and value != getattr(plain, each.attribute):
            note(f"--agent-config {path}: warning: {each.path}: is ignored: {why}")
    return read.config


def compute_unit(text: str) -> Resources:
    """The value of --compute-unit. Raises BadSetting."""
    return _whole(amounts("--compute-unit", text, "250m,1Gi"), "--compute-unit")


def _whole(unit: Resources, name: str) -> Resources:
    from devalloc.api.virtual_machine import MEMORY_BLOCK
    from devalloc.scaling.peer_json import bytes_to_quantity, cpu_to_quantity

    if unit.cpu == 0 or unit.memory == 0 or unit.memory % MEMORY_BLOCK:
        shown = f"{cpu_to_quantity(unit.cpu)},{bytes_to_quantity(unit.memory)}"
        raise BadSetting(name, f"must have some CPU, and memory in multiples of 2Mi, not {shown}")
    return unit


def _token(path: Path) -> str:
    try:
        with path.open("rb") as file:
            mode, content = os.fstat(file.fileno()).st_mode, file.read(_MAX_TOKEN + 1)
    except OSError as error:
        raise BadSetting("--permits-token-file", f"{path}: {error.strerror}") from None
    if stat.S_ISREG(mode) and mode & 0o077:
        raise BadSetting(
            "--permits-token-file",
            f"{path} is open to other users (mode {stat.S_IMODE(mode):04o}), who could ask for "
            f"permits as this node; `chmod 600 {path}`",
        )
    text = content.decode("ascii", "replace").strip()
    if not text.isascii() or not text.isprintable() or not _MIN_TOKEN <= len(text) <= _MAX_TOKEN:
        raise BadSetting(
            "--permits-token-file",
            f"{path} must contain one line of {_MIN_TOKEN} to {_MAX_TOKEN} printable ASCII characters",
        )
    return text


def parse_networks(option: str, texts: Sequence[str]) -> tuple[Network, ...]:
    try:
        return tuple(ip_network(text) for text in texts)
    except ValueError as error:
        raise BadSetting(option, f"must be a network such as 10.1.0.0/16: {error}") from None
