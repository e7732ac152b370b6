"""What the engine needs of a journal, and what a journal holds, row by row.

Each changing method is one transaction that is on disk when it returns. Rows are shared JSON content that cannot be
changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, NoReturn, Protocol

from devalloc_node.errors import Denied
from devalloc_node.model.grant import ClaimRef
from devalloc_node.model.step import Step, Value


def frozen(value: Value) -> Value:
    """A copy of JSON content in which every attempt to change something raises TypeError; ``copy.deepcopy`` of it can
    be changed."""
    if isinstance(value, dict):
        return _FrozenDict({name: frozen(each) for name, each in value.items()})
    if isinstance(value, list):
        return _FrozenList(frozen(each) for each in value)
    return value


def _changeable(value: Value) -> Value:
    if isinstance(value, dict):
        return {name: _changeable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_changeable(each) for each in value]
    return value


def _refuse(self: object, *arguments: object, **named: object) -> NoReturn:
    raise TypeError("this content is shared with others and cannot be changed; change a copy.deepcopy of it")


class _FrozenDict(dict[str, Any]):
    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __deepcopy__(self, memo: object) -> Value:
        return _changeable(self)


class _FrozenList(list[Any]):
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __deepcopy__(self, memo: object) -> Value:
        return _changeable(self)


USE = "use"
"""Kind of the step by which a device of a claim joins what several share; its target is the shared name. Undoing it
means leaving, and the last one to leave undoes the shared steps."""


StepState = Literal["intent", "done", "stuck"]
"""``intent``: it may have been performed, and may not. ``stuck``: it could not be undone."""

ALLOCATED = "allocated"
"""The room with what claims had before a reboot undid them, until they are prepared again."""
REFUSED_VFS = "refused-vfs"
"""The room of records of ports whose VFs the kernel does not make. A reboot empties it."""
WITHHELD = "withheld/"
"""What the owner of steps of a withheld device begins with."""


class ClaimState(StrEnum):
    """How far a claim is."""

    PREPARING = "preparing"
    """Begun, but never answered: its remains are undone before the next try."""
    PREPARED = "prepared"
    UNPREPARING = "unpreparing"
    """Being undone: it is never given out again as it was, only finished."""


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """A claim that holds something, or held it and is not yet rid of it."""

    ref: ClaimRef
    kind: str
    state: ClaimState
    grant: Mapping[str, Value]
    prepared: Mapping[str, Value] | None
    """The answer of prepare, once there is one."""
    created: str
    """When its preparing began, RFC 3339."""
    changed: str
    """When its state last changed."""


@dataclass(frozen=True, slots=True)
class HeldKey:
    """Something that only one claim can have."""

    key: str
    """``pci/0000:41:00.0``, ``mdev/<uuid>``: what bindings name."""
    uid: str
    """The claim's; empty if the device is withheld from all claims."""
    device: str
    """``pool/device`` as it was granted."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step that was begun and is not undone."""

    id: int
    """Steps of one owner are undone from the highest to the lowest."""
    owner: str
    """The UID of a claim; or, with a slash in it, the name of what several share, or of a withheld device."""
    device: str
    """``pool/device``; empty for what belongs to the claim as a whole."""
    step: Step
    state: StepState
    problem: str = ""
    """Why it is stuck."""


@dataclass(frozen=True, slots=True)
class WithheldDevice:
    """A device that is withheld, because it could not be cleaned after its last owner (T7)."""

    device: str
    keys: tuple[str, ...]
    reason: str
    since: str

    @property
    def owner(self) -> str:
        """Who owns the steps of the claim that are left of it: they are undone when it could be cleaned."""
        return WITHHELD + self.device


class HeldByOther(Denied):
    """Something is held by another claim already."""

    def __init__(self, holding: HeldKey) -> None:
        who = f"claim {holding.uid}" if holding.uid else "no claim: it is withheld until it is reset"
        super().__init__(
            "DeviceInUse",
            f"{holding.key} is held by {who} (device {holding.device}); "
            + ("unprepare that claim first" if holding.uid else "see its entry in `withheld`"),
        )
        self.holding = holding


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

        Raises HeldByOther if another claim has one of them, or it is withheld.
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
        """The claim and what it held. Raises Failed (``JournalDisagrees``) if steps of it are left."""

    def withhold(self, step: int, reason: str) -> None:
        """All keys of the device of this step become withheld, and the claim's steps of that device (those before it
        as well as itself) are the withheld device's: they are undone when it is offered again."""

    def unwithhold(self, device: str) -> None:
        """Offer a device again. Raises Failed (``JournalDisagrees``) if steps of it are left."""

    def boot(self, boot: str, persistent: Collection[str]) -> Sequence[ClaimRecord]:
        """Compare the host's boot id with the one of last time, and note it.

        If it is another, the reboot undid everything but the kinds of steps in ``persistent``: every other step and
        every holding is forgotten, and all claims are ``unpreparing``, which are returned. What is withheld stays so
        until it is tried to clean it the next time, when nothing is left to do.
        """

    def put(self, room: str, name: str, content: Mapping[str, Value]) -> None:
        """Keep a record for another part of the plugin."""

    def drop(self, room: str, name: str) -> None: ...

    def set(self, name: str, value: str) -> None: ...
