"""The kinds of objects that devalloc knows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from devalloc.api.meta import DEVALLOC, DEVMGMT

if TYPE_CHECKING:
    from devalloc.api.fields import ApiModel


@cache
def _model(path: str) -> type[ApiModel]:
    module, _, name = path.partition(":")
    model: type[ApiModel] = getattr(import_module(module), name)
    return model


@dataclass(frozen=True, slots=True)
class ApiKind:
    """A kind, with its names on the command line and in the Kubernetes API."""

    kind: str
    api_version: str
    plural: str
    singular: str
    short_names: tuple[str, ...]
    namespaced: bool
    model_path: str = "devalloc.api.device_class:ConfigObject"
    """Where its model is: MODULE:CLASS."""
    has_status: bool = False

    @property
    def model(self) -> type[ApiModel]:
        """Its model, which is imported when it is used first: many know kinds by their names only."""
        return _model(self.model_path)

    @property
    def group(self) -> str:
        return self.api_version.partition("/")[0]

    @property
    def version(self) -> str:
        return self.api_version.partition("/")[2]


def _kind(name: str, module: str, api_version: str, plural: str, *short: str, namespaced: bool = True) -> ApiKind:
    path, has_status = f"devalloc.api.{module}:{name}", not name.endswith("Config")
    return ApiKind(name, api_version, plural, name.lower(), short, namespaced, path, has_status)


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
