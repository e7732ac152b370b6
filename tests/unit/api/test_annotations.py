"""Labels and annotations of devalloc's own domain: all that the code reads are in the list, and slips are noticed."""

from __future__ import annotations

import pytest

from devalloc.api import adopted_pools, dedicated_pools, meta
from devalloc.api.decode import DOMAIN, METADATA_KEYS, key_names, misspelled_keys
from devalloc.api.views import order_of

NO_MARKS = {
    meta.UNAVAILABLE,  # attributes of devices
    meta.ONLY_CLASS,
    meta.COMPATIBILITY_GROUP,
    meta.DEVALLOC,  # an API version
}


def test_every_name_that_the_code_writes_down_is_in_the_list() -> None:
    """A new annotation without a line in the list would be warned of on every object that has it."""
    of_meta = {value for value in vars(meta).values() if isinstance(value, str) and value.startswith(f"{DOMAIN}/")}
    own = {adopted_pools.ADOPTED_AT, dedicated_pools.ALLOCATOR_KEY}
    assert of_meta | own == {each.name for each in METADATA_KEYS} | NO_MARKS


@pytest.mark.parametrize(
    ("kind", "annotations", "labels", "paths"),
    [
        ("DeviceClaim", [meta.PRIORITY, "team.example.com/cost"], ["team"], []),
        ("DeviceClaim", ["devalloc.io/prioritty"], [], ["metadata.annotations[devalloc.io/prioritty]"]),
        ("DeviceClaim", ["devaloc.io/priority"], [], ["metadata.annotations[devaloc.io/priority]"]),
        ("DeviceClaim", [], [meta.PRIORITY], [f"metadata.labels[{meta.PRIORITY}]"]),
        ("VirtualMachine", [meta.GROUP], [], [f"metadata.annotations[{meta.GROUP}]"]),
        (None, [meta.GROUP], [], []),
        ("Node", [], [meta.PUBLISH, "devalloc.io/publsih"], ["metadata.labels[devalloc.io/publsih]"]),
        ("Node", [meta.PRIORITY], [], [f"metadata.annotations[{meta.PRIORITY}]"]),
        ("Namespace", [], [meta.ADMIN_ACCESS], []),
    ],
)
def test_a_name_that_has_no_meaning_on_a_kind_is_noticed(
    kind: str | None, annotations: list[str], labels: list[str], paths: list[str]
) -> None:
    assert [path for path, _ in misspelled_keys(annotations, labels, kind)] == paths


def test_a_slip_is_answered_with_what_was_most_likely_meant() -> None:
    ((_, message),) = misspelled_keys(["devalloc.io/prioritty"], [], "DeviceClaim")
    assert message == "'devalloc.io/prioritty' is unknown and has no effect; did you mean devalloc.io/priority?"
    ((_, message),) = misspelled_keys(["devalloc.io/x"], [], "Node")
    assert message == "'devalloc.io/x' is unknown and has no effect; known names: devalloc.io/tolerated-taints"


def test_annotations_of_users_are_listed_apart() -> None:
    assert key_names("VirtualMachine", "annotations", by_users=True) == (meta.PRIORITY, meta.RESTART)
    assert meta.LEADER in key_names("VirtualMachine", "annotations")
    (publish,) = (each for each in METADATA_KEYS if each.name == meta.PUBLISH)
    assert publish.values == ("slices", "pools", "host", "set-aside", "none")


@pytest.mark.parametrize("text", ["", "0", "7", "+7", "-7", "nine", "9" * 5000])
def test_the_order_of_claims_is_by_the_priority_that_the_annotation_says(text: str) -> None:
    metadata = {"name": "a", "namespace": "n", "creationTimestamp": "2026-01-01T00:00:00Z"}
    first = order_of({"metadata": {**metadata, "annotations": {meta.PRIORITY: text}}})
    assert first == (-{"7": 7, "+7": 7, "-7": -7}.get(text, 0), False, "2026-01-01T00:00:00Z", "n", "a")
    undated = {"metadata": {"name": "a", "annotations": {meta.PRIORITY: text}}}
    assert first < order_of(undated), "one without a time comes last"
