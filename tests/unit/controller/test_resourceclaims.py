"""ResourceClaims that the controller allocates: which wait together, where, and of which devices; the rest is asked of
a real API server (``tests/cluster/test_resourceclaims.py``)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from devalloc.api.dedicated_pools import base_pool_name, dedicated_pool_name, is_dedicated
from devalloc.api.device_records import read_records
from devalloc.api.meta import DEVICE_RECORDS, LEADER
from devalloc.api.reasons import STILL_SEARCHING, Reason
from devalloc.controller.metrics import ControllerMetrics
from devalloc.controller.reconcile import searches
from devalloc.controller.reconcile.events import ObjectEvent
from devalloc.controller.reconcile.loop import AllocatorSettings
from devalloc.controller.reconcile.resource_claims.allocator import ResourceClaimAllocator
from devalloc.controller.reconcile.resource_claims.cluster_state import (
    RESOURCES,
    ClusterState,
    effective_slice,
)
from devalloc.controller.reconcile.resource_claims.pending import PendingGroup, pending_groups
from devalloc.controller.reconcile.resource_claims.suitable_nodes import SuitableNodes
from devalloc.controller.reconcile.round_solver import RESOURCE_CLAIMS, RoundSolver
from devalloc.controller.reconcile.searches import BackgroundSearches
from devalloc.controller.reconcile.stored_claims import by_unit
from devalloc.store import Forbidden, Key
from devalloc.store.kubernetes import ApiError, KubernetesStore
from devalloc_solver.cel import budget
from devalloc_solver.cel.budget import OUT_OF_TIME, TOO_EXPENSIVE_ONCE, Costs
from devalloc_solver.dialects.resource_k8s import selectors
from devalloc_solver.fleet import waiting as waiting_module
from tests.support.fake_kube import FakeClient, FakeKube
from tests.support.waiting import in_threads, until

Object = dict[str, Any]


def pod(name: str, *claims: str, uid: str = "", spec: Object | None = None, **metadata: Any) -> Object:
    used = [{"name": claim, "resourceClaimName": claim} for claim in claims]
    about = {"namespace": "a", "name": name, "uid": uid or f"uid-{name}", **metadata}
    return {"kind": "Pod", "metadata": about, "spec": {"resourceClaims": used, **(spec or {})}}


def claim(name: str, *, node: str = "", ours: bool = True, device: str = "", **metadata: Any) -> Object:
    labels = {"devalloc.io/allocator": "devalloc"} if ours else {}
    requests = [{"name": "r", "exactly": {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 1}}]
    about = {"namespace": "a", "name": name, "uid": f"uid-{name}", "labels": labels, **metadata}
    manifest: Object = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": about}
    manifest["spec"] = {"devices": {"requests": requests}}
    if node:
        results = [{"request": "r", "driver": "devalloc.io", "pool": f"{node}.devalloc", "device": device or "d"}]
        field = {"key": "metadata.name", "operator": "In", "values": [node]}
        selector = {"nodeSelectorTerms": [{"matchFields": [field]}]}
        manifest["status"] = {"allocation": {"devices": {"results": results}, "nodeSelector": selector}}
    return manifest


def waiting(pods: list[Object], claims: list[Object]) -> list[PendingGroup]:
    return pending_groups(pods, {("a", each["metadata"]["name"]): each for each in claims})


def names(wants: list[PendingGroup]) -> list[tuple[list[str], list[str]]]:
    """Of each want the claims and the pods."""
    return [([key[1] for key in each.claims], [p["metadata"]["name"] for p in each.pods]) for each in wants]


# -- which wait --------------------------------------------------------------------------------------------------------


def test_the_claims_of_a_pod_belong_together_and_so_do_pods_that_share_one() -> None:
    pods = [pod("p1", "x", "y"), pod("p2", "y", "z"), pod("p3", "w"), pod("p4", "not-ours", "v")]
    claims = [claim(name) for name in "vwxyz"] + [claim("not-ours", ours=False)]
    wants = waiting(pods, claims)
    assert names(wants) == [(["v"], ["p4"]), (["w"], ["p3"]), (["x", "y", "z"], ["p1", "p2"])]
    assert wants[2].users(("a", "y")) == [{"resource": "pods", "name": "p1", "uid": "uid-p1"}]
    assert [user["name"] for user in wants[2].users(("a", "z"))] == ["p2"]


def test_a_group_belongs_together_across_pods() -> None:
    marks = {"annotations": {"devalloc.io/group": "g"}}
    wants = waiting(
        [pod("p1", "x"), pod("p2", "y"), pod("p3", "z")], [claim("x", **marks), claim("y", **marks), claim("z")]
    )
    assert names(wants) == [(["x", "y"], ["p1", "p2"]), (["z"], ["p3"])]


@pytest.mark.parametrize(
    "one",
    [
        pod("p", "x", spec={"nodeName": "n"}),
        pod("p", "x", spec={"schedulingGates": [{"name": "later"}]}),
        pod("p", "x", deletionTimestamp="2026-01-01T00:00:00Z"),
        pod("p", "x") | {"status": {"phase": "Failed"}},
        pod("p", "x", "nobody"),
        pod("p", spec={"resourceClaims": [{"name": "x", "resourceClaimTemplateName": "t"}]}),
        pod("p", "not-ours"),
        pod("p"),
    ],
)
def test_a_pod_that_is_not_to_be_scheduled_or_not_complete_waits_for_nothing(one: Object) -> None:
    assert waiting([one], [claim("x"), claim("not-ours", ours=False)]) == []


def test_a_claim_that_a_pod_group_shares_is_reserved_for_its_most_urgent_pod() -> None:
    """kube-scheduler adds the PodGroup or each pod that it places, and gives a claim back only if no other uses it."""
    group = [{"kind": "PodGroup", "name": "g", "uid": "uid-g", "controller": True}]
    used = {
        "schedulingGroup": {"podGroupName": "g"},
        "resourceClaims": [{"name": "x", "resourceClaimTemplateName": "t"}],
    }
    named = {"status": {"resourceClaimStatuses": [{"name": "x", "resourceClaimName": "g-x-1"}]}}
    pods = [pod(f"p{number:03}", spec={**used, "priority": number % 290}) | named for number in range(300)]
    (wants,) = waiting(pods, [claim("g-x-1", ownerReferences=group)])
    assert len(wants.pods) == 300
    assert [user["name"] for user in wants.users(("a", "g-x-1"))] == ["p289"]


def test_a_claim_of_a_template_is_its_own_pods_alone() -> None:
    made = claim("p-x-1", ownerReferences=[{"kind": "Pod", "name": "p", "uid": "uid-p", "controller": True}])
    used = {"resourceClaims": [{"name": "x", "resourceClaimTemplateName": "t"}]}
    named = {"status": {"resourceClaimStatuses": [{"name": "x", "resourceClaimName": "p-x-1"}]}}
    assert names(waiting([pod("p", spec=used) | named], [made])) == [(["p-x-1"], ["p"])]
    assert waiting([pod("p", uid="another", spec=used) | named], [made]) == []
    needless = {"status": {"resourceClaimStatuses": [{"name": "x"}]}}
    assert waiting([pod("p", spec=used) | needless], [made]) == []


def test_other_claims_of_the_pod_and_pins_say_where() -> None:
    pinned = claim("y", annotations={"devalloc.io/node": "n1"})
    (wants,) = waiting([pod("p", "x", "held")], [claim("x"), claim("held", node="n2")])
    assert (wants.nodes, wants.held) == (frozenset({"n2"}), (("a", "held"),))
    (wants,) = waiting([pod("p", "x", "y")], [claim("x"), pinned])
    assert wants.nodes == frozenset({"n1"})
    (wants,) = waiting([pod("p", "held", "y")], [claim("held", node="n2"), pinned])
    assert wants.nodes == frozenset()
    (wants,) = waiting([pod("p", "x", "theirs")], [claim("x"), claim("theirs", node="n3", ours=False)])
    assert (wants.nodes, wants.held) == (frozenset({"n3"}), ())


# -- where -------------------------------------------------------------------------------------------------------------


def node(name: str = "n", *, unschedulable: bool = False, taints: list[Object] | None = None, **labels: str) -> Object:
    spec: Object = {"taints": taints or []} | ({"unschedulable": True} if unschedulable else {})
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": spec}


def wishing(**spec: Any) -> Object:
    return pod("p", spec=spec)


def affinity(*terms: Object) -> Object:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"nodeAffinity": required}


def expression(operator: str, *values: str) -> Object:
    content: Object = {"key": "zone", "operator": operator}
    return {"matchExpressions": [content | ({"values": list(values)} if values else {})]}


def suits(where: Object, one: Object) -> bool:
    return bool(SuitableNodes().of([one], {"n": where})[id(one)])


DEDICATED = {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("one", "where", "does"),
    [
        (wishing(), node(), True),
        (wishing(nodeSelector={"zone": "a"}), node(zone="a"), True),
        (wishing(nodeSelector={"zone": "a"}), node(zone="b"), False),
        (wishing(affinity=affinity(expression("In", "a", "b"))), node(zone="b"), True),
        (wishing(affinity=affinity(expression("NotIn", "b"), expression("Exists"))), node(zone="b"), True),
        (wishing(affinity=affinity(expression("DoesNotExist"))), node(zone="b"), False),
        (wishing(affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}), node(), True),
        (wishing(), node(unschedulable=True), False),
        (wishing(tolerations=[{"operator": "Exists"}]), node(unschedulable=True, taints=[DEDICATED]), True),
        (wishing(), node(taints=[DEDICATED]), False),
        (wishing(), node(taints=[DEDICATED | {"effect": "PreferNoSchedule"}]), True),
        (wishing(tolerations=[{"key": "dedicated", "value": "gpu"}]), node(taints=[DEDICATED]), True),
        (wishing(tolerations=[{"key": "dedicated", "value": "cpu"}]), node(taints=[DEDICATED]), False),
        (wishing(tolerations=[{"key": "dedicated", "operator": "Exists"}]), node(taints=[DEDICATED]), True),
        (
            wishing(tolerations=[{"key": "dedicated", "operator": "Exists", "effect": "NoExecute"}]),
            node(taints=[DEDICATED]),
            False,
        ),
    ],
)
def test_a_pod_can_run_on_the_nodes_that_it_selects(one: Object, where: Object, does: bool) -> None:
    assert suits(where, one) == does


@pytest.mark.parametrize(("ready", "does"), [("True", True), ("False", False), ("Unknown", False)])
def test_a_node_that_is_not_ready_suits_only_who_tolerates_that(ready: str, does: bool) -> None:
    where = {**node(), "status": {"conditions": [{"type": "Ready", "status": ready}]}}
    assert suits(where, wishing()) == does
    assert suits(where, wishing(tolerations=[{"operator": "Exists"}]))


# -- of which devices --------------------------------------------------------------------------------------------------


def test_a_pool_that_is_set_aside_says_so_in_its_name() -> None:
    assert (is_dedicated("node-a-0000-41-00"), is_dedicated(dedicated_pool_name("node-a-0000-41-00"))) == (False, True)
    assert base_pool_name(dedicated_pool_name("p")) == base_pool_name("p") == "p"


def a_slice(name: str, *, pool: str = "p.devalloc", on: str = "n", devices: int = 1, **device: Any) -> Object:
    header = {"name": pool, "generation": 1, "resourceSliceCount": 1}
    entries = [{"name": f"d{number}", **device} for number in range(devices)]
    spec = {"driver": "devalloc.io", "nodeName": on, "pool": header, "devices": entries}
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def a_rule(name: str, selector: Object | None, effect: str = "NoSchedule") -> Object:
    spec: Object = {"taint": {"key": name, "effect": effect}}
    fields = spec | ({} if selector is None else {"deviceSelector": selector})
    return {"kind": "DeviceTaintRule", "metadata": {"name": name}, "spec": fields}


@pytest.mark.parametrize(
    ("selector", "tainted"),
    [
        (None, []),
        ({}, ["d0", "d1"]),
        ({"driver": "devalloc.io"}, ["d0", "d1"]),
        ({"driver": "gpu.example.com"}, []),
        ({"pool": "p.devalloc", "device": "d1"}, ["d1"]),
        ({"pool": "p"}, []),
        ({"device": "d0"}, ["d0"]),
    ],
)
def test_rules_taint_the_devices_that_they_select(selector: Object | None, tainted: list[str]) -> None:
    tainted_slice = effective_slice(a_slice("s", devices=2), [a_rule("r", selector)])
    assert [d["name"] for d in tainted_slice["spec"]["devices"] if d.get("taints")] == tainted


def test_only_the_taint_that_sets_aside_is_taken_off() -> None:
    aside = {"key": "devalloc.io/allocator", "value": "devalloc", "effect": "NoSchedule"}
    broken = {"key": "devalloc.io/unavailable", "effect": "NoSchedule"}
    (device,) = effective_slice(a_slice("s", taints=[broken, aside]), [])["spec"]["devices"]
    assert device["taints"] == [broken]
    (device,) = effective_slice(a_slice("s", taints=[aside]), [])["spec"]["devices"]
    assert "taints" not in device


# -- together ----------------------------------------------------------------------------------------------------------

ANY = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "any"},
    "spec": {"selectors": [{"cel": {"expression": "device.driver == 'devalloc.io'"}}]},
}


class Played:
    """A cluster that gets objects, and the solver behind it."""

    def __init__(self, *objects: Object) -> None:
        self.cluster, self.solver = ClusterState(), RoundSolver(RESOURCE_CLAIMS)
        self.there: dict[Key, Object] = {}
        self.tell(ANY, *objects)

    def tell(self, *objects: Object) -> None:
        self.there |= {Key.of(each): each for each in objects}
        self.cluster.look(self.there.values())

    def lose(self, *objects: Object) -> None:
        for each in objects:
            self.there.pop(Key.of(each), None)
        self.cluster.look(self.there.values())

    def answers(self, **avoided: str) -> dict[str, str]:
        """Of each claim that is waited for the devices, with their pool, or why not."""
        avoid = {("a", name): frozenset({where}) for name, where in avoided.items()}
        questions = self.cluster.build_requests(self.cluster.wants(), avoid)
        self.solver.update(self.cluster.documents())
        misfits = [each for each in questions if each.misfit]
        by_claim = {
            key[1]: "no node" if each.reason is Reason.NO_SUITABLE_NODE else str(each.reason)
            for each in misfits
            for key in each.want.claims
        }
        documents = [document for each in questions for document in each.documents]
        for each in self.solver.solve(by_unit(documents), None)["claims"] if documents else ():
            results = (each["allocations"] or {}).get("devices", {}).get("results", ())
            given = ", ".join(f"{result['pool'].removesuffix('.devalloc')}/{result['device']}" for result in results)
            by_claim[each["name"]] = given or each["reason"]
        return by_claim


def test_the_answer_follows_the_updates() -> None:
    one = Played(node("n"), a_slice("s", pool="n.devalloc"), a_slice("open", pool="n"), claim("x"), pod("p", "x"))
    assert one.answers() == {"x": "n/d0"}
    one.tell(a_rule("broken", {"device": "d0"}))
    assert one.answers()["x"] == "NoMatchingDevices"
    one.lose(a_rule("broken", {"device": "d0"}))
    assert one.answers() == {"x": "n/d0"}
    holder = claim("other", node="n", device="d0")
    one.tell(holder)
    assert one.answers()["x"] == "DevicesInUse"
    one.lose(holder)
    one.tell(node("n", unschedulable=True))
    assert one.answers() == {"x": "no node"}
    one.lose(node("n"))
    one.tell(node("n"))
    assert one.answers(x="n") == {"x": "no node"}
    one.lose(a_slice("s"))
    assert one.answers()["x"] == "NotAdopted"


def test_after_the_restore_of_a_backup_a_claim_has_what_the_backup_says() -> None:
    """Versions are smaller then. What the claim had later is free, and what it had before is not."""
    one = Played(node("n"), a_slice("s", pool="n.devalloc", devices=2), claim("y"), pod("p", "y"))
    for version, device, left in ((12, "d1", "n/d0"), (9, "d0", "n/d1")):
        held = claim("x", node="n", device=device)
        held["metadata"]["resourceVersion"] = str(version)
        one.tell(held)
        assert one.answers() == {"y": left}


def test_a_claim_that_goes_after_a_failed_round_does_not_hold_up_its_equals(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = claim("holder", node="n", device="d0")
    one = Played(node("n"), a_slice("s", pool="n.devalloc"), holder)
    one.tell(claim("x"), pod("p", "x"), claim("y"), pod("q", "y"))
    assert one.answers() == {"x": "DevicesInUse", "y": "DevicesInUse"}
    one.lose(holder)
    with monkeypatch.context() as patch:
        patch.setattr(one.solver, "_ask", lambda *_, **options: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            one.answers()
    one.lose(claim("x"), pod("p", "x"))
    assert one.answers() == {"y": "n/d0"}


def test_what_is_asked_for_a_claim_costs_in_proportion_to_the_nodes() -> None:
    seconds = []
    for count in (1000, 8000):
        names = [f"n{number}" for number in range(count)]
        slices = [a_slice(f"s-{name}", pool=f"{name}.devalloc", on=name) for name in names]
        one = Played(*map(node, names), *slices, claim("x"), pod("p", "x"))
        costs = []
        for _ in range(2):
            began = time.process_time()
            (question,) = one.cluster.build_requests(one.cluster.wants(), {})
            costs.append(time.process_time() - began)
        assert question.misfit is None
        seconds.append(min(costs))
    assert seconds[1] < 20 * seconds[0], "eight times as many nodes"


def test_devices_that_are_not_set_aside_are_a_reason_of_their_own() -> None:
    one = Played(node("n"), a_slice("open", pool="n", devices=3), claim("x"), pod("p", "x"))
    (question,) = one.cluster.build_requests(one.cluster.wants(), {})
    assert question.reason is Reason.NOT_ADOPTED
    assert question.misfit == (
        "3 devices match, none is adopted (devalloc.io); set their nodes aside, or remove the claim's label "
        "devalloc.io/allocator"
    )
    one.lose(a_slice("open"))
    assert one.answers() == {"x": "NoMatchingDevices"}
    (question,) = one.cluster.build_requests(one.cluster.wants(), {})
    assert question.misfit is None


NUMBERS = str([*range(60)])
COSTLY = f"{NUMBERS}.all(x, {NUMBERS}.all(y, x + y != 1000 && device.driver != ''))"


def costly(name: str) -> Object:
    """A claim whose selector costs more than it may on each device."""
    one = claim(name)
    exactly = one["spec"]["devices"]["requests"][0]["exactly"]
    exactly["selectors"] = [{"cel": {"expression": COSTLY}}]
    return one


class SlowCluster(RoundSolver):
    """Has a clock of its own, on which every question takes some seconds."""

    def __init__(self) -> None:
        super().__init__(RESOURCE_CLAIMS, clock=lambda: self.now)
        self.now = 1000.0

    def _ask(self, *args: Any, **options: Any) -> Object:
        self.now += 4.0
        return super()._ask(*args, **options)


class Counting:
    """Counts the evaluations of expressions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        evaluate = Costs.evaluate

        def counted(*args: Any, **options: Any) -> Any:
            self.count += 1
            return evaluate(*args, **options)

        monkeypatch.setattr(Costs, "evaluate", counted)

    def of(self, act: Callable[[], object]) -> int:
        before = self.count
        act()
        return self.count - before


def test_a_claim_that_is_too_expensive_costs_nothing_in_later_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for again when something it could use changes, though not at once, and when it is another claim."""
    monkeypatch.setattr(budget, "EXPRESSION_BUDGET", 10_000)
    one = Played(node("n"), a_slice("s", pool="n.devalloc", devices=4), costly("x"), pod("p", "x"))
    one.solver = slow = SlowCluster()
    counting = Counting(monkeypatch)
    assert one.answers() == {"x": "ExpressionTooExpensive"}
    assert counting.count > 0
    first = slow.now

    assert counting.of(one.answers) == 0
    one.tell(claim("y"), pod("q", "y"))
    assert one.answers() == {"x": "ExpressionTooExpensive", "y": "n/d0"}
    held = claim("other", node="n", device="d3")
    one.tell(held)
    before = counting.count
    assert one.answers()["x"] == "ExpressionTooExpensive"
    assert counting.count == before, "what others hold does not make an expression cheaper"

    one.tell(a_slice("s", pool="n.devalloc", devices=3))
    monkeypatch.setattr(budget, "EXPRESSION_BUDGET", 10**9)
    assert one.answers()["x"] == "ExpressionTooExpensive"
    slow.now = first + 79.0
    assert not one.solver.is_due, "20 times as long as the solver was busy with it"
    slow.now = first + 80.0
    assert one.solver.is_due
    assert one.answers()["x"].startswith("n/")
    assert not one.solver.is_due


def test_a_new_claim_of_the_same_name_is_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "EXPRESSION_BUDGET", 10_000)
    one = Played(node("n"), a_slice("s", pool="n.devalloc"), costly("x"), pod("p", "x"))
    assert one.answers() == {"x": "ExpressionTooExpensive"}
    other = claim("x")
    other["metadata"]["uid"] = "another"
    one.tell(other)
    assert one.answers() == {"x": "n/d0"}


def test_a_claim_that_had_too_little_time_beside_others_gets_another_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Played(node("n"), a_slice("s", pool="n.devalloc", devices=4), costly("x"), pod("p", "x"))
    one.tell(claim("y"), pod("q", "y"))
    one.solver = slow = SlowCluster()
    monkeypatch.setattr(budget, "COMMON_BUDGET", 10_000)
    assert one.answers() == {"x": "ExpressionTooExpensive", "y": "n/d0"}
    monkeypatch.setattr(budget, "COMMON_BUDGET", 10**9)
    monkeypatch.setattr(budget, "EXPRESSION_BUDGET", 10**9)
    slow.now += 80
    assert one.solver.is_due
    assert one.answers() == {"x": "n/d0", "y": "n/d1"}


def test_no_more_than_so_many_expensive_claims_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "EXPRESSION_BUDGET", 10_000)
    monkeypatch.setattr(waiting_module, "MAX_PAUSES", 2)
    waiting = [each for n in range(4) for each in (costly(f"x{n}"), pod(f"p{n}", f"x{n}"))]
    one = Played(node("n"), a_slice("s", pool="n.devalloc"), *waiting)
    for _ in range(2):
        assert one.answers() == {f"x{n}": "ExpressionTooExpensive" for n in range(4)}
    assert len(one.solver.waiting._pauses) == 2


def test_a_claim_holds_also_without_its_label_and_whatever_else_it_has() -> None:
    holder = claim("other", node="n", device="d0", ours=False)
    theirs = {"request": "r", "driver": "nic.example.com", "pool": "q", "device": "e", "shareID": "?"}
    holder["status"]["allocation"]["devices"]["results"].append(theirs)
    one = Played(node("n"), a_slice("s", pool="n.devalloc", devices=2), claim("x"), pod("p", "x"), holder)
    assert one.answers() == {"x": "n/d1"}


def test_admin_access_holds_nothing() -> None:
    holder = claim("other", node="n", device="d0")
    holder["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    one = Played(node("n"), a_slice("s", pool="n.devalloc"), claim("x"), pod("p", "x"), holder)
    assert one.answers() == {"x": "n/d0"}


def test_a_pods_priority_is_its_claims_unless_that_says_another_one() -> None:
    low, high = pod("low", "x", spec={"priority": 1}), pod("high", "y", spec={"priority": 2})
    one = Played(node("n"), a_slice("s", pool="n.devalloc"), claim("x"), claim("y"), low, high)
    assert one.answers() == {"x": "LostToHigherPriority", "y": "n/d0"}
    one.tell(claim("x", annotations={"devalloc.io/priority": "3"}))
    assert one.answers() == {"x": "n/d0", "y": "LostToHigherPriority"}


def test_a_pod_is_kept_to_its_nodes_and_its_claims_to_one() -> None:
    there = [node(name, zone=name) for name in ("n1", "n2", "n3")]
    cards = [a_slice(name, pool=f"{name}.devalloc", on=name, devices=2) for name in ("n1", "n2", "n3")]
    within = affinity(expression("In", "n2", "n3"))
    one = Played(*there, *cards, claim("x"), claim("y"), pod("p", "x", "y", spec={"affinity": within}))
    assert one.answers() == {"x": "n2/d0", "y": "n2/d1"}
    one.tell(claim("held", node="n2", device="d0"))
    assert one.answers() == {"x": "n3/d0", "y": "n3/d1"}
    assert one.answers(x="n3") == {"x": "DevicesInUse", "y": "DevicesInUse"}


def test_two_pods_with_several_claims_each_are_answered() -> None:
    """The pod that comes second is answered with those that have devices by then."""
    there = [node("n1"), node("n2")]
    cards = [a_slice(f"s{name}", pool=f"{name}.devalloc", on=name, devices=2) for name in ("n1", "n2")]
    claims = [claim(name) for name in ("a", "b", "x", "y")]
    one = Played(*there, *cards, *claims, pod("p", "a", "b"), pod("q", "x", "y"))
    assert one.answers() == {"a": "n1/d0", "b": "n1/d1", "x": "n2/d0", "y": "n2/d1"}
    one.lose(cards[1])
    assert [*one.answers().values()].count("DevicesInUse") == 0
    assert one.answers() == one.answers(), "nothing of it is left in the solver"


def test_claims_that_cannot_all_have_devices_are_weighed_jointly() -> None:
    """One after the other, the older one would take both devices of the node that the younger one is kept to."""
    there = [node("n1", zone="n1"), node("n2", zone="n2")]
    cards = [a_slice("s1", pool="n1.devalloc", on="n1", devices=2), a_slice("s2", pool="n2.devalloc", on="n2")]
    old, young = (
        claim("old", creationTimestamp="2026-01-01T00:00:00Z"),
        claim("young", creationTimestamp="2026-01-02T00:00:00Z"),
    )
    two = {**young, "spec": {"devices": {"requests": [_count(young, 2)]}}}
    one = Played(*there, *cards, old, two, pod("p1", "old"), pod("p2", "young"))
    assert one.answers() == {"old": "n2/d0", "young": "n1/d0, n1/d1"}


def _count(content: Object, count: int) -> Object:
    (request,) = content["spec"]["devices"]["requests"]
    return {**request, "exactly": {**request["exactly"], "count": count}}


def test_of_a_thousand_claims_the_youngest_gets_nothing() -> None:
    one = Played()
    for number in range(100):
        one.tell(node(f"n{number}"), a_slice(f"s{number}", pool=f"n{number}.devalloc", on=f"n{number}", devices=10))
    for number in range(1001):
        late = number == 500
        stamp = f"2026-01-0{2 if late else 1}T00:00:00Z"
        one.tell(claim(f"c{number}", creationTimestamp=stamp), pod(f"p{number}", f"c{number}"))
    answers = one.answers()
    assert [name for name, text in answers.items() if "/" not in text] == ["c500"], "the youngest"
    assert len({text for text in answers.values() if "/" in text}) == 1000


# -- what was sent before ----------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def stores() -> Iterator[None]:
    yield
    while _OPEN:
        _OPEN.pop().close()


_OPEN: list[KubernetesStore] = []


def store_of(client: FakeClient) -> KubernetesStore:
    """Until the end of the test."""
    _OPEN.append(KubernetesStore(client, resources=RESOURCES))  # type: ignore[arg-type]
    return _OPEN[-1]


PATHS = {
    "Node": "/api/v1/nodes",
    "Pod": "/api/v1/namespaces/{}/pods",
    "ResourceSlice": "/apis/resource.k8s.io/v1/resourceslices",
    "DeviceClass": "/apis/resource.k8s.io/v1/deviceclasses",
    "ResourceClaim": "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims",
}


def create(client: FakeClient, one: Object) -> None:
    plainly = {key: value for key, value in one["metadata"].items() if key != "resourceVersion"}
    client.create(PATHS[one["kind"]].format(one["metadata"].get("namespace")), {**one, "metadata": plainly})


def take_over(client: FakeClient, stamp: str) -> None:
    assert ResourceClaimAllocator(store_of(client), stamp=stamp)._take_over(threading.Event())


class TestSettling:
    PATH = "/apis/resource.k8s.io/v1/namespaces/a/resourceclaims"

    def settled(self, held: bool, refused: tuple[str, ...] = ()) -> tuple[Object, Object]:
        """A claim before and after; ``refused``: fields of metadata in which the API server takes nothing more."""
        client = FakeClient(FakeKube())
        client.create(self.PATH, claim("c"))
        if held:
            client.replace(
                f"{self.PATH}/c/status", client.get(f"{self.PATH}/c") | {"status": claim("c", node="n")["status"]}
            )
        before = client.get(f"{self.PATH}/c")
        replace = client.replace

        def refusing(path: str, body: Object) -> Object:
            for name in refused:
                if body["metadata"].get(name) != before["metadata"].get(name):
                    raise ApiError(422, "Invalid", f"metadata.{name}: Too long")
            return replace(path, body)

        client.replace = refusing  # type: ignore[method-assign, assignment]
        take_over(client, "1 a")
        return before, client.get(f"{self.PATH}/c")

    @pytest.mark.parametrize("held", [False, True])
    def test_nothing_that_was_sent_before_can_be_done_after(self, held: bool) -> None:
        """Of one that holds devices neither: to take them back late would take them from a pod that runs."""
        before, after = self.settled(held)
        assert before["metadata"]["resourceVersion"] != after["metadata"]["resourceVersion"]
        assert before.get("status") == after.get("status")

    def test_a_new_leader_settles_what_is_held_as_well(self) -> None:
        """The one before may have sent that it is taken back, and its pod may run by now."""
        client = FakeClient(FakeKube())
        for each in (claim("open"), claim("held"), claim("theirs", ours=False)):
            client.create(self.PATH, each)
        held = client.get(f"{self.PATH}/held") | {"status": claim("held", node="n")["status"]}
        client.replace(f"{self.PATH}/held/status", held)
        before = {name: client.get(f"{self.PATH}/{name}") for name in ("open", "held", "theirs")}
        take_over(client, "2 b")
        late = {name: {**each, "status": {}} for name, each in before.items()}
        for name in ("open", "held"):
            with pytest.raises(ApiError) as refused:
                client.replace(f"{self.PATH}/{name}/status", late[name])
            assert refused.value.is_conflict
        client.replace(f"{self.PATH}/theirs/status", late["theirs"])
        assert client.get(f"{self.PATH}/held")["status"] == held["status"]

    def test_a_claim_that_is_full_of_annotations_gets_a_label(self) -> None:
        before, after = self.settled(False, ("annotations",))
        assert after["metadata"]["labels"].keys() - before["metadata"]["labels"].keys() == {LEADER}

    def test_a_claim_that_may_not_be_written_is_not_passed_over(self) -> None:
        """For want of rights, that is: what the last leader still sends may find them there."""
        client = FakeClient(FakeKube())
        client.create(self.PATH, claim("c"))

        def refusing(number: int, what: str) -> None:
            if what.startswith("update"):
                raise ApiError(403, "Forbidden", 'claims "c" is forbidden: User "u" cannot update resource "claims"')

        client.before = refusing
        with pytest.raises(Forbidden):
            take_over(client, "1 a")

    def test_a_claim_that_takes_nothing_delays_no_other(self) -> None:
        before, after = self.settled(False, ("annotations", "labels"))
        assert before == after


def test_many_that_cannot_all_have_devices_are_decided_together() -> None:
    """The oldest want most, so that one after the other only half as many would get something."""
    nodes = [
        part
        for n in range(90)
        for part in (node(f"n{n}"), a_slice(f"s{n}", pool=f"n{n}.devalloc", on=f"n{n}", devices=2))
    ]
    wanted = []
    for number in range(270):
        one = claim(f"c{number:03}")
        one["spec"]["devices"]["requests"][0]["exactly"] |= {"allocationMode": "ExactCount", "count": 1 + (number < 90)}
        wanted += [one, pod(f"p{number:03}", f"c{number:03}")]
    by_claim = Played(*nodes, *wanted).answers()
    assert sum("/" in text for text in by_claim.values()) == 180


def test_it_says_what_it_does_and_how_things_stand() -> None:
    client, metrics = FakeClient(FakeKube()), ControllerMetrics(lambda: True, Mock(written=0, dropped=0), dict)
    pods = (pod(f"p{name}", name, spec={"nodeName": ""}) for name in ("x", "y"))
    for each in (node("n"), a_slice("s", pool="n.devalloc"), ANY, claim("x"), claim("y"), *pods):
        create(client, each)
    allocator = ResourceClaimAllocator(store_of(client), stamp="1 a", progress=metrics.count_resources)
    with in_threads(allocator.run):
        states = ('{state="allocated"} 1.0', '{state="waiting"} 1.0')
        until(lambda: all(f"devalloc_resource_claims{each}" in metrics.text().decode() for each in states))
    text = metrics.text().decode()
    assert 'devalloc_granted_total{kind="ResourceClaim"} 1.0' in text
    assert "devalloc_resource_claim_solve_seconds_count" in text


def test_an_event_names_no_claims_of_other_namespaces() -> None:
    client, events = FakeClient(FakeKube()), list[ObjectEvent]()

    def wanted(space: str, name: str) -> None:
        create(client, claim(name, namespace=space))
        create(client, pod(f"p{name}", name, spec={"nodeName": ""}, namespace=space))

    for each in (node("n"), a_slice("s", pool="n.devalloc"), ANY):
        create(client, each)
    allocator = ResourceClaimAllocator(store_of(client), stamp="1 a", record=events.extend)
    with in_threads(allocator.run):
        wanted("team-b", "secret")
        until(lambda: any(each.reason == "Allocated" for each in events))
        wanted("team-a", "waits")
        notes = until(lambda: [each.note for each in events if each.reason == "DevicesInUse"])
    assert all("; wait for a claim of another namespace" in note for note in notes), notes
    assert not any("secret" in note for note in notes), notes


def test_the_answer_records_what_devices_drew_and_it_stays_in_use() -> None:
    """The pool comes back without the device of a claim: what it drew is given to no other one."""

    def publish(generation: int, **draws: int) -> None:
        where = {"name": "n.devalloc", "generation": generation, "resourceSliceCount": 2}
        content = {"driver": "devalloc.io", "nodeName": "n", "pool": where}
        counters = [{"name": "card", "counters": {"slices": {"value": "4"}}}]
        devices = [
            {"name": one, "consumesCounters": [{"counterSet": "card", "counters": {"slices": {"value": str(draw)}}}]}
            for one, draw in draws.items()
        ]
        for name, more in (("counters", {"sharedCounters": counters}), ("devices", {"devices": devices})):
            path = f"/apis/resource.k8s.io/v1/resourceslices/{name}"
            new = {**a_slice(name), "spec": {**content, **more}}
            if generation == 1:
                create(client, new)
            else:
                client.replace(path, {**client.get(path), "spec": new["spec"]})

    def stored(name: str) -> Object:
        one: Object = client.get(f"/apis/resource.k8s.io/v1/namespaces/a/resourceclaims/{name}")
        return one

    def want(name: str) -> None:
        create(client, claim(name))
        create(client, pod(f"p{name}", name, spec={"nodeName": ""}))

    def is_noted(words: str) -> bool:
        allocator.round()
        return any(words in each.note for each in events)

    def is_seen(device: str) -> bool:
        allocator.round()
        slices = [one for one in allocator._cluster.documents() if one["kind"] == "ResourceSlice"]
        return any(one["name"] == device for each in slices for one in each["spec"].get("devices", ()))

    client = FakeClient(FakeKube())
    for each in (node("n"), ANY):
        create(client, each)
    publish(1, whole=4)
    events: list[ObjectEvent] = []
    allocator = ResourceClaimAllocator(store_of(client), stamp="1 a", record=events.extend)
    want("held")
    until(lambda: is_noted("n.devalloc/whole"))
    records = read_records(stored("held")["metadata"]["annotations"][DEVICE_RECORDS])
    assert records["devalloc.io/n.devalloc", "whole"].draws == (("card/slices", 4 * 10**9),)
    publish(2, h1=2, h2=2)
    until(lambda: is_seen("h1"))  # else the reason, which is reported once, may be about the devices of before
    want("waits")
    until(lambda: is_noted("a/held holds device devalloc.io/n.devalloc/whole, which no longer exists"))
    assert "allocation" not in stored("waits").get("status", {})


@pytest.mark.parametrize("left", ["nothing", "no node"])
def test_no_round_comes_at_once_if_nothing_of_what_was_left_waits(left: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round leaves claims to the next one; before that, their pods are deleted or their node is cordoned."""

    def unfinished(
        searches: BackgroundSearches, fleet: object, documents: object, claims: list[Object], *_: object
    ) -> Object:
        answer = {
            "allocated": False,
            "reason": "SearchLimit",
            "message": "",
            "allocations": None,
            STILL_SEARCHING: True,
        }
        return {"claims": [{**each["metadata"], **answer} for each in claims], "again": True, "optimal": False}

    monkeypatch.setattr(BackgroundSearches, "solve", unfinished)
    client = FakeClient(FakeKube())
    pods = [pod(f"p{name}", name, spec={"nodeName": ""}) for name in "xy"]
    # More than there is: claims that all get devices are not searched for.
    for one in (node("n"), a_slice("s", pool="n.devalloc"), ANY, claim("x"), claim("y"), *pods):
        create(client, one)
    allocator = ResourceClaimAllocator(store_of(client), stamp="1 a")
    allocator.round()
    assert allocator.loop.is_again
    if left == "nothing":
        for one in pods:
            path = f"/api/v1/namespaces/a/pods/{one['metadata']['name']}"
            client.delete(path, client.get(path)["metadata"]["uid"])
    else:
        there = client.get("/api/v1/nodes/n")
        client.replace("/api/v1/nodes/n", {**there, "spec": {"unschedulable": True}})

    def is_done() -> bool:
        allocator.round()
        return not allocator.loop.is_again

    until(is_done)
    assert not allocator.loop.is_again


@pytest.mark.parametrize("bound", ["steps", "time"])
def test_an_expensive_claim_delays_no_other(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its selectors cost more than they may: it gets that reason, once, and the next claim has its device. The
    time suffices without any bound in steps."""
    if bound == "time":
        for module, name in ((budget, "EXPRESSION_BUDGET"), (budget, "COMMON_BUDGET"), (selectors, "COST_LIMIT")):
            monkeypatch.setattr(module, name, 10**15)
        monkeypatch.setattr(searches, "MAX_EVALUATION_ROUNDS", 3)
    client = FakeClient(FakeKube())
    events: list[ObjectEvent] = []
    root = "/apis/resource.k8s.io/v1"
    evil = costly("evil")
    deep = f"{NUMBERS}.all(w, {COSTLY})"
    expressions = [{"cel": {"expression": f"{deep} && 'x' != 'y{number}'"}} for number in range(32)]
    evil["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = expressions

    def wanted(one: Object) -> None:
        create(client, one)
        create(client, pod(f"p{one['metadata']['name']}", one["metadata"]["name"], spec={"nodeName": ""}))

    for each in (node("n"), a_slice("s", pool="n.devalloc", devices=64), ANY):
        create(client, each)
    wanted(evil)
    # No bound is met while the other one counts, also not on a busy machine.
    settings = AllocatorSettings(deadline=600.0 if bound == "steps" else 1.0, batch=0.0)
    allocator = ResourceClaimAllocator(store_of(client), stamp="1 a", settings=settings, record=events.extend)
    counting = Counting(monkeypatch)
    with in_threads(allocator.run):
        until(lambda: any(each.regarding["name"] == "evil" for each in events))
        note = events[0].note
        assert (TOO_EXPENSIVE_ONCE in note) if bound == "steps" else note.endswith(OUT_OF_TIME.partition("; ")[2]), note
        before = counting.count
        wanted(claim("plain"))
        until(lambda: client.get(f"{root}/namespaces/a/resourceclaims/plain").get("status", {}).get("allocation"))
        assert counting.count - before < 100, "the expensive one was not asked for again"


class TestCommit:
    """While the solver is at work, another writer changes claims."""

    CLAIMS = "/apis/resource.k8s.io/v1/namespaces/a/resourceclaims"

    def answered(self, meanwhile: Object) -> tuple[FakeClient, ResourceClaimAllocator, list[ObjectEvent]]:
        """After a round for claim x, in which claim z got this status before the answer was written."""
        client, events = FakeClient(FakeKube()), list[ObjectEvent]()
        waits = pod("px", "x", spec={"nodeName": ""})
        for one in (node("n"), a_slice("s", pool="n.devalloc"), ANY, claim("x"), claim("z"), waits):
            create(client, one)
        store = store_of(client)
        allocator = ResourceClaimAllocator(store, stamp="1 a", record=events.extend)
        solve = allocator._solver.solve

        def solved(*args: Any) -> list[Object]:
            answers = solve(*args)
            client.replace(f"{self.CLAIMS}/z/status", client.get(f"{self.CLAIMS}/z") | {"status": meanwhile})
            until(lambda: any(obj.get("status") for obj in store.list("ResourceClaim").objects))
            allocator._solver.solve = solve  # type: ignore[method-assign, assignment]
            return answers

        allocator._solver.solve = solved  # type: ignore[method-assign, assignment]
        allocator.round()
        return client, allocator, events

    def test_the_device_that_another_claim_got_meanwhile_is_not_given_again(self) -> None:
        client, allocator, events = self.answered(claim("z", node="n", device="d0")["status"])
        assert "status" not in client.get(f"{self.CLAIMS}/x")
        allocator.round()
        assert "status" not in client.get(f"{self.CLAIMS}/x")
        assert [each.reason for each in events if each.regarding["kind"] == "ResourceClaim"] == ["DevicesInUse"]

    def test_what_kube_scheduler_allocates_of_other_pools_does_not_matter(self) -> None:
        of_others = claim("z", node="m", device="d0")["status"]
        of_others["allocation"]["devices"]["results"][0] |= {"pool": "not-ours", "driver": "other.example"}
        client, _, events = self.answered(of_others)
        assert client.get(f"{self.CLAIMS}/x")["status"]["allocation"]
        assert [each.reason for each in events] == ["Allocated"]

    def test_a_claim_that_was_not_written_is_answered_by_the_next_round(self) -> None:
        """Although nothing that the solver reads has changed since."""
        client, allocator, _ = self.answered(claim("z", node="n", device="d0")["status"])
        client.replace(
            f"{self.CLAIMS}/z/status", {k: v for k, v in client.get(f"{self.CLAIMS}/z").items() if k != "status"}
        )
        until(lambda: not any(obj.get("status") for obj in allocator._store.list("ResourceClaim").objects))
        allocator.round()
        assert client.get(f"{self.CLAIMS}/x")["status"]["allocation"]

    def test_what_changes_no_allocation_does_not_matter(self) -> None:
        client, _, events = self.answered({"reservedFor": [{"resource": "pods", "name": "q", "uid": "u"}]})
        assert client.get(f"{self.CLAIMS}/x")["status"]["allocation"]
        assert client.get(f"{self.CLAIMS}/x")["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
        assert [each.reason for each in events] == ["Allocated"]


def test_what_is_still_marked_is_finished_although_nothing_has_changed() -> None:
    """Else each further round would be followed by another at once, and none would write."""
    client = FakeClient(FakeKube())
    for one in (node("n"), a_slice("s", pool="n.devalloc"), ANY):
        create(client, one)
    allocator = ResourceClaimAllocator(store_of(client), stamp="1 a")
    assert allocator._take_over(threading.Event())
    allocator.round()
    allocator.round()
    allocator.loop.is_unfinished = True
    allocator.round()
    assert not allocator.loop.is_unfinished


def test_a_claim_that_the_api_server_refuses_to_write_delays_no_other() -> None:
    client, events = FakeClient(FakeKube()), list[ObjectEvent]()

    def before(number: int, what: str) -> None:
        if what.endswith("resourceclaims/x/status"):
            raise ApiError(422, "Invalid", "a policy says no")

    client.before = before
    pods = (pod(f"p{name}", name, spec={"nodeName": ""}) for name in "xy")
    for one in (node("n"), a_slice("s", pool="n.devalloc"), ANY, claim("x"), claim("y"), *pods):
        create(client, one)
    store, now = store_of(client), [0.0]
    allocator = ResourceClaimAllocator(store, stamp="1 a", record=events.extend, clock=lambda: now[0])

    def is_given() -> bool:
        store.refresh()
        allocator.round()
        return "status" in client.get(f"{TestCommit.CLAIMS}/y")

    until(is_given)
    refused = [each for each in events if each.reason == "Refused"]
    assert {each.regarding["name"] for each in refused} == {"x", "px"}
    assert "a policy says no" in refused[0].note
    client.writes.clear()
    for _ in range(3):
        is_given()
    assert client.writes == [], "nothing is tried in vain"


def test_a_cluster_without_taint_rules_is_answered() -> None:
    """They are in v1 since Kubernetes 1.37."""
    client = FakeClient(FakeKube())
    listed = client.list

    def unserved(path: str, params: Any = None) -> Iterator[Object]:
        if path.endswith("devicetaintrules"):
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        return listed(path, params)

    client.list = unserved  # type: ignore[method-assign, assignment]
    for one in (node("n"), a_slice("s", pool="n.devalloc"), ANY, claim("x"), pod("p", "x", spec={"nodeName": ""})):
        create(client, one)
    store = store_of(client)
    allocator = ResourceClaimAllocator(store, stamp="1 a")
    assert allocator._take_over(threading.Event())
    allocator.round()
    assert client.get(f"{TestCommit.CLAIMS}/x")["status"]["allocation"]
    assert store.silent_seconds == 0
