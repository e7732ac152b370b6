"""NeonVM's machines (``vm.neon.tech``) as the ledgers read them, and where their permits are written.

NeonVM runs them, and its own status is not ours to write. So a permit is an annotation of the object, and holds for the
runner pod that it names. Their agents ask by that pod. Beside it the permit is written as Neon's scheduler reads it,
which places runner pods and counts a machine by what it believes to have approved.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from devalloc.api.meta import LEADER
from devalloc.api.quantity import NANO, Quantity, QuantityError
from devalloc.api.views import ObjectView, as_mapping, as_mappings
from devalloc.machines.permits.decide import PermitRecord
from devalloc.machines.permits.ledger import MachineReading, VmCondition, VmState
from devalloc.machines.permits.runner_usage import PodOwner, RunnerPod
from devalloc.machines.permits.sources import (
    annotated_json,
    bytes_text,
    cpus_text,
    permit_content,
    read_amounts,
    read_overcommit,
    read_usage,
)
from devalloc.scaling.resources import ANNOTATION_BILLING, NO_RESOURCES, OVERCOMMIT, USAGE, Resources
from devalloc.store import Change, Conflict, NotFound, Object, Store
from devalloc.store import Key as ObjectKey
from devalloc.store.fencing import FencingInterrupted, fence_object, fence_objects
from devalloc.store.kubernetes.resources import ApiResource
from devalloc.worker import DONE, repeat
from devalloc_neon.runner_pods import has_ended
from devalloc_neon.vm_info import VmInfo, from_pod, from_vm

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
_CONFLICT_SECONDS = 0.1
_UNLIMITED = 1 << 63


@dataclass(frozen=True, slots=True)
class NeonMachines:
    """``MachineSource`` of NeonVM's machines.

    What is written on them passes NeonVM's webhook, which may be down for long. The takeover of claims does not fence
    them: it would wait for the webhook, or for rights that only ``devalloc install --neon`` gives.
    """

    store: Store
    stamp: str = ""
    """What fences the writes of the last leader: a text that no leader had before; empty: there was none."""
    pods: tuple[Store, str] | None = None
    """What has the pods that run them, and their kind (``RUNNER_PODS``); None: they count by their objects alone."""
    patience: float = 2.0
    batch: int = 4
    """They must not use all of the store's threads if the webhook hangs."""
    kind: str = KIND
    prefix: str = f"{GROUP}/"
    name: str = "machines of NeonVM"

    @property
    def is_settled(self) -> bool:
        return not self.stamp

    def read(self, obj: Object) -> MachineReading:
        """Return what an object says. Where a machine moves to, NeonVM's own scheduler keeps room for it."""
        info, is_readable = _read_info(obj)
        owner = PodOwner(str(obj["metadata"].get("uid") or ""), None if info is None else info.min.most(info.max))
        return MachineReading(_state(obj, info, is_readable), owner=owner)

    def read_pod(self, pod: Object) -> RunnerPod | None:
        return read_runner_pod(pod)

    def change(self, obj: Object, record: PermitRecord) -> Change:
        """Return what to write on an object: its permit is in annotations, and conditions are NeonVM's alone."""
        metadata, text, permit = obj["metadata"], None, record.permit
        annotations = as_mapping(metadata.get("annotations"))
        if permit is not None:
            pod = _text(as_mapping(obj.get("status")).get("podName"))
            content = permit_content(permit, record.previous, record.given_by, runnerPod=pod)
            before = as_mapping(annotated_json(annotations.get(PERMIT)))
            if {**before, "givenBy": record.given_by} == content:
                content = before  # the same permit, which another server gave
            text = json.dumps(content, separators=(",", ":"))
        wanted = {PERMIT: text}
        if permit is not None:
            counted = _for_scheduler(permit.most(record.previous))
            wanted |= {SCALING_UNIT: _for_scheduler(record.unit), REQUESTED: counted, APPROVED: counted}
        elif PERMIT in annotations:
            wanted |= dict.fromkeys((SCALING_UNIT, REQUESTED, APPROVED))
        changed = {name: value for name, value in wanted.items() if annotations.get(name) != value}
        return Change(ObjectKey.of(obj), metadata["resourceVersion"], obj.get("status"), changed)

    def settle(self, keys: Sequence[ObjectKey] | None, stop: threading.Event) -> None:
        if keys is None and self.stamp:
            self._fence(stop)
        for key in keys or ():
            what = "cannot have late writes refused"
            repeat(stop, partial(self._settle, key), _CONFLICT_SECONDS, what, fatal=(Exception,))
        self.store.commit_each([])  # settles what the store itself is in doubt of

    def _settle(self, key: ObjectKey) -> float | None:
        """Raises StoreError."""
        try:
            fence_object(self.store.replace, self.store.get(*key))
        except NotFound:
            return DONE
        except Conflict:
            return None
        return DONE

    def _fence(self, stop: threading.Event) -> None:
        """Have late permits of the last leader refused, unless ``stop`` is set. Raises StoreError."""
        # One first: writes that NeonVM's webhook does not answer must not use all of the store's threads.
        there = self.store.list((KIND,)).objects
        first = next((obj for obj in there if ObjectView(obj).annotation(LEADER) != self.stamp), None)
        if first is not None:
            with suppress(Conflict, NotFound):
                fence_object(self.store.replace, first)
        with suppress(FencingInterrupted):
            fence_objects(self.store, self.stamp, stop, kinds=(KIND,))


def _state(obj: Object, info: VmInfo | None, is_readable: bool) -> VmState | None:
    """What counts of an object; None for one that is on no node or has ended."""
    metadata, status = obj["metadata"], as_mapping(obj.get("status"))
    node, phase, pod = (_text(status.get(name)) for name in ("node", "phase", "podName"))
    if not node or phase in _HAS_ENDED:
        return None
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
        kind=KIND,
        is_own=False,
    )


def _read_info(obj: Object) -> tuple[VmInfo | None, bool]:
    """Its amounts, and whether its annotations can be read. If not, that ends its scaling, as with its own agents; what
    it has counts all the same."""
    if (info := from_vm(obj).value) is not None:
        return info, True
    return from_vm({**obj, "metadata": {**obj["metadata"], "annotations": {}}}).value, False


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


# -- their pods -----------------------------------------------------------------------------------------------------


def read_runner_pod(pod: Object) -> RunnerPod | None:
    """Read what counts of a pod; None for one that is on no node, has ended, or runs no machine of NeonVM."""
    metadata, spec = (as_mapping(pod.get(part)) for part in ("metadata", "spec"))
    node, uid = spec.get("nodeName"), _owner_uid(metadata)
    if not isinstance(node, str) or not node or not uid or has_ended(pod):
        return None
    read = from_pod(pod)
    if read.value is None:
        log.warning("runner pod %s/%s does not count: %s", metadata["namespace"], metadata["name"], read.problems[0])
        return None
    usage = read_usage(as_mapping(metadata.get("annotations")).get(USAGE), read.value.max)
    namespace = metadata["namespace"]
    limits = Resources(_limit(spec, "cpu", NANO // 1000), _limit(spec, "memory", NANO))
    most = read.value.min.most(read.value.max)
    account = namespace, f"{GROUP}/pods/{metadata['name']}"
    return RunnerPod(
        (namespace, metadata["name"]), node, (namespace, uid), read.value.using, usage, most, limits, account
    )


def _limit(spec: Mapping[str, Any], resource: str, unit: int) -> int:
    """That of the pod, or else of its containers together, in whole units. If one of them has none, neither has the
    pod; 0 is none."""
    whole, *parts = (
        as_mapping(as_mapping(each.get("resources")).get("limits")).get(resource)
        for each in (spec, *as_mappings(spec.get("containers")))
    )
    try:
        limits = [Quantity.parse(amount).nano for amount in (parts if whole is None else [whole])]
    except QuantityError:
        return _UNLIMITED
    return -(-sum(limits) // unit) if limits and min(limits) > 0 else _UNLIMITED


def _owner_uid(metadata: Mapping[str, Any]) -> str:
    references = metadata.get("ownerReferences")
    for reference in references if isinstance(references, list) else ():
        of = as_mapping(reference)
        if of.get("kind") == "VirtualMachine" and str(of.get("apiVersion")).startswith(f"{GROUP}/"):
            return str(of.get("uid") or "")
    return ""


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
