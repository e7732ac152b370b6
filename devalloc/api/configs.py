"""The configuration objects that ``configs`` references point at."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from devalloc.api.fields import ApiModel, Mac, PlainName, refuse
from devalloc.api.meta import DEVALLOC, ObjectMeta


class VfioConfigSpec(ApiModel):
    """How a device is handed over through VFIO; nothing is left to choose yet."""


class VfioConfig(ApiModel):
    """Pass the whole device through. Namespaced."""

    api_version: Literal["devalloc.io/v1alpha1"] = DEVALLOC
    kind: Literal["VfioConfig"] = "VfioConfig"
    metadata: ObjectMeta
    spec: VfioConfigSpec = Field(default_factory=VfioConfigSpec)


MegabitsPerSecond = Annotated[int, Field(ge=0, le=2**32 - 1)]


class VfConfigSpec(ApiModel):
    """Settings that the physical function enforces on one of its virtual functions; unset ones stay as they are."""

    mac: Mac | None = None
    """A unicast MAC address."""
    vlan: Annotated[int, Field(ge=0, le=4094)] | None = None
    """The VLAN that the function is confined to; 0 for none."""
    vlan_qos: Annotated[int, Field(ge=0, le=7)] | None = None
    """The 802.1p priority of its frames."""
    min_tx_rate: MegabitsPerSecond | None = None
    """Guaranteed transmit rate in Mbit/s; 0 for none."""
    max_tx_rate: MegabitsPerSecond | None = None
    """Greatest transmit rate in Mbit/s; 0 for none."""
    trust: bool | None = None
    """Whether the guest may change its MAC address and go promiscuous."""
    spoof_check: bool | None = None
    """Whether frames with a foreign source address are dropped."""
    link_state: Literal["auto", "enable", "disable"] | None = None


def _ordered_rates(spec: VfConfigSpec) -> VfConfigSpec:
    if spec.max_tx_rate and (spec.min_tx_rate or 0) > spec.max_tx_rate:
        refuse([(("minTxRate",), f"must not be above maxTxRate ({spec.max_tx_rate}), and is {spec.min_tx_rate}")])
    return spec


class VfConfig(ApiModel):
    """Settings of an SR-IOV virtual function of a network card. Namespaced."""

    api_version: Literal["devalloc.io/v1alpha1"] = DEVALLOC
    kind: Literal["VfConfig"] = "VfConfig"
    metadata: ObjectMeta
    spec: Annotated[VfConfigSpec, AfterValidator(_ordered_rates)] = Field(default_factory=VfConfigSpec)


class VgpuConfigSpec(ApiModel):
    """Which vGPU to make."""

    profile: PlainName
    """The profile's name or id, such as "NVIDIA A2-4Q" or "nvidia-746"."""


class VgpuConfig(ApiModel):
    """The profile of a vGPU. Namespaced."""

    api_version: Literal["devalloc.io/v1alpha1"] = DEVALLOC
    kind: Literal["VgpuConfig"] = "VgpuConfig"
    metadata: ObjectMeta
    spec: VgpuConfigSpec
