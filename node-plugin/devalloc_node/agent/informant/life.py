"""The life of one server of an agent, as an informant sees it: registered, suspended, resumed, ended. No I/O.

An informant knows an agent by the UUID and the address of its server. When either breaks a rule of the other's, or the
informant has forgotten it, the server's life ends, and the agent begins another with a new UUID and a new port.
"""

from __future__ import annotations

from enum import Enum
from uuid import UUID

from devalloc.scaling.messages import informant as wire
from devalloc.scaling.messages.refused import Refused
from devalloc.scaling.versions import InformantVersion


class Phase(Enum):
    UNCONFIRMED = "not registered yet"
    SUSPENDED = "suspended: the informant has not said that it may scale, or has another agent"
    RUNNING = "running"
    ENDED = "ended"


class Again(Enum):
    """When to begin another life."""

    AT_ONCE = "at once"
    """The informant has forgotten us, or both do not agree on where we are."""
    LATER = "later"


class Life:
    """One of them. What an informant asks raises Refused; the reply to everything else is the number given."""

    def __init__(self, agent_id: UUID) -> None:
        self.agent_id = agent_id
        self.phase = Phase.UNCONFIRMED
        self.chosen: wire.InformantDesc | None = None
        self.again = Again.LATER
        self.why = ""
        """Why it has ended."""
        self.was_asked = False
        """The informant has asked for the id: it knows us, or tried to."""
        self._sequence = 0

    @property
    def version(self) -> InformantVersion | None:
        return None if self.chosen is None else self.chosen.version

    def number(self) -> wire.Numbered:
        """The next number, for a 200 reply or a signed message."""
        self._sequence += 1
        return wire.Numbered(self.agent_id, self._sequence)

    def end(self, why: str, again: Again) -> None:
        """It is over. Only the first reason counts."""
        if self.phase is not Phase.ENDED:
            self.phase, self.why, self.again = Phase.ENDED, why, again

    def registered(self, chosen: wire.InformantDesc) -> None:
        """The informant has taken us. One that has not asked for the id has not looked where we are."""
        if self.phase is not Phase.UNCONFIRMED:
            return
        if not self.was_asked:
            self.end("it registered us without asking for the id", Again.LATER)
            return
        self.phase, self.chosen = Phase.SUSPENDED, chosen

    # What the informant asks

    def identify(self) -> wire.Numbered:
        self._check_alive()
        self.was_asked = True
        return self.number()

    def resume(self, expected: UUID) -> wire.Numbered:
        self._check_id(expected)
        if self.phase is not Phase.SUSPENDED:
            raise self._out_of_turn("resumed")
        self.phase = Phase.RUNNING
        return self.number()

    def suspend(self, expected: UUID) -> None:
        """Nothing more is begun from now on. The reply waits for what is under way."""
        self._check_id(expected)
        if self.phase is not Phase.RUNNING:
            raise self._out_of_turn("suspended")
        self.phase = Phase.SUSPENDED

    def try_upscale(self, expected: UUID) -> wire.Numbered:
        self._check_id(expected)
        if self.phase is not Phase.RUNNING:
            raise Refused(400, f"cannot upscale: {self.phase.value}")
        if self.version is None or not self.version.has_try_upscale:
            raise Refused(400, f"there is no {wire.TRY_UPSCALE.path} in protocol version {self.version}")
        return self.number()

    def _check_alive(self) -> None:
        if self.phase is Phase.ENDED:
            raise Refused(404, "this server has ended")

    def _check_id(self, expected: UUID) -> None:
        self._check_alive()
        if expected != self.agent_id:
            raise Refused(404, f"this is not {expected}")

    def _out_of_turn(self, asked: str) -> Refused:
        was = self.phase.value
        self.end(f"the informant {asked} us while we were: {was}", Again.AT_ONCE)
        return Refused(400, f"cannot be {asked}: {was}")


def next_start(started: int, ended: int, again: Again, least: int) -> int:
    """When the next life begins: not sooner than ``least`` milliseconds after the last one began."""
    return max(started + least, ended + (least if again is Again.LATER else 0))
