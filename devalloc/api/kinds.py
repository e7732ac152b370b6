"""The kinds of objects that devalloc knows by name."""

from __future__ import annotations

from dataclasses import dataclass

from devalloc.api.claim import DeviceClaim
from devalloc.api.configs import VfConfig, VfioConfig, VgpuConfig
from devalloc.api.deviceclass import DeviceClass
from devalloc.api.fields import ApiModel
from devalloc.api.meta import DEVALLOC, DEVMGMT
from devalloc.api.pool import DevicePool
from devalloc.api.virtualmachine import VirtualMachine


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind with its names for people and for the Kubernetes API."""

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


def _kind(model: type[ApiModel], api_version: str, short: tuple[str, ...], *, namespaced: bool, plural: str) -> Kind:
    name = model.__name__
    return Kind(name, api_version, plural, name.lower(), short, namespaced, model)


KINDS: dict[str, Kind] = {
    kind.kind: kind
    for kind in (
        _kind(DevicePool, DEVMGMT, ("dpool",), namespaced=False, plural="devicepools"),
        _kind(DeviceClass, DEVMGMT, ("dclass",), namespaced=False, plural="deviceclasses"),
        _kind(DeviceClaim, DEVMGMT, ("dclaim",), namespaced=True, plural="deviceclaims"),
        _kind(VirtualMachine, DEVALLOC, ("vmachine",), namespaced=True, plural="virtualmachines"),
        _kind(VfioConfig, DEVALLOC, (), namespaced=True, plural="vfioconfigs"),
        _kind(VfConfig, DEVALLOC, (), namespaced=True, plural="vfconfigs"),
        _kind(VgpuConfig, DEVALLOC, (), namespaced=True, plural="vgpuconfigs"),
    )
}
"""By kind, such as "DevicePool"."""


_GROUPS = {kind.kind: kind.group for kind in KINDS.values()}


def kind_in_store(kind: str, api_version: object) -> str:
    """What a store calls the kind of an object. A kind of another group that has the name of one of ours is called by
    its full name, such as "DeviceClass.resource.k8s.io"; all others by the kind alone."""
    ours = _GROUPS.get(kind)
    if ours is None or not isinstance(api_version, str):
        return kind
    group = api_version.partition("/")[0]
    return kind if group == ours or "/" not in api_version else f"{kind}.{group}"


_WORDS = {"vm": "virtualmachine"}
"""What the command calls a kind; in clusters others have that short name."""


def find_kind(word: str) -> Kind | None:
    """The kind for "DevicePool", "devicepools", "dpool", "dpool.devmgmtproto.k8s.io" and the like."""
    name, _, group = word.lower().partition(".")
    name = _WORDS.get(name, name)
    for kind in KINDS.values():
        if name in (kind.singular, kind.plural, *kind.short_names) and group in ("", kind.group):
            return kind
    return None
