"""What can be set about the guest monitor: for both commands that start it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

from devalloc.settings import Network, OneOf, build, setting, settings_of

ENVIRONMENT = "DEVALLOC_GUEST_MONITOR_"
"""Each option can be set in the environment: this and its parameter in capitals."""

ABOUT = (
    "Runs inside a machine: measures the guest's memory, asks the node's agent for more, accepts or rejects a "
    "decrease, brings plugged CPUs and memory online, and serves the guest's metrics. It runs until SIGTERM or "
    "Ctrl-C."
)

Address = tuple[str, int]


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


def _program(text: str) -> str | None:
    if text and not (os.path.isabs(text) and os.path.isfile(text) and os.access(text, os.X_OK)):
        raise ValueError(f"not an executable file: {text!r} (give an absolute path)")
    return text or None


def _ratio(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100:
        raise ValueError(f"{text!r} is not a whole number from 1 to 100")
    return int(text)


@dataclass(frozen=True, slots=True)
class MonitorSettings:
    """The guest monitor, the program inside a machine that scales."""

    listen: Address = setting(
        "Address where agents connect.", type=_address, default="0.0.0.0:10301", metavar="ADDRESS:PORT", usual=True
    )
    metrics_listen: Address | None = setting(
        "Address where metrics are served; `off`: nowhere.",
        type=_address_or_off,
        default="0.0.0.0:9100",
        metavar="ADDRESS:PORT",
    )
    informant: Address | None = setting(
        "Address where agents with the older informant protocol connect, usually port 10301; `off`: nowhere.",
        type=_address_or_off,
        default="off",
        metavar="ADDRESS:PORT",
    )
    allow: tuple[Network, ...] = setting(
        "Addresses from which agents may connect, such as 10.0.0.1 or 10.0.0.0/24,fd00::/8. Empty: from anywhere, if "
        "the network admits only the host.",
        type=_networks,
        default="",
        metavar="NETWORKS",
        usual=True,
    )
    measure: str = setting(
        "Whose memory the monitor watches: `system`, the whole guest; `cgroup:NAME`, the workload in "
        "/sys/fs/cgroup/NAME (version 2 or 1); `none`: nothing, and it accepts every decrease.",
        default="system",
        metavar="WHAT",
        usual=True,
    )
    cpus: str = setting(
        "Bring online all CPUs that are `plugged`, only as many as were `granted` (CPU 0 always), or `leave` them.",
        type=OneOf(["plugged", "granted", "leave"]),
        default="plugged",
        metavar="POLICY",
        usual=True,
    )
    memory: str = setting(
        "How to bring plugged memory online: `movable` can be unplugged again, `kernel` serves any use, `auto` is "
        "movable up to --movable-ratio, `leave` brings none online.",
        type=OneOf(["auto", "movable", "kernel", "leave"]),
        default="auto",
        metavar="POLICY",
        usual=True,
    )
    movable_ratio: int = setting(
        "With --memory auto: maximum ratio of movable memory to the kernel's memory. Lower is safer for the guest; "
        "higher can give back more.",
        type=_ratio,
        default="8",
        metavar="TIMES",
    )
    cache_program: str | None = setting(
        "A program that sets the size of a cache. It runs whenever the size changes, with the size in bytes as its "
        "only argument, and must exit with 0 within 3 s.",
        type=_program,
        default="",
        metavar="PATH",
    )
    cache_where: str = setting(
        "Where that cache is: `disk` or `memory`.", type=OneOf(["disk", "memory"]), default="disk", metavar="PLACE"
    )
    root: str = setting("The folder that contains the guest's proc and sys.", default="/", metavar="DIR")


OPTIONS = settings_of(MonitorSettings)


def settings_from(given: Mapping[str, str | None]) -> MonitorSettings:
    """From texts by parameter; what is not given has its default. Raises ValueError with every problem, one a line."""
    values, problems = {}, []
    for option in OPTIONS:
        if (text := given.get(option.parameter)) is not None:
            try:
                values[option.parameter] = text if option.type is None else option.type(text)
            except ValueError as error:
                problems.append(f"{option.flag}: {error}")
    if problems:
        raise ValueError("\n".join(problems))
    settings = build(MonitorSettings, values)
    if settings.informant is not None:
        if settings.metrics_listen is None:
            problems.append(
                "--informant: agents must learn the address of the metrics; --metrics-listen must not be off"
            )
        if settings.informant == settings.listen and settings.listen[1] != 0:
            problems.append("--informant: the monitor listens there; give --listen another port")
    if problems:
        raise ValueError("\n".join(problems))
    return settings


def is_allowed(allowed: Sequence[Network], address: str) -> bool:
    """Whether agents may come from there."""
    return not allowed or any(ip_address(address.partition("%")[0]) in network for network in allowed)
