"""Steps of kind ``vf-settings``: MAC, VLAN, rates and switches of a VF, which its PF enforces.

The target is ``<address of the PF>/<index of the VF>``. A step tells all settings there are, so that undoing it gives
the next owner what was there before: no MAC and no VLAN of this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from devalloc.api.device_class import VfConfig
from devalloc.inventory import nic
from devalloc.inventory.cards import VirtualFunction
from devalloc.inventory.class_devices import ClassDevices
from devalloc_node.binding import host_changes
from devalloc_node.binding.binding import configs_of
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed
from devalloc_node.host.boundary import Host
from devalloc_node.model.grant import Configs, GrantedDevice
from devalloc_node.model.step import Step, Value

ONLY_ADMIN = ("vlan", "vlanQos", "trust", "spoofCheck")
"""What a claim never sets (T6): it would leave the network that it is confined to."""

_TOGETHER = (
    ("mac",),
    ("vlan", "vlanQos"),
    ("minTxRate", "maxTxRate"),
    ("trust",),
    ("spoofCheck",),
    ("linkState",),
)
"""What the kernel takes in one message, in the order in which it is set."""


@dataclass(frozen=True, slots=True)
class VfSettingsKind:
    """Reads and sets them by netlink, through the PF's interface."""

    host: Host

    def read(self, target: str) -> Value:
        interface, index = self._place(target)
        try:
            return dict(self.host.vf_settings(interface, index))
        except OSError as error:
            self._place(target)  # it may have gone with its card's last user meanwhile, and come again
            raise host_changes.refused_by_kernel(f"reading VF {index} of {interface}", error) from error

    def apply(self, target: str, value: Value, deadline: Deadline) -> None:
        now = self.read(target)
        wanted = {name: setting for name, setting in value.items() if now.get(name) != setting}
        if not wanted:
            return
        interface, index = self._place(target)
        # One message each, so that a refusal says of what: the kernel stops at the first that it does not like.
        for names in _TOGETHER:
            some = {name: setting for name, setting in wanted.items() if name in names}
            try:
                if some:
                    self.host.set_vf(interface, index, some)
            except OSError as error:
                hint = (
                    " (a rate cannot exceed the link speed; some drivers need a link)" if "maxTxRate" in names else ""
                )
                raise host_changes.refused_by_kernel(
                    f"setting {_explicit_settings(some)} of VF {index} of {interface}{hint}", error
                ) from error
        after = self.read(target)
        missing = {name: setting for name, setting in wanted.items() if after.get(name) != setting}
        if missing:
            raise Failed("VfSettingRefused", f"VF {index} of {interface} did not take {_explicit_settings(missing)}")

    def _place(self, target: str) -> tuple[str, int]:
        address, _, index = target.partition("/")
        pf = host_changes.folder(self.host.tree(), address)
        if pf.link(f"virtfn{int(index)}") is None:
            raise Denied("DeviceGone", f"VF {index} of {address} no longer exists")
        interface = nic.own_interface(ClassDevices(pf))
        if interface is None:
            raise Failed(
                "NoInterface",
                f"{address} has no network interface in this namespace, which configuring its VFs needs",
            )
        return interface.name, int(index)


def settings_step(host: Host, vf: VirtualFunction, wanted: Mapping[str, Value]) -> Step:
    target = f"{vf.pf.address}/{vf.index}"
    before = VfSettingsKind(host).read(target)
    unknown = sorted(wanted.keys() - before.keys())
    if unknown:
        raise Denied(
            "ConfigUnsupported",
            f"{vf.pf.address}: its driver {vf.pf.driver} does not support {', '.join(unknown)} for VFs",
        )
    after = {**before, **wanted}
    # Also if it is so already, for its user may change some of it: a trusted VF its MAC.
    return Step("vf-settings", target, before, after, noted=after == before)


def wanted_settings(granted: GrantedDevice) -> dict[str, Value]:
    """What the configs ask for: the class's above the claim's, the weightier above the others.

    Raises Denied ``ConfigInvalid`` or ``ConfigForbidden``.
    """
    settings: dict[str, Value] = {}
    for configs, of_class in ((granted.class_configs, True), (granted.claim_configs, False)):
        for spec in _specs(configs):
            forbidden = sorted(spec.keys() & set(ONLY_ADMIN)) if not of_class else []
            if forbidden:
                raise Denied("ConfigForbidden", f"a claim must not set {', '.join(forbidden)} of a VF; a class can")
            settings = {**spec, **settings}
    if "mac" in settings:
        settings["mac"] = settings["mac"].lower()  # as the kernel says it
    if settings.get("maxTxRate") and settings.get("minTxRate", 0) > settings["maxTxRate"]:
        raise Denied(
            "ConfigInvalid", f"minTxRate ({settings['minTxRate']}) is above maxTxRate ({settings['maxTxRate']})"
        )
    return settings


def _specs(configs: Configs) -> list[dict[str, Value]]:
    return [
        config.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        for config in configs_of(configs, VfConfig)
    ]


def _explicit_settings(settings: Mapping[str, Value]) -> str:
    return ", ".join(f"{name} to {setting}" for name, setting in sorted(settings.items()))
