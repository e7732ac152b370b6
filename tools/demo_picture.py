"""Draw docs/demo.svg: what `devalloc demo` prints on a terminal, without what depends on the machine.

python -m tools.demo_picture
"""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import termios
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "demo.svg"
COLUMNS = 132
_FIRST, _LAST = "A small sample fleet", "What to try next"
"""The lines between which the picture is taken: before are the devices of this host, after it a path of this folder."""
_SECONDS = 300.0


def record() -> str:
    """What the demo prints on a terminal of COLUMNS columns, with its colours. Raises RuntimeError if it fails."""
    ours, theirs = pty.openpty()
    try:
        termios.tcsetwinsize(theirs, (200, COLUMNS))
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "NO_COLOR": ""}
        command = [sys.executable, "-m", "devalloc.cli", "demo"]
        with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=environment) as process:
            os.close(theirs)
            output = _read_all(ours)
            if process.wait() != 0:
                raise RuntimeError(f"devalloc demo ended with {process.returncode}: {output[-500:]}")
    finally:
        os.close(ours)
    return output


def _read_all(terminal: int) -> str:
    chunks, ends = [], time.monotonic() + _SECONDS
    while time.monotonic() < ends:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # Linux reports so that the other side is closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    return b"".join(chunks).decode().replace("\r\n", "\n")


def draw(output: str) -> str:
    """The picture of a recorded output."""
    text = Text.from_ansi(output)
    lines = text.split("\n")
    plain = [line.plain for line in lines]
    first = next(number for number, line in enumerate(plain) if line.startswith(_FIRST))
    last = next(number for number, line in enumerate(plain) if line.startswith(_LAST))
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True)
    console.print(Text("$ devalloc demo", style="bold"))
    for line in lines[first : last - 1]:
        console.print(line)
    svg = console.export_svg(title="devalloc demo", unique_id="demo")
    return re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)  # they would be loaded from another server


def main() -> None:
    PICTURE.write_text(draw(record()))


if __name__ == "__main__":
    main()
