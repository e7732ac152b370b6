"""The labels and annotations that devalloc reads and writes."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

DEVMGMT: Final = "devmgmtproto.k8s.io/v1alpha1"
"""API version of DevicePool, DeviceClass and DeviceClaim."""
DEVALLOC: Final = "devalloc.io/v1alpha1"
"""API version of the kinds that the device management API does not have."""

DOMAIN: Final = "devalloc.io"
"""Of labels and annotations that devalloc defines."""
MetadataField = Literal["annotations", "labels"]
REPLICA_SET = "devalloc.io/replica-set"
"""A label of machines: the name of the VirtualMachineReplicaSet that created them."""
PRIORITY = "devalloc.io/priority"
"""On a claim: an integer, default 0; higher priorities are satisfied first (S17)."""
GROUP = "devalloc.io/group"
"""On a claim: claims of one namespace and group get one node together, or nothing (S7)."""
GROUP_MATCH = "devalloc.io/group-match"
"""On a claim with a group: attribute names, separated by commas. Its devices and those of all members that list the
same attribute must have the same value of it, like matchAttributes within one claim (S15)."""
NODE = "devalloc.io/node"
"""On a claim: the only node whose devices may be used. Only users write it, never the allocator (S7)."""
EXCLUDED_NODES = "devalloc.io/excluded-nodes"
"""On a claim: nodes on which it must not be, separated by commas. Only users write it, never the allocator (S7)."""
ALLOCATED_NODE = "devalloc.io/allocated-node"
"""On an allocated claim: the node of its devices (S2)."""
NODE_LABEL = "devalloc.io/allocated-node"
"""A label of claims and machines that belong to a node: ``node_label`` of its name. The controller writes it, and the
node watches only objects that have it. It has no other effect."""
ALLOCATED_DEVICES = "devalloc.io/allocated-devices"
"""On an allocated claim: its devices as text, such as "card-a/gpu-0, gpu-1". Programs do not read it."""
ALLOCATION_DETAILS = "devalloc.io/allocation-details"
"""On an allocated claim: a JSON list with the index into spec.claims of each entry, such as ["0","1.0"] (S18)."""
ALLOCATED_IDENTITIES = "devalloc.io/allocated-identities"
"""On an allocated claim: a JSON map from its devices (pool/device) to what they were at the allocation: vendor, device,
subsystem, serial number, UUID, as far as their pools have them. A node refuses another device at the same place."""
DEVICE_RECORDS = "devalloc.io/device-records"
"""On an allocated claim: a JSON object with what each of its devices drew of its pool, and its compatibility group. It
counts when the pool publishes the device no longer, or with less (S18)."""
ALLOCATED_SPEC = "devalloc.io/allocated-spec"
"""On an allocated claim: its spec at the allocation, as JSON, which counts until the claim is released (S18)."""
ADMIN_CLASSES = "devalloc.io/admin-classes"
"""On an allocated claim: a JSON list of the classes it names that had admin access at its allocation, if any (S14)."""
REASON = "devalloc.io/reason"
"""On a claim of an embedded store: the code of the reason why it is not allocated, or of the problem with its
allocation. Absent if there is none. On a cluster it is in the condition ``Allocated``, and here as well if the
controller has ``--reason-annotations``."""
MESSAGE = "devalloc.io/message"
"""On a claim with a reason: the same as a sentence."""
NODE_FINALIZER = "devalloc.io/node"
"""Finalizer of a prepared claim: its node sets it before it changes the first device, and removes it after it has
restored the last. Meanwhile the claim's devices are neither released nor allocated to others."""
TOLERATED_TAINTS = "devalloc.io/tolerated-taints"
"""On a Kubernetes Node: keys of taints, separated by commas, that do not keep claims and machines off its devices."""
PREPARED_ON = "devalloc.io/prepared-on"
"""On a claim with the finalizer devalloc.io/node: the node that set it, and that alone may remove it."""
RELEASE = "devalloc.io/release"
"""On an allocated claim: take its devices back even while they are in use. Its node ends machines that do not release
them; then the allocator releases the claim and removes this annotation."""
RELEASES = ("asked", "forced")
"""Its values. A node treats both in the same way."""
EVICT = "devalloc.io/evict"
"""On a machine: the node that it must leave. If this is its node, the node powers it down and lets it go; then the
controller releases its claims, removes this annotation, and places the machine anew. No other value has an effect, nor
has this one without ``LAST_NODE`` while the node has the machine."""
LAST_NODE = "devalloc.io/last-node"
"""On a machine that left a node: the node that has its disks, UEFI variables and TPM. Until its spec names a node, it
is placed there, or where all of these can be reached."""
RESTART = "devalloc.io/restart"
"""On a machine: any text. If it is another one than the machine was started with, its node powers the machine down and
starts it again, in its place."""
FENCED_FROM = "devalloc.io/fenced-from"
"""On a claim or machine that was taken away from fenced nodes: the names of these nodes, separated by commas. A node
that comes back ends what it still runs or has prepared for the object before anything else, then removes its name."""
FENCED_NODE = "devalloc.io/fenced-node"
"""On each pool of a fenced node: who stated that the node is powered off, and why. On a cluster whose Node exists, the
taint ``OUT_OF_SERVICE`` states it instead."""
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
"""Key of the taint with which an admin of a Kubernetes cluster states that a node is powered off. It has an effect here
while the Node is not Ready."""
POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
"""Annotation of a ResourceClaim that Kubernetes made from a template: what its pod calls it."""
LEADER = "devalloc.io/leader"
"""On a claim without devices and on a machine: the last controller that became leader meanwhile. Late writes of earlier
leaders are based on a state without it, so they fail (``devalloc.store.fencing``)."""
LABELS_NODES = "devalloc.io/labels-nodes"
"""On the controller's Lease: the number of its transitions as of which the leader writes ``NODE_LABEL`` on all objects
that need it. While that is the present number, nodes watch only what has their label: a leader of an earlier version
changes the number, and not this."""
CONTROLLER_LEASE = "devalloc-controller"
"""The name of the Lease whose holder leads."""
TRANSACTION = "devalloc.io/transaction"
"""On an object of a cluster that is being written together with others: its new content does not count until this is
removed. Also the label of the records of such transactions."""
ADMIN_ACCESS = "devalloc.io/admin-access"
"""A label of namespaces, "true": claims there may name classes with admin access (S14), if the label is required."""
CORDONED = "devalloc.io/cordoned"
"""On a pool: a JSON map from the names of cordoned devices ("*": all) to who cordoned them, and why (T17)."""
CORDONED_NODE = "devalloc.io/cordoned-node"
"""On each pool of a cordoned node: who cordoned the node, and why."""
PUBLISHED_BY = "devalloc.io/published-by"
"""A label of pools that a node's inventory publishes, and may change and delete; it does not touch other pools."""
STANDALONE = "devalloc.io/standalone"
"""A label of pools that `devalloc up` publishes: which host they are of. It withdraws them when its name changes."""
PUBLISH = "devalloc.io/publish"
"""A label of nodes: how to publish their devices. It also selects the nodes of devalloc's pods (``deploy``)."""
UNAVAILABLE = "devalloc.io/unavailable"
"""A device attribute: why only admin claims may have the device (S6a)."""
ONLY_CLASS = "devalloc.io/class"
"""A device attribute: the only class that gives access to the device; requests that do not name the class skip it. So a
claim for any device of any driver never gets the CPUs of a host. Admin claims can still observe it."""
COMPATIBILITY_GROUP = "devalloc.io/compatibilityGroup"
"""A device attribute: devices of one pool can be allocated at the same time only if they have the same value (S12a)."""


@dataclass(frozen=True, slots=True)
class MetadataKey:
    """A label or annotation, and the kinds of objects on which it has a meaning."""

    place: MetadataField
    name: str
    kinds: tuple[str, ...]
    by_users: bool = False
    """whether users write it; devalloc itself writes the others"""
    values: tuple[str, ...] = ()
    """all valid values, if there are only a few; others have no effect"""


_CLAIM, _RESOURCE_CLAIM, _MACHINE = "DeviceClaim", "ResourceClaim", "VirtualMachine"
_MARKED_KINDS = (_CLAIM, _RESOURCE_CLAIM, _MACHINE, "DevicePool", "DeviceClass", "ResourceQuota")
"""Kinds whose objects the controller may mark."""
KEYS: Final = (
    MetadataKey("annotations", PRIORITY, (_CLAIM, _RESOURCE_CLAIM, _MACHINE), by_users=True),
    MetadataKey("annotations", GROUP, (_CLAIM, _RESOURCE_CLAIM), by_users=True),
    MetadataKey("annotations", GROUP_MATCH, (_CLAIM,), by_users=True),
    MetadataKey("annotations", NODE, (_CLAIM,), by_users=True),
    MetadataKey("annotations", EXCLUDED_NODES, (_CLAIM,), by_users=True),
    MetadataKey("annotations", RELEASE, (_CLAIM,), by_users=True, values=RELEASES),
    MetadataKey("annotations", EVICT, (_MACHINE,)),
    MetadataKey("annotations", LAST_NODE, (_MACHINE,)),
    MetadataKey("annotations", RESTART, (_MACHINE,), by_users=True),
    MetadataKey("annotations", ALLOCATED_NODE, (_CLAIM,)),
    MetadataKey("annotations", ALLOCATED_DEVICES, (_CLAIM,)),
    MetadataKey("annotations", ALLOCATION_DETAILS, (_CLAIM,)),
    MetadataKey("annotations", ALLOCATED_IDENTITIES, (_CLAIM,)),
    MetadataKey("annotations", DEVICE_RECORDS, (_CLAIM, _RESOURCE_CLAIM)),
    MetadataKey("annotations", ALLOCATED_SPEC, (_CLAIM,)),
    MetadataKey("annotations", ADMIN_CLASSES, (_CLAIM,)),
    MetadataKey("annotations", REASON, (_CLAIM,)),
    MetadataKey("annotations", MESSAGE, (_CLAIM, "DeviceTaintRule")),
    MetadataKey("annotations", PREPARED_ON, (_CLAIM, _MACHINE)),
    MetadataKey("annotations", FENCED_FROM, (_CLAIM, _MACHINE)),
    MetadataKey("annotations", LEADER, _MARKED_KINDS),
    MetadataKey("annotations", TRANSACTION, _MARKED_KINDS),
    MetadataKey("annotations", CORDONED, ("DevicePool",)),
    MetadataKey("annotations", CORDONED_NODE, ("DevicePool",)),
    MetadataKey("annotations", FENCED_NODE, ("DevicePool",)),
    MetadataKey("annotations", LABELS_NODES, ("Lease",)),
    MetadataKey("annotations", TOLERATED_TAINTS, ("Node",), by_users=True),
    MetadataKey("labels", PUBLISH, ("Node",), by_users=True, values=("slices", "pools", "host", "set-aside", "none")),
    MetadataKey("labels", ADMIN_ACCESS, ("Namespace",), by_users=True, values=("true",)),
    MetadataKey("labels", PUBLISHED_BY, ("DevicePool",)),
    MetadataKey("labels", STANDALONE, ("DevicePool",)),
    MetadataKey("labels", LEADER, _MARKED_KINDS),
    MetadataKey("labels", NODE_LABEL, (_CLAIM, _MACHINE)),
    MetadataKey("labels", REPLICA_SET, (_MACHINE,)),
    MetadataKey("labels", TRANSACTION, ("ConfigMap",)),
)
"""Those of this module: each name above that is one has a row."""

_RFC3339 = re.compile(r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})", re.ASCII)


_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)


def is_label_value(text: str) -> bool:
    """Whether a label can have it as its value, or as its name behind a prefix."""
    return _LABEL_VALUE.fullmatch(text) is not None


def node_label(node_name: str) -> str:
    """The value of the label ``NODE_LABEL`` for a node: its name, or a hash if a label cannot have the name. Two nodes
    with the same value would get each other's events, and no more."""
    if is_label_value(node_name):
        return node_name
    return f"sha256-{hashlib.sha256(node_name.encode()).hexdigest()[:40]}"


def is_promised(lease: dict[str, Any], name: str) -> bool:
    """Whether the holder of a Lease keeps the promise that this annotation is, or the last holder did until the end."""
    annotations, spec = lease["metadata"].get("annotations") or {}, lease.get("spec") or {}
    return bool(annotations.get(name) == str(spec.get("leaseTransitions", 0)))


def parse_time(text: str) -> datetime:
    """Parse a timestamp of object metadata to a time with a time zone. Raises ValueError."""
    if _RFC3339.fullmatch(text) is None:
        raise ValueError(f"must be an RFC 3339 time such as 2026-01-31T12:00:00Z, not {text[:40]!r}")
    return datetime.fromisoformat(text.upper())
