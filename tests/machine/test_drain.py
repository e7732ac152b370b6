"""Must show: a machine with a disk leaves a node that is drained and runs on another one, with real QEMU, two plugins
and a controller, each in a process of its own, and one of them killed on the way."""

from __future__ import annotations

import os
import signal

from devalloc_machines.qemu.process import process
from tests.support import waiting
from tests.support.node_fleet import Fleet


def test_a_machine_leaves_its_node_and_starts_where_its_disk_is(fleet: Fleet) -> None:
    fleet.start_node("a")
    fleet.start_controller()
    fleet.command("apply", "-f", "-", stdin=fleet.manifest())
    waiting.until(lambda: fleet.status().get("phase") == "Running", "it runs", context=fleet.log)
    before = fleet.status()
    assert before["nodeName"] == "a"
    fleet.start_node("b")
    waiting.until(lambda: "b-host" in fleet.command("get", "pools").stdout, "it publishes", context=fleet.log)
    shown = fleet.command("drain", "node/a", "--timeout", "2m")
    assert shown.returncode == 1, shown
    assert "no other node receives machines that run" in shown.stdout + shown.stderr, shown

    fleet.kill("a")
    refused = fleet.command("drain", "node/a", "--force", "--timeout", "0s")
    assert refused.returncode == 1
    assert "no node plugin serves node a now" in refused.stdout + refused.stderr, refused
    assert process(before["pid"]) is not None, "no one can stop it"
    assert fleet.status()["nodeName"] == "a"
    fleet.kill("controller")
    fleet.start_node("a")
    waiting.until(lambda: fleet.command("get", "nodes").stdout.count("NotServed") == 0, "it serves", context=fleet.log)
    assert fleet.command("drain", "node/a", "--force", "--timeout", "0s").returncode == 1
    waiting.until(lambda: not fleet.qemus("a"), "it was powered down", context=fleet.log)
    assert not fleet.qemus("b")
    fleet.start_controller()
    drained = fleet.command("drain", "node/a", "--force", "--timeout", "5m")
    assert drained.returncode == 0, drained.stdout + drained.stderr
    waiting.until(lambda: fleet.status().get("phase") == "Running", "it runs elsewhere", context=fleet.log)
    after = fleet.status()
    assert (after["nodeName"], after["machineID"] != before["machineID"]) == ("b", True)
    assert after["pid"] in fleet.qemus("b")
    waiting.until(lambda: not list((fleet.folder / "a" / "run").iterdir()), "nothing of it is left", context=fleet.log)
    assert not fleet.qemus("a")


def test_a_machine_that_runs_leaves_its_node_without_a_stop(fleet: Fleet) -> None:
    for node in ("a", "b"):
        fleet.start_node(node, "--migration-address", "127.0.0.1")
    fleet.start_controller()
    fleet.command("apply", "-f", "-", stdin=fleet.manifest())
    waiting.until(lambda: fleet.status().get("phase") == "Running", "it runs", context=fleet.log)
    before = fleet.status()
    source = before["nodeName"]
    drained = fleet.command("drain", f"node/{source}", "--timeout", "5m")
    assert drained.returncode == 0, drained.stdout + drained.stderr
    target = "b" if source == "a" else "a"
    waiting.until(lambda: fleet.status().get("pid") in fleet.qemus(target), "it is seen there", context=fleet.log)
    assert (fleet.status()["nodeName"], fleet.status()["machineID"]) == (target, before["machineID"])
    waiting.until(lambda: not fleet.qemus(source), "nothing of it is left", context=fleet.log)


def test_a_machine_that_ends_while_it_moves_leaves_its_node_nevertheless(fleet: Fleet) -> None:
    for node in ("a", "b"):
        fleet.start_node(node, "--migration-address", "127.0.0.1")
    fleet.start_controller()
    manifest = fleet.manifest().replace("powerdownSeconds", "restartPolicy: Never\n  powerdownSeconds")
    fleet.command("apply", "-f", "-", stdin=manifest)
    waiting.until(lambda: fleet.status().get("phase") == "Running", "it runs", context=fleet.log)
    source = fleet.status()["nodeName"]
    target = "b" if source == "a" else "a"
    fleet.processes[target].send_signal(signal.SIGSTOP)
    try:
        fleet.run("drain", "drain", f"node/{source}", "--timeout", "2m")
        waiting.until(lambda: "PreparingTarget" in fleet.log(), "its target is waited for", context=fleet.log)
        for pid in fleet.qemus(source):
            os.kill(pid, signal.SIGTERM)
        drained = fleet.processes.pop("drain")
        assert drained.wait(120) == 0, fleet.log()
    finally:
        fleet.kill(target)
    assert f"virtualmachine default/drained left node {source}" in fleet.log()
    assert "did not move while it ran" not in fleet.log(), "its node says last that it has stopped"
    assert fleet.status()["phase"] == "Stopped"
