"""Feature gates of resource.k8s.io: which parts of the API are switched on (settled D1).

A gate has its name in Kubernetes and a short one without the prefix; both are understood.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from devalloc.api.quantity import type_name
from devalloc_solver.dialects.resource_k8s.fields import AllocationError

ADMIN_ACCESS = "DRAAdminAccess"
BINDING_CONDITIONS = "DRADeviceBindingConditions"
COMPATIBILITY_GROUPS = "DRADeviceCompatibilityGroups"
CONSUMABLE_CAPACITY = "DRAConsumableCapacity"
DERIVED_ATTRIBUTES = "DRADerivedAttributes"
DEVICE_TAINTS = "DRADeviceTaints"
FRACTIONAL_RANGE = "DRAFractionalCapacityRange"
LIST_ATTRIBUTES = "DRAListTypeAttributes"
NODE_ALLOCATABLE = "DRANodeAllocatableResources"
OPTIONAL_NODE_OPERATIONS = "DRAOptionalNodeOperations"
PARTITIONABLE_DEVICES = "DRAPartitionableDevices"
PRIORITIZED_LIST = "DRAPrioritizedList"

DEFAULT_GATES = frozenset(
    (
        ADMIN_ACCESS,
        BINDING_CONDITIONS,
        CONSUMABLE_CAPACITY,
        DEVICE_TAINTS,
        FRACTIONAL_RANGE,
        LIST_ATTRIBUTES,
        PARTITIONABLE_DEVICES,
        PRIORITIZED_LIST,
    )
)
"""All gates up to beta, and lists."""

_ALPHA = frozenset((COMPATIBILITY_GROUPS, DERIVED_ATTRIBUTES, NODE_ALLOCATABLE, OPTIONAL_NODE_OPERATIONS))
_ELSEWHERE = frozenset(
    (
        "DynamicResourceAllocation",
        "DRADeviceTaintRules",
        "DRAExtendedResource",
        "DRAPartitionableDevicesType",
        "DRAResourceClaimDeviceStatus",
        "DRASchedulerFilterTimeout",
        "DRAWorkloadResourceClaims",
    )
)
"""Gates of other components: they change nothing here."""

_NAMES = {
    **{name: name for name in (*DEFAULT_GATES, *_ALPHA, *_ELSEWHERE)},
    **{name.removeprefix("DRA"): name for name in (*DEFAULT_GATES, *_ALPHA, *_ELSEWHERE)},
    "DeviceBindingAndStatus": BINDING_CONDITIONS,
    f"{BINDING_CONDITIONS}+DRAResourceClaimDeviceStatus": BINDING_CONDITIONS,
    "CompatibilityGroups": COMPATIBILITY_GROUPS,
    "BindingConditions": BINDING_CONDITIONS,
    "FractionalRange": FRACTIONAL_RANGE,
}


def read_gates(names: Iterable[str] | None) -> frozenset[str]:
    """The gates that are on, by their names in Kubernetes; None for the default.

    Raises AllocationError for a name that no gate has.
    """
    if names is None:
        return DEFAULT_GATES
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise AllocationError(f"features: must be a list of feature gates, not {type_name(names)}")
    gates = set()
    for name in names:
        if not isinstance(name, str):
            raise AllocationError(f"features: a feature gate must be a string, not {type_name(name)}")
        if name not in _NAMES:
            near = get_close_matches(name, _NAMES, 1)
            advice = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(DEFAULT_GATES))}"
            raise AllocationError(f"features: no feature gate is named {name!r}; {advice}")
        gates.add(_NAMES[name])
    return frozenset(gates)
