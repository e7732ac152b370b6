"""One scenario for each binding and each way in which claims share something."""

from __future__ import annotations

from devalloc.api import meta
from devalloc_node.model.grant import GrantedDevice
from tests.support import pci_cards
from tests.support.fake_host import FakeHost
from tests.support.fault_points import Scenario


def device(pool: str, device: str, **more: object) -> GrantedDevice:
    return GrantedDevice(("0",), f"n-{pool}", f"{pool}-{device}", **more)  # type: ignore[arg-type]


def _config(**spec: object) -> dict[str, object]:
    metadata = {"name": "c", "namespace": "default"}
    return {"apiVersion": meta.DEVALLOC, "kind": "VfConfig", "metadata": metadata, "spec": spec}


def gpu_with_audio(host: FakeHost) -> None:
    host.add(pci_cards.gpu(iommu_group=7))
    host.add(pci_cards.gpu_audio(iommu_group=7))


def gpu_reset_with_audio(host: FakeHost) -> None:
    host.add(pci_cards.gpu(iommu_group=7, files={"reset_method": "bus"}))
    host.add(pci_cards.gpu_audio(iommu_group=7, files={"reset_method": ""}))


def nic(host: FakeHost) -> None:
    host.add(pci_cards.nic())


def _nic_with_vfs(host: FakeHost) -> None:
    host.add(pci_cards.nic(vfs=7))


def a2(host: FakeHost) -> None:
    host.add(pci_cards.a2_vgpu_card(vfs=2))


def mtty(host: FakeHost) -> None:
    host.vgpu.add_parent("mtty", pci_cards.MTTY)


def _l40s(host: FakeHost) -> None:
    host.add(pci_cards.l40s_vgpu_card(vfs=2))


def two_cards(host: FakeHost) -> None:
    nic(host)
    host.add(pci_cards.gpu())


VF = device("0000-41-00", "0").pool
SETTINGS = {
    "class_configs": (_config(vlan=7, spoofCheck=False, trust=True),),
    "claim_configs": (_config(mac="52:54:00:aa:bb:cc", maxTxRate=100),),
}

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("vfio-with-audio", gpu_with_audio, (device("0000-01-00", "0"),)),
        Scenario("vfio-reset-by-vfio", gpu_reset_with_audio, (device("0000-01-00", "0"),)),
        Scenario("vf-to-be-created", nic, (GrantedDevice(("0",), VF, "0000-41-10-0"),)),
        Scenario("vf-with-settings", nic, (GrantedDevice(("0",), VF, "0000-41-10-2", **SETTINGS),)),  # type: ignore[arg-type]
        Scenario("vf-that-was-there", _nic_with_vfs, (GrantedDevice(("0",), VF, "0000-41-10-0"),)),
        Scenario(
            "vf-beside-another-claim",
            nic,
            (GrantedDevice(("0",), VF, "0000-41-10-0"),),
            others=((GrantedDevice(("0",), VF, "0000-41-10-4"),),),
        ),
        Scenario(
            "two-vfs-of-one-claim",
            nic,
            (GrantedDevice(("0",), VF, "0000-41-10-0"), GrantedDevice(("1",), VF, "0000-41-10-2")),
        ),
        Scenario("vf-and-gpu", two_cards, (GrantedDevice(("0",), VF, "0000-41-10-0"), device("0000-01-00", "0"))),
        Scenario("whole-nic", nic, (device("0000-41-00", "0"),)),
        Scenario("mdev", a2, (GrantedDevice(("0",), "n-0000-08-00", "0000-08-00-4-nvidia-746"),)),
        Scenario(
            "mdev-without-a-card",
            mtty,
            (GrantedDevice(("0",), "n-mdev-mtty", "mtty-mtty-2"),),
            kinds=frozenset({"mdev"}),
        ),
        Scenario("vgpu", _l40s, (GrantedDevice(("0",), "n-0000-26-00", "0000-26-00-4-nvidia-1148"),)),
    )
}
