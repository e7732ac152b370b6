"""Settings that several programs and verbs have."""

from __future__ import annotations

import os
from pathlib import Path

from devalloc.settings import (
    EXISTING_FILE,
    BadSetting,
    HostPort,
    OneOf,
    PathTo,
    Setting,
    parse_duration,
    parse_interval,
)
from devalloc_solver.problem.placement_policy import DEFAULT_PLACEMENT, POLICIES

STORE = Setting(
    "File of the embedded store.",
    flag="--store",
    type=PathTo(),  # the store says better what is wrong
    metavar="PATH",
    env="DEVALLOC_STORE",
    unset="/var/lib/devalloc/devalloc.db for root, else ~/.local/state/devalloc/devalloc.db",
    usual=True,
)
KUBECONFIG = Setting(
    "Work for the cluster of this kubeconfig.",
    flag="--kubeconfig",
    type=EXISTING_FILE,
    metavar="PATH",
    env="DEVALLOC_KUBECONFIG",
    usual=True,
)
IN_CLUSTER = Setting(
    "Work for this pod's cluster, with the pod's service account.", flag="--in-cluster", default=False, usual=True
)
PLACEMENT = Setting(
    f"Among equally good answers: {', or '.join(f'{each.preference} ({each.name})' for each in POLICIES)}.",
    flag="--placement",
    type=OneOf([policy.name for policy in POLICIES]),
    default=DEFAULT_PLACEMENT,
    usual=True,
)
OTLP_ENDPOINT = Setting(
    "Send traces of claims to this OpenTelemetry collector, by OTLP over HTTP.",
    flag="--otlp-endpoint",
    metavar="URL",
    env="OTEL_EXPORTER_OTLP_ENDPOINT",
    unset="no traces",
)
CEL_CHECK = Setting(
    "If two evaluators disagree about an expression of a DeviceClaim: refuse its answer (CheckFailed), or only warn.",
    flag="--cel-check",
    type=OneOf(["refuse", "warn"]),
    default="refuse",
)
BATCH_DEADLINE = Setting(
    "Time limit of the solver for one batch of claims; then the best answer so far counts.",
    flag="--deadline",
    type=parse_duration,
    default="10s",
    metavar="DURATION",
)
RESYNC = Setting(
    "Check the devices and all claims this often, even without events.",
    flag="--resync",
    type=parse_interval,
    default="60s",
    metavar="DURATION",
)
HOST_CAPACITY = Setting(
    "Also publish the CPUs, memory and bandwidth that this host offers to VirtualMachines: devalloc then places "
    "machines by them, and starts none that does not fit.",
    flag="--host-capacity",
    default=False,
    env="DEVALLOC_HOST_CAPACITY",
    usual=True,
)
DEFAULT_SOCKET = Path("/run/devalloc/node.sock")
"""Where root's node plugin serves the default store."""
TOKEN_FILE = "page-token"
"""Name of the token's file, beside the store."""
PAGE = Setting(
    "Serve a page with nodes, devices, claims and machines here, such as 127.0.0.1:10301. It asks for a token; a new "
    f"one is printed at every start and kept in {TOKEN_FILE} beside the store. Addresses other than those of this "
    "machine itself use TLS.",
    flag="--page",
    type=HostPort("127.0.0.1:10301"),
    metavar="HOST:PORT",
    usual=True,
)


def store_path(path: Path | None) -> Path:
    """The given path, or this user's default."""
    from devalloc.store.paths import default_path

    if path is not None and not path.name:
        raise BadSetting("--store", f"must name a file, not {str(path)!r}")
    return path if path is not None else default_path()


def is_default_store(store: Path) -> bool:
    """Whether it is this user's default store, regardless of the environment."""
    from devalloc.store.paths import STORE_VARIABLE, default_path

    return store == default_path({name: value for name, value in os.environ.items() if name != STORE_VARIABLE})


def node_state_folder(path: Path | None, store: Path) -> Path:
    """The given state folder of the node plugin, or the one beside the store."""
    return (path if path is not None else store.parent / "node").absolute()
