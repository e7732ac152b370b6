"""Object metadata, and the annotations that devalloc reads and writes."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field

from devalloc.api.fields import ApiModel, Int64, LabelName, PlainName, SubdomainName, Text

DEVMGMT: Final = "devmgmtproto.k8s.io/v1alpha1"
"""API version of DevicePool, DeviceClass and DeviceClaim."""
DEVALLOC: Final = "devalloc.io/v1alpha1"
"""API version of everything the device management API does not have."""

PRIORITY = "devalloc.io/priority"
"""On a claim: an integer, default 0; higher is satisfied first (S17)."""
GROUP = "devalloc.io/group"
"""On a claim: claims of one namespace and group share a node and are satisfied all or none (S7)."""
GROUP_MATCH = "devalloc.io/group-match"
"""On a claim with a group: names of attributes, separated by commas, on which its devices agree with those of all
members of the group that name them too, as matchAttributes does within one claim (S15)."""
NODE = "devalloc.io/node"
"""On a claim: the only node whose devices may be used. Users write it, the allocator never does (S7)."""
ALLOCATED_NODE = "devalloc.io/allocated-node"
"""On an allocated claim: the node its devices are on (S2)."""
ALLOCATED_DEVICES = "devalloc.io/allocated-devices"
"""On an allocated claim: its devices as a text for people, such as "card-a/gpu-0, gpu-1". Nothing reads it back."""
ALLOCATION_DETAILS = "devalloc.io/allocation-details"
"""On an allocated claim: a JSON list with the index into spec.claims of each entry, such as ["0","1.0"] (S18)."""
ALLOCATED_SPEC = "devalloc.io/allocated-spec"
"""On an allocated claim: its spec as of the allocation, as JSON, which counts until the claim is released (S18)."""
ADMIN_CLASSES = "devalloc.io/admin-classes"
"""On an allocated claim: a JSON list of the classes it names that had admin access at its allocation, if any (S14)."""
REASON = "devalloc.io/reason"
"""On a claim: the code of why it is not allocated, or of what is wrong with its allocation. Gone when all is well."""
MESSAGE = "devalloc.io/message"
"""On a claim with a reason: the same as a sentence for people."""
NODE_FINALIZER = "devalloc.io/node"
"""Finalizer of a claim that is prepared: its node sets it before it touches the first device, and removes it after it
put back the last. While it is there the claim's devices are neither released nor given to others."""
TOLERATED_TAINTS = "devalloc.io/tolerated-taints"
"""On a Kubernetes Node: keys of taints, separated by commas, in spite of which claims and machines get its devices."""
PREPARED_ON = "devalloc.io/prepared-on"
"""On a claim with that finalizer: the node that set it, and alone may remove it."""
RELEASE = "devalloc.io/release"
"""On an allocated claim: its devices are wanted back, whoever uses them. Its node ends the machines that do not let go;
then the allocator releases the claim and removes this."""
RELEASES = ("asked", "forced")
"""Its values. A node does the same for both."""
LEADER = "devalloc.io/leader"
"""On a claim without devices and on a machine: which leader of the controller took over last while it was so. What one
before it still writes is based on a state without that (``devalloc.controller.seal``)."""
TRANSACTION = "devalloc.io/transaction"
"""On an object of a cluster that is being written together with others: what it says does not count until this is gone.
Also the label of the records of such transactions."""
ADMIN_ACCESS = "devalloc.io/admin-access"
"""A label of namespaces, "true": claims there may name classes with admin access (S14), where that is asked for."""
CORDONED = "devalloc.io/cordoned"
"""On a pool: a JSON map from device names ("*": all) to who keeps them from being allocated, and why (T17)."""
CORDONED_NODE = "devalloc.io/cordoned-node"
"""On each pool of a node that is cordoned as a whole: by whom, and why."""
PUBLISHED_BY = "devalloc.io/published-by"
"""A label of pools that a node's inventory publishes and may change and delete; other pools are left alone."""
UNAVAILABLE = "devalloc.io/unavailable"
"""A device attribute: why only admin claims may have the device (S6a)."""
ONLY_CLASS = "devalloc.io/class"
"""A device attribute: the one class through which it is had, by a detail that names it; others pass it by. So a claim
for any device of any driver never gets the CPUs of a host. Admin claims see it all the same."""
COMPATIBILITY_GROUP = "devalloc.io/compatibilityGroup"
"""A device attribute: devices of one pool are allocated together only when they carry the same value (S12a)."""

_RFC3339 = re.compile(r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})", re.ASCII)


def parse_time(text: str) -> datetime:
    """A timestamp of object metadata as a time with zone. Raises ValueError."""
    if _RFC3339.fullmatch(text) is None:
        raise ValueError(f"must be an RFC 3339 time such as 2026-01-31T12:00:00Z, not {text[:40]!r}")
    return datetime.fromisoformat(text.upper().replace("Z", "+00:00"))


def _timestamp(text: str) -> str:
    parse_time(text)
    return text


Timestamp = Annotated[str, AfterValidator(_timestamp)]


class ObjectMeta(ApiModel):
    """The metadata every object carries, as Kubernetes has it."""

    name: SubdomainName
    namespace: LabelName | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    uid: PlainName | None = None
    resource_version: str | None = None
    generation: Int64 | None = None
    generate_name: str | None = None
    creation_timestamp: Timestamp | None = None
    deletion_timestamp: Timestamp | None = None
    deletion_grace_period_seconds: Int64 | None = None
    finalizers: list[str] = Field(default_factory=list)
    owner_references: list[dict[str, Any]] = Field(default_factory=list)
    managed_fields: list[dict[str, Any]] = Field(default_factory=list)
    self_link: str | None = None


class Condition(ApiModel):
    """One observation of an object's state (``metav1.Condition``)."""

    type: PlainName
    status: Text
    """True, False or Unknown."""
    observed_generation: Int64 | None = None
    last_transition_time: Text = ""
    reason: Annotated[str, Field(max_length=1024)] = ""
    message: Annotated[str, Field(max_length=32768)] = ""
