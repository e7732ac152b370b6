"""The independent judge of the solver's answers.

It runs on every answer before that is returned (settled L3) and shares no code with the stages that found it: plain
loops over exact integers, one function per rule of claim-semantics. It is given valid objects. What makes objects
invalid *together* (pools that share a name on one node, classes or claims of one name) and expressions that are invalid
it finds itself. Configuration objects (``ConfigNotFound``) are not its concern.

Where the rules leave a choice, every choice is right here:

- a held amount that is no multiple of the block size any more counts as it is, not rounded up;
- a device that is already held adds nothing to S12 and S12a, so another share of it is judged by its capacity alone;
- a group whose members all have network devices only may be on any node or on none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from devalloc.api.claim import DeviceClaim, DeviceClaimStatus
from devalloc.api.deviceclass import DeviceClass
from devalloc.api.pool import DevicePool
from devalloc_solver.check.answer import Answer, MalformedAnswer, read_answer, recorded_grants
from devalloc_solver.check.asked import Specs
from devalloc_solver.check.catalogue import Catalogue
from devalloc_solver.check.claim import new_uses
from devalloc_solver.check.fleet import Fleet
from devalloc_solver.check.group import group_violations
from devalloc_solver.check.held import LeftOut, echo_violations, held_uses, left_out_uses
from devalloc_solver.check.judge import Judge
from devalloc_solver.check.objective import Level, Objective, objective
from devalloc_solver.check.use import Account, Use, conflicts
from devalloc_solver.check.verdicts import Verdicts

__all__ = ["Judge", "LeftOut", "Level", "Objective", "Verdicts", "check", "objective"]

Key = tuple[str, str]
"""(namespace, name)"""


def check(
    pools: Iterable[DevicePool],
    classes: Iterable[DeviceClass],
    claims: Iterable[DeviceClaim],
    answers: Sequence[object],
    *,
    verdicts: Verdicts | None = None,
    left_out: Iterable[LeftOut] = (),
) -> list[str]:
    """Everything that is wrong with `answers` (the ``claims`` of ``solve_manifests``); [] when they are right.

    `claims` are all valid ones, pending and allocated; `left_out` tells of the invalid ones what they hold and which
    group they fail. The sentences are for a developer. Never raises for content.
    """
    claims = list(claims)
    count = Counter(claim.key for claim in claims)
    valid = {claim.key: claim for claim in claims if count[claim.key] == 1}
    invalid = [claim for claim in left_out if claim.key not in valid]
    fleet = Fleet(pools)
    catalogue = Catalogue(classes, Verdicts() if verdicts is None else verdicts)
    specs = Specs(catalogue)

    account = Account()
    for holder in claims:
        if holder.is_allocated:
            account.add(held_uses(holder, fleet, catalogue))
    for each in invalid:
        account.add(left_out_uses(each, fleet))
    uses: list[Use] = []
    given, violations = _read(answers)
    allocated: dict[Key, Answer] = {}
    for answer in given:
        key, claim = answer.key, valid.get(answer.key)
        found: list[str] = []
        if claim is not None and claim.is_allocated:
            found += echo_violations(claim, answer, fleet)
        elif not answer.allocated:
            found += ["is not allocated, and has allocations (S18)"] if answer.grants else []
        elif claim is None:
            found += _invalid_violations(answer, [each.status for each in invalid if each.key == key])
        elif claim.is_deleting:
            found.append("is being deleted, and has been allocated (S18)")
        else:
            allocated[key] = answer
            taken, found = new_uses(claim, answer, fleet, specs)
            uses += taken
        violations += [f"{'/'.join(key)}: {sentence}" for sentence in found]
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
