"""Run the node plugin of any version in a process of its own, beside the fake host in this one.

The process forks a child for each life, which does one thing, passes a gate at each of its changes, and may be killed
there. What the plugin changes outside of its journal it asks of this process, as in `faults`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from devalloc_node.errors import NodeError
from devalloc_node.model.grant import Grant
from tests.support import fault_scenarios, machine_scenarios
from tests.support.fault_gates import Ask, FaultGate, reference
from tests.support.fault_points import KIND, FaultPoints, PluginLife, Scenario
from tests.support.machine_faults import MachineFaults, MachinePlugin, MachineScenario
from tests.support.object_socket import receive, send
from tests.support.previous import Version

SCENARIOS: dict[str, Scenario] = {**fault_scenarios.SCENARIOS, **machine_scenarios.SCENARIOS}


@dataclass(frozen=True)
class LifeEnd:
    """How a life ended."""

    calls: list[str] | None
    """Its changes; None where it was killed."""
    error: str | None = None
    answer: Any = None


class PluginLives:
    """Lives of one version of the plugin."""

    def __init__(self, process: subprocess.Popen[str], line: socket.socket) -> None:
        self._process = process
        self._line = line

    def live(self, faults: FaultPoints, act: str, number: int = 0, how: str = "") -> LifeEnd:
        """On its host, with its journal. ``act``: recover, prepare or unprepare. ``number``, ``how``: at which change
        it is killed, and whether before or after it."""
        send(self._line, (faults.scenario.name, faults.folder, faults.outside.host.root, act, number, how))
        while (message := receive(self._line)) is not None:
            where, *rest = message
            if where == "end":
                return LifeEnd(*rest)
            try:
                answer = faults.outside.answer(where, *rest)
                reply = (True, None if isinstance(answer, Grant) else answer)  # each version has its own
            except OSError as error:
                reply = (False, (error.errno, error.strerror))
            send(self._line, reply)
        raise AssertionError(f"its process has ended: {self._process.communicate()[0]}")

    def go(self, faults: FaultPoints, act: str) -> Any:
        """Undisturbed; its answer."""
        ended = self.live(faults, act)
        assert ended.error is None, f"{act}: {ended.error}"
        return ended.answer


@contextmanager
def plugin_lives(version: Version) -> Iterator[PluginLives]:
    """Of a version."""
    ours, theirs = socket.socketpair()
    command = version.python("-m", "tests.support.versioned_plugin", str(theirs.fileno()))
    process = version.start(command, pass_fds=(theirs.fileno(),))
    theirs.close()
    try:
        yield PluginLives(process, ours)
    finally:
        ours.close()
        process.communicate()


# In the other process.


def _harness(name: str, folder: Path, root: Path) -> FaultPoints:
    """As much of it as a life needs."""
    scenario = SCENARIOS[name]
    is_machine = isinstance(scenario, MachineScenario)
    harness: FaultPoints = object.__new__(MachineFaults if is_machine else FaultPoints)
    harness.scenario, harness.folder, harness.uid = scenario, folder, "" if is_machine else str(len(scenario.others))
    if isinstance(harness, MachineFaults):
        harness.qemu = None
    claims = scenario.claims if isinstance(scenario, MachineScenario) else (*scenario.others, scenario.devices)
    refs = [reference(str(number)) for number in range(len(claims))]
    grants = {ref.uid: Grant(ref, KIND, devices) for ref, devices in zip(refs, claims, strict=True)}
    harness.outside = SimpleNamespace(host=SimpleNamespace(root=root), grants=grants)  # type: ignore[assignment]
    return harness


def _serve(line: socket.socket) -> None:
    while (wanted := receive(line)) is not None:
        if (child := os.fork()) == 0:
            _live(line, _harness(*wanted[:3]), *wanted[3:])
        _, status = os.waitpid(child, 0)
        if status:
            send(line, ("end", None))


def _live(line: socket.socket, harness: FaultPoints, act: str, number: int, how: str) -> None:
    """Never returns."""
    gate = FaultGate(number, how)
    end: tuple[Any, ...] = ("end", [], "nothing was done")
    try:
        with harness.life(_asking(line, harness), gate) as plugin:
            try:
                end = ("end", gate.calls, None, _act(plugin, harness.uid, act))
            except NodeError as error:
                end = ("end", gate.calls, f"{error.code}: {error}")
    except BaseException:
        end = ("end", [], traceback.format_exc())
    finally:
        send(line, end)
        os._exit(0)


def _asking(line: socket.socket, harness: FaultPoints) -> Ask:
    def ask(*message: Any) -> Any:
        send(line, message)
        good, content = receive(line)
        if not good:
            raise OSError(*content)
        return harness.outside.grants[message[2]] if message[:2] == ("store", "mark") else content

    return ask


def _act(plugin: PluginLife, uid: str, act: str) -> Any:
    match act:
        case "prepare":
            return repr(plugin.prepare(uid))
        case "unprepare":
            return plugin.unprepare(uid)
        case _ if isinstance(plugin, MachinePlugin):
            return [str(error) for error in plugin.recover().stuck]
        case _:
            report = plugin.reconciler.recover()
            plugin.reconciler.let_go(report)
            return [str(error) for error in report.stuck]


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
