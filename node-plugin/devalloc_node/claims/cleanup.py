"""Keeping the journal true: what crashes and reboots left, what could not be undone, and claims that are gone (T16)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from devalloc_node.claims.engine import Claims
from devalloc_node.claims.journal_content import grant_of
from devalloc_node.claims.steps import UndoResult
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.journal import ClaimRecord, ClaimState
from devalloc_node.journal.protocol import ALLOCATED, JournalReader
from devalloc_node.journal.sqlite import QUARANTINED
from devalloc_node.model.grant import ClaimRef, Grants


@dataclass(slots=True)
class ClaimExistence:
    """Prepared claims that do not exist, or of which that is unknown; each is in one list at most."""

    gone: list[ClaimRecord] = field(default_factory=list)
    """Of here, and gone."""
    strange: dict[str, str] = field(default_factory=dict)
    """Of elsewhere, and not known here: by UID, why."""
    not_served: list[tuple[ClaimRecord, str]] = field(default_factory=list)
    """Of a kind that this node does not serve, and why."""
    moved: Failed | None = None
    """Said if a claim is of another store or cluster; this one may know it all the same, with the same devices, as
    one that was restored does."""

    @property
    def unknown(self) -> dict[str, str]:
        """All of them: by UID, why."""
        gone = {record.ref.uid: "it was deleted but is still prepared" for record in self.gone}
        return self.strange | gone | {record.ref.uid: why for record, why in self.not_served}


def check_existence(journal: JournalReader, grants: Mapping[str, Grants]) -> ClaimExistence:
    """``grants``: by kind of claim. Raises NodeError if that cannot be told of a claim."""
    existence = ClaimExistence()
    prepared = [record for record in journal.claims() if record.state is ClaimState.PREPARED]
    identities = {kind: grants[kind].identity() for kind in {record.kind for record in prepared} & grants.keys()}
    for record in prepared:
        kind, uid = record.kind, record.ref.uid
        if kind not in grants:
            served = ", ".join(sorted(grants))
            existence.not_served.append(
                (record, f"it is still prepared as a {kind}, but this node now serves {served}s")
            )
            continue
        is_gone = grants[kind].is_gone(record.ref)
        identity, source = identities[kind], record.grant.get("source")
        if identity == source:
            existence.gone += [record] if is_gone else []
            continue
        if is_gone or not _holds_the_same(record, grants[kind]):
            existence.strange[uid] = f"it was prepared from {source}, and is still prepared"
        existence.moved = existence.moved or Failed(
            "StoreMoved",
            f"claim {record.ref} was prepared from {source}, but {kind}s now come from {identity}. If this is "
            f"intended, unprepare the claims of {source}",
        )
    return existence


def _holds_the_same(record: ClaimRecord, grants: Grants) -> bool:
    """Whether a claim that exists holds what it was prepared with. Raises Failed if that cannot be told."""
    try:
        return grants.look(record.ref).identities() == grant_of(record.ref, record.grant).identities()
    except Denied:  # it holds nothing, or nothing here
        return False


LOG = logging.getLogger(__name__)

_TRY_SECONDS = 0.05
"""How long a claim's lock is waited for: who holds it is alive and will finish the claim itself."""
_GUEST_SECONDS = 5.0
"""How long to wait for a guest that was asked before to let a device go: nothing is served meanwhile at a start, and
nothing else of its machine can be changed. What it does later is seen in the next pass."""
_VAIN_SECONDS, _LEAST_SECONDS = 10.0, 0.5
"""How long guests are waited for in vain in one pass, all together; and how long each of the others is all the same."""
_CALLER = "reconcile"


@dataclass(slots=True)
class ReconcileReport:
    """What one pass did, in words; empty if all is well."""

    finished: list[str] = field(default_factory=list)
    """What had been begun or could not be undone before, and is undone now."""
    removed: list[str] = field(default_factory=list)
    """Claims that are gone and were unprepared."""
    waiting: list[str] = field(default_factory=list)
    """Claims that are gone, and stay until the grace period is over or their devices are unused."""
    stuck: list[str] = field(default_factory=list)
    """What could not be undone, and why."""
    doubts: list[str] = field(default_factory=list)
    """Content whose owner is unknown. It stays as it is."""
    halted: str = ""
    """Why no claim was removed in this pass, although some may be gone."""


class Reconciler:
    """Runs at start and then from time to time. One thread; others may prepare and unprepare meanwhile."""

    def __init__(
        self,
        claims: Claims,
        *,
        boot_id: Callable[[], str],
        doubts: Callable[[frozenset[str]], Sequence[str]] = lambda held: (),
        blind: Callable[[], str | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``doubts``: given all keys that are held, what the host has of the kind that devalloc makes, in words. Asked
        after a journal was lost, for as long as that one lies beside the new one. ``blind``: why it cannot be seen what
        all processes have open; None if it can."""
        self._claims = claims
        self._boot_id = boot_id
        self._doubts = doubts
        self._blind = blind
        self._clock = clock
        self._in_vain = 0.0
        """Seconds that this pass has waited for guests that let nothing go."""
        self._gone_since: dict[str, float] = {}
        self.gone: Mapping[str, str] = {}
        """By UID, prepared claims that are unknown to the store of this node's claims, and why; as of the last pass
        that could tell. Their devices count as free there."""

    def look(self) -> None:
        """Know what is ``gone``, before anything is published. What cannot be told now a later pass will tell."""
        try:
            self._whereabouts()
        except NodeError as error:
            LOG.warning("cannot check yet which claims were deleted: %s", error)

    def recover(self) -> ReconcileReport:
        """At start: take note of a reboot, and undo what a crash left unfinished."""
        report = ReconcileReport()
        for record in self._claims.note_boot(self._boot_id()):
            report.finished.append(
                f"claim {record.ref} was prepared before a reboot of the host, which undid it: it must be prepared "
                "again"
            )
        self._finish(report)
        self._repeat(report)
        self._report_doubts(report)
        _log_report(report)
        return report

    def reconcile(self) -> ReconcileReport:
        """Now and then: as ``recover``, and unprepare what is gone for good."""
        report = ReconcileReport()
        self._finish(report)
        self._repeat(report)
        self._remove_gone(report)
        self.let_go(report)
        self._report_doubts(report)
        _log_report(report)
        return report

    def _finish(self, report: ReconcileReport) -> None:
        """Undo what is half done and no call works on."""
        self._in_vain = 0.0
        for record in self._claims.journal.claims():
            if record.state is not ClaimState.PREPARED:
                self._clear(record, report, report.finished, lambda now: now.state is not ClaimState.PREPARED)
        for name in self._claims.journal.shared():
            try:
                with self._claims.locks.shared(name, Deadline.after(_TRY_SECONDS), _CALLER):
                    if self._claims.journal.users(name):
                        continue
                    problem = self._claims.steps.undo_shared(name, self._due(), _CALLER)
            except NodeError as error:
                if error.code != "SharedBusy":
                    report.stuck.append(f"cannot check whether {name} is still in use: {error}")
            else:
                if problem is None:
                    report.finished.append(f"{name} is no longer used and was restored")
                else:
                    report.stuck.append(f"{name} is no longer used but was not restored: {problem}")
        for withheld in self._claims.journal.withheld():
            try:
                undone = self._claims.steps.offer(withheld, self._due())
            except NodeError as error:
                undone = UndoResult(left=(error,))
            for problem in undone.left:
                report.stuck.append(f"device {withheld.device} stays withheld: {problem}")
            if not undone.left:
                report.finished.append(f"device {withheld.device} was cleaned and is offered again")

    def _repeat(self, report: ReconcileReport) -> None:
        """Write the files of prepared claims again if they were removed: their users do not start without them."""
        for record in self._claims.journal.claims():
            if record.state is not ClaimState.PREPARED:
                continue
            try:
                with self._claims.locks.claim(record.ref.uid, Deadline.after(_TRY_SECONDS), _CALLER):
                    now = self._claims.journal.claim(record.ref.uid)
                    if now is not None and now.state is ClaimState.PREPARED:
                        for target in self._claims.steps.repeat(record.ref.uid, self._due(), _CALLER):
                            report.finished.append(f"restored {target} of claim {record.ref}")
            except NodeError as error:
                if error.code != "ClaimBusy":
                    report.stuck.append(f"claim {record.ref}: {error}")

    def let_go(self, report: ReconcileReport) -> None:
        """Claims that count as held in the store, and of which nothing is here: a crash came in between."""
        if self._lost_journal() is not None:
            return  # it may have held them
        for kind, grants in self._claims.grants.items():
            try:
                for ref in grants.held():
                    self._let_one_go(ref, grants, report)
            except NodeError as error:
                report.stuck.append(f"cannot list which {kind}s this node holds: {error}")

    def _let_one_go(self, ref: ClaimRef, grants: Grants, report: ReconcileReport) -> None:
        if self._claims.journal.claim(ref.uid) is not None:
            return
        try:
            with self._claims.locks.claim(ref.uid, Deadline.after(_TRY_SECONDS), _CALLER):
                if self._claims.journal.claim(ref.uid) is not None:
                    return
                self._claims.refuse_remains(ref)
                grants.let_go(ref)
                report.finished.append(f"claim {ref} named this node as its holder, but nothing of it is here")
        except NodeError as error:
            if error.code != "ClaimBusy":
                report.stuck.append(f"claim {ref}: {error}")

    def _remove_gone(self, report: ReconcileReport) -> None:
        """Unprepare claims that do not exist any more. In doubt nothing is removed at all."""
        halted: NodeError | None
        try:
            existence = self._whereabouts()
            halted = existence.moved
        except NodeError as error:
            existence, halted = ClaimExistence(), error
        report.stuck += (f"claim {record.ref}: {why}; unprepare it" for record, why in existence.not_served)
        if halted is not None:
            # Nothing is known of any claim now, and a grace period is one of uninterrupted knowledge.
            self._gone_since.clear()
            report.halted = f"no claim counts as deleted, because some could not be looked up: {halted}"
            return
        self._forget_gone_devices()
        gone = existence.gone
        blind = self._blind() if gone else None
        now = self._clock()
        self._gone_since = {record.ref.uid: self._gone_since.get(record.ref.uid, now) for record in gone}
        for record in gone:
            left = self._claims.options.grace_seconds - (now - self._gone_since[record.ref.uid])
            if left > 0:
                report.waiting.append(
                    f"claim {record.ref} was deleted; it is unprepared in {left:.0f} s unless it reappears"
                )
            elif blind is not None:
                report.stuck.append(
                    f"claim {record.ref} was deleted but stays prepared: cannot check whether its devices are in use "
                    f"({blind}); unprepare it when they are not"
                )
            elif len(report.removed) >= self._claims.options.removals:
                report.waiting.append(f"claim {record.ref} was deleted; this pass has reached its limit of removals")
            else:
                self._clear(record, report, report.removed, lambda now: now.state is ClaimState.PREPARED, unused=True)

    def _forget_gone_devices(self) -> None:
        """Of claims that a reboot undid, and that hold nothing here any more."""
        for uid, content in self._claims.journal.records(ALLOCATED).items():
            grants = self._claims.grants.get(str(content.get("kind")))
            if grants is None:
                continue  # this run does not serve its kind, and the next one may
            ref = ClaimRef(str(content.get("namespace")), str(content.get("name")), uid)
            try:
                grants.look(ref)
                continue
            except Denied:
                pass  # it holds nothing, or nothing here
            except NodeError as error:
                LOG.warning("cannot check whether claim %s still has the devices of before a reboot: %s", ref, error)
                continue
            self._claims.forget_devices(uid)

    def _whereabouts(self) -> ClaimExistence:
        """Raises NodeError."""
        existence = check_existence(self._claims.journal, self._claims.grants)
        self.gone = existence.unknown
        return existence

    def _clear(
        self,
        record: ClaimRecord,
        report: ReconcileReport,
        done: list[str],
        still: Callable[[ClaimRecord], bool],
        *,
        unused: bool = False,
    ) -> None:
        uid = record.ref.uid
        try:
            with self._claims.locks.claim(uid, Deadline.after(_TRY_SECONDS), _CALLER):
                # Another call may have changed it since it was listed.
                now = self._claims.journal.claim(uid)
                if now is None or not still(now):
                    return
                if not unused:
                    self._take_out(uid)
                self._claims.clear(now, self._due(), _CALLER, unused=unused)
        except NodeError as error:
            if error.code == "ClaimBusy":
                return
            (report.waiting if error.code == "DeviceInUse" else report.stuck).append(f"claim {record.ref}: {error}")
            return
        done.append(f"claim {record.ref} ({record.state}) is undone")

    def _take_out(self, uid: str) -> None:
        """Ask the users of a claim's devices to let go, of which one may have refused before. Raises NodeError."""
        for step in reversed(self._claims.journal.steps(uid)):
            if step.step.kind in self._claims.options.outer:
                seconds = max(min(_GUEST_SECONDS, _VAIN_SECONDS - self._in_vain), _LEAST_SECONDS)
                began = self._clock()
                try:
                    self._claims.steps.undo_one(step, Deadline.after(seconds), caller=_CALLER)
                except NodeError:
                    self._in_vain += self._clock() - began
                    raise

    def _report_doubts(self, report: ReconcileReport) -> None:
        aside = self._lost_journal()
        if aside is None:
            return
        report.doubts.append(
            f"the journal was unreadable and was moved to {aside}: what had been prepared is unknown and stays as it "
            "is. Release by hand what you do not need of the following, then remove that file"
        )
        try:
            report.doubts += self._doubts(frozenset(self._claims.journal.held()))
        except NodeError as error:
            report.doubts.append(f"cannot inspect the host: {error}")

    def _lost_journal(self) -> str | None:
        """The path of a journal that could not be read, until an admin has looked at it and removed it."""
        aside = self._claims.journal.setting(QUARANTINED)
        return aside if aside is not None and Path(aside).exists() else None

    def _due(self) -> Deadline:
        return Deadline.after(self._claims.options.prepare_seconds)


def _log_report(report: ReconcileReport) -> None:
    for level, texts in (
        (logging.INFO, [*report.finished, *report.removed, *report.waiting]),
        (logging.WARNING, [*report.stuck, *report.doubts, *([report.halted] if report.halted else [])]),
    ):
        for text in texts:
            LOG.log(level, "%s", text)
