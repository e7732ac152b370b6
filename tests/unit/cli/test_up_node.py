"""``devalloc up`` with the node plugin in its process, and without it where that cannot be."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from devalloc.cli.verbs import up
from devalloc.program import Program, ProgramFailed
from devalloc.programs import plugin_thread
from devalloc.programs import up as program
from devalloc.programs.plugin_thread import PluginThread
from devalloc.store import Unavailable
from devalloc_machines.part import MachineSettings
from devalloc_node.errors import Denied, Failed
from devalloc_node.model.step import Value
from tests.support.cli_shell import Shell
from tests.support.toy_host import EngineBench
from tests.support.waiting import until


def node_of(folder: Path, *, say: Callable[[str], None] = pytest.fail) -> PluginThread:
    """The plugin of node-a, with its journal in this folder."""
    return PluginThread(
        folder / "devalloc.db", folder, "node-a", lambda: pytest.fail("these tests do not start a plugin"),
        rescan=lambda: None, say=say,
    )  # fmt: skip


def without_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command end when its program is put together."""
    monkeypatch.setattr(program, "store_program", lambda *_, **__: Program(loops=[]))
    monkeypatch.setattr(up, "run", lambda made, control: None)


def running(plugin: PluginThread) -> tuple[threading.Event, threading.Thread]:
    stop = threading.Event()
    thread = threading.Thread(target=plugin.run, args=(stop,))
    thread.start()
    return stop, thread


def test_it_says_why_it_cannot_run(monkeypatch: pytest.MonkeyPatch, devalloc: Shell) -> None:
    monkeypatch.setattr(program, "REQUIRED_PACKAGES", ("click", "no_such_package", "no.such"))
    refused = devalloc("up", "--node")
    assert refused.code == 1
    assert "cannot run here: missing packages: no_such_package, no.such; pip install 'devalloc[node]'" in refused.err


def test_it_needs_the_inventory(devalloc: Shell) -> None:
    assert devalloc("up", "--node", "--no-inventory").code == 2


def test_an_interval_of_nothing_is_refused(devalloc: Shell) -> None:
    for flag in ("--resync", "--migration-deadline"):
        refused = devalloc("up", "--no-node", flag, "0s")
        assert (refused.code, f"Invalid value for '{flag}': must be more than 0" in refused.err) == (2, True)


def test_its_permit_server_gets_the_time_limit_of_migrations(
    monkeypatch: pytest.MonkeyPatch, devalloc: Shell, tmp_path: Path
) -> None:
    """Else the server withdraws a migration after an hour, even if the controller allows more."""
    without_loops(monkeypatch)
    made: list[MachineSettings] = []

    def started(*args: Any, **_: Any) -> Any:
        made.append(args[3]())
        return SimpleNamespace(run=lambda stop: None)

    monkeypatch.setattr(plugin_thread, "PluginThread", started)
    options = ("--node", "--state", str(tmp_path), "--scaling", "--migration-deadline", "2h")
    assert devalloc("up", *options).code == 0
    assert made[0].scaling is not None
    assert made[0].scaling.migration_seconds == 2 * 3600.0


def test_what_only_it_does_is_not_asked_for_without_it(devalloc: Shell) -> None:
    refused = devalloc("up", "--no-node", "--warm", "5", "--scaling", "--host-capacity", "--oversub-cpu", "1")
    assert refused.code == 2
    message = "--host-capacity and --oversub-cpu and --scaling and --warm: only for the node plugin, which does not run"
    assert message in refused.err


def test_without_the_plugin_options_without_effect_are_named_and_publish_nothing(
    monkeypatch: pytest.MonkeyPatch, devalloc: Shell, tmp_path: Path
) -> None:
    without_loops(monkeypatch)
    what = "a pool for machines that no plugin runs"
    monkeypatch.setattr(program, "with_host_pool", lambda *_: pytest.fail(what))
    monkeypatch.setenv("DEVALLOC_ENFORCE_CAPACITY", "1")
    monkeypatch.setenv("DEVALLOC_DATA_DIR", str(tmp_path))  # other verbs read it as well
    elsewhere = ("up", "--sysfs-root", str(tmp_path), "--kind", "gpu")
    done = devalloc(*elsewhere, "--scaling", "--warm", "5", "--host-capacity")
    assert done.code == 0
    names = "--enforce-capacity, --host-capacity, --scaling, --warm"
    assert done.out.count(f"WARNING: without the node plugin (--sysfs-root) these have no effect: {names}\n") == 1
    monkeypatch.delenv("DEVALLOC_ENFORCE_CAPACITY")
    assert "no effect" not in devalloc(*elsewhere).out


@pytest.mark.parametrize(
    ("options", "runs"),
    [((), False), (("--node",), True), (("--host-capacity",), True), (("--image-folder", "/var/tmp"), True)],
)
def test_without_root_it_runs_for_those_who_give_options_of_it(
    monkeypatch: pytest.MonkeyPatch, devalloc: Shell, options: tuple[str, ...], runs: bool
) -> None:
    """A laptop runs machines without root; only devices need it."""
    without_loops(monkeypatch)
    started: list[Path] = []

    def made(path: Path, *_: Any, **__: Any) -> Any:
        started.append(path)
        return SimpleNamespace(run=lambda stop: None)

    monkeypatch.setattr(plugin_thread, "PluginThread", made)
    monkeypatch.setattr(program, "os", SimpleNamespace(geteuid=lambda: 1000))
    done = devalloc("up", *options)
    assert (done.code, started) == (0, [devalloc.store] * runs)
    assert ("it needs root; --node runs machines without devices" in done.out) is not runs
    assert "no effect" not in done.out


def test_that_it_does_not_run_beside_the_loops_cannot_be_overlooked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The loops go on and claims look allocated: what is missing, and why, must stand out."""

    def taken(_: PluginThread, stop: threading.Event) -> None:
        raise Denied("SocketInUse", "another process serves /run/devalloc/node.sock; stop it")

    monkeypatch.setattr(PluginThread, "_serve", taken)
    messages: SimpleQueue[str] = SimpleQueue()
    stop, thread = running(node_of(tmp_path, say=messages.put))
    line = messages.get(timeout=30)
    stop.set()
    thread.join(30)
    assert messages.empty()
    assert line.startswith("WARNING: the node plugin does not run")
    assert "allocated but not bound" in line
    assert "another process serves /run/devalloc/node.sock" in line


def test_it_is_tried_again_until_what_was_in_its_way_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tries: SimpleQueue[str] = SimpleQueue()

    def served(one: PluginThread, stop: threading.Event) -> None:
        one._say("not root: the kernel will refuse to bind devices")
        tries.put("")
        if tries.qsize() < 3:
            raise Unavailable("no space left for the journal")

    monkeypatch.setattr(PluginThread, "_serve", served)
    monkeypatch.setattr(plugin_thread, "RETRY_SECONDS", 0.001)
    messages: list[str] = []
    _, thread = running(node_of(tmp_path, say=messages.append))
    until(lambda: tries.qsize() == 3, "it was tried until it went")
    thread.join(30)
    assert messages.pop(0) == "not root: the kernel will refuse to bind devices", "said once"
    assert len(messages) == 2
    assert all("no space left" in each for each in messages)


def test_what_ends_it_after_it_has_served_ends_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(one: PluginThread, stop: threading.Event) -> None:
        one._serving.set()
        raise Unavailable("the journal is gone")

    monkeypatch.setattr(PluginThread, "_serve", broken)
    with pytest.raises(ProgramFailed, match="the node plugin ended: the journal is gone"):
        node_of(tmp_path).run(threading.Event())


def test_lines_that_differ_are_not_remembered_while_it_serves(tmp_path: Path) -> None:
    """Messages with times or numbers in them would fill the memory of a process that runs for months."""
    messages: list[str] = []
    plugin = node_of(tmp_path, say=messages.append)
    for line in ("a", "a"):
        plugin._say(line)
    plugin._serving.set()
    for line in ("a", "b", "b"):
        plugin._say(line)
    assert messages == ["a", "a", "b", "b"]
    assert plugin._reported == {"a"}


def test_the_first_scan_withholds_what_only_the_journal_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else such devices are given away in the second until the plugin looks, and the claim that gets them waits."""
    bench = EngineBench(tmp_path)
    bench.claims.prepare(bench.add("a/slot-0"))  # from another store than what is one now
    bench.claims.prepare(ref := bench.add("a/slot-1"))

    def refuse(target: str, value: Value) -> None:
        if target.endswith("/driver"):
            raise OSError(16, "Device or resource busy", target)

    bench.host.refuse = refuse
    with pytest.raises(Failed):
        bench.claims.unprepare(ref)
    bench.claims.journal.close()
    plugin = node_of(tmp_path)
    state = plugin.initial_records()
    assert state.withheld.keys() == {"slot-0", "slot-1"}
    state_of_strange = "it was prepared from cluster-1, and is still prepared"
    assert state.withheld["slot-0"] == f"in use: claim default/claim-uid-0 is not undone yet: {state_of_strange}"
    assert state.withheld["slot-1"].startswith("in use: claim default/claim-uid-1 is not undone yet: ")
