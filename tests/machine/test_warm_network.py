"""Networks of warm setups on a real kernel: who reaches whom, who can pretend to be whom, and what is left."""

from __future__ import annotations

import ipaddress
import os
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyroute2 import IPRoute

from devalloc_machines.warm import bridge
from devalloc_machines.warm.addresses import BridgeNetwork
from devalloc_machines.warm.pool import Pool
from devalloc_machines.warm.setup import NotEnoughSetups, Setup
from devalloc_node.errors import Failed, NodeError
from devalloc_node.host import traffic
from devalloc_node.host.network_namespace import has_interface, inside, interface_index
from tests.support import tap_guest as guests
from tests.support import warm_bed
from tests.support.deadlines import soon
from tests.support.debian_programs import nft
from tests.support.fault_gates import HOWS, KILLS, FaultGate
from tests.support.go_build import Unavailable
from tests.support.tap_guest import ARP, BROADCAST, IPV4, IPV6, VLAN, arp, frame, host_pings, ipv4, tap_guest, udp
from tests.support.waiting import until
from tests.support.warm_bed import RUN, forked, in_a_bed, opened_after_a_kill

pytestmark = [warm_bed.needs_root, warm_bed.needs_host_processes]

STRIDE = int(os.environ.get("DEVALLOC_WARM_STRIDE", "41"))
"""Every so manieth of all points is tried (`make faults`: each)."""


@pytest.fixture(scope="module")
def program() -> str:
    """nft."""
    try:
        return str(nft())
    except Unavailable as reason:
        pytest.skip(f"no nft: {reason}")


def network(program: str, **more: Any) -> BridgeNetwork:
    return BridgeNetwork(**{"subnet": ipaddress.IPv4Network("10.88.0.0/29"), "nft": program, **more})


def opened(program: str, **more: Any) -> Pool:
    return warm_bed.opened(network=network(program, **more), nft=program)


@dataclass(frozen=True)
class NetworkSnapshot:
    """All that a network makes on the host."""

    pool: warm_bed.Snapshot
    addresses: frozenset[str]
    rules: str


def snapshot(program: str) -> NetworkSnapshot:
    with IPRoute() as kernel:
        addresses = frozenset(str(each.get_attr("IFA_ADDRESS")) for each in kernel.get_addr(family=socket.AF_INET))
    done = subprocess.run([program, "list", "ruleset"], capture_output=True, text=True, check=True)
    return NetworkSnapshot(warm_bed.snapshot(), addresses, done.stdout)


def run_nft(program: str, rules: str) -> None:
    subprocess.run([program, "-f", "-"], input=rules, text=True, check=True)


def redirect(program: str, address: str, target: str) -> None:
    """As hosts redirect the metadata address of their cloud."""
    run_nft(
        program,
        "table ip kube2iam { chain metadata { type nat hook prerouting priority dstnat; policy accept;\n"
        f"ip daddr {address} dnat to {target}\n}}\n}}\n",
    )


def test_the_guest_of_a_setup_is_reached_and_reaches_others_by_the_address_of_its_setup(program: str) -> None:
    def body() -> None:
        before = snapshot(program)
        pool = opened(program, nameservers=("9.9.9.9",))
        one, two = pool.take("a").setup, pool.take("b").setup
        assert one.network is not None
        assert two.network is not None
        assert {one.network.interface, two.network.interface} == {"10.88.0.2/29", "10.88.0.3/29"}
        assert (one.network.mac, one.network.nameservers) == (one.mac, ("9.9.9.9",))
        assert one.mac != two.mac
        with tap_guest(one) as first, tap_guest(two) as second:
            assert host_pings(one.network.address)
            assert host_pings(two.network.address)
            assert first.mac_of(two.network.address) == two.mac
            assert first.pings(two.network.address)
            assert second.pings(one.network.address)
            assert first.pings("10.88.0.1")
        for setup in (one, two):
            pool.give_back(setup.id, soon())
        pool.close(soon())
        assert snapshot(program) == before

    in_a_bed(body)


@pytest.mark.parametrize("limited", [False, True], ids=["", "with limited bandwidth"])
def test_a_guest_cannot_pretend_to_be_another_one(program: str, limited: bool) -> None:
    def body() -> None:
        pool = opened(program)
        one, two = pool.take("a").setup, pool.take("b").setup
        assert one.network is not None
        assert two.network is not None
        own, other = one.network, two.network
        if limited:
            traffic.set_rates(one.namespace, one.tap, 10**8)
        with tap_guest(one) as first, tap_guest(two) as second:
            assert first.pings(other.address)
            free = "10.88.0.5"
            forged = [
                frame(two.mac, two.mac, IPV4, udp(own.address, other.address, 1, b"a MAC of another")),
                frame(two.mac, own.mac, IPV4, udp("10.88.0.1", other.address, 1, b"an address of the host")),
                frame(two.mac, own.mac, IPV4, udp(free, other.address, 1, b"an address that is free")),
                frame(two.mac, own.mac, IPV4, udp("0.0.0.0", other.address, 1, b"no address")),
                frame(BROADCAST, own.mac, ARP, arp(own.mac, "10.88.0.1", other.address) + b"ARP of the host"),
                frame(BROADCAST, own.mac, ARP, arp(own.mac, other.address, other.address) + b"ARP of another"),
                frame(two.mac, own.mac, ARP, arp(two.mac, own.address, other.address) + b"ARP with a MAC of another"),
                frame(two.mac, own.mac, IPV6, bytes(40) + b"IPv6"),
                frame(two.mac, own.mac, VLAN, b"\0\1\x08\0" + udp(own.address, other.address, 1, b"a VLAN")),
                frame(two.mac, own.mac, VLAN, b"\0\1\x08\0" + udp(free, other.address, 1, b"a forged VLAN")),
                frame(two.mac, own.mac, 0x88A8, b"\0\1\x08\0" + udp(own.address, other.address, 1, b"a service VLAN")),
                frame("01:80:c2:00:00:00", own.mac, 38, b"\x42\x42\x03" + bytes(35) + b"a spanning tree"),
            ]
            for each in forged:
                first.send(each)
            first.send(frame(two.mac, own.mac, IPV4, udp(own.address, other.address, 1, b"its own")))
            first.send(frame(BROADCAST, own.mac, ARP, arp(own.mac, "0.0.0.0", free) + b"is it free"))
            assert first.pings(other.address)  # which comes after all of them
            assert second.got(b"its own")
            assert second.got(b"is it free")
            passed = [each for each in forged if second.got(each[-10:])]
            assert passed == []
            assert host_pings(other.address)
            assert first.mac_of("10.88.0.1") == bridge.HostBridge(network(program), RUN).mac

    in_a_bed(body)


def test_isolated_guests_reach_the_host_alone_also_by_way_of_it(program: str) -> None:
    def body() -> None:
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        pool = opened(program, isolated=True, reach_host=True)
        one, two = pool.take("a").setup, pool.take("b").setup
        assert one.network is not None
        assert two.network is not None
        assert one.network.gateway == "10.88.0.1"
        with tap_guest(one) as first, tap_guest(two) as second:
            assert first.pings("10.88.0.1")
            assert host_pings(two.network.address)
            first.is_answered = False
            assert first.mac_of(two.network.address) is None
            assert not first.pings(two.network.address, by="10.88.0.1")
            gateway = first.mac_of("10.88.0.1")
            assert gateway is not None
            first.send(frame(gateway, one.mac, IPV4, udp(one.network.address, two.network.address, 1, b"by way of it")))
            assert first.pings("10.88.0.1")
            assert not second.got(b"by way of it")

    in_a_bed(body)


@pytest.mark.parametrize("reach_host", [False, True])
def test_a_guest_opens_connections_to_the_host_only_where_the_admin_says_so(program: str, reach_host: bool) -> None:
    def body() -> None:
        pool = opened(program, reach_host=reach_host)
        setup = pool.take("a").setup
        assert setup.network is not None
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as service, tap_guest(setup) as guest:
            service.bind(("0.0.0.0", 4000))
            service.settimeout(guests.SECONDS if reach_host else guests.QUIET)
            gateway = guest.mac_of("10.88.0.1")
            assert gateway is not None
            guest.send(frame(gateway, setup.mac, IPV4, udp(setup.network.address, "10.88.0.1", 4000, b"let me in")))
            received = b""
            with suppress(TimeoutError):
                received = service.recv(100)
            assert received == (b"let me in" if reach_host else b"")
            # What the host asked for is answered either way.
            service.settimeout(guests.SECONDS)
            service.sendto(b"who are you", (setup.network.address, 5001))
            until(lambda: guest.got(b"who are you"), "the host's question is there")
            (question,) = [each for each in guest.received if b"who are you" in each][:1]
            port = int.from_bytes(question[34:36], "big")
            answer = ipv4(
                setup.network.address, "10.88.0.1", 17, b"\x13\x89" + port.to_bytes(2, "big") + b"\0\x0b\0\0me!"
            )
            guest.send(frame(gateway, setup.mac, IPV4, answer))
            assert service.recv(100) == b"me!"

    in_a_bed(body)


@dataclass(frozen=True)
class Elsewhere:
    """A network beyond the host, with one other host in it, which also has the metadata service of a cloud."""

    host: str = "192.0.2.1"
    other: str = "192.0.2.2"
    metadata: str = "169.254.169.254"
    redirected: str = "169.254.170.2"
    """A metadata address that a host redirects."""

    def make(self) -> None:
        from pyroute2 import netns

        netns.create("elsewhere")
        with IPRoute() as here, IPRoute(netns="elsewhere") as there:
            here.link("add", ifname="uplink", kind="veth", peer={"ifname": "eth0", "net_ns_fd": "elsewhere"})
            for side, name, address in ((here, "uplink", self.host), (there, "eth0", self.other)):
                (index,) = side.link_lookup(ifname=name)
                side.addr("add", index=index, address=address, prefixlen=24)
                side.link("set", index=index, state="up")
            there.addr("add", index=index, address=self.metadata, prefixlen=32)
            here.route("add", dst=f"{self.metadata}/32", gateway=self.other)

    def reaches(self, address: str, *, is_expected: bool) -> bool:
        """Whether the host there does: by way of ours."""

        def act() -> bool:
            with IPRoute() as there, suppress(Exception):
                there.route("add", dst="10.88.0.0/29", gateway=self.host)
            return host_pings(address, is_expected=is_expected)

        return inside(Path("/run/netns/elsewhere"), act)


@pytest.mark.parametrize("uplink", ["none", "nat", "route"])
def test_what_leaves_the_subnet_is_what_the_admin_says(program: str, uplink: str) -> None:
    def body() -> None:
        elsewhere = Elsewhere()
        elsewhere.make()
        pool = opened(program, uplink=uplink)
        if uplink != "none":
            with pytest.raises(Failed, match=r"net.ipv4.ip_forward is 0: run 'sysctl -w net.ipv4.ip_forward=1'"):
                pool.take("a")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        setup = pool.take("a").setup
        assert setup.network is not None
        with tap_guest(setup) as guest:
            guest.is_answered = uplink == "nat"  # for "route" there is no way back yet
            assert guest.pings(elsewhere.other, by="10.88.0.1") == (uplink == "nat")
            is_open = uplink == "route"
            assert elsewhere.reaches(setup.network.address, is_expected=is_open) == is_open
            guest.is_answered = uplink != "none"
            assert guest.pings(elsewhere.other, by="10.88.0.1") == (uplink != "none")
            assert host_pings(elsewhere.metadata)
            guest.is_answered = False
            assert not guest.pings(elsewhere.metadata, by="10.88.0.1")
            redirect(program, elsewhere.redirected, elsewhere.other)
            assert not guest.pings(elsewhere.redirected, by="10.88.0.1"), "the host sends it elsewhere"
        pool.give_back(setup.id, soon())
        pool.close(soon())

    in_a_bed(body)


@pytest.mark.parametrize("reach_host", [False, True])
def test_no_link_local_address_of_the_host_answers_a_guest(program: str, reach_host: bool) -> None:
    def body() -> None:
        own, redirected, ordinary = "169.254.7.7", "169.254.170.2", "192.0.2.9"
        with IPRoute() as kernel:
            for address in (own, ordinary):
                kernel.addr("add", index=interface_index("lo"), address=address, prefixlen=32)
        redirect(program, redirected, ordinary)
        pool = opened(program, reach_host=reach_host)
        setup = pool.take("a").setup
        with tap_guest(setup) as guest:
            assert guest.pings(ordinary, by="10.88.0.1")
            guest.is_answered = False
            assert not guest.pings(own, by="10.88.0.1")
            assert not guest.pings(redirected, by="10.88.0.1"), "the host redirects it to itself"

    in_a_bed(body)


def test_what_another_program_made_stays_and_nothing_is_made_beside_it(program: str) -> None:
    def body() -> None:
        with IPRoute() as kernel:
            kernel.link("add", ifname="devalloc0", kind="bridge")
            kernel.link("add", ifname="lan", kind="bridge")
            kernel.addr("add", index=interface_index("lan"), address="10.99.1.1", prefixlen=16)
            kernel.link("set", index=interface_index("lan"), state="up")
        run_nft(program, "table inet devalloc_other { chain theirs {\naccept\n}\n }\ntable inet firewall {\n}\n")
        before = snapshot(program)
        for more, why in (
            ({}, "interface devalloc0 exists and was not made by this plugin; choose another --warm-bridge"),
            ({"bridge": "other"}, "nftables has a table inet devalloc_other that this plugin did not make"),
            ({"bridge": "third", "subnet": ipaddress.IPv4Network("10.99.0.0/24")}, "overlaps .* route to 10.99.0.0/16"),
        ):
            pool = opened(program, **more)
            with pytest.raises(Failed, match=why):
                pool.take("a")
            assert pool.close(soon()).total == 0
            assert snapshot(program) == before

        pool = opened(program, bridge="mine")
        setup = pool.take("a").setup
        with IPRoute() as kernel:  # an admin puts another interface in the place of ours
            kernel.link("del", index=interface_index(bridge.host_interface(setup)))
            kernel.link("add", ifname=bridge.host_interface(setup), kind="bridge")
        pool.give_back(setup.id, soon())
        assert has_interface(bridge.host_interface(setup))
        with IPRoute() as kernel:
            kernel.link("del", index=interface_index(bridge.host_interface(setup)))
            kernel.link("del", index=interface_index("mine"))
            kernel.link("add", ifname="mine", kind="bridge")
        pool.close(soon())
        assert has_interface("mine")
        with IPRoute() as kernel:
            kernel.link("del", index=interface_index("mine"))
        assert snapshot(program) == before

    in_a_bed(body)


def test_when_all_addresses_are_taken_the_next_is_refused_with_numbers_until_one_is_returned(program: str) -> None:
    def body() -> None:
        pool = opened(program)
        taken = [pool.take(f"owner {number}").setup for number in range(5)]
        addresses = [setup.network.address for setup in taken if setup.network is not None]
        assert sorted(addresses) == [f"10.88.0.{number}" for number in range(2, 7)]
        with pytest.raises(NotEnoughSetups, match=r"all 5 addresses of 10.88.0.0/29 .* in use by 5 setups") as short:
            pool.take("one more")
        assert (short.value.code, short.value.short) == ("TryAgain", "addresses")
        pool.close(soon())

        again = opened(program)  # which knows them by their records
        with pytest.raises(NotEnoughSetups):
            again.take("one more")
        again.give_back(taken[2].id, soon())
        setup = again.take("one more").setup
        assert setup.network is not None
        assert setup.network.address == addresses[2]

    in_a_bed(body)


def test_another_plugin_never_gives_an_address_of_the_same_subnet(program: str) -> None:
    def body() -> None:
        first = opened(program)
        first.take("a")
        second = warm_bed.opened(network=network(program), nft=program, run=Path("/run/devalloc/second"))
        with pytest.raises(Failed, match="devalloc0 exists and was not made by this plugin"):
            second.take("b")
        second.close(soon())
        third = warm_bed.opened(network=network(program, bridge="b2"), nft=program, run=Path("/run/devalloc/third"))
        with pytest.raises(Failed, match=r"10.88.0.0/29, overlaps with this host's route to 10.88.0.0/29"):
            third.take("b")
        third.close(soon())
        other = network(program, bridge="b2", subnet=ipaddress.IPv4Network("10.88.0.8/29"))
        fourth = warm_bed.opened(network=other, nft=program, run=Path("/run/devalloc/third"))
        setup = fourth.take("b").setup
        assert setup.network is not None
        assert setup.network.address == "10.88.0.10"

    in_a_bed(body)


def test_setups_that_wait_are_made_anew_when_the_network_is_another_one(program: str) -> None:
    def body() -> None:
        before = snapshot(program)

        def next_run(**more: Any) -> tuple[list[str], str]:
            pool = opened(program, **more)
            left = [record.id for record in pool._pool_state.ready]
            pool.fill(2 - len(left))
            ready = [record.id for record in pool._pool_state.ready]
            assert pool._lock is not None
            pool._lock.close()  # as if it was killed
            return left, ",".join(sorted(ready))

        _, first = next_run()
        left, again = next_run()
        assert (",".join(sorted(left)), again) == (first, first)
        for change in ({"isolated": True}, {"uplink": "none", "nameservers": ("9.9.9.9",)}, {"bridge": "b2"}):
            assert next_run(**change)[0] == []  # type: ignore[arg-type]
        assert not has_interface("devalloc0"), "no machine is on it any more"
        subnet = ipaddress.IPv4Network("10.89.0.0/29")
        assert next_run(bridge="b2", subnet=subnet)[0] == []
        pool = warm_bed.opened(nft=program)
        pool.close(soon())
        assert snapshot(program) == before

    in_a_bed(body)


def test_rules_that_were_flushed_are_there_again_soon(program: str) -> None:
    def body() -> None:
        pool = opened(program)
        pool.take("a")
        rules = snapshot(program).rules
        run_nft(program, "flush ruleset\n")
        pool.look()
        assert snapshot(program).rules == rules
        assert "chain to_host" in rules

    in_a_bed(body)


def one_life(program: str) -> None:
    """All that a pool with a network does, once."""
    pool = warm_bed.opened(workers=1, network=network(program, isolated=True), nft=program)
    with suppress(NodeError):
        pool.give_back(pool.take("a").setup.id, soon())
    with suppress(NodeError):
        pool.take("b")
    with suppress(NodeError):
        pool.look()
    pool.close(soon())


def test_whichever_call_fails_or_is_the_last_nothing_of_a_network_is_left(program: str) -> None:
    def body() -> None:
        before = snapshot(program)

        def undisturbed() -> None:
            gate = FaultGate()
            warm_bed.gate_all(gate)
            one_life(program)
            (RUN / "calls").write_text("\n".join(gate.calls))

        assert forked(undisturbed) is None
        calls = (RUN / "calls").read_text().splitlines()
        (RUN / "calls").unlink()
        assert {"link add veth", "link add bridge", "load rules", "link del", "put record ready", "write bridge"} <= {
            *calls
        }
        settle(program, before)
        points = [(number, call, how) for number, call in enumerate(calls, 1) for how in HOWS]
        for number, call, how in points[::STRIDE]:

            def disturbed(number: int = number, how: str = how) -> None:
                warm_bed.gate_all(FaultGate(number, how))
                one_life(program)

            assert forked(disturbed) == ("killed" if how in KILLS else None), (number, call, how)
            try:
                settle(program, before)
            except AssertionError as error:
                raise AssertionError(f"call {number} ({call}), {how}: {error}") from error

    in_a_bed(body)


def settle(program: str, before: NetworkSnapshot) -> None:
    """The next run of the plugin: owners give their setups back, which have different addresses."""

    def next_run() -> None:
        pool = opened_after_a_kill(lambda: opened(program))
        taken = [each.setup for each in pool.status().taken]
        more = pool.take("another").setup
        setups: list[Setup] = [*taken, more]
        addresses = {setup.network.address for setup in setups if setup.network is not None}
        assert len(addresses) == len(setups)
        for setup in setups:
            pool.give_back(setup.id, soon())
        assert pool.close(soon()).total == 0

    assert (why := forked(next_run)) is None, why
    assert snapshot(program) == before
