"""start, stop, restart, pause, resume and scale, on a store whose node runs toy machines."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devalloc.api import meta
from devalloc.cli import waiting as waits
from devalloc.cli.verbs import power, scale
from devalloc.machines.replica_sets import ReplicaSets
from devalloc.store.sqlite import SQLiteStore
from devalloc_machines.qemu.records import MachineView, State
from devalloc_machines.vms import LoopSettings, VirtualMachineLoop
from devalloc_node.operations.change_feed import ChangeNotifier, machine_change
from tests.support.cli_shell import Shell, text
from tests.support.node_service import platform_of, toy_bench
from tests.support.toy_machines import ToyMachines, vm
from tests.support.waiting import in_threads, until

HOUR = 3600.0


class Node:
    """A node and a controller of replica sets, which run by themselves on the store of the command."""

    def __init__(self, devalloc: Shell, store: SQLiteStore, machines: ToyMachines, notifier: ChangeNotifier) -> None:
        self.devalloc, self.store, self.machines, self.notifier = devalloc, store, machines, notifier

    def apply(self, *manifests: Any) -> None:
        assert self.devalloc("apply", "-f", "-", stdin=text(*manifests)).code == 0

    def spec(self, name: str = "web") -> Any:
        return self.store.get("VirtualMachine", "default", name)["spec"]

    def status(self, name: str = "web") -> Any:
        listed = self.store.list("VirtualMachine").objects
        return next((obj.get("status", {}) for obj in listed if obj["metadata"]["name"] == name), {})

    def runs(self, name: str = "web") -> None:
        until(lambda: self.status(name).get("phase") == "Running", f"{name} runs")

    def change(self, view: MachineView) -> None:
        """Of a machine, as the host has it."""
        self.machines.views[view.key] = view
        self.notifier.beat(machine_change(view.key))


@contextmanager
def running_node(devalloc: Shell, folder: Path) -> Iterator[Node]:
    machines, notifier = ToyMachines(), ChangeNotifier()
    bench = toy_bench(folder, machines)
    bench.start()
    with closing(SQLiteStore(devalloc.store)) as store:
        settings = LoopSettings(resync=HOUR, retry=HOUR, most=HOUR)
        loop = VirtualMachineLoop(store, platform_of(bench, machines, notifier), notifier, settings=settings)
        sets = ReplicaSets(store, collects=True)
        with in_threads(loop.run, sets.run):
            yield Node(devalloc, store, machines, notifier)


@pytest.fixture
def node(devalloc: Shell, tmp_path: Path) -> Iterator[Node]:
    with running_node(devalloc, tmp_path / "node") as made:
        yield made


def workers(replicas: int = 2) -> Any:
    return {
        "apiVersion": meta.DEVALLOC,
        "kind": "VirtualMachineReplicaSet",
        "metadata": {"name": "workers", "namespace": "default"},
        "spec": {"replicas": replicas, "template": {"spec": vm("any")["spec"]}},
    }


class TestMachines:
    def test_stop_and_start(self, node: Node) -> None:
        node.apply(vm("web"))
        node.runs()
        assert node.devalloc("stop", "vm/web").out == "virtualmachine/web stopped\n"
        assert (node.spec()["running"], node.status()["phase"]) == (False, "Stopped")
        assert node.devalloc("stop", "web").out == "virtualmachine/web stopped\n", "it is so already"
        assert node.devalloc("start", "vm/web").out == "virtualmachine/web started\n"
        assert (node.spec()["running"], node.status()["phase"]) == (True, "Running")

    def test_restart_begins_another_run_with_the_spec_as_it_is_now(self, node: Node) -> None:
        node.apply(vm("web"))
        node.runs()
        node.apply(vm("web", cpu={"min": 1, "max": 8}))
        until(lambda: node.status().get("reason") == "RestartNeeded", "the change waits")
        assert "devalloc restart vm/web" in node.status()["message"]
        before = node.status()["machineID"]
        assert node.devalloc("restart", "vm/web").out == "virtualmachine/web restarted\n"
        assert (node.status()["machineID"] != before, "reason" in node.status()) == (True, False)
        starts = [call for call in node.machines.calls if call.startswith("start")]
        again = node.devalloc("restart", "vm/web")
        assert again.code == 0
        assert len([call for call in node.machines.calls if call.startswith("start")]) == len(starts) + 1, "once each"

    def test_pause_and_resume(self, node: Node) -> None:
        node.apply(vm("web"))
        node.runs()
        assert node.devalloc("pause", "vm/web").out == "virtualmachine/web paused\n"
        assert (node.status()["phase"], node.status()["reason"]) == ("Paused", "PausedOnRequest")
        waited = node.devalloc("wait", "vm/web", "--timeout", "1h")
        assert "and stays so, because its spec.paused is true: it is Paused: " in waited.err
        assert waited.err.endswith("; to let it run: devalloc resume vm/web\n")
        assert node.devalloc("resume", "vm/web").out == "virtualmachine/web resumed\n"
        assert (node.status()["phase"], "reason" in node.status()) == ("Running", False)

    def test_resume_lets_cpus_run_that_another_program_stopped(self, node: Node) -> None:
        node.apply(vm("web"))
        node.runs()
        view = node.machines.views["default/web"]
        node.change(replace(view, state=State.HALTED, reason="CpusStopped", message="QEMU reports 'paused'"))
        until(lambda: node.status().get("phase") == "Paused", "it is seen")
        assert node.devalloc("resume", "vm/web").out == "virtualmachine/web resumed\n"
        assert node.status()["phase"] == "Running"

    def test_start_begins_a_machine_again_that_ended_by_itself(self, node: Node) -> None:
        node.apply(vm("web", restartPolicy="Never"))
        node.runs()
        view = node.machines.views["default/web"]
        node.change(replace(view, state=State.STOPPED, reason="MachineEnded", message="it ended", pid=0))
        until(lambda: node.status().get("reason") == "MachineEnded", "it has ended")
        refused = node.devalloc("restart", "vm/web")
        assert (
            refused.err == "error: cannot restart virtualmachine/web: it is stopped; start it: devalloc start vm/web\n"
        )
        assert node.devalloc("start", "vm/web").out == "virtualmachine/web started\n"
        assert node.status()["phase"] == "Running"

    def test_a_start_that_is_given_up_leaves_the_machine_wanted(
        self, devalloc: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its node's plugin does not run, so it cannot note that the machine may run again."""
        monkeypatch.setattr(power, "_REST_SECONDS", 0.1)
        with running_node(devalloc, tmp_path / "node") as node:
            node.apply(vm("web", restartPolicy="Never"))
            node.runs()
            view = node.machines.views["default/web"]
            node.change(replace(view, state=State.STOPPED, reason="MachineEnded", message="it ended", pid=0))
            until(lambda: node.status().get("reason") == "MachineEnded", "it has ended")
        given_up = devalloc("start", "vm/web")
        assert given_up.code == 1
        assert given_up.err == "error: cannot start virtualmachine/web, which has ended: its node does not answer\n"
        with closing(SQLiteStore(devalloc.store)) as store:
            assert store.get("VirtualMachine", "default", "web")["spec"].get("running", True)

    @pytest.mark.parametrize("verb", ["restart", "pause", "resume"])
    def test_a_machine_that_is_stopped_is_to_be_started(self, node: Node, verb: str) -> None:
        node.apply(vm("web", running=False))
        refused = node.devalloc(verb, "vm/web")
        assert (refused.code, "it is stopped; start it: devalloc start vm/web" in refused.err) == (1, True)

    def test_scale_changes_what_it_has_now_within_its_bounds(self, node: Node) -> None:
        node.apply(vm("web"))
        node.runs()
        scaled = node.devalloc("scale", "vm/web", "--cpu", "4", "--memory", "2Gi")
        assert scaled.out == "virtualmachine/web has 4 CPUs, 2Gi of memory\n"
        assert node.status()["observed"] == {"cpus": "4", "memory": "2Gi"}
        beyond = node.devalloc("scale", "vm/web", "--cpu", "9")
        assert beyond.err == (
            "error: vm/web: spec.cpu.use must not be above max (4), but is 9 (min 1, max 4); change it, then "
            "`devalloc restart vm/web`\n"
        )
        assert node.spec()["cpu"]["use"] == "4", "nothing was written"

    def test_without_waiting_it_is_only_written(self, node: Node) -> None:
        node.apply(vm("web"))
        node.runs()
        assert node.devalloc("stop", "vm/web", "--no-wait").out == "virtualmachine/web: to be stopped\n"

    def test_a_node_that_does_not_answer_is_not_waited_for_longer_than_asked(self, devalloc: Shell) -> None:
        assert devalloc("apply", "-f", "-", stdin=text(vm("web"))).code == 0
        late = devalloc("restart", "vm/web", "--timeout", "100ms")
        assert late.code == 1
        assert "VirtualMachine default/web is not running after 0.1 s" in late.err

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("stop", "vm/other"), "VirtualMachine default/other does not exist"),
            (("stop", "claim/a"), "only machines and sets of machines are started and stopped, not a DeviceClaim"),
            (("scale", "vm/web"), "a machine has CPUs and memory: give --cpu, --memory or both"),
            (("scale", "vmrs/workers", "--cpu", "1"), "a set has a number of machines: give --replicas"),
            (("scale", "vm/web", "--memory", "much"), "spec.memory.use is not a quantity: 'much'"),
        ],
    )
    def test_wrong_words(self, devalloc: Shell, words: tuple[str, ...], message: str) -> None:
        assert devalloc("apply", "-f", "-", stdin=text(vm("web"))).code == 0
        result = devalloc(*words)
        assert (result.code != 0, message in result.err) == (True, True), result.err


class TestWait:
    """It ends at once where only a change helps, and goes on where waiting may."""

    def wait(self, devalloc: Shell, condition: dict[str, Any], **more: Any) -> str:
        assert devalloc("apply", "-f", "-", stdin=text(vm("web"))).code == 0
        with closing(SQLiteStore(devalloc.store)) as store:
            web = store.get("VirtualMachine", "default", "web")
            condition = {"status": "False", "observedGeneration": web["metadata"]["generation"], **condition}
            status = {"phase": "Pending", "message": "as it is", "conditions": [condition], **more}
            store.replace_status({**web, "status": status})
        return devalloc("wait", "vm/web", "--timeout", "100ms").err

    @pytest.mark.parametrize(
        "condition",
        [
            {"type": "Startable", "reason": "PathNotAllowed"},
            {"type": "Startable", "reason": "DiskFormat"},
            {"type": "Startable", "reason": "PathMissing"},
            {"type": "Placed", "reason": "NodesTooSmall"},
        ],
        ids=lambda each: each["reason"],
    )
    def test_for_what_lasts_it_does_not_wait(self, devalloc: Shell, condition: dict[str, Any]) -> None:
        assert "is not running and stays so until that is changed: it is Pending: as it is" in self.wait(
            devalloc, condition
        )

    @pytest.mark.parametrize(
        "condition",
        [
            {"type": "Startable", "reason": "DiskInUse"},
            {"type": "Placed", "reason": "NoRoom"},
            {"type": "Startable", "reason": "DiskFormat", "observedGeneration": 0},
        ],
        ids=["may pass", "room may come", "of an earlier spec"],
    )
    def test_for_what_may_pass_it_waits(self, devalloc: Shell, condition: dict[str, Any]) -> None:
        assert "is not running after 0.1 s" in self.wait(devalloc, condition)


class TestWhatItWaitsFor:
    """A verb that waits says what for, and ends soon where no one does anything about it."""

    REASON = "QemuMissing: there is no program qemu-system-x86_64"

    @pytest.fixture(autouse=True)
    def _soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(waits, "SAY_SECONDS", 0.05)
        monkeypatch.setattr(waits, "HOPELESS_SECONDS", HOUR)

    def refused(self, devalloc: Shell, reason: str = REASON) -> None:
        """A machine whose node has it, and cannot start it."""
        assert devalloc("apply", "-f", "-", stdin=text(vm("web"))).code == 0
        code, _, message = reason.partition(": ")
        with closing(SQLiteStore(devalloc.store)) as store:
            web = store.get("VirtualMachine", "default", "web")
            held = {"finalizers": [meta.NODE_FINALIZER], "annotations": {meta.PREPARED_ON: "node-a"}}
            web = store.replace({**web, "metadata": {**web["metadata"], **held}})
            status = {"phase": "Pending", "nodeName": "node-a", "reason": code, "message": message}
            store.replace_status({**web, "status": status})

    @pytest.mark.parametrize(
        "command", [["start", "vm/web"], ["restart", "vm/web"], ["wait", "vm/web"], ["scale", "vm/web", "--cpu", "1"]]
    )
    def test_it_says_the_reason_once(self, devalloc: Shell, command: list[str]) -> None:
        self.refused(devalloc)
        shown = devalloc(*command, "--timeout", "400ms").err.splitlines()
        assert [line for line in shown if line.startswith("waiting: ")] == [f"waiting: {self.REASON}"], shown

    def test_when_the_time_is_up_only_the_error_says_it(self, devalloc: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(waits, "SAY_SECONDS", 0.3)
        self.refused(devalloc)
        shown = devalloc("wait", "vm/web", "--timeout", "300ms").err
        assert ("waiting: " in shown, "there is no program qemu-system-x86_64" in shown) == (False, True), shown

    def test_it_says_the_next_reason_too(self, devalloc: Shell) -> None:
        self.refused(devalloc)

        def change() -> None:
            time.sleep(0.3)
            with closing(SQLiteStore(devalloc.store)) as store:
                web = store.get("VirtualMachine", "default", "web")
                store.replace_status({**web, "status": {**web["status"], "reason": "DiskInUse", "message": "by web-2"}})

        other = threading.Thread(target=change, daemon=True)
        other.start()
        shown = devalloc("wait", "vm/web", "--timeout", "2s").err
        other.join(60)
        assert shown.index(f"waiting: {self.REASON}\n") < shown.index("waiting: DiskInUse: by web-2\n")

    def test_a_claim_says_its_reason(self, devalloc: Shell) -> None:
        claim = {
            "apiVersion": meta.DEVMGMT,
            "kind": "DeviceClaim",
            "metadata": {"name": "train", "namespace": "default"},
            "spec": {"claims": [{"deviceClass": "gpu"}]},
        }
        assert devalloc("apply", "-f", "-", stdin=text(claim)).code == 0
        shown = devalloc("wait", "train", "--timeout", "300ms").err
        assert shown.startswith("waiting: no `devalloc up` runs on this store"), shown

    @pytest.mark.parametrize("command", [["start", "vm/web"], ["scale", "vm/web", "--cpu", "1"]])
    def test_without_a_time_it_ends_soon(
        self, devalloc: Shell, command: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(waits, "HOPELESS_SECONDS", 0.2)
        self.refused(devalloc)
        ended = devalloc(*command)
        assert (ended.code, "and stays so until that is changed" in ended.err) == (3, True), ended.err
        assert "after 0.4 s" in devalloc(*command, "--timeout", "400ms").err, "who names a time gets it"

    def test_without_a_time_it_ends_soon_where_no_plugin_runs(
        self, devalloc: Shell, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its spec names a node that none serves; that `devalloc up` runs on this host helps nothing."""
        monkeypatch.setattr(waits, "HOPELESS_SECONDS", 0.2)
        monkeypatch.setattr(waits, "unanswered_note", lambda *_: "")
        assert devalloc("apply", "-f", "-", stdin=text(vm("web"))).code == 0
        ended = devalloc("start", "vm/web")
        assert (ended.code, "and stays so until that is changed" in ended.err) == (1, True), ended.err
        assert "waiting: no node has taken the machine yet: is a node plugin running on node node-a?" in ended.err

    @pytest.mark.parametrize("command", [["stop", "vm/web"], ["wait", "vm/web", "--for=delete"]])
    def test_it_says_that_a_guest_powers_down(self, devalloc: Shell, command: list[str]) -> None:
        assert devalloc("apply", "-f", "-", stdin=text(vm("web", powerdownSeconds=40))).code == 0
        with closing(SQLiteStore(devalloc.store)) as store:
            web = store.get("VirtualMachine", "default", "web")
            held = {"finalizers": [meta.NODE_FINALIZER], "annotations": {meta.PREPARED_ON: "node-a"}}
            web = store.replace({**web, "metadata": {**web["metadata"], **held}})
            store.replace_status({**web, "status": {"phase": "Stopping", "nodeName": "node-a"}})
        shown = devalloc(*command, "--timeout", "300ms").err
        why = "its guest powers down, or is ended after 40 s (spec.powerdownSeconds)"
        assert f"waiting: {why}\n" in shown
        assert shown.endswith(f"after 0.3 s: {why}\n")

    @pytest.mark.parametrize(
        "reason",
        [
            "NotPlaced: no controller has placed it yet: is `devalloc up` running?",
            "StoppedOnRequest: it was stopped on request",
        ],
    )
    def test_it_does_not_ask_for_a_controller_that_is_there(
        self, devalloc: Shell, monkeypatch: pytest.MonkeyPatch, reason: str
    ) -> None:
        """A machine that has just been started is placed with the controller's next round."""
        self.refused(devalloc, reason)
        monkeypatch.setattr(waits, "unanswered_note", lambda *_: "")
        assert "waiting: " not in devalloc("wait", "vm/web", "--timeout", "300ms").err
        monkeypatch.undo()
        monkeypatch.setattr(waits, "SAY_SECONDS", 0.05)
        assert "waiting: no `devalloc up` runs on this store" in devalloc("wait", "vm/web", "--timeout", "300ms").err

    @pytest.mark.parametrize(("reason", "ends"), [("CgroupShared: as it is", True), ("GuestRefused: as it is", False)])
    def test_a_machine_that_will_not_be_scaled_while_it_runs_is_not_waited_for(
        self, devalloc: Shell, monkeypatch: pytest.MonkeyPatch, reason: str, ends: bool
    ) -> None:
        monkeypatch.setattr(waits, "HOPELESS_SECONDS", 0.2)
        monkeypatch.setattr(scale, "DEFAULT_SECONDS", 2.0)
        self.refused(devalloc, reason)
        with closing(SQLiteStore(devalloc.store)) as store:
            web = store.get("VirtualMachine", "default", "web")
            store.replace_status({**web, "status": {**web["status"], "phase": "Running"}})
        scaled = devalloc("scale", "vm/web", "--cpu", "1500m")
        assert (scaled.code, "and stays so until that is changed" in scaled.err) == (3, ends), scaled.err

    def test_what_may_pass_is_waited_for(self, devalloc: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(waits, "HOPELESS_SECONDS", 0.1)
        monkeypatch.setattr(scale, "DEFAULT_SECONDS", 0.5)
        self.refused(devalloc, "DiskInUse: another machine has it")
        assert "is not scaled after 0.5 s" in devalloc("scale", "vm/web", "--cpu", "1").err


class TestNotToRun:
    """A machine that is not to run, and that no node has begun, is shown as stopped: it waits for nothing."""

    @pytest.mark.parametrize("status", [{}, {"phase": "Pending", "reason": "NoRoom", "message": "no node has room"}])
    def test_it_is_shown_as_stopped(self, devalloc: Shell, status: dict[str, Any]) -> None:
        assert devalloc("apply", "-f", "-", stdin=text(vm("web", running=False))).code == 0
        with closing(SQLiteStore(devalloc.store)) as store:
            store.replace_status({**store.get("VirtualMachine", "default", "web"), "status": status})
        row = devalloc("get", "vms").out.splitlines()[1].split()
        assert (row[1], row[-2]) == ("Stopped", "StoppedOnRequest")
        described = " ".join(devalloc("describe", "vm/web").out.split())
        assert "Phase: Stopped" in described
        assert "Reason: StoppedOnRequest Message: it is not to run: spec.running is false" in described
        assert "Stopped" in devalloc("top", "--once").out
        stored = devalloc("get", "vm/web", "-o", "json").json
        assert stored.get("status", {}) == status, "what is stored is as it was"

    def test_one_that_is_to_run_waits(self, devalloc: Shell) -> None:
        assert devalloc("apply", "-f", "-", stdin=text(vm("web"))).code == 0
        assert devalloc("get", "vms").out.splitlines()[1].split()[1] == "Pending"

    def test_one_that_failed_is_shown_as_failed(self, devalloc: Shell) -> None:
        assert devalloc("apply", "-f", "-", stdin=text(vm("web", running=False))).code == 0
        with closing(SQLiteStore(devalloc.store)) as store:
            failed = {"phase": "Failed", "reason": "DiskFailed", "message": "as it is"}
            store.replace_status({**store.get("VirtualMachine", "default", "web"), "status": failed})
        row = devalloc("get", "vms").out.splitlines()[1].split()
        assert (row[1], row[-2]) == ("Failed", "DiskFailed")


class TestDelete:
    def test_it_says_what_goes_with_a_machine(self, devalloc: Shell) -> None:
        disk = {"path": "/images/debian.qcow2", "format": "qcow2", "clone": "overlay"}
        start = {"disks": [disk], "firmware": {"type": "uefi"}, "tpm": True}
        assert devalloc("apply", "-f", "-", stdin=text(vm("web", start=start, disk="5Gi"), vm("plain"))).code == 0
        gone = "1 disk of its own, its UEFI variables and the content of its TPM"
        assert devalloc("delete", "vm/web", "--dry-run").out == f"virtualmachine/web deleted (dry run), with {gone}\n"
        assert devalloc("delete", "vm/web").out == f"virtualmachine/web deleted, with {gone}\n"
        assert devalloc("delete", "vm/plain").out == "virtualmachine/plain deleted\n"


class TestTwoAtOnce:
    """One stops or pauses a machine, another one starts or resumes it: who has lost hears so at once."""

    @pytest.mark.parametrize(
        ("verb", "field", "why"),
        [
            ("stop", {"running": True}, "was started again meanwhile (spec.running is true)"),
            ("pause", {"paused": False}, "was resumed meanwhile (spec.paused is false)"),
        ],
    )
    def test_who_is_overruled_does_not_wait_for_the_time_limit(
        self, devalloc: Shell, verb: str, field: dict[str, bool], why: str
    ) -> None:
        devalloc("apply", "-f", "-", stdin=text(vm("web")))
        with closing(SQLiteStore(devalloc.store)) as store:
            web = store.get("VirtualMachine", "default", "web")
            held = {"finalizers": [meta.NODE_FINALIZER], "annotations": {meta.PREPARED_ON: "node-a"}}
            web = store.replace({**web, "metadata": {**web["metadata"], **held}})
            store.replace_status({**web, "status": {"phase": "Running", "nodeName": "node-a", "machineID": "run-1"}})
            (name, wanted), *_ = field.items()

            def overrule() -> None:
                def stored() -> Any:
                    return store.get("VirtualMachine", "default", "web")

                until(lambda: stored()["spec"].get(name) is (not wanted), "it is asked for")
                store.replace({**stored(), "spec": {**stored()["spec"], **field}})

            other = threading.Thread(target=overrule, daemon=True)
            other.start()
            late = devalloc(verb, "vm/web", "--timeout", "1h")
            other.join(60)
        assert (late.code, why in late.err) == (1, True), late.err


class TestSets:
    def test_all_machines_of_a_set(self, node: Node) -> None:
        node.apply(workers())
        assert node.devalloc("wait", "vmrs/workers").out == "virtualmachinereplicaset/workers ready\n"
        assert node.devalloc("stop", "vmrs/workers").out == (
            "virtualmachine/workers-1 stopped\nvirtualmachine/workers-2 stopped\n"
        )
        assert [each["metadata"]["name"] for each in node.store.list("VirtualMachine").objects] == [
            "workers-1",
            "workers-2",
        ], "it replaces none"
        assert node.devalloc("start", "vmrs/workers").code == 0
        assert node.devalloc("restart", "vmrs/workers").out == (
            "virtualmachine/workers-1 restarted\nvirtualmachine/workers-2 restarted\n"
        )

    def test_scale_changes_how_many_there_are(self, node: Node) -> None:
        node.apply(workers(1))
        scaled = node.devalloc("scale", "vmrs/workers", "--replicas", "3")
        assert scaled.out == "virtualmachinereplicaset/workers has 3 ready machines\n"
        names = [each["metadata"]["name"] for each in node.store.list("VirtualMachine").objects]
        assert names == ["workers-1", "workers-2", "workers-3"]

    def test_a_set_that_is_not_ready_says_which_machine_is_not(self, node: Node) -> None:
        node.machines.fail.add("start")
        node.apply(workers(1))
        until(lambda: node.status("workers-1").get("message"), "its start fails")
        late = node.devalloc("wait", "vmrs/workers", "--timeout", "1s")
        assert late.code == 1
        assert ": 0 of 1 are ready; workers-1: " in late.err
        explained = node.devalloc("explain", "vmrs/workers")
        assert explained.err == "0 of its 1 machines are ready; this one is workers-1:\n"
        assert "default/workers-1" in explained.out
        assert node.devalloc("explain", "vmrs/none").code == 4
        node.apply({**workers(0), "metadata": {**workers(0)["metadata"], "name": "empty"}})
        assert "set default/empty has no machines" in node.devalloc("explain", "vmrs/empty").err
