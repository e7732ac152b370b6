"""What the journal knows about this host's devices, as discovery takes it, and devices that no claim holds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from devalloc.inventory import DeviceRecords, pci
from devalloc.inventory.pci import Address
from devalloc.inventory.sysfs import Tree
from devalloc_node.claims.journal_content import prepared_of
from devalloc_node.journal import ClaimState
from devalloc_node.journal.protocol import WITHHELD, JournalReader
from devalloc_node.model.step import Prepared


def orphaned_devices(tree: Tree, held: Collection[str]) -> list[str]:
    """A sentence for each function that VFIO has, mediated device and vGPU on a VF that none of the keys stands for.

    An admin may have created some of them on purpose: they are reported, never changed (T8).
    """
    messages = []
    for address, function in sorted(pci.scan_functions(tree).items()):
        nvidia = function.folder.folder("nvidia")
        live = nvidia.number("current_vgpu_type") if nvidia is not None else None
        if f"pci/{address}" in held:
            continue
        if function.on_vfio:
            messages.append(f"{address} has the driver {function.driver}, but no claim here uses it")
        if live:
            messages.append(f"{address} carries a vGPU of type {live}, but no claim here uses it")
    mdevs = tree.sys.folder("bus", "mdev", "devices") if tree.sys is not None else None
    for name in mdevs.names() if mdevs is not None else ():
        if f"mdev/{name}" not in held:
            messages.append(f"the mediated device {name} exists, but no claim here uses it")
    return messages


def inventory_facts(journal: JournalReader, gone: Mapping[str, str] | None = None) -> DeviceRecords:
    """What is prepared, and what is withheld: what could not be cleaned after its last owner, and what claims hold that
    are not undone. Perhaps only the journal knows of these: kube-scheduler has forgotten a claim when its pod was
    deleted by force, and would give its devices to others.

    ``gone``: by UID, why claims count as gone (``Reconciler.gone``).
    """
    prepared = [
        prepared_of(record.ref, record.prepared)
        for record in journal.claims()
        if record.state is ClaimState.PREPARED and record.prepared is not None
    ]
    withheld = {each.device: f"reset failed: {each.reason}" for each in journal.withheld()}
    withheld |= {device: f"in use: {why}" for device, why in _devices_not_released(journal, gone or {}).items()}
    by_name = {device.partition("/")[2]: why for device, why in withheld.items()}
    return DeviceRecords(prepared=backing_devices(prepared), withheld=by_name, made=_made_vfs(journal))


def _devices_not_released(journal: JournalReader, gone: Mapping[str, str]) -> dict[str, str]:
    """Devices (``pool/device``) of claims that could not be undone, or are not yet although they are ``gone`` (by UID,
    and why); and why. Their claims hold them here until they are, even if another view considers them free."""
    reasons: dict[str, str] = {}
    for record in journal.claims():
        why = None
        if record.state is not ClaimState.PREPARED:
            why = next((step.problem for step in journal.steps(record.ref.uid) if step.state == "stuck"), None)
        elif record.ref.uid in gone:
            why = gone[record.ref.uid]
        devices = [held.device for held in journal.held().values() if held.uid == record.ref.uid] if why else []
        reasons |= dict.fromkeys(devices, f"claim {record.ref} is not undone yet: {why}")
    return reasons


def _made_vfs(journal: JournalReader) -> frozenset[str]:
    """Names of ports (as devices) whose VFs were made for claims, and go with the last of those that have some now."""
    ports = set()
    for name in journal.shared():
        pf = Address.parse(name.partition("/")[2])
        users = journal.users(name)
        if pf is None or not users or any(user.owner.startswith(WITHHELD) for user in users):
            continue
        if any(each.step.kind == "vf-count" and not each.step.before for each in journal.steps(name)):
            ports.add(pf.device_name)
    return frozenset(ports)


def backing_devices(prepared: Iterable[Prepared]) -> dict[str, frozenset[str]]:
    """What stands behind prepared devices, by their names, as the inventory calls it (``DeviceRecords.prepared``)."""
    by_device: dict[str, frozenset[str]] = {}
    for claim in prepared:
        for device in claim.devices:
            if not device.admin:
                addresses = (Address.parse(function) for function in device.functions)
                names = {address.device_name for address in addresses if address is not None}
                uuid = {f"mdev-{device.mdev_uuid}"} if device.mdev_uuid else set()
                by_device[device.device] = by_device.get(device.device, frozenset()) | names | uuid
    return by_device
