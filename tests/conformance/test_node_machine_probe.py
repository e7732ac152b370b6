"""The test of KVM: nothing of it outlives a plugin that is killed meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from devalloc_machines.qemu import preflight
from tests.support.repository import REPO
from tests.support.waiting import until

PLUGIN = """
import sys, threading
from devalloc_machines.qemu.preflight import why_no_boot
threading.Thread(target=why_no_boot, args=(sys.argv[1], "kvm", 3600.0), daemon=True).start()
sys.stdin.readline()
"""


def hangs(folder: Path) -> Path:
    """A QEMU whose guest never says goodbye."""
    qemu = folder / "qemu"
    qemu.write_text(f"#!/bin/sh\necho $$ > {folder}/pid.new; mv {folder}/pid.new {folder}/pid; exec sleep 300\n")
    qemu.chmod(0o700)
    return qemu


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the second where it ends between opening and reading
        return False
    return state not in "ZX"


def test_a_guest_that_is_tried_dies_with_the_plugin(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": f"{REPO}:{REPO / 'node-plugin'}", "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    words = [sys.executable, "-c", PLUGIN, str(hangs(tmp_path))]
    for kill in (True, False):  # or it ends while the other thread waits
        (tmp_path / "pid").unlink(missing_ok=True)
        with subprocess.Popen(words, stdin=subprocess.PIPE, env=env) as plugin:
            until((tmp_path / "pid").exists, "the guest begins")
            guest = int((tmp_path / "pid").read_text())
            assert lives(guest)
            assert plugin.stdin is not None
            if kill:
                plugin.kill()
            else:
                plugin.stdin.close()
        until(lambda guest=guest: not lives(guest), "the guest ended")
        assert list((tmp_path / "tmp").iterdir()) == []


def test_a_probe_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    assert preflight.why_no_boot(str(hangs(tmp_path)), "kvm", 0.5) == "the guest did not end within 0 s"
    if (tmp_path / "pid").exists():
        assert not lives(int((tmp_path / "pid").read_text()))


def test_a_program_that_is_not_there_boots_nothing(tmp_path: Path) -> None:
    assert preflight.why_no_boot(str(tmp_path / "nope"), "kvm") != ""
