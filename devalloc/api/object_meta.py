"""The models of object metadata and conditions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from devalloc.api.fields import ApiModel, Int64, LabelName, PlainName, SubdomainName, Text, Unit
from devalloc.api.meta import parse_time


def _timestamp(text: str) -> str:
    parse_time(text)
    return text


Timestamp = Annotated[str, AfterValidator(_timestamp)]


class ObjectMeta(ApiModel):
    """The metadata of every object, as in Kubernetes."""

    name: SubdomainName
    """The name, unique among the objects of this kind in its namespace, or in the cluster."""
    namespace: LabelName | None = None
    """The namespace of a namespaced object; default by default (S1)."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Names and values by which to select objects."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Names and values that programs read. devalloc defines those that start with devalloc.io/."""
    uid: PlainName | None = None
    """The identity of this object: another object that gets the same name later has another one."""
    resource_version: str | None = None
    """The version of the stored object. A write with an older version fails."""
    generation: Int64 | None = None
    """A number that the store increases with each change of the spec."""
    generate_name: str | None = None
    """The start of a name that Kubernetes completes; devalloc itself needs a name."""
    creation_timestamp: Timestamp | None = None
    """When the store created the object; RFC 3339."""
    deletion_timestamp: Timestamp | None = None
    """When the object was deleted; it goes away once it has no finalizers."""
    deletion_grace_period_seconds: Annotated[Int64, Unit("seconds")] | None = None
    """The time for a graceful end, as Kubernetes sets it."""
    finalizers: list[str] = Field(default_factory=list)
    """Names that keep a deleted object until their owners have cleaned up."""
    owner_references: list[dict[str, Any]] = Field(default_factory=list)
    """Objects that own this one, as Kubernetes sets them."""
    managed_fields: list[dict[str, Any]] = Field(default_factory=list)
    """Which program wrote which field, as Kubernetes records it."""
    self_link: str | None = None
    """Unused; older Kubernetes set it."""


class Condition(ApiModel):
    """One observation of an object's state (``metav1.Condition``)."""

    type: PlainName
    """What was observed, such as Ready."""
    status: Text
    """True, False or Unknown."""
    observed_generation: Int64 | None = None
    """The generation of the object that was observed."""
    last_transition_time: Text = ""
    """When the status changed last; RFC 3339."""
    reason: Annotated[str, Field(max_length=1024)] = ""
    """A code for the status."""
    message: Annotated[str, Field(max_length=32768)] = ""
    """The same as a sentence."""
