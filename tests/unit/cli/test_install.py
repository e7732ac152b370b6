"""``devalloc install`` and ``uninstall``: without a cluster, and on one in memory."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from devalloc.api.kinds import API_KINDS
from devalloc.api.manifests import load_text
from devalloc.install import remove, upgrade
from devalloc.install.manifests import PUBLISH, InstallOptions, object_path, render_manifests
from devalloc.store.kubernetes.api_error import ApiError
from tests.support.cli_shell import Shell, devalloc
from tests.support.fake_kube import FakeClient, FakeKube

__all__ = ["devalloc"]


def test_a_dry_run_prints_all_of_it(devalloc: Shell) -> None:
    output = devalloc("install", "--dry-run=client", "--publish=pools", "--image-prefix=registry.example.com/")
    expected = render_manifests(InstallOptions("pools", "registry.example.com/"))
    assert list(yaml.safe_load_all(output.out)) == expected
    assert [document.content for document in load_text(output.out).documents] == expected


@pytest.mark.parametrize(
    "prefix", [[], ["--image-prefix="], ["--image-prefix=docker.io/library/"], ["--image-prefix=my-"]]
)
@pytest.mark.parametrize("part", [[], ["--only=node"], ["--only=controller"]])
def test_images_that_anyone_could_have_published_are_refused(
    devalloc: Shell, prefix: list[str], part: list[str]
) -> None:
    """The pods of nodes are privileged, and an image without a registry is one of Docker Hub."""
    output = devalloc("install", "--dry-run=client", *prefix, *part)
    assert (output.code, output.out) == (2, "")
    assert "name where your images are: --image-prefix registry.example.com/team/" in output.err


def test_the_files_name_images_that_no_registry_has() -> None:
    """For those who apply the folder with kubectl: nothing is pulled until they say where the images are."""
    pods = [
        one["spec"]["template"]["spec"]
        for one in render_manifests(InstallOptions())
        if "template" in one.get("spec", {})
    ]
    images = {container["image"].partition("/")[0] for pod in pods for container in pod["containers"]}
    assert images == {"image-prefix-not-set.invalid"}


def test_a_part_without_images_needs_no_prefix(devalloc: Shell) -> None:
    output = devalloc("install", "--dry-run=client", "--only=crds")
    assert {one["kind"] for one in yaml.safe_load_all(output.out)} == {"CustomResourceDefinition"}


def test_what_makes_no_sense_is_bad_input(devalloc: Shell) -> None:
    output = devalloc("install", "--dry-run=client", "--namespace=No")
    assert output.code == 2
    assert "namespace 'No' must be a name of lower-case letters" in output.err


@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_a_kubeconfig_that_is_not_there_is_named(devalloc: Shell, verb: str, tmp_path: Path) -> None:
    output = devalloc(verb, "--kubeconfig", str(tmp_path / "config"))
    assert output.code == 1
    assert f"{tmp_path / 'config'} does not exist; name a kubeconfig" in output.err


def test_a_directory_instead_of_a_kubeconfig_is_reported(devalloc: Shell, tmp_path: Path) -> None:
    output = devalloc("install", "--kubeconfig", str(tmp_path))
    assert output.code == 1
    assert f"{tmp_path} is a directory; name a kubeconfig in it" in output.err


NO_KUBECONFIGS = {
    "root:x:0:0:root": "it lacks clusters, contexts and users; name another file",
    "a: [": "line 1: expected the node content, but found '<stream end>'; correct it there, or name another file",
    "a: 1\nb: c: d": "line 2: mapping values are not allowed here; correct it there, or name another file",
    "\t": "line 1: found character '\\t' that cannot start any token; correct it there, or name another file",
    "\x01": "it is not text; name another file",
    "[]": "it lacks clusters, contexts and users; name another file",
    "{clusters: 3}": "it lacks clusters, contexts and users; name another file",
    "{current-context: a, contexts: [b]}": "",
}


@pytest.mark.parametrize("text", NO_KUBECONFIGS)
@pytest.mark.parametrize(
    "words",
    [
        ("install",),
        ("uninstall",),
        ("adopt",),
        ("get", "claims"),
        ("describe", "claim/train"),
        ("top", "--once"),
        ("explain", "train"),
        ("wait", "train"),
        ("release", "train"),
        ("cordon", "node-a"),
        ("drain", "node-a"),
        ("capacity", "train"),
        ("start", "vm/web"),
        ("migrate", "vm/web", "--to", "node-a"),
    ],
    ids=lambda words: words[0],
)
def test_an_invalid_kubeconfig_is_reported(devalloc: Shell, words: tuple[str, ...], text: str, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(text)
    output = devalloc(*words, "--kubeconfig", str(tmp_path / "config"))
    assert output.code == 1
    fault = NO_KUBECONFIGS[text]
    start = f"not a kubeconfig: {tmp_path / 'config'}: {fault}\n" if fault else f"kubeconfig {tmp_path / 'config'}: "
    assert output.err.startswith(f"error: cannot connect to the API server: {start}")
    assert output.err.count("\n") == 1


# -- on a cluster ------------------------------------------------------------------------------------------------------

CLAIMS = "/apis/devmgmtproto.k8s.io/v1alpha1/namespaces/team-a/deviceclaims"
MACHINES = "/apis/devalloc.io/v1alpha1/namespaces/team-a/virtualmachines"
RESOURCE_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaims"
LOADED = "localhost/"
APPS = "/apis/apps/v1/namespaces/devalloc-system"


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch) -> FakeKube:
    """An API server that the command talks to, and images that were loaded onto its nodes."""
    kube = FakeKube()
    monkeypatch.setenv("DEVALLOC_INSTALL_IMAGE_PREFIX", LOADED)
    monkeypatch.setattr("devalloc.cli.verbs.install.connect_as_admin", lambda path: FakeClient(kube))
    for name, label in (("node-a", None), ("node-b", "pools")):
        labels = {"devalloc.io/publish": label} if label else {}
        kube.create("/api/v1/nodes", {"kind": "Node", "metadata": {"name": name, "labels": labels}})
    return kube


def device_claim(kube: FakeKube, name: str, *, prepared_on: str | None = None) -> None:
    metadata: dict[str, Any] = {"name": name, "namespace": "team-a"}
    if prepared_on is not None:
        metadata["finalizers"] = ["devalloc.io/node"]
        metadata["annotations"] = {"devalloc.io/prepared-on": prepared_on}
    kube.create(CLAIMS, {"kind": "DeviceClaim", "metadata": metadata, "spec": {}})
    allocated = {"allocations": [{"devicePoolName": "p", "deviceName": "d"}]}
    kube.replace(f"{CLAIMS}/{name}/status", {**kube.get(f"{CLAIMS}/{name}"), "status": allocated})


def pods_claim(kube: FakeKube, name: str, node: str) -> None:
    kube.create(RESOURCE_CLAIMS, {"kind": "ResourceClaim", "metadata": {"name": name, "namespace": "team-a"}})
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    allocation = {
        "devices": {"results": [{"request": "gpu", "driver": "devalloc.io", "pool": node, "device": "d"}]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    }
    status = {"allocation": allocation, "reservedFor": [{"resource": "pods", "name": "trainer"}]}
    kube.replace(f"{RESOURCE_CLAIMS}/{name}/status", {**kube.get(f"{RESOURCE_CLAIMS}/{name}"), "status": status})


def outcomes(out: str) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in out.splitlines())


# uninstall


@pytest.mark.parametrize("options", [[], ["--crds"]])
def test_nothing_is_deleted_where_a_pod_has_devices(devalloc: Shell, kube: FakeKube, options: list[str]) -> None:
    devalloc("install")
    device_claim(kube, "infer")
    pods_claim(kube, "used", "node-a")
    before = dict(kube.objects)
    output = devalloc("uninstall", *options, "--timeout=1s")
    assert (output.code, output.out) == (1, "")
    assert "devices are in use: resourceclaim team-a/used of pod trainer; without devalloc" in output.err
    assert kube.objects == before


def test_a_prepared_claim_keeps_devalloc_unless_it_is_deleted_with_it(devalloc: Shell, kube: FakeKube) -> None:
    devalloc("install")
    device_claim(kube, "train", prepared_on="node-b")
    before = dict(kube.objects)
    assert "deviceclaim team-a/train on node node-b" in devalloc("uninstall").err
    assert kube.objects == before
    output = devalloc("uninstall", "--crds", "--timeout=1s")
    assert output.out == "deviceclaim.devmgmtproto.k8s.io/train deleted\n", "its node is asked, and waited for"
    assert "not deleted yet: team-a/train on node node-b" in output.err
    assert f"{APPS}/deployments/devalloc-controller" in kube.objects


def test_a_claim_that_is_only_allocated_keeps_nothing(devalloc: Shell, kube: FakeKube) -> None:
    devalloc("install")
    device_claim(kube, "infer")
    assert devalloc("uninstall").code == 0
    assert f"{CLAIMS}/infer" in kube.objects


@pytest.mark.parametrize("part", ["neon_agents", "fencing_secret"])
def test_parts_that_were_applied_by_other_means_are_removed_too(devalloc: Shell, kube: FakeKube, part: str) -> None:
    """Such as `kubectl apply` of what --dry-run=client prints: nothing notes there who applied them."""
    devalloc("install")
    plain = {object_path(one) for one in render_manifests(InstallOptions(permits=True, neon=True))}
    values = {"neon_agents": "10.1.0.0/16", "fencing_secret": "bmc"}
    every = render_manifests(replace(InstallOptions(permits=True, neon=True), **{part: values[part]}))
    more = [one for one in every if object_path(one) not in plain]
    assert more
    for one in more:
        kube.create(object_path(one).rpartition("/")[0], one)
    assert devalloc("uninstall").code == 0
    assert [path for path in map(object_path, more) if path in kube.objects] == []


@pytest.mark.parametrize("options", [[], ["--crds"]])
def test_a_dry_run_of_uninstall_names_what_would_go_and_deletes_nothing(
    devalloc: Shell, kube: FakeKube, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remove, "WAKE_SECONDS", 0.0)
    devalloc("install")
    device_claim(kube, "infer")
    before = dict(kube.objects)
    would = devalloc("uninstall", *options, "--dry-run").out
    assert kube.objects == before
    assert all(line.endswith(" deleted (dry run)") for line in would.splitlines())
    assert devalloc("uninstall", *options).out == would.replace(" (dry run)", "")


def notes_of_uninstall(devalloc: Shell, *options: str) -> list[str]:
    output = devalloc("uninstall", *options)
    assert output.code == 0, output.err
    return output.err.splitlines()


def test_uninstall_ends_with_what_it_deleted_and_what_stays(
    devalloc: Shell, kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remove, "WAKE_SECONDS", 0.0)
    kube.objects["/api/v1/nodes/node-b"]["spec"] = {"taints": [{"key": "devalloc.io/machines"}]}
    devalloc("install", "--resource-claims", "--adoption")
    crds = "the CRDs stay, with all claims, machines, pools and classes; to delete them: devalloc uninstall --crds"
    of_the_cluster = [
        "policy devalloc-adopted and its binding stay; to delete them: kubectl delete "
        "validatingadmissionpolicies,validatingadmissionpolicybindings devalloc-adopted; then restart the API servers "
        "before you install --adoption again",
        "node node-b has the taint devalloc.io/machines; to remove it: "
        "kubectl taint nodes node-b devalloc.io/machines-",
        "node node-b has the label devalloc.io/publish; to remove it: kubectl label nodes node-b devalloc.io/publish-",
    ]
    would = devalloc("uninstall", "--dry-run")
    deleted = len([line for line in would.out.splitlines() if " deleted" in line])
    assert would.err.splitlines() == [f"{deleted} objects would be deleted", crds, *of_the_cluster]
    assert notes_of_uninstall(devalloc) == [f"{deleted} objects deleted", crds, *of_the_cluster]
    assert notes_of_uninstall(devalloc, "--crds")[1:] == of_the_cluster


def test_uninstall_of_nothing_says_so(devalloc: Shell, kube: FakeKube) -> None:
    del kube.objects["/api/v1/nodes/node-b"]
    assert notes_of_uninstall(devalloc) == ["devalloc is not installed on this cluster; nothing to delete"]


def test_many_labelled_nodes_are_named_by_their_label(devalloc: Shell, kube: FakeKube) -> None:
    for number in range(9):
        labels = {"devalloc.io/publish": "host"}
        kube.create("/api/v1/nodes", {"kind": "Node", "metadata": {"name": f"host-{number}", "labels": labels}})
    assert notes_of_uninstall(devalloc)[1:] == [
        "nodes host-0, host-1, host-2, host-3, host-4 and 5 more have the label devalloc.io/publish; to remove it: "
        "kubectl label nodes -l devalloc.io/publish devalloc.io/publish-"
    ]


def test_a_crd_that_does_not_go_is_written_again_until_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before the time for it is up: the API server may have overlooked it."""
    monkeypatch.setattr(remove, "WAKE_SECONDS", 0.0)
    writes: list[dict[str, Any]] = []

    class Client:
        def get(self, path: str, params: Any) -> dict[str, Any]:
            if len(writes) == 3:
                raise ApiError(404, "NotFound", "gone")
            return {"kind": "CustomResourceDefinition", "metadata": {"name": "x"}}

        def replace(self, path: str, obj: dict[str, Any]) -> None:
            writes.append(obj["metadata"]["annotations"])

    remove._wait_until_gone(Client(), "/crds/x", "the CRD x", time.monotonic() + 600)  # type: ignore[arg-type]
    assert len({each["devalloc.io/deleting"] for each in writes}) == 3


# install


@pytest.mark.parametrize("publish", PUBLISH)
def test_options_of_the_last_installation_are_used_again(
    devalloc: Shell, kube: FakeKube, publish: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DEVALLOC_INSTALL_IMAGE_PREFIX")
    first = devalloc("install", f"--publish={publish}", "--kubelet-dir=/k", "--image-prefix=registry.example.com/x/")
    assert first.code == 0, first.err
    again = devalloc("install")
    assert set(outcomes(again.out).values()) == {"unchanged"}
    for option in ("--kubelet-dir /k", "--image-prefix registry.example.com/x/"):
        assert option in again.err.splitlines()[0]
    assert ("--publish" in again.err.splitlines()[0]) == (publish != "both")


def test_options_are_given_anew_one_by_one_or_all_forgotten(devalloc: Shell, kube: FakeKube) -> None:
    devalloc("install", "--resource-claims", "--permits", "--kubelet-dir=/k")
    output = devalloc("install", "--no-permits", "--kubelet-dir=/other")
    assert "as in the last installation: --resource-claims (--reset" in output.err
    client: Any = FakeClient(kube)
    assert upgrade.last_options(client, "devalloc-system") == {
        "image_prefix": LOADED,
        "kubelet_dir": "/other",
        "resource_claims": True,
    }
    output = devalloc("install", "--reset")
    assert outcomes(output.out)["daemonset.apps/devalloc-node-set-aside"] == "deleted"
    assert upgrade.last_options(client, "devalloc-system") == {"image_prefix": LOADED}


def test_a_part_uses_the_options_and_leaves_them(devalloc: Shell, kube: FakeKube) -> None:
    devalloc("install", "--kubelet-dir=/k", "--resource-claims")
    output = devalloc("install", "--only=rbac", "--only=node", "--no-resource-claims")
    assert output.code == 0
    client: Any = FakeClient(kube)
    assert upgrade.last_options(client, "devalloc-system") == {
        "image_prefix": LOADED,
        "kubelet_dir": "/k",
        "resource_claims": True,
    }


EVERY_OPTION = (
    InstallOptions("both", "registry.example.com:5000/x/", "", "devalloc-system", "/k", True, True, True),
    InstallOptions("slices", kubelet_dir="/k"),
    InstallOptions("pools", "registry.example.com/", service_monitor=True),
    InstallOptions(),
)


@pytest.mark.parametrize("options", EVERY_OPTION)
def test_options_are_read_from_running_objects_without_a_record(kube: FakeKube, options: InstallOptions) -> None:
    """As after 0.1.0 or kubectl."""
    client: Any = FakeClient(kube)
    for one in render_manifests(options):
        client.apply(object_path(one), one, "devalloc")
    read = upgrade.last_options(client, "devalloc-system")
    assert InstallOptions(**read) == options


@pytest.mark.parametrize("text", ["{", "[]", '{"publish": "no"}', '{"permits": "yes"}', '{"kubelet_dir": "a b"}'])
def test_an_edited_record_of_options_is_reported(devalloc: Shell, kube: FakeKube, text: str) -> None:
    devalloc("install")
    path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/devalloc-node"
    kube.objects[path]["metadata"]["annotations"][upgrade.OPTIONS_ANNOTATION] = text
    output = devalloc("install")
    assert output.code == 1
    assert "has an annotation devalloc.io/install-options that cannot be read" in output.err
    assert devalloc("install", "--reset").code == 0
    assert json.loads(upgrade.recorded_options(FakeClient(kube)) or "")["publish"] == "both"  # type: ignore[arg-type]


def test_a_dry_run_compares_with_the_cluster_and_changes_nothing(devalloc: Shell, kube: FakeKube) -> None:
    first = devalloc("install", "--dry-run")
    assert set(outcomes(first.out).values()) == {"created (dry run)"}
    devalloc("install")
    before = json.dumps(kube.objects, sort_keys=True)
    outcome = outcomes(devalloc("install", "--dry-run", "--publish=pools", "--version=9.9").out)
    assert json.dumps(kube.objects, sort_keys=True) == before
    assert outcome["daemonset.apps/devalloc-node"] == "deleted (dry run)"
    assert outcome["namespace/devalloc-system"] == "unchanged (dry run)"
    changed = outcome["deployment.apps/devalloc-controller"]
    assert changed == "configured (dry run): spec.template.spec.containers[0].image"


def test_what_still_serves_a_pod_does_not_go(devalloc: Shell, kube: FakeKube) -> None:
    devalloc("install", "--resource-claims")
    pods_claim(kube, "used", "node-a")
    before = json.dumps(kube.objects, sort_keys=True)
    output = devalloc("install", "--publish=pools", "--no-resource-claims")
    assert output.code == 1
    assert (
        "DaemonSet devalloc-node would be removed from nodes that have devices prepared for resourceclaim" in output.err
    )
    assert json.dumps(kube.objects, sort_keys=True) == before
    assert devalloc("install", "--no-resource-claims").code == 0, "node-a keeps its plugin"
    assert devalloc("install", "--publish=pools", "--force").code == 0


def test_what_still_serves_claims_and_machines_does_not_go(devalloc: Shell, kube: FakeKube) -> None:
    devalloc("install")
    device_claim(kube, "infer")
    device_claim(kube, "train", prepared_on="node-b")
    output = devalloc("install", "--publish=slices", "--dry-run")
    assert output.code == 1
    assert (
        "DaemonSet devalloc-node-pools would be removed from nodes that have devices prepared for deviceclaim"
        in output.err
    )
    assert "nothing would release the devices of deviceclaim team-a/infer, deviceclaim team-a/train" in output.err
    assert devalloc("install", "--publish=pools").code == 0, "both claims are served as before"


def test_a_machine_that_is_placed_keeps_the_controller(devalloc: Shell, kube: FakeKube) -> None:
    devalloc("install")
    kind = API_KINDS["VirtualMachine"].kind
    kube.create(MACHINES, {"kind": kind, "metadata": {"name": "web", "namespace": "team-a"}, "spec": {}})
    kube.replace(f"{MACHINES}/web/status", {**kube.get(f"{MACHINES}/web"), "status": {"nodeName": "node-b"}})
    assert "virtualmachine team-a/web" in devalloc("install", "--publish=slices").err


def test_a_release_of_helm_is_left_to_helm(devalloc: Shell, kube: FakeKube) -> None:
    devalloc("install")
    metadata = kube.objects[f"{APPS}/deployments/devalloc-controller"]["metadata"]
    metadata["labels"]["app.kubernetes.io/managed-by"] = "Helm"
    metadata["annotations"] = {"meta.helm.sh/release-name": "da", "meta.helm.sh/release-namespace": "devalloc-system"}
    before = json.dumps(kube.objects, sort_keys=True)
    output = devalloc("install")
    assert output.code == 1
    assert "deployment.apps/devalloc-controller belongs to the Helm release da" in output.err
    assert "helm upgrade da -n devalloc-system" in output.err
    assert json.dumps(kube.objects, sort_keys=True) == before
    assert devalloc("install", "--only=crds").code == 0


def give_to_helm(kube: FakeKube, *, release_is_gone: bool = False) -> None:
    """Objects as a release of Helm has them, and what stays of one that is gone: the chart keeps its CRDs."""
    for path, one in list(kube.objects.items()):
        if "labels" not in one["metadata"] or one["kind"] in ("Namespace", "Node"):
            continue
        if release_is_gone and one["kind"] != "CustomResourceDefinition":
            del kube.objects[path]
            continue
        one["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "Helm"
        one["metadata"]["managedFields"] = [{"manager": "helm"}]
        one["metadata"]["annotations"] = {
            "meta.helm.sh/release-name": "da",
            "meta.helm.sh/release-namespace": "devalloc-system",
        }


@pytest.mark.parametrize("options", [[], ["--crds"], ["--dry-run"], ["--force"]])
def test_a_release_of_helm_is_not_uninstalled_behind_its_back(
    devalloc: Shell, kube: FakeKube, options: list[str]
) -> None:
    devalloc("install")
    give_to_helm(kube)
    before = json.dumps(kube.objects, sort_keys=True)
    output = devalloc("uninstall", *options)
    assert (output.code, output.out) == (1, "")
    assert " belongs to the Helm release da in namespace devalloc-system: " in output.err
    assert "helm uninstall da -n devalloc-system" in output.err
    assert json.dumps(kube.objects, sort_keys=True) == before


def test_what_helm_leaves_is_removed(devalloc: Shell, kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remove, "WAKE_SECONDS", 0.0)
    devalloc("install")
    give_to_helm(kube, release_is_gone=True)
    assert devalloc("uninstall", "--crds").code == 0
    assert not [one for one in kube.objects.values() if one.get("kind") == "CustomResourceDefinition"]


def test_what_helm_leaves_is_taken_over_by_an_installation(devalloc: Shell, kube: FakeKube) -> None:
    devalloc("install")
    give_to_helm(kube, release_is_gone=True)
    assert devalloc("install").code == 0


def test_crds_of_a_release_are_left_to_helm(devalloc: Shell, kube: FakeKube) -> None:
    devalloc("install")
    give_to_helm(kube)
    output = devalloc("install", "--only=crds")
    assert (output.code, "belongs to the Helm release da" in output.err) == (1, True)


def test_it_says_where_images_come_from(devalloc: Shell, kube: FakeKube) -> None:
    output = devalloc("install")
    assert "next: kubectl -n devalloc-system get pods; images come from localhost/" in output.err


def test_an_address_is_no_prefix_of_images(devalloc: Shell, kube: FakeKube) -> None:
    before = dict(kube.objects)
    output = devalloc("install", "--image-prefix=http://localhost/")
    assert (output.code, output.out) == (2, "")
    assert "must be a registry and a path without http://, such as registry.example.com/team/" in output.err
    assert kube.objects == before


def test_it_says_where_images_come_from_with_the_slash_that_was_left_out(devalloc: Shell, kube: FakeKube) -> None:
    output = devalloc("install", "--image-prefix=registry.example.com/team")
    assert "images come from registry.example.com/team/\n" in output.err


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_nothing_is_installed_without_a_prefix_and_a_stored_one_suffices(
    devalloc: Shell, kube: FakeKube, monkeypatch: pytest.MonkeyPatch, dry_run: list[str]
) -> None:
    monkeypatch.delenv("DEVALLOC_INSTALL_IMAGE_PREFIX")
    before = dict(kube.objects)
    refused = devalloc("install", *dry_run)
    assert refused.code == 2
    assert "name where your images are" in refused.err
    assert kube.objects == before
    devalloc("install", "--image-prefix", LOADED)
    assert devalloc("install", *dry_run).code == 0


def test_what_kubectl_installed_without_a_prefix_gets_one(
    devalloc: Shell, kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kubectl apply -k deploy` runs no image, because its names are of no registry."""
    client: Any = FakeClient(kube)
    for one in render_manifests(InstallOptions()):
        client.apply(object_path(one), one, "kubectl")
    monkeypatch.delenv("DEVALLOC_INSTALL_IMAGE_PREFIX")
    assert devalloc("install").code == 2
