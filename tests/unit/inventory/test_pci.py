"""PCI addresses and functions as sysfs tells them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devalloc.inventory.pci import Address, PciFunction, scan_functions
from devalloc.inventory.sysfs import Tree
from tests.support import pci_cards
from tests.support.fake_sysfs import FakeSysfs
from tests.support.pci_cards import Sriov

addresses = st.builds(Address, st.integers(0, 2**32 - 1), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))


def functions(host: FakeSysfs) -> dict[str, PciFunction]:
    return {str(address): function for address, function in scan_functions(Tree(host.root)).items()}


@given(addresses)
def test_an_address_survives_being_written_and_read(address: Address) -> None:
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    "text", ["", "0000:08:00", "0000:08:20.0", "0000:08:00.8", "000:08:00.0", "0000:08:00.0 ", "../0000:08:00.0"]
)
def test_other_texts_are_no_addresses(text: str) -> None:
    assert Address.parse(text) is None


def test_addresses_are_ordered_by_number_not_by_text() -> None:
    texts = ["10000:01:00.0", "0000:ff:00.0", "0000:08:02.0", "0000:08:01.7", "0000:08:00.4"]
    assert [str(a) for a in sorted(Address.parse(t) or pytest.fail(t) for t in texts)] == texts[::-1]


def test_an_address_makes_names() -> None:
    address = Address(0x10000, 0x08, 0, 4)
    assert (address.device_name, address.slot_name) == ("10000-08-00-4", "10000-08-00")


@given(addresses, st.integers(-70000, 70000))
def test_routing_ids_stay_inside_the_domain(address: Address, step: int) -> None:
    there = address.offset_by(step)
    routing = address.bus * 256 + address.slot * 8 + address.function + step
    if there is None:
        assert not 0 <= routing <= 0xFFFF
    else:
        assert (there.domain, there.bus * 256 + there.slot * 8 + there.function) == (address.domain, routing)


def test_a_function_is_read(tmp_path: Path) -> None:
    host = FakeSysfs(tmp_path)
    host.add(pci_cards.nic("10000:41:00.0", numa=1, iommu_group=12))
    function = functions(host)["10000:41:00.0"]
    assert (function.class_code, function.vendor, function.device) == (0x020000, 0x8086, 0x10C9)
    assert (function.driver, function.numa, function.iommu_group, function.root) == ("igb", 1, 12, "pci10000:00")
    assert function.sriov is not None
    assert (function.sriov.total, function.sriov.active, function.sriov.vf_device) == (7, 0, 0x10CA)


@pytest.mark.parametrize("total", ["0", "-1", "65536", "many"])
def test_a_function_with_no_possible_number_of_vfs_is_no_pf(tmp_path: Path, total: str) -> None:
    host = FakeSysfs(tmp_path)
    host.add(pci_cards.nic("0000:41:00.0"))
    host.write(f"{host.path('0000:41:00.0')}/sriov_totalvfs", total)
    assert functions(host)["0000:41:00.0"].sriov is None


def test_numa_minus_one_means_not_known(tmp_path: Path) -> None:
    host = FakeSysfs(tmp_path)
    host.add(pci_cards.gpu(numa=-1))
    assert functions(host)["0000:01:00.0"].numa is None


def test_the_kernels_order_of_vfs_is_by_index(tmp_path: Path) -> None:
    host = FakeSysfs(tmp_path)
    host.add(pci_cards.connectx(vfs=12))
    assert [index for index, _ in functions(host)["0000:61:00.0"].virtfns] == list(range(12))


def test_a_vf_whose_link_names_no_address_is_left_out(tmp_path: Path) -> None:
    host = FakeSysfs(tmp_path)
    host.add(pci_cards.connectx(vfs=3))
    path = host.path("0000:61:00.0", "virtfn1")
    host.remove(path)
    host.link(path, "devices/gone")
    host.write(host.path("0000:61:00.0", "virtfn_count"), "3")
    assert [index for index, _ in functions(host)["0000:61:00.0"].virtfns] == [0, 2]


def _config(*capabilities: tuple[int, bytes]) -> bytes:
    """A configuration space with a chain of extended capabilities."""
    space = bytearray(4096)
    position = 0x100
    for number, (kind, body) in enumerate(capabilities):
        following = 0 if number == len(capabilities) - 1 else position + 0x80
        space[position : position + 4] = (kind | 1 << 16 | following << 20).to_bytes(4, "little")
        space[position + 4 : position + 4 + len(body)] = body
        position += 0x80
    return bytes(space)


SRIOV_BODY = bytes(0x10) + (128).to_bytes(2, "little") + (2).to_bytes(2, "little")


@pytest.mark.parametrize(
    ("config", "first"),
    [
        (_config((0x10, SRIOV_BODY)), "0000:42:00.0"),
        (_config((0x01, b""), (0x0E, b""), (0x10, SRIOV_BODY)), "0000:42:00.0"),
        (_config((0x01, b"")), None),
        (_config((0x10, SRIOV_BODY))[:64], None),  # what a user who is not root may read
        ((0x01 | 1 << 16 | 0x100 << 20).to_bytes(4, "little").rjust(0x104, b"\0").ljust(4096, b"\0"), None),  # a loop
        (b"", None),
    ],
)
def test_old_kernels_tell_vf_routing_in_the_configuration_space(
    tmp_path: Path, config: bytes, first: str | None
) -> None:
    host = FakeSysfs(tmp_path)
    host.add(pci_cards.nic("0000:41:10.0", sriov=Sriov(7, offset=1, stride=1)))
    for name in ("sriov_offset", "sriov_stride"):
        host.spoil(host.path("0000:41:10.0", name), "missing")
    (host.sys / host.path("0000:41:10.0", "config")).write_bytes(config)
    sriov = functions(host)["0000:41:10.0"].sriov
    assert sriov is not None
    address = sriov.address(Address(0, 0x41, 0x10, 0), 0)
    assert (str(address) if address else None) == first
