"""The AllocationResult: devices, shares, configuration and the node selector."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.dra_builders import answer, ask, claim, device, devices, first_of, request, selector, slice_

ZONE = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}
RACK = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n9"]}]}]}
N1 = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]}
WHERE = {"metadata": {"name": "n1", "labels": {"zone": "a"}}}


def only(claims: Any, *slices: Any, **options: Any) -> dict[str, Any]:
    results = answer(claims, *slices, **options)
    assert results is not None
    (result,) = results
    return result


def test_fields_that_say_nothing_are_left_out() -> None:
    assert only(claim(request()), slice_("s", devices("d"), allNodes=True)) == {
        "devices": {"results": [{"request": "r", "driver": "gpu.io", "pool": "p", "device": "d"}]}
    }


def test_a_device_of_one_node_binds_the_claim_to_it() -> None:
    slices = [slice_("s", devices("d")), slice_("t", devices("e"), pool="q", nodeSelector=ZONE)]

    assert only(claim(request(count=2)), *slices, node=WHERE)["nodeSelector"] == N1


def test_a_device_may_bind_to_the_node_though_all_nodes_reach_it() -> None:
    binding = slice_("s", [device("d", bindsToNode=True)], allNodes=True)

    assert only(claim(request()), binding)["nodeSelector"] == N1


def test_selectors_of_what_was_taken_are_merged() -> None:
    slices = [
        slice_("s", devices("d"), nodeSelector=ZONE),
        slice_("t", [device("e", nodeSelector=RACK)], pool="q", perDeviceNodeSelection=True),
        slice_("u", devices("f"), pool="r", allNodes=True),
    ]

    selector = only(claim(request(count=3)), *slices, node=WHERE)["nodeSelector"]

    assert selector == {"nodeSelectorTerms": [ZONE["nodeSelectorTerms"][0] | RACK["nodeSelectorTerms"][0]]}


def test_shares_carry_an_id_and_all_that_they_take() -> None:
    shared = device("d", capacity={"m": "4", "n": "2"}, shared=True)

    result = only(claim(request(amounts={"m": "1"})), slice_("s", [shared]))["devices"]["results"][0]

    assert result["consumedCapacity"] == {"m": "1", "n": "2"}
    assert len(result["shareID"]) == 36


def test_share_ids_are_the_same_every_time_and_differ_from_each_other() -> None:
    shared = slice_("s", [device("d", capacity={"m": "4"}, shared=True)])
    claims = [claim(request("a", amounts={"m": "1"}), request("b", amounts={"m": "1"})) for _ in range(2)]

    first, second = answer(claims, shared), answer(claims, shared)

    assert first == second
    assert first is not None
    ids = [one["shareID"] for result in first for one in result["devices"]["results"]]
    assert len({*ids}) == 4


def test_a_share_id_that_is_in_use_is_not_given_again() -> None:
    shared = slice_("s", [device("d", capacity={"m": "4"}, shared=True)])
    pending = claim(request(amounts={"m": "1"}))
    first = only(pending, shared)["devices"]["results"][0]
    held = {"driver": "gpu.io", "pool": "p", "device": "d", "shareID": first["shareID"]}

    again = only(pending, shared, allocated={"shares": [held]})["devices"]["results"][0]

    assert again["shareID"] != first["shareID"]


def test_tolerations_and_binding_conditions_are_copied() -> None:
    tainted = device(
        "d",
        taints=[{"key": "k", "effect": "NoExecute"}],
        bindingConditions=["ready"],
        bindingFailureConditions=["broken"],
    )
    tolerations = [{"key": "k", "operator": "Exists", "tolerationSeconds": 60}]

    result = only(claim(request(tolerations=tolerations)), slice_("s", [tainted]))["devices"]["results"][0]

    assert result["tolerations"] == tolerations
    assert result["bindingConditions"] == ["ready"]
    assert result["bindingFailureConditions"] == ["broken"]


def opaque(name: str, *requests: str) -> dict[str, Any]:
    config: dict[str, Any] = {"opaque": {"driver": "gpu.io", "parameters": {"name": name}}}
    return config | ({"requests": list(requests)} if requests else {})


def configs(result: dict[str, Any]) -> list[tuple[str, str, list[str] | None]]:
    return [
        (c["source"], c["opaque"]["parameters"]["name"], c.get("requests")) for c in result["devices"].get("config", [])
    ]


def test_configuration_comes_from_classes_once_each_and_then_from_the_claim() -> None:
    classes = [
        {"metadata": {"name": "a"}, "spec": {"config": [opaque("a1"), opaque("a2")]}},
        {"metadata": {"name": "b"}, "spec": {"config": [opaque("b")]}},
    ]
    pending = claim(
        request("x", class_name="a"),
        request("y", class_name="b"),
        request("z", class_name="a"),
        config=[opaque("all"), opaque("some", "x"), opaque("each", "x", "y", "z")],
    )

    assert configs(only(pending, slice_("s", devices("1", "2", "3")), classes=classes)) == [
        ("FromClass", "a1", ["x", "z"]),
        ("FromClass", "a2", ["x", "z"]),
        ("FromClass", "b", ["y"]),
        ("FromClaim", "all", None),
        ("FromClaim", "some", ["x"]),
        ("FromClaim", "each", None),
    ]


@pytest.mark.parametrize(("free", "chosen"), [(2, 0), (1, 1)])
def test_configuration_of_an_alternative_counts_only_if_it_was_chosen(free: int, chosen: int) -> None:
    pending = claim(
        first_of("r", ask(2), ask(1)),
        config=[opaque("first", "r/s0"), opaque("second", "r/s1"), opaque("either", "r")],
    )

    configurations = configs(only(pending, slice_("s", devices(*map(str, range(free))))))

    assert configurations == [("FromClaim", ("first", "second")[chosen], None), ("FromClaim", "either", None)]


def test_the_class_of_the_chosen_alternative_counts() -> None:
    classes = [{"metadata": {"name": n}, "spec": {"config": [opaque(n)]}} for n in ("big", "small")]
    classes[0]["spec"]["selectors"] = [selector("false")]
    pending = claim(first_of("r", ask(class_name="big"), ask(class_name="small")), request("q", class_name="small"))

    configurations = configs(only(pending, slice_("s", devices("1", "2")), classes=classes))

    assert configurations == [("FromClass", "small", None)]
