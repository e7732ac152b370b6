"""What scaling reads of a machine: its amounts, labels and annotations; and configurations, defaults and overrides.

What is expected is either what was read, or the path of each problem with its severity.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from devalloc.api.problems import Problem
from devalloc.scaling.config import ANNOTATION as CONFIG
from devalloc.scaling.config import merge_overrides, read_config_annotation, read_defaults
from devalloc.scaling.resources import ANNOTATION as BOUNDS
from devalloc.scaling.versions import ProtocolEra
from devalloc_neon.vm_info import ANNOTATION_RESOURCES, LABEL_NAME, from_pod, from_vm
from tests.support.scaling_config_json import defaults_to_json
from tests.support.tables.table_form import CaseVerdict, TableForm, each, verdict
from tests.support.vm_info import to_json

_SHORT = {"bounds": BOUNDS, "config": CONFIG}


def _machines(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    def one(case: dict[str, Any]) -> CaseVerdict:
        era, name = ProtocolEra(case.get("era", "newest")), "vm"
        annotations = {_SHORT[key]: _text(case[key]) for key in _SHORT if key in case}
        metadata = {"name": name, "namespace": "default", "labels": case.get("labels", {}), "annotations": annotations}
        guest = {**content.get("guest", {}), **case.get("guest", {})}
        vm = from_vm({"metadata": metadata, "spec": {"guest": guest}}, era)
        labels = {**case.get("labels", {}), LABEL_NAME: name}
        pod = {**metadata, "labels": labels, "annotations": {**annotations, ANNOTATION_RESOURCES: json.dumps(guest)}}
        of_pod = from_pod({"metadata": pod}, era)
        if "problems" in case:
            got = {"machine": _problems(vm.problems), "pod": _problems(of_pod.problems)}
            return verdict(case["name"], dict.fromkeys(got, case["problems"]), lambda: got)
        if vm.value is None or of_pod.value is None:
            return verdict(case["name"], case["expected"], lambda: _problems(vm.problems + of_pod.problems))
        sent = {"machine": to_json(vm.value, era), "pod": to_json(of_pod.value, era)}
        every = {"name": name, "namespace": "default", **content.get("expected", {}), **case["expected"]}
        expected = {key: value for key, value in every.items() if value is not None}
        return verdict(case["name"], dict.fromkeys(sent, expected), lambda: sent)

    yield from each(content["machines"], one)


def _configs(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    def one(case: dict[str, Any]) -> CaseVerdict:
        era = ProtocolEra(case.get("era", "newest"))
        shipped = content["shipped"][era.value]
        read = read_defaults({**shipped, **case.get("defaults", {})}, era)
        problems, config = read.problems, read.value
        if config is not None and "overrides" in case:
            overrides = read_config_annotation(_text(case["overrides"]), era)
            problems += overrides.problems
            if overrides.value is not None:
                merged = merge_overrides(config, overrides.value)
                problems += merged.problems
                config = merged.value
        got: dict[str, Any] = {"problems": _problems(problems)}
        expected: dict[str, Any] = {"problems": case.get("problems", {})}
        if "expected" in case:
            got["config"] = None if config is None else defaults_to_json(config, era)
            expected["config"] = {**shipped, **case.get("defaults", {}), **case["expected"]}
            if era is ProtocolEra.NEWEST:
                expected["config"].setdefault("lfcUseLargestWindow", False)
        return verdict(case["name"], expected, lambda: got)

    yield from each(content["scaling_configs"], one)


def _text(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else json.dumps(annotation)


def _problems(problems: list[Problem]) -> dict[str, str]:
    """By path, as people write it: without where the annotation or the object's amounts are."""
    shortened = {f"metadata.annotations[{name!r}]": short for short, name in _SHORT.items()}
    shortened |= {f"metadata.annotations[{ANNOTATION_RESOURCES!r}]": "guest", "spec.guest": "guest"}
    by_path = {}
    for problem in problems:
        path = problem.path
        for long, short in shortened.items():
            path = path.replace(long, short)
        by_path[path.removeprefix("guest.")] = "error" if problem.is_error else "warning"
    return by_path


FORMS = [
    TableForm("machines", lambda content: isinstance(content.get("machines"), list), _machines),
    TableForm("scaling configurations", lambda content: isinstance(content.get("scaling_configs"), list), _configs),
]
