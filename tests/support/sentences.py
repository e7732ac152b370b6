"""What answers say of their reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from devalloc.api.findings import AT_LENGTH, finding_of, message_of


def at_length(answer: Mapping[str, Any]) -> str:
    """The sentence of an answer with nothing left out, as `devalloc explain` shows it."""
    return message_of(finding_of(answer), AT_LENGTH)
