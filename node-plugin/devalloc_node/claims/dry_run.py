"""The dry run of preparing a claim: list the steps without taking them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from devalloc_node.binding.binding import Binding
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, NodeError
from devalloc_node.host.boundary import DryRun, Host
from devalloc_node.journal import Journal
from devalloc_node.model.grant import ClaimRef, Grant, GrantedDevice
from devalloc_node.model.step import Step


def planned_steps(
    look: Callable[[ClaimRef], Grant],
    choose: Callable[[GrantedDevice], Binding],
    journal: Journal,
    ref: ClaimRef,
    due: Deadline,
) -> Sequence[Step]:
    """The steps of preparing a claim, as far as they can be told without taking them: a binding looks at the host
    between steps, and where it needs to see what an earlier step does, its plan ends there. Writes nothing.

    ``look``: what a claim holds, without counting it as held. For a claim that is prepared: the steps that it has.
    Raises NodeError where preparing would be refused.
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
