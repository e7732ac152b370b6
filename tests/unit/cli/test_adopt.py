"""``devalloc adopt`` and ``unadopt``: what they say before they act, on a cluster in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from devalloc.api.adopted_pools import ADOPTED_AT, POLICY, RULES, rule_manifest
from devalloc.store.kubernetes import ApiError
from tests.support.cli_shell import Shell, devalloc
from tests.support.fake_kube import FakeClient, FakeKube

__all__ = ["devalloc"]

Object = dict[str, Any]
API = "/apis/resource.k8s.io/v1"
DRIVER = "gpu.example.com"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
VERSION = {"apiVersion": "resource.k8s.io/v1"}


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch) -> FakeKube:
    """An API server with the policy, two pools of a driver of four devices each, and its class."""
    kube = FakeKube()
    monkeypatch.setattr("devalloc.cli.verbs.adopt.connect_as_admin", lambda path: FakeClient(kube))
    for kind in ("ies", "ybindings"):
        kube.create(f"{POLICIES}{kind}", {"kind": "X", "metadata": {"name": POLICY}})
    for name in ("default", "team-a"):
        kube.create("/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": name}})
    for node in ("n1", "n2"):
        devices = [{"name": f"gpu-{number}"} for number in range(4)]
        header = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": node, "pool": header, "devices": devices}
        kube.create(f"{API}/resourceslices", {**VERSION, "metadata": {"name": node}, "spec": spec})
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    spec = {"selectors": [selector], "extendedResourceName": "example.com/gpu"}
    kube.create(f"{API}/deviceclasses", {**VERSION, "metadata": {"name": "gpu"}, "spec": spec})
    return kube


def claim(kube: FakeKube, name: str, *, device: str = "", labels: Object | None = None, **request: Any) -> None:
    metadata = {"name": name, "namespace": "team-a", "labels": labels or {}}
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1, **request}
    spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    path = f"{API}/namespaces/team-a/resourceclaims"
    kube.create(path, {**VERSION, "kind": "ResourceClaim", "metadata": metadata, "spec": spec})
    if device:
        results = [{"request": "r", "driver": DRIVER, "pool": "n1", "device": device}]
        status = {"allocation": {"devices": {"results": results}}}
        kube.replace(f"{path}/{name}/status", {**kube.get(f"{path}/{name}"), "status": status})


def notes(err: str) -> list[str]:
    return [line.removeprefix("note: ") for line in err.splitlines()]


def test_a_dry_run_says_what_there_is_and_what_will_wait_and_writes_nothing(kube: FakeKube, devalloc: Shell) -> None:
    everything = [{"operator": "Exists"}]
    claim(kube, "held", device="gpu-0")
    claim(kube, "ours", labels={"devalloc.io/allocator": "devalloc"})
    claim(kube, "plain")
    claim(kube, "monitor", adminAccess=True)
    claim(kube, "monitor-2", adminAccess=True, tolerations=everything)
    claim(kube, "greedy", tolerations=everything)
    claim(kube, "whole", allocationMode="All")
    container = {"name": "c", "resources": {"requests": {"example.com/gpu": "1"}}}
    pod = {"metadata": {"name": "p", "namespace": "team-a"}, "spec": {"containers": [container]}}
    kube.create("/api/v1/namespaces/team-a/pods", {"kind": "Pod", **pod})
    before = kube.revision
    output = devalloc("adopt", f"driver/{DRIVER}", "--dry-run")
    assert kube.revision == before
    assert output.code == 0
    assert output.out.splitlines() == [
        f"driver/{DRIVER}: 8 devices in 2 pools of 2 nodes, 1 in use",
        f"clusterrole.rbac.authorization.k8s.io/devalloc-adopted:{DRIVER} created (dry run)",
        f"clusterrolebinding.rbac.authorization.k8s.io/devalloc-adopted:{DRIVER} created (dry run)",
        f"devicetaintrule.resource.k8s.io/devalloc-{DRIVER} created (dry run)",
    ]
    assert notes(output.err) == [
        "1 claim of kube-scheduler keeps its devices: team-a/held",
        "claim team-a/monitor has admin access without a toleration of devalloc.io/allocator, so it will wait: add the "
        "toleration",
        "claim team-a/greedy tolerates the taint devalloc.io/allocator, so kube-scheduler will try in vain: label it, "
        "or limit the toleration",
        "claim team-a/whole asks for all devices without the label, so it will wait",
        "1 claim or template without the label will wait: team-a/plain; label it devalloc.io/allocator=devalloc, or "
        "its namespace",
        "1 pod asks for an extended resource, which only kube-scheduler allocates, so new ones will wait: team-a/p",
    ]


def test_a_claim_of_a_labelled_namespace_is_no_reason_for_a_note(kube: FakeKube, devalloc: Shell) -> None:
    claim(kube, "plain")
    namespace = kube.get("/api/v1/namespaces/team-a")
    namespace["metadata"]["labels"] = {"devalloc.io/allocator": "devalloc"}
    kube.replace("/api/v1/namespaces/team-a", namespace)
    assert devalloc("adopt", f"driver/{DRIVER}", "--dry-run").err == ""


def test_pools_are_named_one_after_the_other_or_with_commas(kube: FakeKube, devalloc: Shell) -> None:
    for words in (("--pools", "n1", "n2"), ("--pools", "n1,n2"), ("--pools", "n1", "--pools", "n2")):
        output = devalloc("adopt", f"driver/{DRIVER}", *words, "--dry-run")
        assert [line for line in output.out.splitlines() if line.startswith("devicetaintrule")] == [
            f"devicetaintrule.resource.k8s.io/devalloc-{DRIVER}.pool.n{number} created (dry run)" for number in (1, 2)
        ]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("gpu.example.com",), 2, "name one driver, as driver/gpu.example.com;"),
        (("driver/Gpu",), 2, "'Gpu' is not the name of a driver"),
        (("driver/",), 2, "'' is not the name of a driver"),
        (("driver/a", "driver/b"), 2, "name one driver"),
        (("--pools", "n1"), 2, "--pools needs a driver"),
        ((f"driver/{DRIVER}", "--pools", "../x"), 2, "'../x' is not the name of a pool"),
        (("driver/gpu.nvidia.com",), 1, f"published no ResourceSlice; drivers here: {DRIVER}"),
        ((f"driver/{DRIVER}", "--pools", "n3"), 1, f"driver {DRIVER} has no pool n3; its pools: n1, n2"),
    ],
)
def test_a_wrong_name_is_answered_with_the_right_ones(
    kube: FakeKube, devalloc: Shell, words: tuple[str, ...], code: int, message: str
) -> None:
    output = devalloc("adopt", *words)
    assert output.code == code
    assert message in output.err


def test_without_the_policy_nothing_is_adopted(kube: FakeKube, devalloc: Shell) -> None:
    del kube.objects[f"{POLICIES}ybindings/{POLICY}"]
    output = devalloc("adopt", f"driver/{DRIVER}")
    assert output.code == 1
    assert "devalloc install --resource-claims --adoption" in output.err
    assert not [path for path in kube.objects if path.startswith(RULES)]


def test_adopt_reports_a_controller_that_does_not_answer_with_its_reason(kube: FakeKube, devalloc: Shell) -> None:
    output = devalloc("adopt", f"driver/{DRIVER}", "--timeout=0s")
    assert output.code == 1
    assert "check that it runs with --resource-claims" in output.err
    rule = kube.get(f"{RULES}/devalloc-{DRIVER}")
    rule["metadata"]["annotations"] = {"devalloc.io/message": "the policy does not refuse"}
    kube.replace(f"{RULES}/devalloc-{DRIVER}", rule)
    output = devalloc("adopt", f"driver/{DRIVER}", "--timeout=0s")
    assert "does not allocate them yet: the policy does not refuse" in output.err
    assert f"devicetaintrule.resource.k8s.io/devalloc-{DRIVER} unchanged" in output.out
    listed = devalloc("adopt")
    assert listed.out.splitlines()[1].split() == [DRIVER, "all", "not", "yet", "0/8"]
    assert notes(listed.err) == [f"driver/{DRIVER}: the policy does not refuse"]


def test_adopt_lists_adopted_devices_with_their_users(kube: FakeKube, devalloc: Shell) -> None:
    assert devalloc("adopt").out == "nothing is adopted\n"
    rule = rule_manifest(DRIVER)
    rule["metadata"]["annotations"] = {ADOPTED_AT: "2026-11-29T11:49:50Z"}
    kube.create(RULES, rule)
    claim(kube, "a", device="gpu-0")
    claim(kube, "b", device="gpu-1")
    lines = [line.split() for line in devalloc("adopt").out.splitlines()]
    assert lines[1] == [DRIVER, "all", "since", "2026-11-29T11:49:50Z", "2/8", "team-a", "2"]


def test_unadopt_of_what_is_not_adopted_is_an_error(kube: FakeKube, devalloc: Shell) -> None:
    output = devalloc("unadopt", f"driver/{DRIVER}")
    assert (output.code, output.err) == (1, f"error: driver {DRIVER} is not adopted; `devalloc adopt` lists what is\n")


def test_unadopt_waits_for_the_controller_unless_it_is_gone_for_good(kube: FakeKube, devalloc: Shell) -> None:
    kube.create(RULES, rule_manifest(DRIVER))
    output = devalloc("unadopt", f"driver/{DRIVER}", "--timeout=0s")
    assert output.code == 1
    assert "has not let go" in output.err
    assert kube.get(f"{RULES}/devalloc-{DRIVER}")["metadata"]["deletionTimestamp"]
    refused = devalloc("adopt", f"driver/{DRIVER}")
    assert "is being given back" in refused.err
    output = devalloc("unadopt", f"driver/{DRIVER}", "--force")
    assert (output.code, output.out.splitlines()[-1]) == (0, f"driver/{DRIVER} is kube-scheduler's again")
    assert not [path for path in kube.objects if path.startswith(RULES)]


def test_uninstall_refuses_while_a_driver_is_adopted_and_keeps_the_policy(
    kube: FakeKube, devalloc: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("devalloc.cli.verbs.install.connect_as_admin", lambda path: FakeClient(kube))
    kube.create(RULES, rule_manifest(DRIVER))
    refused = devalloc("uninstall")
    assert refused.code == 1
    assert f"driver/{DRIVER} adopted" in refused.err
    output = devalloc("uninstall", "--force")
    assert output.code == 0
    assert not [path for path in kube.objects if path.startswith(RULES)]
    assert f"{POLICIES}ies/{POLICY}" in kube.objects
    assert f"validatingadmissionpolicy.admissionregistration.k8s.io/{POLICY} kept" in output.out


def test_adoption_is_not_installed_on_a_cluster_without_taint_rules(
    kube: FakeKube, devalloc: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server would refuse every allocation by a policy whose parameters it does not know."""

    class Older(FakeClient):
        def get(self, path: str, params: Any = None) -> Object:
            if path.startswith(RULES):
                raise ApiError(404, "", "the server could not find the requested resource")
            return super().get(path, params)

    monkeypatch.setattr("devalloc.cli.verbs.install.connect_as_admin", lambda path: Older(kube))
    options = ("install", "--image-prefix=registry.example.com/", "--resource-claims")
    refused = devalloc(*options, "--adoption")
    assert refused.code == 1
    assert "--adoption needs DeviceTaintRules of resource.k8s.io/v1" in refused.err
    assert devalloc(*options).code == 0
    assert f"{POLICIES}ies/devalloc-adoption-rules" not in kube.objects
