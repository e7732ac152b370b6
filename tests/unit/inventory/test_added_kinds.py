"""Kinds of devices that the admin adds without code: published, allowed, bound and checked as those of the table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from devalloc.cli.main import cli
from devalloc.device_kinds import DEFAULT_ALLOWED, read_added_kinds
from devalloc.inventory import storage_use
from devalloc_node.binding import checks
from devalloc_node.errors import NodeError
from tests.support import pci_cards
from tests.support.binding_runner import BindingRunner
from tests.support.discovery_view import DiscoveredPools
from tests.support.fake_host import FakeHost
from tests.support.node_errors import raises
from tests.support.pci_cards import Function, Sriov

HBA = Function("0000:5e:00.0", 0x1000, 0x00E6, 0x010700, native="mpt3sas")
HBA_DEVICE = "0000-5e-00-0"
FIBRE = Function("0000:af:00.0", 0x10DF, 0xF400, 0x0C0400, native="lpfc")
USB = Function("0000:00:14.0", 0x8086, 0x7AE0, 0x0C0330, native="xhci_hcd", ports=())
DSA = Function("0000:6a:01.0", 0x8086, 0x0B25, 0x088000, native="idxd")
CHIP = Function("0000:71:00.0", 0x1AE0, 0x0063, 0x120000, native="gasket")
KINDS = read_added_kinds(["hba=0107", "usb=0c03", "dsa=0880", "tpu=1ae0:0063"])


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def seen(host: FakeHost, **settings: Any) -> DiscoveredPools:
    return DiscoveredPools.on(host.root, **{"device_kinds": KINDS, **settings})


@pytest.mark.parametrize(("function", "kind"), [(HBA, "hba"), (USB, "usb"), (DSA, "dsa"), (CHIP, "tpu")])
def test_a_class_or_a_model_makes_a_kind(host: FakeHost, function: Function, kind: str) -> None:
    host.add(function)
    name = function.address.replace(":", "-").replace(".", "-")
    pools = seen(host)
    assert (pools.attributes(name)["kind"], pools.homes[name].spec.driver) == (kind, f"{kind}.devalloc.io")
    assert pools.unavailable(name) is None
    assert "is not allowed on this node" in str(seen(host, allowed=frozenset(DEFAULT_ALLOWED)).unavailable(name))
    hand = BindingRunner.on(host, device_kinds=KINDS, allowed=frozenset({kind}))
    assert hand.prepare(name).functions == (function.address,)
    hand.unprepare(name)
    assert host.driver_of(function.address) == function.native
    with raises(NodeError, "KindNotAllowed"):
        BindingRunner.on(host, device_kinds=KINDS).prepare(name)


def test_without_the_kind_nothing_is_published(host: FakeHost) -> None:
    host.add(HBA)
    assert not seen(host, device_kinds=()).devices
    with raises(NodeError, "DeviceUnknown"):
        BindingRunner.on(host).prepare(HBA_DEVICE)


def test_a_disk_of_the_host_behind_it_keeps_it(host: FakeHost) -> None:
    host.add(HBA)
    host.write(f"{host.path(HBA.address)}/host0/target0:0:0/0:0:0:0/block/sda/dev", "8:0")
    host.proc("mounts", "/dev/sda / ext4 rw 0 0\n")
    host.proc("self/mountinfo", "22 1 8:0 / / rw shared:1 - ext4 /dev/sda rw\n")
    assert "reserved" in str(seen(host).unavailable(HBA_DEVICE))
    with pytest.raises(NodeError):
        BindingRunner.on(host, device_kinds=KINDS, allowed=frozenset({"hba"})).prepare(HBA_DEVICE)


def test_a_disk_behind_it_that_only_the_kernel_says_is_in_use_keeps_it(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of ZFS on whole disks: the inventory and the binding ask the same."""
    host.add(HBA)
    host.write(f"{host.path(HBA.address)}/host0/target0:0:0/0:0:0:0/block/sda/dev", "8:0")
    (host.root / "dev").mkdir(exist_ok=True)
    (host.root / "dev/sda").touch()
    opened: list[str] = []
    monkeypatch.setattr(storage_use, "is_used_by_host", lambda node: opened.append(node.name) is None)
    assert seen(host).unavailable(HBA_DEVICE) == "reserved: sda is in use"
    opened.clear()
    assert "is not allowed on this node" in str(seen(host, allowed=frozenset()).unavailable(HBA_DEVICE))
    assert not opened, "what no one can get is not opened"


CONTROLLERS = {
    "SCSI": ("0100", 0x010000, "virtio-pci"),
    "RAID": ("0104", 0x010400, "megaraid_sas"),
    "SATA": ("0106", 0x010601, "ahci"),
    "SAS": ("0107", 0x010700, "mpt3sas"),
    "USB": ("0c03", 0x0C0330, "xhci_hcd"),
}


@pytest.mark.parametrize(("code", "number", "driver"), CONTROLLERS.values(), ids=CONTROLLERS)
def test_a_controller_with_disks_is_given_away_only_under_an_erase_policy(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, code: str, number: int, driver: str
) -> None:
    """As NVMe is: what an owner leaves on its disks, the next one could read."""
    kinds = read_added_kinds([f"box={code}"])
    host.add(Function(HBA.address, 0x1000, 0x0097, number, native=driver))
    allowed = frozenset({"box"})
    assert seen(host, device_kinds=kinds).unavailable(HBA_DEVICE) is None, "without disks"
    host.write(f"{host.path(HBA.address)}/host0/target0:0:0/0:0:0:0/block/sda/dev", "8:0")
    (host.root / "dev").mkdir(exist_ok=True)
    (host.root / "dev/sda").touch()
    reason = "withheld: no erase policy for storage is set, and it has the disk sda"
    assert seen(host, device_kinds=kinds).unavailable(HBA_DEVICE) == reason
    with raises(NodeError, "ErasePolicyMissing", match="has the disk sda, and no policy erases that"):
        BindingRunner.on(host, device_kinds=kinds, allowed=allowed).prepare(HBA_DEVICE)
    assert seen(host, device_kinds=kinds, erase_policy=True).unavailable(HBA_DEVICE) is None
    hand = BindingRunner.on(host, device_kinds=kinds, allowed=allowed, erase_policy=True)
    hand.prepare(HBA_DEVICE)
    hand.unprepare(HBA_DEVICE)
    for used, code_of_error in ((lambda node: True, "DeviceReserved"), (missing, "InUseUnknown")):
        monkeypatch.setattr(storage_use, "is_used_by_host", used)
        monkeypatch.setattr(checks, "is_used_by_host", used)
        assert str(seen(host, device_kinds=kinds, erase_policy=True).unavailable(HBA_DEVICE)).startswith("reserved:")
        with raises(NodeError, code_of_error):
            BindingRunner.on(host, device_kinds=kinds, allowed=allowed, erase_policy=True).prepare(HBA_DEVICE)


def missing(node: Path) -> bool:
    raise FileNotFoundError(node)


@pytest.mark.parametrize("driver", ["vfio-pci", None])
def test_a_storage_controller_whose_disks_do_not_show_may_have_some(host: FakeHost, driver: str | None) -> None:
    host.add(replace(HBA, driver=driver))
    reason = f"no erase policy for storage is set, and it has disks that do not show with {driver or 'no driver'}"
    assert seen(host).unavailable(HBA_DEVICE) == f"withheld: {reason}"
    with raises(NodeError, "ErasePolicyMissing"):
        BindingRunner.on(host, device_kinds=KINDS, allowed=frozenset({"hba"})).prepare(HBA_DEVICE)
    assert seen(host, erase_policy=True).unavailable(HBA_DEVICE) is None


def test_disks_that_an_hba_reaches_by_nvme_keep_it(host: FakeHost) -> None:
    """Their controllers are virtual devices, and name the port of the HBA that they go by."""
    host.add(FIBRE)
    host.add(replace(FIBRE, address="0000:af:00.1"))
    for number, port in enumerate(("0x100000109b3c1f2a", "0x100000109b3c1f2b")):
        folder = host.path(f"0000:af:00.{number}", f"host{number}/fc_host/host{number}")
        host.write(f"{folder}/port_name", f"{port}\n")
        host.link(f"{folder}/subsystem", "class/fc_host")
    controller = "devices/virtual/nvme-fabrics/ctl/nvme3"
    target = "traddr=nn-0x201700a09890f5bf:pn-0x201b00a09890f5bf"
    host.write(f"{controller}/address", f"{target},host_traddr=nn-0x200000109b3c1f2a:pn-0x100000109b3c1f2a\n")
    host.write(f"{controller}/nvme3n1/dev", "259:7")
    host.link("class/nvme/nvme3", controller)
    host.proc("self/mountinfo", "30 1 259:7 / / rw - xfs /dev/nvme3n1 rw\n")
    pools = seen(host, device_kinds=read_added_kinds(["fc=0c04"]))
    assert pools.unavailable("0000-af-00-0") == "reserved: nvme3n1 is mounted"
    assert pools.unavailable("0000-af-00-1") is None


def test_a_process_that_has_a_node_of_it_open_uses_it(host: FakeHost) -> None:
    host.add(DSA)
    host.write(f"{host.path(DSA.address)}/dsa0/wq0.0/dsa!wq0.0/uevent", "MAJOR=240\nMINOR=0\nDEVNAME=dsa/wq0.0")
    host.write(f"{host.path(DSA.address)}/dsa0/wq0.0/dsa!wq0.0/dev", "240:0")
    host.process(4711, "dpdk", ("/dev/dsa/wq0.0",))
    assert seen(host).unavailable("0000-6a-01-0") == "in use: dpdk 4711"


def test_what_the_table_says_of_data_and_of_the_host_stays(host: FakeHost) -> None:
    host.add(pci_cards.nvme())
    host.add(pci_cards.bmc_vga())
    kinds = read_added_kinds(["mine=144d:a80a,1a03:2000"])
    pools = seen(host, device_kinds=kinds)
    assert {str(pools.attributes(device)["kind"]) for device in pools.devices} == {"storage", "display"}


def test_a_display_that_no_bmc_has_can_be_named_by_its_model(host: FakeHost) -> None:
    """GPUs of vendors that devalloc does not know. What the host shows its screen on stays reserved."""
    kinds = read_added_kinds(["gpgpu=1ee0:0104"])
    for bus, pci_class in (("21", 0x038000), ("22", 0x030200), ("23", 0x038000), ("24", 0x030000)):
        card = Function(f"0000:{bus}:00.0", 0x1EE0, 0x0104, pci_class, native="gpgpu", drm=f"card{bus}")
        host.add(replace(card, files={"boot_display": "1\n"} if bus == "23" else {}))
    pools = seen(host, device_kinds=kinds)
    assert {device: (pools.attributes(device)["kind"], pools.unavailable(device)) for device in pools.devices} == {
        "0000-21-00-0": ("gpgpu", None),
        "0000-22-00-0": ("gpgpu", None),
        "0000-23-00-0": ("gpgpu", "reserved: boot display"),
        "0000-24-00-0": ("display", "reserved: display of the host"),
    }
    hand = BindingRunner.on(host, device_kinds=kinds, allowed=frozenset({"gpgpu"}))
    assert hand.prepare("0000-21-00-0").functions == ("0000:21:00.0",)


def test_vfs_of_an_added_kind_need_the_admins_word(host: FakeHost) -> None:
    sriov = Sriov(2, offset=1, stride=1, vf_device=0x00E7, vf_driver="mpt3sas")
    host.add(Function("0000:5e:00.0", 0x1000, 0x00E6, 0x010700, native="mpt3sas", sriov=sriov))
    assert "--creatable-vfs hba" in str(seen(host).unavailable("0000-5e-00-1"))
    assert seen(host, creatable_vfs=frozenset({"hba"})).unavailable("0000-5e-00-1") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hba", "write NAME=ID"),
        ("hba=", "write NAME=ID"),
        ("HBA=0107", "invalid name of a kind 'HBA': a name has 2 to 32 lower-case letters"),
        ("a=0107", "invalid name of a kind 'a'"),
        ("hba=1", "'1' is not a PCI class"),
        ("hba=0107,xyz", "'xyz' is not a PCI class"),
        ("gpu=0107", "kind gpu exists already"),
        ("vf=0107", "kind vf exists already"),
        ("x1=0302", "class 0302 is of kind gpu; name models"),
        ("x1=0108", "class 0108 is of kind storage; name models"),
        ("x1=02", "class 02 is of kind nic; name models"),
        ("x1=0604", "the host needs its bridges"),
    ],
)
def test_what_is_no_kind(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_added_kinds([text])


def test_a_class_is_of_one_kind() -> None:
    """The second kind would never get a device."""
    with pytest.raises(ValueError, match="kind raid: 0107 is of kind hba already; name it once"):
        read_added_kinds(["hba=0107", "raid=0104,0107"])
    assert read_added_kinds(["hba=0107", "hba=0107"]) == read_added_kinds(["hba=0107"])


class TestNetworks:
    """A NIC can be chosen by its interface, or by the network that its cable leads to."""

    def test_ports_and_their_vfs_have_both(self, host: FakeHost) -> None:
        host.add(pci_cards.connectx())
        host.add(pci_cards.nic())
        networks = {"ens1f0np0": "physnet1", "0000:41:00.0": "physnet2"}
        pools = seen(host, physical_networks=networks)
        for port, interface, network in (("61", "ens1f0np0", "physnet1"), ("41", "eth0", "physnet2")):
            own = [device for device in pools.devices if device.startswith(f"0000-{port}")]
            assert len(own) > 7
            facts = [pools.attributes(device) for device in own]
            assert {(each["interface"], each["physicalNetwork"]) for each in facts} == {(interface, network)}

    def test_existing_vfs_have_their_ports_interface(self, host: FakeHost) -> None:
        host.add(pci_cards.nic(vfs=2))
        pools = seen(host)
        assert {pools.attributes(vf)["interface"] for vf in pools.names(function="vf")} == {"eth0"}

    def test_others_have_none(self, host: FakeHost) -> None:
        host.add(pci_cards.plain_nic(netdev=None))
        attributes = seen(host, physical_networks={"eth9": "x"}).attributes("0000-05-00-0")
        assert not {"interface", "physicalNetwork"} & attributes.keys()


class TestCommand:
    """The options of the command."""

    def run(self, host: FakeHost, *options: str) -> Any:
        arguments = ["discover", "--sysfs-root", str(host.root), "--node-name", "n", "-o", "json", *options]
        return CliRunner().invoke(cli, arguments)

    def test_it_publishes_them(self, host: FakeHost) -> None:
        host.add(HBA)
        host.add(pci_cards.nic())
        answer = self.run(host, "--device-kind", "hba=0107", "--physical-network", "physnet1=eth0")
        assert answer.exit_code == 0, answer.output
        drivers = {pool["spec"]["driver"] for pool in json.loads(answer.stdout)["items"]}
        assert drivers == {"hba.devalloc.io", "nic.devalloc.io"}
        assert "physnet1" in answer.stdout
        only = self.run(host, "--device-kind", "hba=0107", "--kind", "hba")
        assert [pool["spec"]["driver"] for pool in json.loads(only.stdout)["items"]] == ["hba.devalloc.io"]

    @pytest.mark.parametrize("port", ["c1:00.0", "C1:00.0", "0000:C1:00.0", "0000:c1:00.0"])
    def test_a_port_may_be_written_as_lspci_shows_it(self, host: FakeHost, port: str) -> None:
        host.add(pci_cards.plain_nic("0000:c1:00.0"))
        answer = self.run(host, "--physical-network", f"physnet1={port}")
        assert answer.exit_code == 0, answer.output
        assert "physnet1" in answer.stdout

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--device-kind", "gpu=0107"), "--device-kind: kind gpu exists already"),
            (("--kind", "hba"), "--kind: unknown kind hba"),
            (("--creatable-vfs", "hba"), "--creatable-vfs: unknown kind hba"),
            (("--physical-network", "x"), "--physical-network: invalid 'x': write NAME=PORT"),
            (("--physical-network", "a=e0", "--physical-network", "b=e0"), "e0 cannot be in both a and b"),
        ],
    )
    def test_it_says_what_is_wrong(self, host: FakeHost, options: tuple[str, ...], message: str) -> None:
        answer = self.run(host, *options)
        assert answer.exit_code != 0
        assert message in answer.output
