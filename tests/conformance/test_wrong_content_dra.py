"""Content of any type and size: an error that says what is wrong with it, and every other claim is answered."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest

from devalloc_solver.dialects.resource_k8s.fleet import ResourceClaimFleet
from devalloc_solver.dra import AllocationError, allocate, explain, solve_manifests
from tests.support.dra_builders import (
    answer,
    ask,
    claim,
    counter_slice,
    device,
    device_class,
    devices,
    first_of,
    given,
    node,
    request,
    slice_,
)
from tests.support.examples import examples
from tests.support.manifest_mutations import places
from tests.support.sentences import at_length

API = "resource.k8s.io/v1"
DEEP: Any = []
for _ in range(5000):
    DEEP = [DEEP]
JUNK: tuple[Any, ...] = (
    *(None, 1.5, float("nan"), "", "x", [], {}, True, False, 0, -1, 2**63, 2**70, 10**5000, -(10**5000)),
    *([None], [[]], [{}], [1], ["x"], {"a": None}, {1: "x", "a": 2}, {"a": {1: {}}}, "x" * 20_000, "(" * 5000),
    *(DEEP, {"a": DEEP}, "\u0000", "9" * 5000, "1e999", "1.2.3-" + "9" * 5000),
)
"""What is put in the place of every value."""

CONFIG = {"opaque": {"driver": "gpu.io", "parameters": {"mode": "x"}}}
CLASS = device_class("any", "device.driver == 'gpu.io'")
NODE = node("n1", zone="a")
GOOD = claim(
    request("r", 1, "device.attributes['gpu.io'].size > 1", tolerations=[{"key": "t", "operator": "Exists"}]),
    first_of("f", ask(1, amounts={"memory": "1Gi"}), ask(1)),
    constraints=[{"matchAttribute": "gpu.io/root", "requests": ["r"]}],
    config=[{"requests": ["r"], **CONFIG}],
)
GOOD["metadata"]["annotations"] = {"devalloc.io/priority": "1"}
OTHER = claim(request("r", 1), name="other")
POLICY = {"default": "1Gi", "validRange": {"min": "1Gi", "max": "2Gi", "step": "1Gi"}}
SLICE = slice_(
    "s",
    [
        device(
            "a",
            {"size": 2, "root": "x", "version": {"version": "1.2.3"}},
            counters={"set": {"c": "1"}},
            capacity={"memory": {"value": "2Gi", "requestPolicy": POLICY}},
            taints=[{"key": "t", "effect": "NoSchedule"}],
            bindingConditions=["ready"],
            shared=True,
        ),
        device("b", {"size": 3, "root": "x"}),
        device("c", {"size": 3}),
    ],
    count=2,
)
COUNTERS = counter_slice("t", {"set": {"c": "4"}}, count=2)
FAR = slice_("far", [device("z", {"size": 1})], pool="far", nodeName="n2")
PLENTY = slice_("plenty", devices("d", "e", "f"), pool="plenty")
TERM = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
WIDE = slice_("wide", devices("w"), pool="wide", nodeSelector={"nodeSelectorTerms": [TERM]})
SPREAD = [
    slice_("u1", devices("u"), pool="u", count=2),
    slice_("u2", devices("v"), pool="u", count=2, nodeName="n2"),
]
HELD = claim(request("r", 1), name="held")
HELD["status"] = {
    "allocation": {
        "devices": {"results": [{"request": "r", "driver": "gpu.io", "pool": "plenty", "device": "f"}]},
        "nodeSelector": {
            "nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
            ]
        },
    }
}


def content(obj: dict[str, Any]) -> dict[str, Any]:
    """What can be wrong in an object of this kind."""
    return {"metadata": obj["metadata"], **{key: obj[key] for key in ("spec", "status") if key in obj}}


WORLD: dict[str, Any] = {
    "node": content(NODE),
    "claims": [*map(content, (GOOD, HELD, OTHER))],
    "classes": [content(CLASS)],
    "slices": [*map(content, (SLICE, COUNTERS, FAR, PLENTY, WIDE, *SPREAD))],
    "allocated": {"devices": [{"driver": "gpu.io", "pool": "p", "device": "c"}], "shares": [], "consumedCapacity": []},
}
SEEDS = range(examples(2, 0.015))


MANY = claim(request("r", 20), name="many")
"""What is more than there is."""


def broken(seed: int, rounds: int, part: str | None = None) -> list[dict[str, Any]]:
    """The same world with another value in one of its places, for so many of all the places and values."""
    rng = random.Random(seed)
    wholes = len(places(WORLD[part] if part else WORLD))
    worlds = []
    for _ in range(rounds):
        world = deepcopy(WORLD)
        container, key = places(world[part] if part else world)[rng.randrange(wholes)]
        container[key] = rng.choice(JUNK)
        worlds.append(world)
    return worlds


def documents(world: dict[str, Any]) -> list[Any]:
    kinds = (("Node", [world["node"]]), ("DeviceClass", world["classes"]), ("ResourceSlice", world["slices"]))
    manifests: list[Any] = []
    for kind, objects in (*kinds, ("ResourceClaim", world["claims"])):
        for one in objects if isinstance(objects, list) else [objects]:
            version = "v1" if kind == "Node" else API
            manifests.append({"apiVersion": version, "kind": kind, **one} if isinstance(one, dict) else one)
    return manifests


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_but_an_allocation_error_comes_out_of_allocate(seed: int) -> None:
    answered = 0
    for world in broken(seed, 30):
        with suppress(AllocationError):
            allocation = allocate(**world)
            answered += 1
            assert allocation is None or len(allocation) == len(world["claims"])

    assert answered > 3, "not all are refused as they are"


def test_nothing_but_an_allocation_error_comes_out_of_explain() -> None:
    explained = 0
    for world in broken(7, 12):
        with suppress(AllocationError):
            explained += "reason" in explain(**world)

    assert explained > 3


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_but_an_allocation_error_comes_out_where_nothing_fits(seed: int) -> None:
    """``explain`` looks for what to take away then, in all that it was given."""
    explained = 0
    for world in broken(200 + seed, 12, "slices"):
        with suppress(AllocationError):
            explained += explain(**{**world, "claims": [HELD, MANY]})["reason"] is not None

    assert explained > 3


@pytest.mark.parametrize("damage", [{"spec": None}, {"driver": None}, {"pool": "x"}, {"devices": "x"}, {"allNodes": 1}])
def test_a_slice_that_is_left_out_changes_nothing_in_the_explanation_of_the_others(damage: Any) -> None:
    lost = {"metadata": {"name": "lost"}, "spec": PLENTY["spec"] | {"pool": {"name": "lost"}} | damage}
    lost = lost | damage if "spec" in damage else lost

    with_it, without = (explain("n1", [MANY], [CLASS], [PLENTY, *rest]) for rest in ([lost], []))

    assert [one["name"] for one in with_it["ignored"]] == ["lost"]
    assert with_it | {"ignored": []} == without


@pytest.mark.parametrize("spec", [{"exactly": {"deviceClassName": "any", "futureField": 1}}, {"exactly": 3}, {}])
def test_what_a_claim_holds_counts_whatever_its_spec_has_come_to(spec: Any) -> None:
    held = deepcopy(HELD)
    held["spec"]["devices"]["requests"] = [{"name": "r", **spec}]
    two = claim(request("r", 2), name="two")

    first, echoed = allocate("n1", [two, held], [CLASS], [PLENTY]) or ()
    explanation = explain("n1", [claim(request("r", 3)), held], [CLASS], [PLENTY])

    assert [one["device"] for one in first["devices"]["results"]] == ["d", "e"]
    assert echoed == held["status"]["allocation"]
    assert explanation["blockers"] == [{"kind": "claim", "namespace": "default", "name": "held", "priority": 0}]
    assert [one["name"] for one in explanation["ignored"]] == ["claim default/held"]
    assert "its devices still count" in explanation["ignored"][0]["why"]


UNTOUCHED = documents({"node": [], "classes": [CLASS], "slices": [PLENTY], "claims": [OTHER]})[1:]
"""What the other claim needs."""


@pytest.mark.parametrize("seed", SEEDS)
def test_every_other_claim_of_a_cluster_is_answered(seed: int) -> None:
    for world in broken(100 + seed, 12):
        cluster = documents(world)

        answers = {one["name"]: one for one in solve_manifests(cluster)["claims"]}

        if all(one in cluster for one in UNTOUCHED):
            assert answers["other"]["allocated"]
        fleet = ResourceClaimFleet.from_manifests(cluster)
        for one in cluster:
            if isinstance(one, dict) and one.get("kind") == "ResourceClaim":
                fleet.allocate(one)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"node": None}, "node: metadata.name is missing"),
        ({"node": 5}, "node: must be a map"),
        ({"claims": None}, "claims: must be a list of objects, not null"),
        ({"claims": [1]}, r"claims\[0\]: must be an object, not a number"),
        ({"classes": [None]}, r"classes\[0\]: must be an object"),
        ({"slices": {}}, "slices: must be a list"),
        ({"slices": ["x"]}, r"slices\[0\]: must be an object, not a string"),
        ({"allocated": []}, "allocated must be a map"),
        ({"features": "AdminAccess"}, "features: must be a list of feature gates"),
        ({"features": [None]}, "features: a feature gate must be a string"),
    ],
)
def test_arguments_of_another_kind_are_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(AllocationError, match=message):
        allocate(**{**WORLD, **changed})


# -- names ---------------------------------------------------------------------------------------------------------


def solved(*claims: dict[str, Any], slices: Any = (), classes: Any = ()) -> tuple[dict[str, Any], list[Any]]:
    world = {"node": NODE, "classes": [CLASS, *classes], "claims": [*claims], "slices": [PLENTY, *slices]}
    answer = solve_manifests(documents(world))
    return {one["name"]: one for one in answer["claims"]}, answer["problems"]


def test_requests_of_one_name_are_allocated_one_after_the_other_as_upstream_does() -> None:
    wanted = claim(request("r", 1, "device.driver == 'gpu.io'"), request("r", 2))

    assert given(answer(wanted, PLENTY)) == [[("r", "d"), ("r", "e"), ("r", "f")]]


@pytest.mark.parametrize("second", [request("r", None), first_of("r", ask(1))])
def test_two_requests_of_one_name_are_an_error(second: Any) -> None:
    with pytest.raises(AllocationError, match=r"requests\[0\]\.name is the name of 2 requests"):
        answer(claim(request("r", 1), second), PLENTY)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (claim(request(), request()), "spec.devices.requests has two requests named 'r'"),
        (
            claim({"name": "r", "firstAvailable": [{"name": "s", **ask()}, {"name": "s", **ask()}]}),
            "spec.devices.requests[0].firstAvailable has two subrequests named 's'",
        ),
        (
            claim(request(), config=[{"requests": ["x"], **CONFIG}]),
            "config[0].requests names 'x', but this claim has no",
        ),
        (claim(request(), config=[{"requests": 1.5, **CONFIG}]), "config[0].requests must be a list, not a number"),
        (claim(request(), config=[{"requests": "r", **CONFIG}]), "config[0].requests must be a list, not a string"),
        (claim(request(), config=[{"opaque": "x"}]), "config[0].opaque must be a map, not a string"),
        (
            claim(*(request(f"r{i}") for i in range(33))),
            "requests has 33 entries, and the API server accepts at most 32",
        ),
        (claim(request(), constraints=[{"matchAttribute": "a/b"}] * 33), "spec.devices.constraints has 33 entries"),
        (claim(request(), config=[CONFIG] * 33), "spec.devices.config has 33 entries"),
        (claim(request("r", 1, *["true"] * 33)), "exactly.selectors has 33 entries"),
        (claim(request("r", 1, f"true{' ' * 10240}")), "selectors[0].cel.expression has 10244 characters"),
        (claim(first_of("r", *[ask()] * 9)), "firstAvailable has 9 entries, and the API server accepts at most 8"),
        (claim(request(tolerations=[{"operator": "Exists"}] * 17)), "exactly.tolerations has 17 entries"),
    ],
)
def test_a_claim_that_the_api_server_refuses_is_invalid_and_the_others_are_answered(wanted: Any, message: str) -> None:
    answers, problems = solved(wanted, OTHER)

    assert answers["other"]["allocated"]
    assert (answers["c"]["allocated"], answers["c"]["reason"]) == (False, "ClaimInvalid")
    assert message in at_length(answers["c"])
    assert any(problem["name"] == "c" for problem in problems)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "opaque is missing"),
        ({"opaque": None}, "opaque is missing"),
        ({"opaque": {"parameters": {}}}, "opaque.driver is missing"),
        ({"opaque": {"driver": None, "parameters": {}}}, "opaque.driver is missing"),
        ({"opaque": {"driver": "", "parameters": {}}}, "opaque.driver is missing"),
        ({"opaque": {"driver": "gpu io", "parameters": {}}}, "opaque.driver must be the name of a driver"),
        ({"opaque": {"driver": "x" * 64, "parameters": {}}}, "opaque.driver must be the name of a driver"),
        ({"opaque": {"driver": 5, "parameters": {}}}, "opaque.driver must be the name of a driver"),
        ({"opaque": {"driver": "gpu.io"}}, "opaque.parameters is missing"),
        ({"opaque": {"driver": "gpu.io", "parameters": "x"}}, "opaque.parameters must be an object, not a string"),
        ({"opaque": {"driver": "gpu.io", "parameters": {"a": [float("nan")]}}}, "opaque.parameters.a"),
        ({"opaque": {"driver": "gpu.io", "parameters": {"a": float("inf")}}}, "opaque.parameters.a"),
        ({"opaque": {"driver": "gpu.io", "parameters": {"a": DEEP}}}, "opaque.parameters.a"),
        ({"opaque": {"driver": "gpu.io", "parameters": {"a": "x" * 10240}}}, "opaque.parameters has 10248 bytes"),
    ],
)
def test_a_config_that_the_api_server_refuses_is_an_error_of_its_claim_or_class(config: Any, message: str) -> None:
    odd = {"metadata": {"name": "odd"}, "spec": {"config": [CONFIG, config]}}

    answers, problems = solved(
        claim(request(), config=[CONFIG, config]), claim(request(class_name="odd"), name="x"), OTHER, classes=[odd]
    )

    assert answers["other"]["allocated"]
    assert [answers[name]["reason"] for name in ("c", "x")] == ["ClaimInvalid", "ClassInvalid"]
    assert f"spec.devices.config[1].{message}" in at_length(answers["c"])
    assert f"spec.config[1].{message}" in at_length(answers["x"])
    assert {"c", "odd"} <= {problem["name"] for problem in problems}


def test_drivers_of_configs_may_have_capital_letters_and_parameters_may_be_empty() -> None:
    config = [{"opaque": {"driver": "GPU.example.com", "parameters": {}}}]

    assert solved(claim(request(), config=config))[0]["c"]["allocated"]


@pytest.mark.parametrize("mark", ["group", "priority", "node"])
@pytest.mark.parametrize("value", [True, 3.5, 3, ["g"]])
def test_an_annotation_that_is_no_text_is_an_error(mark: str, value: Any) -> None:
    wanted = claim(request())
    wanted["metadata"]["annotations"] = {f"devalloc.io/{mark}": value}

    answers, _ = solved(wanted, OTHER)
    fleet = ResourceClaimFleet.from_manifests(
        documents({"node": NODE, "classes": [CLASS], "slices": [PLENTY], "claims": []})
    )

    assert answers["other"]["allocated"]
    assert answers["c"]["reason"] == "ClaimInvalid"
    assert f"metadata.annotations['devalloc.io/{mark}'] must be a string" in at_length(answers["c"])
    assert fleet.allocate(wanted)["message"] == answers["c"]["message"]


def test_an_annotation_that_is_null_is_none() -> None:
    wanted = claim(request())
    wanted["metadata"]["annotations"] = {"devalloc.io/priority": None, "devalloc.io/group": None}

    assert solved(wanted)[0]["c"]["allocated"]


def test_a_count_that_is_missing_is_an_error_that_says_what_to_write() -> None:
    for count in ({}, {"count": None}):
        bare = {"name": "r", "exactly": {"deviceClassName": "any", "allocationMode": "ExactCount", **count}}

        with pytest.raises(AllocationError, match=r"request r: .*exactly\.count is missing: .*write count: 1"):
            answer(claim(bare), PLENTY)
        assert solved(claim(bare))[0]["c"]["allocated"]


def test_a_class_that_the_api_server_refuses_is_named_and_a_slice_is_read_all_the_same() -> None:
    big = {"metadata": {"name": "big"}, "spec": {"selectors": [{"cel": {"expression": "true"}}] * 33}}
    many = slice_("many", devices(*(f"m{i}" for i in range(129))), pool="many")

    answers, problems = solved(
        claim(request(class_name="big")), claim(request(count=20), name="x"), slices=[many], classes=[big]
    )

    assert answers["c"]["reason"] == "ClassInvalid"
    assert "spec.selectors has 33 entries" in at_length(answers["c"])
    assert answers["x"]["allocated"]
    warning = next(problem for problem in problems if problem["name"] == "many")
    assert warning["severity"] == "warning"
    assert "has 129 entries, and the API server accepts at most 128" in warning["message"]


# -- All ----------------------------------------------------------------------------------------------------------


def test_all_devices_of_one_node_may_be_fewer_than_those_of_another_that_reaches_them() -> None:
    local = slice_("local", devices("d"), pool="local", nodeName="n0")
    net = slice_("net", devices("d"), pool="net", allNodes=True)
    nodes = [node("n0"), node("n1")]
    everything = claim(request("r", None))
    cluster = documents({"node": nodes[0], "classes": [CLASS], "slices": [local, net], "claims": [everything]})
    cluster.append(nodes[1])

    (answers,) = solve_manifests(cluster)["claims"]
    warm = ResourceClaimFleet.from_manifests(cluster).allocate(cluster[-2])

    assert answers["allocated"]
    assert warm == answers


# -- what claims hold ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "allocation",
    [
        5,
        {"devices": 5},
        {"devices": {"results": 5}},
        {"devices": {"results": [5]}},
        {"devices": {"results": [{"driver": [], "pool": {}, "device": 1}]}},
        {"nodeSelector": 5, "devices": {}},
        {"nodeSelector": {"nodeSelectorTerms": [None]}, "devices": {}},
        {"devices": {"results": [{"driver": "gpu.io", "pool": "plenty", "device": "d", "consumedCapacity": 5}]}},
    ],
)
def test_other_claims_are_answered_beside_an_unreadable_allocation(allocation: Any) -> None:
    bad = {**claim(request(), name="bad"), "status": {"allocation": allocation}}

    answers, _ = solved(bad, OTHER)
    fleet = ResourceClaimFleet.from_manifests(
        documents({"node": NODE, "classes": [CLASS], "slices": [PLENTY], "claims": [bad]})
    )

    assert answers["other"]["allocated"]
    assert "bad" in answers
    assert fleet.allocate(OTHER)["allocated"]


def test_what_can_be_read_of_an_allocation_is_in_use() -> None:
    place = {"driver": "gpu.io", "pool": "plenty"}
    bad = {**claim(request(), name="bad")}
    bad["status"] = {"allocation": {"devices": {"results": [{"driver": 5}, {**place, "device": "d"}]}}}

    answers, problems = solved(bad, claim(request(count=2)))

    assert [one["device"] for one in answers["c"]["allocations"]["devices"]["results"]] == ["e", "f"]
    assert any(problem["name"] == "bad" for problem in problems)


HALF = json.loads('"m\\ud800"')
"""Half a surrogate pair, which JSON can spell and nothing can write."""


@pytest.mark.parametrize("part", ["claims", "classes", "slices"])
def test_half_a_surrogate_pair_is_a_problem_and_never_in_an_answer(part: str) -> None:
    problems = 0
    texts = [i for i, (container, key) in enumerate(places(WORLD[part])) if isinstance(container[key], str)]
    for number in texts:
        world = deepcopy(WORLD)
        container, key = places(world[part])[number]
        container[key] = HALF
        is_held = any(container is one for one, _ in places([claim.get("status") for claim in world["claims"]]))
        answers = [solve_manifests(documents(world))]
        problems += any("invalid character" in one["message"] for one in answers[0]["problems"])
        with suppress(AllocationError):
            answers.append({"claims": allocate(**world)})
        for one in answers:
            assert is_held or json.dumps(one, ensure_ascii=False).encode()  # what is held is echoed as it came

    assert problems > len(texts) // 2
