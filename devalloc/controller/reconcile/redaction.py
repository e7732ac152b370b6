"""Reasons as the owner of a namespace may read them: they name no claims and machines of other namespaces.

Who may read one namespace learns from its objects and Events how much others use, and not who they are; kube-scheduler
tells as little of other pods. `devalloc explain` with the rights of an admin names them.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_PART = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_NAME = re.compile(
    rf"(?<![\w./-])(?:(?:machine|claim|DeviceClaim|VirtualMachine|ResourceClaim) )?({_PART})/({_PART}(?:\.{_PART})*)"
    r"(?: \(\d+\))?(?![\w/-])"
)
_HIDDEN = "\0"
_SEVERAL = re.compile(f"{_HIDDEN}(?:(?:, | and ){_HIDDEN})*")


def redact(message: str, namespace: str, is_owner: Callable[[str, str], bool]) -> str:
    """The message for a user of this namespace. ``is_owner``: whether a claim or machine has this namespace and name:
    pools and devices look alike in a text."""

    def one(match: re.Match[str]) -> str:
        return _HIDDEN if match[1] != namespace and is_owner(match[1], match[2]) else match[0]

    def several(match: re.Match[str]) -> str:
        count = match[0].count(_HIDDEN)
        return "a claim of another namespace" if count == 1 else f"{count} claims of other namespaces"

    return _SEVERAL.sub(several, _NAME.sub(one, message)) if "/" in message else message
