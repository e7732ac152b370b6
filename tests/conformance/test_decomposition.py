"""Parts of a batch: solved apart they come to the same as all of it at once (S17)."""

from __future__ import annotations

import time
from copy import deepcopy
from itertools import combinations
from random import Random
from typing import Any

import pytest

from devalloc.api.meta import COMPATIBILITY_GROUP, GROUP, NODE, PRIORITY
from devalloc_solver import Fleet, solve_manifests
from devalloc_solver.columns import allocate_batch, remaining_units
from devalloc_solver.dialects.device_claims.manifest_records import read_documents
from devalloc_solver.dialects.device_claims.problem import DeviceClaimProblem, prepare
from devalloc_solver.dialects.resource_k8s import manifests as dra_documents
from devalloc_solver.dialects.resource_k8s import problem as dra_joint
from devalloc_solver.dialects.resource_k8s.feature_gates import read_gates
from devalloc_solver.exact.goals import optimize_goals
from devalloc_solver.exact.model import load_solver, model_size
from devalloc_solver.pipeline import strategy as ways
from devalloc_solver.pipeline.decomposition import Subproblem, join_subproblems, split_by_device, split_by_pool
from devalloc_solver.pipeline.strategy import SearchOutcome, search_parts
from devalloc_solver.place import StepsExhausted
from devalloc_solver.problem.allocations import Key, Usage
from devalloc_solver.problem.placement_policy import PACK
from tests.support import dra_builders, oracle, random_fleets
from tests.support.dra_joint_instances import joint, networked
from tests.support.examples import examples
from tests.support.manifests import claim, device, device_class, pool

Manifest = dict[str, Any]
EXAMPLES = examples(25)
BATCH = min(50, EXAMPLES)
"""Of those of the first one it is known how many have what is to be tested; others must have one at least."""


def in_one(
    ready: DeviceClaimProblem | dra_joint.ResourceClaimProblem, monkeypatch: pytest.MonkeyPatch
) -> SearchOutcome:
    """The answer of one model of all units, with all their candidates."""
    with monkeypatch.context() as patch:
        patch.setattr(ways, "narrowed", lambda snapshot, allocations, units, ends: units)
        patch.setattr(ways, "split_by_pool", lambda snapshot, units: [join_subproblems(split_by_pool(snapshot, units))])
        return search_parts(ready.snapshot, ready.allocations, ready.units, policy=PACK, ends=None)


def goal_values(outcome: SearchOutcome) -> object:
    """Goals 1 to 4: who is satisfied, by which alternatives, and each level."""
    chosen = {
        placed.demand.key: sorted({(e.request.detail, e.request.alternative or 0) for e in placed.entries})
        for placed in outcome.placements
    }
    return chosen, [(level.goal, level.priority, level.value) for level in outcome.levels if level.goal != "oneOf"]


@pytest.mark.parametrize("first", range(0, EXAMPLES, BATCH))
def test_parts_come_to_the_same_as_all_at_once(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    several = 0
    for seed in range(first, first + BATCH):
        ready = prepare(read_documents(deepcopy(random_fleets.documents(Random(seed)))))
        if not ready.units:
            continue
        parts = split_by_pool(ready.snapshot, ready.units)
        several += len(parts) > 1
        apart = search_parts(ready.snapshot, ready.allocations, ready.units, policy=PACK, ends=None)
        assert goal_values(apart) == goal_values(in_one(ready, monkeypatch)), seed
        pools = [pool for part in parts for pool in part.pools]
        assert len(pools) == len({*pools}), f"{seed}: a pool is in two parts"
        assert sorted(key for part in parts for key in part.keys) == sorted(
            demand.key for unit in ready.units for demand in unit.demands
        )
        for unit in ready.units:
            (alone,), (by_device,) = split_by_pool(ready.snapshot, [unit]), split_by_device(ready.snapshot, [unit])
            assert (alone.units, alone.pools) == (by_device.units, by_device.pools), seed
    assert several > (BATCH // 10 if first == 0 else 0), "there is something to split"


def mixed(random: Random) -> list[Manifest]:
    """Pools with devices of several kinds, some of which have more in common than their pool: a pool resource, a
    compatibility group; and claims for one kind or two, some of them groups, shares, pinned, or with alternatives."""
    kinds = "abcd"[: random.choice([2, 3, 4])]
    documents = [device_class(kind, deviceType=kind, driver="x") for kind in kinds]
    for node in ("n1", "n2", None)[: random.choice([1, 2, 2, 3])]:
        for number in range(random.choice([1, 1, 2])):
            shared = random.sample(kinds, 2) if random.random() < 0.3 else []
            devices = []
            for kind in kinds:
                grouped = {COMPATIBILITY_GROUP: kind} if random.random() < 0.25 else {}
                for place in range(random.choice([0, 1, 1, 2])):
                    devices.append(
                        device(
                            f"{kind}{place}",
                            attributes={"kind": kind, "root": random.randrange(2), **grouped},
                            requests={"power": "2"} if kind in shared else None,
                            resources={"memory": "4/1"} if random.random() < 0.3 else None,
                        )
                    )
            resources = {"power": "3/1"} if shared else None
            documents.append(pool(f"p{number}-{node}", node, "x", resources=resources, devices=devices))
    for number in range(random.choice([2, 3, 3, 4])):
        details: list[Manifest] = []
        for _ in range(random.choice([1, 1, 1, 2])):
            details.append(mixed_detail(random, kinds))
        annotations = {PRIORITY: str(random.choice([0, 0, 1]))}
        if random.random() < 0.2:
            annotations[GROUP] = "g"
        elif random.random() < 0.1:
            annotations[NODE] = "n1"
        match = ["root"] if random.random() < 0.2 else None
        documents.append(claim(f"c{number}", *details, annotations=annotations, match=match))
    return documents


def mixed_detail(random: Random, kinds: str) -> Manifest:
    def one(kind: str) -> Manifest:
        amounts = (
            {"memory": random.choice(["1", "3"])} if random.random() < 0.2 else {"count": random.choice([1, 1, 2])}
        )
        return {"deviceClass": kind, "constraints": f"device.kind == '{kind}'", "requests": amounts}

    if random.random() < 0.2:
        return {"oneOf": [one(kind) for kind in random.sample(kinds, 2)]}
    return one(random.choice(kinds))


def cluster(random: Random) -> list[Manifest]:
    """The same of resource.k8s.io."""
    kinds = "abcd"[: random.choice([2, 3, 4])]
    documents: list[Manifest] = [dra_builders.ANY]
    for node in ("n1", "n2")[: random.choice([1, 2])]:
        counted = random.sample(kinds, 2) if random.random() < 0.3 else []
        devices = [
            dra_builders.device(
                f"{kind}{place}",
                {"kind": kind},
                counters={"set": {"power": "2"}} if kind in counted else None,
                capacity={"memory": "4"} if random.random() < 0.3 else None,
                shared=random.random() < 0.3,
            )
            for kind in kinds
            for place in range(random.choice([0, 1, 2]))
        ]
        place = {"pool": f"p-{node}", "nodeName": node, "count": 2}
        documents.append(dra_builders.node(node))
        documents.append(dra_builders.slice_(f"s-{node}", devices or [dra_builders.device("x")], **place))
        documents.append(dra_builders.counter_slice(f"t-{node}", {"set": {"power": "3"}}, **place))
    for number in range(random.choice([2, 3, 4])):
        kind = f"device.attributes['{dra_builders.DRIVER}'].kind == '{random.choice(kinds)}'"
        amounts = {"memory": "3"} if random.random() < 0.2 else None
        wanted = dra_builders.request("r", random.choice([1, 1, 2, None]), kind, amounts=amounts)
        made = dra_builders.claim(wanted, name=f"c{number}")
        if random.random() < 0.2:
            made["metadata"]["annotations"] = {GROUP: "g"}
        documents.append(made)
    if random.random() < 0.3:
        documents.append(dra_builders.node("n3"))  # without devices
    return documents


def satisfied(outcome: SearchOutcome) -> dict[Key, list[tuple[int, int]]]:
    """Goals 1 and 2: who is satisfied, and by which alternatives."""
    return {
        placed.demand.key: sorted({(e.request.detail, e.request.alternative or 0) for e in placed.entries})
        for placed in outcome.placements
    }


def in_two_calls(
    ready: DeviceClaimProblem | dra_joint.ResourceClaimProblem, monkeypatch: pytest.MonkeyPatch
) -> SearchOutcome:
    """What is left by a call that leaves all that takes a model is searched by the next one, part by part."""
    with monkeypatch.context() as patch:
        patch.setattr(ways, "QUICK_SIZE", -1)
        quick = search_parts(ready.snapshot, ready.allocations, ready.units, policy=PACK, ends=None, is_quick=True)
    later = {key for part in quick.unproven for key in part.keys}
    assert later.isdisjoint(placed.demand.key for placed in quick.placements)
    placements, allocations = (
        list(quick.placements),
        [*ready.allocations, *(one.holding() for one in quick.placements)],
    )
    for part in quick.unproven:
        new_placements = search_parts(ready.snapshot, allocations, part.units, policy=PACK, ends=None).placements
        placements += new_placements
        allocations += [one.holding() for one in new_placements]
    return SearchOutcome(placements, [])


def check_by_device(
    ready: DeviceClaimProblem | dra_joint.ResourceClaimProblem, monkeypatch: pytest.MonkeyPatch
) -> bool:
    """Whether splitting by device is finer than by pool here; nothing but goals 3 and 4 depends on it."""
    assert satisfied(in_two_calls(ready, monkeypatch)) == satisfied(in_one(ready, monkeypatch))
    parts = split_by_device(ready.snapshot, ready.units)
    for one, other in combinations(parts, 2):
        assert competed_for(ready, one).isdisjoint(competed_for(ready, other))
    for part in parts:
        assert {index for index in competed_for(ready, part) if isinstance(index, int)} <= (part.devices or set())
    assert sorted(key for part in parts for key in part.keys) == sorted(d.key for u in ready.units for d in u.demands)
    return len(parts) > len(split_by_pool(ready.snapshot, ready.units))


def competed_for(ready: DeviceClaimProblem | dra_joint.ResourceClaimProblem, part: Subproblem) -> set[object]:
    """The devices that claims of a part may have, and the pool resources that these draw on."""
    requests = [request for unit in part.units for demand in unit.demands for request in demand.requests]
    pins = {id(request): unit.pin for unit in part.units for demand in unit.demands for request in demand.requests}
    contested: set[object] = set()
    for request in requests:
        for one in (ready.snapshot.devices[index] for index in request.candidates.accepted):
            if pins[id(request)] is None or ready.snapshot.pools[one.pool].node in (pins[id(request)], None):
                contested |= {one.index, *((one.pool, name) for name, _ in one.draws)}
    return contested


@pytest.mark.parametrize("first", range(0, EXAMPLES, BATCH))
def test_claims_that_share_no_device_are_answered_apart_and_as_many(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    finer = 0
    for seed in range(first, first + BATCH):
        documents = mixed(Random(seed))
        ready = prepare(read_documents(deepcopy(documents)))
        finer += check_by_device(ready, monkeypatch)
        apart = in_two_calls(ready, monkeypatch)
        assert satisfied(apart).keys() == oracle.solve(documents).satisfied, seed
        other = prepare(read_documents(deepcopy(random_fleets.documents(Random(seed)))))
        check_by_device(other, monkeypatch)
    assert finer > (3 * BATCH // 50 if first == 0 else 0), "there is something to split that is one part by pool"


def test_resource_claims_that_share_no_device_are_answered_apart_and_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """With shared counters, consumable capacity, devices of the network and claims for all devices."""
    gates, finer = read_gates(None), 0
    for seed in range(EXAMPLES // 3):
        for documents in (joint(Random(seed)).documents, networked(Random(seed)).documents, cluster(Random(seed))):
            problem_input = dra_documents.read_documents(deepcopy(documents), gates)
            finer += check_by_device(dra_joint.prepare(problem_input, gates), monkeypatch)
    assert finer > EXAMPLES // 30, "there is something to split that is one part by pool"


def check_columns(
    ready: DeviceClaimProblem | dra_joint.ResourceClaimProblem, monkeypatch: pytest.MonkeyPatch, seed: int
) -> bool:
    """Whether columns prove their answer here; then no model has a better one, nor has a quick search that takes it."""
    if len(ready.units) < 2 or len(split_by_device(ready.snapshot, ready.units)) > 1:
        return False
    placements, levels = allocate_batch(ready.snapshot, ready.allocations, ready.units, policy=PACK, ends=None)
    if not ways._is_proven_best(levels):
        return False
    best = goal_values(in_one(ready, monkeypatch))
    assert goal_values(SearchOutcome(placements, levels)) == best, seed
    with monkeypatch.context() as patch:
        patch.setattr(ways, "COLUMNS_SIZE", -1)
        patch.setattr(ways, "QUICK_SIZE", -1)
        quick = search_parts(ready.snapshot, ready.allocations, ready.units, policy=PACK, ends=None, is_quick=True)
    assert quick.unproven or goal_values(quick) == best, seed
    return True


@pytest.mark.parametrize("first", range(0, EXAMPLES, BATCH))
def test_columns_that_prove_their_answer_are_as_good_as_one_model(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick search takes them for it if the model takes long to build."""
    load_solver()
    gates = read_gates(None)
    proven = 0
    for seed in range(first, first + BATCH):
        for documents in (random_fleets.documents(Random(seed)), mixed(Random(seed))):
            proven += check_columns(prepare(read_documents(deepcopy(documents))), monkeypatch, seed)
        for documents in (joint(Random(seed)).documents, networked(Random(seed)).documents, cluster(Random(seed))):
            problem_input = dra_documents.read_documents(deepcopy(documents), gates)
            proven += check_columns(dra_joint.prepare(problem_input, gates), monkeypatch, seed)
    assert proven > BATCH // 5


def test_devices_that_exceed_a_counter_together_are_not_a_whole_card() -> None:
    """They draw all there is of one counter, and more than there is of another: no claim can have both."""
    place = {"pool": "p", "nodeName": "n1", "count": 2}
    devices = [
        dra_builders.device("small", {}, counters={"other": {"c": "1"}}),
        dra_builders.device("large", {}, counters={"other": {"c": "2"}}),
        dra_builders.device("three", {}, counters={"card": {"c": "3", "e": "1"}}),
        dra_builders.device("one", {}, counters={"card": {"c": "1", "e": "1"}}),
    ]
    counters = {"card": {"c": "4", "e": "1"}, "other": {"c": "4"}}
    documents: list[Manifest] = [
        dra_builders.ANY,
        dra_builders.slice_("devices", devices, **place),
        dra_builders.counter_slice("counters", counters, **place),
        *(dra_builders.claim(dra_builders.request("r", n), name=f"c{n}") for n in (1, 4)),
    ]
    gates = read_gates(None)
    ready = dra_joint.prepare(dra_documents.read_documents(documents, gates), gates)
    placements, _ = allocate_batch(ready.snapshot, ready.allocations, ready.units, policy=PACK, ends=None)
    assert [placed.demand.key for placed in placements] == [("default", "c1")]


def test_a_quick_search_answers_a_batch_of_many_claims_for_many_nodes() -> None:
    """With a variable for each claim and node it would be left for later; a controller meets such batches all the
    time while many claims are submitted."""
    load_solver()
    devices = [device(f"d{number}") for number in range(6)]
    pools = [pool(f"p{node}", f"n{node}", "gpu", devices=devices[: 1 + node % 6]) for node in range(160)]
    waiting = [claim(f"c{n}", {"deviceClass": "gpu", "requests": {"count": 1 + n % 3}}) for n in range(250)]
    ready = prepare(read_documents([device_class("gpu", driver="gpu"), *pools, *waiting]))
    size = model_size(ready.snapshot, Usage.of(ready.snapshot, ready.allocations), ready.units)
    assert ways.QUICK_SIZE < size < ways.EXACT_SIZE
    outcome = search_parts(ready.snapshot, ready.allocations, ready.units, policy=PACK, ends=None, is_quick=True)
    assert not outcome.unproven
    assert all(level.is_proven for level in outcome.levels)


def test_a_node_without_devices_does_not_end_a_round() -> None:
    load_solver()
    nodes = [dra_builders.node(f"n{n}") for n in range(30)]
    four = dra_builders.devices("d0", "d1", "d2", "d3")
    slices = [dra_builders.slice_(f"s{n}", four if n else [], pool=f"p{n}", nodeName=f"n{n}") for n in range(29)]
    claims = [dra_builders.claim(dra_builders.request("r", 2), name=f"c{n}") for n in range(20)]
    answer = Fleet.from_manifests([*nodes, *slices, dra_builders.ANY]).allocate_all(claims, is_quick=True)
    assert [each["allocated"] for each in answer["claims"]] == [True] * 20


def test_a_quick_search_of_many_parts_answers_those_that_it_has_time_for() -> None:
    """An even share of its time would cut each of them short."""
    load_solver()
    documents = [device_class("gpu", driver="gpu")]
    for node in range(150):
        devices = [device(f"d{n}", attributes={"node": node}) for n in range(4)]
        documents.append(pool(f"p{node}", f"n{node}", "gpu", devices=devices))
    waiting = [
        claim(f"c{node}-{n}", {"deviceClass": "gpu", "constraints": f"device.node == {node}", "requests": {"count": 2}})
        for node in range(150)
        for n in range(3)
    ]
    answer = Fleet.from_manifests(documents).allocate_all(waiting, 3.0, is_quick=True)
    given = [each["allocated"] for each in answer["claims"]]
    assert sum(given) >= 2 * 20
    assert len(answer["unproven"]) % 3 == 0


def test_a_quick_search_gives_up_columns_that_take_long_to_find() -> None:
    """Any six of 24 devices with different amounts: an exact model of so few claims is there at once."""
    load_solver()
    devices = [device(f"d{n}", resources={"memory": str(1000 + n)}) for n in range(24)]
    waiting = [
        claim(
            f"c{n}", {"deviceClass": "gpu", "requests": {"count": 6, "memory": str(6050 + n)}, "limits": {"count": 9}}
        )
        for n in range(20)
    ]
    ready = prepare(
        read_documents([device_class("gpu", driver="gpu"), pool("p", "n", "gpu", devices=devices), *waiting])
    )
    quickly = allocate_batch(ready.snapshot, ready.allocations, ready.units, policy=PACK, ends=None, is_quick=True)
    outcome = search_parts(ready.snapshot, ready.allocations, ready.units, policy=PACK, ends=None, is_quick=True)
    assert quickly == ([], [])
    assert [level.value for level in outcome.levels if level.goal == "satisfied"] == [4]
    assert not outcome.unproven


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "after another"])
def test_a_search_of_one_unit_that_was_cut_short_proves_nothing(monkeypatch: pytest.MonkeyPatch, alone: bool) -> None:
    """Not that it fits nowhere, nor that an equal one does."""
    load_solver()
    place = remaining_units.place

    def out_of_steps(*arguments: Any, **options: Any) -> None:
        raise StepsExhausted

    devices = [device(name) for name in "abc"]
    waiting = [claim(name, {"deviceClass": "gpu", "requests": {"count": len(name)}}) for name in ("1", "22", "33")]
    ready = prepare(
        read_documents([device_class("gpu", driver="gpu"), pool("p", "n", "gpu", devices=devices), *waiting])
    )
    one, *two = ready.units
    rest = remaining_units.RemainingUnits(
        ready.snapshot,
        ready.allocations,
        ready.units,
        Usage.of(ready.snapshot, ready.allocations),
        PACK,
        time.monotonic() + 100,
    )
    if not alone:
        assert rest.place(one)
    with monkeypatch.context() as patch:
        patch.setattr(remaining_units, "place", out_of_steps)
        patch.setattr(
            remaining_units, "optimize_goals", lambda model, **options: optimize_goals(model, **options | {"ends": 0.0})
        )
        for unit in two:
            assert rest.place(unit) == []
    assert rest.satisfied[0] < rest.possible[0] == len(two) + (not alone)
    assert remaining_units.place is place
    assert rest.place(two[0])


def test_splitting_by_device_gives_up_the_fewest_pools_and_nothing_else() -> None:
    """A pool counts once for all claims (goal 3): claims that both have a choice of pools must choose together. So
    the library splits by pool, and only a claim that would wait for a search does not."""
    devices = [device("g", attributes={"kind": "gpu"}), device("n", attributes={"kind": "nic"})]
    documents = [
        device_class("any", driver="x"),
        *(pool(name, "n1", "x", devices=devices) for name in ("p1", "p2")),
        *(claim(kind, {"deviceClass": "any", "constraints": f"device.kind == '{kind}'"}) for kind in ("gpu", "nic")),
    ]
    ready = prepare(read_documents(documents))
    assert len(split_by_pool(ready.snapshot, ready.units)) == 1
    assert len(split_by_device(ready.snapshot, ready.units)) == 2
    both = search_parts(ready.snapshot, ready.allocations, ready.units, policy=PACK, ends=None)
    assert [level.value for level in both.levels if level.goal == "pools"] == [1]


def fleet() -> list[Manifest]:
    drivers = ("gpu", "nic")
    classes = [device_class(driver, driver=driver) for driver in drivers]
    return classes + [pool(driver, "n1", driver, devices=[device("d0"), device("d1")]) for driver in drivers]


def fingerprints(documents: list[Manifest], waiting: list[Manifest]) -> dict[str, str]:
    """By the first claim of each part."""
    parts = Fleet.from_manifests(documents).parts(waiting)
    return {part.units[0][0][1]: part.fingerprint for part in parts}


def test_a_part_is_the_same_as_long_as_what_it_depends_on_is() -> None:
    waiting = [claim("g", {"deviceClass": "gpu"}), claim("n", {"deviceClass": "nic"})]
    before = fingerprints(fleet(), waiting)
    assert before.keys() == {"g", "n"}
    touched = deepcopy(waiting)
    touched[0]["metadata"]["annotations"] = {"example.com/note": "again"}
    assert fingerprints(fleet(), touched) == before
    touched[0]["spec"]["claims"][0]["requests"] = {"count": 2}
    assert fingerprints(fleet(), touched)["g"] != before["g"]
    assert fingerprints(fleet(), touched)["n"] == before["n"]
    larger = fleet()
    larger[-1]["spec"]["devices"].append(device("d2"))
    assert fingerprints(larger, waiting)["n"] != before["n"]
    assert fingerprints(larger, waiting)["g"] == before["g"]
    given = Fleet.from_manifests(fleet())
    given.allocate(claim("other", {"deviceClass": "gpu"}))
    after = {part.units[0][0][1]: part.fingerprint for part in given.parts(waiting)}
    assert after["g"] != before["g"]
    assert after["n"] == before["n"]


def test_a_part_does_not_depend_on_other_devices_of_its_pool() -> None:
    kinds = [device(f"{kind}{n}", attributes={"kind": kind}) for kind in ("gpu", "nic") for n in range(2)]
    documents = [device_class("any", driver="x"), pool("p", "n1", "x", devices=kinds)]

    def wanted(kind: str, name: str) -> Manifest:
        return claim(name, {"deviceClass": "any", "constraints": f"device.kind == '{kind}'"})

    waiting = [wanted("gpu", "g"), wanted("nic", "n")]
    before = fingerprints(documents, waiting)
    given = Fleet.from_manifests(documents)
    given.allocate(wanted("nic", "other"))
    after = {part.units[0][0][1]: part.fingerprint for part in given.parts(waiting)}
    assert after["g"] == before["g"]
    assert after["n"] != before["n"]


def test_a_claim_alone_is_the_part_that_it_is_without_the_others() -> None:
    """Also where it competes with others, and where others hold what it could use."""
    devices = [device(f"gpu{n}", attributes={"n": n}, requests={"power": "1"}) for n in range(4)]
    more = [device("nic", attributes={"n": 9})]
    documents = [
        device_class("any", driver="x"),
        pool("p0", "n0", "x", resources={"power": "3/1"}, devices=devices + more),
        pool("p1", "n1", "x", devices=devices),
    ]
    wanted = [("a", "device.n < 2"), ("b", "device.n > 0 && device.n < 9"), ("c", "device.n > 1")]
    waiting = [claim(name, {"deviceClass": "any", "constraints": text}) for name, text in wanted]
    grouped = [
        claim(f"g{n}", {"deviceClass": "any", "constraints": "device.n == 3"}, annotations={GROUP: "g"}) for n in (0, 1)
    ]
    fleet = Fleet.from_manifests(documents)
    for name, text in (("holds-a-gpu", "device.n == 0"), ("holds-a-nic", "device.n == 9")):
        without_others = [fleet.parts(each) for each in ([waiting[0]], [waiting[1]], [waiting[2]], grouped)]
        alone = [part for batch in without_others for part in batch]
        assert fleet.parts([*waiting, *grouped], alone=True) == alone
        assert len(fleet.parts([*waiting, *grouped])) == 1
        fleet.allocate(claim(name, {"deviceClass": "any", "constraints": text}))
    assert fleet.parts(waiting[:2], alone=True) == alone[:2], "neither can use what was given last"


def test_devices_that_draw_on_one_resource_are_competed_for() -> None:
    def parts(**requests: str) -> int:
        kinds = [device(kind, attributes={"kind": kind}, requests=requests) for kind in ("gpu", "nic")]
        documents = [device_class("any", driver="x"), pool("p", "n1", "x", resources={"power": "3/1"}, devices=kinds)]
        wanted = [{"deviceClass": "any", "constraints": f"device.kind == '{kind}'"} for kind in ("gpu", "nic")]
        return len(Fleet.from_manifests(documents).parts([claim(f"c{n}", one) for n, one in enumerate(wanted)]))

    assert parts() == 2
    assert parts(power="2") == 1


def test_devices_of_a_pool_with_compatibility_groups_are_competed_for() -> None:
    kinds = [device(kind, attributes={"kind": kind, COMPATIBILITY_GROUP: kind}) for kind in ("gpu", "nic")]
    documents = [device_class("any", driver="x"), pool("p", "n1", "x", devices=kinds)]
    wanted = [{"deviceClass": "any", "constraints": f"device.kind == '{kind}'"} for kind in ("gpu", "nic")]
    assert len(Fleet.from_manifests(documents).parts([claim(f"c{n}", one) for n, one in enumerate(wanted)])) == 1


def test_an_easy_claim_is_answered_in_the_time_that_a_hard_part_leaves() -> None:
    """The deadline is over at once: still every claim without competitors has its place."""
    documents = [*fleet(), claim("g", {"deviceClass": "gpu"}), claim("n", {"deviceClass": "nic"})]
    assert all(each["allocated"] for each in solve_manifests(documents, deadline=0)["claims"])
