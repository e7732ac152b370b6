"""Whatever happens to a warm cluster, it answers as solve_manifests does of its state, and keeps what it would load.

The state is kept beside it as plain manifests. After every step the fleet must agree with one built afresh from these.
"""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import Any

import pytest

from devalloc_solver.dialects.resource_k8s.cluster_check import make_cluster_checker
from devalloc_solver.dialects.resource_k8s.feature_gates import DEFAULT_GATES
from devalloc_solver.dialects.resource_k8s.fleet import ResourceClaimFleet
from devalloc_solver.dialects.resource_k8s.fleet_state import ClusterState, usage_of
from devalloc_solver.dialects.resource_k8s.manifests import read_documents
from devalloc_solver.dialects.resource_k8s.pools import SliceBook
from devalloc_solver.dialects.resource_k8s.published_devices import published_device
from devalloc_solver.dra import solve_manifests
from devalloc_solver.fleet import equal_devices
from devalloc_solver.fleet.place_finder import PlaceFinder
from devalloc_solver.fleet.subset import WholeFleet
from devalloc_solver.problem.placement_policy import policy_named
from tests.support.dra_random_clusters import RandomCluster, is_held, name_of
from tests.support.dra_random_pools import Manifest
from tests.support.examples import examples

STEPS = 14


class Machine:
    """A fleet, and its state written down."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.cluster = RandomCluster(self.rng)
        self.placement = self.rng.choice(["pack", "pack", "spread"])
        documents = [*self.cluster.documents.values()]
        self.rng.shuffle(documents)
        self.fleet = ResourceClaimFleet.from_manifests(deepcopy(documents), policy=policy_named(self.placement))

    def step(self) -> None:
        rng, cluster, fleet = self.rng, self.cluster, self.fleet
        kind = rng.choices(
            ["new", "kept", "release", "slice", "class", "node", "delete", "claim", "forget", "all"],
            [10, 2, 4, 4, 1, 1, 1, 2, 2, 1],
        )[0]
        if kind == "new":
            self.allocate(cluster.claim())
        elif kind == "kept" and (names := cluster.claims(held=False)):
            self.allocate(cluster.documents[rng.choice(names)])
        elif kind == "release" and (names := cluster.claims(held=True)):
            name = rng.choice(names)
            fleet.release(*name[1:])
            cluster.documents[name]["status"] = {}
        elif kind == "slice" and (changed := cluster.changed_slice()) is not None:
            self.update(changed)
            if rng.random() < 0.2:
                self.update(changed)
        elif kind == "class":
            self.update(cluster.changed_class())
        elif kind == "node":
            self.update(cluster.changed_node())
        elif kind == "delete" and (gone := cluster.any_name()) is not None:
            fleet.delete({"kind": gone[0], "metadata": {"name": gone[2]}})
            del cluster.documents[gone]
        elif kind == "claim":
            self.update(cluster.claim())
        elif kind == "forget" and (names := [*cluster.claims(held=True), *cluster.claims(held=False)]):
            name = rng.choice(names)
            fleet.delete({"kind": name[0], "metadata": {"namespace": name[1], "name": name[2]}})
            del cluster.documents[name]
        elif kind == "all":
            self.allocate_all([cluster.claim() for _ in range(rng.choice([1, 2, 3]))])

    def update(self, document: Manifest) -> None:
        self.fleet.update(deepcopy(document))
        self.cluster.put(document)

    def state(self, *besides: Manifest) -> list[Manifest]:
        """All but the claims that are not asked for, and some more."""
        names = {name_of(one) for one in besides}
        items = self.cluster.documents.items()
        current = [one for name, one in items if name not in names and (name[0] != "ResourceClaim" or is_held(one))]
        return deepcopy([*current, *besides])

    def keep(self, claim: Manifest, answer: dict[str, Any]) -> None:
        if answer["allocated"] and not is_held(claim):
            self.cluster.put(deepcopy({**claim, "status": {"allocation": answer["allocations"]}}))

    def allocate(self, claim: Manifest) -> None:
        state = self.state(claim)
        (whole,) = (one for one in answers(state, self.placement) if one["name"] == claim["metadata"]["name"])

        answer = self.fleet.allocate(deepcopy(claim))

        assert goals(answer) == goals(whole)
        if answer["allocated"]:
            assert self.is_avoided(answer["node"], state) <= self.is_avoided(whole["node"], state)
            assert is_right(state, answer)
            self.keep(claim, answer)
        else:
            assert answer == whole

    def is_avoided(self, node: str | None, state: list[Manifest]) -> bool:
        """Whether the policy would rather have another node (S17, goal 5)."""
        return node is not None and (node in in_use(state)) is not (self.placement == "pack")

    def allocate_all(self, claims: list[Manifest]) -> None:
        whole = solve_manifests(self.state(*claims), placement=self.placement)

        answers = self.fleet.allocate_all(deepcopy(claims))

        assert {**answers, "seconds": 0} == {**whole, "seconds": 0}
        by_name = {one["metadata"]["name"]: one for one in claims}
        for answer in answers["claims"]:
            if answer["name"] in by_name:
                self.keep(by_name[answer["name"]], answer)


def answers(state: list[Manifest], placement: str) -> list[dict[str, Any]]:
    claims: list[dict[str, Any]] = solve_manifests(state, placement=placement)["claims"]
    return claims


def goals(answer: dict[str, Any]) -> tuple[object, ...]:
    """What must be equal of two answers to one claim: goals 1 to 4 of S17, and its messages."""
    results = answer["allocations"].get("devices", {}).get("results", [])
    pools = {(one["driver"], one["pool"]) for one in results}
    devices = {(one["driver"], one["pool"], one["device"]) for one in results}
    explained = answer["reason"], answer["message"], answer.get("warnings")
    return answer["allocated"], answer["oneOf"], len(pools), len(devices), len(results), *explained


def in_use(state: list[Manifest]) -> set[str | None]:
    """Nodes with a device of their own in use."""
    places = {
        (spec["driver"], spec["pool"]["name"], device["name"]): spec.get("nodeName")
        for spec in _specs(state)
        for device in spec.get("devices", ())
    }
    held = (one["status"]["allocation"] for one in state if is_held(one))
    taken = (result for one in held for result in one.get("devices", {}).get("results", ()))
    ids = ((one["driver"], one["pool"], one["device"]) for one in taken if not one.get("adminAccess"))
    return {places.get(one) for one in ids} - {None}


def _specs(state: list[Manifest]) -> list[Manifest]:
    return [one["spec"] for one in state if one["kind"] == "ResourceSlice"]


def is_right(state: list[Manifest], answer: dict[str, Any]) -> bool:
    """Whether the independent check takes an answer when it sees everything for the first time."""
    problem_input = read_documents(state, DEFAULT_GATES)
    key = answer["namespace"], answer["name"]
    nodes = (
        [answer["node"]]
        if answer["node"]
        else [*problem_input.nodes, *SliceBook(problem_input.slices, DEFAULT_GATES).node_names]
    )
    checker = make_cluster_checker(problem_input, problem_input.nodes, DEFAULT_GATES)
    return any(not checker.wrong(node, [(key, problem_input.manifests[key], answer["allocations"])]) for node in nodes)


def comparable_state(state: ClusterState) -> dict[str, object]:
    """What is kept of a state, in a form that does not depend on how it came about."""
    index, broken = state.index, state.rules.broken
    network = () if index.network is None else index.network.snapshot.devices
    uses = {
        (record.name, pool.name, pool.devices[position].name, pool.devices[position].reach): use.sharing or "whole"
        for record in (*index.records.values(), *([index.network] if index.network else []))
        for pool, in_use in zip(record.snapshot.pools, record.uses, strict=True)
        for position, use in in_use.items()
    }
    alike: dict[object, set[str | None]] = {}
    for record in index.records.values():
        assert index.by_rank[record.rank] is record
        alike.setdefault(record.member_of, set()).add(record.name)
    return {
        "uses": uses,
        "nodes": {
            name: [(pool.name, [device.name for device in pool.devices]) for pool in record.snapshot.pools]
            for name, record in index.records.items()
        },
        "holders": {
            key: (t.priority, usage_of(t.entries).whole, usage_of(t.entries).shared)
            for key, t in state.allocations.items()
        },
        "shares": state.share_ids,
        "network": [(published_device(one).id, one.reach, one.draws, one.attributes) for one in network],
        "broken": broken,
        "checked": (
            state.checker._held.whole,
            state.checker._held.shared,
            state.checker._held.share_ids,
            state.checker._held.consumed,
        ),
    }


@pytest.mark.parametrize("seed", range(examples(16, 0.1)))
def test_a_warm_cluster_answers_as_one_that_is_read_afresh(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:  # few values already are many
        monkeypatch.setattr(equal_devices, "VARIED_ABOVE", 3)
        monkeypatch.setattr(equal_devices, "NODE_KINDS", 2)
    missed: list[bool] = []
    by_index, by_whole = PlaceFinder.find, WholeFleet.place

    def find(self: PlaceFinder, *args: Any) -> object:
        placing = by_index(self, *args)
        missed.append(placing is None)
        return placing

    def find_anywhere(self: WholeFleet[Any], *args: Any) -> object:
        placing = by_whole(self, *args)
        assert placing is None or missed != [True], "the index finds no place, and there is one"
        return placing

    monkeypatch.setattr(PlaceFinder, "find", find)
    monkeypatch.setattr(WholeFleet, "place", find_anywhere)
    machine = Machine(seed)
    for _ in range(STEPS):
        missed.clear()
        machine.step()
        fresh = ResourceClaimFleet.from_manifests(machine.state(), policy=policy_named(machine.placement))
        assert comparable_state(machine.fleet._state) == comparable_state(fresh._state)
