"""Which devices claims get on a node, and what is said when they get none (settled D1 to D5)."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from devalloc_solver.dra import AllocationError, allocate
from tests.support.dra_builders import (
    ANY,
    answer,
    ask,
    claim,
    counter_slice,
    device,
    devices,
    first_of,
    given,
    names,
    request,
    slice_,
)


def in_use(*held: str) -> dict[str, Any]:
    return {"devices": [{"driver": "gpu.io", "pool": "p", "device": name} for name in held]}


# -- what is asked ---------------------------------------------------------------------------------------------------


def test_claims_are_satisfied_together_or_not_at_all() -> None:
    two = slice_("s", devices("d1", "d2"))

    assert names(answer([claim(request()), claim(request())], two)) == ["d1", "d2"]
    assert answer([claim(request()), claim(request(count=2))], two) is None


def test_nothing_is_asked_without_a_claim_that_waits() -> None:
    done = claim(request()) | {"status": {"allocation": {"devices": {}}}}

    assert answer([], slice_("s", devices("d"))) is None
    assert answer([done], slice_("s", devices("d"))) is None


def test_a_claim_with_an_allocation_keeps_it_and_holds_its_devices() -> None:
    (first,) = answer(claim(request()), slice_("s", devices("d1", "d2"))) or []
    done = claim(request()) | {"status": {"allocation": first}}

    assert given(answer([done, claim(request())], slice_("s", devices("d1", "d2")))) == [[("r", "d1")], [("r", "d2")]]
    assert answer([done, claim(request(count=2))], slice_("s", devices("d1", "d2"))) is None


def test_admin_access_that_was_given_holds_nothing() -> None:
    watching = claim(request(adminAccess=True))
    (first,) = answer(watching, slice_("s", devices("d"))) or []

    assert names(answer([watching | {"status": {"allocation": first}}, claim(request())], slice_("s", devices("d"))))


def test_claims_may_share_a_name_and_need_no_metadata_besides() -> None:
    bare = {"spec": claim(request())["spec"]}

    results = answer([bare, bare], slice_("s", devices("d1", "d2")))

    assert given(results) == [[("r", "d1")], [("r", "d2")]]


def test_the_order_of_input_has_no_say() -> None:
    rng = random.Random(1)
    slices = [slice_(f"s{i}", devices(f"d{i}a", f"d{i}b", numa=i % 2), count=4) for i in range(4)]
    classes = [ANY, {"metadata": {"name": "other"}}]
    claims = [claim(request("a", 1), first_of("b", ask(9), ask(2)), match="gpu.io/numa")]
    first = answer(claims, *slices, classes=classes, allocated=in_use("d0a", "d3b"))
    assert first is not None

    for _ in range(5):
        rng.shuffle(slices)
        rng.shuffle(classes)
        assert answer(claims, *slices, classes=classes, allocated=in_use("d3b", "d0a")) == first


# -- alternatives ----------------------------------------------------------------------------------------------------


def test_the_first_alternative_that_lets_everything_fit_is_taken() -> None:
    pending = claim(first_of("a", ask(3), ask(2)), request("b", 2))

    assert [r for r, _ in (given(answer(pending, slice_("s", devices(*"123456")))) or [[]])[0]].count("a/s0") == 3
    assert [r for r, _ in (given(answer(pending, slice_("s", devices(*"1234")))) or [[]])[0]].count("a/s1") == 2
    assert answer(pending, slice_("s", devices(*"123"))) is None


def test_choices_are_smallest_first_as_one_vector() -> None:
    """The first request has its way, though the second would be better off otherwise."""
    pending = claim(first_of("a", ask(2), ask(1)), first_of("b", ask(2), ask(1)))

    (pairs,) = given(answer(pending, slice_("s", devices("1", "2", "3")))) or []

    assert {name for name, _ in pairs} == {"a/s0", "b/s1"}


def test_alternatives_count_within_the_limit_of_32_devices() -> None:
    pending = claim(first_of("a", ask(32), ask(16)), first_of("b", ask(32), ask(16)))

    (pairs,) = given(answer(pending, slice_("s", devices(*(f"d{i}" for i in range(64)))))) or []

    assert {name for name, _ in pairs} == {"a/s1", "b/s1"}


# -- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [(33,), (32, 1), (2**63 - 1, 2**63 - 1)])
def test_more_than_32_devices_for_a_claim_are_an_error(counts: tuple[int, ...]) -> None:
    pending = claim(*(request(f"r{i}", count) for i, count in enumerate(counts)))

    with pytest.raises(AllocationError, match="exceeds the claim limit of 32"):
        answer(pending, slice_("s", devices("d")))


def test_all_of_more_than_32_devices_is_an_error_and_32_are_not() -> None:
    assert len(names(answer(claim(request(count=None)), slice_("s", devices(*map(str, range(32)))))) or []) == 32
    with pytest.raises(AllocationError, match="adding 33 devices exceeds the claim limit"):
        answer(claim(request(count=None)), slice_("s", devices(*map(str, range(33)))))


# -- all devices -----------------------------------------------------------------------------------------------------


def test_all_are_all_that_match_and_at_least_one() -> None:
    big = "device.attributes['gpu.io'].size == 'big'"
    content = [*devices("d1", "d2", size="big"), *devices("d3", size="small")]

    assert names(answer(claim(request("r", None, big)), slice_("s", content))) == ["d1", "d2"]
    assert answer(claim(request("r", None, big)), slice_("s", content[2:])) is None


@pytest.mark.parametrize(
    "obstacle", [{"allocated": in_use("d2")}, {"tainted": True}], ids=["one in use", "one with a taint"]
)
def test_all_is_nothing_when_one_of_them_cannot_be_had(obstacle: dict[str, Any]) -> None:
    taints = [{"key": "k", "effect": "NoSchedule"}] if obstacle.pop("tainted", False) else []
    content = [device("d1"), device("d2", taints=taints)]

    assert answer(claim(request(count=None)), slice_("s", content), **obstacle) is None
    assert names(answer(claim(first_of("r", ask(None), ask())), slice_("s", content), **obstacle)) == ["d1"]


def test_all_devices_are_unknown_while_a_pool_of_the_node_is_incomplete() -> None:
    slices = [slice_("s", devices("d1")), slice_("t", devices("d2"), pool="q", count=2)]

    assert names(answer(claim(request()), *slices)) == ["d1"]
    with pytest.raises(AllocationError, match=r"pool gpu\.io/q is currently being updated: 1 of 2 slices") as caught:
        answer(claim(request(count=None)), *slices)
    assert not caught.value.node_local


def test_a_constraint_that_forbids_all_devices_is_an_error() -> None:
    content = [device("d1", {"numa": 0}), device("d2", {"numa": 1})]

    with pytest.raises(AllocationError, match=r"cannot add all devices because a claim constraint .*gpu\.io/numa"):
        answer(claim(request(count=None), match="gpu.io/numa"), slice_("s", content))


def test_a_device_that_an_earlier_request_must_take_is_no_error_of_the_constraint() -> None:
    """The first request must take the only device with the attribute. It is in use then; no constraint forbids it."""
    pools = [
        slice_("s", [device("d1", {"model": "small"})], pool="a", driver="a.io"),
        slice_("t", [device("d2")], pool="b", driver="b.io"),
    ]
    pending = claim(request("any"), request("all", None, "device.driver == 'a.io'"))
    pending["spec"]["devices"]["constraints"] = [{"distinctAttribute": "a.io/model"}]

    assert answer(pending, *pools) is None


def test_such_a_constraint_is_no_error_as_long_as_something_fits() -> None:
    """Upstream gives up at the first NIC it tries."""
    content = [device("n0", {"numa": 0}), device("n1", {"numa": 1}), device("g1", {"numa": 1})]
    nic, gpu = "device.driver == 'gpu.io' && true", "device.attributes['gpu.io'].numa == 1"
    pending = claim(request("nic", 1, nic), request("gpu", None, gpu + " && false || device.driver == 'x'"))
    assert answer(pending, slice_("s", content)) is None

    pools = [slice_("s", content[:2], pool="nics", driver="nic.io"), slice_("t", content[2:], pool="gpus")]
    pending = claim(
        request("nic", 1, "device.driver == 'nic.io'"),
        request("gpu", None, "device.driver == 'gpu.io'"),
        match="x.org/numa",
    )
    for one, numa in zip((*content[:2], content[2]), (0, 1, 1), strict=True):
        one["attributes"] = {"x.org/numa": {"int": numa}}
    assert names(answer(pending, *pools)) == ["g1", "n1"]


# -- admin access ----------------------------------------------------------------------------------------------------


def test_admin_access_looks_at_devices_in_use_and_leaves_them_to_others() -> None:
    one = slice_("s", devices("d"))
    watch = claim(request(adminAccess=True))

    assert names(answer(watch, one, allocated=in_use("d"))) == ["d"]
    for order in itertools.permutations([watch, claim(request())]):
        assert names(answer(order, one)) == ["d", "d"]


def test_admin_access_needs_no_counters() -> None:
    slices = [
        counter_slice("c", {"s": {"m": "1"}}, count=2),
        slice_("s", [device("d1", counters={"s": {"m": "1"}}), device("d2", counters={"s": {"m": "1"}})], count=2),
    ]

    assert names(answer(claim(request(count=2, adminAccess=True)), *slices, allocated=in_use("d1"))) == ["d1", "d2"]


def test_a_claim_gets_a_device_once_even_with_admin_access() -> None:
    pending = claim(request("watch", adminAccess=True), request("use"))

    assert answer(pending, slice_("s", devices("d"))) is None
    assert names(answer(pending, slice_("s", devices("d", "e")))) == ["d", "e"]


# -- counters and shares ---------------------------------------------------------------------------------------------


def partitions(*amounts: str, total: str = "4") -> list[dict[str, Any]]:
    content = [device(f"d{i}", counters={"s": {"m": amount}}) for i, amount in enumerate(amounts)]
    return [counter_slice("c", {"s": {"m": total}}, count=2), slice_("s", content, count=2)]


def test_devices_share_the_counters_of_their_pool() -> None:
    assert answer(claim(request(count=3)), *partitions("2", "2", "1")) is None
    assert names(answer(claim(request(count=2)), *partitions("3", "2", "2"))) == ["d1", "d2"]
    assert answer(claim(request()), *partitions("3", "2"), allocated=in_use("d0")) is None


def test_devices_of_other_nodes_count_when_they_are_in_use() -> None:
    slices = [
        counter_slice("c", {"s": {"m": "4"}}, count=3),
        slice_("s", [device("d1", counters={"s": {"m": "2"}})], count=3),
        slice_("t", [device("d2", counters={"s": {"m": "3"}})], count=3, nodeName="n2"),
    ]

    assert names(answer(claim(request()), *slices)) == ["d1"]
    assert answer(claim(request()), *slices, allocated=in_use("d2")) is None


def test_a_pool_with_an_overdrawn_counter_gives_nothing_more_that_draws() -> None:
    content = [
        device("d1", counters={"s": {"m": "5"}}),
        device("d2", counters={"t": {"m": "1"}}),
        device("d3"),
    ]
    slices = [counter_slice("c", {"s": {"m": "4"}, "t": {"m": "4"}}, count=2), slice_("s", content, count=2)]

    assert names(answer(claim(request()), *slices, allocated=in_use("d1"))) == ["d3"]


def test_without_their_gate_devices_with_counters_are_not_given() -> None:
    content = [device("d1", counters={"s": {"m": "5"}}), device("d2")]

    assert names(answer(claim(request()), slice_("s", content), features=[])) == ["d2"]
    assert answer(claim(request(count=2)), slice_("s", content), features=[], allocated=in_use("d1")) is None


def test_shares_add_up_to_the_capacity_and_not_beyond() -> None:
    shared = slice_("s", [device("d", capacity={"m": "5"}, shared=True)])
    two = {"amounts": {"m": "2"}}

    assert names(answer([claim(request(**two)), claim(request(**two))], shared)) == ["d", "d"]
    assert answer([claim(request(**two))] * 3, shared) is None
    held = {"consumedCapacity": [in_use("d")["devices"][0] | {"consumedCapacity": {"m": "3500m"}}]}
    assert answer(claim(request(**two)), shared, allocated=held) is None
    assert names(answer(claim(request(amounts={"m": "1500m"})), shared, allocated=held)) == ["d"]


def test_one_request_takes_a_shared_device_once_and_several_may_each() -> None:
    shared = slice_("s", [device("d", shared=True)])

    assert answer(claim(request(count=2)), shared) is None
    assert names(answer(claim(request("a"), request("b")), shared)) == ["d", "d"]


def test_a_shared_device_draws_its_counters_once() -> None:
    content = [device("d", counters={"s": {"m": "3"}}, shared=True), device("e", counters={"s": {"m": "1"}})]
    slices = [counter_slice("c", {"s": {"m": "4"}}, count=2), slice_("s", content, count=2)]

    assert names(answer(claim(request("a"), request("b", 2)), *slices)) == ["d", "d", "e"]


def test_a_device_whose_shares_are_in_use_is_not_given_whole() -> None:
    """It was shareable once, and is not any more."""
    held = {"shares": [in_use("d")["devices"][0] | {"shareID": "1"}]}

    assert answer(claim(request()), slice_("s", [device("d")]), allocated=held) is None


@pytest.mark.parametrize("amount", ["9223372036854775807", "10E"])
def test_an_amount_that_cannot_be_rounded_ends_the_call_though_another_device_would_do(amount: str) -> None:
    policy = {"default": "1", "validRange": {"min": "1", "step": "4"}}
    content = [
        device("d", capacity={"m": {"value": "100E", "requestPolicy": policy}}, shared=True),
        device("e", capacity={"m": "100E"}, shared=True),
    ]

    assert names(answer(claim(request(amounts={"m": amount})), slice_("s", content[1:]))) == ["e"]
    with pytest.raises(AllocationError, match=r"request r: .*capacity\.requests: .* cannot be rounded"):
        answer(claim(request(amounts={"m": amount})), slice_("s", content))


# -- constraints -----------------------------------------------------------------------------------------------------


def test_a_match_finds_the_devices_that_agree() -> None:
    content = [device(f"d{i}", {"numa": numa}) for i, numa in enumerate((0, 1, 0, 1, 1))] + [device("bare")]

    assert names(answer(claim(request(count=3), match="gpu.io/numa"), slice_("s", content))) == ["d1", "d3", "d4"]
    assert answer(claim(request(count=4), match="gpu.io/numa"), slice_("s", content)) is None


def test_values_of_different_types_never_match() -> None:
    content = [device("d1", {"x": 1}), device("d2", {"x": True}), device("d3", {"x": "1"})]

    assert answer(claim(request(count=2), match="gpu.io/x"), slice_("s", content)) is None
    assert names(answer(claim(request(count=3), distinct="gpu.io/x"), slice_("s", content))) == ["d1", "d2", "d3"]


def test_of_the_values_to_agree_on_that_of_the_fewest_devices_counts_whatever_the_pool_is_used_for() -> None:
    """One request takes all devices of its own, in the same pool."""
    shared = [
        device(name, {"x": value, "own": 0}, capacity={"m": amount}, shared=True)
        for name, value, amount in (("a1", "a", "1"), ("a2", "a", "1"), ("b1", "b", "2"))
    ]
    own, of_all = (f"device.attributes['gpu.io'].own == {number}" for number in (1, 0))
    shares = [request(name, 1, of_all, capacity={"requests": {"m": "1"}}) for name in ("q", "r")]
    constraints = [{"matchAttribute": "gpu.io/x", "requests": ["q", "r"]}]
    content = slice_("s", [device("all", {"own": 1}), *shared])

    pairs = given(answer(claim(request("all", None, own), *shares, constraints=constraints), content))

    assert pairs == [[("all", "all"), ("q", "b1"), ("r", "b1")]]


def test_short_names_are_the_drivers_own() -> None:
    content = [device("d1", {"x": 1, "gpu.io/y": 1}), device("d2", {"gpu.io/x": 1, "y": 1})]

    assert names(answer(claim(request(count=2), match="gpu.io/x"), slice_("s", content))) == ["d1", "d2"]
    assert names(answer(claim(request(count=2), match="gpu.io/y"), slice_("s", content))) == ["d1", "d2"]
    assert answer(claim(request(), match="nic.io/x"), slice_("s", content)) is None


def test_constraints_cover_the_requests_they_name_and_chosen_alternatives_only() -> None:
    content = [device("a", {"x": 1}), device("b", {"x": 2}), device("c", {"x": 2})]
    constraints = [{"matchAttribute": "gpu.io/x", "requests": ["q", "r/s0"]}]

    (pairs,) = (
        given(answer(claim(request("q"), first_of("r", ask(2), ask(2)), constraints=constraints), slice_("s", content)))
        or []
    )

    assert {name for name, _ in pairs} == {"q", "r/s1"}


def test_lists_match_when_one_value_is_on_all_and_are_distinct_when_they_are_disjoint() -> None:
    content = [
        device("d1", {"x": [1, 2]}),
        device("d2", {"x": [2, 3]}),
        device("d3", {"x": [1, 3]}),
        device("d4", {"x": 4}),
    ]

    assert len(names(answer(claim(request(count=2), match="gpu.io/x"), slice_("s", content[:3]))) or []) == 2
    assert names(answer(claim(request(count=2), match="gpu.io/x"), slice_("s", content[1:3]))) == ["d2", "d3"]
    assert answer(claim(request(count=3), match="gpu.io/x"), slice_("s", content)) is None
    assert "d4" in (names(answer(claim(request(count=2), distinct="gpu.io/x"), slice_("s", content))) or [])
    assert answer(claim(request(count=3), distinct="gpu.io/x"), slice_("s", content)) is None


def test_while_lists_are_switched_off_a_list_meets_no_constraint() -> None:
    off = ["ConsumableCapacity"]
    content = [device("d1", {"x": [1]}), device("d2", {"x": [2]})]

    for constraint in ({"match": "gpu.io/x"}, {"distinct": "gpu.io/x"}):
        assert answer(claim(request(count=2), **constraint), slice_("s", content), features=off) is None


# -- what upstream once got wrong ------------------------------------------------------------------------------------


def test_c1_lists_that_agree_only_without_the_greedy_choice() -> None:
    content = [device(name, {"x": values}) for name, values in zip("abcd", ([1, 2], [1], [2], [2]), strict=True)]

    assert names(answer(claim(request(count=3), match="gpu.io/x"), slice_("s", content))) == ["a", "c", "d"]


def two_drivers(second_set: str, second_total: str) -> list[dict[str, Any]]:
    slices = []
    for driver, name, total in (("a.io", "s", "2"), ("b.io", second_set, second_total)):
        content = [device(f"{driver[0]}{i}", counters={name: {"m": "1"}}) for i in range(2)]
        slices.append(counter_slice(f"{driver}-c", {name: {"m": total}}, driver=driver, count=2))
        slices.append(slice_(f"{driver}-d", content, driver=driver, count=2))
    return slices


def test_c2_pools_of_two_drivers_with_equal_names_have_counters_of_their_own() -> None:
    a, b = (request(name, 1, f"device.driver == '{name}.io'") for name in "ab")

    assert names(answer(claim(a, b), *two_drivers("s", "2"))) == ["a0", "b0"]


def test_c2b_the_counters_of_one_driver_do_not_help_the_other() -> None:
    assert answer(claim(request("r", 2, "device.driver == 'b.io'")), *two_drivers("t", "1")) is None


def test_c3_distinct_is_distinct_within_one_request() -> None:
    content = [device(name, {"x": value}) for name, value in zip("abc", "xyx", strict=True)]

    assert answer(claim(request(count=3), distinct="gpu.io/x"), slice_("s", content)) is None
    assert names(answer(claim(request(count=2), distinct="gpu.io/x"), slice_("s", content))) == ["a", "b"]


def test_c4_a_choice_that_is_given_up_leaves_the_counters_as_they_were() -> None:
    """A shared device with counters is tried first, and has to give way."""
    content = [
        device("m1", {"x": 1}, counters={"s": {"m": "3"}}, shared=True),
        device("m2", {"x": 2}, counters={"s": {"m": "1"}}, shared=True),
        device("d1", {"x": 2}, counters={"s": {"m": "3"}}),
    ]
    slices = [counter_slice("c", {"s": {"m": "4"}}, count=2), slice_("s", content, count=2)]
    pending = claim(
        request("shared", 1, "device.allowMultipleAllocations"),
        request("whole", 1, "!device.allowMultipleAllocations"),
        match="gpu.io/x",
    )

    assert names(answer(pending, *slices)) == ["d1", "m2"]


# -- selectors that fail, pools that are wrong -----------------------------------------------------------------------

SMALL = "device.attributes['gpu.io'].size == 'small'"


def test_a_device_that_a_selector_cannot_judge_is_skipped() -> None:
    content = [device("odd"), device("ok", {"size": "small"})]

    assert names(answer(claim(request("r", 1, SMALL)), slice_("s", content))) == ["ok"]


@pytest.mark.parametrize("odd", [device("odd"), device("odd", {"size": {}}), device("odd", {"size": {"version": "1"}})])
def test_if_nothing_fits_the_selectors_failure_is_the_answer(odd: dict[str, Any]) -> None:
    with pytest.raises(
        AllocationError, match=r"claim default/c, request r: selector #0 fails on device gpu\.io/p/odd"
    ) as caught:
        answer(claim(request("r", 2, SMALL)), slice_("s", [odd, device("ok", {"size": "small"})]))
    assert not caught.value.node_local


def test_a_failure_on_a_device_in_use_has_nothing_to_do_with_it() -> None:
    assert answer(claim(request("r", 1, SMALL)), slice_("s", devices("odd")), allocated=in_use("odd")) is None


def test_an_attribute_that_cannot_be_read_matters_only_to_selectors() -> None:
    assert names(answer(claim(request()), slice_("s", [device("odd", {"x": {}})]))) == ["odd"]


def test_an_invalid_pool_is_a_matter_of_this_node_and_only_if_nothing_else_fits() -> None:
    broken = slice_("s", devices("d", "d"))

    assert names(answer(claim(request()), broken, slice_("t", devices("e"), pool="q"))) == ["e"]
    with pytest.raises(
        AllocationError, match=r"invalid resource pools .* gpu\.io/p: two devices are named d"
    ) as caught:
        answer(claim(request()), broken)
    assert caught.value.node_local


def test_an_incomplete_pool_is_just_not_there() -> None:
    assert answer(claim(request()), slice_("s", devices("d"), count=2)) is None


# -- the rest of the gates -------------------------------------------------------------------------------------------


def test_devices_with_binding_conditions_are_left_alone_while_these_are_switched_off() -> None:
    binding = slice_("s", [device("d", bindingConditions=["ready"])])

    assert names(answer(claim(request()), binding)) == ["d"]
    assert answer(claim(request()), binding, features=[]) is None


def test_taints_do_not_matter_while_they_are_switched_off() -> None:
    tainted = slice_("s", [device("d", taints=[{"key": "k", "effect": "NoSchedule"}])])

    assert answer(claim(request()), tainted) is None
    assert names(answer(claim(request()), tainted, features=[])) == ["d"]


def test_alpha_features_are_not_used_even_if_they_are_switched_on() -> None:
    on = ["OptionalNodeOperations", "NodeAllocatableResources"]

    assert answer(claim(request()), slice_("s", devices("d"), skipNodeOperations=["*"]), features=on) is None
    mapped = slice_("s", [device("d", nodeAllocatableResources={"cpu": {}})])
    assert answer(claim(request()), mapped, features=on) is None
    assert names(answer(claim(request()), mapped)) == ["d"]


def test_slices_may_come_from_a_generator() -> None:
    slices = (one for one in [slice_("s", devices("d"))])

    assert allocate("n1", iter([claim(request())]), iter([ANY]), slices) is not None
