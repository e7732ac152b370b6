"""Accelerators that are no GPUs: co-processors (QAT, vector engines) and processing accelerators."""

from __future__ import annotations

import re
from collections.abc import Iterator

from devalloc.inventory.pci import PciFunction

_PROCESSING_ACCELERATOR = 0x12
_CO_PROCESSOR = 0x0B40
_NODE = re.compile(r"^DEVNAME=([A-Za-z0-9_-][A-Za-z0-9_./!-]{0,200})$", re.MULTILINE | re.ASCII)


def is_accelerator(function: PciFunction) -> bool:
    """True by PCI class; GPUs of class 1200 are asked for first."""
    return function.base_class == _PROCESSING_ACCELERATOR or function.subclass == _CO_PROCESSOR


def device_nodes(function: PciFunction) -> Iterator[str]:
    """The device nodes that its driver has made, whatever class it has them in: each vendor has its own."""
    for kind in function.folder.folders():
        for device in kind.folders():
            named = _NODE.search(device.text("uevent") or "")
            if named is not None:
                yield f"/dev/{named[1].replace('!', '/')}"
