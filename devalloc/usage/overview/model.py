"""The model of an overview. Each device is in one state:

* ``free``: it has no owner, and a claim could get it;
* ``shared``: claims have parts of it, and more can be had;
* ``held``: a claim has it, or claims have all of it;
* ``unavailable``: it has no owner and cannot be allocated, for the reason that it states (S6a, a taint; cordoned, too);
* ``excluded``: it has no owner, but others hold what it needs of its card.

So devices = free + shared + held + unavailable + excluded, available = free + shared, and in use = shared + held.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from devalloc.api import views
from devalloc.api.findings import Fact
from devalloc.api.host_pool_names import DRIVER as HOST_DRIVER
from devalloc.printable import printable
from devalloc.store import Object
from devalloc_solver.problem.ordering import natural_key

MAX_TEXT = 2000
"""Characters of a message that are shown."""
UNREADABLE = "(unreadable)"
"""Where another program wrote what the API does not have."""


def safe_text(tell: Callable[[Object], str], doc: Object) -> str:
    try:
        return shorten(tell(doc))
    except (AttributeError, KeyError, TypeError, ValueError, StopIteration):
        return UNREADABLE


def short_annotation(doc: Object, name: str) -> str:
    return safe_text(lambda doc: views.annotation_text(doc, name), doc)


def shorten(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    return printable(text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…")


def count_noun(number: int, what: str) -> str:
    """ "1 node", "2 nodes" """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


_PARTS = ("vf", "mdev", "pf")


def nested_devices(names: Iterable[str], attributes: Mapping[str, Mapping[str, str]]) -> list[tuple[str, int]]:
    """The devices with their levels, the whole card first, each behind what it is a part of: functions behind their
    port, vGPUs behind their function."""
    at: dict[str, str] = {}
    names = list(names)
    for name in names:
        own = attributes[name]
        if own.get("function") != "mdev" and (address := own.get("pciBusID")):
            at.setdefault(address, name)
    below: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names, key=lambda name: (attributes[name].get("function") != "whole", natural_key(name))):
        own = attributes[name]
        addresses = [own.get("pciBusID"), own.get("pfPciBusID")] if own.get("function") in _PARTS else []
        above = (at.get(address) for address in addresses if address)
        below[next((other for other in above if other not in (None, name)), "") or ""].append(name)
    ordered: list[tuple[str, int]] = []
    waiting = [(name, 0) for name in reversed(below.pop("", []))]
    while waiting:
        name, level = waiting.pop()
        ordered.append((name, level))
        waiting += [(part, level + 1) for part in reversed(below.pop(name, []))]
    return ordered + [(name, 0) for parts in below.values() for name in parts]  # of a circle in the input


@lru_cache(maxsize=4096)
def _stem(name: str) -> str:
    return name.rstrip("0123456789")


def shares_drawn(draws: Mapping[str, Mapping[str, int]], totals: Mapping[str, int]) -> dict[str, float]:
    """How much of a card each of its devices draws: the mean over what it draws on. Resources that differ only in the
    number at their end, such as the memory slices of a GPU, are one."""
    sums: Counter[str] = Counter()
    for name, total in totals.items():
        sums[_stem(name)] += total

    def share(amounts: Mapping[str, int]) -> float:
        drawn: Counter[str] = Counter()
        for name, amount in amounts.items():
            drawn[_stem(name)] += amount
        parts = [min(1.0, amount / sums[name]) for name, amount in drawn.items() if amount > 0 and sums[name] > 0]
        return sum(parts) / len(parts) if parts else 0.0

    return {device: share(amounts) for device, amounts in draws.items()}


def device_kind(attributes: Mapping[str, str]) -> str:
    """What a device is, in a word or two."""
    words = [attributes.get("function", ""), attributes.get("profile", "")]
    return " ".join(filter(None, words))


DeviceState = Literal["free", "shared", "held", "unavailable", "excluded"]
STATES: tuple[DeviceState, ...] = get_args(DeviceState)
Dialect = Literal["DevicePool", "ResourceSlice"]
"""What a card is published as."""
MAX_SUPPLIES = 4
"""Supplies of a card that are shown in a table."""
EXCLUDED = "what it needs of its card is taken"


@dataclass(frozen=True, slots=True)
class DeviceCounts:
    """Devices by state."""

    free: int = 0
    shared: int = 0
    held: int = 0
    unavailable: int = 0
    excluded: int = 0

    @property
    def devices(self) -> int:
        return self.free + self.shared + self.held + self.unavailable + self.excluded

    @property
    def available(self) -> int:
        """Of which one more claim could get at least a part: availableDevices."""
        return self.free + self.shared

    @property
    def in_use(self) -> int:
        """Devices that have an owner, at least of a part."""
        return self.shared + self.held

    def __add__(self, other: DeviceCounts) -> DeviceCounts:
        return DeviceCounts(*(getattr(self, state) + getattr(other, state) for state in STATES))


@dataclass(frozen=True, slots=True)
class DeviceHolder:
    """Who has a device, or a part of it."""

    kind: Literal["DeviceClaim", "ResourceClaim", "VirtualMachine"]
    namespace: str
    name: str
    amounts: str = ""
    """What part: "memory 3Gi"; "" for all of it."""
    machine: str = ""
    """The machine that the claim is for."""
    is_admin: bool = False
    """It only looks on."""
    pods: tuple[str, ...] = ()
    """That the claim is reserved for."""

    @property
    def text(self) -> str:
        """In a few words: "resourceclaim team-a/train for pod train-0"."""
        kind = {"DeviceClaim": "", "ResourceClaim": "resourceclaim ", "VirtualMachine": "machine "}[self.kind]
        name = f"{kind}{self.namespace}/{self.name}"
        if self.amounts:
            name += f" ({self.amounts})"
        return name + format_users(self.machine, self.pods) + (", admin access" if self.is_admin else "")


@dataclass(frozen=True, slots=True)
class DeviceSummary:
    """A card, or something that it is cut into."""

    name: str
    what: str
    """Its function and profile, as far as it says: "vf", "1g.5gb"."""
    state: DeviceState
    why: str
    """Why it is excluded or unavailable; also of one that breaks while it has an owner."""
    holders: tuple[DeviceHolder, ...]
    level: int
    """0, or one more than that of the device that it is a part of; those follow it."""
    share: float = 0.0
    """How much it draws of what the devices of its card share, on average; 0 if they share nothing."""


def format_users(machine: str, pods: Sequence[str]) -> str:
    """Who a claim is for: " for machine web"; "" if there is none."""
    return (f" for machine {machine}" if machine else "") + (f" for pod {', '.join(pods)}" if pods else "")


@dataclass(frozen=True, slots=True)
class CardSupply:
    """What the devices of a card share: a resource of its pool, or a counter. Texts are quantities."""

    name: str
    total: str
    left: str

    @property
    def text(self) -> str:
        """ "20Gi of 40Gi memory left" """
        return f"{self.left} of {self.total} {self.name} left"


@dataclass(frozen=True, slots=True)
class CardSummary:
    """A DevicePool, or a pool of ResourceSlices."""

    name: str
    driver: str
    model: str
    numa: str
    cordoned: str
    """Why all of it is cordoned."""
    devices: tuple[DeviceSummary, ...]
    counts: DeviceCounts
    dialect: Dialect = "DevicePool"
    note: str = ""
    """What else is to be known of all of it: set aside, half published."""
    supplies: tuple[CardSupply, ...] = ()
    rack: str = ""
    """As the attribute `rack` of its devices has it."""

    @property
    def is_of_host(self) -> bool:
        """Whether it is what a node has for machines, and no card: its devices are CPUs, memory and bandwidth."""
        return self.driver == HOST_DRIVER

    @property
    def remarks(self) -> tuple[str, ...]:
        """What else is said of it: of its shared capacity, the parts in use, and no more than a few."""
        drawn = [each.text for each in self.supplies if each.left != each.total]
        more = [f"{len(drawn) - MAX_SUPPLIES} more are drawn on"] if len(drawn) > MAX_SUPPLIES else []
        return (*([self.note] if self.note else []), *drawn[:MAX_SUPPLIES], *more)


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """Cards of a node; name "" for those that every node reaches."""

    name: str
    cordoned: str
    cards: tuple[CardSummary, ...]
    counts: DeviceCounts
    publishes: tuple[Dialect, ...] = ("DevicePool",)
    """One (T1), but while it goes from one to the other."""
    rack: str = ""
    """As the attribute `rack` of its devices has it."""

    @property
    def card_count(self) -> int:
        """How many cards it has: without what it has for machines."""
        return sum(not card.is_of_host for card in self.cards)

    @property
    def published_as(self) -> str:
        """ "DevicePools" """
        return " and ".join(f"{each}s" for each in self.publishes)


@dataclass(frozen=True, slots=True)
class ClaimSummary:
    """A DeviceClaim in the words of `devalloc get claims`, or a ResourceClaim."""

    namespace: str
    name: str
    state: str
    wants: str
    node: str
    devices: str
    reason: str
    message: str
    machine: str
    created: str
    is_pending: bool
    """It wants devices, has none, and is not about to go."""
    kind: Literal["DeviceClaim", "ResourceClaim"] = "DeviceClaim"
    pods: tuple[str, ...] = ()
    """That it is reserved for."""
    lost: tuple[str, ...] = ()
    """Devices that it has and that no longer exist, as pool/device."""


@dataclass(frozen=True, slots=True)
class AmountTexts:
    """CPUs and memory as their object says them; "" if it does not."""

    cpus: str = ""
    memory: str = ""


@dataclass(frozen=True, slots=True)
class MachineSummary:
    """A VirtualMachine."""

    namespace: str
    name: str
    phase: str
    node: str
    wanted: AmountTexts
    permitted: AmountTexts
    applied: AmountTexts
    observed: AmountTexts
    claims: tuple[str, ...]
    devices: tuple[str, ...]
    """Plugged into it, as pool/device."""
    reason: str
    message: str
    created: str


@dataclass(frozen=True, slots=True)
class QuotaSummary:
    """How many devices of a class the claims of a namespace may hold, and do: a line of a ResourceQuota."""

    namespace: str
    name: str
    resource: str
    """As `kubectl describe resourcequota` has it: "gpu.deviceclass.devmgmtproto.k8s.io/devices"."""
    used: str
    hard: str
    is_full: bool
    """No more can be had."""


NodeState = Literal["Ready", "Cordoned", "NotServed", "NotReady", "Lost", "Missing", "Fenced"]
"""``Cordoned``: it gets nothing new; ``NotServed``: its plugin, which has served it, does not run; ``NotReady``: its
kubelet reports that it is not well; ``Lost``: its kubelet does not report; ``Missing``: the cluster has no Node of its
name; ``Fenced``: an admin or a program states that it is off. An embedded store has no Nodes, so a node there is Ready,
Cordoned, NotServed or Fenced."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node that publishes DevicePools, or holds machines or claims."""

    name: str
    state: NodeState
    reason: str
    """Why it is not Ready; "" if it is."""
    pools: int
    machines: int
    """Machines that are on it or move to it."""
    claims: int
    """Claims that have devices of it, or that it holds."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """Claims that hold together what they cannot: a device with several owners, or more than there is."""

    dialect: Dialect
    devices: tuple[str, ...]
    """As pool/device."""
    holders: tuple[tuple[str, str, str], ...]
    """Kind, namespace and name of each."""
    cause: Fact
    """All of it as data."""
    text: str
    """The same as a sentence, and what to do."""
    is_of_owners: bool
    """A device that is held whole has several owners; else there is less of something than is held of it."""


@dataclass(frozen=True, slots=True)
class Overview:
    """All there is at one moment. Nodes, cards and devices are in natural order; pending claims come first."""

    nodes: tuple[NodeSummary, ...]
    claims: tuple[ClaimSummary, ...]
    machines: tuple[MachineSummary, ...]
    quotas: tuple[QuotaSummary, ...]
    classes: int
    problems: tuple[str, ...]
    """Objects that nothing is given of, or to, because they cannot be read."""
    notes: tuple[str, ...]
    """What is not shown, and why."""
    counts: DeviceCounts
    cards: int
    pending: int
    allocated: int
    is_settled: bool
    """What the controller writes of counts says the same: it has counted."""
    alarms: tuple[Alarm, ...] = ()
    lost: int = 0
    """Devices that claims have and that no longer exist, as often as claims have them."""
    hides_devices: bool = False
    """Pools may not be read, so that nodes, cards and devices are unknown."""
    node_statuses: tuple[NodeStatus, ...] = ()
