"""`python -m tools.power_cuts [ACT:FIRST-LAST ...]`: cut the power of a test host.

After every change that preparing and unpreparing a claim make, each cut followed by a boot, a row each. ACT: prepare or
unprepare.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.support import sriov_host, sriov_image
from tests.support.power_cuts import ACTS, PowerCuts
from tests.support.qemu import Machine

_POINTS = re.compile(rf"(?:{'|'.join(ACTS)})(?::[0-9]+(?:-[0-9]+)?)?", re.ASCII)


def asked_for(words: Sequence[str], calls: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, int]]:
    """The points (act, number from 1) that the words name."""
    for word in words or ACTS:
        act, _, numbers = word.partition(":")
        first, _, last = numbers.partition("-")
        for number in range(int(first or 1), int(last or first or len(calls[act])) + 1):
            if number <= len(calls[act]):
                yield act, number


def points_of(word: str) -> str:
    """The word, if it names points. Raises ArgumentTypeError."""
    if not _POINTS.fullmatch(word):
        raise argparse.ArgumentTypeError(f"{word!r} names no points; write prepare, prepare:7 or unprepare:3-9")
    return word


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.power_cuts", description=__doc__.partition("\n")[2])
    parser.add_argument("points", nargs="*", type=points_of, metavar="ACT:FIRST-LAST", help="default: all of both")
    words: Sequence[str] = parser.parse_args().points
    image = sriov_image.image(lambda line: print(f"  {line}", flush=True))
    with tempfile.TemporaryDirectory(prefix="devalloc-cuts-") as name:
        folder = Path(name)
        project = sriov_host.project_disk(image, folder / "project")
        state = sriov_host.state_disk(image, folder / "state")
        with Machine(image, folder, sriov_host.arguments(image, project, state), seconds=600) as machine:
            cuts = PowerCuts(machine)
            points = list(asked_for(words, cuts.calls))
            counts = ", ".join(f"{len(cuts.calls[act])} changes in {act}" for act in ACTS)
            print(f"{counts}; {len(points)} power cuts", flush=True)
            for act, number in points:
                begun = time.monotonic()
                try:
                    call = cuts.check(act, number)
                except AssertionError as error:
                    print(f"WRONG: {error}")
                    return 1
                print(f"{act:10}{number:>4}{time.monotonic() - begun:>7.0f} s  after {call[:100]}", flush=True)
    print(f"{len(points)} power cuts: nothing left, and prepared again as undisturbed, each time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
