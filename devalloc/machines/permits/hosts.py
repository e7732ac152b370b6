"""Hosts as the permit server sees them: how much they have for machines, and what else runs on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from devalloc.api.host_pool_names import CPU, FOR_OTHERS, MEMORY, node_of_host_pool
from devalloc.api.quantity import NANO, Quantity, QuantityError
from devalloc.api.views import as_mappings
from devalloc.machines.permits.ledger import Host
from devalloc.scaling.resources import Resources
from devalloc.store import Store

Hosts = Callable[[], Mapping[str, Host]]
"""All nodes by name, as they are now. On one that is not named nothing is granted."""

FrozenHosts = Callable[[], AbstractContextManager[Mapping[str, Host]]]
"""The same, and they stay so inside, while a permit is written: where others take of the hosts, too. Raises
StoreError."""


def published(store: Store) -> Hosts:
    """The hosts whose capacity is published as a pool, with the limits that machines are placed by as well.

    Reading them raises StoreError.
    """
    return partial(_published, store)


def _published(store: Store) -> Mapping[str, Host]:
    hosts = {}
    for pool in store.list("DevicePool").objects:
        if (node := node_of_host_pool(pool)) is not None:
            hosts[node] = Host(Resources(_sum(pool, CPU, NANO // 1000), _sum(pool, MEMORY, NANO)))
    return hosts


def _sum(pool: Mapping[str, Any], resource: str, unit: int) -> int:
    """Of all devices of the pool, with what placement leaves to others; what cannot be read is none, so that nothing is
    granted of it."""
    total = 0
    for device in as_mappings(pool["spec"].get("devices")):
        amounts = [one.get("capacity") for one in as_mappings(device.get("resources")) if one.get("name") == resource]
        for one in as_mappings(device.get("attributes")):
            if one.get("name") == FOR_OTHERS[resource]:
                amounts.append(one.get("stringValue"))
        for amount in amounts:
            try:
                total += max(0, Quantity.parse(amount).nano) // unit
            except QuantityError:
                continue
    return total
