"""Codes of the node plugin that a caller acts upon, each provoked: what raises it, whether it is worth another try, and
what it names. ``test_codes`` checks that tests name all codes."""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from devalloc.api import meta
from devalloc.api.virtual_machine_migration import (
    MigrationAmounts,
    MigrationCell,
    MigrationDestination,
    MigrationOffer,
    MigrationPlatform,
    MigrationQueues,
)
from devalloc.file_lock import FileLock
from devalloc.store.sqlite import SQLiteStore
from devalloc_machines.qemu import (
    allowed_paths,
    cpu_pinning,
    firmware,
    launch,
    migration,
    migration_tls,
    pci,
    preflight,
    resources,
)
from devalloc_machines.qemu import memory as machine_memory
from devalloc_machines.qemu import migration_offer as offers
from devalloc_machines.qemu.console import log_file, opened_console
from devalloc_machines.qemu.lifecycle import MachineLifecycle
from devalloc_machines.qemu.migration import Progress
from devalloc_machines.qemu.process import Process
from devalloc_machines.qemu.qmp import QmpMonitor
from devalloc_machines.qemu.records import MachineMigration, MachineRecord
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_machines.qemu.spec import MIB, Nic, NumaCell
from devalloc_machines.qemu.vcpu import scale
from devalloc_machines.vms.objects import Outcome
from devalloc_machines.warm import bridge
from devalloc_machines.warm.addresses import BridgeNetwork
from devalloc_machines.warm.bridge import HostBridge
from devalloc_machines.warm.paused_machine import check_template
from devalloc_machines.warm.pool import Pool
from devalloc_machines.warm.setup import check_identifier
from devalloc_node.binding.vf_settings import VfSettingsKind
from devalloc_node.claims import claim_files
from devalloc_node.claims.claim_files import FileKind, claim_spec
from devalloc_node.claims.cleanup import check_existence
from devalloc_node.claims.finalizers import add_finalizer, claim_as_is
from devalloc_node.claims.locks import ClaimLocks
from devalloc_node.claims.steps import PrepareOptions, StepRunner
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError, Unknown
from devalloc_node.host import traffic
from devalloc_node.host.linux import LinuxHost
from devalloc_node.journal import SQLiteJournal, open_journal
from devalloc_node.model.grant import ClaimRef
from devalloc_node.model.step import PreparedDevice, Step
from devalloc_node.net.unix_sockets import check_path, listening_socket
from tests.support import pci_cards
from tests.support.fake_host import FakeHost, LocalHost
from tests.support.fleet_manifests import fill, gpu_class, gpu_pool
from tests.support.machines import plugin, virtual_machine
from tests.support.node_service import ToyLoop, platform_of, toy_bench
from tests.support.toy_host import EngineBench
from tests.support.toy_machines import ToyMachines, machine_of, vm
from tests.support.toy_setups import ToyPart, opened
from tests.unit.node.test_machine_command import SPEC
from tests.unit.node.test_store_grants import NODE, allocated, claim_ref, granted

REF = ClaimRef("default", "c", "0000-uid")


def soon(seconds: float = 10.0) -> Deadline:
    return Deadline.after(seconds)


@contextmanager
def raises(kind: type[NodeError], code: str, words: str, *, retryable: bool | None = None) -> Iterator[None]:
    with pytest.raises(kind) as error:
        yield
    assert error.value.code == code
    assert words in error.value.message
    if retryable is not None:
        assert error.value.retryable is retryable


@dataclass
class Answers:
    """A monitor that answers each command from a table: a value, or a function of its arguments."""

    table: Mapping[str, Any]
    sent: list[str] = field(default_factory=list)

    def execute(
        self, command: str, arguments: Mapping[str, Any] | None = None, *, deadline: Deadline, fd: int | None = None
    ) -> Any:
        self.sent.append(command)
        answer = self.table[command]
        return answer(arguments) if callable(answer) else answer

    def close(self) -> None:
        self.sent.append("close")


def monitor(**table: Any) -> Any:
    return Answers({name.replace("_", "-") if name != "device_add" else name: value for name, value in table.items()})


# -- claims ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def held(store: SQLiteStore) -> dict[str, Any]:
    """A claim that was taken away from this node, which was fenced."""
    fill(store, gpu_pool("p", devices=1, node=NODE), gpu_class())
    claim = allocated(store, {"deviceClass": "gpu"})
    now = store.get("DeviceClaim", "default", "c")
    now["metadata"].setdefault("annotations", {})[meta.FENCED_FROM] = NODE
    store.replace(now)
    return claim


def test_what_was_taken_away_from_a_fenced_node_is_not_granted_there_again(
    store: SQLiteStore, held: dict[str, Any]
) -> None:
    with raises(Denied, "ClaimTakenAway", "was fenced", retryable=True):
        granted(store, held)
    before = store.get("DeviceClaim", "default", "c")
    for mark in (add_finalizer, claim_as_is):
        with raises(Denied, "ClaimTakenAway", "is not unprepared yet", retryable=True):
            mark(store, NODE, claim_ref(held))
    assert store.get("DeviceClaim", "default", "c") == before


def test_a_claim_is_checked_in_the_same_way_whether_or_not_it_is_marked(store: SQLiteStore) -> None:
    fill(store, gpu_pool("p", devices=1, node=NODE), gpu_class())
    claim = allocated(store, {"deviceClass": "gpu"})
    assert claim_as_is(store, NODE, claim_ref(claim))["metadata"]["uid"] == claim["metadata"]["uid"]
    for mark in (add_finalizer, claim_as_is):
        with raises(Denied, "ClaimElsewhere", "not of this node (other)"):
            mark(store, "other", claim_ref(claim))


def device(name: str = "d", **more: Any) -> PreparedDevice:
    return PreparedDevice(("r",), "p", name, "vfio", functions=("0000:41:00.0",), nodes=("/dev/vfio/7",), **more)


@pytest.mark.parametrize("name", ["a/b", "..", "A", "a" * 64, ""])
def test_a_device_name_that_is_no_label_gets_no_file(name: str) -> None:
    with raises(Denied, "DeviceNameInvalid", "has no valid name"):
        claim_spec(REF, [device(name)], driver="devalloc.io", folder="/cdi")


@pytest.mark.parametrize("node", ["/etc/passwd", "/dev/../etc/x", "vfio/7", "/dev/vfio/7\n"])
def test_a_container_gets_only_nodes_below_dev(node: str) -> None:
    with raises(Denied, "DeviceNameInvalid", "is not a device node below /dev"):
        claim_spec(REF, [replace(device(), nodes=(node,))], driver="devalloc.io", folder="/cdi")


@pytest.mark.parametrize("name", ["a b", "../x", "A"])
def test_a_request_name_that_is_no_label_gets_no_file(name: str) -> None:
    with raises(Denied, "RequestNameInvalid", "has no valid name"):
        claim_files._by_request(REF, [replace(device(), requests=(name,))])


@pytest.mark.parametrize("content", [b"\xff\xfe", None])
def test_a_file_of_a_claim_that_is_no_text_is_not_taken_for_its_content(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "spec.json"
    path.mkdir() if content is None else path.write_bytes(content)
    with raises(Failed, "FileUnreadable", str(path)):
        FileKind(FakeHost(tmp_path / "host")).read(str(path))


def test_a_file_that_does_not_hold_what_was_written_is_not_done(tmp_path: Path) -> None:
    class Forgetful(FakeHost):
        def put_file(self, path: str, content: bytes) -> None:
            Path(path).write_bytes(content[:-1])

    with raises(Failed, "FileUnreadable", "does not contain what was just written"):
        FileKind(Forgetful(tmp_path / "host")).apply(str(tmp_path / "file"), "content", soon())


# -- the journal and its steps -----------------------------------------------------------------------------------------


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SQLiteJournal]:
    with closing(open_journal(tmp_path / "node")) as opened:
        yield opened


def test_a_step_that_a_newer_version_recorded_is_neither_done_nor_undone(
    journal: SQLiteJournal, tmp_path: Path
) -> None:
    runner = StepRunner(journal, {}, ClaimLocks(tmp_path / "locks"), PrepareOptions())
    with raises(Failed, "StepKindUnknown", "run the version that recorded it", retryable=False):
        runner._kind(Step("teleport", "0000:41:00.0", None, "there"))


def test_the_journal_withholds_nothing_for_a_step_that_it_does_not_have(journal: SQLiteJournal) -> None:
    with raises(Failed, "JournalDisagrees", "no such step"):
        journal.withhold(4711, "broken")


def test_threads_that_cannot_be_had_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = LinuxHost(str(tmp_path))

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with raises(Failed, "HostBusy", "can't start new thread"):
        host.write("bus/pci/drivers_probe", "0000:41:00.0", soon())
    assert not host._waiting, "the next call is not taken for a second one"


# -- sockets -----------------------------------------------------------------------------------------------------------


def test_a_socket_is_given_by_its_full_path() -> None:
    with raises(Denied, "SocketPathInvalid", "must be given by its full path"):
        check_path(Path("run/node.sock"))


def test_a_socket_that_cannot_be_served_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("devalloc_node.net.unix_sockets.place_socket", refuse)
    tmp_path.chmod(0o700)
    with (
        raises(Failed, "SocketFailed", "No space left on device", retryable=False),
        listening_socket(tmp_path / "s", 1),
    ):
        pytest.fail("it serves")


@pytest.mark.parametrize("text", ["", "../x", "a--b", "a b", "-a", "a" * 300])
def test_a_setup_is_called_by_a_plain_name(text: str) -> None:
    with raises(Denied, "IdentifierInvalid", "the pool must be letters and digits"):
        check_identifier("pool", text)


# -- devices in machines -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "1a", "a b", "a,b", "a=b"])
def test_qemu_gets_only_plain_ids(name: str) -> None:
    with raises(Denied, "DeviceIdInvalid", "a letter, then letters, digits"):
        pci.passthrough_device(name, device())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"binding": "none"}, "is prepared as none, which machines cannot use"),
        ({"functions": ()}, "which machines cannot use"),
        ({"functions": tuple(f"0000:41:00.{n}" for n in range(9))}, "has more than 8 functions"),
    ],
)
def test_a_device_that_machines_cannot_use_is_not_plugged(change: dict[str, Any], words: str) -> None:
    with raises(Denied, "DeviceNotPluggable", words):
        pci.passthrough_device("d", replace(device(), **change))


# -- CPUs and memory of machines ---------------------------------------------------------------------------------------


def test_a_vcpu_that_qemu_accepts_and_does_not_show_is_not_there() -> None:
    taken, free = ({"vcpus-count": 1, "type": "cpu", "props": {"core-id": number}} for number in range(2))
    slots = [taken | {"qom-path": "/machine/0"}, free]
    qemu = monitor(query_hotpluggable_cpus=slots, device_add={})
    with raises(Failed, "CpuNotThere", "does not show it"):
        scale(qemu, "default/m", 2, soon())


def test_memory_that_qemu_accepts_and_does_not_show_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The DIMM is listed, and the sum of the memory stays as it was."""
    dimms: list[str] = []
    qemu = monitor(
        query_memory_size_summary={"base-memory": 512 * MIB, "plugged-memory": 0},
        query_memory_devices=[],
        device_add=lambda arguments: dimms.append(arguments["id"]),
    )
    monkeypatch.setattr(machine_memory, "present_devices", lambda *arguments: dict.fromkeys(dimms, "pc-dimm"))
    for step in ("_add_backend", "_remove_leftovers"):
        monkeypatch.setattr(machine_memory, step, lambda *arguments: None)
    with raises(Failed, "MemoryNotThere", "after plugging, instead of 640Mi"):
        machine_memory._scale_dimms(qemu, SPEC, 640 * MIB, 128 * MIB, soon())
    assert len(dimms) == 1


def test_no_thread_of_another_process_is_bound_to_cpus() -> None:
    """QEMU may have been taken over, and names a thread of another process."""
    stranger = {"props": {"socket-id": 0, "core-id": 0}, "thread-id": os.getppid()}
    before = os.sched_getaffinity(os.getppid())
    with raises(Failed, "CpusNotPinned", "has no such thread"):
        cpu_pinning.pin_vcpus(
            monitor(query_cpus_fast=[stranger]), "default/m", Process(os.getpid(), 0), {(0, 0): {0}}, soon()
        )
    assert os.sched_getaffinity(os.getppid()) == before


def test_a_vcpu_that_the_kernel_does_not_bind_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"props": {"socket-id": 0, "core-id": 0}, "thread-id": os.getpid()}

    def refuse(thread: int, cpus: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with raises(Failed, "CpusNotPinned", "Operation not permitted"):
        cpu_pinning.pin_vcpus(
            monitor(query_cpus_fast=[own]), "default/m", Process(os.getpid(), 0), {(0, 0): {0}}, soon()
        )


def test_a_machine_needs_the_numa_nodes_of_its_host(tmp_path: Path) -> None:
    spec = replace(SPEC, numa_cells=(NumaCell(1, 1000, MIB),))
    (tmp_path / "node0").mkdir()
    with raises(Denied, "NumaNodeMissing", "requires NUMA node 1"):
        preflight.check_host_limits(spec, "tcg", nodes=tmp_path)
    (tmp_path / "node1").mkdir()
    preflight.check_host_limits(spec, "tcg", nodes=tmp_path)


def test_huge_pages_that_are_missing_may_become_free(tmp_path: Path) -> None:
    pages = tmp_path / "sys/kernel/mm/hugepages/hugepages-2048kB"
    pages.mkdir(parents=True)
    (pages / "free_hugepages").write_text("2\n")
    spec = replace(SPEC, huge_page_bytes=2 * MIB, numa_cells=(), numa_node=None)
    preflight.check_huge_pages(spec, 0, 4 * MIB, tmp_path)
    with raises(Denied, "HugePagesTooFew", "needs 3 huge pages of 2Mi, but this host has 2 free", retryable=True):
        preflight.check_huge_pages(spec, 0, 6 * MIB, tmp_path)


def test_a_machine_has_amounts_of_three_things() -> None:
    record = MachineRecord(virtual_machine("m").to_manifest(), "running", "run")
    with raises(Denied, "AmountUnknown", "but no 'disk'", retryable=False):
        resources.with_request(record, monitor(), "disk", 1, soon())


def test_a_tpm_needs_swtpm(tmp_path: Path) -> None:
    config = MachineConfig(state=tmp_path, run=tmp_path, swtpm="no-such-swtpm")
    with raises(Denied, "SwtpmMissing", "install swtpm, or name it with --swtpm", retryable=True):
        firmware.tpm_plan(replace(SPEC, tpm=True), config, None)
    assert not config.tpm(SPEC.id).exists()


# -- consoles ----------------------------------------------------------------------------------------------------------


class ConsoleOf:
    """A machine that runs, and whose QEMU says who has its console open."""

    def __init__(self, folder: Path, filename: str, **spec: Any) -> None:
        self.config = MachineConfig(state=folder / "state", run=folder / "run")
        self.record = MachineRecord(virtual_machine("m", **spec).to_manifest(), "running", "run")
        self.qemu = monitor(query_chardev=[{"label": "monitor", "filename": "x"}, {"label": "console0"}])
        self.qemu.table["query-chardev"][1]["filename"] = filename

    def running(self, key: str) -> tuple[MachineRecord, None]:
        return self.record, None

    def record_for(self, key: str) -> MachineRecord:
        return self.record

    def line(self, record: MachineRecord) -> Any:
        return nullcontext(self.qemu)


def test_one_program_at_a_time_has_a_console(tmp_path: Path) -> None:
    machines: Any = ConsoleOf(tmp_path, "unix:/run/m/console,server=on <-> ")
    with raises(Denied, "ConsoleInUse", "end that one first", retryable=True), opened_console(machines, "default/m"):
        pytest.fail("it is open")


def test_of_two_callers_at_once_only_one_has_a_console(tmp_path: Path) -> None:
    """QEMU says that a console is free until it has accepted the connection of the first one."""
    machines: Any = ConsoleOf(tmp_path, "disconnected:unix:/run/m/console,server=on")
    folder = machines.config.folder(machines.record.spec.id)
    folder.mkdir(parents=True)
    with listening_socket(folder / "console", 2):
        with opened_console(machines, "default/m"):
            for _ in range(2):  # one that is refused does not set it free
                with raises(Denied, "ConsoleInUse", "end that one first"), opened_console(machines, "default/m"):
                    pytest.fail("it is open")
        with opened_console(machines, "default/m"):
            pass  # the first one has ended


def test_a_console_at_which_qemu_does_not_listen_is_reported(tmp_path: Path) -> None:
    machines: Any = ConsoleOf(tmp_path, "disconnected:unix:/run/m/console,server=on")
    with raises(Failed, "ConsoleUnreachable", "No such file", retryable=True), opened_console(machines, "default/m"):
        pytest.fail("it is open")


def test_an_adopted_machine_has_neither_console_nor_logs_of_the_plugin(tmp_path: Path) -> None:
    machines: Any = ConsoleOf(tmp_path, "", start=None, adopt={"qmpSocket": "/run/qmp"})
    with raises(Denied, "NoConsole", "the program that started it"), opened_console(machines, "default/m"):
        pytest.fail("it is open")
    with raises(Denied, "NoConsole", "the program that started it", retryable=False):
        log_file(machines, "default/m", "console")
    assert machines.qemu.sent == [], "QEMU is not asked"


# -- machines that move ------------------------------------------------------------------------------------------------


def offered(accel: Any = "tcg", **platform: Any) -> MigrationOffer:
    return MigrationOffer(
        run="7d3c2f3e-0000-4000-8000-00000000a001",
        accel=accel,
        platform=MigrationPlatform(machine_type="pc-q35-7.2", **platform),
        amounts=MigrationAmounts(cpu_milli=1000, memory_bytes=512 * MIB),
        certificate="",
    )


def test_a_machine_does_not_move_between_kvm_and_emulation() -> None:
    with raises(Denied, "AcceleratorDiffers", "runs with kvm, and this node has tcg"):
        offers.check_cpu(SPEC, "tcg", offered("kvm"))


@pytest.mark.parametrize(
    ("platform", "words"),
    [
        ({"address_bits": 46, "cpu_flags": ["avx", "sse"]}, "have 46 bits of addresses, and those of this node 39"),
        ({"address_bits": 39, "cpu_flags": ["avx2", "sse"]}, "have avx, avx2"),
    ],
)
def test_a_guest_finds_the_cpus_that_it_began_with(
    platform: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "address_bits", lambda accel: 39)
    monkeypatch.setattr(preflight, "cpu_flags", lambda: ("sse", "avx"))
    with raises(Denied, "CpuDiffers", words):
        offers.check_cpu(SPEC, "kvm", offered("kvm", **platform))
    offers.check_cpu(SPEC, "kvm", offered("kvm", address_bits=39, cpu_flags=["sse", "avx"]))


def test_a_guest_finds_the_numa_nodes_that_it_began_with() -> None:
    cells = (NumaCell(0, 1000, MIB), NumaCell(3, 2000, 2 * MIB))
    spec = replace(SPEC, numa_cells=cells)

    def there(*cells: tuple[int, int]) -> MigrationOffer:
        return offered(cells=[MigrationCell(cpu_milli=cpus, memory=memory) for cpus, memory in cells])

    assert offers.cells_here(spec, there((2000, 2 * MIB), (1000, MIB))) == cells[::-1]
    for other in ((), ((1000, MIB),), ((1000, MIB), (1000, MIB)), ((1000, MIB), (2000, 2 * MIB), (1, 1))):
        with raises(Denied, "NumaDiffers", "cannot move here while it runs"):
            offers.cells_here(spec, there(*other))


def test_a_card_has_as_many_queues_on_both_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(SPEC, nics=(Nic(interface="tap0"),))
    platform = MigrationPlatform(machine_type="pc-q35-7.2", queues=[MigrationQueues(nic=0, count=4)])
    monkeypatch.setattr(allowed_paths, "has_queues", lambda interface: False)
    with raises(Denied, "TapDiffers", "has 4 queues on its node, and TAP tap0 of this node gives it 1", retryable=True):
        launch._queues(spec, platform)
    monkeypatch.setattr(allowed_paths, "has_queues", lambda interface: True)
    assert launch._queues(spec, platform) == {0: 4}


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_machine_that_changes_its_node_is_not_changed_otherwise(
    tmp_path: Path, side: Literal["source", "target"]
) -> None:
    config = MachineConfig(state=tmp_path / "state", run=tmp_path / "run", systemd=False)
    machines = MachineLifecycle(config, open_journal(tmp_path / "records"))
    content = virtual_machine("m").to_manifest()
    machines.put(MachineRecord(content, "running", "run", migration=MachineMigration("u", side)))
    with (
        raises(Denied, "MachineMigrates", "cannot scale it: ", retryable=True),
        machines.hold("default/m", soon(), "scale it"),
    ):
        pytest.fail("it is changed")
    machines.put(MachineRecord(content, "running", "run"))
    with machines.hold("default/m", soon(), "scale it"):
        pass
    machines.close()


@pytest.mark.parametrize("certificate", ["", "not a certificate", "x" * 2_000_000])
def test_a_certificate_that_cannot_be_read_is_not_trusted(certificate: str) -> None:
    with raises(Denied, "CertificateInvalid", "is unreadable"):
        migration_tls.check_authority(certificate)


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (None, "it does not move"),
        (MachineMigration("other", "source"), "it is the source of migration other"),
        (MachineMigration("u", "target"), "it is the target of migration u"),
    ],
)
def test_a_machine_obeys_only_its_own_migration(own: MachineMigration | None, words: str) -> None:
    record = MachineRecord(virtual_machine("m").to_manifest(), "running", "run", migration=own)
    with raises(Denied, "MigrationUnknown", words):
        migration._check_own(record, "u", "source")


class Still:
    """A source whose guest has stood still since the first look."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, state: str = "finish-migrate", progress: Progress | None = None
    ) -> None:
        self.now, self.state, self.progress = 100.0, state, progress or Progress("active")
        monkeypatch.setattr(migration.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(migration, "_await_change", self.look)

    def look(self, machines: object, key: str, deadline: Deadline) -> tuple[Progress, str]:
        self.now += 1.0
        return self.progress, self.state


def test_a_guest_that_stands_still_too_long_ends_the_migration(monkeypatch: pytest.MonkeyPatch) -> None:
    still, reports = Still(monkeypatch), list[Progress]()
    with raises(Failed, "MigrationStalled", "the target does not answer"):
        migration.await_sent(None, "default/m", Deadline.after(3600), reports.append)  # type: ignore[arg-type]
    assert len(reports) == migration.STALL_SECONDS + 1, "it is given that long, from when it stood still"
    assert still.now == 100.0 + migration.STALL_SECONDS + 1


def test_a_migration_that_is_not_over_in_time_is_neither_done_nor_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    still, reports = (
        Still(monkeypatch, "running", Progress("active", remaining=3 << 20, total=8 << 20)),
        list[Progress](),
    )

    def report(now: Progress) -> None:
        reports.append(now)
        assert len(reports) == 1, "there is no time for a second look"

    with raises(Unknown, "MigrationSlow", "3Mi of 8Mi are left", retryable=True):
        migration.await_sent(None, "default/m", Deadline.after(0), report)  # type: ignore[arg-type]
    assert reports == [still.progress]


def test_a_migration_that_qemu_gave_up_has_failed_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    Still(monkeypatch, "running", Progress("failed", error="the target refused it"))
    with raises(Failed, "MigrationFailed", "the target refused it", retryable=True):
        migration.await_sent(None, "default/m", soon())  # type: ignore[arg-type]


def test_a_guest_that_runs_again_is_given_its_time_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    still = Still(monkeypatch)

    def report(now: Progress) -> None:
        still.state = "running" if int(still.now) % 10 == 0 else "finish-migrate"
        if still.now > 200:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        migration.await_sent(None, "default/m", Deadline.after(3600), report)  # type: ignore[arg-type]


def test_a_target_without_a_listener_is_unreachable() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    with raises(Failed, "TargetUnreachable", f"port {port}: "):
        migration._connected("default/m", MigrationDestination(address="127.0.0.1", port=port, certificate=""), soon(2))


def test_a_target_that_does_not_shake_hands_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "_progress", lambda monitor, deadline: Progress("setup"))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with raises(Failed, "TargetUnreachable", "a stranger has connected to it"):
            migration._await_handshake(monitor(), "default/m", ours, soon(0.05))
        assert theirs.recv(1) == b"", "QEMU does not wait for it any longer"


def test_a_migration_that_does_not_end_is_unclear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "_progress", lambda monitor, deadline: Progress("cancelling"))
    with raises(Unknown, "MigrationUnclear", "still 'cancelling' after its cancellation"):
        migration._stop_sending(Answers({"migrate_cancel": {}}), "default/m", soon(0.05))
    monkeypatch.setattr(migration, "run_state", lambda monitor, deadline: "inmigrate")
    with raises(Unknown, "MigrationUnclear", "is to run on this node, but is still 'inmigrate'"):
        migration._let_run(monitor(), "default/m", soon(0.05))


# -- processes and files of machines -----------------------------------------------------------------------------------


def test_a_qemu_that_survives_a_kill_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(launch, "alive", lambda qemu: True)
    monkeypatch.setattr(launch, "wait", lambda qemu, seconds: False)
    monkeypatch.setattr(launch, "kill", lambda qemu, number: killed.append(number))
    with raises(Unknown, "MachineUnkillable", "was killed but did not end"):
        launch.end(monitor(quit={}), "default/m", Process(4711, 1))
    assert len(killed) == 1


def test_a_tpm_that_does_not_end_keeps_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = MachineConfig(state=tmp_path / "state", run=tmp_path / "run")
    config.tpm("m").mkdir(parents=True)
    monkeypatch.setattr(firmware, "_TPM_SECONDS", 0.05)
    with ExitStack() as stack:
        lock = stack.enter_context(FileLock.of_folder(config.tpm("m")))
        assert lock.try_lock()
        with raises(Failed, "TpmRuns", "was killed but did not end"):
            firmware.await_tpm_end("m", config)
    firmware.await_tpm_end("m", config)


def test_an_image_that_no_qemu_holds_is_not_proven_to_be_shared(tmp_path: Path) -> None:
    image = tmp_path / "disk.raw"
    image.write_bytes(bytes(4096))
    with open(image, "rb") as file, raises(Denied, "DiskNotShared", "lock of the other node's QEMU is not seen here"):
        allowed_paths.check_image_held(file.fileno(), str(image), writable=True)


def test_a_machine_is_not_forgotten_while_its_interfaces_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record alone says whose limits they are: the next machine with the interface would keep them."""
    settings = MachineConfig(state=tmp_path / "state", run=tmp_path / "run", binary="/none", accel="tcg", users=None)
    record = MachineRecord(virtual_machine("m").to_manifest(), "stopped", "run", tap_limits=(("", "tap0"),))

    def refuse(*_: object) -> None:
        raise OSError(16, "Device or resource busy")

    with plugin(settings) as machines:
        machines.put(record)
        monkeypatch.setattr(traffic, "set_rates", refuse)
        for forget in (lambda: machines.forget("default/m", soon()), lambda: machines.remove(record, soon())):
            with raises(Failed, "LimitNotRemoved", "the limits of its TAP interfaces remain", retryable=True):
                forget()
            assert machines.find("default/m") == record
        monkeypatch.setattr(traffic, "set_rates", lambda *_: None)
        machines.forget("default/m", soon())
        assert machines.find("default/m") is None


def test_a_machine_that_another_node_still_has_is_left_to_it(tmp_path: Path, store: SQLiteStore) -> None:
    """Its object names this node by now, and the other one has not stopped it yet."""
    loop = ToyLoop(tmp_path, store)
    made = store.create(vm("web"))
    held = {**made["metadata"], "annotations": {meta.PREPARED_ON: "node-b"}, "finalizers": [meta.NODE_FINALIZER]}
    now = store.replace({**made, "metadata": held})
    assert loop.loop._keeper.keep(now, lambda obj: ()) == Outcome("MachineElsewhere", "it is still on node node-b")
    assert (loop.machines.list(), store.get("VirtualMachine", "default", "web")) == ([], now)


def test_an_argument_that_json_cannot_express_is_not_sent_to_qemu(tmp_path: Path) -> None:
    line = QmpMonitor("default/m", str(tmp_path / "qmp"))
    with raises(Failed, "MonitorMisused", "cannot send qom-set", retryable=False):
        line.execute("qom-set", {"value": object()}, deadline=soon())


# -- the network of warm setups ----------------------------------------------------------------------------------------


class Routes:
    """The host's routes, as netlink lists them."""

    def __init__(self, *destinations: str) -> None:
        self.destinations = destinations

    def get_routes(self, family: int) -> list[Any]:
        return [_Route(each) for each in self.destinations]


class _Route(dict[str, Any]):
    def __init__(self, destination: str) -> None:
        address, _, length = destination.partition("/")
        super().__init__(dst_len=int(length))
        self.attributes = {"RTA_DST": address, "RTA_TABLE": 254}

    def get_attr(self, name: str) -> Any:
        return self.attributes[name]


@dataclass
class BridgeHost:
    """What a host has of the bridge of warm setups."""

    link: dict[str, Any] | None = None
    is_own: bool = True
    record: dict[str, Any] | None = None
    ports: int = 0
    table: str = ""
    routes: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("host", "network", "code", "words", "retryable"),
    [
        (BridgeHost(link={"index": 1}), {}, "BridgeForeign", "choose another --warm-bridge", False),
        (BridgeHost(link={"index": 1}, is_own=False, record={}), {}, "BridgeForeign", "not made by this plugin", False),
        (
            BridgeHost(link={"index": 1}, record={"subnet": "10.9.0.0/24"}, ports=3),
            {},
            "BridgeInUse",
            "still has the subnet 10.9.0.0/24 for 3 setups",
            True,
        ),
        (BridgeHost(table="other"), {}, "TableForeign", "nftables has a table inet devalloc_devalloc0", False),
        (BridgeHost(), {"uplink": "nat"}, "ForwardingOff", "net.ipv4.ip_forward is 0", True),
        (BridgeHost(routes=("10.0.0.0/8",)), {}, "SubnetInUse", "overlaps with this host's route to 10.0.0.0/8", False),
    ],
)
def test_a_bridge_takes_nothing_that_others_have(
    host: BridgeHost,
    network: dict[str, Any],
    code: str,
    words: str,
    retryable: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subnet = ipaddress.IPv4Network("10.88.0.0/24")
    monkeypatch.setattr(bridge, "netlink", lambda: nullcontext(Routes(*host.routes)))
    monkeypatch.setattr(bridge, "_link", lambda route, name: host.link)
    monkeypatch.setattr(bridge, "_is_own", lambda link, kind, mac: host.is_own)
    monkeypatch.setattr(bridge, "_ports", lambda route, index: host.ports)
    monkeypatch.setattr(bridge, "_read_record", lambda path: host.record)
    monkeypatch.setattr(bridge, "_rules", lambda there: "")
    monkeypatch.setattr(bridge, "_table_owner", lambda there: host.table)
    monkeypatch.setattr(bridge, "_write_record", lambda *arguments, **more: pytest.fail("it begins"))
    (tmp_path / "ip_forward").write_text("0\n")
    monkeypatch.setattr(bridge, "_FORWARDING", tmp_path / "ip_forward")
    with raises(Denied, code, words, retryable=retryable):
        bridge._make_bridge(HostBridge(BridgeNetwork(subnet=subnet, **network), tmp_path))


def test_a_bridge_of_which_the_record_cannot_be_read_is_left_to_the_admin(tmp_path: Path) -> None:
    record = tmp_path / "bridges" / "devalloc0.json"
    record.parent.mkdir()
    record.write_text("{")
    with raises(Failed, "RecordsUnavailable", f"cannot read the record of a bridge, {record}; remove both by hand"):
        bridge.remove_unused_bridges(tmp_path, "nft")
    assert record.exists()


def test_one_plugin_at_a_time_has_the_warm_setups_of_a_folder(tmp_path: Path) -> None:
    with opened(tmp_path, ToyPart()) as pool:
        with raises(Denied, "PoolInUse", f"serves the warm setups in {pool.config.run}", retryable=True):
            Pool(pool.config, "boot-1", parts=[ToyPart()]).open()
        pool.take("a")
    with opened(tmp_path, ToyPart()):
        pass  # its lock goes with it


def test_a_setup_in_which_a_process_lives_stays_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path, ToyPart()) as pool:
        setup = pool.take("a").setup.id
        look = pool._clearing.occupants
        monkeypatch.setattr(pool._clearing, "occupants", lambda records, asking: {setup: ("process 7 (x)",)})
        with raises(Denied, "SetupInUse", "of a is still in use by process 7 (x)", retryable=True):
            pool.give_back(setup, Deadline.after(0))
        assert [each.setup.id for each in pool.taken()] == [setup]
        monkeypatch.setattr(pool._clearing, "occupants", look)
        pool.give_back(setup, soon())
        assert not pool.taken()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"claims": ["c"]}, "it has claims, whose devices only one machine can use"),
        ({"start": None, "adopt": {"qmpSocket": "/run/qmp"}}, "it runs already"),
        ({"start": {"disks": [{"path": "/images/a.raw", "format": "raw"}]}}, "it has a disk that is not read-only"),
        ({"nics": [{"backend": "tap", "interface": "tap0"}]}, "it has a TAP interface of the host"),
        ({"nics": [{"backend": "warm"}]}, "the setup adds its own card"),
        ({"start": {"kernel": "/none", "tpm": True}}, "it has a TPM, whose content belongs to one machine"),
    ],
)
def test_only_a_machine_that_many_can_be_like_waits_in_warm_setups(change: dict[str, Any], words: str) -> None:
    check_template(virtual_machine("m"))
    with raises(Denied, "WarmMachineInvalid", words, retryable=False):
        check_template(virtual_machine("m", **change))


def test_a_setup_that_cannot_be_removed_keeps_its_record(tmp_path: Path) -> None:
    toy = ToyPart()
    with opened(tmp_path, toy) as pool:
        pool.take("a")
        (record,) = pool._records.all()[0]

        def broken(setup: object) -> None:
            raise OSError(16, "Device or resource busy")

        toy.removing = broken
        with raises(Failed, "SetupNotRemoved", "cannot remove the toy"):
            pool._builder.remove(record)
        with raises(Failed, "SetupNotRemoved", "that this version does not support"):
            pool._builder.remove(replace(record, parts=("teleporter",)))
        assert pool._records.all()[0], "the next look finds it"
        toy.removing = lambda setup: None
        pool._builder.remove(record)
        assert toy.there == pool._records.all()[0] == []


@pytest.mark.parametrize(
    ("error", "words"),
    [(OSError(12, "Cannot allocate memory"), "Cannot allocate memory"), (Denied("TableForeign", "foreign"), "foreign")],
)
def test_a_network_that_cannot_be_made_again_is_reported(
    error: Exception, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(there: HostBridge) -> None:
        raise error

    monkeypatch.setattr("devalloc_machines.warm.builder.make_bridge", refuse)
    with opened(tmp_path, ToyPart(), network=BridgeNetwork()) as pool:
        pool._builder.keep_network()  # nothing was made before
        record = HostBridge(BridgeNetwork(), tmp_path / "run").record
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text("{}")
        with raises(Failed, "NetworkUnavailable", words, retryable=True):
            pool._builder.keep_network()
        record.unlink()


# -- what is no longer as it was ---------------------------------------------------------------------------------------


def test_claims_of_another_cluster_are_not_judged_by_this_one(tmp_path: Path) -> None:
    bench = EngineBench(tmp_path / "node")
    ref = bench.add("a/slot-0")
    bench.claims.prepare(ref)
    assert check_existence(bench.journal, {"DeviceClaim": bench.grants}).moved is None
    bench.grants.cluster = "cluster-2"
    moved = check_existence(bench.journal, {"DeviceClaim": bench.grants}).moved
    assert moved is not None
    assert (moved.code, moved.retryable) == ("StoreMoved", True)


def test_a_machine_that_was_stopped_meanwhile_is_not_started(tmp_path: Path) -> None:
    machines = ToyMachines()
    operations = platform_of(toy_bench(tmp_path, machines), machines)
    with raises(Denied, "NotWanted", "was started, stopped or deleted meanwhile"):
        operations.create(machine_of(vm("web")), (), soon(), still=lambda: False)
    assert machines.list() == []


def test_a_pf_without_interface_cannot_configure_its_vfs(host: FakeHost) -> None:
    host.add(pci_cards.amd_gpu(vfs=2))
    host.set_numvfs("0000:03:00.0", 2)
    with raises(Failed, "NoInterface", "has no network interface in this namespace"):
        VfSettingsKind(LocalHost(host)).read("0000:03:00.0/0")


def test_a_machine_that_systemd_does_not_start_in_time_is_unclear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_life_text", lambda spec, config: "before")
    config = MachineConfig(state=tmp_path / "state", run=tmp_path / "run", start_seconds=0.05)
    with raises(Unknown, "MachineUnclear", f"see {config.unit(SPEC.id)}"):
        launch._await_begin(SPEC, config, "before")


def test_a_source_without_its_key_does_not_send(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = MachineRecord(
        virtual_machine("m").to_manifest(), "running", "run", migration=MachineMigration("u", "source")
    )
    sent: list[str] = []

    class Machines:
        config = MachineConfig(state=tmp_path / "state", run=tmp_path / "run")
        lock = staticmethod(lambda *arguments: nullcontext())
        running = staticmethod(lambda key: (record, None))
        line = staticmethod(lambda record: nullcontext(Answers({}, sent)))

    monkeypatch.setattr(migration, "_progress", lambda monitor, deadline: Progress("none"))
    monkeypatch.setattr(migration, "run_state", lambda monitor, deadline: "running")
    monkeypatch.setattr(migration_tls, "check_authority", lambda certificate: "")
    to = MigrationDestination(address="192.0.2.1", port=4711, certificate="")
    machines: Any = Machines()
    with raises(Failed, "MigrationKeyMissing", "is lost: cancel it"):
        migration.send(machines, "default/m", "u", to, soon())
    assert sent == [], "QEMU gets no command"
