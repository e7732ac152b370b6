"""Every table of the scaling protocols holds: our own, and the shared ones where they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.neon import FORMS, judge_file, main, read, shown
from tests.support.shared import SHARED

OWN = Path(__file__).parent / "cases" / "scaling"
SHARED_TABLES = sorted((SHARED / "neon").glob("*.json"))
TABLES = [
    # What stands beside them for other tests has a form of its own.
    *(path for path in sorted(OWN.glob("*.yaml")) if any(form.fits(read(path)) for form in FORMS)),
    *SHARED_TABLES,
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


def test_runner_says_what_it_cannot_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.json").write_text("{")
    assert main([str(tmp_path / "broken.json"), str(tmp_path / "none.json")]) == 1
    out = capsys.readouterr().out
    assert out.endswith("0/2 cases\n")
    assert "broken.json" in out
    assert "none.json" in out
    assert main([]) == 2
