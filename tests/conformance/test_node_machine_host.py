"""What machines need of this host: processes that are what they were, locks that tell life, shares of CPU time."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from devalloc_machines.qemu import confinement, launch, machine_files, preflight, spawn
from devalloc_machines.qemu.confinement import seen_by_program
from devalloc_machines.qemu.exits import ExitWatcher
from devalloc_machines.qemu.process import Process, alive, kill, memlock_of, open_nodes, pidfd, process, wait
from devalloc_machines.qemu.records import MachineRecord
from devalloc_machines.qemu.settings import AllowedFolder, MachineConfig
from devalloc_machines.qemu.spec import machine_id
from devalloc_node.errors import Denied, Failed, Unknown
from tests.support.machines import (
    virtual_machine,
)
from tests.support.node_errors import raises
from tests.support.waiting import until


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "60"])
    yield child
    child.kill()
    child.wait()


# Processes.


def test_a_process_is_its_number_and_its_start(sleeper: subprocess.Popen[bytes]) -> None:
    running = process(sleeper.pid)
    assert running is not None
    assert alive(running)
    other = Process(running.pid, running.started + 1)
    assert not alive(other), "another process that got the same number"
    assert pidfd(other) is None
    kill(other, signal.SIGKILL)
    assert alive(running)
    assert not wait(running, 0.01)
    kill(running, signal.SIGKILL)
    assert wait(running, 10)
    assert process(sleeper.pid) is None, "ended, though its parent has not collected it"
    assert wait(running, 0)


@pytest.mark.parametrize("call", ["pidfd_open", "read_bytes"])
def test_out_of_descriptors_no_machine_counts_as_ended(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Of a machine that only seems to have ended the devices would be taken, and given to another."""
    running = process(sleeper.pid)
    assert running is not None

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(*((os, call) if call == "pidfd_open" else (Path, call)), refuse)
    with pytest.raises(Failed, match="Too many open files"):
        wait(running, 0)
    with pytest.raises(Failed):
        kill(running, signal.SIGKILL)


def test_nor_is_one_taken_to_hold_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = MachineConfig(state=tmp_path / "state", run=tmp_path / "run")

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", refuse)
        with pytest.raises(Failed, match="Too many open files"):
            open_nodes(os.getpid(), ["/dev/vfio/1"])
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(Failed, match="Too many open files"):
            machine_files.process_of("m", config)


def test_each_end_of_a_process_is_reported_once_and_at_once_if_it_has_ended(sleeper: subprocess.Popen[bytes]) -> None:
    names: list[str] = []
    with_status: list[bool] = []
    heard = threading.Event()
    files = len(os.listdir("/proc/self/fd"))

    def ended(name: str, fd: int | None) -> None:
        names.append(name)
        with_status.append(fd is not None)
        heard.set()
        raise RuntimeError("a listener may fail")

    deaths = ExitWatcher(ended)
    running = process(sleeper.pid)
    assert running is not None
    deaths.watch("a", running)
    deaths.watch("a", running)
    deaths.watch("left", running)
    deaths.leave("left")
    assert names == []
    sleeper.kill()
    assert heard.wait(60)
    deaths.watch("late", running)
    deaths.close()
    deaths.watch("after the end", running)  # by a thread that was late, which does no harm
    assert names == ["a", "late"]
    assert with_status == [True, False], "how one ended can be read, if it was watched before"
    assert len(os.listdir("/proc/self/fd")) == files


def test_what_a_process_has_open_is_seen(tmp_path: Path) -> None:
    node = tmp_path / "vfio"
    node.touch()
    assert open_nodes(os.getpid(), [str(node)]) == []
    with node.open("rb"):
        assert open_nodes(os.getpid(), [str(node), "/dev/vfio/1"]) == [str(node)]
        node.unlink()
        assert open_nodes(os.getpid(), [str(node)]) == [str(node)], "also when it is gone from its folder"
    assert open_nodes(2**22 + 1, [str(node)]) == []


@pytest.mark.parametrize(
    ("line", "limit"),
    [
        ("Max locked memory         8388608              8388608              bytes     ", 8388608),
        ("Max locked memory         unlimited            unlimited            bytes     ", None),
        ("Max cpu time              unlimited            unlimited            seconds   ", 0),
    ],
)
def test_the_limit_of_locked_memory(line: str, limit: int | None) -> None:
    assert memlock_of(f"Limit Soft Hard Units\n{line}\n") == limit


# Life.


def plan(config: MachineConfig, argv: list[str], **other: object) -> Path:
    config.state.mkdir(parents=True, exist_ok=True)
    folder = config.run / "m"
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "argv": argv,
        "life": str(config.life("m")),
        "folder": str(folder),
        "uid": None,
        "groups": [],
        "memlock": 1 << 30,
        "cgroups": [],
        "files": {},
        "taps": {},
        **other,
    }
    file = config.state / "m.start"
    file.write_text(json.dumps(content))
    return file


def spawned(file: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-I", str(Path(spawn.__file__)), str(file), "--detach"]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


def test_a_machine_has_no_parent_and_its_lock_shows_that_it_lives(tmp_path: Path) -> None:
    config = MachineConfig(state=tmp_path / "state", run=tmp_path / "run")
    disk = tmp_path / "disk"
    disk.write_text("content of the disk")
    script = "cat /dev/fd/100; echo $PWD; ulimit -c; exec sleep 60"
    file = plan(config, ["/bin/sh", "-c", script], files={"100": [str(disk), False]})
    assert machine_files.process_of("m", config) is None
    assert spawned(file).returncode == 0
    running = machine_files.process_of("m", config)
    assert running is not None
    try:
        stat = Path(f"/proc/{running.pid}/stat").read_text().rpartition(")")[2].split()
        assert int(stat[1]) != os.getpid()
        assert int(stat[3]) == running.pid, "it leads a session of its own"
        log = config.run / "m" / "qemu.log"
        words = f"content of the disk{config.run}/m\n0\n"
        until(lambda: log.read_text() == words, "it says so", context=log.read_text)
        assert spawned(file).returncode == spawn.LIVES, "there is never a second one"
        assert machine_files.process_of("m", config) == running
    finally:
        kill(running, signal.SIGKILL)
    assert wait(running, 60)
    assert machine_files.process_of("m", config) is None
    assert machine_files.last_words(config, "m").startswith("content of the disk")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have other files seen")
@pytest.mark.parametrize("refused", [False, True])
def test_a_machine_sees_what_it_needs_and_all_with_a_word_where_the_kernel_refuses(
    tmp_path: Path, refused: bool
) -> None:
    config = MachineConfig(state=tmp_path / "state", run=tmp_path / "run")
    (tmp_path / "kernel").write_text("of the guest")
    (tmp_path / "secret").write_text("of another one")
    folder = config.run / "m"
    script = f"cat {tmp_path}/kernel; ls {tmp_path}; echo x >> {tmp_path}/kernel; echo x > here; exec sleep 60"
    folder.mkdir(parents=True)
    sees = seen_by_program("/bin/sh", [str(tmp_path / "kernel")], folder)
    file = plan(config, ["/bin/sh", "-c", script], sees=sees)
    words = [sys.executable, "-I", str(Path(spawn.__file__)), str(file), "--detach"]
    if refused:  # as in a container: without CAP_SYS_ADMIN
        drop = "import ctypes,os,sys;ctypes.CDLL(None).prctl(24,21,0,0,0);os.execv(sys.argv[1],sys.argv[1:])"
        words = [sys.executable, "-I", "-c", drop, *words]
    assert subprocess.run(words, capture_output=True, timeout=120, check=False).returncode == 0
    running = machine_files.process_of("m", config)
    assert running is not None
    try:
        until(lambda: (folder / "here").exists(), "it writes in its folder, which is the host's")
        words = (folder / "qemu.log").read_text()
        if refused:
            assert "it cannot be confined: [Errno 1] unshare: Operation not permitted" in words
            assert "secret" in words
        else:
            assert words.startswith("of the guestkernel\nrun\n")
            assert (tmp_path / "kernel").read_text() == "of the guest", "it may read that"
    finally:
        kill(running, signal.SIGKILL)
    assert wait(running, 60)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["kernel", "run", "secret", "state"]
    assert sorted(each.name for each in config.state.iterdir()) == ["m.life", "m.start"], "nothing of it is left there"


def test_a_machine_runs_on_the_cpus_it_is_pinned_to_or_not_at_all(tmp_path: Path) -> None:
    config = MachineConfig(state=tmp_path / "state", run=tmp_path / "run")
    cpu = max(os.sched_getaffinity(0))
    gone = 1 + max(os.sched_getaffinity(1))  # as one that was taken away after it was chosen
    offline = f"CPUs [{gone}]: they went offline meanwhile"
    for cpus, words in ([gone], "none of them is available now"), ([cpu, gone], offline):
        refused = spawned(plan(config, ["/bin/sh", "-c", "exec sleep 60"], cpus=cpus))
        assert (refused.returncode, words in refused.stderr) == (spawn.FAILED, True), refused.stderr
        assert machine_files.process_of("m", config) is None
    assert spawned(plan(config, ["/bin/sh", "-c", "exec sleep 60"], cpus=[cpu])).returncode == 0
    running = machine_files.process_of("m", config)
    assert running is not None
    try:
        assert os.sched_getaffinity(running.pid) == {cpu}
    finally:
        kill(running, signal.SIGKILL)
    assert wait(running, 60)


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemd-run that comes back before what it starts has begun, as for services of type exec."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "systemd-run"
    program.write_text(
        '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift\n(sleep 0.3; exec "$@") >/dev/null 2>&1 &\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder


def started_by_systemd(tmp_path: Path, program: str) -> MachineConfig:
    """A machine that was launched; ``program`` is what QEMU does."""
    kernel, qemu = tmp_path / "kernel", tmp_path / "qemu"
    kernel.touch()
    qemu.write_text(f"#!/bin/sh\n{program}\n")
    qemu.chmod(0o755)
    config = MachineConfig(
        state=tmp_path / "state",
        run=tmp_path / "run",
        binary=str(qemu),
        folders=(AllowedFolder(tmp_path, "any"),),
        systemd=True,
        cgroups=tmp_path,
    )
    machine = virtual_machine("m", start={"kernel": str(kernel)})
    record = MachineRecord(machine.to_manifest(), "starting", "run", cpus_left=None)
    launch.launch(record.spec, config, launch.LaunchOptions(record, "tcg"))
    assert launch.record_at_launch(machine, config) == record
    return config


M = machine_id("default/m")


def test_a_machine_that_systemd_starts_lives_when_it_is_started(tmp_path: Path, systemd: Path) -> None:
    for _ in range(2):  # what the first run left says nothing of the second
        config = started_by_systemd(tmp_path, "echo words; exec sleep 60")
        running = machine_files.process_of(M, config)
        assert running is not None
        until(lambda of=config: machine_files.last_words(of, M) == "words", "it says something")  # type: ignore[misc]
        kill(running, signal.SIGKILL)
        assert wait(running, 60)
    assert machine_files.last_words(config, M, "qemu.log.1") == "words", "what it said in the run before is kept"


def test_the_output_of_a_failed_systemd_start_is_the_reason(tmp_path: Path, systemd: Path) -> None:
    config = started_by_systemd(tmp_path, "echo no such device; exit 1")
    until(
        lambda: machine_files.process_of(M, config) is None and machine_files.last_words(config, M) == "no such device",
        "it says why",
        10,
    )


def test_an_error_before_qemu_starts_is_the_reason(tmp_path: Path) -> None:
    config = MachineConfig(state=tmp_path / "state", run=tmp_path / "run")
    file = plan(config, ["/bin/true"], files={"100": ["/no/such/disk", True]})
    words = [sys.executable, "-I", str(Path(spawn.__file__)), str(file)]
    assert subprocess.run(words, capture_output=True, timeout=120, check=False).returncode == spawn.FAILED
    assert "/no/such/disk" in machine_files.last_words(config, "m")


def test_a_machine_cannot_say_that_it_is_another_process(tmp_path: Path) -> None:
    config = MachineConfig(state=tmp_path / "state", run=tmp_path / "run")
    life = config.life("m")
    assert spawned(plan(config, ["/bin/sleep", "60"])).returncode == 0
    running = machine_files.process_of("m", config)
    assert running is not None
    try:
        folder = Path(f"/proc/{running.pid}")
        (number,) = [fd.name for fd in (folder / "fd").iterdir() if os.path.realpath(fd) == str(life)]
        flags = int((folder / "fdinfo" / number).read_text().split("flags:")[1].split()[0], 8)
        assert flags & os.O_ACCMODE == os.O_RDONLY, "plugin and root trust what is written there"
    finally:
        kill(running, signal.SIGKILL)


def test_a_folder_that_became_a_link_leads_nowhere(tmp_path: Path) -> None:
    config = MachineConfig(state=tmp_path / "state", run=tmp_path / "run")
    images, secrets = tmp_path / "images", tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "disk").touch()
    images.symlink_to(secrets)  # after it was checked
    done = spawned(plan(config, ["/bin/sleep", "60"], files={"100": [str(images / "disk"), True]}))
    assert done.returncode == spawn.FAILED
    assert f"{images}/disk is {secrets}/disk now" in done.stderr
    assert machine_files.process_of("m", config) is None


def test_asking_whether_a_machine_lives_does_not_keep_it_from_starting(tmp_path: Path) -> None:
    config = MachineConfig(state=tmp_path / "state", run=tmp_path / "run")
    file = plan(config, ["/bin/sleep", "60"])
    with config.life("m").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        threading.Timer(0.3, fcntl.flock, [lock, fcntl.LOCK_UN]).start()
        assert spawned(file).returncode == 0
        running = machine_files.process_of("m", config)
    assert running is not None
    kill(running, signal.SIGKILL)


@pytest.mark.parametrize(
    "broken",
    [
        {"argv": ["/no/such/qemu"]},
        {"folder": "/no/such/folder"},
        {"files": {"100": ["/no/such/disk", True]}},
        {"cgroups": ["/no/such/cgroup.procs"]},
    ],
)
def test_a_failed_start_reports_its_cause_and_leaves_no_process(tmp_path: Path, broken: dict[str, object]) -> None:
    config = MachineConfig(state=tmp_path / "state", run=tmp_path / "run")
    done = spawned(plan(config, **{"argv": ["/bin/true"], **broken}))  # type: ignore[arg-type]
    assert done.returncode == spawn.FAILED
    assert "/no/such" in done.stderr
    assert machine_files.process_of("m", config) is None


def test_a_machine_that_lives_without_a_recorded_process_is_unknown(tmp_path: Path) -> None:
    config = MachineConfig(state=tmp_path / "state", run=tmp_path / "run")
    config.state.mkdir()
    with config.life("m").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(Unknown):
            machine_files.process_of("m", config, 0.1)


def test_a_machine_has_ended_when_its_process_has_and_not_when_its_lock_is_free(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    """The kernel may take seconds to let go of devices, and a guest that took QEMU over could let go of the lock."""
    config = MachineConfig(state=tmp_path / "state", run=tmp_path / "run")
    config.state.mkdir()
    there = process(sleeper.pid)
    assert there is not None
    config.life("m").write_text(f"{there.pid} {there.started}\n")
    assert machine_files.process_of("m", config) == there
    before_the_boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) - 60
    os.utime(config.life("m"), (before_the_boot, before_the_boot))
    assert machine_files.process_of("m", config) is None, "another process that has the same number after a reboot"
    os.utime(config.life("m"))
    sleeper.kill()
    sleeper.wait()
    assert machine_files.process_of("m", config) is None


def test_last_words_are_one_bounded_line_and_no_link_is_followed(tmp_path: Path) -> None:
    config = MachineConfig(state=tmp_path / "state", run=tmp_path / "run", log_bytes=1000)
    folder = config.run / "m"
    folder.mkdir(parents=True)
    log = folder / "qemu.log"
    log.write_bytes(b"x" * 10_000 + b"\nfirst\x1b[31m\x00\nlast\n")
    words = machine_files.last_words(config, "m")
    assert words.endswith("first / [31m / last")
    assert len(words) < 2100
    machine_files.trim(config, "m")
    assert log.stat().st_size == 0
    log.unlink()
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret" * 1000)
    log.symlink_to(secret)
    assert machine_files.last_words(config, "m") == ""
    machine_files.trim(config, "m")
    assert secret.stat().st_size == 6000
    log.unlink()
    os.mkfifo(log)
    assert machine_files.last_words(config, "m") == ""


# Shares of CPU time (T19).


def fake_group(root: Path, version: int) -> confinement.CpuGroup:
    """The files that the kernel would make in a new cgroup."""
    top = root if version == 2 else root / "cpu"
    folder = top / "devalloc" / "m"
    folder.mkdir(parents=True)
    for parent in (top, top / "devalloc"):
        (parent / "cgroup.procs").touch()
        (parent / "cgroup.subtree_control").write_text("cpu memory\n" if version == 2 else "")
    if version == 2:
        (root / "cgroup.controllers").write_text("cpu memory\n")
        (folder / "cpu.max").write_text("max 100000\n")
    else:
        (folder / "cpu.cfs_period_us").write_text("50000\n")
        (folder / "cpu.cfs_quota_us").write_text("-1\n")
    return confinement.make_group(root, "m")


@pytest.mark.parametrize("version", [1, 2])
def test_memory_and_threads_are_bounded_in_both_versions(tmp_path: Path, version: int) -> None:
    fake_group(tmp_path, version)
    files = {1: ("memory/devalloc/m/memory.limit_in_bytes", "pids/devalloc/m/pids.max")}
    memory, pids = (tmp_path / each for each in files.get(version, ("devalloc/m/memory.max", "devalloc/m/pids.max")))
    if version == 2:
        for text in (tmp_path / "cgroup.controllers", *tmp_path.glob("**/cgroup.subtree_control")):
            text.write_text("cpu memory pids\n")
    for file in (memory, pids):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("max\n" if version == 2 or file == pids else "9223372036854771712\n")
        (tmp_path / file.relative_to(tmp_path).parts[0] / "cgroup.procs").touch()
    procs, missing = confinement.set_bounds(tmp_path, "m", confinement.QemuLimits(5 << 30, 300))
    assert missing == []
    assert (memory.read_text(), pids.read_text()) == (str(5 << 30), "300")
    assert procs == list(dict.fromkeys([memory.parent / "cgroup.procs", pids.parent / "cgroup.procs"]))


def test_bounds_that_a_host_lacks_are_listed_and_the_rest_is_set(tmp_path: Path) -> None:
    fake_group(tmp_path, 2)
    (tmp_path / "devalloc/m/memory.max").write_text("max\n")
    limits = confinement.QemuLimits(1 << 30, 300)
    procs, missing = confinement.set_bounds(tmp_path, "m", limits)
    assert (procs, missing) == (
        [tmp_path / "devalloc/m/cgroup.procs"],
        ["pids: the kernel does not offer that controller there"],
    )
    assert (tmp_path / "devalloc/m/memory.max").read_text() == str(1 << 30)
    _, missing = confinement.set_bounds(tmp_path, "m", replace(limits, huge_page_bytes=2 << 20))
    assert missing[1:] == ["hugetlb: the kernel does not offer that controller there"], "only if it has such pages"


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("size", [None, 2 << 20, 1 << 30])
def test_a_machine_gets_its_own_huge_pages_and_none_of_another_size(
    tmp_path: Path, version: int, size: int | None
) -> None:
    fake_group(tmp_path, version)
    folder = tmp_path / ("devalloc/m" if version == 2 else "hugetlb/devalloc/m")
    folder.mkdir(parents=True, exist_ok=True)
    (tmp_path / folder.relative_to(tmp_path).parts[0] / "cgroup.procs").touch()
    if version == 2:
        for text in (tmp_path / "cgroup.controllers", *tmp_path.glob("**/cgroup.subtree_control")):
            text.write_text("cpu hugetlb\n")
    word = "max" if version == 2 else "limit_in_bytes"
    names = [f"hugetlb.{page}.{kind}{word}" for page in ("2MB", "1GB") for kind in ("", "rsvd.")]
    for name in (*names, "hugetlb.2MB.events", "hugetlb.2MB.usage_in_bytes"):
        (folder / name).write_text("max\n")
    most = 8 << 30 if size else 0
    procs, _ = confinement.set_bounds(tmp_path, "m", confinement.QemuLimits(1, 1, size, most))
    assert folder / "cgroup.procs" in procs
    own = {2 << 20: "2MB", 1 << 30: "1GB"}.get(size or 0, "none")
    assert {name: (folder / name).read_text() for name in names} == {
        name: str(most) if own in name else "0" for name in names
    }
    assert (folder / "hugetlb.2MB.events").read_text() == "max\n"


@pytest.mark.parametrize("version", [1, 2])
def test_a_part_of_a_cpu_is_written_and_read_back_in_both_versions(tmp_path: Path, version: int) -> None:
    group = fake_group(tmp_path, version)
    assert group.version == version
    assert confinement.limit_of(group) is None
    for share in (1500, 250, 12_000, None, 1, 999):
        confinement.limit(group, share)
        assert confinement.limit_of(group) == (None if share is None else max(share, confinement.LEAST))
    file = "cpu.max" if version == 2 else "cpu.cfs_quota_us"
    assert (group.folder / file).read_text() == ("99900 100000" if version == 2 else "99900")


def test_a_host_without_the_controller_says_so(tmp_path: Path) -> None:
    with raises(Failed, "CgroupUnavailable", retryable=False):
        confinement.make_group(tmp_path, "m")
    with pytest.raises(Failed):
        confinement.limit(confinement.CpuGroup(2, tmp_path), 500)
    assert list(tmp_path.iterdir()) == [], "the kernel makes these files, not we"


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        ("9:name=systemd:/x\n1:cpu:/devalloc/m\n0::/\n", "cpu/devalloc/m"),
        ("4:cpu,cpuacct:/devalloc/m\n", "cpu,cpuacct/devalloc/m"),
        ("0::/devalloc/m\n", "devalloc/m"),
        ("1:cpu:/\n0::/\n", None),
        ("0::/../outside\n", None),
        ("", None),
    ],
)
def test_the_cgroup_of_a_process_counts_unless_it_is_shared(tmp_path: Path, text: str, folder: str | None) -> None:
    root, proc = tmp_path / "cgroup", tmp_path / "proc"
    for name in ("cpu/devalloc/m", "cpu,cpuacct/devalloc/m", "devalloc/m"):
        (root / name).mkdir(parents=True)
    (root / "devalloc/m/cpu.max").touch()
    (proc / "7").mkdir(parents=True)
    (proc / "7/cgroup").write_text(text)
    group = confinement.group_of(root, 7, proc)
    assert (group and group.folder) == (folder and root / folder)
    assert confinement.group_of(root, 8, proc) is None


# KVM.


def test_kvm_is_what_boots_a_guest_and_the_verdict_is_kept(tmp_path: Path) -> None:
    tried = tmp_path / "tried"
    qemu = tmp_path / "qemu"
    device = tmp_path / "kvm"
    config = MachineConfig(state=tmp_path / "state", run=tmp_path / "run", binary=str(qemu))

    def is_a(status: int) -> None:
        qemu.write_text(f"#!/bin/sh\necho x >> {tried}\nexit {status}\n")
        qemu.chmod(0o755)

    is_a(33)
    assert preflight.choose_accelerator(config, device) == "tcg", "no device, no test"
    assert not tried.exists()
    device.touch()
    assert [preflight.choose_accelerator(config, device) for _ in range(3)] == ["kvm"] * 3
    assert tried.read_text() == "x\n"
    is_a(1)  # another QEMU is tried anew
    assert preflight.choose_accelerator(config, device) == "tcg"
    demanded = MachineConfig(state=tmp_path / "state", run=tmp_path / "run", binary=str(qemu), accel="kvm")
    with raises(Denied, "KvmUnusable"):
        preflight.choose_accelerator(demanded, device)
    assert tried.read_text() == "x\nx\n"
    assert preflight.why_no_boot(str(tmp_path / "none"), "kvm") != ""
