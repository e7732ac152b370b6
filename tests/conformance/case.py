"""Declarative cases: one behaviour each, in ``cases/*.yaml``. Each file is a list of cases:

- name: S13 two claims never take one device
  pools:
  - pool: p1@n1              # name@node; without a node it is a network pool
    driver: gpu              # the default
    attributes: {numa: 0}    # text, int, or {quantityValue: 10G}
    resources: {slices: 8/2} # capacity/blockSize
    devices: [g0..g3, {name: g4, attributes: …, requests: …, resources: …}]
  classes:
  - gpu: {driver: gpu}       # name: spec
  claims:
  - a: {}                    # one detail that takes any one device
  - b: {deviceClass: gpu}    # one detail
  - c:                       # several, and everything else there is
      details: [{deviceClass: gpu}, {oneOf: [{…}, {…}]}]
      match: [numa]          # spec.matchAttributes
      priority: 5            # also: group, agree (group-match), pin, created, deleting, annotations, spec (verbatim)
      held: [p1/g0, {p1/g1: {memory: 2Gi}}]   # comes in allocated
      node: n1               # … and its annotations allocated-node and allocation-details
      entries: ["0", "1.0"]
  documents: []              # further documents as they are
  expect:
    a: [p1/g0]               # these devices, with amounts as under held
    b: true                  # satisfied, with whichever devices
    c: {node: null, devices: […], oneOf: [null, 1]}
    d: ClassNotFound         # not satisfied, with this reason; false: whatever the reason
  goals: {pools: 1, devices: 2}                  # goals 3 and 4 of S17
  problems: [{kind: DevicePool, name: p1, path: spec.devices}]   # each is a part of one reported problem
  warnings: {a: a text}      # a part of one of the claim's warnings
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from devalloc.api.meta import GROUP, GROUP_MATCH, NODE, PRIORITY
from tests.support import fast_yaml, manifests
from tests.support.manifests import Manifest

CASES = Path(__file__).parent / "cases"


def load() -> dict[str, Manifest]:
    """All cases by name. Raises ValueError when a name is used twice."""
    cases: dict[str, Manifest] = {}
    for file in sorted(CASES.glob("*.yaml")):
        for case in fast_yaml.load(file.read_text()):
            if case["name"] in cases:
                raise ValueError(f"{file.name}: two cases are named {case['name']!r}")
            cases[case["name"]] = case
    return cases


def documents(case: Manifest) -> list[Manifest]:
    """The manifests of a case."""
    return [
        *map(_pool, case.get("pools", [])),
        *(manifests.device_class(name, **spec) for one in case.get("classes", []) for name, spec in one.items()),
        *(_claim(name, content) for one in case.get("claims", []) for name, content in one.items()),
        *case.get("documents", []),
    ]


def entries(devices: Iterable[Any]) -> list[Manifest]:
    """DeviceAllocations from ``p1/g0`` and ``{p1/g1: {memory: 2Gi}}``."""
    content = []
    for device in devices:
        path, amounts = next(iter(device.items())) if isinstance(device, dict) else (device, {})
        pool, _, name = path.partition("/")
        content.append(manifests.entry(pool, name, **amounts))
    return content


def _pool(content: Manifest) -> Manifest:
    name, _, node = content["pool"].partition("@")
    fields = {key: content[key] for key in ("driver", "attributes", "resources") if key in content}
    return manifests.pool(name, node or None, devices=list(_devices(content.get("devices", []))), **fields)


def _devices(devices: Iterable[Any]) -> Iterable[Manifest]:
    for device in devices:
        if isinstance(device, dict):
            yield manifests.device(**device)
        elif span := re.fullmatch(r"(\D+)(\d+)\.\.\1(\d+)", device):
            yield from (manifests.device(f"{span[1]}{number}") for number in range(int(span[2]), int(span[3]) + 1))
        else:
            yield manifests.device(device)


_LONG_FORM = {"details", "match", "priority", "group", "pin", "created", "deleting", "annotations", "spec", "held"}


def _claim(name: str, content: Mapping[str, Any]) -> Manifest:
    if not content.keys() & _LONG_FORM:
        content = {"details": [content]}
    annotations = {
        label: str(content[key])
        for key, label in {"priority": PRIORITY, "group": GROUP, "agree": GROUP_MATCH, "pin": NODE}.items()
        if key in content
    } | content.get("annotations", {})
    metadata: Manifest = {"annotations": annotations} if annotations else {}
    if "created" in content:
        metadata["creationTimestamp"] = content["created"]
    if content.get("deleting"):
        metadata["deletionTimestamp"] = "2026-01-02T00:00:00Z"
    claim = manifests.claim(name, *content.get("details", [{}]), match=content.get("match"), **metadata)
    if "spec" in content:
        claim["spec"] = content["spec"]
    if "held" in content:
        claim = manifests.allocated(
            claim, entries(content["held"]), node=content.get("node"), details=content.get("entries")
        )
    return claim
