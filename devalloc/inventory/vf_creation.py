"""Whether virtual functions that do not exist can be made, and are of use to anyone who gets one.

The SR-IOV capability of a card proves neither: data-centre GPUs have it under every driver. The kernel refuses
``sriov_numvfs`` (ENOENT) if the driver has no ``sriov_configure``, and nothing in sysfs says beforehand whether it has.
"""

from __future__ import annotations

from collections.abc import Collection

from devalloc.device_kinds import NIC
from devalloc.inventory import vgpu
from devalloc.inventory.pci import NVIDIA, PciFunction

_GPU = "gpu"
_NIC_DRIVERS = frozenset({
    "be2net", "bnx2x", "bnxt_en", "cxgb4", "eea", "fm10k", "fsl_enetc", "fsl_enetc4", "funeth", "hinic", "hinic3",
    "hns3", "i40e", "ice", "idpf", "igb", "ionic", "ixgbe", "LiquidIO", "mlx5_core", "nfp", "ngbe", "octeon_ep",
    "pds_core", "qede", "qlcnic", "rvu_af", "rvu_nicpf", "sfc", "sfc_ef100", "sfc_siena", "txgbe", "virtio-pci",
})  # fmt: skip
"""Drivers of Linux for network cards that implement ``sriov_configure``, as sysfs names them."""
_ACCELERATOR_DRIVERS = frozenset({
    "420xx", "4xxx", "6xxx", "c3xxx", "c6xx", "dfl-pci", "dh895xcc", "hisi_hpre", "hisi_sec2", "hisi_zip", "n5pf",
    "octeontx-cpt", "rvu_cptpf",
})  # fmt: skip
"""The same for QAT, Kunpeng, NITROX, OCTEON and DFL."""
_MAKERS = {NIC.name: _NIC_DRIVERS, "accelerator": _ACCELERATOR_DRIVERS, _GPU: frozenset({"gim"})}
"""By kind of device: drivers that make VFs which are of use by themselves."""
_INTEL_DRIVERS = frozenset({"i915", "xe"})


def creation_problem(pf: PciFunction, kind: str, creatable: Collection[str]) -> str | None:
    """Why the VFs of a port are not offered while they do not exist; None if they can be made and used.

    ``creatable``: kinds of devices whose drivers can make VFs, as the admin says.
    """
    if kind in creatable or pf.driver in _MAKERS.get(kind, ()) or vgpu.read_parent(pf) is not None:
        return None
    if kind == _GPU and pf.driver in _INTEL_DRIVERS and _has_intel_sriov(pf):
        return None
    return (
        f"nothing shows that the driver {pf.driver} of {pf.address} can make VFs; if it can, allow it with "
        f"--creatable-vfs {kind}, or make them"
    )


def use_problem(pf: PciFunction, kind: str) -> str | None:
    """Why a VF of a port is of no use by itself, existing or not."""
    if kind == _GPU and pf.vendor == NVIDIA:
        return "a VF of an NVIDIA GPU is of no use without a vGPU type; claim a vGPU"
    return None


def _has_intel_sriov(pf: PciFunction) -> bool:
    """Whether i915 or xe runs the GPU as a PF: it then has a folder for the shares of its VFs, or a limit of VFs.

    Such a driver also sets ``sriov_totalvfs`` to 0 on a GPU that it cannot share.
    """
    if pf.folder.has("sriov_admin"):
        return True
    cards = (pf.folder.folder("drm", name) for name in pf.folder.names("drm") if name.startswith("card"))
    if any(card.has(name) for card in cards if card is not None for name in ("iov", "prelim_iov")):
        return True
    system = pf.folder.tree.sys
    parameters = system.folder("module", pf.driver or "", "parameters") if system is not None else None
    return parameters is not None and (parameters.number("max_vfs") or 0) > 0
