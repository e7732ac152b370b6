"""NeonVM's machines (``vm.neon.tech``) as the ledgers read them, and where their permits are written.

NeonVM runs them, and its own status is not ours to write. So a permit is an annotation of the object, and holds for the
runner pod that it names. Their agents ask by that pod. Beside it the permit is written as Neon's scheduler reads it,
which places runner pods and counts a machine by what it believes to have approved.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from devalloc.api.kinds import qualified_kind
from devalloc.api.views import as_mapping
from devalloc.controller.permits.vm_state import (
    ANNOTATION_BILLING,
    OVERCOMMIT,
    USAGE,
    VmCondition,
    VmState,
    annotated_json,
    bytes_text,
    cpus_text,
    read_amounts,
    read_overcommit,
    read_usage,
)
from devalloc.scaling.permits.ledger import NO_RESOURCES
from devalloc.scaling.resources import Resources
from devalloc.scaling.vm_info import VmInfo, from_vm
from devalloc.store import Change, Object
from devalloc.store import Key as ObjectKey
from devalloc.store.kubernetes.resources import ApiResource

log = logging.getLogger(__name__)

GROUP = "vm.neon.tech"
NEON_MACHINES = ApiResource("VirtualMachine", GROUP, "v1", "virtualmachines", True, False, is_optional=True)
"""Its status is NeonVM's alone."""
KIND = NEON_MACHINES.store_kind
PERMIT = "devalloc.io/permitted"
"""The annotation with a permit: JSON as ``status.permitted`` of a VirtualMachine, with ``runnerPod``."""
SCALING_UNIT = "autoscaling.neon.tech/scaling-unit"
REQUESTED = "internal.autoscaling.neon.tech/resources-requested"
APPROVED = "internal.autoscaling.neon.tech/resources-approved"
"""Annotations from which Neon's scheduler reads what a machine has of its node. Equal ones it leaves alone."""
_RUNS = frozenset({"Running", "Scaling", "PreMigrating", "Migrating"})
_MIGRATES = frozenset({"PreMigrating", "Migrating"})
_HAS_ENDED = frozenset({"Succeeded", "Failed"})


def is_neon_vm(obj: Mapping[str, Any]) -> bool:
    """Whether NeonVM runs it."""
    return qualified_kind(str(obj.get("kind")), obj.get("apiVersion")) == KIND


def read_neon_vm(obj: Object) -> VmState | None:
    """What counts of an object; None for one that is on no node or has ended."""
    metadata, status = obj["metadata"], as_mapping(obj.get("status"))
    node, phase, pod = (_text(status.get(name)) for name in ("node", "phase", "podName"))
    if not node or phase in _HAS_ENDED:
        return None
    info, is_readable = _read_info(obj)
    if info is None:
        log.warning("cannot read the amounts of NeonVM machine %s/%s", metadata["namespace"], metadata["name"])
        return None
    slot = info.memory.slot_size
    annotations = as_mapping(metadata.get("annotations"))
    permit, previous = _permit(annotations, pod, info)
    return VmState(
        key=(metadata["namespace"], f"{GROUP}/{metadata['name']}"),
        node=node,
        least=info.min,
        most=info.min.most(info.max),
        use=_use(info, status, annotations),
        permit=permit,
        previous=previous,
        slot=slot,
        wire_slot=slot,
        runs=phase in _RUNS,
        scaled=info.scaling_enabled and is_readable,
        movable=False,
        must_move=False,
        reserve_max=False,
        billed_to=_text(annotations.get(ANNOTATION_BILLING)),
        overcommit=read_overcommit(annotations.get(OVERCOMMIT)),
        runner_pod=(metadata["namespace"], pod) if pod else None,
        created=_text(metadata.get("creationTimestamp")),
        migrating=VmCondition(True, phase, "") if phase in _MIGRATES else None,
        should_migrate=None,
        machine_id=pod,
        is_own=False,
    )


def upper_bound(obj: Object) -> Resources | None:
    """The most that a machine may have, wherever it is; None if that cannot be read."""
    info, _ = _read_info(obj)
    return None if info is None else info.min.most(info.max)


def _read_info(obj: Object) -> tuple[VmInfo | None, bool]:
    """Its amounts, and whether its annotations can be read. If not, that ends its scaling, as with its own agents; what
    it has counts all the same."""
    if (info := from_vm(obj).info) is not None:
        return info, True
    return from_vm({**obj, "metadata": {**obj["metadata"], "annotations": {}}}).info, False


def neon_permit_change(
    obj: Object, *, permit: Resources | None, previous: Resources, unit: Resources, given_by: str
) -> Change:
    """What to write on an object. ``permit``: None takes the record of one away. ``unit``: of what is approved."""
    metadata, text = obj["metadata"], None
    annotations = as_mapping(metadata.get("annotations"))
    if permit is not None:
        content: dict[str, Any] = {
            "cpus": cpus_text(permit.cpu),
            "memory": bytes_text(permit.memory),
            "givenBy": given_by,
            "runnerPod": _text(as_mapping(obj.get("status")).get("podName")),
        }
        if previous != NO_RESOURCES:
            content["kept"] = {"cpus": cpus_text(previous.cpu), "memory": bytes_text(previous.memory)}
        before = as_mapping(annotated_json(annotations.get(PERMIT)))
        if {**before, "givenBy": given_by} == content:
            content = before  # the same permit, which another server gave
        text = json.dumps(content, separators=(",", ":"))
    wanted = {PERMIT: text}
    if permit is not None:
        counted = _for_scheduler(permit.most(previous))
        wanted |= {SCALING_UNIT: _for_scheduler(unit), REQUESTED: counted, APPROVED: counted}
    elif PERMIT in annotations:
        wanted |= dict.fromkeys((SCALING_UNIT, REQUESTED, APPROVED))
    changed = {name: value for name, value in wanted.items() if annotations.get(name) != value}
    return Change(ObjectKey.of(obj), metadata["resourceVersion"], obj.get("status"), changed)


def _for_scheduler(amounts: Resources) -> str:
    content = {"vCPUs": cpus_text(amounts.cpu), "mem": bytes_text(amounts.memory)}
    return json.dumps(content, separators=(",", ":"))


def _permit(annotations: Mapping[str, Any], pod: str, info: VmInfo) -> tuple[Resources | None, Resources]:
    """The permit of this run of it, and what it may go by beside that. One that cannot be read is none of them: then
    its agent asks for the first time."""
    content = annotated_json(annotations.get(PERMIT))
    if content is None or not pod or content.get("runnerPod") != pod:
        return None, NO_RESOURCES
    return read_amounts(content, info.max), read_amounts(as_mapping(content.get("kept")), info.max)


def _use(info: VmInfo, status: Mapping[str, Any], annotations: Mapping[str, Any]) -> Resources:
    """What it has or its spec asks for, whichever is more."""
    observed = read_amounts({"cpus": status.get("cpus"), "memory": status.get("memorySize")}, info.max)
    return info.using.most(observed).most(read_usage(annotations.get(USAGE), info.max))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
