"""A host with a few in-memory properties and a binding for it: enough to test the engine without a kernel.

A card has slots that exist once its count is set (shared by all who use it, as VFs are), each slot has an owner's
driver and a setting, and is reset between owners.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from devalloc_node.binding.binding import HealthState, Steps
from devalloc_node.claims import ClaimLocks, Claims, DeviceHost, PrepareOptions
from devalloc_node.claims.cleanup import Reconciler
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed
from devalloc_node.journal import Journal, open_journal
from devalloc_node.model.grant import ClaimRef, Grant, GrantedDevice
from devalloc_node.model.step import PreparedDevice, Step, Value

BOOT = "3e6c0f2e-boot"
SLOTS = 4


@dataclass
class ToyHost:
    """Properties by name; `None` is the same as missing."""

    state: dict[str, Value] = field(default_factory=dict)
    refuse: Callable[[str, Value], None] = lambda target, value: None
    """Asked before every change; may raise."""
    log: list[tuple[str, Value]] = field(default_factory=list)
    mutex: threading.RLock = field(default_factory=threading.RLock)

    def get(self, target: str) -> Value:
        return self.state.get(target)

    def set(self, target: str, value: Value) -> None:
        with self.mutex:
            self.refuse(target, value)
            card, _, slot = target.rpartition("/")
            if "/" in card:
                card, slot = card.split("/")[:2]
                if int(slot) >= (self.state.get(f"{card}/count") or 0):
                    raise OSError(19, "No such device", target)
            elif value is None and any(name.endswith("/driver") for name in self.state if name.startswith(f"{card}/")):
                raise OSError(16, "slots are in use", target)
            self.log.append((target, value))
            if value is None:
                self.state.pop(target, None)
            else:
                self.state[target] = value


class ToyKind:
    """Properties of one kind."""

    def __init__(self, host: ToyHost) -> None:
        self.host = host

    def read(self, target: str) -> Value:
        return self.host.get(target)

    def apply(self, target: str, value: Value, deadline: Deadline) -> None:
        if self.host.get(target) != value:
            self.host.set(target, value)
        if self.host.get(target) != value:
            raise Failed("NotSo", f"{target} is {self.host.get(target)!r}, not {value!r}")


class ToyReset(ToyKind):
    """Does nothing when it is done, and resets when it is undone."""

    def apply(self, target: str, value: Value, deadline: Deadline) -> None:
        if value is not None:
            return
        try:
            self.host.set(target, "reset")
            self.host.set(target, None)
        except OSError as error:
            raise Failed("ResetFailed", f"{target} did not come back from its reset: {error.strerror}") from error


class ToyAttachment(ToyKind):
    """A machine that may refuse to let go, and can be ended."""

    def force(self, target: str, value: Value, deadline: Deadline) -> None:
        with self.host.mutex:
            self.host.refuse = lambda target, value: None
            self.host.set(target, value)


@dataclass
class ToyBinding:
    """Devices `slot-N` of pools that are cards, and `any`, which is backed by a slot that is free."""

    host: ToyHost
    name: str = "toy"
    shares: bool = False
    slots: int = SLOTS

    def keys(self, granted: GrantedDevice, owner: str, held: Collection[str]) -> tuple[str, ...]:
        names = [f"slot/{granted.pool}/{number}" for number in range(self.slots)]
        if granted.device.startswith("any"):
            free = [name for name in names if name not in held]
            if not free:
                raise Denied("DeviceExhausted", f"all {self.slots} slots of {granted.pool} are held", retryable=True)
            return (free[0],)
        number = granted.device.removeprefix("slot-")
        if not number.isdecimal() or int(number) >= self.slots:
            raise Denied("DeviceUnknown", f"{granted.pool} has no {granted.device}")
        return (names[int(number)],)

    def prepare(self, granted: GrantedDevice, keys: Collection[str], deadline: Deadline) -> Steps:
        key = next(iter(keys), "")
        slot = key.removeprefix("slot/")
        shared = f"card/{granted.pool}"
        if granted.admin:
            return PreparedDevice(granted.requests, granted.pool, granted.device, "none", admin=True)
        yield Step("property", f"{granted.pool}/count", None, self.slots, shared)
        for name, value in (("setting", granted.pool), ("driver", "vfio")):
            target = f"{slot}/{name}"
            yield Step("property", target, self.host.get(target), value)
        yield Step("reset", f"{slot}/content", None, "used")
        return PreparedDevice(granted.requests, granted.pool, granted.device, self.name, functions=(slot,))

    def observe(self, device: PreparedDevice) -> HealthState:
        return HealthState("healthy")


def _granted(device: str) -> GrantedDevice:
    """By its name, ``pool/device``."""
    pool, name = device.split("/")
    return GrantedDevice(("0",), pool, name)


class ToyGrants:
    """Claims in memory, with the marks of those that were asked for and not let go."""

    def __init__(self) -> None:
        self.grants: dict[str, Grant] = {}
        self.marked: dict[str, ClaimRef] = {}
        self.cluster = "cluster-1"
        self.fails: Failed | None = None

    def add(self, uid: str, *devices: str | GrantedDevice, name: str | None = None) -> ClaimRef:
        """A claim of devices, as `pool/device`."""
        ref = ClaimRef("default", name or f"claim-{uid}", uid)
        self.grants[uid] = Grant(
            ref,
            "DeviceClaim",
            tuple(d if isinstance(d, GrantedDevice) else _granted(d) for d in devices),
        )
        return ref

    def get(self, ref: ClaimRef) -> Grant:
        grant = self.look(ref)
        self.marked[ref.uid] = ref
        return grant

    def look(self, ref: ClaimRef) -> Grant:
        if self.fails is not None:
            raise self.fails
        grant = self.grants.get(ref.uid)
        if grant is None or grant.ref != ref:
            raise Denied("ClaimNotFound", f"claim {ref} does not exist")
        return grant

    def is_gone(self, ref: ClaimRef) -> bool:
        if self.fails is not None:
            raise self.fails
        return ref.uid not in self.grants

    def belongs_to_node(self, ref: ClaimRef, node_name: str) -> bool:
        return not self.is_gone(ref)

    def identity(self) -> str:
        return self.cluster

    def let_go(self, ref: ClaimRef) -> None:
        if self.fails is not None:
            raise self.fails
        self.marked.pop(ref.uid, None)

    def held(self) -> Sequence[ClaimRef]:
        return list(self.marked.values())


@dataclass
class EngineBench:
    """An engine over a toy host, which can be started again on the same state folder."""

    folder: Path
    host: ToyHost = field(default_factory=ToyHost)
    grants: ToyGrants = field(default_factory=ToyGrants)
    options: PrepareOptions = field(default_factory=PrepareOptions)
    slots: int = SLOTS
    extra: dict[str, Any] = field(default_factory=dict)
    """More arguments for `DeviceHost` and `Claims`."""

    def __post_init__(self) -> None:
        self.binding = ToyBinding(self.host, slots=self.slots)
        self.journal: Journal
        self.start()

    def start(self, journal: Journal | None = None) -> None:
        self.journal = open_journal(self.folder) if journal is None else journal
        kind, extra = ToyKind(self.host), dict(self.extra)
        more_kinds = extra.pop("kinds", {})
        host = {each.name: extra.pop(each.name) for each in fields(DeviceHost) if each.name in extra}
        self.claims = Claims(
            self.journal,
            ClaimLocks(self.folder / "locks"),
            {"DeviceClaim": self.grants},
            DeviceHost(lambda granted: self.binding, **host),
            {"property": kind, "reset": ToyReset(self.host), "attachment": ToyAttachment(self.host)} | more_kinds,
            options=self.options,
            **extra,
        )
        self.now = 0.0
        self.reconciler = Reconciler(self.claims, boot_id=lambda: BOOT, clock=lambda: self.now)

    def restart(self) -> None:
        """As after kill -9: no one hears anything."""
        self.start()
        self.reconciler.recover()

    def add(self, *devices: str | GrantedDevice) -> ClaimRef:
        return self.grants.add(f"uid-{len(self.grants.grants)}", *devices)

    def is_initial(self) -> bool:
        """Whether neither host nor journal nor store know of any claim."""
        journal = self.journal
        return not (
            self.host.state
            or journal.claims()
            or journal.held()
            or journal.shared()
            or self.grants.marked
            or list((self.folder / "locks").iterdir())
        )
