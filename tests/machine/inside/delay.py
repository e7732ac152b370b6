"""Run in a test host, ``delay.py PATH LOG WORDS``: says ``watching``, and then, by this host's clock, the seconds from
when the path appeared (or went, where it is there now) until what came to the log meanwhile matches the words."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

LOOK_SECONDS = 0.01


def main(path: Path, log: Path, words: str) -> None:
    was_there, offset = path.exists(), log.stat().st_size
    print("watching", flush=True)
    while path.exists() == was_there:
        time.sleep(LOOK_SECONDS)
    began = time.monotonic()
    with log.open() as lines:
        lines.seek(offset)
        output = lines.read()
        while not re.search(words, output):
            time.sleep(LOOK_SECONDS)
            output += lines.read()
    print(f"{time.monotonic() - began:.3f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
