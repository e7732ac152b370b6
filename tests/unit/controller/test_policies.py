"""The policies for API servers name what the controller and nodes write, all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from devalloc.api import meta
from devalloc.controller.reconcile.stored_claims import ALLOCATION_ANNOTATIONS

FILE = Path(__file__).parents[3] / "deploy" / "base" / "policies-objects.yaml"
POLICIES: dict[str, Any] = {
    body["metadata"]["name"]: body["spec"]
    for body in yaml.safe_load_all(FILE.read_text())
    if body["kind"] == "ValidatingAdmissionPolicy"
}


def variable(policy: str, name: str) -> str:
    return next(str(one["expression"]) for one in POLICIES[policy]["variables"] if one["name"] == name)


def test_every_annotation_of_the_controller_is_kept_to_it() -> None:
    listed = variable("devalloc-claims-annotations", "allocators")
    assert [
        name for name in (*ALLOCATION_ANNOTATIONS, meta.LEADER, meta.TRANSACTION) if f"'{name}'" not in listed
    ] == []


def test_what_people_write_is_not_among_them() -> None:
    listed = variable("devalloc-claims-annotations", "allocators")
    theirs = (meta.PRIORITY, meta.GROUP, meta.GROUP_MATCH, meta.NODE, meta.RELEASE)
    assert [name for name in theirs if f"'{name}'" in listed] == []


def test_every_policy_is_bound_and_fails_closed_but_where_the_controller_looks_again() -> None:
    bound = {
        body["spec"]["policyName"]: body["spec"]["validationActions"]
        for body in yaml.safe_load_all(FILE.read_text())
        if body["kind"] == "ValidatingAdmissionPolicyBinding"
    }
    assert bound == {name: ["Deny"] for name in POLICIES}
    passed_over = {name for name, spec in POLICIES.items() if spec["failurePolicy"] != "Fail"}
    # Those that look at another kind do not know it at first, and refuse everything: what they say the controller must
    # see to again.
    assert passed_over == {name for name, spec in POLICIES.items() if "paramKind" in spec}
    assert passed_over == {"devalloc-claims-admin-access"}
