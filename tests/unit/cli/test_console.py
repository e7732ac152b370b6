"""`devalloc console` and `devalloc logs` against a node plugin on a real socket."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from devalloc.store.sqlite import SQLiteStore
from devalloc_machines.vms import LoopSettings, VirtualMachineLoop
from tests.support.cli_shell import Result, Shell, text
from tests.support.node_service import Served, served
from tests.support.toy_machines import vm
from tests.support.waiting import in_threads, until

KEY = "default/web"


@pytest.fixture
def plugin(devalloc: Shell, tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "node") as server:
        server.machines.logs = tmp_path
        assert devalloc("vm", "create", "-f", "-", "--socket", server.socket, stdin=text(vm("web"))).code == 0
        yield server


def on(plugin: Served, devalloc: Shell, *words: str, stdin: str | None = None) -> Result:
    return devalloc(*words, "--socket", plugin.socket, stdin=stdin)


class Terminal:
    """`devalloc console vm/web` on a terminal of its own."""

    def __init__(self, plugin: Served) -> None:
        self.fd, theirs = pty.openpty()
        self.shown = b""
        command = [sys.executable, "-m", "devalloc.cli", "console", "vm/web", "--socket", str(plugin.socket)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm"}
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)

    def type(self, keys: bytes) -> None:
        os.write(self.fd, keys)

    def until(self, words: bytes) -> None:
        def look() -> bool:
            if select.select([self.fd], [], [], 0.05)[0]:
                self.shown += os.read(self.fd, 4096)
            return words in self.shown

        until(look, repr(words), context=lambda: repr(self.shown))


@pytest.fixture
def terminal(plugin: Served) -> Iterator[Terminal]:
    opened = Terminal(plugin)
    yield opened
    opened.process.kill()
    opened.process.wait()
    os.close(opened.fd)


class TestConsole:
    def test_keys_go_to_the_guest_and_ctrl_right_bracket_ends_it(self, plugin: Served, terminal: Terminal) -> None:
        (plugin.machines.logs / "console.log").write_bytes(b"booted\nweb login: ")
        terminal.until(b"connected to default/web; Ctrl-] ends it")
        terminal.until(b"web login: ")
        guest = plugin.machines.consoles[KEY]
        guest.settimeout(20)
        terminal.type(b"ls\r")
        assert guest.recv(3, 256) == b"ls\r", "each key as it is, and no line end of ours"
        terminal.type(b"\x03")
        assert guest.recv(1) == b"\x03", "Ctrl-C is the guest's"
        guest.sendall(b"\x1b[31mred\x1b[0m")
        terminal.until(b"\x1b[31mred\x1b[0m")
        terminal.type(b"\x1d")
        assert terminal.process.wait(30) == 0
        until(lambda: KEY not in plugin.machines.consoles, "others may have the console")

    def test_the_terminal_is_as_before_when_the_machine_ends(self, plugin: Served, terminal: Terminal) -> None:
        terminal.until(b"connected")
        until(lambda: KEY in plugin.machines.consoles, "it is connected")
        plugin.machines.consoles[KEY].shutdown(2)
        terminal.until(b"error: machine default/web has ended: devalloc get vm/web\r\n")
        assert terminal.process.wait(30) == 1

    def test_one_caller_at_a_time_has_the_console_of_a_machine(
        self, plugin: Served, devalloc: Shell, terminal: Terminal
    ) -> None:
        terminal.until(b"connected")
        refused = on(plugin, devalloc, "console", "vm/web", stdin="")
        assert (refused.code, "[ConsoleInUse]" in refused.err) == (1, True), refused.err

    def test_without_a_terminal_it_sends_its_input_and_ends_when_the_guest_is_silent(
        self, plugin: Served, devalloc: Shell
    ) -> None:
        def guest() -> None:
            until(lambda: KEY in plugin.machines.consoles)
            line = plugin.machines.consoles[KEY]
            line.settimeout(20)
            line.sendall(b"heard " + line.recv(100))

        thread = threading.Thread(target=guest)
        thread.start()
        done = on(plugin, devalloc, "console", "web", stdin="uname\n")
        thread.join()
        assert (done.code, done.out, done.err) == (0, "heard uname\n", "")

    @pytest.mark.parametrize("verb", ["console", "logs"])
    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("vm/other", "error: machine default/other not found on node node-a [MachineNotFound]\n"),
            ("pool/a", "error: only machines have a console and logs, not a DevicePool: write vm/NAME\n"),
            ("vm/", "error: invalid name vm/; use KIND/NAME, such as vm/web\n"),
        ],
    )
    def test_wrong_names(self, plugin: Served, devalloc: Shell, verb: str, name: str, message: str) -> None:
        assert on(plugin, devalloc, verb, name, stdin="").err == message

    @pytest.mark.parametrize("verb", ["console", "logs"])
    def test_a_machine_that_never_started_says_why(self, plugin: Served, devalloc: Shell, verb: str) -> None:
        elsewhere = vm("moved", nodeName="node-b")
        assert devalloc("apply", "-f", "-", stdin=text(vm("waits"), elsewhere)).code == 0
        plugin.machines.fail.add("start")
        settings = LoopSettings(resync=3600.0, retry=3600.0, most=3600.0)
        with closing(SQLiteStore(devalloc.store)) as store:
            loop = VirtualMachineLoop(store, plugin.operations, plugin.notifier, settings=settings)
            with in_threads(loop.run):
                until(lambda: (store.get("VirtualMachine", "default", "waits").get("status") or {}).get("reason"))
                why = store.get("VirtualMachine", "default", "waits")["status"]["reason"]
                begin = f"error: machine default/waits has not started: {why}: "
                until(lambda: on(plugin, devalloc, verb, "vm/waits", stdin="").err.startswith(begin), begin)
                moved = on(plugin, devalloc, verb, "vm/moved", stdin="").err
        assert (
            moved == "error: machine default/moved not found on node node-a: it is on node node-b [MachineNotFound]\n"
        )

    @pytest.mark.parametrize("verb", ["console", "logs"])
    def test_an_option_of_clusters_names_the_way_on_a_cluster(self, devalloc: Shell, verb: str) -> None:
        refused = devalloc(verb, "vm/web", "--kubeconfig", "x")
        assert (refused.code, f"exec -it POD -- devalloc {verb} vm/NAME" in refused.err) == (2, True), refused.err


class TestLogs:
    def test_the_guests_words_and_those_of_qemu(self, plugin: Served, devalloc: Shell) -> None:
        (plugin.machines.logs / "console.log").write_bytes(b"one\r\ntwo\r\nlogin: ")
        (plugin.machines.logs / "qemu.log").write_bytes(b"a warning\n")
        (plugin.machines.logs / "qemu.log.1").write_bytes(b"of the run before\n")
        assert on(plugin, devalloc, "logs", "vm/web").out == "one\ntwo\nlogin: "
        assert on(plugin, devalloc, "logs", "vm/web", "--tail", "2").out == "two\nlogin: "
        assert on(plugin, devalloc, "logs", "vm/web", "--qemu").out == "a warning\n"
        assert on(plugin, devalloc, "logs", "vm/web", "--qemu", "--previous").out == "of the run before\n"

    def test_a_log_that_is_not_there_is_named(self, plugin: Served, devalloc: Shell) -> None:
        missing = on(plugin, devalloc, "logs", "vm/web", "--qemu", "-p")
        expected = "error: machine default/web has no qemu.log.1: No such file or directory [LogMissing]\n"
        assert (missing.code, missing.err) == (1, expected)
        wrong = on(plugin, devalloc, "logs", "vm/web", "-p")
        assert (wrong.code, "add --qemu" in wrong.err) == (2, True)
