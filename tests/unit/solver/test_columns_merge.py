"""Fleets where hardly two nodes are alike: only their state distinguishes smaller nodes from larger ones."""

from __future__ import annotations

import random

import pytest

from devalloc_solver.columns.claim_kinds import group_units
from devalloc_solver.columns.node_geometry import NodeTemplate, group_nodes
from devalloc_solver.columns.state_space import merge_templates
from devalloc_solver.dialects.device_claims.manifest_records import read_documents
from devalloc_solver.dialects.device_claims.problem import DeviceClaimProblem, prepare
from devalloc_solver.problem.allocations import Usage
from tests.support.column_batches import by_columns, exact_counts
from tests.support.manifests import Manifest, claim, device, device_class, pool

KINDS = device_class("gpu", driver="gpu"), device_class("nic", driver="nic")


def scattered(nodes: int, claims: int, seed: int) -> list[Manifest]:
    """Nodes of four or eight GPUs with NICs, of each of which some are left; every GPU is a pool of its own."""
    rng = random.Random(seed)
    manifests: list[Manifest] = [*KINDS]
    for n in range(nodes):
        for g in range(rng.choice([4, 8])):
            if rng.random() < 0.7:
                attributes = {"root": f"{n}-{g // 2}", "model": "AH"[n % 2]}
                manifests.append(pool(f"n{n}-g{g}", f"n{n}", devices=[device("g", attributes=attributes)]))
        left = [device(f"f{i}", attributes={"root": f"{n}-{i % 2}"}) for i in range(4) if rng.random() < 0.7]
        if left:
            manifests.append(pool(f"n{n}-nic", f"n{n}", "nic", devices=left))
    for c in range(claims):
        gpus = {"deviceClass": "gpu", "requests": {"count": rng.choice([1, 1, 2, 3, 4, 8])}}
        if rng.random() < 0.3:
            gpus["constraints"] = f"device.model == '{rng.choice('AH')}'"
        if rng.random() < 0.3:
            gpus = {"deviceClass": "gpu", "requests": {"count": 2}, "matchAttributes": ["root"]}
        pair = {"deviceClass": "gpu"}, {"deviceClass": "nic"}
        priority = {"annotations": {"devalloc.io/priority": str(rng.choice([0, 0, 1]))}}
        if rng.random() < 0.3:
            manifests.append(claim(f"c{c}", *pair, match=["root"], **priority))
        else:
            manifests.append(claim(f"c{c}", gpus, **priority))
    return manifests


def templates_of(prepared: DeviceClaimProblem) -> list[NodeTemplate]:
    kinds, _ = group_units(prepared.snapshot, prepared.units)
    return group_nodes(prepared.snapshot, Usage.of(prepared.snapshot, prepared.allocations), kinds).templates


def seen(template: NodeTemplate, node: int) -> dict[int, tuple[object, ...]]:
    """device -> how the template sees it"""
    cells = template.geometry.cells
    return {
        d.index: (template.signatures[cell.color], template.geometry.amounts[cell.color], cell.values)
        for cell, devices in zip(cells, template.devices[node], strict=True)
        for d in devices
    }


@pytest.mark.parametrize("seed", range(10))
def test_a_node_keeps_its_devices_and_what_they_have_in_common(seed: int) -> None:
    prepared = prepare(read_documents(scattered(40, 60, seed)))
    before = {t.nodes[n]: seen(t, n) for t in templates_of(prepared) for n in range(len(t.nodes))}
    templates = templates_of(prepared)
    merged = merge_templates(templates)
    assert len(merged) < len(templates), "there is something to merge"
    after = {t.nodes[n]: seen(t, n) for t in merged for n in range(len(t.nodes))}
    assert after.keys() == before.keys()
    for node, by_device in before.items():
        assert after[node].keys() == by_device.keys()
        for one, look in by_device.items():
            assert after[node][one][:2] == look[:2]
            for other in by_device:
                same = [a == b for a, b in zip(look[2], by_device[other][2], strict=True)]
                assert [a == b for a, b in zip(after[node][one][2], after[node][other][2], strict=True)] == same
    for template in merged:
        for devices, state in zip(template.devices, template.states, strict=True):
            assert [*map(len, devices)] == state[: len(devices)]
            assert all(len(own) <= cell.size for own, cell in zip(devices, template.geometry.cells, strict=True))


@pytest.mark.parametrize("seed", range(8))
def test_a_scattered_fleet_is_answered_rightly(seed: int) -> None:
    batch = by_columns(scattered(5, 14, seed))
    assert batch.violations() == []
    exact = exact_counts(batch.prepared)
    assert exact is not None
    assert all(best <= bound for best, bound in zip(exact[:1], batch.bounds, strict=False))
    assert batch.satisfied <= exact


def test_a_large_scattered_fleet_is_proven() -> None:
    """Told apart, its nodes had so many states that not all could be looked at, and the bound was of no use."""
    batch = by_columns(scattered(300, 500, 1))
    assert batch.violations() == []
    assert batch.satisfied == batch.bounds
    assert sum(batch.satisfied) < 500, "there is something to decide"


def test_merged_nodes_show_the_devices_of_the_smaller_one() -> None:
    """One GPU each of two roots is no pair of one root, whatever the larger node has."""
    large = [pool(f"a{g}", "n1", devices=[device("g", attributes={"root": f"r{g // 2}"})]) for g in range(4)]
    small = [pool(f"b{g}", "n2", devices=[device("g", attributes={"root": f"s{g}"})]) for g in range(2)]
    pair = {"deviceClass": "gpu", "requests": {"count": 2}, "matchAttributes": ["root"]}
    batch = by_columns([*KINDS, *large, *small, *(claim(f"c{i}", pair) for i in range(4))])
    assert batch.violations() == []
    assert (batch.satisfied, batch.bounds) == ([2], [2])
    assert {p.node for p in batch.placements} == {"n1"}
