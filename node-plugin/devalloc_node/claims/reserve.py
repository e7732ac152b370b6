"""Choose what the devices of a claim hold, and record it before another claim can take it."""

from __future__ import annotations

from collections.abc import Sequence

from devalloc_node.binding.binding import Binding
from devalloc_node.claims.journal_content import grant_content
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied
from devalloc_node.journal import HeldByOther, HeldKey, Journal
from devalloc_node.model.grant import Grant


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
                    raise Denied("DeviceInUse", f"devices {both} of claim {grant.ref} both need {key}")
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
        return Denied("DeviceWithheld", f"device {wanted}: {holding.key} is withheld: {reason}", retryable=True)
    owner = journal.claim(holding.uid)
    who = "a claim" if owner is None else f"claim {owner.ref} ({owner.state})"
    return Denied(
        "DeviceInUse",
        f"device {wanted}: {holding.key} is held by {who}, uid {holding.uid}; unprepare that claim first",
        retryable=True,
    )
