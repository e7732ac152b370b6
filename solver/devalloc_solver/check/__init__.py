"""The independent judge of the solver's answers.

It runs on every answer before that is returned (settled L3) and shares no code with the stages that computed it: plain
loops over exact integers, one function per rule of claim-semantics. Its input is valid objects. It detects by
itself objects that are invalid *together* (pools that share a name on one node, classes or claims of one name), and
invalid expressions. Configuration objects (``ConfigNotFound``) are not its concern.

If the rules leave a choice, the check accepts every choice:

- an allocated amount that is no longer a multiple of the block size counts as it is, not rounded up;
- a device that is already held adds nothing to S12 and S12a, so another share of it is judged by its capacity alone;
- a group whose members all have network devices only may be on any node or on none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from devalloc.api.claim import DeviceClaim, DeviceClaimStatus
from devalloc.api.device_class import DeviceClass
from devalloc.api.pool import DevicePool
from devalloc_solver.check.answer import Answer, MalformedAnswer, read_answer, recorded_grants
from devalloc_solver.check.cel_results import CEL_CHECKS, CelResults, check_cel_check
from devalloc_solver.check.claim import check_new_claim
from devalloc_solver.check.classes import ClassCatalogue
from devalloc_solver.check.disputed_devices import DisputedDevices
from devalloc_solver.check.group import group_violations
from devalloc_solver.check.incremental import IncrementalChecker
from devalloc_solver.check.objective import GoalValues, PriorityLevel, goal_values
from devalloc_solver.check.pools import KnownPools
from devalloc_solver.check.prior_allocations import (
    RejectedClaimView,
    allocated_uses,
    rejected_claim_uses,
    unchanged_violations,
)
from devalloc_solver.check.specs import SpecCache
from devalloc_solver.check.usage import CheckedUse, UsageAccount, conflicts

__all__ = [
    "CEL_CHECKS",
    "CelResults",
    "DisputedDevices",
    "GoalValues",
    "IncrementalChecker",
    "PriorityLevel",
    "RejectedClaimView",
    "check",
    "check_cel_check",
    "goal_values",
]

Key = tuple[str, str]
"""(namespace, name)"""


def check(
    pools: Iterable[DevicePool],
    classes: Iterable[DeviceClass],
    claims: Iterable[DeviceClaim],
    answers: Sequence[object],
    *,
    verdicts: CelResults | None = None,
    left_out: Iterable[RejectedClaimView] = (),
) -> list[str]:
    """Everything that is wrong with `answers` (the ``claims`` of ``solve_manifests``); [] when they are right.

    `claims` are all valid ones, pending and allocated; `left_out` tells of the invalid ones what they hold and which
    group they fail. The sentences are for a developer. Never raises for content.
    """
    claims = list(claims)
    count = Counter(claim.key for claim in claims)
    valid = {claim.key: claim for claim in claims if count[claim.key] == 1}
    invalid = [claim for claim in left_out if claim.key not in valid]
    fleet = KnownPools(pools)
    verdicts = CelResults() if verdicts is None else verdicts
    verdicts.begin_call()
    catalogue = ClassCatalogue(classes, verdicts)
    specs = SpecCache(catalogue)

    account = UsageAccount()
    for holder in claims:
        if holder.is_allocated:
            account.add(allocated_uses(holder, fleet, catalogue))
    for each in invalid:
        account.add(rejected_claim_uses(each, fleet))
    uses: list[CheckedUse] = []
    given, violations = _read(answers)
    allocated: dict[Key, Answer] = {}
    for answer in given:
        key, claim = answer.key, valid.get(answer.key)
        sentences: list[str] = []
        if claim is not None and claim.is_allocated:
            sentences += unchanged_violations(claim, answer, fleet)
        elif not answer.allocated:
            sentences += ["is not allocated, and has allocations (S18)"] if answer.grants else []
        elif claim is None:
            sentences += _invalid_violations(answer, [each.status for each in invalid if each.key == key])
        elif claim.is_deleting:
            sentences.append("is being deleted, and has been allocated (S18)")
        else:
            allocated[key] = answer
            verdicts.begin_claim()
            taken, sentences = check_new_claim(claim, answer, fleet, specs)
            verdicts.end_claim(answer.key)
            uses += taken
        violations += [f"{'/'.join(key)}: {sentence}" for sentence in sentences]
    times = Counter(answer.key for answer in given)
    for key in valid:
        if times[key] != 1:
            violations.append(f"{'/'.join(key)}: has {times[key] or 'no'} answers (S16)")
    violations += conflicts(account, uses)
    failed = {(claim.key[0], claim.group) for claim in invalid if claim.group and claim.status is None}
    violations += group_violations(valid.values(), allocated, fleet, failed)
    return violations


def _read(answers: Sequence[object]) -> tuple[list[Answer], list[str]]:
    """The answers, and what is wrong with the form of the others."""
    if not isinstance(answers, Sequence):
        return [], [f"the answers are a list, not {type(answers).__name__}"]
    given = []
    violations = []
    for content in answers:
        try:
            given.append(read_answer(content))
        except MalformedAnswer as error:
            violations.append(str(error))
    return given, violations


def _invalid_violations(answer: Answer, statuses: Iterable[DeviceClaimStatus | None]) -> Iterator[str]:
    """An invalid claim gets nothing new (S16); one that came in allocated may be echoed (S18)."""
    recorded = [recorded_grants(status) for status in statuses if status is not None]
    if not recorded:
        yield "is allocated, and no valid claim has that name (S16)"
    elif answer.grants not in recorded:
        yield "came in allocated, and its allocations have changed (S18)"
