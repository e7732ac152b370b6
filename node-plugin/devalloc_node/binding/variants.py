"""Which VFIO driver is the right one for a function: vfio-pci, or a variant that knows the device.

Kernels tell it in ``modules.alias`` with lines ``alias vfio_pci:v000015B3d0000101E… mlx5_vfio_pci``; of those that
match the function's modalias the one with the fewest wildcards wins, as libvirt does it.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator

from devalloc.inventory.pci import PciFunction
from devalloc.inventory.sysfs import Tree
from devalloc_node.errors import Denied
from devalloc_node.host.files import is_name

GENERIC = "vfio-pci"
_PREFIX = b"alias vfio_pci:"
_MAX_BYTES = 16 << 20


def vfio_driver(tree: Tree, function: PciFunction) -> str:
    """The name of the driver's folder below ``bus/pci/drivers``.

    Modules are not loaded by the plugin, and a lesser driver is never taken instead of the right one: raises Denied
    ``DriverMissing``, which names the module to load.
    """
    module = _module(tree, (function.folder.text("modalias") or "").removeprefix("pci:"))
    drivers = set(tree.sys.names("bus", "pci", "drivers")) if tree.sys else set()
    for spelling in (module, module.replace("_", "-"), module.replace("-", "_")):
        if spelling in drivers:
            return spelling
    raise Denied(
        "DriverMissing",
        f"{function.address} needs the driver {module}, which is not loaded: run `modprobe {module}`, and list it in "
        "/etc/modules-load.d for the next boot",
        retryable=True,
    )


def _module(tree: Tree, modalias: str) -> str:
    matching = [(pattern.count("*"), pattern, module) for pattern, module in _aliases(tree)
                if fnmatch.fnmatchcase(modalias, pattern)]  # fmt: skip
    return min(matching)[2] if matching else GENERIC


def _aliases(tree: Tree) -> Iterator[tuple[str, str]]:
    """Patterns of modaliases, and the module for each."""
    kernel = tree.proc.folder("sys", "kernel") if tree.proc else None
    release = kernel.text("osrelease") if kernel else None
    folder = tree.folder("lib", "modules", release) if release and is_name(release) else None
    content = (folder.raw("modules.alias", _MAX_BYTES) if folder else None) or b""
    at = content.find(_PREFIX)  # a few lines of twenty thousand, in a file that every prepare reads
    while at >= 0:
        end = content.find(b"\n", at)
        words = content[at : end if end >= 0 else None].decode("latin-1").split()
        if len(words) == 3:
            yield words[1].removeprefix("vfio_pci:"), words[2]
        at = content.find(_PREFIX, at + 1)
