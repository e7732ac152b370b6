"""What an answer of the API server means for who asked."""

from __future__ import annotations

import pytest

from devalloc.store.kubernetes.api_error import ApiError


@pytest.mark.parametrize(
    ("status", "reason", "meanings"),
    [
        (404, "NotFound", set()),
        (409, "Conflict", {"is_conflict"}),
        (409, "AlreadyExists", {"is_conflict"}),
        (410, "Expired", {"is_gone"}),
        (422, "Invalid", set()),
        (500, "InternalError", {"is_unknown"}),
        (504, "Timeout", {"is_unknown"}),
        (0, "NoAnswer", {"is_unknown"}),
        (0, "TooLarge", {"is_unknown"}),
        (0, "NoConnection", {"is_unreachable"}),
    ],
)
def test_a_status_means_one_thing(status: int, reason: str, meanings: set[str]) -> None:
    error = ApiError(status, reason, "text", {"name": "x"})
    assert error.is_not_found is (status == 404)
    every = ("is_conflict", "is_gone", "is_unknown", "is_unreachable", "is_of_webhook")
    assert {name for name in every if getattr(error, name)} == meanings


def test_an_unknown_path_says_nothing_of_an_object() -> None:
    assert not ApiError(404, "NotFound", "the server could not find the requested resource").is_not_found


@pytest.mark.parametrize(("status", "is_of_webhook"), [(500, True), (400, False)])
def test_a_webhook_that_cannot_be_reached_is_not_one_that_refuses(status: int, is_of_webhook: bool) -> None:
    error = ApiError(status, "InternalError", 'Internal error occurred: failed calling webhook "x": refused')
    assert error.is_of_webhook is is_of_webhook
