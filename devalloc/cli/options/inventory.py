"""Options that select the devices of a host."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from devalloc.cli.command import BadInput
from devalloc.cli.options.common import EXISTING_FOLDER
from devalloc.device_kinds import DEVICE_KINDS
from devalloc.settings import setting

if TYPE_CHECKING:
    from devalloc.inventory import InventoryConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryOptions:
    """Which host devalloc reads, and which of its devices it publishes."""

    sysfs_root: Path = setting(
        "Read this tree instead of the host's: the folder that contains sys, or the sys folder itself.",
        type=EXISTING_FOLDER,
        default=Path("/"),
        metavar="DIR",
    )
    node_name: str | None = setting("The node of the pools.", metavar="NAME", unset="the host name")
    adopt: tuple[str, ...] = setting(
        "Offer this vGPU, which another program created, while it is unused. Repeatable.",
        default=(),
        metavar="mdev-UUID",
    )
    kinds: tuple[str, ...] = setting(
        "Only devices of this kind. Repeatable.",
        flag="--kind",
        type=click.Choice(list(DEVICE_KINDS)),
        default=(),
        unset="all kinds",
    )
    max_vfs: int | None = setting(
        "Maximum virtual functions to offer per port if none exist yet.",
        type=click.IntRange(min=0),
        metavar="NUMBER",
        unset="all that it supports",
    )
    creatable_vfs: tuple[str, ...] = setting(
        "Also offer virtual functions that do not exist yet of this kind of devices: their driver can make them. "
        "Repeatable.",
        type=click.Choice(list(DEVICE_KINDS)),
        default=(),
        unset="those that the driver certainly makes",
    )
    allow_shared_groups: bool = setting(
        "Offer devices whose IOMMU group contains devices of other slots; a machine gets the whole group.",
        default=False,
    )
    allow_no_reset: bool = setting(
        "Offer devices that the kernel cannot reset between their owners.",
        default=False,
    )

    erase_policy: Literal["none", "external"] = setting(
        "Who erases storage (NVMe) between its owners. none: it is not offered. external: you do, or its data is "
        "encrypted by its owners; devalloc erases nothing. Needs --allow storage.",
        type=click.Choice(["none", "external"]),
        default="none",
        env="DEVALLOC_ERASE_POLICY",
    )

    @property
    def node(self) -> str:
        """The name of the node."""
        return self.node_name or socket.gethostname().lower()

    def check_node_name(self, *, is_cluster: bool = False) -> None:
        """Raises BadInput for a name that no node can have: the names of its pools begin with it."""
        from devalloc.api.fields import is_subdomain_name, quote_value

        if is_subdomain_name(self.node):
            return
        what = "the host name" if self.node_name is None else "--node-name"
        if is_cluster:
            advice = "use the name of the Node (--node-name)"
        else:
            advice = "name the node with --node-name" if self.node_name is None else "choose another name"
        raise BadInput(
            f"{what} {quote_value(self.node)} is not a valid name of a node (lower-case letters, digits, '-' and '.', "
            f"at most 253 characters): {advice}"
        )

    @property
    def policy(self) -> dict[str, Any]:
        """The fields of ``DevicePolicy`` that can be set."""
        return {
            "max_vfs": self.max_vfs,
            "creatable_vfs": frozenset(self.creatable_vfs),
            "allow_shared_groups": self.allow_shared_groups,
            "allow_no_reset": self.allow_no_reset,
            "adopt": frozenset(self.adopt),
            "erase_policy": self.erase_policy != "none",
        }

    @property
    def config(self) -> InventoryConfig:
        """The inventory's settings."""
        from devalloc.inventory import InventoryConfig

        return InventoryConfig(kinds=frozenset(self.kinds or DEVICE_KINDS), **self.policy)
