"""The boundary to a real host: what may be written where, and a kernel that does not answer (settled T12, T17)."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.requests.link import LinkIPRouteFilter

from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, Unknown
from devalloc_node.host import linux
from devalloc_node.host.boundary import DryRun
from devalloc_node.host.files import Files
from devalloc_node.host.linux import LinuxHost
from tests.support import pci_cards
from tests.support.deadlines import soon
from tests.support.fake_sysfs import FakeSysfs
from tests.support.fake_tree import written

NIC = "0000:41:00.0"


@pytest.fixture
def host(tmp_path: Path) -> LinuxHost:
    FakeSysfs(tmp_path).add(pci_cards.nic())
    return LinuxHost(Files((str(tmp_path / "own"),)), tmp_path)


class Brief(Deadline):
    """There is time, though little of it, however busy this machine is."""

    passed = False
    seconds = 0.02


class TestWritesBelowSys:
    def test_links_within_sys_are_followed(self, host: LinuxHost) -> None:
        host.write(f"bus/pci/devices/{NIC}/driver_override", "vfio-pci\n", soon())
        (place,) = (host.root / "sys/devices").rglob(f"{NIC}/driver_override")
        assert place.read_text() == "vfio-pci\n"

    def test_a_path_is_a_chain_of_names(self, host: LinuxHost) -> None:
        for path in (
            "../etc/passwd", "bus/../../x", "/etc/passwd", "bus//pci", "", "bus/./pci", "bus/pci\0/x", "x" * 300, "a/",
        ):  # fmt: skip
            with pytest.raises(OSError, match="not a path below sys") as caught:
                host.write(path, "1", soon())
            assert caught.value.errno == errno.EPERM

    def test_no_link_leads_out(self, host: LinuxHost) -> None:
        (host.root / "secret").write_text("before")
        os.symlink("../secret", host.root / "sys/leak")
        with pytest.raises(OSError, match="leads out of sys"):
            host.write("leak", "after", soon())
        assert (host.root / "secret").read_text() == "before"

    def test_what_is_not_there_is_not_made(self, host: LinuxHost) -> None:
        with pytest.raises(FileNotFoundError):
            host.write("bus/pci/nothing", "1", soon())
        assert not (host.root / "sys/bus/pci/nothing").exists()

    def test_a_folder_is_no_file(self, host: LinuxHost) -> None:
        with pytest.raises(IsADirectoryError):
            host.write("bus/pci", "1", soon())


class TestAKernelThatDoesNotAnswer:
    @pytest.fixture
    def stuck(self, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
        """Writes to `unbind` block until the event is set."""
        event, write = threading.Event(), os.write

        def slow(descriptor: int, content: bytes) -> int:
            if os.readlink(f"/proc/self/fd/{descriptor}").endswith("/unbind"):
                event.wait(60)
            return write(descriptor, content)

        monkeypatch.setattr(linux.os, "write", slow)
        return event

    def test_the_caller_goes_on_and_no_second_write_begins(self, host: LinuxHost, stuck: threading.Event) -> None:
        unbind = "bus/pci/drivers/igb/unbind"
        with pytest.raises(Unknown, match="does not complete a write"):
            host.write(unbind, NIC, Brief(0))
        with pytest.raises(Unknown, match="earlier write"):
            host.write(unbind, NIC, soon())
        host.write("bus/pci/drivers_probe", NIC, soon())  # others are not held up
        assert host.unanswered(NIC)
        assert not host.unanswered("0000:41:00.1")
        (writer,) = [thread for thread in threading.enumerate() if thread.name == f"write {unbind}"]
        assert writer.daemon  # nor is the end of the plugin
        stuck.set()
        writer.join()
        assert not host.unanswered(NIC)
        host.write(unbind, NIC, soon())
        assert written(host.root / "sys" / unbind) == NIC

    def test_nothing_is_begun_too_late(self, host: LinuxHost) -> None:
        with pytest.raises(Failed, match="no time was left"):
            host.write("bus/pci/rescan", "1", Deadline.after(0))
        assert written(host.root / "sys/bus/pci/rescan") == ""


class TestDeviceNodes:
    def test_only_those_of_vfio_are_given_away(self, host: LinuxHost) -> None:
        for node in (
            "/dev/null", "/dev/vfio", "/dev/vfio/", "/dev/vfio/../null", "/etc/shadow", "vfio/1", "/dev/vfio/a/b/c",
            "/dev/vfio/devices/../../null",
        ):  # fmt: skip
            with pytest.raises(OSError, match="not a device node") as caught:
                host.own(node, 1000, 1000)
            assert caught.value.errno == errno.EPERM

    def test_neither_links_nor_files(self, host: LinuxHost) -> None:
        folder = host.root / "dev/vfio"
        folder.mkdir(parents=True)
        os.symlink("/dev/null", folder / "1")
        (folder / "2").touch()
        for node in ("/dev/vfio/1", "/dev/vfio/2"):
            with pytest.raises(OSError, match="not a device node"):
                host.own(node, 1000, 1000)
        with pytest.raises(FileNotFoundError):
            host.own("/dev/vfio/3", 1000, 1000)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
    def test_a_node_gets_its_owner(self, host: LinuxHost) -> None:
        (host.root / "dev/vfio").mkdir(parents=True)
        os.mknod(host.root / "dev/vfio/7", 0o20600, os.makedev(1, 3))
        host.own("/dev/vfio/7", 1000, 1001)
        status = (host.root / "dev/vfio/7").stat()
        assert (status.st_uid, status.st_gid) == (1000, 1001)


class TestOwnFiles:
    def test_a_file_is_replaced_whole_with_its_mode(self, host: LinuxHost, tmp_path: Path) -> None:
        path = str(tmp_path / "own/metadata/claim/request/metadata.json")
        host.put_file(path, b"first")
        host.put_file(path, b"second", 0o600)
        assert Path(path).read_bytes() == b"second"
        assert Path(path).stat().st_mode & 0o777 == 0o600
        assert os.listdir(Path(path).parent) == ["metadata.json"]

    def test_a_failed_write_leaves_the_old_one(
        self, host: LinuxHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = str(tmp_path / "own/spec.json")
        host.put_file(path, b"first")

        def full(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            host.put_file(path, b"second")
        assert Path(path).read_bytes() == b"first"
        assert os.listdir(tmp_path / "own") == ["spec.json"]

    def test_removing_takes_empty_folders_along_and_may_be_repeated(self, host: LinuxHost, tmp_path: Path) -> None:
        one, two = (str(tmp_path / "own" / name) for name in ("a/b/1.json", "a/2.json"))
        host.put_file(one, b"")
        host.put_file(two, b"")
        host.remove_file(one)
        host.remove_file(one)
        assert sorted(os.listdir(tmp_path / "own/a")) == ["2.json"]
        host.remove_file(two)
        assert os.listdir(tmp_path / "own") == []

    def test_a_folder_that_goes_with_another_file_meanwhile_is_made_again(
        self, host: LinuxHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, second = (f"{tmp_path}/own/data/{claim}/metadata.json" for claim in ("d_a", "d_b"))
        host.put_file(first, b"a")
        opened, removals = os.open, [first]

        def then_removed(path: Any, *arguments: Any, **options: Any) -> int:
            descriptor = opened(path, *arguments, **options)
            if path == "data" and removals:
                host.remove_file(removals.pop())
            return descriptor

        monkeypatch.setattr(os, "open", then_removed)
        host.put_file(second, b"b")
        assert Path(second).read_bytes() == b"b"

    def test_what_a_writer_that_was_killed_left_goes_with_the_file(
        self, host: LinuxHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = str(tmp_path / "own/a/b/file")

        def die(*arguments: object, **options: object) -> None:
            raise KeyboardInterrupt  # as kill -9: nothing that follows is run

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", die)
            with pytest.raises(KeyboardInterrupt):
                host.put_file(path, b"{}")
        assert len(list((tmp_path / "own/a/b").iterdir())) == 1
        host.put_file(path, b"{}")
        assert [file.name for file in (tmp_path / "own/a/b").iterdir()] == ["file"]
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", die)
            with pytest.raises(KeyboardInterrupt):
                host.put_file(path, b"{}")
        host.remove_file(path)
        assert list((tmp_path / "own").iterdir()) == []

    def test_nothing_outside_the_listed_folders(self, host: LinuxHost, tmp_path: Path) -> None:
        own = f"{tmp_path}/own"
        for name in ("/../out", "/a/../../out", "//out", "/", "/a//b", "/a/", "/a\0b", "2/x", ""):
            for change in (lambda path: host.put_file(path, b""), host.remove_file):
                with pytest.raises(PermissionError):
                    change(f"{own}{name}")

    def test_no_link_is_followed(self, host: LinuxHost, tmp_path: Path) -> None:
        (tmp_path / "own").mkdir()
        (tmp_path / "elsewhere").mkdir()
        os.symlink(tmp_path / "elsewhere", tmp_path / "own/folder")
        with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
            host.put_file(f"{tmp_path}/own/folder/x", b"")
        os.symlink(tmp_path / "elsewhere/x", tmp_path / "own/x")
        host.put_file(f"{tmp_path}/own/x", b"mine")
        assert os.listdir(tmp_path / "elsewhere") == []


def test_a_dry_run_tells_each_change_and_makes_none(host: LinuxHost) -> None:
    messages: list[str] = []
    dry = DryRun(host, messages.append)
    changes: list[Callable[[], None]] = [
        lambda: dry.write("bus/pci/drivers_probe", NIC, soon()),
        lambda: dry.set_vf("eth0", 3, {"vlan": 7, "mac": "52:54:00:00:00:01"}),
        lambda: dry.own("/dev/vfio/7", 1000, 1000),
        lambda: dry.put_file("/var/run/cdi/x.json", b"{}"),
        lambda: dry.remove_file("/var/run/cdi/x.json"),
    ]
    for change in changes:
        with pytest.raises(Denied, match="dry run"):
            change()
    assert messages == [
        "would write '0000:41:00.0' to /sys/bus/pci/drivers_probe",
        "would set mac=52:54:00:00:00:01, vlan=7 of VF 3 of eth0",
        "would give /dev/vfio/7 to user 1000, group 1000",
        "would write 2 bytes to /var/run/cdi/x.json",
        "would remove /var/run/cdi/x.json",
    ]
    assert written(host.root / "sys/bus/pci/drivers_probe") == ""
    assert dry.tree().sys is not None


class TestNetlink:
    """Against the wire format: what is sent is decoded as the kernel would, what it says is encoded first."""

    MAC = "52:54:00:00:00:07"

    def link(self, *vfs: list[tuple[str, dict[str, Any]]]) -> Any:
        """A PF with these VFs, through the wire."""
        message = ifinfmsg()
        message["index"] = 3
        infos = [("IFLA_VF_INFO", {"attrs": vf}) for vf in vfs]
        message["attrs"] = [("IFLA_IFNAME", "eth0"), ("IFLA_VFINFO_LIST", {"attrs": infos})]
        message.encode()
        back = ifinfmsg(message.data)
        back.decode()
        return back

    def vf(self, index: int, **more: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        values = {"MAC": {"mac": self.MAC}, "VLAN": {"vlan": 5, "qos": 1}, "SPOOFCHK": {"spoofchk": 1},
                  "TRUST": {"trust": 0}, "LINK_STATE": {"link_state": 2},
                  "RATE": {"min_tx_rate": 0, "max_tx_rate": 250}, **more}  # fmt: skip
        return [(f"IFLA_VF_{name}", {"vf": index, **value}) for name, value in values.items()]

    def test_what_the_kernel_says(self) -> None:
        link = self.link(self.vf(0), self.vf(1, MAC={"mac": "52:54:00:00:00:08"}))
        assert linux.settings_of(link, "eth0", 1) == {
            "mac": "52:54:00:00:00:08", "vlan": 5, "vlanQos": 1, "minTxRate": 0, "maxTxRate": 250, "trust": False,
            "spoofCheck": True, "linkState": "disable",
        }  # fmt: skip

    def test_a_switch_that_the_driver_does_not_have_is_left_out(self) -> None:
        none = 2**32 - 1
        link = self.link(self.vf(0, TRUST={"trust": none}, SPOOFCHK={"spoofchk": none}))
        assert not linux.settings_of(link, "eth0", 0).keys() & {"trust", "spoofCheck"}

    def test_a_vf_that_is_not_there(self) -> None:
        for link in (self.link(self.vf(0)), self.link()):
            with pytest.raises(OSError, match="no VF 3") as caught:
                linux.settings_of(link, "eth0", 3)
            assert caught.value.errno == errno.ENODEV

    def test_there_is_room_for_as_many_vfs_as_a_bus_has(self) -> None:
        """In an attribute of 64 KiB, with all that is reported of each; their statistics, 104 bytes more, have none."""
        masks: list[int] = []

        class Route:
            def link(self, command: str, *, index: int, ext_mask: int) -> list[str]:
                masks.append(ext_mask)
                return ["lo"]

        linux._link(Route(), "lo")
        assert masks == [1 | 8], "RTEXT_FILTER_VF, RTEXT_FILTER_SKIP_STATS"
        listed = self.link(*(self.vf(index) for index in range(256))).get_attr("IFLA_VFINFO_LIST")
        assert len(listed.get_attrs("IFLA_VF_INFO")) == 256
        assert listed.length < 2**16

    @pytest.mark.parametrize("attributes", [[], [("IFLA_VFINFO_LIST", {"attrs": []})]])
    def test_a_driver_that_tells_nothing_of_its_vfs(self, attributes: list[Any]) -> None:
        message = ifinfmsg()
        message["attrs"] = [("IFLA_IFNAME", "eth0"), ("IFLA_NUM_VF", 2), *attributes]
        message.encode()
        link = ifinfmsg(message.data)
        link.decode()
        assert linux.settings_of(link, "eth0", 1) == {}
        with pytest.raises(OSError, match="no VF 2"):
            linux.settings_of(link, "eth0", 2)

    def test_what_is_sent_comes_back(self) -> None:
        now = {"mac": "00:00:00:00:00:00", "vlan": 5, "vlanQos": 1, "minTxRate": 0, "maxTxRate": 250}
        wanted = {"mac": self.MAC, "vlanQos": 3, "minTxRate": 10, "trust": True, "spoofCheck": False,
                  "linkState": "enable"}  # fmt: skip
        sent = LinkIPRouteFilter("set").set_vf({}, linux.request(1, now, wanted))["IFLA_VFINFO_LIST"]["attrs"]
        link = self.link(*(dict_of["attrs"] for _, dict_of in sent))
        assert linux.settings_of(link, "eth0", 1) == {**now, **wanted}

    def test_what_is_not_asked_for_is_not_sent(self) -> None:
        assert linux.request(2, {"mac": self.MAC, "vlan": 7}, {"trust": False}) == {"vf": 2, "trust": 0}

    def test_no_such_interface(self) -> None:
        with pytest.raises(OSError, match="No such device") as caught:
            linux.vf_settings("eth-none", 0)
        assert caught.value.errno == errno.ENODEV

    def test_an_interface_without_vfs_is_asked_for_real(self) -> None:
        with pytest.raises(OSError, match="no VF 0"):
            linux.vf_settings("lo", 0)
