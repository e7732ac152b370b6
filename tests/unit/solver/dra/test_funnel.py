"""At which step the devices dropped out: the funnel of a request that gets nothing (S19)."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc_solver.dra import explain
from devalloc_solver.explain.funnel import describe_funnel
from tests.support.dra_builders import claim, counter_slice, device, devices, request, selector, slice_

IS_BIG = "device.attributes['gpu.io'].size == 'big'"
HELD = {"devices": [{"driver": "gpu.io", "pool": "p", "device": "d"}]}
BIG = {"size": "big"}


def funnel(spec: Any, *slices: Any, selectors: Any = (), **options: Any) -> dict[str, Any]:
    classes = [{"metadata": {"name": "any"}, "spec": {"selectors": list(selectors)}}]
    (outcome,) = explain("n1", [claim(spec)], classes, slices, **options)["claims"]
    (only,) = outcome["requests"]
    return dict(only)


@pytest.mark.parametrize(
    ("spec", "slices", "options", "what"),
    [
        (request(), [slice_("s", devices("d"), count=2)], {}, "are of an incomplete pool"),
        (request(), [slice_("s", devices("d", "d"))], {}, "are of an invalid pool"),
        (request(), [slice_("s", [device("d", bindingConditions=["x"])])], {"features": []}, "have binding conditions"),
        (request(), [slice_("s", devices("d"))], {"allocated": HELD}, "are in use"),
        (request("r", 1, IS_BIG), [slice_("s", [device("d", {"size": "no"})])], {}, "fail a selector of the request"),
        (request("r", 1, IS_BIG), [slice_("s", devices("d"))], {}, "cause an error in a selector"),
        (request(), [slice_("s", devices("d"))], {"selectors": [selector("false")]}, "fail a selector of class '"),
        (request(amounts={"m": "1"}), [slice_("s", devices("d"))], {}, "cannot give the capacity"),
        (request(), [slice_("s", [device("d", counters={"s": {"m": "1"}})])], {"features": []}, "draw on counters"),
        (request(), [slice_("s", [device("d", taints=[{"key": "k", "effect": "NoExecute"}])])], {}, "have a taint"),
        (request(), [slice_("s", devices("d"), skipNodeOperations=["*"])], {}, "need DRAOptionalNodeOperations"),
        (
            request(amounts={"m": "1"}),
            [slice_("s", [device("d", capacity={"m": "1"}, shared=True)])],
            {"allocated": {"consumedCapacity": [{**HELD["devices"][0], "consumedCapacity": {"m": "1"}}]}},
            "have too little capacity left",
        ),
    ],
)
def test_each_step_has_its_words(spec: Any, slices: Any, options: Any, what: str) -> None:
    rows = funnel(spec, *slices, **options)

    assert [step["what"].startswith(what) for step in rows["steps"]] == [True]
    assert rows["steps"][0]["devices"][0].startswith("gpu.io/p/d")
    assert rows["free"] == 0


def test_a_pool_with_an_overdrawn_counter_is_named() -> None:
    content = [device("d", counters={"s": {"m": "2"}}), device("e", counters={"s": {"m": "1"}})]
    slices = [counter_slice("c", {"s": {"m": "1"}}, count=2), slice_("s", content, count=2)]

    rows = funnel(request(), *slices, allocated=HELD)

    assert {step["what"]: step.get("example") for step in rows["steps"]} == {
        "are in use": None,
        "are of a pool with an overdrawn counter": "s/m of gpu.io/p",
    }


def test_the_funnel_adds_up_and_reads_as_a_sentence() -> None:
    content = [*devices("a", "b", size="small"), *devices("c", "d", **BIG)]

    rows = funnel(request("r", 3, IS_BIG), slice_("s", content), allocated=HELD)

    assert rows["devices"] == rows["matching"] + sum(step["count"] for step in rows["steps"])
    assert describe_funnel(rows) == (
        "2 of 4 devices fail a selector of the request (device.attributes['gpu.io'].size == 'big'), 1 is in use"
    )


def test_ignored_slices_and_unusable_pools_are_listed() -> None:
    odd = slice_("odd", devices("x"), pool="q", futureField=1)

    explanation = explain(
        "n1", [claim(request())], [{"metadata": {"name": "any"}}], [odd, slice_("s", devices("d"), count=2)]
    )

    assert explanation["ignored"][0]["name"] == "odd"
    assert explanation["pools"] == [
        {"name": "gpu.io/p", "state": "incomplete", "why": "1 of 2 slices of generation 1 are there"}
    ]
