"""The table of kinds: recognition, and what is derived from it."""

from __future__ import annotations

import pytest

from devalloc.device_kinds import ALLOWABLE, DEVICE_KINDS, DeviceKind, check_names, find_kind, offered_plurals
from tests.support.repository import REPO

NVIDIA, AMD, INTEL, MOORE_THREADS, ASPEED = 0x10DE, 0x1002, 0x8086, 0x1ED5, 0x1A03
HYGON, METAX, VIRTIO, QXL = 0x1D94, 0x9999, 0x1AF4, 0x1B36


@pytest.mark.parametrize(
    ("pci_class", "vendor", "kind"),
    [
        (0x0300, NVIDIA, "gpu"),
        (0x0300, AMD, "gpu"),
        (0x0300, INTEL, "gpu"),
        (0x0300, MOORE_THREADS, "display"),
        (0x0300, ASPEED, "display"),
        (0x0302, MOORE_THREADS, "gpu"),
        (0x0380, AMD, "gpu"),
        (0x0380, ASPEED, "display"),
        (0x0380, VIRTIO, "display"),
        (0x0380, QXL, "display"),
        (0x0380, HYGON, "gpu"),
        (0x0380, METAX, "gpu"),
        (0x0302, VIRTIO, "display"),
        (0x1200, NVIDIA, "gpu"),
        (0x1200, AMD, "gpu"),
        (0x1200, MOORE_THREADS, "gpu"),
        (0x1200, INTEL, "accelerator"),
        (0x0380, INTEL, "gpu"),
        (0x1200, ASPEED, "accelerator"),
        (0x1201, NVIDIA, "accelerator"),
        (0x0B40, INTEL, "accelerator"),
        (0x0B41, INTEL, None),
        (0x0200, INTEL, "nic"),
        (0x0207, INTEL, "nic"),
        (0x0108, INTEL, "storage"),
        (0x0106, INTEL, None),
        (0x0604, INTEL, None),
        (0x0002, INTEL, None),
    ],
)
def test_a_function_has_the_kind_of_the_first_row_that_matches(pci_class: int, vendor: int, kind: str | None) -> None:
    assert find_kind(pci_class, vendor, 0x1234) == find_kind(pci_class, vendor, None) == kind


@pytest.mark.parametrize(
    ("pci_class", "vendor", "device", "kind"),
    [
        (0x0200, 0x15B3, 0xA2DC, "dpu"),
        (0x0207, 0x15B3, 0xA2DC, "dpu"),
        (0x0200, 0x15B3, 0x101D, "nic"),
        (0x0200, INTEL, 0xA2DC, "nic"),
        (0x0200, 0x15B3, None, "nic"),
        (0x0108, 0x15B3, 0xA2DC, "storage"),
    ],
)
def test_a_row_before_another_can_take_models_out_of_a_class(
    monkeypatch: pytest.MonkeyPatch, pci_class: int, vendor: int, device: int | None, kind: str
) -> None:
    dpu = DeviceKind("dpu", "DPUs", {"02": None}, "BlueField 3", "yes", device_ids=frozenset({(0x15B3, 0xA2DC)}))
    monkeypatch.setattr("devalloc.device_kinds.DEVICE_KINDS", {"dpu": dpu, **DEVICE_KINDS})
    assert find_kind(pci_class, vendor, device) == kind


def test_the_guide_lists_the_kinds() -> None:
    rows = [f"| `{kind.name}` | {kind.description} | {kind.offered} |" for kind in DEVICE_KINDS.values()]
    guide = (REPO / "docs" / "inventory.md").read_text()
    table = guide.partition("| kind | what | offered |\n|---|---|---|\n")[2].partition("\n\n")[0]
    assert table.splitlines() == rows


def test_what_is_offered_can_be_allowed_and_nothing_else() -> None:
    offered = {kind.name for kind in DEVICE_KINDS.values() if kind.is_offered}
    assert set(ALLOWABLE) == offered | {"vf", "vgpu"}
    assert len(ALLOWABLE) == len(set(ALLOWABLE))
    assert offered_plurals([DEVICE_KINDS["display"]]) == "displays"
    assert offered_plurals(DEVICE_KINDS.values()) == "GPUs, NICs, accelerators, NVMe devices or mediated devices"


def test_a_name_that_is_not_in_the_table_is_refused_with_those_that_are() -> None:
    check_names({"gpu"}, DEVICE_KINDS)
    with pytest.raises(ValueError, match=r"^unknown kinds of devices: disk, tpu \(valid: gpu, nic\)$"):
        check_names({"tpu", "gpu", "disk"}, ("nic", "gpu"))
