"""The state of one session with an informant: registered, suspended, resumed, ended. No I/O.

An informant knows an agent by the UUID and the address of its server. When either breaks a rule of the other's, or the
informant has forgotten it, the server's life ends, and the agent begins another with a new UUID and a new port.
"""

from __future__ import annotations

from enum import Enum
from uuid import UUID

from devalloc.scaling.messages import informant as wire
from devalloc.scaling.peer_json import RequestError
from devalloc.scaling.versions import InformantVersion


class SessionPhase(Enum):
    UNCONFIRMED = "not registered yet"
    SUSPENDED = "suspended: the informant has not allowed it to scale yet, or has another agent"
    RUNNING = "running"
    ENDED = "ended"


class RestartDelay(Enum):
    """When to begin another life."""

    AT_ONCE = "at once"
    """The informant has forgotten us, or both do not agree on where we are."""
    LATER = "later"


class InformantSession:
    """One of them. What an informant asks raises Refused; the reply to everything else is the number given."""

    def __init__(self, agent_id: UUID) -> None:
        self.agent_id = agent_id
        self.phase = SessionPhase.UNCONFIRMED
        self.chosen: wire.InformantDesc | None = None
        self.again = RestartDelay.LATER
        self.why = ""
        """Why it has ended."""
        self.was_asked = False
        """The informant has asked for the id: it knows us, or tried to."""
        self._sequence = 0

    @property
    def version(self) -> InformantVersion | None:
        return None if self.chosen is None else self.chosen.version

    def number(self) -> wire.SequenceStamp:
        """The next number, for a 200 reply or a signed message."""
        self._sequence += 1
        return wire.SequenceStamp(self.agent_id, self._sequence)

    def end(self, why: str, again: RestartDelay) -> None:
        """It is over. Only the first reason counts."""
        if self.phase is not SessionPhase.ENDED:
            self.phase, self.why, self.again = SessionPhase.ENDED, why, again

    def registered(self, chosen: wire.InformantDesc) -> None:
        """The informant has taken us. One that has not asked for the id has not looked where we are."""
        if self.phase is not SessionPhase.UNCONFIRMED:
            return
        if not self.was_asked:
            self.end("it registered us without asking for the id", RestartDelay.LATER)
            return
        self.phase, self.chosen = SessionPhase.SUSPENDED, chosen

    # What the informant asks

    def identify(self) -> wire.SequenceStamp:
        self._check_alive()
        self.was_asked = True
        return self.number()

    def resume(self, expected: UUID) -> wire.SequenceStamp:
        self._check_id(expected)
        if self.phase is not SessionPhase.SUSPENDED:
            raise self._out_of_turn("resumed")
        self.phase = SessionPhase.RUNNING
        return self.number()

    def suspend(self, expected: UUID) -> None:
        """Nothing more is begun from now on. The reply waits for what is under way."""
        self._check_id(expected)
        if self.phase is not SessionPhase.RUNNING:
            raise self._out_of_turn("suspended")
        self.phase = SessionPhase.SUSPENDED

    def try_upscale(self, expected: UUID) -> wire.SequenceStamp:
        self._check_id(expected)
        if self.phase is not SessionPhase.RUNNING:
            raise RequestError(400, f"cannot upscale: {self.phase.value}")
        if self.version is None or not self.version.has_try_upscale:
            raise RequestError(400, f"protocol version {self.version} has no {wire.TRY_UPSCALE.path}")
        return self.number()

    def _check_alive(self) -> None:
        if self.phase is SessionPhase.ENDED:
            raise RequestError(404, "this server has ended")

    def _check_id(self, expected: UUID) -> None:
        self._check_alive()
        if expected != self.agent_id:
            raise RequestError(404, f"this is not {expected}")

    def _out_of_turn(self, action: str) -> RequestError:
        was = self.phase.value
        self.end(f"the informant {action} us while we were: {was}", RestartDelay.AT_ONCE)
        return RequestError(400, f"cannot be {action}: {was}")


def next_start(started: int, ended: int, again: RestartDelay, least: int) -> int:
    """When the next life begins: not sooner than ``least`` milliseconds after the last one began."""
    return max(started + least, ended + (least if again is RestartDelay.LATER else 0))
