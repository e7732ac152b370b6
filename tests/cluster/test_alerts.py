"""Each alert of deploy/monitoring by Prometheus' own rules: when it fires, with which words, and when it stays quiet;
and what is exported, as Prometheus reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.go_build import Progress, Unavailable
from tests.support.promtool import binary, promtool
from tests.unit.deploy.test_monitoring import FOLDER, of_controller, of_node, rules

Series = Mapping[str, str]
"""Values each minute, as promtool has them: ``0+10x5`` are 0, 10 … 50."""
PENDING = 'devalloc_pending_claims{{kind="DeviceClaim",namespace="a",reason="{}"}}'
WAITED = 'devalloc_claim_allocation_seconds_bucket{{kind="DeviceClaim",le="{}"}}'
REQUESTS = 'devalloc_api_requests_total{{verb="PUT",code="{}"}}'
PREPARED = 'devalloc_node_requests_total{{instance="n",method="PrepareClaim",result="{}"}}'
NODE = {"instance": "n"}


@dataclass(frozen=True)
class Case:
    """An alert fires with some series, and neither a minute before its time nor with others."""

    alert: str
    fires: Series
    minute: int
    """When it fires."""
    summary: str
    labels: Mapping[str, str] = field(default_factory=dict)
    quiet: tuple[Series, ...] = ()
    """What must not have it fire, each for two hours."""


CASES = [
    Case(
        "DevallocSeveralOwners",
        {'devalloc_devices_with_several_owners{dialect="DevicePool",pod="x"}': "0 2x9"},
        1,
        "2 devices of DevicePools have several owners or are over-committed",
        {"dialect": "DevicePool"},
        ({'devalloc_devices_with_several_owners{dialect="DevicePool",pod="x"}': "0x120"},),
    ),
    Case(
        "DevallocDeviceLost",
        {'devalloc_lost_devices{kind="DeviceClaim",pod="x"}': "0 2x9"},
        6,
        "2 devices of DeviceClaims are published no longer",
        {"kind": "DeviceClaim"},
        ({'devalloc_lost_devices{kind="DeviceClaim",pod="x"}': "0 2 2 0 " * 30},),
    ),
    Case(
        "DevallocCheckFailed",
        {'devalloc_pending_claims{kind="DeviceClaim",namespace="a",reason="CheckFailed",pod="x"}': "0 2x9"},
        1,
        "2 DeviceClaims of namespace a: two evaluators disagree about an expression",
        {"kind": "DeviceClaim", "namespace": "a"},
        ({'devalloc_pending_claims{kind="DeviceClaim",namespace="a",reason="NoRoom",pod="x"}': "2x25"},),
    ),
    Case(
        "DevallocControllerDown",
        {'devalloc_ready{pod="x"}': "1 stale"},
        6,
        "No controller of devalloc answers: no claim gets devices",
        quiet=({'devalloc_ready{pod="x"}': "0x120"}, {'devalloc_ready{pod="x"}': "1 _ _ _ 1x120"}),
    ),
    Case(
        "DevallocNoLeader",
        {'devalloc_leading{pod="x"}': "0x9", 'devalloc_leading{pod="y"}': "0x9"},
        2,
        "No controller of devalloc leads: no claim gets devices",
        quiet=({'devalloc_leading{pod="x"}': "0x120", 'devalloc_leading{pod="y"}': "1x120"},),
    ),
    Case(
        "DevallocControllerNotReady",
        {'devalloc_ready{namespace="s",pod="x"}': "0x9", 'devalloc_ready{namespace="s",pod="y"}': "1x9"},
        5,
        "Controller x is not ready",
        {"namespace": "s", "pod": "x"},
        ({'devalloc_ready{namespace="s",pod="x"}': "0 0 0 1 " * 30},),
    ),
    Case(
        "DevallocFleetNotSeen",
        {'devalloc_leading{pod="x"}': "1x20", 'devalloc_seen_timestamp_seconds{pod="x"}': "0x20"},
        11,
        "The controller cannot read the fleet: its metrics of devices and pending claims are old or missing",
        quiet=(
            {'devalloc_leading{pod="x"}': "1x120", 'devalloc_seen_timestamp_seconds{pod="x"}': "0+60x120"},
            {'devalloc_leading{pod="x"}': "0x120"},
        ),
    ),
    Case(
        "DevallocFleetNotSeen",
        {'devalloc_leading{pod="x"}': "1x20"},
        5,
        "The controller cannot read the fleet: its metrics of devices and pending claims are old or missing",
    ),
    Case(
        "DevallocClaimsUnanswered",
        {PENDING.format("Unanswered"): "3x9"},
        5,
        "3 DeviceClaims have neither devices nor a reason",
        {"kind": "DeviceClaim"},
        ({PENDING.format("DevicesInUse"): "3x120"}, {PENDING.format("Unanswered"): "3 3 3 3 0 " * 24}),
    ),
    Case(
        "DevallocClaimsPending",
        {PENDING.format("DevicesInUse"): "2x40"},
        30,
        "2 DeviceClaims of namespace a wait: DevicesInUse",
        {"kind": "DeviceClaim", "namespace": "a", "reason": "DevicesInUse"},
        ({PENDING.format("Deleting"): "2x120"}, {PENDING.format("Unanswered"): "2x120"}),
    ),
    Case(
        "DevallocClaimsSlow",
        {WAITED.format("900"): "0x90", WAITED.format("3600"): "0+10x90", WAITED.format("+Inf"): "0+10x90"},
        31,
        "Of DeviceClaims one in twenty waited 57m 45s for devices",
        {"kind": "DeviceClaim"},
        ({WAITED.format("900"): "0+10x120", WAITED.format("3600"): "0+10x120", WAITED.format("+Inf"): "0+10x120"},),
    ),
    Case(
        "DevallocDevicesUnavailable",
        {'devalloc_devices_by_state{dialect="ResourceSlice",state="unavailable"}': "1x40"},
        30,
        "1 devices of ResourceSlices are broken, tainted by their driver, or half published",
        {"dialect": "ResourceSlice"},
        ({'devalloc_devices_by_state{dialect="ResourceSlice",state="cordoned"}': "4x120"},),
    ),
    Case(
        "DevallocNodeLost",
        {'devalloc_lost_node_objects{node="a",pod="x"}': "3x20"},
        10,
        "Node a does not answer; 3 machines and claims wait for it, or until it is fenced",
        {"node": "a"},
        ({'devalloc_lost_node_objects{node="a",pod="x"}': "3 3 3 3 3 _ _ _ _ _ " * 12},),
    ),
    Case(
        "DevallocNodeNotServed",
        {'devalloc_unserved_node_objects{node="a",pod="x"}': "3x20"},
        10,
        "The plugin of node a does not run; nothing changes for its 3 machines and claims",
        {"node": "a"},
        ({'devalloc_unserved_node_objects{node="a",pod="x"}': "3 3 3 3 3 _ _ _ _ _ " * 12},),
    ),
    Case(
        "DevallocApiRequestsFail",
        {REQUESTS.format("503"): "0+60x40"},
        11,
        "PUT requests of the controller fail at the API server",
        {"verb": "PUT"},
        ({REQUESTS.format("409"): "0+60x120", REQUESTS.format("200"): "0+60x120", REQUESTS.format("0"): "0+1x120"},),
    ),
    Case(
        "DevallocEventsDropped",
        {'devalloc_events_dropped_total{pod="x"}': "0+10x40"},
        16,
        "The controller could not write 150 Events",
        quiet=({'devalloc_events_dropped_total{pod="x"}': "7x120"},),
    ),
    Case(
        "DevallocNodeDown",
        {'up{job="devalloc-system/devalloc-node",instance="n"}': "0x9"},
        5,
        "The node plugin at n does not answer: nothing is prepared there",
        {"job": "devalloc-system/devalloc-node", **NODE},
        ({'up{job="other",instance="n"}': "0x120"}, {'up{job="devalloc-node",instance="n"}': "1 0 0 0 " * 30}),
    ),
    Case(
        "DevallocNodePublishingFails",
        {'devalloc_node_publish_failures_total{instance="n"}': "0+1x40"},
        18,
        "Node n cannot publish its devices",
        NODE,
        ({'devalloc_node_publish_failures_total{instance="n"}': "0 1 2x120"},),
    ),
    Case(
        "DevallocNodeJournalRefused",
        {'devalloc_node_journal_quarantined{instance="n"}': "0 1x9"},
        1,
        "1 records of the journal of n make no sense: the devices in them stay as they are",
        NODE,
        ({'devalloc_node_journal_quarantined{instance="n"}': "0x120"},),
    ),
    Case(
        "DevallocNodeStateUnreadable",
        {'devalloc_node_state_readable{instance="n"}': "0x9"},
        5,
        "The state of node n cannot be read",
        NODE,
        ({'devalloc_node_state_readable{instance="n"}': "1 0 0 0 0 " * 24},),
    ),
    Case(
        "DevallocNodeRequestsFail",
        {PREPARED.format("failed"): "0+6x40"},
        23,
        "PrepareClaim fails on node n",
        {"method": "PrepareClaim", **NODE},
        ({PREPARED.format("denied"): "0+60x120", PREPARED.format("failed"): "0 1x120"},),
    ),
    Case(
        "DevallocMachinesEnded",
        {'devalloc_node_machines_ended_total{instance="n"}': "0 0 0 1x40"},
        3,
        "1 machines of n ended without a request to stop",
        NODE,
        ({'devalloc_node_machines_ended_total{instance="n"}': "4x120"},),
    ),
]


@pytest.fixture(scope="module")
def program(progress: Progress) -> Path:
    try:
        return binary(progress)
    except Unavailable as reason:
        pytest.skip(f"no promtool: {reason}")


@pytest.fixture(scope="module")
def rule_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rules as Prometheus has them: the operator takes them out of the object."""
    path = tmp_path_factory.mktemp("rules") / "rules.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load((FOLDER / "rules.yaml").read_text())["spec"]))
    return path


def test_rules_are_as_prometheus_wants_them(program: Path, rule_file: Path) -> None:
    code, output = promtool(program, "check", "rules", "--lint=all", "--lint-fatal", rule_file)
    assert code == 0, output
    assert f"{len(rules())} rules found" in output


@pytest.mark.parametrize("exported", [of_controller, of_node], ids=["controller", "node"])
def test_metrics_are_as_prometheus_wants_them(program: Path, exported: Any) -> None:
    assert promtool(program, "check", "metrics", content=exported()) == (0, "")


def test_there_is_a_case_of_each_alert() -> None:
    assert {case.alert for case in CASES} == {rule["alert"] for rule in rules()}


@pytest.mark.parametrize("case", CASES, ids=[f"{i}-{case.alert}" for i, case in enumerate(CASES)])
def test_an_alert_fires_when_it_should_and_not_otherwise(
    case: Case, program: Path, rule_file: Path, tmp_path: Path
) -> None:
    (rule,) = (rule for rule in rules() if rule["alert"] == case.alert)
    fired = {
        "exp_labels": {**rule["labels"], **case.labels},
        "exp_annotations": {"summary": case.summary, "runbook_url": rule["annotations"]["runbook_url"]},
    }
    expected = {case.minute: [fired]} | ({case.minute - 1: []} if case.minute else {})
    tests = [played(case.alert, case.fires, expected)]
    tests += [played(case.alert, series, {minute: [] for minute in range(0, 120, 7)}) for series in case.quiet]
    content = {"rule_files": [str(rule_file)], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "tests.yaml").write_text(json.dumps(content))
    code, output = promtool(program, "test", "rules", tmp_path / "tests.yaml")
    assert code == 0, output


def played(alert: str, series: Series, expected: Mapping[int, list[Any]]) -> dict[str, Any]:
    """``expected``: which alerts fire, by minute."""
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values.strip()} for name, values in series.items()],
        "alert_rule_test": [
            {"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": alerts} for minute, alerts in expected.items()
        ],
    }
