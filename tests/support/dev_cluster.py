"""A cluster to play with, until Ctrl-C: ``make dev-cluster``.

etcd, API server and controller manager; where this machine can, also the scheduler and a node with a kubelet. Nothing
is left of it in the end.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from devalloc.install.manifests import NAMESPACE
from tests.support import kube_build, kube_controllers, kube_images, kube_node, kube_runc
from tests.support.go_build import Unavailable
from tests.support.kube import Cluster, Processes, running
from tests.support.kube_node import Node, Programs, node_running

NODE = "dev-cluster"
"""Other than the nodes of the examples: these are of nobody, and may be deleted with what they have."""


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
            found = stack.enter_context(running(control_plane, folder / "control-plane"))
            kube_controllers.start(found, node, processes)
            yield found, None, f"no node ({why})"
            return
        programs = Programs(
            control_plane, node, kube_build.runtime_binaries(say), kube_runc.runc(say), kube_images.archive(say)
        )
        one = stack.enter_context(node_running(programs, NODE))
        yield one.cluster, one, f"node {NODE}; pods need hostNetwork and images that are there"


def whole(node: Node) -> list[str]:
    """The commands by which all of devalloc runs on the node as pods. There is neither a network of pods nor one of
    services, no registry, and the kubelet's folder is the test bed's."""
    address = urlsplit(node.cluster.url)
    ctr = f"{node.programs.runtime / 'ctr'} --address {node.folder / 'containerd.sock'} -n k8s.io"
    kubectl, host = f"kubectl -n {NAMESPACE}", '"template":{"spec":{"hostNetwork":true}}'
    # Two would want one port of the host's network, also during an update. The patch comes before the variables: a
    # rolling update that these began would wait for pods that have no network.
    one = '"replicas":1,"strategy":{"$retainKeys":["type"],"type":"Recreate"}'
    return [
        f"make oci-images && for image in dist/devalloc-*.tar; do {ctr} images import $image; done",
        f"devalloc install --kubelet-dir {node.kubelet_folder}",
        f"{kubectl} patch deployment devalloc-controller -p '{{\"spec\":{{{one},{host}}}}}'",
        f"{kubectl} patch daemonset devalloc-node-host -p '{{\"spec\":{{{host}}}}}'",
        f"{kubectl} set env deployments,daemonsets --all"
        f" KUBERNETES_SERVICE_HOST={address.hostname} KUBERNETES_SERVICE_PORT={address.port}",
    ]


def main() -> int:
    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    try:
        kubectl = kube_build.kubectl(say)
        with cluster(say) as (found, node, what):
            print(f"Kubernetes {kube_build.KUBERNETES} is running, with {what}. In another terminal:\n")
            programs = f"{Path(sys.executable).parent}:{kubectl.parent}"
            print(f"  export KUBECONFIG={found.kubeconfig('admin')} PATH={programs}:$PATH")
            print("  devalloc install --only namespace --only crds && devalloc controller --kubeconfig $KUBECONFIG")
            print("  kubectl apply -f examples/whole-gpu && kubectl get dpool,dclass,dclaim\n")
            if node is not None:
                print("Or with all of devalloc in pods, instead of the second line:\n")
                print("".join(f"  {line}\n" for line in whole(node)))
                print("After any further `devalloc install` set patches and variables again: it puts")
                print("its own back. If its new pod then waits for a port: kubectl scale rs OLD --replicas=0.\n")
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
