"""What scaling knows of a machine: from its object, from its pod, and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from devalloc.api.problems import Read
from devalloc.scaling.config import ScalingOverrides
from devalloc.scaling.resources import Resources
from devalloc.scaling.versions import ProtocolEra
from devalloc_neon.vm_info import CpuInfo, MemoryInfo, VmInfo, from_pod, from_vm
from tests.support.vm_info import to_json

GIB = 2**30
BOUNDS = "autoscaling.neon.tech/bounds"
CONFIG = "autoscaling.neon.tech/config"
AMOUNTS = {
    "cpus": {"min": "250m", "max": 4, "use": 1},
    "memorySlots": {"min": 1, "max": 16, "use": 4},
    "memorySlotSize": "1Gi",
}
PLAIN = VmInfo("default", "vm1", CpuInfo(250, 4000, 1000), MemoryInfo(1, 16, 4, GIB))


def meta(**entries: dict[str, str]) -> dict[str, Any]:
    return {"name": "vm1", "namespace": "default", **entries}


def vm(guest: Any = AMOUNTS, **entries: dict[str, str]) -> dict[str, Any]:
    return {"metadata": meta(**entries), "spec": {"guest": guest}}


def pod(text: str = json.dumps(AMOUNTS), **entries: dict[str, str]) -> dict[str, Any]:
    annotations = {"vm.neon.tech/resources": text, **entries.get("annotations", {})}
    labels = {"vm.neon.tech/name": "vm1", **entries.get("labels", {})}
    return {"metadata": {"name": "vm1-abcde", "namespace": "default", "annotations": annotations, "labels": labels}}


def paths(read: Read[VmInfo]) -> list[str]:
    return sorted(problem.path for problem in read.problems)


@pytest.mark.parametrize("read", [from_vm(vm()), from_pod(pod())])
def test_a_machine_and_its_pod_say_the_same(read: Read[VmInfo]) -> None:
    assert (read.value, read.problems) == (PLAIN, [])
    assert (PLAIN.min, PLAIN.max) == (Resources(250, GIB), Resources(4000, 16 * GIB))
    assert (PLAIN.using, str(PLAIN)) == (Resources(1000, 4 * GIB), "default/vm1")


def test_slots_are_1_gib_by_default() -> None:
    guest = {name: value for name, value in AMOUNTS.items() if name != "memorySlotSize"}
    assert from_vm(vm(guest)).value == PLAIN


@pytest.mark.parametrize(("text", "is_true"), [("true", True), ("True", False), ("1", False), ("", False)])
def test_labels_are_true_when_they_say_so_exactly(text: str, is_true: bool) -> None:
    names = ["enabled", "auto-migration-enabled", "testing-only-always-migrate"]
    info = from_vm(vm(labels={f"autoscaling.neon.tech/{name}": text for name in names})).value
    assert info is not None
    assert [info.scaling_enabled, info.auto_migration_enabled, info.always_migrate] == [is_true] * 3


def test_bounds_take_the_place_of_min_and_max() -> None:
    bounds = json.dumps({"min": {"cpu": "500m", "mem": "2Gi"}, "max": {"cpu": 2, "mem": "8Gi"}})
    for read in (from_vm(vm(annotations={BOUNDS: bounds})), from_pod(pod(annotations={BOUNDS: bounds}))):
        assert read.value == replace(PLAIN, cpu=CpuInfo(500, 2000, 1000), memory=MemoryInfo(2, 8, 4, GIB))


def test_what_a_machine_has_different_stays_apart_from_the_default() -> None:
    info = from_vm(vm(annotations={CONFIG: '{"loadAverageFractionTarget":0.5}'})).value
    assert info == replace(PLAIN, scaling_config=ScalingOverrides(load_average_fraction_target=0.5))


def test_bounds_are_judged_after_all_has_been_applied() -> None:
    """An unreasonable object is made reasonable by its annotation, and the other way round."""
    wild = {**AMOUNTS, "cpus": {"min": "10m", "max": 1000, "use": 1}}
    assert paths(from_vm(vm(wild))) == ["max.cpu", "min.cpu"]
    bounds = {"min": {"cpu": 1, "mem": "1Gi"}, "max": {"cpu": 2, "mem": "8Gi"}}
    assert from_vm(vm(wild, annotations={BOUNDS: json.dumps(bounds)})).problems == []
    bounds["max"]["cpu"] = "900m"
    bounds["min"]["mem"] = "9Gi"
    read = from_vm(vm(annotations={BOUNDS: json.dumps(bounds)}))
    assert (read.value, paths(read)) == (None, ["min.cpu", "min.mem"])
    assert read.problems[0].message == "must not be above max (900m), and is 1"


def test_use_outside_of_the_bounds_is_a_warning() -> None:
    bounds = {"min": {"cpu": 2, "mem": "1Gi"}, "max": {"cpu": 2, "mem": "2Gi"}}
    read = from_vm(vm(annotations={BOUNDS: json.dumps(bounds)}))
    assert read.value is not None
    assert read.value.using == PLAIN.using
    assert [(problem.severity, problem.path) for problem in read.problems] == [
        ("warning", "use.cpu"),
        ("warning", "use.mem"),
    ]


def test_every_problem_is_listed_wherever_it_is() -> None:
    guest = {
        "cpus": {"min": "-1", "max": 4},
        "memorySlots": {"min": 0, "max": 65536, "use": 1.5},
        "memorySlotSize": "x",
    }
    read = from_vm(vm(guest, annotations={BOUNDS: "{}", CONFIG: '{"loadAverageFractionTarget":0}'}))
    bounds = [f"metadata.annotations['{BOUNDS}'].{end}.{name}" for end in ("max", "min") for name in ("cpu", "mem")]
    config = [f"metadata.annotations['{CONFIG}'].loadAverageFractionTarget"]
    amounts = ["cpus.min", "cpus.use", "memorySlotSize", "memorySlots.max", "memorySlots.min", "memorySlots.use"]
    assert (read.value, paths(read)) == (None, [*bounds, *config, *(f"spec.guest.{name}" for name in amounts)])


@pytest.mark.parametrize(
    "read",
    [
        from_vm({}),
        from_vm({"metadata": 1}),
        from_vm({"metadata": {"name": 1}}),
        from_vm({"spec": []}),
        from_vm(vm("none")),
        from_pod({}),
        from_pod(pod("{")),
        from_pod(pod("{}" + " " * 20000)),
        from_pod(pod("[]")),
        from_pod(pod(labels={"vm.neon.tech/name": ""})),
    ],
)
def test_an_object_that_is_no_machine_is_a_problem(read: Read[VmInfo]) -> None:
    assert read.value is None
    assert all(problem.is_error for problem in read.problems)
    assert read.problems


FULL = replace(
    PLAIN,
    scaling_enabled=True,
    always_migrate=True,
    scaling_config=ScalingOverrides(load_average_fraction_target=0.5),
)


def test_as_json_of_each_era() -> None:
    new = {
        "name": "vm1",
        "namespace": "default",
        "cpu": {"min": "250m", "max": 4, "use": 1},
        "mem": {"min": 1, "max": 16, "use": 4, "slotSize": "1Gi"},
        "config": {
            "autoMigrationEnabled": False,
            "alwaysMigrate": True,
            "scalingEnabled": True,
            "scalingConfig": {"loadAverageFractionTarget": 0.5},
        },
    }
    assert to_json(FULL, ProtocolEra.V0_31) == to_json(FULL) == new
