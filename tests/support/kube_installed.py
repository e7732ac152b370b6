"""devalloc on the test bed's node as it is shipped: the images of ``deploy/images`` and the manifests of ``deploy/``.

What is changed in the manifests is only what the test bed has elsewhere, and all of it here: the API server is on
loopback (pods use the host's network, and get the address), folders of the kubelet and of CDI are the test bed's,
the plugin's state is in a folder of the test, and the kernel's /sys is a fake tree, for no test binds a real device.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from devalloc.install.manifests import InstallOptions, Publish, object_collection_path, object_path, render_manifests
from tests.support.kube_api import Cluster
from tests.support.kube_node import NODE, Node
from tests.support.ports import free_ports

NAMESPACE = "devalloc-system"
IMAGE_PREFIX = "localhost/"
"""Of images that were loaded onto the node, as `make oci-images` names them."""
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
PUBLISH = "devalloc.io/publish"
"""The label by which a node says what it publishes."""
ACCESS = "devalloc-node-host"
SECONDS = 180.0
"""For what a machine does in five that has nothing else to do."""
Object = dict[str, Any]


def shipped_manifests(
    node: Node, publish: Publish, tag: str, host: Path, state: Path, *, resource_claims: bool = False
) -> list[Object]:
    """All of it where nodes publish their devices so. ``host``: where the fake /sys is; ``state``: for the journal, and
    below it ``cluster`` for what a service of the host reaches the cluster by."""
    options = InstallOptions(
        publish=publish,
        image_prefix=IMAGE_PREFIX,
        version=tag,
        kubelet_dir=str(node.kubelet_folder),
        resource_claims=resource_claims,
    )
    objects = render_manifests(options)
    for one in objects:
        if one["metadata"]["name"] == ACCESS:
            pod = _adapted(one, node.cluster, [])
            pod["hostNetwork"] = True
            (folder,) = (volume for volume in pod["volumes"] if volume["name"] == "access")
            folder["hostPath"]["path"] = str(state / "cluster")
        elif one["kind"] == "DaemonSet":
            pod = _adapted(one, node.cluster, ["--resync=2s", "--grace=1s", f"--sysfs-root={host}"])
            pod["volumes"].append({"name": "host", "hostPath": {"path": str(host), "type": "Directory"}})
            pod["containers"][0]["volumeMounts"].append({"name": "host", "mountPath": str(host)})
            moved = {"state": state, "cdi": node.cdi_folder, "modules": host}
            for volume in pod["volumes"]:
                if volume["name"] in moved:
                    volume["hostPath"]["path"] = str(moved[volume["name"]])
        elif one["kind"] == "Deployment":
            one["spec"]["replicas"] = 1  # two would want one port of the host's network
            one["spec"]["strategy"] = {"type": "Recreate"}
            port, health = free_ports(2)  # of the host's network, in which others may run the same test
            pod = _adapted(one, node.cluster, [f"--listen=0.0.0.0:{port}", f"--health-listen=0.0.0.0:{health}"])
            pod["hostNetwork"] = True
            ports = {"https": port, "health": health}
            pod["containers"][0]["ports"] = [{"name": name, "containerPort": at} for name, at in ports.items()]
    return objects


@contextmanager
def installed(node: Node, objects: Sequence[Object]) -> Iterator[None]:
    """The objects are on the cluster, and in the end those are gone that were not there before; accounts stay, for
    others may have a token."""
    made = create(node.cluster, objects)
    try:
        yield
    finally:
        for path in made:
            if "/apis/apps/" in path:
                node.cluster.delete(path)
                name = path.rpartition("/")[2]
                node.wait_until(f"{name} has ended", lambda name=name: not pods_of(node.cluster, name), SECONDS)
        for path in made:
            if f"/namespaces/{NAMESPACE}" not in path:
                node.cluster.delete(path)


def create(cluster: Cluster, objects: Sequence[Object]) -> list[str]:
    """Create what is not there yet; the paths of what was made, the last one first."""
    made = []
    for one in objects:
        answer = cluster.create(object_collection_path(one), one)
        assert answer.ok or answer.status == 409, f"{one['kind']} {one['metadata']['name']}: {answer.message}"
        if answer.ok:
            made.append(object_path(one))
    return made[::-1]


def label(node: Node, value: str | None) -> None:
    """Say what the node is to publish; None: take the label away."""

    def done() -> bool:
        obj_node = node.cluster.get(f"/api/v1/nodes/{NODE}").content
        labels = {name: text for name, text in obj_node["metadata"]["labels"].items() if name != PUBLISH}
        obj_node["metadata"]["labels"] = labels | ({} if value is None else {PUBLISH: value})
        return node.cluster.replace(f"/api/v1/nodes/{NODE}", obj_node).ok  # not where the kubelet has written meanwhile

    node.wait_until(f"the node has the label {value}", done)


def pods_of(cluster: Cluster, name: str) -> list[Object]:
    """The pods of a DaemonSet or Deployment, oldest first."""
    items: list[Object] = cluster.get(f"{PODS}?labelSelector=app.kubernetes.io%2Fname%3D{name}").content["items"]
    return sorted(items, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))


def running(node: Node, name: str) -> Object:
    """The one pod of a DaemonSet or Deployment, once it is ready and no other is there. Fails where devalloc ended."""

    def alone() -> Object | None:
        pods = pods_of(node.cluster, name)
        check(node, pods)
        return pods[0] if len(pods) == 1 and is_ready(pods[0]) else None

    pod: Object = node.wait_until(f"one pod of {name} is ready", alone, SECONDS)
    return pod


def is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def check(node: Node, pods: Sequence[Object]) -> None:
    """Fails with what it said where devalloc ended in one of them."""
    for pod in pods:
        for container in pod["status"].get("containerStatuses", []):
            ended = container["restartCount"] or "terminated" in container["state"]
            assert not ended or "deletionTimestamp" in pod["metadata"], log_lines(node, pod)


def log_lines(node: Node, pod: Object) -> list[dict[str, Any]]:
    """What it wrote to its log, line by line; a line that is not JSON stands under ``text``."""
    return [_parsed(line) for line in node.output(pod["metadata"]["name"], NAMESPACE)]


def process_of(pod: Object) -> Path:
    """The folder in /proc of the pod's devalloc, as this machine sees it."""
    uid = pod["metadata"]["uid"]
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if uid in (folder / "cgroup").read_text() and b"/usr/bin/devalloc" in (folder / "cmdline").read_bytes():
                return folder
        except OSError:
            continue
    raise AssertionError(f"pod {pod['metadata']['name']} has no process")


def mounts(process: Path) -> dict[str, list[str]]:
    """The options of what is mounted where in a process's container."""
    lines = [line.split() for line in (process / "mountinfo").read_text().splitlines()]
    return {line[4]: line[5].split(",") for line in lines}


def _adapted(one: Object, cluster: Cluster, more: Sequence[str]) -> Object:
    """Its pod's spec, which is changed."""
    pod: Object = one["spec"]["template"]["spec"]
    address = urlsplit(cluster.url)
    container = pod["containers"][0]
    container["env"] += [
        {"name": "KUBERNETES_SERVICE_HOST", "value": str(address.hostname)},
        {"name": "KUBERNETES_SERVICE_PORT", "value": str(address.port)},
    ]
    container["args"] += more
    pod["terminationGracePeriodSeconds"] = 10
    return pod


def _parsed(line: str) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except ValueError:
        return {"text": line}
    return content if isinstance(content, dict) else {"text": line}
