"""Warm setups in networks of CNI, with its reference plugins on a real kernel."""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyroute2 import IPRoute

from devalloc_machines.warm import network as namespaces
from devalloc_machines.warm.addresses import UPLINK, CniNetwork
from devalloc_machines.warm.pool import Pool
from devalloc_machines.warm.setup import NotEnoughSetups
from devalloc_node.errors import Failed, NodeError
from devalloc_node.host.network_namespace import has_interface, inside, interface_index
from tests.machine.test_warm_network import program as program  # a fixture
from tests.support import warm_bed
from tests.support.deadlines import soon
from tests.support.fault_gates import HOWS, KILLS, FaultGate
from tests.support.go_build import Unavailable
from tests.support.network_tools import cni_plugins
from tests.support.node_errors import raises
from tests.support.tap_guest import IPV4, frame, host_pings, tap_guest, udp
from tests.support.waiting import until
from tests.support.warm_bed import RUN, forked, in_a_bed, opened_after_a_kill

pytestmark = [warm_bed.needs_root, warm_bed.needs_host_processes]

STRIDE = int(os.environ.get("DEVALLOC_WARM_STRIDE", "29"))
"""Every so manieth of all points is tried (`make faults`: each)."""
CONF, LEASES, CACHE = Path("/run/cni/net.d"), Path("/run/cni/leases"), Path("/run/cni/cache")
BRIDGE = {
    "type": "bridge",
    "bridge": "cni-warm",
    "isGateway": True,
    "capabilities": {"mac": True},
    "ipam": {
        "type": "host-local",
        "dataDir": str(LEASES),
        "ranges": [[{"subnet": "10.77.0.0/28"}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    },
}


@pytest.fixture(scope="module")
def plugins() -> Path:
    try:
        return cni_plugins()
    except Unavailable as reason:
        pytest.skip(f"no CNI plugins: {reason}")


def write_list(name: str = "warm", version: str = "1.0.0", **more: Any) -> None:
    CONF.mkdir(parents=True, exist_ok=True)
    content = {"cniVersion": version, "name": name, "plugins": [{**BRIDGE, **more}]}
    (CONF / f"10-{name}.conflist").write_text(json.dumps(content))


def opened(plugins: Path, program: str, **more: Any) -> Pool:
    network = CniNetwork("warm", CONF, (plugins,))
    return warm_bed.opened(**{"network": network, "nft": program, "cni_cache": CACHE, **more})


def leases() -> set[str]:
    return {path.name for path in LEASES.rglob("10.77.*")}


def links() -> set[str]:
    """But for the bridge of the list, which its plugin leaves."""
    return {name for _, name in socket.if_nameindex()} - {"cni-warm"}


def left() -> tuple[set[str], set[str], set[str], set[str]]:
    namespaces_left = {path.name for path in Path("/run/netns").iterdir()}
    return leases(), links(), {path.name for path in CACHE.glob("*")}, namespaces_left


NOTHING: tuple[set[str], set[str], set[str], set[str]] = (set(), {"lo"}, set(), set())


@pytest.mark.parametrize("version", ["0.3.1", "0.4.0", "1.0.0", "1.1.0"])
def test_the_guest_has_what_the_plugins_gave_and_returns_it(plugins: Path, program: str, version: str) -> None:
    def body() -> None:
        write_list(version=version)
        pool = opened(plugins, program)
        one, two = pool.take("a").setup, pool.take("b").setup
        assert one.network is not None
        assert two.network is not None
        assert leases() == {one.network.address, two.network.address}
        assert (one.network.prefix, one.network.gateway, one.mac) == (28, "10.77.0.1", one.own_mac)
        with tap_guest(one) as first, tap_guest(two) as second:
            assert host_pings(one.network.address)
            assert first.pings(two.network.address)
            assert first.pings("10.77.0.1")
            forged = udp("10.77.0.9", two.network.address, 1, b"a free address")
            first.send(frame(two.mac, one.mac, IPV4, forged))
            first.send(
                frame(two.mac, two.mac, IPV4, udp(one.network.address, two.network.address, 1, b"a MAC of another"))
            )
            assert first.pings(two.network.address)
            assert not second.got(b"a free address")
            assert not second.got(b"a MAC of another")
        pool.give_back(one.id, soon())
        assert leases() == {two.network.address}
        pool.give_back(two.id, soon())
        pool.close(soon())
        assert left() == NOTHING

    in_a_bed(body)


def test_what_was_added_is_deleted_as_it_was_added_whatever_became_of_the_list_and_the_host(
    plugins: Path, program: str
) -> None:
    def body() -> None:
        write_list()
        pool = opened(plugins, program)
        first, second, third = (pool.take(owner).setup for owner in "abc")
        pool.fill(1)
        assert len(leases()) == 4
        write_list(bridge="other")  # those that wait are made anew; those that are taken go on as they are
        assert pool._lock is not None
        pool._lock.close()
        pool = opened(plugins, program)
        assert pool.status().ready == 0
        assert len(leases()) == 3
        (CONF / "10-warm.conflist").unlink()
        pool.give_back(first.id, soon())
        assert len(leases()) == 2

        with IPRoute(netns=str(second.namespace)) as kernel:  # its owner takes the interface away
            kernel.link("del", index=inside(second.namespace, lambda: interface_index(UPLINK)))
        pool.give_back(second.id, soon())
        namespaces.remove_namespace(third.namespace, None)  # an admin, the namespace
        pool.give_back(third.id, soon())
        until(lambda: left() == NOTHING, "the kernel has removed what was in the namespace, too")
        with pytest.raises(Failed, match=r"has no list of CNI plugins named warm: /run/cni/net.d"):
            pool.take("d")
        write_list()
        fourth = pool.take("d").setup
        assert pool._lock is not None
        pool._lock.close()

        namespaces.remove_namespace(fourth.namespace, None)  # a reboot: what is in memory is gone
        for path in (RUN / "records").iterdir():
            path.unlink()
        with suppress(FileNotFoundError):
            os.rmdir(fourth.folder)
        assert len(leases()) == 1
        warm_bed.opened(nft=program, cni_cache=CACHE).close(soon())
        until(lambda: left() == NOTHING, "the kernel has removed what was in the namespace, too")

    in_a_bed(body)


def test_two_plugins_never_get_one_address_and_the_later_one_gets_a_reason(plugins: Path, program: str) -> None:
    def body() -> None:
        write_list()
        pools = [
            opened(plugins, program, run=Path(f"/run/devalloc/{name}"), cni_cache=Path(f"/run/cni/{name}"), workers=3)
            for name in ("one", "two")
        ]

        def fill(pool: Pool) -> None:
            with suppress(NodeError):
                pool.fill(9)

        threads = [threading.Thread(target=fill, args=(pool,)) for pool in pools]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        addresses = [
            record.network.address for pool in pools for record in pool._pool_state.ready if record.network is not None
        ]
        assert len({*addresses}) == len(addresses) == 13  # of 16: the network's, the gateway's and the last one
        assert leases() == {*addresses}
        words = r"network \S+ has no free address: return a setup, .*CNI plugin bridge: .*no IP addresses available"
        with pytest.raises(NotEnoughSetups, match=words) as failed:
            pools[0].fill(1)
        assert (failed.value.code, failed.value.retryable) == ("TryAgain", True)
        assert len(leases()) == 13, "nothing is left of it"
        for pool in pools:
            pool.close(soon())
        assert leases() == set()

    in_a_bed(body)


def script(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_plugins_run_as_the_specification_says(program: str) -> None:
    def body() -> None:
        bins = Path("/run/cni/bin")
        answer = {
            "cniVersion": "1.1.0",
            "interfaces": [{"name": "veth", "mac": "x"}, {"name": "eth0", "sandbox": "/run/netns/x"}],
            "ips": [{"address": "fd00::2/64", "interface": 1}, {"address": "10.1.0.1/24", "interface": 0},
                    {"address": "10.1.0.2/24", "gateway": "10.1.0.1", "interface": 1}],
            "dns": {"nameservers": ["9.9.9.9", "fd00::1"]},
        }  # fmt: skip
        tell = (
            "cat > /run/cni/in-$1-$CNI_COMMAND; env | grep ^CNI_ | sort > /run/cni/env-$1-$CNI_COMMAND; "
            "echo $1 $CNI_COMMAND >> /run/cni/calls\n"
        )
        made = "ip netns exec $(basename $CNI_NETNS) ip link add eth0 address $MAC type veth peer name peer"
        added = f"MAC=${{CNI_ARGS##*MAC=}}; {made}; echo '{json.dumps(answer)}'"
        script(bins, "first", f"set first; {tell}[ $CNI_COMMAND = ADD ] && {{ {added}; }}; exit 0")
        script(bins, "second", f"set second; {tell}[ $CNI_COMMAND = ADD ] && echo '{json.dumps(answer)}'; exit 0")
        CONF.mkdir(parents=True)
        plugins = [{"type": "first", "own": 1}, {"type": "second", "capabilities": {"mac": True, "ips": True}}]
        content = {"cniVersion": "1.1.0", "name": "net", "plugins": plugins}
        (CONF / "5-none.conflist").write_text("not JSON")
        (CONF / "9-net.conflist").write_text(json.dumps(content))
        network = CniNetwork("", CONF, (Path("/none"), bins))
        pool = warm_bed.opened(network=network, nft=program, cni_cache=CACHE)
        setup = pool.take("a").setup
        assert setup.network is not None
        who = setup.network
        assert (who.interface, who.gateway, who.nameservers) == ("10.1.0.2/24", "10.1.0.1", ("9.9.9.9",))
        pool.give_back(setup.id, soon())

        calls = Path("/run/cni/calls").read_text().split("\n")
        adds = ["first ADD", "second ADD", "first CHECK", "second CHECK"]
        assert calls == [*adds, "second DEL", "first DEL", ""]
        assert Path("/run/cni/env-first-ADD").read_text().splitlines() == [
            f"CNI_ARGS=IgnoreUnknown=1;MAC={setup.own_mac}",
            "CNI_COMMAND=ADD",
            f"CNI_CONTAINERID={setup.id}",
            "CNI_IFNAME=eth0",
            f"CNI_NETNS={setup.namespace}",
            f"CNI_PATH=/none:{bins}",
        ]

        def stdin(name: str) -> dict[str, Any]:
            return dict(json.loads(Path(f"/run/cni/in-{name}").read_text()))

        common = {"name": "net", "cniVersion": "1.1.0"}
        runtime = {"runtimeConfig": {"mac": setup.own_mac}}
        assert stdin("first-ADD") == {"type": "first", "own": 1, **common}
        assert stdin("second-ADD") == {"type": "second", **common, **runtime, "prevResult": answer}
        assert stdin("first-CHECK") == stdin("first-DEL") == {"type": "first", "own": 1, **common, "prevResult": answer}
        assert stdin("second-DEL") == {"type": "second", **common, **runtime, "prevResult": answer}

    in_a_bed(body)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('echo \'{"msg": "no room", "details": "at all"}\'; exit 1', "ADD: no room; at all: CNI plugin odd"),
        ('echo \'{"msg": "Could not allocate IP in range: ip: 10.1.0.1"}\'; exit 1', "network net has no free address"),
        ("echo broken >&2; exit 3", "ADD: broken"),
        ("echo '{}'", "gave the setup no IPv4 address"),
        ("echo '[]'", "invalid result"),
        ("echo nothing", "invalid result from ADD"),
        ('echo \'{"ips": [{"address": "10.1.0.2/24 quiet"}]}\'', "invalid result"),
        ('echo \'{"ips": [{"address": "10.1.0.2/24"}]}\'', "made no interface eth0"),
        ("sleep 60 & echo $! > /run/cni/child; wait", "did not end ADD in time"),
    ],
)  # fmt: skip
def test_a_plugin_that_fails_leaves_no_setup_and_is_run_to_undo_it(text: str, why: str, program: str) -> None:
    def body() -> None:
        bins = Path("/run/cni/bin")
        script(bins, "odd", f"[ $CNI_COMMAND = DEL ] && {{ touch /run/cni/deleted; exit 0; }}\n{text}")
        CONF.mkdir(parents=True)
        (CONF / "net.conf").write_text(json.dumps({"cniVersion": "0.4.0", "name": "net", "type": "odd"}))
        network = CniNetwork("net", CONF, (bins,), seconds=1.0)
        pool = warm_bed.opened(network=network, nft=program, cni_cache=CACHE)
        with raises(NodeError, "TryAgain" if "free address" in why else "SetupFailed", match=why):
            pool.take("a")
        assert Path("/run/cni/deleted").exists()
        assert left() == NOTHING
        if (child := Path("/run/cni/child")).exists():
            assert not Path(f"/proc/{child.read_text().strip()}/cwd").exists(), "what it started has ended, too"

        script(bins, "odd", "[ $CNI_COMMAND = DEL ] && { echo later >&2; exit 1; }\nexit 1")
        with pytest.raises(Failed, match="later"):
            pool.take("a")
        assert pool.status().removing == 1
        script(bins, "odd", "exit 0")
        pool.look()
        assert left() == NOTHING
        pool.close(soon())

    in_a_bed(body)


def one_life(plugins: Path, program: str) -> None:
    pool = opened(plugins, program, workers=1)
    with suppress(NodeError):
        pool.give_back(pool.take("a").setup.id, soon())
    with suppress(NodeError):
        pool.take("b")
    pool.close(soon())


def test_whichever_call_fails_or_is_the_last_all_that_was_added_is_deleted(plugins: Path, program: str) -> None:
    def body() -> None:
        write_list()

        def undisturbed() -> None:
            gate = FaultGate()
            warm_bed.gate_all(gate)
            one_life(plugins, program)
            (RUN / "calls").write_text("\n".join(gate.calls))

        assert forked(undisturbed) is None
        calls = (RUN / "calls").read_text().splitlines()
        (RUN / "calls").unlink()
        assert {"plugin ADD", "plugin CHECK", "plugin DEL", "write attachment", "drop attachment"} <= {*calls}
        settle(plugins, program)
        points = [(number, call, how) for number, call in enumerate(calls, 1) for how in HOWS]
        for number, call, how in points[::STRIDE]:

            def disturbed(number: int = number, how: str = how) -> None:
                warm_bed.gate_all(FaultGate(number, how))
                one_life(plugins, program)

            assert forked(disturbed) == ("killed" if how in KILLS else None), (number, call, how)
            try:
                settle(plugins, program)
            except AssertionError as error:
                raise AssertionError(f"call {number} ({call}), {how}: {error}") from error

    in_a_bed(body)


def settle(plugins: Path, program: str) -> None:
    def next_run() -> None:
        pool = opened_after_a_kill(lambda: opened(plugins, program))
        for taken in pool.status().taken:
            pool.give_back(taken.setup.id, soon())
        assert pool.close(soon()).total == 0

    assert (why := forked(next_run)) is None, why
    assert left() == NOTHING
    assert not has_interface(UPLINK)
