"""Codes are an interface: each is documented, with a verdict and advice, and none is ever renamed."""

from __future__ import annotations

from devalloc.cli.render.explanation import ADVICE
from devalloc_solver.reasons import VERDICTS, Reason
from tests.support.repository import REPO

RELEASED = {
    *("ClaimInvalid", "ClassNotFound", "ClassInvalid", "ConfigNotFound", "Deleting", "NoMatchingDevices"),
    *("NodeUnavailable", "NotEnoughDevices", "InsufficientCapacity", "MatchAttributesConflict", "SearchLimit"),
    *("PoolResourcesExhausted", "DevicesInUse", "LostToHigherPriority", "LostToCompetition", "GroupUnsatisfiable"),
}
KINDS = {
    *("claim", "amount", "request", "matchAttribute", "limit", "constraint", "class", "config", "poolResource"),
    *("compatibilityGroup", "unavailable", "undefinedResource", "node", "member"),
    *("selector", "capacity", "counter", "taint", "device", "pool", "feature"),
}


def test_released_codes_stay() -> None:
    assert {str(reason) for reason in Reason} >= RELEASED


def test_each_code_has_a_verdict_advice_and_a_row_in_the_guide() -> None:
    guide = (REPO / "docs" / "reasons.md").read_text()
    for reason in Reason:
        assert VERDICTS[reason]
        assert ADVICE[reason]
        (row,) = [line for line in guide.splitlines() if line.startswith(f"| `{reason}` |")]
        assert ADVICE[reason] in row


def test_each_kind_of_blocker_is_in_the_guide() -> None:
    guide = (REPO / "docs" / "reasons.md").read_text()
    assert [kind for kind in sorted(KINDS) if f"`{kind}`" not in guide] == []
