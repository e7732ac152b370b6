"""Programs run under different seeds of Python's hashes, which decide the order of sets."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.repository import REPO


def outputs(script: str) -> tuple[bytes, bytes]:
    """What the script prints in two processes. It sees the modules that this one sees."""
    first, second = (
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            cwd=REPO,
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    )
    return first, second
