"""What the API server answers instead of what was asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Object = dict[str, Any]


class ApiError(Exception):
    """The API server refused, or did not answer."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        details: Mapping[str, Any] | None = None,
        retry_after: float = 0.0,
    ) -> None:
        """``status``: of HTTP, 0 where there was no answer. ``reason``: the API's word, such as ``NotFound``.
        ``retry_after``: seconds that the server wants to be left alone."""
        super().__init__(message)
        self.retry_after = retry_after
        self.status = status
        self.reason = reason
        self.details = details or {}

    @property
    def is_not_found(self) -> bool:
        """The API says that this object does not exist; not that it does not know the path."""
        return self.status == 404 and self.reason == "NotFound" and bool(self.details.get("name"))

    @property
    def is_unknown(self) -> bool:
        """A write that this is the answer to may have been done, or may still be."""
        return (self.status == 0 and self.reason in ("NoAnswer", "TooLarge")) or self.status >= 500

    @property
    def is_unreachable(self) -> bool:
        """There was no connection, so the message says all there is to know; nothing was sent."""
        return self.reason == "NoConnection"

    @property
    def is_conflict(self) -> bool:
        return self.status == 409

    @property
    def is_gone(self) -> bool:
        """A watch's resource version is too old."""
        return self.status == 410


def parsed(content: bytes) -> Object | None:
    """A JSON object; None where it is something else."""
    try:
        found = json.loads(content)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def refusal(response: Any, content: bytes) -> ApiError:
    """From a Status of the API, or from whatever text somebody in between sent."""
    status, told, after = response.status, parsed(content), response.response.headers.get("Retry-After", "")
    seconds = float(after) if after.isdecimal() else 0.0  # the API server gives no dates
    if told is None or told.get("kind") != "Status":
        text = f"HTTP {status}: {' '.join(content.decode(errors='replace').split())[:400]}"
        return ApiError(status, "", text, retry_after=seconds)
    found = told.get("details")
    details = found if isinstance(found, dict) else None
    return ApiError(status, str(told.get("reason", "")), str(told.get("message", "")), details, seconds)
