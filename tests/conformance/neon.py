"""Judge devalloc by tables of the scaling protocols: ``python -m tests.conformance.neon FILE...``.

The files hold facts about the agents, schedulers and monitors in use that devalloc speaks with (JSON or YAML; forms in
``tests/support/tables``, recognised by content). Each failure is printed, and at the end how many cases hold; the exit
status is 1 when one does not, or when a file is of no known form.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.support.tables import agents, encodings, goals, guest, servers, timelines, traces
from tests.support.tables.forms import Failure, Form, Verdict

FORMS: list[Form] = [
    *agents.FORMS,
    *encodings.FORMS,
    *goals.FORMS,
    *guest.FORMS,
    *servers.FORMS,
    *traces.FORMS,
    *timelines.FORMS,
]
"""Every form that is known. To add one: FORMS of a module of ``tests/support/tables``, and its line here."""
NOT_OURS = {"node_labels_update_changed"}
"""Sections about what devalloc has no counterpart of: it compares whole objects, not the labels of nodes."""
MAX_SHOWN = 400
"""Characters of a value that are printed."""


def judge(content: Any) -> Iterator[Verdict]:
    """The verdicts on one table. A table of no known form is a failure, for nothing of it was judged."""
    known = [form for form in FORMS if isinstance(content, dict) and form.fits(content)]
    for form in known:
        yield from form.judge(content)
    if known and all(form.sections is not None for form in known):
        for name in content:
            if not any(form.sections is not None and form.sections(name) for form in known) and _is_fact(name):
                yield Verdict(name, [Failure("a section of a known form", "a section that nothing judges")])
    if not known:
        names = ", ".join(form.name for form in FORMS)
        yield Verdict("table", [Failure(f"one of the known forms: {names}", "a table of no known form")])


def _is_fact(section: str) -> bool:
    return section != "provenance" and not section.startswith("note") and section not in NOT_OURS


def read(path: Path) -> Any:
    """A table from a file: YAML where it is called so, else JSON."""
    text = path.read_text()
    return yaml.safe_load(text) if path.suffix in (".yaml", ".yml") else json.loads(text)


def judge_file(path: Path) -> Iterator[Verdict]:
    """The verdicts on the table in a file."""
    try:
        content = read(path)
    except (OSError, ValueError, yaml.YAMLError) as error:
        yield Verdict("table", [Failure("a table that can be read", str(error))])
        return
    yield from judge(content)


def shown(verdict: Verdict, source: str) -> str:
    """The failures of a case, for people."""
    lines = []
    for failure in verdict.failures:
        lines.append(f"{source}: {verdict.name}" + (f": {failure.step}" if failure.step else ""))
        lines.append(f"  expected {_clipped(failure.expected)}")
        lines.append(f"  got      {_clipped(failure.got)}")
    return "\n".join(lines)


def _clipped(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=repr)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def main(arguments: list[str]) -> int:
    if not arguments:
        print("usage: python -m tests.conformance.neon FILE...", file=sys.stderr)
        return 2
    held = total = 0
    for name in arguments:
        for verdict in judge_file(Path(name)):
            total += 1
            if verdict.failures:
                print(shown(verdict, name))
            else:
                held += 1
    print(f"{held}/{total} cases")
    return 0 if held == total else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
