"""Names for PCI IDs."""

from __future__ import annotations

import gzip
from importlib import resources

import pytest

from devalloc.inventory.pciids import hex_id, model_names, vendor_name

DATABASE = gzip.decompress((resources.files("devalloc.inventory") / "data" / "pci.ids.gz").read_bytes()).decode()


@pytest.mark.parametrize(
    ("vendor", "device", "name"),
    [
        (0x10DE, 0x25B6, "GA107GL [A2 / A16]"),
        (0x8086, 0x10FB, "82599ES 10-Gigabit SFI/SFP+ Network Connection"),
        (0x1AF4, 0x1041, "Virtio 1.0 network device"),  # other vendors have a device 1041 too
        (0x15B3, 0x1013, "MT27700 Family [ConnectX-4]"),
        (0x10DE, 0x26B9, "AD102GL [L40S]"),
        (0x10DE, 0x2335, "GH100 [H200 SXM 141GB]"),
        (0x10DE, 0x233B, "GH100 [H200 NVL]"),
        (0x10DE, 0x2901, "GB100 [B200]"),
        (0x10DE, 0x2BB5, "GB202GL [RTX PRO 6000 Blackwell Server Edition]"),
        (0x1002, 0x74A1, "Aqua Vanjaram [Instinct MI300X]"),
    ],
)
def test_known_models(vendor: int, device: int, name: str) -> None:
    assert model_names([(vendor, device)]) == {(vendor, device): name}


def test_every_entry_of_the_database_is_found() -> None:
    entries, vendor = {}, 0
    for line in DATABASE.splitlines():
        if line.startswith("\t"):
            entries[vendor, int(line[1:5], 16)] = line[7:].strip()
        elif line[:1] not in ("", "#"):
            vendor = int(line[:4], 16)
    some = dict(list(entries.items())[:: max(1, len(entries) // 500)])
    assert len(some) >= 500
    assert model_names(some) == some


def test_what_is_unknown_is_absent() -> None:
    assert model_names([(0x10DE, 0xFFFF), (0xFFFE, 1)]) == {}
    assert model_names([]) == {}


def test_vendors_have_short_names_or_their_id() -> None:
    assert [vendor_name(v) for v in (0x10DE, 0x1002, 0x8086, 0x15B3, 0xFFFE)] == [
        "nvidia", "amd", "intel", "mellanox", "0xfffe",
    ]  # fmt: skip
    assert hex_id(0xA) == "0x000a"


def test_the_database_carries_its_notice() -> None:
    assert "3-clause BSD License" in DATABASE[:2000]
    assert "Martin Mares and Albert Pool" in DATABASE[:2000]
