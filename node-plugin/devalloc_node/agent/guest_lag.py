"""Track how long a guest has reported less than its machine has (T15)."""

from __future__ import annotations

from devalloc.scaling.guest_report import GuestReport
from devalloc.scaling.health import StuckReason
from devalloc.scaling.resources import Resources
from devalloc.scaling.wire_amounts import bytes_to_json, cpu_to_json
from devalloc_node.machine.spec import whole_cpus


class GuestLag:
    """Of one machine. Instants and durations in milliseconds."""

    def __init__(self, patience: int, silence: int) -> None:
        """``patience``: how long a guest may be behind before it is reported. A report counts for ``silence``."""
        self._patience, self._silence = patience, silence
        self._reported: tuple[int, GuestReport] | None = None
        self._behind: tuple[int, Resources] | None = None
        """Since when, and behind what."""

    def says(self, observed: GuestReport | None, has: Resources, now: int) -> None:
        """Record the guest's report and what its machine has now. CPUs count whole, even if their time is limited."""
        self._reported = None if observed is None else (now, observed)
        if observed is None or not observed.is_behind(whole_cpus(has.cpu), has.memory):
            self._behind = None
        elif self._behind is None or has != self._behind[1]:
            self._behind = (now, has)  # to bring more online takes time again

    def observed(self, now: int) -> GuestReport | None:
        """What it said lately."""
        return self._reported[1] if self._reported is not None and now - self._reported[0] <= self._silence else None

    def behind(self, now: int) -> StuckReason | None:
        """Why it has less than its machine, where it stays so."""
        seen = self.observed(now)
        if seen is None or self._behind is None or now - self._behind[0] < self._patience:
            return None
        has = self._behind[1]
        cpus = "" if seen.cpus is None else f"{seen.cpus} CPUs"
        memory = "" if seen.memory is None else f"{seen.memory >> 20}Mi of memory"
        uses = " and ".join(each for each in (cpus, memory) if each)
        what = f"{whole_cpus(has.cpu)} CPUs ({cpu_to_json(has.cpu)} of CPU time) and {bytes_to_json(has.memory)}"
        return StuckReason("GuestBehind", f"its guest uses {uses}, and the machine has {what}")
