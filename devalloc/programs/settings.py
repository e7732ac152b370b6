"""Settings that several programs and verbs have."""

from __future__ import annotations

from devalloc.settings import OneOf, PathTo, Setting, parse_duration, parse_interval
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
