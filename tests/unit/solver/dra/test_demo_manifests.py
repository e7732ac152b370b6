"""Manifests as the demos of DRA drivers have them: pods, templates, and claims that a pod uses together."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc_solver.dra import solve_manifests

Content = dict[str, Any]

REQUESTS = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]}}


def of_v1(kind: str, name: str, spec: Content) -> Content:
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def pod(*claims: str) -> Content:
    entries = [{"name": name, "resourceClaimName": name} for name in claims]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": {"resourceClaims": entries}}


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        (of_v1("ResourceClaimTemplate", "one-gpu", {"spec": REQUESTS}), "`devalloc explain resourceclaimtemplate/"),
        (pod("gpu", "nic"), "give them the same annotation devalloc.io/group"),
        (pod("gpu"), "the solver reads ResourceSlice, "),
    ],
    ids=["a template", "a pod with two claims", "a pod with one claim"],
)
def test_what_is_about_claims_and_no_claim_has_a_warning_that_says_what_to_do(content: Content, advice: str) -> None:
    (problem,) = solve_manifests([of_v1("ResourceClaim", "gpu", REQUESTS), content])["problems"]

    assert (problem["kind"], problem["severity"]) == (content["kind"], "warning")
    assert advice in problem["message"]
    assert len(problem["message"]) <= 120
