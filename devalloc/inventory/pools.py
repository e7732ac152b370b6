"""One DevicePool per card: its devices, and the pool resources that make them exclude each other.

Resources of a port (with the port's address behind the name where the card has several ports):

=====================  =============================================================================================
``parts``              one for each VF or vGPU that the port can carry. The port as a whole draws all of them.
``vf-<address>``       1, where a VF can be given away as such or carry one of several vGPU profiles.
``framebuffer``        the card's memory, for vGPU profiles.
``instances-<id>``     how often a profile may exist, where that binds before the framebuffer does.
=====================  =============================================================================================

What lives on the card without a claim is taken off the capacities, and its devices draw nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from devalloc.api.meta import COMPATIBILITY_GROUP, UNAVAILABLE, ObjectMeta
from devalloc.api.pool import Attribute, AttributeValue, Device, DevicePool, DevicePoolSpec, ResourceCapacity
from devalloc.api.quantity import NANO, Quantity
from devalloc.inventory import gpu, nic, profiles, vgpu
from devalloc.inventory.cards import Card, Port, VirtualFunction
from devalloc.inventory.config import InventoryConfig
from devalloc.inventory.groups import Groups
from devalloc.inventory.holders import Holders
from devalloc.inventory.pci import Address, PciFunction
from devalloc.inventory.pciids import hex_id, vendor_name

PARTS = "parts"
_MIB = Quantity.parse("1Mi")
_MAX_NAME = 253
_BAD = re.compile(r"[^a-z0-9.-]+", re.ASCII)
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


@dataclass(frozen=True, slots=True)
class Host:
    """What the pools of all cards of a host are made from."""

    node_name: str
    config: InventoryConfig
    groups: Groups
    holders: Holders
    models: Mapping[tuple[int, int], str]


@dataclass(slots=True)
class _Draft:
    """A device on its way: amounts in base units."""

    name: str
    attributes: dict[str, AttributeValue]
    requests: dict[str, int] = field(default_factory=dict)


def pool_name(node_name: str, slot: Address) -> str:
    """``<node>-<slot>`` as a DNS name; what such a name cannot hold becomes ``-``."""
    labels = [label.strip("-") for label in _BAD.sub("-", node_name.lower()).split(".")]
    node = ".".join(label for label in labels if label) or "node"
    room = _MAX_NAME - len(slot.slot_name) - 1
    if len(node) > room:
        digest = hashlib.sha256(node_name.encode()).hexdigest()[:8]
        node = f"{node[: room - 9].rstrip('.-')}-{digest}"
    return f"{node}-{slot.slot_name}"


def build(card: Card, host: Host) -> DevicePool:
    """The pool of a card."""
    devices: list[_Draft] = []
    capacity: dict[str, int] = {}
    for port in card.ports:
        suffix = f"-{port.function.address.device_name}" if len(card.ports) > 1 else ""
        found, resources = _Builder(port, host, suffix).build()
        devices += found
        capacity |= resources
    return DevicePool(
        metadata=ObjectMeta(name=pool_name(host.node_name, card.slot)),
        spec=DevicePoolSpec(
            node_name=host.node_name,
            driver=f"{card.ports[0].kind}.devalloc.io",
            resources=[_resource(name, amount) for name, amount in capacity.items()],
            devices=[_device(draft) for draft in devices],
        ),
    )


class _Builder:
    """Collects the devices of one port."""

    def __init__(self, port: Port, host: Host, suffix: str) -> None:
        self.port = port
        self.host = host
        self.suffix = suffix
        parents = [vgpu.parent(function) for function in self._parents()]
        self.parents = {found.address: found for found in parents if found is not None}
        self.stock = profiles.stock(list(self.parents.values()), host.config.held)
        self.link = self._link()

    def build(self) -> tuple[list[_Draft], dict[str, int]]:
        """The devices in order, and the capacity of the resources they draw on."""
        vfs = [self._vf(vf) for vf in self.port.vfs]
        busy = [draft for draft in vfs if _is_taken(draft)]
        whole_parts = len(vfs) or max((self._copies(parent) for parent in self.parents.values()), default=0)
        taken = len(busy) if vfs else len(self.stock.foreign)
        capacity = {self._name(PARTS): whole_parts - taken} if whole_parts else {}
        offers = list(self._offers())
        slots = sorted({slot for draft in offers for slot in draft.requests if slot.startswith("vf-")})
        for draft in vfs:
            slot = f"vf-{draft.name}"
            if slot in slots:
                draft.requests[slot] = 1
        capacity |= {slot: 1 for slot in slots}
        capacity |= {self._name(name): amount for name, amount in self.stock.capacity.items()}
        whole = self._whole(whole_parts, len(busy) or len(self.stock.foreign))
        return [whole, *vfs, *offers, *self._live()], capacity

    # -- the port as a whole -----------------------------------------------------------------------------------------

    def _whole(self, parts: int, taken: int) -> _Draft:
        port, function = self.port, self.port.function
        attributes = self._attributes(function, port.role)
        attributes |= self._kind_attributes(function)
        if port.kind == "gpu" and self.stock.total is not None:
            attributes.setdefault("framebuffer", profiles.quantity(self.stock.total))
        obstacles = [
            _reserved(self.host.holders.reserved(member)) for member in port.members
        ] + [self._display(), self._erase()]
        together = [member.address for member in port.members]
        together += [vf.address for vf in port.vfs]
        obstacles.append(self.host.groups.objection(port.members, together))
        busy = [self._user(member) for member in port.members]
        if taken:
            busy.append(f"in use: {taken} of its {parts} VFs or vGPUs")
        _refuse(attributes, [*obstacles, *busy])
        draws = {} if any(busy) or not parts else {self._name(PARTS): parts}
        return _Draft(function.address.device_name, attributes, draws)

    def _display(self) -> str | None:
        return "reserved: display of the host" if self.port.kind == "display" else None

    def _erase(self) -> str | None:
        if self.port.kind != "storage" or self.host.config.erase_policy:
            return None
        return "withheld: no erase policy for storage is set"

    # -- virtual functions -------------------------------------------------------------------------------------------

    def _vf(self, vf: VirtualFunction) -> _Draft:
        function = vf.function
        if function is None:
            attributes = self._attributes(vf.pf, "vf", "creatable", vf.address)
            attributes.pop("driver", None)
            attributes.pop("iommuGroup", None)
            self._identify(attributes, vf.pf.vendor, vf.pf.sriov.vf_device if vf.pf.sriov else None)
            obstacles = [self.host.groups.objection([vf.pf], [*self._own_addresses()]), self._erase()]
            busy: list[str | None] = []
        else:
            attributes = self._attributes(function, "vf")
            obstacles = [self.host.groups.objection([function], []), self._erase()]
            obstacles.append(_reserved(self.host.holders.reserved(function)))
            busy = [self._user(function), self._instance_on(vf.address)]
        attributes |= self.link
        if function is not None:
            attributes |= self._kind_attributes(function)
        attributes |= {"pfPciBusID": str(vf.pf.address), "vfIndex": vf.index}
        _refuse(attributes, [*obstacles, *busy])
        draws = {} if any(busy) else {self._name(PARTS): 1}
        return _Draft(vf.address.device_name, attributes, draws)

    def _instance_on(self, address: Address) -> str | None:
        found = next((instance for instance in self.stock.foreign if instance.parent == address), None)
        if found is None:
            return None
        return f"in use: mdev {found.uuid}" if found.uuid else f"in use: vGPU {found.profile_id}"

    def _own_addresses(self) -> Iterator[Address]:
        yield from (member.address for member in self.port.members)

    # -- vGPUs -------------------------------------------------------------------------------------------------------

    def _parents(self) -> Iterator[PciFunction]:
        yield from self.port.members
        yield from (vf.function for vf in self.port.vfs if vf.function is not None)

    def _copies(self, parent: vgpu.Parent) -> int:
        return max((offer.profile.max_instance or 1 for offer in self.stock.offers if offer.parent is parent), default=0)

    def _offers(self) -> Iterator[_Draft]:
        indexes = {vf.address: vf for vf in self.port.vfs}
        for offer in self.stock.offers:
            vf = indexes.get(offer.parent.address)
            attributes = self._vgpu(offer.parent, offer.profile, "exists" if offer.exists else "creatable")
            if offer.compatibility is not None:
                attributes[COMPATIBILITY_GROUP] = offer.compatibility
            draws = {self._name(name): amount for name, amount in offer.requests.items()}
            draws[self._name(PARTS)] = 1
            obstacles: list[str | None] = [offer.obstacle]
            if vf is not None:
                obstacles.append(self.host.groups.objection([offer.parent.function], []))
                draws[f"vf-{offer.parent.address.device_name}"] = 1
            obstacles.append(self._user(offer.parent.function))
            _refuse(attributes, obstacles)
            yield _Draft(offer.name, attributes, draws)

    def _live(self) -> Iterator[_Draft]:
        for instance in self.stock.foreign:
            parent = self.parents[instance.parent]
            name = f"mdev-{instance.uuid}" if instance.uuid else f"{parent.address.device_name}-{instance.profile_id}"
            attributes = self._vgpu(parent, self.stock.known.get(instance.profile_id or ""), "exists")
            if instance.profile_id is not None:
                attributes["profileID"] = instance.profile_id
            if instance.iommu_group is not None:
                attributes["iommuGroup"] = instance.iommu_group
            _refuse(attributes, ["in use: a vGPU that no claim holds"])
            yield _Draft(name, attributes)

    def _vgpu(self, parent: vgpu.Parent, profile: vgpu.Profile | None, state: str) -> dict[str, AttributeValue]:
        attributes = self._attributes(parent.function, "mdev", state)
        vf = next((vf for vf in self.port.vfs if vf.address == parent.address), None)
        if vf is not None:
            attributes |= {"pfPciBusID": str(vf.pf.address), "vfIndex": vf.index}
        if profile is not None:
            attributes |= {"profile": profile.name, "profileID": profile.id}
            if profile.framebuffer is not None:
                attributes["framebuffer"] = profiles.quantity(profile.framebuffer)
        return attributes

    # -- what they share ---------------------------------------------------------------------------------------------

    def _name(self, resource: str) -> str:
        return resource + self.suffix

    def _user(self, function: PciFunction) -> str | None:
        if function.address.device_name in self.host.config.held:
            return None
        if self.port.kind == "nic" and nic.is_elsewhere(function):
            return "in use: its interface is in another network namespace"
        user = self.host.holders.user(function)
        return f"in use: {user}" if user else None

    def _link(self) -> dict[str, AttributeValue]:
        """What a VF has from its port unless it says otherwise."""
        if self.port.kind != "nic":
            return {}
        own = nic.attributes(self.port.function)
        return {name: own[name] for name in ("linkType", "linkSpeed", "rdma") if name in own}

    def _kind_attributes(self, function: PciFunction) -> dict[str, AttributeValue]:
        match self.port.kind:
            case "nic":
                own = nic.attributes(function)
                if not own["rdma"] and function.driver != self.port.function.driver and function.physfn is not None:
                    del own["rdma"]  # a VF without its network driver does not show what it can do
                return own
            case "gpu":
                return gpu.attributes(function)
            case _:
                return {}

    def _attributes(
        self, function: PciFunction, role: str, state: str = "exists", address: Address | None = None
    ) -> dict[str, AttributeValue]:
        bus_id = str(address or function.address)
        attributes: dict[str, AttributeValue] = {"kind": self.port.kind, "function": role, "state": state}
        self._identify(attributes, function.vendor, function.device)
        if function.driver is not None:
            attributes["driver"] = function.driver
        if function.numa is not None:
            attributes |= {"numa": function.numa, "resource.kubernetes.io/numaNode": function.numa}
        if function.iommu_group is not None:
            attributes["iommuGroup"] = function.iommu_group
        attributes |= {"pciBusID": bus_id, "resource.kubernetes.io/pciBusID": bus_id}
        if function.root is not None:
            attributes |= {"pcieRoot": function.root, "resource.kubernetes.io/pcieRoot": function.root}
        return attributes

    def _identify(self, attributes: dict[str, AttributeValue], vendor: int, device: int | None) -> None:
        attributes |= {"vendor": vendor_name(vendor), "vendorID": hex_id(vendor)}
        if device is None:
            attributes.pop("model", None)
            attributes.pop("deviceID", None)
        else:
            attributes |= {"model": self.host.models.get((vendor, device), hex_id(device)), "deviceID": hex_id(device)}


def _reserved(what: str | None) -> str | None:
    return f"reserved: {what}" if what else None


def _refuse(attributes: dict[str, AttributeValue], obstacles: list[str | None]) -> None:
    reasons = list(dict.fromkeys(obstacle for obstacle in obstacles if obstacle))
    if reasons:
        attributes[UNAVAILABLE] = "; ".join(reasons)


def _is_taken(draft: _Draft) -> bool:
    """True for a VF that somebody uses without a claim: it draws nothing, so its part is taken off the capacity."""
    return not draft.requests


def _resource(name: str, amount: int) -> ResourceCapacity:
    if name.startswith(profiles.FRAMEBUFFER):
        return ResourceCapacity(name=name, capacity=profiles.quantity(amount), block_size=_MIB)
    return ResourceCapacity(name=name, capacity=Quantity(amount * NANO))


def _device(draft: _Draft) -> Device:
    amounts = {
        name: profiles.quantity(amount) if name.startswith(profiles.FRAMEBUFFER) else Quantity(amount * NANO)
        for name, amount in draft.requests.items()
    }
    attributes = [_attribute(name, value) for name, value in draft.attributes.items()]
    return Device(name=draft.name, attributes=attributes, requests=amounts)


@lru_cache(maxsize=4096)
def _attribute(name: str, value: AttributeValue) -> Attribute:
    """An attribute; the devices of a card have most of theirs in common."""
    return Attribute.of(name, _UNPRINTABLE.sub(" ", value) if isinstance(value, str) else value)
