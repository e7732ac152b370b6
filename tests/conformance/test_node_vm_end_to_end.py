"""From a VirtualMachine and a claim in the store to a card in a QEMU, and back: all of the plugin's own code between a
host that plays the kernel and a QEMU that plays its monitor."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from devalloc.programs.node_parts import store_machines, store_publishing, store_source
from devalloc.store import NotFound
from devalloc.tracing import start_tracing
from devalloc_machines.qemu import adoption, process
from devalloc_machines.qemu.settings import AllowedFolder
from devalloc_node.daemon import run_daemon
from devalloc_node.errors import Denied
from devalloc_node.node import open_node
from devalloc_node.pb import node_pb2 as pb
from devalloc_node.pb.node_pb2_grpc import NodeStub
from tests.conformance.test_node_daemon_store import CLAIM, CLASS, GPU, NODE, Bed, until
from tests.support.fake_host import LocalHost
from tests.support.fake_qmp import FakeQemu
from tests.support.fake_tree import memory_folder
from tests.support.machine_allocator import machine_allocator
from tests.support.otlp_collector import attributes, collecting
from tests.support.toy_machines import vm


@pytest.fixture
def bed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    with memory_folder() as folder:
        bed = Bed(Path(folder))
        machines = replace(
            bed.settings.machines, socket_folders=(AllowedFolder(Path(folder), "any"),), users=None, command_seconds=2.0
        )
        bed.settings = replace(bed.settings, machines=machines, resync=0.5)
        # The machine is this very process, and may lock all memory it likes; the host's nodes are those of the bed.
        for module in (process, adoption):
            monkeypatch.setattr(module, "memlock", lambda pid: None)
        monkeypatch.setattr(os, "stat", _stat_of(bed.host.root, os.stat))
        with closing(bed.store):
            yield bed


@pytest.fixture
def qemu(bed: Bed) -> Iterator[FakeQemu]:
    machine = FakeQemu(bed.folder / "qmp")
    yield machine
    machine.close()


def _stat_of(root: Path, stat: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
    def redirected(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        is_node = isinstance(path, str) and path.startswith("/dev/vfio/")
        return stat(root / path[1:] if is_node else path, *args, **kwargs)

    return redirected


@contextmanager
def running(bed: Bed) -> Iterator[NodeStub]:
    """The plugin, with its loop of machines."""
    with open_node(bed.settings, LocalHost(bed.host), store_source(bed.store, NODE)) as node:
        serving = threading.Event()
        with store_publishing(
            bed.store, node, node.inventory.discover, bed.published.append, place=bed.folder / "db"
        ) as publishing:
            loops = store_machines(bed.store, node)
            thread = threading.Thread(
                target=run_daemon, args=(node, publishing, lambda text: serving.set()), kwargs={"extra_loops": loops}
            )
            thread.start()
            try:
                assert serving.wait(60)
                with grpc.insecure_channel(f"unix:{bed.settings.socket}") as channel:
                    yield NodeStub(channel)
            finally:
                node.stop()
                thread.join(60)
            assert not thread.is_alive()


def manifest(bed: Bed, *claims: str) -> dict[str, Any]:
    return vm(
        "web",
        *claims,
        adopt={"qmpSocket": str(bed.folder / "qmp")},
        cpu={"min": 1, "max": 4},
        memory={"min": "512Mi", "max": "2Gi"},
    )


def status(bed: Bed) -> dict[str, Any]:
    content: dict[str, Any] = bed.store.get("VirtualMachine", "default", "web").get("status", {})
    return content


def is_gone(bed: Bed, kind: str, name: str) -> bool:
    try:
        bed.store.get(kind, "default", name)
    except NotFound:
        return True
    return False


def plugged(qemu: FakeQemu) -> set[str]:
    return {device["host"] for device in qemu.devices.values() if device.get("driver") == "vfio-pci"}


def begun(bed: Bed) -> None:
    """A machine that wants a claim that has no answer yet."""
    until(lambda: len(bed.store.list("DevicePool").objects) == 1, "the pool is published")
    bed.store.create(CLASS)
    bed.store.create(CLAIM)
    bed.store.create(manifest(bed, "training"))
    until(lambda: status(bed).get("reason") == "ClaimNotAllocated", "the machine waits for its claim")


def test_a_card_goes_into_a_machine_and_everything_is_as_before(bed: Bed, qemu: FakeQemu) -> None:
    before = bed.host.snapshot()
    with running(bed) as stub:
        begun(bed)
        assert qemu.commands == []
        machine_allocator(bed.store).round()
        until(lambda: len(status(bed).get("devices", ())) == 1, "the machine has the card")
        assert status(bed)["phase"] == "Running"
        assert plugged(qemu) == set(GPU), "a card goes with all of its functions"
        assert bed.drivers() == {"vfio-pci"}
        (machine,) = stub.ListMachines(pb.ListMachinesRequest()).machines
        assert [device.claim.name for device in machine.devices] == ["training"]
        until(lambda: _users(bed) == ["default/web"], "the claim says who uses it")

        refused = stub.UnprepareClaim(pb.UnprepareClaimRequest(claim=pb.ClaimRef(name="training"), dry_run=True))
        assert refused.steps[0].kind == "attachment", "what is undone first takes the card out of the machine"

        bed.store.delete("VirtualMachine", "default", "web")
        until(lambda: is_gone(bed, "VirtualMachine", "web"), "the machine is let go")
        assert plugged(qemu) == set()
        assert bed.host.snapshot() == before
        assert all(command != "quit" for command, _ in qemu.commands), "an adopted machine runs on"
        until(lambda: _users(bed) == [], "no machine uses the claim")
        assert "finalizers" not in bed.store.get("DeviceClaim", "default", "training")["metadata"]


def test_one_trace_shows_a_claim_from_its_creation_to_its_machine(bed: Bed, qemu: FakeQemu) -> None:
    with collecting() as collector:
        stop = start_tracing(collector.endpoint, "devalloc-up", NODE)
        with running(bed):
            begun(bed)
            uid = bed.store.get("DeviceClaim", "default", "training")["metadata"]["uid"]
            machine_allocator(bed.store).round()
            until(lambda: len(status(bed).get("devices", ())) == 1, "the machine has the card")
            bed.store.delete("VirtualMachine", "default", "web")
            until(lambda: is_gone(bed, "VirtualMachine", "web"), "the machine is let go")
            until(lambda: bed.drivers() != {"vfio-pci"}, "the host has its card back")
        stop()
        of_claim = [one for one in collector.spans if one.trace_id == uuid.UUID(uid).bytes]
        assert len(of_claim) == len(collector.spans)
        (first,) = [one for one in of_claim if not one.parent_span_id]
        others = {one.name: one for one in of_claim if one.parent_span_id == first.span_id}
        assert (first.name, *sorted(others)) == ("allocate", "adopt machine", "attach", "prepare", "unprepare")
        assert attributes(others["attach"])["devalloc.machine"] == "default/web"
        assert first.end_time_unix_nano <= others["prepare"].start_time_unix_nano
        assert others["prepare"].end_time_unix_nano <= others["attach"].start_time_unix_nano


def test_a_host_that_was_renamed_ends_no_machine(bed: Bed, qemu: FakeQemu) -> None:
    with running(bed):
        until(lambda: len(bed.store.list("DevicePool").objects) == 1, "the pool is published")
        bed.store.create(manifest(bed))
        until(lambda: status(bed).get("phase") == "Running", "the machine runs")
    before = list(qemu.commands)
    settings = replace(bed.settings, node_name="renamed")
    with (
        open_node(settings, LocalHost(bed.host), store_source(bed.store, "renamed")) as node,
        pytest.raises(Denied, match=r"node node-a: machine default/web; as node renamed, this plugin would end it\."),
    ):
        run_daemon(node, extra_loops=store_machines(bed.store, node))
    assert {name for name, _ in qemu.commands[len(before) :]} <= {name for name, _ in before}, "it was only looked at"
    with running(bed) as stub:
        assert len(stub.ListMachines(pb.ListMachinesRequest()).machines) == 1


def test_a_dry_run_writes_nothing_anywhere(bed: Bed) -> None:
    with running(bed) as stub:
        until(lambda: len(bed.store.list("DevicePool").objects) == 1, "the pool is published")
        bed.store.create(CLASS)
        bed.store.create(CLAIM)
        machine_allocator(bed.store).round()
        host, store = bed.host.snapshot(), bed.store.get("DeviceClaim", "default", "training")
        reply = stub.PrepareClaim(pb.PrepareClaimRequest(claim=pb.ClaimRef(name="training"), dry_run=True))
        assert reply.result.outcome == pb.Result.DONE
        assert {step.target for step in reply.claim.steps if step.kind == "driver"} & set(GPU)
        assert (bed.host.snapshot(), bed.store.get("DeviceClaim", "default", "training")) == (host, store)


def test_the_plugin_may_be_restarted_while_a_machine_has_a_card(bed: Bed, qemu: FakeQemu) -> None:
    before = bed.host.snapshot()
    with running(bed):
        begun(bed)
        machine_allocator(bed.store).round()
        until(lambda: len(status(bed).get("devices", ())) == 1, "the machine has the card")
    assert plugged(qemu) == set(GPU)
    commands = len(qemu.commands)
    with running(bed) as stub:
        assert len(stub.GetMachine(pb.GetMachineRequest(machine=pb.MachineRef(name="web"))).devices) == 1
        changed = bed.store.get("VirtualMachine", "default", "web")
        assert len(qemu.commands) == commands, "nothing is done to a machine that is as it is wanted"
        bed.store.replace({**changed, "spec": {**changed["spec"], "claims": []}})
        until(lambda: plugged(qemu) == set() and not status(bed).get("devices"), "the card is out of the machine")
        until(lambda: bed.host.snapshot() == before, "the host has its card back")


def test_a_guest_that_keeps_the_card_keeps_the_claim_until_it_lets_go(bed: Bed, qemu: FakeQemu) -> None:
    before = bed.host.snapshot()
    with running(bed):
        begun(bed)
        machine_allocator(bed.store).round()
        until(lambda: len(status(bed).get("devices", ())) == 1, "the machine has the card")
        qemu.guest = "refuses"
        bed.store.delete("VirtualMachine", "default", "web")
        bed.store.delete("DeviceClaim", "default", "training")
        until(lambda: status(bed).get("reason") == "GuestRefused", "its status shows that the guest refuses")
        assert plugged(qemu) == set(GPU)
        assert bed.drivers() == {"vfio-pci"}, "what QEMU holds is never unbound"
        qemu.guest = "obeys"
        until(lambda: is_gone(bed, "VirtualMachine", "web"), "the machine is let go")
        until(lambda: is_gone(bed, "DeviceClaim", "training"), "the claim is gone too")
        assert bed.host.snapshot() == before


def _users(bed: Bed) -> list[str]:
    users: list[str] = bed.store.get("DeviceClaim", "default", "training")["status"].get("podNames", [])
    return users
