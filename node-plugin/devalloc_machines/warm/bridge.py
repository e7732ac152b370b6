"""The built-in network of warm setups: a bridge of this host, and a veth pair from it into each setup's namespace.

The bridge, its rules and their table are devalloc's own: a record names them before they are made, and the bridge has a
MAC that only it has, so that one of another program with the same name is never touched. They are there while setups
use them. Whatever is inside a namespace is in `devalloc_machines.warm.guest_port`.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from devalloc_machines.warm.addresses import UPLINK, BridgeNetwork, derived_mac
from devalloc_machines.warm.network import ForeignNameError, namespace_inode
from devalloc_machines.warm.setup import Setup, SetupPart
from devalloc_node.errors import Denied, Failed, raise_first
from devalloc_node.host import firewall
from devalloc_node.host.network_namespace import has_interface, in_a_thread, netlink
from devalloc_node.model.network_address import NetworkAddress

_one_at_a_time = threading.Lock()
"""The bridge is made by who comes first, and removed while no thread makes one."""
_TABLE_MARK = "warm setups of devalloc in"
_LINK_LOCAL = "169.254.0.0/16"
"""No router may forward it (RFC 3927, 2.7). There clouds, and agents on the host, answer with the credentials of the
host."""
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
_MAX_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class HostBridge:
    """The bridge of one network, and its record."""

    network: BridgeNetwork
    run: Path
    """The pool's folder."""

    @property
    def mac(self) -> str:
        return derived_mac("bridge", str(self.run), self.network.bridge)

    @property
    def table(self) -> str:
        return f"devalloc_{self.network.bridge}"

    @property
    def record(self) -> Path:
        return _folder(self.run) / f"{self.network.bridge}.json"


def host_interface(setup: Setup) -> str:
    """The host's end of a setup's veth pair."""
    return "dvw" + derived_mac("veth", setup.id).replace(":", "")[2:]


def _host_mac(setup: Setup) -> str:
    return derived_mac("veth host", setup.id)


def make_bridge(bridge: HostBridge) -> None:
    """Make the bridge and its rules, or find them as they are to be. Raises OSError, Denied ``BridgeForeign``,
    ``BridgeInUse``, ``SubnetInUse``, ``ForwardingOff``."""
    with _one_at_a_time:
        in_a_thread(lambda: _make_bridge(bridge))


def _make_bridge(bridge: HostBridge) -> None:
    network = bridge.network
    before = _read_record(bridge.record)
    with netlink() as route:
        link = _link(route, network.bridge)
        if link is not None and not (before is not None and _is_own(link, "bridge", bridge.mac)):
            raise Denied(
                "BridgeForeign",
                f"interface {network.bridge} exists and was not made by this plugin; choose another --warm-bridge",
            )
        if link is not None and before is not None and before["subnet"] != str(network.subnet):
            if ports := _ports(route, link["index"]):
                raise Denied(
                    "BridgeInUse",
                    f"bridge {network.bridge} still has the subnet {before['subnet']} for {ports} setups; return them, "
                    "or choose another --warm-bridge",
                )
            _remove_bridge(bridge)
            link = before = None
        rules, table = _rules(bridge), _table_owner(bridge)
        if table == "other":
            raise Denied(
                "TableForeign",
                f"nftables has a table inet {bridge.table} that this plugin did not make; choose another --warm-bridge",
            )
        is_same = before is not None and before.get("rules") == rules and before.get("ready")
        if link is not None and is_same and table == "own":
            return
        if network.uplink != "none" and _FORWARDING.read_text().strip() == "0":
            raise Denied(
                "ForwardingOff",
                f"--warm-uplink {network.uplink} needs a host that forwards packets, and net.ipv4.ip_forward is 0: "
                "run 'sysctl -w net.ipv4.ip_forward=1', or use --warm-uplink none",
            )
        if link is None:
            _check_free(route, network)
        _write_record(bridge, ready=False)
        if link is None:
            route.link("add", ifname=network.bridge, kind="bridge", address=bridge.mac, br_mcast_snooping=0)
            link = _link(route, network.bridge)
            assert link is not None
        again = f"delete table inet {bridge.table}\n" if table == "own" else ""
        firewall.load_rules(network.nft, again + rules)
        with _Suppressed(errno.EEXIST):
            route.addr("add", index=link["index"], address=str(network.gateway), prefixlen=network.subnet.prefixlen)
        route.link("set", index=link["index"], state="up")
        _write_record(bridge, ready=True)


def remove_unused_bridges(run: Path, nft: str) -> None:
    """Remove all bridges of this pool that no setup is on. Raises OSError, Failed: the rest is removed all the same."""
    errors: list[OSError | Failed] = []
    with _one_at_a_time:
        for path in sorted(_folder(run).glob("*.json")) if _folder(run).is_dir() else ():
            try:
                in_a_thread(partial(_remove_unused, path, run, nft))
            except (OSError, Failed) as error:
                errors.append(error)
    raise_first(errors)


def _remove_unused(path: Path, run: Path, nft: str) -> None:
    record = _read_record(path)
    if record is None:
        raise Failed("RecordsUnavailable", f"cannot read the record of a bridge, {path}; remove both by hand")
    bridge = HostBridge(BridgeNetwork(path.stem, ipaddress.IPv4Network(record["subnet"]), nft=nft), run)
    with netlink() as route:
        link = _link(route, path.stem)
        if link is not None and _is_own(link, "bridge", bridge.mac) and _ports(route, link["index"]):
            return
    _remove_bridge(bridge)


def _remove_bridge(bridge: HostBridge) -> None:
    """Also of what is half made. One of another program that took its name stays."""
    _remove_table(bridge)
    with netlink() as route:
        link = _link(route, bridge.network.bridge)
        if link is not None and _is_own(link, "bridge", bridge.mac):
            route.link("del", index=link["index"])
    bridge.record.unlink(missing_ok=True)
    with suppress(OSError):  # others are in it
        bridge.record.parent.rmdir()


def _remove_table(bridge: HostBridge) -> None:
    """One of another program that took its name stays. Raises OSError."""
    if _table_owner(bridge) == "own":
        firewall.load_rules(bridge.network.nft, f"delete table inet {bridge.table}\n")


def _table_owner(bridge: HostBridge) -> Literal["none", "own", "other"]:
    """Whose the table of its name is. Raises OSError."""
    text = firewall.read_table(bridge.network.nft, "inet", bridge.table)
    if text is None:
        return "none"
    return "own" if f'comment "{_TABLE_MARK} {bridge.run}"' in text else "other"


def _rules(bridge: HostBridge) -> str:
    """Who may send what through the host. All of it is about packets from and to the bridge."""
    network, name = bridge.network, bridge.network.bridge
    to_host = "accept" if network.reach_host else "drop"
    between = "drop" if network.isolated else "accept"
    out = "drop" if network.uplink == "none" else "accept"
    back = {"none": "drop", "nat": "ct state established,related accept", "route": "accept"}[network.uplink]
    nat = f'ip saddr {network.subnet} oifname != "{name}" masquerade' if network.uplink == "nat" else ""
    # A host may redirect the metadata address (kube2iam, agents of ECS), and does so before these chains: conntrack has
    # the address that the guest used. A packet without conntrack is not redirected.
    link_local = [f'iifname "{name}" {address} {_LINK_LOCAL} drop' for address in ("ct original ip daddr", "ip daddr")]
    lines = [
        f"table inet {bridge.table} {{",
        f'comment "{_TABLE_MARK} {bridge.run}"',
        "chain to_host { type filter hook input priority filter; policy accept;",
        f'iifname != "{name}" accept',
        *link_local,
        "ct state established,related accept",
        "icmp type echo-request accept",
        f"{to_host}",
        "}",
        "chain through_host { type filter hook forward priority filter; policy accept;",
        f'iifname "{name}" oifname "{name}" {between}',
        *link_local,
        f'iifname "{name}" {out}',
        f'oifname "{name}" {back}',
        f'oifname "{name}" drop' if network.uplink == "nat" else "",
        "}",
        f"chain leave_host {{ type nat hook postrouting priority srcnat; policy accept;\n{nat}\n}}" if nat else "",
        "}",
    ]
    return "\n".join(filter(None, lines)) + "\n"


@dataclass(frozen=True, slots=True)
class VethPart(SetupPart):
    """The veth pair between the bridge and a setup's namespace."""

    network: BridgeNetwork | None
    """None: none is made, and what there is is removed."""
    run: Path
    name: str = "veth"

    def make(self, setup: Setup) -> Setup:
        if self.network is None:
            raise ValueError("warm setups here have no bridge")
        bridge = HostBridge(self.network, self.run)
        make_bridge(bridge)
        make_veth(bridge, setup)
        return setup

    def remove(self, setup: Setup) -> None:
        remove_veth(setup)

    def is_whole(self, setup: Setup) -> bool:
        if self.network is None or setup.network is None:
            return False
        bridge = HostBridge(self.network, self.run)
        is_inside = ipaddress.IPv4Address(setup.network.address) in self.network.subnet
        is_same = replace(setup.network, address="0.0.0.0") == replace(
            own_address(self.network, setup, setup.network.address), address="0.0.0.0"
        )
        try:
            return is_inside and is_same and in_a_thread(lambda: _is_veth_whole(bridge, setup))
        except OSError:
            return False

    def lives(self, setup: Setup) -> bool:
        return has_interface(host_interface(setup))


def own_address(network: BridgeNetwork, setup: Setup, address: str) -> NetworkAddress:
    """What the guest of a setup has in this network."""
    gateway = "" if network.uplink == "none" and not network.reach_host else str(network.gateway)
    return NetworkAddress(address, network.subnet.prefixlen, setup.own_mac, gateway, network.nameservers)


def make_veth(bridge: HostBridge, setup: Setup) -> None:
    """Raises OSError, FileExistsError."""

    def act() -> None:
        descriptor = os.open(setup.namespace, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if namespace_inode(setup.namespace) != setup.inode:
                raise OSError(errno.ESTALE, "is the mount of another namespace", str(setup.namespace))
            with netlink() as route:
                link = _link(route, bridge.network.bridge)
                if link is None:
                    raise OSError(errno.ENODEV, "the bridge is gone", bridge.network.bridge)
                peer = {"ifname": UPLINK, "net_ns_fd": descriptor, "address": derived_mac("veth guest", setup.id)}
                name = host_interface(setup)
                route.link("add", ifname=name, kind="veth", address=_host_mac(setup), master=link["index"], peer=peer)
                end = _link(route, name)
                if end is None:
                    raise OSError(errno.ENODEV, "has just been removed", name)
                if bridge.network.isolated:
                    route.brport("set", index=end["index"], isolated=1)
                route.link("set", index=end["index"], state="up")
        finally:
            os.close(descriptor)

    in_a_thread(act)


def remove_veth(setup: Setup) -> None:
    """Both ends. Nothing to do if there is none. Raises OSError, ForeignNameError."""

    def act() -> None:
        name = host_interface(setup)
        with netlink() as route:
            if (link := _link(route, name)) is None:
                return
            if not _is_own(link, "veth", _host_mac(setup)):
                raise ForeignNameError(errno.EPERM, "is not the interface that was made for it", name)
            with _suppress_gone():
                route.link("del", index=link["index"])

    in_a_thread(act)


def _is_veth_whole(bridge: HostBridge, setup: Setup) -> bool:
    with netlink() as route:
        end, master = _link(route, host_interface(setup)), _link(route, bridge.network.bridge)
        if end is None or master is None or not _is_own(end, "veth", _host_mac(setup)):
            return False
        if end.get_attr("IFLA_MASTER") != master["index"] or not _is_own(master, "bridge", bridge.mac):
            return False
        isolated = end.get_nested("IFLA_LINKINFO", "IFLA_INFO_SLAVE_DATA", "IFLA_BRPORT_ISOLATED")
        return bool(isolated) == bridge.network.isolated


def _check_free(route: Any, network: BridgeNetwork) -> None:
    """Whether this host has no other use of the subnet. Raises Denied ``SubnetInUse``."""
    for each in route.get_routes(family=2):
        destination = each.get_attr("RTA_DST")
        if destination is None or each.get_attr("RTA_TABLE") not in (253, 254, None):
            continue  # a default route is no use of it; that of the kernel's own addresses is with their subnets
        if network.subnet.overlaps(ipaddress.IPv4Network(f"{destination}/{each['dst_len']}", strict=False)):
            raise Denied(
                "SubnetInUse",
                f"the subnet of warm setups, {network.subnet}, overlaps with this host's route to {destination}/"
                f"{each['dst_len']}; choose another --warm-subnet",
            )


def _link(route: Any, name: str) -> Any:
    """None if there is no interface of that name."""
    indices = route.link_lookup(ifname=name)
    if not indices:
        return None
    with _suppress_gone():
        (link,) = route.link("get", index=indices[0])
        return link
    return None


def _is_own(link: Any, kind: str, mac: str) -> bool:
    is_kind = link.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND") == kind
    return bool(is_kind and link.get_attr("IFLA_ADDRESS") == mac)


def _ports(route: Any, bridge: int) -> int:
    return sum(link.get_attr("IFLA_MASTER") == bridge for link in route.get_links())


class _Suppressed:
    """Ignores errors of netlink with these numbers."""

    def __init__(self, *numbers: int) -> None:
        self._numbers = numbers

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        from pyroute2.netlink.exceptions import NetlinkError

        return isinstance(error, NetlinkError) and error.code in self._numbers


def _suppress_gone() -> _Suppressed:
    return _Suppressed(errno.ENODEV)


def _folder(run: Path) -> Path:
    return run / "bridges"


def _read_record(path: Path) -> Mapping[str, Any] | None:
    """None if it is not there or cannot be read."""
    try:
        with open(path, "rb") as file:
            content = json.loads(file.read(_MAX_BYTES))
        ipaddress.IPv4Network(content["subnet"])
        return dict(content)
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _write_record(bridge: HostBridge, *, ready: bool) -> None:
    """Raises OSError."""
    bridge.record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = {"subnet": str(bridge.network.subnet), "rules": _rules(bridge), "ready": ready}
    temporary = bridge.record.with_suffix(".new")
    temporary.write_text(json.dumps(content))
    temporary.replace(bridge.record)
