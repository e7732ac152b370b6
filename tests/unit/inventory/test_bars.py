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


RESIZABLE = resource((0, 256 * MIB, WIDE), (2, 2 * MIB, WIDE))


def test_a_resizable_bar_counts_with_the_most_it_can_have(tmp_path: Path) -> None:
    """A driver of the host, or its firmware, can make it larger after machines were started."""
    sizes = {"resource0_resize": f"{0b1111111 << 9:016x}\n", "resource2_resize": "0000000000000006\n"}
    tree = host(tmp_path, pci_cards.gpu(files=RESIZABLE | sizes))
    assert largest_bar_sizes(tree) == BarSizes(32 * GIB + 4 * MIB, 0)
    assert bar_sizes(tree, ["0000:01:00.0"]) == BarSizes(258 * MIB, 0), "what it has now is what it needs now"


def config_space(*entries: tuple[int, int], header: int = 0x0001_0015) -> bytes:
    """With the capability of resizable BARs, as root reads it: (number of the BAR, sizes as bits, 1 MiB first)."""
    space = bytearray(4096)
    space[0x100:0x104] = (0x1400_0001).to_bytes(4, "little")  # another capability; the next one is at 0x140
    space[0x140:0x144] = header.to_bytes(4, "little")
    for at, (bar, bits) in zip(range(0x144, 0x1000, 8), entries, strict=False):
        space[at : at + 4] = (bits << 4).to_bytes(4, "little")
        space[at + 4 : at + 8] = (bar | len(entries) << 5).to_bytes(4, "little")
    return bytes(space)


def with_config(tmp_path: Path, space: bytes) -> Tree:
    tree = host(tmp_path, pci_cards.gpu(files=RESIZABLE))
    (tmp_path / "sys/bus/pci/devices/0000:01:00.0/config").write_bytes(space)
    return tree


def test_kernels_before_6_1_do_not_tell_it_and_the_card_does(tmp_path: Path) -> None:
    tree = with_config(tmp_path, config_space((0, 0b1111111 << 9), (2, 0b110)))
    assert largest_bar_sizes(tree) == BarSizes(32 * GIB + 4 * MIB, 0)


def test_a_bar_never_counts_with_less_than_it_has(tmp_path: Path) -> None:
    sizes = {"resource0_resize": "0000000000000002\n", "resource1_resize": "nothing\n", "resource5_resize": "ff\n"}
    assert largest_bar_sizes(host(tmp_path, pci_cards.gpu(files=RESIZABLE | sizes))) == BarSizes(258 * MIB, 0)
    for number, odd in enumerate(
        (config_space((7, 0xFFF), (0, 0)), config_space(*[(0, 1)] * 7)[:0x150], b"", config_space())
    ):
        assert largest_bar_sizes(with_config(tmp_path / str(number), odd)) == BarSizes(258 * MIB, 0)


def test_bars_of_bridges_do_not_count(tmp_path: Path) -> None:
    assert (
        largest_bar_sizes(host(tmp_path, pci_cards.bridge("0000:00:01.0", files=resource((0, 64 * GIB, WIDE)))))
        == NO_BARS
    )


def test_what_cannot_be_read_counts_as_nothing(tmp_path: Path) -> None:
    odd = {"resource": "not a number\n0x0 0xffffffffffffffff 0x14220c\n0x5 0x1 0x14220c\n0x1\n"}
    assert largest_bar_sizes(host(tmp_path, pci_cards.gpu(files=odd))) == NO_BARS
    assert largest_bar_sizes(Tree(tmp_path / "none")) == NO_BARS


def test_prefetchable_memory_of_32_bits_counts_apart(tmp_path: Path) -> None:
    files = resource((0, 16 * MIB, 0x42208), (2, 16384, PLAIN), (6, 65536, 0x46200))
    tree = host(tmp_path, pci_cards.gpu(files=files))
    assert largest_bar_sizes(tree) == BarSizes(0, 16 * MIB + 16384 + 65536, 16 * MIB)
