"""Kinds that are only shown are cached without the fields that no view shows."""

from __future__ import annotations

import pytest

from devalloc.store.kubernetes.reflector import clean_object
from devalloc.store.kubernetes.resources import DISPLAY_KINDS
from devalloc.usage.overview import build_overview
from devalloc.usage.overview.cache import OPTIONAL_KINDS
from tests.support.resource_manifests import resource_claim, slice_of, warning

BY_KIND = {resource.kind: resource for resource in DISPLAY_KINDS}
HUGE = {"opaque": {"driver": "devalloc.io", "parameters": {"text": "x" * 9999}}}


def test_all_that_is_shown_beside_has_a_place() -> None:
    assert {*OPTIONAL_KINDS, "Event"} - {"ResourceQuota", "Node"} == BY_KIND.keys()


def test_fields_that_any_user_can_make_large_are_dropped() -> None:
    claim = resource_claim("c", "p/d", pods=("w",), node="n")
    large = {**claim, "metadata": {**claim["metadata"], "annotations": {"a": "x" * 9999}, "managedFields": [HUGE]}}
    large["spec"] = {
        "devices": {**claim["spec"]["devices"], "config": [HUGE], "constraints": [{"requests": ["r"] * 999}]}
    }
    held = claim["status"]["allocation"]
    held = {**held, "devices": {**held["devices"], "config": [HUGE]}}
    large["status"] = {**claim["status"], "allocation": held, "devices": [{"data": HUGE}]}
    assert clean_object(large, BY_KIND["ResourceClaim"]) == claim
    assert build_overview([clean_object(large, BY_KIND["ResourceClaim"])]).claims == build_overview([claim]).claims
    assert large["spec"]["devices"]["config"] == [HUGE], "the original is unchanged"


@pytest.mark.parametrize(
    "content", [slice_of("p", "n", []), warning(resource_claim("c"), "R", "note"), resource_claim("c")]
)
def test_what_is_not_there_need_not_be_left_out(content: dict[str, object]) -> None:
    assert clean_object(content, BY_KIND[str(content["kind"])]) == content
    odd = {**content, "spec": None, "status": []}
    assert clean_object(odd, BY_KIND[str(content["kind"])])["spec"] is None
