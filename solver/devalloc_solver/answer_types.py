"""The types of the answers: what the public functions return as JSON-able content (L2).

An answer has these keys and no others. ``dict[str, Any]`` is content of manifests, copied as it is.
"""

# No `from __future__ import annotations`: with it, Python does not know at runtime which keys are required.

from typing import Any, Literal, NotRequired, TypedDict

from devalloc.api.findings.edits import Blocker as Blocker
from devalloc.api.findings.edits import BlockerKind as BlockerKind
from devalloc.api.findings.edits import ObjectName as ObjectName


class ProblemDict(TypedDict):
    """What is wrong with an object. With a ``path``, the message completes the sentence "<path> ..."."""

    message: str
    severity: Literal["error", "warning"]
    """``error``: the object was left out. ``warning``: it was used anyway."""
    path: NotRequired[str]
    kind: NotRequired[str]
    namespace: NotRequired[str]
    name: NotRequired[str]
    source: NotRequired[str]
    group: NotRequired[str]
    """The API group, if objects of several groups could have this kind and name."""
    cause: NotRequired[dict[str, Any]]
    """What the message says, as data, if it names other objects."""


class GoalLevelDict(TypedDict):
    """One goal of S17, in their order."""

    goal: str
    value: int
    bound: int
    """No answer can have a better value."""
    gap: int
    """The difference of the two; 0 proves the value."""
    priority: NotRequired[int]
    """Of the goal ``satisfied``: the priority whose claims it counts."""
    choice: NotRequired[Literal["exact", "best effort"]]
    """``exact``: among equally large sets of claims, the earliest is satisfied."""


class ObjectiveDict(TypedDict):
    levels: list[GoalLevelDict]


# -- reasons -----------------------------------------------------------------------------------------------------------


class FunnelStep(TypedDict):
    """A rule, and the devices that it leaves out."""

    what: str
    code: str
    """Of ``devalloc.api.findings.RuleCode``; ``what`` is its words."""
    args: NotRequired[dict[str, str]]
    """What the words need."""
    count: int
    devices: list[str]
    """The first ones, as POOL/DEVICE."""
    example: NotRequired[str]
    """Why the first one is left out."""


class DeviceUser(TypedDict):
    namespace: str
    name: str
    count: int
    """How many matching devices the claim has."""


class FunnelDict(TypedDict):
    """How many devices each rule leaves for a request (S19)."""

    request: str
    devices: int
    """All devices of the fleet."""
    steps: list[FunnelStep]
    matching: int
    inUse: int
    excluded: int
    """Devices that no claim holds and none can get, because claims hold what they need of their card."""
    free: int
    users: NotRequired[int]
    """How many claims have matching devices. ``dra.explain`` does not know them."""
    usedBy: NotRequired[list[DeviceUser]]


class CauseDict(TypedDict):
    """What stands in the way: a code of ``devalloc.api.findings.Cause`` and what its sentence needs
    (docs/causes.md)."""

    code: str

    # what it is about
    request: NotRequired[str]
    path: NotRequired[str]
    paths: NotRequired[list[str]]
    rule: NotRequired[str]
    args: NotRequired[dict[str, str]]
    others: NotRequired[list[dict[str, Any]]]
    """The rules after it, with their ``args``, ``count`` and ``example``."""
    attribute: NotRequired[str]
    attributes: NotRequired[list[str]]
    distinct: NotRequired[bool]
    resource: NotRequired[str]
    name: NotRequired[str]
    value: NotRequired[str]
    node: NotRequired[str]
    drivers: NotRequired[list[str]]
    there: NotRequired[list[str]]
    group: NotRequired[str]
    members: NotRequired[list[dict[str, str]]]
    holder: NotRequired[dict[str, Any]]
    pool: NotRequired[str]
    device: NotRequired[str]
    requests: NotRequired[list[str]]

    # what was most likely meant
    near: NotRequired[str]
    whole: NotRequired[str]
    write: NotRequired[str]
    what: NotRequired[str]
    type: NotRequired[str]
    of: NotRequired[str]
    literal: NotRequired[str]
    fault: NotRequired[str]
    advice: NotRequired[str]
    device_class: NotRequired[str]

    # numbers
    wanted: NotRequired[int | str]
    most: NotRequired[str]
    free: NotRequired[bool]
    devices: NotRequired[int]
    count: NotRequired[int]
    total: NotRequired[int]
    without: NotRequired[int]
    limit: NotRequired[int]
    less: NotRequired[bool]
    more: NotRequired[int]
    priority: NotRequired[int]
    by: NotRequired[int]

    # in words
    example: NotRequired[str]
    say: NotRequired[str]
    see: NotRequired[str]
    why: NotRequired[str]
    text: NotRequired[str]

    # of a member of a group that fails
    member: NotRequired[dict[str, Any]]
    reason: NotRequired[str]
    cause: NotRequired[dict[str, Any]]
    nodes: NotRequired[list[dict[str, Any]]]
    lack: NotRequired[bool]


class _ClaimAnswer(TypedDict):
    """What the answers for claims of both dialects have."""

    namespace: str
    name: str
    allocated: bool
    node: str | None
    oneOf: list[int | None] | None
    """The alternative that was chosen for each request; None if it has none."""
    reason: str | None
    """A code of ``Reason``, if the claim is not allocated."""
    message: str | None
    """Cause and remedy in at most 120 characters."""
    verdict: NotRequired[str]
    """How final the reason is."""
    causes: NotRequired[list[CauseDict]]
    """What stands in the way, the most telling first."""
    warnings: NotRequired[list[str]]
    funnel: NotRequired[list[FunnelDict]]
    blockers: NotRequired[list[Blocker]]
    """All that would have to change."""
    alternatives: NotRequired[list[Blocker]]
    """Of these, each would do instead of ``blockers``."""
    caveats: NotRequired[list[Literal["notSmallest", "notEnough", "othersUnknown", "nothingLeft"]]]
    """What is not certain of ``blockers``: that there are no fewer, or that no other claims block it too; or that they
    leave out all that is requested."""
    missingDrivers: NotRequired[list[str]]
    """Drivers that the claim's class names and of which no device exists. Then that is the reason."""
    invalidPools: NotRequired[list[str]]
    """Pools of these drivers that are left out, and why."""
    exceeded: NotRequired[Literal["expression", "common", "device", "time"]]
    """The bound that the claim's expressions exceeded."""


# -- DeviceClaims ------------------------------------------------------------------------------------------------------


class ResourceAllocationDict(TypedDict):
    name: str
    allocation: str
    """A quantity such as 5Gi."""


class DeviceAllocationDict(TypedDict):
    """An entry of ``status.allocations`` of a DeviceClaim."""

    devicePoolName: str
    deviceName: str
    allocations: NotRequired[list[ResourceAllocationDict]]


class LostDevice(TypedDict):
    """A device that the claim has and that no longer exists."""

    devicePoolName: str
    deviceName: str


class ClaimAnswerDict(_ClaimAnswer):
    """The answer to a DeviceClaim: its devices, or the reason why it has none."""

    allocations: list[DeviceAllocationDict]
    """In the order of the requests; empty if the claim is not allocated."""
    annotations: NotRequired[dict[str, str]]
    """To write on the claim together with the allocation."""
    classConfigs: NotRequired[list[dict[str, Any]]]
    classConfigAllocations: NotRequired[list[list[int]]]
    claimConfigs: NotRequired[list[dict[str, Any]]]
    lost: NotRequired[list[LostDevice]]


class _Solution(TypedDict):
    objective: ObjectiveDict
    optimal: bool
    """Whether the numbers of satisfied claims of every priority are proven maximal."""
    seconds: float
    problems: list[ProblemDict]
    unproven: NotRequired[list[str]]
    """NAMESPACE/NAME of claims for which the time was too short."""


class SolutionDict(_Solution):
    """The answer to DeviceClaims."""

    claims: list[ClaimAnswerDict]
    """Ordered by namespace and name."""


# -- ResourceClaims ----------------------------------------------------------------------------------------------------


class DeviceRequestResult(TypedDict):
    """A device of a ResourceClaim, as in the API."""

    request: str
    driver: str
    pool: str
    device: str
    adminAccess: NotRequired[bool]
    tolerations: NotRequired[list[dict[str, Any]]]
    bindingConditions: NotRequired[list[str]]
    bindingFailureConditions: NotRequired[list[str]]
    shareID: NotRequired[str]
    consumedCapacity: NotRequired[dict[str, str]]


class DeviceAllocationResult(TypedDict, total=False):
    results: list[DeviceRequestResult]
    config: list[dict[str, Any]]


class AllocationResult(TypedDict, total=False):
    """``status.allocation`` of a ResourceClaim; without keys if it is not allocated."""

    devices: DeviceAllocationResult
    nodeSelector: dict[str, Any]
    allocationTimestamp: str


class LostResultDevice(TypedDict):
    """A device that the claim has and that no longer exists."""

    driver: str
    pool: str
    device: str


class ResourceClaimAnswerDict(_ClaimAnswer):
    """The answer to a ResourceClaim: its devices, or the reason why it has none."""

    allocations: AllocationResult
    unreachedDevices: NotRequired[int]
    """Devices whose node selectors select none of the nodes, if that may be why no device matches."""
    annotations: NotRequired[dict[str, str]]
    """To write on the claim together with the allocation. Without them, a device that is no longer published counts as
    all of its pool (S18)."""
    lost: NotRequired[list[LostResultDevice]]


class ResourceSolutionDict(_Solution):
    """The answer to ResourceClaims."""

    claims: list[ResourceClaimAnswerDict]


class ClaimFunnels(TypedDict):
    namespace: str
    name: str
    requests: list[FunnelDict]


class PoolState(TypedDict):
    """A pool of which not all devices can be allocated."""

    name: str
    state: str
    why: str


class IgnoredSlice(TypedDict):
    name: str
    why: str


class ExplanationDict(TypedDict):
    """What ``dra.explain`` returns."""

    reason: str | None
    message: str | None
    verdict: NotRequired[str]
    causes: NotRequired[list[CauseDict]]
    blockers: list[Blocker]
    alternatives: NotRequired[list[Blocker]]
    caveats: NotRequired[list[Literal["notSmallest", "notEnough", "othersUnknown", "nothingLeft"]]]
    claims: list[ClaimFunnels]
    pools: list[PoolState]
    ignored: list[IgnoredSlice]
