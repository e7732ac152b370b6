"""The comparison of two checkouts pairs rows by what they measure, not by what they measured."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from benchmarks.compare import Comparison, environment, interpreter, read_table
from benchmarks.harness import RESULTS

PAGE = """\
# A title

| nodes | what | p99 | decoding, s | median | min | max |
|---:|---:|---:|---:|---:|---:|---:|
| 500 | load, {memory} MB beyond the manifests |  | 0.1 | 900.0 | {load} | 999.0 |
| 500 | release | {p99} | 0.1 | 0.040 | 0.033 | 0.499 |

(kept in a file)
"""


def test_rows_pair_although_their_measurements_differ() -> None:
    before = dict(read_table(PAGE.format(memory=27, load="500.0", p99="0.1")))
    after = dict(read_table(PAGE.format(memory=1234, load="700.5", p99="0.2")))
    assert before == {"500, load": 500.0, "500, release": 0.033}
    assert after == {"500, load": 700.5, "500, release": 0.033}


@pytest.mark.parametrize("name", ["batch", "cluster", "fleet", "hard", "prepare", "solver"])
def test_the_rows_of_a_recorded_page_are_named_by_nothing_that_was_measured(name: str) -> None:
    rows = [row for row, _ in read_table((RESULTS / f"{name}.md").read_text())]
    assert len(set(rows)) == len(rows) > 0
    assert not [row for row in rows if re.search(r"\d\.\d", row)]


def test_a_row_is_slower_by_ratio_and_by_more_than_noise() -> None:
    assert Comparison("fleet", "load", 500.0, 560.0).is_slower
    assert not Comparison("fleet", "load", 500.0, 549.0).is_slower
    assert not Comparison("fleet", "release", 0.033, 0.045).is_slower
    assert not Comparison("fleet", "load", 560.0, 500.0).is_slower


def test_a_checkout_without_packages_of_its_own_is_run_with_its_own_code(tmp_path: Path) -> None:
    for folder, package in (
        (".", "devalloc"),
        ("solver", "devalloc_solver"),
        ("node-plugin", "devalloc_node"),
        ("node-plugin", "devalloc_machines"),
        ("node-plugin", "devalloc_neon"),
    ):
        (tmp_path / folder / package).mkdir(parents=True)
        (tmp_path / folder / package / "__init__.py").touch()
    code = "import devalloc as a, devalloc_solver as b, devalloc_node as c; print(a.__file__, b.__file__, c.__file__)"
    command = [interpreter(tmp_path), "-c", code]
    output = subprocess.run(
        command, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    assert all(Path(name).is_relative_to(tmp_path) for name in output.split())
