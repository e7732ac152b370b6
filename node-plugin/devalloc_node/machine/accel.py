"""Whether this host runs guests with KVM. That /dev/kvm is there proves nothing: a real boot does."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

from devalloc_node.errors import Denied
from devalloc_node.machine import tied
from devalloc_node.machine.config import MachineConfig

LOG = logging.getLogger(__name__)
BOOT_SECONDS = 10.0
"""KVM counts in a tenth of a second. A kernel that only emulates (kvm_pvm does) would take minutes."""
_NO_SECONDS = 3600.0
"""How long it counts that no guest booted."""
_BYE = (0x10 << 1) | 1
"""The exit status of QEMU when the boot sector wrote 0x10 to the port of isa-debug-exit."""
_BOOT_SECTOR = bytes.fromhex(
    # From real mode through paging into long mode, as a kernel goes; there it counts 2**26 down and says goodbye.
    "fafc31c08ed88ec08ed0bc007cbf00106631c0b9000c66f3abc70600100320c70600200330c7060030830066b8001000000f22d80f20e0"
    "6683c8200f22e066b9800000c00f32660d000100000f300f0116887c0f20c0660d010000800f22c0ea647c0800b900000004ffc975fcb0"
    "10e6f4f4ebfd0f1f4000000000000000000000000000009a20000f00787c"
)
_DISK_BYTES = 1 << 20


def chosen(config: MachineConfig, kvm: Path = Path("/dev/kvm")) -> Literal["kvm", "tcg"]:
    """How machines of this host are run. With ``auto`` the verdict is kept until the host or QEMU changes.

    Raises Denied (``KvmUnusable``) where KVM is demanded and does not boot a guest.
    """
    if config.accel == "tcg":
        return "tcg"
    works = os.access(kvm, os.R_OK | os.W_OK) and _remembered(config)
    if config.accel == "kvm" and not works:
        raise Denied(
            "KvmUnusable", f"KVM is demanded, and a guest does not boot with {kvm} within {BOOT_SECONDS:.0f} s"
        )
    return "kvm" if works else "tcg"


def boots(binary: str, accel: str, seconds: float = BOOT_SECONDS) -> bool:
    """Whether a guest of 512 bytes gets into long mode, counts to 67 million and ends, all within ``seconds``."""
    # Nothing of it may be left by a plugin that is killed meanwhile: the disk has no name, and the guest is tied to us.
    disk = os.memfd_create("devalloc-boot")
    try:
        os.write(disk, _BOOT_SECTOR.ljust(510, b"\0") + b"\x55\xaa")
        os.truncate(disk, _DISK_BYTES)
        words = [sys.executable, "-I", str(Path(tied.__file__).resolve()), str(os.getpid())]
        words += [binary, "-accel", accel, "-cpu", "host" if accel == "kvm" else "max", "-machine", "q35", "-m", "16M"]
        words += ["-display", "none", "-nodefaults", "-no-user-config", "-no-reboot"]
        words += ["-device", "isa-debug-exit,iobase=0xf4,iosize=0x04"]
        words += ["-drive", f"file=/proc/self/fd/{disk},format=raw,if=ide"]
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False, pass_fds=(disk,)
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        LOG.info("no guest boots with %s: %s", accel, error)
        return False
    finally:
        os.close(disk)
    if done.returncode != _BYE:
        LOG.info("no guest boots with %s: %s", accel, done.stderr.decode(errors="replace")[-300:].strip())
    return done.returncode == _BYE


def _remembered(config: MachineConfig) -> bool:
    """The verdict of an earlier test of the same boot, kernel and QEMU, or a new test.

    A no does not count for ever: a host that is busy while it comes up may be too slow once.
    """
    file = config.state / "kvm.json"
    host = _host(config.binary)
    with suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(file.read_text())
        age = time.time() - file.stat().st_mtime
        if known["host"] == host and (known["boots"] or 0 <= age < _NO_SECONDS):
            return bool(known["boots"])
    verdict = boots(config.binary, "kvm")
    if not verdict and shutil.which(config.binary) is None:
        LOG.warning("there is no %s on this host: no machine starts until QEMU is installed", config.binary)
    elif not verdict:
        LOG.warning("no guest boots with /dev/kvm within %.0f s: machines are emulated, and slow", BOOT_SECONDS)
    with suppress(OSError):
        config.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.write_text(json.dumps({"host": host, "boots": verdict}))
    return verdict


def _host(binary: str) -> list[object]:
    path = shutil.which(binary) or binary
    facts: list[object] = [os.uname().release, path]
    with suppress(OSError):
        facts += [os.stat(path).st_mtime_ns, os.stat(path).st_size]
    with suppress(OSError):
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    return facts
