"""What stands on an interface counts, also in another network namespace; asked of the real kernel."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from devalloc.inventory import network_namespaces, network_use
from devalloc.inventory.network_namespaces import StackedInterfaces, stacked_interfaces
from devalloc.inventory.sysfs import Tree
from devalloc_node.errors import Denied
from tests.support import pci_cards
from tests.support.binding_runner import BindingRunner
from tests.support.discovery_view import DiscoveredPools
from tests.support.fake_host import FakeHost
from tests.support.node_errors import raises
from tests.support.private_network import add_tap, other_interfaces
from tests.support.waiting import until

NIC = "0000-05-00-0"
ETH_P_ALL, SOL_PACKET, PACKET_ADD_MEMBERSHIP, PACKET_MR_PROMISC = 3, 263, 1, 1
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for networks of its own")


@contextmanager
def pod() -> Iterator[int]:
    """A process with a network namespace of its own."""
    own = os.readlink("/proc/thread-self/ns/net")
    process = subprocess.Popen(["unshare", "--net", "sleep", "600"])
    try:
        until(lambda: os.readlink(f"/proc/{process.pid}/ns/net") != own, "it has a namespace of its own")
        yield process.pid
    finally:
        process.kill()
        process.wait()


def stack(parent: str, name: str) -> None:
    """An interface of a kind that this kernel has, on another one."""
    with IPRoute() as here:
        (link,) = here.link_lookup(ifname=parent)
        for kind, more in (("macvlan", {}), ("vlan", {"vlan_id": 5}), ("ipvlan", {})):
            try:
                here.link("add", ifname=name, kind=kind, link=link, **more)
            except NetlinkError:
                continue
            return
    pytest.skip("this kernel has neither macvlan nor VLAN nor ipvlan")


def stacked() -> dict[str, str]:
    return dict(stacked_interfaces(Tree(Path("/"))).by_parent)


@needs_root
class TestTheKernel:
    def test_an_interface_in_the_same_namespace(self) -> None:
        with other_interfaces():
            add_tap("card0")
            assert stacked() == {}
            stack("card0", "pod0")
            assert stacked() == {"card0": "pod0"}

    def test_an_interface_in_the_namespace_of_a_process(self) -> None:
        with other_interfaces(), pod() as pid:
            add_tap("card0")
            add_tap("card1", "192.0.3.1")
            stack("card1", "pod1")
            with IPRoute() as here:
                (moved,) = here.link_lookup(ifname="pod1")
                here.link("set", index=moved, net_ns_pid=pid)
            assert stacked() == {"card1": f"pod1 in the network namespace of sleep {pid}"}

    def test_an_interface_in_a_namespace_that_is_only_mounted(self, tmp_path: Path) -> None:
        """As `ip netns add` and container runtimes do it: no process need be in there."""
        place = tmp_path / "blue"
        place.touch()
        with other_interfaces():
            add_tap("card0")
            stack("card0", "net1")
            try:
                with pod() as pid, IPRoute() as here:
                    subprocess.run(["mount", "--bind", f"/proc/{pid}/ns/net", place], check=True)
                    here.link("set", index=here.link_lookup(ifname="net1")[0], net_ns_pid=pid)
                assert stacked() == {"card0": "net1 in the network namespace of blue"}
            finally:
                subprocess.run(["umount", place], check=True)

    def test_interfaces_of_other_namespaces_do_not_count_as_this_ones(self) -> None:
        """Numbers of interfaces are of their namespace: 2 is another one in each."""
        with other_interfaces():
            add_tap("card0")
            with pod() as pid, other_interfaces():
                add_tap("theirs")
                stack("theirs", "pod0")
                with IPRoute() as here:
                    (moved,) = here.link_lookup(ifname="pod0")
                    here.link("set", index=moved, net_ns_pid=pid)
                assert stacked() == {"theirs": f"pod0 in the network namespace of sleep {pid}"}
            assert stacked() == {}

    def test_an_interface_whose_packets_a_program_captures(self) -> None:
        """As an IDS does: it needs no address for that."""
        with other_interfaces():
            add_tap("card0")
            add_tap("card1", "192.0.3.1")
            assert dict(stacked_interfaces(Tree(Path("/"))).captured) == {}
            with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as ids:
                ids.bind(("card0", 0))
                assert dict(stacked_interfaces(Tree(Path("/"))).captured) == {}, "as a program for LLDP does"
                member = struct.pack("iHH8s", socket.if_nametoindex("card0"), PACKET_MR_PROMISC, 0, b"")
                ids.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, member)
                captured = dict(stacked_interfaces(Tree(Path("/"))).captured)
            assert captured == {"card0": "a program captures the packets of"}


class TestTime:
    """However many namespaces there are, and whatever one of them does: what was not asked is said, and not guessed."""

    def test_all_of_it_has_a_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = 0.0

        def slowly(*_: object) -> list[object]:
            nonlocal now
            now += 6.0
            return []

        others = {number: (f"/proc/{number}/ns/net", f"pod {number}") for number in range(1, 9)}
        monkeypatch.setattr(network_namespaces.time, "monotonic", lambda: now)
        monkeypatch.setattr(network_namespaces, "_others", lambda *_: (others, None))
        monkeypatch.setattr(network_namespaces, "_standing_on", slowly)
        answer = stacked_interfaces(Tree(Path("/")))
        assert answer.problem == "5 network namespaces were not asked within 15 s"

    def test_a_kernel_that_does_not_answer_is_not_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(network_namespaces, "_MOST_SECONDS", 0.0)
        assert stacked_interfaces(Tree(Path("/"))).problem == "interfaces cannot be listed: no answer in time"

    def test_looks_that_hang_do_not_pile_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(network_namespaces, "_MOST_SECONDS", 0.05)
        monkeypatch.setattr(network_namespaces, "_ANSWER_SECONDS", 0.05)
        over = threading.Event()
        monkeypatch.setattr(network_namespaces, "_ask_all", lambda *_: over.wait(60) and StackedInterfaces())
        before = threading.active_count()
        problems = [stacked_interfaces(Tree(Path("/"))).problem for _ in range(3)]
        assert problems == [
            "the network namespaces could not be asked",
            *["the network namespaces could not be asked: an earlier look has not ended"] * 2,
        ]
        assert threading.active_count() == before + 1
        over.set()
        until(lambda: stacked_interfaces(Tree(Path("/"))).problem is None, "it can be asked again")


class TestWhatFollows:
    """Of what the kernel answers; a fake host has no kernel to ask."""

    def host(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: StackedInterfaces) -> FakeHost:
        host = FakeHost(tmp_path)
        host.add(pci_cards.plain_nic())
        monkeypatch.setattr(network_use, "stacked_interfaces", lambda tree: answer)
        return host

    def test_a_card_that_carries_one_is_reserved(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        answer = StackedInterfaces({"eth9": "net1 in the network namespace of pause 7"})
        host = self.host(tmp_path, monkeypatch, answer)
        reason = DiscoveredPools.on(host.root).unavailable(NIC)
        assert reason == "reserved: carries net1 in the network namespace of pause 7"
        with raises(Denied, "DeviceReserved", match="carries net1 in the network namespace of pause 7"):
            BindingRunner.on(host, allowed=frozenset({"nic"})).prepare(NIC)

    def test_a_card_whose_packets_are_captured_is_reserved(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        host = self.host(tmp_path, monkeypatch, StackedInterfaces(captured={"eth9": "an XDP program runs on"}))
        assert DiscoveredPools.on(host.root).unavailable(NIC) == "reserved: an XDP program runs on eth9"
        with pytest.raises(Denied, match="an XDP program runs on eth9"):
            BindingRunner.on(host, allowed=frozenset({"nic"})).prepare(NIC)

    def test_where_that_is_unknown_the_inventory_says_so(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        host = self.host(tmp_path, monkeypatch, StackedInterfaces(problem="no namespace can be read"))
        inventory = DiscoveredPools.on(host.root)
        assert inventory.unavailable(NIC) is None
        (problem,) = inventory.problems
        assert problem.message == "may not show all that stands on interfaces: no namespace can be read"

    def test_and_the_card_is_not_taken(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        host = self.host(tmp_path, monkeypatch, StackedInterfaces(problem="no namespace can be read"))
        with raises(Denied, "InUseUnknown", match="no namespace can be read"):
            BindingRunner.on(host, allowed=frozenset({"nic"})).prepare(NIC)


class TestSocketDirect:
    """Two functions of a ConnectX, each in a slot of its own, have one interface between them."""

    FIRST, SECOND, DEVICE = "0000:08:00.0", "0000:09:00.0", "0000-09-00-0"

    def host(self, tmp_path: Path, serials: tuple[str, str] | None = None) -> FakeHost:
        host = FakeHost(tmp_path)
        for address, interface, number in ((self.FIRST, "eth2", 0), (self.SECOND, None, 1)):
            host.add(pci_cards.connectx(address, netdev=interface, infiniband=None, sriov=None))
            if serials is not None:
                data = b"PN\x04MCX7" + b"SN" + bytes([len(serials[number])]) + serials[number].encode()
                content = b"\x82\x02\0ab\x90" + len(data).to_bytes(2, "little") + data + b"\x78"
                (host.sys / host.path(address, "vpd")).write_bytes(content)
        return host

    def reasons(self, host: FakeHost) -> tuple[str | None, str | None]:
        inventory = DiscoveredPools.on(host.root)
        return inventory.unavailable("0000-08-00-0"), inventory.unavailable(self.DEVICE)

    def tell(self, host: FakeHost, *, together: bool) -> None:
        """What the driver says in debugfs."""
        for address in (self.FIRST, self.SECOND):
            (host.sys / "kernel/debug/mlx5" / address).mkdir(parents=True)
        if together:
            group = f"kernel/debug/mlx5/{self.FIRST}/multi-pf"
            host.write(f"{group}/group_id", "0x00000101")
            host.write(f"{group}/primary", f"{self.FIRST} vhca 0x0")
            host.write(f"{group}/secondary_0", f"{self.SECOND} vhca 0x2")

    def test_idle_both_are_offered(self, tmp_path: Path) -> None:
        host = self.host(tmp_path)
        self.tell(host, together=True)
        assert self.reasons(host) == (None, None)

    @pytest.mark.parametrize("serials", [None, ("MT2314X00001", "MT2314X00001")])
    @pytest.mark.parametrize("debugfs", [True, False])
    def test_the_second_is_needed_for_what_the_interface_is(
        self, tmp_path: Path, serials: tuple[str, str] | None, debugfs: bool
    ) -> None:
        host = self.host(tmp_path, serials)
        if debugfs:
            self.tell(host, together=True)
        host.default_route("eth2")
        expected = f"reserved: eth2 of {self.FIRST} uses it, too: default route"
        assert self.reasons(host) == ("reserved: default route", expected)
        with raises(Denied, "DeviceReserved"):
            BindingRunner.on(host, allowed=frozenset({"nic"})).prepare(self.DEVICE)

    def test_in_another_namespace(self, tmp_path: Path) -> None:
        host = self.host(tmp_path)
        self.tell(host, together=True)
        host.remove(host.path(self.FIRST, "net/eth2"))
        first, second = self.reasons(host)
        assert first == "in use: its interface is in another network namespace"
        assert second == f"reserved: the interface of {self.FIRST} uses it, too, and is in another network namespace"

    def test_of_several_that_need_it_the_first_by_address_is_named(self, tmp_path: Path) -> None:
        host = self.host(tmp_path)
        for bus in range(0x0A, 0x20):
            host.add(pci_cards.connectx(f"0000:{bus:02x}:00.0", netdev=f"eth{bus}", infiniband=None, sriov=None))
            host.remove(host.path(f"0000:{bus:02x}:00.0", f"net/eth{bus}"))
        _, second = self.reasons(host)
        assert second == "reserved: the interface of 0000:0a:00.0 uses it, too, and is in another network namespace"

    @pytest.mark.parametrize("debugfs", [True, False])
    def test_a_function_of_another_card_is_not_needed(self, tmp_path: Path, debugfs: bool) -> None:
        host = self.host(tmp_path, ("MT2314X00001", "MT2314X00002"))
        if debugfs:
            self.tell(host, together=False)
        host.default_route("eth2")
        assert self.reasons(host) == ("reserved: default route", None)
