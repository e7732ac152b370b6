"""The status that the API server fills in is none for devalloc."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc.api.conditions import DEFAULT_STATUS, without_default_status
from devalloc.api.crds import definition
from devalloc.api.kinds import API_KINDS

CLAIM = "DeviceClaim"
DEFAULT = DEFAULT_STATUS[CLAIM]


def test_the_crd_says_of_a_claim_without_status_that_it_waits() -> None:
    schema = definition(API_KINDS[CLAIM])["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    default = schema["properties"]["status"]["default"]
    states = {one["type"]: (one["status"], one["reason"]) for one in default["conditions"]}
    assert states == {"Allocated": ("False", "Waiting"), "Ready": ("False", "Waiting")}


def test_the_default_is_left_out_also_that_of_another_version() -> None:
    renamed = {"conditions": [{**one, "message": "in other words"} for one in DEFAULT["conditions"]]}
    for status in (DEFAULT, renamed):
        assert without_default_status(CLAIM, {"kind": CLAIM, "status": status}) == {"kind": CLAIM}


@pytest.mark.parametrize(
    "status",
    [
        {"allocations": [{"devicePoolName": "p", "deviceName": "d"}], **DEFAULT},
        {"conditions": [*DEFAULT["conditions"], {"type": "Billed", "status": "True"}]},
        {"conditions": [{**one, "status": "True"} for one in DEFAULT["conditions"]]},
        {"conditions": None},
        {"conditions": [1]},
        "text",
        None,
    ],
)
def test_any_other_status_stays(status: Any) -> None:
    content = {"kind": CLAIM, "status": status}
    assert without_default_status(CLAIM, content) == content


def test_other_kinds_have_no_default() -> None:
    content = {"kind": "DevicePool", "status": DEFAULT}
    assert without_default_status("DevicePool", content) == content
