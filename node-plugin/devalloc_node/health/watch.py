"""The health of devices: observed, and reported on claims.

A prepared device is well while it is there, bound as it was left, and answers; any other published one while it is
there and answers. Either is unwell for a while after a fatal error on its link. What is unwell is withheld from claims
(T3) until it is well again; of what cannot be told nothing is withheld.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from devalloc.api.pool import AttributeValue, DevicePool
from devalloc.inventory.pci import Address
from devalloc.inventory.sysfs import Tree
from devalloc.worker import Again, Pace, Why, Worker
from devalloc_node.binding.binding import HealthState
from devalloc_node.binding.drivers import HEALTHY, is_there, problem_with_function
from devalloc_node.errors import NodeError
from devalloc_node.model.step import Prepared, PreparedDevice


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """How one published device was when it was last looked at."""

    pool: str
    device: str
    health: HealthState
    seen: float
    """When that was, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class HealthSnapshot:
    """All devices of the node at one moment."""

    version: int
    """Grows whenever the state or the message of a device changes, or a device comes or goes."""
    devices: tuple[DeviceHealth, ...]


class HealthFeed(Protocol):
    """Where the state of the devices is read. Safe for threads."""

    def snapshot(self) -> HealthSnapshot:
        """What is known now; at once."""

    def wait(self, version: int, timeout: float) -> bool:
        """Wait until there is something newer than ``version``, at most ``timeout`` seconds; whether there is."""


log = logging.getLogger(__name__)

INTERVAL = 10.0
"""Seconds between looks at all devices. One costs some 50 microseconds a function."""
MIN_PAUSE = 0.2
"""Seconds from one look to the next, however many events come."""
ERROR_SECONDS = 300.0
"""How long a device counts as unwell after a fatal error."""
UNHEALTHY = "unhealthy: "

_FATAL = re.compile(r"^TOTAL_ERR_FATAL ([0-9]{1,18})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ObservedDevice:
    """A device to look at."""

    pool: str
    device: str
    look: Callable[[], HealthState]
    """May raise: then nothing can be told."""


@dataclass(frozen=True, slots=True)
class HealthObservation:
    """How a device was when it was last looked at; times in seconds since 1970."""

    health: HealthState
    since: float
    """When it began to be so."""
    seen: float


class HealthWatch:
    """Looks at devices; the ``HealthFeed`` of those who tell others. Safe for threads."""

    def __init__(
        self,
        subjects: Callable[[], Iterable[ObservedDevice]],
        *,
        interval: float = INTERVAL,
        on_change: Callable[[Sequence[DeviceHealth]], None] = lambda changed: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``on_change``: called after a look that found devices otherwise than before, or for the first time, with
        these; also with those that are gone, and their state ``unknown``. What it raises is logged."""
        self._subjects = subjects
        self._interval = interval
        self._on_change = on_change
        self._clock = clock
        self._changed = threading.Condition()
        pace = Pace(self._interval, self._interval, batch=MIN_PAUSE)
        self._worker: Worker[None, object] = Worker("cannot observe the devices", self._work, pace=pace)
        self._version = 0
        self._observed: dict[tuple[str, str], HealthObservation] = {}

    def snapshot(self) -> HealthSnapshot:
        """What is known now; at once."""
        with self._changed:
            return HealthSnapshot(
                self._version,
                tuple(
                    DeviceHealth(*key, observed.health, observed.seen)
                    for key, observed in sorted(self._observed.items())
                ),
            )

    def wait(self, version: int, timeout: float) -> bool:
        """Wait until there is something newer than ``version``, at most ``timeout`` seconds; whether there is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._version > version, timeout)

    def observed(self, pool: str, device: str) -> HealthObservation | None:
        """How one device is, and since when; None for one that was not observed."""
        with self._changed:
            return self._observed.get((pool, device))

    def unhealthy(self) -> dict[str, str]:
        """Why devices are unwell, by name, as ``devalloc.io/unavailable`` has it."""
        with self._changed:
            return {
                device: UNHEALTHY + observed.health.message
                for (_, device), observed in self._observed.items()
                if observed.health.state == "unhealthy"
            }

    def poke(self) -> None:
        """Have the loop look soon: something may have happened. From any thread."""
        self._worker.add(None)

    def run(self, stop: threading.Event) -> None:
        """Look now, and go on until ``stop`` is set."""
        self._worker.add(None)
        self._worker.run(stop)

    def _work(self, key: None, why: Why) -> Again:
        self.look()
        return Again(self._interval)

    def look(self) -> None:
        """Look at all devices once."""
        now = {(subject.pool, subject.device): _observe(subject) for subject in self._subjects()}
        seen = self._clock()
        with self._changed:
            before = self._observed
            changed = [key for key, health in now.items() if key not in before or before[key].health != health]
            gone = before.keys() - now.keys()
            self._observed = {
                key: HealthObservation(health, seen if key in changed else before[key].since, seen)
                for key, health in now.items()
            }
            if changed or gone:
                self._version += 1
                self._changed.notify_all()
        for key in changed:
            if now[key].state != "healthy" or key in before:
                level = logging.INFO if now[key].state == "healthy" else logging.WARNING
                why = now[key].message and f": {now[key].message}"
                log.log(level, "device %s/%s is %s%s", *key, now[key].state, why)
        updates = [DeviceHealth(*key, now[key], seen) for key in changed]
        updates += [DeviceHealth(*key, HealthState("unknown", "is no longer published"), seen) for key in sorted(gone)]
        if updates:
            self._tell(updates)

    def _tell(self, changed: Sequence[DeviceHealth]) -> None:
        try:
            self._on_change(changed)
        except Exception:
            log.exception("cannot notify about the health of the devices")


def _observe(subject: ObservedDevice) -> HealthState:
    try:
        return subject.look()
    except (NodeError, OSError, ValueError) as error:
        return HealthState("unknown", str(error) or type(error).__name__)


class PcieErrorCounter:
    """Fatal errors of PCI functions, as the kernel counts them (AER). Safe for one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: dict[str, int] = {}
        self._last: dict[str, float] = {}

    def check(self, tree: Tree, address: str) -> HealthState:
        """Unhealthy for a while after the count went up; what was counted before the first look does not matter."""
        folder = tree.sys.folder("bus", "pci", "devices", address) if tree.sys and Address.parse(address) else None
        match = _FATAL.search((folder.text("aer_dev_fatal") or "") if folder else "")
        if match is None:
            self._counts.pop(address, None)
            return HEALTHY
        count, before = int(match[1]), self._counts.get(address)
        self._counts[address] = count
        if before is not None and count > before:
            self._last[address] = self._clock()
        if self._clock() - self._last.get(address, float("-inf")) < ERROR_SECONDS:
            return HealthState("unhealthy", f"{address} had fatal errors on its link ({count} since power-on)")
        return HEALTHY


def devices_to_observe(
    tree: Callable[[], Tree],
    observe: Callable[[PreparedDevice], HealthState],
    prepared: Iterable[Prepared],
    pools: Iterable[DevicePool],
    errors: PcieErrorCounter,
) -> Iterator[ObservedDevice]:
    """The prepared devices, and the published ones that are not prepared. Devices of one function are one look."""
    done: dict[str, HealthState] = {}

    def function(address: str) -> HealthState:
        if address not in done:
            here = tree()
            outcome = problem_with_function(here, address)
            done[address] = outcome if isinstance(outcome, HealthState) else errors.check(here, address)
        return done[address]

    def first(addresses: Sequence[str]) -> HealthState:
        here = tree()
        return function(next((at for at in addresses if is_there(here, at)), addresses[-1]))

    def bound(device: PreparedDevice) -> HealthState:
        health = observe(device)
        if health.state != "healthy":
            return health
        states = (function(address) for address in device.functions)
        return next((each for each in states if each.state != "healthy"), HEALTHY)

    seen = set()
    for claim in prepared:
        for device in claim.devices:
            if not device.admin and (device.pool, device.device) not in seen:
                seen.add((device.pool, device.device))
                yield ObservedDevice(device.pool, device.device, partial(bound, device))
    for pool in pools:
        for published, attributes in pool.spec.effective_attributes.items():
            at = _addresses(attributes)
            if (pool.metadata.name, published) not in seen and at:
                yield ObservedDevice(pool.metadata.name, published, partial(first, at))


def _addresses(own: Mapping[str, AttributeValue]) -> tuple[str, ...]:
    """The PCI functions to look at, the first that is there or else the last.

    That of a VF is its own, or its physical one while it does not exist: VFs come and go with their users, and one that
    went since it was published can be created again.
    """
    names = ("pciBusID", "pfPciBusID") if own.get("function") == "vf" else ("pciBusID",)
    addresses = (own.get(name) for name in names)
    return tuple(address for address in addresses if isinstance(address, str))
