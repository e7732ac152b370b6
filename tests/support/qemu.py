"""Real machines for tests: a QEMU process, a monitor of the test's own, and a shell in the guest.

Nothing here shares code with the node plugin, so that it can judge it: the monitor is a socket with JSON lines.
Machines are emulated (TCG) everywhere, so that they behave alike everywhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.guest import PATIENCE, Guest
from tests.support.images import Image

TCG = ("-accel", "tcg,thread=multi")
# A kernel that calibrates its TSC on a busy machine may be wrong by a factor of three, and its time then runs as fast:
# nothing in it keeps a deadline. So the TSC is no clock.
QUICK_BOOT = "cryptomgr.notests mitigations=off nokaslr audit=0 init_on_alloc=0"
"""What spares the kernel of an emulated machine half of the instructions of its boot: most are tests of its ciphers."""
MICRO_APPEND = (
    f"console=ttyS0 quiet tsc=unstable lpj=4000000 no_timer_check memhp_default_state=online_movable {QUICK_BOOT}"
)
"""Options of the kernel of the micro image: not to measure clocks that are emulated on a busy machine, nor to panic
where no tick comes in time, and to keep memory that is added removable."""


class MonitorError(Exception):
    """QEMU answered with an error; the text is QEMU's."""


class Monitor:
    """A QMP connection. For one thread."""

    def __init__(self, path: Path, *, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        self._socket = socket.socket(socket.AF_UNIX)
        while True:
            try:
                self._socket.connect(str(path))
                break
            except (FileNotFoundError, ConnectionRefusedError):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no {path} within {seconds:.0f} s") from None
                time.sleep(0.02)
        self._left = b""
        self.events: list[dict[str, Any]] = []
        """All events so far, as QEMU sent them."""
        self._message(deadline)
        self.execute("qmp_capabilities", seconds=seconds)

    def execute(self, command: str, /, *, seconds: float = 120, **arguments: Any) -> Any:
        """What QEMU returns. Raises MonitorError. Underscores in names of arguments stand for hyphens."""
        named = {name.replace("_", "-"): value for name, value in arguments.items()}
        self._socket.sendall(json.dumps({"execute": command, "arguments": named}).encode())
        deadline = time.monotonic() + seconds
        while True:
            message = self._message(deadline)
            if "event" in message:
                self.events.append(message)
            elif "error" in message:
                raise MonitorError(f"{command}: {message['error'].get('desc')}")
            elif "return" in message:
                return message["return"]

    def wait_for(self, event: str, *, seconds: float = 120, **data: Any) -> dict[str, Any]:
        """The first event of that name, past or to come, whose data hold all of ``data``. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        looked_at = 0
        while True:
            for seen in self.events[looked_at:]:
                if seen["event"] == event and data.items() <= seen.get("data", {}).items():
                    return seen
            looked_at = len(self.events)
            message = self._message(deadline)
            if "event" in message:
                self.events.append(message)

    def close(self) -> None:
        self._socket.close()

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\n" not in self._left:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            more = self._socket.recv(65536)
            if not more:
                raise ConnectionResetError("QEMU closed its monitor")
            self._left += more
        line, _, self._left = self._left.partition(b"\n")
        return dict(json.loads(line))


class Machine:
    """A running QEMU. Its folder holds the sockets ``qmp`` (the test's), ``plugin.qmp`` (free for the node plugin) and
    ``shell``, what the kernel prints in ``console``, and QEMU's own words in ``qemu.log``."""

    def __init__(self, image: Image, folder: Path, arguments: Sequence[str], *, seconds: float = PATIENCE) -> None:
        """Start it and wait for the shell in the guest. ``arguments`` of QEMU beside those for the sockets."""
        self.folder = folder
        self.plugin_monitor = folder / "plugin.qmp"
        self._command = [
            *(str(image.qemu), "-display", "none", "-nodefaults", "-no-reboot"),
            *("-serial", f"file:{folder / 'console'}"),
            *("-chardev", f"socket,id=shell,path={folder / 'shell'},server=on,wait=off", "-serial", "chardev:shell"),
            *("-qmp", f"unix:{folder / 'qmp'},server=on,wait=off"),
            *("-qmp", f"unix:{self.plugin_monitor},server=on,wait=off"),
            *arguments,
        ]
        self._start(seconds)

    def _start(self, seconds: float) -> None:
        with (self.folder / "qemu.log").open("w") as log:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=lambda: os.nice(5)
            )
        try:
            self.guest = Guest(self.folder / "shell", seconds=seconds, alive=lambda: self.process.poll() is None)
            self.monitor = Monitor(self.folder / "qmp")
        except BaseException as error:
            self.kill()
            outputs = [f"{name}: {(self.folder / name).read_text(errors='replace')[-2000:]}"
                    for name in ("qemu.log", "console") if (self.folder / name).exists()]  # fmt: skip
            error.add_note("\n".join(outputs))
            raise

    def cut_power(self, *, seconds: float = 300) -> None:
        """SIGKILL, and start again from the disks as they are; ``guest`` and ``monitor`` are new ones then."""
        self.kill()
        for socket_ in ("qmp", "plugin.qmp", "shell"):
            (self.folder / socket_).unlink(missing_ok=True)
        self._start(seconds)

    def kill(self) -> None:
        """Cut the power: SIGKILL, and wait."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        for part in ("guest", "monitor"):
            if hasattr(self, part):
                with contextlib.suppress(OSError):
                    getattr(self, part).close()

    def __enter__(self) -> Machine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def micro_arguments(image: Image, *, ports: int = 4, append: str = "") -> list[str]:
    """A machine of the micro image: one of four CPUs, 512 MiB of 4 GiB, a virtio-mem device ``vmem0`` of 2 GiB and
    root ports ``rp0``, ``rp1`` …

    QEMU lists free CPU slots from the highest down. Add the lowest first: a CPU whose APIC id leaves a gap costs an
    emulated guest twelve seconds, in which its other CPUs wait for it.
    """
    return [
        *TCG,
        *("-machine", "q35", "-cpu", "max", "-smp", "1,sockets=4,cores=1,threads=1,maxcpus=4"),
        *("-m", "512M,slots=4,maxmem=4G"),
        *("-object", "memory-backend-ram,id=ram0,size=512M", "-numa", "node,nodeid=0,memdev=ram0"),
        *("-object", "memory-backend-ram,id=vmem-backend,size=2G,reserve=off"),
        *("-device", "virtio-mem-pci,id=vmem0,memdev=vmem-backend,node=0,requested-size=0"),
        *(word for n in range(ports) for word in ("-device", f"pcie-root-port,id=rp{n},chassis={n + 1},slot={n + 1}")),
        *("-kernel", str(image.kernel), "-initrd", str(image.initrd)),
        *("-append", f"{MICRO_APPEND} {append}"),
    ]
