"""UEFI firmware, UEFI variables and TPMs: what is chosen and copied, and how the command line says it."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from devalloc_machines.qemu import confinement, firmware, user_ids
from devalloc_machines.qemu.command_line import MAX_QUEUES, StartContext, qemu_arguments, tap_fd
from devalloc_machines.qemu.settings import FirmwareFiles, MachineConfig
from devalloc_machines.qemu.spec import AmountBounds, Disk, MachineSpec, Nic
from devalloc_node.errors import Denied, Failed
from tests.support.node_errors import raises

GIB = 1 << 30
UEFI = MachineSpec(
    "default", "m", "uid", AmountBounds(1000, 4000, 1000), AmountBounds(GIB, GIB, GIB), kernel="/k", firmware="uefi"
)
SECURE = replace(UEFI, kernel=None, disks=(Disk("/d", "raw"),), secure_boot=True)


def descriptor(name: str, *features: str, **more: Any) -> dict[str, Any]:
    """As QEMU's docs/interop/firmware.json has it, and packages ship it."""
    images = {"executable": f"/usr/share/OVMF/{name}_CODE.fd", "nvram-template": f"/usr/share/OVMF/{name}_VARS.fd"}
    return {
        "description": name,
        "interface-types": ["uefi"],
        "mapping": {"device": "flash"} | {key: {"filename": path, "format": "raw"} for key, path in images.items()},
        "targets": [{"architecture": "x86_64", "machines": ["pc-i440fx-*", "pc-q35-*"]}],
        "features": ["acpi-s3", *features],
        "tags": [],
        **more,
    }


KEYS = ("enrolled-keys", "requires-smm", "secure-boot")


def chosen(folder: Path, content: Mapping[str, Any], *, secure_boot: bool = False) -> str | None:
    """The name of the firmware that is chosen among descriptors, by the names of their files."""
    folder.mkdir(exist_ok=True)
    for name, text in content.items():
        (folder / name).write_text(text if isinstance(text, str) else json.dumps(text))
    files = firmware.described_firmware(secure_boot=secure_boot, folders=(folder, folder / "none"))
    if files is None:
        return None
    assert files.variables.name == files.code.name.replace("CODE", "VARS")
    return files.code.name.removesuffix("_CODE.fd")


def test_the_first_descriptor_that_fits_counts(tmp_path: Path) -> None:
    content = {
        "40-secure.json": descriptor("keys", *KEYS),
        "50-no-keys.json": descriptor("smm", "requires-smm", "secure-boot"),
        "60-plain.json": descriptor("plain"),
        "70-other.json": descriptor("other"),
    }
    assert chosen(tmp_path, content) == "plain"
    assert chosen(tmp_path, content, secure_boot=True) == "keys"


@pytest.mark.parametrize(
    "changed",
    [
        {"interface-types": ["bios"]},
        {"targets": [{"architecture": "aarch64", "machines": ["virt-*"]}]},
        {"targets": [{"architecture": "x86_64", "machines": ["pc-i440fx-*"]}]},
        {"mapping": {"device": "memory", "filename": "/usr/share/OVMF/OVMF.fd"}},
        {"mapping": descriptor("x")["mapping"] | {"mode": "stateless"}},
        {"mapping": descriptor("x")["mapping"] | {"executable": {"filename": "/x", "format": "qcow2"}}},
        {"mapping": descriptor("x")["mapping"] | {"nvram-template": {"filename": "relative", "format": "raw"}}},
        {"features": KEYS},
        {"features": None},
        {"mapping": []},
    ],
)
def test_one_that_does_not_fit_or_makes_no_sense_is_passed_over(tmp_path: Path, changed: Mapping[str, Any]) -> None:
    content = {"10.json": descriptor("unfit") | changed, "20.json": "{", "30.json": "[]", "40.txt": descriptor("text")}
    assert chosen(tmp_path, content) is None
    assert chosen(tmp_path, content | {"90.json": descriptor("plain")}) == "plain"


def test_an_admins_descriptor_replaces_or_hides_the_one_of_its_name(tmp_path: Path) -> None:
    packages, admin = tmp_path / "packages", tmp_path / "admin"
    chosen(packages, {"60.json": descriptor("package"), "70.json": descriptor("second")})
    chosen(admin, {"60.json": ""})
    files = firmware.described_firmware(secure_boot=False, folders=(packages, admin))
    assert files is not None
    assert files.code.name == "second_CODE.fd"
    chosen(admin, {"60.json": descriptor("admin")})
    files = firmware.described_firmware(secure_boot=False, folders=(packages, admin))
    assert files is not None
    assert files.code.name == "admin_CODE.fd"


@pytest.fixture
def config(tmp_path: Path) -> MachineConfig:
    (tmp_path / "CODE.fd").write_bytes(b"code")
    (tmp_path / "VARS.fd").write_bytes(b"template")
    (tmp_path / "state").mkdir()
    files = FirmwareFiles(tmp_path / "CODE.fd", tmp_path / "VARS.fd")
    return MachineConfig(state=tmp_path / "state", run=tmp_path / "run", uefi=files, secure_boot=files)


def test_files_that_the_admin_names_must_be_there_and_be_images_of_a_chip(config: MachineConfig) -> None:
    assert config.uefi is not None
    assert firmware.firmware_files(UEFI, config) == config.uefi
    config.uefi.code.write_bytes(b"QFI\xfb and more")
    with raises(Denied, "FirmwareInvalid", retryable=True, match=r"raw image.*--uefi-firmware"):
        firmware.firmware_files(UEFI, config)
    config.uefi.code.unlink()
    with raises(
        Denied, "FirmwareMissing", retryable=True, match=r"Secure Boot.*CODE\.fd cannot be read.*--secure-boot-firmware"
    ):
        firmware.firmware_files(SECURE, config)


def test_each_machine_has_a_copy_of_the_template_that_stays(config: MachineConfig) -> None:
    assert config.uefi is not None
    store = firmware.make_store(UEFI, config, config.uefi)
    assert store.read_bytes() == b"template"
    assert (stat.S_IMODE(store.stat().st_mode), stat.S_IMODE(store.parent.stat().st_mode)) == (0o600, 0o700)
    store.write_bytes(b"of guest")
    assert firmware.make_store(UEFI, config, config.uefi).read_bytes() == b"of guest"
    # Keys that its variables do not have would not be there with Secure Boot: that begins with its own template.
    secure = firmware.make_store(SECURE, config, config.uefi)
    assert (secure.read_bytes(), secure != store) == (b"template", True)
    other = firmware.make_store(replace(UEFI, name="other"), config, config.uefi)
    assert (other.read_bytes(), other.parent != store.parent) == (b"template", True)
    assert sorted(path.name for path in store.parent.iterdir()) == ["secure-boot.fd", "uefi.fd"]
    firmware.remove(UEFI.id, config)
    assert (store.parent.exists(), other.exists()) == (False, True)


def test_a_copy_that_was_cut_off_is_made_again(config: MachineConfig) -> None:
    assert config.uefi is not None
    folder = config.firmware(UEFI.id)
    folder.mkdir()
    (folder / "uefi.new").write_bytes(b"templ")
    assert firmware.make_store(UEFI, config, config.uefi).read_bytes() == b"template"
    assert [path.name for path in folder.iterdir()] == ["uefi.fd"]


def test_variables_of_a_chip_of_another_size_are_not_given_to_it(config: MachineConfig) -> None:
    assert config.uefi is not None
    store = firmware.make_store(UEFI, config, config.uefi)
    config.uefi.variables.write_bytes(b"larger template")
    with pytest.raises(Denied, match=r"8 bytes.*have 15") as denied:
        firmware.make_store(UEFI, config, config.uefi)
    assert (denied.value.code, store.read_bytes()) == ("FirmwareChanged", b"template")


def test_a_tpm_that_still_runs_is_waited_for_and_its_content_is_not_removed(
    config: MachineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firmware, "_TPM_SECONDS", 0.05)
    folder = config.tpm(UEFI.id)
    folder.mkdir()
    (folder / "tpm2-00.permall").write_bytes(b"secrets")
    with firmware.FileLock.of_folder(folder) as held:
        assert held.try_lock()
        with pytest.raises(Failed, match="did not end"):
            firmware.remove(UEFI.id, config)
        assert list(folder.iterdir())
    firmware.remove(UEFI.id, config)
    assert not folder.exists()
    firmware.remove(UEFI.id, config)  # a second time, as after a plugin that was killed


def words_of(spec: MachineSpec, **more: Any) -> list[str]:
    return qemu_arguments(spec, StartContext("qemu", "tcg", "uuid", **more))


def nodes(words: list[str], option: str = "-blockdev") -> list[dict[str, Any]]:
    return [json.loads(words[n + 1]) for n, word in enumerate(words) if word == option and words[n + 1][0] == "{"]


def test_uefi_is_two_flash_chips_of_which_only_one_can_be_written() -> None:
    words = words_of(UEFI)
    assert words[words.index("-machine") + 1] == (
        "q35,dump-guest-core=off,pflash0=firmware-code,pflash1=firmware-variables"
    )
    assert {node["node-name"]: node["read-only"] for node in nodes(words)} == {
        "firmware-code-file": True, "firmware-code": True,
        "firmware-variables-file": False, "firmware-variables": False,
    }  # fmt: skip
    assert {node["driver"] for node in nodes(words)} == {"raw", "file"}, "what a guest writes is not taken for a format"
    assert f"fd={firmware.CODE_FD},set=900" in words
    assert f"fd={firmware.VARIABLES_FD},set=901" in words
    assert not {"pflash", "secure", "tpm"} & set(" ".join(words_of(replace(UEFI, firmware="bios"))).split())


def test_with_secure_boot_only_firmware_in_smm_writes_variables() -> None:
    words = words_of(SECURE)
    assert words[words.index("-machine") + 1].endswith(",smm=on")
    pairs = list(pairwise(words))
    assert ("-global", "driver=cfi.pflash01,property=secure,value=on") in pairs
    assert ("-global", "ICH9-LPC.disable_s3=1") in pairs
    assert "cfi.pflash01" not in " ".join(words_of(UEFI))


def test_a_tpm_is_reached_by_a_line_without_a_name() -> None:
    words = words_of(replace(UEFI, firmware="bios", tpm=True))
    assert f"socket,id=tpm0-line,fd={firmware.TPM_FD}" in words
    assert {"driver": "tpm-crb", "id": "tpm0-dev", "tpmdev": "tpm0"} in nodes(words, "-device")


def test_a_tpm_has_room_in_the_cgroup_of_its_machine() -> None:
    without, with_one = (confinement.qemu_limits(replace(UEFI, tpm=tpm), "kvm") for tpm in (False, True))
    assert with_one.memory - without.memory == 64 << 20
    assert with_one.tasks - without.tasks == 8


@pytest.mark.parametrize(("cpus", "queues"), [(1, 1), (4, 4), (64, MAX_QUEUES)])
def test_disks_and_cards_have_a_queue_for_each_cpu(cpus: int, queues: int) -> None:
    spec = replace(
        UEFI,
        cpus=AmountBounds(1000, cpus * 1000, 1000),
        disks=(Disk("/d", "raw"), Disk("/e", "raw", device="nvme")),
        nics=(Nic(), Nic(interface="tap0"), Nic(interface="tap1"), Nic("e1000e", "tap2")),
    )
    words = words_of(spec, queues={2: queues} if queues > 1 else {})
    devices = {node["id"]: node for node in nodes(words, "-device")}
    assert devices["disk0-dev"]["num-queues"] == queues
    assert "num-queues" not in devices["disk1-dev"], "NVMe has its own"
    backends = {node["id"]: node for node in nodes(words, "-netdev")}
    assert backends["nic1"]["fd"] == str(tap_fd(1))
    assert "mq" not in devices["nic1-dev"], "its interface was made for one queue"
    if queues > 1:
        fds = backends["nic2"]["fds"].split(":")
        assert fds == [str(tap_fd(2, queue)) for queue in range(queues)]
        assert (devices["nic2-dev"]["mq"], devices["nic2-dev"]["vectors"]) == (True, 2 * queues + 2)
        assert len({tap_fd(nic, queue) for nic in range(8) for queue in range(MAX_QUEUES)}) == 8 * MAX_QUEUES
        assert tap_fd(7, MAX_QUEUES - 1) < firmware.CODE_FD


class Records(dict[str, Mapping[str, Any]]):
    def records(self, room: str) -> Mapping[str, Mapping[str, Any]]:
        return self


def test_a_tpm_has_a_user_that_no_machine_and_no_other_tpm_has(
    config: MachineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_ids.adoption, "own_user", lambda: 0)
    settings = replace(config, users=range(70000, 70004))
    records: Any = Records({"default/a": {"user": 70000, "tpm_user": 70002}})
    user = user_ids.free_user("default/b", settings, records)
    assert user == 70001
    assert user_ids.free_user("default/b", settings, records, "tpm_user", user) == 70003
    assert user_ids.free_user("default/a", settings, records, "tpm_user", 70000) == 70002, "its files are this user's"
    records["default/b"] = {"user": 70001, "tpm_user": 70003}
    with pytest.raises(Denied, match="all 4 user ids"):
        user_ids.free_user("default/c", settings, records)
    del records["default/b"]
    monkeypatch.setattr(os, "lstat", lambda path: os.stat_result((0, 0, 0, 0, 70003, 0, 0, 0, 0, 0)))
    (settings.state / "lost-123.life").write_text("")
    assert user_ids.free_user("default/c", settings, records) == 70001
    with pytest.raises(Denied):  # 70003 is of a machine that the journal has lost
        user_ids.free_user("default/c", settings, records, "tpm_user", 70001)
