"""Must show: on a host with a full disk, machines and claims can still be ended, and nothing is lost."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from devalloc.store import (
    AlreadyExists,
    Change,
    Conflict,
    Key,
    NoSpace,
    NotFound,
    SkippedForSpace,
    StoreError,
    Unavailable,
    database,
)
from devalloc.store.sqlite import SQLiteStore
from devalloc_node.errors import Failed
from tests.support.deadlines import soon
from tests.support.fleet_manifests import gpu_claim, gpu_class, gpu_pool
from tests.support.images import Image
from tests.support.machine_allocator import machine_allocator
from tests.support.machines import config, ended, plugin, short_folder, virtual_machine
from tests.support.minimal_manifests import claim
from tests.support.node_errors import raises
from tests.support.qemu import QUICK_BOOT
from tests.support.toy_host import EngineBench

SIZE = b"size=6m"
FILLER = "filler"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")


@pytest.fixture
def disk() -> Iterator[Path]:
    """A small file system of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    with short_folder() as folder:
        assert libc.mount(b"none", str(folder).encode(), b"tmpfs", 0, SIZE) == 0, os.strerror(ctypes.get_errno())
        try:
            os.chmod(folder, 0o711)
            yield folder
        finally:
            assert libc.umount2(str(folder).encode(), 2) == 0  # MNT_DETACH: whatever the test has open


def fill(disk: Path) -> None:
    """To the last byte."""
    with suppress(OSError), (disk / FILLER).open("ab", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    assert os.statvfs(disk).f_bfree == 0


def make_room(disk: Path) -> None:
    (disk / FILLER).unlink()


def filling(disk: Path, left: Iterator[int], write: Callable[..., Any]) -> Callable[..., Any]:
    """Fills the disk first, when nothing is ``left``."""

    def filled(*arguments: Any) -> Any:
        if next(left, None) is None:
            fill(disk)
        return write(*arguments)

    return filled


class TestClaims:
    def test_claims_are_ended_and_none_is_begun(self, disk: Path) -> None:
        bench = EngineBench(disk / "state", slots=200)
        refs = [bench.add(f"a/slot-{number}") for number in range(200)]
        for ref in refs[:6]:
            bench.claims.prepare(ref)
        fill(disk)

        def prepare_all() -> None:
            for ref in refs[6:]:  # some fit into the file of the log, which SQLite writes over
                bench.claims.prepare(ref)

        with raises(Failed, "JournalUnavailable", retryable=True, match="no space left for the journal") as refused:
            prepare_all()
        assert "Claims can still be unprepared and machines stopped" in str(refused.value)
        assert f"Free at least 1 MiB on the file system of {disk / 'state'}" in str(refused.value)
        whole = [prepared.ref for prepared in bench.claims.prepared()]
        assert len(whole) == len(bench.journal.claims()), "nothing is half prepared"
        for ref in whole[:3]:
            bench.claims.unprepare(ref)
            before = dict(bench.host.state)
            with pytest.raises(Failed, match="no space left"):  # nor with what ending others gives back
                bench.claims.prepare(refs[-1])
            assert bench.host.state == before
            fill(disk)
        bench.restart()
        assert [prepared.ref for prepared in bench.claims.prepared()] == whole[3:]
        for ref in whole[3:]:
            bench.claims.unprepare(ref)
            fill(disk)
        assert bench.is_initial()

        make_room(disk)
        bench.claims.prepare(refs[0])
        assert (disk / "state" / "journal.db.reserve").stat().st_size == database.RESERVE_BYTES

    def test_a_prepare_that_the_disk_fills_up_under_is_undone(
        self, disk: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """At each of its writes."""
        bench = EngineBench(disk / "state")
        refused = 0
        for writes in range(1, 6):
            bench.journal.close()  # type: ignore[attr-defined]
            bench.restart()  # with an empty log
            ref = bench.add("a/slot-0")
            with monkeypatch.context() as patched:
                left = iter(range(1, writes))
                for name in ("begin", "intend", "finish"):
                    patched.setattr(bench.journal, name, filling(disk, left, getattr(bench.journal, name)))
                try:
                    bench.claims.prepare(ref)
                except Failed:
                    refused += 1
                else:
                    bench.claims.unprepare(ref)
            assert bench.is_initial(), (writes, bench.host.state)
            (disk / FILLER).unlink(missing_ok=True)
            bench.claims.prepare(ref)
            bench.claims.unprepare(ref)
        assert refused >= 3

    def test_a_plugin_starts_on_a_full_disk_and_ends_what_the_one_before_left(self, disk: Path) -> None:
        bench = EngineBench(disk / "state")
        ref = bench.add("a/slot-0")
        bench.claims.prepare(ref)
        bench.journal.close()  # type: ignore[attr-defined]
        assert not list((disk / "state").glob("*-wal")), "it has to be made again"
        fill(disk)
        bench.restart()
        bench.claims.unprepare(ref)
        assert bench.is_initial()

    def test_everything_of_a_busy_node_can_be_ended_with_one_reserve(self, disk: Path) -> None:
        """The log of the journal is written to the database again and again, where nothing new takes space."""
        bench = EngineBench(disk / "state", slots=200)
        refs = [bench.add(f"a/slot-{number}") for number in range(200)]
        for ref in refs:
            bench.claims.prepare(ref)
        for ref in refs:
            fill(disk)
            bench.claims.unprepare(ref)
        assert bench.is_initial()


class TestStore:
    def test_objects_are_deleted_and_none_is_made(self, disk: Path) -> None:
        store = SQLiteStore(disk / "devalloc.db")
        for number in range(40):
            store.create(claim(f"c{number}", annotations={"text": "x" * 2000}))
        for number in range(40):
            fill(disk)
            with pytest.raises(Unavailable, match=r"no space left for the store .*Objects can still be deleted"):
                store.create(claim("new"))
            old = store.get("DeviceClaim", "default", f"c{number}")
            old["metadata"]["annotations"]["more"] = "x" * 2000
            with pytest.raises(Unavailable, match="no space left"):
                store.replace(old)
            del old["metadata"]["annotations"]["more"]
            old["metadata"]["annotations"]["text"] = "y"
            old["metadata"]["finalizers"] = ["devalloc.io/test"]
            held = store.replace(old)
            marked = store.delete("DeviceClaim", "default", f"c{number}")
            assert marked["metadata"]["deletionTimestamp"]
            assert int(marked["metadata"]["resourceVersion"]) == 1 + int(held["metadata"]["resourceVersion"])
            store.replace({**marked, "metadata": {**marked["metadata"], "finalizers": []}})
            with pytest.raises(NotFound):
                store.get("DeviceClaim", "default", f"c{number}")
        assert store.list("DeviceClaim").objects == []
        assert store.check() == []

        make_room(disk)
        store.create(claim("after"))
        with pytest.raises(AlreadyExists):
            store.create(claim("after"))
        assert (disk / "devalloc.db.reserve").stat().st_size == database.RESERVE_BYTES

    def test_what_takes_back_is_written_though_what_gives_is_refused(self, disk: Path) -> None:
        """In one round of the allocator: a claim that fits must not keep others from being taken back."""
        store = SQLiteStore(disk / "devalloc.db")
        held = {"allocations": [{"text": "x" * 2000}]}
        for name in ("back", "new", "more"):
            store.create(claim(name))
        back = store.replace_status({**store.get("DeviceClaim", "default", "back"), "status": held})
        fill(disk)

        def change(name: str, status: dict[str, Any] | None) -> list[Change]:
            obj = back if name == "back" else store.get("DeviceClaim", "default", name)
            return [Change(Key.of(obj), obj["metadata"]["resourceVersion"], status)]

        units = [change("new", held), change("back", None), change("more", held)]
        outcomes = store.commit_each(units)

        assert [isinstance(outcome, SkippedForSpace) for outcome in outcomes] == [True, False, True]
        assert "no space left" in outcomes[0].why
        assert [store.get("DeviceClaim", "default", name).get("status") for name in ("new", "back")] == [None, None]
        assert store.check() == []
        make_room(disk)
        assert not any(isinstance(outcome, Conflict) for outcome in store.commit_each([units[0], units[2]]))

    def test_claims_refused_by_a_full_disk_are_answered_once_there_is_space(self, disk: Path) -> None:
        """In the round after, not after a pause as for what a store refuses whatever the disk."""
        store = SQLiteStore(disk / "devalloc.db")
        for obj in (gpu_pool(devices=8), gpu_class(), *(gpu_claim(f"c{number}") for number in range(8))):
            store.create(obj)
        allocator = machine_allocator(store)
        fill(disk)
        for _ in range(3):
            with pytest.raises(NoSpace, match="no space left"):
                allocator.round()

        make_room(disk)
        assert len(allocator.round().granted) == 8

    def test_another_process_deletes_too_and_needs_no_file_that_is_there(self, disk: Path) -> None:
        path = disk / "devalloc.db"

        def devalloc(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-m", "devalloc", *words, "--store", str(path)],
                input=stdin, capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip

        with closing(SQLiteStore(path)) as store:
            store.create(claim("one"))
            store.create(claim("two"))
        fill(disk)
        assert devalloc("delete", "deviceclaim", "one").returncode == 0
        fill(disk)
        refused = devalloc("apply", "-f", "-", stdin=json.dumps(claim("three")))
        assert (refused.returncode != 0, "Traceback" in refused.stderr) == (True, False)
        assert "no space left for the store" in refused.stderr
        make_room(disk)
        assert devalloc("apply", "-f", "-", stdin=json.dumps(claim("three"))).returncode == 0
        with closing(SQLiteStore(path)) as store:
            names = [obj["metadata"]["name"] for obj in store.list("DeviceClaim").objects]
            assert (names, store.check()) == (["three", "two"], [])

    def test_an_error_says_that_the_reserve_is_used_up(self, disk: Path) -> None:
        store = SQLiteStore(disk / "devalloc.db")
        store.create(claim("c"))
        (disk / "devalloc.db.reserve").unlink()
        fill(disk)
        with pytest.raises(StoreError, match=r"Its reserve .*devalloc.db.reserve is used up"):
            store.delete("DeviceClaim", "default", "c")
        make_room(disk)
        store.delete("DeviceClaim", "default", "c")
        assert store.check() == []


def test_a_machine_is_stopped_and_forgotten_and_none_is_started(micro: Image, disk: Path) -> None:
    settings = config(micro, disk)
    start = {"kernel": str(micro.kernel), "initrd": str(micro.initrd), "append": f"quiet console=ttyS0 {QUICK_BOOT}"}
    memory = {"min": "128Mi", "max": "128Mi"}
    with ended(settings), plugin(settings) as machines:
        machines.start(virtual_machine("m", start=start, memory=memory), soon())
        machines.resume("default/m", soon())
        fill(disk)
        with raises(Failed, "JournalUnavailable", match="no space left for the journal"):
            machines.start(virtual_machine("other", start=start, memory=memory), soon())
        machines.stop("default/m", 0, True, soon())
        fill(disk)
        machines.forget("default/m", soon())
        assert machines.get("default/m") is None
        make_room(disk)
        machines.start(virtual_machine("other", start=start, memory=memory), soon())
        machines.stop("default/other", 0, True, soon())
        machines.forget("default/other", soon())
