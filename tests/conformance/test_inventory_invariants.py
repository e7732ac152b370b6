"""Whatever happens to a host, its inventory stays readable, its names stay, and nothing can be given away twice.

Random operations on a fake kernel (VFs, drivers, vGPUs, hot-plug, spoiled files); after each, the host is discovered.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from devalloc.api.meta import COMPATIBILITY_GROUP, UNAVAILABLE
from devalloc.api.pool import Device, DevicePool
from devalloc.inventory.discover import discover
from tests.support import pci_cards
from tests.support.examples import examples
from tests.support.fake_sysfs import FakeSysfs
from tests.support.fake_tree import memory_folder
from tests.support.pci_cards import Function, Sriov

NIC, SECOND_PORT, A2, L40S, T4, GPU, NVME = (
    "0000:41:00.0",
    "0000:41:00.1",
    "0000:08:00.0",
    "0000:26:00.0",
    "0000:3b:00.0",
    "0000:01:00.0",
    "0000:42:00.0",
)
FOUR_VFS = Sriov(4, offset=4, stride=1, vf_device=0x25B6, vf_driver="nvidia")
PORT_VFS = Sriov(4, offset=128, stride=2, vf_device=0x10CA, vf_driver="igbvf")
CARDS: tuple[Function, ...] = (
    pci_cards.nic(NIC, sriov=PORT_VFS, netdev="eth0"),
    pci_cards.nic(SECOND_PORT, sriov=PORT_VFS, netdev="eth1"),
    pci_cards.a2_vgpu_card(A2, sriov=FOUR_VFS),
    pci_cards.l40s_vgpu_card(L40S, sriov=FOUR_VFS),
    pci_cards.t4_vgpu_card(T4),
    pci_cards.gpu(GPU),
    pci_cards.gpu_audio("0000:01:00.1"),
    pci_cards.nvme(NVME),
)
PFS = [card.address for card in CARDS]
VFS = [f"0000:41:10.{i}" for i in (0, 1, 2, 3)] + [f"0000:{bus}:00.{i}" for bus in ("08", "26") for i in (4, 5, 6, 7)]
UUIDS = [f"f715f63c-0d00-4007-9c5a-b07b0c6c05d{i}" for i in range(6)]
FILES = ("vendor", "class", "numa_node", "sriov_totalvfs", "sriov_numvfs", "sriov_offset", "iommu_group", "driver",
         "current_link_speed", "mdev_supported_types/nvidia-746/available_instances", "nvidia/creatable_vgpu_types",
         "mdev_supported_types/nvidia-746/description", "net/eth0/speed", "nvidia/current_vgpu_type")  # fmt: skip


def device_name(address: str) -> str:
    return address.replace(":", "-").replace(".", "-")


def address_of(device: Device) -> str:
    """The PCI address in a device's name; names of vGPUs go on after it."""
    domain, bus, slot, function = device.name.split("-")[:4]
    return f"{domain}:{bus}:{slot}.{function}"


def with_all_attributes(pool: DevicePool) -> DevicePool:
    """The pool with all attributes on its devices (claim-semantics S3)."""
    shared = pool.spec.attributes
    devices = [device.model_copy(update={"attributes": [*device.attributes, *shared]}) for device in pool.spec.devices]
    return pool.model_copy(update={"spec": pool.spec.model_copy(update={"attributes": [], "devices": devices})})


def attribute(device: Device, name: str) -> object:
    return next((a.value for a in device.attributes if a.name == name), None)


def fits(pool: DevicePool, *devices: Device) -> bool:
    """Whether the pool's resources allow these devices at the same time."""
    wanted: Counter[str] = Counter()
    for device in devices:
        wanted.update({name: amount.nano for name, amount in device.requests.items()})
    capacity = {resource.name: resource.capacity.nano for resource in pool.spec.resources}
    return all(amount <= capacity.get(name, 0) for name, amount in wanted.items())


class AnyHistory(RuleBasedStateMachine):
    @initialize(with_vfs=st.sets(st.sampled_from([NIC, A2, L40S])))
    def plug_in(self, with_vfs: set[str]) -> None:
        self.folder = memory_folder()
        self.host = FakeSysfs(Path(self.folder.name))
        for card in CARDS:
            self.host.add(replace(card, vfs=4 if card.address in with_vfs else 0))
        self.made = 0
        self.names_of_vfs = self.vf_names(self.discover())

    def teardown(self) -> None:
        self.folder.cleanup()

    def discover(self) -> list[DevicePool]:
        return [with_all_attributes(pool) for pool in discover(self.host.root, node_name="n").pools]

    def store(self, path: str, text: str) -> None:
        """As an administrator would: the kernel may refuse."""
        try:
            self.host.store(path, text)
        except OSError:
            return

    @rule(pf=st.sampled_from(PFS), count=st.sampled_from([0, 1, 3, 4]))
    def set_vfs(self, pf: str, count: int) -> None:
        self.store(f"bus/pci/devices/{pf}/sriov_numvfs", str(count))

    @rule(address=st.sampled_from(PFS + VFS), driver=st.sampled_from(["vfio-pci", ""]))
    def rebind(self, address: str, driver: str) -> None:
        self.store(f"bus/pci/devices/{address}/driver/unbind", address)
        self.store(f"bus/pci/devices/{address}/driver_override", driver)
        self.store("bus/pci/drivers_probe", address)

    @rule(parent=st.sampled_from([*VFS[4:8], T4]), size=st.sampled_from([746, 747, 748, 226, 228]), i=st.integers(0, 5))
    def create_mdev(self, parent: str, size: int, i: int) -> None:
        self.store(f"bus/pci/devices/{parent}/mdev_supported_types/nvidia-{size}/create", UUIDS[i])

    @rule(i=st.integers(0, 5))
    def remove_mdev(self, i: int) -> None:
        self.store(f"bus/mdev/devices/{UUIDS[i]}/remove", "1")

    @rule(vf=st.sampled_from(VFS[8:]), kind=st.sampled_from(["0", "1150", "1155", "1156"]))
    def set_vgpu_type(self, vf: str, kind: str) -> None:
        self.store(f"bus/pci/devices/{vf}/nvidia/current_vgpu_type", kind)

    @rule(pf=st.sampled_from(PFS))
    def pull_or_plug(self, pf: str) -> None:
        if pf in self.host.functions:
            self.host.remove_function(pf)
        else:
            self.host.add(next(card for card in CARDS if card.address == pf))

    @rule(
        address=st.sampled_from(PFS + VFS),
        name=st.sampled_from(FILES),
        how=st.sampled_from(["missing", "empty", "garbage", "folder", "loop"]),
    )
    def spoil_and_repair(self, address: str, name: str, how: str) -> None:
        """What cannot be read costs at most its own card something; repaired, all is as before."""
        file = self.host.sys / "bus/pci/devices" / address / name
        if not file.exists():
            return
        before = self.discover()
        content = file.readlink() if file.is_symlink() else file.read_text()
        path = self.host.path(address, name)
        self.host.spoil(path, how)
        spoiled = {pool.metadata.name: pool for pool in self.discover()}
        card = f"n-{device_name(address).rsplit('-', 1)[0]}"
        if self.host.functions[address].pf:
            card = f"n-{device_name(str(self.host.functions[address].pf)).rsplit('-', 1)[0]}"
        for pool in before:
            assert pool.metadata.name == card or spoiled.get(pool.metadata.name) == pool, f"{path} {how}"
        self.host.remove(path)
        file.symlink_to(content) if isinstance(content, Path) else file.write_text(content)
        assert self.discover() == before

    @rule(random=st.randoms(use_true_random=False))
    def give_everything_out(self, random: Random) -> None:
        """Whatever the pools allow together, the kernel must be able to make, all of it."""
        for pool in self.discover():
            given: list[Device] = []
            for device in random.sample(pool.spec.devices, len(pool.spec.devices)):
                groups = {attribute(d, COMPATIBILITY_GROUP) for d in (*given, device)} - {None}
                if attribute(device, UNAVAILABLE) is None and len(groups) < 2 and fits(pool, *given, device):
                    given.append(device)
            for device in given:
                self.make(device)

    def make(self, device: Device) -> None:
        address, profile = address_of(device), str(attribute(device, "profileID")).removeprefix("nvidia-")
        match attribute(device, "function"), attribute(device, "state"):
            case "mdev", "creatable":
                path = self.host.path(address)
                if (self.host.sys / path / "nvidia").exists():
                    self.host.store(f"{path}/nvidia/current_vgpu_type", profile)
                else:
                    self.made += 1
                    uuid = f"00000000-0000-4000-8000-{self.made:012d}"
                    self.host.store(f"{path}/mdev_supported_types/nvidia-{profile}/create", uuid)
            case "vf", "creatable":
                pf = str(attribute(device, "pfPciBusID"))
                if address not in self.host.functions:
                    self.host.store(f"bus/pci/devices/{pf}/sriov_numvfs", str(PORT_VFS.total))
                assert address in self.host.functions
            case _:
                assert address in self.host.functions

    def vf_names(self, pools: list[DevicePool]) -> dict[tuple[object, object], str]:
        return {
            (attribute(d, "pfPciBusID"), attribute(d, "vfIndex")): d.name
            for pool in pools
            for d in pool.spec.devices
            if attribute(d, "function") == "vf"
        }

    @invariant()
    def the_inventory_is_sound(self) -> None:
        pools = self.discover()
        self.each_function_is_published_once(pools)
        self.names_of_vfs_stay_through_creation_and_removal(pools)
        self.state_distinguishes_existing_from_creatable_vfs(pools)
        self.parts_and_the_whole_exclude_each_other(pools)
        self.offered_profiles_are_those_that_the_driver_would_create(pools)

    def each_function_is_published_once(self, pools: list[DevicePool]) -> None:
        devices = [(pool, device) for pool in pools for device in pool.spec.devices]
        functions = [
            (pool.metadata.name, device.name)
            for pool, device in devices
            if attribute(device, "function") in ("whole", "pf", "vf")
        ]
        assert len({pool.metadata.name for pool in pools}) == len(pools)
        assert max(Counter(name for _, name in functions).values(), default=1) == 1, "a function in two pools"

        published = {name for _, name in functions}
        for address, function in self.host.functions.items():
            # Bridges are no devices, and the audio function goes with its GPU.
            is_device = function.spec.native not in ("pcieport", "snd_hda_intel")
            assert (device_name(address) in published) == is_device, address

    def names_of_vfs_stay_through_creation_and_removal(self, pools: list[DevicePool]) -> None:
        names = self.vf_names(pools)
        for key in names.keys() & self.names_of_vfs.keys():
            assert names[key] == self.names_of_vfs[key]
        for pf, function in self.host.functions.items():
            for index, vf in enumerate(function.vfs):
                assert names[pf, index] == device_name(vf)
        self.names_of_vfs |= names

    def state_distinguishes_existing_from_creatable_vfs(self, pools: list[DevicePool]) -> None:
        for pool in pools:
            for device in pool.spec.devices:
                if attribute(device, "function") == "vf":
                    exists = str(attribute(device, "pciBusID")) in self.host.functions
                    assert attribute(device, "state") == ("exists" if exists else "creatable"), device.name

    def parts_and_the_whole_exclude_each_other(self, pools: list[DevicePool]) -> None:
        for pool in pools:
            offered = [d for d in pool.spec.devices if attribute(d, UNAVAILABLE) is None]
            for whole in (d for d in offered if attribute(d, "function") in ("whole", "pf")):
                assert fits(pool, whole), f"{whole.name} is offered and does not fit into its own pool"
                for part in (d for d in offered if attribute(d, "function") in ("vf", "mdev")):
                    same_port = attribute(part, "pfPciBusID") in (None, attribute(whole, "pciBusID"))
                    if same_port:
                        assert not fits(pool, whole, part), f"{whole.name} and {part.name} at the same time"

    def offered_profiles_are_those_that_the_driver_would_create(self, pools: list[DevicePool]) -> None:
        """One more instance fits into the pool only where some parent on the card takes it."""
        for pool in pools:
            for device in pool.spec.devices:
                profile, address = attribute(device, "profileID"), attribute(device, "pfPciBusID")
                if attribute(device, UNAVAILABLE) is not None or profile is None or not fits(pool, device):
                    continue
                if attribute(device, "state") == "creatable":
                    assert self.driver_takes(str(profile), pool), (pool.metadata.name, device.name, address)

    def driver_takes(self, profile: str, pool: DevicePool) -> bool:
        number = profile.removeprefix("nvidia-")
        slot = pool.metadata.name.removeprefix("n-")
        for address, function in self.host.functions.items():
            parent = function.pf or address
            card = self.host.functions[parent].spec.vgpu
            if card is None or not device_name(parent).startswith(slot) or function.driver != "nvidia":
                continue
            if any(
                kind.id.removeprefix("nvidia-") == number and self.host.vgpu.available(address, kind) > 0
                for kind in card.types
            ):
                return True
        return False


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=examples(4, 0.025), stateful_step_count=10, deadline=None)
