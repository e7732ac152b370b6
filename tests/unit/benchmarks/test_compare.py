"""The comparison of two checkouts pairs rows by what they measure, not by what they measured."""

from __future__ import annotations

from benchmarks.compare import Comparison, read_table

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


def test_a_row_is_slower_by_ratio_and_by_more_than_noise() -> None:
    assert Comparison("fleet", "load", 500.0, 560.0).is_slower
    assert not Comparison("fleet", "load", 500.0, 549.0).is_slower
    assert not Comparison("fleet", "release", 0.033, 0.045).is_slower
    assert not Comparison("fleet", "load", 560.0, 500.0).is_slower
