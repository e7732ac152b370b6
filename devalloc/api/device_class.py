"""DeviceClass: a selection of devices that an admin offers, and that claims name."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from devalloc.api.fields import ApiModel, Expression, LabelName, PlainName, SubdomainName, Text
from devalloc.api.meta import DEVMGMT, ObjectMeta


class DeviceClassConfigReference(ApiModel):
    """A configuration object in any namespace."""

    api_version: PlainName
    """Its API version, such as devalloc.io/v1alpha1."""
    kind: PlainName
    """Its kind, such as VfioConfig."""
    namespace: LabelName
    """Its namespace."""
    name: SubdomainName
    """Its name."""


class DeviceClassSpec(ApiModel):
    """Which devices are of the class, and how they are configured."""

    driver: Text = ""
    """Only devices of this driver; empty for all drivers."""
    device_type: Text = ""
    """A type that is independent of drivers, such as gpu; claims may name it instead of a class."""
    constraints: Expression | None = None
    """A CEL expression over ``device`` that is true for devices of this class."""
    admin_access: bool | None = None
    """Claims of this class only observe devices: they consume nothing and conflict with nothing (S14)."""
    configs: list[DeviceClassConfigReference] = Field(default_factory=list, max_length=32)
    """Configuration objects for all devices that are allocated through this class (S5)."""


class DeviceClass(ApiModel):
    """A named selection of devices with their configuration. Cluster scoped."""

    api_version: Literal["devmgmtproto.k8s.io/v1alpha1"] = DEVMGMT
    kind: Literal["DeviceClass"] = "DeviceClass"
    metadata: ObjectMeta
    spec: DeviceClassSpec = Field(default_factory=DeviceClassSpec)
