"""Copies of configuration objects in answers, and which allocations they are for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from devalloc.api.device_class import DeviceClass
from devalloc_solver.dialects.device_claims.answers import config_entries
from devalloc_solver.dialects.device_claims.manifests import ProblemInput

REF = {"apiVersion": "devalloc.io/v1alpha1", "kind": "VfConfig", "namespace": "admin", "name": "confined"}
CONFIG: dict[str, Any] = {"kind": "VfConfig", "metadata": {"namespace": "admin", "name": "confined"}}


def problem_input(**classes: int) -> ProblemInput:
    """By each class how often it names the one configuration object."""
    made = {
        name: DeviceClass.model_validate({"metadata": {"name": name}, "spec": {"configs": [REF] * times}})
        for name, times in classes.items()
    }
    return cast(ProblemInput, SimpleNamespace(classes=made, configs={tuple(REF.values()): CONFIG}))


def test_a_configuration_of_a_class_lists_its_allocations() -> None:
    both = config_entries("default", [("a", ()), ("a", ())], problem_input(a=1))
    assert both == {"classConfigs": [CONFIG]}, "all of them, so that nothing is to be said"
    one = config_entries("default", [("b", ()), ("a", ())], problem_input(a=1, b=0))
    assert one == {"classConfigs": [CONFIG], "classConfigAllocations": [[1]]}


def test_an_object_that_a_class_names_twice_is_for_its_own_devices_only() -> None:
    fields = config_entries("default", [("a", ()), ("b", ())], problem_input(a=2, b=0))
    assert fields == {"classConfigs": [CONFIG], "classConfigAllocations": [[0]]}
