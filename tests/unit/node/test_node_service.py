"""``devalloc.node.v1`` on a real socket: claims, machines, who called, and what comes of bad input."""

from __future__ import annotations

import json
import logging
import os
import random
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from devalloc.api.pool import DevicePool
from devalloc_machines.qemu.records import State
from devalloc_machines.service.service import CONSOLES
from devalloc_node.binding.binding import HealthState
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, Unknown
from devalloc_node.host.lock_folder import MOST_WAITING
from devalloc_node.pb import node_pb2 as pb
from devalloc_node.service import calls
from tests.support.node_service import Served, served
from tests.support.toy_machines import ToyMachines
from tests.support.waiting import LONG, until

DONE, DENIED, FAILED, UNKNOWN = pb.Result.DONE, pb.Result.DENIED, pb.Result.FAILED, pb.Result.UNKNOWN


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as service:
        yield service


def claim(name: str = "claim-uid-0", uid: str = "") -> pb.ClaimRef:
    return pb.ClaimRef(name=name, uid=uid)


def web(name: str = "web") -> pb.MachineRef:
    return pb.MachineRef(name=name)


def creation(name: str = "web", *claims: str) -> pb.CreateMachineRequest:
    spec = pb.MachineSpec(
        cpu=pb.CpuBounds(min_milli=1000, use_milli=2000, max_milli=4000),
        memory=pb.MemoryBounds(min_bytes=512 << 20, use_bytes=1 << 30, max_bytes=2 << 30),
        start=pb.Start(kernel="/images/vmlinuz"),
    )
    return pb.CreateMachineRequest(machine=web(name), spec=spec, claims=[claim(each) for each in claims])


@pytest.mark.parametrize(
    ("waits", "works"), [(2, 1.5), (8, 7.2), (40, 37), (300, 297), (3600, 600), (None, 40)], ids=str
)
def test_work_takes_as_long_as_its_caller_waits_but_for_the_time_of_the_answer(
    plugin: Served, monkeypatch: pytest.MonkeyPatch, waits: float | None, works: float
) -> None:
    dues: list[Deadline] = []
    plugin.node.CreateMachine(creation())
    monkeypatch.setattr(plugin.machines, "stop", lambda key, seconds, force, due: dues.append(due))
    began = time.monotonic()
    plugin.node.StopMachine(pb.StopMachineRequest(machine=web()), timeout=waits)
    assert works - 0.3 < dues[0].at - began < works + 1.3, "gRPC rounds what it tells of the caller's time"


@pytest.mark.parametrize(("waits", "works"), [(2, 1.0), (40, 27), (3600, 600)], ids=str)
def test_a_caller_still_hears_that_a_device_without_addresses_was_taken_out(
    plugin: Served, monkeypatch: pytest.MonkeyPatch, waits: float, works: float
) -> None:
    """Which may take ten seconds more, for the guest takes part in it."""
    dues: list[Deadline] = []
    plugin.node.CreateMachine(creation())

    def refuse(key: str, device: object, due: Deadline, **_: object) -> None:
        dues.append(due)
        raise Denied("GuestNotReady", "no addresses", retryable=True)

    monkeypatch.setattr(plugin.machines, "plug_in", refuse)
    began = time.monotonic()
    assert plugin.node.PlugDevice(plug("disk"), timeout=waits).result.code == "GuestNotReady"
    assert works - 0.3 < dues[0].at - began < works + 1.3, "gRPC rounds what it tells of the caller's time"


def test_a_machine_whose_memory_is_locked_has_the_time_for_it(plugin: Served) -> None:
    plugin.bench.add("a/slot-0")
    given = {}
    for memory in (1 << 30, 300 << 30):
        request = creation("web", "claim-uid-0")
        request.spec.memory.CopyFrom(pb.MemoryBounds(min_bytes=memory, max_bytes=memory))
        assert plugin.node.CreateMachine(request).result.outcome == DONE
        given[memory] = plugin.machines.given["default/web"]
        plugin.node.DeleteMachine(pb.DeleteMachineRequest(machine=web()))
    assert given[1 << 30] < 45
    assert given[300 << 30] > 300


def test_what_a_guest_refuses_until_the_deadline_reaches_who_asked(
    plugin: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(key: str, seconds: float | None, force: bool, due: Deadline) -> None:
        time.sleep(due.seconds)
        raise Denied("GuestRefused", f"machine {key}: the guest goes on", retryable=True)

    plugin.node.CreateMachine(creation())
    monkeypatch.setattr(plugin.machines, "stop", refuse)
    reply = plugin.node.StopMachine(pb.StopMachineRequest(machine=web()), timeout=0.8)
    assert (reply.result.outcome, reply.result.code) == (DENIED, "GuestRefused")


class TestOneChangeAtATime:
    """Of one machine: a second one waits for the first as long as its caller does."""

    @pytest.fixture
    def scaling(self, plugin: Served) -> Iterator[threading.Event]:
        """A machine whose memory is being scaled, until this is set or the test ends."""
        begun, over = threading.Event(), threading.Event()

        def touched() -> None:
            begun.set()
            assert over.wait(LONG)

        plugin.node.CreateMachine(creation())
        plugin.node.PlugDevice(plug("early"))
        plugin.machines.touched = touched
        request = pb.ScaleMachineRequest(machine=web(), memory_bytes=2 << 30)
        first = plugin.node.ScaleMachine.future(request, timeout=LONG)
        assert begun.wait(LONG)
        plugin.machines.calls.clear()
        yield over
        over.set()
        assert first.result().result.outcome == DONE

    @pytest.fixture
    def waiting(self, plugin: Served, monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
        """Gets one more for each change whose turn has not come."""
        arrived, exclusive = threading.Semaphore(0), plugin.operations.claims.exclusive

        def tell(*arguments: Any) -> Any:
            arrived.release()
            return exclusive(*arguments)

        monkeypatch.setattr(plugin.operations.claims, "exclusive", tell)
        return arrived

    def unplug(self) -> pb.UnplugDeviceRequest:
        return pb.UnplugDeviceRequest(machine=web(), name="early")

    def test_it_is_done_when_the_first_one_has_ended(
        self, plugin: Served, scaling: threading.Event, waiting: threading.Semaphore
    ) -> None:
        second = plugin.node.UnplugDevice.future(self.unplug(), timeout=LONG)
        assert waiting.acquire(timeout=LONG)
        assert not second.done()
        scaling.set()
        assert second.result() == pb.UnplugDeviceReply(result=pb.Result(outcome=DONE), found=True)

    @pytest.mark.parametrize("machine_call", ["UnplugDevice", "StopMachine", "ScaleMachine", "DeleteMachine"])
    def test_at_its_deadline_it_says_who_holds_the_machine(
        self, plugin: Served, scaling: threading.Event, machine_call: str
    ) -> None:
        requests: dict[str, Message] = {
            "UnplugDevice": self.unplug(),
            "StopMachine": pb.StopMachineRequest(machine=web()),
            "ScaleMachine": pb.ScaleMachineRequest(machine=web(), vcpus=2),
            "DeleteMachine": pb.DeleteMachineRequest(machine=web()),
        }
        result = getattr(plugin.node, machine_call)(requests[machine_call], timeout=1).result
        assert (result.outcome, result.code, result.retryable) == (FAILED, "Busy", True)
        assert result.message.startswith("machine default/web is busy: scale memory (for uid "), result.message
        for words in (f"pid {os.getpid()} (", "has been in progress for", f"process {os.getpid()})", "--timeout"):
            assert words in result.message
        assert plugin.machines.calls == []

    def test_each_of_several_amounts_waits_for_the_machine_as_long_as_the_call_does(
        self, plugin: Served, scaling: threading.Event, waiting: threading.Semaphore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dues: list[float] = []
        scale = plugin.machines.scale
        real = plugin.operations.claims.exclusive

        def noted(name: str, due: Deadline, work: str) -> Any:
            dues.append(due.seconds)
            return real(name, due, work)

        monkeypatch.setattr(plugin.operations.claims, "exclusive", noted)
        given: list[float] = []

        def took(key: str, what: str, amount: int, due: Deadline) -> None:
            given.append(due.seconds)
            scale(key, what, amount, due)

        monkeypatch.setattr(plugin.machines, "scale", took)
        request = pb.ScaleMachineRequest(machine=web(), vcpus=2, memory_bytes=1 << 30)
        second = plugin.node.ScaleMachine.future(request, timeout=100)
        assert waiting.acquire(timeout=LONG)
        scaling.set()
        assert second.result().result.outcome == DONE
        assert dues[0] > 90
        assert given[0] < 50, "and the first one leaves half of what is left then to the second"

    def test_one_whose_caller_goes_meanwhile_is_never_begun(
        self,
        plugin: Served,
        scaling: threading.Event,
        waiting: threading.Semaphore,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level(logging.INFO)
        second = plugin.node.UnplugDevice.future(self.unplug(), timeout=LONG)
        assert waiting.acquire(timeout=LONG)
        second.cancel()
        until(lambda: "Cancelled" in caplog.text, "the wait has ended")
        scaling.set()
        plugin.node.StopMachine(pb.StopMachineRequest(machine=web()))
        assert not [call for call in plugin.machines.calls if call.startswith("unplug")]

    def test_however_many_wait_others_are_answered_and_too_many_are_refused_at_once(
        self, plugin: Served, scaling: threading.Event
    ) -> None:
        plugin.node.ListDevices(pb.ListDevicesRequest())
        seconds = [plugin.node.UnplugDevice.future(self.unplug(), timeout=LONG) for _ in range(MOST_WAITING + 8)]
        until(lambda: sum(second.done() for second in seconds) == 8, "what is too much is refused")
        refused = [second.result().result for second in seconds if second.done()]
        assert {result.code for result in refused} == {"Busy"}
        assert all("scale memory" in each.message and "other calls are waiting" in each.message for each in refused)
        assert plugin.node.GetMachine(pb.GetMachineRequest(machine=web()), timeout=LONG).phase == pb.Machine.RUNNING
        scaling.set()
        results = [second.result() for second in seconds]
        assert sum(reply.result.outcome == DONE for reply in results) == MOST_WAITING
        assert sum(reply.found for reply in results) == 1


class TestClaims:
    def test_a_claim_is_prepared_listed_with_its_steps_and_unprepared(self, plugin: Served) -> None:
        plugin.bench.add("a/slot-1")
        reply = plugin.node.PrepareClaim(pb.PrepareClaimRequest(claim=claim()))
        assert reply.result.outcome == DONE
        (device,) = reply.claim.devices
        assert (device.pool, device.device, device.binding, list(device.functions)) == ("a", "slot-1", "toy", ["a/1"])
        (listed,) = plugin.node.ListClaims(pb.ListClaimsRequest(steps=True)).claims
        assert listed == reply.claim
        assert listed.state == pb.Claim.PREPARED
        assert {step.kind: step.done for step in listed.steps} == {"use": True, "property": True, "reset": True}
        reply = plugin.node.UnprepareClaim(pb.UnprepareClaimRequest(claim=claim(uid="uid-0")))
        assert reply == pb.UnprepareClaimReply(result=pb.Result(outcome=DONE), found=True)
        assert plugin.bench.host.state == {}
        assert not plugin.node.ListClaims(pb.ListClaimsRequest()).claims

    def test_without_a_uid_the_claim_that_has_the_name_is_meant(self, plugin: Served) -> None:
        plugin.bench.add("a/slot-1")
        plugin.bench.claims.prepare(plugin.bench.add("a/slot-2"))
        reply = plugin.node.UnprepareClaim(pb.UnprepareClaimRequest(claim=claim("claim-uid-1")))
        assert reply.result.outcome == DONE
        assert not plugin.bench.journal.claims()

    def test_unprepare_means_the_prepared_claim_though_another_has_its_name_by_now(self, plugin: Served) -> None:
        old = plugin.bench.grants.add("old", "a/slot-0", name="train")
        plugin.bench.claims.prepare(old)
        del plugin.bench.grants.grants["old"]
        plugin.bench.grants.add("new", "a/slot-1", name="train")
        plugin.node.UnprepareClaim(pb.UnprepareClaimRequest(claim=claim("train")))
        assert not plugin.bench.journal.claims()

    def test_of_several_prepared_claims_of_one_name_it_must_be_said_which(self, plugin: Served) -> None:
        for uid in ("one", "two"):
            plugin.bench.claims.prepare(plugin.bench.grants.add(uid, f"{uid}/slot-0", name="train"))
        reply = plugin.node.UnprepareClaim(pb.UnprepareClaimRequest(claim=claim("train")))
        assert (reply.result.outcome, reply.result.code) == (DENIED, "ClaimAmbiguous")
        assert "one, two" in reply.result.message
        assert len(plugin.bench.journal.claims()) == 2

    @pytest.mark.parametrize(
        ("requested", "code"),
        [
            (claim("nobody"), "ClaimNotFound"),
            (claim("nobody", "no-such-uid"), "ClaimNotFound"),
            (claim("claim-uid-0", "another"), "ClaimNotFound"),
        ],
    )
    def test_an_unknown_claim_is_denied_for_itself(self, plugin: Served, requested: pb.ClaimRef, code: str) -> None:
        plugin.bench.add("a/slot-1")
        reply = plugin.node.PrepareClaim(pb.PrepareClaimRequest(claim=requested))
        assert (reply.result.outcome, reply.result.code) == (DENIED, code)
        assert plugin.bench.host.state == {}

    def test_unprepare_of_an_unknown_claim_succeeds(self, plugin: Served) -> None:
        for requested in (claim("nobody"), claim("nobody", "no-such-uid")):
            reply = plugin.node.UnprepareClaim(pb.UnprepareClaimRequest(claim=requested))
            assert (reply.result.outcome, reply.found) == (DONE, False)

    def test_a_dry_run_tells_the_steps_and_takes_none(self, plugin: Served) -> None:
        ref = plugin.bench.add("a/slot-1")
        reply = plugin.node.PrepareClaim(pb.PrepareClaimRequest(claim=claim(), dry_run=True))
        assert reply.result.outcome == DONE
        assert [(step.kind, step.target, step.before, step.after) for step in reply.claim.steps] == [
            ("property", "a/count", "null", "4"),
            ("property", "a/1/setting", "null", '"a"'),
            ("property", "a/1/driver", "null", '"vfio"'),
            ("reset", "a/1/content", "null", '"used"'),
        ]
        assert plugin.bench.host.log == []
        assert not plugin.bench.journal.claims()
        plugin.bench.claims.prepare(ref)
        undo = plugin.node.UnprepareClaim(pb.UnprepareClaimRequest(claim=claim(), dry_run=True))
        assert [step.target for step in undo.steps][:3] == ["a/1/content", "a/1/driver", "a/1/setting"]
        assert plugin.bench.journal.claims()

    def test_what_the_host_refuses_is_failed_and_undone(self, plugin: Served) -> None:
        plugin.bench.add("a/slot-1")

        def refuse(target: str, value: object) -> None:
            if target == "a/1/driver":
                raise OSError(5, "Input/output error", target)

        plugin.bench.host.refuse = refuse
        reply = plugin.node.PrepareClaim(pb.PrepareClaimRequest(claim=claim()))
        assert (reply.result.outcome, reply.result.retryable) == (FAILED, True)
        assert "Input/output error" in reply.result.message
        assert plugin.bench.is_initial()

    def test_a_step_that_cannot_be_undone_shows_in_the_list(self, plugin: Served) -> None:
        plugin.bench.claims.prepare(plugin.bench.add("a/slot-1"))

        def refuse(target: str, value: object) -> None:
            if target == "a/1/driver":
                raise OSError(5, "Input/output error", target)

        plugin.bench.host.refuse = refuse
        assert plugin.node.UnprepareClaim(pb.UnprepareClaimRequest(claim=claim())).result.outcome == FAILED
        (listed,) = plugin.node.ListClaims(pb.ListClaimsRequest()).claims
        assert listed.state == pb.Claim.STUCK
        assert "Input/output error" in listed.message


class TestMachines:
    def test_a_machine_starts_with_the_devices_of_its_claims(self, plugin: Served) -> None:
        plugin.bench.add("a/slot-0", "b/slot-1")
        reply = plugin.node.CreateMachine(creation("web", "claim-uid-0"))
        assert reply.result == pb.Result(outcome=DONE)
        assert reply.machine.phase == pb.Machine.RUNNING
        assert [(d.pool, d.device, d.claim.uid) for d in reply.machine.devices] == [
            ("a", "slot-0", "uid-0"),
            ("b", "slot-1", "uid-0"),
        ]
        assert plugin.machines.calls == ["start default/web", "resume default/web"]
        assert plugin.node.GetMachine(pb.GetMachineRequest(machine=web())) == reply.machine
        assert list(plugin.node.ListMachines(pb.ListMachinesRequest()).machines) == [reply.machine]
        assert not plugin.node.ListMachines(pb.ListMachinesRequest(namespace="other")).machines

    @pytest.mark.parametrize("broken", ["start", "resume", "b/slot-1"])
    def test_a_machine_with_one_device_too_few_is_not_started_at_all(self, plugin: Served, broken: str) -> None:
        plugin.bench.add("a/slot-0", "b/slot-1")
        plugin.machines.fail.add(broken)
        reply = plugin.node.CreateMachine(creation("web", "claim-uid-0"))
        assert (reply.result.outcome, reply.result.retryable) == (FAILED, True)
        assert plugin.machines.views == {}
        assert plugin.machines.devices == {}
        assert plugin.bench.is_initial()
        plugin.machines.fail.clear()
        assert plugin.node.CreateMachine(creation("web", "claim-uid-0")).result.outcome == DONE

    def test_a_claim_that_was_prepared_before_stays_so_when_the_start_fails(self, plugin: Served) -> None:
        plugin.bench.claims.prepare(plugin.bench.add("a/slot-0"))
        plugin.machines.fail.add("resume")
        plugin.node.CreateMachine(creation("web", "claim-uid-0"))
        assert plugin.machines.views == {}
        assert [len(plugin.bench.claims.prepared()), plugin.machines.devices] == [1, {}]

    def test_creating_it_twice_is_creating_it(self, plugin: Served) -> None:
        plugin.bench.add("a/slot-0")
        first = plugin.node.CreateMachine(creation("web", "claim-uid-0"))
        assert plugin.node.CreateMachine(creation("web", "claim-uid-0")) == first
        assert plugin.machines.calls == ["start default/web", "resume default/web"]

    def test_a_start_that_was_cut_off_goes_on(self, plugin: Served) -> None:
        """Killed after the machine was started and before it got its device: its CPUs stand still."""
        plugin.bench.add("a/slot-0")
        plugin.machines.fail.update({"resume", "undo_start", "forget"})
        plugin.node.CreateMachine(creation("web", "claim-uid-0"))
        assert plugin.machines.views["default/web"].state is State.CUT_OFF
        plugin.machines.fail.clear()
        reply = plugin.node.CreateMachine(creation("web", "claim-uid-0"))
        assert (reply.machine.phase, len(reply.machine.devices)) == (pb.Machine.RUNNING, 1)

    def test_too_many_devices_for_its_slots_are_refused_before_any_is_plugged_in(self, plugin: Served) -> None:
        plugin.machines.slots = 1
        plugin.bench.add("a/slot-0", "b/slot-1")
        reply = plugin.node.CreateMachine(creation("web", "claim-uid-0"))
        assert (reply.result.outcome, reply.result.code) == (DENIED, "NoFreePciSlot")
        assert plugin.bench.is_initial()

    def test_deleting_a_machine_gives_its_claims_back(self, plugin: Served) -> None:
        plugin.bench.add("a/slot-0")
        plugin.node.CreateMachine(creation("web", "claim-uid-0"))
        for _ in range(2):
            assert plugin.node.DeleteMachine(pb.DeleteMachineRequest(machine=web())).result.outcome == DONE
        assert plugin.machines.views == {}
        assert plugin.bench.is_initial()

    def test_a_guest_that_does_not_power_down_keeps_its_machine_until_force_ends_it(self, plugin: Served) -> None:
        plugin.bench.add("a/slot-0")
        plugin.node.CreateMachine(creation("web", "claim-uid-0"))
        plugin.machines.stubborn.add("default/web")
        for ask in (
            lambda force: plugin.node.StopMachine(pb.StopMachineRequest(machine=web(), force=force)),
            lambda force: plugin.node.DeleteMachine(pb.DeleteMachineRequest(machine=web(), force=force)),
        ):
            reply = ask(False)
            assert (reply.result.outcome, reply.result.retryable) == (DENIED, True)
            assert "default/web" in reply.result.message
            assert plugin.machines.devices
        assert plugin.node.DeleteMachine(pb.DeleteMachineRequest(machine=web(), force=True)).result.outcome == DONE
        assert plugin.bench.is_initial()

    def test_an_adopted_machine_runs_on_without_its_devices_when_it_is_deleted(self, plugin: Served) -> None:
        plugin.bench.add("a/slot-0")
        request = pb.AdoptMachineRequest(
            machine=web(),
            qmp_socket="/run/vms/web.qmp",
            cpu=pb.CpuBounds(min_milli=1000, max_milli=1000),
            memory=pb.MemoryBounds(min_bytes=2 << 20, max_bytes=4 << 20),
            claims=[claim()],
        )
        reply = plugin.node.AdoptMachine(request)
        assert reply.result.outcome == DONE
        assert reply.machine.adopted
        stopped = plugin.node.StopMachine(pb.StopMachineRequest(machine=web()))
        assert (stopped.result.outcome, stopped.result.code) == (DENIED, "MachineAdopted")
        assert plugin.node.DeleteMachine(pb.DeleteMachineRequest(machine=web())).result.outcome == DONE
        assert plugin.machines.calls == ["adopt default/web", "forget default/web"]
        assert plugin.bench.is_initial()

    def test_a_machine_of_the_store_is_changed_there(self, plugin: Served) -> None:
        plugin.bench.add("a/slot-0")
        plugin.node.CreateMachine(creation())
        machines = plugin.machines.views
        machines["default/web"] = type(machines["default/web"])(key="default/web", uid="vm-1", state=State.RUNNING)
        for reply in (
            plugin.node.CreateMachine(creation()),
            plugin.node.StopMachine(pb.StopMachineRequest(machine=web())),
            plugin.node.DeleteMachine(pb.DeleteMachineRequest(machine=web(), force=True)),
            plugin.node.ScaleMachine(pb.ScaleMachineRequest(machine=web(), vcpus=1)),
            plugin.node.AttachClaim(pb.AttachClaimRequest(claim=claim(), machine=web())),
            plugin.node.DetachClaim(pb.DetachClaimRequest(claim=claim(), machine=web())),
            plugin.node.PlugDevice(plug()),
            plugin.node.UnplugDevice(unplug()),
        ):
            assert (reply.result.outcome, reply.result.code) == (DENIED, "MachineOfStore")
            assert "devalloc apply" in reply.result.message

    def test_each_amount_is_scaled_and_answered_on_its_own(self, plugin: Served) -> None:
        plugin.node.CreateMachine(creation())
        reply = plugin.node.ScaleMachine(pb.ScaleMachineRequest(machine=web(), vcpus=4, memory_bytes=2 << 30))
        assert reply.result.outcome == reply.vcpus.outcome == reply.memory.outcome == DONE
        assert not reply.HasField("cpu")
        assert (reply.observed.vcpus, reply.observed.memory_bytes) == (4, 2 << 30)
        plugin.machines.stubborn.add("default/web")
        reply = plugin.node.ScaleMachine(pb.ScaleMachineRequest(machine=web(), vcpus=1))
        assert reply.result == reply.vcpus
        assert (reply.result.outcome, reply.result.code) == (DENIED, "GuestRefused")
        assert reply.observed.vcpus == 4

    def test_one_that_does_not_answer_is_not_asked_again_when_no_time_is_left_for_it(
        self, plugin: Served, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A look at a QEMU that hangs takes two seconds: the reply came too late for a caller that waited five."""

        def scale(key: str, what: str, amount: int, due: Deadline) -> None:
            monkeypatch.setattr(plugin.machines, "get", lambda key: pytest.fail("it was looked at once more"))
            raise Unknown("MonitorSilent", "QEMU does not answer")

        plugin.node.CreateMachine(creation())
        monkeypatch.setattr(plugin.machines, "scale", scale)
        reply = plugin.node.ScaleMachine(pb.ScaleMachineRequest(machine=web(), vcpus=4))
        assert (reply.vcpus.outcome, reply.result.code) == (UNKNOWN, "MonitorSilent")
        assert not reply.HasField("observed")

    def test_a_machine_shows_the_spec_it_was_created_with(self, plugin: Served) -> None:
        spec = pb.MachineSpec(
            cpu=pb.CpuBounds(min_milli=500, use_milli=1500, max_milli=4000),
            memory=pb.MemoryBounds(
                min_bytes=1 << 30,
                use_bytes=1 << 30,
                max_bytes=3 << 30,
                method="dimm",
                slot_size_bytes=1 << 30,
                huge_pages="1Gi",
            ),
            start=pb.Start(
                kernel="/images/k",
                initrd="/images/i",
                append="quiet",
                disks=[pb.Disk(path="/images/d", format="raw", read_only=True, device="nvme")],
                iommu=True,
                numa_node=0,
                pinned=True,
                firmware=pb.Firmware(type="uefi"),
                tpm=True,
            ),
            nics=[
                pb.Nic(model="e1000e", backend="tap", interface="tap0", mac="52:54:00:00:00:01"),
                pb.Nic(model="virtio", backend="user"),
                pb.Nic(model="virtio", backend="warm"),
            ],
            pci_slots=7,
            restart_policy="Never",
            powerdown_seconds=0,
            node_name="node-a",
            numa_policy="none",
        )
        for _ in range(2):
            reply = plugin.node.CreateMachine(pb.CreateMachineRequest(machine=web(), spec=spec))
            assert reply.result.outcome == DONE
            assert (reply.machine.spec, spec) == (spec, reply.machine.spec)
            spec = reply.machine.spec

    def test_an_adopted_machine_shows_its_bounds(self, plugin: Served) -> None:
        request = pb.AdoptMachineRequest(
            machine=web(),
            qmp_socket="/run/vms/web.qmp",
            cpu=pb.CpuBounds(min_milli=1000, use_milli=1000, max_milli=4000),
            memory=pb.MemoryBounds(min_bytes=1 << 30, use_bytes=1 << 30, max_bytes=2 << 30, method="virtio-mem"),
            node_name="node-b",
        )
        with pytest.raises(grpc.RpcError, match="but this node is node-a"):
            plugin.node.AdoptMachine(request)
        request.node_name = "node-a"
        spec = plugin.node.AdoptMachine(request).machine.spec
        assert (spec.cpu, spec.memory) == (request.cpu, request.memory)
        assert not spec.HasField("start")

    def test_many_slow_guests_hold_up_no_other_call(self, plugin: Served) -> None:
        over, waiting = threading.Event(), threading.Semaphore(0)
        plugin.machines.stopping = lambda: (waiting.release(), over.wait(60))
        names = [f"m{number}" for number in range(24)]
        for name in names:
            plugin.node.CreateMachine(creation(name))
        stops = [plugin.node.StopMachine.future(pb.StopMachineRequest(machine=web(name))) for name in names]
        assert all(waiting.acquire(timeout=60) for _ in names), "each has its thread"
        assert len(plugin.node.ListMachines(pb.ListMachinesRequest(), timeout=30).machines) == len(names)
        over.set()
        assert {stop.result(timeout=60).result.outcome for stop in stops} == {DONE}

    def test_each_amount_has_its_turn(self, plugin: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        plugin.node.CreateMachine(creation())
        had: dict[str, float] = {}
        monkeypatch.setattr(plugin.machines, "scale", lambda key, what, amount, due: had.update({what: due.seconds}))
        request = pb.ScaleMachineRequest(machine=web(), vcpus=4, memory_bytes=2 << 30)
        plugin.node.ScaleMachine(request, timeout=40)
        assert had["vcpus"] < 20 < had["memory"], "who is slow about one leaves the other its time"
        had.clear()
        monkeypatch.setattr(calls, "call_deadline", lambda *_, **__: Deadline.after(0))
        reply = plugin.node.ScaleMachine(request)
        assert {reply.vcpus.code, reply.memory.code} == {"DeadlineExceeded"}
        assert reply.result.retryable
        assert had == {}

    def test_a_machine_that_does_not_exist(self, plugin: Served) -> None:
        with pytest.raises(grpc.RpcError) as refused:
            plugin.node.GetMachine(pb.GetMachineRequest(machine=web()))
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        assert "machine default/web not found on node node-a" in refused.value.details()
        reply = plugin.node.ScaleMachine(pb.ScaleMachineRequest(machine=web(), vcpus=1))
        assert (reply.result.outcome, reply.result.code) == (DENIED, "MachineNotFound")


DISK = pb.Disk(path="/images/d", format="raw")


def plug(name: str = "data", **device: Message) -> pb.PlugDeviceRequest:
    return pb.PlugDeviceRequest(machine=web(), name=name, **(device or {"disk": DISK}))


def unplug(name: str = "data") -> pb.UnplugDeviceRequest:
    return pb.UnplugDeviceRequest(machine=web(), name=name)


class TestPlug:
    def test_disks_and_network_cards_come_and_go_and_are_shown_beside_those_of_claims(self, plugin: Served) -> None:
        plugin.bench.add("a/slot-0")
        plugin.node.CreateMachine(creation("web", "claim-uid-0"))
        reply = plugin.node.PlugDevice(plug())
        assert reply.result == pb.Result(outcome=DONE)
        disk = pb.Disk(path="/images/d", format="raw", device="virtio")
        assert reply.device == pb.MachineDevice(id="plug-data.f0", name="data", host="/images/d", disk=disk)
        assert plugin.node.PlugDevice(plug()) == reply
        reply = plugin.node.PlugDevice(plug("lan", nic=pb.Nic(backend="tap", interface="tap0")))
        assert (reply.device.host, reply.device.nic.model) == ("tap0", "virtio")
        shown = plugin.node.GetMachine(pb.GetMachineRequest(machine=web()))
        assert [device.name for device in shown.devices] == ["", "data", "lan"]
        assert [device.HasField("claim") for device in shown.devices] == [True, False, False]
        assert list(shown.taps) == ["tap0"]
        assert plugin.node.UnplugDevice(unplug()) == pb.UnplugDeviceReply(result=pb.Result(outcome=DONE), found=True)
        assert plugin.node.UnplugDevice(unplug()) == pb.UnplugDeviceReply(result=pb.Result(outcome=DONE))

    @pytest.mark.parametrize(
        ("request_of", "words"),
        [
            (lambda: plug(""), "name: is required"),
            (lambda: plug("a/../b"), "name: must be a DNS label"),
            (lambda: plug("Data"), "name: must be a DNS label"),
            (lambda: plug("a.b"), "name: must be a DNS label"),
            (lambda: plug("x" * 21), "of at most 20 characters"),
            (lambda: plug("claim-0123456789"), "a name of devices of claims"),
            (lambda: pb.PlugDeviceRequest(machine=web(), name="x"), "disk: is required, or nic"),
            (lambda: plug(disk=pb.Disk(format="raw")), "disk.path: is required"),
            (lambda: plug(disk=pb.Disk(path="/images/../etc/shadow", format="raw")), "disk.path: must be an absolute"),
            (lambda: plug(disk=pb.Disk(path="/images/d")), "disk.format: is required"),
            (lambda: plug(disk=pb.Disk(path="/images/d", format="auto")), "disk.format: "),
            (lambda: plug(disk=pb.Disk(path="/images/d", format="raw", device="ide")), "disk.device: "),
            (lambda: plug(nic=pb.Nic(backend="tap")), "nic.interface: is required with backend tap"),
            (lambda: plug(nic=pb.Nic(backend="warm")), "nic.backend: is warm: only a machine that this plugin starts"),
            (lambda: plug(nic=pb.Nic(backend="tap", interface="../../x")), "nic.interface: must be the name"),
            (lambda: plug(nic=pb.Nic(interface="tap0")), "nic.interface: needs backend tap"),
            (lambda: plug(nic=pb.Nic(mac="01:00:5e:00:00:01")), "nic.mac: "),
        ],
    )
    def test_an_invalid_request_names_its_field(self, plugin: Served, request_of: Any, words: str) -> None:
        plugin.node.CreateMachine(creation())
        with pytest.raises(grpc.RpcError) as refused:
            plugin.node.PlugDevice(request_of())
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert words in refused.value.details()
        assert "plug_in default/web" not in plugin.machines.calls

    def test_devices_of_claims_are_not_unplugged(self, plugin: Served) -> None:
        plugin.node.CreateMachine(creation())
        with pytest.raises(grpc.RpcError, match="attach and detach their claim instead"):
            plugin.node.UnplugDevice(unplug("claim-0123456789"))

    def test_only_machines_that_run_have_devices(self, plugin: Served) -> None:
        reply = plugin.node.PlugDevice(plug())
        assert (reply.result.outcome, reply.result.code) == (DENIED, "MachineNotFound")
        plugin.node.CreateMachine(creation())
        plugin.node.PlugDevice(plug())
        plugin.node.StopMachine(pb.StopMachineRequest(machine=web()))
        reply = plugin.node.PlugDevice(plug())
        assert (reply.result.outcome, reply.result.code) == (DENIED, "MachineNotRunning")
        assert plugin.node.UnplugDevice(unplug()) == pb.UnplugDeviceReply(result=pb.Result(outcome=DONE)), "it is"

    def test_a_guest_that_refuses_keeps_its_device(self, plugin: Served) -> None:
        plugin.node.CreateMachine(creation())
        plugin.node.PlugDevice(plug())
        plugin.machines.stubborn.add("default/web")
        reply = plugin.node.UnplugDevice(unplug())
        assert (reply.result.outcome, reply.result.code, reply.result.retryable) == (DENIED, "GuestRefused", True)
        assert len(plugin.node.GetMachine(pb.GetMachineRequest(machine=web())).devices) == 1

    def test_an_adopted_machine_is_let_go_without_them_and_by_force_with_what_its_guest_keeps(
        self, plugin: Served
    ) -> None:
        cpu, memory = (
            pb.CpuBounds(min_milli=1000, max_milli=1000),
            pb.MemoryBounds(min_bytes=2 << 20, max_bytes=4 << 20),
        )
        adoption = pb.AdoptMachineRequest(machine=web(), qmp_socket="/run/vms/web.qmp", cpu=cpu, memory=memory)
        for force in (False, True):
            plugin.node.AdoptMachine(adoption)
            plugin.node.PlugDevice(plug())
            if force:
                plugin.machines.stubborn.add("default/web")
                reply = plugin.node.DeleteMachine(pb.DeleteMachineRequest(machine=web()))
                assert (reply.result.outcome, reply.result.code) == (DENIED, "GuestRefused")
            plugin.machines.calls.clear()
            reply = plugin.node.DeleteMachine(pb.DeleteMachineRequest(machine=web(), force=force))
            assert reply.result.outcome == DONE
            assert plugin.machines.calls == ["unplug default/web", "forget default/web"]


class TestAttach:
    def test_attach_prepares_and_plugs_in_and_unprepare_takes_out_first(self, plugin: Served) -> None:
        plugin.bench.add("a/slot-0", "b/slot-1")
        plugin.node.CreateMachine(creation())
        reply = plugin.node.AttachClaim(pb.AttachClaimRequest(claim=claim(), machine=web()))
        assert reply.result.outcome == DONE
        assert [device.device for device in reply.devices] == ["slot-0", "slot-1"]
        assert plugin.node.AttachClaim(pb.AttachClaimRequest(claim=claim(), machine=web())) == reply
        assert len(plugin.machines.devices) == 2
        (listed,) = plugin.node.ListClaims(pb.ListClaimsRequest()).claims
        assert list(listed.machines) == ["default/web"]
        plugin.node.UnprepareClaim(pb.UnprepareClaimRequest(claim=claim()))
        assert plugin.machines.devices == {}
        assert plugin.bench.is_initial()

    def test_all_devices_of_a_claim_or_none(self, plugin: Served) -> None:
        plugin.bench.add("a/slot-0", "b/slot-1", "c/slot-2")
        plugin.node.CreateMachine(creation())
        plugin.machines.fail.add("c/slot-2")
        reply = plugin.node.AttachClaim(pb.AttachClaimRequest(claim=claim(), machine=web()))
        assert (reply.result.outcome, reply.result.code) == (FAILED, "QemuRefused")
        assert plugin.machines.devices == {}
        assert plugin.bench.is_initial(), "it was prepared for this only"
        plugin.node.PrepareClaim(pb.PrepareClaimRequest(claim=claim()))
        plugin.node.AttachClaim(pb.AttachClaimRequest(claim=claim(), machine=web()))
        (listed,) = plugin.node.ListClaims(pb.ListClaimsRequest(steps=True)).claims
        assert listed.state == pb.Claim.PREPARED
        assert not [step for step in listed.steps if step.kind == "attachment"]

    def test_a_claim_is_in_one_machine(self, plugin: Served) -> None:
        plugin.bench.add("a/slot-0")
        plugin.node.CreateMachine(creation("web", "claim-uid-0"))
        plugin.node.CreateMachine(creation("db"))
        reply = plugin.node.AttachClaim(pb.AttachClaimRequest(claim=claim(), machine=web("db")))
        assert (reply.result.outcome, reply.result.code) == (DENIED, "ClaimAttached")
        assert "default/web" in reply.result.message
        refused = plugin.node.CreateMachine(creation("third", "claim-uid-0"))
        assert (refused.result.outcome, refused.result.code) == (DENIED, "ClaimAttached")
        assert sorted(plugin.machines.views) == ["default/db", "default/web"]
        assert [name.rpartition("/")[0] for name in plugin.machines.devices] == ["default/web"]

    def test_only_into_a_machine_that_runs(self, plugin: Served) -> None:
        plugin.bench.add("a/slot-0")
        plugin.node.CreateMachine(creation())
        plugin.node.StopMachine(pb.StopMachineRequest(machine=web()))
        reply = plugin.node.AttachClaim(pb.AttachClaimRequest(claim=claim(), machine=web()))
        assert (reply.result.outcome, reply.result.code) == (DENIED, "MachineNotRunning")
        assert plugin.bench.is_initial()

    def test_a_guest_that_refuses_keeps_the_device_and_force_ends_the_machine(self, plugin: Served) -> None:
        plugin.bench.add("a/slot-0")
        plugin.node.CreateMachine(creation("web", "claim-uid-0"))
        plugin.machines.stubborn.add("default/web")
        request = pb.DetachClaimRequest(claim=claim(), machine=web())
        reply = plugin.node.DetachClaim(request)
        assert (reply.result.retryable, reply.ended_machine) == (True, False)
        assert "default/web" in reply.result.message
        unprepared = plugin.node.UnprepareClaim(pb.UnprepareClaimRequest(claim=claim()))
        assert (unprepared.result.outcome, unprepared.result.retryable) == (FAILED, True)
        assert "default/web" in unprepared.result.message
        assert plugin.machines.views["default/web"].runs
        forced = plugin.node.UnprepareClaim(pb.UnprepareClaimRequest(claim=claim(), force=True))
        assert (forced.result.outcome, list(forced.ended_machines)) == (DONE, ["default/web"])
        assert plugin.bench.is_initial()

    def test_detach_by_force_says_that_it_ended_the_machine(self, plugin: Served) -> None:
        plugin.bench.add("a/slot-0")
        plugin.node.CreateMachine(creation("web", "claim-uid-0"))
        plugin.machines.stubborn.add("default/web")
        reply = plugin.node.DetachClaim(pb.DetachClaimRequest(claim=claim(), machine=web(), force=True))
        assert (reply.result.outcome, reply.ended_machine, reply.found) == (DONE, True, True)
        assert len(plugin.bench.claims.prepared()) == 1


class TestNode:
    def test_says_who_it_is_even_when_its_journal_cannot_be_read(self, plugin: Served) -> None:
        reply = plugin.node.GetNode(pb.GetNodeRequest())
        assert (reply.version, reply.node_name, reply.boot_id) == ("1.2.3", "node-a", "boot-1")
        assert reply.journal.path == str(plugin.bench.folder)

    def test_lists_devices_with_their_claims_machines_and_health(self, plugin: Served) -> None:
        plugin.pools.append(pool("a", "slot-0", "slot-1"))
        plugin.health["a", "slot-1"] = HealthState("unhealthy", "fell off the bus")
        plugin.bench.add("a/slot-0")
        plugin.node.CreateMachine(creation("web", "claim-uid-0"))
        free, other = plugin.node.ListDevices(pb.ListDevicesRequest(pool="a")).devices
        assert [one.uid for one in free.claims] == ["uid-0"]
        assert list(free.machines) == ["default/web"]
        assert (free.kind, free.function, free.health) == ("gpu", "whole", pb.Device.UNKNOWN)
        assert (other.health, other.health_message) == (pb.Device.UNHEALTHY, "fell off the bus")
        assert not plugin.node.ListDevices(pb.ListDevicesRequest(pool="b")).devices

    def test_rescans(self, plugin: Served) -> None:
        plugin.pools.append(pool("a", "slot-0", "slot-1"))
        reply = plugin.node.Rescan(pb.RescanRequest())
        assert (reply.result.outcome, reply.pools, reply.devices) == (DONE, 1, 2)

    def test_health_and_reflection_stand_beside_it(self, plugin: Served) -> None:
        with grpc.insecure_channel(f"unix:{plugin.socket}") as channel:
            check = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service="devalloc.node.v1.Node")
            )
        assert check.status == health_pb2.HealthCheckResponse.SERVING


class TestWatch:
    def test_tells_what_is_then_what_changes_then_what_is_gone(self, plugin: Served) -> None:
        plugin.node.CreateMachine(creation())
        events = plugin.node.WatchMachines(pb.WatchMachinesRequest())
        first, synced = next(events), next(events)
        assert (first.change, first.machine.machine.name) == (pb.CHANGE_IS, "web")
        assert synced == pb.MachineEvent(change=pb.CHANGE_SYNCED)
        plugin.node.ScaleMachine(pb.ScaleMachineRequest(machine=web(), vcpus=3))
        assert next(events).machine.observed.vcpus == 3
        plugin.node.DeleteMachine(pb.DeleteMachineRequest(machine=web()))
        last = next(event for event in events if event.change == pb.CHANGE_GONE)
        assert last.machine == pb.Machine(machine=pb.MachineRef(namespace="default", name="web"))
        events.cancel()

    def test_devices_are_watched_too(self, plugin: Served) -> None:
        plugin.pools.append(pool("a", "slot-0"))
        plugin.bench.add("a/slot-0")
        events = plugin.node.WatchDevices(pb.WatchDevicesRequest())
        assert next(events).device.device == "slot-0"
        assert next(events).change == pb.CHANGE_SYNCED
        plugin.node.PrepareClaim(pb.PrepareClaimRequest(claim=claim()))
        assert [one.uid for one in next(events).device.claims] == ["uid-0"]
        plugin.pools.clear()
        plugin.notifier.beat()
        assert next(events).change == pb.CHANGE_GONE
        events.cancel()

    def test_more_watchers_than_are_served_are_refused_and_leave_room_again(self, plugin: Served) -> None:
        streams = [plugin.node.WatchMachines(pb.WatchMachinesRequest()) for _ in range(8)]
        assert {next(stream).change for stream in streams} == {pb.CHANGE_SYNCED}
        with pytest.raises(grpc.RpcError) as refused:
            next(plugin.node.WatchMachines(pb.WatchMachinesRequest()))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert plugin.node.GetNode(pb.GetNodeRequest()).node_name == "node-a"
        for stream in streams:
            stream.cancel()

        def is_synced() -> bool:
            try:
                return next(plugin.node.WatchMachines(pb.WatchMachinesRequest())).change == pb.CHANGE_SYNCED
            except grpc.RpcError:
                return False

        until(is_synced, "the places of those who left are free again")


class TestCallers:
    def test_the_audit_log_says_which_process_asked(self, plugin: Served, caplog: pytest.LogCaptureFixture) -> None:
        plugin.bench.add("a/slot-0")
        with caplog.at_level(logging.INFO, "devalloc.audit"):
            plugin.node.PrepareClaim(pb.PrepareClaimRequest(claim=claim()))
            plugin.node.UnprepareClaim(pb.UnprepareClaimRequest(claim=claim(), force=True))
        records = [json.loads(record.getMessage()) for record in caplog.records if record.name == "devalloc.audit"]
        first, second = [record for record in records if record["event"] == "request"]
        assert (first["method"], first["outcome"], first["name"]) == ("PrepareClaim", "done", "default/claim-uid-0")
        assert (first["uid"], first["pid"]) == (os.getuid(), os.getpid())
        assert second["forced"] is True
        (prepared,) = [record for record in records if record["event"] == "prepared"]
        assert f"pid {os.getpid()}" in prepared["caller"]

    def test_only_its_own_user_can_open_the_socket(self, plugin: Served) -> None:
        assert stat.S_IMODE(plugin.socket.stat().st_mode) == 0o600

    def test_the_socket_goes_with_the_service(self, tmp_path: Path) -> None:
        with served(tmp_path) as plugin:
            assert plugin.socket.exists()
        assert not plugin.socket.exists()
        with served(tmp_path) as again:
            assert again.node.GetNode(pb.GetNodeRequest()).node_name == "node-a"


class TestMetrics:
    def test_requests_are_counted_by_method_and_result(self, plugin: Served) -> None:
        plugin.bench.add("a/slot-0")
        plugin.node.PrepareClaim(pb.PrepareClaimRequest(claim=claim()))
        plugin.node.PrepareClaim(pb.PrepareClaimRequest(claim=claim("nobody")))
        with pytest.raises(grpc.RpcError):
            plugin.node.PrepareClaim(pb.PrepareClaimRequest())

        def counted(result: str) -> float | None:
            labels = {"method": "PrepareClaim", "result": result}
            return plugin.metrics.registry.get_sample_value("devalloc_node_requests_total", labels)

        assert [counted(result) for result in ("done", "denied", "invalid", "failed")] == [1, 1, 1, None]


HOSTILE = ["../../etc/passwd", "a/b", "a\0b", "A", " ", "x" * 300, "\u202eevil", "..", "-x"]


class TestBadInput:
    @pytest.mark.parametrize("name", HOSTILE)
    def test_hostile_names_are_refused_with_the_path_of_their_field(self, plugin: Served, name: str) -> None:
        for ask, request, path in (
            (plugin.node.PrepareClaim, pb.PrepareClaimRequest(claim=claim(name)), "claim.name"),
            (
                plugin.node.PrepareClaim,
                pb.PrepareClaimRequest(claim=pb.ClaimRef(name="a", namespace=name)),
                "claim.namespace",
            ),
            (plugin.node.UnprepareClaim, pb.UnprepareClaimRequest(claim=claim(name)), "claim.name"),
            (plugin.node.CreateMachine, creation(name), "machine.name"),
            (plugin.node.CreateMachine, creation("web", "good", name), "claims[1].name"),
            (plugin.node.ListClaims, pb.ListClaimsRequest(namespace=name), "namespace"),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                ask(request)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert refused.value.details().startswith(f"{path}: must be")
        assert plugin.bench.is_initial()
        assert plugin.machines.calls == []

    @pytest.mark.parametrize("uid", ["../x", "a b", "a\0", "x" * 65, "-"])
    def test_hostile_uids(self, plugin: Served, uid: str) -> None:
        with pytest.raises(grpc.RpcError) as refused:
            plugin.node.PrepareClaim(pb.PrepareClaimRequest(claim=claim("a", uid)))
        assert refused.value.details().startswith("claim.uid: must be")

    @pytest.mark.parametrize(
        ("spoil", "path"),
        [
            (lambda r: r.spec.ClearField("cpu"), "spec.cpu"),
            (lambda r: r.spec.ClearField("start"), "spec.start"),
            (lambda r: setattr(r.spec.cpu, "max_milli", 500), "spec.cpu.max"),
            (lambda r: setattr(r.spec.memory, "min_bytes", 1), "spec.memory.min"),
            (lambda r: setattr(r.spec.memory, "max_bytes", 2**64 - 1), "spec.memory.max"),
            (lambda r: setattr(r.spec.memory, "method", "magic"), "spec.memory.method"),
            (lambda r: setattr(r.spec.start, "kernel", "/images/../etc/shadow"), "spec.start.kernel"),
            (lambda r: setattr(r.spec.start, "append", "a\nb"), "spec.start.append"),
            (lambda r: r.spec.start.disks.add(path="/images/a.img"), "spec.start.disks[0].format"),
            (lambda r: setattr(r.spec, "restart_policy", "Sometimes"), "spec.restartPolicy"),
            (lambda r: setattr(r.spec, "pci_slots", 999), "spec.pciSlots"),
            (lambda r: setattr(r.spec, "node_name", "node-b"), "spec.nodeName"),
            (lambda r: setattr(r.spec.start, "numa_node", 1024), "spec.start.numaNode"),
            (lambda r: r.claims.extend([claim("a"), claim("a")]), "claims[1]"),
            (lambda r: r.claims.add(name="a", namespace="other"), "claims[0].namespace"),
        ],
    )
    def test_a_machine_that_makes_no_sense_is_refused_with_the_path(
        self, plugin: Served, spoil: object, path: str
    ) -> None:
        request = creation()
        spoil(request)  # type: ignore[operator]
        with pytest.raises(grpc.RpcError) as refused:
            plugin.node.CreateMachine(request)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.details().startswith(f"{path}: ")
        assert plugin.machines.calls == []

    def test_a_message_of_ten_megabytes_costs_its_call_only(self, plugin: Served) -> None:
        with pytest.raises(grpc.RpcError) as refused:
            plugin.node.PrepareClaim(pb.PrepareClaimRequest(claim=claim("x" * 10_000_000)))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert plugin.node.GetNode(pb.GetNodeRequest()).node_name == "node-a"

    def test_a_thousand_mutations_of_requests_leave_the_service_alive(self, plugin: Served) -> None:
        plugin.pools.append(pool("a", "slot-0"))
        plugin.bench.add("a/slot-0")
        good: list[tuple[str, Message]] = [
            ("PrepareClaim", pb.PrepareClaimRequest(claim=claim(uid="uid-0"), dry_run=True)),
            ("UnprepareClaim", pb.UnprepareClaimRequest(claim=claim(uid="uid-0"), force=True)),
            ("AttachClaim", pb.AttachClaimRequest(claim=claim(), machine=web())),
            ("CreateMachine", creation("web", "claim-uid-0")),
            ("ScaleMachine", pb.ScaleMachineRequest(machine=web(), vcpus=2, memory_bytes=1 << 30)),
            ("DeleteMachine", pb.DeleteMachineRequest(machine=web(), force=True)),
            ("ListDevices", pb.ListDevicesRequest(pool="a")),
        ]
        draw, codes = random.Random(5), set()
        with grpc.insecure_channel(f"unix:{plugin.socket}") as channel:
            for _ in range(1000):
                method, message = draw.choice(good)
                call = channel.unary_unary(f"/devalloc.node.v1.Node/{method}")
                try:
                    call(mutated(draw, message.SerializeToString()), timeout=10)
                    codes.add(grpc.StatusCode.OK)
                except grpc.RpcError as error:
                    codes.add(error.code())
        assert codes <= {
            grpc.StatusCode.OK,
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.NOT_FOUND,
        }
        samples = [s for m in plugin.metrics.registry.collect() for s in m.samples if s.labels.get("result") == "error"]
        assert samples == []
        plugin.node.UnprepareClaim(pb.UnprepareClaimRequest(claim=claim(uid="uid-0"), force=True))
        plugin.node.DeleteMachine(pb.DeleteMachineRequest(machine=web(), force=True))
        assert plugin.bench.is_initial()

    def test_garbage_on_the_socket_costs_its_connection_only(self, plugin: Served) -> None:
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 70_000, b""):
            with socket.socket(socket.AF_UNIX) as raw:
                raw.connect(str(plugin.socket))
                try:
                    raw.sendall(garbage)
                    raw.shutdown(socket.SHUT_WR)
                    while raw.recv(4096):
                        pass
                except OSError:
                    pass
        assert plugin.node.GetNode(pb.GetNodeRequest()).node_name == "node-a"

    def test_a_bug_costs_its_call_only_and_says_so(
        self, plugin: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(ToyMachines, "list", lambda self: 1 / 0)
        with pytest.raises(grpc.RpcError) as failed:
            plugin.node.ListMachines(pb.ListMachinesRequest())
        assert failed.value.code() is grpc.StatusCode.INTERNAL
        assert "this is a bug in devalloc" in failed.value.details()
        assert "ZeroDivisionError" in caplog.text

    def test_a_store_that_does_not_answer_is_a_failure_not_a_no(self, plugin: Served) -> None:
        plugin.bench.add("a/slot-0")
        plugin.bench.grants.fails = Failed("StoreUnavailable", "the store does not answer")
        reply = plugin.node.PrepareClaim(pb.PrepareClaimRequest(claim=claim()))
        assert (reply.result.outcome, reply.result.retryable) == (FAILED, True)


def pool(name: str, *devices: str) -> DevicePool:
    return DevicePool.model_validate(
        {
            "apiVersion": "devmgmtproto.k8s.io/v1alpha1",
            "kind": "DevicePool",
            "metadata": {"name": name},
            "spec": {
                "nodeName": "node-a",
                "driver": "gpu.devalloc.io",
                "attributes": [{"name": "kind", "stringValue": "gpu"}],
                "devices": [
                    {"name": device, "attributes": [{"name": "function", "stringValue": "whole"}]} for device in devices
                ],
            },
        }
    )


def mutated(draw: random.Random, data: bytes) -> bytes:
    """Some bytes changed, left out, doubled or added."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(changed) + 1)
        match draw.randrange(4):
            case 0 if at < len(changed):
                changed[at] = draw.randrange(256)
            case 1:
                del changed[at : at + draw.randint(1, 4)]
            case 2:
                changed[at:at] = draw.randbytes(draw.randint(1, 8))
            case _:
                changed += changed[at : at + 16]
    return bytes(changed)


class TestConsoles:
    @pytest.mark.parametrize(
        "refusal",
        [
            Denied("NoConsole", "machine default/web was adopted"),
            Failed("ConsoleUnreachable", "cannot open the console of machine default/web: Connection refused"),
        ],
        ids=lambda each: each.code,
    )
    def test_a_console_that_cannot_be_had_ends_the_call_with_its_code(
        self, plugin: Served, monkeypatch: pytest.MonkeyPatch, refusal: Denied | Failed
    ) -> None:
        def refuse(key: str) -> None:
            raise refusal

        plugin.node.CreateMachine(creation())
        monkeypatch.setattr(plugin.machines, "open_console", refuse)
        with pytest.raises(grpc.RpcError) as error:
            next(plugin.node.OpenConsole(iter([pb.ConsoleInput(machine=web())])))
        assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert error.value.details() == f"{refusal.message} [{refusal.code}]"

    def test_no_more_consoles_and_logs_are_open_than_leave_threads_for_other_calls(self, plugin: Served) -> None:
        plugin.node.CreateMachine(creation())
        plugin.machines.logs = plugin.socket.parent
        (plugin.machines.logs / "console.log").write_text("up\n")
        request = pb.ReadLogRequest(machine=web(), follow=True)
        open_ones = [plugin.node.ReadLog(request) for _ in range(CONSOLES)]
        assert [next(each).data for each in open_ones] == [b"up\n"] * CONSOLES
        with pytest.raises(grpc.RpcError) as error:
            next(plugin.node.ReadLog(request))
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for each in open_ones:
            each.cancel()

    @pytest.mark.parametrize(
        ("request_", "why"),
        [
            (pb.ReadLogRequest(machine=web("a/b")), "machine.name: "),
            (pb.ReadLogRequest(machine=web(), log=7), "log: must be one of LOG_CONSOLE, "),  # type: ignore[arg-type]
            (pb.ReadLogRequest(), "machine.name: is required"),
        ],
    )
    def test_a_log_that_does_not_exist_cannot_be_asked_for(
        self, plugin: Served, request_: pb.ReadLogRequest, why: str
    ) -> None:
        plugin.node.CreateMachine(creation())
        with pytest.raises(grpc.RpcError) as error:
            next(plugin.node.ReadLog(request_))
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert str(error.value.details()).startswith(why)
