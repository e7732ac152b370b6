"""Unix sockets that only their owner can open, from the first moment on.

A socket is bound in a private folder beside its place and then renamed: no one can connect before it has its mode, and
a client that sees the name is answered. That a stale file is cleared away and a live one is not is decided under a lock
of the folder, so that two instances that start at once do not take each other's place.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import socket
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from devalloc.file_lock import FileLock
from devalloc_node.errors import Denied, Failed

log = logging.getLogger(__name__)

MAX_PATH_BYTES = 107
"""What the kernel takes of a socket's path (108 bytes with the zero at its end)."""
_PROBE_SECONDS = 1.0
_LOCK_SECONDS = 10.0
"""How long another instance may take to put its socket in place or away: it probes who answers, no more."""
_POLL_SECONDS = 0.02
_CREDENTIALS = struct.Struct("3i")
"""Process, user, group."""
SocketIdentity = tuple[int, int]
"""Of a file, whatever its name: device and number."""


def check_path(path: Path) -> None:
    """Raises Denied: ``SocketPathInvalid``, ``SocketPathTooLong``, ``SocketFolderShared``.

    A user who can write in the folder could redirect what is put there: the socket and the warm setups.
    """
    length = len(os.fsencode(path))
    if not path.is_absolute():
        raise Denied("SocketPathInvalid", f"the socket {path} must be given by its full path")
    if length > MAX_PATH_BYTES:
        raise Denied(
            "SocketPathTooLong",
            f"the path of the socket {path} has {length} bytes, but the kernel allows {MAX_PATH_BYTES}; choose a "
            "folder with a shorter path",
        )
    with suppress(OSError):  # else it is made, by us and for us
        info = path.parent.stat()
        groups = info.st_mode & stat.S_IWGRP and info.st_gid not in (0, os.getegid())
        if info.st_mode & stat.S_IWOTH or groups or info.st_uid not in (0, os.geteuid()):
            raise Denied(
                "SocketFolderShared",
                f"other users can write in {path.parent}, so the plugin puts no socket there; choose a folder of "
                f"your own, such as {path.parent / 'devalloc' / path.name}",
            )


@contextmanager
def listening_socket(path: Path, backlog: int) -> Iterator[tuple[socket.socket, SocketIdentity]]:
    """A socket of mode 0600 that listens at the path, where at no moment one is that has another mode or does not
    listen. Raises Denied as ``check_path`` and ``place_socket``."""
    check_path(path)
    private = path.parent / ".d" / secrets.token_hex(4)
    private.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            os.fchmod(listener.fileno(), 0o600)  # what bind gives the file, less the umask
            listener.bind(os.fspath(private))
            listener.listen(backlog)
            listener.setblocking(False)
            identity = place_socket(private, path)
        except OSError as error:
            raise Failed("SocketFailed", f"cannot serve on {path}: {error.strerror}") from error
        try:
            yield listener, identity
        finally:
            remove_socket(path, identity)
    finally:
        listener.close()
        private.unlink(missing_ok=True)


def place_socket(hidden: Path, path: Path, start: Callable[[], None] = lambda: None) -> SocketIdentity:
    """Give a socket that listens, or does after ``start``, its name; what identifies it then.

    Raises Denied ``SocketInUse`` (a process answers there) and ``SocketNotOurs`` (something else has the name: no
    socket, or another user's), Failed ``SocketFolderBusy``, OSError.
    """
    identity = _identity(os.lstat(hidden))
    with _locked(path.parent):
        _clear(path)
        start()
        hidden.rename(path)
    return identity


def is_lost(path: Path, identity: SocketIdentity) -> bool:
    """Whether a name leads to another socket by now, or to nothing."""
    try:
        return _identity(os.lstat(path)) != identity
    except FileNotFoundError:
        return True


def remove_socket(path: Path, identity: SocketIdentity) -> None:
    """Remove a socket unless another one has its name by now."""
    try:
        with suppress(FileNotFoundError), _locked(path.parent):
            if _identity(os.lstat(path)) == identity:
                path.unlink()
    except Failed as error:
        log.warning("the socket %s remains; the next start removes it: %s", path, error)


def _clear(path: Path) -> None:
    """Take away the socket that a dead process of ours left."""
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(info.st_mode):
        raise Denied("SocketNotOurs", f"{path} exists and is not a socket; remove it, or choose another path")
    if info.st_uid != os.geteuid():
        raise Denied(
            "SocketNotOurs", f"the socket {path} belongs to user {info.st_uid}; remove it, or choose another path"
        )
    if has_listener(path):
        raise Denied(
            "SocketInUse",
            f"another process serves {path}; stop it, or choose another path. On a store, a second plugin on this host "
            "needs its own --node-name, --state and --socket; instances of a rolling update need their own --pod-uid "
            "each",
        )
    log.info("removing the stale socket %s", path)
    path.unlink()


def has_listener(path: Path) -> bool:
    """Whether a process listens on a unix socket. If in doubt: yes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(os.fspath(path))
        except OSError as error:
            return error.errno not in (errno.ECONNREFUSED, errno.ENOENT)
    return True


class ForeignListener(Exception):
    """A process of another user listens on a socket that only one user should listen on."""

    def __init__(self, path: Path, user: int) -> None:
        super().__init__(f"a process of user {user} listens on {path}")
        self.user = user


def connect_to_user(path: Path, user: int) -> socket.socket:
    """A connection, which does not block, to a socket on which a process of this user listens. Raises OSError,
    ForeignListener."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    connection.setblocking(False)
    try:
        connection.connect(os.fspath(path))
        _, listener, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if listener != user:
            raise ForeignListener(path, listener)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Be the only one who changes names in the folder. Raises Failed ``SocketFolderBusy``."""
    with FileLock.of_folder(folder) as lock:
        if not lock.lock_within(_LOCK_SECONDS, _POLL_SECONDS):
            raise Failed(
                "SocketFolderBusy",
                f"{folder} has been locked for {_LOCK_SECONDS:.0f} s by {lock.holder()}, which should take moments; "
                "end that process if it hangs, or choose another folder",
            )
        yield


def _identity(info: os.stat_result) -> SocketIdentity:
    return info.st_dev, info.st_ino
