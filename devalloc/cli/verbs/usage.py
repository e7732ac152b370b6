"""``devalloc usage``: who used which devices, CPUs and memory in a month, and for how long."""

from __future__ import annotations

import time

from devalloc.cli.command import BadInput, CommandFailed
from devalloc.cli.options.places import StoreTarget
from devalloc.cli.render.output import print_content, print_table
from devalloc.cli.target import connect_cluster, open_target
from devalloc.cli.terminal import print_note
from devalloc.store import StoreError
from devalloc.usage.accounting.accountant import NAMESPACE
from devalloc.usage.accounting.report import UsageReport, grouped, parse_month, read_report, report_json


def usage(
    month: str,
    by: str,
    namespace: str | None,
    controller_namespace: str,
    no_headers: bool,
    output: str,
    place: StoreTarget,
) -> int:
    try:
        wanted = parse_month(month, round(time.time() * 1000))
    except ValueError:
        raise BadInput(f"--month must be this, last, or a month such as 2026-11, not {month!r}") from None
    report = grouped(_read(place, controller_namespace, wanted), by, namespace)
    if output != "table":
        print_content(report_json(report), output)
        return 0
    rows = [
        [
            key.namespace,
            *([] if by in ("class", "namespace") else [key.machine]),
            *([] if by in ("machine", "namespace") else [key.device_class]),
            *([key.device] if by == "device" else []),
            _hours(total.whole),
            _hours(total.shared),
            _hours(total.cpu / 1000),
            _hours(total.memory / 2**30),
        ]
        for key, total in report.rows.items()
    ]
    names = {"device": ["MACHINE", "CLASS", "DEVICE"], "machine": ["MACHINE"], "class": ["CLASS"], "namespace": []}
    print_table(["NAMESPACE", *names[by], "HOURS", "SHARES", "CPU-HOURS", "GIB-HOURS"], rows, no_headers=no_headers)
    whose = "" if namespace is None else f" for namespace {namespace}"
    what = wanted if report.rows else f"nothing was counted in {wanted}{whose}"
    until = "" if report.until is None else f", counted until {report_json(report)['until']}"
    print_note(f"{what}{until}")
    return 0


def _read(place: StoreTarget, controller_namespace: str, month: str) -> UsageReport:
    """Raises CommandFailed."""
    try:
        if place.is_cluster:
            from devalloc.programs.controller import ObjectClient

            client = connect_cluster(place.kubeconfig)
            return read_report(ObjectClient(client, controller_namespace), controller_namespace, month)
        with open_target(place) as store:
            return read_report(store, NAMESPACE, month)
    except StoreError as error:
        raise CommandFailed(f"cannot read the usage of {month}: {error}") from error


def _hours(milliseconds: float) -> str:
    """Hours with as many digits as say something; empty for none."""
    hours = milliseconds / 3_600_000
    return "" if not hours else f"{hours:.1f}" if hours >= 100 else f"{hours:.3f}"
