"""How a machine's guest gets the address that its sandbox has in a network."""

from __future__ import annotations

import ipaddress
from dataclasses import replace

from devalloc_machines.qemu.spec import MachineSpec, Nic
from devalloc_node.errors import Denied
from devalloc_node.model.network_address import NetworkAddress

_ARGUMENT = "ip="


def kernel_argument(network: NetworkAddress, device: str = "") -> str:
    """For the guest's kernel, or its initramfs: ``ip=`` as the kernel's admin-guide/nfs/nfsroot.rst describes it.
    ``device``: in the guest; empty: its first network card."""
    mask = ipaddress.IPv4Interface(network.interface).netmask
    parts = [network.address, "", network.gateway, str(mask), "", device, "off", *network.nameservers[:2]]
    return _ARGUMENT + ":".join(parts)


def with_address(spec: MachineSpec, network: NetworkAddress | None) -> MachineSpec:
    """The machine as it is started there: its warm card has the MAC of the network, and its kernel gets the address
    unless its arguments have an ``ip=`` of their own. Raises Denied (``MacNotAllowed``)."""
    if network is None:
        return spec
    nics: list[Nic] = []
    for number, nic in enumerate(spec.nics):
        if nic.warm and nic.mac is not None and nic.mac.lower() != network.mac:
            raise Denied(
                "MacNotAllowed",
                f"machine {spec.key}: nics[{number}].mac is {nic.mac}, but in a warm setup with a network the card has "
                "the MAC of its setup; remove the field",
            )
        nics.append(replace(nic, mac=network.mac) if nic.warm else nic)
    append = spec.append
    if spec.kernel is not None and not any(word.startswith(_ARGUMENT) for word in append.split()):
        number = next(number for number, nic in enumerate(nics) if nic.warm)
        device = "" if len(nics) == 1 else f"eth{number}"
        append = f"{append} {kernel_argument(network, device)}".strip()
    return replace(spec, nics=tuple(nics), append=append)
