"""Messages for a tenant name no claims of others, and all else that it named before."""

from __future__ import annotations

import pytest

from devalloc.controller.reconcile.decision import redact

OWNERS = {("team-a", "own"), ("team-b", "secret"), ("team-b", "plan.v2"), ("team-c", "third")}


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("no node has 4 devices", "no node has 4 devices"),
        ("2 are used by team-a/own", "2 are used by team-a/own"),
        ("1 is used by team-b/secret; more", "1 is used by a claim of another namespace; more"),
        ("used by team-b/secret, team-c/third", "used by 2 claims of other namespaces"),
        (
            "used by team-b/secret, team-b/plan.v2 and 4 more claims",
            "used by 2 claims of other namespaces and 4 more claims",
        ),
        ("used by team-a/own, team-b/secret", "used by team-a/own, a claim of another namespace"),
        ("used by team-b/secret (2), team-a/own (1)", "used by a claim of another namespace, team-a/own (1)"),
        ("releasing machine team-b/secret would make room", "releasing a claim of another namespace would make room"),
        (
            "DeviceClaim team-a/own and DeviceClaim team-b/secret",
            "DeviceClaim team-a/own and a claim of another namespace",
        ),
        ("device pool-1/0000-17-00-0 is cordoned", "device pool-1/0000-17-00-0 is cordoned"),
        ("attribute team-b/secret/x, a.team-b/secret", "attribute team-b/secret/x, a.team-b/secret"),
    ],
)
def test_messages(message: str, shown: str) -> None:
    assert redact(message, "team-a", lambda *key: key in OWNERS) == shown


def test_two_claims_of_one_message_are_never_taken_for_one() -> None:
    """However they are joined, all others are hidden."""
    for joint in (", ", " and ", "; ", " or ", "\n", ": "):
        assert "team-b" not in redact(joint.join(["team-b/secret", "team-b/plan.v2"]), "a", lambda *key: key in OWNERS)
