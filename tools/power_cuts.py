"""`python -m tools.power_cuts [ACT:FIRST-LAST ...]`: a power cut after every change that preparing and
unpreparing a claim make, each followed by a boot, a row each. ACT: prepare or unprepare; default: all of both."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.support import sriov_host, sriov_image
from tests.support.power_cuts import ACTS, PowerCuts
from tests.support.qemu import Machine


def asked_for(words: Sequence[str], calls: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, int]]:
    """The points (act, number from 1) that the words name."""
    for word in words or ACTS:
        act, _, numbers = word.partition(":")
        first, _, last = numbers.partition("-")
        for number in range(int(first or 1), int(last or first or len(calls[act])) + 1):
            if number <= len(calls[act]):
                yield act, number


def main(words: Sequence[str]) -> int:
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
    sys.exit(main(sys.argv[1:]))
