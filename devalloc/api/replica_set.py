"""VirtualMachineReplicaSet: a number of like machines, each with a disk of its own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from devalloc.api.fields import (
    RELATED,
    ApiModel,
    FieldFault,
    Int64,
    SubdomainName,
    Text,
    is_label,
    raise_faults,
    unique_by,
)
from devalloc.api.meta import DEVALLOC, DOMAIN
from devalloc.api.object_meta import Condition, ObjectMeta
from devalloc.api.virtual_machine import MachineEnd, VirtualMachineSpec

MAX_REPLICAS = 10_000
MAX_NAME = 57
"""Characters of the name: those of its machines have a number behind it, and labels have its name."""
MAX_KEYS = 60
"""Labels, or annotations, of a template: machines have some more of devalloc."""


class TemplateMetadata(ApiModel):
    """Metadata that all machines of the set get."""

    labels: Annotated[dict[str, Text], Field(max_length=MAX_KEYS)] = Field(default_factory=dict)
    """Labels, none of devalloc.io."""
    annotations: Annotated[dict[str, Text], Field(max_length=MAX_KEYS)] = Field(default_factory=dict)
    """Annotations, none of devalloc.io."""

    @model_validator(mode="after")
    def _of_users(self) -> TemplateMetadata:
        places: tuple[tuple[str, dict[str, str]], ...] = (("labels", self.labels), ("annotations", self.annotations))
        raise_faults(
            (((place, name), "is of devalloc, which a template cannot set") for place, names in places for name in names
             if name.startswith(f"{DOMAIN}/")),
            RELATED,
        )  # fmt: skip
        return self


class VirtualMachineTemplate(ApiModel):
    """What the machines of the set are made from."""

    metadata: TemplateMetadata = Field(default_factory=TemplateMetadata)
    """Labels and annotations of the machines."""
    spec: VirtualMachineSpec
    """The spec of the machines. It cannot name what only one machine can have: claims, a QEMU to adopt, a TAP
    interface, a MAC address, a guest's address, or a disk that is neither read-only nor has clone."""

    @model_validator(mode="after")
    def _many_can_have_it(self) -> VirtualMachineTemplate:
        spec, faults = self.spec, list[FieldFault]()
        for name, value in (("adopt", spec.adopt), ("scaling", spec.scaling), ("runner", spec.runner)):
            if value is not None:
                faults.append((("spec", name), "cannot be in a template: it is of one machine"))
        if spec.claims:
            faults.append((("spec", "claims"), "cannot be in a template: only one machine can have a claim's devices"))
        for i, nic in enumerate(spec.nics):
            if nic.backend == "tap" or nic.mac is not None:
                field = "interface" if nic.backend == "tap" else "mac"
                faults.append((("spec", "nics", i, field), "cannot be in a template: only one machine can have it"))
        for i, disk in enumerate(spec.start.disks if spec.start is not None else ()):
            if not disk.read_only and disk.clone is None:
                why = "must be overlay or copy, unless the disk is readOnly: only one machine can write a disk"
                faults.append((("spec", "start", "disks", i, "clone"), why))
        raise_faults(faults, RELATED)
        return self


class VirtualMachineReplicaSetSpec(ApiModel):
    """The desired state of the set."""

    replicas: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] = 1
    """How many machines there are to be."""
    template: VirtualMachineTemplate
    """A change applies to machines that are created afterwards."""


class ReplicaEnd(MachineEnd):
    """The end of a machine of the set."""

    machine: SubdomainName
    """The machine that ended."""


class VirtualMachineReplicaSetStatus(ApiModel):
    """The state of the set, as the controller last saw it."""

    replicas: Annotated[int, Field(ge=0)] = 0
    """Machines of the set, without those that ended or are being deleted."""
    ready_replicas: Annotated[int, Field(ge=0)] = 0
    """Those of them that run and, with guestReports, whose guests report that they are ready."""
    selector: Text = ""
    """The label of the machines, for autoscalers."""
    observed_generation: Int64 | None = None
    """The generation of the set that this is about."""
    last_end: ReplicaEnd | None = None
    """The last end of one of its machines that no one asked for: the machine itself goes with its replacement."""
    conditions: Annotated[list[Condition], Field(max_length=16), AfterValidator(unique_by("type"))] = Field(
        default_factory=list
    )
    """Ready: whether there are as many machines as wanted, and all are ready; ReplicaFailure: why machines cannot be
    created or deleted."""


class VirtualMachineReplicaSet(ApiModel):
    """A number of like machines. One that ends or is deleted is replaced. Namespaced."""

    api_version: Literal["devalloc.io/v1alpha1"] = DEVALLOC
    kind: Literal["VirtualMachineReplicaSet"] = "VirtualMachineReplicaSet"
    metadata: ObjectMeta
    spec: VirtualMachineReplicaSetSpec
    status: VirtualMachineReplicaSetStatus | None = None

    @model_validator(mode="after")
    def _short_name(self) -> VirtualMachineReplicaSet:
        name = self.metadata.name
        if len(name) > MAX_NAME or not is_label(name):
            why = f"must be a DNS label of at most {MAX_NAME} characters, for its machines have a number behind it"
            raise_faults([(("metadata", "name"), why)], RELATED)
        return self
