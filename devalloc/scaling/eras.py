"""The eras of the scaling protocols whose behaviour can be asked for: the one setting ``compat``."""

from __future__ import annotations

from enum import Enum


class Era(Enum):
    """Which releases of the agents in use are followed where releases differ. The value is how it is written."""

    V0_12 = "v0.12"
    V0_31 = "v0.31"
    NEWEST = "newest"

    @classmethod
    def parse(cls, text: str) -> Era:
        """Raises ValueError with a message that completes the sentence "compat ..."."""
        try:
            return cls(text)
        except ValueError:
            known = ", ".join(era.value for era in cls)
            raise ValueError(f"must be one of {known}, not {text!r}") from None
