"""Gates in front of the node plugin's changes, at which a call can fail or the plugin be killed.

In the plugin's process every call that changes something passes a `FaultGate`. What it changes (kernel, machine, store)
is `PersistentOutside`, in a process that outlives it, and is asked by `Ask`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devalloc.store import Unavailable
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Failed
from devalloc_node.journal import Journal
from devalloc_node.model.grant import ClaimRef, Grant
from devalloc_node.model.step import Value
from tests.support.fake_host import Boundary, FakeHost

FAILS = ("fail", "late", "down")
KILLS = ("before", "after")
HOWS = FAILS + KILLS
POWER, OTHER = "power", "other"
CHANGES = frozenset({"write", "hot_reset", "set_vf", "set_persistence", "own", "put_file", "remove_file"})
"""Methods of `Host` that change something."""
WRITES = frozenset(name for name in vars(Journal) if not name.startswith("_"))
"""Methods of the journal that change something."""
OBJECT_WRITES = frozenset({"create", "replace", "replace_status", "commit", "commit_each", "delete"})
"""Methods of a store that change something."""


class FaultGate:
    """Counts calls, and lets something happen at one of them."""

    def __init__(self, number: int = 0, how: str = "") -> None:
        self.calls: list[str] = []
        self._number = number
        self.how = how
        self.other_acts: Callable[[], object] = lambda: None
        """What another plugin does at the call, if it is disturbed by that."""

    def __call__(self, call: str, act: Callable[[], Any], failure: Exception) -> Any:
        self.calls.append(call)
        if len(self.calls) != self._number and not (self.how == "down" and len(self.calls) > self._number):
            return act()
        if self.how == OTHER:
            self.other_acts()
            return act()
        if self.how in ("late", "after", POWER):
            act()
        if self.how in FAILS:
            raise failure
        os.kill(os.getpid(), signal.SIGKILL)


# What is in this process, and asked by the plugin.


@dataclass
class PersistentOutside:
    """All that outlives the plugin but its journal."""

    host: FakeHost
    machine: dict[str, Value] = field(default_factory=dict)
    """What is plugged into a machine, by target."""
    grants: dict[str, Grant] = field(default_factory=dict)
    marked: set[str] = field(default_factory=set)
    """UIDs of claims that the node has marked in the store."""

    def answer(self, where: str, method: str, *arguments: Any) -> Any:
        match where, method:
            case "host", _:
                return self.host.answer(method, *arguments)
            case "machine", "plug":
                self.machine[arguments[0]] = arguments[1]
            case "machine", "unplug":
                self.machine.pop(arguments[0], None)
            case "machine", "read":
                return self.machine.get(arguments[0])
            case "store", "mark":
                self.marked.add(arguments[0])
                return self.grants[arguments[0]]
            case "store", "unmark":
                self.marked.discard(arguments[0])
            case "store", "list":
                return sorted(self.marked)
            case _:
                raise AssertionError(f"no gate answers {where} {method}")


Ask = Callable[..., Any]
"""`ask(where, method, *arguments)`: the outside, near or far."""


class GatedHost(Boundary):
    """The boundary to the host, by way of the gate."""

    def __init__(self, root: Path, ask: Ask, gate: FaultGate) -> None:
        self.root = root
        self._ask = ask
        self._gate = gate

    def call(self, method: str, *arguments: Any) -> Any:
        def act() -> Any:
            return self._ask("host", method, *arguments)

        if method not in CHANGES:
            return act()
        where = "netlink" if method == "set_vf" else "host"
        shown = " ".join(str(argument)[-60:] for argument in arguments[:2])
        return self._gate(f"{where}.{method} {shown}", act, OSError(5, "Input/output error"))


class GatedJournal:
    """A journal whose writes pass the gate."""

    def __init__(self, journal: Any, gate: FaultGate) -> None:
        self._journal = journal
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._journal, name)
        if name not in WRITES:
            return attribute

        def write(*arguments: Any) -> Any:
            broken = Failed("JournalUnavailable", "no space left for the journal")
            return self._gate(f"journal.{name} {str(arguments)[:80]}", lambda: attribute(*arguments), broken)

        return write


class GatedMachine:
    """Steps of kind ``attachment``."""

    def __init__(self, ask: Ask, gate: FaultGate) -> None:
        self._ask = ask
        self._gate = gate

    def read(self, target: str) -> Value:
        return self._ask("machine", "read", target)

    def apply(self, target: str, value: Value, deadline: Deadline) -> None:
        if self.read(target) == value:
            return
        method = "unplug" if value is None else "plug"
        refusal = Failed("QemuRefused", f"the machine does not {method} {target}")
        self._gate(f"qmp.{method} {target}", lambda: self._ask("machine", method, target, value), refusal)


class GatedStore:
    """Grants whose marks are in the store."""

    def __init__(self, ask: Ask, gate: FaultGate) -> None:
        self._ask = ask
        self._gate = gate

    def get(self, ref: ClaimRef) -> Grant:
        down = Failed("StoreUnavailable", "the store does not answer")
        grant: Grant = self._gate(f"store.mark {ref}", lambda: self._ask("store", "mark", ref.uid), down)
        return grant

    def let_go(self, ref: ClaimRef) -> None:
        down = Failed("StoreUnavailable", "the store does not answer")
        self._gate(f"store.unmark {ref}", lambda: self._ask("store", "unmark", ref.uid), down)

    def look(self, ref: ClaimRef) -> Grant:
        return self.get(ref)

    def is_gone(self, ref: ClaimRef) -> bool:
        return False

    def belongs_to_node(self, ref: ClaimRef, node_name: str) -> bool:
        return True

    def identity(self) -> str:
        return "store 1"

    def held(self) -> Sequence[ClaimRef]:
        return [reference(uid) for uid in self._ask("store", "list")]


class GatedObjects:
    """A store of objects whose writes pass the gate."""

    def __init__(self, store: Any, gate: FaultGate) -> None:
        self._store = store
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._store, name)
        if name not in OBJECT_WRITES:
            return attribute

        def write(*arguments: Any, **options: Any) -> Any:
            what = arguments[0].get("kind", "") if isinstance(arguments[0], dict) else ""
            down = Unavailable("the store does not answer")
            return self._gate(f"object.{name} {what}", lambda: attribute(*arguments, **options), down)

        return write


def reference(uid: str) -> ClaimRef:
    return ClaimRef("default", f"claim-{uid}", uid)
