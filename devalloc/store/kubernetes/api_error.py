"""Errors of requests to the API server."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from devalloc.store.errors import Forbidden, Invalid, KindNotServed, StoreError, Unavailable, UnknownOutcome

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
    def is_of_webhook(self) -> bool:
        """Whether the API server could not reach a webhook that it must ask before it writes."""
        return self.status >= 500 and _WEBHOOK in str(self)

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


_WEBHOOK = "failed calling webhook"
"""In the API server's message if a webhook does not answer it; one that refuses has its own."""


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


_STARTING_UP = ("not yet ready to handle request", "not yet synced to use for admission")
"""Messages of an API server that has just started and has not read policies and their parameters yet."""
_RBAC_STARTING_UP = re.compile(r"RBAC: .* not found")
"""It has not read all roles yet; or a role is missing, and the admin who deleted it must restore it."""
_MISSING_PERMISSION = re.compile(r': User "[^"]*" cannot ')
"""Message of missing rights. Other refusals come from policies, quotas or admission plugins, which check the object."""
_TOO_LARGE = ("etcdserver: request is too large", "trying to send message larger than max")


def translate_error(error: ApiError, what: str, *, writes: bool = False) -> StoreError:
    """The error for a failed request. The caller handles missing and changed objects itself. ``what``: the request,
    such as "read DeviceClaims"."""
    if error.status in (401, 403, 422) and _is_starting_up(error):
        return Unavailable(f"cannot {what} yet: {error}")
    if error.status in (400, 413, 422) or (writes and (_is_too_large(error) or _rejects_object(error))):
        return Invalid(f"cannot {what}: {error}")
    if error.status in (401, 403):
        return Forbidden(f"the API server does not allow this user to {what}: {error}")
    if error.status == 404:
        return KindNotServed(
            f"cannot {what}: the API server does not have this kind or namespace ({error}); are devalloc's CRDs "
            "installed (`devalloc crds | kubectl apply -f -`)?"
        )
    if writes and error.is_of_webhook:
        return UnknownOutcome(f"cannot {what} now: a webhook that the API server asks could not be reached: {error}")
    if writes and error.is_unknown:
        return UnknownOutcome(
            f"cannot tell whether it could {what}, because the answer was lost ({error}); read it again"
        )
    return Unavailable(f"{error}; cannot {what} now" if error.is_unreachable else f"cannot {what} now: {error}")


def _is_starting_up(error: ApiError) -> bool:
    """Whether the refusal is temporary: another server, or this one in a moment, would accept the request."""
    return any(words in str(error) for words in _STARTING_UP) or _RBAC_STARTING_UP.search(str(error)) is not None


def _rejects_object(error: ApiError) -> bool:
    """Whether the refusal is about the written object, not about missing rights."""
    return error.status == 403 and error.reason == "Forbidden" and _MISSING_PERMISSION.search(str(error)) is None


def _is_too_large(error: ApiError) -> bool:
    """Whether etcd (1.5 MiB) or the API server's connection to it (2 MiB) refused the write because of its size. It is
    reported as a server error, but it is certain that nothing was written."""
    return error.status == 500 and any(words in str(error) for words in _TOO_LARGE)
