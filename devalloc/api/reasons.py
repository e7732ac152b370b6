"""Why a claim or machine waits, or what is wrong with what it holds: one row for each code.

The explainers, the metrics, the advice of the command and the tables in docs/reasons.md take what they say of a code
from here. Once released, a code keeps its meaning for ever. The codes of the node plugin are in docs/node-codes.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

IMPOSSIBLE_VERDICT = "impossible even on an empty fleet"
IMPOSSIBLE_NOW_VERDICT = "impossible now"
STILL_SEARCHING = "searching"
"""Key of an answer without a reason yet: the search for its claim goes on beside the loop of a controller."""


class Reason(StrEnum):
    """A reason code (S19): how final it is, its meaning, what to do, and whether it is transient.

    The meaning and the advice are sentences of docs/reasons.md, of docs/placement.md, of docs/migration.md, or of
    the table of Events in docs/pods.md.
    """

    verdict: str
    """How final it is: the first words of the solver's message; empty if the message stands alone."""
    meaning: str
    advice: str
    """What a user can do; empty if the message says it."""
    is_transient: bool
    """Another claim of the same batch won. The next round, which follows at once, writes the lasting reason."""

    def __new__(cls, code: str, verdict: str, meaning: str, advice: str, is_transient: bool = False) -> Reason:
        reason = str.__new__(cls, code)
        reason._value_ = code
        reason.verdict, reason.is_transient = verdict, is_transient
        reason.meaning, reason.advice = meaning, advice
        return reason

    @property
    def is_of_fleet(self) -> bool:
        """Whether what there is, or what is free of it, does not suffice: another node, or another time, may."""
        return self.verdict in (IMPOSSIBLE_VERDICT, IMPOSSIBLE_NOW_VERDICT)

    # -- the claim, and what it names ----------------------------------------------------------------------------------

    CLAIM_INVALID = (
        "ClaimInvalid",
        "invalid",
        "The claim itself is wrong; the message lists field paths. The claim is answered again after it is edited.",
        "Correct the claim and apply it again; `devalloc validate -f` shows every error of a file.",
    )
    CLASS_NOT_FOUND = (
        "ClassNotFound",
        "waits for a class",
        "A class that the claim names does not exist (yet).",
        "Apply that class, or name one that exists (`devalloc get classes`; who may not list classes asks an admin for "
        "the ClusterRole devalloc-classes). devalloc then tries the claim again.",
    )
    CLASS_INVALID = (
        "ClassInvalid",
        "waits for a valid class",
        "A class that the claim names exists and is invalid.",
        "Correct the class and apply it again.",
    )
    EXPRESSION_TOO_EXPENSIVE = (
        "ExpressionTooExpensive",
        "waits for a simpler expression",
        "An expression of the claim, or of a class that it names, is valid and costs too much on a fleet of this size.",
        "Make the expression simpler: what reads an attribute that every device has its own value of should be cheap.",
    )
    CHECK_FAILED = (
        "CheckFailed",
        "waits for a correction of devalloc",
        "The two evaluators judge a device of the answer differently by an expression of the claim or its class.",
        "Write the expression in another way, and report the message: one of the two evaluators is wrong.",
    )
    CONFIG_NOT_FOUND = (
        "ConfigNotFound",
        "waits for a configuration object",
        "A configuration object that the claim or its class refers to does not exist (yet).",
        "Apply that object. devalloc tries the claim again when it exists.",
    )
    DELETING = (
        "Deleting",
        "is being deleted",
        "The claim is being deleted.",
        "The claim is being deleted; it gets no devices any more.",
    )

    # -- devices -------------------------------------------------------------------------------------------------------

    NO_MATCHING_DEVICES = (
        "NoMatchingDevices",
        IMPOSSIBLE_VERDICT,
        "No device passes class, type and constraints, in use or not.",
        "Relax the rule above that excludes most devices, or add such devices (`devalloc get pools` lists all).",
    )
    NODE_UNAVAILABLE = (
        "NodeUnavailable",
        IMPOSSIBLE_VERDICT,
        "The node that the claim is pinned to, or each that it does not exclude and that suits its pod, lacks devices "
        "that other nodes have.",
        "Remove the pin (annotation devalloc.io/node, or spec.nodeName of a machine) or the exclusion (annotation "
        "devalloc.io/excluded-nodes), or pin to a node that has such devices.",
    )
    NOT_ENOUGH_DEVICES = (
        "NotEnoughDevices",
        IMPOSSIBLE_VERDICT,
        "Matching devices exist, but no single node has enough of them, even if nothing is in use.",
        "Ask for fewer devices, or split the claim: all devices of a claim come from one node.",
    )
    INSUFFICIENT_CAPACITY = (
        "InsufficientCapacity",
        IMPOSSIBLE_VERDICT,
        "On no single node do the devices reach the requested amounts within the limits, even if nothing is in use.",
        "Ask for less, raise limits.count so that the amount can be split, or add capacity.",
    )
    MATCH_ATTRIBUTES_CONFLICT = (
        "MatchAttributesConflict",
        IMPOSSIBLE_VERDICT,
        "Enough devices exist, but not with the same values of matchAttributes.",
        "Drop an attribute from matchAttributes, or ask for fewer devices that share it.",
    )
    POOL_RESOURCES_EXHAUSTED = (
        "PoolResourcesExhausted",
        IMPOSSIBLE_VERDICT,
        "The devices exclude each other: together they need more of a pool's resources than the pool has.",
        "Ask for fewer or smaller partitions of a card, or allow several cards.",
    )
    DEVICES_IN_USE = (
        "DevicesInUse",
        IMPOSSIBLE_NOW_VERDICT,
        "It would fit, but claims that are already allocated hold the devices.",
        "Release or delete the claims that are in the way, or wait for them.",
    )
    LOST_TO_HIGHER_PRIORITY = (
        "LostToHigherPriority",
        "lost to higher priority",
        "It would fit, but claims of higher priority in the same batch got the devices.",
        "Raise annotation devalloc.io/priority, or wait until the claims in the way are gone.",
        True,
    )
    LOST_TO_COMPETITION = (
        "LostToCompetition",
        "lost to other claims of this batch",
        "It would fit, but other claims in the same batch got the devices.",
        "Give the claim a priority, or wait until the claims in the way are gone.",
        True,
    )
    GROUP_UNSATISFIABLE = (
        "GroupUnsatisfiable",
        IMPOSSIBLE_VERDICT,
        "A member of the claim's group cannot be satisfied, or no single node has room for all members, so none is "
        "satisfied.",
        "All members of a group must fit on one node. If the message names a member, explain that one.",
    )
    SEARCH_LIMIT = (
        "SearchLimit",
        "the search ended early",
        "The search reached its deadline or its limit first; nothing is known to be in the way.",
        "Give the search more time with --deadline, or ask for less. If the message names an expression, simplify it.",
    )

    # -- machines ------------------------------------------------------------------------------------------------------

    NO_ROOM = (
        "NoRoom",
        "",
        "The nodes' capacity for machines is reserved for other machines.",
        "Stop machines, make them smaller, or wait; `devalloc describe pool/NODE-host` shows what each one has.",
    )
    START_REFUSED = (
        "StartRefused",
        "",
        "Its node cannot start it, so nothing is reserved for it.",
        "Correct what the message names. devalloc tries again when the machine, or a file or interface that it needs, "
        "changes, or its node plugin starts anew; otherwise after 10 minutes at most.",
    )
    NODES_TOO_SMALL = (
        "NodesTooSmall",
        "",
        "No node has that much capacity, even if nothing runs there.",
        "Ask for less, or let nodes promise more (--oversub-cpu, --oversub-memory, the node's limits). For huge pages, "
        "set more aside on the node.",
    )
    NODES_CORDONED = (
        "NodesCordoned",
        IMPOSSIBLE_NOW_VERDICT,
        "Every node on which the machine may be is cordoned.",
        "Wait until one is uncordoned (`devalloc uncordon node/NODE`); `devalloc get nodes` shows who cordoned each.",
    )
    NODES_UNSCHEDULABLE = (
        "NodesUnschedulable",
        IMPOSSIBLE_NOW_VERDICT,
        "Every node on which the machine may be gets nothing new: it is cordoned, fenced, tainted or not ready.",
        "Do what the message says of one of the nodes; `devalloc get nodes` shows the state of each.",
    )
    # Something other than room is in the way.
    NO_HOST_CAPACITY = (
        "NoHostCapacity",
        "",
        "No node publishes its capacity for machines.",
        "Run one with `--host-capacity`, or set `nodeName`.",
    )
    NODE_NOT_SERVED = (
        "NodeNotServed",
        "",
        "No plugin runs machines there: the node publishes slices, or nothing; or its plugin has ended, or never ran.",
        "On a store, start its plugin. On a cluster, label the node `devalloc.io/publish=host` and run the "
        "plugin as a service of that host, or name another node.",
    )
    NODE_NOT_FOUND = (
        "NodeNotFound",
        "",
        "There is no Node of that name in the cluster.",
        "Correct `spec.nodeName`.",
    )
    NODE_FENCED = (
        "NodeFenced",
        "",
        "Its node is lost and was fenced, so the machine was taken away from it and has no other node yet.",
        "Read the condition `Placed`. If only that node has its disks, repair the node, start it, and run "
        "`devalloc unfence node/NAME`.",
    )
    CLAIM_NOT_FOUND = (
        "ClaimNotFound",
        "",
        "A claim that the machine names does not exist.",
        "Apply that claim.",
    )
    CLAIM_NOT_ALLOCATED = (
        "ClaimNotAllocated",
        "",
        "A claim is placed with another machine first, or is in a group with a claim that waits.",
        "Wait, or resolve what the other one waits for.",
    )
    CLAIM_BEING_DELETED = (
        "ClaimBeingDeleted",
        "",
        "A claim that the machine names is being deleted.",
        "Wait, and apply the claim again; or remove it from `spec.claims`.",
    )
    CLAIM_RELEASED = (
        "ClaimReleased",
        "",
        "A claim that the machine names is being released.",
        "Wait until it is allocated again.",
    )
    MACHINE_INVALID = (
        "MachineInvalid",
        "",
        "The machine cannot be read.",
        "Correct what the message names.",
    )

    # -- migrations of machines ----------------------------------------------------------------------------------------

    MACHINE_NOT_FOUND = (
        "MachineNotFound",
        "",
        "The machine that the migration names does not exist.",
        "Apply that machine, or delete the migration.",
    )
    MACHINE_NOT_RUNNING = (
        "MachineNotRunning",
        "",
        "Only a machine that runs can be migrated.",
        "Wait until it runs. One that is stopped starts on another node by itself, if its node is cordoned.",
    )
    MACHINE_NOT_MOVABLE = (
        "MachineNotMovable",
        "",
        "A part of the machine exists only on its node, or QEMU cannot move the machine.",
        "Change what the message names, and create another migration.",
    )
    ALREADY_MIGRATING = (
        "AlreadyMigrating",
        "",
        "Another migration moves the same machine.",
        "Wait until it is over, or delete it.",
    )
    MIGRATABILITY_UNKNOWN = (
        "MigratabilityUnknown",
        "",
        "The machine has devices of its node, and the node has not said yet whether QEMU can move it with them.",
        "If this lasts, start a plugin of this version on the machine's node.",
    )
    CLAIM_MOVING = (
        "ClaimMoving",
        "",
        "The machine has moved, and its claim gets its devices there when the node that it left has given up the old "
        "ones.",
        "If this lasts, see what the plugins of both nodes log.",
    )
    TOO_MANY_MIGRATIONS = (
        "TooManyMigrations",
        "",
        "The node has as many migrations as it may have at a time.",
        "Wait until one of them has moved. Namespaces take turns.",
    )
    MIGRATION_OFF = (
        "MigrationOff",
        "",
        "No other node receives machines that run, or the one that the migration names does not.",
        "Start the plugins of nodes that may receive it with `--migration-address`.",
    )
    MIGRATION_WITHDRAWN = (
        "MigrationWithdrawn",
        "",
        "The migration ended before the machine had moved; the message says why.",
        "Create another migration if the machine is still to move.",
    )
    MIGRATION_TIMED_OUT = (
        "MigrationTimedOut",
        "",
        "The machine did not move within the time limit.",
        "See what the plugins of both nodes log; raise the limit (`--migration-deadline`) if the machine is large.",
    )

    # -- quotas, admin access, and the API server ----------------------------------------------------------------------

    QUOTA_EXCEEDED = (
        "QuotaExceeded",
        "",
        "A ResourceQuota of its namespace allows fewer devices of a class; other claims hold them, or come first.",
        "Release or delete claims of the namespace, ask for less, or ask an admin to raise the quota.",
    )
    ADMIN_ACCESS_DENIED = (
        "AdminAccessDenied",
        "",
        "It names a class with admin access, and its namespace does not have the label for that.",
        "Name a class without admin access, or ask an admin to label the namespace.",
    )
    REFUSED = (
        "Refused",
        "",
        "Its allocation could not be written to it, or to a member of its group, so devalloc waits before it tries "
        "again.",
        "Remove what the message names, or ask an admin. devalloc tries again when the object, a class or a "
        "configuration changes; otherwise after 1 minute, then less and less often, at least hourly.",
    )

    # -- objects that nothing answers here -----------------------------------------------------------------------------

    LEFT_ASIDE = (
        "LeftAside",
        "",
        "`devalloc up` does not answer objects of its API group.",
        "",
    )

    # -- claims that have devices, or had them -------------------------------------------------------------------------

    SPEC_CHANGED = (
        "SpecChanged",
        "",
        "The spec was edited after the allocation; this does not change the allocation.",
        "Restore the spec, or `devalloc release` the claim.",
    )
    STILL_PREPARED = (
        "StillPrepared",
        "",
        "Its status was removed while its node had it prepared, and the node has not released the devices.",
        "Wait for the node; if the node is permanently lost: `devalloc fence node/NAME`.",
    )

    # -- Events of ResourceClaims --------------------------------------------------------------------------------------

    NO_SUITABLE_NODE = (
        "NoSuitableNode",
        "",
        "No node with devices for devalloc suits the pod.",
        "",
    )
    NOT_ADOPTED = (
        "NotAdopted",
        "",
        "Devices match, but devalloc does not allocate them: their driver is not adopted, nor their node set aside.",
        "Adopt the driver (`devalloc adopt`), or leave the claim to kube-scheduler by its label.",
    )
    SENT_BACK = (
        "SentBack",
        "",
        "kube-scheduler found no room for the pod on the node of its devices.",
        "",
    )
    NO_ROOM_FOR_POD = (
        "NoRoomForPod",
        "",
        "No node with devices has room for the pod, or kube-scheduler did not place it on five of them.",
        "Free CPU, memory, or what the message names on one of the nodes, or let the pod request less.",
    )


def find_reason(code: str | None) -> Reason | None:
    """The row of a code; None for a code that is not in the table, or none."""
    return _BY_CODE.get(code or "")


def is_transient_reason(code: str) -> bool:
    """Whether it is a code that is transient."""
    reason = find_reason(code)
    return reason is not None and reason.is_transient


def is_final_refusal(answer: Mapping[str, Any]) -> bool:
    """Whether a solver's answer to a claim refuses it, and would do so again while nothing changes."""
    return not (
        answer["allocated"]
        or answer.get(STILL_SEARCHING)
        or answer.get("exceeded")
        or answer["reason"] in (Reason.SEARCH_LIMIT.value, Reason.REFUSED.value)
        or is_transient_reason(str(answer["reason"]))
    )


def refusal_answer(key: tuple[str, str], reason: Reason, message: str) -> dict[str, Any]:
    """The solver's answer for a DeviceClaim (namespace, name) that it is not asked about."""
    name = {"namespace": key[0], "name": key[1], "allocated": False, "node": None, "allocations": [], "oneOf": None}
    return {**name, "reason": reason.value, "message": message}


_BY_CODE = {reason.value: reason for reason in Reason}
