"""`python -m benchmarks.compare CHECKOUT NAME...`: run benchmarks of another checkout and of this one in turns.

The other checkout is an older or newer state of this repository (`git worktree add ../before COMMIT`). It has its own
`.venv` (`make setup`), or is run with the packages of this one. Each round runs a benchmark first there, then here, in
a process each. The page `results/compare.md` has a line for each row that both
print; a row's time is the smallest of all runs, which other work on the machine disturbs least.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.harness import RESULTS, machine

ROOT = Path(__file__).parent.parent
PACKAGES = (".", "solver", "node-plugin")
"""Folders of a checkout that packages are imported from."""
TIMES = ("median", "min", "max")
SLOWER = 1.10
"""Above this ratio, a row counts as slower."""
NOISE = 0.02
"""Milliseconds by which runs of the same code differ, whatever their ratio: the clock and the CPU's caches."""
_MEASURED = re.compile(r"(.* )?p99|CPU|I/O wait: .*|descriptors|.*, (s|ms|MB)|bounds?|load")
"""Columns that may differ between two runs of one row."""
_AMOUNT = re.compile(r", \d+ MB beyond the manifests")


@dataclass(frozen=True)
class Comparison:
    """One row of a benchmark in both checkouts, in milliseconds."""

    benchmark: str
    row: str
    before: float
    after: float

    @property
    def ratio(self) -> float:
        """Time here for each unit of time there."""
        return self.after / self.before

    @property
    def is_slower(self) -> bool:
        """Whether this checkout is slower by more than noise."""
        return self.ratio > SLOWER and self.after - self.before > NOISE


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__.partition("\n")[2])
    parser.add_argument("checkout", type=Path, help="the other checkout, the one that counts as before")
    parser.add_argument("names", nargs="+", metavar="NAME", help="benchmarks that both checkouts have")
    parser.add_argument("--rounds", type=int, default=2, help="times that each benchmark runs in each (default: 2)")
    parser.add_argument("--runs", type=int, default=5, help="measured runs of a row in each round (default: 5)")
    options = parser.parse_args()
    if not (options.checkout / "benchmarks" / "__main__.py").exists():
        parser.error(f"{options.checkout} is no checkout of this repository: it has no benchmarks")
    comparisons = [
        comparison
        for name in options.names
        for comparison in compare(name, options.checkout.resolve(), options.rounds, options.runs)
    ]
    page = "\n".join(_page(options.checkout, comparisons, options.rounds)) + "\n"
    (RESULTS / "compare.md").write_text(page)
    print(page)


def compare(name: str, checkout: Path, rounds: int, runs: int) -> list[Comparison]:
    """Run one benchmark in both checkouts; the rows that both print, in this checkout's order."""
    before: dict[str, list[float]] = {}
    after: dict[str, list[float]] = {}
    for _ in range(rounds):
        for tree, times in ((checkout, before), (ROOT, after)):
            print(f"-- {name} in {tree}", file=sys.stderr, flush=True)
            command = [interpreter(tree), "-m", "benchmarks", name, "--runs", str(runs)]
            output = subprocess.run(
                command, cwd=tree, env=environment(tree), stdout=subprocess.PIPE, text=True, check=True
            ).stdout
            for row, shortest in read_table(output):
                times.setdefault(row, []).append(shortest)
    return [Comparison(name, row, min(before[row]), min(after[row])) for row in after if row in before]


def interpreter(tree: Path) -> str:
    """The Python of a checkout; this one if it has none."""
    own = tree / ".venv" / "bin" / "python"
    return str(own) if tree != ROOT and own.exists() else sys.executable


def environment(tree: Path) -> dict[str, str]:
    """What makes a Python import the packages of this checkout, whatever is installed."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(str(tree / part) for part in PACKAGES)}


def read_table(output: str) -> Iterator[tuple[str, float]]:
    """(what was measured, its shortest run in milliseconds) of each line of a benchmark's table."""
    header: list[str] = []
    for line in output.splitlines():
        if not line.startswith("| "):
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not header:
            header = cells
            continue
        row = dict(zip(header, cells, strict=True))
        what = [cell for column, cell in row.items() if column not in TIMES and not _MEASURED.fullmatch(column)]
        yield _AMOUNT.sub("", ", ".join(cell for cell in what if cell)), float(row["min"])


def _page(checkout: Path, comparisons: list[Comparison], rounds: int) -> Iterator[str]:
    commits = [
        subprocess.run(
            ["git", "-C", str(tree), "log", "-1", "--format=%h"], stdout=subprocess.PIPE, text=True, check=True
        ).stdout.strip()
        for tree in (checkout, ROOT)
    ]
    yield "# Before and after"
    yield ""
    yield (
        f"Benchmarks of commit `{commits[0]}` (before) and of `{commits[1]}` (after), in turns on one machine, "
        f"{rounds} rounds in a process each. A row's time is the smallest of all its runs, in milliseconds: "
        "other work disturbs that least. "
        f"A row is marked when it is slower by more than {SLOWER - 1:.0%} and {NOISE * 1000:.0f} µs."
    )
    yield ""
    yield f"Measured {datetime.now(UTC):%Y-%m-%d} on {machine()}."
    yield ""
    yield "| benchmark | rows | slower | ratio: median | smallest | largest |"
    yield "|---|---:|---:|---:|---:|---:|"
    for name in dict.fromkeys(comparison.benchmark for comparison in comparisons):
        ratios = [comparison.ratio for comparison in comparisons if comparison.benchmark == name]
        slower = sum(comparison.is_slower for comparison in comparisons if comparison.benchmark == name)
        spread = f"{statistics.median(ratios):.2f} | {min(ratios):.2f} | {max(ratios):.2f}"
        yield f"| {name} | {len(ratios)} | {slower} | {spread} |"
    yield ""
    yield "| benchmark | row | before | after | ratio | |"
    yield "|---|---|---:|---:|---:|---|"
    for each in comparisons:
        mark = "slower" if each.is_slower else ""
        yield f"| {each.benchmark} | {each.row} | {each.before:.3f} | {each.after:.3f} | {each.ratio:.2f} | {mark} |"


if __name__ == "__main__":
    main()
