"""The benchmarks' own arithmetic, and that the fake hosts they measure are what their pages say."""

from __future__ import annotations

from pathlib import Path

from benchmarks.bench_discovery import fill
from benchmarks.harness import Benchmark, Row, report, timed
from tests.support.fake_sysfs import FakeSysfs


def test_a_page_has_the_machine_the_versions_and_a_line_a_row() -> None:
    rows = [Row({"claims": 10}, (0.003, 0.001, 0.002)), Row({"claims": 1000}, (1.5,))]
    lines: list[str] = []
    page = report(Benchmark("b", "Solve time", "One solve.", ("pydantic",), lambda runs: rows[:runs]), 2, lines.append)
    assert page.splitlines() == lines
    assert lines[-4:] == [
        "| claims | median | min | max |",
        "|---:|---:|---:|---:|",
        "| 10 | 2.0 | 1.0 | 3.0 |",
        "| 1000 | 1500.0 | 1500.0 | 1500.0 |",
    ]
    assert "pydantic 2" in page
    assert "Linux" in page


def test_the_first_run_is_not_counted() -> None:
    calls: list[int] = []
    assert len(timed(lambda: calls.append(1), 3)) == 3
    assert len(calls) == 4


def test_the_measured_host_has_as_many_functions_as_it_says(tmp_path: Path) -> None:
    host = FakeSysfs(tmp_path)
    fill(host, 16)
    physical = [f for f in host.functions.values() if f.pf is None and f.spec.native != "pcieport"]
    assert len(physical) == 16
    assert {f.spec.native for f in physical} == {"igb", "nvidia", "nvme"}
