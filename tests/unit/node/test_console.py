"""Reading a machine's logs and relaying its console."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from devalloc_machines.qemu import console
from devalloc_node.errors import Denied
from tests.support.node_errors import raises
from tests.support.waiting import until


def read(path: Path, lines: int = 0) -> bytes:
    return b"".join(console.read_log(path, "default/web", lines=lines, follow=False, is_active=lambda: True))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "console.log"


class TestLogs:
    @pytest.mark.parametrize(
        ("content", "lines", "shown"),
        [
            (b"one\ntwo\nthree\n", 0, b"one\ntwo\nthree\n"),
            (b"one\ntwo\nthree\n", 1, b"three\n"),
            (b"one\ntwo\nthree\n", 2, b"two\nthree\n"),
            (b"one\ntwo\nlogin: ", 1, b"login: "),
            (b"one\ntwo\nlogin: ", 2, b"two\nlogin: "),
            (b"one\n", 5, b"one\n"),
            (b"\n\n", 1, b"\n"),
            (b"", 3, b""),
        ],
        ids=repr,
    )
    def test_the_last_lines_are_those_at_the_end_of_the_log(
        self, log: Path, content: bytes, lines: int, shown: bytes
    ) -> None:
        log.write_bytes(content)
        assert read(log, lines) == shown

    def test_lines_are_counted_across_the_blocks_in_which_a_long_log_is_read(self, log: Path) -> None:
        long = b"x" * (console.CHUNK - 2)
        log.write_bytes(b"first\n" + long + b"\n" + long + b"\nlast\n")
        assert read(log, 3) == long + b"\n" + long + b"\nlast\n"
        assert read(log) == log.read_bytes()

    def test_the_last_lines_are_looked_for_in_so_much_of_a_log(self, log: Path) -> None:
        """A guest that has taken its QEMU over can make it as long as a file can be, without using the disk."""
        with log.open("wb") as file:
            file.truncate(3 * console.MOST_SEARCHED)
            file.seek(0, os.SEEK_END)
            file.write(b"\nlast\n")
        assert read(log, 1) == b"last\n"
        assert len(read(log, 5)) == console.MOST_SEARCHED, "not all of it"

    def test_no_link_is_followed_and_nothing_but_a_file_is_read(self, log: Path, tmp_path: Path) -> None:
        """The user of QEMU owns the folder, and a guest that has taken it over could link to a file of root."""
        (tmp_path / "secret").write_text("secret")
        log.symlink_to(tmp_path / "secret")
        with raises(Denied, "LogMissing", match=r"machine default/web has no console\.log"):
            read(log)
        log.unlink()
        os.mkfifo(log)
        with pytest.raises(Denied, match="it is not a file"):
            read(log)

    def test_a_log_is_followed_when_it_is_emptied_and_when_another_one_begins(self, log: Path) -> None:
        seen: list[bytes] = []
        ended = threading.Event()

        def follow() -> None:
            chunks = console.read_log(log, "default/web", lines=1, follow=True, is_active=lambda: not ended.is_set())
            seen.extend(chunks)

        def shown(text: bytes) -> None:
            until(lambda: b"".join(seen) == text, repr(text), context=lambda: repr(seen))

        log.write_bytes(b"old\nready\n")
        thread = threading.Thread(target=follow)
        thread.start()
        shown(b"ready\n")
        with log.open("ab") as file:
            file.write(b"more\n")
        shown(b"ready\nmore\n")
        os.truncate(log, 0)
        with log.open("ab") as file:
            file.write(b"a\n")
        shown(b"ready\nmore\na\n")
        (log.parent / "next").write_bytes(b"next run\n")
        (log.parent / "next").rename(log)
        shown(b"ready\nmore\na\nnext run\n")
        ended.set()
        thread.join()

    @pytest.mark.parametrize(
        ("content", "prompt"),
        [(b"booted\nweb login: ", b"web login: "), (b"booted\n", b""), (b"login: ", b"login: "), (b"x" * 4096, b"")],
        ids=["prompt", "none", "only a prompt", "no lines at all"],
    )
    def test_a_prompt_is_what_follows_the_last_line_end(self, log: Path, content: bytes, prompt: bytes) -> None:
        log.write_bytes(content)
        assert console.prompt(log) == prompt

    def test_a_machine_that_has_written_nothing_has_no_prompt(self, log: Path) -> None:
        assert console.prompt(log) == b""


class TestRelay:
    @pytest.fixture
    def pair(self) -> Iterator[tuple[socket.socket, socket.socket]]:
        guest, caller = socket.socketpair()
        caller.setblocking(False)
        guest.settimeout(10)
        with guest, caller:
            yield guest, caller

    def test_what_is_typed_reaches_the_guest_and_what_it_writes_the_caller(
        self, pair: tuple[socket.socket, socket.socket]
    ) -> None:
        guest, caller = pair
        output = console.relay(caller, [b"uname", b"", b"\r"], lambda: True)
        guest.sendall(b"# ")
        assert next(output) == b"# "
        received = b""
        while not received.endswith(b"\r"):
            received += guest.recv(100)
        assert received == b"uname\r"
        guest.close()
        assert list(output) == [], "it ends with QEMU"

    def test_a_guest_that_does_not_read_keeps_no_output_back_and_no_thread_for_ever(
        self, pair: tuple[socket.socket, socket.socket]
    ) -> None:
        guest, caller = pair
        is_active = True
        output = console.relay(caller, [b"x" * (8 << 20)], lambda: is_active)
        guest.sendall(b"deaf")
        assert next(output) == b"deaf"
        (sender,) = [each for each in threading.enumerate() if each.name == "console"]
        is_active = False
        assert list(output) == []
        sender.join(10)
        assert not sender.is_alive()

    def test_a_caller_that_leaves_leaves_no_thread(self, pair: tuple[socket.socket, socket.socket]) -> None:
        guest, caller = pair
        before = {*threading.enumerate()}
        output = console.relay(caller, [], lambda: True)
        guest.sendall(b"# ")
        assert next(output) == b"# "
        (reader,) = [each for each in threading.enumerate() if each not in before and each.name == "console-output"]
        output.close()
        reader.join(10)
        assert not reader.is_alive()

    def test_a_caller_that_takes_nothing_does_not_hold_up_the_guest(
        self, pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A guest's kernel waits for its console: with a connection that hangs it would stand still."""
        monkeypatch.setattr(console, "PAUSE_SECONDS", 0.0)
        guest, caller = pair
        output = console.relay(caller, [], lambda: True)
        guest.sendall(b"first")
        assert next(output) == b"first"
        flood = 3 * console.MOST_WAITING
        guest.sendall(b"x" * flood + b"last")
        guest.shutdown(socket.SHUT_WR)
        rest = b"".join(output)
        note, end = rest[:200].split(b"\r\n")[1], rest[-4:]
        missed = int(note.decode().removeprefix("[").split()[0])
        assert end == b"last"
        assert note.decode() == f"[{missed} bytes are only in the log: devalloc logs]"
        assert missed + rest.count(b"x") == flood
        assert 0 < missed < flood
        for each in threading.enumerate():
            if each.name == "console-output":
                each.join(10)
                assert not each.is_alive()
