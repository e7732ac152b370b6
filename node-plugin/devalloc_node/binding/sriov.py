"""Binding ``sriov``: one virtual function of a card, created if need be, set up by its PF, and passed through."""

from __future__ import annotations

from collections.abc import Collection, Generator
from dataclasses import dataclass, replace

from devalloc.inventory import nic
from devalloc.inventory.cards import VirtualFunction
from devalloc.inventory.locate import VfDevice, read_function
from devalloc.inventory.pci import PciFunction
from devalloc.inventory.sysfs import Tree
from devalloc_node.binding import checks, vf_count
from devalloc_node.binding.binding import HealthState, Steps
from devalloc_node.binding.config import BindingConfig
from devalloc_node.binding.health import health_of_functions
from devalloc_node.binding.locate import locate_device_of_kind
from devalloc_node.binding.vf_settings import settings_step, wanted_settings
from devalloc_node.binding.vfio_handover import (
    describe_passed_through,
    function_key,
    function_keys,
    handover_steps,
    with_mac,
)
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed
from devalloc_node.host.boundary import Host
from devalloc_node.model.grant import GrantedDevice
from devalloc_node.model.prepared import PreparedDevice
from devalloc_node.model.step import Step


@dataclass(frozen=True, slots=True)
class Sriov:
    """Passes a VF through. The PF stays with the host, whatever the host uses it for."""

    host: Host
    config: BindingConfig
    name: str = "sriov"
    shares: bool = False
    located: PciFunction | VirtualFunction | None = None
    """The VF as it was when this binding was chosen for it: enough for ``keys``; ``prepare`` looks again."""

    def keys(self, granted: GrantedDevice, owner: str, held: Collection[str]) -> tuple[str, ...]:
        tree = self.host.tree()
        vf = self.located or locate_device_of_kind(tree, self.config, granted, VfDevice).vf
        function = vf.function if isinstance(vf, VirtualFunction) else vf
        return (function_key(vf.address),) if function is None else tuple(function_keys(tree, [function]))

    def prepare(self, granted: GrantedDevice, keys: Collection[str], deadline: Deadline) -> Steps:
        tree = self.host.tree()
        device = locate_device_of_kind(tree, self.config, granted, VfDevice)
        vf = device.vf
        checks.refuse_kind(self.config, device.port, "vf")
        wanted = wanted_settings(granted)
        _refuse_settings(vf, wanted)
        function = vf.function
        checks.refuse_in_use(tree, device.port, [function] if function is not None else [])
        if function is not None:
            checks.refuse_vgpus(function)
            # The card's last user may remove them until this claim counts as another: then they are not as they were.
            # Whether others would get a driver by themselves does not matter to it.
            yield replace(vf_count.count_step(vf.pf, None), more=not function.on_vfio)
        else:
            yield from self._created(vf)
            tree = self.host.tree()
            function = _existing_function(tree, vf)
        checks.refuse_group(tree, self.config, [function])
        mac = None
        if _has_settings(vf.pf):
            step = settings_step(self.host, vf, wanted)
            mac = step.after.get("mac")
            yield replace(step, more=not function.on_vfio)
        yield from handover_steps(tree, [function])
        return with_mac(describe_passed_through(self.host, granted, [function]), mac)

    def observe(self, device: PreparedDevice) -> HealthState:
        return health_of_functions(self.host.tree(), device)

    def _created(self, vf: VirtualFunction) -> Generator[Step, None, None]:
        """The steps after which the VF is there."""
        pf = vf.pf
        total = pf.sriov.total if pf.sriov else 0
        count = self.config.vf_count(total)
        if vf.index >= count:
            which = f"{vf.address} will be VF {vf.index} of {pf.address}"
            raise Denied("VfNotConfigured", f"{which}, which will have {count} of at most {total}")
        if pf.iommu_group is None:
            raise Denied(
                "NoIommuGroup",
                f"{pf.address} has no IOMMU group, so its VFs would have none either (is the IOMMU enabled?)",
            )
        yield replace(vf_count.autoprobe_step(pf), more=True)
        yield vf_count.count_step(pf, count)


def _existing_function(tree: Tree, vf: VirtualFunction) -> PciFunction:
    function = read_function(tree, vf.address)
    if function is None or function.physfn != vf.pf.address:
        raise Failed("VfsMissing", f"{vf.address} is not a VF of {vf.pf.address} although its VFs were created")
    return function


def _has_settings(pf: PciFunction) -> bool:
    return nic.is_nic(pf) and bool(pf.folder.names("net"))


def _refuse_settings(vf: VirtualFunction, wanted: dict[str, object]) -> None:
    if wanted and not _has_settings(vf.pf):
        raise Denied(
            "ConfigUnsupported",
            f"{vf.pf.address} has no network interface in this namespace, which {', '.join(wanted)} needs",
        )
