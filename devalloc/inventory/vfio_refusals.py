"""Functions that VFIO does not take, or that no machine can use by it, whatever drivers are loaded.

Known before a claim gets one: otherwise the kernel's refusal comes when the claim is prepared, each time.
"""

from __future__ import annotations

import re

from devalloc.inventory.cards import VirtualFunction
from devalloc.inventory.pci import PciFunction
from devalloc.inventory.sysfs import Tree

_INTEL = 0x8086
_DENIED = {
    0x0435: "QAT DH895xCC", 0x0443: "QAT DH895xCC", 0x19E2: "QAT C3xxx", 0x19E3: "QAT C3xxx", 0x37C8: "QAT C62x",
    0x37C9: "QAT C62x", 0x0B25: "DSA", 0x0CFE: "IAX",
}  # fmt: skip
"""Models of Intel, with VFs, that vfio-pci refuses: a user of one can stop the host (drivers/vfio/pci). DSA and IAX are
in the list of newer kernels only, which nothing in sysfs shows."""
_BEHIND = re.compile(r"/([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])/pci[0-9a-f]{4,8}:[0-9a-f]{2}/", re.ASCII)
"""A function that is the root of other PCI buses, as Intel VMD is; those below it have domains of their own."""


def vfio_refusal(function: PciFunction) -> str | None:
    """Why VFIO does not take a function; None if nothing shows that it does not."""
    if (behind := _BEHIND.search(function.folder.path)) is not None:
        return f"it is behind {behind[1]} (Intel VMD), which does its DMA; switch VMD off for its slot in the firmware"
    return _model_refusal(function.folder.tree, function.vendor, function.device)


def vf_refusal(vf: VirtualFunction) -> str | None:
    """Why VFIO does not take a VF; None if nothing shows that it does not."""
    if vf.function is None:
        return _model_refusal(vf.pf.folder.tree, vf.pf.vendor, vf.pf.sriov.vf_device if vf.pf.sriov else None)
    return vfio_refusal(vf.function)


def pf_driver_problem(vf: VirtualFunction) -> str | None:
    """Why a VF is of no use with the driver that its PF has now; None if nothing shows that."""
    pf = vf.pf
    if vf.function is None:
        return None
    if pf.on_vfio:
        return (
            f"its PF {pf.address} is bound to {pf.driver}, so VFIO gives its VFs only to those who know a token; bind "
            "the PF to its own driver"
        )
    if pf.driver is None:
        return f"its PF {pf.address} has no driver, which its VFs need; bind one"
    return None


def _model_refusal(tree: Tree, vendor: int, device: int | None) -> str | None:
    model = _DENIED.get(device or 0) if vendor == _INTEL else None
    parameters = tree.sys.folder("module", "vfio_pci", "parameters") if model and tree.sys is not None else None
    # The kernel can be told to take them all the same; kernels before 5.9 have no such list.
    if parameters is None or parameters.text("disable_denylist") != "N":
        return None
    return (
        f"vfio-pci may refuse {model}, which can stop the host; if its users may, load vfio-pci with disable_denylist=1"
    )


def silence(function: PciFunction) -> str | None:
    """That a function does not respond, such as a GPU that fell off the bus; None if it does, or sleeps."""
    if function.sleeps or function.responds:
        return None
    return f"{function.address} does not respond: its configuration space reads as all ones; reset its slot or the host"
