"""Addresses of warm setups: who gets which, and how a guest learns its own."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devalloc_machines.qemu.spec import AmountBounds, MachineSpec, Nic, kernel_argument, with_address
from devalloc_machines.warm.addresses import BridgeNetwork
from devalloc_machines.warm.records import SetupRecord, SetupRecords
from devalloc_machines.warm.setup import NotEnoughSetups
from devalloc_node.errors import Denied
from devalloc_node.model.network_address import NetworkAddress, from_content
from tests.support import toy_setups
from tests.support.node_errors import raises

MAC = "02:53:bd:9c:42:18"
OWN = NetworkAddress("10.88.0.2", 16, MAC, "10.88.0.1", ("9.9.9.9", "1.1.1.1", "8.8.8.8"))
_FIXED = AmountBounds(1000, 1000, 1000)
WEB = MachineSpec("default", "web", "uid", _FIXED, _FIXED, kernel="/vmlinuz", append="quiet", nics=(Nic(warm=True),))


@given(
    prefix=st.integers(8, 30),
    after=st.integers(0, 2**24),
    taken=st.sets(st.integers(0, 40), max_size=40),
)
def test_an_address_is_of_the_subnet_is_free_and_there_is_one_unless_all_are_taken(
    prefix: int, after: int, taken: set[int]
) -> None:
    subnet = ipaddress.IPv4Network(f"10.0.0.0/{prefix}")
    network = BridgeNetwork(subnet=subnet)
    in_use = {str(subnet.network_address + number) for number in taken}
    address = network.free_address(after, in_use)
    guests = [subnet[number] for number in range(2, min(50, subnet.num_addresses - 1))]
    if address is None:
        assert {*map(str, guests)} <= in_use
        assert len(guests) == network.size
    else:
        where = ipaddress.IPv4Address(address)
        assert where in subnet
        assert where not in (subnet.network_address, subnet.broadcast_address, network.gateway)
        assert address not in in_use


def test_an_address_that_was_returned_is_not_given_again_before_the_others() -> None:
    network = BridgeNetwork(subnet=ipaddress.IPv4Network("10.88.0.0/29"))
    given_addresses, last = [], 0
    for _ in range(7):
        address = network.free_address(last, ())
        assert address is not None
        last = network.number(address)
        given_addresses.append(last)
    assert given_addresses == [2, 3, 4, 5, 6, 2, 3]


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a/b", "a b", "a" * 16, "br\n"])
def test_a_bridge_has_a_name_that_is_no_part_of_a_rule(name: str) -> None:
    with pytest.raises(ValueError, match="must be a letter and up to 14"):
        BridgeNetwork(name)


def test_the_kernel_is_given_the_address_of_its_setup_as_nfsroot_describes_it() -> None:
    assert kernel_argument(OWN) == "ip=10.88.0.2::10.88.0.1:255.255.0.0:::off:9.9.9.9:1.1.1.1"
    assert kernel_argument(replace(OWN, gateway="", nameservers=())) == "ip=10.88.0.2:::255.255.0.0:::off"
    started = with_address(WEB, OWN)
    assert started.append == f"quiet {kernel_argument(OWN)}"
    assert started.nics == (Nic(warm=True, mac=MAC),)
    second = replace(WEB, nics=(Nic(), Nic(warm=True)))
    assert with_address(second, OWN).append == f"quiet {kernel_argument(OWN, 'eth1')}"


def test_what_a_machine_has_of_its_own_stays() -> None:
    assert with_address(WEB, None) == WEB
    assert with_address(replace(WEB, append="ip=dhcp quiet"), OWN).append == "ip=dhcp quiet"
    assert with_address(replace(WEB, append="myip=1"), OWN).append.startswith("myip=1 ip=10.88.0.2")
    assert with_address(replace(WEB, kernel=None, append=""), OWN).append == ""
    assert with_address(replace(WEB, nics=(Nic(warm=True, mac=MAC.upper()),)), OWN).nics[0].mac == MAC
    with raises(Denied, "MacNotAllowed", match=r"nics\[0\].mac is 02:00:00:00:00:01"):
        with_address(replace(WEB, nics=(Nic(warm=True, mac="02:00:00:00:00:01"),)), OWN)


@pytest.mark.parametrize(
    "wrong",
    [
        {"address": "10.88.0.2/16"},
        {"address": "10.88.0.2; drop"},
        {"prefix": 33},
        {"mac": "02:53:bd:9c:42"},
        {"gateway": "x"},
        {"nameservers": ("9.9.9.9 quiet",)},
    ],
)
def test_what_is_no_address_never_becomes_a_part_of_a_rule_or_a_command_line(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        replace(OWN, **wrong)  # type: ignore[arg-type]
    content = OWN.to_content()
    assert from_content(json.loads(json.dumps(content))) == OWN


def test_a_record_carries_the_address_and_one_without_it_is_read(tmp_path: Path) -> None:
    records = SetupRecords(tmp_path / "records")
    records.make_folder()
    records.put(SetupRecord("warm-1", "ready", "boot", network=OWN))
    records.put(SetupRecord("warm-2", "ready", "boot"))
    assert [record.network for record in records.all()[0]] == [OWN, None]


def test_no_two_setups_have_one_address_and_a_setup_that_cannot_be_made_leaves_its_own(tmp_path: Path) -> None:
    def failing(setup: object) -> None:
        raise OSError(5, "Input/output error")

    toy = toy_setups.ToyPart()
    network = BridgeNetwork(subnet=ipaddress.IPv4Network("10.88.0.0/30"))
    with toy_setups.opened(tmp_path, toy, network=network) as pool:
        toy.making = failing
        for _ in range(3):
            with pytest.raises(Exception, match="Input/output error"):
                pool.take("a")
        toy.making = lambda setup: None
        first = pool.take("a")
        assert first.setup.network is not None
        with pytest.raises(NotEnoughSetups, match=r"all 1 addresses of 10.88.0.0/30 .* by 1 setups: return one"):
            pool.take("b")
    with toy_setups.opened(tmp_path, toy, network=network) as pool:
        assert [taken.setup.network for taken in pool.taken()] == [first.setup.network]
        with pytest.raises(NotEnoughSetups):
            pool.take("b")
