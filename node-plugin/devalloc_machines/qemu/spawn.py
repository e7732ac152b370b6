"""Becomes a machine's QEMU: run as a program of its own, so that nothing of the plugin is a parent of the machine.

Standalone (no import of this project); a JSON file has its instructions, or else the program and its arguments are
given that are to end with the caller. It locks the machine's *life* file and
lets QEMU inherit the lock: as long as QEMU lives, the file is locked, and no second QEMU of the machine can be.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import signal
import stat
import struct
import sys
import time

TYPE_CHECKING = False  # as in `typing`, which would take longer to load than all that is done here
if TYPE_CHECKING:
    from typing import Any

    Plan = dict[str, Any]

LIVES = 75
"""Exit status: the machine runs already."""
FAILED = 70
WITH_PARENT = "--with-parent"
"""What comes before the number of the parent and the words of a program that is to end with it."""
_TRIES, _PAUSE = 100, 0.005
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
_PR_SET_PDEATHSIG = 1
_TUNSETIFF = 0x400454CA
_CLONE_NEWNET, _CLONE_NEWNS = 0x40000000, 0x00020000
_RDONLY, _NOSUID, _NODEV, _REMOUNT, _BIND, _REC, _SLAVE = 1, 2, 4, 32, 4096, 16384, 1 << 19
_DETACH = 2
_READ, _WRITE = _RDONLY | _NOSUID, _NOSUID | _NODEV
_TAP = 0x0002 | 0x1000 | 0x4000  # IFF_TAP, IFF_NO_PI, IFF_VNET_HDR
_MULTI_QUEUE = 0x0100  # IFF_MULTI_QUEUE


def main(plan_path: str, detach: bool) -> int:
    with open(plan_path, encoding="utf-8") as file:
        plan = json.load(file)
    # QEMU gets this descriptor: it must not be able to write there that it is another process, which would be ended.
    life = os.open(plan["life"], os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if not _locked(life):
        return LIVES
    os.truncate(plan["life"], 0)
    if not detach:  # no one reads its output
        plan["log"] = os.path.join(plan["folder"], "qemu.log")
        return _exec_qemu(plan, life)
    # The child says what went wrong; a pipe that just closes says that it has become QEMU.
    says, write_end = os.pipe2(os.O_CLOEXEC)
    if os.fork():
        os.close(write_end)
        with os.fdopen(says, "rb") as pipe:
            words = pipe.read(4096)
        sys.stderr.write(words.decode(errors="replace"))
        return FAILED if words else 0
    os.setsid()
    os.dup2(write_end, 2)
    return _exec_qemu(plan, life)


def _locked(life: int) -> bool:
    """Whether no QEMU holds it. A process that checks whether the machine lives holds it too, for a moment."""
    for _ in range(_TRIES):
        try:
            fcntl.flock(life, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(_PAUSE)
    return False


def _exec_qemu(plan: Plan, life: int) -> int:
    try:
        _write_process(plan["life"])
        if plan.get("tpm"):
            _start_tpm(plan, life)
        _prepare(plan, life)
        os.execve(plan["argv"][0], plan["argv"], _ENVIRONMENT)
    except (OSError, ValueError) as error:
        words = f"{error}\n".encode()
        os.write(plan.get("complain", 2), words)
        if "log" in plan:
            log = os.open(plan["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            os.write(log, words)
    os._exit(FAILED)


def _write_process(life: str) -> None:
    """Say in the life file which process it is."""
    with open(f"/proc/{os.getpid()}/stat", "rb") as file:
        started = file.read().rpartition(b")")[2].split()[19].decode()
    file_of = os.open(life, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.write(file_of, f"{os.getpid()} {started}\n".encode())
    finally:
        os.close(file_of)


def _start_tpm(plan: Plan, life: int) -> None:
    """Start the machine's TPM as a child, which the kernel kills when this process, QEMU by then, ends. All that it has
    to do with others is a socket to QEMU without a name, and its folder, which it holds locked. Raises OSError."""
    import socket

    tpm = plan["tpm"]
    folder = os.open(tpm["folder"], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not _locked(folder):
        raise OSError(f"another process still is the TPM of {tpm['folder']}")
    own, other = socket.socketpair()
    says, write_end = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    if not os.fork():
        try:
            os.close(life)
            _exec_tpm(plan, parent, folder, other.fileno())
        except (OSError, ValueError) as error:
            os.write(write_end, f"cannot start its TPM: {error}".encode())
        os._exit(FAILED)
    for fd in (folder, write_end, other.detach()):
        os.close(fd)
    with os.fdopen(says, "rb") as pipe:  # it closes when the child is swtpm
        if words := pipe.read(4096):
            raise OSError(words.decode(errors="replace"))
    _as(own.detach(), tpm["fd"])


def _exec_tpm(plan: Plan, parent: int, folder: int, line: int) -> None:
    """Become the TPM. Raises OSError."""
    import ctypes

    tpm = plan["tpm"]
    _join(plan["cgroups"])
    _pin(plan.get("cpus"))
    _limit(resource.RLIMIT_CORE, 0)
    os.umask(0o177)
    log = os.path.join(plan["folder"], "qemu.log")
    log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.chdir(tpm["folder"])
    if tpm["sees"]:
        try:
            _confine(tpm["sees"], os.path.dirname(plan["life"]), tpm["folder"])
        except OSError as error:
            os.write(log_fd, f"devalloc: the TPM cannot be confined: {error}\n".encode())
    # A network namespace of its own, in which there is not even a loopback that is up. Its socket to QEMU has no name.
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET) != 0 and tpm["uid"] is not None:
        why = os.strerror(ctypes.get_errno())
        os.write(log_fd, f"devalloc: the TPM shares the host's network: {why}\n".encode())
    if tpm["uid"] is not None:
        os.setgroups([])
        os.setgid(tpm["uid"])
        os.setuid(tpm["uid"])
    _die_with(parent)
    _as(os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC), 0)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    os.set_inheritable(folder, True)
    os.set_inheritable(line, True)
    words = ["socket", "--tpm2", "--tpmstate", "dir=.,mode=0600", "--ctrl", f"type=unixio,clientfd={line}"]
    os.execve(tpm["binary"], [tpm["binary"], *words, "--terminate"], _ENVIRONMENT)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends, however that comes about. Raises
    OSError, also if its parent, which has this number, ended before."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot tie it to its parent")
    if os.getppid() != parent:
        raise OSError("its parent ended")


def run_with(parent: int, words: list[str]) -> int:
    """Become a program that ends with its parent; the exit status if that fails."""
    try:
        _die_with(parent)
        os.execvp(words[0], words)
    except OSError as error:
        sys.stderr.write(f"{words[0]}: {error}\n")
    return FAILED


def _join(cgroups: list[str]) -> None:
    for procs in cgroups:
        with open(procs, "w", encoding="ascii") as file:
            file.write(str(os.getpid()))


def _prepare(plan: Plan, life: int) -> None:
    _join(plan["cgroups"])
    _pin(plan.get("cpus"))
    _limit(resource.RLIMIT_MEMLOCK, plan["memlock"])
    _limit(resource.RLIMIT_NOFILE, 65536)
    _limit(resource.RLIMIT_CORE, 0)
    os.umask(0o177)
    complain = os.dup(2)
    os.set_inheritable(complain, False)
    plan["complain"] = complain
    os.chdir(plan["folder"])
    for number, (path, writable) in plan["files"].items():
        _as(open_checked(path, writable), int(number))
    _open_taps(plan["taps"])
    if plan.get("namespace"):
        _enter(plan["namespace"])
    for number, interface in plan.get("inside", {}).items():
        _as(open_tap(interface), int(number))
    log = os.open("qemu.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if plan.get("sees"):
        try:
            _confine(plan["sees"], os.path.dirname(plan["life"]), plan["folder"])
        except OSError as error:
            words = f"devalloc: QEMU can read every file that its user may, because it cannot be confined: {error}\n"
            os.write(log, words.encode())
    if plan["uid"] is not None:
        os.fchown(log, plan["uid"], plan["uid"])
        os.setgroups(plan["groups"])
        os.setgid(plan["uid"])
        os.setuid(plan["uid"])
    _as(os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.set_inheritable(life, True)


def _pin(cpus: list[int] | None) -> None:
    """Run on these and on no others, with all threads that are begun from here on. Raises OSError."""
    if cpus:
        try:
            os.sched_setaffinity(0, cpus)
        except OSError as error:
            raise OSError(error.errno, f"cannot run on CPUs {cpus}: none of them is available now") from None
        if (had := os.sched_getaffinity(0)) != set(cpus):  # the kernel leaves out those that went away
            raise OSError(f"cannot run on CPUs {sorted(set(cpus) - had)}: they went offline meanwhile")


def _enter(namespace: str) -> None:
    """From here on live in a network namespace, by the file that keeps it. Raises OSError."""
    import ctypes  # which other machines need not wait for; os.setns comes with Python 3.12

    fd = os.open(namespace, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(fd, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "cannot enter the network namespace", namespace)
    finally:
        os.close(fd)


def _confine(sees: list[list[str]], base: str, folder: str) -> None:
    """From here on see nothing of the host's files but these, and be in ``folder``. ``base``: a folder to build on.

    Raises OSError, and has changed nothing then that is seen.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: object) -> None:
        if getattr(libc, name)(*arguments) != 0:
            raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")

    def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
        words = (text.encode() or None for text in (source, target, kind))
        call("mount", *words, ctypes.c_ulong(flags), options.encode() or None)

    before = os.umask(0o022)
    try:
        call("unshare", _CLONE_NEWNS)
        mount("", "/", "", _REC | _SLAVE)  # what the host takes away later is not held here
        sources = [(path, access, os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)) for path, access in sees]
        mount("tmpfs", base, "tmpfs", _NOSUID | _NODEV, "mode=0755,size=16m")
        try:
            for path, access, fd in sources:
                target = base + path
                os.makedirs(os.path.dirname(target), exist_ok=True)
                if os.path.islink(path):
                    if not os.path.lexists(target):
                        os.symlink(os.readlink(path), target)
                    continue
                if not os.path.lexists(target):
                    if stat.S_ISDIR(os.fstat(fd).st_mode):
                        os.mkdir(target)
                    else:
                        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o444))
                mount(f"/proc/self/fd/{fd}", target, "", _BIND | _REC)
                if path == "/dev" and os.path.isdir(f"{target}/shm"):  # what processes of the host share
                    mount("tmpfs", f"{target}/shm", "tmpfs", _NOSUID | _NODEV, "mode=1777,size=16m")
                if access != "as-is":
                    mount("", target, "", _REMOUNT | _BIND | (_WRITE if access == "write" else _READ))
            os.makedirs(f"{base}/tmp", exist_ok=True)
            os.chmod(f"{base}/tmp", 0o1777)
            os.stat(base + folder)  # there is no way back from what follows
            os.chdir(base)
            call("pivot_root", b".", b".")
        except OSError:
            os.chdir("/")
            call("umount2", base.encode(), _DETACH)
            os.chdir(folder)
            raise
        call("umount2", b".", _DETACH)  # the host's files, which lie below the new ones
        os.chdir(folder)
    finally:
        os.umask(before)


def open_checked(path: str, writable: bool) -> int:
    """A file that was checked, unless something else has come between: root opens here what a user may have moved.

    Raises OSError.
    """
    how = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe would be waited for
    fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | how)
    there, mode = os.readlink(f"/proc/self/fd/{fd}"), os.fstat(fd).st_mode
    if there != path or not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
        os.close(fd)
        raise OSError(f"{path} is {there if there != path else 'not a file'} now")
    os.set_blocking(fd, True)
    return fd


def _open_taps(taps: dict[str, str]) -> None:
    """By descriptor; an interface that is there several times has as many queues. Raises OSError."""
    queues: dict[str, int] = {}
    for number, interface in taps.items():
        queues[interface] = queues.get(interface, 0) + 1
        _as(open_tap(interface, queues[interface]), int(number))


def open_tap(interface: str, queue: int = 1) -> int:
    """A TAP interface, for QEMU, or its next ``queue``. Raises OSError, EBUSY if another process has it."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        try:
            fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", interface.encode(), _TAP))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # Made for several queues. The kernel gives those to as many processes as ask, but machines do not share it.
            fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", interface.encode(), _TAP | _MULTI_QUEUE))
            if len([name for name in os.listdir(f"/sys/class/net/{interface}/queues") if name[:3] == "tx-"]) > queue:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), interface) from None
    except OSError:
        os.close(tap)
        raise
    return tap


def _as(fd: int, number: int) -> None:
    os.dup2(fd, number, inheritable=True)
    os.close(fd)


def _limit(what: int, value: int) -> None:
    """As much as is allowed, if it is not all."""
    hard = resource.getrlimit(what)[1]
    wanted = resource.RLIM_INFINITY if value < 0 else value
    try:
        resource.setrlimit(what, (wanted, wanted))
    except (ValueError, PermissionError):
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard) if wanted >= 0 else hard
        resource.setrlimit(what, (most, hard))


if __name__ == "__main__":
    if sys.argv[1] == WITH_PARENT:
        sys.exit(run_with(int(sys.argv[2]), sys.argv[3:]))
    sys.exit(main(sys.argv[1], "--detach" in sys.argv[2:]))
