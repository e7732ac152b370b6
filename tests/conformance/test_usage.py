"""``devalloc usage`` answers who used which device, and for how long, though ``devalloc up`` was killed meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from devalloc.usage.accounting.accountant import SAVE_CHANGES_SECONDS
from tests.support.cli_shell import Shell, claim, devalloc, device_class, pool, text
from tests.support.waiting import until

__all__ = ["devalloc"]


@contextmanager
def up(shell: Shell, end: signal.Signals) -> Iterator[None]:
    """``devalloc up`` on the shell's store, ended by a signal."""
    command = [sys.executable, "-m", "devalloc.cli", "up", "--no-inventory", "--no-node"]
    environment = {**os.environ, "DEVALLOC_STORE": str(shell.store)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.send_signal(end)
        process.wait(60)


def rows(shell: Shell, *options: str) -> list[dict[str, Any]]:
    answer = shell("usage", "-o", "json", *options)
    assert answer.code == 0, answer.err
    return list(json.loads(answer.out)["usage"])


def test_a_device_counts_until_its_claim_goes_through_a_kill(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(pool(), device_class()))
    before_all = time.time()
    with up(devalloc, signal.SIGKILL):
        devalloc("apply", "-f", "-", stdin=text(claim()))
        assert devalloc("wait", "train", "--timeout", "60s").code == 0
        begun = time.time()
        until(lambda: devalloc("get", "configmap", "-A").code == 0 and "usage" in devalloc("get", "configmap").out)
    away = time.time()
    time.sleep(2 * SAVE_CHANGES_SECONDS)
    with up(devalloc, signal.SIGTERM):
        until(lambda: bool(rows(devalloc)) and rows(devalloc)[0]["deviceSeconds"] > away - begun)
        devalloc("delete", "claim", "train")
        ended = time.time()
        until(lambda: not devalloc("get", "claims", "-o", "name").out)
    (row,) = rows(devalloc)
    assert (row["kind"], row["namespace"], row["device"]) == ("DeviceClaim", "default", "gpus/gpu-0")
    # All the time without a process counts, and no more than there was.
    assert ended - away <= row["deviceSeconds"] <= time.time() - before_all
    before = rows(devalloc)
    with up(devalloc, signal.SIGTERM):
        time.sleep(SAVE_CHANGES_SECONDS)
    assert rows(devalloc) == before, "nothing is held, so nothing more counts"
    table = devalloc("usage", "--by", "class")
    assert table.out.split()[:2] == ["NAMESPACE", "CLASS"]
    assert rows(devalloc, "--of", "nobody") == rows(devalloc, "--month", "last") == []
    assert devalloc("usage", "--month", "soon").code == 2
