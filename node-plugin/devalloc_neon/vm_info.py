"""What NeonVM says of a machine: its amounts, and what its labels and annotations say of it.

Read from the machine's object or from the pod that runs it, both as decoded JSON. What is read is applied in this
order: the amounts of the object, the bounds of its annotation, its configuration, and only then is checked whether the
bounds are reasonable. Use outside of the bounds is only worth a warning: scaling brings it back.

The annotation of the bounds is ``{"min": {"cpu": "250m", "mem": "1Gi"}, "max": {"cpu": 4, "mem": "16Gi"}}``. All four
amounts are required; all problems are reported, with their paths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from devalloc.api.problems import Problem, Read
from devalloc.scaling import config as scaling_config
from devalloc.scaling.config import ScalingOverrides
from devalloc.scaling.peer_json import JsonFields, Unreadable, bytes_to_json, cpu_to_json, decode_text, fold_names
from devalloc.scaling.resources import ANNOTATION as BOUNDS_ANNOTATION
from devalloc.scaling.resources import LABEL_ALWAYS_MIGRATE, LABEL_MIGRATION, LABEL_SCALING, Resources, ScalingBounds
from devalloc.scaling.versions import ProtocolEra

LABEL_NAME = "vm.neon.tech/name"
ANNOTATION_RESOURCES = "vm.neon.tech/resources"
DEFAULT_SLOT_SIZE = 2**30
MAX_ANNOTATION = 16 * 1024
"""Characters of the annotation with a pod's amounts."""
MAX_BOUNDS = 4096
"""Characters of the annotation; more is refused unread."""
MIN_CPU = 50
MAX_CPU = 512_000
"""Thousandths of a CPU. Amounts beyond these are most likely in another unit."""
MAX_SLOTS = 2**16 - 1
"""Memory slots of a machine that peers can count."""


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
class VmInfo:
    """A machine. ``scaling_config`` is what it has different from the default configuration, if anything."""

    namespace: str
    name: str
    cpu: CpuInfo
    memory: MemoryInfo
    scaling_enabled: bool = False
    auto_migration_enabled: bool = False
    always_migrate: bool = False
    scaling_config: ScalingOverrides | None = None

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def min(self) -> Resources:
        """Its lower bound."""
        return self._resources(self.cpu.min, self.memory.min)

    @property
    def max(self) -> Resources:
        """Its upper bound."""
        return self._resources(self.cpu.max, self.memory.max)

    @property
    def using(self) -> Resources:
        """What it has, by its object."""
        return self._resources(self.cpu.use, self.memory.use)

    def _resources(self, cpu: int, slots: int) -> Resources:
        return Resources(cpu, slots * self.memory.slot_size)


def from_vm(vm: Mapping[str, Any], era: ProtocolEra = ProtocolEra.NEWEST) -> Read[VmInfo]:
    """Read a machine's object: ``spec.guest`` with ``cpus``, ``memorySlots`` and ``memorySlotSize``."""
    try:
        metadata, guest = (
            JsonFields(fold_names(vm.get("metadata"))),
            JsonFields(fold_names(vm)).inner("spec").inner("guest"),
        )
        name, namespace = metadata.text("name"), metadata.text("namespace")
    except Unreadable as error:
        return Read(None, [Problem(f"cannot be read: {error}")])
    return _read(namespace, name, guest, "", vm, era)


def from_pod(pod: Mapping[str, Any], era: ProtocolEra = ProtocolEra.NEWEST) -> Read[VmInfo]:
    """Read the pod that runs a machine: its amounts are in an annotation, its name in a label."""
    text = _entries(pod, "annotations").get(ANNOTATION_RESOURCES)
    path = _annotation(ANNOTATION_RESOURCES)
    if text is None:
        return Read(None, [Problem("is required: the amounts of the machine", path)])
    if len(text) > MAX_ANNOTATION:
        return Read(None, [Problem(f"must be at most {MAX_ANNOTATION} characters, not {len(text)}", path)])
    name = _entries(pod, "labels").get(LABEL_NAME)
    if not name:
        return Read(None, [Problem("is required: the name of the machine", f"metadata.labels[{LABEL_NAME!r}]")])
    try:
        namespace = JsonFields(fold_names(pod.get("metadata"))).text("namespace")
        return _read(namespace, name, JsonFields(decode_text(text)), path, pod, era)
    except Unreadable as error:
        return Read(None, [Problem(f"cannot be read: {error}", path)])


def _read(
    namespace: str, name: str, amounts: JsonFields, path: str, owner: Mapping[str, Any], era: ProtocolEra
) -> Read[VmInfo]:
    problems: list[Problem] = []
    labels, annotations = _entries(owner, "labels"), _entries(owner, "annotations")
    try:
        cpu, memory = _read_cpu(amounts, path, problems), _read_memory(amounts, path, problems)
    except Unreadable as error:
        return Read(None, [Problem(f"cannot be read: {error}", path)])
    info = VmInfo(
        namespace,
        name,
        cpu,
        memory,
        scaling_enabled=labels.get(LABEL_SCALING) == "true",
        auto_migration_enabled=labels.get(LABEL_MIGRATION) == "true",
        always_migrate=labels.get(LABEL_ALWAYS_MIGRATE) == "true",
    )
    if (text := annotations.get(BOUNDS_ANNOTATION)) is not None:
        read = read_bounds_annotation(text, memory.slot_size, _annotation(BOUNDS_ANNOTATION))
        problems += read.problems
        if read.value is not None:
            info = _with_bounds(info, read.value)
    if (text := annotations.get(scaling_config.ANNOTATION)) is not None:
        overrides = scaling_config.read_config_annotation(text, era, _annotation(scaling_config.ANNOTATION))
        problems += overrides.problems
        info = replace(info, scaling_config=overrides.value)
    if not any(problem.is_error for problem in problems):
        problems += _conflicts(info)
    return Read(None if any(problem.is_error for problem in problems) else info, problems)


def _read_cpu(amounts: JsonFields, path: str, problems: list[Problem]) -> CpuInfo:
    cpus = amounts.inner("cpus")
    return CpuInfo(*(required_amount(cpus, name, cpus.cpu, path, problems) for name in ("min", "max", "use")))


def _read_memory(amounts: JsonFields, path: str, problems: list[Problem]) -> MemoryInfo:
    slots = amounts.inner("memorySlots")
    least, most, use = (
        required_amount(slots, name, lambda name: slots.whole(name, 16), path, problems)
        for name in ("min", "max", "use")
    )
    size = DEFAULT_SLOT_SIZE
    if amounts.has("memorySlotSize"):
        # If it cannot be read, the default counts, so that all other problems are reported as well.
        size = required_amount(amounts, "memorySlotSize", amounts.bytes, path, problems) or size
    return MemoryInfo(least, most, use, size)


def _with_bounds(info: VmInfo, bounds: ScalingBounds) -> VmInfo:
    size = info.memory.slot_size
    return replace(
        info,
        cpu=replace(info.cpu, min=bounds.min.cpu, max=bounds.max.cpu),
        memory=replace(info.memory, min=bounds.min.memory // size, max=bounds.max.memory // size),
    )


def _conflicts(info: VmInfo) -> list[Problem]:
    problems = size_problems(info.min, "min") + size_problems(info.max, "max")
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


def _entries(owner: Mapping[str, Any], name: str) -> dict[str, str]:
    """Labels or annotations. Their names are no fields: they are matched as they are."""
    metadata = owner.get("metadata")
    entries = metadata.get(name) if isinstance(metadata, Mapping) else None
    if not isinstance(entries, Mapping):
        return {}
    return {key: value for key, value in entries.items() if isinstance(key, str) and isinstance(value, str)}


def _annotation(name: str) -> str:
    return f"metadata.annotations[{name!r}]"


# -- bounds ------------------------------------------------------------------------------------------------------------


def read_bounds_annotation(text: str, slot_size: int, path: str = "") -> Read[ScalingBounds]:
    """Bounds of a machine with memory slots of so many bytes, from the annotation's text. Never raises for content."""
    if len(text) > MAX_BOUNDS:
        return Read(None, [Problem(f"must be at most {MAX_BOUNDS} characters, not {len(text)}", path)])
    problems: list[Problem] = []
    try:
        fields = JsonFields(decode_text(text))
        ends = [_read_end(fields, name, slot_size, path, problems) for name in ("min", "max")]
    except Unreadable as error:
        return Read(None, [Problem(f"is not to be read: {error}", path)])
    return Read(None if problems else ScalingBounds(*ends), problems)


def _read_end(fields: JsonFields, name: str, slot_size: int, path: str, problems: list[Problem]) -> Resources:
    end = fields.inner(name)
    cpu = required_amount(end, "cpu", end.cpu, path, problems)
    memory = required_amount(end, "mem", end.bytes, path, problems)
    if memory % slot_size or memory // slot_size > MAX_SLOTS:
        wanted = f"a multiple of the memory slot size ({bytes_to_json(slot_size)}), at most {MAX_SLOTS} times it"
        problems.append(Problem(f"must be {wanted}, not {bytes_to_json(memory)}", join_path(path, end.path("mem"))))
    return Resources(cpu, memory)


def required_amount(
    fields: JsonFields, name: str, read: Callable[[str], int], path: str, problems: list[Problem]
) -> int:
    """An amount that is required and not zero; 0, with a problem, if there is none."""
    where = join_path(path, fields.path(name))
    try:
        value = read(name)
    except Unreadable as error:
        problems.append(Problem(str(error).removeprefix(fields.path(name)).lstrip(), where))
        return 0
    if not fields.has(name):
        problems.append(Problem("is required", where))
    elif value == 0:
        problems.append(Problem("must not be zero", where))
    return value


def size_problems(resources: Resources, path: str = "") -> list[Problem]:
    """Whether the CPU is within what is reasonable, both ends included. Memory is not looked at."""
    if MIN_CPU <= resources.cpu <= MAX_CPU:
        return []
    least, most = cpu_to_json(MIN_CPU), cpu_to_json(MAX_CPU)
    return [Problem(f"must be {least} to {most}, not {cpu_to_json(resources.cpu)}", join_path(path, "cpu"))]


def join_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
