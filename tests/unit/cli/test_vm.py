"""`devalloc vm` against a node plugin on a real socket."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import pytest

from devalloc.cli.command import CommandFailed
from devalloc.cli.node_client import connect_plugin
from devalloc.cli.options import places
from devalloc.cli.render.cells import format_size
from devalloc.cli.render.host import parse_bounds, parse_bytes, parse_milli
from devalloc.cli.verbs.vm_create import machine_request
from devalloc.cli.verbs.vm_top import HEADERS, sample_process, usage_between
from devalloc.scaling.health import ScalingReport, StuckReason
from devalloc.scaling.metrics import GuestReport, SystemMetrics
from devalloc.scaling.resources import Resources
from devalloc_machines.qemu.records import UNKNOWN_AMOUNTS, MachineAmounts
from devalloc_machines.service import request_fields
from devalloc_node.deadline import Deadline
from devalloc_node.pb import node_pb2 as pb
from tests.support.cli_shell import Result, Shell, text
from tests.support.node_service import Served, served
from tests.support.toy_machines import machine_of, vm
from tests.support.waiting import LONG

GUIDE = Path(__file__).parents[3] / "docs" / "machine-devices.md"


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "node") as server:
        yield server


class Vm:
    """`devalloc vm …` against that plugin."""

    def __init__(self, devalloc: Shell, plugin: Served) -> None:
        self.devalloc, self.plugin = devalloc, plugin

    def __call__(self, *args: str, stdin: str | None = None) -> Result:
        return self.devalloc("vm", *args, "--socket", self.plugin.socket, stdin=stdin)

    def create(self, name: str = "web", *claims: str) -> Result:
        return self("create", "-f", "-", stdin=text(vm(name, *claims)))


@pytest.fixture
def devalloc_vm(devalloc: Shell, plugin: Served) -> Vm:
    return Vm(devalloc, plugin)


def test_a_command_that_another_change_keeps_waiting_says_at_its_timeout_what_holds_the_machine(
    devalloc_vm: Vm, plugin: Served
) -> None:
    devalloc_vm.create()
    assert devalloc_vm("plug", "web", "lan", "--user-net").code == 0
    work = "scale memory (for uid 0 pid 4711 (devalloc))"
    with plugin.bench.claims.locks.named("machine/default/web", Deadline.after(LONG), work):
        late = devalloc_vm("unplug", "web", "lan", "--timeout", "1s")
    assert late.code == 1
    example = next(line for line in GUIDE.read_text().splitlines() if line.startswith("error: lan: failed"))
    words = (r"for \d+ s", r"\d\d:\d\d:\d\d UTC", r"process \d+")
    shown, expected = late.err.strip(), example
    for word in words:
        shown, expected = re.sub(word, "...", shown), re.sub(word, "...", expected)
    assert shown == expected
    assert f"process {os.getpid()})" in late.err
    assert devalloc_vm("unplug", "web", "lan").out == "lan unplugged from web\n"


class TestMachines:
    def test_a_machine_from_its_start_to_its_end(self, devalloc_vm: Vm, plugin: Served) -> None:
        plugin.bench.add("a/slot-0")
        created = devalloc_vm.create("web", "claim-uid-0")
        assert (created.code, created.out) == (0, "default/web created\n")
        listed = devalloc_vm("list")
        assert listed.out.splitlines() == [
            "NAME   PHASE     VCPUS   MEMORY   DEVICES   CLAIMS        REASON",
            "web    Running   2       1Gi      1         claim-uid-0",
        ]
        assert devalloc_vm("scale", "web", "--vcpus", "4", "--memory", "2Gi").out == (
            "web has 4 vCPUs and 2Gi of memory\n"
        )
        assert devalloc_vm("scale", "web", "--cpu", "1500m").out == "web has 4 vCPUs, 1500m of CPU and 2Gi of memory\n"
        assert devalloc_vm("get", "web").out.splitlines()[1].split()[2:5] == ["4", "at", "1500m"]
        assert devalloc_vm("scale", "web", "--cpu", "4").out == "web has 4 vCPUs, 4 of CPU and 2Gi of memory\n"
        plugin.machines.stubborn.add("default/web")
        assert devalloc_vm("scale", "web", "--vcpus", "1").code == 1
        assert devalloc_vm("get", "web").out.splitlines()[1].split()[2:6] == ["4", "of", "1", "2Gi"]
        plugin.machines.stubborn.clear()
        assert devalloc_vm("detach", "web", "claim-uid-0").out == "claim-uid-0 detached from web\n"
        assert devalloc_vm("attach", "web", "claim-uid-0").out == "claim-uid-0 attached to web: a/slot-0\n"
        assert devalloc_vm("stop", "web").out == "web stopped\n"
        assert "Stopped" in devalloc_vm("list").out
        assert devalloc_vm("delete", "web").out == "web deleted\n"
        assert plugin.bench.is_initial()
        empty = devalloc_vm("list")
        assert (empty.out, empty.err) == ("", "no machines in namespace default (-A shows all)\n")

    def test_a_disk_and_network_cards_are_plugged_in_shown_and_unplugged(
        self, devalloc_vm: Vm, plugin: Served, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        devalloc_vm.create()
        monkeypatch.chdir("/usr")
        disk = ("--disk", "images/d", "--format", "qcow2", "--read-only", "--nvme")
        assert devalloc_vm("plug", "web", "data", *disk).out == (
            "data plugged into web: /usr/images/d (qcow2, nvme, read-only)\n"
        )
        lan = devalloc_vm("plug", "default/web", "lan", "--tap", "tap0", "--mac", "52:54:00:00:00:01")
        assert lan.out == "lan plugged into default/web: tap0 52:54:00:00:00:01\n"
        assert devalloc_vm("plug", "web", "out", "--user-net").out == "out plugged into web: user network\n"
        assert devalloc_vm("get", "web").out.splitlines()[1].split()[4] == "3"
        assert "lan: tap0 52:54:00:00:00:01; out: user network" in devalloc_vm("get", "web", "-o", "wide").out
        (shown, *_) = devalloc_vm("get", "web", "-o", "json").json["devices"]
        assert shown["disk"] == {"path": "/usr/images/d", "format": "qcow2", "readOnly": True, "device": "nvme"}
        gone = devalloc_vm("unplug", "web", "data", "nothing")
        assert (gone.code, gone.out) == (0, "data unplugged from web\nnothing is not in web\n")
        plugin.machines.stubborn.add("default/web")
        output = devalloc_vm("unplug", "web", "lan", "out")
        assert (output.code, output.out) == (1, "")
        assert output.err.count("[GuestRefused] (it may succeed later)") == 2

    def test_a_detached_device_is_released_when_its_claim_is_unprepared(self, devalloc_vm: Vm, plugin: Served) -> None:
        plugin.bench.add("a/slot-0")
        devalloc_vm.create("web", "claim-uid-0")
        devalloc_vm("detach", "web", "claim-uid-0")
        assert not plugin.bench.is_initial()
        assert devalloc_vm("unprepare", "claim-uid-0").out == "claim-uid-0 unprepared\n"
        assert plugin.bench.is_initial()
        again = devalloc_vm("unprepare", "claim-uid-0")
        assert (again.code, again.out) == (0, "claim-uid-0 is not prepared here\n"), "nothing had to be done"

    def test_of_several_prepared_claims_of_one_name_the_one_with_the_uid_is_meant(
        self, devalloc_vm: Vm, plugin: Served
    ) -> None:
        """As where the store was replaced, and the former one's claim is still prepared."""
        for uid in ("one", "two"):
            plugin.bench.claims.prepare(plugin.bench.grants.add(uid, f"{uid}/slot-0", name="train"))
        assert "[ClaimAmbiguous]" in devalloc_vm("unprepare", "train").err
        assert devalloc_vm("unprepare", "train", "other", "--uid", "one").code == 2
        assert devalloc_vm("unprepare", "train", "--uid", "one").out == "train unprepared\n"
        assert [record.ref.uid for record in plugin.bench.journal.claims()] == ["two"]

    def test_removing_a_missing_object_reports_that_it_was_missing(self, devalloc_vm: Vm, plugin: Served) -> None:
        plugin.bench.add("a/slot-0")
        devalloc_vm.create("web")
        for line, *args in (
            ("never does not exist", "delete", "never"),
            ("nothere is not prepared here", "unprepare", "nothere"),
            ("claim-uid-0 is not in web", "detach", "web", "claim-uid-0"),
        ):
            output = devalloc_vm(*args)
            assert (output.code, output.out) == (0, f"{line}\n")

    def test_one_machine_is_printed_as_it_is_and_several_as_a_list(self, devalloc_vm: Vm) -> None:
        devalloc_vm.create("a")
        devalloc_vm.create("b")
        assert devalloc_vm("get", "a", "-o", "json").json["machine"]["name"] == "a"
        both = devalloc_vm("get", "a", "b", "-o", "json").json["items"]
        assert [one["machine"]["name"] for one in both] == ["a", "b"]

    def test_unprepare_ends_a_machine_only_by_force(self, devalloc_vm: Vm, plugin: Served) -> None:
        plugin.bench.add("a/slot-0")
        devalloc_vm.create("web", "claim-uid-0")
        plugin.machines.stubborn.add("default/web")
        refused = devalloc_vm("unprepare", "claim-uid-0")
        assert (refused.code, refused.out) == (1, "")
        assert "[GuestRefused] (it may succeed later)" in refused.err
        assert not plugin.bench.is_initial()
        forced = devalloc_vm("unprepare", "claim-uid-0", "--force")
        assert forced.out == "claim-uid-0 unprepared; default/web was killed for it\n"
        assert plugin.bench.is_initial()

    def test_json_holds_numbers_and_names(self, devalloc_vm: Vm, plugin: Served) -> None:
        devalloc_vm.create()
        (machine,) = devalloc_vm("list", "-A", "-o", "json").json["items"]
        assert machine["machine"] == {"namespace": "default", "name": "web"}
        assert machine["phase"] == "Running"
        assert machine["observed"] == {"cpuMilli": 2000, "vcpus": 2, "memoryBytes": 1 << 30}
        assert devalloc_vm("list", "-o", "name").out == "default/web\n"
        assert "phase: Running" in devalloc_vm("get", "web", "-o", "yaml").out

    def test_namespaces(self, devalloc_vm: Vm) -> None:
        devalloc_vm("create", "-f", "-", stdin=text(vm("web", namespace="team-a")))
        assert devalloc_vm("list").out == ""
        assert "web" in devalloc_vm("list", "-n", "team-a").out
        assert "team-a/web" in devalloc_vm("list", "-A", "-o", "wide").out
        assert devalloc_vm("get", "team-a/web").code == 0

    def test_adopts_by_option_and_by_manifest(self, devalloc_vm: Vm, plugin: Served) -> None:
        output = devalloc_vm("adopt", "a", "--qmp-socket", "/run/a.qmp", "--cpu", "1..4", "--memory", "512Mi..2Gi")
        assert (output.code, output.out) == (0, "a adopted\n")
        manifest = vm("b", adopt={"qmpSocket": "/run/b.qmp"})
        assert devalloc_vm("create", "-f", "-", stdin=text(manifest)).out == "default/b adopted\n"
        assert plugin.machines.calls == ["adopt default/a", "adopt default/b"]

    def test_says_by_which_way_memory_is_added_to_one_that_it_adopts(self, devalloc_vm: Vm, plugin: Served) -> None:
        given = ("--qmp-socket", "/run/a.qmp", "--cpu", "1..4", "--memory", "512Mi..2Gi")
        assert devalloc_vm("adopt", "a", *given, "--slot-size", "512Mi").code == 0
        assert plugin.machines.views["default/a"].started.dimm_bytes == 512 << 20
        refused = devalloc_vm("adopt", "b", *given, "--slot-size", "100Mi")
        assert (refused.code, refused.err) == (
            2,
            "error: spec.memory.slotSize: must be a multiple of 128Mi, but is 104857600\n",
        )


class TestRefusals:
    def test_denied_and_failed_have_their_own_code_and_advice(self, devalloc_vm: Vm, plugin: Served) -> None:
        devalloc_vm.create()
        refused = devalloc_vm("attach", "web", "absent")
        assert refused.code == 1
        assert refused.err == "error: absent: denied: claim default/absent not found [ClaimNotFound]\n"
        plugin.machines.stubborn.add("default/web")
        failed = devalloc_vm("scale", "web", "--vcpus", "1")
        assert failed.code == 1
        assert "error: web: vCPUs: denied: " in failed.err
        assert "[GuestRefused] (it may succeed later)" in failed.err
        assert failed.out == "web has 2 vCPUs and 1Gi of memory\n"
        machines = plugin.machines.views
        machines["default/web"] = replace(machines["default/web"], observed=UNKNOWN_AMOUNTS)
        assert devalloc_vm("scale", "web", "--vcpus", "1").out == "", "what is not known is not 0"
        assert devalloc_vm("stop", "web").code == 1
        assert devalloc_vm("stop", "web", "--force").code == 0

    def test_a_machine_that_does_not_exist(self, devalloc_vm: Vm) -> None:
        devalloc_vm.create()
        output = devalloc_vm("get", "web", "absent")
        assert output.code == 1
        assert "web" in output.out
        assert "machine default/absent not found" in output.err

    @pytest.mark.parametrize(
        ("args", "words"),
        [
            (["get", "../x"], "machine.namespace: must be a DNS label"),
            (["get", "wéb"], "not 'wéb'"),
            (["scale", "web"], "give at least one of --vcpus"),
            (["plug", "web", "x"], "give one of --disk, --tap and --user-net"),
            (["plug", "web", "x", "--disk", "/d", "--tap", "tap0"], "give one of --disk"),
            (["plug", "web", "x", "--disk", "/d"], "give the image's --format, raw or qcow2"),
            (["plug", "web", "x", "--disk", "/d", "--format", "raw", "--mac", "x"], "--mac needs"),
            (["plug", "web", "x", "--tap", "tap0", "--nvme"], "--nvme need --disk"),
            (["plug", "web", "X", "--user-net"], "name: must be a DNS label in lower case of at most 20 characters"),
            (["plug", "web", "x", "--user-net", "--mac", "lots"], "nic.mac: "),
            (["unplug", "web", "claim-1"], "attach and detach their claim instead"),
            (["scale", "web", "--memory", "lots"], "is not an amount of bytes"),
            (["scale", "web", "--cpu", "1.0001"], "is not an amount of cores"),
            (["adopt", "a", "--qmp-socket", "/x", "--cpu", "4..1", "--memory", "2Mi"], "cpu.max"),
        ],
    )
    def test_bad_input_says_where(self, devalloc_vm: Vm, args: list[str], words: str) -> None:
        output = devalloc_vm(*args)
        assert output.code == 2
        assert words in output.err

    def test_only_machines_are_created_and_wrong_fields_have_their_path(self, devalloc_vm: Vm) -> None:
        wrong = vm("wrong")
        wrong["spec"]["memory"]["max"] = "1Mi"
        claim = {
            "apiVersion": "devmgmtproto.k8s.io/v1alpha1",
            "kind": "DeviceClaim",
            "metadata": {"name": "c"},
            "spec": {"claims": [{"deviceClass": "gpu"}]},
        }
        output = devalloc_vm("create", "-f", "-", stdin=text(wrong, claim, vm("right")))
        assert output.code == 2
        assert output.out == "default/right created\n"
        assert "spec.memory.max" in output.err
        assert "`devalloc vm create` creates VirtualMachines only, not DeviceClaim" in output.err

    def test_of_several_machines_each_wrong_one_is_named_and_the_others_are_made(
        self, devalloc_vm: Vm, plugin: Served
    ) -> None:
        manifests = [vm("rests", running=False), vm("web", nics=[{"backend": "tap", "interface": "way-too-long-name"}])]
        output = devalloc_vm("create", "-f", "-", stdin=text(*manifests, vm("good")))
        assert (output.code, output.out) == (2, "default/good created\n")
        web, rests = output.err.splitlines()
        assert rests.startswith("error: stdin, document 1: machine default/rests: spec.running is false")
        assert web.startswith("error: stdin, document 2")

    def test_a_machine_for_another_node_is_refused(self, devalloc_vm: Vm) -> None:
        output = devalloc_vm("create", "-f", "-", stdin=text(vm(nodeName="node-b")))
        assert output.code == 2
        assert "this node is node-a: send the request to that node" in output.err


class TestSocket:
    def test_users_find_their_own_plugin_or_learn_that_it_is_roots(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root, own = tmp_path / "run" / "node.sock", tmp_path / "devalloc" / "node" / "node.sock"
        exists = Path.exists

        def seen(path: Path) -> bool:
            if path == root:  # its folder is root's alone
                raise PermissionError(13, "Permission denied")
            return exists(path)

        monkeypatch.setattr(places, "DEFAULT_SOCKET", root)
        monkeypatch.setattr(Path, "exists", seen)
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        assert places.default_socket() == root
        own.parent.mkdir(parents=True)
        own.touch()
        assert places.default_socket() == own
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        assert places.default_socket() == root

    def test_without_a_plugin_it_says_how_to_start_one(self, devalloc: Shell, tmp_path: Path) -> None:
        for verb in (["vm", "list"], ["vm", "top"]):
            output = devalloc(*verb, "--socket", tmp_path / "no.sock")
            assert output.code == 1
            assert "no node plugin at" in output.err
            assert "devalloc node" in output.err

    @pytest.mark.parametrize(("user", "command"), [(0, "`devalloc up`"), (1000, "`devalloc up --node`")])
    def test_what_it_says_to_start_runs_the_plugin(
        self, devalloc: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, command: str
    ) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: user)
        assert f" or {command}, or name another socket" in devalloc("vm", "list", "--socket", tmp_path / "no.sock").err

    def test_a_plugin_that_ended_has_another_message_than_one_that_never_ran(
        self, devalloc: Shell, tmp_path: Path
    ) -> None:
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(tmp_path / "left.sock"))
        output = devalloc("vm", "list", "--socket", tmp_path / "left.sock")
        assert output.code == 1
        assert "no answer at" in output.err

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
    def test_a_refused_socket_names_who_may_open_it(self, plugin: Served) -> None:
        os.seteuid(65534)
        try:
            with (
                pytest.raises(CommandFailed, match="only root and the node plugin's user may open"),
                connect_plugin(plugin.socket),
            ):
                pytest.fail("it was opened")
        finally:
            os.seteuid(0)

    def test_a_machine_with_running_false_is_not_started(self, devalloc: Shell, plugin: Served, tmp_path: Path) -> None:
        (tmp_path / "vm.json").write_text(json.dumps(vm("web", running=False)))
        refused = devalloc("vm", "create", "-f", tmp_path / "vm.json", "--socket", plugin.socket)
        assert (refused.code, "spec.running is false" in refused.err) == (2, True)
        assert plugin.machines.views == {}

    def test_the_environment_names_it(self, plugin: Served, devalloc: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DEVALLOC_NODE_SOCKET", str(plugin.socket))
        assert devalloc("vm", "list").code == 0


class TestTop:
    def test_shows_what_machines_have_and_use(self, devalloc: Shell, plugin: Served) -> None:
        plugin.bench.add("a/slot-0")
        plugin.node.CreateMachine(
            machine_request(vm("web", "claim-uid-0", nics=[{"backend": "tap", "interface": "tap7"}]))
        )
        machines = plugin.machines.views
        machines["default/web"] = replace(machines["default/web"], pid=os.getpid())
        wide = ["vm", "top", "-o", "wide", "--interval", "10ms", "--socket", plugin.socket]
        header, row = devalloc(*wide).out.splitlines()
        assert header.split() == [*HEADERS, "DEVICES", "CLAIMS", "TAP", "PID"]
        cells = dict(zip(HEADERS, re.split(r" {2,}", row), strict=False))
        assert (cells["NAME"], cells["PHASE"], cells["OBSERVED"]) == ("default/web", "Running", "2 1Gi")
        assert cells["CPU"].endswith("%")
        assert row.split()[-4:] == ["a/slot-0", "claim-uid-0", "tap7", str(os.getpid())]
        (item,) = devalloc("vm", "top", "--interval", "10ms", "-o", "json", "--socket", plugin.socket).json["items"]
        assert item["rssBytes"] > 1 << 20
        assert item["cores"] >= 0

    def test_devices_that_no_claim_stands_for_have_their_names(self, devalloc: Shell, plugin: Served) -> None:
        plugin.bench.add("a/slot-0")
        plugin.node.CreateMachine(machine_request(vm("web", "claim-uid-0")))
        assert devalloc("vm", "plug", "web", "lan", "--user-net", "--socket", plugin.socket).code == 0
        row = devalloc("vm", "top", "-o", "wide", "--interval", "1ms", "--socket", plugin.socket).out.splitlines()[1]
        assert " a/slot-0, lan " in row

    def test_what_may_not_be_read_is_a_dash(self, devalloc: Shell, plugin: Served) -> None:
        plugin.node.CreateMachine(machine_request(vm("web")))
        machines = plugin.machines.views
        machines["default/web"] = replace(machines["default/web"], pid=2**22 + 1)
        assert (
            devalloc("vm", "top", "--interval", "1ms", "--socket", plugin.socket).out.splitlines()[1].split()[-1] == "-"
        )

    def test_the_name_of_a_process_may_hold_anything(self, tmp_path: Path) -> None:
        ticks = os.sysconf("SC_CLK_TCK")
        (tmp_path / "7").mkdir()
        rest = ["S", *["0"] * 10, str(3 * ticks), str(ticks), *["0"] * 6, "777", "0", "256"]
        (tmp_path / "7" / "stat").write_text(f"7 (qemu) S 1 (x) {' '.join(rest)} 0 0\n")
        usage = sample_process(7, tmp_path)
        assert usage is not None
        assert (usage.cpu_seconds, usage.started, usage.rss_bytes) == (4.0, 777, 256 * os.sysconf("SC_PAGE_SIZE"))

    def test_of_machines_that_are_scaled_all_amounts_are_shown(
        self, devalloc: Shell, devalloc_vm: Vm, plugin: Served
    ) -> None:
        devalloc_vm.create()
        devalloc_vm.create("plain")
        gib = 1 << 30
        report = ScalingReport(
            Resources(3000, 3 * gib), Resources(2500, 2 * gib), Resources(2250, 2 * gib), None,
            StuckReason("PermitShort", "the node has no room"), (StuckReason("MetricsMissing", "quiet"),),
            guest=GuestReport(2, 2000 << 20), load=SystemMetrics(2.5, 2.0, 1.5 * gib),
        )  # fmt: skip
        plugin.operations.report = lambda key: report if key == "default/web" else None
        plugin.operations.want("default/web", MachineAmounts(3000, None, 3 * gib))
        header, plain, web = devalloc("vm", "top", "--interval", "10ms", "--socket", plugin.socket).out.splitlines()
        starts = {name: header.index(name) for name in header.split()}
        ends = dict(zip(starts, [*list(starts.values())[1:], None], strict=True))
        row = {name: web[at : ends[name]].strip() for name, at in starts.items()}
        assert row == {
            "NAME": "default/web", "PHASE": "Running", "WANTED": "3 3Gi", "PERMITTED": "2500m 2Gi",
            "APPLIED": "2250m 2Gi", "OBSERVED": "2 1Gi", "GUEST": "2 2.0Gi", "LOAD": "2.50", "CPU": "-",
            "USED": "1.5Gi", "RSS": "-", "REASON": "PermitShort",
        }  # fmt: skip
        assert plain[starts["GUEST"] : ends["LOAD"]].split() == ["-", "-"]
        (_, item) = devalloc("vm", "top", "--interval", "10ms", "-o", "json", "--socket", plugin.socket).json["items"]
        assert item["scaling"]["reason"] == "PermitShort"
        assert item["scaling"]["message"] == "the node has no room; quiet"
        elsewhere = devalloc("vm", "top", "-n", "other", "--interval", "1ms", "--socket", plugin.socket)
        assert elsewhere.err == "no machines\n"

    def test_another_process_of_the_same_number_is_not_counted(self) -> None:
        own_usage = sample_process(os.getpid())
        assert own_usage is not None
        later = replace(own_usage, at=own_usage.at + 2, cpu_seconds=own_usage.cpu_seconds + 3)
        assert usage_between({1: own_usage}, {1: later})[1].cores == pytest.approx(1.5)
        assert usage_between({1: own_usage}, {1: replace(later, started=0)}) == {}


class TestAmounts:
    @pytest.mark.parametrize(
        ("number", "shown"),
        [(0, "0"), (1023, "1023"), (1024, "1Ki"), (1536 << 20, "1.5Gi"), (1 << 30, "1Gi"), ((1 << 30) + 1, "1.0Gi")],
    )
    def test_bytes_as_people_write_them(self, number: int, shown: str) -> None:
        assert format_size(number) == shown

    def test_amounts_are_exact(self) -> None:
        assert (parse_bytes("2Gi"), parse_milli("1500m"), parse_milli("0.001")) == (2 << 30, 1500, 1)
        assert parse_bounds("500m..2", "cpu") == (500, 2000)
        assert parse_bounds("512Mi", "memory") == (512 << 20, 512 << 20)
        for wrong in ("1.5", "-1", "99999Ei", ""):
            with pytest.raises(click.BadParameter):
                parse_bytes(wrong)

    @pytest.mark.parametrize(
        "manifest",
        [
            vm("a", "one", "two"),
            vm("b", memory={"min": "512Mi", "max": "1Gi", "method": "dimm", "slotSize": "128Mi"}),
            vm("c", restartPolicy="Never", pciSlots=3, powerdownSeconds=0, cpu={"min": "500m", "max": 2}),
            vm(
                "d",
                start={"disks": [{"path": "/i/a.raw", "format": "raw", "readOnly": True, "device": "nvme"}]},
                nics=[{"model": "e1000e", "backend": "tap", "interface": "tap0", "mac": "02:00:00:00:00:01"}, {}],
            ),
            vm("n", start={"kernel": "/i/vmlinuz", "iommu": True, "numaNode": 0}),
            vm("e", adopt={"qmpSocket": "/run/e.qmp"}, powerdownSeconds=5),
            vm("f", scaling={"address": "10.0.0.5", "memoryUsageFractionTarget": "500m"}, reserveMax=True, disk="20Gi"),
            vm("g", runner={"address": "127.7.0.9"}, diskIO="100M", nics=[{"bandwidth": "125M"}]),
        ],
        ids=lambda manifest: str(manifest["metadata"]["name"]),
    )
    def test_a_manifest_means_the_same_over_the_wire(self, manifest: object) -> None:
        machine = machine_of(manifest)
        request = machine_request(machine.to_manifest())
        if isinstance(request, pb.AdoptMachineRequest):
            there = request_fields.machine_to_adopt(request, "node-a")
        else:
            there = request_fields.machine_to_start(request, "node-a")
        assert there.spec == machine.spec.model_copy(update={"node_name": "node-a"})
