"""Names for PCI IDs."""

from __future__ import annotations

import gzip
import os
from importlib import resources
from pathlib import Path

import pytest

from devalloc.inventory import pci_ids
from devalloc.inventory.pci_ids import DeviceModel, board_models, device_models, hex_id, vendor_name

DATABASE = gzip.decompress((resources.files("devalloc.inventory") / "data" / "pci.ids.gz").read_bytes()).decode()
L40S = (0x10DE, 0x26B9)


def host_database(root: Path, name: str, version: str | None, folder: str = "misc") -> Path:
    """A host whose database calls the L40S so."""
    file = root / "usr" / "share" / folder / "pci.ids"
    file.parent.mkdir(parents=True)
    head = "#\n#\tList of PCI IDs\n#\n" + (f"#\tVersion: {version}\n" if version else "")
    file.write_text(f"{head}\n10de  NVIDIA Corporation\n\t26b9  {name}\n\t\t10de 1851  of a subsystem\n10df  Emulex\n")
    return file


@pytest.mark.parametrize(
    ("vendor", "device", "name", "pci_name"),
    [
        (0x10DE, 0x25B6, "A2 / A16", "GA107GL [A2 / A16]"),
        (0x10DE, 0x26B9, "L40S", "AD102GL [L40S]"),
        (0x10DE, 0x2335, "H200 SXM 141GB", "GH100 [H200 SXM 141GB]"),
        (0x10DE, 0x233B, "H200 NVL", "GH100 [H200 NVL]"),
        (0x10DE, 0x2901, "B200", "GB100 [B200]"),
        (0x10DE, 0x2BB5, "RTX PRO 6000 Blackwell Server Edition", "GB202GL [RTX PRO 6000 Blackwell Server Edition]"),
        (0x1002, 0x74A1, "Instinct MI300X", "Aqua Vanjaram [Instinct MI300X]"),
        (0x15B3, 0x1013, "ConnectX-4", "MT27700 Family [ConnectX-4]"),
        (0x1DA3, 0x1000, "Gaudi", "HL-2000 AI Training Accelerator [Gaudi]"),
        (0x8086, 0x56C0, "Data Center GPU Flex 170", "ATS-M [Data Center GPU Flex 170]"),
        # Brackets around a code name, a mode, a role or a placeholder
        (0x1344, 0x5407, *["3400 NVMe SSD [Hendrix]"] * 2),
        (0x1425, 0x5801, *["T520-CR Unified Wire Ethernet Controller [VF]"] * 2),
        (0x8086, 0x24F1, *["Omni-Path HFI Silicon 100 Series [integrated]"] * 2),
        (0x10DE, 0x20FE, *["GA100 [INT SKU]"] * 2),
        # Without a product at the end the whole name is the model.
        (0x8086, 0x10FB, *["82599ES 10-Gigabit SFI/SFP+ Network Connection"] * 2),
        (0x1AF4, 0x1041, *["Virtio 1.0 network device"] * 2),  # other vendors have a device 1041 too
        (0x15B3, 0x0262, *["MT27710 [ConnectX-4 Lx Programmable] EN"] * 2),
        (0x10DE, 0x0568, *["MCP78S [GeForce 8200] Memory Controller"] * 2),
    ],
)
def test_a_model_is_the_product_and_beside_it_stands_the_name_in_the_database(
    vendor: int, device: int, name: str, pci_name: str
) -> None:
    assert device_models([(vendor, device)]) == {(vendor, device): DeviceModel(name, pci_name)}


def test_every_entry_of_the_database_is_found_and_has_a_model() -> None:
    entries, vendor = {}, 0
    for line in DATABASE.splitlines():
        if line.startswith("\t"):
            entries[vendor, int(line[1:5], 16)] = line[7:].strip()
        elif line[:1] not in ("", "#"):
            vendor = int(line[:4], 16)
    some = dict(list(entries.items())[:: max(1, len(entries) // 500)])
    assert len(some) >= 500
    assert {pair: model.pci_name for pair, model in device_models(some).items()} == some
    assert all(
        model.name and model.name in model.pci_name for model in (DeviceModel.of(v, n) for (v, _), n in entries.items())
    )


@pytest.mark.parametrize("name", ["GA100 []", "GA100 [ ]", "[]", "GA100 [A[1]00]"])
def test_empty_or_nested_brackets_are_no_product(name: str) -> None:
    assert DeviceModel.of(0x10DE, name).name == name


def test_what_is_unknown_is_absent() -> None:
    assert device_models([(0x10DE, 0xFFFF), (0xFFFE, 1)]) == {}
    assert device_models([]) == {}


@pytest.mark.parametrize(("subsystem", "name"), [(0x157E, "A2"), (0x14A9, "A16"), (0, "A2 / A16")])
def test_products_that_share_an_id_differ_by_their_subsystem(subsystem: int, name: str) -> None:
    both = device_models([(0x10DE, 0x25B6)])

    with_boards = both | board_models(both, [((0x10DE, 0x25B6), (0x10DE, subsystem))])

    assert with_boards == {(0x10DE, 0x25B6): DeviceModel(name, "GA107GL [A2 / A16]")}


class TestHostDatabase:
    @pytest.mark.parametrize("folder", ["misc", "hwdata"])
    def test_a_newer_one_gives_the_names(self, tmp_path: Path, folder: str) -> None:
        host_database(tmp_path, "AD102GL [L40S Plus]", "2099.01.31", folder)
        assert device_models([L40S], tmp_path) == {L40S: DeviceModel("L40S Plus", "AD102GL [L40S Plus]")}

    @pytest.mark.parametrize("version", ["2023.04.11", "2026.10.24", None, "tomorrow", "99999.01.01"])
    def test_one_that_is_not_newer_or_says_no_version_does_not(self, tmp_path: Path, version: str | None) -> None:
        host_database(tmp_path, "Other", version)
        assert device_models([L40S], tmp_path)[L40S].name == "L40S"

    def test_the_newest_of_two_gives_the_names(self, tmp_path: Path) -> None:
        host_database(tmp_path, "Newer", "2098.01.01")
        host_database(tmp_path, "Newest", "2099.01.01", "hwdata")
        assert device_models([L40S], tmp_path)[L40S].name == "Newest"

    def test_one_that_is_updated_while_we_run_is_read_again(self, tmp_path: Path) -> None:
        file = host_database(tmp_path, "Before", "2098.01.01")
        assert device_models([L40S], tmp_path)[L40S].name == "Before"
        file.write_text(file.read_text().replace("Before", "Afterwards"))
        assert device_models([L40S], tmp_path)[L40S].name == "Afterwards"

    def test_what_cannot_be_read_is_left_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = host_database(tmp_path, "Other", "2099.01.01")
        monkeypatch.setattr(pci_ids, "MAX_BYTES", 10)
        assert device_models([L40S], tmp_path)[L40S].name == "L40S", "too large"
        file.unlink()
        os.mkfifo(file)
        assert device_models([L40S], tmp_path)[L40S].name == "L40S", "a pipe would keep us waiting"
        file.unlink()
        file.symlink_to(file)
        assert device_models([L40S], tmp_path)[L40S].name == "L40S", "a link in a circle"

    def test_a_link_of_a_tree_leads_nowhere_outside_it(self, tmp_path: Path) -> None:
        other = host_database(tmp_path / "elsewhere", "Other", "2099.01.01")
        file = tmp_path / "tree" / "usr" / "share" / "misc" / "pci.ids"
        file.parent.mkdir(parents=True)
        file.symlink_to(other)
        assert device_models([L40S], tmp_path / "tree")[L40S].name == "L40S"

    def test_bytes_and_lengths_that_no_name_has_do_no_harm(self, tmp_path: Path) -> None:
        file = host_database(tmp_path, "x", "2099.01.01")
        file.write_bytes(file.read_bytes().replace(b"  x\n", b"  \xff\xfe" + b"[" * 100_000 + b"\n"))
        (model,) = device_models([L40S], tmp_path).values()
        assert len(model.name) == pci_ids.MAX_NAME


def test_vendors_have_short_names_or_their_id() -> None:
    assert [vendor_name(v) for v in (0x10DE, 0x1002, 0x8086, 0x15B3, 0xFFFE)] == [
        "nvidia", "amd", "intel", "mellanox", "0xfffe",
    ]  # fmt: skip
    assert hex_id(0xA) == "0x000a"


def test_the_database_carries_its_notice() -> None:
    assert "3-clause BSD License" in DATABASE[:2000]
    assert "Martin Mares and Albert Pool" in DATABASE[:2000]
