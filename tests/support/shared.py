"""Where the shared cases with known answers are, when they are there at all."""

from __future__ import annotations

import os
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("DEVALLOC_SHARED_CASES", REPO.parent / "shared" / "cases"))
