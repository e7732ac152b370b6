"""``devalloc snapshot`` and ``replay``: all that an answer depends on, in one file, and that answer again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from devalloc.api.views import format_devices
from devalloc.cli.command import BadInput
from devalloc.cli.options.common import (
    SolveOptions,
)
from devalloc.cli.options.places import StoreTarget
from devalloc.cli.render.output import show_spinner
from devalloc.cli.solver_input import load_solver_input
from devalloc.cli.terminal import print_line, print_note
from devalloc.version import VERSION
from devalloc_solver import solve_manifests

FORMAT = 1
"""Version of the file format; replay refuses a newer one."""


def snapshot(
    path: Path,
    files: tuple[str, ...],
    namespace: str,
    options: SolveOptions,
    with_store: bool | None,
    place: StoreTarget,
) -> int:
    question = load_solver_input(files, namespace, place, with_store)
    with show_spinner("solving"):
        answer = solve_manifests(question.all, **asdict(options))
    content: dict[str, Any] = {
        "format": FORMAT,
        "devalloc": VERSION,
        "options": {"placement": options.placement, "deadline": options.deadline, "celCheck": options.cel_check},
        "documents": question.all,
        "answer": answer,
    }
    path.touch(mode=0o600)  # it contains the whole store, which other users cannot read, either
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    path.write_text(
        text, encoding="utf-8", errors="backslashreplace"
    )  # JSON escapes half a surrogate pair in the same way
    print_line(f"{path}: {len(question.all)} objects, {len(answer['claims'])} claims answered")
    return question.code


Answer = Mapping[str, Any]

SNAPSHOT_FIELDS = frozenset({"format", "devalloc", "options", "documents", "answer"})
"""The parts of a snapshot."""
_MESSAGE_FIELDS = frozenset(
    {"message", "verdict", "causes", "warnings", "funnel", "blockers", "alternatives", "caveats"}
)
"""The parts of a claim's answer that explain it."""


def replay(path: Path) -> int:
    content = _read(path)
    recorded = content["options"]
    options = {
        "placement": recorded["placement"],
        "deadline": recorded["deadline"],
        "cel_check": recorded.get("celCheck", "refuse"),  # versions before 0.2.0 do not record it
    }
    try:
        solve_manifests([], **options)  # checks the options
    except (TypeError, ValueError) as error:
        raise BadInput(f"{path} is not a snapshot: its options are damaged: {error}") from error
    with show_spinner("solving"):
        answer = solve_manifests(content["documents"], **options)
    before, now = _without_times(content["answer"]), _without_times(answer)
    if json.dumps(before) == json.dumps(now):
        print_line(f"{path}: the same answer for {len(answer['claims'])} claims")
        return 0
    if content["devalloc"] != VERSION and json.dumps(_without_messages(before)) == json.dumps(_without_messages(now)):
        words = f"with other messages than devalloc {content['devalloc']}"
        print_line(f"{path}: the same answer for {len(answer['claims'])} claims, {words}")
        return 0
    for line in _differences(before, now):
        print_line(line)
    versions = f"{content['devalloc']}, this is {VERSION}"
    print_note(f"error: {path}: the answer differs from the recorded one (of devalloc {versions})")
    return 1


def _read(path: Path) -> dict[str, Any]:

    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadInput(f"{path} is not a snapshot: {error}") from error
    if not isinstance(content, dict) or (missing := SNAPSHOT_FIELDS - content.keys()):
        lacks = f": it has no {', '.join(sorted(missing))}" if isinstance(content, dict) else ""
        raise BadInput(f"{path} is not a snapshot{lacks}; write one with: devalloc snapshot PATH")
    shapes = {"options": dict, "documents": list, "answer": dict}
    odd = [part for part, shape in shapes.items() if not isinstance(content[part], shape)]
    if odd or not {"placement", "deadline"} <= content["options"].keys() or "claims" not in content["answer"]:
        raise BadInput(f"{path} is not a snapshot: its {' and '.join(odd) or 'content'} is damaged")
    if content["format"] != FORMAT:
        made_by = f"format {content['format']} (of devalloc {content['devalloc']})"
        raise BadInput(f"{path} has {made_by}, but this version reads format {FORMAT}")
    return content


def _without_times(answer: Answer) -> Answer:
    return {key: value for key, value in answer.items() if key != "seconds"}


def _without_messages(answer: Answer) -> Answer:
    """The answer without its messages, which may change from version to version."""
    claims = [
        {name: value for name, value in claim.items() if name not in _MESSAGE_FIELDS} for claim in answer["claims"]
    ]
    return {**answer, "claims": claims, "problems": None}


def _differences(before: Answer, now: Answer) -> Iterator[str]:
    """A line for each claim whose answer differs, and for each other part that differs."""
    claims = [{(c["namespace"], c["name"]): c for c in answer["claims"]} for answer in (before, now)]
    for key in sorted(claims[0].keys() | claims[1].keys()):
        if claims[0].get(key) != claims[1].get(key):
            recorded, current = (_answer_text(answers.get(key)) for answers in claims)
            yield f"{key[0]}/{key[1]}: recorded {recorded}; now {current}"
    for part in sorted((before.keys() | now.keys()) - {"claims"}):
        if before.get(part) != now.get(part):
            yield f"{part}: recorded {json.dumps(before.get(part))}; now {json.dumps(now.get(part))}"


def _answer_text(claim: Answer | None) -> str:
    if claim is None:
        return "no such claim"
    if claim["allocated"]:
        return f"{claim['node']}: {format_devices(claim['allocations'])}"
    return f"{claim['reason']}: {claim['message']}"
