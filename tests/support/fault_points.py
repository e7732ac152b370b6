"""Every state-changing call of preparing and unpreparing, failed in three ways and killed at in two (settled T18).

A scenario is a fake host and a claim. The plugin runs in a forked child, the host (kernel, machine, store) lives in
this process and is asked over a socket, so that it outlives `kill -9` of the plugin; the journal is the real file. In
the child every call that changes something passes a `Gate`, which at one of them

* `fail`: lets the call fail without an effect,
* `late`: lets it have its effect, and tells of a failure,
* `down`: lets it and every later call fail, as when a disk is full,
* `before`: kills the process instead of the call,
* `after`: kills the process when the call has had its effect.

Then a fresh plugin recovers and is asked again. Host, journal, machine and store must be as they were before, or as
after an undisturbed run, and no function that was in use goes back without a reset (T7): `FaultPoints.check` raises
AssertionError with the point where that is not so.
"""

from __future__ import annotations

import os
import signal
import socket
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devalloc_node import claims as claim_engine
from devalloc_node.binding.binding import BindingConfig
from devalloc_node.binding.registry import Bindings, step_kinds
from devalloc_node.claims import ClaimLocks, Claims
from devalloc_node.claims.claim_files import FileKind, claim_spec
from devalloc_node.claims.cleanup import Reconciler, ReconcileReport
from devalloc_node.errors import NodeError
from devalloc_node.host.boundary import Host
from devalloc_node.journal import open_journal
from devalloc_node.model.grant import Grant, GrantedDevice
from devalloc_node.model.step import Prepared, Step
from tests.support.fake_host import FakeHost
from tests.support.fault_gates import (
    HOWS,
    KILLS,
    POWER,
    Ask,
    FaultGate,
    GatedHost,
    GatedJournal,
    GatedMachine,
    GatedStore,
    PersistentOutside,
    reference,
)
from tests.support.object_socket import receive, send

ONCE = ("fail", *KILLS)
_TRIES = 5
BOOT = "boot-1"
KIND = "DeviceClaim"
NODE = "n"


@dataclass(frozen=True)
class Scenario:
    """A host, what a claim gets of it, and what others have of it already."""

    name: str
    build: Callable[[FakeHost], None]
    devices: tuple[GrantedDevice, ...]
    others: tuple[tuple[GrantedDevice, ...], ...] = ()
    """Claims that are prepared before, and stay so."""
    kinds: frozenset[str] = frozenset({"gpu", "vgpu", "vf", "nic"})
    max_vfs: int | None = None
    cdi: bool = True
    attach: bool = True
    """Whether the claim is put into a machine, too, as its platform does right after preparing it."""


@dataclass(frozen=True)
class FaultPoint:
    """One call of one run, and what happens there."""

    act: str
    """``prepare`` or ``unprepare``."""
    number: int
    how: str
    call: str = ""

    def __str__(self) -> str:
        return f"{self.act}, call {self.number} ({self.call}), {self.how}"


@dataclass(frozen=True)
class PluginLife:
    """One life of the plugin."""

    claims: Claims
    reconciler: Reconciler
    scenario: Scenario

    def prepare(self, uid: str) -> Prepared:
        """As a platform does it: prepare, then attach each device."""
        ref = reference(uid)
        prepared = self.claims.prepare(ref)
        if self.scenario.attach:
            for device in prepared.devices:
                step = Step("attachment", f"vm/{uid}-{device.device}", None, {"functions": list(device.functions)})
                self.claims.add(ref, step, device=f"{device.pool}/{device.device}")
        return prepared

    def unprepare(self, uid: str) -> None:
        self.claims.unprepare(reference(uid))

    def recover(self) -> ReconcileReport:
        """As the daemon does it."""
        report = self.reconciler.recover()
        self.reconciler.let_go(report)
        return report


class FaultPoints:
    """A scenario, set up, and all its fault points."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario = scenario
        self.folder = folder
        self.outside = PersistentOutside(FakeHost(folder / "host"))
        scenario.build(self.outside.host)
        for number, devices in enumerate((*scenario.others, scenario.devices)):
            ref = reference(str(number))
            self.outside.grants[ref.uid] = Grant(ref, KIND, devices)
        self.uid = str(len(scenario.others))
        with self.life() as plugin:
            plugin.reconciler.recover()
            for number in range(len(scenario.others)):
                plugin.prepare(str(number))
        self.initial = self.state()
        with self.life() as plugin:
            self.answer = plugin.prepare(self.uid)
        self.prepared = self.state()
        assert self.prepared["host"] != self.initial["host"]
        steps = [step for _, step, _ in self.prepared["journal"]["steps"][self.uid]]
        self.used = {step.target for step in steps if step.kind == "reset"}
        """Functions that are reset between their owners."""
        with self.life() as plugin:
            plugin.unprepare(self.uid)
        assert_same(self.state(), self.initial, "after an undisturbed run")

    def close(self) -> None:
        """Nothing outlives this one."""

    def points(self, hows: Collection[str] = HOWS) -> list[FaultPoint]:
        """All there are, found by running once undisturbed."""
        points = []
        for act in ("prepare", "unprepare"):
            gate = FaultGate()
            with self.life(gate=gate) as plugin:
                getattr(plugin, act)(self.uid)
            points += [FaultPoint(act, number, how, call) for number, call in enumerate(gate.calls, 1) for how in hows]
        assert_same(self.state(), self.initial, "after counting")
        return points

    def check(self, point: FaultPoint) -> None:
        """Let it happen, recover, ask again."""
        self._happen(point)
        self._recover(point, str(point))

    def check_twice(self, point: FaultPoint) -> int:
        """Let it happen, then kill the recovery at each of its calls, one life after the other, each time from the
        same start. How many calls there were."""
        number = 0
        while True:
            number += 1
            self._happen(point)
            how = KILLS[number % 2]
            calls, error = self._run("recover", FaultGate(number, how))
            assert error is None, f"{point}, then recovering: {error}"
            self._recover(point, f"{point}, then recovering, call {number}, {how}")
            if calls is not None:
                return number - 1

    def _happen(self, point: FaultPoint) -> None:
        """Taking back waits for others a little and then goes on without them, so that a call may be left out once."""
        for left in reversed(range(_TRIES if point.act == "unprepare" else 1)):
            self._start(point.act)
            calls, error = self._run(point.act, FaultGate(point.number, point.how))
            if (calls is None) == (point.how in (*KILLS, POWER)):
                return
            assert left, f"{point}: was not reached ({error})"

    def _recover(self, point: FaultPoint, when: str) -> None:
        with self.life() as plugin:
            report = plugin.recover()
        assert not report.stuck, f"{when}: {report.stuck}"
        state = self.state()
        if self.scenario.attach:
            state = self._attached(state)
        assert_same(state, self.prepared if is_prepared(state, self.uid) else self.initial, f"{when}: recovered")
        if point.act == "prepare":
            with self.life() as plugin:
                assert plugin.prepare(self.uid) == self.answer, f"{when}: another answer"
            assert_same(self.state(), self.prepared, f"{when}: asked again")
            self.outside.host.resets.clear()
        with self.life() as plugin:
            plugin.unprepare(self.uid)
        assert_same(self.state(), self.initial, f"{when}: unprepared")
        assert self.used <= set(self.outside.host.resets), f"{when}: {self.used} went back, and were not all reset"

    def _attached(self, state: dict[str, Any]) -> dict[str, Any]:
        """Prepared and not (known to be) attached is no state to stay in: the platform asks again."""
        if not is_prepared(state, self.uid) or state == self.prepared:
            return state
        with self.life() as plugin:
            plugin.prepare(self.uid)
        return self.state()

    def _start(self, act: str) -> None:
        if act == "unprepare":
            with self.life() as plugin:
                plugin.prepare(self.uid)
            self.outside.host.resets.clear()

    @contextmanager
    def life(self, ask: Ask | None = None, gate: FaultGate | None = None) -> Iterator[PluginLife]:
        """The plugin, from its start to its end."""
        scenario, gate = self.scenario, gate or FaultGate()
        ask = ask or self.outside.answer
        host: Host = GatedHost(self.outside.host.root, ask, gate)
        config = BindingConfig(NODE, allowed=scenario.kinds, max_vfs=scenario.max_vfs)
        cdi = str(self.outside.host.root / "files/cdi")
        with closing(open_journal(self.folder / "state")) as opened:
            journal: Any = GatedJournal(opened, gate)
            claims = claims_on(
                {"choose": Bindings(host, config).choose},
                journal,
                ClaimLocks(self.folder / "state/locks"),
                {KIND: GatedStore(ask, gate)},
                {**step_kinds(host), "file": FileKind(host), "attachment": GatedMachine(ask, gate)},
                render={KIND: [lambda grant, devices: claim_spec(grant.ref, devices, driver="d.example", folder=cdi)]}
                if scenario.cdi
                else {},
            )
            yield PluginLife(claims, Reconciler(claims, boot_id=lambda: BOOT), scenario)

    def _run(self, act: str, gate: FaultGate) -> tuple[list[str] | None, str | None]:
        """Prepare or unprepare in a child. Its calls (None: it was killed), and the error."""
        ours, theirs = socket.socketpair()
        child = os.fork()
        if child == 0:
            ours.close()
            self._child(theirs, act, gate)
        theirs.close()
        try:
            while (message := receive(ours)) is not None:
                where, *rest = message
                if where == "end":
                    return rest[0], rest[1]
                try:
                    reply = (True, self.outside.answer(where, *rest))
                except OSError as error:
                    reply = (False, (error.errno, error.strerror))
                send(ours, reply)
            return None, None
        finally:
            ours.close()
            os.kill(child, signal.SIGKILL)  # it has said all it had to say, or hangs
            os.waitpid(child, 0)

    def _child(self, line: socket.socket, act: str, gate: FaultGate) -> None:
        """Never returns."""
        end: tuple[Any, ...] = ("end", None, "nothing was run")

        def ask(*message: Any) -> Any:
            send(line, message)
            good, content = receive(line)
            if not good:
                raise OSError(*content)
            return content

        gate.other_acts = lambda: ask("plugin", "other", act)
        try:
            with self.life(ask, gate) as plugin:
                try:
                    match act:
                        case "prepare":
                            plugin.prepare(self.uid)
                        case "unprepare":
                            plugin.unprepare(self.uid)
                        case _:
                            plugin.recover()
                    end = ("end", gate.calls, None)
                except NodeError as error:
                    end = ("end", gate.calls, f"{error.code}: {error}")
        except BaseException:
            end = ("end", None, traceback.format_exc())
        finally:
            send(line, end)
            os._exit(0)

    def state(self) -> dict[str, Any]:
        """All that there is outside the plugin's memory."""
        with closing(open_journal(self.folder / "state")) as journal:
            claims = journal.claims()
            owners = [record.ref.uid for record in claims] + list(journal.shared())
            recorded = {
                "claims": [(r.ref, r.kind, str(r.state), r.grant, r.prepared) for r in claims],
                "held": {key: (holding.uid, holding.device) for key, holding in journal.held().items()},
                "steps": {
                    owner: [(step.device, step.step, step.state) for step in journal.steps(owner)] for owner in owners
                },
                "withheld": list(journal.withheld()),
            }
        return {
            "host": self.outside.host.snapshot(),
            "machine": dict(self.outside.machine),
            "store": sorted(self.outside.marked),
            "journal": recorded,
        }


def claims_on(host: dict[str, Any], journal: Any, locks: ClaimLocks, stores: Any, kinds: Any, **more: Any) -> Claims:
    """The engine of this version, or of the release before, which takes what it asks of a host one by one."""
    if (device_host := getattr(claim_engine, "DeviceHost", None)) is not None:
        return Claims(journal, locks, stores, device_host(**host), kinds, **more)
    others = {name: ask for name, ask in host.items() if name != "choose"}
    return Claims(journal, locks, stores, host["choose"], kinds, **others, **more)


def is_prepared(state: dict[str, Any], uid: str) -> bool:
    return any(ref.uid == uid and name == "prepared" for ref, _, name, _, _ in state["journal"]["claims"])


def assert_same(state: dict[str, Any], wanted: dict[str, Any], when: str) -> None:
    for part in wanted:
        if state[part] != wanted[part]:
            raise AssertionError(f"{when}: {part} differs: " + "; ".join(differences(state[part], wanted[part])))


def differences(value: Any, wanted: Any) -> Iterable[str]:
    if not isinstance(value, dict):
        yield f"is {value}, not {wanted}"
        return
    for key in sorted({*value, *wanted}, key=str)[:4000]:
        if value.get(key) != wanted.get(key):
            yield f"{key} is {str(value.get(key))[:300]}, not {str(wanted.get(key))[:300]}"
