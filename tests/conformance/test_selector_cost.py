"""A valid claim stays valid however large the fleet is: what expressions cost, operand by operand, in both dialects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from itertools import product
from typing import Any

import pytest

from devalloc_solver import Fleet, dra, solve_manifests
from devalloc_solver.cel import budget
from devalloc_solver.cel.budget import Budget
from devalloc_solver.cel.device_claims import compile as compile_constraints
from devalloc_solver.cel.device_claims.environment import PATTERNS
from devalloc_solver.cel.errors import EvaluationError
from devalloc_solver.dialects.device_claims import candidates
from devalloc_solver.dialects.resource_k8s.cluster_devices import ClusterDevices
from devalloc_solver.dialects.resource_k8s.feature_gates import read_gates
from devalloc_solver.dialects.resource_k8s.pools import SliceBook, view_cluster
from devalloc_solver.dialects.resource_k8s.published_devices import DeviceUsage, published_device
from devalloc_solver.dialects.resource_k8s.selectors import selector_language
from devalloc_solver.eligibility.judge import Judge
from tests.support import dra_builders
from tests.support.call_count import calls
from tests.support.manifests import claim, device, device_class, pool
from tests.support.sentences import at_length

Manifest = dict[str, Any]
DRIVER = "gpu.example.com"
NODES, EACH = 30, 8
A = f'device.attributes["{DRIVER}"]'
MEMORY = f'device.capacity["{DRIVER}"].memory'
UUIDS = [f"GPU-{node:05}-{number}" for node in range(NODES) for number in range(4)]

SELECTORS = {
    "one uuid less, a product by pattern, memory": f'{A}.uuid != "GPU-00000-0" && '
    f'{A}.product.lowerAscii().matches("^.*h100.*$") && {MEMORY}.compareTo(quantity("40Gi")) >= 0',
    "one of five prefixes": f'["GPU-a","GPU-b","GPU-c","GPU-d","GPU-0"].exists(p, {A}.uuid.startsWith(p))',
    "one of 120 uuids": f"{UUIDS}.exists(u, u == {A}.uuid)".replace("'", '"'),
    "none of 120 uuids": f"{UUIDS}.all(u, u != {A}.uuid)".replace("'", '"'),
    "a pattern of the uuid": f'{A}.uuid.matches("^GPU-0.*-[0-9]+$")',
    "a choice in a pattern": f'{A}.id.matches("^GPU-[0-9a-f]{{8}}-00(0|1)[0-9a-f]-.*$")',
    "one of two patterns": f'{A}.id.matches("^GPU-0000001.*$") || {A}.id.matches("^GPU-0000000.-[0-9a-f]+-4000.*$")',
}
CONSTRAINTS = {
    "one uuid less, a product by pattern, memory": "device.uuid != 'GPU-00000-0' && "
    "device.product.lowerAscii().matches('^.*h100.*$') && device.memory >= '40Gi'",
    "one of five prefixes": "['GPU-a','GPU-b','GPU-c','GPU-d','GPU-0'].exists(p, device.uuid.startsWith(p))",
    "one of 120 uuids": f"{UUIDS}.exists(u, u == device.uuid)",
    "none of 120 uuids": f"{UUIDS}.all(u, u != device.uuid)",
    "a pattern of the uuid": "device.uuid.matches('^GPU-0.*-[0-9]+$')",
    "a choice in a pattern": "device.id.matches('^GPU-[0-9a-f]{8}-00(0|1)[0-9a-f]-.*$')",
    "one of two patterns": "device.id.matches('^GPU-0000001.*$') || "
    "device.id.matches('^GPU-0000000.-[0-9a-f]+-4000.*$')",
}


def long_id(node: int, number: int) -> str:
    return f"GPU-{node:08x}-{number:04x}-4000-8000-aabbccddeeff"


def pools() -> list[Manifest]:
    made = []
    for node in range(NODES):
        devices = [
            device(
                f"g{n}",
                attributes={
                    "uuid": f"GPU-{node:05}-{n}",
                    "id": long_id(node, n),
                    "product": "NVIDIA H100 80GB HBM3",
                    "memory": {"quantityValue": "80Gi"},
                },
            )
            for n in range(EACH)
        ]
        made.append(pool(f"p{node}", f"n{node}", DRIVER, devices=devices))
    return [device_class("gpu", driver=DRIVER), *made]


def slices() -> list[Manifest]:
    made = [dra_builders.device_class("gpu")]
    for node in range(NODES):
        devices = [
            dra_builders.device(
                f"g{n}",
                {"uuid": f"GPU-{node:05}-{n}", "id": long_id(node, n), "product": "NVIDIA H100 80GB HBM3"},
                capacity={"memory": "80Gi"},
            )
            for n in range(EACH)
        ]
        where = {"driver": DRIVER, "nodeName": f"n{node}", "pool": f"n{node}"}
        made.append(dra_builders.slice_(f"s{node}", devices, **where))
    return made


def resource_claim(expression: str) -> Manifest:
    return dra_builders.claim(dra_builders.request("r", 1, expression, class_name="gpu"))


def answers(documents: list[Manifest], wanted: Manifest) -> list[Mapping[str, Any]]:
    """By one solve, by a warm fleet alone, and by a warm fleet jointly."""
    solve: Callable[..., Any] = dra.solve_manifests if wanted["kind"] == "ResourceClaim" else solve_manifests
    return [
        solve([*documents, wanted])["claims"][0],
        Fleet.from_manifests(documents).allocate(wanted),
        Fleet.from_manifests(documents).allocate_all([wanted])["claims"][0],
    ]


@pytest.mark.parametrize("name", SELECTORS)
def test_everyday_expressions_are_answered_although_all_devices_differ(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two units for each device beyond what is free: what a fleet of 140,000 devices leaves of the bound is more."""
    monkeypatch.setattr(budget, "EXPRESSION_BUDGET", 35 * NODES * EACH)
    monkeypatch.setattr(budget, "FREE_STEPS", 100)
    of_claims = answers(pools(), claim("c", {"deviceClass": "gpu", "constraints": CONSTRAINTS[name]}))
    of_resources = answers(slices(), resource_claim(SELECTORS[name]))
    assert [each["reason"] for each in (*of_claims, *of_resources)] == [None] * 6
    assert len({each["node"] for each in of_claims}) == len({each["node"] for each in of_resources}) == 1


def test_a_selector_that_is_too_expensive_shows_its_cost_and_is_not_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "EXPRESSION_BUDGET", 20_000)
    numbers = str([*range(99)])
    costly = f"{numbers}.exists(a, [1, 2].exists(b, a + b >= 0 && device.uuid.startsWith('none')))"
    of_claims = answers(pools(), claim("c", {"deviceClass": "gpu", "constraints": costly}))
    of_resources = answers(slices(), resource_claim(costly.replace("device.uuid", f"{A}.uuid")))
    for answer in (*of_claims, *of_resources):
        assert (answer["reason"], answer["exceeded"]) == ("ExpressionTooExpensive", "expression")
        assert re.search(r"up to \d+ units for each device", at_length(answer))
        assert re.search(r"the bound of 20000 units is enough for \d+ of them", at_length(answer))


# -- apart means the same as together ----------------------------------------------------------------------------------

OPERANDS = ("device.a == 1", "device.b == 'x'", "device.c > 3", "device.a + device.b == 2")
"""On a device without an attribute, or with one of another type, an operand is an error."""


@pytest.mark.parametrize("count", [2, 3])
def test_operands_apart_decide_what_the_whole_does_whatever_fails(count: int) -> None:
    values: list[dict[str, int | str]] = [{"a": 1}, {"a": 2}, {"a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 5}]
    values += [{}, {"b": "y"}, {"c": 4, "b": "x"}, {"a": 1, "c": 1}]
    for chosen in product(OPERANDS, repeat=count):
        expression = " && ".join(chosen)
        program = compile_constraints(expression)
        made = [device(f"d{n}", attributes=each) for n, each in enumerate(values)]
        documents = [device_class("gpu"), pool("p", "n", devices=made)]
        wanted = claim("c", {"deviceClass": "gpu", "constraints": expression})
        (answer,) = solve_manifests([*documents, wanted])["claims"]
        given = {each["deviceName"] for each in answer["allocations"]}
        accepted = {f"d{n}" for n, each in enumerate(values) if _holds(program, each)}
        assert given <= accepted
        assert bool(given) == bool(accepted)


def _holds(program: Any, attributes: Mapping[str, int | str]) -> bool:
    try:
        return bool(program.evaluate(attributes, budget.Budget(10_000)))
    except EvaluationError:
        return False


# -- many devices at once mean the same as one after the other ---------------------------------------------------------

VARIED = {
    "one uuid less, a pattern, memory": CONSTRAINTS["one uuid less, a product by pattern, memory"].replace(
        "0-0", "0-1"
    ),
    "a pattern that most fail": "device.uuid.matches('-3$') && device.memory >= '40Gi'",
    "an attribute that some lack": "device.rare == 1 || device.uuid.endsWith('-1')",
    "one of two types": "device.odd + 1 == 2 && device.uuid.startsWith('GPU')",
    "dearer than free for all": f"{[*range(60)]}.exists(n, device.uuid.endsWith('-' + string(n)) && n > 1)",
    "dearer than free for some": "device.odd == 1 ? device.uuid.size() > 0 : "
    f"{[*range(90)]}.all(n, device.uuid.size() > n - 200)",
}


def varied_pools() -> list[Manifest]:
    """Devices of which the expressions above fail on some."""
    made = pools()
    for number, each in enumerate(one for document in made[1:] for one in document["spec"]["devices"]):
        odd: dict[str, Any] = {"intValue": number % 3} if number % 7 else {"stringValue": "x"}
        each["attributes"] += [{"name": "odd", **odd}, *([{"name": "rare", "intValue": 1}] * (number % 5 == 0))]
    return made


def varied_slices() -> list[Manifest]:
    made = slices()
    for number, each in enumerate(one for document in made[1:] for one in document["spec"]["devices"]):
        each["attributes"] |= {"odd": {"int": number % 3} if number % 7 else {"string": "x"}}
        each["attributes"] |= {"rare": {"int": 1}} if number % 5 == 0 else {}
        if number % 11 == 0:
            each["attributes"]["broken"] = {"version": "one"}  # no selector can read the device
    return made


@pytest.mark.parametrize("name", VARIED)
def test_devices_judged_together_fare_as_they_do_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeviceClaims: the answer, and the explanation of one that is too large, with its funnel."""
    documents = varied_pools()
    wanted = [
        claim(f"c{count}", {"deviceClass": "gpu", "constraints": VARIED[name], "requests": {"count": count}})
        for count in (2, 99)
    ]
    monkeypatch.setattr(candidates, "SAMPLE", 10**9)
    one_by_one = [solve_manifests([*documents, each])["claims"] for each in wanted]
    monkeypatch.setattr(candidates, "SAMPLE", 8)
    together = [solve_manifests([*documents, each])["claims"] for each in wanted]
    assert together == one_by_one


@pytest.mark.parametrize("name", VARIED)
def test_devices_of_slices_judged_together_fare_as_they_do_one_by_one(name: str) -> None:
    gates = read_gates(None)
    expression = VARIED[name].replace("device.memory >= '40Gi'", f"{MEMORY}.compareTo(quantity('40Gi')) >= 0")
    for attribute in ("uuid", "product", "odd", "rare"):
        expression = expression.replace(f"device.{attribute}", f"{A}.{attribute}")
    book = SliceBook(varied_slices()[1:], gates)
    devices = ClusterDevices.of(book, view_cluster(book, {}), DeviceUsage(), gates).snapshot.devices
    faults = {one.index: "fault" for one in devices if published_device(one).device.has_fault}
    together, apart = Judge(selector_language(gates)), Judge(selector_language(gates))
    one_by_one = ["fault" if one.index in faults else apart.verdict(expression, one) for one in devices]
    assert together.verdicts(expression, devices, faults) == one_by_one
    assert len(faults) == 22
    assert len({*one_by_one} - {"fault"}) > 1 or "for all" in name or "for some" in name
    for judge in (together, apart):
        judge.charge(expression)
    assert together.allowance.room == apart.allowance.room, "it costs the same"


# -- what a call costs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dialect", "most"), [("DeviceClaims", 55), ("ResourceClaims", 80)])
def test_an_everyday_expression_costs_a_batch_on_a_warm_fleet_few_calls_for_each_device(
    dialect: str, most: int
) -> None:
    """The devices were read before. What is left for each of them is to look at its uuid, and to compare it."""
    name = "one uuid less, a product by pattern, memory"
    is_device_claim = dialect == "DeviceClaims"
    many = [{**one, **_renamed(one, copy)} for copy in range(10) for one in (pools() if is_device_claim else slices())]
    fleet = Fleet.from_manifests(many[:1] + [one for one in many if one["kind"] != "DeviceClass"])

    def wanted(expression: str, name: str) -> Manifest:
        if is_device_claim:
            return claim(name, {"deviceClass": "gpu", "constraints": expression})
        one = resource_claim(expression)
        return {**one, "metadata": {**one["metadata"], "name": name, "uid": name}}

    fleet.allocate_all([wanted("true", "first")])
    expression = (CONSTRAINTS if is_device_claim else SELECTORS)[name]
    devices = 10 * NODES * EACH
    assert calls(lambda: fleet.allocate_all([wanted(expression, "second")])) < most * devices
    assert calls(lambda: fleet.allocate_all([wanted(expression, "third")])) < 20 * devices


def _renamed(document: Manifest, copy: int) -> Manifest:
    """The same on another node."""
    if document["kind"] == "DeviceClass":
        return {}
    spec = deepcopy(document["spec"])
    name = f"{spec['nodeName']}-{copy}"
    for each in spec["devices"]:
        attributes = each["attributes"]
        own = next((one for one in attributes if one["name"] == "uuid"), None) if isinstance(attributes, list) else None
        if own is None:
            attributes["uuid"] = {"string": f"{attributes['uuid']['string']}-{copy}"}
        else:
            own["stringValue"] += f"-{copy}"
    spec["nodeName"] = name
    if "pool" in spec:
        spec["pool"]["name"] = name
    return {"metadata": {"name": name}, "spec": spec}


# -- a cluster that is kept is never older than what was said of it ----------------------------------------------------


def test_a_slice_changed_in_place_counts_after_the_fleet_is_updated() -> None:
    documents = slices()
    fleet = Fleet.from_manifests(documents)
    first = UUIDS[0]
    only = resource_claim(f'{A}.uuid == "{first}"')
    assert fleet.allocate_all([only])["claims"][0]["allocated"]
    fleet.delete(only)
    changed = documents[1]
    changed["spec"]["devices"][0]["attributes"]["uuid"]["string"] = "another"
    fleet.update(changed)
    assert not fleet.allocate_all([only])["claims"][0]["allocated"]
    another = fleet.allocate_all([resource_claim(f'{A}.uuid == "another"')])["claims"][0]
    assert another["allocated"]


@pytest.mark.parametrize("change", ["slice", "class", "node", "slice gone", "taint"])
def test_a_cluster_that_is_kept_answers_as_one_that_is_read_anew(change: str) -> None:
    documents = [*slices(), dra_builders.node("n0")]
    fleet = Fleet.from_manifests(documents)
    wanted = [resource_claim("true") | {"metadata": {"name": f"c{n}", "namespace": "d", "uid": f"c{n}"}} for n in "12"]
    fleet.allocate_all(wanted[:1])
    held = {**wanted[0], "status": {"allocation": fleet.allocate(wanted[0])["allocations"]}}
    new = deepcopy(documents[1])
    match change:
        case "slice":
            new["spec"]["devices"] = new["spec"]["devices"][:1]
        case "taint":
            new["spec"]["devices"][1]["taints"] = [{"key": "broken", "effect": "NoSchedule"}]
        case "class":
            new = {**documents[0], "spec": {"selectors": [{"cel": {"expression": f'{A}.uuid == "{UUIDS[5]}"'}}]}}
        case "node":
            new = dra_builders.node("other", zone="a")
    name = (new["kind"], new["metadata"]["name"])
    documents = [one for one in documents if (one["kind"], one["metadata"]["name"]) != name]
    if change == "slice gone":
        fleet.delete(new)
    else:
        fleet.update(new)
        documents.append(new)
    warm, cold = fleet.allocate_all(wanted[1:]), dra.solve_manifests([*documents, held, wanted[1]])
    assert [one for one in warm["claims"] if one["name"] == "c2"] == [
        one for one in cold["claims"] if one["name"] == "c2"
    ]
    assert warm["problems"] == cold["problems"]


@pytest.mark.parametrize("size", [20, 100])
def test_only_a_literal_pattern_is_compiled_for_all_devices_at_once(size: int) -> None:
    """One that is made anew for each device is compiled for each, and costs that each time."""

    def cost(pattern: str) -> int:
        own = Budget(budget.EVALUATION_BUDGET)
        compile_constraints(f"device.id.matches({pattern})").evaluate({"id": "x", "end": ""}, own)
        return own.spent

    literal, made_anew = cost(f"'[a-f]{{{size}}}'"), cost(f"'[a-f]{{{size}}}' + device.end")
    assert made_anew - literal > PATTERNS.instruction * size
