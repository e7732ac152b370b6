"""Ask ``nvidia-persistenced`` to let one GPU go, or to hold it again: by its RPC, as ``nvidia-smi -pm`` does.

ONC RPC (RFC 5531) on a stream socket, program 35006, version 1: procedure 1 sets the persistence mode of a PCI device,
procedure 2 gets it. The interface is that of github.com/NVIDIA/nvidia-persistenced, ``nvpd_rpc.x``.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from pathlib import Path

from devalloc.inventory.pci import Address

_PROGRAM, _VERSION, _SET, _GET = 35006, 1, 1, 2
_CALL, _RPC_VERSION = 0, 2
_LAST_FRAGMENT = 1 << 31
_MOST, _MOST_FRAGMENTS = 4096, 64
"""Bytes of an answer, and the parts in which they may come."""
_ERRORS = {
    2: errno.ENODEV, 3: errno.EIO, 4: errno.ENOMEM, 5: errno.EINVAL, 6: errno.EIO, 7: errno.EPERM, 10: errno.EBUSY,
}  # fmt: skip
"""What its answers mean, in the kernel's terms."""


def persistence(path: Path, address: Address, seconds: float) -> bool:
    """Whether the daemon holds the GPU. Raises OSError."""
    status, *mode = _call(path, _GET, struct.pack(">4i", *address), seconds)
    _check(status)
    return mode[:1] == [1]


def set_persistence(path: Path, address: Address, *, enabled: bool, seconds: float) -> None:
    """Let it hold the GPU, or let it go. Raises OSError."""
    status, *_ = _call(path, _SET, struct.pack(">5i", *address, int(enabled)), seconds)
    _check(status)


def _check(status: int) -> None:
    if status:
        code = _ERRORS.get(status, errno.EIO)
        raise OSError(code, f"{os.strerror(code)} (status {status} of nvidia-persistenced)")


def _call(path: Path, procedure: int, arguments: bytes, seconds: float) -> tuple[int, ...]:
    """The words of the answer."""
    number = int.from_bytes(os.urandom(4), "big")
    head = struct.pack(">10I", number, _CALL, _RPC_VERSION, _PROGRAM, _VERSION, procedure, 0, 0, 0, 0)  # no credentials
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        ends = time.monotonic() + seconds
        asking.settimeout(seconds)
        asking.connect(os.fspath(path))
        asking.sendall(struct.pack(">I", _LAST_FRAGMENT | (len(head) + len(arguments))) + head + arguments)
        answer = _answer(asking, ends)
    words = struct.unpack(f">{len(answer) // 4}I", answer[: len(answer) // 4 * 4])
    # Number, kind (1: an answer), accepted (0), verifier (kind, length, …), success (0), results.
    if len(words) < 5 or words[:3] != (number, 1, 0):
        raise OSError(errno.EPROTO, "nvidia-persistenced refused the call")
    results = words[5 + (words[4] + 3) // 4 :]
    if len(results) < 2 or results[0]:
        raise OSError(errno.EPROTO, "nvidia-persistenced did not perform the call")
    return results[1:]


def _answer(asking: socket.socket, ends: float) -> bytes:
    answer = b""
    for _ in range(_MOST_FRAGMENTS):
        (mark,) = struct.unpack(">I", _exactly(asking, 4, ends))
        length = mark & (_LAST_FRAGMENT - 1)
        if len(answer) + length > _MOST:
            break
        answer += _exactly(asking, length, ends)
        if mark & _LAST_FRAGMENT:
            return answer
    raise OSError(errno.EMSGSIZE, "the answer of nvidia-persistenced is too long")


def _exactly(asking: socket.socket, length: int, ends: float) -> bytes:
    data = b""
    while len(data) < length:
        left = ends - time.monotonic()
        if left <= 0:
            raise TimeoutError(errno.ETIMEDOUT, "nvidia-persistenced did not answer in time")
        asking.settimeout(left)
        part = asking.recv(length - len(data))
        if not part:
            raise OSError(errno.EPIPE, "nvidia-persistenced closed the connection")
        data += part
    return data
