"""VirtualMachines in the network of warm setups, with real guests and the command."""

from __future__ import annotations

import json
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

from devalloc_machines.qemu.spec import machine_id
from tests.machine.test_warm_network import program as program  # a fixture
from tests.machine.test_warm_network import snapshot
from tests.machine.test_warm_objects import Host, a_host, until
from tests.support import warm_bed
from tests.support.guest import Guest
from tests.support.images import Image
from tests.support.qemu import MICRO_APPEND
from tests.support.warm_bed import in_a_bed

pytestmark = [warm_bed.needs_root, warm_bed.needs_host_processes]

AS_AN_INITRAMFS_DOES = """\
for word in $(cat /proc/cmdline); do case $word in ip=*) words=${word#ip=};; esac; done
address=${words%%:*}; rest=${words#*::}; gateway=${rest%%:*}; rest=${rest#*:}; mask=${rest%%:*}
ifconfig eth0 $address netmask $mask up && { [ -z "$gateway" ] || route add default gw $gateway; }
"""
"""What klibc's ipconfig, or a kernel with CONFIG_IP_PNP, makes of ``ip=``."""


def manifest(image: Image, name: str, **nic: Any) -> str:
    start = {"kernel": str(image.kernel), "initrd": str(image.initrd), "append": MICRO_APPEND}
    spec = {
        "nodeName": "here",
        "cpu": {"min": 1, "max": 1},
        "memory": {"min": "128Mi", "max": "128Mi"},
        "start": start,
        "nics": [{"backend": "warm", **nic}],
    }
    metadata = {"name": name, "namespace": "default"}
    return json.dumps(
        {"apiVersion": "devalloc.io/v1alpha1", "kind": "VirtualMachine", "metadata": metadata, "spec": spec}
    )


def status(host: Host, name: str) -> dict[str, Any]:
    return dict(json.loads(host("get", f"vm/{name}", "-o", "json")).get("status", {}))


def shell(name: str) -> Guest:
    return Guest(Path("/run/devalloc/machines") / machine_id(f"default/{name}") / "agent")


def fetched(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/", timeout=60) as answer:
        return str(answer.read().decode())


def test_guests_have_the_addresses_of_their_setups_and_serve_the_host_and_each_other(
    open_image: Image, program: str
) -> None:
    def body() -> None:
        before = snapshot(program)
        words = ("--warm", "1", "--warm-network", "bridge", "--warm-subnet", "10.88.7.0/24", "--nft", program)
        with a_host(open_image, *words) as host:
            host("apply", "-f", "-", stdin=manifest(open_image, "web", bandwidth="1G"))
            host("apply", "-f", "-", stdin=manifest(open_image, "db"))
            for name in ("web", "db"):
                until(lambda name=name: status(host, name).get("networkAddress"), "it has an address")  # type: ignore[misc]
            web, db = (status(host, name)["networkAddress"] for name in ("web", "db"))
            assert web != db
            owned = {each["owner"]: each["setup"] for each in host.taken()}
            assert owned["machine/default/web"]["address"] == f"{web}/24"
            with closing(shell("web")) as first, closing(shell("db")) as second:
                for guest, name in ((first, "web"), (second, "db")):
                    guest.check(AS_AN_INITRAMFS_DOES)
                    guest.check(f"mkdir -p /www; echo I am {name} > /www/index.html; httpd -h /www")
                    mac = guest.check("cat /sys/class/net/eth0/address").strip()
                    assert mac == owned[f"machine/default/{name}"]["mac"]
                assert fetched(web) == "I am web\n"
                assert first.check(f"wget -qO- http://{db}/").strip() == "I am db"
                first.check("ifconfig eth0:1 10.88.7.77 netmask 255.255.255.0")
                first.check("ip route add 10.88.7.1 dev eth0 src 10.88.7.77")
                assert first.run("ping -c 1 -W 2 10.88.7.1").status != 0, "it has not this address"
                first.check("ip route del 10.88.7.1")
                first.check("ping -c 1 -W 60 10.88.7.1")

                host.killed()
                assert fetched(db) == "I am db\n"
                host.plugin = host.started()
                until(lambda: len(host.taken()) == 2, "the next plugin knows them")
                machines = json.loads(host("vm", "list", "-o", "json"))["items"]
                assert sorted(each["networkAddress"] for each in machines) == sorted([web, db])
                assert second.check(f"wget -qO- http://{web}/").strip() == "I am web"

            host("apply", "-f", "-", stdin=manifest(open_image, "own", mac="02:00:00:00:00:01"))
            until(lambda: status(host, "own").get("reason") == "MacNotAllowed", "its MAC is refused")
            assert "nics[0].mac is 02:00:00:00:00:01" in status(host, "own")["message"]
            host("delete", "vm/web", "vm/db", "vm/own")
            until(lambda: host.taken() == [], "they are given back")
        after = snapshot(program)
        assert (after.addresses, after.rules, after.pool.links) == (before.addresses, before.rules, before.pool.links)
        assert after.pool.namespaces == before.pool.namespaces

    in_a_bed(body)
