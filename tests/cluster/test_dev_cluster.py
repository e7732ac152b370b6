"""`make dev-cluster` as a person uses it: the commands that it prints are run as they are. devalloc is installed,
changed and taken off, and Ctrl-C leaves nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import kube_node
from tests.support.go_build import untimed
from tests.support.kube_node import leftovers
from tests.support.repository import REPO
from tests.support.waiting import until
from tools.dev_cluster import NODE

LAST_LINE = "Ctrl-C stops it"
OUTSIDE = [Path(name) for name in ("/var/lib/devalloc", "/run/devalloc", "/var/lib/kubelet", "/run/containerd")]
"""Where devalloc, a kubelet and containerd write on a node."""


TOO_LARGE = {
    "apiVersion": "devmgmtproto.k8s.io/v1alpha1",
    "kind": "DeviceClaim",
    "metadata": {"name": "big", "namespace": "team-a"},
    "spec": {"claims": [{"deviceClass": "gpu", "requests": {"count": 4}}]},
}


@dataclass(frozen=True)
class Terminal:
    """Another terminal, as the cluster says that one is used: the lines to type, by how they begin."""

    lines: list[str]
    folder: Path
    """What stands for the checkout: the images are made there."""

    def line(self, beginning: str) -> str:
        (line,) = (line for line in self.lines if line.startswith(beginning))
        return line

    def run(self, command: str) -> str:
        """What a command says, errors among it. Fails where the command does."""
        script = f"{self.line('export ')}\n{command}"
        done = subprocess.run(
            ["bash", "-ec", script],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        return done.stdout

    def newest_runs(self) -> bool:
        """Each replica of the controller is of the newest template, and ready."""
        one = json.loads(self.run("kubectl -n devalloc-system get deployment devalloc-controller -o json"))
        counts = [one["status"].get(name) for name in ("replicas", "updatedReplicas", "availableReplicas")]
        return counts == [1, 1, 1] and one["status"]["observedGeneration"] == one["metadata"]["generation"]


@contextmanager
def dev_cluster(folder: Path) -> Iterator[Terminal]:
    command = [sys.executable, "-m", "tools.dev_cluster"]
    process = subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        printed: list[str] = []
        assert process.stdout is not None
        for line in process.stdout:
            printed.append(line.rstrip())
            if line.startswith(LAST_LINE):
                break
        else:
            pytest.fail(f"it ended with {process.wait()}: {printed}")
        yield Terminal([line.strip() for line in printed if line.startswith("  ")], folder)
        os.killpg(process.pid, signal.SIGINT)  # to all of the group, as a terminal does
        assert process.wait() == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def test_what_it_prints_installs_and_changes_devalloc_and_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    if reason := kube_node.why_not():
        pytest.skip(f"no Kubernetes node: {reason}")
    before = [path for path in OUTSIDE if path.exists()]
    with untimed():
        built = [sys.executable, "-m", "deploy.images", "build"]
        subprocess.run(built, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(REPO)}, check=True, capture_output=True)
    with dev_cluster(tmp_path) as terminal:
        (folder,) = set(re.findall(r"/tmp/kube-[^/\s]+", "\n".join(terminal.lines)))
        assert terminal.run("kubectl get nodes -o name").split() == [f"node/{NODE}"]
        terminal.run(terminal.line("make oci-images").removeprefix("make oci-images && "))
        assert "devalloc-controller created" in terminal.run(terminal.line("devalloc install --image-prefix"))
        until(terminal.newest_runs, "the controller runs", context=lambda: terminal.run("kubectl get pods -A"))

        assert "devalloc-controller configured" in terminal.run("devalloc install --resource-claims")
        until(terminal.newest_runs, "an upgrade is rolled out", context=lambda: terminal.run("kubectl get pods -A"))
        terminal.run(f"kubectl apply -f {REPO / 'examples/whole-gpu'}")
        terminal.run("kubectl wait dclaim/train --for=condition=Allocated --timeout=60s")
        terminal.run(f"kubectl create namespace team-a; kubectl apply -f - <<'END'\n{json.dumps(TOO_LARGE)}\nEND")
        terminal.run("kubectl -n team-a wait dclaim/big --for=jsonpath={.status.reason} --timeout=60s")
        described = terminal.run("kubectl -n team-a describe dclaim big")
        assert "; wait for a claim of another namespace" in described
        assert "default/" not in described
        explained = terminal.run("devalloc explain big -n team-a --kubeconfig $KUBECONFIG || true")
        assert "default/train" in explained, "an admin sees which"

        terminal.run("kubectl drain dev-cluster --ignore-daemonsets --delete-emptydir-data")
        terminal.run("kubectl uncordon dev-cluster")
        until(terminal.newest_runs, "the controller is back", context=lambda: terminal.run("kubectl get pods -A"))
        terminal.run("devalloc uninstall --crds")
        assert "devalloc" not in terminal.run("kubectl get crd,ns,clusterroles,validatingadmissionpolicies -o name")
    assert leftovers(Path(folder)) == []
    assert [path for path in OUTSIDE if path.exists()] == before
