"""What of one card can be held together: the card, its VFs and its vGPUs exclude each other by pool resources."""

from __future__ import annotations

import os

import pytest

from devalloc.api.quantity import Quantity
from tests.support import pci_cards
from tests.support.discovery_view import DiscoveredPools
from tests.support.fake_sysfs import FakeSysfs
from tests.support.pci_cards import Sriov, Vgpu, VgpuType

UUIDS = [f"00000000-0000-0000-0000-{number:012}" for number in range(20)]
A2 = "0000:08:00.0"
VFS = ["0000:08:00.4", "0000:08:00.5", "0000:08:00.6"]


def a2(host: FakeSysfs, vfs: int = 3) -> None:
    """An A2 with a few VFs and, to be quick, a profile or two of each size."""
    names = {"2Q", "4Q", "4C", "8Q", "16Q"}
    types = tuple(kind for kind in pci_cards.A2_TYPES if kind.name.rpartition("-")[2] in names)
    host.add(pci_cards.a2_vgpu_card(A2, vfs=vfs, vgpu=Vgpu("mdev", 16384, types)))


def profile(vf: str, name: str) -> str:
    """The device of an A2 profile on a VF."""
    kind = next(kind for kind in pci_cards.A2_TYPES if kind.name == f"NVIDIA A2-{name}")
    return f"{vf.replace(':', '-').replace('.', '-')}-{kind.id}"


class TestPortAndVfs:
    def test_the_vfs_of_a_port_go_to_as_many_owners(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic())
        inventory = DiscoveredPools.on(host.root)
        assert inventory.fits(*inventory.names(function="vf"))

    @pytest.mark.parametrize("vfs", [0, 3])
    def test_the_port_and_one_of_its_vfs_do_not_go_together(self, host: FakeSysfs, vfs: int) -> None:
        host.add(pci_cards.nic(vfs=vfs))
        inventory = DiscoveredPools.on(host.root, made=frozenset({"0000-41-00-0"}))
        assert inventory.fits("0000-41-00-0")
        for vf in inventory.names(function="vf"):
            assert inventory.fits(vf)
            assert not inventory.fits("0000-41-00-0", vf)

    def test_vfs_that_were_not_made_for_a_claim_keep_the_port(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic(vfs=3))
        inventory = DiscoveredPools.on(host.root)
        assert inventory.unavailable("0000-41-00-0") == "in use: it has 3 VFs that were not made for a claim"
        assert inventory.fits(*inventory.names(function="vf"))
        has_the_port = DiscoveredPools.on(host.root, held=frozenset({"0000-41-00-0"}))
        assert has_the_port.unavailable("0000-41-00-0") is None, "its VFs are the claim's"

    def test_the_ports_of_a_card_do_not_disturb_each_other(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic("0000:41:00.0", sriov=Sriov(4, 128, 2)))
        host.add(pci_cards.nic("0000:41:00.1", netdev="eth1", sriov=Sriov(4, 128, 2)))
        inventory = DiscoveredPools.on(host.root)
        second = inventory.names(function="vf", pfPciBusID="0000:41:00.1")
        assert len(second) == 4
        assert inventory.fits("0000-41-00-0", *second)
        assert not inventory.fits("0000-41-00-0", "0000-41-00-1", second[0])

    def test_ports_that_cannot_be_separated_exclude_the_vfs_of_both(self, host: FakeSysfs) -> None:
        for function in (0, 1):
            host.add(pci_cards.nic(f"0000:41:00.{function}", netdev=f"eth{function}", iommu_group=5))
        inventory = DiscoveredPools.on(host.root)
        assert inventory.fits(*inventory.names(function="vf"))
        for vf in inventory.names(function="vf"):
            assert not inventory.fits("0000-41-00-0", vf)

    def test_a_used_vf_keeps_the_port_and_leaves_the_other_vfs(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic(vfs=3))
        host.proc("net/route", "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
                               "eth0v1 00000000 0100000A 0003 0 0 100 00000000 0 0 0\n")  # fmt: skip
        inventory = DiscoveredPools.on(host.root)
        assert inventory.unavailable("0000-41-10-2") == "reserved: default route"
        assert inventory.unavailable("0000-41-00-0") == "in use: 1 of its VFs and vGPUs"
        assert inventory.fits("0000-41-10-0", "0000-41-10-4")


class TestProfilesOnVfs:
    def test_a_vf_carries_one_vgpu_and_is_of_no_use_without_one(self, host: FakeSysfs) -> None:
        a2(host)
        inventory = DiscoveredPools.on(host.root)
        useless = "withheld: a VF of an NVIDIA GPU is of no use without a vGPU type; claim a vGPU"
        assert {inventory.unavailable(vf) for vf in inventory.names(function="vf")} == {useless}
        assert inventory.fits(profile(VFS[0], "4Q"))
        assert not inventory.fits(profile(VFS[0], "4Q"), profile(VFS[0], "4C"))

    def test_the_card_excludes_its_vgpus(self, host: FakeSysfs) -> None:
        a2(host)
        inventory = DiscoveredPools.on(host.root, made=frozenset({"0000-08-00-0"}))
        assert inventory.fits("0000-08-00-0")
        for device in inventory.names(function="mdev"):
            assert not inventory.fits("0000-08-00-0", device)

    def test_vgpus_share_the_framebuffer_of_the_card(self, host: FakeSysfs) -> None:
        a2(host)
        inventory = DiscoveredPools.on(host.root)
        assert inventory.most([profile(vf, "8Q") for vf in VFS]) == 2
        assert inventory.most([profile(vf, "16Q") for vf in VFS]) == 1
        assert inventory.most([profile(vf, "4Q") for vf in VFS]) == 3
        assert inventory.attributes("0000-08-00-0")["framebuffer"] == Quantity.parse("16Gi")

    def test_a_card_holds_one_size_at_a_time(self, host: FakeSysfs) -> None:
        a2(host)
        inventory = DiscoveredPools.on(host.root)
        assert not inventory.fits(profile(VFS[0], "4Q"), profile(VFS[1], "2Q"))
        assert inventory.fits(profile(VFS[0], "4Q"), profile(VFS[1], "4C")), "another series of the same size"

    def test_a_card_seen_to_mix_sizes_may(self, host: FakeSysfs) -> None:
        host.add(pci_cards.l40s_vgpu_card(vfs=3, vgpu=Vgpu("vfio", 49152, pci_cards.L40S_TYPES[2:10], one_size=False)))
        one, other = "0000-26-00-4-nvidia-1150", "0000-26-00-5-nvidia-1152"
        assert not DiscoveredPools.on(host.root).fits(one, other), "nothing lives yet, so nothing shows it"
        host.vgpu.set_type("0000:26:00.4", "1150")
        assert DiscoveredPools.on(host.root, held=frozenset({one})).fits(one, other)

    def test_a_profile_may_be_rarer_than_the_framebuffer_allows(self, host: FakeSysfs) -> None:
        types = (VgpuType("nvidia-1", "NVIDIA X-1B", 1024, 2), VgpuType("nvidia-2", "NVIDIA X-4Q", 4096, 1))
        host.add(pci_cards.a2_vgpu_card(vfs=3, vgpu=Vgpu("mdev", 4096, types)))
        inventory = DiscoveredPools.on(host.root)
        assert inventory.most(inventory.names(profileID="nvidia-1")) == 2


class TestLiveVgpus:
    def test_a_live_vgpu_draws_on_the_card_and_on_its_vf(self, host: FakeSysfs) -> None:
        a2(host)
        host.vgpu.create(VFS[0], "nvidia-747", UUIDS[0])
        inventory = DiscoveredPools.on(host.root)
        assert inventory.unavailable(f"mdev-{UUIDS[0]}") == "in use: a vGPU that no claim holds"
        assert inventory.devices[f"mdev-{UUIDS[0]}"].requests == {}
        assert inventory.unavailable("0000-08-00-4") == f"in use: mdev {UUIDS[0]}"
        assert inventory.unavailable("0000-08-00-0") == "in use: 1 of its VFs and vGPUs"
        assert inventory.most([profile(vf, "8Q") for vf in VFS[1:]]) == 1
        assert "0000-08-00-4-nvidia-747" not in inventory.devices
        assert inventory.fits(profile(VFS[1], "8Q")), "another VF can carry a vGPU of that size"

    def test_a_live_vgpu_tells_its_facts(self, host: FakeSysfs) -> None:
        a2(host)
        host.vgpu.create(VFS[1], "nvidia-746", UUIDS[0])
        attributes = DiscoveredPools.on(host.root).attributes(f"mdev-{UUIDS[0]}")
        assert (attributes["function"], attributes["state"], attributes["profile"]) == (
            "mdev",
            "exists",
            "NVIDIA A2-4Q",
        )
        assert (attributes["profileID"], attributes["framebuffer"]) == ("nvidia-746", Quantity.parse("4Gi"))
        assert (attributes["pfPciBusID"], attributes["vfIndex"]) == (A2, 1)

    def test_other_sizes_wait_until_it_is_gone(self, host: FakeSysfs) -> None:
        a2(host)
        host.vgpu.create(VFS[0], "nvidia-746", UUIDS[0])
        inventory = DiscoveredPools.on(host.root)
        assert inventory.unavailable(profile(VFS[1], "2Q")) == "in use: the card holds vGPUs of 4Gi only"
        assert inventory.fits(profile(VFS[1], "4C"))
        host.vgpu.remove(UUIDS[0])
        assert DiscoveredPools.on(host.root).fits(profile(VFS[1], "2Q"))

    @pytest.mark.parametrize("live", [0, 2])
    def test_what_is_offered_is_what_the_driver_would_create(self, host: FakeSysfs, live: int) -> None:
        a2(host, vfs=4)
        parents = host.vf_addresses(A2)[:4]
        for vf, uuid in zip(parents[:live], UUIDS, strict=False):
            host.vgpu.create(vf, "nvidia-746", uuid)
        inventory = DiscoveredPools.on(host.root)
        for kind in ("2Q", "4C", "8Q", "16Q"):
            offered = [profile(vf, kind) for vf in parents[live:]]
            created = 0
            for vf, uuid in zip(parents[live:], UUIDS[10:], strict=False):
                try:
                    host.vgpu.create(vf, profile(vf, kind).partition("-nvidia")[2].join(["nvidia", ""]), uuid)
                except OSError:
                    break
                created += 1
            assert inventory.most(offered) == created, kind
            for uuid in UUIDS[10 : 10 + created]:
                host.vgpu.remove(uuid)

    def test_a_claimed_one_stays_as_the_device_that_was_claimed(self, host: FakeSysfs) -> None:
        a2(host)
        device = profile(VFS[0], "8Q")
        before = DiscoveredPools.on(host.root)
        host.vgpu.create(VFS[0], "nvidia-747", UUIDS[0])
        after = DiscoveredPools.on(host.root, held=frozenset({device}))
        assert list(after.devices) == list(before.devices)
        assert after.attributes(device)["state"] == "exists"
        assert after.unavailable(device) is None
        assert not after.fits(device, "0000-08-00-0")
        assert not after.fits(device, "0000-08-00-4")
        assert after.most([device, profile(VFS[1], "8Q"), profile(VFS[2], "8Q")]) == 2

    def test_claimed_vgpus_do_not_count_as_foreign(self, host: FakeSysfs) -> None:
        a2(host)
        own = profile(VFS[0], "8Q")
        host.vgpu.create(VFS[0], "nvidia-747", UUIDS[0])
        host.vgpu.create(VFS[1], "nvidia-747", UUIDS[1])
        inventory = DiscoveredPools.on(host.root, held=frozenset({own}))
        assert inventory.fits(own)
        assert not inventory.fits(own, profile(VFS[2], "8Q"))
        assert f"mdev-{UUIDS[1]}" in inventory.devices
        assert f"mdev-{UUIDS[0]}" not in inventory.devices


class TestVendorVfioLayout:
    TYPES = tuple(kind for kind in pci_cards.L40S_TYPES if kind.id in {"1150", "1152", "1155", "1156"})

    def card(self, host: FakeSysfs, one_size: bool = True) -> None:
        host.add(pci_cards.l40s_vgpu_card(vfs=4, vgpu=Vgpu("vfio", 49152, self.TYPES, one_size)))

    def test_profiles_come_from_the_list_of_each_vf(self, host: FakeSysfs) -> None:
        self.card(host)
        inventory = DiscoveredPools.on(host.root)
        assert inventory.names(profile="NVIDIA L40S-48Q") == [f"0000-26-00-{n}-nvidia-1156" for n in (4, 5, 6, 7)]
        assert inventory.attributes("0000-26-00-4-nvidia-1156")["framebuffer"] == Quantity.parse("48Gi")
        assert inventory.attributes("0000-26-00-4-nvidia-1156")["profileID"] == "nvidia-1156"
        assert inventory.most(inventory.names(profile="NVIDIA L40S-48Q")) == 1
        assert inventory.most(inventory.names(profile="NVIDIA L40S-24Q")) == 2
        assert inventory.most(inventory.names(profile="NVIDIA L40S-8Q")) == 4

    def test_the_type_that_is_set_is_a_live_vgpu(self, host: FakeSysfs) -> None:
        self.card(host)
        host.vgpu.set_type("0000:26:00.4", "1155")
        inventory = DiscoveredPools.on(host.root)
        live = "0000-26-00-4-nvidia-1155"
        assert inventory.unavailable(live) == "in use: a vGPU that no claim holds"
        assert inventory.attributes(live)["state"] == "exists"
        assert inventory.unavailable("0000-26-00-4") == "in use: vGPU nvidia-1155"
        assert inventory.most(inventory.names(profile="NVIDIA L40S-24Q")) == 1

    def test_a_claimed_one_is_kept_though_no_list_shows_it(self, host: FakeSysfs) -> None:
        self.card(host)
        host.vgpu.set_type("0000:26:00.4", "1156")  # the whole card: every list is empty now
        device = "0000-26-00-4-nvidia-1156"
        inventory = DiscoveredPools.on(host.root, held=frozenset({device}))
        assert inventory.unavailable(device) is None
        assert not inventory.fits(device, "0000-26-00-0")
        assert inventory.names(function="mdev") == [device]

    def test_never_more_than_the_driver_would_create(self, host: FakeSysfs) -> None:
        self.card(host, one_size=False)
        host.vgpu.set_type("0000:26:00.4", "1152")
        host.vgpu.set_type("0000:26:00.5", "1155")
        inventory = DiscoveredPools.on(host.root)
        assert inventory.most(inventory.names(profile="NVIDIA L40S-8Q", state="creatable")) == 1, (
            "one is proven by the lists"
        )
        assert inventory.most(inventory.names(profile="NVIDIA L40S-24Q", state="creatable")) == 0
        assert "framebuffer" not in inventory.attributes("0000-26-00-0"), "nothing proves how large the card is now"


class TestCardWithoutVfs:
    TYPES = tuple(kind for kind in pci_cards.T4_TYPES if kind.name.rpartition("-")[2] in {"2Q", "4Q", "16Q"})
    CARD = "0000-3b-00-0"

    def card(self, host: FakeSysfs) -> None:
        host.add(pci_cards.t4_vgpu_card(vgpu=Vgpu("mdev", 16384, self.TYPES)))

    def test_a_profile_is_offered_as_often_as_the_card_allows(self, host: FakeSysfs) -> None:
        self.card(host)
        inventory = DiscoveredPools.on(host.root)
        names = inventory.names(profile="GRID T4-4Q")
        assert names == [f"{self.CARD}-nvidia-226", *(f"{self.CARD}-nvidia-226-{n}" for n in (1, 2, 3))]
        assert inventory.fits(*names)
        assert not inventory.fits(names[0], self.CARD)
        assert not inventory.fits(names[0], inventory.names(profile="GRID T4-16Q")[0])

    def test_a_live_one_is_drawn_off(self, host: FakeSysfs) -> None:
        self.card(host)
        host.vgpu.create("0000:3b:00.0", "nvidia-226", UUIDS[0])
        inventory = DiscoveredPools.on(host.root)
        assert inventory.most(inventory.names(profile="GRID T4-4Q", state="creatable")) == 3
        assert inventory.unavailable(self.CARD) == "in use: 1 of its VFs and vGPUs"

    def test_a_claimed_one_is_not(self, host: FakeSysfs) -> None:
        self.card(host)
        device = f"{self.CARD}-nvidia-226"
        host.vgpu.create("0000:3b:00.0", "nvidia-226", UUIDS[0])
        inventory = DiscoveredPools.on(host.root, held=frozenset({device}))
        names = inventory.names(profile="GRID T4-4Q")
        assert len(names) == 4
        assert inventory.fits(*names)
        assert [inventory.attributes(name)["state"] for name in names] == ["exists", *["creatable"] * 3]

    def test_any_copy_may_be_the_claimed_one(self, host: FakeSysfs) -> None:
        self.card(host)
        own = f"{self.CARD}-nvidia-226-3"
        for uuid in UUIDS[:3]:
            host.vgpu.create("0000:3b:00.0", "nvidia-226", uuid)
        inventory = DiscoveredPools.on(host.root, held=frozenset({own}))
        assert inventory.attributes(own)["state"] == "exists"
        assert [name for name in inventory.devices if name.startswith("mdev-")] == [f"mdev-{u}" for u in UUIDS[1:3]]
        free = inventory.names(profile="GRID T4-4Q", state="creatable")
        assert inventory.fits(own, *free)
        assert len(free) == 1

    def test_profiles_of_unknown_cost_come_one_kind_at_a_time(self, host: FakeSysfs) -> None:
        types = (VgpuType("i915-GVTg_V5_4", "GVTg_V5_4", 1024, 4), VgpuType("i915-GVTg_V5_8", "GVTg_V5_8", 512, 8))
        host.add(pci_cards.intel_gpu(sriov=None, vgpu=Vgpu("mdev", 4096, types, one_size=False)))
        for kind in types:
            text = "low_gm_size: 128MB\nhigh_gm_size: 512MB\nfence: 4\nresolution: 1920x1200\nweight: 4"
            host.write(f"{host.path('0000:00:02.0')}/mdev_supported_types/{kind.id}/description", text)
        inventory = DiscoveredPools.on(host.root)
        first, second = inventory.names(profile="GVTg_V5_4"), inventory.names(profile="GVTg_V5_8")
        assert inventory.fits(*first)
        assert inventory.fits(*second)
        assert not inventory.fits(first[0], second[0])


class TestPreparedVgpus:
    """The node plugin says what stands behind a device (T2): it need not be what the device is named after."""

    def test_a_vgpu_on_another_function_is_the_claims_own(self, host: FakeSysfs) -> None:
        a2(host)
        own = profile(VFS[0], "8Q")
        before = DiscoveredPools.on(host.root)
        host.vgpu.create(VFS[1], "nvidia-747", UUIDS[0])
        backing = frozenset({"0000-08-00-5", f"mdev-{UUIDS[0]}"})
        after = DiscoveredPools.on(host.root, held=frozenset({own}), prepared={own: backing})
        assert list(after.devices) == list(before.devices)
        assert after.unavailable(own) is None
        assert after.most([own, *(profile(vf, "8Q") for vf in VFS[1:])]) == 2
        assert not after.fits(own, "0000-08-00-0")
        assert after.unavailable("0000-08-00-5") == f"in use: {own} is on it"

    def test_a_strangers_vgpu_on_the_function_it_is_named_after_is_not(self, host: FakeSysfs) -> None:
        a2(host)
        own = profile(VFS[0], "8Q")
        host.vgpu.create(VFS[0], "nvidia-747", UUIDS[1])
        host.vgpu.create(VFS[1], "nvidia-747", UUIDS[0])
        backing = frozenset({"0000-08-00-5", f"mdev-{UUIDS[0]}"})
        inventory = DiscoveredPools.on(host.root, held=frozenset({own}), prepared={own: backing})
        assert inventory.unavailable(f"mdev-{UUIDS[1]}") == "in use: a vGPU that no claim holds"
        assert f"mdev-{UUIDS[0]}" not in inventory.devices
        assert inventory.unavailable(own) is None
        assert inventory.most([own, *inventory.names(profile="NVIDIA A2-8Q", state="creatable")]) == 1, (
            "the stranger has half"
        )

    @pytest.mark.parametrize("layout", ["mdev", "vfio"])
    def test_it_keeps_its_name_though_no_list_shows_it(self, host: FakeSysfs, layout: str) -> None:
        if layout == "mdev":
            a2(host)
            other, own = VFS[1], profile(VFS[0], "16Q")
            host.vgpu.create(other, own.partition("4-")[2], UUIDS[0])
            backing = f"mdev-{UUIDS[0]}"
        else:
            host.add(pci_cards.l40s_vgpu_card(vfs=4, vgpu=Vgpu("vfio", 49152, TestVendorVfioLayout.TYPES)))
            own, backing = "0000-26-00-4-nvidia-1156", "0000-26-00-5"
            host.vgpu.set_type("0000:26:00.5", "1156")
        inventory = DiscoveredPools.on(host.root, held=frozenset({own}), prepared={own: frozenset({backing})})
        assert (own in inventory.devices) == (layout == "mdev"), "vendor VFIO lists only what can be created"
        assert not [
            name for name in inventory.devices if inventory.unavailable(name) == "in use: a vGPU that no claim holds"
        ]


def test_a_vf_with_an_unknown_vgpu_is_not_free(host: FakeSysfs) -> None:
    host.add(pci_cards.l40s_vgpu_card(vfs=2, vgpu=Vgpu("vfio", 49152, pci_cards.L40S_TYPES[:3])))
    host.write(host.path("0000:26:00.4", "nvidia/current_vgpu_type"), "N/A")
    inventory = DiscoveredPools.on(host.root)
    assert inventory.unavailable("0000-26-00-4") == "in use: vGPU of unknown type"
    assert [
        name for name in inventory.names(function="mdev") if not inventory.unavailable(name) and "00-4-" in name
    ] == []
    backing = {"0000-26-00-4-nvidia-1145": frozenset({"0000-26-00-4"})}
    assert DiscoveredPools.on(host.root, prepared=backing).fits("0000-26-00-5-nvidia-1145"), (
        "what a claim has there is known"
    )


class TestWithheld:
    def test_what_is_withheld_says_why_and_comes_back(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic())
        vf = "0000-41-10-2"
        inventory = DiscoveredPools.on(host.root, withheld={vf: "reset failed: the function does not answer"})
        assert inventory.unavailable(vf) == "reset failed: the function does not answer"
        others = [name for name in inventory.devices if name not in (vf, "0000-41-00-0")]
        assert not any(inventory.unavailable(name) for name in others)
        assert DiscoveredPools.on(host.root).unavailable(vf) is None

    def test_a_card_is_not_offered_while_a_part_of_it_is_withheld(self, host: FakeSysfs) -> None:
        host.add(pci_cards.nic())
        inventory = DiscoveredPools.on(host.root, withheld={"0000-41-10-2": "reset failed: no answer"})
        why = "withheld: 0000-41-10-2, which is part of it: reset failed: no answer"
        assert [(name, inventory.unavailable(name)) for name in inventory.devices if inventory.unavailable(name)] == [
            ("0000-41-00-0", why),
            ("0000-41-10-2", "reset failed: no answer"),
        ]

    def test_what_is_withheld_of_a_card_is_withheld_of_all_on_it(self, host: FakeSysfs) -> None:
        a2(host)
        host.vgpu.create(VFS[0], "nvidia-747", UUIDS[0])
        inventory = DiscoveredPools.on(host.root, withheld={"0000-08-00-0": "cordoned: by admin"})
        reasons = {name: inventory.unavailable(name) or "" for name in inventory.devices}
        assert all("cordoned: by admin" in reason for reason in reasons.values())
        assert reasons[f"mdev-{UUIDS[0]}"] == "in use: a vGPU that no claim holds; cordoned: by admin"

    def test_names_that_are_not_there_withhold_nothing(self, host: FakeSysfs) -> None:
        a2(host)
        assert (
            DiscoveredPools.on(host.root, withheld={"0000-99-00-0": "unhealthy"}).bytes
            == DiscoveredPools.on(host.root).bytes
        )


class TestAdoptedVgpus:
    """A vGPU that others created is offered on request, as it is, while no process uses it (T8)."""

    MDEV = f"mdev-{UUIDS[0]}"

    @pytest.fixture
    def host(self, host: FakeSysfs) -> FakeSysfs:
        a2(host)
        host.vgpu.create(VFS[0], "nvidia-747", UUIDS[0])
        host.vgpu.create(VFS[1], "nvidia-747", UUIDS[1])
        return host

    def group(self, host: FakeSysfs) -> str:
        return os.readlink(host.sys / host.path(VFS[0]) / UUIDS[0] / "iommu_group").rpartition("/")[2]

    def test_only_the_one_that_is_named_is_offered_and_costs_nothing_more(self, host: FakeSysfs) -> None:
        before, view = DiscoveredPools.on(host.root), DiscoveredPools.on(host.root, adopt=frozenset({self.MDEV}))
        assert view.unavailable(self.MDEV) is None
        assert view.fits(self.MDEV)
        assert view.unavailable(f"mdev-{UUIDS[1]}") == "in use: a vGPU that no claim holds"
        others = [name for name in view.devices if name != self.MDEV]
        assert {name: view.unavailable(name) for name in others} == {name: before.unavailable(name) for name in others}

    def test_not_while_a_process_has_it_open(self, host: FakeSysfs) -> None:
        host.proc("4711/comm", "qemu-system-x86\n")
        (host.root / "proc/4711/fd").mkdir()
        os.symlink(f"/dev/vfio/{self.group(host)}", host.root / "proc/4711/fd/11")
        inventory = DiscoveredPools.on(host.root, adopt=frozenset({self.MDEV}))
        assert inventory.unavailable(self.MDEV) == "in use: qemu-system-x86 4711"
        of_claim = DiscoveredPools.on(host.root, held=frozenset({self.MDEV}))
        assert of_claim.unavailable(self.MDEV) is None, "the claim's own machine"

    def test_a_claim_keeps_it_whether_it_is_still_named_or_not(self, host: FakeSysfs) -> None:
        before = DiscoveredPools.on(host.root, adopt=frozenset({self.MDEV}))
        for prepared in ({}, {self.MDEV: frozenset({self.MDEV, "0000-08-00-4"})}):
            inventory = DiscoveredPools.on(host.root, held=frozenset({self.MDEV}), prepared=prepared)
            assert inventory.unavailable(self.MDEV) is None
            assert list(inventory.devices) == list(before.devices)
            assert inventory.homes[self.MDEV].spec.resources == before.homes[self.MDEV].spec.resources
