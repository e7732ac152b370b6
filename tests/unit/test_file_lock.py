"""File locks: exclusion, sharing, files that are removed, and who holds one."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from devalloc.file_lock import FileLock


def test_a_lock_excludes_others_until_it_is_released_or_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with FileLock(path) as one, FileLock(path) as other:
        assert one.try_lock()
        assert one.try_lock(), "again"
        assert not other.try_lock()
        assert not other.try_lock(shared=True)
        assert other.is_locked_elsewhere()
        assert not other.lock_within(0.02, 0.01)
        one.unlock()
        assert not other.is_locked_elsewhere()
        assert other.lock_within(0.02, 0.01)
        other.close()
        other.close()
        assert one.try_lock()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_shared_locks_exclude_only_exclusive_ones(tmp_path: Path) -> None:
    with FileLock(tmp_path / "lock") as one, FileLock(tmp_path / "lock") as other:
        one.lock(shared=True)
        assert other.try_lock(shared=True)
        assert not other.try_lock()
        one.unlock()
        assert other.try_lock()
        assert not one.try_lock(shared=True)


def test_a_lock_of_a_removed_file_is_not_the_one_of_its_path(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with FileLock(path) as old:
        assert old.is_same_file()
        path.unlink()
        assert not old.is_same_file()
        with FileLock(path) as new:
            assert old.try_lock()
            assert new.try_lock()
            assert new.is_same_file()
            assert not old.is_same_file()


def test_what_a_holder_wrote_is_replaced_whole(tmp_path: Path) -> None:
    with FileLock(tmp_path / "lock") as lock:
        lock.write(b"a long line")
        lock.write(b"short")
        assert lock.read(64) == b"short"
        assert lock.read(2) == b"sh"


def test_a_link_is_refused_and_a_folder_can_be_reached_by_one(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    (tmp_path / "lock").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic"):
        FileLock(tmp_path / "lock")
    with pytest.raises(FileNotFoundError):
        FileLock.existing(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()
    with FileLock.of_folder(tmp_path / "link") as one, FileLock.of_folder(tmp_path / "folder") as other:
        assert one.try_lock()
        assert not other.try_lock()


def test_the_holder_is_named_as_the_kernel_knows_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = (
        "import sys, pathlib; from devalloc.file_lock import FileLock\n"
        "lock = FileLock(pathlib.Path(sys.argv[1])); lock.lock(); print('held', flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", holder, str(path)]
    with FileLock(path) as lock:
        assert lock.holder() == "another process"
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            assert lock.holder().startswith(f"process {other.pid} (")
            assert not lock.try_lock()
            other.kill()
        assert lock.lock_within(5, 0.01), "the kernel releases what a killed process held"
        assert f"process {os.getpid()} (" in lock.holder()
