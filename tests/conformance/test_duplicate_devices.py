"""Devices that several nodes publish under one name are one device: never given twice, and never a crash.

DEVALLOC_FUZZ_EXAMPLES sets how many instances are drawn; `make fuzz` looks at more.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from devalloc_solver import Fleet, dra
from tests.support.dra_builders import ANY, claim, counter_slice, device, request, slice_
from tests.support.examples import examples

NODES = ("n0", "n1", "n2")
EXAMPLES = examples(50)
Manifest = dict[str, Any]


def slice_of(node: str, devices: list[Manifest], **spec: Any) -> Manifest:
    return slice_(f"s-{node}", devices, **{"pool": "gpus", "nodeName": node, **spec})


def wants(name: str, count: int = 1, *selectors: str, node: str | None = None, **fields: Any) -> Manifest:
    marks = {} if node is None else {"node": node}
    return claim(request("r", count, *selectors, **fields), name=name, marks=marks)


def given(answer: Manifest) -> list[str]:
    """The names of the devices of all claims."""
    return [
        result["device"]
        for one in answer["claims"]
        if one["allocated"]
        for result in one["allocations"]["devices"]["results"]
    ]


LAYOUTS = {
    "a slice for each node": [slice_of(node, [device("d0")]) for node in NODES[:2]],
    "generations of their own": [slice_of(node, [device("d0")], generation=n) for n, node in enumerate(NODES[:2])],
    "slices of one pool": [slice_of(node, [device("d0")], count=2) for node in NODES[:2]],
    "devices that say their node": [
        slice_of(node, [device("d0", nodeName=node)], count=2, nodeName=None, perDeviceNodeSelection=True)
        for node in NODES[:2]
    ],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_claim_gets_it_and_the_refusal_of_the_other_names_the_owner(layout: str) -> None:
    documents = [ANY, *LAYOUTS[layout]]
    claims = [wants("a", node="n0"), wants("b", node="n1")]

    answer = dra.solve_manifests([*documents, *claims])
    fleet = Fleet.from_manifests(documents)
    one, other = (fleet.allocate(each) for each in claims)

    assert [answered["allocated"] for answered in answer["claims"]] == [True, False]
    assert answer["claims"][1]["reason"] == "LostToCompetition"
    assert answer["claims"][1]["blockers"] == [{"kind": "claim", "namespace": "default", "name": "a", "priority": 0}]
    assert answer["optimal"]
    assert (one["allocated"], other["allocated"], other["reason"]) == (True, False, "DevicesInUse")
    assert ["published by the nodes n0, n1" in problem["message"] for problem in answer["problems"]] == [True]


def test_each_node_may_be_asked_for_it_by_itself() -> None:
    for node in NODES[:2]:
        assert dra.allocate(node, [wants("a")], [ANY], LAYOUTS["a slice for each node"]) is not None


def test_pools_of_one_name_without_a_common_device_are_no_problem() -> None:
    documents = [ANY, slice_of("n0", [device("d0")]), slice_of("n1", [device("d1")])]

    answer = dra.solve_manifests([*documents, wants("a"), wants("b")])

    assert sorted(given(answer)) == ["d0", "d1"]
    assert answer["problems"] == []


def test_the_refusal_of_a_claim_for_too_many_names_no_counters() -> None:
    (refusal,) = dra.solve_manifests([ANY, *LAYOUTS["a slice for each node"], wants("a", 2)])["claims"]

    assert refusal["reason"] == "NotEnoughDevices"
    assert [blocker["kind"] for blocker in refusal["blockers"]] == ["amount"]


def test_an_allocation_of_it_draws_the_counters_of_every_node() -> None:
    """A node counts what is in use by name: what another node's claim holds draws on its own counters too."""

    def of(node: str) -> list[Manifest]:
        parts = [device(name, counters={"s": {"c": "1"}}) for name in ("d0", "d1", "d2")]
        counts = counter_slice(f"c-{node}", {"s": {"c": "2"}}, pool="gpus", count=2, nodeName=node)
        return [slice_of(node, parts, count=2), counts]

    documents = [ANY, *of("n0"), *of("n1")]
    claims = [wants("a", node="n0"), wants("b", node="n1"), wants("c")]
    fleet = Fleet.from_manifests(documents)

    answer = dra.solve_manifests([*documents, *claims])

    assert sum(one["allocated"] for one in answer["claims"]) == 2
    assert len(set(given(answer))) == 2
    assert [fleet.allocate(each)["allocated"] for each in claims] == [True, True, False]


SHARED = [device("d0", shared=True, capacity={"m": "4"})]


def test_shares_of_it_add_up_over_the_nodes() -> None:
    documents = [ANY, slice_of("n0", SHARED), slice_of("n1", SHARED)]
    claims = [wants(f"c{n}", node=NODES[n % 2], capacity={"requests": {"m": "1"}}) for n in range(5)]
    fleet = Fleet.from_manifests(documents)

    answer = dra.solve_manifests([*documents, *claims])
    answers = [fleet.allocate(each) for each in claims]

    assert sum(one["allocated"] for one in answer["claims"]) == 4
    assert [(one["allocated"], one["node"]) for one in answers[:4]] == [(True, NODES[n % 2]) for n in range(4)]
    assert not answers[4]["allocated"]


def test_shares_of_what_nodes_see_differently_are_of_one_node_at_a_time() -> None:
    other = [device("d0", {"uuid": "x"}, shared=True, capacity={"m": "4"})]
    documents = [ANY, slice_of("n0", SHARED), slice_of("n1", other)]
    asks = {"capacity": {"requests": {"m": "1"}}}

    answer = dra.solve_manifests([*documents, wants("a", node="n0", **asks), wants("b", node="n1", **asks)])

    assert [one["allocated"] for one in answer["claims"]] == [True, False]


# -- against trying everything ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn:
    """Nodes with devices of one pool name, and claims for some of them."""

    devices: dict[str, dict[str, bool]]
    """node -> device -> whether it is fine"""
    claims: tuple[tuple[int, bool, str | None], ...]
    """(count, whether only fine ones will do, node)"""

    @property
    def documents(self) -> list[Manifest]:
        slices = [
            slice_of(node, [device(name, {"fine": fine}) for name, fine in devices.items()])
            for node, devices in self.devices.items()
        ]
        fine = 'device.attributes["gpu.io"].fine'
        claims = [
            wants(f"c{n}", count, *([fine] if choosy else []), node=node)
            for n, (count, choosy, node) in enumerate(self.claims)
        ]
        return [ANY, *slices, *claims]

    def best(self) -> int:
        """The most claims that devices of different names satisfy."""
        return max(len(taken) for taken in self._ways(0, frozenset()))

    def _ways(self, number: int, used: frozenset[str]) -> Iterator[tuple[int, ...]]:
        if number == len(self.claims):
            yield ()
            return
        yield from self._ways(number + 1, used)
        count, choosy, pin = self.claims[number]
        for node, devices in self.devices.items():
            free = [name for name, fine in devices.items() if name not in used and (fine or not choosy)]
            for some in itertools.combinations(free, count) if pin in (None, node) else ():
                for others in self._ways(number + 1, used.union(some)):
                    yield (number, *others)


def drawn(rng: Random) -> Drawn:
    names = ["d0", "d1", "d2", "d3"]
    devices = {
        node: {name: rng.random() < 0.6 for name in rng.sample(names, rng.choice([1, 2, 3]))}
        for node in NODES[: rng.choice([2, 3])]
    }
    claims = (
        (rng.choice([1, 1, 2]), rng.random() < 0.5, rng.choice([None, *devices])) for _ in range(rng.choice([2, 3, 4]))
    )
    return Drawn(devices, tuple(claims))


@pytest.mark.parametrize("first", range(0, EXAMPLES, 50))
def test_as_many_claims_as_trying_everything_finds(first: int) -> None:
    for seed in range(first, first + 50):
        one = drawn(Random(seed))
        answer = dra.solve_manifests(one.documents)
        shuffled = one.documents
        Random(seed).shuffle(shuffled)

        assert (seed, sum(each["allocated"] for each in answer["claims"])) == (seed, one.best())
        assert answer["optimal"]
        assert len(given(answer)) == len(set(given(answer)))
        assert json.dumps(dra.solve_manifests(shuffled) | {"seconds": 0}) == json.dumps(answer | {"seconds": 0})
        fleet = Fleet.from_manifests([each for each in one.documents if each["kind"] != "ResourceClaim"])
        answers = [fleet.allocate(each) for each in one.documents if each["kind"] == "ResourceClaim"]
        assert len(given({"claims": answers})) == len(set(given({"claims": answers})))
