"""A cluster to play with, until Ctrl-C: ``make dev-cluster``.

etcd, API server and controller manager; where this machine can, also the scheduler and a node with a kubelet. Nothing
is left of it in the end.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from devalloc.version import VERSION
from tests.support import kube_build, kube_controllers, kube_images, kube_node, kube_runc
from tests.support.go_build import Unavailable
from tests.support.kube_api import Cluster, Processes, running
from tests.support.kube_node import Node, Programs, node_running

NODE = "dev-cluster"
"""Other than the nodes of the examples: these have no owner, and may be deleted with what they have."""
ADMISSION = "admissionregistration.k8s.io/v1"


@contextmanager
def cluster(say: Callable[[str], None]) -> Iterator[tuple[Cluster, Node | None, str]]:
    """The cluster, its node if it has one, and what there is of it. Raises Unavailable."""
    with ExitStack() as stack:
        control_plane, node = kube_build.binaries(say), kube_build.node_binaries(say)
        if why := kube_node.why_not():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kube-")))
            processes = Processes(folder)
            stack.callback(processes.stop)
            (folder / "control-plane").mkdir()
            started = stack.enter_context(running(control_plane, folder / "control-plane"))
            kube_controllers.start(started, node, processes)
            yield started, None, f"no node ({why})"
            return
        programs = Programs(
            control_plane, node, kube_build.runtime_binaries(say), kube_runc.runc(say), kube_images.archive(say)
        )
        one = stack.enter_context(node_running(programs, NODE))
        adapt_pods(one.cluster)
        yield one.cluster, one, f"node {NODE}; pods need images that are there"


def adapt_pods(cluster: Cluster) -> None:
    """Have the API server change what this node cannot run as it is: there is no network of pods and none of services,
    so pods are in the host's network and get the address of the API server, and of a Deployment with a port of that
    network one pod runs at a time. Objects that users and installers send stay as they are."""
    address = urlsplit(cluster.url)
    variables = {"KUBERNETES_SERVICE_HOST": address.hostname, "KUBERNETES_SERVICE_PORT": str(address.port)}
    env = ", ".join(
        f"Object.spec.containers.env{{name: {json.dumps(name)}, value: {json.dumps(value)}}}"
        for name, value in variables.items()
    )
    pods = (
        "Object{spec: Object.spec{hostNetwork: true, containers: object.spec.containers.map(c, "
        f"Object.spec.containers{{name: c.name, env: [{env}]}})}}}}"
    )
    strategy = (
        '[JSONPatch{op: "replace", path: "/spec/replicas", value: 1}, '
        'JSONPatch{op: "add", path: "/spec/strategy", value: Object.spec.strategy{type: "Recreate"}}]'
    )
    for name, group, resource, mutation in (
        ("host-network", "", "pods", {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": pods}}),
        ("one-replica", "apps", "deployments", {"patchType": "JSONPatch", "jsonPatch": {"expression": strategy}}),
    ):
        rule = {"apiGroups": [group], "apiVersions": ["v1"], "resources": [resource]}
        operations = ["CREATE"] if resource == "pods" else ["CREATE", "UPDATE"]
        spec = {
            "matchConstraints": {"resourceRules": [{**rule, "operations": operations}]},
            "mutations": [mutation],
            "reinvocationPolicy": "Never",
        }
        for plural, content in (
            ("mutatingadmissionpolicies", spec),
            ("mutatingadmissionpolicybindings", {"policyName": name}),
        ):
            answer = cluster.create(f"/apis/{ADMISSION}/{plural}", {"metadata": {"name": name}, "spec": content})
            if not answer.ok:
                raise Unavailable(f"{plural} {name}: {answer.message}")


def whole(node: Node) -> list[str]:
    """The commands by which all of devalloc runs on the node as pods. There is no registry, and the kubelet's folder is
    the test bed's."""
    ctr = f"{node.programs.runtime / 'ctr'} --address {node.folder / 'containerd.sock'} -n k8s.io"
    return [
        f"make oci-images && for image in dist/devalloc-*-{VERSION}.tar; do {ctr} images import $image; done",
        f"devalloc install --image-prefix localhost/ --kubelet-dir {node.kubelet_folder}",
    ]


def main() -> int:
    about = "A Kubernetes to try things out, until Ctrl-C; as root also with a node."
    price = "The first start builds it: some 20 minutes, 1.9 GB to download, 8 GB of disk (`make build-plan`)."
    argparse.ArgumentParser(prog="python -m tools.dev_cluster", description=about, epilog=price).parse_args()

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    try:
        kubectl = kube_build.kubectl(say)
        with cluster(say) as (running_cluster, node, what):
            print(f"Kubernetes {kube_build.KUBERNETES} is running, with {what}. In another terminal:\n")
            programs = f"{Path(sys.executable).parent}:{kubectl.parent}"
            print(f"  export KUBECONFIG={running_cluster.kubeconfig('admin')} PATH={programs}:$PATH")
            print("  devalloc install --only namespace --only crds && devalloc controller --kubeconfig $KUBECONFIG")
            print("  kubectl apply -f examples/whole-gpu && kubectl get dpool,dclass,dclaim\n")
            if node is not None:
                print("Or with all of devalloc in pods, instead of the second line:\n")
                print("".join(f"  {line}\n" for line in whole(node)))
                print("Pods are put into the host's network, and Deployments run one pod.")
                print(f"`kubectl logs` does not find the node; what pods say is in {node.folder / 'logs'}.")
            print("Ctrl-C stops it, and leaves nothing.", flush=True)
            over.wait()
            print("stopping", flush=True)
    except Unavailable as reason:
        print(f"no Kubernetes: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
