"""What nodes publish as ResourceSlices in the overview, by the rules of resource.k8s.io; and quotas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from devalloc.api.adopted_pools import PROBE, rule_manifest
from devalloc.api.dedicated_pools import ALLOCATOR_KEY, NOT_ANSWERED, TAINT, dedicated_pool_name
from devalloc.store import Event, Expired, Forbidden, KindNotServed, Listing, Unavailable
from devalloc.usage.overview import CardSummary, build_overview
from devalloc.usage.overview.cache import NO_KINDS_MESSAGE, STALE_MESSAGE, OverviewCache
from devalloc.usage.overview.claims import NO_EVENT_YET, WAITS_FOR_SCHEDULER, needs_events
from tests.support.fleet_manifests import gpu_claim, gpu_class, gpu_pool
from tests.support.overview_checks import adds_up, devices_of
from tests.support.resource_manifests import (
    counters,
    device,
    resource_claim,
    resource_quota,
    slice_of,
    taint_rule,
    warning,
)

Object = dict[str, Any]
BROKEN = {"key": "devalloc.io/unavailable", "value": "bus-error", "effect": "NoSchedule"}


def only_card(*documents: Object) -> CardSummary:
    summary = build_overview(documents)
    adds_up(summary)
    (node,) = summary.nodes
    (card,) = node.cards
    return card


def states(card: CardSummary) -> dict[str, str]:
    return {each.name: each.state for each in card.devices}


def test_partitions_exclude_each_other_by_their_counters() -> None:
    """The counters come in a slice of their own; what one holds, the others lack."""
    parts = [
        device("whole", draws={"memory": "40Gi", "slices": "7"}, function="whole", model="A100"),
        device("mig-3g-0", draws={"memory": "20Gi", "slices": "3"}, function="mdev", profile="3g.20gb"),
        device("mig-3g-1", draws={"memory": "20Gi", "slices": "3"}, function="mdev", profile="3g.20gb"),
        device("mig-4g-0", draws={"memory": "20Gi", "slices": "5"}, function="mdev", profile="4g.20gb"),
        device("odd", draws={"memory": "1Gi", "nothing": "1"}),
    ]
    sets = slice_of("card", "n", of=2, name="sets", sharedCounters=[counters(memory="40Gi", slices="7")])
    card = only_card(sets, slice_of("card", "n", parts, of=2), resource_claim("c", "card/mig-3g-0", pods=("p1", "p2")))
    assert states(card) == {
        "whole": "excluded",
        "mig-3g-0": "held",
        "mig-3g-1": "free",
        "mig-4g-0": "excluded",
        "odd": "excluded",
    }
    assert card.remarks == ("20Gi of 40Gi memory left", "4 of 7 slices left")
    (holder,) = next(each for each in card.devices if each.state == "held").holders
    assert holder.text == "resourceclaim default/c for pod p1, p2"
    assert (card.model, card.dialect, card.devices[0].name) == ("A100", "ResourceSlice", "whole")


def test_taints_keep_devices_back_and_say_why() -> None:
    devices = [
        device("broken", BROKEN, **{"devalloc.io__unavailable": "AER: bus error"}),
        device("drained", {"key": "a", "effect": "NoExecute"}),
        device("noted", {"key": "a", "effect": "None"}),
        device("ruled"),
        device("used", BROKEN),
    ]
    rules = [
        taint_rule("one", pool="card", device="ruled"),
        taint_rule("elsewhere", pool="other"),
        taint_rule("of-others", driver="gpu.example.com"),
        {"kind": "DeviceTaintRule", "metadata": {"name": "none"}, "spec": {"taint": BROKEN}},
    ]
    card = only_card(slice_of("card", "n", devices), *rules, resource_claim("c", "card/used"))
    assert {each.name: (each.state, each.why) for each in card.devices} == {
        "broken": ("unavailable", "AER: bus error"),
        "drained": ("unavailable", "taint a:NoExecute"),
        "noted": ("free", ""),
        "ruled": ("unavailable", "cordoned: taint example.com/broken:NoSchedule"),
        "used": ("held", "taint devalloc.io/unavailable=bus-error:NoSchedule"),
    }


def test_a_node_that_is_set_aside_offers_its_devices_to_devallocs_controller() -> None:
    card = only_card(slice_of(dedicated_pool_name("card"), "n", [device("d", TAINT)]))
    assert (states(card), card.remarks) == ({"d": "free"}, ("set aside for devalloc's controller",))


def test_of_a_pool_the_newest_slices_count_once_all_are_there() -> None:
    old, new = slice_of("card", "n", [device("gone")]), slice_of("card", "n", [device("d")], of=2, generation=2)
    card = only_card(old, new)
    assert {each.name: (each.state, each.why) for each in card.devices} == {
        "d": ("unavailable", "it is being published: 1 of 2 slices are there")
    }
    second = slice_of("card", "n", [device("e")], of=2, generation=2, name="second")
    assert states(only_card(old, new, second)) == {"d": "free", "e": "free"}
    twice = slice_of("card", "n", [device("d")], of=2, generation=2, name="second")
    assert states(only_card(new, twice)) == {"d": "unavailable"}


@pytest.mark.parametrize(
    ("shares", "state"), [(["1Gi"], "shared"), (["1Gi", "2Gi"], "shared"), (["3Gi", "4Gi"], "held"), ([None], "held")]
)
def test_of_a_device_that_is_shared_there_may_be_more(shares: list[str | None], state: str) -> None:
    """Each share takes at least 2Gi."""
    policy = {"default": "4Gi", "validRange": {"min": "2Gi", "step": "1Gi"}}
    shared = device("d") | {"allowMultipleAllocations": True}
    shared["capacity"] = {"memory": {"value": "8Gi", "requestPolicy": policy}}
    claims = [
        resource_claim(f"c{i}", "card/d", **({"shareID": str(i), "consumedCapacity": {"memory": each}} if each else {}))
        for i, each in enumerate(shares)
    ]
    card = only_card(slice_of("card", "n", [shared]), *claims)
    assert states(card) == {"d": state}
    if shares[0]:
        assert card.devices[0].holders[0].text == f"resourceclaim default/c0 (memory {shares[0]})"


def test_admin_access_leaves_a_device_free() -> None:
    card = only_card(slice_of("card", "n", [device("d")]), resource_claim("c", "card/d", adminAccess=True))
    assert (states(card), card.devices[0].holders[0].is_admin) == ({"d": "free"}, True)


def test_nodes_tell_what_they_publish_as() -> None:
    summary = build_overview([gpu_pool("a", node="n1"), gpu_pool("b", node="n2"), slice_of("b", "n2", [device("d")])])
    adds_up(summary)
    assert [(node.name, node.published_as) for node in summary.nodes] == [
        ("n1", "DevicePools"),
        ("n2", "DevicePools and ResourceSlices"),
    ]
    assert (summary.counts.devices, summary.cards, len(devices_of(summary))) == (5, 3, 5)


def test_claims_of_both_kinds_wait_for_their_own_reasons() -> None:
    ours, silent, theirs = (resource_claim(name, ours=name != "theirs") for name in ("ours", "silent", "theirs"))
    generated = resource_claim("generated")
    generated["metadata"]["ownerReferences"] = [{"kind": "Pod", "name": "web-0", "controller": True}]
    elsewhere = resource_claim("elsewhere", "p/d")
    elsewhere["status"]["allocation"]["devices"]["results"][0]["driver"] = "gpu.example.com"
    going = resource_claim("going")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    events = [
        warning(ours, "NoSuitableNode", "too early"),
        warning(ours, "NotEnoughDevices", "9 are wanted", "2026-01-01T00:00:02.000000Z"),
        warning(ours, "SentBack", "between", "2026-01-01T00:00:01.000000Z"),
        warning(silent, "Allocated", "long ago", type="Normal"),
    ]
    has = resource_claim("has", "p/d", pods=("w",), node="n")
    summary = build_overview(
        [*events, ours, silent, theirs, generated, elsewhere, going, has, gpu_claim("dc"), gpu_class()]
    )
    by_claim = {claim.name: (claim.kind, claim.state, claim.reason, claim.message) for claim in summary.claims}
    assert by_claim == {
        "dc": ("DeviceClaim", "Pending", "", ""),
        "ours": ("ResourceClaim", "Pending", "NotEnoughDevices", "9 are wanted"),
        "silent": ("ResourceClaim", "Pending", "", NO_EVENT_YET),
        "theirs": ("ResourceClaim", "Pending", "", WAITS_FOR_SCHEDULER),
        "generated": ("ResourceClaim", "Pending", "", f"{WAITS_FOR_SCHEDULER}: kubectl describe pod web-0"),
        "going": ("ResourceClaim", "Deleting", "", ""),
        "has": ("ResourceClaim", "Reserved", "", ""),
    }
    assert (summary.pending, summary.allocated) == (5, 1)
    assert [claim.is_pending for claim in summary.claims] == [True] * 5 + [False] * 2
    (held,) = (claim for claim in summary.claims if claim.name == "has")
    assert (held.wants, held.devices, held.node, held.pods) == ("1 gpu", "p/d", "n", ("w",))


@pytest.mark.parametrize(
    ("pools", "words"),
    [
        (["card"], ""),
        (["card.devalloc"], "; all 2 devices of devalloc are set aside for claims with the label "),
        (["card", "card.devalloc"], "; 2 of 4 devices of devalloc are set aside for claims with the label "),
    ],
)
def test_a_claim_of_kube_scheduler_says_which_devices_that_never_gives(pools: list[str], words: str) -> None:
    slices = [slice_of(name, "n", [device("d0"), device("d1")]) for name in pools]
    summary = build_overview([*slices, resource_claim("theirs"), resource_claim("ours", ours=True)])
    messages = {claim.name: claim.message for claim in summary.claims}
    label = "devalloc.io/allocator=devalloc" if words else ""
    assert messages == {"theirs": f"{WAITS_FOR_SCHEDULER}{words}{label}", "ours": NO_EVENT_YET}


def test_a_claim_of_kube_scheduler_says_which_drivers_are_adopted() -> None:
    rules = [rule_manifest("gpu.io"), rule_manifest("nic.io", "node-1")]
    junk = {"kind": "DeviceTaintRule", "metadata": {"name": "junk", "labels": []}, "spec": {"deviceSelector": 1}}
    summary = build_overview([*rules, junk, resource_claim("theirs"), resource_claim("ours", ours=True)])

    messages = {claim.name: claim.message for claim in summary.claims}
    assert messages == {
        "ours": NO_EVENT_YET,
        "theirs": f"{WAITS_FOR_SCHEDULER}; adopted: gpu.io, nic.io; to get their devices, label the claim "
        "devalloc.io/allocator=devalloc",
    }


def test_the_claim_by_which_the_controller_asks_the_policy_waits_for_nothing() -> None:
    probe = resource_claim(PROBE, ours=True)
    probe["spec"] = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": PROBE}}]}}
    of_a_tenant = resource_claim(PROBE, ours=True)

    assert build_overview([probe]).pending == 0
    assert not needs_events([probe])
    assert build_overview([of_a_tenant]).pending == 1


def test_a_labelled_claim_says_why_the_controller_does_not_answer_it() -> None:
    claims = [resource_claim("theirs"), resource_claim("ours", ours=True)]
    summary = build_overview(claims, unanswered=NOT_ANSWERED)

    assert {each.name: each.message for each in summary.claims} == {"theirs": WAITS_FOR_SCHEDULER, "ours": NOT_ANSWERED}


def test_quotas_say_what_is_used_now_and_whether_their_status_does() -> None:
    claim = {
        **gpu_claim("c", 2),
        "status": {"allocations": [{"devicePoolName": "p", "deviceName": f"d{i}"} for i in (0, 1)]},
    }
    theirs = {"vf.deviceclass.resource.k8s.io/devices": "2", "count/pods": "1"}
    documents = [gpu_class(), gpu_pool(), claim, resource_quota("q", used=theirs, gpu="3", any="2")]
    summary = build_overview(documents)
    assert [(each.resource.partition(".")[0], each.used, each.hard, each.is_full) for each in summary.quotas] == [
        ("any", "0", "2", False),
        ("gpu", "2", "3", False),
        ("vf", "2", "2", True),
    ]
    assert not summary.is_settled
    assert build_overview([resource_quota("of-pods", used={"count/pods": "1"})]).quotas == ()


class Cluster:
    """A store of some kinds; the others it refuses."""

    def __init__(self, **of: list[Object] | Exception) -> None:
        self.of, self.listed_kinds = of, []  # type: list[str]
        self.silent_seconds = 0.0

    def list(self, kinds: Any = None, namespace: str | None = None) -> Listing:
        objects: list[Object] = []
        for kind in [kinds] if isinstance(kinds, str) else kinds:
            self.listed_kinds.append(kind)
            listed = self.of.get(kind, [])
            if isinstance(listed, Exception):
                raise listed
            objects += listed
        return Listing(objects, str(len(self.listed_kinds)))

    def watch(self, kinds: Any, since: str, *, timeout: float) -> Iterator[Event]:
        raise Expired("list again")


def test_kinds_without_read_access_are_noted_and_the_rest_is_shown() -> None:
    now = 0.0
    store = Cluster(DevicePool=[gpu_pool()])
    cluster = Cluster(
        ResourceSlice=Forbidden("no"),
        ResourceClaim=[resource_claim("c", ours=True)],
        DeviceTaintRule=KindNotServed("no such kind"),
        Event=Unavailable("no answer"),
    )
    sight = OverviewCache(store, cluster, clock=lambda: now)  # type: ignore[arg-type]  all that it needs
    seen = sight.latest().overview
    assert seen.notes == (
        "The list of ResourceSlices is not shown: list and watch are not allowed here.",
        "Why labelled ResourceClaims wait is not shown: no answer",
    )
    assert (seen.counts.devices, seen.pending) == (2, 1)
    now, cluster.of["ResourceSlice"] = 2.0, [slice_of("card", "m", [device("d")])]
    assert sight.latest().overview.counts.devices == 2
    assert cluster.listed_kinds.count("ResourceSlice") == 1, "it is not asked for again and again"
    now = 60.0
    assert sight.latest().overview.counts.devices == 3
    assert "Event" in cluster.listed_kinds
    cluster.silent_seconds, now = 100.0, 120.0
    seen, trouble = sight.latest().overview, sight.latest().trouble
    assert (STALE_MESSAGE in seen.notes, trouble) == (True, ""), "as when a right is taken away"
    store.silent_seconds, now = 100.0, 180.0
    assert sight.latest().trouble == "the API server does not answer"


def test_a_cluster_of_slices_alone_is_shown() -> None:
    cluster = Cluster(ResourceSlice=[slice_of("card", "n", [device("d")])])
    seen = OverviewCache(Cluster(DevicePool=KindNotServed("no CRDs")), cluster).latest()  # type: ignore[arg-type]
    assert (seen.overview.counts.devices, seen.overview.notes, seen.trouble) == (1, (NO_KINDS_MESSAGE,), "")


def test_events_are_read_only_for_claims_without_another_reason() -> None:
    cluster = Cluster(ResourceClaim=[resource_claim("theirs"), resource_claim("has", "p/d", ours=True)])
    OverviewCache(Cluster(), cluster).latest()  # type: ignore[arg-type]
    assert "Event" not in cluster.listed_kinds


def test_claims_of_a_labelled_namespace_wait_for_the_controller() -> None:
    space: Object = {"kind": "Namespace", "metadata": {"name": "default", "labels": {ALLOCATOR_KEY: "devalloc"}}}
    left_out = resource_claim("left-out")
    left_out["metadata"]["labels"] = {ALLOCATOR_KEY: "kube-scheduler"}
    plain = resource_claim("plain")
    cluster = Cluster(
        ResourceClaim=[left_out, plain], Namespace=[space], Event=[warning(plain, "NotEnoughDevices", "9 are wanted")]
    )
    seen = OverviewCache(Cluster(), cluster).latest().overview  # type: ignore[arg-type]  all that it needs
    assert {each.name: (each.reason, each.message) for each in seen.claims} == {
        "left-out": ("", WAITS_FOR_SCHEDULER),
        "plain": ("NotEnoughDevices", "9 are wanted"),
    }
    cluster = Cluster(ResourceClaim=[plain], Namespace=Forbidden("no"))
    seen = OverviewCache(Cluster(), cluster).latest().overview  # type: ignore[arg-type]  all that it needs
    assert ([each.message for each in seen.claims], seen.notes) == ([WAITS_FOR_SCHEDULER], ())


def test_events_of_labelled_claims_are_read_also_without_the_right_to_read_namespaces() -> None:
    ours = resource_claim("ours", ours=True)
    cluster = Cluster(
        ResourceClaim=[ours, resource_claim("theirs")],
        Namespace=Forbidden("no"),
        Event=[warning(ours, "NotEnoughDevices", "9 are wanted")],
    )
    seen = OverviewCache(Cluster(), cluster).latest().overview  # type: ignore[arg-type]  all that it needs
    assert {each.name: each.reason for each in seen.claims} == {"ours": "NotEnoughDevices", "theirs": ""}


def shares(*amounts: str) -> list[Object]:
    return [
        resource_claim(f"c{i}", "card/d", shareID=str(i), consumedCapacity={"memory": each})
        for i, each in enumerate(amounts)
    ]


def test_claims_that_hold_together_what_they_cannot_are_an_alarm() -> None:
    shared = device("d") | {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "8Gi"}}}
    parts = [
        slice_of("card", "n", of=2, name="sets", sharedCounters=[counters(slices="4")]),
        slice_of("card", "n", [device(f"p{i}", draws={"slices": "3"}) for i in range(2)], of=2),
    ]
    whole, two = slice_of("card", "n", [device("d")]), [resource_claim("a", "card/d"), resource_claim("b", "card/d")]

    def conflicts(*documents: Object) -> list[tuple[str, tuple[str, ...], int]]:
        return [(each.dialect, each.devices, len(each.holders)) for each in build_overview(documents).alarms]

    assert conflicts(whole, two[0], resource_claim("b", "card/d", adminAccess=True)) == []
    assert conflicts(whole, *two) == [("ResourceSlice", ("card/d",), 2)]
    assert conflicts(*two) == [("ResourceSlice", ("card/d",), 2)], "its slice is gone"
    assert conflicts(whole, *shares("1Gi", "1Gi")) == [("ResourceSlice", ("card/d",), 2)], "it cannot be shared"
    assert conflicts(slice_of("card", "n", [shared]), *shares("4Gi", "4Gi")) == []
    assert conflicts(slice_of("card", "n", [shared]), *shares("4Gi", "5Gi")) == [("ResourceSlice", ("card/d",), 2)]
    assert conflicts(*parts, resource_claim("a", "card/p0")) == []
    assert conflicts(*parts, resource_claim("a", "card/p0"), resource_claim("b", "card/p1")) == [
        ("ResourceSlice", ("card/p0", "card/p1"), 2)
    ]
