"""What scaling knows of a machine: its amounts, and what its labels and annotations say of it.

Read from the machine's object or from the pod that runs it, both as decoded JSON. What is read is applied in this
order: the amounts of the object, the bounds of its annotation, its configuration, and only then is checked whether the
bounds are reasonable. Use outside of the bounds is only worth a warning: scaling brings it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from devalloc.api.problems import Problem
from devalloc.scaling import bounds as scaling_bounds
from devalloc.scaling import config as scaling_config
from devalloc.scaling.bounds import amount
from devalloc.scaling.config import Overrides
from devalloc.scaling.eras import Era
from devalloc.scaling.peerjson import Fields, Unreadable, folded, only_value
from devalloc.scaling.resources import Resources
from devalloc.scaling.scalars import bytes_to_json, bytes_to_quantity, cpu_to_json

LABEL_SCALING = "autoscaling.neon.tech/enabled"
LABEL_MIGRATION = "autoscaling.neon.tech/auto-migration-enabled"
LABEL_ALWAYS_MIGRATE = "autoscaling.neon.tech/testing-only-always-migrate"
LABEL_NAME = "vm.neon.tech/name"
LABEL_RUNNER_VERSION = "vm.neon.tech/runner-version"
ANNOTATION_RESOURCES = "vm.neon.tech/resources"
ANNOTATION_BILLING = "autoscaling.neon.tech/billing-endpoint-id"
DEFAULT_SLOT_SIZE = 2**30
MAX_ANNOTATION = 16 * 1024
"""Characters of the annotation with a pod's amounts."""


@dataclass(frozen=True, slots=True)
class CpuInfo:
    """Thousandths of a CPU."""

    min: int
    max: int
    use: int


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Slots of memory."""

    min: int
    max: int
    use: int
    slot_size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Revision:
    """How far changes to the machine have come through, as its controller tells."""

    value: int
    flags: int
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class VmInfo:
    """A machine. ``scaling_config`` is what it has different from the default configuration, if anything."""

    namespace: str
    name: str
    cpu: CpuInfo
    memory: MemoryInfo
    scaling_enabled: bool = False
    auto_migration_enabled: bool = False
    always_migrate: bool = False
    scaling_config: Overrides | None = None
    current_revision: Revision | None = None

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def min(self) -> Resources:
        return self._resources(self.cpu.min, self.memory.min)

    @property
    def max(self) -> Resources:
        return self._resources(self.cpu.max, self.memory.max)

    @property
    def using(self) -> Resources:
        return self._resources(self.cpu.use, self.memory.use)

    def with_using(self, resources: Resources) -> VmInfo:
        """The same with other amounts in use; of the memory only whole slots."""
        slots = resources.memory // self.memory.slot_size
        return replace(self, cpu=replace(self.cpu, use=resources.cpu), memory=replace(self.memory, use=slots))

    def same_bounds(self, other: VmInfo) -> bool:
        return self.min == other.min and self.max == other.max

    def _resources(self, cpu: int, slots: int) -> Resources:
        return Resources(cpu, slots * self.memory.slot_size)


@dataclass(frozen=True, slots=True)
class ReadVmInfo:
    """A machine, or None with at least one error among the problems; warnings may come with either."""

    info: VmInfo | None
    problems: list[Problem]


def from_vm(vm: Mapping[str, Any], era: Era = Era.NEWEST) -> ReadVmInfo:
    """Read a machine's object: ``spec.guest`` with ``cpus``, ``memorySlots`` and ``memorySlotSize``."""
    try:
        metadata, guest = Fields(folded(vm.get("metadata"))), Fields(folded(vm)).inner("spec").inner("guest")
        revision = _read_revision(Fields(folded(vm)).inner("status").optional("currentRevision"))
        name, namespace = metadata.text("name"), metadata.text("namespace")
    except Unreadable as error:
        return ReadVmInfo(None, [Problem(f"is not to be read: {error}")])
    read = _read(namespace, name, guest, "", vm, era)
    if read.info is not None and era is Era.NEWEST:
        return replace(read, info=replace(read.info, current_revision=revision))
    return read


def from_pod(pod: Mapping[str, Any], era: Era = Era.NEWEST) -> ReadVmInfo:
    """Read the pod that runs a machine: its amounts are in an annotation, its name in a label."""
    text = _entries(pod, "annotations").get(ANNOTATION_RESOURCES)
    path = _annotation(ANNOTATION_RESOURCES)
    if text is None:
        return ReadVmInfo(None, [Problem("is required: the amounts of the machine", path)])
    if len(text) > MAX_ANNOTATION:
        return ReadVmInfo(None, [Problem(f"must be at most {MAX_ANNOTATION} characters, not {len(text)}", path)])
    name = _entries(pod, "labels").get(LABEL_NAME)
    if not name:
        return ReadVmInfo(None, [Problem("is required: the name of the machine", f"metadata.labels[{LABEL_NAME!r}]")])
    try:
        namespace = Fields(folded(pod.get("metadata"))).text("namespace")
        return _read(namespace, name, Fields(only_value(text)), path, pod, era)
    except Unreadable as error:
        return ReadVmInfo(None, [Problem(f"is not to be read: {error}", path)])


def _read(namespace: str, name: str, amounts: Fields, path: str, owner: Mapping[str, Any], era: Era) -> ReadVmInfo:
    problems: list[Problem] = []
    labels, annotations = _entries(owner, "labels"), _entries(owner, "annotations")
    try:
        cpu, memory = _read_cpu(amounts, path, problems), _read_memory(amounts, path, problems)
    except Unreadable as error:
        return ReadVmInfo(None, [Problem(f"is not to be read: {error}", path)])
    info = VmInfo(
        namespace,
        name,
        cpu,
        memory,
        scaling_enabled=labels.get(LABEL_SCALING) == "true",
        auto_migration_enabled=labels.get(LABEL_MIGRATION) == "true",
        always_migrate=labels.get(LABEL_ALWAYS_MIGRATE) == "true",
    )
    if (text := annotations.get(scaling_bounds.ANNOTATION)) is not None:
        read = scaling_bounds.read_annotation(text, memory.slot_size, _annotation(scaling_bounds.ANNOTATION))
        problems += read.problems
        if read.bounds is not None:
            info = _bounded(info, read.bounds)
    if (text := annotations.get(scaling_config.ANNOTATION)) is not None:
        overrides = scaling_config.read_annotation(text, era, _annotation(scaling_config.ANNOTATION))
        problems += overrides.problems
        info = replace(info, scaling_config=overrides.overrides)
    if not any(problem.is_error for problem in problems):
        problems += _conflicts(info)
    return ReadVmInfo(None if any(problem.is_error for problem in problems) else info, problems)


def _read_cpu(amounts: Fields, path: str, problems: list[Problem]) -> CpuInfo:
    cpus = amounts.inner("cpus")
    return CpuInfo(*(amount(cpus, name, cpus.cpu, path, problems) for name in ("min", "max", "use")))


def _read_memory(amounts: Fields, path: str, problems: list[Problem]) -> MemoryInfo:
    slots = amounts.inner("memorySlots")
    least, most, use = (
        amount(slots, name, lambda name: slots.whole(name, 16), path, problems) for name in ("min", "max", "use")
    )
    size = DEFAULT_SLOT_SIZE
    if amounts.has("memorySlotSize"):
        # Where it cannot be read the default goes on, so that all other problems are found as well.
        size = amount(amounts, "memorySlotSize", amounts.bytes, path, problems) or size
    return MemoryInfo(least, most, use, size)


def _bounded(info: VmInfo, bounds: scaling_bounds.Bounds) -> VmInfo:
    size = info.memory.slot_size
    return replace(
        info,
        cpu=replace(info.cpu, min=bounds.min.cpu, max=bounds.max.cpu),
        memory=replace(info.memory, min=bounds.min.memory // size, max=bounds.max.memory // size),
    )


def _conflicts(info: VmInfo) -> list[Problem]:
    problems = scaling_bounds.size_problems(info.min, "min") + scaling_bounds.size_problems(info.max, "max")
    for name, least, most, use, show in (
        ("cpu", info.min.cpu, info.max.cpu, info.using.cpu, cpu_to_json),
        ("mem", info.min.memory, info.max.memory, info.using.memory, bytes_to_json),
    ):
        if least > most:
            problems.append(Problem(f"must not be above max ({show(most)}), and is {show(least)}", f"min.{name}"))
        elif not least <= use <= most:
            words = f"is outside of the bounds {show(least)} to {show(most)}: {show(use)}"
            problems.append(Problem(words, f"use.{name}", severity="warning"))
    return problems


def _read_revision(fields: Fields | None) -> Revision | None:
    if fields is None:
        return None
    revision, when = fields.inner("revision"), fields.text("updatedAt")
    try:
        updated = datetime.fromisoformat(when).astimezone(UTC) if when else None
    except (ValueError, OverflowError):
        raise Unreadable(f"{fields.path('updatedAt')} must be a time, not {when[:40]!r}") from None
    return Revision(revision.whole("value", 63), revision.whole("flags", 64), updated)


def _entries(owner: Mapping[str, Any], name: str) -> dict[str, str]:
    """Labels or annotations. Their names are no fields: they are matched as they are."""
    metadata = owner.get("metadata")
    entries = metadata.get(name) if isinstance(metadata, Mapping) else None
    if not isinstance(entries, Mapping):
        return {}
    return {key: value for key, value in entries.items() if isinstance(key, str) and isinstance(value, str)}


def _annotation(name: str) -> str:
    return f"metadata.annotations[{name!r}]"


# -- as JSON ---------------------------------------------------------------------------------------------------------


def to_json(info: VmInfo, era: Era = Era.NEWEST) -> dict[str, Any]:
    """As peers of the era write it, to be encoded."""
    cpu, memory = info.cpu, info.memory
    old = era is Era.V0_12
    written: dict[str, Any] = {
        "name": info.name,
        "namespace": info.namespace,
        "cpu": {"min": cpu_to_json(cpu.min), "max": cpu_to_json(cpu.max), "use": cpu_to_json(cpu.use)},
        "mem": {
            "min": memory.min,
            "max": memory.max,
            "use": memory.use,
            "slotSize": bytes_to_quantity(memory.slot_size) if old else bytes_to_json(memory.slot_size),
        },
    }
    config: dict[str, Any] = {} if old else {"autoMigrationEnabled": info.auto_migration_enabled}
    config |= {"alwaysMigrate": info.always_migrate, "scalingEnabled": info.scaling_enabled}
    if info.scaling_config is not None:
        config["scalingConfig"] = scaling_config.overrides_to_json(info.scaling_config, era)
    written |= config if old else {"config": config}
    if info.current_revision is not None and era is Era.NEWEST:
        revision = info.current_revision
        written["currentRevision"] = {
            "revision": {"value": revision.value, "flags": revision.flags},
            "updatedAt": revision.updated_at and revision.updated_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
    return written


def from_json(content: object, era: Era = Era.NEWEST) -> VmInfo:
    """What to_json wrote, decoded. Raises Unreadable."""
    fields = Fields(folded(content))
    config = fields if era is Era.V0_12 else fields.inner("config")
    cpu, memory = fields.inner("cpu"), fields.inner("mem")
    size = memory.bytes("slotSize")
    if size == 0:
        raise Unreadable("mem.slotSize must not be zero")
    overrides = None
    if config.has("scalingConfig"):
        read = scaling_config.read_overrides(config.content("scalingConfig"), era, config.path("scalingConfig"))
        if read.overrides is None:
            raise Unreadable("; ".join(str(problem) for problem in read.problems if problem.is_error))
        overrides = read.overrides
    return VmInfo(
        fields.text("namespace"),
        fields.text("name"),
        CpuInfo(cpu.cpu("min"), cpu.cpu("max"), cpu.cpu("use")),
        MemoryInfo(memory.whole("min", 16), memory.whole("max", 16), memory.whole("use", 16), size),
        scaling_enabled=config.flag("scalingEnabled"),
        auto_migration_enabled=config.flag("autoMigrationEnabled"),
        always_migrate=config.flag("alwaysMigrate"),
        scaling_config=overrides,
        current_revision=_read_revision(fields.optional("currentRevision")),
    )
