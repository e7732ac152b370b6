"""A host's inventory: what the options say about it, and its pools as tables for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from devalloc.api import meta
from devalloc.api.inwords import attribute
from devalloc.cli.output import Cell, Styled, table

if TYPE_CHECKING:
    from devalloc.inventory import InventoryConfig

Object = dict[str, Any]


def settings(
    kinds: Sequence[str], max_vfs: int | None, allow_shared_groups: bool, adopted: Sequence[str]
) -> InventoryConfig:
    """The inventory's settings for the options of ``inventory_options``."""
    from devalloc.inventory import InventoryConfig

    plain = InventoryConfig(max_vfs=max_vfs, allow_shared_groups=allow_shared_groups, adopt=frozenset(adopted))
    return replace(plain, kinds=frozenset(kinds)) if kinds else plain


def show_pools(pools: Sequence[Object], *, wide: bool) -> None:
    """A row for each card, or (wide) for each device."""
    if not pools:
        click.echo("no devices of a known kind (GPU, NIC, accelerator, NVMe)")
    elif wide:
        table(
            ["POOL", "DEVICE", "KIND", "FUNCTION", "MODEL OR PROFILE", "DRIVER", "NUMA", "IOMMU", "STATE"],
            [_device_row(pool, device) for pool in pools for device in pool["spec"].get("devices", [])],
        )
    else:
        table(["POOL", "KIND", "MODEL", "DRIVER", "NUMA", "OFFERS", "NOTE"], [_pool_row(pool) for pool in pools])


def effective(pool: Object, device: Object, name: str) -> str:
    """An attribute of a device, which its pool may hold for it."""
    return attribute(device, name) or attribute(pool["spec"], name)


def _pool_row(pool: Object) -> list[Cell]:
    devices = pool["spec"].get("devices", [])
    free = [device for device in devices if not effective(pool, device, meta.UNAVAILABLE)]
    functions = Counter(effective(pool, device, "function") for device in free)
    offers = ", ".join(f"{count} {function}" if count > 1 else function for function, count in functions.items())
    reasons = dict.fromkeys(effective(pool, device, meta.UNAVAILABLE) for device in devices)
    reason = "; ".join(text for text in reasons if text)

    def common(name: str) -> str:
        found = dict.fromkeys(effective(pool, device, name) for device in devices)
        return ", ".join(text for text in found if text)

    note: Cell = Styled(reason, "yellow") if reason else ""
    model = dict.fromkeys(effective(pool, device, "model") for device in devices if device)
    return [
        pool["metadata"]["name"],
        common("kind"),
        next((text for text in model if text), ""),
        common("driver"),
        common("numa"),
        offers or "-",
        note,
    ]


def _device_row(pool: Object, device: Object) -> list[Cell]:
    reason = effective(pool, device, meta.UNAVAILABLE)
    return [
        pool["metadata"]["name"],
        device["name"],
        effective(pool, device, "kind"),
        effective(pool, device, "function"),
        effective(pool, device, "profile") or effective(pool, device, "model"),
        effective(pool, device, "driver"),
        effective(pool, device, "numa"),
        effective(pool, device, "iommuGroup"),
        Styled(reason, "yellow") if reason else effective(pool, device, "state"),
    ]
