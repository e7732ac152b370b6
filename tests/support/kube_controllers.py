"""kube-controller-manager beside an API server: what is deleted goes with all it owns, and pods are made."""

from __future__ import annotations

from pathlib import Path

from tests.support.kube_api import CONTROLLERS, Cluster, Processes


def start(cluster: Cluster, binaries: Path, processes: Processes, *options: str) -> None:
    """Start it. ``binaries``: the folder that holds it; ``options``: more for its command line."""
    config = cluster.kubeconfig(CONTROLLERS)
    processes.start(
        "kube-controller-manager",
        [
            binaries / "kube-controller-manager",
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--bind-address=127.0.0.1",
            "--secure-port=0",
            "--leader-elect=false",
            f"--service-account-private-key-file={cluster.folder / 'sa.key'}",
            "--use-service-account-credentials",
            f"--root-ca-file={cluster.folder / 'certs' / 'apiserver.crt'}",
            *options,
        ],
    )
