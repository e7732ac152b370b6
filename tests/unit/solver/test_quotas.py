"""ResourceQuotas count in the library as they do in `devalloc up`, or it is said that they do not."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from random import Random
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.api.claim import DeviceClaim, DeviceClaimStatus
from devalloc.api.decode import decode
from devalloc.api.json_content import escape_invalid_unicode
from devalloc.api.object_meta import ObjectMeta
from devalloc.api.reasons import STILL_SEARCHING
from devalloc.machines.schedule.what_if import solve_with_machines
from devalloc_solver import Fleet, capacity, solve_manifests
from devalloc_solver.pipeline import admission, quota
from tests.support.cli_shell import claim, device_class, pool
from tests.support.examples import examples
from tests.support.host_pools import host, machine

QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "few", "namespace": "default"},
    "spec": {"hard": {"gpu.deviceclass.devmgmtproto.k8s.io/devices": "1"}},
}
QUOTA_ANYWHERE = {**QUOTA, "metadata": {"name": "few"}}


def reasons(answer: dict[str, Any]) -> dict[str, str | None]:
    return {one["name"]: one["reason"] for one in answer["claims"]}


def test_a_claim_over_its_quota_gets_nothing() -> None:
    answer = solve_manifests([pool(), device_class(), claim("a"), claim("b"), QUOTA])

    assert reasons(answer) == {"a": None, "b": "QuotaExceeded"}
    assert answer["problems"] == []


def test_a_large_group_over_its_quota_is_worded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner chooses the size, and the words need all members."""
    worded: list[int] = []
    word = admission._quota_message

    def counted(bound: Any, wants: Any, bounds: Any) -> str:
        worded.append(len(wants))
        return word(bound, wants, bounds)

    monkeypatch.setattr(admission, "_quota_message", counted)
    members = [deepcopy(claim(f"c{n}")) for n in range(20)]
    for member in members:
        member["metadata"]["annotations"] = {"devalloc.io/group": "g"}
    answers = solve_manifests([pool(), device_class(), *members, QUOTA])["claims"]
    assert {one["reason"] for one in answers} == {"QuotaExceeded"}
    assert worded == [20]


def test_a_quota_of_another_namespace_does_not_count_here() -> None:
    other = {**QUOTA, "metadata": {"name": "few", "namespace": "team-a"}}

    assert reasons(solve_manifests([pool(), device_class(), claim("a"), claim("b"), other])) == {"a": None, "b": None}


def test_what_is_malformed_beside_a_quota_is_reported_and_costs_nothing_else() -> None:
    answer = solve_manifests([pool(), device_class(), claim("a"), QUOTA, 5, {"kind": "DeviceClaim", "metadata": 3}])  # type: ignore[list-item]

    assert reasons(answer) == {"a": None}
    assert len(answer["problems"]) >= 2


@pytest.mark.parametrize("kind", [[], {}, 3])
def test_an_object_of_a_kind_that_is_no_text_costs_nothing_else(kind: Any) -> None:
    documents = [pool(), device_class(), QUOTA, {"apiVersion": "v1", "kind": kind, "metadata": {"name": "x"}}]
    assert reasons(solve_manifests([*documents, claim("a")])) == {"a": None}
    assert capacity(documents, claim("a")).count


@pytest.mark.parametrize("amount", ["many", "-1", "", 1.5, None, "1e22"])
def test_an_amount_that_cannot_be_read_allows_no_device_and_is_a_problem(amount: Any) -> None:
    wrong = {**QUOTA, "spec": {"hard": {f"gpu{quota.SUFFIX}": amount}}}
    answer = solve_manifests([pool(), device_class(), claim("a"), wrong])

    (problem,) = answer["problems"]
    assert (problem["kind"], problem["name"]) == ("ResourceQuota", "few")
    assert problem["path"] == f"spec.hard[gpu{quota.SUFFIX}]"
    assert reasons(answer) == {"a": None if amount == 1.5 else "QuotaExceeded"}


def test_a_misspelled_quota_is_named() -> None:
    wrong = {**QUOTA, "spec": {"hard": {f"gpu{quota.SUFFIX.removesuffix('s')}": 1, "cpu": 4}}}
    (problem,) = solve_manifests([pool(), device_class(), claim("a"), wrong])["problems"]

    assert (problem["severity"], problem["message"]) == ("warning", f"is ignored: a quota counts <class>{quota.SUFFIX}")


COUNTS_NOTHING = "counts nothing; write count/deviceclaims.devmgmtproto.k8s.io"


@pytest.mark.parametrize(
    ("hard", "message"),
    [
        (f"gpuu{quota.SUFFIX}", "is for class gpuu, which does not exist; did you mean gpu?"),
        (f"storage{quota.SUFFIX}", "is for class storage, which does not exist; apply the class, or correct the name"),
        (
            "gpu.deviceclass.resource.k8s.io/devices",
            f"counts ResourceClaims only; for DeviceClaims, write gpu{quota.SUFFIX}",
        ),
        ("gpu.deviceclasses.devmgmtproto.k8s.io/devices", f"is ignored: a quota counts <class>{quota.SUFFIX}"),
        ("gpu.deviceclass/devices", f"is ignored: a quota counts <class>{quota.SUFFIX}"),
        (quota.SUFFIX, f"is ignored: a quota counts <class>{quota.SUFFIX}"),
        ("gpu", f"is ignored: a quota counts <class>{quota.SUFFIX}"),
        (
            f"requests.gpu{quota.SUFFIX}",
            "is for class requests.gpu, which does not exist; apply the class, or correct the name",
        ),
        ("limits.deviceclass/gpu", f"is ignored: a quota counts <class>{quota.SUFFIX}"),
        ("count/deviceclaim.devmgmtproto.k8s.io", COUNTS_NOTHING),
        ("count/deviceclaims.devmgmtproto.io", COUNTS_NOTHING),
        ("count/deviceclaims", COUNTS_NOTHING),
        ("count/devicepools.devmgmtproto.k8s.io", COUNTS_NOTHING),
        ("count/virtualmachine.devalloc.io", "counts nothing; write count/virtualmachines.devalloc.io"),
    ],
)
def test_a_line_that_does_not_bound_what_its_author_meant_is_a_warning(hard: str, message: str) -> None:
    wrong = {**QUOTA, "spec": {"hard": {hard: "1"}}}
    (problem,) = solve_manifests([pool(), device_class(), claim("a"), wrong])["problems"]

    assert (problem["severity"], problem["path"], problem["message"]) == ("warning", f"spec.hard[{hard}]", message)


@pytest.mark.parametrize(
    "hard", ["pods", "cpu", "requests.memory", "hugepages-2Mi", "services.nodeports", "nvidia.com/gpu"]
)
def test_lines_of_kubernetes_are_no_warnings(hard: str) -> None:
    assert list(quota.problems_of({**QUOTA, "spec": {"hard": {hard: "1"}}})) == []


def test_a_quota_with_scopes_bounds_pods_only() -> None:
    wrong = {**QUOTA, "spec": {**QUOTA["spec"], "scopes": ["Terminating"]}}
    answer = solve_manifests([pool(), device_class(), claim("a"), claim("b"), wrong])

    assert "a quota with scopes bounds pods only" in answer["problems"][0]["message"]
    assert reasons(answer) == {"a": None, "b": None}


def test_a_line_for_a_class_of_kubernetes_is_right_if_there_is_one() -> None:
    of_kubernetes = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}}
    both = {**QUOTA, "spec": {"hard": {"gpu.deviceclass.resource.k8s.io/devices": "1"}}}

    names = quota.ClassNames.among([device_class(), of_kubernetes])
    assert list(quota.problems_of(both, names)) == []


OF_KUBERNETES = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}}
OTHERS = ".deviceclass.resource.k8s.io/devices"


@pytest.mark.parametrize(
    ("hard", "message"),
    [
        (f"gpu{OTHERS}", None),
        (f"gpuu{OTHERS}", "is for class gpuu, which does not exist; did you mean gpu?"),
        (f"gpu{quota.SUFFIX}", f"counts DeviceClaims only; for ResourceClaims, write gpu{OTHERS}"),
        (f"nic{quota.SUFFIX}", None),
        ("gpu.deviceclass.resource.k8s.io", f"is ignored: a quota counts <class>{OTHERS}"),
        ("count/resourceclaims.resource.k8s.io", None),
        ("requests.deviceclass.resource.kubernetes.io/gpu", None),
        (
            "requests.deviceclass.resource.kubernetes.io/gpuu",
            "is for class gpuu, which does not exist; did you mean gpu?",
        ),
        ("count/deviceclaims.devmgmtproto.k8s.io", None),
        ("count/virtualmachines.devalloc.io", None),
        ("count/pods", None),
    ],
)
def test_lines_of_quotas_for_resource_claims(hard: str, message: str | None) -> None:
    """Beside classes of resource.k8s.io alone. The last one bounds the extended resource by which pods ask for it."""
    problems = quota.problems_of({**QUOTA, "spec": {"hard": {hard: "1"}}}, quota.ClassNames.among([OF_KUBERNETES]))
    assert [(problem.severity, problem.message) for problem in problems] == ([("warning", message)] if message else [])


def resource_claim(name: str, *requests: dict[str, Any], namespace: str = "default") -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    spec = {"devices": {"requests": [{"name": f"r{n}", **each} for n, each in enumerate(requests)]}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


def of_class(name: str, **more: Any) -> dict[str, Any]:
    return {"deviceClassName": name, **more}


@pytest.mark.parametrize(
    ("requests", "wanted"),
    [
        ([{"exactly": of_class("gpu")}], 1),
        ([{"exactly": of_class("gpu", count=2)}, {"exactly": of_class("gpu")}], 3),
        ([{"exactly": of_class("gpu", allocationMode="All")}], 32),
        ([{"firstAvailable": [of_class("gpu", count=4), of_class("gpu"), of_class("nic", count=9)]}], 4),
        ([{"exactly": of_class("nic", count=9)}], 0),
        ([{"exactly": of_class("gpu", count="2")}, {"exactly": None}, {"firstAvailable": 3}, {}], 0),
    ],
)
def test_resource_claims_that_the_api_server_would_refuse_are_warned_of(
    requests: list[dict[str, Any]], wanted: int
) -> None:
    """It counts a claim when it is created, as the most devices that it can get."""
    documents = [OF_KUBERNETES, resource_claim("a", *requests), resource_claim("b", *requests, namespace="other")]
    names = quota.ClassNames.among(documents)
    for allowed in {0, max(0, wanted - 1), wanted}:
        problems = quota.problems_of({**QUOTA, "spec": {"hard": {f"gpu{OTHERS}": str(allowed)}}}, names)
        message = f"allows {allowed}, and ResourceClaims want {wanted}; the API server refuses those beyond it"
        assert [each.message for each in problems] == ([message] if wanted > allowed else [])


def test_a_quota_alone_says_nothing_of_classes() -> None:
    assert list(quota.problems_of({**QUOTA, "spec": {"hard": {f"gpuu{quota.SUFFIX}": "1"}}})) == []


def test_capacity_counts_quotas() -> None:
    documents = [pool(), device_class(), QUOTA]
    free = capacity([pool(), device_class()], claim("c"))
    assert (free.count, free.reason) == (2, None)

    bounded = capacity(documents, claim("c"))
    assert (bounded.count, bounded.proven, bounded.reason, bounded.by_node) == (1, True, "QuotaExceeded", {})
    none_left = {**QUOTA, "spec": {"hard": {f"gpu{quota.SUFFIX}": "0"}}}
    assert capacity([pool(), device_class(), none_left, 5], claim("c")).count == 0  # type: ignore[list-item]
    roomy = {**QUOTA, "spec": {"hard": {f"gpu{quota.SUFFIX}": "9"}}}
    assert capacity([pool(), device_class(), roomy], claim("c")) == free


@pytest.mark.parametrize("deadline", [-1.0, "soon"])
def test_an_invalid_deadline_is_refused_beside_a_quota(deadline: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        solve_manifests([pool(), QUOTA], deadline=deadline)


def test_a_claim_that_is_searched_for_keeps_its_turn() -> None:
    """A later one does not take what is left of the quota; it does once the first one is refused."""

    def solve(first: dict[str, Any]) -> dict[str, str | None]:
        def answer_all(documents: list[dict[str, Any]]) -> dict[str, Any]:
            names = [one["metadata"]["name"] for one in documents if one["kind"] == "DeviceClaim"]
            given = {"allocated": True, "reason": None}
            answers = [{"namespace": "default", "name": name, **(first if name == "a" else given)} for name in names]
            return {"claims": answers, "seconds": 0.0}

        return reasons(admission.solve_admitted([pool(), device_class(), claim("a"), claim("b"), QUOTA], answer_all))

    refused = {"allocated": False, "reason": "SearchLimit"}
    assert solve(refused) == {"a": "SearchLimit", "b": None}
    assert solve({**refused, STILL_SEARCHING: True}) == {"a": "SearchLimit", "b": "QuotaExceeded"}


def test_a_fleet_says_that_it_counts_no_quotas() -> None:
    fleet = Fleet.from_manifests([pool(), device_class(), QUOTA])

    (problem,) = fleet.allocate_all([claim("a")])["problems"]

    assert (problem["kind"], problem["name"], problem["severity"]) == ("ResourceQuota", "few", "warning")
    assert "does not apply quotas" in problem["message"]
    fleet.delete(QUOTA)
    assert fleet.allocate_all([claim("b")])["problems"] == []
    assert fleet.update(QUOTA) == [problem]


def test_claims_of_one_name_are_refused_beside_a_quota_as_without() -> None:
    documents = [pool(), device_class(), claim("twice"), claim("twice"), claim("other")]
    without, limited = solve_manifests(documents), solve_manifests([*documents, QUOTA])

    assert limited["claims"] == without["claims"]
    assert reasons(limited) == {"twice": "ClaimInvalid", "other": None}


def asking(name: str, count: int = 1, group: str | None = None) -> dict[str, Any]:
    one = claim(name, count=count, limits={"count": count})
    one["metadata"]["annotations"] = {} if group is None else {"devalloc.io/group": group}
    return one


@pytest.mark.parametrize(
    "claims",
    [[asking("twice")], [asking("twice", 3)], [asking("first", group="g"), asking("twice", group="g")]],
    ids=["within", "over", "group"],
)
@pytest.mark.parametrize(
    ("part", "content"),
    [
        ("annotations", 3),
        ("annotations", {"devalloc.io/group": "g", "note": 3}),
        ("finalizers", "none"),
        ("namespace", 3),
        ("spec", "nothing"),
        ("spec", {"claims": "nothing"}),
        ("status", 3),
        ("status", None),
        ("apiVersion", "devmgmtproto.k8s.io/v9"),
        ("apiVersion", 3),
    ],
    ids=str,
)
def test_a_claim_of_the_name_of_an_unreadable_one_is_refused_beside_a_quota_as_without(
    claims: list[dict[str, Any]], part: str, content: Any
) -> None:
    copy = asking("twice", 3)
    (copy["metadata"] if part in ("annotations", "finalizers", "namespace") else copy)[part] = content
    documents = [pool(), device_class(), *claims, copy, claim("other")]
    without = solve_manifests(documents)

    assert reasons(without)["twice"] == "ClaimInvalid"
    assert solve_manifests([*documents, QUOTA])["claims"] == without["claims"]
    assert solve_with_machines([*documents, QUOTA])["claims"] == without["claims"]


@pytest.mark.parametrize("change", [{"apiVersion": "example.com/v1"}, {"kind": "Other"}], ids=str)
def test_a_foreign_object_of_the_name_of_a_claim_is_no_second_one(change: dict[str, Any]) -> None:
    foreign = {**asking("train"), **change}

    assert reasons(solve_manifests([pool(), device_class(), asking("train", 3), foreign, QUOTA])) == {
        "train": "QuotaExceeded"
    }


# -- reasons beside quotas ---------------------------------------------------------------------------------------------


def in_namespace(namespace: str, one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "metadata": {**one["metadata"], "namespace": namespace}}


def limit(namespace: str, most: int) -> dict[str, Any]:
    return in_namespace(namespace, {**QUOTA, "spec": {"hard": {f"gpu{quota.SUFFIX}": str(most)}}})


def devices(number: int) -> dict[str, Any]:
    whole = pool()
    return {**whole, "spec": {**whole["spec"], "devices": [{"name": f"d{each}"} for each in range(number)]}}


def holding(fleet: list[dict[str, Any]], one: dict[str, Any]) -> dict[str, Any]:
    (answer,) = solve_manifests([*fleet, one])["claims"]
    metadata = {**one["metadata"], "annotations": answer["annotations"]}
    return {**one, "metadata": metadata, "status": {"allocations": answer["allocations"]}}


def unmatched(one: dict[str, Any]) -> dict[str, Any]:
    (entry,) = one["spec"]["claims"]
    return {**one, "spec": {"claims": [{**entry, "constraints": "device.model == 'none'"}]}}


def test_what_a_quota_refuses_is_not_explained_by_claims_that_hold_nothing() -> None:
    fleet = [devices(2), device_class()]
    documents = [*fleet, holding(fleet, in_namespace("v", asking("holder"))), limit("t", 0), limit("u", 1)]
    waiting = [in_namespace("t", asking("none")), in_namespace("u", asking("two", 2))]
    hopeless = unmatched(in_namespace("u", asking("unmatched")))

    alone = reasons(solve_manifests([*documents, *waiting]))
    assert alone == {"holder": None, "none": "QuotaExceeded", "two": "QuotaExceeded"}
    assert reasons(solve_manifests([*documents, *waiting, hopeless])) == {**alone, "unmatched": "NoMatchingDevices"}


@given(random=st.randoms(use_true_random=False), most=st.lists(st.integers(0, 3), min_size=2, max_size=2))
@settings(max_examples=examples(45, 0.375), deadline=None)
def test_reasons_beside_quotas_are_true_whatever_else_waits(random: Random, most: list[int]) -> None:
    """Who is named as a holder holds something, quotas are kept, and a quota that has no room is the reason."""
    count = random.randint(2, 4)
    fleet = [devices(count), device_class()]
    held = holding(fleet, in_namespace("v", asking("h", random.randint(1, count - 1))))
    bounds = dict(zip("tu", most, strict=True))
    waiting = []
    for namespace in "tuw":
        for index in range(random.randint(0, 3)):
            group = random.choice([None, None, None, "g"])
            one = in_namespace(namespace, asking(f"c{index}", random.randint(1, 3), group))
            waiting.append(unmatched(one) if random.random() < 0.2 else one)
    answer = solve_manifests([*fleet, held, *waiting, *(limit(*bound) for bound in bounds.items())])

    counts = {
        (one["metadata"]["namespace"], one["metadata"]["name"]): one["spec"]["claims"][0]["requests"]["count"]
        for one in waiting
    }
    grouped = {one["metadata"]["name"] for one in waiting if one["metadata"]["annotations"]}
    holders = {(one["namespace"], one["name"]) for one in answer["claims"] if one["allocated"]}
    used = Counter(dict.fromkeys(bounds, 0))
    for key in holders - {("v", "h")}:
        used[key[0]] += counts[key]
    assert all(used[namespace] <= bound for namespace, bound in bounds.items())
    for one in answer["claims"]:
        users = [user for funnel in one.get("funnel", ()) for user in funnel["usedBy"]]
        blockers = [blocker for blocker in one.get("blockers", ()) if blocker["kind"] == "claim"]
        assert {(each["namespace"], each["name"]) for each in (*users, *blockers)} <= holders, one
        key = one["namespace"], one["name"]
        if key[0] in bounds and key[1] not in grouped and counts[key] > bounds[key[0]]:
            assert one["reason"] == "QuotaExceeded", one


# -- one notion of what is readable ----------------------------------------------------------------------------------

NULLS = [
    *((("metadata",), field.alias or name) for name, field in ObjectMeta.model_fields.items() if name != "name"),
    ((), "status"),
    *((("status",), field.alias or name) for name, field in DeviceClaimStatus.model_fields.items()),
]
"""Where each optional field of metadata and status is, and its name."""
MACHINES = [machine("first", "1", "1Gi", "a"), machine("second", "1", "1Gi", "c0", "c1")]
ENTRIES: dict[str, Callable[..., dict[str, Any]]] = {
    "solve_manifests": solve_manifests,
    "solve_with_machines": solve_with_machines,
    "with machines": lambda documents: solve_with_machines([*documents, *MACHINES, host("node-a")]),
}
"""Where quotas count; the controller's way is in the tests of the controller."""


def without(document: dict[str, Any], place: tuple[str, ...], name: str) -> dict[str, Any]:
    """A copy without a field, in which the object that has it is there."""
    copy = deepcopy(document)
    inner = copy.setdefault(place[0], {}) if place else copy
    inner.pop(name, None)
    return copy


def nulled(document: dict[str, Any], place: tuple[str, ...], name: str) -> dict[str, Any]:
    """The same with null in the field."""
    copy = without(document, place, name)
    (copy[place[0]] if place else copy)[name] = None
    return copy


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without how long it took, and without warnings, which name a null."""
    silent = [{**one, "warnings": []} for one in answer["claims"]]
    return {**answer, "claims": silent, "problems": others(answer["problems"]), "seconds": 0.0}


def others(problems: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that name no null."""
    return [one for one in problems if one["message"] != "is null, read as not set"]


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    ("kind", "place", "name"),
    [
        *(("DeviceClaim", *each) for each in NULLS),
        *(("DeviceClass", *each) for each in NULLS if each[0] == ("metadata",)),
        *(("ResourceQuota", *each) for each in NULLS if each[0] != ("status",)),
    ],
    ids=str,
)
def test_null_is_as_good_as_absent_beside_a_quota(kind: str, entry: str, place: tuple[str, ...], name: str) -> None:
    def documents(change: Callable[..., dict[str, Any]]) -> list[dict[str, Any]]:
        by_type = {**claim("c"), "spec": {"claims": [{"deviceType": "gpu"}]}}
        all_of_it = [pool(), device_class(driver="gpu.devalloc.io", deviceType="gpu"), claim("a"), claim("b"), by_type]
        return [change(one, place, name) if one["kind"] == kind else one for one in [*all_of_it, QUOTA_ANYWHERE]]

    absent, null = (comparable(ENTRIES[entry](documents(change))) for change in (without, nulled))

    assert null == absent
    assert sorted(str(reason) for reason in reasons(null).values()) == ["None", "QuotaExceeded", "QuotaExceeded"]


@pytest.mark.parametrize(("place", "name"), NULLS, ids=str)
def test_a_fleet_takes_null_for_absent_too(place: tuple[str, ...], name: str) -> None:
    def answers(change: Callable[..., dict[str, Any]]) -> list[Any]:
        fleet = Fleet.from_manifests([pool(), device_class(), change(QUOTA_ANYWHERE, place, name)])
        first = {**fleet.allocate(change(claim("a"), place, name)), "warnings": []}
        joint = comparable(fleet.allocate_all([change(claim("b"), place, name)]))
        return [first, joint, others(fleet.update(change(QUOTA, place, name)))]

    null, absent = answers(nulled), answers(without)

    assert null == absent
    assert [one["kind"] for one in null[1]["problems"]] == ["ResourceQuota"]


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    ("part", "content"),
    [
        ("annotations", 3),
        ("annotations", {"note": [3]}),
        ("finalizers", "none"),
        ("creationTimestamp", "yesterday"),
        ("deletionTimestamp", 3),
        ("spec", "nothing"),
        ("spec", None),
        ("conditions", "nothing"),
        ("apiVersion", "devmgmtproto.k8s.io/v9"),
    ],
    ids=str,
)
def test_what_a_claim_holds_counts_whatever_else_of_it_cannot_be_read(entry: str, part: str, content: Any) -> None:
    held = claim("holds")
    held["status"] = {"allocations": [{"devicePoolName": "gpus", "deviceName": "gpu-0"}]}
    where = {"spec": held, "apiVersion": held, "conditions": held["status"]}.get(part, held["metadata"])
    where[part] = content

    answer = ENTRIES[entry]([pool(), device_class(), held, claim("a"), QUOTA])

    assert reasons(answer) == {"holds": None, "a": "QuotaExceeded"}
    (holder,) = (one for one in answer["claims"] if one["name"] == "holds")
    assert "ClaimInvalid" in holder["warnings"][0]


def test_what_names_no_device_holds_nothing() -> None:
    held = {**claim("holds"), "spec": "nothing", "status": {"allocations": [3, {"devicePoolName": "gpus"}]}}

    assert reasons(solve_manifests([pool(), device_class(), held, claim("a"), QUOTA])) == {
        "holds": "ClaimInvalid",
        "a": None,
    }


def test_an_answer_beside_a_quota_has_the_warnings_that_it_has_without() -> None:
    odd = nulled(claim("a"), ("metadata",), "labels")
    odd["metadata"]["annotations"] = {"devalloc.io/priority": 5}
    (limited,) = solve_manifests([pool(), device_class(), odd, QUOTA])["claims"]
    (without_quota,) = solve_manifests([pool(), device_class(), odd])["claims"]

    assert limited == without_quota
    assert len(limited["warnings"]) == 2


def test_a_class_with_a_null_still_needs_its_namespace_to_be_for_admin_access() -> None:
    admin = nulled(device_class(driver="gpu.devalloc.io", adminAccess=True), ("metadata",), "creationTimestamp")
    answer = solve_with_machines([pool(), admin, claim("a")], admin_namespaces="labelled")

    assert reasons(answer) == {"a": "AdminAccessDenied"}


@pytest.mark.parametrize("namespace", [3, ["default"]])
def test_a_quota_of_no_namespace_bounds_no_claim(namespace: Any) -> None:
    wrong = {**QUOTA, "metadata": {"name": "few", "namespace": namespace}}

    assert quota.copies_allowed([pool(), device_class(), wrong], claim("a")) is None
    assert "metadata.namespace" in [one["path"] for one in solve_manifests([pool(), wrong])["problems"]]


@pytest.mark.parametrize("namespace", ["no\ud800such", "Not A Label"])
def test_a_quota_of_a_namespace_that_no_claim_can_have_is_named(namespace: str) -> None:
    quota_there = {**QUOTA, "metadata": {"name": "few", "namespace": namespace}}
    answer = solve_manifests([pool(), device_class(), claim("a"), quota_there])
    (problem,) = answer["problems"]
    assert (problem["kind"], problem["name"], problem["path"]) == ("ResourceQuota", "few", "metadata.namespace")
    assert "must be a DNS label" in problem["message"]
    assert problem["message"].endswith("; the quota applies to no claim")
    json.dumps(answer).encode()
    assert reasons(answer) == {"a": None}


@pytest.mark.parametrize("metadata", [{"namespace": "default"}, {"name": 3}, None, [], ...])
def test_a_quota_of_no_name_bounds_no_claim(metadata: Any) -> None:
    wrong = {**QUOTA, "metadata": metadata}
    if metadata is ...:
        del wrong["metadata"]

    assert quota.copies_allowed([pool(), device_class(), wrong], claim("a")) is None
    assert quota.quota_statuses_to_write([wrong]) == []
    assert list(quota.problems_of(wrong)) == []
    assert reasons(solve_manifests([pool(), device_class(), claim("a"), claim("b"), wrong])) == {"a": None, "b": None}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("others", [["c"], ["0"], ["z", "y"]])
def test_a_group_with_an_invalid_name_costs_no_other_claim_the_quota(entry: str, others: list[str]) -> None:
    group = [claim("a"), claim("b\ud800")]
    for member in group:
        member["metadata"]["annotations"] = {"devalloc.io/group": "g"}
    answer = ENTRIES[entry]([pool(), device_class(), *group, *map(claim, others), QUOTA])

    by_name = reasons(answer)
    why = "QuotaExceeded" if "0" in others else "GroupUnsatisfiable"
    assert (by_name.pop("a"), by_name.pop("b\\ud800")) == (why, "ClaimInvalid")
    assert sorted(by_name.values(), key=str) == [None, "QuotaExceeded"][: len(others)]
    json.dumps(answer, ensure_ascii=False).encode()


def test_a_quota_with_a_name_that_nothing_can_write_counts_and_is_named_escaped() -> None:
    odd = {
        **QUOTA,
        "metadata": {"name": "few\ud800"},
        "spec": {"hard": {f"gpu{quota.SUFFIX}": 1, f"x\ud800{quota.SUFFIX}": "no\ud800"}},
    }
    anything = {**claim("a"), "spec": {"claims": [{}]}}
    answer = solve_manifests([pool(), device_class(), claim("b"), claim("c"), anything, odd])

    assert reasons(answer) == {"a": "QuotaExceeded", "b": None, "c": "QuotaExceeded"}
    (problem,) = (one for one in answer["problems"] if one["severity"] == "error")
    assert (problem["name"], problem["path"]) == ("few\\ud800", f"spec.hard[x\\ud800{quota.SUFFIX}]")
    json.dumps(answer, ensure_ascii=False).encode()


@pytest.mark.parametrize("part", ["all", "metadata"])
def test_a_quota_that_is_another_mapping_than_a_dict_counts(part: str) -> None:
    few = {**QUOTA, "metadata": MappingProxyType(QUOTA["metadata"])} if part == "metadata" else MappingProxyType(QUOTA)
    answer = solve_manifests([pool(), device_class(), claim("a"), claim("b"), few])

    assert reasons(answer) == {"a": None, "b": "QuotaExceeded"}


def optional(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Maps with any of these fields, each of which may be null."""
    return st.fixed_dictionaries({}, optional={name: st.none() | value for name, value in values.items()})


TIME = st.just("2026-01-31T12:00:00Z")
COUNTS = st.sampled_from([1, 2, "2", 3, 1.5, "many", None])
DETAILS = optional(
    deviceClass=st.sampled_from(["gpu", "other"]),
    deviceType=st.just("gpu"),
    requests=optional(count=COUNTS, memory=st.just("1")),
    limits=optional(count=COUNTS),
    constraints=st.sampled_from(["", "true"]),
)
SPECS = st.one_of(
    optional(claims=st.lists(DETAILS | st.fixed_dictionaries({"oneOf": st.lists(DETAILS, max_size=2)}), max_size=2)),
    st.just({"claims": [{"deviceClass": "gpu", "requests": {"count": 1}}]}),
    st.sampled_from([None, "nothing", {"claims": "nothing"}]),
)
METADATA = optional(
    namespace=st.sampled_from(["default"] * 4 + ["default\ud800"]),
    labels=optional(team=st.sampled_from(["a", 3])),
    annotations=optional(
        **{
            "devalloc.io/priority": st.sampled_from([5, "-1"]),
            "devalloc.io/group": st.sampled_from(["g", 7, "7", True]),
            "note": st.sampled_from([True, 1.5, "x", []]),
        }
    )
    | st.just(3),
    creationTimestamp=TIME | st.just(3),
    deletionTimestamp=TIME,
    finalizers=st.sampled_from([[], ["devalloc.io/node"], [None], "none"]),
    ownerReferences=st.just([]),
    generation=st.just(1),
    uid=st.just("u"),
)
MEMBERS = st.just({"annotations": {"devalloc.io/group": "g"}})
STATUSES = st.one_of(
    st.none(),
    optional(
        allocations=st.sampled_from([[], "nothing"])
        | st.lists(
            st.builds(lambda i: {"devicePoolName": "gpus", "deviceName": f"gpu-{i}"}, st.integers(0, 5)),
            max_size=2,
        ),
        conditions=st.sampled_from([[], "nothing", [None]]),
        deviceStatuses=st.just([]),
        classConfigs=st.just([]),
    ),
)


@st.composite
def odd_claims(draw: st.DrawFn) -> list[dict[str, Any]]:
    documents = []
    for number in range(draw(st.integers(1, 4))):
        names = {
            "name": draw(st.sampled_from([f"c{number}"] * 3 + ["twin", f"c{number}\ud800"])),
            **draw(METADATA | MEMBERS),
        }
        document = {**claim(), "metadata": names, "spec": draw(SPECS)}
        document |= draw(st.fixed_dictionaries({}, optional={"status": STATUSES}))
        document |= draw(st.sampled_from([{}, {}, {}, {"apiVersion": "devmgmtproto.k8s.io/v9"}, {"extra": None}]))
        documents.append(document)
    return documents


def entries_held(document: dict[str, Any]) -> int:
    status = document.get("status")
    listed = status.get("allocations") if isinstance(status, dict) else None
    return len(listed) if isinstance(listed, list) else 0


@pytest.mark.parametrize("entry", ENTRIES)
@settings(max_examples=examples(45, 0.375), deadline=None)
@given(claims=odd_claims(), most=st.integers(0, 3))
def test_never_more_than_the_quota_is_given_whatever_shape_claims_have(
    entry: str, claims: list[dict[str, Any]], most: int
) -> None:
    device_type = device_class(driver="gpu.devalloc.io", deviceType="gpu")
    limit = {**QUOTA, "spec": {"hard": {f"gpu{quota.SUFFIX}": most}}}
    answer = ENTRIES[entry]([pool(devices=6), device_type, *claims, limit])

    holding = {escape_invalid_unicode(one["metadata"]["name"]) for one in claims if entries_held(one)}
    given_now = sum(len(one["allocations"]) for one in answer["claims"] if one["name"] not in holding)
    assert given_now == 0 or given_now + sum(map(entries_held, claims)) <= most
    json.dumps(answer, ensure_ascii=False).encode()


@settings(max_examples=examples(90, 0.75), deadline=None)
@given(claims=odd_claims())
def test_whatever_claim_the_decoder_reads_is_asked_for(claims: list[dict[str, Any]]) -> None:
    readable = [one for one in claims if isinstance(decode(one).object, DeviceClaim)]
    taken = admission.sort_documents(claims)

    assert [taken.written(one) for one in taken.readable if isinstance(decode(one).object, DeviceClaim)] == readable
