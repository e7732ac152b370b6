"""A user who reads a claim of an embedded store as an object finds the conditions that it would have on a cluster."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from devalloc.api.decode import decode
from devalloc.cli import target
from devalloc.controller.reconcile.decision import IN_CONDITIONS
from devalloc.controller.reconcile.device_claims import DeviceClaimAllocator
from devalloc.controller.reconcile.loop import AllocatorSettings
from devalloc.store.kubernetes import KubernetesStore
from devalloc.store.sqlite import SQLiteStore
from tests.support.cli_shell import Object, Shell, claim, device_class, pool, text
from tests.support.fake_kube import FakeClient, FakeKube

NOT_STORED = ("lastTransitionTime", "observedGeneration")


@pytest.fixture
def fleet(devalloc: Shell) -> Shell:
    assert (
        devalloc("apply", "-f", "-", stdin=text(pool(), device_class(), claim("fits"), claim("big", count=9))).code == 0
    )
    return devalloc


def conditions(devalloc: Shell, name: str, *more: str) -> dict[str, Object]:
    status = devalloc("get", f"claim/{name}", "-o", "json", *more).json["status"]
    return {one["type"]: one for one in status["conditions"]}


def answer(devalloc: Shell, name: str, *more: str) -> dict[str, Any]:
    """The answer in the status of a claim, without what an embedded store does not know."""
    status = devalloc("get", f"claim/{name}", "-o", "json", *more).json["status"]
    parts = [{part: text for part, text in one.items() if part not in NOT_STORED} for one in status["conditions"]]
    return {"conditions": parts, "reason": status.get("reason"), "nodeName": status.get("nodeName")}


def on_a_cluster(monkeypatch: pytest.MonkeyPatch, folder: Path, *objects: Object) -> None:
    """Have the command read a cluster with these objects, which a controller has answered."""
    kube = FakeKube()
    with closing(KubernetesStore(FakeClient(kube))) as store:  # type: ignore[arg-type]
        for obj in objects:
            store.create(obj)
        store.refresh()
        DeviceClaimAllocator(store, settings=AllocatorSettings(form=IN_CONDITIONS)).round()
    monkeypatch.setattr(target, "connect_cluster", lambda kubeconfig: FakeClient(kube))
    (folder / "kubeconfig").touch()


def test_they_are_those_of_a_cluster(fleet: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fleet.allocate()
    claims = claim("fits", namespace="default"), claim("big", count=9, namespace="default")
    on_a_cluster(monkeypatch, tmp_path, pool(), device_class(), *claims)
    for name, reason in (("fits", "Allocated"), ("big", "NotEnoughDevices")):
        there = answer(fleet, name, "--kubeconfig", str(tmp_path / "kubeconfig"))
        assert there["reason"] == reason
        assert answer(fleet, name) == there
    assert "nodeName" not in fleet("get", "claim/big", "-o", "json").json["status"]


def test_before_an_answer_they_are_those_that_an_api_server_fills_in(fleet: Shell) -> None:
    for name in ("fits", "big"):
        shown = conditions(fleet, name)
        assert {kind: (one["status"], one["reason"]) for kind, one in shown.items()} == {
            "Allocated": ("False", "Waiting"),
            "Ready": ("False", "Waiting"),
        }


def test_a_claim_whose_devices_have_a_problem_has_them_and_says_so(fleet: Shell) -> None:
    fleet.allocate()
    with closing(SQLiteStore(fleet.store)) as store:
        stored = store.get("DeviceClaim", "default", "fits")
        entry = {**stored["spec"]["claims"][0], "requests": {"count": 2}}
        store.replace({**stored, "spec": {"claims": [entry]}})
    fleet.allocate()
    shown = conditions(fleet, "fits")["Allocated"]
    assert (shown["status"], shown["reason"]) == ("True", "SpecChanged")


def test_nothing_of_it_is_stored(fleet: Shell) -> None:
    """Version 0.1.0 reads the store, and refuses fields that it does not know."""
    fleet.allocate()
    assert conditions(fleet, "big")["Ready"]["status"] == "False"
    assert fleet("get", "claims", "-o", "yaml").code == 0
    assert fleet("describe", "claim/big").code == 0
    with closing(SQLiteStore(fleet.store)) as store:
        for obj in store.list("DeviceClaim").objects:
            assert not {"conditions", "reason", "nodeName"} & (obj.get("status") or {}).keys()


def test_what_is_shown_is_valid_and_can_be_applied_again(fleet: Shell) -> None:
    fleet.allocate()
    listed = fleet("get", "claims", "-o", "json").json["items"]
    for obj in listed:
        assert [str(problem) for problem in decode(obj).problems if problem.is_error] == []
    again = fleet("apply", "-f", "-", stdin=text(*listed))
    assert again.out.splitlines() == [f"deviceclaim/{obj['metadata']['name']} unchanged" for obj in listed]
    with closing(SQLiteStore(fleet.store)) as store:
        assert "conditions" not in store.get("DeviceClaim", "default", "fits")["status"]


def test_columns_and_paths_can_name_them(fleet: Shell) -> None:
    fleet.allocate()
    path = "{.status.conditions[0].reason}"
    assert fleet("get", "claim/big", "-o", f"jsonpath={path}").out == "NotEnoughDevices"
    columns = "custom-columns=NAME:.metadata.name,READY:.status.conditions[1].status"
    assert [line.split() for line in fleet("get", "claims", "-o", columns).out.splitlines()] == [
        ["NAME", "READY"],
        ["big", "False"],
        ["fits", "True"],
    ]


def test_wait_knows_that_a_claim_is_not_allocated(fleet: Shell) -> None:
    fleet.allocate()
    assert fleet("wait", "big", "--for=condition=Allocated=false", "--timeout", "10s").code == 0
    assert fleet("wait", "fits", "--for=condition=Allocated=false", "--timeout", "10ms").code != 0
    assert fleet("wait", "fits", "--for=condition=Allocated=true", "--timeout", "10s").code == 0
