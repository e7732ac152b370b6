"""What a programmer who calls the library can rely on (settled L2, D5)."""

from __future__ import annotations

import json
import random
from inspect import getmembers, isfunction
from typing import Any

import pytest

import devalloc_solver
from devalloc.api.claim import DeviceClaim
from devalloc.api.device_class import DeviceClass
from devalloc.api.pool import DevicePool
from devalloc_solver import AnswerRefused, Fleet, capacity, dra, solve, solve_manifests
from devalloc_solver.columns import allocate_batch
from devalloc_solver.dialects.device_claims import problem as stages
from devalloc_solver.dialects.device_claims.manifest_records import read_documents
from devalloc_solver.dialects.device_claims.problem import prepare
from devalloc_solver.exact.goal_search import GoalSearch
from devalloc_solver.pipeline import strategy
from devalloc_solver.problem.placement_policy import PACK
from tests.support.manifests import Manifest, allocated, claim, device, device_class, entry, pool

GPU = device_class("gpu", driver="gpu", deviceType="gpu")


BY_COUNTING = "MatchAttributesConflict"
"""Three devices of one numa node, where each has two: counting shows it without any search."""


def fleet(nodes: int, size: int = 4) -> list[dict[str, Any]]:
    return [
        pool(f"n{n}-gpus", f"n{n}", devices=[device(f"g{i}", attributes={"numa": i // 2}) for i in range(size)])
        for n in range(nodes)
    ]


def claims(count: int, seed: int = 1) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [
        claim(
            f"c{i:02d}",
            {
                "deviceClass": "gpu",
                "requests": {"count": rng.choice([1, 2, 3])},
                "matchAttributes": rng.choice([[], ["numa"]]),
            },
            annotations={"devalloc.io/priority": str(rng.randrange(2))},
        )
        for i in range(count)
    ]


def without_time(answer: dict[str, Any]) -> str:
    return json.dumps({k: v for k, v in answer.items() if k != "seconds"}, sort_keys=True)


def test_the_answer_is_plain_json_ordered_by_namespace_and_name() -> None:
    documents = [GPU, *fleet(2), claim("b", {"deviceClass": "gpu"}), claim("a", {"deviceClass": "gpu"}, namespace="z")]
    answer = json.loads(json.dumps(solve_manifests(documents)))
    assert [(c["namespace"], c["name"]) for c in answer["claims"]] == [("default", "b"), ("z", "a")]
    assert answer["optimal"] is True
    assert answer["problems"] == []
    assert answer["claims"][0]["node"] == "n0"
    assert answer["claims"][0]["allocations"] == [{"devicePoolName": "n0-gpus", "deviceName": "g0"}]
    assert answer["claims"][0]["oneOf"] == [None]
    assert [level["goal"] for level in answer["objective"]["levels"]] == ["satisfied", "pools", "devices"]


def test_the_order_of_documents_and_repetition_change_nothing() -> None:
    documents = [GPU, *fleet(3), *claims(8)]
    first = without_time(solve_manifests(documents))
    for seed in range(3):
        shuffled = documents[:]
        random.Random(seed).shuffle(shuffled)
        assert without_time(solve_manifests(shuffled)) == first


@pytest.mark.parametrize(
    "document",
    [None, 7, "text", [], {}, {"kind": "DeviceClaim"}, {"kind": 5, "apiVersion": []}, {"metadata": {"name": {}}}],
    ids=repr,
)
def test_rubbish_among_the_documents_is_a_problem_and_stops_nothing(document: Any) -> None:
    answer = solve_manifests([GPU, *fleet(1), claim("c", {"deviceClass": "gpu"}), document])
    assert answer["claims"][0]["allocated"]
    assert answer["problems"]


def test_an_invalid_claim_is_answered_with_its_paths() -> None:
    bad = claim("bad", {"deviceClass": "gpu", "requests": {"count": "1.5"}})
    answer = solve_manifests([GPU, *fleet(1), bad, claim("good", {"deviceClass": "gpu"})])
    by_name = {c["name"]: c for c in answer["claims"]}
    assert by_name["good"]["allocated"]
    assert by_name["bad"]["reason"] == "ClaimInvalid"
    assert "spec.claims[0].requests" in by_name["bad"]["message"]


def test_an_invalid_claim_keeps_the_devices_it_was_given() -> None:
    held = allocated(claim("bad", {"deviceClass": "gpu", "colour": "red"}), [entry("n0-gpus", "g0")], node="n0")
    answer = solve_manifests([GPU, *fleet(1), held, claim("c", {"deviceClass": "gpu"})])
    by_name = {c["name"]: c for c in answer["claims"]}
    assert by_name["bad"]["allocated"]
    assert by_name["c"]["allocations"] == [{"devicePoolName": "n0-gpus", "deviceName": "g1"}]


def test_typed_objects_give_the_same_answer() -> None:
    documents = fleet(2), [GPU], claims(4)
    typed = solve(
        [DevicePool.model_validate(d) for d in documents[0]],
        [DeviceClass.model_validate(d) for d in documents[1]],
        [DeviceClaim.model_validate(d) for d in documents[2]],
    )
    untyped = solve_manifests([d for part in documents for d in part])
    assert without_time(typed.to_dict()) == without_time(untyped)
    assert typed["default", "c00"].allocated
    with pytest.raises(KeyError):
        typed["default", "nobody"]


def test_an_unknown_placement_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="pack, spread"):
        solve_manifests([], placement="scatter")


def test_pack_fills_the_node_in_use_and_spread_takes_another() -> None:
    held = allocated(claim("held", {"deviceClass": "gpu"}), [entry("n1-gpus", "g0")], node="n1")
    documents = [GPU, *fleet(3), held, claim("c", {"deviceClass": "gpu"})]
    packed, spread = (solve_manifests(documents, placement=p) for p in ("pack", "spread"))
    assert packed["claims"][0]["node"] == "n1"
    assert spread["claims"][0]["node"] != "n1"


def test_pack_leaves_the_largest_partition_free() -> None:
    """A half that is already broken into is taken before the one that could still be given whole."""
    card = pool(
        "card",
        resources={"left": "2", "right": "2"},
        devices=[
            device("a-half", attributes={"size": 2}, requests={"left": 2}),
            device("b-half", attributes={"size": 2}, requests={"right": 2}),
            *[device(f"{s}-{i}", attributes={"size": 1}, requests={s: 1}) for s in ("left", "right") for i in range(2)],
        ],
    )
    held = allocated(claim("held", {"deviceClass": "gpu"}), [entry("card", "right-0")], node="n1")
    wanted = claim("c", {"deviceClass": "gpu", "constraints": "device.size == 1"})
    answer = solve_manifests([GPU, card, held, wanted])
    assert answer["claims"][0]["allocations"][0]["deviceName"] == "right-1"


def test_a_batch_leaves_the_largest_partition_free() -> None:
    """As for one claim: two ones go into the half that is broken into already, and the other half stays whole."""
    card = pool(
        "card",
        resources={"left": "4", "right": "4"},
        devices=[
            device("a-half", attributes={"size": 4}, requests={"left": 4}),
            device("b-half", attributes={"size": 4}, requests={"right": 4}),
            *[device(f"{s}-{i}", attributes={"size": 1}, requests={s: 1}) for s in ("left", "right") for i in range(4)],
        ],
    )
    held = allocated(claim("held", {"deviceClass": "gpu"}), [entry("card", "right-0")], node="n1")
    batch = [claim(name, {"deviceClass": "gpu", "constraints": "device.size == 1"}) for name in ("c1", "c2")]
    answer = solve_manifests([GPU, card, held, *batch])
    got = {
        one["name"]: one["allocations"][0]["deviceName"].partition("-")[0]
        for one in answer["claims"]
        if one["allocated"]
    }
    assert got == {"held": "right", "c1": "right", "c2": "right"}


def test_a_deadline_that_is_over_still_gives_a_checked_answer_and_says_so() -> None:
    answer = solve_manifests([GPU, *fleet(4), *claims(12)], deadline=0.0)
    assert len(answer["claims"]) == 12
    assert {c["reason"] for c in answer["claims"] if not c["allocated"]} <= {"SearchLimit", BY_COUNTING}
    counts = [level for level in answer["objective"]["levels"] if level["goal"] == "satisfied"]
    assert answer["optimal"] is all(level["value"] == level["bound"] for level in counts)


def test_an_answer_that_the_check_refuses_is_never_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategy, "name_devices", lambda search: [])
    monkeypatch.setattr(stages, "check", lambda *args, **kwargs: ["device given twice"])
    with pytest.raises(AnswerRefused, match="device given twice"):
        solve_manifests([GPU, *fleet(1), claim("c", {"deviceClass": "gpu"})])


@pytest.mark.parametrize("seed", range(6))
def test_columns_are_right_and_their_bound_holds(seed: int) -> None:
    documents = [GPU, *fleet(3), *claims(9, seed)]
    exact = {
        (level["goal"], level.get("priority")): level["value"]
        for level in solve_manifests(documents)["objective"]["levels"]
    }
    prepared = prepare(read_documents(documents))
    placements, levels = allocate_batch(prepared.snapshot, prepared.allocations, prepared.units, policy=PACK, ends=None)
    taken = [(e.device.pool, e.device.name) for p in placements for e in p.entries]
    assert len(taken) == len(set(taken))
    for level in levels:
        if level.goal == "satisfied":
            assert level.value <= level.bound
            if level.priority == 1:  # the highest priority is not constrained by others
                assert level.value <= exact["satisfied", 1] <= level.bound


def test_large_batches_take_the_other_path_and_are_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategy, "EXACT_SIZE", 0)
    answer = solve_manifests([GPU, *fleet(3), *claims(6)])
    assert sum(c["allocated"] for c in answer["claims"]) >= 3


def test_capacity_counts_copies_on_every_node() -> None:
    held = allocated(claim("held", {"deviceClass": "gpu"}), [entry("n1-gpus", "g0")], node="n1")
    pair = claim("pair", {"deviceClass": "gpu", "requests": {"count": 2}, "matchAttributes": ["numa"]})
    copies = capacity([GPU, *fleet(3), held, pair], pair)
    assert (copies.count, copies.proven) == (5, True)
    assert copies.by_node == {"n0": 2, "n1": 1, "n2": 2}


def test_capacity_is_what_solving_that_many_copies_reaches() -> None:
    share = {"deviceClass": "gpu", "requests": {"memory": "3Gi"}, "limits": {"count": 2}}
    cards = pool("cards", devices=[device(f"g{i}", resources={"memory": "4Gi/1Gi"}) for i in range(3)])
    count = capacity([GPU, cards], claim("c", share))
    copies = [claim(f"c{i}", share) for i in range(6)]
    answer = solve_manifests([GPU, cards, *copies])
    assert count.count == sum(c["allocated"] for c in answer["claims"]) == 4


def test_capacity_of_network_devices_is_shared_by_all_nodes() -> None:
    shared = pool("net", None, devices=[device(f"g{i}") for i in range(3)])
    assert capacity([GPU, shared, *fleet(1, 1)], claim("c", {"deviceClass": "gpu"})).count == 4


@pytest.mark.parametrize(
    "metadata", [{"namespace": 1}, {"namespace": ["a"]}, {"annotations": 1}, {"annotations": "x"}, {"labels": 3}]
)
def test_capacity_of_a_claim_with_odd_metadata_is_none(metadata: Manifest) -> None:
    copies = capacity([GPU, *fleet(1)], claim("c", {"deviceClass": "gpu"}, **metadata))
    assert (copies.count, copies.reason) == (0, "ClaimInvalid")


@pytest.mark.parametrize("name", [1, None, "", ["a"]])
def test_capacity_needs_a_claim_with_a_name(name: object) -> None:
    unnamed = claim("c", {"deviceClass": "gpu"})
    unnamed["metadata"]["name"] = name
    with pytest.raises(ValueError, match="name"):
        capacity(fleet(1), unnamed)


def test_capacity_of_a_claim_that_cannot_be_solved_says_why() -> None:
    copies = capacity(fleet(1), claim("c", {"deviceClass": "gpu"}))
    assert (copies.count, copies.reason) == (0, "ClassNotFound")


def test_a_search_that_finds_nothing_in_time_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        GoalSearch, "_solve", lambda search, terms, limit: sum(weight for weight, _ in terms if weight < 0)
    )
    monkeypatch.setattr(GoalSearch, "complete", lambda search, hints, limit: None)
    held = allocated(claim("held", {"deviceClass": "gpu"}), [entry("n0-gpus", "g0")], node="n0")
    answer = solve_manifests([GPU, *fleet(2), held, *claims(6)])
    assert {c["reason"] for c in answer["claims"] if not c["allocated"]} == {"SearchLimit", BY_COUNTING}
    assert answer["optimal"] is False


def test_an_invalid_member_that_holds_devices_fixes_the_node_of_its_group() -> None:
    group = {"devalloc.io/group": "g"}
    bad = claim("bad", {"deviceClass": "gpu", "colour": "red"}, annotations=group)
    full = allocated(bad, [entry("n1-gpus", f"g{i}") for i in range(4)], node="n1")
    answer = solve_manifests([GPU, *fleet(2), full, claim("c", {"deviceClass": "gpu"}, annotations=group)])
    by_name = {c["name"]: c for c in answer["claims"]}
    assert by_name["c"]["reason"] == "DevicesInUse"


@pytest.mark.parametrize("deadline", [0.0, 0.05])
def test_a_short_deadline_gives_what_a_first_fit_would_find(deadline: float) -> None:
    waiting = [claim(f"c{number}", {"deviceClass": "gpu"}) for number in range(60)]
    answer = solve_manifests([GPU, *fleet(10), *waiting], deadline=deadline)
    assert sum(c["allocated"] for c in answer["claims"]) == 40
    (counts,) = (level for level in answer["objective"]["levels"] if level["goal"] == "satisfied")
    assert counts["value"] == 40 <= counts["bound"]


def test_a_judge_that_is_kept_forgets_the_expressions_asked_for_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "MAX_VERDICTS", 2)
    monkeypatch.setattr(stages, "VERDICTS_PER_DEVICE", 0)
    problem_input, state = read_documents([GPU, *fleet(1)]), stages.SolveCache()
    judge = state.take(problem_input)[2]
    for expression in ("device.", "device..", "device...", "device.kind == 'gpu'"):
        assert state.take(problem_input)[2] is judge
        assert (judge.expression_error(expression) is None) is (expression == "device.kind == 'gpu'")
        assert judge.remembered <= 2 + 2
    before = judge.remembered
    assert judge.expression_error("device.kind == 'gpu'") is None
    assert judge.remembered == before
    assert judge.expression_error("device.") is not None
    assert judge.remembered == before + 1
    judge.forget(0)
    assert judge.remembered == 0


def test_every_priority_that_waits_has_a_level() -> None:
    """Also where every claim of it is refused before the search (S17). What is being deleted waits for nothing."""
    manifests = [
        GPU,
        *fleet(1),
        claim("good", {"deviceClass": "gpu"}, annotations={"devalloc.io/priority": "5"}),
        claim("unknown", {"deviceClass": "nothing"}, annotations={"devalloc.io/priority": "9"}),
        claim("odd", {"deviceClass": "gpu", "constraints": "device."}),
        claim(
            "gone",
            {"deviceClass": "gpu"},
            annotations={"devalloc.io/priority": "7"},
            deletionTimestamp="2026-01-01T00:00:00Z",
        ),
    ]

    def levels(documents: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        content = solve_manifests(documents)["objective"]["levels"]
        return [
            (level["goal"], level.get("priority"), level["value"], level["bound"], level["gap"]) for level in content
        ]

    assert levels(manifests) == [
        ("satisfied", 9, 0, 0, 0),
        ("satisfied", 5, 1, 1, 0),
        ("satisfied", 0, 0, 0, 0),
        ("pools", None, 1, 1, 0),
        ("devices", None, 1, 1, 0),
    ]
    assert levels([m for m in manifests if m["metadata"]["name"] != "good"]) == [
        ("satisfied", 9, 0, 0, 0),
        ("satisfied", 0, 0, 0, 0),
        ("pools", None, 0, 0, 0),
        ("devices", None, 0, 0, 0),
    ]
    assert levels([GPU, *fleet(1)]) == []


def test_an_object_of_another_type_is_an_error_that_names_the_function_for_manifests() -> None:
    """Both are mistakes of a program, not content: they raise, and never look like a fleet without room."""
    with pytest.raises(TypeError, match="expected a DevicePool object, not dict: give manifests to solve_manifests"):
        solve(fleet(1), [], [])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a DeviceClaim object, not NoneType"):
        solve([], [], [None])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="capacity needs a DeviceClaim manifest as a dict, not NoneType"):
        capacity([GPU, *fleet(1)], None)  # type: ignore[arg-type]


READS: dict[str, Any] = {
    "solve_manifests": solve_manifests,
    "capacity": lambda given: capacity(given, claim("c", {"deviceClass": "gpu"})),
    "solve pools": lambda given: solve(given, [], []),
    "solve classes": lambda given: solve([], given, []),
    "solve claims": lambda given: solve([], [], given),
    "solve configs": lambda given: solve([], [], [], given),
    "Fleet.from_manifests": Fleet.from_manifests,
    "Fleet.allocate_all": lambda given: Fleet.from_manifests([]).allocate_all(given),
    "Fleet.sync": lambda given: Fleet("pack").sync(given),
    "Fleet.parts": lambda given: Fleet.from_manifests([]).parts(given),
    "dra.solve_manifests": dra.solve_manifests,
    "dra.allocate claims": lambda given: dra.allocate("n", given, [], []),
    "dra.allocate classes": lambda given: dra.allocate("n", [], given, []),
    "dra.allocate slices": lambda given: dra.allocate("n", [], [], given),
    "dra.explain claims": lambda given: dra.explain("n", given, [], []),
    "dra.explain classes": lambda given: dra.explain("n", [], given, []),
    "dra.explain slices": lambda given: dra.explain("n", [], [], given),
}
"""Each argument of a public function that is several objects."""


def test_every_public_function_is_among_those_that_read_lists() -> None:
    functions = [name for name in devalloc_solver.__all__ if isfunction(getattr(devalloc_solver, name))]
    functions += [f"dra.{name}" for name in dra.__all__ if isfunction(getattr(dra, name))]
    public = ((name, one) for name, one in getmembers(Fleet, callable) if not name.startswith("_"))
    fleet = [name for name, one in public if "Iterable" in str(getattr(one, "__annotations__", ""))]

    assert {*functions, *(f"Fleet.{name}" for name in fleet)} == {name.partition(" ")[0] for name in READS}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("given", [{"kind": "DevicePool"}, "kind: DevicePool", b"kind: DevicePool"], ids=repr)
def test_one_manifest_or_a_text_is_not_taken_for_a_list(read: Any, given: Any) -> None:
    expected = "|".join(
        (
            "must be a list of manifests, not (one manifest: put it into a list|a string: parse it first)",
            "must be a list of objects, not (a map|a string|a bytes)",
            "must be several manifests, not one: use allocate",
            r"expected a \w+ object, not (str|int): give manifests to solve_manifests",
            "expected a manifest or an object of each config, not (str|int)",
        )
    )
    with pytest.raises((ValueError, TypeError, dra.AllocationError), match=expected):
        read(given)


def test_a_single_claim_is_proven_best_in_all_goals() -> None:
    """That it needs two pools is as certain as that it can be satisfied."""
    pools = [pool(f"p{n}", "n1", "gpu", devices=[device("g0")]) for n in range(2)]
    wanted = claim("a", {"deviceClass": "gpu", "requests": {"count": 2}})
    answer = solve_manifests([*pools, device_class("gpu", driver="gpu"), wanted])
    levels = {level["goal"]: (level["value"], level["bound"]) for level in answer["objective"]["levels"]}
    assert levels == {"satisfied": (1, 1), "pools": (2, 2), "devices": (2, 2)}
