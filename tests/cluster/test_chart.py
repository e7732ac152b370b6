"""Helm makes of the chart what kustomize and ``devalloc install`` make of the same manifests."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from devalloc.install.manifests import NAMESPACE, InstallOptions, object_path, render_manifests
from tests.support import kube_build
from tests.support.go_build import Progress, Unavailable

CHART = Path(__file__).parents[2] / "deploy" / "helm"
PREFIX = "registry.example.com/"
RULES_API = "resource.k8s.io/v1/DeviceTaintRule"
Helm = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def helm(progress: Progress, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    try:
        program, home = kube_build.helm(progress), tmp_path_factory.mktemp("home")
    except Unavailable as reason:
        pytest.skip(f"no helm: {reason}")

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [program, *arguments]
        return subprocess.run(
            command, env={"HOME": str(home)}, capture_output=True, text=True, check=False, timeout=120
        )

    return call


def rendered(helm: Helm, *settings: str, namespace: str = NAMESPACE) -> dict[str, Any]:
    """What would be installed, by path."""
    chosen = [part for setting in (f"image.prefix={PREFIX}", *settings) for part in ("--set", setting)]
    served = f"--api-versions={RULES_API}"
    done = helm("template", "devalloc", str(CHART), f"--namespace={namespace}", served, *chosen)
    assert done.returncode == 0, done.stderr
    return {object_path(one): without_helm(one) for one in yaml.safe_load_all(done.stdout)}


def without_helm(one: dict[str, Any]) -> dict[str, Any]:
    """Without what is there for Helm alone: that CRDs stay, and lists that are empty."""
    annotations = one["metadata"].pop("annotations", {})
    annotations.pop("helm.sh/resource-policy", None)
    if annotations:
        one["metadata"]["annotations"] = annotations
    if one["kind"] in ("Deployment", "DaemonSet"):
        pod = one["spec"]["template"]["spec"]
        for name in ("imagePullSecrets", "nodeSelector"):
            if name in pod and not pod[name]:
                del pod[name]
    return one


def expected(options: InstallOptions) -> dict[str, Any]:
    options = replace(options, image_prefix=options.image_prefix or PREFIX)
    return {object_path(one): one for one in render_manifests(options) if one["kind"] != "Namespace"}


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ([], InstallOptions()),
        (["publish=pools"], InstallOptions("pools")),
        (["publish=slices"], InstallOptions("slices")),
        (
            ["permits=true", "neon=true", "neonAgents={10.1.0.0/16,10.2.0.0/16}", "neonScheduler=ours"],
            InstallOptions(permits=True, neon=True, neon_agents="10.1.0.0/16 10.2.0.0/16", neon_scheduler="ours"),
        ),
        (
            ["image.prefix=registry.example.com/team/", "image.tag=9.9", "node.kubeletDir=/var/lib/k0s/kubelet"],
            InstallOptions(
                image_prefix="registry.example.com/team/", version="9.9", kubelet_dir="/var/lib/k0s/kubelet"
            ),
        ),
        (
            [
                "serviceMonitor=true",
                "runbooks=https://docs.example.com/operations.html",
                "resourceClaims=true",
                "adoption=true",
                "permits=true",
                "neon=true",
                "fencing.secret=bmc",
            ],
            InstallOptions(
                service_monitor=True,
                runbooks="https://docs.example.com/operations.html",
                resource_claims=True,
                adoption=True,
                permits=True,
                neon=True,
                fencing_secret="bmc",
            ),
        ),
    ],
    ids=["both", "pools", "slices", "neon agents", "images", "more"],
)
def test_helm_makes_the_same_objects(helm: Helm, settings: list[str], options: InstallOptions) -> None:
    assert rendered(helm, *settings) == expected(options)


@pytest.mark.parametrize("prefix", ["registry.example.com/team", "registry.example.com:5000", "localhost/team-"])
def test_helm_completes_a_prefix_as_the_command_does(helm: Helm, prefix: str) -> None:
    assert rendered(helm, f"image.prefix={prefix}") == expected(InstallOptions(image_prefix=prefix))


@pytest.mark.parametrize("prefix", ["http://localhost/", "a b/", "localhost//", "localhost/team:1"])
def test_helm_refuses_what_is_no_prefix_of_an_image(helm: Helm, prefix: str) -> None:
    done = helm("template", "devalloc", str(CHART), "--set", f"image.prefix={prefix}")
    assert (done.returncode, done.stdout) == (1, "")
    assert f'image.prefix "{prefix}" must be a registry and a path without http://' in done.stderr


def test_adoption_is_left_out_of_a_cluster_without_taint_rules(helm: Helm) -> None:
    """A policy whose parameters are of a kind that the API server does not know refuses all that it is about."""
    chosen = (f"--set=image.prefix={PREFIX}", "--set=resourceClaims=true", "--set=adoption=true")
    done = helm("template", "devalloc", str(CHART), *chosen)
    assert done.returncode == 0, done.stderr
    names = {one["metadata"]["name"] for one in yaml.safe_load_all(done.stdout)}
    assert {"devalloc-allocator"} == names & {"devalloc-allocator", "devalloc-adopted", "devalloc-adoption-rules"}


def test_the_namespace_is_that_of_the_release(helm: Helm) -> None:
    assert rendered(helm, namespace="devices") == expected(InstallOptions(namespace="devices"))


def test_what_runs_can_be_set(helm: Helm) -> None:
    by_path = rendered(
        helm,
        "controller.replicas=3",
        "controller.args={--placement=spread}",
        "node.args={--allow=gpu,--grace=1m}",
        "node.tolerations=null",
        "node.nodeSelector.gpu=yes",
        "image.pullSecrets[0].name=registry",
        "controller.extraVolumes[0].name=tools",
        "controller.extraVolumes[0].image.reference=registry.example.com/ipmitool:1",
        "controller.extraVolumeMounts[0].name=tools",
        "controller.extraVolumeMounts[0].mountPath=/opt/tools",
    )
    controller = by_path["/apis/apps/v1/namespaces/devalloc-system/deployments/devalloc-controller"]["spec"]
    assert controller["replicas"] == 3
    assert controller["template"]["spec"]["containers"][0]["args"][-1] == "--placement=spread"
    pod = controller["template"]["spec"]
    assert pod["volumes"][-1] == {"name": "tools", "image": {"reference": "registry.example.com/ipmitool:1"}}
    assert pod["containers"][0]["volumeMounts"][-1] == {"name": "tools", "mountPath": "/opt/tools"}
    node = by_path["/apis/apps/v1/namespaces/devalloc-system/daemonsets/devalloc-node"]["spec"]["template"]["spec"]
    assert node["containers"][0]["args"][-2:] == ["--allow=gpu", "--grace=1m"]
    assert node["nodeSelector"] == {"gpu": "yes", "kubernetes.io/os": "linux"}
    assert node["imagePullSecrets"] == [{"name": "registry"}]
    assert not node["tolerations"]


def test_values_of_a_release_without_a_fencing_program_are_reused(helm: Helm) -> None:
    """`helm upgrade --reuse-values` has no `fencing` at all then."""
    assert rendered(helm, "fencing=null", "controller.extraVolumes=null") == expected(InstallOptions())


def test_a_chart_that_does_not_know_where_our_images_are_is_refused(helm: Helm) -> None:
    """Three privileged DaemonSets would pull a name of Docker Hub that anyone can have."""
    done = helm("template", "devalloc", str(CHART))
    assert done.returncode != 0
    assert "set image.prefix: where you pushed the images" in done.stderr
    assert "image:" not in done.stdout


def test_crds_can_be_left_out(helm: Helm) -> None:
    assert not [path for path in rendered(helm, "crds=false") if "customresourcedefinitions" in path]


@pytest.mark.parametrize(
    "setting",
    ["publish=neither", "image.prefx=x", "controller.replicas=0", "fencing.secret=A/b", "runbooks=javascript:x"],
)
def test_a_value_that_makes_no_sense_is_refused(helm: Helm, setting: str) -> None:
    done = helm("template", "devalloc", str(CHART), "--set", setting)
    assert done.returncode != 0
    assert "values don't meet the specifications" in done.stderr


def test_the_chart_has_no_faults_that_helm_knows(helm: Helm) -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout
