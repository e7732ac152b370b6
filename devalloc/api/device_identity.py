"""Which hardware a device is, whatever its address: firmware may number the buses anew at each boot.

An identity has those of ``MEMBERS`` that the host shows, as attributes of the device have them. Some show only while
the host's driver has the device, so two looks are compared by what both have.

A tenant of a drive can delete its namespaces and make others, and so give it another UUID, but cannot give it another
serial number. So the UUID of a drive decides only where a look does not show the serial number.
"""

from __future__ import annotations

from collections.abc import Mapping

from devalloc.device_kinds import STORAGE

Identity = Mapping[str, str]
MEMBERS = ("vendorID", "deviceID", "subsystemID", "serial", "uuid")
"""Names of attributes that together identify a device."""
KIND = "kind"
"""In the identity of a drive: that it is one. It keeps what its tenant wrote, wherever it is plugged in."""
SUBSYSTEM = "subsystemNQN"
"""In the identity of a drive: the name of its NVM subsystem, which its ports have in common, and no other drive has."""
_WORDS = {"vendorID": "vendor", "deviceID": "device", "subsystemID": "subsystem"}
_UNIT = {"serial": "serial number", "uuid": "UUID"}
_FIXED_UUID = "GPU-"
"""How UUIDs begin that no tenant can change."""


def identity_of(attributes: Mapping[str, object]) -> dict[str, str]:
    """The part of published attributes, or of a record of them, that identifies the device."""
    return {name: value for name in MEMBERS if isinstance(value := attributes.get(name), str)}


def difference(before: Mapping[str, object], now: Mapping[str, object]) -> str | None:
    """How two identities of one place contradict each other, such as ``device 0x1eb8, not 0x27b8``; None if they do
    not."""
    old, new = identity_of(before), identity_of(now)
    same_serial = "serial" in old and old["serial"] == new.get("serial")
    is_fixed = old.get("uuid", "").startswith(_FIXED_UUID)
    for name in MEMBERS[:-1] if same_serial and not is_fixed else MEMBERS:
        if name in old and name in new and old[name] != new[name]:
            return f"{_WORDS.get(name, name)} {new[name]}, not {old[name][:80]}"
    return None


def drive_of(identity: Mapping[str, object]) -> str | None:
    """The key of a drive among all drives; None if the device is not a drive, or shows no serial number of its own."""
    names = ("vendorID", "deviceID", "serial")
    if identity.get(KIND) != STORAGE.name or not all(isinstance(identity.get(name), str) for name in names):
        return None
    # Two cheap drives may have one serial number; a host that shows only one of them cannot tell that.
    return "/".join(str(identity[name]) for name in (*names, SUBSYSTEM) if name in identity)


def unseen(before: Mapping[str, object], now: Mapping[str, object]) -> str | None:
    """What identified a drive before and is not readable now, such as ``serial number``; None if it is, if nothing
    identified the drive, or if the device is not a drive and so keeps no data of its owner."""
    if now.get(KIND) != STORAGE.name:
        return None
    old, new = identity_of(before), identity_of(now)
    if any(name in old and old[name] == new.get(name) for name in _UNIT):
        return None
    return next((word for name, word in _UNIT.items() if name in old and name not in new), None)
