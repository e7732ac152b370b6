"""What can be set about the guest monitor: one table, for both commands that start it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

from devalloc_node.guest.memory import CACHES, POLICIES

ENVIRONMENT = "DEVALLOC_GUEST_MONITOR_"
"""Each option can be set in the environment: this and its name in capitals, with underscores."""

ABOUT = (
    "Runs inside a machine: measures the guest's memory, asks the node's agent for more, accepts or rejects a "
    "decrease, brings plugged CPUs and memory online, and serves the guest's metrics. It runs until SIGTERM or "
    "Ctrl-C."
)

Address = tuple[str, int]
Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class MonitorSettings:
    """All of it."""

    listen: Address
    metrics_listen: Address | None
    informant: Address | None
    allow: tuple[Network, ...]
    measure: str
    cpus: str
    memory: str
    movable_ratio: int
    cache_program: str | None
    cache_where: str
    root: str


@dataclass(frozen=True, slots=True)
class MonitorOption:
    """One setting as a flag."""

    name: str
    metavar: str
    default: str
    parse: Callable[[str], Any]
    help: str

    @property
    def field(self) -> str:
        return self.name.replace("-", "_")

    @property
    def env(self) -> str:
        return ENVIRONMENT + self.field.upper()


def settings_from(given: Mapping[str, str | None]) -> MonitorSettings:
    """From texts by field; what is not given has its default. Raises ValueError with every problem, one a line."""
    values, problems = {}, []
    for option in OPTIONS:
        text = given.get(option.field)
        try:
            values[option.field] = option.parse(option.default if text is None else text)
        except ValueError as error:
            problems.append(f"--{option.name}: {error}")
    if not problems and values["informant"] is not None:
        if values["metrics_listen"] is None:
            problems.append(
                "--informant: agents must learn the address of the metrics; --metrics-listen must not be off"
            )
        if values["informant"] == values["listen"] and values["listen"][1] != 0:
            problems.append("--informant: the monitor listens there; give --listen another port")
    if problems:
        raise ValueError("\n".join(problems))
    return MonitorSettings(**values)


def is_allowed(allowed: Sequence[Network], address: str) -> bool:
    """Whether agents may come from there."""
    return not allowed or any(ip_address(address.partition("%")[0]) in network for network in allowed)


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise ValueError(f"{text!r} is not ADDRESS:PORT, such as 0.0.0.0:10301 or [::]:10301")
    try:
        ip_address(host)
    except ValueError:
        raise ValueError(f"not an IP address: {host!r} (0.0.0.0 or [::] listens on all addresses)") from None
    return host, int(port)


def _address_or_off(text: str) -> Address | None:
    return None if text == "off" else _address(text)


def _networks(text: str) -> tuple[Network, ...]:
    return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())


def _one_of(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"{text!r} is not one of {', '.join(names)}")
        return text

    return parse


def _program(text: str) -> str | None:
    if text and not (os.path.isabs(text) and os.path.isfile(text) and os.access(text, os.X_OK)):
        raise ValueError(f"not an executable file: {text!r} (give an absolute path)")
    return text or None


def _ratio(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100:
        raise ValueError(f"{text!r} is not a whole number from 1 to 100")
    return int(text)


OPTIONS = (
    MonitorOption("listen", "ADDRESS:PORT", "0.0.0.0:10301", _address, "Address where agents connect."),
    MonitorOption(
        "metrics-listen", "ADDRESS:PORT", "0.0.0.0:9100", _address_or_off, ("Address where metrics are served; `off`: "
"nowhere.")
    ),
    MonitorOption(
        "informant", "ADDRESS:PORT", "off", _address_or_off,
        "Address where agents with the older informant protocol connect, usually port 10301; `off`: nowhere.",
    ),
    MonitorOption(
        "allow", "NETWORKS", "", _networks,
        "Addresses from which agents may connect, such as 10.0.0.1 or 10.0.0.0/24,fd00::/8. Empty: from anywhere, if "
        "the network admits only the host.",
    ),
    MonitorOption(
        "measure", "WHAT", "system", str,
        "Whose memory the monitor watches: `system`, the whole guest; `cgroup:NAME`, the workload in "
        "/sys/fs/cgroup/NAME (version 2 or 1); `none`: nothing, and it accepts every decrease.",
    ),
    MonitorOption(
        "cpus", "POLICY", "plugged", _one_of("plugged", "granted", "leave"),
        "Bring online all CPUs that are `plugged`, only as many as were `granted` (CPU 0 always), or `leave` them.",
    ),
    MonitorOption(
        "memory", "POLICY", "auto", _one_of(*POLICIES),
        "How to bring plugged memory online: `movable` can be unplugged again, `kernel` serves any use, `auto` is "
        "movable up to --movable-ratio, `leave` brings none online.",
    ),
    MonitorOption(
        "movable-ratio", "TIMES", "8", _ratio,
        "With --memory auto: maximum ratio of movable memory to the kernel's memory. Lower is safer for the guest; "
        "higher can give back more.",
    ),
    MonitorOption(
        "cache-program", "PATH", "", _program,
        "A program that sets the size of a cache. It runs whenever the size changes, with the size in bytes as its "
        "only argument, and must exit with 0 within 3 s.",
    ),
    MonitorOption("cache-where", "PLACE", "disk", _one_of(*CACHES), "Where that cache is: `disk` or `memory`."),
    MonitorOption("root", "DIR", "/", str, "The folder that contains the guest's proc and sys."),
)  # fmt: skip
