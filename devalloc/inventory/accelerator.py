"""Accelerators that are no GPUs: co-processors (QAT, vector engines) and processing accelerators."""

from __future__ import annotations

from devalloc.inventory.pci import PciFunction

_PROCESSING_ACCELERATOR = 0x12
_CO_PROCESSOR = 0x0B40


def is_accelerator(function: PciFunction) -> bool:
    """True by PCI class; GPUs of class 1200 are asked for first."""
    return function.base_class == _PROCESSING_ACCELERATOR or function.subclass == _CO_PROCESSOR
