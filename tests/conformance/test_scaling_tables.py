"""Every table of the scaling protocols holds: our own, and those of the agents in use."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.examples import examples
from tests.support.reference_data import scaling_tables
from tools.judge_scaling import forms_of, judge, judge_file, main, read, shown

OWN = Path(__file__).parent / "cases" / "scaling"
TABLES = [
    # What stands beside them for other tests has a form of its own.
    *(path for path in sorted(OWN.glob("*.yaml")) if forms_of(read(path))),
    *scaling_tables(),
]


@pytest.mark.parametrize("path", [pytest.param(path, id=path.name) for path in TABLES])
def test_every_case_of_a_table_holds(path: Path) -> None:
    verdicts = list(judge_file(path))
    assert verdicts
    failed = [shown(verdict, path.name) for verdict in verdicts if verdict.failures]
    assert not failed, "\n".join(failed)


GOAL: dict[str, Any] = {
    "name": "one",
    "input": {
        "computeUnit": {"vCPU_milli": 1000, "mem_bytes": 2**30},
        "config": {},
        "system": {"load1": 0.9, "load5": 0, "memoryUsageBytes": 0, "memoryCachedBytes": 0},
    },
    "expected": {"goalCU": 1, "hasAllMetrics": True, "cpu": 1.0, "mem": 0.0, "lfc": None},
}


def _changed(**expected: object) -> dict[str, Any]:
    return {**GOAL, "name": "other", "expected": {**GOAL["expected"], **expected}}


@pytest.mark.parametrize(
    ("tables", "last", "status"),
    [
        ([{"cases": [GOAL]}], "1/1 cases", 0),
        ([{"cases": [GOAL, _changed(goalCU=2)]}], "1/2 cases", 1),
        ([{"cases": [GOAL, _changed(cpu=1.0 + 1e-8)]}], "1/2 cases", 1),
        ([{"cases": [GOAL, _changed(cpu=1.0 + 1e-10)]}], "2/2 cases", 0),
        ([{"cases": [GOAL, _changed(lfc=0.0)]}], "1/2 cases", 1),
        ([{"cases": [GOAL, {"input": {}}]}], "1/2 cases", 1),
        ([{"cases": [GOAL]}, {"cases": [{"what": 1}]}], "1/2 cases", 1),
        ([{"cases": [GOAL]}, []], "1/2 cases", 1),
        ([[GOAL]], "1/1 cases", 0),
        ([{"cases": [3, GOAL, None]}], "1/3 cases", 1),
        ([{"cases": [{**GOAL, "name": 7}, {**GOAL, "input": None}]}], "1/2 cases", 1),
        ([{"revision_source": []}], "0/1 cases", 1),
        ([{"milli_cpu_to_json": [[1, "1m"], 3]}], "1/2 cases", 1),
        (["text"], "0/1 cases", 1),
        ([{"cpu_range_parse": [["0-1", [0, 1]]], "something": []}], "1/2 cases", 1),
        ([{"cpu_range_parse": [["0-1", [0, 2]]]}], "0/1 cases", 1),
    ],
)
def test_runner_counts_what_holds_and_prints_what_does_not(
    tables: list[Any], last: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for number, table in enumerate(tables):
        path = tmp_path / f"table-{number}.json"
        path.write_text(json.dumps(table))
        paths.append(str(path))
    assert main(paths) == status
    *before, total = capsys.readouterr().out.splitlines()
    assert total == last
    assert bool(before) is bool(status)
    if status:
        assert any("expected" in line for line in before)


TWICE = {"observe same revision twice": "second gives nothing"}
REVISIONS: dict[str, Any] = {"revision_source": [TWICE, {"next": 1, "observe_after_s": 5, "latency_s": 5}]}
STEADY = ["steady state at 1 CU, tick 5 s, request takes 50 ms"]
STEADY += ["request starts exactly every 5 s measured from request START; between them wait = 5 - elapsed"]
DOWN = ["cur 2, bounds become 1..1", "monitorDownscale 2->1, then neonvm 2->1, then plugin{last:2,target:1}"]
UP = ["cur 2, bounds become 3..3", "plugin{last:2,target:3}, then neonvm 2->3, then monitorUpscale 2->3"]
RETRY = [["plugin request fails", "wait 2 + 1 warning"], ["+2", "plugin{last:1,target:2} again"]]
RETRY += [["neonvm fails", "wait 3 + 1 warning"], ["+3", "wait 1.8; neonvm 1->2 again"]]
UPS_AND_DOWNS = "up 2..4 then down 3..1 one at a time; CPU 0 is never offlined"
FACTS: list[tuple[dict[str, Any], str, str]] = [
    ({"scenarios": {"PeriodicPluginRequest": [STEADY]}}, "every 5 s", "every 9 s"),
    ({"scenarios": {"PeriodicPluginRequest": [STEADY]}}, "tick 5 s", "tick 7 s"),
    ({"scenarios": {"PeriodicPluginRequest": [STEADY]}}, "= 5 - elapsed", "= 4 - elapsed"),
    ({"scenarios": {"PeriodicPluginRequest": [STEADY]}}, "request starts", "nothing starts"),
    ({"scenarios": {"BoundsChangeRequiresDownscale": [DOWN]}}, "target:1", "target:2"),
    ({"scenarios": {"BoundsChangeRequiresDownscale": [DOWN]}}, "neonvm 2->1", "neonvm 3->1"),
    ({"scenarios": {"BoundsChangeRequiresDownscale": [DOWN]}}, DOWN[1], "nothing"),
    ({"scenarios": {"BoundsChangeRequiresUpscale": [UP]}}, "3..3", "4..4"),
    ({"scenarios": {"BoundsChangeRequiresUpscale": [UP]}}, ", then monitorUpscale 2->3", ""),
    ({"defaults": {"plugin_tick_s": 5}, "scenarios": {"BoundsChangeRequiresUpscale": [UP]}}, '_s": 5', '_s": 6'),
    (
        {"defaults": {"laft": 0.5}, "scenarios": {"FailedRequestRetry (plugin retry 2, neonvm retry 3)": RETRY}},
        "0.5",
        "0.2",
    ),
    ({"scenarios": {"FailedRequestRetry (plugin retry 2, neonvm retry 3)": RETRY}}, "neonvm retry 3", "neonvm retry 4"),
    (REVISIONS, "gives nothing", "gives the same again"),
    (REVISIONS, '"next": 1', '"next": 2'),
    ({"normalize_score_random": {"score 0": "unchanged"}}, "unchanged", "doubled"),
    ({"normalize_score_random": {"score s>0": "uniform integer in [1, s]"}}, "[1, s]", "[2, s]"),
    ({"cpu_scaler": [{"cpus": 4, "note": UPS_AND_DOWNS}]}, "up 2..4", "up 2..5"),
    ({"cpu_scaler": [{"cpus": 4, "note": UPS_AND_DOWNS}]}, "never", "always"),
]


@pytest.mark.parametrize(("table", "fact", "other"), FACTS)
def test_a_fact_that_is_changed_holds_no_longer(table: dict[str, Any], fact: str, other: str) -> None:
    text = json.dumps(table)
    assert text.count(fact) == 1
    assert not [shown(verdict, "as it is") for verdict in judge(json.loads(text)) if verdict.failures]
    changed = judge(json.loads(text.replace(fact, other)))
    assert [verdict for verdict in changed if verdict.failures]


def test_sentences_are_played_by_their_own_numbers() -> None:
    down = ["cur 3, bounds become 2..2", "monitorDownscale 3->2, then neonvm 3->2, then plugin{last:3,target:2}"]
    (verdict,) = judge({"scenarios": {"BoundsChangeRequiresDownscale": [down]}})
    assert not verdict.failures, shown(verdict, "sentence")


def test_what_a_table_does_not_tell_is_no_case() -> None:
    targets = {"loadAverageFractionTarget": 0.9, "memoryUsageFractionTarget": 0.75, "enableLFCMetrics": False}
    content: dict[str, Any] = {"scaling": {"defaultConfig": targets}}
    two = [*judge(content)]
    content["scheduler"] = {"requestPort": 10299}
    assert [verdict.name for verdict in judge(content)] == [*(one.name for one in two), "plugin_port of v0.31"]


def test_rows_that_are_not_judged_are_listed_and_not_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "table.json"
    labels = {"node_labels_update_changed": {"same": True}}
    path.write_text(json.dumps({"namespaced_name_format": {"default": "foo/bar", "plus_v": "what?"}, **labels}))
    assert main([str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": not judged: ")[0] for line in lines] == [
        f"{path}: namespaced_name_format plus_v",
        f"{path}: node_labels_update_changed",
        "1/1 cases",
    ]


def test_runner_tells_file_case_and_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = _changed(goalCU=2, mem=0.5)
    wrong["name"] = "half a pair \ud800"
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"cases": [wrong, {**GOAL, "input": {"computeUnit": {}}}]}))
    assert main([str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines.pop(-2).startswith("  got      there is no 'mem_gib' (values.py:")
    assert lines == [
        f"{path}: half a pair \\ud800: goalCU",
        "  expected 2",
        "  got      1",
        f"{path}: half a pair \\ud800: mem",
        "  expected 0.5",
        "  got      0.0",
        f"{path}: one",
        '  expected {"goalCU": 1, "hasAllMetrics": true, "cpu": 1.0, "mem": 0.0, "lfc": null}',
        "0/2 cases",
    ]


@pytest.mark.parametrize("junk", [None, "", -1, 1.5, True, 10**30, [[]], {"name": None}, float("nan")])
def test_runner_survives_anything_at_any_place_of_a_table(junk: Any) -> None:
    for path in TABLES:
        rng, table = random.Random(path.name), _cached(path)
        for _ in range(examples(1, 0.005)):
            changed = list(judge(_with(rng, table, junk)))
            assert changed, path.name
            "".join(shown(verdict, path.name) for verdict in changed).encode()


@cache
def _cached(path: Path) -> Any:
    return read(path)


def _with(rng: random.Random, table: Any, junk: Any) -> Any:
    """The table with junk somewhere in it, the rest of long lists left out."""
    if not isinstance(table, (dict, list)) or not table or rng.random() < 0.1:
        return junk
    if isinstance(table, list):
        chosen = rng.randrange(len(table))
        return [_with(rng, table[chosen], junk) if number == chosen else one for number, one in enumerate(table[:8])]
    chosen = rng.choice(list(table))
    return {name: _with(rng, value, junk) if name == chosen else value for name, value in table.items()}


def test_runner_says_what_it_cannot_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe{}")
    (tmp_path / "broken.yaml").write_text("a: [1")
    (tmp_path / "endless.yaml").write_text("cases: &cases [*cases]")
    names = ["broken.json", "deep.json", "binary.json", "broken.yaml", "endless.yaml", "none.json", "."]
    assert main([str(tmp_path / name) for name in names]) == 1
    out = capsys.readouterr().out
    assert out.endswith("0/7 cases\n")
    assert all(str(tmp_path / name) in out for name in names)
    assert main([]) == 2
