"""The contract of stores, of the embedded one; and what it alone does."""

from __future__ import annotations

import re
from typing import Any

import pytest

from devalloc.store import Change, Invalid, Store
from tests.support.minimal_manifests import claim
from tests.support.store_contract import *  # noqa: F403
from tests.support.store_contract import A, version

Object = dict[str, Any]


class TestAnyContent:
    def test_a_namespace_and_none_are_two_places(self, store: Store) -> None:
        store.create(claim())
        store.create(claim(namespace="other"))
        cluster = claim()
        del cluster["metadata"]["namespace"]
        store.create(cluster)
        assert len(store.list("DeviceClaim").objects) == 3
        assert [o["metadata"]["namespace"] for o in store.list("DeviceClaim", "other").objects] == ["other"]

    @pytest.mark.parametrize(
        ("broken", "field"),
        [
            ({"apiVersion": "a/v1", "kind": "K"}, "metadata"),
            ({"apiVersion": "a/v1", "kind": "K", "metadata": []}, "metadata"),
            ({"apiVersion": "a/v1", "kind": "K", "metadata": {}}, "metadata.name"),
            ({"apiVersion": "a/v1", "kind": "K", "metadata": {"name": "a/b"}}, "metadata.name"),
            ({"apiVersion": "a/v1", "kind": "K", "metadata": {"name": ".."}}, "metadata.name"),
            ({"apiVersion": "a/v1", "kind": "K", "metadata": {"name": "\ud800"}}, "metadata.name"),
            ({"apiVersion": "a/v1", "kind": "K", "metadata": {"name": "x" * 254}}, "metadata.name"),
            ({"apiVersion": "a/v1", "kind": "K", "metadata": {"name": "a", "namespace": ""}}, "metadata.namespace"),
            ({"apiVersion": "a/v1", "kind": 3, "metadata": {"name": "a"}}, "kind"),
            ({"kind": "K", "metadata": {"name": "a"}}, "apiVersion"),
            ({"apiVersion": "a/v1", "kind": "K", "metadata": {"name": "a", "annotations": {"a": 1}}}, "annotations"),
            ({"apiVersion": "a/v1", "kind": "K", "metadata": {"name": "a", "finalizers": "x"}}, "finalizers"),
            ({"apiVersion": "a/v1", "kind": "K", "metadata": {"name": "a"}, "spec": float("nan")}, "JSON"),
            ({"apiVersion": "a/v1", "kind": "K", "metadata": {"name": "a"}, "spec": {1, 2}}, "JSON"),
        ],
    )
    def test_refuses_an_object_without_identity_naming_the_field(
        self, store: Store, broken: Object, field: str
    ) -> None:
        with pytest.raises(Invalid, match=re.escape(field)):
            store.create(broken)
        assert store.list().objects == []

    def test_keeps_any_json(self, store: Store) -> None:
        content = {"text": "ü \ud800 \x00 '\"", "big": 2**80, "none": None, "deep": [[[{}]]], "no": False}
        made = store.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": content})
        assert store.get("ConfigMap", None, "c")["data"] == content
        assert store.list("ConfigMap").objects == [made]

    def test_stores_json_and_nothing_else(self, store: Store) -> None:
        made = store.create({**claim(), "spec": {"list": (1, 2), 3: None}})
        assert made == store.get(*A)
        assert made["spec"] == {"list": [1, 2], "3": None}
        with pytest.raises(Invalid):
            store.commit([Change(A, version(made), {"a": object()})])
        with pytest.raises(Invalid):
            store.replace_status({**made, "status": {"a": float("inf")}})
        assert store.get(*A) == made
