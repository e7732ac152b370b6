"""Labels and annotations of devalloc's own domain: all that the code reads are in the list, and slips are noticed."""

from __future__ import annotations

import pytest

from devalloc.api import annotations as module
from devalloc.api import aside, meta
from devalloc.api.annotations import DOMAIN, KNOWN, misspelled, names, values

NO_MARKS = {
    meta.UNAVAILABLE,  # attributes of devices
    meta.ONLY_CLASS,
    meta.COMPATIBILITY_GROUP,
    meta.DEVALLOC,  # an API version
}


def test_every_name_that_the_code_writes_down_is_in_the_list() -> None:
    """A new annotation without a line in the list would be warned of on every object that has it."""
    of_meta = {value for value in vars(meta).values() if isinstance(value, str) and value.startswith(f"{DOMAIN}/")}
    assert of_meta | {aside.ALLOCATOR, module.PUBLISH} == {each.name for each in KNOWN} | NO_MARKS


@pytest.mark.parametrize(
    ("kind", "annotations", "labels", "paths"),
    [
        ("DeviceClaim", [meta.PRIORITY, "team.example.com/cost"], ["team"], []),
        ("DeviceClaim", ["devalloc.io/prioritty"], [], ["metadata.annotations[devalloc.io/prioritty]"]),
        ("DeviceClaim", ["devaloc.io/priority"], [], ["metadata.annotations[devaloc.io/priority]"]),
        ("DeviceClaim", [], [meta.PRIORITY], [f"metadata.labels[{meta.PRIORITY}]"]),
        ("VirtualMachine", [meta.GROUP], [], [f"metadata.annotations[{meta.GROUP}]"]),
        (None, [meta.GROUP], [], []),
        ("Node", [], [module.PUBLISH, "devalloc.io/publsih"], ["metadata.labels[devalloc.io/publsih]"]),
        ("Node", [meta.PRIORITY], [], [f"metadata.annotations[{meta.PRIORITY}]"]),
        ("Namespace", [], [meta.ADMIN_ACCESS], []),
    ],
)
def test_a_name_that_has_no_meaning_on_a_kind_is_noticed(
    kind: str | None, annotations: list[str], labels: list[str], paths: list[str]
) -> None:
    assert [path for path, _ in misspelled(annotations, labels, kind)] == paths


def test_a_slip_is_answered_with_what_was_most_likely_meant() -> None:
    ((_, message),) = misspelled(["devalloc.io/prioritty"], [], "DeviceClaim")
    assert message == "'devalloc.io/prioritty' is not known and has no effect; did you mean devalloc.io/priority?"
    ((_, message),) = misspelled(["devalloc.io/x"], [], "Node")
    assert message == "'devalloc.io/x' is not known and has no effect; known here: devalloc.io/tolerated-taints"


def test_what_people_write_is_told_apart() -> None:
    assert names("VirtualMachine", "annotations", by_users=True) == (meta.PRIORITY,)
    assert meta.LEADER in names("VirtualMachine", "annotations")
    assert values("Node", "labels")[module.PUBLISH] == ("slices", "pools", "host", "set-aside", "none")
