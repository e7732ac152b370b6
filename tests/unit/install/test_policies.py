"""ValidatingAdmissionPolicies as a class, before any cluster sees them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from devalloc.install.chart import chart
from devalloc.install.manifests import WORKER, Options, manifests

EVERYTHING = Options(publish="both", resource_claims=True, permits=True)
VIRTUAL = {"allocate", "prepare", "prioritize", "use-host-paths"}
"""Verbs that no API has, and that policies ask for: what they allow acts on the whole cluster."""
CHECK = re.compile(r"authorizer\b(.*?)\.check\('([^']*)'\)", re.DOTALL)


def expressions(content: Any) -> list[str]:
    """All texts of an object, in which expressions are."""
    if isinstance(content, dict):
        return [text for each in content.values() for text in expressions(each)]
    if isinstance(content, list):
        return [text for each in content for text in expressions(each)]
    return [content] if isinstance(content, str) else []


def policies() -> list[dict[str, Any]]:
    return [one for one in manifests(EVERYTHING) if one["kind"] == "ValidatingAdmissionPolicy"]


def test_virtual_verbs_are_asked_for_the_whole_cluster() -> None:
    """In its own namespace everybody has them who has all verbs there, such as cluster-admin by a RoleBinding."""
    checks = [(where, verb) for one in policies() for text in expressions(one) for where, verb in CHECK.findall(text)]
    assert {verb for _, verb in checks} == VIRTUAL
    assert [where for where, _ in checks if "namespace" in where] == []


def test_the_chart_asks_for_them_in_the_same_way() -> None:
    text = chart("1.0")["templates/policies.yaml"].replace("''", "'")  # as texts in quotes have it
    checks = CHECK.findall(text)
    assert {verb for _, verb in checks} == VIRTUAL
    assert [where for where, _ in checks if "namespace" in where] == []


@pytest.mark.parametrize("publish", ["pools", "both"])
def test_roles_with_virtual_verbs_are_bound_in_the_whole_cluster(publish: Any) -> None:
    """Else they would give nothing."""
    objects = manifests(Options(publish=publish, resource_claims=publish == "both", permits=True))
    special = {
        one["metadata"]["name"]
        for one in objects
        if one["kind"] == "ClusterRole"
        for rule in one["rules"]
        if VIRTUAL & set(rule["verbs"])
    }
    bound = {one["roleRef"]["name"] for one in objects if one["kind"] == "ClusterRoleBinding"}
    for one in objects:
        assert one["kind"] != "Role" or not any(VIRTUAL & set(rule["verbs"]) for rule in one["rules"])
        assert one["kind"] != "RoleBinding" or one["roleRef"]["kind"] == "Role"
    assert {"devalloc-controller", "devalloc-node-pools"} <= bound & special
    by_admins = special - bound
    assert by_admins <= {"devalloc-prioritize", "devalloc-host-paths"}, "an admin binds these to people"


def test_no_role_that_people_have_anyway_gives_them() -> None:
    for one in manifests(EVERYTHING, ["rbac"]):
        labels = one["metadata"].get("labels", {})
        if any(name.startswith("rbac.authorization.k8s.io/aggregate-to-") for name in labels):
            verbs = {verb for rule in one["rules"] for verb in rule["verbs"]}
            assert not verbs & VIRTUAL, one["metadata"]["name"]


@pytest.mark.parametrize("publish", ["slices", "pools", "both"])
def test_an_admin_can_keep_privileged_pods_off_the_control_plane(publish: Any) -> None:
    resource_claims = publish == "both"
    for one in manifests(Options(publish=publish, resource_claims=resource_claims, workers_only=True)):
        if one["kind"] == "DaemonSet":
            affinity = one["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
            for term in affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]:
                assert WORKER in term["matchExpressions"], one["metadata"]["name"]


def test_who_edits_a_namespace_makes_machines_there_only_if_an_admin_says_so() -> None:
    roles = {one["metadata"]["name"]: one for one in manifests(EVERYTHING, ["rbac"]) if one["kind"] == "ClusterRole"}
    written = {
        name
        for name, one in roles.items()
        for rule in one["rules"]
        if "virtualmachines" in rule.get("resources", ()) and "create" in rule["verbs"]
    }
    assert written == {"devalloc-machines"}
    edit = "rbac.authorization.k8s.io/aggregate-to-edit"
    assert edit not in roles["devalloc-machines"]["metadata"].get("labels", {})
    asked = Options(machines_in_edit=True)
    roles = {one["metadata"]["name"]: one for one in manifests(asked, ["rbac"]) if one["kind"] == "ClusterRole"}
    assert roles["devalloc-machines"]["metadata"]["labels"][edit] == "true"
