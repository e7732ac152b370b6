"""Performing steps and undoing them, each with its line in the journal before and after; settings of
that; and the dry run, which lists the steps of a claim without taking them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from devalloc.inventory.pci import Address
from devalloc_node.binding.binding import Binding
from devalloc_node.claims.locks import ClaimLocks
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError, VfsRefused
from devalloc_node.host.boundary import DryRun, Host
from devalloc_node.host.lock_folder import lock_purpose
from devalloc_node.journal import USE, Journal, StepRecord, WithheldDevice
from devalloc_node.journal.audit_log import audit
from devalloc_node.journal.protocol import REFUSED_VFS, WITHHELD
from devalloc_node.model.grant import ClaimRef, Grant, GrantedDevice
from devalloc_node.model.step import ATTACHMENT, ContestedKind, ForcibleKind, Step, StepKind


def planned_steps(
    look: Callable[[ClaimRef], Grant],
    choose: Callable[[GrantedDevice], Binding],
    journal: Journal,
    ref: ClaimRef,
    due: Deadline,
) -> Sequence[Step]:
    """The steps of preparing a claim, as far as they can be told without taking them: a binding looks at the host
    between steps, and if it needs to see what an earlier step does, its plan ends there. Writes nothing.

    ``look``: what a claim holds, without counting it as held. For a claim that is prepared: the steps that it has.
    Raises NodeError if preparing would be refused.
    """
    recorded = [record.step for record in journal.steps(ref.uid)]
    if recorded:
        return recorded
    steps: list[Step] = []
    held = list(journal.held())
    for granted in look(ref).devices:
        if granted.admin:
            continue
        binding = choose(granted)
        keys = tuple(binding.keys(granted, ref.uid, held))
        held += keys
        first = len(steps)
        going = binding.prepare(granted, keys, due)
        try:
            for step in going:
                steps.append(step)
        except NodeError:
            if len(steps) == first:
                raise  # refused; what follows a first step is that the step was not taken
        finally:
            going.close()
    return steps


def deny_in_dry_run(host: Host, plan: Callable[[], Sequence[Step]], ref: ClaimRef) -> None:
    """In a dry run: tells each step of preparing a claim, and refuses it before anything is written down. What was
    begun would have to be undone, which is refused as well. Raises Denied ``DryRun``."""
    if not isinstance(host, DryRun):
        return
    texts = [f"{step.kind} of {step.target}: {step.before!r} becomes {step.after!r}" for step in plan()]
    for text in texts:
        host.tell(f"claim {ref}: would do: {text}")
    more = f" and {len(texts) - 3} more steps" if len(texts) > 3 else ""
    first = "; ".join(text[:120] for text in texts[:3]) or "only write the files that describe its devices"
    raise Denied("DryRun", f"dry run: nothing was changed; preparing claim {ref} would do: {first}{more}")


def deny_change_in_dry_run(host: Host, what: str) -> None:
    """In a dry run: tells what would be done, and refuses it, before a plugin that means it could finish it. Raises
    Denied ``DryRun``."""
    if isinstance(host, DryRun):
        host.tell(f"would {what}")
        raise Denied("DryRun", f"dry run: nothing was changed; would {what}")


LOG = logging.getLogger(__name__)


def as_node_error(ref: ClaimRef, error: Exception) -> NodeError:
    """The error itself, or an unexpected one wrapped as an error of the claim."""
    if isinstance(error, NodeError):
        return error
    LOG.error("preparing claim %s", ref, exc_info=error)
    return Failed("InternalError", f"preparing claim {ref} failed: {error!r}; see the log")


def joined_errors(errors: Iterable[NodeError]) -> str:
    """All of them, with their codes."""
    return "; ".join(f"{error.code}: {error.message}" for error in errors)


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """Times are in seconds."""

    prepare_seconds: float = 40.0
    """What preparing or unpreparing gets whose caller does not say by when it wants an answer."""
    undo_seconds: float = 10.0
    """What undoing gets when preparing failed: of the caller's time, a quarter of it at most, and beyond it if that
    is all used up."""
    grace_seconds: float = 300.0
    """How long a claim is seen to be gone before reconcile unprepares it."""
    removals: int = 5
    """The most claims that one pass of reconcile unprepares."""
    persistent_kinds: frozenset[str] = frozenset({"file"})
    """Kinds of steps that a reboot does not undo. None of them stands in the way of undoing another."""
    cleaning: frozenset[str] = frozenset({"vf-settings", "mdev", "vgpu"})
    """Kinds of steps which, if they cannot be undone, leave traces of an owner who has let go: the device is
    withheld."""
    outer: frozenset[str] = frozenset({ATTACHMENT})
    """Kinds of steps that may be undone while the device is in use: they are what ends its use."""


InUseCheck = Callable[[str], None]
"""Raises NodeError if a device (``pool/device``) is in use, so that it is not taken apart under its user."""


@dataclass(slots=True)
class ClaimWork:
    """What one request does for one claim."""

    uid: str
    caller: str = ""
    performed: list[int] = field(default_factory=list)
    """Steps that are done, which the journal records with the next one."""
    noted: list[tuple[str, str, Step]] = field(default_factory=list)
    """Steps (owner, device, step) that need no action, which the journal records with the next one as well."""

    def take(self) -> list[int]:
        taken, self.performed = self.performed, []
        return taken

    def take_noted(self) -> list[tuple[str, str, Step]]:
        taken, self.noted = self.noted, []
        return taken


@dataclass(frozen=True, slots=True)
class UndoResult:
    """What came of undoing."""

    left: tuple[NodeError, ...] = ()
    """Why steps of the claim are left, which keep its devices held."""
    shared: tuple[NodeError, ...] = ()
    """Why what it shared is not as it was before, which is tried again later."""


class _Withheld(Exception):
    """A device was withheld, and the steps that are left of it are not the claim's any more."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.device = device


class StepRunner:
    """The engine's hands. One thread works on a claim at a time: its callers hold the claim's lock."""

    def __init__(
        self, journal: Journal, kinds: Mapping[str, StepKind], locks: ClaimLocks, options: PrepareOptions
    ) -> None:
        self._journal = journal
        self._kinds = kinds
        self._locks = locks
        self._options = options

    def perform(self, work: ClaimWork, device: str, steps: Sequence[Step], deadline: Deadline) -> None:
        """Intents (written at once), changes, and (told later) done. Raises NodeError; what was begun is in the journal
        then."""
        _refuse_late(steps[0], deadline)
        shared, own = [s for s in steps if s.shared is not None], [s for s in steps if s.shared is None]
        if shared:
            numbers = self._join(work, device, shared, own, deadline)
        elif all(step.noted for step in own):
            work.noted += [(work.uid, device, step) for step in own]
            return
        else:
            numbers = self._intend(work, [(work.uid, device, step) for step in own])
        for number, step in zip(numbers, own, strict=True):
            if not step.noted:
                _refuse_late(step, deadline)
                self._apply(step, deadline)
                _audit("step", step, work.uid, device, work.caller)
            work.performed.append(number)

    def _intend(self, work: ClaimWork, begun: Sequence[tuple[str, str, Step]]) -> Sequence[int]:
        """Write down steps (owner, device, step), what was noted before them (undoing goes backwards), and what is done
        since; the numbers of the steps."""
        earlier = work.take_noted()
        numbers = self._journal.intend([*earlier, *begun], work.take())
        work.performed += numbers[: len(earlier)]
        return numbers[len(earlier) :]

    def undo(
        self, uid: str, deadline: Deadline, guard: InUseCheck, *, force: bool = False, caller: str = ""
    ) -> UndoResult:
        """All steps of a claim backwards. What cannot be undone keeps what is below it, and its record."""
        left: list[NodeError] = []
        shared: list[NodeError] = []
        blocked: set[str] = set()
        gone: set[str] = set()
        unused: set[str] = set()
        for record in reversed(self._journal.steps(uid)):
            if record.device in gone:
                continue
            is_persistent = record.step.kind in self._options.persistent_kinds
            if not is_persistent and (record.device in blocked or "" in blocked or (blocked and not record.device)):
                continue
            try:
                # Once: what takes a device away from its user looks again, right before it does.
                if not is_persistent and record.step.kind not in self._options.outer and record.device not in unused:
                    guard(record.device)
                    unused.add(record.device)
                shared += self._undo_one(record, deadline, force=force, caller=caller)
            except _Withheld as withheld:
                gone.add(withheld.device)
            except NodeError as error:
                left.append(error)
                if not is_persistent:
                    blocked.add(record.device)
        return UndoResult(tuple(left), tuple(shared))

    def repeat(self, uid: str, deadline: Deadline, caller: str = "") -> list[str]:
        """Perform the lasting steps of a prepared claim again that others have undone; their targets. Raises
        NodeError."""
        targets = []
        for record in self._journal.steps(uid):
            step = record.step
            if step.kind in self._options.persistent_kinds and self._read(step) != step.after:
                self._apply(step, deadline)
                _audit("restored", step, uid, record.device, caller)
                targets.append(step.target)
        return targets

    def undo_one(
        self, record: StepRecord, deadline: Deadline, *, force: bool = False, caller: str = ""
    ) -> list[NodeError]:
        """One step of a claim. Raises NodeError if it stays; returns what stays of what it shared."""
        try:
            return self._undo_one(record, deadline, force=force, caller=caller)
        except _Withheld:
            return []

    def _undo_one(self, record: StepRecord, deadline: Deadline, *, force: bool, caller: str) -> list[NodeError]:
        step = record.step
        if step.kind == USE:
            return self._leave(record, deadline, caller)
        try:
            event = self._revert(record, deadline, force=force)
        except NodeError as error:
            if self._leaves_traces(step, error) and not record.owner.startswith(WITHHELD):
                self._journal.withhold(record.id, error.message)
                _audit("withheld", step, record.owner, record.device, caller, error)
                LOG.error("device %s is withheld: %s", record.device, error)
                raise _Withheld(record.device) from error
            self._journal.stuck(record.id, error.message)
            _audit("stuck", step, record.owner, record.device, caller, error)
            raise
        self._journal.undone(record.id)
        _audit(event, step, record.owner, record.device, caller)
        return []

    def _leaves_traces(self, step: Step, error: NodeError) -> bool:
        """Whether the device is rid of its owner, and only not yet clean for the next."""
        return error.code == "ResetFailed" or (step.kind in self._options.cleaning and isinstance(error, Failed))

    def undo_shared(self, name: str, deadline: Deadline, caller: str = "", first: int = 0) -> NodeError | None:
        """What is shared under this name, if it is unused, down to the step ``first``; why it stays. The caller
        holds its lock."""
        for record in reversed(self._journal.steps(name)):
            if record.id < first:
                break
            try:
                event = self._revert(record, deadline, force=False)
                self._journal.undone(record.id)
                _audit(event, record.step, name, "", caller)
            except NodeError as error:
                # The earlier steps stand below this one.
                self._journal.stuck(record.id, error.message)
                _audit("stuck", record.step, name, "", caller, error)
                return error
        return None

    def offer(self, withheld: WithheldDevice, deadline: Deadline) -> UndoResult:
        """Try again to clean a withheld device, then put it back as it was before its last owner; nothing left: it is
        offered again."""
        with self._locks.shared(withheld.owner, deadline, f"clean device {withheld.device}"):
            undone = self.undo(withheld.owner, deadline, lambda device: None)
            if not undone.left:
                self._journal.unwithhold(withheld.device)
                audit("offered", device=withheld.device)
        return undone

    def _join(
        self, work: ClaimWork, device: str, steps: Sequence[Step], own: Sequence[Step], deadline: Deadline
    ) -> Sequence[int]:
        """Perform shared steps. ``own``: steps of the claim that are written down with them; their numbers."""
        name = str(steps[0].shared)
        with self._locks.shared(name, deadline, lock_purpose(f"set up {name}", work.caller)):
            users = self._journal.users(name)
            existing = self._settled(work, steps, name, {user.owner for user in users} - {work.uid}, deadline)
            joining = not any(user.owner == work.uid and user.device == device for user in users)
            begun = [(work.uid, device, Step(USE, name, None, None))] if joining else []
            new = [step for step in steps if _property(step) not in existing]
            begun += [(name, "", self._as_it_is(step)) for step in new]
            begun += [(work.uid, device, self._as_it_is(step)) for step in own]
            numbers = self._intend(work, begun) if begun else ()
            first, last = int(joining), len(begun) - len(own)
            work.performed += numbers[:first]
            new_numbers = dict(zip(map(_property, new), numbers[first:last], strict=True))
            for step in steps:
                _refuse_late(step, deadline)
                self._apply(step, deadline)
                if (number := new_numbers.get(_property(step))) is not None:
                    _audit("step", step, name, "", work.caller)
                    work.performed.append(number)
                elif (record := existing[_property(step)]).state != "done":
                    work.performed.append(record.id)
            return numbers[last:]

    def _settled(
        self, work: ClaimWork, steps: Sequence[Step], name: str, others: set[str], deadline: Deadline
    ) -> dict[tuple[str, str], StepRecord]:
        """Those of the shared steps that are in the journal as they are wanted. Others are undone, or refused."""
        while True:
            records = {_property(record.step): record for record in self._journal.steps(name)}
            existing = {_property(step): records[_property(step)] for step in steps if _property(step) in records}
            differing = [step for step in steps if (record := existing.get(_property(step))) is not None
                         and record.step.after != step.after]  # fmt: skip
            if not differing:
                return existing
            first = min(differing, key=lambda step: existing[_property(step)].id)
            self._refuse_other(first, existing[_property(first)], others)
            # What was begun before it stands below it, and may be this very claim's.
            if (problem := self.undo_shared(name, deadline, work.caller, existing[_property(first)].id)) is not None:
                raise problem

    def _as_it_is(self, step: Step) -> Step:
        """The step with what is there now, under the lock of what it hangs on: the binding looked before.

        Raises Denied if that makes it another step than the binding meant.
        """
        if step.noted:
            return step
        now = self._read(step)
        if step.before != now and (step.shared is None or step.before == step.after):
            raise Denied(
                "SharedDiffers",
                f"{step.kind} of {step.target} was {step.before!r} and is now {now!r}: another program is changing "
                "it; try again",
            )
        return replace(step, before=now, shared=None)

    def _refuse_other(self, step: Step, existing: StepRecord, others: set[str]) -> None:
        """Raises Denied if others rely on another value."""
        if others:
            first = ", ".join(sorted(others)[:3])
            raise Denied(
                "SharedDiffers",
                f"{_what(step)} is required, but {existing.step.after!r} was set for claims "
                f"{first}{(' and others' if others - set(sorted(others)[:3]) else '')}; unprepare those first",
            )

    def _leave(self, record: StepRecord, deadline: Deadline, caller: str) -> list[NodeError]:
        name, problem = record.step.target, None
        with self._locks.shared(name, deadline, lock_purpose(f"release {name}", caller)):
            if all(user.id == record.id for user in self._journal.users(name)):
                problem = self.undo_shared(name, deadline, caller)
            self._journal.undone(record.id)
        return [] if problem is None else [problem]

    def _kind(self, step: Step) -> StepKind:
        try:
            return self._kinds[step.kind]
        except KeyError:
            raise Failed(
                "StepKindUnknown",
                f"this version does not support steps of kind {step.kind!r} ({step.target}); run the version that "
                "recorded it",
            ) from None

    def _read(self, step: Step) -> object:
        kind = self._kind(step)
        return _explained(step, lambda: kind.read(step.target))

    def _apply(self, step: Step, deadline: Deadline) -> None:
        kind = self._kind(step)
        try:
            _explained(step, lambda: kind.apply(step.target, step.after, deadline))
        except VfsRefused as error:
            record = {"driver": error.driver, "count": error.count, "reason": error.reason}
            self._journal.put(REFUSED_VFS, error.port, record)
            raise
        pf = Address.parse(step.target) if step.kind == "vf-count" and step.after else None
        if pf is not None and self._journal.record(REFUSED_VFS, pf.device_name) is not None:
            self._journal.drop(REFUSED_VFS, pf.device_name)

    def _revert(self, record: StepRecord, deadline: Deadline, *, force: bool) -> Literal["undo", "left"]:
        """Put back what was there before, or (``left``) nothing, if that would take it from another owner."""
        step, kind = record.step, self._kind(record.step)
        change = kind.force if force and isinstance(kind, ForcibleKind) else kind.apply
        try:
            if isinstance(kind, ContestedKind):
                theirs = _explained(step, lambda: kind.taken_over(step, finished=record.state == "done"))
                if theirs is not None:
                    LOG.warning("%s stays as another program set it: %s", _what(step), theirs)
                    return "left"
            _explained(step, lambda: change(step.target, step.before, deadline))
        except NodeError as error:
            if error.code != "DeviceGone":
                raise
            LOG.warning("nothing is left to undo of %s: %s", _what(step), error)
        return "undo"


def _explained(step: Step, act: Callable[[], object]) -> object:
    """The kinds raise NodeError; what else comes out of them is still an error of this step only."""
    try:
        return act()
    except NodeError:
        raise
    except OSError as error:
        raise Failed("HostRefused", f"{_what(step)}: {error.strerror or error}") from error
    except Exception as error:
        LOG.exception("%s", _what(step))
        raise Failed("InternalError", f"{_what(step)}: {error!r}; see the log") from error


def _refuse_late(step: Step, deadline: Deadline) -> None:
    if deadline.passed:
        raise Failed("DeadlinePassed", f"no time was left for {_what(step)}; try again")


def _property(step: Step) -> tuple[str, str]:
    return step.kind, step.target


def _what(step: Step) -> str:
    text = repr(step.after)
    return f"{step.kind} of {step.target} to {text[:80]}{'…' if text[80:] else ''}"


def _audit(event: str, step: Step, owner: str, device: str, caller: str, error: NodeError | None = None) -> None:
    values = {} if step.kind == "file" else {"before": step.before, "after": step.after}
    problem = {} if error is None else {"code": error.code, "message": error.message}
    who = {"shared": owner} if "/" in owner else {"claim": owner}
    audit(event, kind=step.kind, target=step.target, device=device, caller=caller, **who, **values, **problem)
