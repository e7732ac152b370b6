"""Why a claim is not allocated: stable codes. Once released, a code keeps its meaning for ever."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """The reason of an unsatisfied claim (S19)."""

    CLAIM_INVALID = "ClaimInvalid"
    """The claim itself is wrong; the message lists field paths. It is answered again once it is edited."""
    CLASS_NOT_FOUND = "ClassNotFound"
    """A class that the claim names does not exist (yet)."""
    CLASS_INVALID = "ClassInvalid"
    """A class that the claim names exists and is invalid."""
    CONFIG_NOT_FOUND = "ConfigNotFound"
    """A configuration object that the claim or its class refers to does not exist (yet)."""
    DELETING = "Deleting"
    """The claim is being deleted."""
    NO_MATCHING_DEVICES = "NoMatchingDevices"
    """No device passes class, type and constraints, whatever is in use."""
    NODE_UNAVAILABLE = "NodeUnavailable"
    """The node the claim is pinned to does not have what other nodes do."""
    NOT_ENOUGH_DEVICES = "NotEnoughDevices"
    """Matching devices exist, but no one node has enough of them even when nothing is in use."""
    INSUFFICIENT_CAPACITY = "InsufficientCapacity"
    """The devices of no one node reach the requested amounts within the limits, even when nothing is in use."""
    MATCH_ATTRIBUTES_CONFLICT = "MatchAttributesConflict"
    """Enough devices exist, but not with equal values of matchAttributes."""
    POOL_RESOURCES_EXHAUSTED = "PoolResourcesExhausted"
    """The devices exclude each other: together they need more of a pool's resources than it has."""
    DEVICES_IN_USE = "DevicesInUse"
    """It would fit, were it not for claims that are already allocated."""
    LOST_TO_HIGHER_PRIORITY = "LostToHigherPriority"
    """It would fit, but claims of higher priority in the same batch got the devices."""
    LOST_TO_COMPETITION = "LostToCompetition"
    """It would fit, but other claims in the same batch got the devices."""
    GROUP_UNSATISFIABLE = "GroupUnsatisfiable"
    """A member of the claim's group cannot be satisfied, or no one node has room for all of them, so none is."""
    SEARCH_LIMIT = "SearchLimit"
    """The deadline or the search limit was reached first; nothing is known to stand in the way."""


STILL_SEARCHING = "searching"
"""In an answer: the claim has none yet, for its search goes on beside the loop of a controller."""

IMPOSSIBLE_VERDICT = "impossible even on an empty fleet"

VERDICTS = {
    Reason.CLAIM_INVALID: "invalid",
    Reason.CLASS_NOT_FOUND: "waits for a class",
    Reason.CLASS_INVALID: "waits for a valid class",
    Reason.CONFIG_NOT_FOUND: "waits for a configuration object",
    Reason.DELETING: "is being deleted",
    Reason.NO_MATCHING_DEVICES: IMPOSSIBLE_VERDICT,
    Reason.NODE_UNAVAILABLE: IMPOSSIBLE_VERDICT,
    Reason.NOT_ENOUGH_DEVICES: IMPOSSIBLE_VERDICT,
    Reason.INSUFFICIENT_CAPACITY: IMPOSSIBLE_VERDICT,
    Reason.MATCH_ATTRIBUTES_CONFLICT: IMPOSSIBLE_VERDICT,
    Reason.POOL_RESOURCES_EXHAUSTED: IMPOSSIBLE_VERDICT,
    Reason.DEVICES_IN_USE: "impossible now",
    Reason.LOST_TO_HIGHER_PRIORITY: "lost to higher priority",
    Reason.LOST_TO_COMPETITION: "lost to other claims of this batch",
    Reason.GROUP_UNSATISFIABLE: IMPOSSIBLE_VERDICT,
    Reason.SEARCH_LIMIT: "the search ended early",
}
"""How final a reason is: the first words of its message."""
