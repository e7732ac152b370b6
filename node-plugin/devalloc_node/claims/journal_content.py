"""Grants and answers as JSON for the journal, and a dump of it. Unknown members are ignored; missing ones have
defaults.

Also what the journal knows about this host's devices, as discovery takes it, and devices that no claim holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from devalloc.api.device_identity import drive_of
from devalloc.inventory import pci
from devalloc.inventory.config import DeviceRecords, DriveOwner, VfRefusal
from devalloc.inventory.pci import Address
from devalloc.inventory.sysfs import Tree
from devalloc_node.errors import Failed
from devalloc_node.journal import ClaimState
from devalloc_node.journal.protocol import ALLOCATED, REFUSED_VFS, WITHHELD, JournalReader
from devalloc_node.model.grant import ClaimRef, Grant, GrantedDevice
from devalloc_node.model.step import Prepared, PreparedDevice, Value


def journal_dump(journal: JournalReader) -> dict[str, Any]:
    """Claims, what several share, and what is withheld, as JSON."""
    held: dict[str, list[str]] = {}
    for holding in journal.held().values():
        held.setdefault(holding.uid, []).append(holding.key)
    claims = [
        {
            "namespace": record.ref.namespace,
            "name": record.ref.name,
            "uid": record.ref.uid,
            "kind": record.kind,
            "state": str(record.state),
            "since": record.changed,
            "holds": held.get(record.ref.uid, []),
            "answer": record.prepared,
            "steps": _steps(journal, record.ref.uid),
        }
        for record in journal.claims()
    ]
    shared = [
        {"name": name, "users": sorted({user.owner for user in journal.users(name)}), "steps": _steps(journal, name)}
        for name in journal.shared()
    ]
    withheld = [
        {"device": entry.device, "holds": list(entry.keys), "reason": entry.reason, "since": entry.since}
        for entry in journal.withheld()
    ]
    return {"claims": claims, "shared": shared, "withheld": withheld}


def _steps(journal: JournalReader, owner: str) -> list[dict[str, Any]]:
    return [
        {
            "device": record.device,
            "kind": record.step.kind,
            "target": record.step.target,
            "before": record.step.before,
            "after": record.step.after,
            "state": record.state,
            "problem": record.problem,
        }
        for record in journal.steps(owner)
    ]


Device = TypeVar("Device", GrantedDevice, PreparedDevice)


def grant_content(grant: Grant, source: str) -> dict[str, Any]:
    """All of it but the reference, which has columns of its own. ``source``: which cluster or store it is from."""
    return {
        "source": source,
        "kind": grant.kind,
        "devices": [_without_defaults(device) for device in grant.devices],
        "pods": list(grant.pods),
        "pod_claim_name": grant.pod_claim_name,
    }


def grant_of(ref: ClaimRef, content: Mapping[str, Any]) -> Grant:
    """Raises Failed (``JournalDamaged``) if it is none."""
    try:
        devices = tuple(_decoded(GrantedDevice, device) for device in content["devices"])
        pods = tuple(content.get("pods", ()))
        return Grant(ref, content["kind"], devices, pods, content.get("pod_claim_name"))
    except (KeyError, TypeError, AttributeError) as error:
        raise _unreadable(ref, "grant", error) from error


def prepared_content(prepared: Prepared) -> dict[str, Any]:
    """All of it but the reference."""
    ids = {name: list(ids) for name, ids in prepared.cdi_ids.items()}
    return {"devices": [_without_defaults(device) for device in prepared.devices], "cdi_ids": ids}


def prepared_of(ref: ClaimRef, content: Mapping[str, Any]) -> Prepared:
    """Raises Failed (``JournalDamaged``) if it is none."""
    try:
        devices = tuple(_decoded(PreparedDevice, device) for device in content["devices"])
        return Prepared(ref, devices, {name: tuple(ids) for name, ids in content.get("cdi_ids", {}).items()})
    except (KeyError, TypeError, AttributeError) as error:
        raise _unreadable(ref, "answer", error) from error


def _without_defaults(device: GrantedDevice | PreparedDevice) -> dict[str, Any]:
    """What differs from the default: lists for tuples, plain dicts."""
    content = {}
    for member in fields(device):
        value = getattr(device, member.name)
        if isinstance(value, tuple):
            value = [dict(item) if isinstance(item, Mapping) else item for item in value]
        elif isinstance(value, Mapping):
            value = dict(value)
        if value not in (None, False, [], {}):
            content[member.name] = value
    return content


def _decoded(kind: type[Device], content: Mapping[str, Any]) -> Device:
    names = {member.name for member in fields(kind)}
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in content.items() if name in names
    }
    return kind(**{"requests": (), **values})


def _unreadable(ref: ClaimRef, what: str, error: Exception) -> Failed:
    return Failed("JournalDamaged", f"cannot read the {what} of claim {ref} in the journal: {error!r}")


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
    return DeviceRecords(
        prepared=backing_devices(prepared),
        withheld=by_name,
        made=_made_vfs(journal),
        refused_vfs={port: _vf_refusal(content) for port, content in journal.records(REFUSED_VFS).items()},
        drives=drives_of_claims(journal),
    )


def drives_of_claims(journal: JournalReader) -> dict[str, DriveOwner]:
    """Which claim has each drive (``drive_of``): those that are prepared, and those that had it before a reboot."""
    owners: dict[str, DriveOwner] = {}
    for uid, content in journal.records(ALLOCATED).items():
        devices = content.get("devices")
        for key, identity in (devices if isinstance(devices, dict) else {}).items():
            if isinstance(identity, dict) and (drive := drive_of(identity)) is not None:
                claim = f"{content.get('namespace')}/{content.get('name')}"
                owners[drive] = DriveOwner(uid, claim, key.partition("/")[2].partition("/")[0])
    for record in journal.claims():
        if record.state is ClaimState.PREPARED and record.prepared is not None:
            for device in prepared_of(record.ref, record.prepared).devices:
                if not device.admin and (drive := drive_of(device.identity)) is not None:
                    owners[drive] = DriveOwner(record.ref.uid, str(record.ref), device.device)
    return owners


def _vf_refusal(content: Mapping[str, Value]) -> VfRefusal:
    count = content.get("count")
    return VfRefusal(
        driver=str(content.get("driver", "")),
        count=count if isinstance(count, int) else 0,
        reason=str(content.get("reason", "its VFs could not be made")),
    )


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
