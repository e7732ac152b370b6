"""What the API server's refusals mean to a store."""

from __future__ import annotations

from devalloc.store.errors import Forbidden, Invalid, StoreError, Unavailable, Unknown
from devalloc.store.kubernetes.client import ApiError


def explained(error: ApiError, what: str, *, writes: bool = False) -> StoreError:
    """The error for a request, but for one object that is not there or has changed, which the caller knows more of.
    ``what`` was to be done, as "read DeviceClaims"."""
    if error.status in (400, 413, 422):
        return Invalid(f"cannot {what}: {error}")
    if error.status in (401, 403):
        return Forbidden(f"the API server does not allow this user to {what}: {error}")
    if error.status == 404:
        return Unavailable(
            f"cannot {what}: the API server does not know that kind or namespace ({error}); are devalloc's CRDs "
            "installed (`devalloc crds | kubectl apply -f -`)?"
        )
    if writes and error.is_unknown:
        return Unknown(f"whether it could {what} is not known, the answer was lost ({error}); read it again")
    return Unavailable(f"cannot {what} now: {error}")
