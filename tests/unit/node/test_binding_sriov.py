"""Virtual functions: created from none, set up by their PF, given back as they were (settled T4, T6, T8)."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from devalloc_node.binding.registry import step_kinds
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError, VfsRefused
from devalloc_node.host.boundary import VfSettings
from tests.support import pci_cards
from tests.support.binding_runner import BindingRunner, config
from tests.support.fake_host import FRESH, FakeHost, LocalHost
from tests.support.node_errors import raises

PF = "0000:41:00.0"
POOL = "node-a-0000-41-00"
VF0, VF1, VF2 = "0000-41-10-0", "0000-41-10-2", "0000-41-10-4"
VF0_ADDRESS = "0000:41:10.0"
MAC = "52:54:00:00:00:07"


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    host = FakeHost(tmp_path)
    host.add(pci_cards.nic())
    return host


def settings(host: FakeHost, index: int = 0) -> dict[str, Any]:
    """What differs from a fresh VF."""
    now = LocalHost(host).vf_settings("eth0", index)
    return {name: value for name, value in now.items() if value != FRESH[name]}


def refusal(host: FakeHost, device: str = VF0, grant: Mapping[str, Any] | None = None, **limits: Any) -> str:
    """The code with which a VF is refused; whatever refuses has not changed the host."""
    before = host.snapshot()
    with pytest.raises(NodeError) as caught:
        BindingRunner.on(host, **limits).prepare(device, POOL, **(grant or {}))
    assert host.snapshot() == before
    return caught.value.code


class TestCreation:
    def test_the_first_use_creates_all_and_the_last_one_removes_them(self, host: FakeHost) -> None:
        before = host.snapshot()
        hand = BindingRunner.on(host)
        prepared = hand.prepare(VF0, POOL)
        assert len(host.functions[PF].vfs) == 7
        assert host.driver_of(VF0_ADDRESS) == "vfio-pci"
        assert prepared.functions == (VF0_ADDRESS,)
        assert prepared.nodes == (f"/dev/vfio/{host.functions[VF0_ADDRESS].group}",)
        hand.prepare(VF2, POOL)
        hand.unprepare(VF0)
        assert len(host.functions[PF].vfs) == 7
        hand.unprepare(VF2)
        assert host.snapshot() == before

    def test_steps_of_the_pf_are_written_down_at_once(self, host: FakeHost) -> None:
        """A claim waits once for the disk, not once for each step."""
        hand = BindingRunner.on(host)
        hand.prepare(VF0, POOL)
        together = [step.more for step in hand.done[VF0]]
        assert hand.kinds_of(VF0)[:2] == ["vf-autoprobe", "vf-count"]
        assert together[:2] == [True, False], "what follows depends on how many VFs there are then"

    def test_the_other_vfs_get_no_driver(self, host: FakeHost) -> None:
        BindingRunner.on(host).prepare(VF1, POOL)
        assert [host.driver_of(vf) for vf in host.functions[PF].vfs] == [None, "vfio-pci", *[None] * 5]

    def test_a_pf_that_the_host_needs_may_have_vfs(self, host: FakeHost) -> None:
        host.default_route("eth0")
        BindingRunner.on(host).prepare(VF0, POOL)
        assert host.driver_of(PF) == "igb"

    @pytest.mark.parametrize(("most", "count"), [(2, 2), (99, 7)])
    def test_how_many_is_the_admins_choice(self, host: FakeHost, most: int, count: int) -> None:
        BindingRunner.on(host, max_vfs=most).prepare(VF0, POOL)
        assert len(host.functions[PF].vfs) == count

    def test_a_vf_beyond_the_configured_count(self, host: FakeHost) -> None:
        assert refusal(host, VF2, max_vfs=2) == "VfNotConfigured"

    def test_vfs_that_were_there_before_are_used_and_left(self, host: FakeHost) -> None:
        host.set_numvfs(PF, 3)
        before = host.snapshot()
        hand = BindingRunner.on(host)
        hand.prepare(VF0, POOL)
        hand.unprepare(VF0)
        assert host.snapshot() == before
        assert host.driver_of(VF0_ADDRESS) == "igbvf"

    def test_a_removed_vf_does_not_hinder_the_others(self, host: FakeHost) -> None:
        """By its own `remove`, which leaves the number of the PF's VFs as it was."""
        host.set_numvfs(PF, 3)
        hand = BindingRunner.on(host)
        hand.prepare(VF0, POOL)
        host.remove(f"{host.path(PF)}/virtfn2")
        host.remove_function(host.functions[PF].vfs[2])
        hand.prepare(VF1, POOL)
        hand.unprepare(VF1)
        hand.unprepare(VF0)
        assert host.driver_of(VF0_ADDRESS) == "igbvf"

    def test_a_vf_beyond_those_that_were_there_before(self, host: FakeHost) -> None:
        host.set_numvfs(PF, 1)
        assert refusal(host, VF1) == "DeviceGone"  # more of them would cost the one that there is

    def test_a_pf_that_went_to_a_machine_has_none(self, host: FakeHost) -> None:
        host.unbind("igb", PF)
        host.set_override(PF, "vfio-pci")
        host.probe(PF)
        assert refusal(host) == "DeviceGone"

    def test_vfs_that_do_not_all_appear_are_taken_back(self, host: FakeHost) -> None:
        before = host.snapshot()
        create = host.set_numvfs

        def one_is_missing(address: str, count: int) -> None:
            create(address, count)
            if count:
                host.remove(f"{host.path(PF)}/virtfn6")

        host.set_numvfs = one_is_missing  # type: ignore[method-assign]
        with raises(Failed, "VfsMissing", match="has 6 VFs although 7 were requested"):
            BindingRunner.on(host).prepare(VF0, POOL)
        assert host.snapshot() == before


class TestTheCount:
    """Changed from none and to none only, and never while one is in use (T6)."""

    def apply(self, host: FakeHost, count: int) -> None:
        step_kinds(LocalHost(host))["vf-count"].apply(PF, count, Deadline.after(5))

    def test_from_one_number_to_another_it_is_refused(self, host: FakeHost) -> None:
        self.apply(host, 3)
        self.apply(host, 3)
        with pytest.raises(Denied, match="only from zero") as caught:
            self.apply(host, 5)
        assert (caught.value.code, len(host.functions[PF].vfs)) == ("VfCountFixed", 3)

    @pytest.mark.parametrize("code", [errno.ENOMEM, errno.EINVAL])
    def test_a_refusal_to_remove_them_is_none_to_make_them(
        self, host: FakeHost, monkeypatch: pytest.MonkeyPatch, code: int
    ) -> None:
        step_kinds(LocalHost(host))["vf-autoprobe"].apply(PF, 0, Deadline.after(5))
        self.apply(host, 3)
        monkeypatch.setattr(host, "set_numvfs", raising(code))
        with pytest.raises(Failed) as caught:
            self.apply(host, 0)
        assert not isinstance(caught.value, VfsRefused)
        assert "lower --max-vfs" not in caught.value.message

    @pytest.mark.parametrize("user", ["a process", "the host"])
    def test_vfs_that_were_taken_meanwhile_stay(self, host: FakeHost, user: str) -> None:
        hand = BindingRunner.on(host)
        hand.prepare(VF0, POOL)
        other = host.functions[PF].vfs[3]
        host.set_override(other, "vfio-pci" if user == "a process" else "igbvf")
        host.probe(other)
        if user == "a process":
            host.process(4711, "libvirt", opens=(f"/dev/vfio/{host.functions[other].group}",))
        with raises(Denied, "DeviceInUse" if user == "a process" else "VfsInUse", retryable=True) as caught:
            hand.unprepare(VF0)
        assert other in caught.value.message
        assert len(host.functions[PF].vfs) == 7
        assert host.driver_of(VF0_ADDRESS) is None  # which does not keep the claim's own from being given back


class TestSettings:
    def prepare(
        self, host: FakeHost, class_spec: dict[str, Any], claim_spec: dict[str, Any] | None = None
    ) -> BindingRunner:
        hand = BindingRunner.on(host)
        claim_configs = () if claim_spec is None else (config("VfConfig", **claim_spec),)
        hand.prepare(VF0, POOL, class_configs=(config("VfConfig", **class_spec),), claim_configs=claim_configs)
        return hand

    def test_they_are_set_and_the_next_owner_gets_none_of_them(self, host: FakeHost) -> None:
        host.set_numvfs(PF, 2)
        wanted = {"mac": MAC, "vlan": 7, "vlanQos": 2, "minTxRate": 10, "maxTxRate": 100, "trust": True,
                  "spoofCheck": False, "linkState": "enable"}  # fmt: skip
        hand = self.prepare(host, wanted)
        assert settings(host) == wanted
        hand.unprepare(VF0)
        assert settings(host) == {}

    def test_a_mac_in_capitals_is_the_same(self, host: FakeHost) -> None:
        host.set_numvfs(PF, 2)
        hand = self.prepare(host, {"mac": "52:54:00:AA:BB:CC"})
        assert settings(host) == {"mac": "52:54:00:aa:bb:cc"}
        hand.unprepare(VF0)
        assert settings(host) == {}

    def test_a_prepared_vf_says_its_address_and_its_vlan(self, host: FakeHost) -> None:
        host.set_numvfs(PF, 2)
        for spec, attributes in (
            ({"mac": MAC, "vlan": 7}, {"mac": MAC, "vlan": 7}),
            ({"vlan": 0}, {}),
            ({}, {}),
        ):
            hand = BindingRunner.on(host)
            prepared = hand.prepare(VF0, POOL, class_configs=(config("VfConfig", **spec),))
            own = {name: prepared.attributes[name] for name in ("mac", "vlan") if name in prepared.attributes}
            assert own == attributes
            hand.unprepare(VF0)

    @pytest.mark.parametrize("port", ["pf0vf0", "pf0sf3", "c1pf0vf0", "c1pf0"])
    def test_they_are_set_by_the_cards_own_interface(self, host: FakeHost, port: str) -> None:
        """A card whose switch is on (switchdev) has interfaces for its VFs, which lie beside its own; a DPU also has
        those of its host."""
        host.write(f"{host.path(PF)}/net/eth-1/phys_port_name", port)
        host.write(f"{host.path(PF)}/net/eth0/phys_port_name", "p0")
        self.prepare(host, {"vlan": 7})
        assert settings(host) == {"vlan": 7}

    def test_a_driver_that_has_none_is_no_obstacle(self, host: FakeHost) -> None:
        class Mute(LocalHost):
            def vf_settings(self, interface: str, index: int) -> VfSettings:
                return {}

        before = host.snapshot()
        hand = BindingRunner.on(Mute(host))
        hand.prepare(VF0, POOL)
        hand.unprepare(VF0)
        assert host.snapshot() == before
        with raises(Denied, "ConfigUnsupported"):
            hand.prepare(VF0, POOL, class_configs=(config("VfConfig", vlan=7),))

    def test_what_an_owner_changed_by_itself_does_not_stay(self, host: FakeHost) -> None:
        host.set_numvfs(PF, 2)
        hand = BindingRunner.on(host)
        hand.prepare(VF0, POOL)
        LocalHost(host).set_vf("eth0", 0, {"mac": MAC, "vlan": 9})  # through the VF's mailbox
        hand.unprepare(VF0)
        assert settings(host) == {}

    def test_earlier_vf_settings_are_restored(self, host: FakeHost) -> None:
        host.set_numvfs(PF, 2)
        LocalHost(host).set_vf("eth0", 0, {"vlan": 100})
        hand = self.prepare(host, {"vlan": 7})
        hand.unprepare(VF0)
        assert settings(host) == {"vlan": 100}

    def test_the_class_wins_and_the_claim_fills_in(self, host: FakeHost) -> None:
        self.prepare(host, {"maxTxRate": 100, "vlan": 7}, {"maxTxRate": 1000, "minTxRate": 5, "mac": MAC})
        assert settings(host) == {"maxTxRate": 100, "vlan": 7, "minTxRate": 5, "mac": MAC}

    @pytest.mark.parametrize("spec", [{"trust": True}, {"vlan": 0}, {"vlanQos": 1}, {"spoofCheck": False}])
    def test_a_claim_does_not_leave_its_network(self, host: FakeHost, spec: dict[str, Any]) -> None:
        assert refusal(host, grant={"claim_configs": (config("VfConfig", **spec),)}) == "ConfigForbidden"

    @pytest.mark.parametrize("spec", [{"mac": "no"}, {"vlann": 3}, {"vlan": 5000}, {"mac": "01:00:00:00:00:00"}])
    def test_an_invalid_config(self, host: FakeHost, spec: dict[str, Any]) -> None:
        assert refusal(host, grant={"class_configs": (config("VfConfig", **spec),)}) == "ConfigInvalid"

    def test_rates_that_contradict_each_other_once_put_together(self, host: FakeHost) -> None:
        grant = {"class_configs": (config("VfConfig", maxTxRate=100),),
                 "claim_configs": (config("VfConfig", minTxRate=200),)}  # fmt: skip
        assert refusal(host, grant=grant) == "ConfigInvalid"

    def test_a_refusal_of_the_kernel_is_reported_and_all_is_undone(self, host: FakeHost) -> None:
        host.set_numvfs(PF, 2)
        before = host.snapshot()
        spec = config("VfConfig", mac=MAC, vlan=7, maxTxRate=5000, trust=True)  # of 1000 Mbit/s
        with pytest.raises(Failed) as caught:
            BindingRunner.on(host).prepare(VF0, POOL, class_configs=(spec,))
        assert (caught.value.code, caught.value.message) == (
            "HostRefused",
            "the kernel refused setting maxTxRate to 5000 of VF 0 of eth0 (a rate cannot exceed the link speed; some "
            "drivers need a link): Invalid argument (EINVAL)",
        )
        assert host.snapshot() == before

    @pytest.mark.parametrize(
        ("code", "words"),
        [
            (errno.ENOMEM, "too few addresses or bus numbers for so many VFs; lower --max-vfs"),
            (errno.ENOSPC, "too few resources for so many VFs; lower --max-vfs"),
            (errno.ENOENT, "its driver igb cannot make VFs; bind one that can"),
            (errno.ENOSYS, "its driver igb cannot make VFs; bind one that can"),
            (errno.EINVAL, "as the card is set up now; set its link up, or lower --max-vfs"),
            (errno.ERANGE, "igb makes fewer; lower --max-vfs, or allow more in its firmware"),
            (errno.ENODEV, "its driver igb cannot make VFs; bind one that can"),
            (errno.EPERM, "its driver or the kernel makes no VFs as the card is set up now"),
            (errno.EBUSY, "(EBUSY): its driver or another program is at work on the card; it is tried again"),
            (errno.EAGAIN, "it is tried again"),
            (errno.ETIMEDOUT, "did not answer in time; see the kernel's log"),
            (errno.EIO, "reports an error; see the kernel's log, and load its driver anew"),
        ],
    )
    def test_a_refusal_to_make_vfs_says_what_it_means(
        self, host: FakeHost, monkeypatch: pytest.MonkeyPatch, code: int, words: str
    ) -> None:
        def refused(address: str, count: int) -> None:
            raise OSError(code, os.strerror(code))

        before = host.snapshot()
        with monkeypatch.context() as patched:
            patched.setattr(host, "set_numvfs", refused)
            with pytest.raises(Failed, match=re.escape(words)) as caught:
                BindingRunner.on(host).prepare(VF0, POOL)
        assert (caught.value.code, caught.value.retryable) == ("HostRefused", True)
        assert host.snapshot() == before

    def test_a_setting_that_does_not_stick(self, host: FakeHost) -> None:
        class Forgetful(LocalHost):
            def call(self, method: str, *arguments: Any) -> Any:
                return super().call(method, *arguments) if method != "set_vf" else None

        before = host.snapshot()
        with raises(Failed, "VfSettingRefused", match="did not take vlan to 7"):
            BindingRunner.on(Forgetful(host)).prepare(VF0, POOL, class_configs=(config("VfConfig", vlan=7),))
        assert host.snapshot() == before

    def test_cards_without_interface_have_none(self, host: FakeHost) -> None:
        host.add(pci_cards.amd_gpu(vfs=2))
        vf = host.functions["0000:03:00.0"].vfs[0].replace(":", "-").replace(".", "-")
        hand = BindingRunner.on(host)
        hand.prepare(vf, "node-a-0000-03-00")
        assert "vf-settings" not in hand.kinds_of(vf)
        hand.unprepare(vf)
        with pytest.raises(Denied, match="no network interface"):
            hand.prepare(vf, "node-a-0000-03-00", class_configs=(config("VfConfig", mac=MAC),))

    def test_configs_of_other_kinds_are_not_ours(self, host: FakeHost) -> None:
        hand = BindingRunner.on(host)
        without = hand.prepare(VF0, POOL)
        steps, prepared = hand.kinds_of(VF0), host.snapshot()
        hand.unprepare(VF0)
        other = {"apiVersion": "x/v1", "kind": "Other", "spec": 3}
        assert hand.prepare(VF0, POOL, claim_configs=(other,)) == without
        assert (hand.kinds_of(VF0), host.snapshot()) == (steps, prepared)


SAME_EACH_TIME = (
    errno.ENOENT, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENODEV, errno.ENOMEM, errno.ENOSPC, errno.ERANGE,
)  # fmt: skip


class TestNotMade:
    """The kernel refuses to make the VFs: what it says means something, and each time the same."""

    @pytest.mark.parametrize("code", SAME_EACH_TIME)
    def test_what_holds_for_every_try_is_a_verdict(
        self, host: FakeHost, monkeypatch: pytest.MonkeyPatch, code: int
    ) -> None:
        monkeypatch.setattr(host, "set_numvfs", raising(code))
        with pytest.raises(VfsRefused) as caught:
            BindingRunner.on(host).prepare(VF0, POOL)
        assert (caught.value.port, caught.value.driver, caught.value.count) == ("0000-41-00-0", "igb", 7)
        assert caught.value.reason.startswith(f"7 VFs of {PF} could not be made ({errno.errorcode[code]}): ")
        assert caught.value.message.endswith("Or release the claim (devalloc release): it gets another device")

    @pytest.mark.parametrize(
        "code", [errno.EBUSY, errno.EAGAIN, errno.ETIMEDOUT, errno.EIO, errno.EINVAL, errno.EPERM, errno.EACCES]
    )
    def test_what_may_pass_is_no_verdict(self, host: FakeHost, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
        monkeypatch.setattr(host, "set_numvfs", raising(code))
        with pytest.raises(Failed) as caught:
            BindingRunner.on(host).prepare(VF0, POOL)
        assert not isinstance(caught.value, VfsRefused)

    def test_a_vf_of_which_nothing_shows_that_it_can_be_made(self, host: FakeHost) -> None:
        host.add(pci_cards.amd_gpu())
        device, pool = "0000-03-02-0", "node-a-0000-03-00"
        before = host.snapshot()
        with pytest.raises(Denied, match="does not exist: nothing shows that the driver amdgpu") as caught:
            BindingRunner.on(host).prepare(device, pool)
        assert (caught.value.code, host.snapshot()) == ("VfsNotCreatable", before)
        assert BindingRunner.on(host, creatable_vfs=frozenset({"gpu"})).prepare(device, pool).functions

    def test_a_vf_of_the_boot_display(self, host: FakeHost) -> None:
        host.add(pci_cards.intel_gpu("0000:00:02.0", boot_vga=True, vfs=7))
        host.process(900, "Xorg", ("/dev/dri/card2",))
        assert BindingRunner.on(host).prepare("0000-00-02-1").functions == ("0000:00:02.1",)


def raising(code: int) -> Callable[..., None]:
    """The kernel's answer to any number of VFs but none."""

    def refuse(*arguments: Any) -> None:
        raise OSError(code, os.strerror(code))

    return refuse


class TestRefusals:
    def test_vfs_may_be_kept(self, host: FakeHost) -> None:
        assert refusal(host, allowed=frozenset({"gpu"})) == "KindNotAllowed"

    def test_a_vf_that_the_host_uses(self, host: FakeHost) -> None:
        host.set_numvfs(PF, 2)
        host.default_route("eth0v0")
        assert refusal(host) == "DeviceReserved"
        assert BindingRunner.on(host).prepare(VF1, POOL).binding == "vfio"

    def test_a_vf_that_a_machine_has(self, host: FakeHost) -> None:
        host.set_numvfs(PF, 2)
        hand = BindingRunner.on(host)
        host.process(4711, opens=hand.prepare(VF0, POOL).nodes)
        assert refusal(host) == "DeviceInUse"

    def test_the_vfs_of_a_disk_that_the_host_needs(self, host: FakeHost) -> None:
        host.add(pci_cards.nvme(sriov=pci_cards.Sriov(4, offset=1, vf_device=0xA80A, vf_driver="nvme")))
        host.mount("nvme0n1", "/")
        before = host.snapshot()
        hand = BindingRunner.on(host, erase_policy=True)
        with raises(Denied, "DeviceReserved"):
            hand.prepare("0000-42-00-1", "node-a-0000-42-00")
        assert host.snapshot() == before

    def test_without_an_iommu_no_vfs_are_made(self, host: FakeHost) -> None:
        host.add(pci_cards.connectx(iommu_group=None))
        with raises(Denied, "NoIommuGroup", match="IOMMU"):
            BindingRunner.on(host).prepare("0000-61-00-2", "node-a-0000-61-00")
        assert host.functions["0000:61:00.0"].vfs == []


class TestExclusion:
    """No two claims get to the same hardware, though they name it differently."""

    def test_a_port_and_its_vfs(self, host: FakeHost) -> None:
        hand = BindingRunner.on(host, allowed=frozenset({"nic", "vf"}))
        hand.prepare("0000-41-00-0", POOL)
        assert {f"pci/{vf}" for vf in host.vf_addresses(PF)} < set(hand.keys["0000-41-00-0"])
        hand.unprepare("0000-41-00-0")
        hand.prepare(VF0, POOL)
        assert hand.keys[VF0] == (f"pci/{VF0_ADDRESS}",)
        assert refusal(host, "0000-41-00-0", allowed=frozenset({"nic"})) == "VfsEnabled"

    def test_a_card_is_only_in_its_own_pool(self, host: FakeHost) -> None:
        with raises(Denied, "DeviceGone"):
            BindingRunner.on(host).prepare(VF0, "node-a-0000-41-10")


def test_a_prepared_vf_goes_bad_with_its_pf_and_leaves_nothing_to_undo(host: FakeHost) -> None:
    hand = BindingRunner.on(host)
    prepared = hand.prepare(VF0, POOL)
    assert hand.bindings.observe(prepared).state == "healthy"
    host.unbind("igb", PF)
    assert hand.bindings.observe(prepared).message == f"{VF0_ADDRESS} no longer exists"
    kinds = step_kinds(LocalHost(host))
    for step in reversed(hand.done[VF0]):
        if step.shared is None:
            with pytest.raises(Denied) as caught:
                kinds[step.kind].apply(step.target, step.before, Deadline.after(5))
            assert caught.value.code == "DeviceGone", step
        else:
            kinds[step.kind].apply(step.target, step.before, Deadline.after(5))
    assert host.read(host.path(PF, "sriov_drivers_autoprobe")) == "1"


def test_a_vf_that_goes_while_its_settings_are_asked_for_is_gone(host: FakeHost) -> None:
    """With its card's last user: the next claim that prepares it creates it again, and is not refused permanently."""

    class Going(LocalHost):
        def vf_settings(self, interface: str, index: int) -> VfSettings:
            self.write(f"bus/pci/devices/{PF}/sriov_numvfs", "0", Deadline.after(5))
            return super().vf_settings(interface, index)

    going = Going(host)
    going.write(f"bus/pci/devices/{PF}/sriov_numvfs", "7", Deadline.after(5))
    with raises(Denied, "DeviceGone"):
        step_kinds(going)["vf-settings"].read(f"{PF}/0")
