"""What setups, and all that is named after them, may be called."""

from __future__ import annotations

import re
import secrets

from devalloc_node.errors import Denied
from devalloc_node.names import shown

MOST = 76
"""Characters, as containerd has it: names of namespaces, folders and files follow from it, with room to spare."""
_FORM = re.compile(r"[A-Za-z0-9]+([._-][A-Za-z0-9]+)*")
_RANDOM_BYTES = 10


def is_identifier(text: str) -> bool:
    """Runs of letters and digits, joined by single dots, dashes or underscores: never a path, never two names."""
    return len(text) <= MOST and _FORM.fullmatch(text) is not None


def check_identifier(what: str, text: str) -> None:
    """Raises Denied ``IdentifierInvalid``. ``what`` it is the name of, for the message."""
    if not is_identifier(text):
        raise Denied(
            "IdentifierInvalid",
            f"the {what} is {shown(text)}, and must be letters and digits, with single dots, dashes or underscores "
            f"between them, at most {MOST} characters",
        )


def new_identifier(prefix: str) -> str:
    """One that was never used and never will be: 80 random bits after the prefix."""
    return f"{prefix}-{secrets.token_hex(_RANDOM_BYTES)}"
