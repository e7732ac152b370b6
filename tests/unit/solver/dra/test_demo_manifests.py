"""Manifests as the demos of DRA drivers have them: pods, templates, and claims that a pod uses together."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc_solver.dra import solve_manifests
from tests.support.sentences import at_length

Content = dict[str, Any]

REQUESTS = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]}}


def of_v1(kind: str, name: str, spec: Content) -> Content:
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def pod(*claims: str) -> Content:
    entries = [{"name": name, "resourceClaimName": name} for name in claims]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": {"resourceClaims": entries}}


CLASS = of_v1("DeviceClass", "gpu.example.com", {})
SLICE = of_v1(
    "ResourceSlice",
    "slice",
    {
        "driver": "gpu.example.com",
        "nodeName": "node-a",
        "pool": {"name": "node-a", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0", "attributes": {"model": {"string": "A"}}}],
    },
)


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


BLOCKS = ["device.attributes['gpu.example.com'].model == 'B'\n", "device.driver == 'gpu.example.com' &&\n  false\n"]


@pytest.mark.parametrize("expression", BLOCKS, ids=["a line end", "two lines"])
def test_a_selector_written_as_a_block_is_quoted_on_one_line(expression: str) -> None:
    asks = {"deviceClassName": "gpu.example.com", "selectors": [{"cel": {"expression": expression}}]}
    claim = of_v1("ResourceClaim", "gpu", {"devices": {"requests": [{"name": "gpu", "exactly": asks}]}})

    (answer,) = solve_manifests([CLASS, SLICE, claim])["claims"]

    line = " ".join(expression.split())
    assert answer["funnel"][0]["steps"][0]["example"] == line
    assert line in at_length(answer)
    assert "\\n" not in answer["message"]
