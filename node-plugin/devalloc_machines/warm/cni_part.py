"""The part of a warm setup that CNI plugins make: an interface in its namespace, with an address."""

from __future__ import annotations

import errno
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from devalloc_machines.warm import cni
from devalloc_machines.warm.addresses import UPLINK, CniNetwork
from devalloc_machines.warm.cni import Attachment
from devalloc_machines.warm.network import namespace_inode
from devalloc_machines.warm.setup import Setup, SetupPart
from devalloc_node.errors import raise_first
from devalloc_node.host.network_namespace import has_interface, inside, interface_index, netlink
from devalloc_node.model.network_address import NetworkAddress

DELETE_SECONDS = 60.0
"""How long DEL of all plugins of a setup may take."""


@dataclass(frozen=True, slots=True)
class CniPart(SetupPart):
    network: CniNetwork | None
    """None: nothing is added, and what there is is deleted."""
    cache: Path
    """The folder of what was added."""
    name: str = "cni"

    def make(self, setup: Setup) -> Setup:
        if self.network is None:
            raise ValueError("warm setups here have no CNI network")
        if cni.read_attachment(self.cache, setup.id) is not None:
            raise FileExistsError(errno.EEXIST, "an attachment of that id already exists", str(self.cache))
        folders = tuple(map(str, self.network.bin_dirs))
        attachment = Attachment(setup.id, str(setup.namespace), setup.own_mac, cni.load_list(self.network), folders)
        cni.write_attachment(self.cache, attachment)
        attachment = cni.add(attachment, self.network.seconds)
        cni.write_attachment(self.cache, attachment)
        cni.check(attachment, self.network.seconds)
        return replace(setup, network=address_of(attachment, setup))

    def remove(self, setup: Setup) -> None:
        attachment = cni.read_attachment(self.cache, setup.id)
        if attachment is None:
            return
        try:
            is_there = namespace_inode(setup.namespace) == setup.inode
        except OSError:
            is_there = False
        if not is_there:
            attachment = replace(attachment, namespace="")
        elif attachment.result is not None:
            with suppress(OSError):  # its interface is gone
                _give_back(setup)
        delete(self.cache, attachment)

    def is_whole(self, setup: Setup) -> bool:
        if self.network is None or setup.network is None:
            return False
        try:
            attachment = cni.read_attachment(self.cache, setup.id)
            is_same = attachment is not None and attachment.network == cni.load_list(self.network)
            return is_same and inside(setup.namespace, lambda: has_interface(UPLINK))
        except OSError:
            return False


def delete(cache: Path, attachment: Attachment) -> None:
    """Undo what was added. Raises OSError."""
    cni.delete(attachment, DELETE_SECONDS)
    cni.drop_attachment(cache, attachment.id)


def delete_all_but(cache: Path, ids: Collection[str]) -> None:
    """Undo what was added for setups that are gone, such as those of another boot. Raises OSError: the rest is deleted
    all the same."""
    errors = []
    for name in cni.attachments(cache):
        if name in ids:
            continue
        try:
            if (attachment := cni.read_attachment(cache, name)) is not None:
                delete(cache, replace(attachment, namespace=""))
        except OSError as error:
            errors.append(error)
    raise_first(errors)


def address_of(attachment: Attachment, setup: Setup) -> NetworkAddress:
    """Who the guest is: it gets the address, and the MAC that the interface has. Raises OSError."""

    def mac() -> str:
        if not has_interface(UPLINK):
            raise OSError(errno.ENODEV, f"made no interface {UPLINK}", f"network {attachment.network.name}")
        with netlink() as route:
            (link,) = route.link("get", index=interface_index(UPLINK))
            return str(link.get_attr("IFLA_ADDRESS"))

    address, prefix, gateway, nameservers = cni.ipv4_of(attachment)
    try:
        return NetworkAddress(address, prefix, inside(setup.namespace, mac), gateway, nameservers)
    except ValueError as error:
        raise OSError(errno.EPROTO, f"returned an invalid result: {error}", attachment.network.name) from error


def _give_back(setup: Setup) -> None:
    """Give the interface what the guest has had of it: plugins look for it there. Raises OSError."""
    network = setup.network
    if network is None:
        return

    def act() -> None:
        with netlink() as route:
            index = interface_index(UPLINK)
            if any(each.get_attr("IFA_ADDRESS") == network.address for each in route.get_addr(index=index, family=2)):
                return
            route.addr("add", index=index, address=network.address, prefixlen=network.prefix)

    inside(setup.namespace, act)
