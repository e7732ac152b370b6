"""Hand functions over to VFIO in two passes, so that no IOMMU group is ever half with the host and half with VFIO.

The VFIO driver of a function is vfio-pci, or a variant driver that supports the device. Kernels list these in
``modules.alias`` with lines ``alias vfio_pci:v000015B3d0000101E… mlx5_vfio_pci``; of those that match the function's
modalias the one with the fewest wildcards wins, as in libvirt.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import replace

from devalloc.api.device_class import VfioConfig
from devalloc.inventory.locate import group_members
from devalloc.inventory.pci import BRIDGE, PciFunction
from devalloc.inventory.resets import has_own_reset, reset_problem
from devalloc.inventory.sysfs import Tree
from devalloc_node.binding import host_changes
from devalloc_node.binding.binding import configs_of
from devalloc_node.binding.drivers import state
from devalloc_node.errors import Denied, Failed
from devalloc_node.host.boundary import Host
from devalloc_node.host.files import is_name
from devalloc_node.model.grant import Configs, GrantedDevice
from devalloc_node.model.step import NUMA_NODE, Attribute, PreparedDevice, Step

GENERIC = "vfio-pci"
_PREFIX = b"alias vfio_pci:"
_MAX_BYTES = 16 << 20


Aliases = tuple[tuple[str, str], ...]
"""Patterns of modaliases, and the module for each."""

_aliases_cache: dict[str, tuple[tuple[int, ...], Aliases]] = {}
"""By path, what a ``modules.alias`` says and which file that was: every hand-over asks, and it has twenty thousand
lines."""


def vfio_drivers(tree: Tree, functions: Sequence[PciFunction]) -> list[str]:
    """The names of their drivers: of the folders below ``bus/pci/drivers``.

    Modules are not loaded by the plugin, and a lesser driver is never taken instead of the right one: raises Denied
    ``DriverMissing``, which names the module to load; ``DriverUnknown`` if the list of modules is not there.
    """
    if not functions:
        return []
    aliases = _aliases(tree)
    loaded = set(tree.sys.names("bus", "pci", "drivers")) if tree.sys else set()
    return [_vfio_driver(function, aliases, loaded) for function in functions]


def _vfio_driver(function: PciFunction, aliases: Aliases, loaded: Collection[str]) -> str:
    module = _module(aliases, (function.folder.text("modalias") or "").removeprefix("pci:"))
    for spelling in (module, module.replace("_", "-"), module.replace("-", "_")):
        if spelling in loaded:
            return spelling
    raise Denied(
        "DriverMissing",
        f"{function.address} needs the driver {module}, which is not loaded: run `modprobe {module}`, and list it in "
        "/etc/modules-load.d for the next boot",
    )


def _module(aliases: Aliases, modalias: str) -> str:
    matching = [(pattern.count("*"), pattern, module) for pattern, module in aliases
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
    """Another one for another content; None if there is none."""
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


_PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
_PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
MAC = "mac"
VLAN = "vlan"
MDEV_TYPE = "mdevType"
VGPU_TYPE = "vgpuType"


def function_key(address: object) -> str:
    """The key of a PCI function in the journal."""
    return f"pci/{address}"


def function_keys(tree: Tree, functions: Sequence[PciFunction]) -> list[str]:
    """The keys of functions, and of all that share their IOMMU groups."""
    addresses = [function.address for function in functions]
    by_address = {function.address: function for function in functions}
    addresses += [peer.address for function in functions for peer in group_members(tree, function, by_address)
              if peer.base_class != BRIDGE]  # fmt: skip
    return [function_key(address) for address in dict.fromkeys(addresses)]


def pci_location(function: PciFunction) -> dict[str, Attribute]:
    """Where a function is, as Kubernetes names that: what of it is known."""
    attributes: dict[str, Attribute] = {_PCI_BUS_ID: str(function.address)}
    attributes |= {} if (numa := function.numa) is None else {NUMA_NODE: numa}
    return attributes | ({} if function.root is None else {_PCIE_ROOT: function.root})


def handover_steps(tree: Tree, functions: Sequence[PciFunction]) -> Generator[Step, None, None]:
    """The steps that give functions to their VFIO drivers. What VFIO has already is adopted, and stays there (T8)."""
    others = [function for function in functions if not function.on_vfio]
    moving = [*zip(others, vfio_drivers(tree, others), strict=True)]
    apart, bound = [], []
    theirs = sorted({function.driver for function, _ in moving if function.driver is not None})
    for function, driver in moving:
        before, after = state(function.folder), {"driver": driver, "override": driver}
        if len(moving) > 1:
            alone = {"driver": None, "override": driver, "next": theirs}
            apart.append(Step("driver", str(function.address), before, alone))
            before = alone
        bound.append(Step("driver", str(function.address), before, after))
    # Each pass is written down at once, and only when the one before it is done: see ``Step.more``.
    for steps in (apart, bound):
        for number, step in enumerate(steps, 1):
            yield replace(step, more=number < len(steps))
    # A function beside the main one may have no reset of its own: it is reset with the slot. The main one has none only
    # if the admin allows that (``checks.refuse_without_reset``).
    reset = [function for function in functions if has_own_reset(function)]
    if functions[0] not in reset and reset_problem(functions[0]) is None:
        reset.insert(0, functions[0])
    for number, function in enumerate(reset, 1):
        yield Step("reset", str(function.address), "clean", "used", more=number < len(reset))


def describe_passed_through(host: Host, granted: GrantedDevice, functions: Sequence[PciFunction]) -> PreparedDevice:
    """What functions are that were handed over, as they are read now. Raises Failed if they are not."""
    tree = host.tree()
    now = [host_changes.function(tree, str(function.address)) for function in functions]
    for function in now:
        if not function.on_vfio or function.iommu_group is None:
            raise Failed("DriverNotBound", f"{function.address} has the driver {function.driver}, not a VFIO driver")
    return PreparedDevice(
        requests=granted.requests,
        pool=granted.pool,
        device=granted.device,
        binding="vfio",
        functions=tuple(str(function.address) for function in now),
        nodes=tuple(dict.fromkeys(f"/dev/vfio/{function.iommu_group}" for function in now)),
        attributes=pci_location(now[0]),
        share=granted.share,
        rom_file=rom_file(granted),
    )


def with_network(device: PreparedDevice, mac: object, vlan: object = None) -> PreparedDevice:
    """The device with its hardware address and its VLAN among its attributes, if there are any: a VF may have no
    address yet, and 0 is no VLAN."""
    attributes: dict[str, Attribute] = {}
    if isinstance(mac, str) and mac.strip("0:"):
        attributes[MAC] = mac
    if isinstance(vlan, int) and vlan:
        attributes[VLAN] = vlan
    return replace(device, attributes={**device.attributes, **attributes}) if attributes else device


def rom_file(granted: GrantedDevice) -> str | None:
    """The option ROM that a class asks for; of several the weightier one. Raises Denied ``ConfigInvalid``;
    ``ConfigForbidden`` if a claim asks for one: it runs in the machine's firmware, and names a file of the host."""
    if any(_rom_files(granted.claim_configs)):
        raise Denied("ConfigForbidden", "a claim must not set romFile of a device; a class can")
    return next(_rom_files(granted.class_configs), None)


def _rom_files(configs: Configs) -> Iterator[str]:
    return (config.spec.rom_file for config in configs_of(configs, VfioConfig) if config.spec.rom_file is not None)


def refuse_rom_file(granted: GrantedDevice) -> None:
    """Raises Denied ``ConfigUnsupported`` if a config asks for an option ROM of a vGPU, which has none."""
    if rom_file(granted) is not None:
        raise Denied("ConfigUnsupported", f"{granted.device} is not a PCI function of its own, so it takes no romFile")
