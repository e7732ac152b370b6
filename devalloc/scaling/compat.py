"""Protocol compatibility: the releases of other agents whose behaviour the setting ``compat`` selects."""

from __future__ import annotations

from enum import Enum


class ProtocolEra(Enum):
    """Which releases of the agents in use are followed where releases differ. The value is how it is written."""

    V0_12 = "v0.12"
    V0_31 = "v0.31"
    NEWEST = "newest"
