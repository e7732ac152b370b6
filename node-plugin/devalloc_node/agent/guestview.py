"""What a guest says that it has, and since when that is less than what its machine has (T15)."""

from __future__ import annotations

from devalloc.scaling.observed import Observed
from devalloc.scaling.resources import Resources
from devalloc.scaling.scalars import bytes_to_json, cpu_to_json
from devalloc.scaling.stuck import Reason
from devalloc_node.machine.spec import whole_cpus


class GuestView:
    """Of one machine. Instants and durations in milliseconds."""

    def __init__(self, patience: int, silence: int) -> None:
        """``patience``: how long a guest may be behind before that is told. What it said counts for ``silence``."""
        self._patience, self._silence = patience, silence
        self._said: tuple[int, Observed] | None = None
        self._behind: tuple[int, Resources] | None = None
        """Since when, and behind what."""

    def says(self, observed: Observed | None, has: Resources, now: int) -> None:
        """It was asked now, and its machine has so much: its CPUs are told whole, also where their time is bounded."""
        self._said = None if observed is None else (now, observed)
        if observed is None or not observed.is_behind(whole_cpus(has.cpu), has.memory):
            self._behind = None
        elif self._behind is None or has != self._behind[1]:
            self._behind = (now, has)  # to bring more online takes time again

    def observed(self, now: int) -> Observed | None:
        """What it said lately."""
        return self._said[1] if self._said is not None and now - self._said[0] <= self._silence else None

    def behind(self, now: int) -> Reason | None:
        """Why it has less than its machine, where it stays so."""
        seen = self.observed(now)
        if seen is None or self._behind is None or now - self._behind[0] < self._patience:
            return None
        has = self._behind[1]
        cpus = "" if seen.cpus is None else f"{seen.cpus} CPUs"
        memory = "" if seen.memory is None else f"{seen.memory >> 20}Mi of memory"
        uses = " and ".join(each for each in (cpus, memory) if each)
        what = f"{whole_cpus(has.cpu)} CPUs ({cpu_to_json(has.cpu)} of CPU time) and {bytes_to_json(has.memory)}"
        return Reason("GuestBehind", f"its guest uses {uses}, and the machine has {what}")
