"""The kinds of objects that devalloc knows."""

from __future__ import annotations

from dataclasses import dataclass

from devalloc.api.claim import DeviceClaim
from devalloc.api.device_class import DeviceClass, VfConfig, VfioConfig, VgpuConfig
from devalloc.api.fields import ApiModel
from devalloc.api.meta import DEVALLOC, DEVMGMT
from devalloc.api.pool import DevicePool
from devalloc.api.replica_set import VirtualMachineReplicaSet
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.api.virtual_machine_migration import VirtualMachineMigration


@dataclass(frozen=True, slots=True)
class ApiKind:
    """A kind, with its names on the command line and in the Kubernetes API."""

    kind: str
    api_version: str
    plural: str
    singular: str
    short_names: tuple[str, ...]
    namespaced: bool
    model: type[ApiModel]

    @property
    def group(self) -> str:
        return self.api_version.partition("/")[0]

    @property
    def version(self) -> str:
        return self.api_version.partition("/")[2]


def _kind(model: type[ApiModel], api_version: str, short: tuple[str, ...], *, namespaced: bool, plural: str) -> ApiKind:
    name = model.__name__
    return ApiKind(name, api_version, plural, name.lower(), short, namespaced, model)


API_KINDS: dict[str, ApiKind] = {
    kind.kind: kind
    for kind in (
        _kind(DevicePool, DEVMGMT, ("dpool",), namespaced=False, plural="devicepools"),
        _kind(DeviceClass, DEVMGMT, ("dclass",), namespaced=False, plural="deviceclasses"),
        _kind(DeviceClaim, DEVMGMT, ("dclaim",), namespaced=True, plural="deviceclaims"),
        _kind(VirtualMachine, DEVALLOC, ("vmachine",), namespaced=True, plural="virtualmachines"),
        _kind(VirtualMachineReplicaSet, DEVALLOC, ("vmrs",), namespaced=True, plural="virtualmachinereplicasets"),
        _kind(
            VirtualMachineMigration,
            DEVALLOC,
            ("vmmigration",),
            namespaced=True,
            plural="virtualmachinemigrations",
        ),
        _kind(VfioConfig, DEVALLOC, (), namespaced=True, plural="vfioconfigs"),
        _kind(VfConfig, DEVALLOC, (), namespaced=True, plural="vfconfigs"),
        _kind(VgpuConfig, DEVALLOC, (), namespaced=True, plural="vgpuconfigs"),
    )
}
"""By kind, such as "DevicePool"."""
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
