"""Keys that a user presses while a verb draws on the terminal."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager

ESCAPE, ENTER, BACKSPACE = "escape", "enter", "backspace"
_NAMES = {
    "A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end",
    "1~": "home", "4~": "end", "5~": "page up", "6~": "page down", "7~": "home", "8~": "end",
}  # fmt: skip
"""By what follows the escape character and a bracket."""
_ALONE = {"\r": ENTER, "\n": ENTER, "\x7f": BACKSPACE, "\x08": BACKSPACE, "\x04": "q"}
_MAX_UNREAD = 4096
"""Bytes that are kept: more is pasted, and dropped."""


class Keys:
    """What is pressed on a terminal. Without one, nothing is."""

    def __init__(self, terminal: int | None) -> None:
        self._terminal = terminal
        self._unread = ""

    @property
    def is_there(self) -> bool:
        """Whether anything can be pressed."""
        return self._terminal is not None

    def next(self, seconds: float) -> str | None:
        """The name of the next key, or its character; None if nothing is pressed for so long."""
        if not self._unread and not self._read(seconds):
            return None
        return self._take()

    def _read(self, seconds: float) -> bool:
        if self._terminal is None:
            time.sleep(seconds)
            return False
        if not select.select([self._terminal], [], [], seconds)[0]:
            return False
        data = os.read(self._terminal, _MAX_UNREAD)
        if not data:  # the terminal is gone
            self._terminal = None
            return False
        self._unread = (self._unread + data.decode(errors="replace"))[:_MAX_UNREAD]
        return True

    def _take(self) -> str | None:
        first, self._unread = self._unread[0], self._unread[1:]
        if first == "\x1b" and self._unread[:1] in ("[", "O"):
            end = next((i for i, char in enumerate(self._unread[1:], 1) if "@" <= char <= "~"), len(self._unread))
            code, self._unread = self._unread[1 : end + 1], self._unread[end + 1 :]
            return _NAMES.get(code)
        if first == "\x1b":
            return ESCAPE
        return _ALONE.get(first) or (first if first.isprintable() else None)


@contextmanager
def pressed_keys() -> Iterator[Keys]:
    """The keys of the terminal of stdin, which come at once and do not show; Ctrl-C interrupts as ever."""
    if not sys.stdin.isatty():
        yield Keys(None)
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield Keys(terminal)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
