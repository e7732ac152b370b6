"""Settings of the scaling agent, and of the permit server beside it."""

from __future__ import annotations

import ipaddress
import json
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from devalloc.scaling.permits import PORT as PERMITS_PORT
from devalloc.scaling.permits.arithmetic import COMPAT, COMPUTE_UNIT, OF_PERMITS, PermitsArithmetic, checked_unit
from devalloc.scaling.resources import Resources
from devalloc.scaling.versions import ProtocolEra
from devalloc.settings import (
    EXISTING_FILE,
    PORT,
    BadSetting,
    Network,
    Whole,
    declared,
    given_options,
    group,
    parse_network,
    setting,
)

if TYPE_CHECKING:
    from devalloc.scaling.agent_config import AgentConfig
    from devalloc.scaling.config import ScalingConfig
    from devalloc.scaling.state import ScalingTiming

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


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        good = good and parts.username is None and parts.password is None and not (parts.query or parts.fragment)
    except ValueError:  # no port, no address
        good = False
    if not good or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError(
            f"must be a URL such as http://127.0.0.1:{PERMITS_PORT}/, without user, query and fragment, not {text}"
        )
    return text


def _shipped() -> AgentConfig:
    from devalloc.scaling.agent_config import AgentConfig

    return AgentConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSettings:
    """How machines with spec.scaling follow the load of their guests, and which permit server decides."""

    dump: Path | int | None = setting(
        "Show the state of the scaling agent at this port of 127.0.0.1, as JSON, to every process of this host; 0: "
        "nowhere.",
        flag="--dump-port",
        type=PORT,
        metavar="PORT",
        env="DEVALLOC_DUMP_PORT",
        unset="at a socket that only this user can open, node-agent.sock beside --socket",
    )
    """``checked``: a unix socket, or a port; None: nowhere."""
    runners: tuple[Network, ...] = setting(
        "Allow runners of machines (spec.runner) at this host's addresses in this network. Every controller in the "
        "network can use them, without a password. Repeatable.",
        flag="--runner-network",
        type=parse_network,
        default=(),
        metavar="CIDR",
        unset="none",
    )
    guests: tuple[Network, ...] = setting(
        "Network in which guests of scaled machines may have addresses. Repeatable.",
        flag="--guest-network",
        type=parse_network,
        default=(),
        metavar="CIDR",
        env="DEVALLOC_GUEST_NETWORK",
        unset="only addresses behind a TAP interface of their own machine",
    )
    compat: str | None = declared(COMPAT)
    compute_unit: Resources | None = declared(COMPUTE_UNIT)
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
    permits_dump: Path | int | None = setting(
        "Show the local permit server's state and metrics at this port of 127.0.0.1, to every process of this host; "
        "0: nowhere.",
        flag="--permits-dump-port",
        type=PORT,
        metavar="PORT",
        env="DEVALLOC_PERMITS_DUMP_PORT",
        unset="the state at a socket that only this user can open, node-permits.sock beside --socket",
    )
    permits_port: int = setting(
        "Port of the local permit server at 127.0.0.1.",
        type=Whole(1, 65535),
        default=PERMITS_PORT,
        metavar="PORT",
        env="DEVALLOC_PERMITS_PORT",
        unset="10299",
    )
    permits: str | None = setting(
        "Use this permit server.",
        type=_url,
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
    arithmetic: PermitsArithmetic = group(PermitsArithmetic)
    agent: AgentConfig = field(default_factory=_shipped)
    """Parameters of goals for machines that set none, and the delays, as ``checked`` reads them."""
    token: str | None = field(default=None, repr=False)
    """The token that the permit server expects as ``Authorization: Bearer``."""
    serves: bool = False
    """Whether the local permit server runs; else another process serves permits."""
    migration_seconds: float = 3600.0
    """How long a migration may take before the permit server withdraws it."""
    threads: int = 16
    """Maximum number of machines that the agent changes at the same time, and that it reads at the same time."""

    def checked(
        self, metrics: str | None, door: Path, note: Callable[[str], None], migration_seconds: float = 3600.0
    ) -> Self:
        """As a node runs with it: with the agent's configuration, its token, and where state is shown.

        ``metrics``: the address of the metrics; ``door``: the node plugin's own socket, beside which the sockets with
        the state are; ``note``: gets warnings. Raises BadSetting.
        """
        from secrets import token_urlsafe

        given = [name for name in reversed(given_options(self)) if name not in ("--scaling", "--runner-network")]
        if not self.enabled:
            if given:
                raise BadSetting(" and ".join(given), f"need{'s' if len(given) == 1 else ''} --scaling")
            return self
        serves = self.permits is None
        if serves and self.permits_without_token and self.permits_token_file is not None:
            raise BadSetting("--permits-without-token", "and --permits-token-file exclude each other")
        if not serves and (idle := [name for name in given if name in _OF_LOCAL_SERVER]):
            raise BadSetting(idle[0], "configures the local permit server, which does not run with --permits")
        agent = self._read_agent(note)
        try:
            unit = self.compute_unit or checked_unit(agent.unit)
        except ValueError as error:
            raise BadSetting("scaling.computeUnit", str(error)) from None
        # Only this process asks. Without a token, everything that reaches loopback, even guests, would be trusted.
        token = token_urlsafe(32) if serves and not self.permits_without_token else None
        checked = replace(
            self,
            dump=_shown_at(self.dump, door, "agent"),
            permits_dump=_shown_at(self.permits_dump, door, "permits"),
            compute_unit=unit,
            arithmetic=self.arithmetic.checked(self.compat, unit) if serves else self.arithmetic,
            agent=agent,
            token=token if self.permits_token_file is None else _token(self.permits_token_file),
            serves=serves,
            migration_seconds=migration_seconds,
        )
        checked._check_ports(metrics)
        return checked

    @property
    def unit(self) -> Resources:
        """The compute unit: machines have whole units, as far as their bounds allow."""
        return self.compute_unit or self.agent.unit

    @property
    def url(self) -> str:
        """Of the permit server."""
        return self.permits or f"http://127.0.0.1:{self.permits_port}/"

    @property
    def asks_pods(self) -> bool:
        """Whether the permit server is another program's (``--permits``), which knows machines by their runner pods
        and writes no ``status.permitted``."""
        return self.permits is not None

    @property
    def has_own_token(self) -> bool:
        """Whether this process made the token, so that no other process has it."""
        return self.token is not None and self.permits_token_file is None

    @property
    def config(self) -> ScalingConfig:
        """Parameters of goals for machines that set none."""
        return self.agent.scaling

    @property
    def timing(self) -> ScalingTiming:
        """The delays of the state machine."""
        return self.agent.timing

    @property
    def era(self) -> ProtocolEra:
        """The release whose goals the agent computes."""
        return ProtocolEra.NEWEST if self.compat is None else ProtocolEra(self.compat)

    def reaches(self, address: str) -> bool:
        """Whether a guest may have this address, by ``guests``: a user who writes a VirtualMachine chooses it, and the
        plugin must not connect to other servers."""
        at = ipaddress.ip_address(address)
        if isinstance(at, ipaddress.IPv6Address) and at.ipv4_mapped is not None:
            return False  # IPv4 in other words
        return any(at.version == network.version and at in network for network in self.guests)

    def _check_ports(self, metrics: str | None) -> None:
        """Refuse a port that two options use. Raises BadSetting."""
        wanted = {"--dump-port": self.dump, "--metrics": _port_of(metrics)}
        if self.serves:
            wanted |= {"--permits-port": self.permits_port, "--permits-dump-port": self.permits_dump}
        owners: dict[int, str] = {}
        for name, port in wanted.items():
            if isinstance(port, int) and (other := owners.setdefault(port, name)) != name:
                raise BadSetting(other, f"and {name} both use port {port}; change one")

    def _read_agent(self, note: Callable[[str], None]) -> AgentConfig:
        """The defaults of agents of that era, changed by the file."""
        from devalloc.scaling.agent_config import AGENT_SETTINGS, default_agent_config, read_agent_config

        plain, path = default_agent_config(self.era), self.agent_config
        if path is None:
            return plain
        try:
            content = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise BadSetting("--agent-config", f"{path}: {error}") from None
        read = read_agent_config(content, self.era)
        for problem in read.problems:
            if not problem.is_error:
                note(f"--agent-config {path}: {problem}")
        if read.value is None:
            wrong = "; ".join(str(problem) for problem in read.problems if problem.is_error)
            raise BadSetting("--agent-config", f"{path}: {wrong}")
        for each in AGENT_SETTINGS:
            why, value = _NOT_OF_AGENTS.get(each.attribute), getattr(read.value, each.attribute)
            if why is not None and value != getattr(plain, each.attribute):
                note(f"--agent-config {path}: warning: {each.path}: is ignored: {why}")
        return read.value


_OF_LOCAL_SERVER = ("--permits-port", "--permits-dump-port", "--permits-without-token", *OF_PERMITS)
OF_PERMIT_SERVER = (*_OF_LOCAL_SERVER, "--permits-token-file")
"""Options that have no effect if a cluster's controller names the permit server."""


def _shown_at(port: Path | int | None, door: Path, what: str) -> Path | int | None:
    """Where to show some state: at ``port`` (0: nowhere), by default at a socket that only this user can open."""
    return door.with_name(f"{door.stem}-{what}.sock") if port is None else port or None


def _port_of(metrics: str | None) -> int | None:
    """The port of the metrics, if they are served at 127.0.0.1."""
    host, _, port = (metrics or "").rpartition(":")
    return int(port) if host in ("127.0.0.1", "localhost") and port.isdecimal() and int(port) else None


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
