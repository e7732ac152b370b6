"""A claim that this node holds something for, with all that is known of it."""

from __future__ import annotations

from dataclasses import dataclass

from devalloc_node.claims.content import prepared_of
from devalloc_node.journal import ClaimRecord, ClaimState, StepRecord
from devalloc_node.machine.view import Plug
from devalloc_node.prepared import Prepared


@dataclass(frozen=True, slots=True)
class Held:
    """A claim that this node holds something for."""

    record: ClaimRecord
    steps: tuple[StepRecord, ...]
    plugs: tuple[Plug, ...]

    @property
    def prepared(self) -> Prepared | None:
        """What it is to its user, as long as it is prepared."""
        if self.record.state is not ClaimState.PREPARED or self.record.prepared is None:
            return None
        return prepared_of(self.record.ref, self.record.prepared)
