"""Who holds what of a fleet, whatever comes and goes: as a count of all that is held tells."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import pytest

from devalloc_solver.fleet.node_index import HeldDevice, HeldDevices, HeldItem, Holders, NodeIndex
from devalloc_solver.problem.snapshot import Device, Pool, join_pools

NODES, DEVICES = ("n0", "n1", "n2"), 4


def holding(items: list[HeldItem]) -> HeldDevices:
    return HeldDevices(0, None, tuple(HeldDevice(f"of {node}", f"d{device}", None) for node, device, _ in items))


def index_of_nodes() -> NodeIndex:
    index = NodeIndex()
    for node in NODES:
        devices = tuple(Device(number, 0, f"d{number}", {}, {}, (), None) for number in range(DEVICES))
        index.put(node, join_pools([Pool(0, node, f"of {node}", "gpu", {}, devices)], (node,)))
    return index


@pytest.mark.parametrize("seed", range(5))
def test_the_index_has_exactly_what_claims_hold(seed: int) -> None:
    rng, index = Random(seed), index_of_nodes()
    holders = Holders(index)
    held: dict[tuple[str, str], HeldDevices] = {}
    items_of: dict[tuple[str, str], list[HeldItem]] = {}
    by_grant: set[tuple[str, str]] = set()
    for number in range(200):
        key = ("default", f"c{rng.randrange(12)}")
        if key in held:
            if rng.random() < 0.3:  # out of the index, and back again
                holders.lift(key)
                assert key not in index.held
                holders.put(key, items_of[key])
                by_grant.discard(key)
            else:
                assert holders.leave(key) is held.pop(key)
        else:
            count = rng.choice((0, 1, 1, 2, 3))
            items = [(rng.choice(NODES), rng.randrange(DEVICES), None) for _ in range(count)]
            items_of[key] = [*dict.fromkeys(items)]
            held[key] = holding(items_of[key])
            is_granted = rng.random() < 0.5
            (holders.grant if is_granted else holders.enter)(key, held[key], items_of[key])
            (by_grant.add if is_granted else by_grant.discard)(key)
        assert holders.by_claim == held, number
        on_node = defaultdict(set)
        for one in held:
            for node, _, _ in items_of[one]:
                on_node[node].add(one)
        assert holders.on_node == on_node
        assert holders.scattered == {one for one, allocation in held.items() if len(allocation.pools) > 1}
        for node in NODES:
            assert holders.on_nodes((node,)) == on_node[node]
            assert holders.of_pools((f"of {node}",)) == on_node[node] - by_grant
    for key in held:
        holders.leave(key)
    left = (holders.by_claim, holders.on_node, holders.scattered, holders._by_pool, index.held)
    assert not any(left)


def test_a_claim_without_devices_leaves_nothing() -> None:
    holders = Holders(index_of_nodes())
    assert holders.leave(("default", "unknown")) is None
