"""How much memory of their own the devices of a host have, by the file ``resource`` of sysfs."""

from __future__ import annotations

from pathlib import Path

from devalloc.inventory.pci import NO_BARS, BarSizes, bar_sizes, largest_bar_sizes
from devalloc.inventory.sysfs import Tree
from tests.support import pci_cards
from tests.support.fake_sysfs import FakeSysfs
from tests.support.pci_cards import Function

MIB, GIB = 1 << 20, 1 << 30
WIDE, PLAIN, IO = 0x14220C, 0x40200, 0x40101


def resource(*sizes: tuple[int, int, int]) -> dict[str, str]:
    """The file with (line, size, flags)."""
    rows = ["0x0000000000000000 0x0000000000000000 0x0000000000000000"] * 13
    for line, size, flags in sizes:
        start = 0x380000000000 + line * (1 << 40)
        rows[line] = f"{start:#018x} {start + size - 1:#018x} {flags:#018x}"
    return {"resource": "\n".join(rows) + "\n"}


def host(tmp_path: Path, *functions: Function) -> Tree:
    made = FakeSysfs(tmp_path)
    for function in functions:
        made.add(function)
    return Tree(tmp_path)


GPU = resource((0, 16 * MIB, PLAIN), (1, 32 * GIB, WIDE), (3, 32 * MIB, WIDE), (5, 128, IO), (6, MIB // 2, PLAIN))


def test_a_card_counts_with_all_of_its_functions_and_no_ports(tmp_path: Path) -> None:
    tree = host(
        tmp_path,
        pci_cards.gpu(files=GPU),
        pci_cards.gpu_audio(files=resource((0, 16384, PLAIN))),
        pci_cards.plain_nic(),
    )
    whole = BarSizes(32 * GIB + 32 * MIB, 16 * MIB + MIB // 2 + 16384)
    assert largest_bar_sizes(tree) == whole
    assert bar_sizes(tree, ["0000:01:00.0", "0000:01:00.1"]) == whole
    assert bar_sizes(tree, ["0000:01:00.1"]) == BarSizes(0, 16384)
    assert bar_sizes(tree, ["0000:99:00.0"]) == NO_BARS


def test_of_a_card_with_virtual_functions_one_of_them_counts_also_where_none_is_there_yet(tmp_path: Path) -> None:
    files = resource((0, MIB, PLAIN), (7, 7 * 16384, WIDE), (10, 7 * 4 * GIB, WIDE))
    tree = host(tmp_path, pci_cards.nic(files=files))
    assert largest_bar_sizes(tree) == BarSizes(4 * GIB + 16384, MIB)


def test_bridges_are_given_to_nobody(tmp_path: Path) -> None:
    assert (
        largest_bar_sizes(host(tmp_path, pci_cards.bridge("0000:00:01.0", files=resource((0, 64 * GIB, WIDE)))))
        == NO_BARS
    )


def test_what_cannot_be_read_counts_as_nothing(tmp_path: Path) -> None:
    odd = {"resource": "not a number\n0x0 0xffffffffffffffff 0x14220c\n0x5 0x1 0x14220c\n0x1\n"}
    assert largest_bar_sizes(host(tmp_path, pci_cards.gpu(files=odd))) == NO_BARS
    assert largest_bar_sizes(Tree(tmp_path / "none")) == NO_BARS
