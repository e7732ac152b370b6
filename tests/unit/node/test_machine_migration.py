"""What of a machine's migration needs no QEMU: records, keys, and what is believed of the other node."""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import stat
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from decimal import Decimal, localcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from devalloc.api import meta
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.api.virtual_machine_migration import (
    MigrationAmounts,
    MigrationDestination,
    MigrationFirmware,
    MigrationOffer,
    MigrationPlatform,
    MigrationQueues,
    MigrationRootPort,
)
from devalloc.store.sqlite import SQLiteStore
from devalloc_machines.qemu import firmware, migrated_firmware, migration, migration_offer, migration_tls
from devalloc_machines.qemu.command_line import StartContext, qemu_arguments
from devalloc_machines.qemu.launch import TLS_FOLDER
from devalloc_machines.qemu.lifecycle import MachineLifecycle
from devalloc_machines.qemu.pci import WindowReserve
from devalloc_machines.qemu.records import (
    MachineMigration,
    MachineObservation,
    MachineRecord,
    MachineView,
    State,
    content_of,
    record_after_end,
    record_of,
)
from devalloc_machines.qemu.registry import machine_view
from devalloc_machines.qemu.settings import FirmwareFiles, MachineConfig, MigrationSettings
from devalloc_machines.qemu.spec import machine_id, spec_of
from devalloc_machines.vms.migration_objects import write_firmware_stored
from devalloc_machines.vms.migrations import MigrationLoop, _Move
from devalloc_machines.vms.situation import is_to_restart, with_numa_node
from devalloc_machines.vms.status import status_of
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed
from devalloc_node.host import linux
from devalloc_node.operations.change_feed import ChangeNotifier
from tests.support.deadlines import soon
from tests.support.machines import MIB, plugin, virtual_machine
from tests.support.node_errors import raises


def toy_config(folder: Path) -> MachineConfig:
    return MachineConfig(state=folder / "state", run=folder / "run", binary="/none", accel="tcg", users=None)


RUN = "8b0e9a6e-0000-4000-8000-000000000001"


def test_a_machine_that_is_received_is_started_like_the_one_that_is_sent() -> None:
    spec = spec_of(virtual_machine("m", pciSlots=2))
    reserves = (WindowReserve(prefetchable=1 << 30), WindowReserve())
    plain = StartContext(binary="/qemu", accel="kvm", uuid=RUN, kernel="/k", reserves=reserves)
    here = qemu_arguments(spec, replace(plain, machine_type="pc-q35-7.2", is_incoming=True))
    there = qemu_arguments(spec, plain)
    assert "-incoming" not in there
    at = here.index("-incoming")
    assert here[at + 1] == "defer"
    assert [word.replace("pc-q35-7.2", "q35") for word in here[:at] + here[at + 2 :]] == there


def test_a_record_keeps_its_migration_and_no_policy_starts_it(tmp_path: Path) -> None:
    machine = virtual_machine("m")
    for role in ("source", "target"):
        record = MachineRecord(machine.to_manifest(), "stopped", RUN, firmware="ab" * 32, reason="MachineEnded")
        assert machine_view(record, None, MachineObservation(), toy_config(tmp_path)).is_to_begin
        moving = replace(record, migration=MachineMigration("u", role, "PEM"))
        assert record_of("default/m", content_of(moving)) == moving
        assert not machine_view(moving, None, MachineObservation(), toy_config(tmp_path)).is_to_begin
    assert record_of("default/m", content_of(record)).migration is None
    without = {name: value for name, value in content_of(record).items() if name not in ("migration", "firmware")}
    assert record_of("default/m", without) == replace(record, firmware=""), "as the release before wrote it"
    ended = record_after_end(replace(moving, state="incoming"), toy_config(tmp_path))
    assert (ended.state, ended.reason) == ("failed", "MigrationFailed")
    assert not machine_view(ended, None, MachineObservation(), toy_config(tmp_path)).is_to_begin


def test_each_key_is_certified_by_an_authority_that_is_gone() -> None:
    client, server = migration_tls.make_identity("client"), migration_tls.make_identity("server")
    for identity in (client, server):
        authority = x509.load_pem_x509_certificate(identity.authority.encode())
        certificate = x509.load_pem_x509_certificate(identity.certificate.encode())
        certificate.verify_directly_issued_by(authority)
        assert authority.public_key() != certificate.public_key()
        assert migration_tls.check_authority(identity.authority + "more") == identity.authority
    with pytest.raises(ValueError, match="issuer"):
        x509.load_pem_x509_certificate(client.certificate.encode()).verify_directly_issued_by(
            x509.load_pem_x509_certificate(server.authority.encode())
        )


def test_a_key_proves_who_is_at_an_end_and_its_authority_only_that() -> None:
    none = dict.fromkeys(
        ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
         "key_cert_sign", "crl_sign"), False,
    )  # fmt: skip
    ends = {"client": ExtendedKeyUsageOID.CLIENT_AUTH, "server": ExtendedKeyUsageOID.SERVER_AUTH}
    for endpoint, purpose in ends.items():
        identity = migration_tls.make_identity(endpoint)  # type: ignore[arg-type]
        for text, is_authority, usage in (
            (identity.authority, True, "key_cert_sign"),
            (identity.certificate, False, "digital_signature"),
        ):
            extensions = {each.oid: each for each in x509.load_pem_x509_certificate(text.encode()).extensions}
            basic = extensions[x509.BasicConstraints.oid]
            assert (basic.critical, basic.value.ca) == (True, is_authority)
            assert basic.value.path_length == (0 if is_authority else None), "it certifies no other authority"
            key_usage = extensions[x509.KeyUsage.oid]
            assert {name: getattr(key_usage.value, name) for name in none} == none | {usage: True}
            assert key_usage.critical
            if not is_authority:
                assert [*extensions[x509.ExtendedKeyUsage.oid].value] == [purpose]


def test_the_group_is_that_of_the_rfc() -> None:
    with localcontext(prec=800):
        e = Decimal(1).exp()
        prime = 2**2048 - 2**1984 + (int(e * 2**1918) + 560316) * 2**64 - 1
    inside = base64.b64decode("".join(migration_tls.GROUP.splitlines()[1:-1]))
    assert inside == bytes.fromhex("30820108 0282010100") + prime.to_bytes(256) + bytes.fromhex("020102")
    server = migration_tls.files_of(migration_tls.make_identity("server"), "server")
    assert server[migration_tls.GROUP_FILE] == migration_tls.GROUP


@pytest.mark.parametrize("text", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n"])
def test_what_is_no_certificate_is_refused(text: str) -> None:
    with pytest.raises(Denied, match="certificate of the other node is unreadable"):
        migration_tls.check_authority(text)
    with pytest.raises(Denied, match="maximum"):
        migration_tls.check_authority(text + "x" * (1 << 20))


def test_keys_are_for_one_user_and_are_written_where_no_link_leads(tmp_path: Path) -> None:
    folder, away = tmp_path / "m", tmp_path / "away"
    folder.mkdir()
    away.mkdir()
    (folder / TLS_FOLDER).symlink_to(away)  # as a QEMU may that was taken over
    files = migration_tls.files_of(migration_tls.make_identity("client"), "client")
    migration_tls.write_files(folder, None, files)
    assert list(away.iterdir()) == []
    inside = folder / TLS_FOLDER
    assert (inside.is_symlink(), stat.S_IMODE(inside.stat().st_mode)) == (False, 0o700)
    assert {each.name: stat.S_IMODE(each.stat().st_mode) for each in inside.iterdir()} == dict.fromkeys(files, 0o600)
    assert {each.name: each.read_text() for each in inside.iterdir()} == files

    (inside / migration_tls.AUTHORITIES).unlink()
    (inside / migration_tls.AUTHORITIES).symlink_to(away / "taken")
    assert migration_tls.replace_authorities(folder, None, "both")
    assert (inside / migration_tls.AUTHORITIES).read_text() == "both"
    assert list(away.iterdir()) == []

    migration_tls.remove_files(folder)
    migration_tls.remove_files(folder)
    assert os.listdir(folder) == []
    assert not migration_tls.replace_authorities(folder, None, "both"), "the key is lost"


def offer(**other: Any) -> MigrationOffer:
    platform = MigrationPlatform(machine_type="pc-q35-7.2", root_ports=[MigrationRootPort()] * 4)
    certificate = migration_tls.make_identity("client").authority
    amounts = MigrationAmounts(cpu_milli=2000, vcpus=2, memory_bytes=512 * MIB)
    fields = {"run": RUN, "accel": "tcg", "platform": platform, "amounts": amounts, "certificate": certificate}
    return MigrationOffer(**fields | other)


def platform(**other: Any) -> dict[str, Any]:
    return {"platform": offer().platform.model_copy(update=other)}


def amounts(**other: Any) -> dict[str, Any]:
    return {"amounts": offer().amounts.model_copy(update=other)}


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        (platform(root_ports=[]), "number of root ports"),
        (platform(queues=[MigrationQueues(nic=0, count=2)]), "number of queues of a card"),
        (amounts(vcpus=None), "number of vCPUs"),
        (amounts(vcpus=5), "number of vCPUs"),
        (amounts(cpu_milli=5000), "CPU time"),
        (amounts(memory_bytes=511 * MIB), "memory"),
        (amounts(memory_bytes=512 * MIB + 4096), "memory"),
    ],
)
def test_an_offer_that_contradicts_the_spec_is_refused(tmp_path: Path, fault: dict[str, Any], what: str) -> None:
    machine = virtual_machine("m", pciSlots=4)
    with plugin(toy_config(tmp_path)) as machines:
        with pytest.raises(Denied, match=f"offers another {what} than its spec allows"):
            migration.receive(machines, machine, "u", offer(**fault), "127.0.0.1", soon())
        assert machines.list() == []


@pytest.mark.parametrize(
    ("start", "what"),
    [
        ({"disks": [{"path": "/i", "format": "raw", "clone": "overlay"}], "disk": "1Gi"}, "its clone of /i"),
        ({"disks": [{"path": "/i", "format": "raw", "clone": "copy"}], "disk": "1Gi"}, "its clone of /i"),
        ({"disks": [{"path": "/i", "format": "raw", "device": "nvme"}]}, "device nvme"),
    ],
)
def test_what_lies_on_one_node_is_not_received_and_what_is_here_stays(
    tmp_path: Path, start: dict[str, Any], what: str
) -> None:
    """Whatever the source says: a copy that a failure removed would be the machine's only one."""
    disk = {"disk": start.pop("disk")} if "disk" in start else {}
    machine = virtual_machine("m", pciSlots=4, start={"kernel": "/k", **start}, **disk)
    config = toy_config(tmp_path)
    here = config.disks(machine_id("default/m")) / "a.overlay"
    here.parent.mkdir(parents=True)
    here.write_text("all that it has written")
    with plugin(config) as machines:
        with pytest.raises(Denied, match=what) as denied:
            migration.receive(machines, machine, "u", offer(), "127.0.0.1", soon())
        assert (denied.value.code, machines.list()) == ("MachineNotMovable", [])
    assert [path.name for path in here.parent.iterdir()] == ["a.overlay"]


CODE, VARIABLES = b"code" * 1024, bytes(40) + b"_FVH" + b"v" * 4052
UEFI = {"kernel": "/k", "firmware": {"type": "uefi"}}


def uefi_config(folder: Path) -> MachineConfig:
    files = FirmwareFiles(folder / "CODE", folder / "VARS")
    files.code.write_bytes(CODE)
    files.variables.write_bytes(VARIABLES)
    return replace(toy_config(folder), uefi=files)


def identity(**other: Any) -> dict[str, Any]:
    same = MigrationFirmware(code_digest=hashlib.sha256(CODE).hexdigest(), variables_size=len(VARIABLES))
    return platform(firmware=same.model_copy(update=other))


@pytest.mark.parametrize(
    ("start", "offered", "code"),
    [
        (UEFI, {}, "OfferInvalid"),
        ({"kernel": "/k"}, identity(), "OfferInvalid"),
        (UEFI, identity(code_digest="0" * 64), "FirmwareDiffers"),
        (UEFI, identity(variables_size=len(VARIABLES) + 1), "FirmwareDiffers"),
        (UEFI, identity(), "QemuMissing"),
    ],
)
def test_the_target_has_the_same_firmware(
    tmp_path: Path, start: dict[str, Any], offered: dict[str, Any], code: str
) -> None:
    machine = virtual_machine("m", pciSlots=4, start=start)
    with plugin(uefi_config(tmp_path)) as machines:
        with pytest.raises(Denied) as denied:
            migration.receive(machines, machine, "u", offer(**offered), "127.0.0.1", soon())
        assert (denied.value.code, machines.list()) == (code, [])


@pytest.mark.parametrize("of", ["firmware", "tpm"])
def test_what_of_the_firmware_is_here_is_not_overwritten(tmp_path: Path, of: str) -> None:
    config = uefi_config(tmp_path)
    folder = getattr(config, of)(machine_id("default/m"))
    folder.mkdir(parents=True)
    (folder / "content").write_text("keys")
    machine = virtual_machine("m", pciSlots=4, start={**UEFI, "tpm": True})
    with plugin(config) as machines:
        with pytest.raises(Denied, match=f"remove {folder}") as denied:
            migration.receive(machines, machine, "u", offer(**identity()), "127.0.0.1", soon())
        assert (denied.value.code, machines.list()) == ("FirmwareRemains", [])
    assert (folder / "content").read_text() == "keys"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({}, migration.Progress("none", "", 0, 0, 0, 0.0, None)),
        (
            {
                "status": "completed",
                "ram": {"transferred": 5, "remaining": 3, "total": 8},
                "total-time": 2500,
                "downtime": 40,
            },
            migration.Progress("completed", "", 5, 3, 8, 2.5, 0.04),
        ),
        ({"status": "failed", "error-desc": "no room", "ram": None}, migration.Progress("failed", "no room", *[0] * 4)),
        ({"ram": {"total": -1}}, None),
        ({"ram": {"remaining": 1 << 64}}, None),
        ({"downtime": -1}, None),
        ({"total-time": "soon"}, None),
    ],
)
def test_what_qemu_reports_of_its_sending_is_checked(
    answer: dict[str, Any], expected: migration.Progress | None
) -> None:
    monitor = SimpleNamespace(execute=lambda command, deadline: answer)
    machines: Any = SimpleNamespace(running=lambda key: (None, None), line=lambda record: nullcontext(monitor))
    if expected is None:
        with pytest.raises(ValueError, match=r"is not from 0|invalid literal"):
            migration.progress(machines, "default/m", Deadline.after(5))
    else:
        assert migration.progress(machines, "default/m", Deadline.after(5)) == expected


@dataclass(frozen=True)
class FlashMonitor:
    """A QEMU that says what is in its flash chips."""

    folder: Path
    write: Callable[[Path, dict[str, Any]], None]

    def execute(self, command: str, what: dict[str, Any], deadline: Deadline) -> None:
        assert command == "pmemsave"
        self.write(self.folder / what["filename"], what)


def arrived(tmp_path: Path, **start: Any) -> tuple[MachineConfig, MachineRecord]:
    """A machine that waits for its CPUs to run, with what a target has before it gets anything."""
    config = uefi_config(tmp_path)
    record = MachineRecord(virtual_machine("m", start={**UEFI, **start}).to_manifest(), "incoming", RUN)
    firmware.make_store(record.spec, config, firmware.firmware_files(record.spec, config))
    config.folder(record.spec.id).mkdir(parents=True)
    return config, record


def store_received(config: MachineConfig, record: MachineRecord, write: Callable[[Path, dict[str, Any]], None]) -> None:
    monitor: Any = FlashMonitor(config.folder(record.spec.id), write)
    migrated_firmware.store(record, config, monitor, soon())


def test_the_variables_that_came_are_stored_before_the_cpus_run(tmp_path: Path) -> None:
    config, record = arrived(tmp_path)
    own = VARIABLES[:44] + b"w" * (len(VARIABLES) - 44)
    stored = firmware.variable_store(record.spec, config)
    before = stored.stat().st_ino

    def write(path: Path, what: dict[str, Any]) -> None:
        assert (what["val"], what["size"]) == ((1 << 32) - len(CODE) - len(VARIABLES), len(VARIABLES))
        path.write_bytes(own)

    for _ in range(2):
        store_received(config, record, write)
        assert stored.read_bytes() == own
        assert stored.stat().st_ino == before, "QEMU has it open"
        assert list(config.folder(record.spec.id).iterdir()) == []


@pytest.mark.parametrize("kind", ["short", "long", "link", "pipe", "other", "nothing"])
def test_what_a_taken_over_qemu_writes_instead_is_not_stored(tmp_path: Path, kind: str) -> None:
    config, record = arrived(tmp_path)
    secret = tmp_path / "secret"
    secret.write_bytes(VARIABLES)

    def write(path: Path, what: dict[str, Any]) -> None:
        if kind == "link":
            path.symlink_to(secret)
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind != "nothing":
            path.write_bytes({"short": VARIABLES[:-1], "long": VARIABLES + b"1"}.get(kind, bytes(len(VARIABLES))))

    with pytest.raises(Failed) as failed:
        store_received(config, record, write)
    assert failed.value.code in ("MigrationFailed", "HostUnwritable")
    assert firmware.variable_store(record.spec, config).read_bytes() == VARIABLES
    assert list(config.folder(record.spec.id).iterdir()) == []


def test_a_tpm_that_has_nothing_on_its_disk_has_not_arrived(tmp_path: Path) -> None:
    config, record = arrived(tmp_path, firmware={"type": "bios"}, tpm=True)
    folder = config.tpm(record.spec.id)
    folder.mkdir()
    for content in (None, b""):
        if content is not None:
            (folder / "tpm2-00.permall").write_bytes(content)
        with pytest.raises(Failed, match="the TPM did not write"):
            store_received(config, record, lambda path, what: pytest.fail("it has no UEFI variables"))
    (folder / "tpm2-00.permall").write_bytes(b"seeds")
    store_received(config, record, lambda path, what: pytest.fail("it has no UEFI variables"))


def test_a_source_hands_a_machine_over_when_its_firmware_is_stored(tmp_path: Path) -> None:
    content = virtual_machine("m", start={**UEFI, "tpm": True}).to_manifest()
    record = MachineRecord(content, "running", RUN, migration=MachineMigration("u", "source", "PEM"))
    move = {"apiVersion": meta.DEVALLOC, "kind": "VirtualMachineMigration", "spec": {"vmName": "m"}}
    with plugin(toy_config(tmp_path)) as machines, closing(SQLiteStore(tmp_path / "store.db")) as store:
        moving = store.create({**move, "metadata": {"name": "move", "namespace": "default"}})
        uid = moving["metadata"]["uid"]
        destination = {"address": "10.0.0.2", "port": 4000, "certificate": "PEM"}
        moving = store.replace_status({**moving, "status": {"phase": "Running", "destination": destination}})
        spec = {name: value for name, value in content["spec"].items() if name != "nodeName"}
        metadata = {"name": "m", "namespace": "default"}
        machine = store.create({**content, "metadata": metadata, "spec": spec})
        state = {"migrationName": "move", "migrationUID": uid, "sourceNode": "a", "targetNode": "b"}
        machine = store.replace_status({**machine, "status": {"nodeName": "a", "migrationState": state}})
        operations: Any = SimpleNamespace(node_name="a")
        loop = MigrationLoop(store, operations, machines, ChangeNotifier(), MigrationSettings())
        loop._machines = SimpleNamespace(process_of=lambda record: 1)  # type: ignore[assignment]
        leaving = _Move("default/m", uid, record, machine, moving)
        loop._hand_over(leaving)
        assert store.get("VirtualMachine", "default", "m")["status"]["nodeName"] == "a"
        write_firmware_stored(store, moving)
        assert store.get("VirtualMachineMigration", "default", "move")["status"]["phase"] == "Running"
        loop._hand_over(leaving)
        assert store.get("VirtualMachine", "default", "m")["status"]["nodeName"] == "b"


def test_a_machine_that_was_placed_on_a_numa_node_is_as_it_was_started(tmp_path: Path) -> None:
    machine = virtual_machine("m").to_manifest()
    machine["metadata"]["uid"] = "u1"
    machine["status"] = {"nodeName": "a", "numaNode": 1}
    placed = with_numa_node(VirtualMachine.model_validate(machine), machine)
    here = MachineView("default/m", "u1", State.RUNNING, started=spec_of(placed))
    assert here.started is not None
    assert here.started.numa_node == 1
    machines: Any = SimpleNamespace(get=lambda key: here)
    operations: Any = SimpleNamespace(node_name="a")
    with closing(SQLiteStore(tmp_path / "store.db")) as store:
        loop = MigrationLoop(store, operations, machines, ChangeNotifier(), MigrationSettings())
        loop._check_unchanged(_Move("default/m", "u", None, machine, None))
        changed = {**machine, "spec": {**machine["spec"], "start": {**machine["spec"]["start"], "append": "other"}}}
        with pytest.raises(Denied, match=r"changes of start\.append"):
            loop._check_unchanged(_Move("default/m", "u", None, changed, None))


@pytest.mark.parametrize(("pages", "seconds"), [(None, 50.0), ("2Mi", 178.0)])
def test_a_target_has_the_time_that_huge_pages_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: str | None, seconds: float
) -> None:
    given: list[float] = []

    def receive(*arguments: Any, **devices: Any) -> MigrationDestination:
        given.append(arguments[-1].seconds)
        return MigrationDestination(address="127.0.0.1", port=1, certificate="PEM")

    monkeypatch.setattr(migration, "receive", receive)
    memory = dict.fromkeys(("min", "use", "max"), "128Gi") | ({} if pages is None else {"hugePages": pages})
    machine = virtual_machine("m", start={"kernel": "/k"}, memory=memory).to_manifest()
    machine["metadata"]["uid"] = "u1"
    state = {"migrationName": "move", "migrationUID": "u", "sourceNode": "a", "targetNode": "b"}
    machine["status"] = {"nodeName": "a", "migrationState": state}
    move = {"apiVersion": meta.DEVALLOC, "kind": "VirtualMachineMigration", "metadata": {"name": "move"}}
    offered = {"phase": "PreparingTarget", "sourceNode": "a", "targetNode": "b", "offer": offer().to_manifest()}
    with plugin(toy_config(tmp_path)) as machines, closing(SQLiteStore(tmp_path / "store.db")) as store:
        made = store.create({**move, "spec": {"vmName": "m"}, "metadata": {"name": "move", "namespace": "default"}})
        made = store.replace_status({**made, "status": offered})
        operations: Any = SimpleNamespace(node_name="b")
        loop = MigrationLoop(store, operations, machines, ChangeNotifier(), MigrationSettings("127.0.0.1"))
        loop._receive(_Move("default/m", "u", None, machine, made))
        assert store.get("VirtualMachineMigration", "default", "move")["status"]["phase"] == "TargetReady"
    assert given == [pytest.approx(seconds, abs=5)]


def test_a_machine_that_is_here_already_is_not_received(tmp_path: Path) -> None:
    """It may be on its way elsewhere, and go."""
    machine = virtual_machine("m", pciSlots=4)
    with plugin(toy_config(tmp_path)) as machines:
        machines.put(here := MachineRecord(machine.to_manifest(), "running", RUN))
        with raises(Denied, "MachineExists", retryable=True, match="machine default/m is on this node already"):
            migration.receive(machines, machine, "u", offer(), "127.0.0.1", soon())
        assert machines.find("default/m") == here


HISTORY = {
    "startTime": "2026-11-29T10:00:00Z",
    "restarts": 3,
    "lastEnd": {"time": "2026-11-29T09:59:00Z", "signal": 9, "message": "killed"},
}


def received(
    folder: Path, monkeypatch: pytest.MonkeyPatch, machine: VirtualMachine, offered: MigrationOffer
) -> MachineRecord:
    """What the target keeps of a machine, if its object is this when it is received."""
    begun: list[MachineRecord] = []

    def begin(self: MachineLifecycle, record: MachineRecord, *how: Any) -> None:
        begun.append(record_of("default/m", content_of(record)))
        raise Failed("MachineDidNotStart", "no QEMU here")

    monkeypatch.setattr(MachineLifecycle, "begin", begin)
    with plugin(toy_config(folder)) as machines, pytest.raises(Failed, match="no QEMU here"):
        migration.receive(machines, machine, "u", offered, "127.0.0.1", soon())
    (record,) = begun
    return record


def received_history(folder: Path, monkeypatch: pytest.MonkeyPatch, status: dict[str, Any]) -> dict[str, Any]:
    """What the target's status says of the time before, of a machine whose object has this status."""
    manifest = virtual_machine("m", pciSlots=4, start={"kernel": "/k"}).to_manifest()
    record = received(folder, monkeypatch, VirtualMachine.model_validate({**manifest, "status": status}), offer())
    view = MachineView("default/m", "", State.RUNNING, began=record.began, restarts=record.restarts)
    reported = status_of(None, replace(view, last_end=record.last_end), (), "", "")
    return {name: part for name, part in reported.items() if name in HISTORY}


def requesting(request: str | None) -> VirtualMachine:
    """A machine with this request for a restart."""
    manifest = virtual_machine("m", pciSlots=4, start={"kernel": "/k"}).to_manifest()
    notes = {} if request is None else {meta.RESTART: request}
    return VirtualMachine.model_validate({**manifest, "metadata": {**manifest["metadata"], "annotations": notes}})


@pytest.mark.parametrize(
    ("began_with", "received_with", "later", "restarts"),
    [
        (None, None, None, False),
        ("1", "1", "1", False),
        (None, "1", "1", True),
        ("1", "2", "2", True),
        ("1", "", "", True),
        ("1", None, None, False),
        ("1", "1", "2", True),
    ],
)
def test_a_restart_that_is_asked_for_while_a_machine_moves_is_done_on_its_target(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    began_with: str | None,
    received_with: str | None,
    later: str | None,
    restarts: bool,
) -> None:
    """Its source leaves it alone from the offer on, and the target reads the object after that."""
    offered = offer(restart_digest=migration_offer.restart_digest(requesting(began_with)))
    record = received(tmp_path, monkeypatch, requesting(received_with), offered)
    view = MachineView("default/m", "", State.RUNNING, created_as=record.machine)
    assert is_to_restart(requesting(later), view) is restarts


def test_a_source_that_does_not_say_how_it_began_has_no_machine_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = received(tmp_path, monkeypatch, requesting("1"), offer())
    assert not is_to_restart(requesting("1"), MachineView("default/m", "", State.RUNNING, created_as=record.machine))


def test_a_machine_that_moved_has_its_history_on_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert received_history(tmp_path, monkeypatch, {"machineID": RUN, **HISTORY}) == HISTORY


@pytest.mark.parametrize(
    "status",
    [
        {"machineID": "8b0e9a6e-0000-4000-8000-000000000002", **HISTORY},
        {"machineID": RUN},
        {"machineID": RUN, "startTime": "yesterday", "lastEnd": {"time": "+10000-01-01T00:00:00Z"}},
    ],
    ids=["of-another-run", "none", "no-times"],
)
def test_what_the_status_does_not_say_of_a_run_is_no_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: dict[str, Any]
) -> None:
    assert received_history(tmp_path, monkeypatch, status) == {}


@pytest.mark.parametrize("address", ["", "localhost", "127.0.0.1:22", "::1]:5,x", "0x7f.1"])
def test_only_ip_addresses_are_accepted(tmp_path: Path, address: str) -> None:
    with plugin(toy_config(tmp_path)) as machines:
        with pytest.raises(Denied, match="not an address"):
            migration.receive(machines, virtual_machine("m", pciSlots=4), "u", offer(), address, soon())
        to = MigrationDestination(address="::1", port=1, certificate=offer().certificate)
        with pytest.raises(Denied, match="machine default/m not found"):
            migration.send(machines, "default/m", "u", to, soon())


OWN_SERVICES = ["127.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254", "fe80::1", "0.0.0.0", "::", "224.0.0.1",
                "ff02::1", "255.255.255.255"]  # fmt: skip


@pytest.mark.parametrize("address", OWN_SERVICES)
def test_a_machine_is_not_sent_to_what_is_no_other_host(address: str) -> None:
    """The target's token may write any address, and the source's plugin would connect there from its host's network."""
    for own in (None, "10.3.0.7"):
        with pytest.raises(Denied, match="not an address of another host"):
            migration.refuse_own_services(address, own)


def test_a_machine_is_not_sent_to_an_address_of_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """What listens there may answer this host only."""
    monkeypatch.setattr(linux, "route_to", lambda to: linux.Route("lo", is_own=to == "10.3.0.7"))
    for address in ("10.3.0.7", "::ffff:10.3.0.7"):
        with pytest.raises(Denied, match="not an address of another host"):
            migration.refuse_own_services(address, "10.4.0.1")
    migration.refuse_own_services("10.3.0.8", "10.4.0.1")


def test_a_machine_is_sent_nowhere_where_the_kernel_does_not_say_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(to: str) -> linux.Route:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(linux, "route_to", refuse)
    with pytest.raises(Failed, match=r"cannot look up the way to .*: Operation not permitted"):
        migration.refuse_own_services("10.3.0.8", "10.3.0.7")


def test_a_machine_is_sent_to_other_hosts_and_by_loopback_where_this_one_receives_so() -> None:
    for address in ("10.3.0.8", "192.168.1.1", "2001:db8::1", "fd00::1", "8.8.8.8"):
        migration.refuse_own_services(address, "10.3.0.7")
    migration.refuse_own_services("127.0.0.2", "127.0.0.1")
    migration.refuse_own_services("::1", "127.0.0.1")
    with pytest.raises(Denied):
        migration.refuse_own_services("169.254.169.254", "127.0.0.1")
