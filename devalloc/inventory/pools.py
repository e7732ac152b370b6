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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from devalloc.api.meta import COMPATIBILITY_GROUP, UNAVAILABLE
from devalloc.api.object_meta import ObjectMeta
from devalloc.api.pool import (
    MAX_POOL_DEVICES,
    Attribute,
    AttributeValue,
    Device,
    DevicePool,
    DevicePoolSpec,
    ResourceCapacity,
)
from devalloc.api.quantity import NANO, Quantity
from devalloc.device_kinds import NIC
from devalloc.inventory import vgpu
from devalloc.inventory.attributes import (
    Attributes,
    Models,
    inherited_attributes,
    port_attributes,
    vf_attributes,
    vgpu_attributes,
)
from devalloc.inventory.cards import PciCard, PciPort, VirtualFunction
from devalloc.inventory.pci import Address, PciFunction
from devalloc.inventory.unavailability import UnavailabilityReasons
from devalloc.inventory.vgpu import (
    FRAMEBUFFER,
    TooManyDevices,
    VgpuOffer,
    VgpuSupply,
    binary_quantity,
    first_copy_name,
    vgpu_supply,
)

PARTS = "parts"
_MEBIBYTE = binary_quantity(1 << 20)
_MAX_NAME = 253
_NOT_IN_NAMES = re.compile(r"[^a-z0-9.-]+", re.ASCII)
_NOT_IN_VALUES = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


@dataclass(slots=True)
class DeviceDraft:
    """A device on its way: amounts in base units."""

    name: str
    attributes: Attributes
    requests: dict[str, int] = field(default_factory=dict)

    def mark_unavailable(self, reasons: Iterable[str]) -> None:
        """Add reasons to those that stand against it."""
        before = self.attributes.get(UNAVAILABLE)
        text = "; ".join(dict.fromkeys([*([before] if isinstance(before, str) else []), *reasons]))
        if text:
            self.attributes[UNAVAILABLE] = text


def pool_name(node_name: str, slot: Address) -> str:
    """``<node>-<slot>`` as a DNS name; what such a name cannot hold becomes ``-``."""
    return node_scoped_name(node_name, slot.slot_name)


def node_scoped_name(node_name: str, what: str) -> str:
    """``<node>-<what>`` in the same way."""
    labels = [label.strip("-") for label in _NOT_IN_NAMES.sub("-", node_name.lower()).split(".")]
    node = ".".join(label for label in labels if label) or "node"
    room = _MAX_NAME - len(what) - 1
    if len(node) > room:
        digest = hashlib.sha256(node_name.encode()).hexdigest()[:8]
        node = f"{node[: room - 9].rstrip('.-')}-{digest}"
    return f"{node}-{what}"


def build_pool(
    card: PciCard,
    node_name: str,
    obstacles: UnavailabilityReasons,
    models: Models,
    slot: str | None = None,
    networks: Mapping[str, str] = MappingProxyType({}),
) -> DevicePool:
    """The pool of a card. ``slot``: the name of the host's slot that it is in. ``networks``: see
    ``InventoryConfig.physical_networks``."""
    devices: dict[str, DeviceDraft] = {}
    capacity: dict[str, int] = {}
    for port in card.ports:
        drafts, resources = _devices(port, obstacles, models)
        _name_networks(port, drafts, networks)
        if len(card.ports) > 1:
            _rename(port, drafts, resources)
        for draft in drafts:
            draft.attributes |= {} if slot is None else {"slot": slot}
            devices.setdefault(draft.name, draft)  # a UUID that a broken tree shows twice is one device
        capacity |= resources
    return make_pool(pool_name(node_name, card.slot), node_name, card.ports[0].kind, list(devices.values()), capacity)


def _name_networks(port: PciPort, drafts: Iterable[DeviceDraft], networks: Mapping[str, str]) -> None:
    """Give a port of a network card, and its VFs, the attribute of the network that it is in."""
    for draft in drafts if networks and port.kind == NIC.name else ():
        names = (str(draft.attributes.get(name)) for name in ("interface", "pfPciBusID", "pciBusID"))
        if (network := next((networks[name] for name in names if name in networks), None)) is not None:
            draft.attributes["physicalNetwork"] = network


def make_pool(
    name: str, node_name: str, kind: str, devices: Sequence[DeviceDraft], capacity: Mapping[str, int]
) -> DevicePool:
    """A pool of these devices."""
    shared = _common_attributes(devices)
    return DevicePool(
        metadata=ObjectMeta(name=name),
        spec=DevicePoolSpec(
            node_name=node_name,
            driver=f"{kind}.devalloc.io",
            attributes=_attributes(shared),
            resources=[_resource(name, amount) for name, amount in capacity.items()],
            devices=[_device(draft, shared) for draft in devices],
        ),
    )


def _devices(
    port: PciPort, obstacles: UnavailabilityReasons, models: Models
) -> tuple[list[DeviceDraft], dict[str, int]]:
    """The devices of a port, and the capacity of the resources they draw on. Raises TooManyDevices."""
    if len(port.vfs) > MAX_POOL_DEVICES:
        raise TooManyDevices
    functions = [*port.members, *(vf.function for vf in port.vfs if vf.function is not None)]
    parents = [parent for function in functions if (parent := vgpu.read_parent(function)) is not None]
    goods = vgpu_supply(parents, obstacles.records)
    by_name = {function.address.device_name: function for function in functions}
    carriers = {by_name[offer.parent.name].address for offer in goods.offers}

    from_pf, moved = inherited_attributes(port), obstacles.records.moved()
    vfs, busy = [], 0
    for vf in port.vfs:
        in_use = [*obstacles.vf_users(port, vf), *_instance_on(vf, goods)]
        draft = DeviceDraft(vf.address.device_name, vf_attributes(port, vf, models, from_pf.get(vf.pf.address, {})))
        lent = [f"in use: {moved[draft.name]} is on it"] if draft.name in moved else []
        draft.mark_unavailable([*obstacles.vf_reasons(port, vf), *in_use, *lent])
        if in_use:
            busy += 1
        else:
            draft.requests = {PARTS: 1, **({_slot(vf.address): 1} if vf.address in carriers else {})}
        vfs.append(draft)

    offers = [_vgpu_draft(port, by_name[offer.parent.name], offer, obstacles, models) for offer in goods.offers]
    beside_vfs = sum(by_name[offer.parent.name].physfn is None for offer in goods.offers)
    parts = len(vfs) - busy + beside_vfs

    whole = DeviceDraft(port.function.address.device_name, port_attributes(port, models))
    if goods.total is not None:
        whole.attributes.setdefault("framebuffer", binary_quantity(goods.total))
    in_use = list(obstacles.port_users(port))
    if count := max(busy, len(goods.foreign)):
        in_use.append(f"in use: {count} of its VFs and vGPUs")
    if parts and not in_use:
        whole.requests = {PARTS: parts}

    on_it = [*vfs, *offers, *_live_vgpus(port, goods, by_name, models, obstacles)]
    more = () if in_use else obstacles.whole_port_reasons(port, (draft.name for draft in on_it))
    whole.mark_unavailable([*obstacles.port_reasons(port), *in_use, *more])
    devices = [whole, *on_it]
    for draft in devices:
        draft.mark_unavailable(obstacles.withheld_reasons(draft.name, port))
    for vf, draft in zip(port.vfs, vfs, strict=True):
        if UNAVAILABLE not in draft.attributes and (doubt := obstacles.vf_doubt(port, vf)) is not None:
            draft.mark_unavailable([doubt])

    capacity = {PARTS: parts} if parts else {}
    capacity |= {_slot(vf.address): 1 for vf in port.vfs if vf.address in carriers}
    return devices, capacity | goods.capacity


def _slot(vf: Address) -> str:
    return f"vf-{vf.device_name}"


def _instance_on(vf: VirtualFunction, goods: VgpuSupply) -> Iterator[str]:
    for instance in goods.foreign:
        if instance.parent == vf.address.device_name:
            occupant = f"mdev {instance.uuid}" if instance.uuid else f"vGPU {instance.profile_id or 'of unknown type'}"
            yield f"in use: {occupant}"


def _vgpu_draft(
    port: PciPort, function: PciFunction, offer: VgpuOffer, obstacles: UnavailabilityReasons, models: Models
) -> DeviceDraft:
    attributes = vgpu_attributes(port, function, state_of(offer), models) | attributes_of_offer(offer)
    draft = DeviceDraft(offer.name, attributes, {PARTS: 1, **offer.requests})
    if function.physfn is not None:
        draft.requests[_slot(function.address)] = 1
    draft.mark_unavailable([*filter(None, [offer.obstacle]), *obstacles.vgpu_reasons(port, offer.parent)])
    return draft


def _live_vgpus(
    port: PciPort,
    goods: VgpuSupply,
    functions: Mapping[str, PciFunction],
    models: Models,
    obstacles: UnavailabilityReasons,
) -> Iterator[DeviceDraft]:
    """The vGPUs that live without a claim, or that a claim has adopted: what they cost is not on offer any more."""
    for instance in goods.foreign:
        function = functions[instance.parent]
        attributes = vgpu_attributes(port, function, "exists", models)
        if instance.iommu_group is not None:
            attributes["iommuGroup"] = instance.iommu_group
        name = function.address.device_name
        if instance.profile_id is not None:
            attributes |= attributes_of_instance(goods, instance.profile_id)
            name = first_copy_name(instance.parent, instance.profile_id)
        draft = DeviceDraft(f"mdev-{instance.uuid}" if instance.uuid else name, attributes)
        draft.mark_unavailable(obstacles.live_vgpu_reasons(draft.name, instance.iommu_group if instance.uuid else None))
        yield draft


def state_of(offer: VgpuOffer) -> str:
    """The value of ``state`` of what is offered."""
    return "exists" if offer.exists else "creatable"


def attributes_of_offer(offer: VgpuOffer) -> Attributes:
    """What the profile gives to what is offered, and what it is compatible with."""
    attributes = _of_profile(offer.profile)
    return attributes if offer.compatibility is None else {**attributes, COMPATIBILITY_GROUP: offer.compatibility}


def attributes_of_instance(goods: VgpuSupply, profile_id: str) -> Attributes:
    """What its profile gives to a device that exists."""
    profile = goods.profiles.get(profile_id)
    return _of_profile(profile) if profile else {"profileID": profile_id}


def _of_profile(profile: vgpu.VgpuProfile) -> Attributes:
    attributes: Attributes = {"profile": profile.name, "profileID": profile.id}
    if profile.framebuffer is not None:
        attributes["framebuffer"] = binary_quantity(profile.framebuffer)
    return attributes


def _rename(port: PciPort, devices: list[DeviceDraft], capacity: dict[str, int]) -> None:
    """Keep the resources of the ports of one card apart."""
    for amounts in (capacity, *(draft.requests for draft in devices)):
        for name in [name for name in amounts if not name.startswith("vf-")]:
            amounts[f"{name}-{port.function.address.device_name}"] = amounts.pop(name)


def _resource(name: str, amount: int) -> ResourceCapacity:
    if name.startswith(FRAMEBUFFER):
        return ResourceCapacity(name=name, capacity=binary_quantity(amount), block_size=_MEBIBYTE)
    return ResourceCapacity(name=name, capacity=Quantity(amount * NANO))


def _common_attributes(devices: Sequence[DeviceDraft]) -> Attributes:
    """Attributes that all devices of a pool share appear once, at the pool; a single device has all of its own."""
    first, *others = devices
    return {
        name: value
        for name, value in first.attributes.items()
        if others and all(other.attributes.get(name) == value for other in others)
    }


def _device(draft: DeviceDraft, shared: Attributes) -> Device:
    return Device(
        name=draft.name,
        attributes=_attributes({name: value for name, value in draft.attributes.items() if name not in shared}),
        requests={
            name: binary_quantity(amount) if name.startswith(FRAMEBUFFER) else Quantity(amount * NANO)
            for name, amount in draft.requests.items()
        },
    )


def _attributes(attributes: Attributes) -> list[Attribute]:
    return [_attribute(name, value) for name, value in attributes.items()]


@lru_cache(maxsize=4096)
def _attribute(name: str, value: AttributeValue) -> Attribute:
    """An attribute; the devices of a card have most of theirs in common."""
    return Attribute.of(name, _NOT_IN_VALUES.sub(" ", value) if isinstance(value, str) else value)
