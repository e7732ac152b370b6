"""The container images on a real node: what is in them, and devalloc out of them, by the manifests that are shipped.

Only the kernel's /sys is played, by files: its cards are with vfio-pci already, so that nothing there has to answer.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.images import inspection
from deploy.images.build import BuiltImage, build
from deploy.images.cache import Progress, Unavailable
from deploy.images.contents import contents
from devalloc.api.dedicated_pools import ALLOCATOR_KEY, DEVALLOC
from devalloc.version import VERSION
from tests.support import kube_installed, pci_cards
from tests.support.fake_host import FakeHost
from tests.support.fake_tree import memory_folder
from tests.support.go_build import untimed
from tests.support.kube_images import IMAGE
from tests.support.kube_installed import IMAGE_PREFIX
from tests.support.kube_node import NODE, Node, import_image, tag_image
from tests.support.kube_plugin import BOOT, plugin_bed

NEXT = "next"
"""The tag of a version to upgrade to."""
RESOURCE = "/apis/resource.k8s.io/v1"
SLICES = f"{RESOURCE}/resourceslices"
CLASSES = f"{RESOURCE}/deviceclasses"
CLAIMS = f"{RESOURCE}/namespaces/default/resourceclaims"
TEMPLATES = f"{RESOURCE}/namespaces/default/resourceclaimtemplates"
WORK = "/api/v1/namespaces/default/pods"
POOLS = "/apis/devmgmtproto.k8s.io/v1alpha1/devicepools"
PLUGIN, CONTROLLER = "devalloc-node", "devalloc-controller"
DAEMONSET = f"/apis/apps/v1/namespaces/{kube_installed.NAMESPACE}/daemonsets/{PLUGIN}"
OURS = "devmgmtproto.k8s.io/v1alpha1"
DEVICES = {
    "DeviceClass": f"/apis/{OURS}/deviceclasses",
    "DeviceClaim": f"/apis/{OURS}/namespaces/default/deviceclaims",
}
WANTED = {
    "DeviceClass": {"metadata": {"name": "image-card"}, "spec": {"driver": "gpu.devalloc.io", "deviceType": "gpu"}},
    "DeviceClaim": {
        "metadata": {"name": "image-cards"},
        "spec": {"claims": [{"deviceClass": "image-card", "requests": {"count": 2}}]},
    },
}
"""A claim for both cards."""
SECONDS = kube_installed.SECONDS


@pytest.fixture(scope="module")
def images(progress: Progress, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BuiltImage]]:
    """The images by what they are of; what is not in the cache is built, which takes a minute or two at first."""
    content, folder = contents(), tmp_path_factory.mktemp("images")
    try:
        with untimed():
            built = {
                key: build(image, content, f"{IMAGE_PREFIX}{image.name}:{VERSION}", folder / f"{key}.tar", progress)
                for key, image in content.images.items()
            }
    except Unavailable as reason:
        pytest.skip(f"no images: {reason}")
    yield built
    for image in built.values():  # pytest keeps the folders of some runs, and these are half a gigabyte
        image.archive.unlink()


@pytest.fixture(scope="module")
def loaded(node: Node, images: dict[str, BuiltImage]) -> Node:
    """The node has the images, that of the plugin also as the next version."""
    for image in images.values():
        import_image(node, image.archive)
    tag_image(node, f"{IMAGE_PREFIX}{PLUGIN}:{VERSION}", f"{IMAGE_PREFIX}{PLUGIN}:{NEXT}")
    return node


# -- what is in them ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["controller", "node"])
def key(request: pytest.FixtureRequest) -> str:
    """Which image."""
    return str(request.param)


@pytest.fixture(scope="module")
def members(key: str, images: dict[str, BuiltImage]) -> dict[str, tarfile.TarInfo]:
    """All files of an image, by path."""
    by_name = {}
    for layer in images[key].layers:
        with tarfile.open(layer.path) as tar:
            by_name |= {member.name: member for member in tar}
    return by_name


SITE = "usr/local/lib/python3.11/dist-packages"
NOT_IN = {
    "controller": ["grpc", "pyroute2", "pyudev", "qemu", "devalloc_machines", "devalloc_node"],
    "node": ["ortools", "numpy", "pandas", "cel_expr_python", "re2"],
}


def test_no_file_gives_rights_or_is_written_by_others(members: dict[str, tarfile.TarInfo]) -> None:
    assert {(member.uid, member.gid) for member in members.values()} == {(0, 0)}
    files = [member for member in members.values() if not member.issym()]
    assert [member.name for member in files if member.mode & 0o6000] == []
    assert [member.name for member in files if member.mode & 0o022] == ["tmp"]
    assert members["tmp"].mode == 0o1777
    assert [member.name for member in files if not member.isfile() and not member.isdir()] == []


def test_nothing_is_in_them_that_only_builds_or_tests(members: dict[str, tarfile.TarInfo]) -> None:
    programs = [name for name, member in members.items() if "bin" in name.split("/") and not member.isdir()]
    assert sorted(programs) == ["usr/bin/devalloc", "usr/bin/python3.11"]
    names = {name.split("/")[0] for name in (path.removeprefix(f"{SITE}/") for path in members if SITE in path)}
    assert not names & {"pip", "setuptools", "wheel", "pytest", "hypothesis", "mypy", "tests"}
    assert [name for name in members if re.search(r"\.(a|deb|h|pyx|whl)$|/conftest\.py$|/tests/", name)] == []
    compiled = {name for name in members if name.endswith(".pyc")}
    sources = [name for name in members if name.startswith(f"{SITE}/devalloc") and name.endswith(".py")]
    assert sources
    assert [name for name in sources if _compiled(name) not in compiled] == []


def test_neither_has_what_the_other_one_is_for(key: str, members: dict[str, tarfile.TarInfo]) -> None:
    packages = {name.removeprefix(f"{SITE}/").split("/")[0] for name in members if name.startswith(f"{SITE}/")}
    assert "devalloc" in packages
    assert not packages & set(NOT_IN[key])


OF_AN_ARCHITECTURE = (
    r".*\.dist-info/(WHEEL|sboms/.*)",
    r"etc/ld\.so\.conf\.d/TRIPLET\.conf",
    r"lib/TRIPLET/(ld-linux-.*|libmvec\.so\.1)",
    r".*/(numpy|ortools)\.libs/.*",
    r".*/numpy/(__config__\.py|__pycache__/__config__\.cpython-311\.pyc)",
    r"usr/lib/python3\.11/(__pycache__/)?_sysconfigdata__.*",
    r"usr/share/devalloc/bom\.json",
    r"usr/share/gdb/.*",
    r"var/lib/dpkg/status\.d/.*",
)
"""Files that describe the machine that they are for, and libraries that wheels bring under names of their own."""


def test_images_of_another_architecture_have_all_they_need_and_otherwise_the_same_files(
    key: str, images: dict[str, BuiltImage], progress: Progress, tmp_path: Path
) -> None:
    content = contents()
    amd64, arm64 = content.platforms["amd64"], content.platforms["arm64"]
    image, archive = content.images[key], tmp_path / "arm64.tar"
    with untimed():
        build(image, content, f"{IMAGE_PREFIX}{image.name}:{VERSION}", archive, progress, platform=arm64)
    trees = inspection.read(images[key].archive), inspection.read(archive)
    archive.unlink()
    assert [*inspection.problems(trees[0], amd64)] == []
    assert [*inspection.problems(trees[1], arm64)] == []
    assert sum(file.startswith(b"\x7fELF") for file in trees[1].files.values()) > 80
    differences = [text.partition(" ")[0] for text in inspection.differences(*trees, (amd64, arm64))]
    assert [path for path in differences if not re.fullmatch("|".join(OF_AN_ARCHITECTURE), path)] == []


def test_what_changes_with_each_version_is_small(images: dict[str, BuiltImage]) -> None:
    """A node has the base from either image, and fetches the last layer of a new version."""
    assert images["node"].layers[0] == images["controller"].layers[0]
    for built in images.values():
        base, dependencies, last = (layer.size for layer in built.layers)
        assert last < base < dependencies


def _compiled(name: str) -> str:
    folder, _, file = name.rpartition("/")
    return f"{folder}/__pycache__/{file.removesuffix('.py')}.cpython-311.pyc"


def test_each_starts_as_its_user_and_knows_its_version(loaded: Node) -> None:
    """With nothing told to it but what to do; the controller's user is checked by the kubelet."""
    for name, settings in {CONTROLLER: {"runAsNonRoot": True}, PLUGIN: {}}.items():
        container = {
            "name": "main",
            "image": f"{IMAGE_PREFIX}{name}:{VERSION}",
            "imagePullPolicy": "Never",
            "args": ["--version"],
            "securityContext": {"readOnlyRootFilesystem": True, **settings},
        }
        spec = {
            "hostNetwork": True,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "containers": [container],
        }
        made = loaded.cluster.create(
            WORK, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"version-of-{name}"}, "spec": spec}
        )
        assert made.ok, made.message
    for name in (CONTROLLER, PLUGIN):
        pod = f"version-of-{name}"
        assert loaded.wait_until(f"{pod} has spoken", lambda pod=pod: loaded.output(pod), SECONDS) == [
            f"devalloc {VERSION}"
        ]
        loaded.cluster.delete(f"{WORK}/{pod}?gracePeriodSeconds=0")


# -- the node's plugin -------------------------------------------------------------------------------------------------


@dataclass
class Bed:
    """A node whose plugin runs as a pod, as a DaemonSet wants it."""

    node: Node

    def published(self) -> list[str]:
        """The devices in its slices, once both cards are."""

        def device_names() -> list[str]:
            items = self.node.cluster.get(SLICES).content["items"]
            devices = [device["name"] for item in items for device in item["spec"].get("devices", [])]
            kube_installed.check(self.node, kube_installed.pods_of(self.node.cluster, PLUGIN))
            return sorted(devices) if len(items) == 2 else []

        devices: list[str] = self.node.wait_until("devices are published", device_names, SECONDS)
        return devices

    def start(self, name: str) -> None:
        """A pod with one card."""
        container = {
            "name": "main",
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "args": ["tell", "/dev/vfio/*"],
            "resources": {"claims": [{"name": "card"}]},
        }
        spec = {
            "hostNetwork": True,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "resourceClaims": [{"name": "card", "resourceClaimTemplateName": "image-card"}],
            "containers": [container],
        }
        made = self.node.cluster.create(
            WORK, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        )
        assert made.ok, made.message

    def groups(self, name: str) -> list[str]:
        """The VFIO groups that the pod's container can open, once it runs."""
        lines = self.node.wait_until(f"pod {name} runs", lambda: self.node.output(name), SECONDS)
        return [entry["path"] for entry in json.loads(lines[0])["paths"] if entry["opens"] == "ok"]

    def end(self, name: str) -> None:
        """Delete it and wait until it is gone: the kubelet lets it go when its claim is unprepared."""
        self.node.cluster.delete(f"{WORK}/{name}")
        self.node.wait_until(f"{name} is gone", lambda: self.node.cluster.get(f"{WORK}/{name}").status == 404, SECONDS)


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    """Two cards."""
    host = FakeHost(tmp_path / "host")
    host.proc("sys/kernel/random/boot_id", f"{BOOT}\n")
    host.add(pci_cards.gpu(iommu_group=15, driver="vfio-pci"))
    host.add(pci_cards.gpu("0000:02:00.0", iommu_group=16, driver="vfio-pci"))
    return host


@pytest.fixture
def bed(loaded: Node, host: FakeHost, tmp_path: Path) -> Iterator[Bed]:
    """The DaemonSet of this version, for pods."""
    node = loaded
    (tmp_path / "state").mkdir()
    objects = kube_installed.shipped_manifests(node, "slices", VERSION, host.root, tmp_path / "state")
    node.cluster.delete(SLICES)  # of the plugin of another test, which the kubelet has not removed yet
    with kube_installed.installed(node, objects), wanted_by_pods(node, {}):
        yield Bed(node)
    node.cluster.delete(SLICES)  # they would go with their node


@contextmanager
def wanted_by_pods(node: Node, labels: dict[str, str]) -> Iterator[None]:
    """A class of cards, and a template of claims for one of them; in the end no pod and no claim is left."""
    selectors = [{"cel": {"expression": 'device.driver == "devalloc.io"'}}]
    request = {"requests": [{"name": "card", "exactly": {"deviceClassName": "image-card"}}]}
    template = {"metadata": {"labels": labels}, "spec": {"devices": request}}
    named = {"apiVersion": "resource.k8s.io/v1", "metadata": {"name": "image-card"}}
    wanted = {
        CLASSES: named | {"kind": "DeviceClass", "spec": {"selectors": selectors}},
        TEMPLATES: named | {"kind": "ResourceClaimTemplate", "spec": template},
    }
    for path, body in wanted.items():
        made = node.cluster.create(path, body)
        assert made.ok, made.message
    yield
    node.cluster.delete(f"{WORK}?gracePeriodSeconds=0")
    node.wait_until(
        "all pods and claims are gone",
        lambda: not node.cluster.get(WORK).content["items"] and not node.cluster.get(CLAIMS).content["items"],
        SECONDS,
    )
    for path in wanted:
        node.cluster.delete(f"{path}/image-card")


@pytest.mark.timeout(900)
def test_the_shipped_daemonset_serves_pods_and_is_upgraded_under_them(bed: Bed) -> None:
    cluster, first = bed.node.cluster, kube_installed.running(bed.node, PLUGIN)
    assert bed.published() == ["0000-01-00-0", "0000-02-00-0"]
    (item, *_) = cluster.get(SLICES).content["items"]
    assert item["spec"]["nodeName"] == NODE
    lines = kube_installed.log_lines(bed.node, first)
    mounts = kube_installed.mounts(kube_installed.process_of(first))
    assert {"/dev", "/sys", "/run/devalloc", "/var/lib/devalloc", "/var/run/cdi", "/lib/modules"} <= set(mounts)
    assert "ro" in mounts["/"]
    assert [line for line in lines if "no device events" in str(line)] == [], "libudev is in the image, and found"
    assert [line["text"] for line in lines if "text" in line] == [], "a pod's log has one format"

    bed.start("one")
    held = bed.groups("one")
    assert len(held) == 2

    def has_container() -> bool:
        current = cluster.get(f"{WORK}/one").content["status"].get("containerStatuses", [{}])
        return "containerID" in current[0]

    bed.node.wait_until("the kubelet says which container it is", has_container)
    before = cluster.get(f"{WORK}/one").content

    def upgraded() -> bool:
        current = cluster.get(DAEMONSET).content
        current["spec"]["template"]["spec"]["containers"][0]["image"] = f"{IMAGE_PREFIX}devalloc-node:{NEXT}"
        return cluster.replace(DAEMONSET, current).ok  # not where its controller has written meanwhile

    bed.node.wait_until("the DaemonSet names the next version", upgraded)

    def replaced() -> bool:
        pods = kube_installed.pods_of(cluster, PLUGIN)
        return [pod["spec"]["containers"][0]["image"] for pod in pods] == [f"{IMAGE_PREFIX}devalloc-node:{NEXT}"]

    bed.node.wait_until("the next version runs alone", replaced, SECONDS)
    assert kube_installed.running(bed.node, PLUGIN)["metadata"]["uid"] != first["metadata"]["uid"]
    after = cluster.get(f"{WORK}/one").content
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    (container,) = after["status"]["containerStatuses"]
    assert container["restartCount"] == 0
    assert container["containerID"] == before["status"]["containerStatuses"][0]["containerID"]

    bed.start("two")
    assert set(bed.groups("two")) != set(held)
    bed.end("one")  # which the version before it prepared
    bed.end("two")
    assert list(bed.node.cdi_folder.glob("devalloc.io_claim_*")) == []


# -- the whole of it, with a controller --------------------------------------------------------------------------------


@pytest.fixture
def labelled(loaded: Node) -> Iterator[Node]:
    """A node that publishes pools."""
    kube_installed.label(loaded, "pools")
    yield loaded
    kube_installed.label(loaded, None)


@pytest.mark.timeout(900)
def test_the_shipped_controller_is_confined_and_the_label_of_a_node_names_its_receiver(
    labelled: Node, host: FakeHost, tmp_path: Path
) -> None:
    node, state = labelled, tmp_path / "state"
    state.mkdir()
    objects = kube_installed.shipped_manifests(node, "both", VERSION, host.root, state, resource_claims=True)
    with kube_installed.installed(node, objects):
        pod = kube_installed.running(node, CONTROLLER)
        process = kube_installed.process_of(pod)
        status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
        assert set(status["Uid"].split()) == {"65532"}
        assert set(status["Gid"].split()) == {"65532"}
        assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        assert "ro" in kube_installed.mounts(process)["/"]
        kube_installed.running(node, f"{PLUGIN}-pools")
        gives_to_machines(node)

        kube_installed.label(node, "set-aside")
        kube_installed.running(node, f"{PLUGIN}-set-aside")
        gives_to_pods(node)

        kube_installed.label(node, "host")
        kube_installed.running(node, kube_installed.ACCESS)
        serves_as_a_service(node, host, state, tmp_path)
    assert not (state / "cluster" / "token").exists(), "the last pod takes its token along"
    node.cluster.delete(SLICES)


def gives_to_machines(node: Node) -> None:
    """Both cards, from DevicePools, to a DeviceClaim."""
    for name in ("DeviceClass", "DeviceClaim"):
        made = node.cluster.create(DEVICES[name], {"apiVersion": OURS, "kind": name, **WANTED[name]})
        assert made.ok, made.message

    def allocated() -> list[str]:
        for name in (CONTROLLER, f"{PLUGIN}-pools"):
            kube_installed.check(node, kube_installed.pods_of(node.cluster, name))
        claim = node.cluster.get(f"{DEVICES['DeviceClaim']}/image-cards").content
        return sorted(device["deviceName"] for device in claim.get("status", {}).get("allocations", []))

    assert node.wait_until("the claim is allocated", allocated, SECONDS) == ["0000-01-00-0", "0000-02-00-0"]
    node.cluster.delete(f"{DEVICES['DeviceClaim']}/image-cards")
    node.wait_until(
        "the claim is gone",
        lambda: node.cluster.get(f"{DEVICES['DeviceClaim']}/image-cards").status == 404,
        SECONDS,
    )
    node.cluster.delete(f"{DEVICES['DeviceClass']}/image-card")


def gives_to_pods(node: Node) -> None:
    """A card, from ResourceSlices that kube-scheduler may not use, to the labelled claim of a pod."""
    with wanted_by_pods(node, {ALLOCATOR_KEY: DEVALLOC}):
        bed = Bed(node)
        bed.start("ours")
        held = bed.groups("ours")
        assert len(held) == 2, held
        (claim,) = node.cluster.get(CLAIMS).content["items"]
        (given,) = claim["status"]["allocation"]["devices"]["results"]
        assert given["pool"].endswith(".devalloc"), given
        bed.end("ours")
    assert list(node.cdi_folder.glob("devalloc.io_claim_*")) == []


def serves_as_a_service(node: Node, host: FakeHost, state: Path, folder: Path) -> None:
    """A plugin outside pods, with what the pod beside it keeps; also after that pod was replaced."""
    access = state / "cluster"
    node.wait_until("there is a kubeconfig", (access / "environment").exists)
    assert (access / "environment").read_text() == f"DEVALLOC_NODE_NODE_NAME={NODE}\n"
    assert access.stat().st_mode & 0o777 == 0o700

    def published() -> int:
        items = node.cluster.get(f"{POOLS}?fieldSelector=spec.nodeName={NODE}").content["items"]
        return len(items)

    with memory_folder() as memory, plugin_bed(
        host, NODE, Path(memory), folder / "cdi", folder / "kubelet", access / "kubeconfig"
    ) as bed:  # fmt: skip
        bed.start("--publish=pools", ready="VirtualMachines of the cluster")
        host.add(pci_cards.nic("0000:41:00.0"))
        node.wait_until("the service publishes", lambda: published() == 3, SECONDS)
        (pod,) = kube_installed.pods_of(node.cluster, kube_installed.ACCESS)
        before = (access / "token").read_text()
        node.cluster.delete(f"{kube_installed.PODS}/{pod['metadata']['name']}")

        def renewed() -> bool:
            return (access / "token").exists() and (access / "token").read_text() != before

        node.wait_until("the next pod's token is there", renewed, SECONDS)
        host.remove_function("0000:41:00.0")
        node.wait_until("the service goes on", lambda: published() == 2, SECONDS)
