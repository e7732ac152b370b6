"""`python -m benchmarks [NAME ...]`: run the benchmarks, print their tables, keep them in benchmarks/results."""

from __future__ import annotations

import argparse
import importlib
from functools import partial
from pathlib import Path

from benchmarks.harness import REGISTRY, RESULTS, report


def main() -> None:
    for module in sorted(Path(__file__).parent.glob("bench_*.py")):
        importlib.import_module(f"benchmarks.{module.stem}")
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(REGISTRY)} (default: all)")
    parser.add_argument("--runs", type=int, default=7, help="measured runs a row (default: 7)")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in REGISTRY]
    if unknown or options.runs < 1:
        parser.error(
            f"no benchmark {', '.join(unknown)}; there are {', '.join(REGISTRY)}" if unknown else "--runs >= 1"
        )
    RESULTS.mkdir(exist_ok=True)
    for name in options.names or REGISTRY:
        page = report(REGISTRY[name], options.runs, partial(print, flush=True))
        (RESULTS / f"{name}.md").write_text(page)
        print(f"\n(kept in {RESULTS / name}.md)\n")


if __name__ == "__main__":
    main()
