"""The kinds of objects that devalloc knows."""

from __future__ import annotations

from devalloc.api.api_kind import ApiKind
from devalloc.api.meta import DEVALLOC, DEVMGMT
from devalloc.plugins import KINDS, BadPackage, installed


def _kind(name: str, module: str, api_version: str, plural: str, *short: str, namespaced: bool = True) -> ApiKind:
    path, has_status = f"devalloc.api.{module}:{name}", not name.endswith("Config")
    is_new = name in ("VirtualMachineMigration", "VirtualMachineReplicaSet")
    return ApiKind(name, api_version, plural, name.lower(), short, namespaced, path, has_status, is_new)


API_KINDS: dict[str, ApiKind] = {
    kind.kind: kind
    for kind in (
        _kind("DevicePool", "pool", DEVMGMT, "devicepools", "dpool", namespaced=False),
        _kind("DeviceClass", "device_class", DEVMGMT, "deviceclasses", "dclass", namespaced=False),
        _kind("DeviceClaim", "claim", DEVMGMT, "deviceclaims", "dclaim"),
        _kind("VirtualMachine", "virtual_machine", DEVALLOC, "virtualmachines", "vmachine"),
        _kind("VirtualMachineReplicaSet", "replica_set", DEVALLOC, "virtualmachinereplicasets", "vmrs"),
        _kind(
            "VirtualMachineMigration", "virtual_machine_migration", DEVALLOC, "virtualmachinemigrations", "vmmigration"
        ),
        _kind("VfioConfig", "device_class", DEVALLOC, "vfioconfigs"),
        _kind("VfConfig", "device_class", DEVALLOC, "vfconfigs"),
        _kind("VgpuConfig", "device_class", DEVALLOC, "vgpuconfigs"),
    )
}
"""By kind, such as "DevicePool"; those of other packages are the last."""
for _added in installed(KINDS, ApiKind):
    if _added.kind in API_KINDS:
        raise BadPackage(f"the kind {_added.kind} of {_added.api_version}", "there is such a kind already")
    API_KINDS[_added.kind] = _added
ALLOCATABLE_KINDS = ("DeviceClaim", "VirtualMachine")
"""Kinds of objects to which the controller allocates devices, or a node."""


_GROUPS = {kind.kind: kind.group for kind in API_KINDS.values()}


def qualified_kind(kind: str, api_version: object) -> str:
    """The name of a kind in a store. If another group's kind has the same name as one of ours, it is the full name,
    such as "DeviceClass.resource.k8s.io"; otherwise it is the kind alone."""
    ours = _GROUPS.get(kind)
    if ours is None or not isinstance(api_version, str):
        return kind
    group = api_version.partition("/")[0]
    return kind if group == ours or "/" not in api_version else f"{kind}.{group}"


_ALIASES = {"vm": "virtualmachine", "migration": "virtualmachinemigration"}
"""Names that only the command accepts; in clusters, other kinds have these short names."""


def find_kind(word: str) -> ApiKind | None:
    """The kind for "DevicePool", "devicepools", "dpool", "dpool.devmgmtproto.k8s.io" and the like."""
    name, _, group = word.lower().partition(".")
    name = _ALIASES.get(name, name)
    for kind in API_KINDS.values():
        if name in (kind.singular, kind.plural, *kind.short_names) and group in ("", kind.group):
            return kind
    return None
