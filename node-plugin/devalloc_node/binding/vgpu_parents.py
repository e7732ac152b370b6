"""Choose the function on which a vGPU is created: the one in its name, or another one of the port with room (T2); or a
place on another parent of mediated devices; and check its profile against the one in a VgpuConfig.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from devalloc.api.decode import decode
from devalloc.api.device_class import VgpuConfig
from devalloc.inventory import vgpu
from devalloc.inventory.locate import ProfileDevice, existing_vfs
from devalloc.inventory.mdev_parents import MdevParentDevice
from devalloc.inventory.pci import PciFunction
from devalloc.inventory.sysfs import Tree
from devalloc_node.binding.vfio_handover import function_key
from devalloc_node.errors import Denied
from devalloc_node.model.grant import GrantedDevice


def refuse_other_profile(granted: GrantedDevice, parent: vgpu.VgpuParent | None, profile_id: str) -> None:
    """Raises Denied ``ConfigInvalid`` if a config asks for another profile than was allocated, on that parent."""
    configs = [
        config for config in (*granted.class_configs, *granted.claim_configs) if config.get("kind") == "VgpuConfig"
    ]
    if not configs:
        return
    names = {profile.name for profile in parent.profiles if profile.id == profile_id} if parent else set()
    for config in configs:
        wanted = decode(dict(config)).object
        if not isinstance(wanted, VgpuConfig) or wanted.spec.profile not in {profile_id, *names}:
            requested = wanted.spec.profile if isinstance(wanted, VgpuConfig) else "something unreadable"
            raise Denied("ConfigInvalid", f"a VgpuConfig requests {requested}, but {granted.device} is {profile_id}")


MAX_PARTS = 64
"""vGPUs that a function without VFs, or another parent, can carry; more than any card has."""


def part_keys(function: PciFunction) -> list[str]:
    """The keys of all vGPUs that a function without VFs may carry; nothing for other functions."""
    parent = vgpu.read_parent(function)
    return [f"part/{function.address}/{n}" for n in range(MAX_PARTS)] if parent and not parent.holds_one else []


def choose_parent(tree: Tree, device: ProfileDevice, held: Collection[str]) -> tuple[PciFunction, str]:
    """A function that can take the vGPU now, and the key for its place there.

    Raises Denied ``DeviceExhausted`` with the reason of the function that the device is named after.
    """
    reasons = []
    for function in _candidates(tree, device):
        parent = vgpu.read_parent(function, device.profile_id)
        place = _place(function, parent, held)
        if parent is not None and not parent.available.get(device.profile_id):
            parent = vgpu.read_parent(function)  # to say what could be made
        why = _why_not(device, parent, place)
        if why is None and place is not None:
            return function, place
        reasons.append(f"{function.address} {why}")
    others = f" (the same holds for {len(reasons) - 1} other functions of the card)" if len(reasons) > 1 else ""
    raise Denied("DeviceExhausted", f"cannot create {device.profile_id}: {reasons[0]}{others}")


def choose_place(device: MdevParentDevice, held: Collection[str]) -> str:
    """The key for a place on a parent that is no PCI function. Raises Denied ``DeviceExhausted`` with the reason."""
    offered, parent = device.parent.read(), device.parent.name
    place = next((part for part in (f"part/{parent}/{n}" for n in range(MAX_PARTS)) if part not in held), None)
    if place is not None and offered.available.get(device.profile_id or ""):
        return place
    why = "is held by other claims" if place is None else _no_room(offered)
    raise Denied("DeviceExhausted", f"cannot create {device.profile_id}: {parent} {why}")


def recorded_parent(tree: Tree, device: ProfileDevice, keys: Collection[str]) -> PciFunction:
    """The function that was chosen, by the keys that the claim has."""
    for function in _candidates(tree, device):
        if function_key(function.address) in keys or any(part.startswith(f"part/{function.address}/") for part in keys):
            return function
    raise Denied("DeviceGone", f"the function that was chosen for {device.profile_id} no longer exists")


def _candidates(tree: Tree, device: ProfileDevice) -> Iterator[PciFunction]:
    yield device.parent
    if device.parent.physfn is not None:
        yield from (vf for vf in existing_vfs(tree, device.port) if vf.address != device.parent.address)


def _place(function: PciFunction, parent: vgpu.VgpuParent | None, held: Collection[str]) -> str | None:
    if parent is not None and not parent.holds_one:
        return next((part for part in part_keys(function) if part not in held), None)
    return None if function_key(function.address) in held else function_key(function.address)


def _why_not(device: ProfileDevice, parent: vgpu.VgpuParent | None, place: str | None) -> str | None:
    if parent is None:
        return "offers no vGPUs"
    if place is None:
        return "is held by another claim"
    if parent.holds_one and parent.live:
        return f"already carries a vGPU ({parent.live[0].profile_id or 'of unknown type'})"
    return None if parent.available.get(device.profile_id) else _no_room(parent)


def _no_room(parent: vgpu.VgpuParent) -> str:
    possible = ", ".join(profile.name for profile in parent.profiles if parent.available.get(profile.id))
    return f"has no room for it; the driver would create {possible or 'nothing'}"
