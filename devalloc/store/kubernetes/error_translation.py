"""Translate errors of the API server to errors of a store."""

from __future__ import annotations

import re

from devalloc.store.errors import Forbidden, Invalid, KindNotServed, StoreError, Unavailable, UnknownOutcome
from devalloc.store.kubernetes.api_error import ApiError

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
