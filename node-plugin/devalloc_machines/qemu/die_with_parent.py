"""Run a program that ends with its parent: ``python die_with_parent.py PARENT PROGRAM ARGUMENTS...``.

Stands alone (no import of this project). The kernel kills what it became when the thread that started it ends, however
that comes about.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
FAILED = 127


def main(parent: int, words: list[str]) -> int:
    try:
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "cannot tie it to its parent")
        if os.getppid() != parent:  # it ended before that was said
            return FAILED
        os.execvp(words[0], words)
    except OSError as error:
        sys.stderr.write(f"{words[0]}: {error}\n")
    return FAILED


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
