"""Errors of requests to the API server."""

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
        """``status``: of HTTP, 0 without an answer. ``reason``: the API's reason, such as ``NotFound``.
        ``retry_after``: seconds to wait before the next try, as requested by the server."""
        super().__init__(message)
        self.retry_after = retry_after
        self.status = status
        self.reason = reason
        self.details = details or {}

    @property
    def is_not_found(self) -> bool:
        """Whether the object does not exist, as opposed to an unknown path."""
        return self.status == 404 and self.reason == "NotFound" and bool(self.details.get("name"))

    @property
    def is_unknown(self) -> bool:
        """Whether the failed write may have been done, or may still be done."""
        return (self.status == 0 and self.reason in ("NoAnswer", "TooLarge")) or self.status >= 500

    @property
    def is_unreachable(self) -> bool:
        """Whether there was no connection, so that nothing was sent; the message is complete."""
        return self.reason == "NoConnection"

    @property
    def is_conflict(self) -> bool:
        return self.status == 409

    @property
    def is_gone(self) -> bool:
        """Whether a watch's resource version is too old."""
        return self.status == 410


def parse_object(content: bytes) -> Object | None:
    """The JSON object; None if the content is something else."""
    try:
        value = json.loads(content)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def error_of_response(response: Any, content: bytes) -> ApiError:
    """The error for a Status of the API, or for any text that a proxy sent."""
    status, body, after = response.status, parse_object(content), response.response.headers.get("Retry-After", "")
    seconds = float(after) if after.isdecimal() else 0.0  # the API server never sends dates
    if body is None or body.get("kind") != "Status":
        text = f"HTTP {status}: {' '.join(content.decode(errors='replace').split())[:400]}"
        return ApiError(status, "", text, retry_after=seconds)
    raw_details = body.get("details")
    details = raw_details if isinstance(raw_details, dict) else None
    return ApiError(status, str(body.get("reason", "")), str(body.get("message", "")), details, seconds)
