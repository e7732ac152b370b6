"""Preparing and unpreparing claims: all of it or nothing, once, whatever is killed in between."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from devalloc.api.device_identity import Identity, difference, drive_of, unseen
from devalloc.tracing import span
from devalloc_node.binding.binding import Binding, HealthState
from devalloc_node.claims.claim_files import Rendered
from devalloc_node.claims.journal_content import (
    drives_of_claims,
    grant_content,
    grant_of,
    journal_dump,
    prepared_content,
    prepared_of,
)
from devalloc_node.claims.locks import ClaimLocks
from devalloc_node.claims.steps import ClaimWork, PrepareOptions, StepRunner, UndoResult, as_node_error, joined_errors
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError, Unknown
from devalloc_node.host.lock_folder import lock_purpose
from devalloc_node.journal import ClaimRecord, ClaimState, HeldByOther, HeldKey, Journal
from devalloc_node.journal.audit_log import audit
from devalloc_node.journal.protocol import ALLOCATED
from devalloc_node.journal.sqlite import BOOT
from devalloc_node.model.grant import ClaimRef, Grant, GrantedDevice, Grants, check_ref
from devalloc_node.model.step import Prepared, PreparedDevice, Step, StepKind


def reserve_devices(
    journal: Journal, grant: Grant, source: str, bindings: Sequence[Binding], due: Deadline
) -> list[tuple[str, ...]]:
    """The keys of each device; the claim is in the journal then, with all of them. ``source``: where it is from.

    Raises Denied ``DeviceInUse``, ``DeviceWithheld``, or what the bindings say.
    """
    while True:
        held = journal.held()
        holdings: dict[str, str] = {}
        chosen = []
        for granted, binding in zip(grant.devices, bindings, strict=True):
            # Admin access does not exclude other claims (S14).
            keys = () if granted.admin else tuple(binding.keys(granted, grant.ref.uid, [*held, *holdings]))
            for key in keys:
                if key in holdings:
                    both = f"{holdings[key]} and {granted.name}"
                    raise Denied("DeviceInUse", f"devices {both} of claim {grant.ref} both need {key}", retryable=False)
                holdings[key] = granted.name
            chosen.append(keys)
        try:
            journal.begin(grant.ref, grant.kind, grant_content(grant, source), holdings)
            return chosen
        except HeldByOther as error:
            # Another claim took it meanwhile: perhaps something else is free.
            if error.holding.key in held or due.passed:
                raise _held_by_others(journal, error.holding, holdings[error.holding.key]) from error


def _held_by_others(journal: Journal, holding: HeldKey, wanted: str) -> Denied:
    if not holding.uid:
        reasons = (withheld.reason for withheld in journal.withheld() if withheld.device == holding.device)
        reason = next(reasons, "it could not be reset")
        return Denied("DeviceWithheld", f"device {wanted}: {holding.key} is withheld: {reason}")
    owner = journal.claim(holding.uid)
    who = "a claim" if owner is None else f"claim {owner.ref} ({owner.state})"
    return Denied(
        "DeviceInUse", f"device {wanted}: {holding.key} is held by {who}, uid {holding.uid}; unprepare that claim first"
    )


LOG = logging.getLogger(__name__)

Choose = Callable[[GrantedDevice], Binding]
"""The binding for a device, of admin access too. Raises Denied: ``DeviceUnknown``, ``DeviceGone`` …"""
Render = Callable[[Grant, Sequence[PreparedDevice]], Rendered]
"""Files that go with a prepared claim (UTF-8), and what its devices are called in them."""
InUse = Callable[[PreparedDevice], str | None]
"""Who has a device open, such as ``qemu (1234)``; None if no process is seen. Raises NodeError if that is unknown."""


Identify = Callable[[Binding], Identity]
"""What the device is for which a binding was chosen, before it is prepared."""
Observe = Callable[[PreparedDevice], HealthState]
"""Whether a prepared device is still as it was left: what the health watch asks, too."""

_REPAIRED = frozenset({"DriverNotBound"})
"""What is wrong with devices that are there and are the same as before: preparing them anew helps."""
_UNSTEADY = frozenset({"DeviceGone", "DeviceUnknown", "SharedDiffers"})
"""What is said of a device that is just being made, or whose card is."""
_LOOK_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class DeviceHost:
    """The host and its devices, as far as claims need them."""

    choose: Choose
    in_use: InUse = lambda device: None
    identify: Identify = lambda binding: {}
    observe: Observe = lambda device: HealthState("healthy")
    boot_id: Callable[[], str] | None = None
    remains: Callable[[str], Sequence[str]] = lambda uid: ()
    """What the host still has of a UID that the journal does not know (T9), in words."""


@dataclass(frozen=True, slots=True)
class ChangeGuard:
    """Raises Denied in a dry run, before anything is changed."""

    rehearse: Callable[[ClaimRef, Deadline], None] = lambda ref, due: None
    """Called before anything is done for a claim."""
    refuse: Callable[[str], None] = lambda what: None
    """Called before any other change is written down; told which."""


class Claims:
    """The claims of this node. Safe for threads, and for two processes with one state folder."""

    def __init__(
        self,
        journal: Journal,
        locks: ClaimLocks,
        grants: Mapping[str, Grants],
        host: DeviceHost,
        kinds: Mapping[str, StepKind],
        *,
        options: PrepareOptions | None = None,
        render: Mapping[str, Sequence[Render]] | None = None,
        guard: ChangeGuard | None = None,
    ) -> None:
        """``grants``, ``render``: by kind of claim (``DeviceClaim``, ``ResourceClaim``)."""
        self.journal = journal
        self.locks = locks
        self.grants = grants
        self.options = options or PrepareOptions()
        self.steps = StepRunner(journal, kinds, locks, self.options)
        self._host = host
        self._render = render or {}
        self._guard = guard or ChangeGuard()

    def prepare(
        self, ref: ClaimRef, deadline: Deadline | None = None, *, kind: str | None = None, caller: str = ""
    ) -> Prepared:
        """Make everything ready that the claim holds on this node; the same answer each time until it is unprepared.

        ``kind``: of claim; not needed if there is one. ``caller``: who asks, for the audit log. Raises NodeError:
        then nothing is left of it on the host, or the message says what, and a later call tries to undo that first.
        """
        due = self._due(deadline).before(self.options.undo_seconds)
        check_ref(ref)
        grants = self._grants_of(kind)
        with self._locked(ref.uid, due, f"prepare claim {ref}", caller):
            self._note_boot()
            record = self.journal.claim(ref.uid)
            if record is not None and record.state is ClaimState.PREPARED and record.prepared is not None:
                again = self._again(record, record.prepared, ref, grants)
                if (problem := self._first_problem(again)) is None:
                    self.steps.repeat(ref.uid, due, caller)
                    return again
                self._refuse_repair(again, problem)
                self._guard.refuse(f"prepare claim {ref} again: {problem.message}")
                LOG.warning("claim %s is prepared again: %s", ref, problem.message)
                self.remember(record)
                self.clear(record, due, caller, unused=True)
            elif record is not None:
                self.clear(record, due, caller)
            self._guard.rehearse(ref, due)
            try:
                grant = self._with_identities(grants.get(ref))
                if grant.ref != ref:
                    raise Failed("ClaimUidMismatch", f"requested claim {ref} ({ref.uid}), got {grant.ref.uid}")
                with span("prepare", [ref.uid], **{"devalloc.caller": caller}):
                    prepared = self._steadily(grant, grants.identity(), due, caller)
                self.forget_devices(ref.uid)
            except Exception as problem:
                error = as_node_error(ref, problem)
                self._give_up(ref, grants)
                audit("failed", claim=ref.uid, name=str(ref), caller=caller, code=error.code, message=error.message)
                if error is problem:
                    raise
                raise error from problem
        devices = [device.name for device in prepared.devices]
        audit("prepared", claim=ref.uid, name=str(ref), devices=devices, used_by=list(grant.pods), caller=caller)
        return prepared

    def unprepare(
        self,
        ref: ClaimRef,
        deadline: Deadline | None = None,
        *,
        kind: str | None = None,
        force: bool = False,
        caller: str = "",
    ) -> None:
        """Put everything back as it was before the claim; success also for a claim that nothing is known of (T9).

        ``force``: end whatever holds on to a device (T14). Raises NodeError, retryable, if something is left.
        """
        due = self._due(deadline)
        check_ref(ref)
        with self._locked(ref.uid, due, f"unprepare claim {ref}", caller):
            record = self.journal.claim(ref.uid)
            if record is not None:
                with span("unprepare", [ref.uid], **{"devalloc.caller": caller}):
                    self.clear(record, due, caller, force=force)
                self.forget_devices(ref.uid)
                return
            self.refuse_remains(ref)
            self.forget_devices(ref.uid)
            if kind is not None or len(self.grants) == 1:
                self._grants_of(kind).let_go(ref)

    def add(
        self, ref: ClaimRef, step: Step, deadline: Deadline | None = None, *, device: str = "", caller: str = ""
    ) -> None:
        """One more step of a prepared claim, such as its attachment to a machine, which unpreparing undoes first.

        ``device``: ``pool/device``. The step that is there already is success. Raises NodeError; the step is undone
        then, or kept and undone by a later call.
        """
        due = self._due(deadline).before(self.options.undo_seconds)
        check_ref(ref)
        with self._locked(ref.uid, due, f"add {step.kind} to claim {ref}", caller):
            record = self.journal.claim(ref.uid)
            if record is None or record.state is not ClaimState.PREPARED:
                raise Denied("ClaimNotPrepared", f"claim {ref} is not prepared on this node; prepare it first")
            for existing in self.journal.steps(ref.uid):
                if (existing.step.kind, existing.step.target) == (step.kind, step.target):
                    if existing.state == "done" and existing.step.after == step.after and existing.device == device:
                        return
                    self.steps.undo_one(existing, due, caller=caller)
            self._guard.refuse(f"add {step.kind} of {step.target} to claim {ref}")
            work = ClaimWork(ref.uid, caller)
            try:
                self.steps.perform(work, device, [step], due)
                self.journal.done(work.take())
            except NodeError as error:
                self._undo_added(ref.uid, step, error, caller)
                raise

    def remove(
        self,
        ref: ClaimRef,
        kind: str,
        target: str,
        deadline: Deadline | None = None,
        *,
        force: bool = False,
        caller: str = "",
    ) -> None:
        """Undo a step that was added; success if there is none. Raises NodeError if it stays."""
        due = self._due(deadline)
        check_ref(ref)
        with self._locked(ref.uid, due, f"undo {kind} of claim {ref}", caller):
            for existing in reversed(self.journal.steps(ref.uid)):
                if (existing.step.kind, existing.step.target) == (kind, target):
                    self._guard.refuse(f"undo {kind} of {target} of claim {ref}")
                    self.steps.undo_one(existing, due, force=force, caller=caller)

    def prepared(self) -> list[Prepared]:
        """All claims that are prepared now."""
        return [
            prepared_of(record.ref, record.prepared)
            for record in self.journal.claims()
            if record.state is ClaimState.PREPARED and record.prepared is not None
        ]

    def withheld(self) -> dict[str, str]:
        """Devices (``pool/device``) that are withheld until they are cleaned, and why (T7)."""
        return {withheld.device: withheld.reason for withheld in self.journal.withheld()}

    def refuse_remains(self, ref: ClaimRef) -> None:
        """Of a claim that is not in the journal. Raises Failed ``ClaimRemains`` if the host has something of it."""
        if remains := list(self._host.remains(ref.uid)):
            raise Failed(
                "ClaimRemains",
                f"claim {ref} is not in the journal, but the host still has: {', '.join(remains)}",
            )

    def describe(self) -> dict[str, Any]:
        """All that the journal says, as JSON for people and programs."""
        return journal_dump(self.journal)

    # Preparing.

    def _steadily(self, grant: Grant, source: str, due: Deadline, caller: str) -> Prepared:
        """As ``_prepare``, again if the host was looked at while another claim changed what they share: while a
        card's VFs are made or removed, some of them seem not to exist."""
        quiet = 0
        while True:
            quiet = 0 if self.locks.sharing() else quiet + 1
            try:
                return self._prepare(grant, source, due, caller)
            except Denied as error:
                if error.code not in _UNSTEADY or due.passed or self.journal.claim(grant.ref.uid) is not None:
                    raise
                if quiet > 1 and not self.locks.sharing():
                    raise
            while self.locks.sharing() and not due.passed:
                time.sleep(_LOOK_SECONDS)

    def _prepare(self, grant: Grant, source: str, due: Deadline, caller: str) -> Prepared:
        bindings = [self._binding(device) for device in grant.devices]
        identities = [
            self._unchanged_identity(grant.ref.uid, *each) for each in zip(grant.devices, bindings, strict=True)
        ]
        keys = reserve_devices(self.journal, grant, source, bindings, due)
        work = ClaimWork(grant.ref.uid, caller)
        try:
            for render in self._render.get(grant.kind, ()):
                render(grant, ())  # a claim that can have no files is refused before anything is bound
            devices = [
                replace(self._device(work, granted, binding, key, due), identity=identity)
                for granted, binding, key, identity in zip(grant.devices, bindings, keys, identities, strict=True)
            ]
            rendered = [render(grant, devices) for render in self._render.get(grant.kind, ())]
            contents = sorted((path, text) for each in rendered for path, text in each.files.items())
            if files := [Step("file", path, None, content.decode()) for path, content in contents]:
                self.steps.perform(work, "", files, due)
            prepared = Prepared(grant.ref, tuple(devices), _cdi_ids(rendered))
            self.journal.finish(grant.ref.uid, prepared_content(prepared), work.take(), work.take_noted())
        except Exception as error:
            raise self._rolled_back(grant.ref, as_node_error(grant.ref, error), caller) from error
        return prepared

    def _binding(self, granted: GrantedDevice) -> Binding:
        binding = self._host.choose(granted)
        if granted.share is not None and not granted.admin and not binding.shares:
            raise Denied(
                "ShareUnsupported",
                f"device {granted.name} was allocated in shares, but {binding.name} allows only whole devices; "
                "request it with an explicit count",
            )
        return binding

    def _unchanged_identity(self, uid: str, granted: GrantedDevice, binding: Binding) -> Identity:
        """What the device is. Raises Denied ``DeviceChanged`` if another one was allocated, ``IdentityUnseen`` if a
        drive does not show which one it is, ``DeviceInUse`` if another claim got it under another name."""
        identity = self._host.identify(binding)
        if (other := difference(granted.identity, identity)) is not None:
            raise Denied(
                "DeviceChanged",
                f"another device than the one allocated is at {granted.name}: {other}; release the claim, so that it "
                "is allocated again",
            )
        if not granted.admin and (what := unseen(granted.identity, identity)) is not None:
            raise Denied(
                "IdentityUnseen",
                f"cannot identify {granted.name}: its {what} does not show; bind it to nvme until it is prepared",
            )
        drive = None if granted.admin else drive_of(identity)
        owner = drives_of_claims(self.journal).get(drive) if drive is not None else None
        if owner is not None and owner.uid != uid and owner.device != granted.device:
            raise Denied(
                "DeviceInUse",
                f"device {granted.name} is the drive that claim {owner.claim} got as {owner.device}, with its data; "
                "release that claim first",
            )
        return identity

    def _device(
        self, work: ClaimWork, granted: GrantedDevice, binding: Binding, keys: tuple[str, ...], due: Deadline
    ) -> PreparedDevice:
        steps = binding.prepare(granted, keys, due)
        try:
            step = next(steps)
            while True:
                if granted.admin:
                    raise Failed("InternalError", f"{binding.name} would change the host for admin access: {step.kind}")
                together = [step]
                while step.more:
                    step = next(steps)
                    together.append(step)
                try:
                    self.steps.perform(work, granted.name, together, due)
                except NodeError as error:
                    # The binding may know better what it means, or another way.
                    step = steps.throw(error)
                else:
                    step = next(steps)
        except StopIteration as end:
            device: PreparedDevice = end.value
            return device
        finally:
            steps.close()

    def _rolled_back(self, ref: ClaimRef, error: NodeError, caller: str) -> NodeError:
        """The error of a prepare that failed, after undoing it; with everything that could not be undone."""
        due = Deadline.after(self.options.undo_seconds)
        try:
            undone = self.steps.undo(ref.uid, due, lambda device: None, caller=caller)
            if not undone.left:
                self.journal.forget(ref.uid)
        except NodeError as more:
            undone = UndoResult(left=(more,))
        problems = [*undone.left, *undone.shared]
        if not problems:
            if isinstance(error, Unknown):  # the unknown outcome no longer matters
                return Failed(error.code, f"{error.message}. All steps were undone")
            return error
        return Failed(
            error.code,
            f"{error.message}. Some earlier steps could not be undone; the plugin tries again: "
            f"{joined_errors(problems)}",
        )

    def _give_up(self, ref: ClaimRef, grants: Grants) -> None:
        """After a prepare that failed: the claim counts as held only if something of it is left."""
        try:
            if self.journal.claim(ref.uid) is None:
                grants.let_go(ref)
        except NodeError as error:
            LOG.warning(
                "claim %s is no longer held here, but its object still says so until reconciling succeeds: %s",
                ref,
                error,
            )

    # Unpreparing.

    def clear(
        self, record: ClaimRecord, due: Deadline, caller: str, *, force: bool = False, unused: bool = False
    ) -> None:
        """Undo a claim of the journal, whose lock the caller holds. Raises NodeError if something is left.

        ``unused``: do not begin while a process has one of its devices open.
        """
        uid = record.ref.uid
        devices = () if record.prepared is None else prepared_of(record.ref, record.prepared).devices

        def guard(name: str) -> None:
            for device in devices:
                if device.name == name and (user := self._host.in_use(device)) is not None:
                    raise Failed(
                        "DeviceInUse", f"{user} still has device {name} open; it stays bound until that process ends"
                    )

        if unused:
            for device in devices:
                guard(device.name)
        if record.state is ClaimState.PREPARED:
            self._guard.refuse(f"unprepare claim {record.ref}")
            self.journal.release(uid)
        undone = self.steps.undo(uid, due, guard, force=force, caller=caller)
        for problem in undone.shared:
            LOG.warning("claim %s is undone except for shared steps; trying again: %s", record.ref, problem)
        if undone.left:
            code = undone.left[0].code
            raise Failed(
                code, f"claim {record.ref} is not completely undone: {joined_errors(undone.left)}"
            ) from undone.left[0]
        self.journal.forget(uid)
        audit("unprepared", claim=uid, name=str(record.ref), caller=caller, forced=force or None)
        if record.kind in self.grants:
            self.grants[record.kind].let_go(record.ref)

    def _undo_added(self, uid: str, step: Step, error: NodeError, caller: str) -> None:
        due = Deadline.after(self.options.undo_seconds)
        for existing in reversed(self.journal.steps(uid)):
            if (existing.step.kind, existing.step.target) == (step.kind, step.target):
                try:
                    self.steps.undo_one(existing, due, caller=caller)
                except NodeError as more:
                    error.add_note(f"and undoing it: {more}")

    # Answers.

    def _again(self, record: ClaimRecord, answer: Mapping[str, Any], ref: ClaimRef, grants: Grants) -> Prepared:
        """The answer of last time, if the claim is still what it was then."""
        if record.ref != ref:
            raise Denied("ClaimUidMismatch", f"uid {ref.uid} belongs to claim {record.ref} on this node, not to {ref}")
        try:
            now = grants.get(ref)
        except Failed as error:
            LOG.warning("the store does not respond, so claim %s is answered as it was prepared: %s", ref, error)
        else:
            before = grant_of(ref, record.grant)
            if now.identities() != before.identities():
                raise Failed(
                    "ClaimMoved",
                    f"claim {ref} was prepared with other devices ({before.identities()}) than it has now "
                    f"({now.identities()}); unprepare it first",
                )
        return prepared_of(ref, answer)

    def _first_problem(self, prepared: Prepared) -> HealthState | None:
        """What is wrong with the devices of a prepared claim, first what cannot be repaired."""
        states = [self._host.observe(device) for device in prepared.devices if not device.admin]
        unwell = [each for each in states if each.state == "unhealthy"]
        return next((each for each in unwell if each.code not in _REPAIRED), next(iter(unwell), None))

    def _refuse_repair(self, prepared: Prepared, problem: HealthState) -> None:
        """Raises NodeError if a prepared claim cannot be prepared anew with the devices that it has."""
        why = f"claim {prepared.ref} was prepared, but {problem.message}"
        if problem.code == "DeviceChanged":
            raise Denied(problem.code, f"{why}; unprepare it, and release it so that it is allocated again")
        if problem.code not in _REPAIRED:
            raise Failed(problem.code or "DeviceGone", f"{why}; unprepare it, or bring the device back")
        if any(step.step.kind in self.options.outer for step in self.journal.steps(prepared.ref.uid)):
            raise Failed(problem.code, f"{why}, and a machine has its devices; detach it first")

    # What claims had before a reboot.

    def note_boot(self, boot_id: str) -> Sequence[ClaimRecord]:
        """Take note of the boot that the host is in; the claims that a reboot undid since the last time."""
        if self.journal.setting(BOOT) not in (None, boot_id):
            for record in self.journal.claims():
                if record.state is ClaimState.PREPARED:
                    try:
                        self.remember(record)
                    except NodeError as error:
                        LOG.warning("cannot note which devices claim %s had before the reboot: %s", record.ref, error)
        return self.journal.boot(boot_id, self.options.persistent_kinds)

    def _note_boot(self) -> None:
        """A plugin that was restored with its host, or that is frozen for long, may have missed a reboot."""
        boot = self.journal.setting(BOOT) if self._host.boot_id is not None else None
        if boot is None or self._host.boot_id is None:
            return  # nothing was prepared in an earlier boot
        try:
            now = self._host.boot_id()
        except NodeError as error:
            LOG.warning("cannot check whether the host was restarted: %s", error)
            return
        if now != boot:
            for record in self.note_boot(now):
                LOG.warning("claim %s was prepared before a reboot of the host, which undid it", record.ref)

    def remember(self, record: ClaimRecord) -> None:
        """Note what the devices of a prepared claim are, before they are undone without its owner having asked."""
        if record.prepared is None:
            return
        devices = {
            device.key: dict(device.identity)
            for device in prepared_of(record.ref, record.prepared).devices
            if device.identity
        }
        if devices:
            ref = {"namespace": record.ref.namespace, "name": record.ref.name, "kind": record.kind}
            self.journal.put(ALLOCATED, record.ref.uid, {**ref, "devices": devices})

    def forget_devices(self, uid: str) -> None:
        """What a claim had before does not matter any more."""
        if self.journal.record(ALLOCATED, uid) is not None:
            self.journal.drop(ALLOCATED, uid)

    def _with_identities(self, grant: Grant) -> Grant:
        """With what the devices were before a reboot, as far as the allocation does not say it."""
        before = (self.journal.record(ALLOCATED, grant.ref.uid) or {}).get("devices") or {}
        if not before:
            return grant
        noted = [before.get(device.key) or {} for device in grant.devices]
        devices = tuple(
            device if difference(was, device.identity) else replace(device, identity={**was, **device.identity})
            for device, was in zip(grant.devices, noted, strict=True)
        )
        return replace(grant, devices=devices)

    def _due(self, deadline: Deadline | None) -> Deadline:
        return Deadline.after(self.options.prepare_seconds) if deadline is None else deadline

    def _locked(self, uid: str, due: Deadline, work: str, caller: str) -> AbstractContextManager[None]:
        # The other half is for the work.
        return self.locks.claim(uid, due.capped(due.seconds / 2), lock_purpose(work, caller))

    def _grants_of(self, kind: str | None) -> Grants:
        if kind is None and len(self.grants) == 1:
            return next(iter(self.grants.values()))
        if kind is None or kind not in self.grants:
            kinds = ", ".join(sorted(self.grants)) or "none"
            raise Denied("ClaimInvalid", f"this node serves claims of kind {kinds}, not {kind}")
        return self.grants[kind]


def _cdi_ids(rendered: Iterable[Rendered]) -> dict[str, tuple[str, ...]]:
    """What devices are called in all files together."""
    by_device: dict[str, tuple[str, ...]] = {}
    for each in rendered:
        for device, ids in each.ids.items():
            by_device[device] = (*by_device.get(device, ()), *ids)
    return by_device
