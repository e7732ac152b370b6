"""Choose the VFIO driver of a function: vfio-pci, or a variant driver that supports the device.

Kernels tell it in ``modules.alias`` with lines ``alias vfio_pci:v000015B3d0000101E… mlx5_vfio_pci``; of those that
match the function's modalias the one with the fewest wildcards wins, as libvirt does it.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator

from devalloc.inventory.pci import PciFunction
from devalloc.inventory.sysfs import Tree
from devalloc_node.errors import Denied
from devalloc_node.host.files import is_name

GENERIC = "vfio-pci"
_PREFIX = b"alias vfio_pci:"
_MAX_BYTES = 16 << 20


Aliases = tuple[tuple[str, str], ...]
"""Patterns of modaliases, and the module for each."""

_aliases_cache: dict[str, tuple[tuple[int, ...], Aliases]] = {}
"""By path, what a ``modules.alias`` says and which file that was: every hand-over asks, and it has twenty thousand
lines."""


def vfio_driver(tree: Tree, function: PciFunction) -> str:
    """The name of the driver's folder below ``bus/pci/drivers``.

    Modules are not loaded by the plugin, and a lesser driver is never taken instead of the right one: raises Denied
    ``DriverMissing``, which names the module to load; ``DriverUnknown`` where the list of modules is not there.
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


def _aliases(tree: Tree) -> Aliases:
    kernel = tree.proc.folder("sys", "kernel") if tree.proc else None
    release = kernel.text("osrelease") if kernel else None
    folder = tree.folder("lib", "modules", release) if release and is_name(release) else None
    if folder is None:
        if _has_modules(tree):
            raise Denied(
                "DriverUnknown",
                f"cannot choose the VFIO driver: /lib/modules/{release or '…'} not found (in a container, mount the "
                "host's; if an upgrade removed it, reboot the host)",
                retryable=True,
            )
        return ()
    identity = _identity(f"{folder.path}/modules.alias")  # before it is read: what is written meanwhile is read again
    before, aliases = _aliases_cache.get(folder.path, (None, ()))
    if identity is None or before != identity:
        content = folder.raw("modules.alias", _MAX_BYTES)
        aliases = tuple(_listed(content or b""))
        if identity is not None and content is not None:
            _aliases_cache[folder.path] = identity, aliases
    return aliases


def _has_modules(tree: Tree) -> bool:
    """Whether VFIO's driver was loaded as a module, so that there is a list of them somewhere; others are built in."""
    module = tree.sys.folder("module", "vfio_pci") if tree.sys else None
    return module is not None and "initstate" in module.names()


def _identity(path: str) -> tuple[int, ...] | None:
    """Another one for another content; None where there is none."""
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def _listed(content: bytes) -> Iterator[tuple[str, str]]:
    at = content.find(_PREFIX)
    while at >= 0:
        end = content.find(b"\n", at)
        words = content[at : end if end >= 0 else None].decode("latin-1").split()
        if len(words) == 3:
            yield words[1].removeprefix("vfio_pci:"), words[2]
        at = content.find(_PREFIX, at + 1)
