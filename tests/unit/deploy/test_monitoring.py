"""Alerts and dashboard ask for metrics and labels that are really there, and each alert says what to do."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from devalloc.api import meta
from devalloc.controller.event_recorder import EventRecorder
from devalloc.controller.metrics import ControllerMetrics
from devalloc.controller.reconcile.device_claims import DeviceClaimRound
from devalloc.controller.reconcile.resource_claims.allocator import ResourceClaimRound as ResourceRound
from devalloc.store import Key
from devalloc.usage.accounting.metrics import UsageCollector
from devalloc.usage.overview import build_overview
from devalloc.usage.overview.cache import CachedOverview
from devalloc.usage.overview.metrics import FleetCollector
from devalloc_machines.qemu.records import MachineAmounts, MachineView
from devalloc_machines.service.metrics import guest_metrics, machine_metrics
from devalloc_machines.warm.part import pool_metrics
from devalloc_machines.warm.setup import PoolStatus
from devalloc_node.metrics.registry import RESULTS, NodeMetrics, NodeState
from tests.support.fake_kube import FakeClient, FakeKube
from tests.support.fleet_manifests import gpu_claim, gpu_pool

FOLDER = Path("deploy/monitoring")
OF_PROMETHEUS = {"up": frozenset[str]()}
"""Metrics that Prometheus itself has."""
OF_TARGETS = frozenset({"job", "instance", "namespace", "pod"})
"""Labels that every metric has once it is scraped."""
WORDS = frozenset(("and", "or", "unless", "on", "by", "sum", "max", "min", "count", "topk", "absent", "vector", "time"))
FUNCTIONS = frozenset(("rate", "increase", "histogram_quantile"))
Exported = Mapping[str, frozenset[str]]
"""Labels of each metric."""


def exported() -> Exported:
    """By name, of a controller and a node plugin that have something to say of everything."""
    by_metric: dict[str, set[str]] = defaultdict(set)
    for text in (of_controller(), of_node()):
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                by_metric[sample.name] |= sample.labels.keys()
    return {name: frozenset(labels) for name, labels in by_metric.items()} | OF_PROMETHEUS


def of_controller() -> str:
    pool, claim = gpu_pool(), gpu_claim("b")
    node = pool["spec"]["nodeName"]
    lost = {"conditions": [{"type": "Ready", "status": "Unknown"}]}
    claim["metadata"]["annotations"] = {meta.ALLOCATED_NODE: node}
    claim["status"] = {"allocations": [{"devicePoolName": pool["metadata"]["name"], "deviceName": "x"}]}
    held = gpu_claim("held")
    held["metadata"] |= {"annotations": {meta.PREPARED_ON: "b"}, "finalizers": [meta.NODE_FINALIZER]}
    documents = [
        pool,
        gpu_claim("a"),
        claim,
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}, "status": lost},
        held,
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "b"}},
    ]
    overview = build_overview(documents, unserved={"b": "its plugin has ended"})
    seen = CachedOverview("1", overview, datetime.now(UTC))
    recorder = EventRecorder(FakeClient(FakeKube()), "one")
    parts = (FleetCollector(lambda: True, lambda: True, lambda: seen), UsageCollector(dict))
    metrics = ControllerMetrics(lambda: True, recorder, lambda: {("GET", 200): 1}, parts=parts)
    key = Key("DeviceClaim", "default", "a")
    metrics.count(DeviceClaimRound("1", 1, 1, 0, [key], [], 1, 1, 1, True, [], True, 0.1))
    metrics.count_resources(ResourceRound(1, 0, [Key("ResourceClaim", "default", "r")], 0.1))
    return metrics.text().decode()


def of_node() -> str:
    web = MachineView("default/web", "", "Running", observed=MachineAmounts(1000, 1, 1), pid=os.getpid())
    warm = PoolStatus(1, 1, ready=1, making=0, removing=0, taken=(), made=1, failures=0, problem="")
    of_parts = [*pool_metrics(warm), *machine_metrics([web]), *guest_metrics({}, 0)]
    state = NodeState({"vfio": 1}, {"prepared": 1}, of_parts=of_parts)
    metrics = NodeMetrics(lambda: state)
    for result in RESULTS:
        metrics.observe("PrepareClaim", result, 0.1)
    return generate_latest(metrics.registry).decode()


def rules() -> list[dict[str, Any]]:
    content = yaml.safe_load((FOLDER / "rules.yaml").read_text())
    return [rule for group in content["spec"]["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    return content


def expressions() -> Iterator[tuple[str, str]]:
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]


def wrong(expression: str, there: Exported) -> list[str]:
    """Metrics and labels of an expression that no program exports."""
    matchers = re.compile(r"(\w+)\{([^}]*)\}")
    problems = []
    for name, content in matchers.findall(expression):
        problems += [f"{name}{{{label}}}" for label in re.findall(r"(\w+)\s*[=!]", re.sub(r'"[^"]*"', "", content))
                  if label not in there.get(name, frozenset()) | OF_TARGETS]  # fmt: skip
    grouped = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
    labels = {label for content in grouped.findall(expression) for label in re.findall(r"\w+", content)}
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", grouped.sub("", expression))
    names = {name for name in re.findall(r"[a-zA-Z_:][\w:]*", bare) if name not in WORDS | FUNCTIONS}
    problems += [name for name in sorted(names) if name not in there]
    have = frozenset[str]().union(OF_TARGETS, *(there.get(name, frozenset()) for name in names))
    return problems + [f"by ({label})" for label in sorted(labels - have)]


@pytest.mark.parametrize(("what", "expression"), [*expressions()], ids=[what for what, _ in expressions()])
def test_every_metric_of_an_expression_is_exported(what: str, expression: str) -> None:
    assert wrong(expression, exported()) == []


@pytest.mark.parametrize(
    ("expression", "faults"),
    [
        ("sum by (kind) (devalloc_claims)", ["by (kind)"]),
        ("rate(devalloc_rounds[5m])", ["devalloc_rounds"]),
        ('devalloc_pending_claims{name="x"} > 0', ["devalloc_pending_claims{name}"]),
        ('sum(devalloc_nothing{a="b"})', ["devalloc_nothing{a}", "devalloc_nothing"]),
    ],
)
def test_what_is_not_exported_is_noticed(expression: str, faults: list[str]) -> None:
    assert wrong(expression, exported()) == faults


def test_label_values_of_rules_are_those_that_are_exported() -> None:
    """States and results are few, and known."""
    joined = "".join(expression for _, expression in expressions())
    text = of_controller()
    for state in re.findall(r'devalloc_devices_by_state\{state="(\w+)"\}', joined):
        assert f'state="{state}"' in text
    for results in re.findall(r'result=~"([\w|]+)"', joined):
        assert set(results.split("|")) <= set(RESULTS)


def test_each_alert_says_how_bad_it_is_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]
        path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        headings = re.findall(r"^#+ (.*)$", Path(path).read_text(), re.MULTILINE)
        anchors = {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
        assert anchor in anchors, rule["alert"]


def test_the_dashboard_has_a_place_for_each_panel() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels()]
    assert len(set(places)) == len(places)
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in panels())


def test_the_proxy_of_node_metrics_has_no_power() -> None:
    """It may ask who a user is, has nothing of the host but its network, and lets no one in without a token."""
    objects = [
        each
        for name in yaml.safe_load((FOLDER / "node/kustomization.yaml").read_text())["resources"]
        for each in yaml.safe_load_all((FOLDER / "node" / name).read_text())
    ]
    (role,) = (each for each in objects if each["kind"] == "ClusterRole")
    assert [(rule["resources"], rule["verbs"]) for rule in role["rules"]] == [
        (["tokenreviews"], ["create"]),
        (["subjectaccessreviews"], ["create"]),
    ]
    (proxy,) = (each["spec"]["template"]["spec"] for each in objects if each["kind"] == "DaemonSet")
    (container,) = proxy["containers"]
    assert not any("hostPath" in volume for volume in proxy["volumes"])
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["runAsNonRoot"] is True
    assert not any("insecure" in arg or "ignore" in arg for arg in container["args"])
    (monitor,) = (each for each in objects if each["kind"] == "PodMonitor")
    assert "insecureSkipVerify" not in str(monitor)
