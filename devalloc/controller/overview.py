"""The fleet at a glance: nodes, their cards and what these are cut into, who holds what, who waits and why. Pure.

What is shown to people (``devalloc top``, the page) is made here, so that they cannot differ; what is available and
what is held is told by ``availability``, as ``DevicePool.status.availableDevices`` is. Each device is in one state:

* ``free``: nobody has it, and a claim could get it;
* ``shared``: claims have parts of it, and more can be had;
* ``held``: a claim has it, or claims have all of it;
* ``unavailable``: nobody has it, and it is not to be had, for the reason that it says (S6a; cordoned, too);
* ``excluded``: nobody has it, and what it needs of its card is taken by others.

So devices = free + shared + held + unavailable + excluded, available = free + shared, and in use = shared + held.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from devalloc.api import inwords, meta
from devalloc.api.cordon import ALL, cordons, with_cordons
from devalloc.api.decode import decode
from devalloc.api.fields import printable
from devalloc.api.kinds import KINDS
from devalloc.api.meta import UNAVAILABLE
from devalloc.api.pool import Device as PoolDevice
from devalloc.controller.availability import Counted, CountedPool, Holding, count
from devalloc.controller.claims import ClaimKey, allocations, claim_key, claims_among, is_deleting
from devalloc.controller.placing.machines import claim_names, machine_key, machines_among, spec_of, status_of
from devalloc.store import Object
from devalloc_solver.naming import natural

DeviceState = Literal["free", "shared", "held", "unavailable", "excluded"]
STATES: tuple[DeviceState, ...] = get_args(DeviceState)
MAX_TEXT = 2000
"""Characters of a message that are shown."""
UNREADABLE = "(unreadable)"
"""Where another program wrote what the API does not have."""
EXCLUDED = "what it needs of its card is taken"
_PARTS = ("vf", "mdev", "pf")


@dataclass(frozen=True, slots=True)
class Counts:
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
        """That somebody has, or has a part of."""
        return self.shared + self.held

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, state) + getattr(other, state) for state in STATES))


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a device, or a part of it."""

    kind: Literal["DeviceClaim", "VirtualMachine"]
    namespace: str
    name: str
    amounts: str = ""
    """What part: "memory 3Gi"; "" for all of it."""
    machine: str = ""
    """The machine that the claim is for."""
    is_admin: bool = False
    """It only looks on."""


@dataclass(frozen=True, slots=True)
class Device:
    """A card, or something that it is cut into."""

    name: str
    what: str
    """Its function, profile and model, as far as it says: "vf", "1g.5gb"."""
    state: DeviceState
    why: str
    """Why it is excluded or unavailable; also of one that is broken while somebody has it."""
    holders: tuple[Holder, ...]
    level: int
    """0, or one more than that of the device that it is a part of; those follow it."""


@dataclass(frozen=True, slots=True)
class Card:
    """A DevicePool."""

    name: str
    driver: str
    model: str
    numa: str
    cordoned: str
    """Why all of it is cordoned."""
    devices: tuple[Device, ...]
    counts: Counts


@dataclass(frozen=True, slots=True)
class Node:
    """Cards of a node; name "" for those that every node reaches."""

    name: str
    cordoned: str
    cards: tuple[Card, ...]
    counts: Counts


@dataclass(frozen=True, slots=True)
class Claim:
    """A DeviceClaim in the words of `devalloc get claims`."""

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


@dataclass(frozen=True, slots=True)
class Amounts:
    """CPUs and memory as their object says them; "" where it does not."""

    cpus: str = ""
    memory: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """A VirtualMachine."""

    namespace: str
    name: str
    phase: str
    node: str
    wanted: Amounts
    permitted: Amounts
    applied: Amounts
    observed: Amounts
    claims: tuple[str, ...]
    devices: tuple[str, ...]
    """Plugged into it, as pool/device."""
    reason: str
    message: str
    created: str


@dataclass(frozen=True, slots=True)
class Overview:
    """All of a store at one moment. Nodes, cards and devices are in natural order; pending claims come first."""

    nodes: tuple[Node, ...]
    claims: tuple[Claim, ...]
    machines: tuple[Machine, ...]
    classes: int
    problems: tuple[str, ...]
    """Objects that nothing is given of, or to, because they cannot be read."""
    counts: Counts
    cards: int
    pending: int
    allocated: int
    is_settled: bool
    """Each pool's status.availableDevices says the same: the controller has counted."""


def overview(documents: Iterable[Object]) -> Overview:
    """Of all objects of a store. Never raises for their content."""
    docs = [with_cordons(doc) if doc["kind"] == "DevicePool" else doc for doc in documents]
    counted = count(docs)
    users = _users(docs)
    holders: dict[tuple[str, str], list[Holder]] = defaultdict(list)
    for holding in counted.holdings:
        entry = holding.entry
        holders[entry.device_pool_name, entry.device_name].append(_holder(holding, counted, users))
    by_node: dict[str, list[tuple[CountedPool, Card]]] = defaultdict(list)
    for one in sorted(counted.pools, key=lambda one: natural(one.pool.metadata.name)):
        by_node[one.pool.spec.node_name or ""].append((one, _card(one, holders)))
    nodes = tuple(_node(name, by_node[name]) for name in sorted(by_node, key=natural))
    claims = sorted((_claim(doc, users) for doc in claims_among(docs)), key=_claim_order)
    return Overview(
        nodes=nodes,
        claims=tuple(claims),
        machines=tuple(sorted(map(_machine, machines_among(docs)), key=lambda m: (m.namespace, natural(m.name)))),
        classes=sum(doc["kind"] == "DeviceClass" for doc in docs),
        problems=tuple(_problems(docs)),
        counts=sum((node.counts for node in nodes), Counts()),
        cards=sum(len(node.cards) for node in nodes),
        pending=sum(claim.is_pending for claim in claims),
        allocated=sum(bool(allocations(doc)) for doc in claims_among(docs)),
        is_settled=all(_status_says(one) == len(one.available) for one in counted.pools),
    )


def claim_name(namespace: str, name: str) -> str:
    """As tables of all namespaces have it."""
    return f"{namespace}/{name}"


# -- devices ---------------------------------------------------------------------------------------------------------


def _node(name: str, cards: Sequence[tuple[CountedPool, Card]]) -> Node:
    whys = [_annotation(one.manifest, meta.CORDONED_NODE) for one, _ in cards]
    counts = sum((card.counts for _, card in cards), Counts())
    return Node(name, next(filter(None, whys), ""), tuple(card for _, card in cards), counts)


def _card(one: CountedPool, holders: Mapping[tuple[str, str], Sequence[Holder]]) -> Card:
    spec, name = one.pool.spec, one.pool.metadata.name
    common = {each.name: str(each.value) for each in spec.attributes}
    own = {device.name: common | {each.name: str(each.value) for each in device.attributes} for device in spec.devices}
    devices = tuple(
        Device(
            name=device.name,
            what=_what(own[device.name]),
            state=(state := _state(device.name, one, own[device.name])),
            why=EXCLUDED if state == "excluded" else _short(own[device.name].get(UNAVAILABLE, "")),
            holders=tuple(holders.get((name, device.name), ())),
            level=level,
        )
        for device, level in _nested(spec.devices, own)
    )
    return Card(
        name=name,
        driver=spec.driver,
        model=_said(inwords.pool_model, one.manifest),
        numa=_said(inwords.pool_numas, one.manifest),
        cordoned=_short(cordons(one.manifest).get(ALL, "")),
        devices=devices,
        counts=Counts(**{state: sum(device.state == state for device in devices) for state in STATES}),
    )


def _state(name: str, one: CountedPool, attributes: Mapping[str, str]) -> DeviceState:
    if name in one.use:
        return "shared" if name in one.available else "held"
    if name in one.available:
        return "free"
    return "unavailable" if UNAVAILABLE in attributes else "excluded"


def _what(attributes: Mapping[str, str]) -> str:
    words = [attributes.get("function", ""), attributes.get("profile", "")]
    return " ".join(filter(None, words))


def _nested(devices: Sequence[PoolDevice], attributes: Mapping[str, Mapping[str, str]]) -> list[tuple[PoolDevice, int]]:
    """The devices, the whole card first, each behind what it is a part of: functions behind their port, vGPUs behind
    their function."""
    at: dict[str, str] = {}
    for device in devices:
        own = attributes[device.name]
        if own.get("function") != "mdev" and (address := own.get("pciBusID")):
            at.setdefault(address, device.name)
    below: dict[str, list[PoolDevice]] = defaultdict(list)
    for device in sorted(devices, key=lambda one: (attributes[one.name].get("function") != "whole", natural(one.name))):
        own = attributes[device.name]
        addresses = [own.get("pciBusID"), own.get("pfPciBusID")] if own.get("function") in _PARTS else []
        above = (at.get(address) for address in addresses if address)
        below[next((name for name in above if name not in (None, device.name)), "") or ""].append(device)
    found: list[tuple[PoolDevice, int]] = []
    waiting = [(device, 0) for device in reversed(below.pop("", []))]
    while waiting:
        device, level = waiting.pop()
        found.append((device, level))
        waiting += [(part, level + 1) for part in reversed(below.pop(device.name, []))]
    return found + [(device, 0) for parts in below.values() for device in parts]  # of a circle that somebody wrote


def _holder(holding: Holding, counted: Counted, users: Mapping[ClaimKey, str]) -> Holder:
    amounts = ", ".join(f"{part.name} {part.allocation}" for part in holding.entry.allocations)
    machine = counted.machines.get(holding.claim)
    if machine is not None:
        return Holder("VirtualMachine", *machine, amounts)
    namespace, name = holding.claim
    return Holder("DeviceClaim", namespace, name, amounts, users.get(holding.claim, ""), holding.is_admin)


def _status_says(one: CountedPool) -> object:
    status = one.manifest.get("status")
    return status.get("availableDevices") if isinstance(status, dict) else None


# -- claims and machines ---------------------------------------------------------------------------------------------


def _users(documents: Iterable[Object]) -> dict[ClaimKey, str]:
    """The machine of each claim that a machine names; where several do, the first."""
    found: dict[ClaimKey, str] = {}
    for machine in machines_among(documents):
        namespace, name = machine_key(machine)
        for claim in claim_names(machine):
            found.setdefault((namespace, claim), name)
    return found


def _claim(doc: Object, users: Mapping[ClaimKey, str]) -> Claim:
    namespace, name = claim_key(doc)
    return Claim(
        namespace=namespace,
        name=name,
        state=_said(inwords.claim_state, doc),
        wants=_said(inwords.wanted, doc),
        node=_annotation(doc, meta.ALLOCATED_NODE),
        devices=_said(lambda claim: inwords.devices_text(allocations(claim), limit=8), doc),
        reason=_annotation(doc, meta.REASON),
        message=_annotation(doc, meta.MESSAGE),
        machine=users.get((namespace, name), ""),
        created=str(doc["metadata"].get("creationTimestamp", "")),
        is_pending=not allocations(doc) and not is_deleting(doc),
    )


def _claim_order(claim: Claim) -> tuple[bool, str, Any]:
    return not claim.is_pending, claim.namespace, natural(claim.name)


def _machine(doc: Object) -> Machine:
    namespace, name = machine_key(doc)
    status = status_of(doc)
    devices = status.get("devices")
    named = [each for each in devices if isinstance(each, dict)] if isinstance(devices, list) else []
    return Machine(
        namespace=namespace,
        name=name,
        phase=_said(inwords.machine_phase, doc),
        node=_said(inwords.machine_node, doc),
        wanted=_wanted(doc),
        permitted=_amounts(status.get("permitted")),
        applied=_amounts(status.get("applied")),
        observed=_amounts(status.get("observed")),
        claims=tuple(map(_short, claim_names(doc))),
        devices=tuple(_short(f"{each.get('pool', '')}/{each.get('device', '')}") for each in named),
        reason=_short(status.get("reason", "")),
        message=_short(status.get("message", "")),
        created=str(doc["metadata"].get("creationTimestamp", "")),
    )


def _wanted(machine: Object) -> Amounts:
    """What its node says that it wants; before that, what its spec says."""
    told = _amounts(status_of(machine).get("wanted"))
    spec = spec_of(machine)
    cpu, memory = (bounds if isinstance(bounds := spec.get(name), dict) else {} for name in ("cpu", "memory"))
    return Amounts(
        told.cpus or _short(cpu.get("use", cpu.get("min", ""))),
        told.memory or _short(memory.get("use", memory.get("min", ""))),
    )


def _amounts(content: object) -> Amounts:
    found = content if isinstance(content, dict) else {}
    return Amounts(*(_short(found.get(name) or "") for name in ("cpus", "memory")))


def _problems(documents: Iterable[Object]) -> Iterable[str]:
    """One line for each object of ours that cannot be read."""
    for doc in documents:
        if doc["kind"] in KINDS:
            read = decode(doc)
            if read.object is None:
                metadata = doc["metadata"]
                name = "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))
                why = next((str(problem) for problem in read.problems if problem.is_error), "it cannot be read")
                yield _short(f"{doc['kind']} {name}: {why}")


def _said(tell: Callable[[Object], str], doc: Object) -> str:
    try:
        return _short(tell(doc))
    except (AttributeError, KeyError, TypeError, ValueError, StopIteration):
        return UNREADABLE


def _annotation(doc: Object, name: str) -> str:
    return _said(lambda doc: inwords.annotation(doc, name), doc)


def _short(value: object) -> str:
    text = str(value)
    return printable(text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…")
