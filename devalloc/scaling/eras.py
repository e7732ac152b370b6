"""The eras of the scaling protocols whose behaviour can be asked for: the one setting ``compat``."""

from __future__ import annotations

from enum import Enum


class Era(Enum):
    """Which releases of the agents in use are followed where releases differ. The value is how it is written."""

    V0_12 = "v0.12"
    V0_31 = "v0.31"
    NEWEST = "newest"
