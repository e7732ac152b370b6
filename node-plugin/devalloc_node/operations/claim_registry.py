"""The claims that this node holds something for, and which of their devices are in which machines.

That is known from the journal alone: an attachment is a step of its claim, written down before the device is plugged
in. So unpreparing a claim takes its devices out first, and a crash leaves nothing that the next call or the next start
does not see.

Interfaces describe what this module needs of claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from devalloc_node.claims.journal_content import prepared_of
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied
from devalloc_node.journal import ClaimRecord, ClaimState, StepRecord
from devalloc_node.model.grant import ClaimRef
from devalloc_node.model.step import ATTACHMENT, PluggedDevice, Prepared, Step, plugged_device
from devalloc_node.operations.change_feed import claim_change


class ClaimRecords(Protocol):
    """The part of the journal that is used here. Raises Failed."""

    def claim(self, uid: str) -> ClaimRecord | None: ...

    def claims(self) -> Sequence[ClaimRecord]: ...

    def steps(self, owner: str) -> Sequence[StepRecord]: ...

    def owners(self, kind: str, targets: str) -> Sequence[str]: ...

    def setting(self, name: str) -> str | None: ...

    def set(self, name: str, value: str) -> None: ...


class ClaimEngine(Protocol):
    """The engine. Safe for threads; all calls are idempotent and raise NodeError."""

    @property
    def journal(self) -> ClaimRecords: ...

    def prepare(
        self, ref: ClaimRef, deadline: Deadline | None = None, *, kind: str | None = None, caller: str = ""
    ) -> Prepared: ...

    def unprepare(
        self, ref: ClaimRef, deadline: Deadline | None = None, *, force: bool = False, caller: str = ""
    ) -> None: ...

    def add(
        self, ref: ClaimRef, step: Step, deadline: Deadline | None = None, *, device: str = "", caller: str = ""
    ) -> None: ...

    def remove(
        self,
        ref: ClaimRef,
        kind: str,
        target: str,
        deadline: Deadline | None = None,
        *,
        force: bool = False,
        caller: str = "",
    ) -> None: ...


UNDO_SECONDS = 10.0
"""What undoing gets when something failed, also if that used up all of the time."""


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """A claim that this node holds something for."""

    record: ClaimRecord
    steps: tuple[StepRecord, ...]
    plugs: tuple[PluggedDevice, ...]

    @property
    def prepared(self) -> Prepared | None:
        """What it is to its user, as long as it is prepared."""
        if self.record.state is not ClaimState.PREPARED or self.record.prepared is None:
            return None
        return prepared_of(self.record.ref, self.record.prepared)


class ClaimRegistry:
    """Safe for threads."""

    def __init__(
        self,
        engine: ClaimEngine,
        *,
        uid_of: Callable[[str, str], str | None],
        exclusive: Callable[[str, Deadline, str], AbstractContextManager[None]],
        plan: Callable[[ClaimRef, Deadline], Sequence[Step]],
        kind: str | None = None,
        changed: Callable[..., None] = lambda *changed: None,
        lives: Callable[[str], bool] = lambda key: False,
    ) -> None:
        """``uid_of``: of the claim that has a namespace and name now, None if there is none (raises Failed).
        ``exclusive``: a lock between threads and processes, by name, and what it is held for. ``plan``: what preparing
        a claim would do. ``kind``: of claims. ``changed`` is called with what changed, after every change:
        ``ChangeNotifier.beat``. ``lives``: whether the machine with that key runs.
        """
        self.engine = engine
        self.journal = engine.journal
        self.exclusive = exclusive
        self.plan = plan
        self.kind = kind
        self._uid_of = uid_of
        self._changed = changed
        self._lives = lives

    def held(self, uid: str | None = None) -> list[HeldClaim]:
        """What this node holds, of all claims or of one. Raises Failed."""
        records = self.journal.claims() if uid is None else [record for record in [self.journal.claim(uid)] if record]
        return [self._held(record) for record in records]

    def plugs(self, key: str) -> list[PluggedDevice]:
        """The devices of claims in a machine."""
        owners = self.journal.owners(ATTACHMENT, f"{key}/")
        return [plug for uid in owners for held in self.held(uid) for plug in held.plugs if plug.machine == key]

    def plugs_of(self, ref: ClaimRef) -> list[PluggedDevice]:
        """The devices of a claim in machines."""
        return [plug for held in self.held(ref.uid) for plug in held.plugs]

    def named(self, ref: ClaimRef, *, prepared: bool) -> ClaimRef:
        """The claim with its UID. Without one: the claim that has the name, ``prepared`` ones before all others.

        Raises Denied ``ClaimNotFound``, ``ClaimAmbiguous``.
        """
        if ref.uid:
            return ref
        here = [r.ref for r in self.journal.claims() if (r.ref.namespace, r.ref.name) == (ref.namespace, ref.name)]
        if prepared and len(here) == 1:
            return here[0]
        if prepared and here:
            uids = ", ".join(one.uid for one in here)
            raise Denied("ClaimAmbiguous", f"several prepared claims have had the name {ref}; give the uid: {uids}")
        uid = self._uid_of(ref.namespace, ref.name)
        if uid is None:
            raise Denied("ClaimNotFound", f"claim {ref} not found")
        return ClaimRef(ref.namespace, ref.name, uid)

    def prepare(self, ref: ClaimRef, due: Deadline, *, caller: str = "") -> HeldClaim:
        """Make a claim's devices ready. Raises NodeError."""
        with self.notifying(ref):
            self.engine.prepare(ref, due, kind=self.kind, caller=caller)
        (held,) = self.held(ref.uid)
        return held

    def unprepare(self, ref: ClaimRef, due: Deadline, *, force: bool = False, caller: str = "") -> list[str]:
        """Undo it, out of machines first; returns the machines that were ended for it (``force`` only)."""
        running = {key for key in {plug.machine for plug in self.plugs_of(ref)} if self._lives(key)}
        with self.notifying(ref):
            self.engine.unprepare(ref, due, force=force, caller=caller)
        return sorted(key for key in running if force and not self._lives(key))

    @contextmanager
    def notifying(self, ref: ClaimRef) -> Iterator[None]:
        """Tell watchers at the end that what this node holds for a claim has changed."""
        try:
            yield
        finally:
            self._changed(claim_change(f"{ref.namespace}/{ref.name}"))

    def _held(self, record: ClaimRecord) -> HeldClaim:
        steps = tuple(self.journal.steps(record.ref.uid))
        plugs = tuple(
            plugged_device(step.step, step.device, record.ref) for step in steps if step.step.kind == ATTACHMENT
        )
        return HeldClaim(record, steps, plugs)
