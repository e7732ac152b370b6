"""When the controller may allocate from the pools of an adopted driver, and when it has stopped; the policy itself is
asked of a real API server (``tests/cluster/test_adoption.py``)."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc.api.adopted_pools import (
    ADOPTED_AT,
    FINALIZER,
    AdoptionRule,
    AllocatablePools,
    adoption_rules,
    rule_manifest,
    rule_name,
)
from devalloc.api.findings import Cause, Finding, fact, message_of
from devalloc.controller.reconcile.resource_claims import adoption
from devalloc.controller.reconcile.resource_claims.adoption import Adoption, PolicyProbe
from devalloc.controller.reconcile.resource_claims.cluster_state import ClusterState, held_results
from devalloc.store import Forbidden, Listing
from devalloc.store.kubernetes import ApiError
from devalloc.usage.overview import build_overview
from devalloc_solver.dialects.resource_k8s import matching
from tests.support.resource_manifests import resource_claim

Object = dict[str, Any]
DRIVER = "gpu.example.com"
ALL_OF_IT = AllocatablePools(frozenset({(DRIVER, None)}))


class Rules:
    """A store of rules."""

    def __init__(self, *rules: Object) -> None:
        self.rules = {each["metadata"]["name"]: each for each in rules}
        self.refreshed = 0
        self.may_write = True

    def list(self, kind: str) -> Listing:
        assert kind == "DeviceTaintRule"
        return Listing([*self.rules.values()], "1")

    def refresh(self) -> None:
        self.refreshed += 1

    def replace(self, obj: Object) -> Object:
        if not self.may_write:
            raise Forbidden("no")
        metadata = {**obj["metadata"], "resourceVersion": str(int(obj["metadata"]["resourceVersion"]) + 1)}
        self.rules[metadata["name"]] = {**obj, "metadata": metadata}
        if metadata.get("deletionTimestamp") and not metadata["finalizers"]:
            del self.rules[metadata["name"]]
        return obj


class World:
    """Rules, a policy and a clock."""

    def __init__(self, *rules: Object) -> None:
        self.store, self.now, self.trouble, self.probes = Rules(*rules), 100.0, "", 0
        self.adoption = self.new_process()

    def new_process(self) -> Adoption:
        return Adoption(self.store, self.probe, lambda: self.now)  # type: ignore[arg-type]  all that it needs

    def probe(self, rule: AdoptionRule) -> str:
        self.probes += 1
        return self.trouble

    def after(self, seconds: float) -> AllocatablePools:
        """What it may allocate from when so much time has passed, with a look at each moment that is due."""
        until = self.now + seconds
        self.adoption.update()
        while (due := min([max(each, self.now + 0.1) for each in self.adoption.due()], default=until)) < until:
            self.now = due
            self.adoption.update()
        self.now = until
        self.adoption.update()
        return self.adoption.pools

    @property
    def rule(self) -> Object:
        (rule,) = self.store.rules.values()
        return rule


def rule(driver: str = DRIVER, pool: str | None = None, **metadata: Any) -> Object:
    made = rule_manifest(driver, pool)
    about = {"uid": f"uid-{driver}-{pool}", "resourceVersion": "1", **made["metadata"], **metadata}
    return {**made, "metadata": about}


def test_it_allocates_once_the_policy_has_refused_for_long_enough_and_all_claims_were_read_again() -> None:
    world = World(rule())
    assert world.after(adoption.SETTLE_SECONDS - 0.1) == AllocatablePools()
    assert (world.store.refreshed, ADOPTED_AT in world.rule["metadata"].get("annotations", {})) == (0, False)
    assert world.after(1) == ALL_OF_IT
    assert (world.store.refreshed, ADOPTED_AT in world.rule["metadata"]["annotations"]) == (1, True)
    assert world.probes > 5


def delete(world: World) -> None:
    world.rule["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"


def test_a_deleted_rule_that_others_hold_causes_no_more_rounds() -> None:
    world = World(rule(finalizers=[FINALIZER, "example.com/other"]))
    world.after(10)
    delete(world)
    world.after(adoption.RELEASE_SECONDS + adoption.RETRY_SECONDS + 1)
    assert world.rule["metadata"]["finalizers"] == ["example.com/other"]
    assert all(due > world.now + 1000 for due in world.adoption.due())


def test_a_deleted_rule_that_cannot_be_written_is_tried_again_after_a_pause() -> None:
    world = World(rule())
    world.after(10)
    delete(world)
    world.store.may_write = False
    world.after(adoption.RELEASE_SECONDS + 1)
    assert all(due > world.now for due in world.adoption.due())
    world.store.may_write = True
    world.after(adoption.RETRY_SECONDS)
    assert not world.store.rules


def test_a_rule_that_adopts_no_more_or_lost_its_finalizer_causes_no_more_rounds() -> None:
    for change in ({"labels": {}}, {"finalizers": []}):
        world = World(rule())
        assert world.after(10) == ALL_OF_IT
        world.store.may_write = False
        world.rule["metadata"].update(change)
        assert world.after(adoption.CHECK_SECONDS + 1) == AllocatablePools(), change
        assert all(due > world.now for due in world.adoption.due()), change


def test_a_policy_that_refuses_nothing_restarts_the_wait_and_is_reported_on_the_rule() -> None:
    world = World(rule())
    world.after(2)
    world.trouble = "the policy does not refuse"
    world.after(1)
    assert world.rule["metadata"]["annotations"]["devalloc.io/message"] == "the policy does not refuse"
    world.trouble = ""
    assert world.after(adoption.RETRY_SECONDS + 1) == AllocatablePools()
    assert world.after(adoption.SETTLE_SECONDS) == ALL_OF_IT
    assert "devalloc.io/message" not in world.rule["metadata"]["annotations"]


def test_it_stops_if_the_policy_no_longer_refuses() -> None:
    world = World(rule())
    assert world.after(5) == ALL_OF_IT
    world.trouble = "another user made the policy again"
    assert world.after(adoption.CHECK_SECONDS + 1) == AllocatablePools()
    assert ADOPTED_AT not in world.rule["metadata"]["annotations"]


def many_rules(number: int = 50) -> World:
    """Rules whose probes take 0.1 s each, as on a slow network."""
    world = World(*(rule(pool=f"p{n}") for n in range(number)))
    probe = world.adoption.probe

    def slow(each: AdoptionRule) -> str:
        world.now += 0.1
        return probe(each)

    world.adoption.probe = slow
    return world


def test_many_rules_hold_up_no_claims_for_long_and_are_all_adopted_with_few_lists_of_all_claims() -> None:
    world = many_rules()
    for _ in range(200):
        before = world.now
        world.adoption.update()
        assert world.now - before <= adoption.UPDATE_SECONDS + 0.2
        if len(world.adoption.pools.adopted) == 50:
            break
        assert min(world.adoption.due()) <= world.now + adoption.PROBE_SECONDS
        world.now += 0.1
    assert len(world.adoption.pools.adopted) == 50
    assert world.store.refreshed <= 10


def test_many_adopted_rules_are_checked_at_a_bounded_rate_and_all_at_once_when_one_fails() -> None:
    world = many_rules()
    world.after(120)
    assert len(world.adoption.pools.adopted) == 50
    world.probes = 0
    world.after(600)
    assert 100 <= world.probes <= 11 * adoption.CHECKS_A_MINUTE
    world.trouble = "the policy is gone"
    assert world.after(200) == AllocatablePools()


def test_a_trouble_whose_words_change_is_not_asked_about_more_often() -> None:
    """Two API servers behind one address lack the policy for two reasons, and answer in turns."""
    world = World(*(rule(pool=f"p{number}") for number in range(21)))

    def probe(each: AdoptionRule) -> str:
        world.probes += 1
        return f"server {world.probes % 2} does not answer for it"

    world.adoption = Adoption(world.store, probe, lambda: world.now)  # type: ignore[arg-type]
    world.after(10 * adoption.RETRY_SECONDS)
    assert world.probes <= 21 * 12, "each rule once in a pause"


def test_a_new_leader_believes_no_mark() -> None:
    world = World(rule())
    world.after(5)
    world.adoption = world.new_process()
    assert world.after(1) == AllocatablePools()
    assert world.after(adoption.SETTLE_SECONDS) == ALL_OF_IT
    assert world.store.refreshed == 2


def test_a_deleted_rule_ends_allocation_at_once_and_goes_when_kube_scheduler_has_seen_the_last() -> None:
    world = World(rule())
    world.after(5)
    world.store.replace({**world.rule, "metadata": {**world.rule["metadata"], "deletionTimestamp": "now"}})
    assert world.after(0) == AllocatablePools()
    world.after(adoption.RELEASE_SECONDS - 1)
    assert world.store.rules
    world.after(2)
    assert not world.store.rules


def test_a_rule_of_kubectl_gets_its_finalizer_first() -> None:
    world = World(rule(finalizers=[]))
    world.adoption.update()
    assert world.rule["metadata"]["finalizers"] == [FINALIZER]
    assert world.probes == 0, "without it, it could be gone at any moment"
    assert world.after(5) == ALL_OF_IT


def test_rights_that_are_missing_keep_no_other_claims_waiting() -> None:
    world = World(rule(finalizers=[]))
    world.store.may_write = False
    assert world.after(10) == AllocatablePools()


def test_a_rule_that_came_after_the_update_is_due_at_once() -> None:
    """Otherwise a round that reads it does not act on it, and nothing changes after that."""
    world = World(rule())
    world.adoption.update()
    late = rule("other.example.com")
    assert world.adoption.has_seen([world.rule, {"kind": "Node", "metadata": {"name": "n"}}])
    assert not world.adoption.has_seen([world.rule, late])


@pytest.mark.parametrize(
    "changed",
    [
        {"metadata": {"name": "r", "labels": {}}},
        {"spec": {"deviceSelector": {"driver": DRIVER, "device": "gpu-0"}}},
        {"spec": {"deviceSelector": {"pool": "node-a"}}},
        {"spec": {"taint": {"key": "devalloc.io/allocator", "value": "devalloc", "effect": "NoExecute"}}},
        {"spec": {"taint": {"key": "example.com/broken", "effect": "NoSchedule"}}},
    ],
)
def test_only_a_rule_of_ours_for_whole_pools_adopts(changed: Object) -> None:
    made = rule()
    assert len(adoption_rules([made])) == 1
    other = {**made, **changed} | ({"spec": {**made["spec"], **changed["spec"]}} if "spec" in changed else {})
    assert adoption_rules([other]) == []


def test_a_pool_is_adopted_with_its_driver_and_alone() -> None:
    assert ALL_OF_IT.cover(DRIVER, "node-a")
    assert not ALL_OF_IT.cover("other.example.com", "node-a"), "pools of two drivers can have the same name"
    one = AllocatablePools(frozenset({(DRIVER, "node-a")}))
    assert (one.cover(DRIVER, "node-a"), one.cover(DRIVER, "node-b")) == (True, False)
    assert one.cover("devalloc.io", "node-b.devalloc"), "nodes that are set aside stay so"


def test_the_name_of_a_rule_is_refused_if_it_is_too_long() -> None:
    assert rule_name(DRIVER, "a/b") == "devalloc-gpu.example.com.pool.a.b"
    with pytest.raises(ValueError, match="too long"):
        rule_name("d" * 63, "p" * 250)


# -- what the solver sees ----------------------------------------------------------------------------------------------


def gpu_slice(node: str = "n", **spec: Any) -> Object:
    devices = [{"name": "gpu-0", "taints": [{"key": "example.com/broken", "effect": "NoSchedule"}]}, {"name": "gpu-1"}]
    header = {"name": node, "generation": 1, "resourceSliceCount": 1}
    body = {"driver": DRIVER, "nodeName": node, "pool": header, "devices": devices, **spec}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": node}, "spec": body}


def devices_of(*objects: Object) -> dict[str, list[str]]:
    """By device the taints that the solver sees."""
    state = ClusterState()
    state.look([rule(), gpu_slice(), *objects], ALL_OF_IT)
    slices = [one for one in state.documents() if one["kind"] == "ResourceSlice"]
    return {
        each["name"]: [taint["key"] for taint in each.get("taints", ())]
        for one in slices
        for each in one["spec"]["devices"]
    }


def test_the_taint_of_the_rule_is_not_for_devalloc_and_all_others_are() -> None:
    assert devices_of() == {"gpu-0": ["example.com/broken"], "gpu-1": []}
    other = rule()
    other["metadata"] = {"name": "hot", "uid": "u", "labels": {}}
    other["spec"] = {**other["spec"], "taint": {"key": "example.com/hot", "effect": "NoSchedule"}}
    assert devices_of(other)["gpu-1"] == ["example.com/hot"]


def test_where_nothing_is_adopted_the_drivers_with_devices_are_named() -> None:
    state, claim = ClusterState(), resource_claim("c")

    def explained(*slices: Object) -> str:
        state.look(slices)
        return message_of(state.explain_lack("NoMatchingDevices", Finding([fact(Cause.NO_DEVICES)]), [claim])[1])

    assert explained() == "no devices are published; run a driver that publishes them"
    assert explained(gpu_slice()) == "none is adopted of the drivers with devices (gpu.example.com)"


def test_devices_of_no_single_node_stay_out() -> None:
    state = ClusterState()
    state.look([rule(), gpu_slice(nodeName=None, allNodes=True)], ALL_OF_IT)
    assert not state.documents()


def test_what_a_kubelet_reports_does_not_have_devices_counted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of many kubelets reports now and then, and messages name how many devices match."""
    state, claim = ClusterState(), resource_claim("c")
    device_class = {"kind": "DeviceClass", "apiVersion": "resource.k8s.io/v1", "metadata": {"name": "gpu"}, "spec": {}}
    node: Object = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n", "labels": {"zone": "a"}}}
    others = [device_class, gpu_slice()]
    state.look([*others, node])
    assert "2 devices match" in state.not_adopted([claim])
    monkeypatch.setattr(matching, "read_documents", None)
    state.look([*others, {**node, "status": {"conditions": []}}])
    assert "2 devices match" in state.not_adopted([claim])


def test_what_others_hold_of_an_adopted_pool_counts_as_held() -> None:
    claim = resource_claim("theirs", "n/gpu-0")
    claim["status"]["allocation"]["devices"]["results"][0]["driver"] = DRIVER
    assert [each["device"] for each in held_results(claim, ALL_OF_IT)] == ["gpu-0"]
    assert held_results(claim, AllocatablePools()) == []


def test_two_owners_of_a_device_of_any_driver_are_an_alarm() -> None:
    """Whichever allocator gave it, and whether its driver is adopted, or was, or never."""
    claims = [resource_claim(name, "n/gpu-0") for name in ("ours", "theirs")]
    for claim in claims:
        claim["status"]["allocation"]["devices"]["results"][0]["driver"] = DRIVER
    (alarm,) = build_overview(claims).alarms
    assert alarm.is_of_owners
    assert alarm.holders == (("ResourceClaim", "default", "ours"), ("ResourceClaim", "default", "theirs"))
    assert build_overview(claims[:1]).alarms == ()


# -- the probe ---------------------------------------------------------------------------------------------------------


class DryRuns:
    """An API server that answers dry runs on the claim of the probe."""

    def __init__(self, *answers: str) -> None:
        self.answers, self.connections, self.bodies = list(answers), 0, list[Object]()

    def get(self, path: str) -> Object:
        raise ApiError(404, "NotFound", "none", {"name": "x"})

    def create(self, path: str, body: Object) -> Object:
        return {**body, "metadata": {**body["metadata"], "resourceVersion": "1"}}

    def reconnected(self) -> DryRuns:
        self.connections += 1
        return self

    def replace(self, path: str, body: Object, params: Object) -> Object:
        assert params == {"dryRun": "All"}
        self.bodies.append(body)
        answer = self.answers.pop(0) if self.answers else "is adopted by devalloc"
        if answer:
            raise ApiError(422, "Invalid", answer)
        return body


(RULE,) = adoption_rules([rule(pool="node-a")])


def test_each_connection_must_refuse() -> None:
    """Each may reach another API server, which has its own copy of the rules."""
    server = DryRuns()
    assert PolicyProbe(server, "devalloc-system")(RULE) == ""  # type: ignore[arg-type]
    assert server.connections == adoption.TRIES
    (result,) = server.bodies[0]["status"]["allocation"]["devices"]["results"]
    assert (result["driver"], result["pool"]) == (DRIVER, "node-a")
    behind = DryRuns("is adopted by devalloc", "")
    assert "does not refuse" in PolicyProbe(behind, "devalloc-system")(RULE)  # type: ignore[arg-type]


def test_another_refusal_proves_nothing() -> None:
    server = DryRuns("devalloc's controller allocates only devices of nodes that are set aside")
    assert "does not answer for it: devalloc's controller" in PolicyProbe(server, "n")(RULE)  # type: ignore[arg-type]


def test_a_policy_that_does_not_refuse_is_not_asked_all_the_time() -> None:
    world = World(rule())
    world.trouble = "the policy does not refuse"
    world.after(0)
    before = world.probes
    world.after(adoption.RETRY_SECONDS - 1)
    assert world.probes == before
    world.after(2)
    assert world.probes == before + 1


def test_an_api_server_that_does_not_answer_proves_nothing() -> None:
    class Silent(DryRuns):
        def get(self, path: str) -> Object:
            raise ApiError(0, "NoConnection", "cannot reach the API server")

    trouble = PolicyProbe(Silent(), "devalloc-system")(RULE)  # type: ignore[arg-type]
    assert trouble == "the policy cannot be asked: cannot reach the API server"
