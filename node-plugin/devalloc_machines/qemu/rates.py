"""Hold a running machine to its rates: QEMU throttles its disks, the host its TAP interfaces.

QEMU and the kernel are the record of what is set; both are asked, told and asked again. QEMU's limits end with it.
Those of TAP interfaces do not, so the machine's record names each interface before it is limited, until the limit is
gone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from devalloc_machines.qemu import launch
from devalloc_machines.qemu.allowed_paths import may_use_tap
from devalloc_machines.qemu.qmp import Monitor, checked_text
from devalloc_machines.qemu.records import MACHINES, MachineRecord, record_of
from devalloc_machines.qemu.registry import MachineRegistry
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_machines.qemu.spec import MachineSpec, RateLimits
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.host import traffic

LOG = logging.getLogger(__name__)
GROUP = "devalloc-disk-io"
"""The throttle group that all disks of a machine share."""
_UNDO_SECONDS = 10.0
_LIVING = ("starting", "running", "stopping", "incoming")
_MAX_PATH = 256
"""Characters of a disk's path in QEMU."""
_FLASH = "/machine/system.flash"
"""How the paths of flash chips with UEFI firmware begin. QEMU stands still while it writes there: it must not wait."""
_RATES = ("bps", "bps_rd", "bps_wr", "iops", "iops_rd", "iops_wr")


@dataclass(frozen=True, slots=True)
class TapLimit:
    """What a TAP interface is to be limited to."""

    namespace: str
    """The file of its network namespace; empty: the host's."""
    tap: str
    rate: int | None

    @property
    def place(self) -> tuple[str, str]:
        return self.namespace, self.tap

    @property
    def file(self) -> Path | None:
        return Path(self.namespace) if self.namespace else None


@dataclass(frozen=True, slots=True)
class UnmetRates:
    """What is to be changed so that a machine is held to its rates."""

    disks: Mapping[str, int] | None = None
    """Bytes per second of disks, by their paths in QEMU; None: nothing to change."""
    taps: tuple[TapLimit, ...] = ()
    problems: tuple[str, ...] = ()
    """What cannot be enforced, in sentences."""

    def __bool__(self) -> bool:
        return self.disks is not None or bool(self.taps)


def are_of_concern(record: MachineRecord, wanted: RateLimits) -> bool:
    """Whether a machine is to be limited, or ever was: of all others nothing is asked."""
    return any(each.is_limited for each in (record.spec.rates, record.wanted_rates, wanted)) or bool(record.tap_limits)


def of_running(running: MachineSpec, now: MachineSpec, before: RateLimits, *, is_admitted: bool) -> RateLimits:
    """The rates that a machine which runs as ``running`` is to have when its object asks for ``now``.

    Cards that are others by now keep their rate until the next start. One that its node has no room for is not raised.
    """
    nics = []
    for number, card in enumerate(running.nics):
        rate = before.nics[number] if number < len(before.nics) else None
        if number < len(now.nics) and now.nics[number] == card:
            rate = _changed(rate, now.rates.nics[number], is_admitted)
        nics.append(rate)
    return RateLimits(_changed(before.disk_io, now.rates.disk_io, is_admitted), tuple(nics))


def _changed(before: int | None, wanted: int | None, is_admitted: bool) -> int | None:
    if is_admitted or before is None or wanted is None:
        return wanted
    return min(before, wanted)


def unmet_rates(record: MachineRecord, config: MachineConfig, monitor: Monitor, deadline: Deadline) -> UnmetRates:
    """What is to be changed. Raises NodeError if QEMU does not answer."""
    wanted, spec = record.wanted_rates, record.spec
    disks, problems = _unmet_disks(monitor, wanted.disk_io, deadline)
    taps, namespace = [], _namespace_of(record, config)
    for number, nic in enumerate(spec.nics):
        rate = wanted.nics[number] if number < len(wanted.nics) else None
        if nic.interface is None:
            if rate is not None:
                problems.append(
                    f"nics[{number}].bandwidth: cards with backend user cannot be limited, only those on a TAP "
                    "interface (backend tap or warm)"
                )
            continue
        limit = TapLimit(namespace if nic.warm else "", nic.interface, rate)
        if limit.place not in record.tap_limits:
            if rate is None:
                continue
            # It was checked when it was started; but after a journal was lost, its object says what it is.
            if not nic.warm and not may_use_tap(limit.tap, config.taps, spec.namespace):
                problems.append(
                    f"the bandwidth of TAP {limit.tap} is not limited: machines of namespace {spec.namespace} may not "
                    "use it (--tap)"
                )
                continue
        try:
            seen = traffic.observe_rates(limit.file, limit.tap)
        except OSError as error:
            problems.append(_tap_problem(limit, error))
            continue
        if not seen.are(rate) or (rate is not None and limit.place not in record.tap_limits):
            taps.append(limit)
    return UnmetRates(disks, tuple(taps), tuple(problems))


def enforce(
    machines: MachineRegistry, record: MachineRecord, monitor: Monitor, deadline: Deadline
) -> tuple[MachineRecord, tuple[str, ...]]:
    """Hold a machine to its rates; its record by then, and what is not enforced. For the holder of its lock.

    Raises NodeError if QEMU does not answer, or what is to be recorded cannot be.
    """
    unmet = unmet_rates(record, machines.config, monitor, deadline)
    problems = list(unmet.problems)
    if unmet.taps:
        places = {*record.tap_limits, *(limit.place for limit in unmet.taps)}
        record = replace(record, tap_limits=tuple(sorted(places)))
        machines.put(record)
        with machines.tap_lock(deadline):
            for limit in unmet.taps:
                try:
                    traffic.set_rates(limit.file, limit.tap, limit.rate)
                except OSError as error:
                    problems.append(_tap_problem(limit, error))
    if unmet.disks is not None:
        try:
            for path, rate in unmet.disks.items():
                monitor.execute("block_set_io_throttle", _throttle(path, rate), deadline=deadline)
        except Denied as error:
            problems.append(f"diskIO: {error.message}")
        else:
            left, _ = _unmet_disks(monitor, record.wanted_rates.disk_io, deadline)
            if left:
                raise Failed(
                    "DeviceNotThere", f"QEMU accepted the rate of disks {', '.join(left)}, but does not have it"
                )
    return record, tuple(problems)


def remove_tap_limits(machines: MachineRegistry, key: str) -> bool:
    """Take away the limits of a machine that has ended. False: some remain, and its record names them. Raises
    NodeError."""
    record = machines.find(key)
    if record is None or not record.tap_limits:
        return True
    left = []
    with machines.tap_lock(Deadline.after(_UNDO_SECONDS)):
        used = _limited_by_others(machines, key)
        for place in record.tap_limits:
            namespace, tap = place
            if place in used or (namespace and not Path(namespace).exists()):
                continue  # it is another machine's by now, or has gone with its namespace
            try:
                traffic.set_rates(Path(namespace) if namespace else None, tap, None)
            except OSError as error:
                left.append(place)
                LOG.warning("machine %s: cannot remove the limit of TAP %s yet: %s", key, tap, error)
    if tuple(left) != record.tap_limits:  # it is tried again and again
        machines.put(replace(record, tap_limits=tuple(left)))
    return not left


def _limited_by_others(machines: MachineRegistry, key: str) -> set[tuple[str, str]]:
    """Where machines that live are limited: a TAP may have its next user before the last one was seen to end."""
    places: set[tuple[str, str]] = set()
    for other, content in machines.records.records(MACHINES).items():
        if other != key and content.get("state") in _LIVING and content.get("tap_limits"):
            with suppress(NodeError):
                places.update(record_of(other, content).tap_limits)
    return places


def _namespace_of(record: MachineRecord, config: MachineConfig) -> str:
    """Of the setup that a machine was started in: its start plan has it as long as it lives."""
    if not any(nic.warm for nic in record.spec.nics):
        return ""
    try:
        return str(launch.read_plan(record.spec.id, config).get("namespace") or "")
    except (OSError, ValueError) as error:
        raise Failed("HostUnreadable", f"cannot read how machine {record.spec.key} was started: {error}") from None


def _tap_problem(limit: TapLimit, error: OSError) -> str:
    advice = " (the plugin needs CAP_NET_ADMIN)" if isinstance(error, PermissionError) else ""
    return f"the bandwidth of TAP {limit.tap} is not limited: {error.strerror or error}{advice}"


def _unmet_disks(
    monitor: Monitor, wanted: int | None, deadline: Deadline
) -> tuple[Mapping[str, int] | None, list[str]]:
    """The rates to set, by disk; and what cannot be set."""
    changes, problems = dict[str, int](), []
    for each in monitor.execute("query-block", deadline=deadline):
        medium, path = each.get("inserted"), each.get("qdev")
        if not medium or not path:
            continue
        path = checked_text(path, _MAX_PATH)
        if path.startswith(_FLASH):
            continue
        group, rate = medium.get("group"), int(medium.get("bps", 0))
        if group not in (None, GROUP) and any(medium.get(name) for name in _RATES):
            if wanted is not None:
                problems.append(f"diskIO: disk {path} is in throttle group {str(group)[:40]!r} of another program")
        elif (rate if group == GROUP else 0) != (wanted or 0):
            changes[path] = wanted or 0
    return changes or None, problems


def _throttle(path: str, rate: int) -> dict[str, Any]:
    rates = dict.fromkeys(_RATES, 0) | {"bps": rate}
    return {"id": path, **rates, "group": GROUP} if rate else {"id": path, **rates}
