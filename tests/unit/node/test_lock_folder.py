"""Locks between threads and processes: who waits, for how long, and what is said of who holds one."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed
from devalloc_node.host import lock_folder
from devalloc_node.host.lock_folder import LockFolder, lock_purpose
from tests.support.waiting import LONG, until

SOON = 0.05
"""Seconds until a wait ends that is to end in vain."""


def busy(why: str) -> Failed:
    return Failed("MachineBusy", f"machine a is busy: {why}")


@contextmanager
def holding(folder: LockFolder, name: str, seconds: float = LONG, work: str = "start") -> Iterator[None]:
    with folder.held(name, Deadline.after(seconds), work, busy):
        yield


def refused(folder: LockFolder, name: str, deadline: Deadline | None = None) -> Failed:
    with pytest.raises(Failed) as caught, folder.held(name, deadline or Deadline.after(SOON), "stop", busy):
        raise AssertionError("another process holds it")
    return caught.value


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


class TestOneAtATime:
    def test_a_lock_leaves_no_file_and_still_keeps_all_others_out(self, tmp_path: Path) -> None:
        """Its file goes with its holder: who waits for that one must not believe to have what a third has anew."""
        instances = [LockFolder(tmp_path) for _ in range(3)]
        inside: list[int] = []
        most = 0

        def change(locks: LockFolder) -> None:
            nonlocal most
            for _ in range(40):
                with holding(locks, "m"):
                    inside.append(1)
                    most = max(most, len(inside))
                    time.sleep(0.0002)
                    inside.pop()

        threads = [in_thread(lambda locks=locks: change(locks)) for locks in instances]  # type: ignore[misc]
        for thread in threads:
            thread.join()
        assert most == 1
        with pytest.raises(Denied), holding(instances[0], "denied"):
            raise Denied("No", "no")
        assert list(tmp_path.iterdir()) == []

    def test_its_folder_is_made_again_with_those_above_it(self, tmp_path: Path) -> None:
        folder = tmp_path / "run" / "locks"
        with holding(LockFolder(folder), "m"):
            assert folder.stat().st_mode & 0o777 == 0o700

    def test_a_lock_of_a_file_that_was_just_removed_is_worth_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, file = fcntl.flock, tmp_path / "m"

        def late(descriptor: int, how: int) -> None:
            monkeypatch.setattr(fcntl, "flock", real)
            file.unlink()  # as its last holder does, between our opening it and our locking it
            real(descriptor, how)

        monkeypatch.setattr(fcntl, "flock", late)
        with holding(LockFolder(tmp_path), "m"):
            assert file.exists()
            refused(LockFolder(tmp_path), "m")

    def test_a_lock_that_the_host_refuses_is_an_error_of_its_own(self, tmp_path: Path) -> None:
        (tmp_path / "state").touch()
        error = refused(LockFolder(tmp_path / "state"), "m", Deadline.after(LONG))
        assert error.code == "LockUnavailable"
        assert "state" in error.message

    @pytest.mark.parametrize("reentrant", [True, False])
    def test_other_instances_and_other_threads_are_kept_out_and_other_names_are_not(
        self, tmp_path: Path, reentrant: bool
    ) -> None:
        one, other = LockFolder(tmp_path, reentrant=reentrant), LockFolder(tmp_path)
        errors: list[Failed] = []
        with holding(one, "m"):
            if reentrant:
                with holding(one, "m"):
                    pass
                assert (tmp_path / "m").exists(), "the inner one does not let go of it"
            else:
                refused(one, "m")
            error = refused(other, "m")
            assert (error.code, error.retryable) == ("MachineBusy", True)
            with holding(other, "another"):
                pass
            in_thread(lambda: errors.append(refused(one, "m"))).join()
        assert [error.code for error in errors] == ["MachineBusy"]
        with holding(other, "m"):
            pass

    def test_threads_have_their_turns_in_the_order_in_which_they_came(self, tmp_path: Path) -> None:
        locks, order = LockFolder(tmp_path), list[int]()

        def change(number: int) -> None:
            with holding(locks, "m"):
                order.append(number)

        with holding(locks, "m"):
            threads = []
            for number in range(5):
                threads.append(in_thread(lambda number=number: change(number)))  # type: ignore[misc]
                until(lambda number=number: len(locks._lines["m"]) == number + 2, "it waits")  # type: ignore[misc]
            gone = in_thread(lambda: refused(locks, "m"))
            gone.join()
        for thread in threads:
            thread.join()
        assert order == [0, 1, 2, 3, 4]
        assert locks._lines == {}


class TestWhoHoldsIt:
    def test_a_wait_in_vain_ends_with_who_holds_it_since_when_what_for_and_what_to_do(self, tmp_path: Path) -> None:
        locks = LockFolder(tmp_path)
        errors: list[Failed] = []
        with holding(locks, "m", work=lock_purpose("scale memory", "uid 0 pid 77 (devalloc)")):
            in_thread(lambda: errors.append(refused(locks, "m"))).join()
            errors.append(refused(LockFolder(tmp_path), "m"))
        for error in errors:
            progress = r"scale memory \(for uid 0 pid 77 \(devalloc\)\) has been in progress for \d+ s \(since "
            assert re.search(progress, error.message)
            assert f" UTC, process {os.getpid()}). Try again" in error.message
            assert "--timeout" in error.message

    def test_one_of_another_process_is_named_too(self, tmp_path: Path) -> None:
        holder = (
            "import sys, pathlib\n"
            "from devalloc_node.deadline import Deadline\n"
            "from devalloc_node.host.lock_folder import LockFolder\n"
            "with LockFolder(pathlib.Path(sys.argv[1])).held('m', Deadline.after(9), 'delete', RuntimeError):\n"
            "    print('held', flush=True)\n"
            "    sys.stdin.read()\n"
        )
        command = [sys.executable, "-c", holder, str(tmp_path)]
        locks, errors = LockFolder(tmp_path), list[Failed]()
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            assert "delete has been in progress" in (error := refused(locks, "m")).message
            assert f"process {other.pid})" in error.message
            # The message to a waiter behind a thread that waits for that process names the process.
            first = in_thread(lambda: errors.append(refused(locks, "m", Deadline.after(0.5))))
            until(lambda: locks._lines.get("m"), "it waits")
            assert f"process {other.pid})" in refused(locks, "m").message
            first.join()
            other.kill()
        assert [error.code for error in errors] == ["MachineBusy"]
        with holding(locks, "m", work="stop"):
            assert "stop has" in refused(LockFolder(tmp_path), "m").message, "and no word of one that was killed"

    def test_a_lock_inside_another_is_held_for_the_same_work(self, tmp_path: Path) -> None:
        outer, inner = LockFolder(tmp_path / "outer"), LockFolder(tmp_path / "inner")
        with holding(outer, "claim", work="unprepare claim a"), holding(inner, "m", work="take a device out"):
            assert "unprepare claim a has" in refused(LockFolder(tmp_path / "inner"), "m").message
        with holding(inner, "m", work="tidy up"):
            assert "tidy up has" in refused(LockFolder(tmp_path / "inner"), "m").message

    @pytest.mark.parametrize(
        "content", [b"", b"{", b"[]", b'{"work": "x", "since": 1e999, "pid": 1}', b"\xff"], ids=repr
    )
    def test_the_holder_of_an_unreadable_lock_comes_from_the_kernel(self, tmp_path: Path, content: bytes) -> None:
        """A plugin of an earlier version writes nothing, and a full disk takes nothing."""
        with holding(LockFolder(tmp_path), "m"):
            (tmp_path / "m").write_bytes(content)
            message = refused(LockFolder(tmp_path), "m").message
        assert f"process {os.getpid()} (" in message
        assert "holds the lock. Try again" in message

    def test_work_of_any_length_can_be_read_again(self, tmp_path: Path) -> None:
        with holding(LockFolder(tmp_path), "m", work="\N{GRINNING FACE}" * 10000):
            assert "\N{GRINNING FACE} has been in progress" in refused(LockFolder(tmp_path), "m").message


class TestCalls:
    """Waits of calls, whose caller may go, and which take a thread of the service each."""

    def test_an_operation_whose_caller_has_gone_does_not_begin(self, tmp_path: Path) -> None:
        locks, errors, cancelled = LockFolder(tmp_path), list[Failed](), threading.Event()
        deadline = replace(Deadline.after(LONG), cancelled=cancelled)
        with holding(locks, "m"):
            inside = in_thread(lambda: errors.append(refused(locks, "m", deadline)))
            between = in_thread(lambda: errors.append(refused(LockFolder(tmp_path), "m", deadline)))
            until(lambda: len(locks._lines["m"]) == 2, "it waits")
            cancelled.set()
            inside.join()
            between.join()
        errors.append(refused(locks, "m", deadline))
        assert [error.code for error in errors] == ["Cancelled"] * 3

    def test_an_operation_that_began_goes_on_without_its_caller(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        locks, cancelled, done = LockFolder(tmp_path), threading.Event(), list[str]()
        deadline = replace(Deadline.after(LONG), cancelled=cancelled)
        glances = threading.Semaphore(0)
        look = LockFolder._give_up

        def glance(*arguments: Any) -> None:
            look(*arguments)
            if cancelled.is_set():
                glances.release()

        monkeypatch.setattr(LockFolder, "_give_up", glance)

        def change() -> None:
            with locks.held("claim", deadline, "attach", busy), locks.held("m", deadline, "attach", busy):
                done.append("attached")

        with holding(locks, "m"):
            thread = in_thread(change)
            until(lambda: len(locks._lines["m"]) == 2, "it waits for the second one")
            cancelled.set()
            assert glances.acquire(timeout=LONG), "it looks whether it is to give up, and does not"
            assert done == []
        thread.join()
        assert done == ["attached"]

    def test_so_many_wait_and_one_more_is_refused_at_once_with_who_holds_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        places = threading.BoundedSemaphore(2)
        monkeypatch.setattr(lock_folder, "_calls", places)
        locks, done, errors = LockFolder(tmp_path), list[int](), list[Failed]()
        deadline = replace(Deadline.after(LONG), cancelled=threading.Event())

        def change(number: int) -> None:
            with locks.held("m", deadline, "stop", busy):
                done.append(number)

        with holding(locks, "m"):
            threads = [in_thread(lambda: change(1)), in_thread(lambda: change(2))]
            until(lambda: places._value == 0, "both wait")
            in_thread(lambda: errors.append(refused(locks, "m", deadline))).join()
            assert "start has been in progress" in errors[0].message
            assert "other calls are waiting" in errors[0].message
            with locks.held("free", deadline, "stop", busy):
                pass
        for thread in threads:
            thread.join()
        assert sorted(done) == [1, 2]
        with locks.held("m", deadline, "stop", busy):
            pass

    def test_work_that_has_begun_waits_though_all_places_are_taken(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Calls that wait for one machine, which does not answer, end no work on another one."""
        places = threading.BoundedSemaphore(1)
        monkeypatch.setattr(lock_folder, "_calls", places)
        locks, done, errors = LockFolder(tmp_path), list[str](), list[Failed]()
        deadline = replace(Deadline.after(LONG), cancelled=threading.Event())

        def change(*names: str) -> None:
            with ExitStack() as stack:
                for name in names:
                    stack.enter_context(locks.held(name, deadline, "attach", busy))
                done.append(names[-1])

        with holding(locks, "stuck"):
            with holding(locks, "shared"):
                waiting = in_thread(lambda: change("stuck"))
                until(lambda: places._value == 0, "it takes the only place")
                begun = in_thread(lambda: change("machine", "shared"))
                until(lambda: len(locks._lines.get("shared", ())) == 2, "work that has begun waits for a thread")
            begun.join()
            assert done == ["shared"]
            with holding(LockFolder(tmp_path), "shared"):
                begun = in_thread(lambda: change("machine", "shared"))
                until(lambda: locks._lines.get("shared"), "work that has begun waits as for another process")
            begun.join()
            assert done == ["shared", "shared"]
            with holding(locks, "shared"):
                soon = replace(Deadline.after(SOON), cancelled=threading.Event())
                with locks.held("machine", soon, "attach", busy):
                    errors.append(refused(locks, "shared", soon))
            assert "Try again when that has ended" in errors[0].message, "its deadline ends it"
            in_thread(lambda: errors.append(refused(locks, "stuck", deadline))).join()
            assert "other calls are waiting" in errors[1].message, "a call that has begun nothing"
        waiting.join()
        assert done == ["shared", "shared", "stuck"]

    def test_any_number_waits_for_a_lock_that_is_held_briefly(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two hundred machines that are created at once: the many wait for room on the host to be counted."""
        monkeypatch.setattr(lock_folder, "_calls", threading.BoundedSemaphore(1))
        locks, done = LockFolder(tmp_path), list[int]()
        deadline = replace(Deadline.after(LONG), cancelled=threading.Event())

        def change(number: int) -> None:
            with locks.held("all", deadline, "start", busy, brief=True):
                done.append(number)

        with holding(locks, "all"):
            threads = [in_thread(partial(change, number)) for number in range(8)]
            until(lambda: len(locks._lines["all"]) == 9, "all wait")
        for thread in threads:
            thread.join()
        assert sorted(done) == list(range(8))
