"""Options that select the devices of a host."""

from __future__ import annotations

import re
import socket
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from devalloc.device_kinds import DEVICE_KINDS, DeviceKind, kinds_by_name, read_added_kinds
from devalloc.settings import EXISTING_FOLDER, BadSetting, OneOf, Whole, setting

if TYPE_CHECKING:
    from devalloc.inventory.config import InventoryConfig


_NETWORK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)
_PORT_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.ASCII | re.IGNORECASE)
"""A PCI address, also without its domain, as ``lspci`` shows it."""


def _port(text: str) -> str:
    """The name of an interface, or a PCI address as the attributes of devices have it."""
    address = _PORT_ADDRESS.fullmatch(text)
    return text if address is None else f"{address[1] or '0000'}:{address[2]}".lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryOptions:
    """Which host devalloc reads, and which of its devices it publishes."""

    sysfs_root: Path = setting(
        "Read this tree instead of the host's: the folder that contains sys, or the sys folder itself.",
        type=EXISTING_FOLDER,
        default=Path("/"),
        metavar="DIR",
    )
    node_name: str | None = setting("The node of the pools.", metavar="NAME", unset="the host name", usual=True)
    adopt: tuple[str, ...] = setting(
        "Offer this vGPU, which another program created, while it is unused. Repeatable.",
        default=(),
        metavar="mdev-UUID",
    )
    kinds: tuple[str, ...] = setting(
        "Only devices of this kind. Repeatable.",
        flag="--kind",
        type=OneOf([*DEVICE_KINDS], is_open=True),
        default=(),
        unset="all kinds",
    )
    device_kinds: tuple[str, ...] = setting(
        "Also publish these PCI devices, as a kind of this name: by class (hba=0107) or model (chip=1ae0:0063). Then "
        "name the kind with --allow. Repeatable.",
        flag="--device-kind",
        default=(),
        metavar="NAME=ID[,ID...]",
    )
    physical_networks: tuple[str, ...] = setting(
        "Network to which these ports lead, by interface or PCI address: the attribute physicalNetwork of the ports "
        "and their virtual functions. Repeatable.",
        flag="--physical-network",
        default=(),
        metavar="NAME=PORT[,PORT...]",
    )
    max_vfs: int | None = setting(
        "Maximum virtual functions to offer per port if none exist yet.",
        type=Whole(0),
        metavar="NUMBER",
        unset="all that it supports",
    )
    creatable_vfs: tuple[str, ...] = setting(
        "Also offer virtual functions that do not exist yet of this kind of devices: their driver can make them. "
        "Repeatable.",
        type=OneOf([*DEVICE_KINDS], is_open=True),
        default=(),
        unset="those that the driver certainly makes",
    )
    allow_shared_groups: bool = setting(
        "Offer devices whose IOMMU group contains devices of other slots; a machine gets the whole group.",
        default=False,
    )
    bind_shared_groups: bool = setting(
        "Offer the devices of such a group as one: the first takes the others along, also from their drivers.",
        default=False,
    )
    allow_no_reset: bool = setting(
        "Offer devices that the kernel cannot reset between their owners.",
        default=False,
    )

    release_from: tuple[str, ...] = setting(
        "Ask this program, which keeps GPUs open to watch them, to let a GPU go for a claim, and to hold it again "
        "after the claim. Repeatable.",
        type=OneOf(["nvidia-persistenced"]),
        default=(),
    )
    erase_policy: Literal["none", "external"] = setting(
        "Who erases storage (NVMe) between its owners. none: it is not offered. external: you do, or its data is "
        "encrypted by its owners; devalloc erases nothing. Needs --allow storage.",
        type=OneOf(["none", "external"]),
        default="none",
        env="DEVALLOC_ERASE_POLICY",
    )

    @property
    def node(self) -> str:
        """The name of the node."""
        return self.node_name or socket.gethostname().lower()

    def check_node_name(self, *, is_cluster: bool = False) -> None:
        """Raises BadSetting for a name that no node can have: the names of its pools begin with it."""
        from devalloc.api.fields import is_subdomain_name, quote_value

        if is_subdomain_name(self.node):
            return
        what = "the host name" if self.node_name is None else "--node-name"
        if is_cluster:
            advice = "use the name of the Node (--node-name)"
        else:
            advice = "name the node with --node-name" if self.node_name is None else "choose another name"
        raise BadSetting(
            what,
            f"{quote_value(self.node)} is not a valid name of a node (lower-case letters, digits, '-' and '.', "
            f"at most 253 characters): {advice}",
        )

    @property
    def added_kinds(self) -> tuple[DeviceKind, ...]:
        """The kinds that the admin adds. Raises BadSetting."""
        try:
            return read_added_kinds(self.device_kinds)
        except ValueError as error:
            raise BadSetting("--device-kind", f": {error}") from error

    @property
    def networks(self) -> dict[str, str]:
        """The network of each port that has one. Raises BadSetting."""
        networks: dict[str, str] = {}
        for text in self.physical_networks:
            name, _, ports = text.partition("=")
            if not _NETWORK.fullmatch(name) or not all(ports.split(",")):
                raise BadSetting("--physical-network", f": invalid {text[:80]!r}: write NAME=PORT[,PORT...]")
            for port in map(_port, ports.split(",")):
                if networks.setdefault(port, name) != name:
                    raise BadSetting("--physical-network", f": {port} cannot be in both {networks[port]} and {name}")
        return networks

    def check_kinds(self, option: str, names: Collection[str], valid: Iterable[str]) -> None:
        """Raises BadSetting if a kind does not exist."""
        if unknown := sorted(set(names) - {*valid}):
            advice = f"valid: {', '.join(valid)}; --device-kind adds others"
            raise BadSetting(option, f": unknown kind {', '.join(unknown)} ({advice})")

    @property
    def policy(self) -> dict[str, Any]:
        """The fields of ``DevicePolicy`` that can be set."""
        return {
            "max_vfs": self.max_vfs,
            "creatable_vfs": frozenset(self.creatable_vfs),
            "device_kinds": self.added_kinds,
            "allow_shared_groups": self.allow_shared_groups,
            "bind_shared_groups": self.bind_shared_groups,
            "allow_no_reset": self.allow_no_reset,
            "adopt": frozenset(self.adopt),
            "release_from": frozenset(self.release_from),
            "erase_policy": self.erase_policy != "none",
        }

    @property
    def config(self) -> InventoryConfig:
        """The inventory's settings."""
        from devalloc.inventory.config import InventoryConfig

        valid = kinds_by_name(self.added_kinds)
        self.check_kinds("--kind", self.kinds, valid)
        self.check_kinds("--creatable-vfs", self.creatable_vfs, valid)
        networks = self.networks
        return InventoryConfig(kinds=frozenset(self.kinds or valid), physical_networks=networks, **self.policy)
