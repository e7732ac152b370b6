"""The incremental checker: it follows every change of a fleet and checks one claim's answer at a time.

It maintains its own usage from the changes that it receives, so that judging a claim reads only the pools of its
answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from devalloc.api import meta
from devalloc.api.claim import DeviceClaim
from devalloc.api.device_class import DeviceClass
from devalloc.api.device_records import read_records
from devalloc.api.pool import DevicePool
from devalloc_solver.check.answer import Answer, MalformedAnswer, read_answer, recorded_grants
from devalloc_solver.check.cel_results import CelResults, load_evaluator
from devalloc_solver.check.claim import PendingClaim, check_new_claim
from devalloc_solver.check.classes import ClassCatalogue
from devalloc_solver.check.pools import KnownPools
from devalloc_solver.check.prior_allocations import (
    RejectedClaimView,
    allocated_uses,
    rejected_claim_uses,
    uses_of_grant,
)
from devalloc_solver.check.specs import SpecCache
from devalloc_solver.check.usage import CheckedUse, UsageAccount, are_exclusive, conflicts

Key = tuple[str, str]
"""(namespace, name)"""

_Holder = DeviceClaim | RejectedClaimView | tuple[PendingClaim, Answer]
"""A claim that came in allocated, one that is invalid and holds devices all the same, or one with its right answer."""


class IncrementalChecker:
    """Pools, classes and held devices as they are now. Not thread-safe."""

    def __init__(self) -> None:
        self._verdicts = CelResults()
        self._fleet = KnownPools(())
        self._catalogue = ClassCatalogue((), self._verdicts)
        self._specs = SpecCache(self._catalogue)
        self._holders: dict[Key, list[_Holder]] = {}
        self._uses: dict[Key, list[CheckedUse]] = {}
        self._account = UsageAccount()
        self._judged: tuple[Key, object, Answer, list[CheckedUse]] | None = None
        """the last answer found right, and what it takes, until it is granted, or pools or classes change"""
        self._naming: dict[str, set[Key]] = defaultdict(set)
        """name of a pool -> claims whose allocations name it, whether it exists or not; but for those that use all that
        they name since ``grant``"""

    # -- changes of objects --------------------------------------------------------------------------------------------

    def set_pools(self, name: str, pools: Sequence[DevicePool]) -> None:
        """These are all pools of that name now. What is held of them is read again (S18)."""
        self._judged = None
        users = {key for pool in self._fleet.named(name) for key in self._account.of(pool).keys}
        keys = sorted(users.union(self._naming.get(name, ())))
        for key in keys:
            self._take_out(key)
            self._name_pools(key)
        self._fleet.set_pools(name, pools)
        for key in keys:
            self._put_in(key)

    def set_classes(self, classes: Iterable[DeviceClass]) -> None:
        """These are all classes now."""
        self._judged = None
        before, classes = self._catalogue.admin_classes(), [*classes]
        self._catalogue = ClassCatalogue(classes, self._verdicts)
        if any(each.spec.constraints for each in classes):
            load_evaluator()
        self._specs = SpecCache(self._catalogue)
        if self._catalogue.admin_classes() != before:
            for key in sorted(self._holders):
                self._take_out(key)
                self._name_pools(key)
                self._put_in(key)

    def read_devices(self) -> None:
        """Read all devices now. Else each is read when an answer first has it, which takes some microseconds."""
        self._fleet.read_all()

    def hold(self, claim: DeviceClaim) -> None:
        """A claim came in allocated."""
        self._add(claim.key, claim)

    def hold_rejected(self, claim: RejectedClaimView) -> None:
        """An invalid claim came in and holds devices all the same (S13)."""
        self._add(claim.key, claim)

    def grant(self, claim: PendingClaim, answer: object) -> None:
        """A claim was allocated as an answer says. Raises MalformedAnswer."""
        key = claim.key
        judged = self._judged
        if judged is None or judged[1] is not answer or judged[0] != key or key in self._holders:
            self._add(key, (claim, read_answer(answer)))
            return
        _, _, given, uses = judged
        self._judged = None
        self._holders[key] = [(claim, given)]
        self._uses[key] = uses
        for use in uses:
            use.held = True
        self._account.add(uses)

    def release(self, key: Key) -> None:
        """The claim holds nothing any more."""
        self._take_out(key)
        for holder in self._holders.pop(key, ()):
            for name in _pools_named(holder) if self._naming else ():
                if (naming := self._naming.get(name)) is not None:
                    naming.discard(key)
                    if not naming:
                        del self._naming[name]

    # -- what it says --------------------------------------------------------------------------------------------------

    @property
    def disagreements(self) -> list[str]:
        """What two evaluators of expressions judged differently in the last call of ``judge``, as sentences."""
        return self._verdicts.disagreements

    @property
    def disputed(self) -> list[str]:
        """Those of them that the answer rests on."""
        return [message for messages in self._verdicts.disputed.values() for message in messages]

    def judge(self, claim: PendingClaim, answer: object) -> list[str]:
        """What is wrong with the answer to one pending claim that stands alone; [] when it is right."""
        self._judged = None
        self._verdicts.begin_call()
        key = claim.key
        try:
            given = read_answer(answer)
        except MalformedAnswer as error:
            return [str(error)]
        wrong: list[str] = []
        if given.key != key:
            wrong.append(f"the answer is for {'/'.join(given.key)}")
        if not given.allocated:
            wrong += ["is not allocated, and has allocations (S18)"] if given.grants else []
            return [f"{'/'.join(key)}: {sentence}" for sentence in wrong]
        if key in self._holders or claim.is_allocated:
            wrong.append("holds devices already, and never moves (S18)")
        if claim.is_deleting:
            wrong.append("is being deleted, and has been allocated (S18)")
        if claim.group is not None:
            wrong.append(f"is allocated without the others of group {claim.group} (S7)")
        taken, sentences = check_new_claim(claim, given, self._fleet, self._specs)
        self._verdicts.end_claim(key)
        wrong += sentences
        violations = [f"{'/'.join(key)}: {sentence}" for sentence in wrong] if wrong else []
        if not are_exclusive(self._account, taken):
            violations += conflicts(self._account, taken)
        if not violations:
            self._judged = key, answer, given, taken
        return violations

    # -- the account ---------------------------------------------------------------------------------------------------

    def _add(self, key: Key, holder: _Holder) -> None:
        self._take_out(key)
        self._holders.setdefault(key, []).append(holder)
        self._name_pools(key)
        self._put_in(key)

    def _name_pools(self, key: Key) -> None:
        for holder in self._holders[key]:
            for name in _pools_named(holder):
                self._naming[name].add(key)

    def _put_in(self, key: Key) -> None:
        uses = [use for holder in self._holders.get(key, ()) for use in self._uses_of(holder)]
        self._uses[key] = uses
        self._account.add(uses)

    def _take_out(self, key: Key) -> None:
        self._account.remove(self._uses.pop(key, ()))

    def _uses_of(self, holder: _Holder) -> list[CheckedUse]:
        if isinstance(holder, DeviceClaim):
            return allocated_uses(holder, self._fleet, self._catalogue)
        if not isinstance(holder, tuple):
            return rejected_claim_uses(holder, self._fleet)
        claim, answer = holder
        uses: list[CheckedUse] = []
        records = read_records(answer.annotations.get(meta.DEVICE_RECORDS))
        for grant, (position, alternative) in zip(answer.grants, answer.details(), strict=True):
            if not self._catalogue.is_admin(claim.spec.claims[position].alternatives[alternative or 0]):
                record = records.get((grant.pool, grant.device))
                uses += uses_of_grant(grant, answer.node, self._fleet, claim.key, record)
        return uses


def _pools_named(holder: _Holder) -> set[str]:
    if isinstance(holder, tuple):
        return {grant.pool for grant in holder[1].grants}
    return {grant.pool for grant in recorded_grants(holder.status)}
