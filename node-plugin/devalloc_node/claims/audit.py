"""Who changed what on this host, when, and for which claim: one JSON object a line (T17)."""

from __future__ import annotations

import json
import logging

from devalloc_node.step import Value

LOGGER = logging.getLogger("devalloc.audit")
"""Level INFO. The time is the handler's."""


def audit(event: str, **fields: Value) -> None:
    """``event``: ``step``, ``undo``, ``stuck``, ``withheld``, ``offered``, ``prepared``, ``unprepared``, ``failed``."""
    if LOGGER.isEnabledFor(logging.INFO):
        said = {name: value for name, value in fields.items() if value not in (None, "")}
        LOGGER.info(json.dumps({"event": event, **said}, sort_keys=False, separators=(",", ":"), default=str))
