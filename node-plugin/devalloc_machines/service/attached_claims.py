"""Claims in machines: all devices of a claim are in one machine, or none.

The journal says which are in which: an attachment is a step of its claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from devalloc.tracing import span
from devalloc_machines.qemu.attachment import AttachmentKind
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.host.lock_folder import lock_purpose
from devalloc_node.model.grant import ClaimRef
from devalloc_node.model.step import ATTACHMENT, PluggedDevice, Prepared, Step
from devalloc_node.operations.claim_registry import UNDO_SECONDS, ClaimRegistry


class AttachedClaims:
    """A claim is in a machine whole or not at all. Safe for threads."""

    def __init__(self, claims: ClaimRegistry, attachments: AttachmentKind) -> None:
        self._claims = claims
        self._attachments = attachments

    def is_in(self, ref: ClaimRef, key: str) -> bool:
        """Whether all devices of a claim are in a machine that runs, as QEMU shows it. Raises NodeError.

        A step that was begun only may never have been taken, and a guest can let go of a device unasked.
        """
        for held in self._claims.held(ref.uid):
            done = {step.device for step in held.steps if step.step.kind == ATTACHMENT and step.state == "done"}
            plugs = [plug for plug in held.plugs if plug.machine == key and plug.device in done]
            names = {device.name for device in held.prepared.devices} if held.prepared is not None else {""}
            return {plug.device for plug in plugs} >= names and all(map(self._attachments.is_in, plugs))
        return False

    def only_in(self, ref: ClaimRef, key: str) -> None:
        """Raises Denied (``ClaimAttached``) if another machine has any of the claim's devices."""
        elsewhere = {plug.machine for plug in self._claims.plugs_of(ref)} - {key}
        if elsewhere:
            raise Denied(
                "ClaimAttached", f"claim {ref} is in machine {', '.join(sorted(elsewhere))}; detach it there first"
            )

    def plug(self, prepared: Prepared, key: str, due: Deadline, caller: str) -> None:
        """Put all devices of a claim into a machine, or none. Raises NodeError."""
        ref = prepared.ref
        purpose = lock_purpose(f"attach claim {ref} to machine {key}", caller)
        with self._claims.exclusive(f"attaching/{ref.uid}", due, purpose):
            self.only_in(ref, key)
            plugs = self._claims.plugs_of(ref)
            before = {plug.step.target for plug in plugs}
            steps = self._attachments.attachments(key, prepared, due)
            try:
                with span("attach", [ref.uid], **{"devalloc.machine": key}):
                    for plug in plugs:
                        if not self._attachments.is_in(plug):  # the guest let it go unasked, or late
                            self.detach([plug], due, False, caller)
                    for device, step in steps:
                        self._claims.engine.add(ref, step, due, device=device, caller=caller)
            except NodeError as error:
                problems = self._taken_out(ref, [step for _, step in steps if step.target not in before], caller)
                if not problems:
                    raise
                raise Failed(
                    error.code,
                    f"{error.message}. Unplugging the earlier devices failed too; the next attach, detach or "
                    f"unprepare does it: {'; '.join(problems)}",
                ) from error

    def detach(self, plugs: Iterable[PluggedDevice], due: Deadline, force: bool, caller: str) -> None:
        """Take devices out, the last first. Raises NodeError."""
        for plug in reversed(list(plugs)):
            self._claims.engine.remove(plug.ref, ATTACHMENT, plug.step.target, due, force=force, caller=caller)

    def _taken_out(self, ref: ClaimRef, steps: Sequence[Step], caller: str) -> list[str]:
        """Undo attachments, the last first; what could not be."""
        due = Deadline.after(UNDO_SECONDS)
        out = partial(self._claims.engine.remove, ref, ATTACHMENT, deadline=due, caller=caller)
        problems = [undo_problem(partial(out, step.target)) for step in reversed(steps)]
        return [problem for problem in problems if problem is not None]


def undo_problem(undo: Callable[[], object]) -> str | None:
    """Try it; return what went wrong, None if nothing did."""
    try:
        undo()
    except NodeError as error:
        return error.message
    return None
