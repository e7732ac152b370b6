"""What the engine needs of a journal. Each changing method is one transaction that is on disk when it returns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from devalloc_node.journal.records import ClaimRecord, HeldKey, StepRecord, WithheldDevice
from devalloc_node.model.grant import ClaimRef
from devalloc_node.model.step import Step, Value


class JournalReader(Protocol):
    """Reading. Safe for threads, as all of the journal. Raises Failed: ``JournalUnavailable``, ``JournalDamaged``."""

    def claim(self, uid: str) -> ClaimRecord | None: ...

    def claims(self) -> Sequence[ClaimRecord]:
        """All, in the order of their beginning."""

    def held(self) -> Mapping[str, HeldKey]:
        """By key, what claims hold and what is withheld."""

    def steps(self, owner: str) -> Sequence[StepRecord]:
        """In the order in which they were begun."""

    def owners(self, kind: str, targets: str) -> Sequence[str]:
        """Who has steps of a kind whose targets begin with ``targets``, which ends with a slash."""

    def shared(self) -> Sequence[str]:
        """Names of everything shared that has steps. Withheld devices are not among them."""

    def users(self, name: str) -> Sequence[StepRecord]:
        """The ``use`` steps of all who share it."""

    def withheld(self) -> Sequence[WithheldDevice]: ...

    def record(self, room: str, name: str) -> Mapping[str, Value] | None: ...

    def records(self, room: str) -> Mapping[str, Mapping[str, Value]]:
        """All records of one room, by name. Nothing of them can be changed: later calls give the same content again."""

    def setting(self, name: str) -> str | None: ...


class Journal(JournalReader, Protocol):
    """Reading and writing."""

    def begin(self, ref: ClaimRef, kind: str, grant: Mapping[str, Value], holdings: Mapping[str, str]) -> None:
        """A new claim in state ``preparing`` that holds these keys (to ``pool/device``), all or none.

        Raises Taken where another claim has one of them, or it is withheld.
        """

    def intend(self, begun: Sequence[tuple[str, str, Step]], done: Collection[int] = ()) -> Sequence[int]:
        """Steps (owner, device, step) are about to be performed; their ids. ``done``: earlier steps that are, so that
        each step costs one write."""

    def done(self, steps: Collection[int]) -> None: ...

    def finish(
        self,
        uid: str,
        prepared: Mapping[str, Value],
        done: Collection[int] = (),
        begun: Sequence[tuple[str, str, Step]] = (),
    ) -> None:
        """The claim is prepared, all its steps are done, the last of them (``begun``, as in ``intend``) included, and
        so are ``done``."""

    def release(self, uid: str) -> None:
        """The claim is being unprepared from now on."""

    def undone(self, step: int) -> None:
        """Forget a step."""

    def stuck(self, step: int, problem: str) -> None:
        """A step could not be undone."""

    def forget(self, uid: str) -> None:
        """The claim and what it held. Raises Failed (``JournalDisagrees``) where steps of it are left."""

    def withhold(self, step: int, reason: str) -> None:
        """All keys of the device of this step become withheld, and the claim's steps of that device (those before it
        as well as itself) are the withheld device's: they are undone when it is offered again."""

    def unwithhold(self, device: str) -> None:
        """Offer a device again. Raises Failed (``JournalDisagrees``) where steps of it are left."""

    def boot(self, boot: str, persistent: Collection[str]) -> Sequence[ClaimRecord]:
        """Compare the host's boot id with the one of last time, and note it.

        Where it is another, the reboot undid everything but the kinds of steps in ``persistent``: every other step and
        every holding is forgotten, and all claims are ``unpreparing``, which are returned. What is withheld stays so
        until it is tried to clean it the next time, when nothing is left to do.
        """

    def put(self, room: str, name: str, content: Mapping[str, Value]) -> None:
        """Keep a record for another part of the plugin."""

    def drop(self, room: str, name: str) -> None: ...

    def set(self, name: str, value: str) -> None: ...
