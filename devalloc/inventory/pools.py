"""One DevicePool per card: its devices, and the pool resources that make them exclude each other.

Resources, with the port's address behind the name where a card has several ports:

=====================  =============================================================================================
``parts``              one for each VF, and for each vGPU beside VFs. The port as a whole draws all of them.
``vf-<address>``       1: the VF as such, or one vGPU on it.
``framebuffer``        the card's memory, for vGPUs.
``instances-<id>``     how often a profile may exist, where that binds before the framebuffer does.
=====================  =============================================================================================

What is in use without a claim draws nothing: its draw is taken off the capacities instead. Attributes that all devices
have alike stand at the pool, which halves what a card with many devices takes (S3).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from devalloc.api.meta import COMPATIBILITY_GROUP, UNAVAILABLE, ObjectMeta
from devalloc.api.pool import Attribute, AttributeValue, Device, DevicePool, DevicePoolSpec, ResourceCapacity
from devalloc.api.quantity import NANO, Quantity
from devalloc.inventory import vgpu
from devalloc.inventory.attributes import Attributes, Models, inherited, of_port, of_vf, of_vgpu
from devalloc.inventory.cards import Card, Port, VirtualFunction
from devalloc.inventory.obstacles import Obstacles
from devalloc.inventory.pci import Address
from devalloc.inventory.profiles import FRAMEBUFFER, Offer, Stock, plain_name, quantity, stock

PARTS = "parts"
_MEBIBYTE = quantity(1 << 20)
_MAX_NAME = 253
_NOT_IN_NAMES = re.compile(r"[^a-z0-9.-]+", re.ASCII)
_NOT_IN_VALUES = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


@dataclass(slots=True)
class _Draft:
    """A device on its way: amounts in base units."""

    name: str
    attributes: Attributes
    requests: dict[str, int] = field(default_factory=dict)


def pool_name(node_name: str, slot: Address) -> str:
    """``<node>-<slot>`` as a DNS name; what such a name cannot hold becomes ``-``."""
    return name_on(node_name, slot.slot_name)


def name_on(node_name: str, what: str) -> str:
    """``<node>-<what>`` in the same way."""
    labels = [label.strip("-") for label in _NOT_IN_NAMES.sub("-", node_name.lower()).split(".")]
    node = ".".join(label for label in labels if label) or "node"
    room = _MAX_NAME - len(what) - 1
    if len(node) > room:
        digest = hashlib.sha256(node_name.encode()).hexdigest()[:8]
        node = f"{node[: room - 9].rstrip('.-')}-{digest}"
    return f"{node}-{what}"


def build(card: Card, node_name: str, obstacles: Obstacles, models: Models) -> DevicePool:
    """The pool of a card."""
    devices: dict[str, _Draft] = {}
    capacity: dict[str, int] = {}
    for port in card.ports:
        found, resources = _devices(port, obstacles, models)
        if len(card.ports) > 1:
            _rename(port, found, resources)
        for draft in found:
            devices.setdefault(draft.name, draft)  # a UUID that a broken tree shows twice is one device
        capacity |= resources
    shared = _shared(list(devices.values()))
    return DevicePool(
        metadata=ObjectMeta(name=pool_name(node_name, card.slot)),
        spec=DevicePoolSpec(
            node_name=node_name,
            driver=f"{card.ports[0].kind}.devalloc.io",
            attributes=_attributes(shared),
            resources=[_resource(name, amount) for name, amount in capacity.items()],
            devices=[_device(draft, shared) for draft in devices.values()],
        ),
    )


def _devices(port: Port, obstacles: Obstacles, models: Models) -> tuple[list[_Draft], dict[str, int]]:
    """The devices of a port, and the capacity of the resources they draw on."""
    functions = [*port.members, *(vf.function for vf in port.vfs if vf.function is not None)]
    parents = [found for function in functions if (found := vgpu.parent(function)) is not None]
    goods = stock(parents, obstacles.known)
    carriers = {offer.parent.address for offer in goods.offers}

    from_pf, moved = inherited(port), obstacles.known.moved()
    vfs, busy = [], 0
    for vf in port.vfs:
        in_use = [*obstacles.uses_of_vf(port, vf), *_instance_on(vf, goods)]
        draft = _Draft(vf.address.device_name, of_vf(port, vf, models, from_pf.get(vf.pf.address, {})))
        lent = [f"in use: {moved[draft.name]} is on it"] if draft.name in moved else []
        _refuse(draft, [*obstacles.against_vf(port, vf), *in_use, *lent])
        if in_use:
            busy += 1
        else:
            draft.requests = {PARTS: 1, **({_slot(vf.address): 1} if vf.address in carriers else {})}
        vfs.append(draft)

    offers = [_offer(port, offer, obstacles, models) for offer in goods.offers]
    beside_vfs = sum(offer.parent.function.physfn is None for offer in goods.offers)
    parts = len(vfs) - busy + beside_vfs

    whole = _Draft(port.function.address.device_name, of_port(port, models))
    if goods.total is not None:
        whole.attributes.setdefault("framebuffer", quantity(goods.total))
    in_use = list(obstacles.uses_of_port(port))
    if count := max(busy, len(goods.foreign)):
        in_use.append(f"in use: {count} of its VFs and vGPUs")
    if parts and not in_use:
        whole.requests = {PARTS: parts}

    on_it = [*vfs, *offers, *_live(port, goods, parents, models, obstacles)]
    more = () if in_use else obstacles.against_whole(port, (draft.name for draft in on_it))
    _refuse(whole, [*obstacles.against_port(port), *in_use, *more])
    devices = [whole, *on_it]
    for draft in devices:
        _refuse(draft, [*_told(draft), *obstacles.against_name(draft.name, port)])

    capacity = {PARTS: parts} if parts else {}
    capacity |= {_slot(vf.address): 1 for vf in port.vfs if vf.address in carriers}
    return devices, capacity | goods.capacity


def _slot(vf: Address) -> str:
    return f"vf-{vf.device_name}"


def _instance_on(vf: VirtualFunction, goods: Stock) -> Iterator[str]:
    for instance in goods.foreign:
        if instance.parent == vf.address:
            known = f"mdev {instance.uuid}" if instance.uuid else f"vGPU {instance.profile_id or 'of unknown type'}"
            yield f"in use: {known}"


def _offer(port: Port, offer: Offer, obstacles: Obstacles, models: Models) -> _Draft:
    function = offer.parent.function
    attributes = of_vgpu(port, function, "exists" if offer.exists else "creatable", models)
    attributes |= _of_profile(offer.profile)
    if offer.compatibility is not None:
        attributes[COMPATIBILITY_GROUP] = offer.compatibility
    draft = _Draft(offer.name, attributes, {PARTS: 1, **offer.requests})
    if function.physfn is not None:
        draft.requests[_slot(function.address)] = 1
    _refuse(draft, [*filter(None, [offer.obstacle]), *obstacles.against_vgpu(port, offer.parent)])
    return draft


def _live(
    port: Port, goods: Stock, parents: Iterable[vgpu.Parent], models: Models, obstacles: Obstacles
) -> Iterator[_Draft]:
    """The vGPUs that live without a claim, or that a claim has adopted: what they cost is not on offer any more."""
    by_address = {parent.address: parent for parent in parents}
    for instance in goods.foreign:
        function = by_address[instance.parent].function
        attributes = of_vgpu(port, function, "exists", models)
        if instance.iommu_group is not None:
            attributes["iommuGroup"] = instance.iommu_group
        name = function.address.device_name
        if instance.profile_id is not None:
            profile = goods.known.get(instance.profile_id)
            attributes |= _of_profile(profile) if profile else {"profileID": instance.profile_id}
            name = plain_name(function.address, instance.profile_id)
        draft = _Draft(f"mdev-{instance.uuid}" if instance.uuid else name, attributes)
        _refuse(draft, obstacles.against_live(draft.name, instance.iommu_group if instance.uuid else None))
        yield draft


def _of_profile(profile: vgpu.Profile) -> Attributes:
    found: Attributes = {"profile": profile.name, "profileID": profile.id}
    if profile.framebuffer is not None:
        found["framebuffer"] = quantity(profile.framebuffer)
    return found


def _told(draft: _Draft) -> Iterator[str]:
    reason = draft.attributes.get(UNAVAILABLE)
    if isinstance(reason, str):
        yield reason


def _refuse(draft: _Draft, reasons: Iterable[str]) -> None:
    text = "; ".join(dict.fromkeys(reasons))
    if text:
        draft.attributes[UNAVAILABLE] = text


def _rename(port: Port, devices: list[_Draft], capacity: dict[str, int]) -> None:
    """Keep the resources of the ports of one card apart."""
    for amounts in (capacity, *(draft.requests for draft in devices)):
        for name in [name for name in amounts if not name.startswith("vf-")]:
            amounts[f"{name}-{port.function.address.device_name}"] = amounts.pop(name)


def _resource(name: str, amount: int) -> ResourceCapacity:
    if name.startswith(FRAMEBUFFER):
        return ResourceCapacity(name=name, capacity=quantity(amount), block_size=_MEBIBYTE)
    return ResourceCapacity(name=name, capacity=Quantity(amount * NANO))


def _shared(devices: list[_Draft]) -> Attributes:
    """What all devices of a pool have alike is told once, at the pool; the only device of a pool tells all itself."""
    first, *others = devices
    return {
        name: value
        for name, value in first.attributes.items()
        if others and all(other.attributes.get(name) == value for other in others)
    }


def _device(draft: _Draft, shared: Attributes) -> Device:
    return Device(
        name=draft.name,
        attributes=_attributes({name: value for name, value in draft.attributes.items() if name not in shared}),
        requests={
            name: quantity(amount) if name.startswith(FRAMEBUFFER) else Quantity(amount * NANO)
            for name, amount in draft.requests.items()
        },
    )


def _attributes(attributes: Attributes) -> list[Attribute]:
    return [_attribute(name, value) for name, value in attributes.items()]


@lru_cache(maxsize=4096)
def _attribute(name: str, value: AttributeValue) -> Attribute:
    """An attribute; the devices of a card have most of theirs in common."""
    return Attribute.of(name, _NOT_IN_VALUES.sub(" ", value) if isinstance(value, str) else value)
