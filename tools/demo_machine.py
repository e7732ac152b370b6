"""`make demo-machine`: a machine with a GPU, from the claim to its guest, on an emulated host.

The host is a machine with an IOMMU, two NUMA nodes and a GPU (tests/support/sriov_host.py). In it runs this checkout of
devalloc; the machine in it is emulated once more, gets the GPU by VFIO, and its guest lists what it has. Needs no root
and no device; the images are built from Debian packages, once.

`--update` writes the commands and their output into docs/gpu-machine.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import initramfs, micro_image, sriov_host, sriov_image
from tests.support.go_build import Unavailable
from tests.support.host_commands import HostCommands
from tests.support.qemu import MICRO_APPEND

GUIDE = Path(__file__).parents[1] / "docs" / "gpu-machine.md"
BEGIN, END = "<!-- make demo-machine -->\n", "<!-- end -->\n"
IMAGES, MANIFESTS = "/run/images", "/run/manifests"
PATIENCE = 900.0
"""Seconds that one step may take on a slow host."""
UP = f"devalloc up --host-capacity --allow gpu --image-folder {IMAGES}:shared"
GPU_FOLDER = f"/sys/bus/pci/devices/{sriov_host.GPU}"
APPEND = f"{MICRO_APPEND} rdinit=/show"
SHOW = """\
#!/bin/busybox sh
/bin/busybox --install -s /bin; export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sys /sys
echo "guest: $(nproc) CPU, $(sed -n 's/MemTotal: *//p' /proc/meminfo) of memory"
while :; do
    has=""
    for device in /sys/bus/pci/devices/*; do
        case $(cat $device/class) in
        0x03*) has="GPU $(cat $device/vendor):$(cat $device/device) at ${device##*/}" ;;
        esac
    done
    [ "$has" = "$had" ] || echo "guest: ${has:-no GPU}"
    had=$has
    sleep 1
done
"""
"""What the guest runs: it prints what it has, and each change of its GPU."""
MANIFEST = f"""\
apiVersion: devmgmtproto.k8s.io/v1alpha1
kind: DeviceClass
metadata: {{name: gpu}}
spec: {{driver: gpu.devalloc.io, constraints: device.function == 'whole'}}
---
apiVersion: devmgmtproto.k8s.io/v1alpha1
kind: DeviceClaim
metadata: {{name: train}}
spec: {{claims: [{{deviceClass: gpu}}]}}
---
apiVersion: devalloc.io/v1alpha1
kind: VirtualMachine
metadata: {{name: trainer}}
spec:
  cpu: {{min: 1, max: 1}}
  memory: {{min: 256Mi, max: 256Mi}}
  start: {{kernel: {IMAGES}/vmlinuz, initrd: {IMAGES}/initrd, append: "{APPEND}"}}
  powerdownSeconds: 1
  claims: [train]
"""


SAY_SECONDS = 60.0
"""A step that takes longer says so each time."""


class Progress:
    """What the demo does, on stderr, with the seconds since its begin."""

    def __init__(self, seconds: float = SAY_SECONDS) -> None:
        self._seconds, self._began = seconds, time.monotonic()
        self._step = "the demo begins"
        self._changed = threading.Event()

    def say(self, step: str) -> None:
        """A step begins."""
        self._step = step
        self._changed.set()
        self._print(step)

    @contextmanager
    def steady(self) -> Iterator[None]:
        """Inside, a step that takes long is named again and again."""
        is_over = threading.Event()

        def run() -> None:
            while not is_over.is_set():
                if self._changed.wait(self._seconds):
                    self._changed.clear()
                elif not is_over.is_set():
                    self._print(f"still: {self._step}")

        ticker = threading.Thread(target=run, daemon=True)
        ticker.start()
        try:
            yield
        finally:
            is_over.set()
            self._changed.set()
            ticker.join()

    def _print(self, words: str) -> None:
        print(f"  ({time.monotonic() - self._began:.0f} s: {words})", file=sys.stderr, flush=True)


def kept_console(folder: Path) -> str:
    """Copy what the kernel of the emulated host has printed, which goes with its folder; where it is, as a sentence."""
    try:
        content = (folder / "console").read_bytes()
        with tempfile.NamedTemporaryFile(prefix="devalloc-demo-", suffix=".log", delete=False) as copy:
            copy.write(content)
    except OSError as error:
        return f"its console log cannot be read: {error}"
    return f"its console log is {copy.name}"


@dataclass
class Demo:
    """The host, and what it showed so far."""

    lines: HostCommands
    progress: Progress
    transcript: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        print(text, flush=True)
        self.transcript.append(text)

    def run(self, command: str) -> str:
        """Run a command line in the host and show it with its output. Raises RuntimeError if it fails."""
        self.say(f"$ {command}")
        self.progress.say(f"`{command}` runs on the host")
        answer = self.lines.run(command, seconds=PATIENCE + 60)
        for line in answer.output.rstrip().splitlines():
            self.say(line.rstrip())
        if answer.status:
            raise RuntimeError(f"{command!r} ended with {answer.status}")
        return answer.output

    def until(self, command: str, what: str) -> str:
        """Wait until a command of the host's shell succeeds; its output."""
        self.progress.say(what)
        return self.lines.guest.until(command, seconds=PATIENCE)

    def shell(self, command: str, shown: str = "") -> str:
        """Run a command of the host's shell and show it, or ``shown`` in its place, with its output."""
        self.say(f"$ {shown or command}")
        output = self.lines.guest.check(command, seconds=PATIENCE)
        for line in output.rstrip().splitlines():
            self.say(line.rstrip())
        return output


def demonstrate(demo: Demo) -> None:
    """From the claim to the guest, and back. Raises RuntimeError or AssertionError if something is not as it should."""
    guest = demo.lines.guest
    guest.check(f"mkdir -p {IMAGES} {MANIFESTS} && mount -o ro /dev/disk/by-label/images {IMAGES}")
    demo.lines.put(f"{MANIFESTS}/trainer.yaml", MANIFEST.encode())
    driver = f"basename $(readlink {GPU_FOLDER}/driver || echo none)"
    before = guest.check(driver)
    demo.lines.start(UP)
    demo.until("[ -S /run/devalloc/node.sock ]", "`devalloc up` starts on the host")
    while "guest-host" not in demo.lines.check("devalloc get pools"):
        time.sleep(2)
    demo.run("devalloc get pools")
    demo.run(f"devalloc apply -f {MANIFESTS}/trainer.yaml")
    demo.run(f"devalloc wait vm/trainer --timeout {PATIENCE:.0f}s")
    demo.run("devalloc get claims")
    demo.run("devalloc get vms")
    demo.shell(driver, f"basename $(readlink {GPU_FOLDER}/driver)")
    console = "/run/devalloc/machines/*/console.log"
    demo.until(f"grep -qa '^guest: GPU' {console}", "Linux boots in the machine")
    shown = demo.shell(f"grep -a '^guest:' {console} | tr -d '\\r'")
    assert "guest: GPU" in shown, shown
    demo.run("devalloc delete vm/trainer claim/train")
    demo.until(f'[ "$({driver})" = {before} ]', "the node gives the GPU back to its driver")
    demo.shell(driver, f"basename $(readlink {GPU_FOLDER}/driver)")


def main() -> int:
    parser = argparse.ArgumentParser(description="Show a machine with a GPU, from its claim to its guest.")
    parser.add_argument("--update", action="store_true", help=f"write what it shows into {GUIDE.name}")
    update = parser.parse_args().update
    progress = Progress()
    with progress.steady():
        return show(progress, update=update)


def show(progress: Progress, *, update: bool) -> int:
    """Boot the host and demonstrate; the exit code."""
    try:
        image, guest = sriov_image.image(progress.say), micro_image.image(progress.say)
    except Unavailable as reason:
        print(f"error: no test machines: {reason}", file=sys.stderr)
        return 1
    initrd = guest.initrd.read_bytes() + initramfs.archive({"show": SHOW.encode()})
    progress.say("an emulated host with an IOMMU and a GPU boots")
    with sriov_host.with_files(
        image, {"vmlinuz": guest.kernel.read_bytes(), "initrd": initrd}, cpus=2, gibibytes=4
    ) as host:
        try:
            demo = Demo(HostCommands(host.guest), progress)
            demonstrate(demo)
        except TimeoutError:
            waited = f"for {PATIENCE / 60:.0f} minutes"
            print(f"error: the emulated host did not answer {waited}: try again when this one is idle", file=sys.stderr)
            print(kept_console(host.folder), file=sys.stderr)
            return 1
        except (RuntimeError, AssertionError) as error:
            print(f"error: {error}", file=sys.stderr)
            print(
                host.guest.run("tail -n 40 /run/commands/0.out /run/devalloc/machines/*/*.log").output, file=sys.stderr
            )
            return 1
    progress.say("done")
    if update:
        write(demo.transcript)
    return 0


def write(transcript: list[str]) -> None:
    """Put a transcript into the guide."""
    text = GUIDE.read_text()
    block = "```text\n" + "\n".join(transcript) + "\n```\n"
    before, rest = text.split(BEGIN)
    GUIDE.write_text(before + BEGIN + block + END + rest.split(END, 1)[1])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted: the emulated host has ended, and nothing of it is left", file=sys.stderr)
        sys.exit(130)
