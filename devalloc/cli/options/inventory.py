"""A host's inventory: its settings from options, and its pools as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from devalloc.api import meta
from devalloc.api.summaries import attribute_text
from devalloc.cli.render.output import Cell, StyledText, print_table

if TYPE_CHECKING:
    from devalloc.inventory import InventoryConfig

Object = dict[str, Any]


def inventory_config(
    kinds: Sequence[str], max_vfs: int | None, allow_shared_groups: bool, adopted: Sequence[str]
) -> InventoryConfig:
    """The inventory's settings from ``inventory_options``."""
    from devalloc.inventory import InventoryConfig

    plain = InventoryConfig(max_vfs=max_vfs, allow_shared_groups=allow_shared_groups, adopt=frozenset(adopted))
    return replace(plain, kinds=frozenset(kinds)) if kinds else plain


def print_pools(pools: Sequence[Object], *, wide: bool) -> None:
    """Print a row for each card, or (wide) for each device."""
    if not pools:
        click.echo("no GPUs, NICs, accelerators or NVMe devices found")
    elif wide:
        print_table(
            ["POOL", "DEVICE", "KIND", "FUNCTION", "MODEL OR PROFILE", "DRIVER", "NUMA", "IOMMU", "STATE"],
            [_device_row(pool, device) for pool in pools for device in pool["spec"].get("devices", [])],
        )
    else:
        print_table(["POOL", "KIND", "MODEL", "DRIVER", "NUMA", "OFFERS", "NOTE"], [_pool_row(pool) for pool in pools])


def effective_attribute(pool: Object, device: Object, name: str) -> str:
    """An attribute of a device, or else of its pool."""
    return attribute_text(device, name) or attribute_text(pool["spec"], name)


def _pool_row(pool: Object) -> list[Cell]:
    devices = pool["spec"].get("devices", [])
    free = [device for device in devices if not effective_attribute(pool, device, meta.UNAVAILABLE)]
    functions = Counter(effective_attribute(pool, device, "function") for device in free)
    offers = ", ".join(f"{count} {function}" if count > 1 else function for function, count in functions.items())
    reasons = dict.fromkeys(effective_attribute(pool, device, meta.UNAVAILABLE) for device in devices)
    reason = "; ".join(text for text in reasons if text)

    def common(name: str) -> str:
        values = dict.fromkeys(effective_attribute(pool, device, name) for device in devices)
        return ", ".join(text for text in values if text)

    note: Cell = StyledText(reason, "yellow") if reason else ""
    model = dict.fromkeys(effective_attribute(pool, device, "model") for device in devices if device)
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
    reason = effective_attribute(pool, device, meta.UNAVAILABLE)
    return [
        pool["metadata"]["name"],
        device["name"],
        effective_attribute(pool, device, "kind"),
        effective_attribute(pool, device, "function"),
        effective_attribute(pool, device, "profile") or effective_attribute(pool, device, "model"),
        effective_attribute(pool, device, "driver"),
        effective_attribute(pool, device, "numa"),
        effective_attribute(pool, device, "iommuGroup"),
        StyledText(reason, "yellow") if reason else effective_attribute(pool, device, "state"),
    ]
