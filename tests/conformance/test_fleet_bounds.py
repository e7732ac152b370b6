"""What a Fleet remembers has bounds: of claims and objects that never repeat, many leave no more than a few."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import pytest

from devalloc_solver import Fleet
from devalloc_solver.check import cel_results, classes, specs
from devalloc_solver.check.resource_k8s import cel_results as resource_results
from devalloc_solver.check.resource_k8s import quick_check
from devalloc_solver.dialects.device_claims import fleet_rules as rules
from devalloc_solver.dialects.device_claims import typos
from devalloc_solver.dialects.resource_k8s import cluster_devices
from devalloc_solver.dialects.resource_k8s import fleet_explainer as resource_explainer
from devalloc_solver.dialects.resource_k8s import fleet_rules as resource_rules
from devalloc_solver.eligibility import judge
from devalloc_solver.fleet import (
    claim_reader,
    explainer,
    explanation_nodes,
    node_index,
    place_finder,
    pool_states,
    shape_search,
    unique_attribute_search,
)
from tests.support import dra_builders as dra
from tests.support.manifests import Manifest, claim, device, device_class, pool

NODES = 6


def gpus(name: str, node: str, model: str = "m0") -> Manifest:
    devices = [
        device(
            f"g{n}",
            attributes={"model": model, "numa": n // 2, "uuid": f"{name}-{n}", "card": hash_of(name, n)},
            resources={"memory": "8Gi/1Gi"},
        )
        for n in range(4)
    ]
    return pool(name, node, "gpu", devices=devices)


def hash_of(name: str, number: int) -> int:
    """Scattered, and the same in every run."""
    return (sum(map(ord, name)) * 7 + number * number * 5) % 11


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """With bounds that are soon reached."""
    for module, name, most in (
        (place_finder, "MAX_SHAPES", 8),
        (shape_search, "SPARE_ENTRIES", 4),
        (node_index, "SPARE_CLASSES", 50),
        (node_index, "SPARE_KINDS", 20),
        (node_index, "SPARE_RANKS", 10),
        (node_index, "NODE_KINDS", 4),
        (pool_states, "SPARE_STATES", 50),
        (unique_attribute_search, "SPARE_ENTRIES", 10),
        (rules, "MAX_SHAPES", 8),
        (rules, "MAX_VERDICTS", 100),
        (node_index, "MIN_CHANGES_KEPT", 20),
        (claim_reader, "MAX_SPECS", 8),
        (specs, "MAX_SPECS", 8),
        (classes, "MAX_RULES", 8),
        (cel_results, "MAX_EXPRESSIONS", 8),
        (cel_results, "MAX_VERDICTS", 20),
        (typos, "MAX_DEMANDS", 8),
        (explainer, "MAX_ANSWERS", 8),
        (explainer, "MAX_SELECTIONS", 4),
        (explainer, "MAX_SUBSETS", 4),
        (explainer, "MAX_REFINEMENTS", 1),
        (explanation_nodes, "MAX_BOUNDS", 20),
    ):
        monkeypatch.setattr(module, name, most)
    manifests = [gpus(f"p{n}", f"n{n}", f"m{n % 3}") for n in range(NODES)]
    return Fleet.from_manifests([*manifests, device_class("gpu", driver="gpu")])


PROGRAM = (type, ModuleType, FunctionType)


def reachable_count(fleet: Fleet) -> int:
    """Containers and objects that the fleet refers to, directly or not, but code and types."""
    seen: set[int] = set()
    waiting: list[Any] = [fleet]
    while waiting:
        referents = {
            id(each): each
            for each in gc.get_referents(*waiting)
            if gc.is_tracked(each) and not isinstance(each, PROGRAM)
        }
        waiting = [referents[one] for one in referents.keys() - seen]
        seen |= referents.keys()
    return len(seen)


ROUNDS = 60
"""Long enough to meet every bound."""
MOST_GROWTH = 1.12
"""Two or three objects that each step leaves are more."""


def grows(fleet: Fleet, step: Callable[[int], None]) -> float:
    """By how much more is kept after three times as many steps, at the most that is kept meanwhile."""
    most = []
    for part in range(3):
        high = 0
        for number in range(part * ROUNDS, (part + 1) * ROUNDS):
            step(number)
            if number % 12 == 0 and part != 1:
                high = max(high, reachable_count(fleet))
        most.append(high)
    return most[2] / most[0]


def place(fleet: Fleet, constraints: str, **detail: Any) -> None:
    pending = claim("c", {"deviceClass": "gpu", "constraints": constraints, **detail})
    if fleet.allocate(pending)["allocated"]:
        fleet.release("default", "c")


@pytest.mark.parametrize(
    "constraints",
    [
        "device.numa < {} + 5",
        "device.card != {} + 50",
        "device.uuid != 'u{}'",
        "device.model == 'x{}'",
        "device.uuid == 'x{}'",
        "device.numa == {} +",
    ],
)
def test_claims_that_never_ask_for_the_same_leave_nothing_behind(fleet: Fleet, constraints: str) -> None:
    assert grows(fleet, lambda n: place(fleet, constraints.format(n))) < MOST_GROWTH


def test_refused_shares_leave_nothing_behind(fleet: Fleet) -> None:
    def step(number: int) -> None:
        fleet.allocate(claim("c", {"deviceClass": "gpu", "requests": {"memory": f"{number + 100}Gi"}}))

    assert grows(fleet, step) < MOST_GROWTH


def test_pools_that_come_anew_leave_nothing_behind(fleet: Fleet) -> None:
    def step(number: int) -> None:
        fleet.update(gpus(f"p{number % NODES}", f"n{number % NODES}", f"model-{number}"))
        place(fleet, "device.card != 50")
        place(fleet, "device.numa == 1")

    assert grows(fleet, step) < MOST_GROWTH


def test_nodes_that_come_and_go_leave_nothing_behind(fleet: Fleet) -> None:
    def step(number: int) -> None:
        fleet.update(gpus(f"new-{number}", f"node-{number}"))
        pending = claim("c", {"deviceClass": "gpu"}, annotations={"devalloc.io/node": f"node-{number}"})
        assert fleet.allocate(pending)["allocated"]
        place(fleet, "device.card < 50", requests={"count": 9})
        fleet.delete({"kind": "DevicePool", "metadata": {"name": f"new-{number}"}})
        fleet.delete({"kind": "DeviceClaim", "metadata": {"namespace": "default", "name": "c"}})

    assert grows(fleet, step) < MOST_GROWTH


def test_claims_that_come_and_go_leave_nothing_behind(fleet: Fleet) -> None:
    def step(number: int) -> None:
        pending = claim(f"c{number}", {"deviceClass": "gpu", "requests": {"count": 1 + number % 4}})
        assert fleet.allocate(pending)["allocated"]
        fleet.allocate(claim(f"large-{number}", {"deviceClass": "gpu", "requests": {"count": 5}}))
        fleet.delete({"kind": "DeviceClaim", "metadata": {"namespace": "default", "name": f"c{number}"}})

    assert grows(fleet, step) < MOST_GROWTH


def test_shares_of_the_network_leave_nothing_behind(fleet: Fleet) -> None:
    """Each amount is another state of the pool, and no node changes with it."""
    links = [device(f"l{n}", resources={"bandwidth": "100G/1"}) for n in range(2)]
    fleet.update(pool("links", None, "link", devices=links))

    def step(number: int) -> None:
        requests = {"bandwidth": str(1 + (number * 7919) % 40_009)}
        pending = claim(f"c{number}", {"requests": requests})
        assert fleet.allocate(pending)["allocated"]
        if number >= 5:
            fleet.delete({"kind": "DeviceClaim", "metadata": {"namespace": "default", "name": f"c{number - 5}"}})

    assert grows(fleet, step) < MOST_GROWTH


# -- resource.k8s.io ---------------------------------------------------------------------------------------------------


def node_gpus(node: str, model: str = "m0") -> Manifest:
    content = [
        dra.device(
            f"g{n}",
            {"model": model, "numa": n // 2, "uuid": f"{node}-{n}", "card": hash_of(node, n)},
            capacity={"memory": "8Gi"},
        )
        for n in range(4)
    ]
    return dra.slice_(node, content, pool=node, nodeName=node, driver="gpu.io")


def resource_claim(name: str, expression: str = "true", count: int = 1) -> Manifest:
    return dra.claim(dra.request("r", count, expression, class_name="gpu"), name=name)


@pytest.fixture
def cluster(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """The same of resource.k8s.io."""
    for module, name, most in (
        (resource_rules, "MAX_SHAPES", 8),
        (resource_rules, "MAX_EXPRESSIONS", 12),
        (resource_rules, "MAX_FAILURES", 20),
        (resource_explainer, "MAX_VERDICTS", 4),
        (explainer, "MAX_SELECTIONS", 4),
        (cluster_devices, "MAX_VERDICTS", 4),
        (judge, "MAX_EXPRESSIONS", 8),
        (resource_results, "MAX_EXPRESSIONS", 8),
        (resource_results, "MAX_VERDICTS", 20),
        (resource_results, "MAX_DEVICES", 20),
        (quick_check, "MAX_SPECS", 8),
    ):
        monkeypatch.setattr(module, name, most)
    slices = [node_gpus(f"n{n}", f"m{n % 3}") for n in range(NODES)]
    return Fleet.from_manifests([*slices, dra.device_class("gpu", "device.driver == 'gpu.io'")])


@pytest.mark.parametrize(
    "expression",
    [
        "device.attributes['gpu.io'].numa < {} + 5",
        "device.attributes['gpu.io'].card != {} + 50",
        "device.attributes['gpu.io'].uuid != 'u{}'",
        "device.attributes['gpu.io'].model == 'x{}'",
        "device.attributes['gpu.io'].uuid == 'x{}'",
        "device.attributes['gpu.io'].numa{} == 1",
        "device.attributes['gpu.io'].numa == {} +",
    ],
)
def test_resource_claims_that_never_ask_for_the_same_leave_nothing_behind(cluster: Fleet, expression: str) -> None:
    def step(number: int) -> None:
        if cluster.allocate(resource_claim("c", expression.format(number)))["allocated"]:
            cluster.delete(resource_claim("c"))

    assert grows(cluster, step) < MOST_GROWTH


@pytest.mark.parametrize("expression", ["uuid != 'u{}'", "uuid.matches('x{}')", "numa{} == 1", "numa == {} +"])
def test_batches_of_resource_claims_that_never_ask_for_the_same_leave_nothing_behind(
    cluster: Fleet, expression: str
) -> None:
    def step(number: int) -> None:
        wanted = resource_claim("c", f"device.attributes['gpu.io'].{expression}".format(number))
        attribute = {"matchAttribute": f"gpu.io/{'numa' if number % 2 else f'a{number}'}", "requests": ["r"]}
        wanted["spec"]["devices"]["constraints"] = [attribute]
        if cluster.allocate_all([wanted])["claims"][-1]["allocated"]:
            cluster.delete(wanted)

    assert grows(cluster, step) < MOST_GROWTH


def test_resource_claims_that_come_and_go_leave_nothing_behind(cluster: Fleet) -> None:
    def step(number: int) -> None:
        assert cluster.allocate(resource_claim(f"c{number}", count=1 + number % 4))["allocated"]
        cluster.allocate(resource_claim(f"large-{number}", count=5))
        cluster.delete(resource_claim(f"c{number}"))

    assert grows(cluster, step) < MOST_GROWTH


def test_slices_that_come_and_go_leave_nothing_behind(cluster: Fleet) -> None:
    def step(number: int) -> None:
        cluster.update(node_gpus(f"node-{number}"))
        cluster.update(node_gpus("n0", f"model-{number}"))
        named = resource_claim("c", f"device.attributes['gpu.io'].uuid == 'node-{number}-1'")
        assert cluster.allocate(named)["allocated"]
        cluster.allocate(resource_claim("d", count=9))
        cluster.delete(node_gpus(f"node-{number}"))
        cluster.delete(resource_claim("c"))

    assert grows(cluster, step) < MOST_GROWTH
