"""GPUs, and the displays that are none."""

from __future__ import annotations

from devalloc.api.pool import AttributeValue
from devalloc.api.quantity import NANO, Format, Quantity
from devalloc.inventory.pci import NVIDIA, PciFunction

_AMD = 0x1002
_INTEL = 0x8086
_MOORE_THREADS = 0x1ED5

_DISPLAY = 0x03
_VGA = 0x0300
_COMPUTE = frozenset({0x0302, 0x0380, 0x1200})  # 3D controller, other display controller, processing accelerator
_GPU_VENDORS = frozenset({NVIDIA, _AMD, _INTEL, _MOORE_THREADS})
_VGA_VENDORS = frozenset({NVIDIA, _AMD, _INTEL})


def is_gpu(function: PciFunction) -> bool:
    """True for what computes or renders: not for the VGA of a BMC or an emulator."""
    if function.subclass == _VGA:
        return function.vendor in _VGA_VENDORS
    return function.subclass in _COMPUTE and function.vendor in _GPU_VENDORS


def is_display(function: PciFunction) -> bool:
    """True for a display controller that is no GPU: the host's own console."""
    return function.base_class == _DISPLAY and not is_gpu(function)


def gpu_attributes(function: PciFunction) -> dict[str, AttributeValue]:
    """The framebuffer, where the driver tells it (amdgpu)."""
    memory = function.folder.number("mem_info_vram_total")
    return {"framebuffer": Quantity(memory * NANO, Format.BINARY_SI)} if memory is not None and memory > 0 else {}
