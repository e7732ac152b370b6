"""Judge devalloc by tables of the scaling protocols: ``python -m tools.judge_scaling FILE...``.

The files hold facts about the agents, schedulers and monitors in use that devalloc speaks with (JSON or YAML; forms in
``tests/support/tables``, recognised by content). Each failure is printed with its file, case and path, and at the end
how many cases hold; the exit status is 1 when one does not. A fact that devalloc has nothing to hold against is
printed as ``not judged``, and is no case. A file that cannot be read, a table of no known form and a
section that nothing judges are a case each that does not hold.
"""

from __future__ import annotations

import json
import lzma
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.support import fast_yaml, reference_data
from tests.support.tables import (
    agents,
    capacity,
    encodings,
    goals,
    guest,
    machines,
    permits,
    servers,
    timelines,
    traces,
    workingsets,
)
from tests.support.tables.table_form import CaseVerdict, Failure, TableForm, explained

FORMS: list[TableForm] = [
    *agents.FORMS,
    *capacity.FORMS,
    *encodings.FORMS,
    *goals.FORMS,
    *workingsets.FORMS,
    *guest.FORMS,
    *machines.FORMS,
    *permits.FORMS,
    *servers.FORMS,
    *traces.FORMS,
    *timelines.FORMS,
]
"""Every form that is known. To add one: FORMS of a module of ``tests/support/tables``, and its line here."""
NO_FACTS = {"provenance", "source", "form"}
"""Sections that say where a table is from."""
NOT_OURS = {"node_labels_update_changed": "devalloc compares whole objects, not the labels of nodes"}
"""Sections about what devalloc has no counterpart of, and why."""
MAX_SHOWN = 400
"""Characters of a value that are printed."""


def judge(content: Any) -> Iterator[CaseVerdict]:
    """The verdicts on one table: an object, or just the list of its cases. Nothing that it holds raises."""
    table = {str(name): value for name, value in content.items()} if isinstance(content, dict) else {"cases": content}
    forms = forms_of(table)
    for form in forms:
        verdict = None
        try:
            for verdict in form.judge(table):
                yield verdict
        except Exception as error:
            verdict = CaseVerdict(form.name, [Failure("a table that can be read", explained(error))])
            yield verdict
        if verdict is None:
            yield CaseVerdict(form.name, [Failure("at least one case", "none")])
    if not forms:
        names = ", ".join(form.name for form in FORMS)
        yield CaseVerdict("table", [Failure(f"one of the known forms: {names}", "a table of no known form")])
    elif all(form.sections is not None for form in forms):
        for name in table:
            if not any(form.sections is not None and form.sections(name) for form in forms) and _is_fact(name):
                yield CaseVerdict(name, [Failure("a section of a known form", "a section that nothing judges")])
    for name, why in NOT_OURS.items():
        if name in table:
            yield CaseVerdict(name, unjudged=why)


def forms_of(table: dict[str, Any]) -> list[TableForm]:
    """The forms that a table has. Sections of several may stand side by side; all else has one."""
    return [form for form in FORMS if form.fits(table)]


def _is_fact(section: str) -> bool:
    return section not in NO_FACTS and not section.startswith("note") and section not in NOT_OURS


def read(path: Path) -> Any:
    """A table from a file: YAML if its name says so, else JSON, which may be compressed (``.xz``)."""
    if path.suffix == ".xz":
        return reference_data.read(path)
    text = path.read_text(encoding="utf-8-sig")
    return fast_yaml.load(text) if path.suffix in (".yaml", ".yml") else json.loads(text)


def judge_file(path: Path) -> Iterator[CaseVerdict]:
    """The verdicts on the table in a file."""
    try:
        content = read(path)
    except (OSError, ValueError, RecursionError, lzma.LZMAError, yaml.YAMLError) as error:
        yield CaseVerdict("table", [Failure("a table that can be read", f"{type(error).__name__}: {error}")])
        return
    yield from judge(content)


def shown(verdict: CaseVerdict, source: str) -> str:
    """The failures of a case, for people."""
    lines = []
    for failure in verdict.failures:
        lines.append(
            f"{_clipped(source)}: {_clipped(verdict.name)}" + (f": {_clipped(failure.step)}" if failure.step else "")
        )
        lines.append(f"  expected {_clipped(failure.expected)}")
        lines.append(f"  got      {_clipped(failure.got)}")
    return "\n".join(lines)


def _clipped(value: Any) -> str:
    """On one line, in characters that any terminal takes."""
    try:
        text = value if isinstance(value, str) else json.dumps(value, default=repr)
    except (TypeError, ValueError, RecursionError):  # names that are no texts; a table that contains itself
        text = repr(value)
    text = " ".join(text.split()).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def main(arguments: list[str]) -> int:
    if not arguments:
        print("usage: python -m tools.judge_scaling FILE...", file=sys.stderr)
        return 2
    held = total = 0
    for name in arguments:
        for verdict in judge_file(Path(name)):
            if verdict.unjudged:
                print(f"{_clipped(name)}: {_clipped(verdict.name)}: not judged: {_clipped(verdict.unjudged)}")
                continue
            total += 1
            if verdict.failures:
                print(shown(verdict, name))
            else:
                held += 1
    print(f"{held}/{total} cases")
    return 0 if held == total else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
