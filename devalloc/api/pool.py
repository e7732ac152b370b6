"""DevicePool: the devices of one driver on one node (or on the network), as their publisher sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, WithJsonSchema, field_validator, model_validator

from devalloc.api.fields import (
    AmountField,
    ApiModel,
    Int64,
    NotNegative,
    PlainName,
    Positive,
    QuantityField,
    SemVerField,
    not_negative,
    unique_by_name,
)
from devalloc.api.meta import DEVMGMT, UNAVAILABLE
from devalloc.api.object_meta import ObjectMeta
from devalloc.api.quantity import ONE, Quantity
from devalloc.api.semver import SemVer

AttributeValue = str | int | Quantity | SemVer


class Attribute(ApiModel):
    """A named value of a device. Exactly one of the four value fields is set."""

    name: PlainName
    """The name that expressions and matchAttributes use."""
    string_value: Annotated[str, Field(max_length=4096)] | None = None
    """A text."""
    int_value: Int64 | None = None
    """A 64-bit integer."""
    quantity_value: QuantityField | None = None
    """An amount, such as 16Gi."""
    sem_ver_value: SemVerField | None = None
    """A semantic version, such as 1.8.2."""

    @model_validator(mode="after")
    def _one_value(self) -> Attribute:
        count = sum(v is not None for v in (self.string_value, self.int_value, self.quantity_value, self.sem_ver_value))
        if count != 1:
            raise ValueError(
                f"must have exactly one of stringValue, intValue, quantityValue, semVerValue, but has {count or 'none'}"
            )
        return self

    @property
    def value(self) -> AttributeValue:
        """The value; its Python type corresponds to one of the four."""
        if self.string_value is not None:  # the most common
            return self.string_value
        for value in (self.int_value, self.quantity_value, self.sem_ver_value):
            if value is not None:
                return value
        raise AssertionError("validated: one value is set")

    @classmethod
    def of(cls, name: str, value: AttributeValue) -> Attribute:
        """The attribute for a Python value."""
        match value:
            case str():
                return cls(name=name, string_value=value)
            case int():
                return cls(name=name, int_value=value)
            case Quantity():
                return cls(name=name, quantity_value=value)
            case SemVer():
                return cls(name=name, sem_ver_value=value)


class ResourceCapacity(ApiModel):
    """An amount of a named resource, allocated in whole blocks."""

    name: PlainName
    """The resource, such as memory."""
    capacity: AmountField
    """How much there is, in the unit of the resource: bytes of memory, for example."""
    block_size: Positive | None = None
    """The unit of allocation: a share of the resource is a multiple of it; 1 by default (S11)."""

    @field_validator("block_size", mode="after")
    @classmethod
    def _block_size(cls, block: Quantity | None) -> Quantity | None:
        if block is not None and block.nano <= 0:
            raise ValueError(f"must be more than zero, but is {block}")
        return block

    @property
    def block(self) -> Quantity:
        """The block size, 1 by default."""
        return self.block_size or ONE


Attributes = Annotated[list[Attribute], Field(max_length=48), AfterValidator(unique_by_name)]
PoolResources = Annotated[list[ResourceCapacity], Field(max_length=256), AfterValidator(unique_by_name)]
DeviceResources = Annotated[list[ResourceCapacity], Field(max_length=32), AfterValidator(unique_by_name)]
DeviceRequests = Annotated[dict[PlainName, NotNegative], Field(max_length=64), AfterValidator(not_negative)]


class Device(ApiModel):
    """One device of a pool."""

    name: PlainName
    """The name, unique in the pool (S2)."""
    attributes: Attributes = Field(default_factory=list)
    """Attributes of this device (S3)."""
    requests: DeviceRequests = Field(default_factory=dict)
    """Pool resources that this device consumes when it is allocated."""
    resources: DeviceResources = Field(default_factory=list)
    """Resources of the device itself, which claims can request and share."""


MAX_POOL_DEVICES = 8192
Devices = Annotated[list[Device], Field(max_length=MAX_POOL_DEVICES), AfterValidator(unique_by_name)]


class DevicePoolSpec(ApiModel):
    """What a pool offers, regardless of allocations."""

    node_name: Annotated[PlainName, WithJsonSchema({"type": "string", "maxLength": 253})] | None = None
    """The node that has the devices; None (or "") for devices that every node can reach over the network."""
    driver: PlainName
    """The driver that publishes and binds the devices, such as gpu.devalloc.io."""
    attributes: Attributes = Field(default_factory=list)
    """Attributes of all devices; a device's own attribute of the same name wins."""
    resources: PoolResources = Field(default_factory=list)
    """Resources that the devices share (partitionable devices)."""
    devices: Devices = Field(default_factory=list)
    """The devices."""

    @field_validator("node_name", mode="before")
    @classmethod
    def _empty_is_network(cls, value: object) -> object:
        return None if value == "" else value

    @property
    def effective_attributes(self) -> dict[str, Mapping[str, AttributeValue]]:
        """The attributes of each device: its own, and those of the pool that it does not have itself (S3). Devices
        without any share those of the pool."""
        common = {each.name: each.value for each in self.attributes}
        return {
            device.name: common | {each.name: each.value for each in device.attributes} if device.attributes else common
            for device in self.devices
        }


def unavailability(attributes: Mapping[str, object]) -> str | None:
    """Why only claims with admin access get a device with these effective attributes (S6a); None if all may. Whatever
    decides, counts or shows asks this; the check alone has the rule again."""
    why = attributes.get(UNAVAILABLE)
    return None if why is None else str(why)


class DevicePoolStatus(ApiModel):
    """What the allocator last counted, for display only: no decision depends on it."""

    available_devices: Int64 = 0
    """How many devices of the pool can still be allocated, at least in part."""


class DevicePool(ApiModel):
    """Devices of one driver on one node, or network attached. Cluster scoped."""

    api_version: Literal["devmgmtproto.k8s.io/v1alpha1"] = DEVMGMT
    kind: Literal["DevicePool"] = "DevicePool"
    metadata: ObjectMeta
    spec: DevicePoolSpec
    status: DevicePoolStatus | None = None
