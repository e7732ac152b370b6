"""A claim that a warm Fleet refuses hears what solve_manifests would say of the state: reason, numbers and remedies.

The Fleet counts by kinds of devices and looks at a few nodes only; solve_manifests goes through all there is.
"""

from __future__ import annotations

import copy
from random import Random
from typing import Any

import pytest

from devalloc.api.meta import ALLOCATED_NODE, GROUP, NODE
from devalloc_solver import Fleet, solve_manifests
from devalloc_solver.fleet import explainer
from tests.support.apply_blockers import with_blockers_applied
from tests.support.examples import examples
from tests.support.manifests import Manifest, claim, device, device_class, pool
from tests.support.random_fleets import documents

SEEDS = range(45, 45 + examples(3, 0.02))
PARTS = 4
"""Random fleets, or copies of one, of which a large one is put together: up to 12 nodes."""


def large_fleet(random: Random) -> tuple[list[Manifest], list[Manifest]]:
    """(pools, classes and claims that hold devices, pending claims) of several random fleets with the same classes."""
    standing: list[Manifest] = []
    pending: list[Manifest] = []
    one = documents(random)
    alike = random.random() < 0.7
    for part in range(PARTS):
        for document in copy.deepcopy(one) if alike or not part else documents(random):
            if document["kind"] not in ("DevicePool", "DeviceClaim"):
                standing += [document] if not part else []
            elif GROUP not in document["metadata"].get("annotations", {}):
                _rename(document, f"-{part}")
                if document["kind"] == "DevicePool":
                    standing.append(document)
                elif "status" not in document:
                    pending.append(document)
                elif not alike or random.random() < 0.6:
                    standing.append(document)
    return standing, pending


def _rename(document: Manifest, suffix: str) -> None:
    """The same in another part of the fleet."""
    document["metadata"]["name"] += suffix
    if "nodeName" in document["spec"]:
        document["spec"]["nodeName"] += suffix
    annotations = document["metadata"].get("annotations", {})
    for name in (NODE, ALLOCATED_NODE):
        if name in annotations:
            annotations[name] += suffix
    for entry in document.get("status", {}).get("allocations", ()):
        entry["devicePoolName"] += suffix


def with_answer(manifest: Manifest, answer: dict[str, Any]) -> Manifest:
    written = copy.deepcopy(manifest)
    written["metadata"].setdefault("annotations", {}).update(answer["annotations"])
    written["status"] = {"allocations": answer["allocations"]}
    return written


def without_blockers(answer: dict[str, Any]) -> dict[str, Any]:
    """All but what may be told in another way: of several smallest sets, any."""
    return {name: value for name, value in answer.items() if name not in ("blockers", "message")}


def sizes(answer: dict[str, Any]) -> dict[str, int]:
    kinds = [blocker["kind"] for blocker in answer.get("blockers", ())]
    return {kind: kinds.count(kind) for kind in kinds}


@pytest.mark.parametrize("few", [1, 16])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_refused_claim_hears_what_solve_manifests_says(seed: int, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(seed, few, monkeypatch)


def check(seed: int, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """``few`` nodes are looked at beside one of each kind."""
    monkeypatch.setattr(explainer, "FEW_NODES", few)
    random = Random(f"refusals {seed}")
    documents, pending = large_fleet(random)
    fleet = Fleet.from_manifests(documents)
    for number, wanted in enumerate(pending * 2):
        waiting = copy.deepcopy(wanted)
        waiting["metadata"]["name"] += f"-{number}"
        key = waiting["metadata"].get("namespace", "default"), waiting["metadata"]["name"]
        answer = fleet.allocate(waiting)
        if answer["allocated"]:
            documents.append(with_answer(waiting, answer))
            continue
        solved = _answer_to(key, [*documents, waiting])
        assert without_blockers(answer) == without_blockers(solved)
        assert sizes(answer) == sizes(solved), (answer, solved)
        assert answer["message"].partition("; ")[0] == solved["message"].partition("; ")[0]
        if answer.get("blockers") and answer["blockers"] != solved.get("blockers"):
            assert _answer_to(key, with_blockers_applied([*documents, waiting], key, answer["blockers"]))[
                "allocated"
            ], answer


def _answer_to(key: tuple[str, str], documents: list[Manifest]) -> dict[str, Any]:
    claims = solve_manifests(documents)["claims"]
    return next(answer for answer in claims if (answer["namespace"], answer["name"]) == key)


# -- one thing at a time ---------------------------------------------------------------------------------------------


def gpus(node: str, count: int = 4, model: str = "a100") -> Manifest:
    devices = [
        device(f"g{n}", attributes={"model": model, "numa": n // 2, "uuid": f"{node}-{n}"}) for n in range(count)
    ]
    return pool(f"pool-{node}", node, "gpu", devices=devices)


def wants(name: str, count: int, constraints: str | None = None) -> Manifest:
    detail: dict[str, Any] = {"deviceClass": "gpu", "requests": {"count": count}}
    return claim(name, detail | ({"constraints": constraints} if constraints else {}))


@pytest.fixture
def fleet() -> Fleet:
    """40 nodes, alike but for the last one, whose GPUs are of another model."""
    nodes = [gpus(f"n{n}", model="a100" if n < 39 else "l4") for n in range(40)]
    return Fleet.from_manifests([*nodes, device_class("gpu", driver="gpu")])


def test_the_numbers_are_those_of_all_nodes(fleet: Fleet) -> None:
    (funnel,) = fleet.allocate(wants("c", 1, "device.model == 'h100'"))["funnel"]
    assert funnel["devices"] == 160
    assert funnel["steps"][0]["count"] == 160
    assert funnel["steps"][0]["devices"] == ["pool-n0/g0", "pool-n0/g1", "pool-n0/g2"]


def test_the_claim_that_is_in_the_way_alone_is_found_among_many(fleet: Fleet) -> None:
    for number in range(38):
        for half in range(2):
            assert fleet.allocate(wants(f"small-{number}-{half}", 2))["allocated"]
    assert fleet.allocate(wants("large-a", 4))["allocated"]
    assert fleet.allocate(wants("large-b", 4))["allocated"]
    answer = fleet.allocate(wants("c", 4))
    assert answer["reason"] == "DevicesInUse"
    assert len(answer["blockers"]) == 1
    assert answer["blockers"][0]["name"] in ("large-a", "large-b")


def test_a_refusal_shows_what_has_changed_since(fleet: Fleet) -> None:
    for number in range(40):
        assert fleet.allocate(wants(f"all-{number}", 4))["allocated"]
    pending = wants("c", 4, "device.model == 'l4'")
    before = fleet.allocate(pending)
    assert fleet.allocate(pending) == before
    (blocker,) = before["blockers"]
    fleet.release("default", blocker["name"])
    assert fleet.allocate(wants("another", 1, "device.model == 'l4'"))["allocated"]
    assert [b["name"] for b in fleet.allocate(pending)["blockers"]] == ["another"]
    fleet.update(gpus("n39", count=3, model="l4"))
    assert fleet.allocate(pending)["reason"] == "NotEnoughDevices"
    fleet.update(device_class("gpu", driver="another"))
    assert fleet.allocate(pending)["funnel"][0]["steps"][0]["what"] == "are not of driver another"
    fleet.delete(gpus("n0"))
    assert fleet.allocate(pending)["funnel"][0]["devices"] == 155


def test_each_claim_hears_its_own_name_and_warnings(fleet: Fleet) -> None:
    first, second = fleet.allocate(wants("a", 9)), fleet.allocate(wants("b", 9))
    assert (first["name"], second["name"]) == ("a", "b")
    assert {**first, "name": "b"} == second
    first["blockers"][0].clear()
    first["funnel"][0].clear()
    assert fleet.allocate(wants("b", 9)) == second, "what a caller does to an answer is his own affair"


@pytest.mark.parametrize("constraints", ["device.model == 'l4'", "device.model == 'a1O0'", "device.modell == 'l4'"])
def test_hints_name_no_attributes_of_deleted_devices(constraints: str) -> None:
    """Kinds of devices outlive the devices; hints and words are of what is there."""
    nodes = [gpus("n0", model="a100"), gpus("n1", model="l4")]
    rules = device_class("gpu", driver="gpu")
    fleet = Fleet.from_manifests([*nodes, rules])
    pending = wants("c", 9, constraints)
    for gone in (0, 1):
        fleet.delete(nodes[gone])
        assert fleet.allocate(pending) == _answer_to(("default", "c"), [*nodes[gone + 1 :], rules, pending])


@pytest.mark.parametrize("constraint", [None, "device.numa == 0"])
@pytest.mark.parametrize("meant", ["n3-O", "n-3-1", "n77-1", "n77-9"])
def test_an_identifier_is_looked_for_among_those_of_its_class(constraint: str | None, meant: str) -> None:
    """Among 1,200 identifiers none is looked for; the class that has 400 of them gets the nearest."""
    nodes = [gpus(f"n{n}", model="a100" if n < 200 else "l4") for n in range(300)]
    few = device_class("gpu", driver="gpu", constraints="device.model == 'l4'")
    rest = f" && {constraint}" if constraint else ""
    pending = wants("c", 1, f"device.uuid == '{meant}'{rest}")
    for rules in (few, device_class("gpu", driver="gpu")):
        answer = Fleet.from_manifests([*nodes, rules]).allocate(pending)
        assert answer == _answer_to(("default", "c"), [*nodes, rules, pending])
