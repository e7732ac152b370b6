"""The objects of ``resource.k8s.io/v1`` about what is asked for, and held: classes, claims and allocations.

The classes that end in ``Spec`` and ``Manifest`` are the form in which they are written, which pydantic reads for
``decode``; the others are what an allocation works with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from devalloc.api.fields import label_name, raise_faults, subdomain_name
from devalloc.api.meta import GROUP, NODE
from devalloc.api.node_rules import NodeRestriction, Restrictions
from devalloc.api.owner_names import read_name
from devalloc_solver.dialects.resource_k8s.fields import (
    MAX_INT64,
    Amount,
    Amounts,
    Flag,
    Given,
    Ignored,
    Items,
    Labels,
    Needed,
    Number,
    Strict,
    Text,
    Texts,
    Tolerant,
)
from devalloc_solver.dialects.resource_k8s.slices import ClusterNode

# -- what is asked for -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CelExpression(Strict):
    """An expression of a selector."""

    expression: Text = ""


@dataclass(frozen=True, slots=True)
class DeviceSelector(Strict):
    """A condition on devices."""

    cel: CelExpression = CelExpression()

    def __post_init__(self) -> None:
        if not self.cel.expression:
            raise ValueError("has no CEL expression; write cel.expression, the only supported kind of selector")


@dataclass(frozen=True, slots=True)
class DeviceConfiguration(Strict):
    """A configuration, which goes into answers as it was written; this checks it."""

    requests: Texts = ()
    opaque: dict[Any, Any] | None = None


@dataclass(frozen=True, slots=True)
class DeviceToleration(Strict):
    """Which taints a request puts up with; an empty ``key`` or ``effect`` stands for all of them."""

    key: Text = ""
    operator: Annotated[Text, AfterValidator(lambda operator: operator or "Equal")] = "Equal"
    value: Text = ""
    effect: Text = ""
    seconds: Annotated[Number, Field(alias="tolerationSeconds")] = 0

    def __post_init__(self) -> None:
        if self.operator not in ("Equal", "Exists"):
            raise_faults([(("operator",), f"{self.operator!r} is not supported; use Equal or Exists")])


def _require_no_negative(amounts: dict[str, Amount]) -> dict[str, Amount]:
    raise_faults(((name,), f"is negative: {amount}") for name, amount in amounts.items() if amount.nano < 0)
    return amounts


@dataclass(frozen=True, slots=True)
class CapacityRequirements(Strict):
    """Amounts that a request takes of each device."""

    requests: Annotated[Amounts, AfterValidator(_require_no_negative)] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSpec(Strict):
    """What a request and its alternatives have in common."""

    class_name: Annotated[Needed, Field(alias="deviceClassName")]
    mode: Annotated[Text, Field(alias="allocationMode")] = ""
    tolerations: Items[DeviceToleration] = ()
    selectors: Items[DeviceSelector] = ()
    count: Number | None = None
    capacity: CapacityRequirements | None = None
    derived: Annotated[Any, Field(alias="derivedAttributes")] = None

    def __post_init__(self) -> None:
        if self.mode not in ("ExactCount", "All"):
            message = f"has the unsupported count mode {self.mode!r}; write ExactCount or All"
            raise_faults([(("allocationMode",), message)])
        if self.is_all:
            return
        if self.count is None:
            raise_faults([(("count",), "is missing: the API server sets 1 by default; write count: 1")])
        elif not 0 < self.count <= MAX_INT64:
            message = f"must be greater than zero and within 64 bits, not {self.count}"
            raise_faults([(("count",), message)])

    @property
    def is_all(self) -> bool:
        return self.mode == "All"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactRequestSpec(RequestSpec):
    """A request that stands alone."""

    admin: Annotated[Flag | None, Field(alias="adminAccess")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlternativeSpec(RequestSpec):
    """A subrequest of ``firstAvailable``."""

    name: Needed = field(kw_only=False)


def _exactly_by_default(request: dict[str, Any]) -> Any:
    """A request without alternatives needs the field: what it lacks is reported."""
    return None if request.get("alternatives") else {}


@dataclass(frozen=True, slots=True)
class DeviceRequestSpec(Strict):
    """A request of a claim."""

    name: Needed
    alternatives: Annotated[Items[AlternativeSpec], Field(alias="firstAvailable", default_factory=tuple)]
    exactly: Annotated[ExactRequestSpec | None, Field(default_factory=_exactly_by_default, validate_default=True)]

    def __post_init__(self) -> None:
        if self.exactly is None and not self.alternatives:
            raise ValueError("needs exactly or firstAvailable, and null is neither")


@dataclass(frozen=True, slots=True)
class DeviceConstraint(Strict):
    """matchAttribute or distinctAttribute over the requests it names; over all of them when it names none."""

    match_attribute: Annotated[Text | None, Field(alias="matchAttribute")] = None
    distinct_attribute: Annotated[Text | None, Field(alias="distinctAttribute")] = None
    requests: Texts = ()

    @property
    def distinct(self) -> bool:
        return self.distinct_attribute is not None

    @property
    def attribute(self) -> str:
        return self.match_attribute or self.distinct_attribute or ""

    def covers(self, request: DeviceRequest, subrequest: SubRequest) -> bool:
        """Whether it is about the devices of this alternative of the request."""
        return not self.requests or request.name in self.requests or subrequest.name in self.requests


@dataclass(frozen=True, slots=True)
class DeviceClaimSpec(Strict):
    """The devices that a claim asks for."""

    requests: Items[DeviceRequestSpec] = ()
    constraints: Items[DeviceConstraint] = ()
    config: Items[DeviceConfiguration] = ()


@dataclass(frozen=True, slots=True)
class ResourceClaimSpec(Strict):
    """The spec of a ResourceClaim."""

    devices: DeviceClaimSpec = DeviceClaimSpec()


@dataclass(frozen=True, slots=True)
class ResourceClaimStatus(Tolerant):
    """The status of a ResourceClaim; what it holds is kept as it was written."""

    allocation: dict[Any, Any] | None = None


@dataclass(frozen=True, slots=True)
class Metadata(Tolerant):
    """The metadata of an object, as far as it counts."""

    namespace: Text = ""
    name: Text = ""
    uid: Text = ""
    annotations: Labels = field(default_factory=dict)
    creation_timestamp: Annotated[Text | None, Field(alias="creationTimestamp")] = None
    is_deleting: Annotated[Given, Field(alias="deletionTimestamp")] = False


@dataclass(frozen=True, slots=True)
class ResourceClaimManifest(Tolerant):
    """A ResourceClaim as it is written; ``ResourceClaim`` is what it means."""

    metadata: Metadata = Metadata()
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


@dataclass(frozen=True, slots=True)
class RequiredName(Tolerant):
    """Metadata of which only the name counts, and is needed."""

    name: Needed


@dataclass(frozen=True, slots=True)
class NamedObject(Tolerant):
    """An object of which only the name counts: its metadata, and their name, are needed."""

    metadata: Annotated[RequiredName, Field(default_factory=dict, validate_default=True)]


@dataclass(frozen=True, slots=True)
class TemplateSpec(Strict):
    """The spec of a ResourceClaimTemplate: what the claims that are made from it get."""

    spec: dict[Any, Any]
    metadata: dict[Any, Any] | None = None


@dataclass(frozen=True, slots=True)
class ResourceClaimTemplateManifest(Tolerant):
    """A ResourceClaimTemplate as it is written."""

    metadata: Annotated[RequiredName, Field(default_factory=dict, validate_default=True)]
    spec: Annotated[TemplateSpec, Field(default_factory=dict, validate_default=True)]


def _name_or_none(text: str) -> object:
    return subdomain_name(text) if text else text


@dataclass(frozen=True, slots=True)
class PodClaimEntry(Strict):
    """A claim of a pod: one that is there, or one to be made from a template."""

    name: Annotated[Needed, AfterValidator(label_name)]
    claim: Annotated[Text, AfterValidator(_name_or_none), Field(alias="resourceClaimName")] = ""
    template: Annotated[Text, AfterValidator(_name_or_none), Field(alias="resourceClaimTemplateName")] = ""

    def __post_init__(self) -> None:
        if bool(self.claim) == bool(self.template):
            raise ValueError("must set one of resourceClaimName and resourceClaimTemplateName")


@dataclass(frozen=True, slots=True)
class PodSpec(Tolerant):
    """The spec of a Pod, as far as it is about claims."""

    claims: Annotated[Items[PodClaimEntry], Field(alias="resourceClaims")] = ()


@dataclass(frozen=True, slots=True)
class MadeClaim(Tolerant):
    """The claim that Kubernetes has made for an entry of a pod."""

    name: Text = ""
    claim: Annotated[Text, Field(alias="resourceClaimName")] = ""


@dataclass(frozen=True, slots=True)
class PodStatus(Tolerant):
    """The status of a Pod, as far as it is about claims."""

    phase: Text = ""
    made: Annotated[Items[MadeClaim], Field(alias="resourceClaimStatuses")] = ()


@dataclass(frozen=True, slots=True)
class PodManifest(Tolerant):
    """A Pod as it is written."""

    metadata: Annotated[RequiredName, Field(default_factory=dict, validate_default=True)]
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


@dataclass(frozen=True, slots=True)
class DeviceClassSpec(Strict):
    """The spec of a DeviceClass."""

    selectors: Items[DeviceSelector] = ()
    config: Items[DeviceConfiguration] = ()
    extended_resource: Annotated[Ignored, Field(alias="extendedResourceName")] = None
    """for the resources of pods"""


@dataclass(frozen=True, slots=True)
class DeviceClassManifest(Tolerant):
    """A DeviceClass as it is written."""

    metadata: Annotated[RequiredName, Field(default_factory=dict, validate_default=True)]
    spec: DeviceClassSpec = DeviceClassSpec()


@dataclass(frozen=True, slots=True)
class NodeManifest(Tolerant):
    """A Node as it is written."""

    metadata: Annotated[ClusterNode, Field(default_factory=dict, validate_default=True)]


# -- what a claim holds ------------------------------------------------------------------------------------------------


ConsumedCapacity = Annotated[Amounts, AfterValidator(_require_no_negative), Field(alias="consumedCapacity")]


@dataclass(frozen=True, slots=True)
class DeviceName(Tolerant):
    """Which device an entry of an allocation is about."""

    driver: Needed
    pool: Needed
    device: Needed

    @property
    def id(self) -> tuple[str, str, str]:
        return self.driver, self.pool, self.device


@dataclass(frozen=True, slots=True)
class DeviceResult(DeviceName):
    """An entry of an allocation."""

    admin: Annotated[Flag, Field(alias="adminAccess")] = False
    share: Annotated[Text, Field(alias="shareID")] = ""
    consumed: ConsumedCapacity = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceShare(DeviceName):
    """A share of a device that is in use."""

    share: Annotated[Needed, Field(alias="shareID")]


@dataclass(frozen=True, slots=True)
class DeviceConsumption(DeviceName):
    """What shares of a device take."""

    consumed: ConsumedCapacity = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AllocatedDevices(Tolerant):
    """The devices of an allocation; each entry is read by itself."""

    results: Items[Any] = ()


@dataclass(frozen=True, slots=True)
class AllocationEntries(Tolerant):
    """A claim's allocation, as far as its devices can be found in it."""

    devices: AllocatedDevices = AllocatedDevices()


@dataclass(frozen=True, slots=True)
class DevicesInUseSpec(Strict):
    """What a caller lists as in use."""

    devices: Items[DeviceName] = ()
    shares: Items[DeviceShare] = ()
    consumed: Annotated[Items[DeviceConsumption], Field(alias="consumedCapacity")] = ()


# -- claims and classes, as an allocation uses them --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class SubRequest:
    """A request that stands alone, or one subrequest of ``firstAvailable``."""

    name: str
    """as in results: ``request`` or ``request/subrequest``"""
    class_name: str
    selectors: tuple[str, ...]
    is_all: bool
    count: int
    admin: bool
    tolerations: tuple[DeviceToleration, ...]
    toleration_manifests: tuple[Mapping[str, Any], ...]
    """the tolerations as written, which the result repeats"""
    capacity: Mapping[str, Amount]
    path: str
    """of the field in the claim"""

    def to_key(self) -> tuple[object, ...]:
        """Equal for what asks for the same under the same name."""
        what = (self.name, self.class_name, self.selectors, self.is_all, self.count, self.admin, self.tolerations)
        return (*what, sorted((name, amount.nano) for name, amount in self.capacity.items()))


@dataclass(frozen=True, slots=True, eq=False)
class DeviceRequest:
    """A request with its alternatives: one that stands alone, or the subrequests in order of preference."""

    name: str
    subrequests: tuple[SubRequest, ...]
    is_list: bool


def request_names(requests: Iterable[DeviceRequest]) -> frozenset[str]:
    """The names by which constraints and configurations may call them."""
    return frozenset(name for one in requests for name in (one.name, *(sub.name for sub in one.subrequests)))


@dataclass(frozen=True, slots=True, eq=False)
class ResourceClaim:
    """A ResourceClaim."""

    metadata: Metadata
    requests: tuple[DeviceRequest, ...]
    constraints: tuple[DeviceConstraint, ...]
    config: tuple[Mapping[str, Any], ...]
    allocation: Mapping[str, Any] | None
    """status.allocation"""
    spec: Mapping[str, Any]
    """as written"""
    given: Restrictions | None = None
    """what a caller of the solver asks beside; then the group may be that of a pod, too"""

    @property
    def restrictions(self) -> tuple[NodeRestriction, ...]:
        return () if self.given is None else self.given.nodes

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name)"""
        return self.metadata.namespace, self.metadata.name

    @property
    def title(self) -> str:
        """The claim in messages, such as "default/c"."""
        namespace, name = self.key
        return f"{namespace}/{name}" if namespace else name

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.metadata.annotations

    @property
    def group(self) -> str | None:
        group = self.annotations.get(GROUP, "")
        return (read_name(group) if self.given is None else group) or None

    @property
    def pinned_node(self) -> str | None:
        """The only node whose devices may be used."""
        return self.annotations.get(NODE) or None

    @property
    def subrequests(self) -> Iterator[SubRequest]:
        """All alternatives of all requests, in the order of the spec."""
        return (subrequest for request in self.requests for subrequest in request.subrequests)


def claim_with_allocation(namespace: str, name: str, allocation: Mapping[str, Any]) -> ResourceClaim:
    """A claim of which only what it holds matters."""
    return ResourceClaim(Metadata(namespace, name), (), (), (), allocation, {})


@dataclass(frozen=True, slots=True, eq=False)
class ResourceDeviceClass:
    """A DeviceClass."""

    name: str
    selectors: tuple[str, ...]
    config: tuple[Mapping[str, Any], ...]
