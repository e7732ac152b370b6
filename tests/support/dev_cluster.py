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

from tests.support import kube_build, kube_controllers, kube_images, kube_node, kube_runc
from tests.support.go_build import Unavailable
from tests.support.kube import Cluster, Processes, running
from tests.support.kube_node import Programs, node_running


@contextmanager
def cluster(say: Callable[[str], None]) -> Iterator[tuple[Cluster, str]]:
    """The cluster, and what there is of it. Raises Unavailable."""
    with ExitStack() as stack:
        control_plane, node = kube_build.binaries(say), kube_build.node_binaries(say)
        if why := kube_node.why_not():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kube-")))
            processes = Processes(folder)
            stack.callback(processes.stop)
            (folder / "control-plane").mkdir()
            found = stack.enter_context(running(control_plane, folder / "control-plane"))
            kube_controllers.start(found, node, processes)
            yield found, f"no node ({why})"
            return
        programs = Programs(
            control_plane, node, kube_build.runtime_binaries(say), kube_runc.runc(say), kube_images.archive(say)
        )
        one = stack.enter_context(node_running(programs))
        yield one.cluster, f"node {kube_node.NODE}; pods need hostNetwork and images that are there"


def main() -> int:
    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    try:
        kubectl = kube_build.kubectl(say)
        with cluster(say) as (found, what):
            print(f"Kubernetes {kube_build.KUBERNETES} is running, with {what}. In another terminal:\n")
            print(f"  export KUBECONFIG={found.kubeconfig('admin')} PATH={kubectl.parent}:$PATH")
            print("  devalloc install --only namespace --only crds && devalloc controller --kubeconfig $KUBECONFIG")
            print("  kubectl apply -f examples/whole-gpu && kubectl get dpool,dclass,dclaim\n")
            print("Ctrl-C stops it, and leaves nothing.", flush=True)
            over.wait()
            print("stopping", flush=True)
    except Unavailable as reason:
        print(f"no Kubernetes: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
