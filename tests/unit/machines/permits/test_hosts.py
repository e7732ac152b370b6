"""The limits of hosts as their pools have them."""

from __future__ import annotations

from typing import Any

from devalloc.inventory.capacity import discover_capacity, host_pool
from devalloc.machines.permits.hosts import published
from devalloc.scaling.resources import Resources
from devalloc.store.sqlite import SQLiteStore


def test_the_limit_of_a_node_is_that_of_its_pool(store: SQLiteStore) -> None:
    capacity = discover_capacity()
    limit = Resources(capacity.cpu.effective_limit, capacity.memory.effective_limit)
    hosts = published(store)
    assert hosts() == {}
    pool = store.create(host_pool(capacity, "node-a").to_manifest())
    assert hosts()["node-a"].limit == limit
    assert limit.cpu > 0
    pool["spec"]["devices"][0]["resources"] = [
        {"name": "cpu", "capacity": "1500m"},
        {"name": "memory", "capacity": "nonsense"},
        {"name": "memory", "capacity": "-1"},
    ]
    pool["spec"]["devices"] = pool["spec"]["devices"][:1]
    store.replace(pool)
    host: Any = hosts()["node-a"]
    assert host.limit == Resources(1500, 0)


def test_a_pool_that_is_damaged_has_nothing_and_harms_no_other(store: SQLiteStore) -> None:
    capacity = discover_capacity()
    store.create(host_pool(capacity, "good").to_manifest())
    for number, devices in enumerate([None, "x", [1], [{"resources": 5}], [{"resources": ["x", {"name": "cpu"}]}]]):
        pool = host_pool(capacity, f"bad-{number}").to_manifest()
        pool["spec"]["devices"] = devices
        store.create(pool)
    hosts = published(store)()
    assert hosts["good"].limit != Resources(0, 0)
    assert {hosts[f"bad-{number}"].limit for number in range(5)} == {Resources(0, 0)}
