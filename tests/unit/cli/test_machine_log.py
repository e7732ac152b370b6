"""`devalloc up` says once of each machine that it started, stopped or moved."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from devalloc.programs.machine_log import MachineLog
from devalloc.store import Expired
from devalloc.store.sqlite import SQLiteStore
from tests.support.host_pools import machine
from tests.support.waiting import until

HELD = {"finalizers": ["devalloc.io/node"]}


def become(store: SQLiteStore, phase: str, node: str = "a", *, held: bool = True, **status: Any) -> None:
    obj = store.get("VirtualMachine", "default", "web")
    metadata = {name: value for name, value in obj["metadata"].items() if name != "finalizers"}
    obj = store.replace({**obj, "metadata": {**metadata, **(HELD if held else {})}})
    store.replace_status({**obj, "status": {"phase": phase, **({"nodeName": node} if node else {}), **status}})


@contextmanager
def following(store: SQLiteStore) -> Iterator[list[str]]:
    lines: list[str] = []
    stop, errors = threading.Event(), []

    def run() -> None:
        try:
            MachineLog(lines.append).run(store, stop)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield lines
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
    assert not errors


def test_each_step_is_logged_once(store: SQLiteStore) -> None:
    store.create(machine("old"))
    store.replace_status({**store.get("VirtualMachine", "default", "old"), "status": {"phase": "Running"}})
    with following(store) as lines:
        store.create(machine("web"))

        def says(words: str) -> None:
            until(lambda: lines)
            assert lines == [f"VirtualMachine default/web {words}"]
            lines.clear()

        become(store, "Starting")
        become(store, "Running")
        says("started on node a")
        become(store, "Running", reason="CpuControlUnavailable", message="no matter")
        become(store, "Unknown")
        become(store, "Stopping")
        become(store, "Stopped", message="its guest powered down")
        says("stopped: its guest powered down")
        become(store, "Running")
        says("started on node a")
        become(store, "Running", "b")
        says("moved from node a to node b")
        become(store, "Pending", "", held=False, reason="NoRoom", message="no node has room")
        says("stopped: no node has room")
        become(store, "Running", "c")
        says("started on node c")
        become(store, "Running", "c", held=False)
        store.delete("VirtualMachine", "default", "web")
        says("stopped: it was deleted")


def test_each_reason_why_a_machine_cannot_start_is_logged_once_until_it_runs() -> None:
    lines: list[str] = []
    log = MachineLog(lines.append)

    def note(phase: str, reason: str = "", *, is_new: bool = False, **metadata: Any) -> list[str]:
        lines.clear()
        obj = {**machine("web"), "metadata": {**machine("web")["metadata"], "uid": "u", **HELD, **metadata}}
        why = {"reason": reason, "message": f"{reason} is so"} if reason else {}
        log.note({**obj, "status": {"phase": phase, "nodeName": "a", **why}}, is_new=is_new)
        return [*lines]

    no_qemu = "VirtualMachine default/web cannot start (QemuMissing): QemuMissing is so"
    assert note("Pending", "QemuMissing", is_new=True) == [no_qemu], "`devalloc up` was started again"
    assert note("Pending", "HostFull") == ["VirtualMachine default/web cannot start (HostFull): HostFull is so"]
    assert note("Pending", "QemuMissing") == []
    runs = "VirtualMachine default/web cannot start (MachineRuns): MachineRuns is so"
    assert note("Unknown", "MachineRuns") == [runs], "a plugin with another state folder started it"
    assert note("Unknown", "QmpTimeout") == []
    assert note("Starting") == []
    assert note("Running", "CpuControlUnavailable") == ["VirtualMachine default/web started on node a"]
    assert note("Pending", "HostFull") == ["VirtualMachine default/web cannot start (HostFull): HostFull is so"]
    assert note("Pending", "HostFull") == [], "its node tries to start it again"
    assert note("Running") == []
    assert note("Stopped", "StoppedOnRequest") == ["VirtualMachine default/web stopped: StoppedOnRequest is so"]
    assert note("Pending", "HostFull", deletionTimestamp="2026-01-01T00:00:00Z") == []
    assert note("Pending", "QemuMissing") == [no_qemu], "it ran in between"
    assert sum(len(note("Pending", f"Reason{number}")) for number in range(100)) == 19, "20 reasons at most"


def test_phases_between_say_nothing(store: SQLiteStore) -> None:
    lines: list[str] = []
    log = MachineLog(lines.append)
    web = {**machine("web"), "metadata": {**machine("web")["metadata"], "uid": "u", **HELD}}
    for phase in ("Pending", "Starting", "Running", "Unknown", "Running", "Pending", "Running", "Stopping", "Failed"):
        log.note({**web, "status": {"phase": phase, "nodeName": "a"}})
    assert lines == ["VirtualMachine default/web started on node a", "VirtualMachine default/web stopped"]


def test_changes_while_the_store_is_listed_again_are_logged(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("devalloc.store.watcher.RETRY_SECONDS", 0.01)
    store.create(machine("web"))
    become(store, "Running")
    watch, failed = SQLiteStore.watch, threading.Event()

    def expire_once(self: SQLiteStore, *args: Any, **settings: Any) -> Any:
        if not failed.is_set():
            failed.set()
            become(store, "Failed", message="its kernel panicked")
            raise Expired("compacted")
        return watch(self, *args, **settings)

    monkeypatch.setattr(SQLiteStore, "watch", expire_once)
    with following(store) as lines:
        until(lambda: bool(lines))
    assert lines == ["VirtualMachine default/web stopped: its kernel panicked"]
