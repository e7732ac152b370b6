"""The whole plugin as the kubelet meets it: real sockets, a real journal, the bindings over a kernel that is played."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import pytest
from prometheus_client import generate_latest

from devalloc.api.meta import UNAVAILABLE
from devalloc.inventory.config import DeviceRecords
from devalloc_machines.part import MachineSettings
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_node.binding.binding import BindingConfig
from devalloc_node.daemon import run_daemon
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.host.boundary import DryRun
from devalloc_node.host.files import Files
from devalloc_node.model.grant import ClaimRef, Grant, GrantedDevice
from devalloc_node.model.step import ATTACHMENT, Step
from devalloc_node.net.unix_sockets import has_listener
from devalloc_node.node import ClaimSource, Node, open_node
from devalloc_node.pb import node_pb2 as pb
from devalloc_node.pb.node_pb2_grpc import NodeStub
from devalloc_node.settings import KubeletSettings
from tests.support import pci_cards
from tests.support.binding_runner import pool_of
from tests.support.fake_host import FakeHost, LocalHost
from tests.support.fake_tree import memory_folder
from tests.support.kubelet_client import KubeletClient, kubelet_client
from tests.support.waiting import until

NODE = "node-a"
GPU, GPU_FUNCTIONS = "0000-01-00-0", ("0000:01:00.0", "0000:01:00.1")
VFS = ("0000-41-10-0", "0000-41-10-2")
VF = VFS[0]
POOLS = {GPU: pool_of(GPU)} | dict.fromkeys(VFS, f"{NODE}-0000-41-00")
BOOT = "8a5f3a7e-0000-4000-8000-00000000b007"


@dataclass
class ListedGrants:
    """Claims of a list, which is the store here."""

    granted: dict[str, Grant] = field(default_factory=dict)
    name: str = "a list"
    fails: Failed | None = None

    def add(self, name: str, *devices: str, uid: str | None = None) -> ClaimRef:
        ref = ClaimRef("default", name, uid or f"uid-{name}")
        held = tuple(
            GrantedDevice((f"r{number}",), POOLS.get(device, "node-a-0000-99-00"), device)
            for number, device in enumerate(devices)
        )
        self.granted[ref.uid] = Grant(ref, "ResourceClaim", held)
        return ref

    def get(self, ref: ClaimRef) -> Grant:
        if ref.uid not in self.granted:
            raise Denied("ClaimNotFound", f"there is no claim {ref}")
        return self.granted[ref.uid]

    def uid_of(self, namespace: str, name: str) -> str | None:
        return next((uid for uid, grant in self.granted.items() if str(grant.ref) == f"{namespace}/{name}"), None)

    def look(self, ref: ClaimRef) -> Grant:
        return self.get(ref)

    def is_gone(self, ref: ClaimRef) -> bool:
        return ref.uid not in self.granted

    def belongs_to_node(self, ref: ClaimRef, node_name: str) -> bool:
        return ref.uid in self.granted

    def identity(self) -> str:
        if self.fails is not None:
            raise self.fails
        return self.name

    def let_go(self, ref: ClaimRef) -> None:
        return None

    def held(self) -> Sequence[ClaimRef]:
        return ()


@dataclass
class Bed:
    """A host with a GPU and a network card, and instances of the plugin on it."""

    folder: Path
    grants: ListedGrants = field(default_factory=ListedGrants)
    messages: list[str] = field(default_factory=list)
    metrics: str | None = None
    cdi: str = "cdi"
    name: str = NODE

    def __post_init__(self) -> None:
        settings = self.settings()
        self.host = FakeHost(self.folder / "host", folders=settings.written)
        for card in (pci_cards.gpu(iommu_group=15), pci_cards.gpu_audio(iommu_group=15), pci_cards.nic()):
            self.host.add(card)
        self.host.proc("sys/kernel/random/boot_id", f"{BOOT}\n")
        self.before = self.host.snapshot()

    def settings(self, pod_uid: str | None = None) -> MachineSettings:
        return MachineSettings(
            self.name,
            BindingConfig(self.name),
            root=self.folder / "host",
            state=self.folder / "state",
            machines=MachineConfig(state=self.folder / "state" / "machines", run=self.folder / "run"),
            socket=self.folder / "node.sock",
            cdi=self.folder / self.cdi,
            kubelet=KubeletSettings(self.folder / "kubelet", pod_uid=pod_uid),
            rolling=pod_uid is not None,
            metrics=self.metrics or f"unix:{self.folder / 'metrics.sock'}",
            grace=0,
        )

    def opened(self, pod_uid: str | None = None) -> AbstractContextManager[Node]:
        source = ClaimSource("ResourceClaim", self.grants, self.grants.uid_of)
        return open_node(self.settings(pod_uid), LocalHost(self.host), source)

    @contextmanager
    def running(self, pod_uid: str | None = None) -> Iterator[tuple[Node, KubeletClient]]:
        settings = self.settings(pod_uid)
        with self.opened(pod_uid) as node:
            serving = threading.Event()

            def say(text: str) -> None:
                self.messages.append(text)
                if text.startswith("serving the kubelet"):
                    serving.set()

            thread = threading.Thread(target=run_daemon, args=(node, None, say))
            thread.start()
            try:
                assert serving.wait(60), self.messages
                name = "dra.sock" if pod_uid is None else f"dra-{pod_uid}.sock"
                with kubelet_client(settings.data / name) as kubelet:
                    yield node, kubelet
            finally:
                node.stop()
                thread.join(60)
            assert not thread.is_alive()

    def driver(self, address: str) -> str | None:
        return self.host.functions[address].driver

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*.json"))


@pytest.fixture
def bed() -> Iterator[Bed]:
    with memory_folder() as folder:
        yield Bed(Path(folder))


def test_a_pods_claim_from_prepare_to_the_initial_state(bed: Bed) -> None:
    ref = bed.grants.add("training", GPU)
    with bed.running() as (_, kubelet):
        answer = kubelet.prepare([ref])[ref.uid]
        assert answer.error == ""
        (device,) = answer.devices
        assert (device.pool_name, device.device_name) == (pool_of(GPU), GPU)
        assert {bed.driver(address) for address in GPU_FUNCTIONS} == {"vfio-pci"}
        assert bed.files() == [
            "cdi/devalloc.io_claim_uid-training.json",
            "cdi/devalloc.io_metadata_uid-training_r0.json",
            "kubelet/plugins/devalloc.io/dra-device-metadata/default_training/r0/metadata.json",
        ]
        specs = [json.loads((bed.folder / name).read_text()) for name in bed.files()[:2]]
        edits_of = {
            f"{spec['kind']}={each['name']}": each["containerEdits"] for spec in specs for each in spec["devices"]
        }
        assert set(edits_of) == set(device.cdi_device_ids)
        nodes = [node["path"] for edits in edits_of.values() for node in edits.get("deviceNodes", ())]
        assert [node for node in nodes if not (bed.host.root / node[1:]).exists() and node != "/dev/vfio/vfio"] == []
        metadata, _ = json.JSONDecoder().raw_decode((bed.folder / bed.files()[2]).read_text())
        attributes = metadata["requests"][0]["devices"][0]["attributes"]
        assert attributes["resource.kubernetes.io/pciBusID"] == {"string": GPU_FUNCTIONS[0]}

        assert kubelet.prepare([ref])[ref.uid] == answer
        assert kubelet.prepare([ref], "v1beta1")[ref.uid].devices[0].cdi_device_ids == device.cdi_device_ids

        assert kubelet.unprepare([ref])[ref.uid].error == ""
        assert kubelet.unprepare([ref])[ref.uid].error == ""
    assert bed.host.snapshot() == bed.before
    assert bed.files() == []


def test_each_bad_claim_has_its_error_and_the_good_one_its_device(bed: Bed) -> None:
    good = bed.grants.add("good", VF)
    taken = bed.grants.add("taken", VF)
    gone = bed.grants.add("gone", "0000-99-00-0")
    unknown = ClaimRef("default", "unknown", "uid-unknown")
    with bed.running() as (_, kubelet):
        assert kubelet.prepare([good])[good.uid].error == ""
        errors = {uid: each.error for uid, each in kubelet.prepare([good, taken, gone, unknown]).items()}
        assert errors[good.uid] == ""
        assert errors[taken.uid].startswith("DeviceInUse: ")
        assert "default/good" in errors[taken.uid]
        assert errors[gone.uid].startswith("Device")
        assert errors[unknown.uid] == "ClaimNotFound: there is no claim default/unknown"
        assert {each.error for each in kubelet.unprepare([good, taken, gone, unknown]).values()} == {""}
    assert bed.host.snapshot() == bed.before


def test_a_card_that_is_pulled_is_an_error_before_and_no_obstacle_afterwards(bed: Bed) -> None:
    first, second = bed.grants.add("first", GPU), bed.grants.add("second", VF)
    with bed.running() as (node, kubelet):
        assert kubelet.prepare([first])[first.uid].error == ""
        for address in GPU_FUNCTIONS:
            bed.host.remove_function(address)
        assert kubelet.unprepare([first])[first.uid].error == ""
        assert kubelet.prepare([first])[first.uid].error.startswith("Device")
        assert kubelet.prepare([second])[second.uid].error == "", "the others go on"
        assert [claim.ref for claim in node.claims.prepared()] == [second]
        assert kubelet.unprepare([second])[second.uid].error == ""
    assert bed.files() == []


def test_prepared_claims_outlive_the_plugin(bed: Bed) -> None:
    ref = bed.grants.add("training", GPU, VF)
    with bed.running() as (_, kubelet):
        answer = kubelet.prepare([ref])[ref.uid]
        assert answer.error == ""
    assert {bed.driver(address) for address in GPU_FUNCTIONS} == {"vfio-pci"}
    with bed.running() as (_, kubelet):
        assert kubelet.prepare([ref])[ref.uid] == answer
        assert kubelet.unprepare([ref])[ref.uid].error == ""
    assert bed.host.snapshot() == bed.before


def test_a_node_that_joins_under_another_name_is_served_once_its_claims_are_gone(bed: Bed) -> None:
    ref = bed.grants.add("training", GPU)
    with bed.running() as (node, kubelet):
        assert kubelet.prepare([ref])[ref.uid].error == ""
        begun = ClaimRef("default", "begun", "uid-begun")
        node.journal.begin(begun, "ResourceClaim", {"source": bed.grants.name, "devices": []}, {})
    bed.name = "renamed"

    def refuses(error: type[NodeError], why: str) -> None:
        with bed.opened() as node, pytest.raises(error, match=why):
            run_daemon(node)
        assert {bed.driver(address) for address in GPU_FUNCTIONS} == {"vfio-pci"}

    refuses(Denied, r"has what belongs to node node-a: claim default/training; as node renamed")
    del bed.grants.granted[ref.uid]
    bed.grants.fails = Failed("ApiUnavailable", "the API server does not answer")
    refuses(Failed, "does not answer")
    bed.grants.fails, bed.grants.name = None, "another cluster"
    refuses(Denied, "claim default/training, claim default/begun")
    bed.grants.name = "a list"
    with bed.running() as (node, _):
        until(lambda: not node.journal.claims(), "it is unprepared")
    assert bed.host.snapshot() == bed.before


def test_two_instances_of_a_rolling_update_share_what_is_prepared(bed: Bed) -> None:
    first, second = bed.grants.add("first", VF), bed.grants.add("second", VFS[1])
    with bed.running("old-1") as (_, old), bed.running("new-2") as (_, new):
        answers: dict[str, object] = {}
        callers = [
            threading.Thread(target=lambda kubelet=kubelet, ref=ref: answers.update(kubelet.prepare([ref])))
            for kubelet in (old, new)
            for ref in (first, second)
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert {answer.error for answer in answers.values()} == {""}
        assert old.prepare([first, second]) == new.prepare([first, second])
        assert {answer.error for answer in new.unprepare([first, second]).values()} == {""}
        assert old.unprepare([first])[first.uid].error == ""
    assert bed.host.snapshot() == bed.before


def test_the_newer_instance_takes_over_what_only_one_can_serve(bed: Bed) -> None:
    def answers() -> str:
        with grpc.insecure_channel(f"unix:{bed.folder / 'node.sock'}") as channel:
            return NodeStub(channel).GetNode(pb.GetNodeRequest(), timeout=60, wait_for_ready=True).node_name

    with ExitStack() as old:
        old.enter_context(bed.running("old-1"))
        assert answers() == NODE
        with bed.running("new-2"):
            assert f"another process serves devalloc.node.v1.Node on {bed.folder}/node.sock" in "".join(bed.messages)
            old.close()
            assert answers() == NODE
    assert not (bed.folder / "node.sock").exists()


def test_deleted_sockets_are_created_again(bed: Bed) -> None:
    ref = bed.grants.add("training", GPU)
    with bed.running():
        until((bed.folder / "metrics.sock").exists, "all is served")
        sockets = [path for path in bed.folder.rglob("*.sock") if path.is_socket()]
        names = {path.name for path in sockets}
        assert names == {"dra.sock", "devalloc.io-reg.sock", "node.sock", "metrics.sock"}
        for path in sockets:
            path.unlink()
        (bed.folder / "kubelet" / "plugins_registry").rmdir()
        for path in sockets:
            until(lambda path=path: path.is_socket() and has_listener(path), f"{path.name} answers again")  # type: ignore[misc]
        with kubelet_client(bed.settings().data / "dra.sock") as kubelet:
            assert kubelet.prepare([ref])[ref.uid].error == ""
            assert kubelet.unprepare([ref])[ref.uid].error == ""
    assert not any(path.exists() for path in sockets)
    assert bed.host.snapshot() == bed.before


def test_the_message_about_metrics_has_the_actual_port(bed: Bed) -> None:
    bed.metrics = "127.0.0.1:0"
    with bed.running():
        until(lambda: "serving metrics on 127.0.0.1:" in "".join(bed.messages), "they are served")
    (port,) = [text.rpartition(":")[2] for text in bed.messages if text.startswith("serving metrics on ")]
    assert int(port) > 0


def test_a_removed_journal_is_reported_before_the_next_write(bed: Bed, caplog: pytest.LogCaptureFixture) -> None:
    def metrics_page() -> bytes:
        return generate_latest(node.metrics.registry)

    with bed.running() as (node, _):
        assert b"state_readable 1.0" in metrics_page()
        (bed.folder / "state" / "journal.db").unlink()
        assert b"state_readable 0.0" in metrics_page()
        caplog.clear()
        node.rescan()
        until(lambda: "cannot reconcile claims" in caplog.text, "it is logged")
        assert "journal.db was removed or replaced" in caplog.text


def test_a_port_in_use_costs_the_metrics_and_nothing_else(bed: Bed) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        bed.metrics = f"127.0.0.1:{port}"
        with bed.running():
            missing = f"another process serves metrics on 127.0.0.1:{port} (--metrics)"
            until(lambda: missing in "".join(bed.messages), "it is said")
            until(lambda: has_listener(bed.folder / "node.sock"), "all else is served")
            other.close()
            until(lambda: f"now serving metrics on 127.0.0.1:{port}" in "".join(bed.messages), "it is free")
    bed.metrics = f"unix:{bed.folder}/no/such/folder"
    with (
        bed.opened() as node,
        pytest.raises(Failed, match=r"folder.*--metrics"),
    ):
        run_daemon(node)


def test_a_device_in_use_stays_prepared_and_the_error_names_its_user(bed: Bed) -> None:
    ref = bed.grants.add("training", GPU)
    with bed.running() as (_, kubelet):
        (node,) = bed_nodes(bed, kubelet, ref)
        bed.host.process(4711, opens=(node,))
        error = kubelet.unprepare([ref])[ref.uid].error
        assert error.startswith("DeviceInUse: ")
        assert "qemu-system-x86 4711" in error
        assert {bed.driver(address) for address in GPU_FUNCTIONS} == {"vfio-pci"}
        bed.host.end_process(4711)
        assert kubelet.unprepare([ref])[ref.uid].error == ""
    assert bed.host.snapshot() == bed.before


def bed_nodes(bed: Bed, kubelet: KubeletClient, ref: ClaimRef) -> list[str]:
    """Prepare a claim; the nodes of its devices."""
    assert kubelet.prepare([ref])[ref.uid].error == ""
    spec = json.loads((bed.folder / f"cdi/devalloc.io_claim_{ref.uid}.json").read_text())
    nodes = [node["path"] for each in spec["devices"] for node in each["containerEdits"]["deviceNodes"]]
    return [node for node in nodes if node != "/dev/vfio/vfio"]


def test_files_in_an_earlier_cdi_folder_are_removed_from_there(bed: Bed) -> None:
    ref = bed.grants.add("training", GPU)
    with bed.running() as (_, kubelet):
        assert kubelet.prepare([ref])[ref.uid].error == ""
    assert bed.files()
    bed.cdi = "elsewhere"
    bed.host.files = Files(bed.settings().written)
    with bed.running() as (_, kubelet):
        assert kubelet.unprepare([ref])[ref.uid].error == ""
    assert bed.files() == []
    assert bed.host.snapshot() == bed.before


def test_claims_that_are_gone_are_taken_back_when_the_plugin_looks(bed: Bed) -> None:
    ref = bed.grants.add("training", GPU)
    with bed.running() as (node, kubelet):
        assert kubelet.prepare([ref])[ref.uid].error == ""
        del bed.grants.granted[ref.uid]
        node.rescan()
        until(lambda: bed.host.snapshot() == bed.before, "all is taken back")
    assert bed.host.snapshot() == bed.before
    assert any("default/training" in text for text in bed.messages)


def test_devices_of_a_claim_that_is_gone_are_not_offered_while_it_is_prepared(bed: Bed) -> None:
    """For the time of grace, and for as long as a machine goes on with them."""
    settings, ref = replace(bed.settings(), grace=300), bed.grants.add("a", GPU)
    source = ClaimSource("ResourceClaim", bed.grants, bed.grants.uid_of)
    with open_node(settings, LocalHost(bed.host), source) as node:
        bed.host.process(4711, opens=node.prepare(ref, Deadline.after(20)).devices[0].nodes)
        node.reconciler.reconcile()
        assert offered(node) is None, "its claim exists, which tells whose it is"
        grant = bed.grants.granted.pop(ref.uid)
        assert len(node.reconciler.reconcile().waiting) == 1
        assert offered(node) == "in use: claim default/a is not undone yet: it was deleted but is still prepared"
        bed.grants.granted[ref.uid] = grant
        node.reconciler.reconcile()
        assert offered(node) is None


def test_devices_of_claims_of_elsewhere_are_not_offered_while_they_are_prepared(bed: Bed) -> None:
    """The cluster or store that this node serves now would give them to others, which could not have them."""
    ref = bed.grants.add("a", GPU)
    with open_node(
        bed.settings(), LocalHost(bed.host), ClaimSource("ResourceClaim", bed.grants, bed.grants.uid_of)
    ) as node:
        node.prepare(ref, Deadline.after(20))

    bed.grants.name = "another list"
    with open_node(
        bed.settings(), LocalHost(bed.host), ClaimSource("ResourceClaim", bed.grants, bed.grants.uid_of)
    ) as node:
        assert "was prepared from a list" in node.reconciler.reconcile().halted
        assert offered(node) is None, "its claim exists there too, as in a store that was restored"
        held = bed.grants.granted[ref.uid]
        bed.grants.granted[ref.uid] = replace(held, devices=())
        node.reconciler.reconcile()
        prepared_elsewhere = "it was prepared from a list, and is still prepared"
        assert (offered(node) or "").endswith(prepared_elsewhere), "but not with this device"
        bed.grants.granted[ref.uid] = held
    del bed.grants.granted[ref.uid]
    with bed.running() as (node, _):
        until(lambda: offered(node), "it has looked at its claims")
        why = "it was prepared from a list, and is still prepared"
        assert offered(node) == f"in use: claim default/a is not undone yet: {why}"
        bed.grants.fails = Failed("ApiUnavailable", "no answer")
        node.reconciler.reconcile()
        assert offered(node) is not None, "and stays so while no server answers"
        bed.grants.fails = None

    with open_node(
        bed.settings(), LocalHost(bed.host), ClaimSource("DeviceClaim", bed.grants, bed.grants.uid_of)
    ) as node:
        report = node.reconciler.reconcile()
        why = "it is still prepared as a ResourceClaim, but this node now serves DeviceClaims"
        assert offered(node) == f"in use: claim default/a is not undone yet: {why}"
        assert (report.removed, report.stuck) == ([], [f"claim default/a: {why}; unprepare it"])
        node.unprepare(ref, Deadline.after(20))
        assert offered(node) is None
    assert bed.host.snapshot() == bed.before


def test_deleted_claims_stay_prepared_if_their_use_cannot_be_seen(bed: Bed) -> None:
    """As in a pod without the host's processes: a machine may go on there, and would be reset with its device (T16)."""
    ref = bed.grants.add("training", GPU)
    source = ClaimSource("ResourceClaim", bed.grants, bed.grants.uid_of)
    with open_node(bed.settings(), LocalHost(bed.host), source) as node:
        node.prepare(ref, Deadline.after(20))
        bed.host.blind()
        del bed.grants.granted[ref.uid]
        before, resets, report = bed.host.snapshot(), [*bed.host.resets], node.reconciler.reconcile()
        (why,) = report.stuck
        assert "claim default/training was deleted but stays prepared" in why
        assert "only the processes of this container can be seen" in why
        assert (report.removed, bed.host.snapshot() == before, bed.host.resets) == ([], True, resets)


def test_a_claim_waits_for_the_older_one_of_its_name(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata files of both would be the same ones."""
    older = bed.grants.add("training", GPU, uid="uid-1")
    newer = bed.grants.add("training", VF, uid="uid-2")
    with bed.running() as (_, kubelet):
        assert kubelet.prepare([older])[older.uid].error == ""
        calls, answer = [], bed.host.answer
        monkeypatch.setattr(
            bed.host, "answer", lambda method, *about: calls.append((method, *about)) or answer(method, *about)
        )
        assert kubelet.prepare([newer])[newer.uid].error.startswith(
            "ClaimNameHeld: another claim default/training (uid uid-1)"
        )
        assert [each for each in calls if each[0] in ("write", "set_vf")] == [], "nothing was bound for it"
        assert kubelet.unprepare([older])[older.uid].error == ""
        assert kubelet.prepare([newer])[newer.uid].error == ""
        assert kubelet.unprepare([newer])[newer.uid].error == ""
    assert bed.host.snapshot() == bed.before


def test_unprepare_of_a_claim_that_only_files_remember_is_no_success(bed: Bed) -> None:
    ref = bed.grants.add("training", GPU)
    with bed.running() as (_, kubelet):
        assert kubelet.prepare([ref])[ref.uid].error == ""
    for file in (bed.folder / "state").glob("journal*"):
        file.unlink()
    with bed.running() as (_, kubelet):
        error = kubelet.unprepare([ref])[ref.uid].error
        assert error.startswith("ClaimRemains: ")
        assert "devalloc.io_claim_uid-training.json" in error


def test_prepare_writes_removed_files_of_a_prepared_claim_again(bed: Bed) -> None:
    """Else its containers cannot start, however often the kubelet asks."""
    ref = bed.grants.add("training", GPU)
    with bed.running() as (_, kubelet):
        answer = kubelet.prepare([ref])[ref.uid]
        files = {path: path.read_text() for path in (bed.folder / bed.cdi).iterdir()}
        assert files
        for number, path in enumerate(files):
            path.write_text("{}") if number else path.unlink()
        assert kubelet.prepare([ref])[ref.uid] == answer
        assert {path: path.read_text() for path in (bed.folder / bed.cdi).iterdir()} == files
        assert kubelet.unprepare([ref])[ref.uid].error == ""
        assert not list((bed.folder / bed.cdi).iterdir())


def test_in_a_dry_run_nothing_is_begun_that_would_have_to_be_undone(bed: Bed) -> None:
    """As of a GPU that VFIO has already: only a reset after its use, and files, would change the host."""
    for address in GPU_FUNCTIONS:
        bed.host.unbind(bed.host.driver_of(address) or "", address)
        bed.host.store(f"bus/pci/devices/{address}/driver_override", "vfio-pci")
        bed.host.bind("vfio-pci", address)
    before, messages = bed.host.snapshot(), list[str]()
    ref = bed.grants.add("a", GPU)
    source = ClaimSource("ResourceClaim", bed.grants, bed.grants.uid_of)
    with open_node(bed.settings(), DryRun(LocalHost(bed.host), messages.append), source) as node:
        with pytest.raises(
            Denied, match=r"default/a would do: reset of 0000:01:00.0: 'clean' becomes 'used'; reset of"
        ):
            node.prepare(ref, Deadline.after(20))
        assert node.claims.describe() == {"claims": [], "shared": [], "withheld": []}
    assert len(messages) == 2
    assert bed.host.snapshot() == before


def test_what_a_dry_run_refuses_is_not_done_by_the_next_start(bed: Bed) -> None:
    """Nothing of it is in the journal: a claim that was noted as being taken back would be taken back then."""
    ref = bed.grants.add("a", GPU)
    source = ClaimSource("ResourceClaim", bed.grants, bed.grants.uid_of)
    with open_node(bed.settings(), LocalHost(bed.host), source) as node:
        node.prepare(ref, Deadline.after(20))
        before, described, steps = bed.host.snapshot(), node.claims.describe(), node.claims.journal.steps(ref.uid)
    with open_node(bed.settings(), DryRun(LocalHost(bed.host), lambda _: None), source) as node:
        attachment = Step(ATTACHMENT, "default/web/a", None, {})
        for change in (
            lambda: node.unprepare(ref, Deadline.after(20)),
            lambda: node.claims.add(ref, attachment, device="p/d"),
            lambda: node.claims.remove(ref, steps[0].step.kind, steps[0].step.target),
        ):
            with pytest.raises(Denied, match="dry run: nothing was changed; would"):
                change()
        bed.grants.granted.clear()
        node.reconciler.reconcile()
    with open_node(bed.settings(), LocalHost(bed.host), source) as node:
        node.reconciler.recover()
        assert (bed.host.snapshot(), node.claims.describe()) == (before, described)
        assert node.claims.journal.steps(ref.uid) == steps


def offered(node: Node) -> str | None:
    """Why the GPU is not; None where it is."""
    (pool,) = (pool for pool in node.inventory.discover(DeviceRecords()).pools if pool.metadata.name == POOLS[GPU])
    attributes = [*pool.spec.attributes, *pool.spec.devices[0].attributes]
    return next((str(each.value) for each in attributes if each.name == UNAVAILABLE), None)


def test_devices_of_a_claim_that_could_not_be_undone_are_not_offered_until_it_is(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its claim is gone from the cluster, as of a pod that was deleted by force."""
    ref = bed.grants.add("a", GPU)
    source = ClaimSource("ResourceClaim", bed.grants, bed.grants.uid_of)
    with open_node(bed.settings(), LocalHost(bed.host), source) as node:
        node.prepare(ref, Deadline.after(20))
        bed.host.remove("bus/pci/drivers/nvidia")
        with pytest.raises(Failed, match="is its module loaded"):
            node.unprepare(ref, Deadline.after(20))
        assert (offered(node) or "").startswith("in use: claim default/a is not undone yet: 0000:01:00.1 keeps vfio")
        bed.host.load_driver("nvidia")
        node.unprepare(ref, Deadline.after(20))
        assert offered(node) is None

        node.prepare(ref, Deadline.after(20))
        with monkeypatch.context() as patch:
            # The device is as it was, and still the claim's.
            patch.setattr(Files, "remove", lambda files, path: os.rmdir("/proc/self/fd"))
            with pytest.raises(Failed, match="HostRefused"):
                node.unprepare(ref, Deadline.after(20))
        assert {bed.driver(address) for address in GPU_FUNCTIONS} == {"nvidia", "snd_hda_intel"}
        assert (offered(node) or "").startswith("in use: claim default/a is not undone yet: file of")
        node.unprepare(ref, Deadline.after(20))
        assert offered(node) is None
    assert bed.host.snapshot() == bed.before


def test_vfs_that_the_kernel_does_not_make_are_withheld_also_after_a_restart(bed: Bed) -> None:
    make = bed.host.set_numvfs

    def refuse(address: str, count: int) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    bed.host.set_numvfs = refuse  # type: ignore[method-assign]
    ref = bed.grants.add("a", VF)
    with bed.running() as (node, kubelet):
        assert VF not in unavailable(node)
        error = kubelet.prepare([ref])[ref.uid].error
        for part in ("HostRefused", "lower --max-vfs", "release the claim"):
            assert part in error
        why = "withheld: 7 VFs of 0000:41:00.0 could not be made (ENOMEM): the firmware left too few addresses"
        assert all(unavailable(node)[vf].startswith(why) for vf in VFS)
        assert "0000-41-00-0" not in {device for device, text in unavailable(node).items() if "ENOMEM" in text}
    with bed.running() as (node, kubelet):
        assert all(unavailable(node)[vf].startswith(why) for vf in VFS)
        bed.host.set_numvfs = make  # type: ignore[method-assign]
        assert kubelet.prepare([ref])[ref.uid].error == ""
        kubelet.unprepare([ref])
        assert VF not in unavailable(node), "it worked meanwhile"


def unavailable(node: Node) -> dict[str, str]:
    """Why devices are not offered."""
    devices = [device for pool in node.inventory.discover(DeviceRecords()).pools for device in pool.spec.devices]
    return {d.name: str(a.value) for d in devices for a in d.attributes if a.name == UNAVAILABLE}
