"""Random fleets against the oracle, for as long as there is time.

    python -m tools.fuzz_claims --seconds 600 --seed 1 --out /tmp

Each instance that the solver answers wrongly is made smaller and saved as ``disagree-<seed>.json`` with its complaints.
An instance that is too large for the exhaustive search is counted and left unjudged.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from devalloc_solver import solve_manifests
from tests.support import random_fleets
from tests.support.answer_verifier import complaints

Documents = list[dict[str, Any]]
SHRINKS = 400
"""Attempts to make a failing instance smaller."""
ORACLE_SECONDS = 60.0
"""CPU time that the exhaustive search gets for one instance; one in some 10,000 would take it hours."""


class TooLargeForOracle(BaseException):
    """The exhaustive search did not end in its time. (No Exception: nothing on the way may catch it.)"""


def judge(documents: Documents) -> list[str]:
    """What is wrong with the solver's answer to these documents; a crash counts."""
    try:
        answer = solve_manifests(deepcopy(documents))
    except Exception:
        return [f"crash: {traceback.format_exc(limit=-3)}"]
    with _oracle_time():
        return complaints(documents, answer)


@contextmanager
def _oracle_time() -> Iterator[None]:
    def give_up(*_: object) -> None:
        raise TooLargeForOracle

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, ORACLE_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def shrink(documents: Documents, fails: Callable[[Documents], bool]) -> Documents:
    """A smaller instance that still fails: documents, devices, details and fields are left out while it does."""
    attempts = 0
    progress = True
    while progress and attempts < SHRINKS:
        progress = False
        for smaller in _smaller(documents):
            attempts += 1
            if attempts > SHRINKS:
                break
            if fails(smaller):
                documents, progress = smaller, True
                break
    return documents


def _smaller(documents: Documents) -> Iterator[Documents]:
    for index in range(len(documents)):
        yield documents[:index] + documents[index + 1 :]
    for index, document in enumerate(documents):
        # What an allocated claim is stays as it is: other rules would come into play.
        for path in [] if "status" in document else list(_paths(document)):
            copy = deepcopy(document)
            parent: Any = copy
            for step in path[:-1]:
                parent = parent[step]
            del parent[path[-1]]
            yield [*documents[:index], copy, *documents[index + 1 :]]


_KEEP = {"apiVersion", "kind", "metadata", "name", "spec", "claims", "driver"}


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """What could be left out of a document, the big things first."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in list(items):
        if key not in _KEEP:
            yield (*path, key)
        yield from _paths(child, (*path, key))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="how long to go on (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="number of the first instance (default %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"), help="folder of failures (%(default)s)")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    start = shown = time.monotonic()
    seed, kinds, unjudged = arguments.seed, Counter[str](), 0
    while time.monotonic() - start < arguments.seconds:
        documents = random_fleets.documents(Random(seed))
        try:
            problems = judge(documents)
        except TooLargeForOracle:
            problems = []
            unjudged += 1
            print(f"seed {seed}: too large for the exhaustive search", flush=True)
        if problems:
            small = shrink(documents, partial(_still, _kind(problems[0])))
            path = arguments.out / f"disagree-{seed}.json"
            path.write_text(json.dumps({"seed": seed, "complaints": _safe(small), "documents": small}, indent=1))
            kinds[_kind(problems[0])] += 1
            print(f"{path}: {problems[0]}", flush=True)
        seed += 1
        if time.monotonic() - shown > 5:
            shown = time.monotonic()
            print(f"{seed - arguments.seed} instances, {sum(kinds.values())} wrong", file=sys.stderr, flush=True)
    judged = f"{seed - arguments.seed - unjudged} instances judged, {unjudged} too large to judge"
    print(f"{judged}, in {arguments.seconds:.0f} s, {sum(kinds.values())} wrong", dict(kinds))
    return 1 if kinds else 0


def _safe(documents: Documents) -> list[str]:
    """Complaints; an instance that was cut until it is no instance has none."""
    try:
        return judge(documents)
    except (KeyError, ValueError, AssertionError, IndexError, TypeError, TooLargeForOracle):
        return []


def _still(kind: str, documents: Documents) -> bool:
    return any(_kind(text) == kind for text in _safe(documents))


def _kind(text: str) -> str:
    """The complaint without names and numbers, to stay with one problem while shrinking."""
    if text.startswith("crash"):
        return re.sub(r"[\d'\"]|default/\w+", "", text.rsplit(": ", 1)[-1]).strip()
    return " ".join(word for word in text.split("): ", 1)[-1].split() if word.isalpha())[:40]


if __name__ == "__main__":
    sys.exit(main())
