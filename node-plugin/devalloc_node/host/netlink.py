"""Settings of VFs by netlink, as ``ip link show`` and ``ip link set … vf`` have them."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from devalloc_node.host.boundary import VfSettings
from devalloc_node.model.step import Value

_WITH_VFS = 1 | 8  # RTEXT_FILTER_VF | RTEXT_FILTER_SKIP_STATS
"""Without their statistics, as ``ip link`` asks: those of 200 VFs and more do not fit into the attribute (64 KiB)."""
_LINK_STATES = ("auto", "enable", "disable")  # in the order of IFLA_VF_LINK_STATE_*
_UNSET = 2**32 - 1
"""What the kernel answers for a switch that the driver does not have."""


def vf_settings(interface: str, index: int) -> VfSettings:
    """What the PF's interface says of a VF; only what its driver knows. Raises OSError: ENODEV where there is no such
    interface or VF."""
    with _route() as route:
        return settings_of(_link(route, interface), interface, index)


def set_vf(interface: str, index: int, settings: VfSettings) -> None:
    """Set them, all in one message. Raises OSError with the kernel's errno."""
    with _route() as route:
        link = _link(route, interface)
        now = settings_of(link, interface, index)
        route.link("set", index=link["index"], vf=request(index, now, settings))


def settings_of(link: Any, interface: str, index: int) -> dict[str, Value]:
    """The settings of one VF out of the kernel's answer about its PF; none where its driver tells and sets none."""
    listed = link.get_attr("IFLA_VFINFO_LIST")
    for info in listed.get_attrs("IFLA_VF_INFO") if listed is not None else ():
        mac = info.get_attr("IFLA_VF_MAC")
        if mac is None or mac["vf"] != index:
            continue
        settings: dict[str, Value] = {"mac": mac["mac"]}
        vlan, rate = info.get_attr("IFLA_VF_VLAN"), info.get_attr("IFLA_VF_RATE")
        if vlan is not None:
            settings |= {"vlan": vlan["vlan"], "vlanQos": vlan["qos"]}
        if rate is not None:
            settings |= {"minTxRate": rate["min_tx_rate"], "maxTxRate": rate["max_tx_rate"]}
        for name, attribute, field in (("trust", "TRUST", "trust"), ("spoofCheck", "SPOOFCHK", "spoofchk")):
            switch = info.get_attr(f"IFLA_VF_{attribute}")
            if switch is not None and switch[field] != _UNSET:
                settings[name] = bool(switch[field])
        state = info.get_attr("IFLA_VF_LINK_STATE")
        if state is not None and state["link_state"] < len(_LINK_STATES):
            settings["linkState"] = _LINK_STATES[state["link_state"]]
        return settings
    if (link.get_attr("IFLA_NUM_VF") or 0) > index:
        return {}
    raise OSError(errno.ENODEV, f"{os.strerror(errno.ENODEV)}: no VF {index}", interface)


def request(index: int, now: VfSettings, wanted: VfSettings) -> dict[str, Any]:
    """The ``vf`` argument of pyroute2. VLAN and rates are pairs: what of one is not asked for stays as it is."""
    arguments: dict[str, Any] = {"vf": index}
    both = {**now, **wanted}
    if "mac" in wanted:
        arguments["mac"] = wanted["mac"]
    if wanted.keys() & {"vlan", "vlanQos"}:
        arguments["vlan"] = {"vlan": both.get("vlan", 0), "qos": both.get("vlanQos", 0)}
    if wanted.keys() & {"minTxRate", "maxTxRate"}:
        arguments["rate"] = {"min_tx_rate": both.get("minTxRate", 0), "max_tx_rate": both.get("maxTxRate", 0)}
    if "trust" in wanted:
        arguments["trust"] = int(wanted["trust"])
    if "spoofCheck" in wanted:
        arguments["spoofchk"] = int(wanted["spoofCheck"])
    if "linkState" in wanted:
        arguments["link_state"] = _LINK_STATES.index(wanted["linkState"])
    return arguments


def _link(route: Any, interface: str) -> Any:
    try:
        index = socket.if_nametoindex(interface)
    except OSError as error:  # without an errno
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), interface) from error
    answer = list(route.link("get", index=index, ext_mask=_WITH_VFS))
    if not answer:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), interface)
    return answer[0]


@contextmanager
def _route() -> Iterator[Any]:
    from pyroute2 import IPRoute  # 0.2 s, which only hosts with VFs of network cards need
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        with IPRoute() as route:
            yield route
    except NetlinkError as error:
        raise OSError(error.code, os.strerror(error.code)) from error
