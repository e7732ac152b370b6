"""The changelog: ``make changelog`` puts the fragments of ``changes/`` into its first chapter, and removes them.

``changes/README.md`` says what a fragment is. Without ``collect`` this prints what would be added.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
KINDS = {"added": "Added", "changed": "Changed", "fixed": "Fixed"}
MOST = 400
"""Characters of a fragment."""
_WIDTH = 125
_NAME = re.compile(rf"[a-z0-9-]+\.({'|'.join(KINDS)})\.md")


class Invalid(Exception):
    """A fragment, or the changelog, is not as it must be; the text says what to do."""


def fragments(folder: Path) -> dict[Path, str]:
    """The text of each fragment, in the order of their names. Raises Invalid."""
    texts = {}
    for path in sorted(folder.iterdir()):
        if path.name == "README.md":
            continue
        if not _NAME.fullmatch(path.name):
            raise Invalid(f"{path.name}: name it WHAT.KIND.md, with KIND one of {', '.join(KINDS)}")
        text = " ".join(path.read_text(encoding="utf-8").split())
        if not text or len(text) > MOST:
            raise Invalid(f"{path.name}: has {len(text)} characters; write 1 to {MOST}")
        texts[path] = text
    return texts


def kind_of(path: Path) -> str:
    """The kind that a fragment's name has."""
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return match[1]


def with_fragments(changelog: str, texts: Mapping[Path, str]) -> str:
    """The changelog with more bullets, at the top of the sections of its first chapter. Raises Invalid."""
    for kind, title in KINDS.items():
        bullets = "".join(_bullet(text) for path, text in texts.items() if kind_of(path) == kind)
        heading = f"### {title}\n\n"
        before, match, after = changelog.partition(heading)
        if not match or before.count("\n## ") != 1:
            raise Invalid(f"CHANGELOG.md: the first chapter has no heading {heading.strip()!r}")
        changelog = f"{before}{heading}{bullets}{after}"
    return changelog


def _bullet(text: str) -> str:
    lines = textwrap.wrap(
        text, _WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    file = root / "CHANGELOG.md"
    try:
        texts = fragments(root / "changes")
        if arguments == ["collect"]:
            file.write_text(with_fragments(file.read_text(encoding="utf-8"), texts), encoding="utf-8")
            for path in texts:
                path.unlink()
        else:
            print("".join(f"{KINDS[kind_of(path)]}: {text}\n" for path, text in texts.items()), end="")
    except Invalid as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
