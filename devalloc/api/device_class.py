"""DeviceClass: a selection of devices that an admin offers, and that claims name; and the objects that its ``configs``
and those of claims refer to: devalloc's own kinds, and objects of any other API.

ConfigObject: an object of another API, to which a ``configs`` reference may point.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from devalloc.api.fields import (
    ApiModel,
    Expression,
    LabelName,
    Mac,
    ObjectName,
    PlainName,
    SubdomainName,
    Text,
    Unit,
    raise_faults,
    unique_by,
)
from devalloc.api.host_names import Path
from devalloc.api.meta import DEVALLOC, DEVMGMT
from devalloc.api.object_meta import Condition, ObjectMeta


class ForeignMeta(ApiModel):
    """Metadata; only the identity is checked."""

    model_config = ConfigDict(extra="allow")

    name: ObjectName
    namespace: LabelName | None = None


class ConfigObject(ApiModel):
    """An object whose identity is checked; everything else is kept unchanged."""

    model_config = ConfigDict(extra="allow")

    api_version: PlainName
    kind: PlainName
    metadata: ForeignMeta

    @property
    def key(self) -> tuple[str, str, str, str]:
        """(apiVersion, kind, namespace, name); the namespace is empty if there is none."""
        return self.api_version, self.kind, self.metadata.namespace or "", self.metadata.name


class VfioConfigSpec(ApiModel):
    """How to pass a device through with VFIO."""

    rom_file: Path | None = None
    """An option ROM for the device in its machine, in place of its own: a file on the node, in a folder that the node
    allows (`--rom-folder`). Only classes can set it."""


class VfioConfig(ApiModel):
    """Pass through the whole device. Namespaced."""

    api_version: Literal["devalloc.io/v1alpha1"] = DEVALLOC
    kind: Literal["VfioConfig"] = "VfioConfig"
    metadata: ObjectMeta
    spec: VfioConfigSpec = Field(default_factory=VfioConfigSpec)


MegabitsPerSecond = Annotated[int, Field(ge=0, le=2**32 - 1), Unit("Mbit/s")]


class VfConfigSpec(ApiModel):
    """Settings that the physical function enforces on one of its virtual functions; unset fields change nothing."""

    mac: Mac | None = None
    """A unicast MAC address."""
    vlan: Annotated[int, Field(ge=0, le=4094)] | None = None
    """The VLAN to which the function is confined; 0 for none."""
    vlan_qos: Annotated[int, Field(ge=0, le=7)] | None = None
    """The 802.1p priority of its frames."""
    min_tx_rate: MegabitsPerSecond | None = None
    """Guaranteed transmit rate; 0 for none."""
    max_tx_rate: MegabitsPerSecond | None = None
    """Maximum transmit rate; 0 for no limit."""
    trust: bool | None = None
    """Whether the guest may change its MAC address and go promiscuous."""
    spoof_check: bool | None = None
    """Whether to drop frames with a foreign source address."""
    link_state: Literal["auto", "enable", "disable"] | None = None
    """The link that the guest sees: always up (enable), always down (disable), or that of the card (auto)."""


def _ordered_rates(spec: VfConfigSpec) -> VfConfigSpec:
    if spec.max_tx_rate and (spec.min_tx_rate or 0) > spec.max_tx_rate:
        raise_faults([(("minTxRate",), f"must not be above maxTxRate ({spec.max_tx_rate}), but is {spec.min_tx_rate}")])
    return spec


class VfConfig(ApiModel):
    """Settings of an SR-IOV virtual function of a network card. Namespaced."""

    api_version: Literal["devalloc.io/v1alpha1"] = DEVALLOC
    kind: Literal["VfConfig"] = "VfConfig"
    metadata: ObjectMeta
    spec: Annotated[VfConfigSpec, AfterValidator(_ordered_rates)] = Field(default_factory=VfConfigSpec)


class VgpuConfigSpec(ApiModel):
    """Which vGPU to create."""

    profile: PlainName
    """The profile's name or id, such as "NVIDIA A2-4Q" or "nvidia-746"."""


class VgpuConfig(ApiModel):
    """The profile of a vGPU. Namespaced."""

    api_version: Literal["devalloc.io/v1alpha1"] = DEVALLOC
    kind: Literal["VgpuConfig"] = "VgpuConfig"
    metadata: ObjectMeta
    spec: VgpuConfigSpec


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


class DeviceClassStatus(ApiModel):
    """What the controller found out about the class."""

    conditions: Annotated[list[Condition], Field(max_length=16), AfterValidator(unique_by("type"))] = Field(
        default_factory=list
    )
    """On a cluster: ``Valid``, false with a reason while claims that name the class get nothing."""


class DeviceClass(ApiModel):
    """A named selection of devices with their configuration. Cluster scoped."""

    api_version: Literal["devmgmtproto.k8s.io/v1alpha1"] = DEVMGMT
    kind: Literal["DeviceClass"] = "DeviceClass"
    metadata: ObjectMeta
    spec: DeviceClassSpec = Field(default_factory=DeviceClassSpec)
    status: DeviceClassStatus | None = None
