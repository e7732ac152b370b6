"""Answers that upstream's allocator gave once, for machines on which it is not built.

They are in ``tests/data``, by a digest of the question; ``python -m tests.support.upstream_answers`` has the
allocator give them again. Times of searches are left out, and ids of shares are numbered, for they are random.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from tests.support import upstream_allocator
from tests.support.dra_differential import PEER_TIMEOUT
from tests.support.dra_instances import Instance, instance
from tests.support.go_build import Unavailable
from tests.support.reference_data import DATA, read, resource_claim_cases, write
from tests.support.upstream_allocator import Answer, Peer

ANSWERS_FILE = DATA / "resourceclaims" / "upstream-answers.json.xz"
INSTANCES = 1000
"""Random instances, of the seeds from 0 on; the cases of upstream's own suite are there too."""
_TIMES = ("newAllocatorNanoseconds", "allocateNanoseconds")


class RecordedPeer:
    """What stands in for the allocator: it knows the recorded questions only."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self._answers = answers

    def ask(
        self, given: Mapping[str, Any], features: Mapping[str, bool], *, runs: int = 1, timeout: float = PEER_TIMEOUT
    ) -> Answer:
        """The recorded answer to the ``input`` of a case."""
        answer = self._answers.get(_digest(given, features))
        if answer is None:
            raise LookupError("no recorded answer; record them anew: python -m tests.support.upstream_answers")
        return answer

    def has(self, question: Instance) -> bool:
        """Whether the answer to a case is recorded."""
        return _digest(question["input"], question["features"]) in self._answers


def peer() -> AbstractContextManager[Peer]:
    """The allocator if this machine has it built, else its recorded answers."""
    program = upstream_allocator.built_binary()
    return nullcontext(recorded_peer()) if program is None else upstream_allocator.UpstreamPeer(program)


def recorded_peer() -> RecordedPeer:
    """The recorded answers."""
    return RecordedPeer(read(ANSWERS_FILE)["answers"])


def questions() -> list[Instance]:
    """All that is recorded."""
    return [*(instance(Random(seed)) for seed in range(INSTANCES)), *resource_claim_cases()]


def without_chance(answer: Answer) -> Answer:
    """An answer as it is recorded: without what differs from one call to the next."""
    numbers: dict[str, str] = {}

    def numbered(share: str) -> str:
        return numbers.setdefault(share, str(UUID(int=len(numbers) + 1, version=4)))

    return {name: _with_shares(value, numbered) for name, value in answer.items() if name not in _TIMES}


def _with_shares(value: Any, numbered: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {
            key: numbered(part) if key == "shareID" else _with_shares(part, numbered) for key, part in value.items()
        }
    return [_with_shares(part, numbered) for part in value] if isinstance(value, list) else value


def _digest(given: Mapping[str, Any], features: Mapping[str, bool]) -> str:
    question = json.dumps([given, features], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(question.encode()).hexdigest()[:20]


def _record() -> Path:
    with upstream_allocator.running(lambda line: print(line, file=sys.stderr)) as program:
        answers = {
            _digest(question["input"], question["features"]): without_chance(
                program.ask(question["input"], question["features"], timeout=PEER_TIMEOUT)
            )
            for question in questions()
        }
    source = f"answers of {upstream_allocator.MODULE} v{upstream_allocator.version()} to tests/support/dra_instances.py"
    return write(ANSWERS_FILE, {"source": source, "answers": dict(sorted(answers.items()))})


if __name__ == "__main__":
    try:
        print(_record())
    except Unavailable as reason:
        sys.exit(f"cannot build the peer: {reason}")
