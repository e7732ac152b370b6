"""``devalloc replay``: does a snapshot still get the same answer?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from devalloc.cli.output import note, working
from devalloc.cli.verb import BadInput, verb

Answer = dict[str, Any]

PARTS = frozenset({"format", "devalloc", "options", "documents", "answer"})
"""What a snapshot consists of."""
_WORDS = frozenset({"message", "warnings", "funnel", "blockers"})
"""What explains the answer for a claim."""


@verb("replay")
@click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="PATH")
def replay(path: Path) -> int:
    """Solve the snapshot PATH again, with its options and without any store, and compare byte for byte.

    Only the time it took may differ, and for a snapshot of another version the words that explain an answer. Exit code
    1 when anything else differs.

    \b
    devalloc replay answer.json
    """
    from devalloc.version import VERSION
    from devalloc_solver import solve_manifests

    content = _read(path)
    options = content["options"]
    try:
        solve_manifests([], placement=options["placement"], deadline=options["deadline"])  # are these options at all?
    except (TypeError, ValueError) as error:
        raise BadInput(f"{path} is not a snapshot: its options are damaged: {error}") from error
    with working("solving"):
        answer = solve_manifests(content["documents"], placement=options["placement"], deadline=options["deadline"])
    before, now = _timeless(content["answer"]), _timeless(answer)
    if json.dumps(before) == json.dumps(now):
        click.echo(f"{path}: the same answer for {len(answer['claims'])} claims")
        return 0
    if content["devalloc"] != VERSION and json.dumps(_wordless(before)) == json.dumps(_wordless(now)):
        words = f"explained in other words than devalloc {content['devalloc']} did"
        click.echo(f"{path}: the same answer for {len(answer['claims'])} claims, {words}")
        return 0
    for line in _differences(before, now):
        click.echo(line)
    versions = f"{content['devalloc']}, this is {VERSION}"
    note(f"error: {path}: another answer than the recorded one (of devalloc {versions})")
    return 1


def _read(path: Path) -> dict[str, Any]:
    from devalloc.cli.snapshot import FORMAT

    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadInput(f"{path} is not a snapshot: {error}") from error
    if not isinstance(content, dict) or (missing := PARTS - content.keys()):
        lacks = f": it lacks {', '.join(sorted(missing))}" if isinstance(content, dict) else ""
        raise BadInput(f"{path} is not a snapshot{lacks}; write one with: devalloc snapshot PATH")
    shapes = {"options": dict, "documents": list, "answer": dict}
    odd = [part for part, shape in shapes.items() if not isinstance(content[part], shape)]
    if odd or not {"placement", "deadline"} <= content["options"].keys() or "claims" not in content["answer"]:
        raise BadInput(f"{path} is not a snapshot: its {' and '.join(odd) or 'content'} is damaged")
    if content["format"] != FORMAT:
        made_by = f"format {content['format']} (of devalloc {content['devalloc']})"
        raise BadInput(f"{path} has {made_by}, and this version reads format {FORMAT}")
    return content


def _timeless(answer: Answer) -> Answer:
    return {key: value for key, value in answer.items() if key != "seconds"}


def _wordless(answer: Answer) -> Answer:
    """Without what explains it to people, which each version may say better than the one before."""
    claims = [{name: value for name, value in claim.items() if name not in _WORDS} for claim in answer["claims"]]
    return {**answer, "claims": claims, "problems": None}


def _differences(before: Answer, now: Answer) -> Iterator[str]:
    """A line for each claim with another answer, and for each other part that differs."""
    claims = [{(c["namespace"], c["name"]): c for c in answer["claims"]} for answer in (before, now)]
    for key in sorted(claims[0].keys() | claims[1].keys()):
        if claims[0].get(key) != claims[1].get(key):
            yield f"{key[0]}/{key[1]}: recorded {_brief(claims[0].get(key))}; now {_brief(claims[1].get(key))}"
    for part in sorted((before.keys() | now.keys()) - {"claims"}):
        if before.get(part) != now.get(part):
            yield f"{part}: recorded {json.dumps(before.get(part))}; now {json.dumps(now.get(part))}"


def _brief(claim: Answer | None) -> str:
    from devalloc.api.inwords import devices_text

    if claim is None:
        return "no such claim"
    if claim["allocated"]:
        return f"{claim['node']}: {devices_text(claim['allocations'])}"
    return f"{claim['reason']}: {claim['message']}"
