"""DeviceClaim: a request for devices, and its allocation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from devalloc.api import meta
from devalloc.api.fields import (
    INT64_MAX,
    AmountField,
    ApiModel,
    Expression,
    FieldFault,
    NotNegative,
    PlainName,
    Positive,
    SubdomainName,
    Text,
    is_empty,
    not_negative,
    positive,
    quote_value,
    raise_faults,
    unique_by,
    unique_by_name,
)
from devalloc.api.meta import DEVMGMT
from devalloc.api.node_rules import (
    NodeRestriction,
    Restrictions,
    ValueRestriction,
    check_node_name,
    check_node_rules,
    node_restrictions,
)
from devalloc.api.object_meta import Condition, ObjectMeta
from devalloc.api.quantity import Quantity

COUNT = "count"
"""The resource that every driver supports: the number of devices."""

_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)


class DeviceConfigReference(ApiModel):
    """A configuration object in the claim's own namespace."""

    api_version: PlainName
    """Its API version, such as devalloc.io/v1alpha1."""
    kind: PlainName
    """Its kind, such as VfConfig."""
    name: SubdomainName
    """Its name."""


def _whole_count(amounts: dict[str, Quantity]) -> dict[str, Quantity]:
    count = amounts.get(COUNT)
    if count is not None and count.as_integer() is None:
        raise_faults([((COUNT,), f"must be a whole number, but is {count}")])
    return amounts


Requests = Annotated[
    dict[PlainName, Positive], Field(max_length=32), AfterValidator(positive), AfterValidator(_whole_count)
]
Limits = Annotated[
    dict[PlainName, NotNegative], Field(max_length=32), AfterValidator(not_negative), AfterValidator(_whole_count)
]
MAX_MATCHES = 32
MAX_NAME = 253
MatchAttributes = Annotated[list[PlainName], Field(max_length=MAX_MATCHES)]
MAX_CONFIGS = 32
MAX_DEVICES = 8192
"""Maximum devices of one claim."""


class Effect(Enum):
    """What a field of a claim decides; each field of a request is annotated with one."""

    DEVICES = "which devices a request may take"
    CHOICE = "how many and how much of them, and which of them together"
    CONTENT = "nothing about devices: what an answer says besides"


class DeviceClaimDetail(ApiModel):
    """A request for a set of devices."""

    device_type: Annotated[Text | None, Effect.DEVICES] = None
    """Take devices of any class with this device type."""
    device_class: Annotated[Text | None, Effect.DEVICES] = None
    """The class to take devices from."""
    constraints: Annotated[Expression | None, Effect.DEVICES] = None
    """A CEL expression over ``device``, in addition to that of the class."""
    requests: Annotated[Requests, Effect.CHOICE] = Field(default_factory=dict)
    """Minimum totals over all devices; ``count`` is the number of devices. Empty means one device."""
    limits: Annotated[Limits, Effect.CHOICE] = Field(default_factory=dict)
    """Maximum totals over all devices (S9)."""
    match_attributes: Annotated[MatchAttributes, Effect.DEVICES] = Field(default_factory=list)
    """All chosen devices have these attributes, each with the same value on all of them."""
    configs: Annotated[list[DeviceConfigReference], Field(max_length=MAX_CONFIGS), Effect.CONTENT] = Field(
        default_factory=list
    )
    """Configuration objects for the devices of this request, in addition to those of the class (S5)."""

    @model_validator(mode="after")
    def _limits_reach_requests(self) -> DeviceClaimDetail:
        faults: list[FieldFault] = []
        for name, limit in self.limits.items():
            request = self.requests.get(name)
            if request is not None and limit < request:
                faults.append((("limits", name), f"must not be below requests.{name} ({request}), but is {limit}"))
            elif name == COUNT and limit.nano <= 0:
                faults.append((("limits", name), "must be at least 1: an allocation has at least one device"))
        raise_faults(faults)
        return self

    @property
    def value_restrictions(self) -> tuple[ValueRestriction, ...]:
        """Values of attributes that its devices must have, as the caller of the solver restricts them."""
        return ()

    @property
    def driver(self) -> str | None:
        """The only driver of its devices, if the caller of the solver names one: then also those kept for one class."""
        return None


class DeviceClaimInstance(DeviceClaimDetail):
    """A request, or alternatives of which exactly one must be satisfied."""

    one_of: list[DeviceClaimDetail] = Field(default_factory=list, max_length=16)
    """Alternatives in order of preference."""

    @model_validator(mode="after")
    def _detail_or_one_of(self) -> DeviceClaimInstance:
        if self.one_of and not all(is_empty(value) for name, value in self if name != "one_of"):
            raise_faults([(("oneOf",), "cannot be combined with other fields; move those into each alternative")])
        return self

    @property
    def alternatives(self) -> list[DeviceClaimDetail]:
        """The alternatives of oneOf, or the request itself as the only one."""
        return list(self.one_of) or [self]


class RestrictedRequest(DeviceClaimInstance):
    """A request that gets only devices of a driver, or with some values of attributes: no manifest has one."""

    _restrictions: tuple[ValueRestriction, ...] = PrivateAttr(())
    _driver: str | None = PrivateAttr(None)

    @classmethod
    def of(
        cls, request: DeviceClaimDetail, restrictions: tuple[ValueRestriction, ...], driver: str | None
    ) -> RestrictedRequest:
        """A request with these restrictions in place of those that it has."""
        one = cls.model_construct(request.model_fields_set, **dict(request))
        one._restrictions, one._driver = restrictions, driver
        return one

    @property
    def value_restrictions(self) -> tuple[ValueRestriction, ...]:
        return self._restrictions

    @property
    def driver(self) -> str | None:
        return self._driver


def fields_with(effect: Effect, model: type[ApiModel] = DeviceClaimDetail) -> tuple[str, ...]:
    """The fields of a part of a spec that decide it, by their names in Python."""
    return tuple(name for name, field in model.model_fields.items() if effect in field.metadata)


class DeviceClaimSpec(ApiModel):
    """The devices that the claim requests."""

    match_attributes: Annotated[MatchAttributes, Effect.CHOICE] = Field(default_factory=list)
    """Attributes that must have the same value on all devices of all requests."""
    claims: Annotated[list[DeviceClaimInstance], Field(min_length=1, max_length=64)]
    """The requests: the claim gets devices for all of them, or none."""

    @property
    def shape(self) -> str:
        """A text of all that decides what the claim gets: equal for claims that ask for the same."""
        rules = [each for request in self.claims for each in (request.driver, *request.value_restrictions) if each]
        return f"{self.model_dump_json()}{rules or ''}"


class ResourceAllocation(ApiModel):
    """An amount of one device's resource."""

    name: PlainName
    """The resource."""
    allocation: AmountField
    """The amount, in the unit of the resource."""


Amounts = Annotated[list[ResourceAllocation], Field(max_length=32), AfterValidator(unique_by_name)]


class DeviceAllocation(ApiModel):
    """One device that was allocated to a request of the claim; with amounts if it is a share."""

    device_pool_name: PlainName
    """The DevicePool."""
    device_name: PlainName
    """The device in that pool."""
    allocations: Amounts = Field(default_factory=list)
    """The amounts of the device's resources that the claim has; empty: it has the whole device (S10)."""


class DeviceIP(ApiModel):
    """An address of a device."""

    ip: Text = ""
    """An IPv4 or IPv6 address."""


Conditions = Annotated[list[Condition], Field(max_length=16), AfterValidator(unique_by("type"))]


class DeviceStatus(ApiModel):
    """What the driver reports about one allocated device."""

    device_pool_name: PlainName
    """The DevicePool."""
    device_name: PlainName
    """The device in that pool."""
    conditions: Conditions = Field(default_factory=list)
    """The state of the device."""
    device_ip: Annotated[Text | None, Field(alias="deviceIP")] = None
    """The first address of the device; equals the first entry of deviceIPs. A network component may write it. For a
    device in a machine of a warm setup, the node writes the machine's. It removes both when it unprepares the claim."""
    device_ips: Annotated[list[DeviceIP], Field(alias="deviceIPs", max_length=64)] = Field(default_factory=list)
    """All addresses of the device, as the node or a network component wrote them."""
    device_info: list[dict[str, Any]] = Field(default_factory=list, max_length=64)
    """What the device is on its host while it is prepared: binding, PCI functions, IOMMU groups, MAC address, VLAN,
    UUID and type of a mediated device. One object for each share."""
    allocations: Amounts = Field(default_factory=list)
    """The amounts of the device's resources that the claim has, over all its shares, while it is prepared."""

    @model_validator(mode="after")
    def _first_ip(self) -> DeviceStatus:
        if self.device_ip and self.device_ips and self.device_ips[0].ip != self.device_ip:
            raise_faults(
                [(("deviceIPs", 0, "ip"), f"must equal deviceIP ({self.device_ip}), but is {self.device_ips[0].ip}")]
            )
        return self


DeviceStatuses = Annotated[
    list[DeviceStatus], Field(max_length=MAX_DEVICES), AfterValidator(unique_by("device_pool_name", "device_name"))
]


Index = Annotated[int, Field(ge=0, lt=MAX_DEVICES)]


class DeviceClaimStatus(ApiModel):
    """The claim's allocation."""

    class_configs: list[dict[str, Any]] = Field(default_factory=list)
    """Copies of the classes' configuration objects, made at the allocation."""
    class_config_allocations: list[list[Index]] = Field(default_factory=list)
    """For each copy in ``classConfigs``, the indexes of the allocations to which it applies; empty: all copies apply to
    all allocations. Users who may only edit the claim can write annotations, but not this field."""
    claim_configs: list[dict[str, Any]] = Field(default_factory=list)
    """Copies of the claim's configuration objects, made at the allocation."""
    allocations: list[DeviceAllocation] = Field(default_factory=list, max_length=MAX_DEVICES)
    """The devices, in the order of the requests. The claim is allocated while this is not empty (S18)."""
    device_statuses: DeviceStatuses = Field(default_factory=list)
    """What drivers report about the devices."""
    conditions: Conditions = Field(default_factory=list)
    """On a cluster: ``Allocated`` and ``Ready``, true while the claim has devices, and false by default. Reason and
    message say why it has none, or what is wrong with those it has."""
    node_name: Text = ""
    """On a cluster: the node of its devices (annotation ``devalloc.io/allocated-node``), for field selectors."""
    reason: Text = ""
    """On a cluster: the reason of the condition ``Allocated``, for field selectors."""
    pod_names: list[str] = Field(default_factory=list)
    """The pods that use the claim."""


def check_annotations(annotations: Mapping[str, str]) -> None:
    """Check the values of devalloc's annotations on a claim. Raises ValidationError."""
    if (text := annotations.get(meta.PRIORITY)) is not None and (fault := priority_fault(text)):
        raise_faults([(("metadata", "annotations", meta.PRIORITY), fault)])
    if meta.GROUP_MATCH in annotations:
        _check_group_match(annotations)
    for name in (meta.GROUP, meta.NODE):
        if text := annotations.get(name):  # "" counts as absent
            check_node_name(name, text)
    check_node_rules(annotations)
    if annotations.get(meta.RELEASE, meta.RELEASES[0]) not in meta.RELEASES:
        message = f"must be {' or '.join(meta.RELEASES)}, not {quote_value(annotations[meta.RELEASE])}"
        raise_faults([(("metadata", "annotations", meta.RELEASE), message)])


def _check_group_match(annotations: Mapping[str, str]) -> None:
    where = ("metadata", "annotations", meta.GROUP_MATCH)
    names = annotations[meta.GROUP_MATCH].split(",")
    if not annotations.get(meta.GROUP):
        raise_faults([(where, f"needs the annotation {meta.GROUP}: it is for members of a group")])
    if len(names) > MAX_MATCHES or not all(name.strip() and len(name.strip()) <= MAX_NAME for name in names):
        rule = f"must be at most {MAX_MATCHES} attribute names, separated by commas"
        raise_faults([(where, f"{rule}, not {quote_value(annotations[meta.GROUP_MATCH])}")])


@lru_cache(maxsize=1024)
def priority_fault(text: str) -> str:
    """What is wrong with the text of a priority; empty if nothing is."""
    if _INTEGER.fullmatch(text) is None:
        return f"must be an integer, not {quote_value(text)}"
    return f"must be a 64-bit integer, not {quote_value(text)}" if len(text) > 20 or abs(int(text)) > INT64_MAX else ""


class DeviceClaim(ApiModel):
    """A request for devices. Namespaced."""

    api_version: Literal["devmgmtproto.k8s.io/v1alpha1"] = DEVMGMT
    kind: Literal["DeviceClaim"] = "DeviceClaim"
    metadata: ObjectMeta
    spec: DeviceClaimSpec
    status: DeviceClaimStatus | None = None

    @model_validator(mode="after")
    def _annotations(self) -> DeviceClaim:
        check_annotations(self.metadata.annotations)
        return self

    @property
    def namespace(self) -> str:
        return self.metadata.namespace or "default"

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name)"""
        metadata = self.metadata
        return metadata.namespace or "default", metadata.name

    @property
    def priority(self) -> int:
        return int(self.metadata.annotations.get(meta.PRIORITY, "0"))

    @property
    def group(self) -> str | None:
        return self.metadata.annotations.get(meta.GROUP) or None

    @property
    def group_match(self) -> tuple[str, ...]:
        """Attributes that must have the same value as on the devices of other members of its group."""
        text = self.metadata.annotations.get(meta.GROUP_MATCH, "") if self.group is not None else ""
        return tuple(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))

    @property
    def pinned_node(self) -> str | None:
        return self.metadata.annotations.get(meta.NODE) or None

    @property
    def restrictions(self) -> tuple[NodeRestriction, ...]:
        """Rules by which it keeps off nodes."""
        return node_restrictions(self.metadata.annotations)

    def restricted(self, given: Restrictions, metadata: ObjectMeta) -> DeviceClaim:
        """The claim with restrictions that no user wrote. ``metadata``: with names that no object can have
        (``owner_names``)."""
        claims = [*self.spec.claims]
        for number in range(len(claims)) if given.driver else {each.request for each in given.values}:
            own = tuple(each for each in given.values if each.request == number)
            claims[number] = RestrictedRequest.of(claims[number], own, given.driver)
        spec = self.spec.model_copy(update={"claims": claims})
        one = RestrictedClaim.model_construct(
            self.model_fields_set, **{**dict(self), "spec": spec, "metadata": metadata}
        )
        one._restrictions = given.nodes
        return one

    @property
    def allocated_node(self) -> str | None:
        return self.metadata.annotations.get(meta.ALLOCATED_NODE) or None

    @property
    def is_allocated(self) -> bool:
        return self.status is not None and bool(self.status.allocations)

    @property
    def is_deleting(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def is_leaving(self) -> bool:
        """Whether it is to give its devices back, and does so when it can."""
        return self.is_deleting or meta.RELEASE in self.metadata.annotations

    def allocation_details(self) -> list[tuple[int, int | None]] | None:
        """(index into spec.claims, index of the alternative or None) of each status.allocations entry.

        None if the annotation is missing or does not match the status.
        """
        text = self.metadata.annotations.get(meta.ALLOCATION_DETAILS)
        if text is None or self.status is None:
            return None
        try:
            indexes = json.loads(text)
            details = [_detail_index(index) for index in indexes]
        except (ValueError, TypeError):
            return None
        return details if len(details) == len(self.status.allocations) else None


def _detail_index(text: object) -> tuple[int, int | None]:
    if not isinstance(text, str) or (match := re.fullmatch(r"(\d{1,6})(?:\.(\d{1,6}))?", text)) is None:
        raise ValueError(text)
    return int(match[1]), None if match[2] is None else int(match[2])


class RestrictedClaim(DeviceClaim):
    """A claim with rules for its nodes that no user wrote: no manifest has them."""

    _restrictions: tuple[NodeRestriction, ...] = PrivateAttr(())

    @property
    def restrictions(self) -> tuple[NodeRestriction, ...]:
        return (*super().restrictions, *self._restrictions)
