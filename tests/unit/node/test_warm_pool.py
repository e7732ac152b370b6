"""Who has which setup. Here setups are of toy parts; real ones: tests/machine/test_warm_pool.py."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from devalloc_machines.warm import builder
from devalloc_machines.warm.builder import SetupBuilder
from devalloc_machines.warm.pool import Pool
from devalloc_machines.warm.records import SetupRecord, SetupRecords
from devalloc_machines.warm.settings import WarmConfig
from devalloc_machines.warm.setup import NotEnoughSetups, Setup, SetupNotTaken
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError
from tests.support.deadlines import soon
from tests.support.node_errors import raises
from tests.support.toy_setups import BOOT, ToyPart, host, opened


@pytest.fixture
def toy() -> ToyPart:
    return ToyPart()


def broken(setup: Setup) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_those_that_are_ready_go_first_in_first_out_and_then_one_is_made(tmp_path: Path, toy: ToyPart) -> None:
    """Fill(3), then Get four times."""
    with opened(tmp_path, toy, workers=1) as pool:
        pool.fill(3)
        ready = list(toy.there)
        taken = [pool.take("a").setup.id for _ in range(4)]
        assert taken[:3] == ready
        assert taken[3] not in ready
        assert pool.status().ready == 0
        assert [each.setup.id for each in pool.status().taken] == sorted(taken, key=taken.index)


def test_filling_nothing_makes_nothing(tmp_path: Path, toy: ToyPart) -> None:
    with opened(tmp_path, toy) as pool:
        pool.fill(0)
        assert toy.there == []


def test_what_comes_back_comes_back_once(tmp_path: Path, toy: ToyPart) -> None:
    """ReturnByVmid twice: done, then the error that it has no owner."""
    with opened(tmp_path, toy) as pool:
        name = pool.take("a").setup.id
        pool.give_back(name, soon())
        assert toy.there == []
        for unknown in (name, "warm-never", "../../etc", ""):
            with pytest.raises(SetupNotTaken) as refused:
                pool.give_back(unknown, soon())
            assert (refused.value.code, refused.value.retryable) == ("SetupNotTaken", False)
        pool.fill(1)
        with pytest.raises(SetupNotTaken):
            pool.give_back(toy.there[0], soon())  # which is ready, and has no owner


@pytest.mark.parametrize("is_unused", [True, False])
def test_a_machine_in_a_setup_is_a_user_of_it_once_it_has_run(
    tmp_path: Path, toy: ToyPart, monkeypatch: pytest.MonkeyPatch, is_unused: bool
) -> None:
    monkeypatch.setattr(SetupBuilder, "process_of", lambda self, record: 4711)
    monkeypatch.setattr(SetupBuilder, "is_unused", lambda self, record: is_unused)
    monkeypatch.setattr(
        builder, "occupants", lambda setups, own: {s.id: ("process 4711 (qemu)",) for s in setups if s.id not in own}
    )
    with opened(tmp_path, toy) as pool:
        name = pool.take("a").setup.id
        if is_unused:
            pool.give_back(name, Deadline.after(0.0))
        else:
            with raises(Denied, "SetupInUse", retryable=True, match=f"{name} of a is still in use by process 4711"):
                pool.give_back(name, Deadline.after(0.0))
        assert [one.setup.id for one in pool.taken()] == ([] if is_unused else [name])


def test_no_more_than_may_be(tmp_path: Path, toy: ToyPart) -> None:
    with opened(tmp_path, toy, most=3) as pool:
        pool.fill(2)
        with pytest.raises(
            NotEnoughSetups, match="2 more warm setups would make 4, but the maximum is 3: 0 are taken"
        ) as short:
            pool.fill(2)
        assert (short.value.short, short.value.retryable) == ("setups", True)
        assert len(toy.there) == 2, "none was made"
        taken = [pool.take("a") for _ in range(3)]
        with pytest.raises(NotEnoughSetups):
            pool.take("a")
        pool.give_back(taken[0].setup.id, soon())
        pool.take("a")


def test_without_making_on_demand_who_finds_none_is_to_ask_again(tmp_path: Path, toy: ToyPart) -> None:
    with opened(tmp_path, toy, on_demand=False) as pool:
        with pytest.raises(NotEnoughSetups, match="no warm setup is ready; 0 are being created"):
            pool.take("a")
        pool.fill(1)
        pool.take("a")


def test_no_worker_begins_another_setup_after_the_first_error(tmp_path: Path, toy: ToyPart) -> None:
    turns = iter(range(1000))

    def first_fails(setup: Setup) -> None:
        if next(turns) == 0:
            broken(setup)
        time.sleep(0.01)

    toy.making = first_fails
    with opened(tmp_path, toy, workers=2) as pool:
        with pytest.raises(Failed):
            pool.fill(100)
        assert pool.status().ready < 50
        assert pool.status().making == 0


def test_a_machine_that_cannot_wait_is_refused_in_its_words(tmp_path: Path, toy: ToyPart) -> None:
    def nowhere(setup: Setup) -> None:
        raise Denied("PathNotAllowed", "kernel /nope is not below a folder")

    toy.making = nowhere
    with opened(tmp_path, toy) as pool:
        with raises(
            Failed,
            "SetupFailed",
            retryable=False,
            match=r"^cannot create the toy of setup \S+: kernel /nope is not below",
        ):
            pool.take("a")
        assert (pool.status().total, toy.there) == (0, [])


def test_the_first_error_of_filling_is_reported_and_ready_setups_stay(tmp_path: Path, toy: ToyPart) -> None:
    def third_fails(setup: Setup) -> None:
        if len(toy.there) == 2:
            broken(setup)

    toy.making = third_fails
    with opened(tmp_path, toy, workers=1) as pool:
        with raises(
            Failed, "SetupFailed", retryable=True, match=r"cannot create the toy of setup warm-.*: Input/output error$"
        ):
            pool.fill(5)
        status = pool.status()
        assert (status.ready, status.making, status.removing, status.failures) == (2, 0, 0, 1)
        assert "Input/output error" in status.problem
        toy.making = lambda setup: None
        pool.fill(3)
        assert (pool.status().ready, pool.status().problem) == (5, "")


def test_a_network_that_cannot_be_kept_is_a_failure_of_the_pool(
    tmp_path: Path, toy: ToyPart, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep(builder: SetupBuilder) -> None:
        raise Failed("NetworkUnavailable", "the bridge is gone")

    with opened(tmp_path, toy) as pool:
        monkeypatch.setattr(SetupBuilder, "keep_network", keep)
        pool.look()
        assert (pool.status().failures, pool.status().problem) == (1, "the bridge is gone")


def test_setups_are_made_at_the_same_time_and_never_under_the_lock(tmp_path: Path, toy: ToyPart) -> None:
    together = threading.Barrier(3)  # none gets on before three are being made, and the status is asked meanwhile

    def wait(setup: Setup) -> None:
        assert pool.status().making == 3
        together.wait(60)

    toy.making = wait
    with opened(tmp_path, toy, workers=3) as pool:
        pool.fill(3)
        assert pool.status().ready == 3


def test_what_cannot_be_removed_is_not_forgotten_and_takes_its_place(tmp_path: Path, toy: ToyPart) -> None:
    with opened(tmp_path, toy, most=1) as pool:
        name = pool.take("a").setup.id
        toy.removing = broken
        pool.give_back(name, soon())
        assert (pool.status().removing, pool.status().failures) == (1, 1)
        with pytest.raises(NotEnoughSetups, match="1 being removed"):
            pool.take("b")
        toy.removing = lambda setup: None
        pool.look()
        assert pool.status().removing == 0
        assert pool.take("b").setup.id != name


def test_only_a_repeated_request_gets_the_same_setup(tmp_path: Path, toy: ToyPart) -> None:
    with opened(tmp_path, toy) as pool:
        first = pool.take("a", "r1")
        assert pool.take("a", "r1") == first
        others = {pool.take("a", "r2").setup.id, pool.take("b", "r1").setup.id, pool.take("a").setup.id}
        assert len({first.setup.id, *others}) == 4
        pool.give_back(first.setup.id, soon())
        assert pool.take("a", "r1").setup.id != first.setup.id


def test_a_repeated_request_is_busy_while_the_first_is_in_progress(tmp_path: Path, toy: ToyPart) -> None:
    def ask_again(setup: Setup) -> None:
        with raises(Denied, "SetupBusy", retryable=True, match="request r of a is already in progress"):
            pool.take("a", "r")

    toy.making = ask_again
    with opened(tmp_path, toy) as pool:
        first = pool.take("a", "r")
        assert pool.take("a", "r") == first
        assert toy.there == [first.setup.id]


def test_a_setup_that_was_removed_is_not_given_out(tmp_path: Path, toy: ToyPart) -> None:
    with opened(tmp_path, toy, workers=1) as pool:
        pool.fill(3)
        gone, intact, gone_too = list(toy.there)
        toy.there.remove(gone)
        assert pool.take("a").setup.id == intact
        toy.there.remove(gone_too)
        pool.look()
        assert (pool.status().ready, pool.status().removing) == (0, 0)


def test_each_setup_has_a_user_of_its_own_as_long_as_there_are_some(tmp_path: Path, toy: ToyPart) -> None:
    with opened(tmp_path, toy, users=range(7, 9)) as pool:
        first, second = pool.take("a").setup, pool.take("b").setup
        assert [first.user, second.user] == [7, 8]
        with raises(Failed, "NoFreeUser"):
            pool.take("c")
        pool.give_back(first.id, soon())
        assert pool.take("c").setup.user == 7
    with opened(tmp_path, toy, users=range(7, 10)) as pool:
        assert pool.take("d").setup.user == 9, "7 and 8 are those of setups that an earlier plugin gave away"


@pytest.mark.parametrize(
    "error", [PermissionError(errno.EPERM, "Operation not permitted"), OSError(errno.EBUSY, "Busy")]
)
def test_what_the_kernel_does_not_let_be_removed_stays_known(tmp_path: Path, toy: ToyPart, error: OSError) -> None:
    def refuse(setup: Setup) -> None:
        raise error

    toy.removing = refuse
    with opened(tmp_path, toy) as pool:
        name = pool.take("a").setup.id
        pool.give_back(name, soon())
        assert pool.status().removing == 1
    toy.removing = lambda setup: None
    with opened(tmp_path, toy) as pool:
        assert pool.status().total == 0
    assert toy.there == []


def test_without_sight_of_all_processes_there_is_no_pool(tmp_path: Path, toy: ToyPart) -> None:
    config = WarmConfig(run=tmp_path / "run", namespaces=tmp_path / "netns")
    pool = Pool(config, BOOT, parts=[toy], blind=lambda: "only those of this container")
    with raises(Denied, "ProcessesUnseen", match="only those of this container"):
        pool.open()
    with pytest.raises(NotEnoughSetups):
        pool.take("a")
    assert list(tmp_path.iterdir()) == []


def test_a_pool_that_could_not_be_opened_can_be_tried_again(tmp_path: Path, toy: ToyPart) -> None:
    pool = Pool(WarmConfig(run=tmp_path / "run", namespaces=tmp_path / "netns"), BOOT, parts=[toy])
    (tmp_path / "run" / "lock").mkdir(parents=True)
    with pytest.raises(Failed, match="cannot lock"):
        pool.open()
    (tmp_path / "run" / "lock").rmdir()
    records = tmp_path / "run" / "records"

    def unreadable() -> str | None:  # from when the lock is had
        records.rename(tmp_path / "elsewhere")
        return None

    make_folder = pool._records.make_folder
    pool._records.make_folder = lambda: [make_folder(), unreadable()]  # type: ignore[assignment, method-assign]
    with pytest.raises(Failed, match="cannot store records of warm setups"):
        pool.open()
    pool._records.make_folder = make_folder  # type: ignore[method-assign]
    pool.open()
    pool.take("a")
    pool.close(soon())


def test_a_pool_opens_though_it_is_not_seen_now_who_lives_in_what_is_to_go(
    tmp_path: Path, toy: ToyPart, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = WarmConfig(run=tmp_path / "run", namespaces=tmp_path / "netns")
    killed = Pool(config, BOOT, parts=[toy])
    killed.open()
    killed.fill(1)
    assert killed._lock is not None
    killed._lock.close()
    toy.there.clear()  # so that it is not whole
    pool = Pool(config, BOOT, parts=[toy])
    with monkeypatch.context() as blind:

        def unseen(*setups: object) -> dict[str, list[str]]:
            if setups[0]:
                raise Failed("ProcessesUnseen", "out of file descriptors")
            return {}

        blind.setattr("devalloc_machines.warm.builder.occupants", unseen)
        pool.open()
        assert pool.status().removing == 1
    pool.look()
    assert pool.status().total == 0
    pool.close(soon())


def test_machines_of_another_boot_take_nothing_of_the_host(tmp_path: Path, toy: ToyPart) -> None:
    pool = Pool(WarmConfig(run=tmp_path / "run", namespaces=tmp_path / "netns"), BOOT, parts=[toy])
    records = SetupRecords(tmp_path / "run" / "records")
    records.make_folder()
    for name, boot in (("warm-1", BOOT), ("warm-2", "boot-0")):
        records.put(SetupRecord(name, "taken", boot, cpu_milli=1000, memory_bytes=1 << 30))
    assert [use.id for use in pool.uses()] == ["warm-1"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_that_a_setup_is_removed_can_be_written_though_no_space_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    folder, rename = tmp_path / "records", os.rename
    records = SetupRecords(folder)
    records.make_folder()
    spare = tmp_path / "spare"

    def full(source: Path, target: Path) -> None:
        if spare.exists():
            raise OSError(code, os.strerror(code))
        rename(source, target)

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(Failed):
        records.put(SetupRecord("warm-1", "ready", BOOT))
    records.put(SetupRecord("warm-1", "removing", BOOT))
    assert [path.name for path in folder.iterdir()] == ["warm-1.json"]


def test_cpus_that_went_away_meanwhile_are_not_chosen(tmp_path: Path, toy: ToyPart) -> None:
    there = [host({0: "0-1"}), host({0: "0-1"}, usable="1"), host({0: "0-1"})]
    config = WarmConfig(run=tmp_path / "run", namespaces=tmp_path / "netns")
    pool = Pool(config, BOOT, parts=[toy], cpus=lambda: there.pop(0))
    pool.open()
    chosen = [taken.pin.cpus for name in "abc" if (taken := pool.take(name, vcpus=1)).pin is not None]
    assert chosen == [(0,), (1,), (0,)]
    pool.close(soon())


def test_without_a_thread_no_setup_counts_as_being_made(
    tmp_path: Path, toy: ToyPart, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, toy, most=4) as pool:
        with monkeypatch.context() as short:

            def none(self: threading.Thread) -> None:
                raise RuntimeError("can't start new thread")

            short.setattr(threading.Thread, "start", none)
            with pytest.raises(RuntimeError):
                pool.fill(4)
        assert pool.status().making == 0
        pool.fill(4)
        assert pool.status().ready == 4


def test_owners_are_texts_of_a_line(tmp_path: Path, toy: ToyPart) -> None:
    with opened(tmp_path, toy) as pool:
        for owner, request in (("", ""), ("a\nb", ""), ("a" * 401, ""), ("a", "\x1b[2J")):
            with raises(Denied, "OwnerInvalid"):
                pool.take(owner, request)
        assert toy.there == []


def test_cpus_are_chosen_with_the_setup_and_free_again_with_it(tmp_path: Path, toy: ToyPart) -> None:
    with opened(tmp_path, toy, vcpus_per_cpu=1) as pool:
        first = pool.take("a", vcpus=2)
        assert first.pin is not None
        assert (first.pin.cpus, first.pin.nodes) == ((0, 1), (0,))
        second = pool.take("b", vcpus=2, one_node=True)
        assert second.pin is not None
        assert second.pin.cpus == (2, 3)
        assert pool.take("none").pin is None
        with pytest.raises(NotEnoughSetups) as short:
            pool.take("c", vcpus=1)
        assert short.value.short == "cpus"
        with raises(Denied, "CpusTooFew"):
            pool.take("c", vcpus=5)
        pool.give_back(first.setup.id, soon())
        assert pool.take("c", vcpus=1).pin is not None
        assert len(toy.there) == 3, "a caller that gets no CPUs gets no setup"


def test_what_is_taken_is_known_to_the_next_plugin_and_the_rest_is_gone(tmp_path: Path, toy: ToyPart) -> None:
    with opened(tmp_path, toy) as pool:
        pool.fill(3)
        taken = pool.take("a", "r", vcpus=2)
    assert toy.there == [taken.setup.id]
    with opened(tmp_path, toy) as pool:
        assert list(pool.status().taken) == [taken]
        assert pool.take("a", "r") == taken
        pool.give_back(taken.setup.id, soon())
    assert toy.there == []


def test_what_a_killed_plugin_had_ready_is_ready_where_it_is_whole(tmp_path: Path, toy: ToyPart) -> None:
    config = WarmConfig(run=tmp_path / "run", namespaces=tmp_path / "netns")
    killed = Pool(config, BOOT, parts=[toy])
    killed.open()
    killed.fill(3)
    kill(killed)
    broken_one = toy.there.pop()
    with opened(tmp_path, toy) as pool:
        assert pool.status().ready == 2
        assert broken_one not in {pool.take("a").setup.id for _ in range(2)}


def test_of_another_boot_nothing_is_taken_any_more(tmp_path: Path, toy: ToyPart) -> None:
    with opened(tmp_path, toy) as pool:
        pool.take("a")
    with opened(tmp_path, toy, boot="boot-2") as pool:
        assert pool.status().total == 0
    assert list((tmp_path / "run" / "records").iterdir()) == []
    assert len(toy.there) == 1, "what a reboot has ended is not ended again"


def test_an_unreadable_record_stays_with_its_setup(tmp_path: Path, toy: ToyPart) -> None:
    with opened(tmp_path, toy) as pool:
        name = pool.take("a").setup.id
    record = tmp_path / "run" / "records" / f"{name}.json"
    whole = record.read_text()
    partial = json.dumps({"state": "ready", "boot": json.loads(whole)["boot"]})
    for text in ("", "[]", "[" * 30_000, json.dumps({"state": "lost"}), partial, whole.replace("taken", "eaten")):
        record.write_text(text)
        with opened(tmp_path, toy) as pool:
            assert pool.status().total == 0
        assert record.read_text() == text
        assert toy.there == [name]


def test_nothing_is_taken_or_made_while_records_cannot_be_written(tmp_path: Path, toy: ToyPart) -> None:
    with opened(tmp_path, toy) as pool:
        pool.fill(1)
        records = tmp_path / "run" / "records"
        records.rename(tmp_path / "elsewhere")
        for _ in range(2):
            with raises(Failed, "RecordsUnavailable"):
                pool.take("a")
        assert (pool.status().ready, len(pool.status().taken)) == (1, 0)
        with pytest.raises(NodeError):
            pool.fill(1)
        assert len(toy.there) == 1
        (tmp_path / "elsewhere").rename(records)
        pool.take("a")


def test_a_closed_pool_gives_and_takes_nothing(tmp_path: Path, toy: ToyPart) -> None:
    with opened(tmp_path, toy) as pool:
        pool.fill(1)
    for ask in (lambda: pool.take("a"), lambda: pool.fill(1), lambda: pool.give_back("x", soon())):
        with pytest.raises(NotEnoughSetups) as short:
            ask()
        assert short.value.short == "pool"


def test_many_at_once_never_have_one_setup_and_never_more_than_may_be(tmp_path: Path, toy: ToyPart) -> None:
    """Eight threads take and give back; a set of those in use is kept beside the pool."""
    using: set[str] = set()
    wrong: list[str] = []
    guard = threading.Lock()

    def work() -> None:
        for _ in range(15):
            try:
                name = pool.take("a").setup.id
            except NotEnoughSetups:
                continue
            with guard:
                if name in using or pool.status().total > 5:
                    wrong.append(name)
                using.add(name)
            with guard:
                using.discard(name)
            pool.give_back(name, soon())

    with opened(tmp_path, toy, most=5) as pool:
        pool.fill(3)
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert pool.status().making == 0
        assert len(toy.there) == pool.status().ready
    assert toy.there == []


@pytest.mark.parametrize(
    "wrong", [{"target": 5, "most": 4}, {"target": -1}, {"workers": 0}, {"vcpus_per_cpu": 0}, {"prefix": "a" * 50}]
)
def test_words_of_an_admin_that_make_no_sense(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"\d"):
        WarmConfig(**wrong)  # type: ignore[arg-type]
    with pytest.raises(Denied):
        WarmConfig(prefix="../up")


def kill(pool: Pool) -> None:
    """What becomes of its lock when its process is killed."""
    assert pool._lock is not None
    pool._lock.close()


def test_answers_of_take_and_return_hold_while_the_pool_closes(tmp_path: Path, toy: ToyPart) -> None:
    """Ten times: four threads, each of which knows what it has, and a pool that ends in the middle of it."""
    guard = threading.Lock()
    for round_ in range(10):
        had: set[str] = set()
        with opened(tmp_path, toy, target=2) as pool:

            def work(pool: Pool = pool, had: set[str] = had) -> None:
                with suppress(NotEnoughSetups):
                    while True:
                        name = pool.take("a").setup.id
                        with guard:
                            had.add(name)
                        if int(name[-1], 16) % 4:
                            with guard:
                                had.discard(name)
                            try:
                                pool.give_back(name, soon())
                            except NotEnoughSetups:
                                with guard:
                                    had.add(name)
                                raise

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            time.sleep(0.002 * round_)
            pool.close(soon())
            for thread in threads:
                thread.join()
            assert pool._pool_state.is_quiet
        with opened(tmp_path, toy) as pool:
            assert {taken.setup.id for taken in pool.taken()} == had == set(toy.there)
            for name in had:
                pool.give_back(name, soon())
        assert toy.there == []
