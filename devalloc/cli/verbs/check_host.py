"""``devalloc check-host``: what this host has for machines and devices, and what it lacks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from devalloc.cli.host_checks import check_host as checks_of
from devalloc.cli.render.output import Cell, StyledText, print_objects, print_table, show_spinner

_STYLES = {"ok": "green", "missing": "yellow", "limited": "yellow"}


def check_host(qemu: str, sysfs_root: Path, output: str) -> int:
    with show_spinner("a small guest tries KVM"):
        checks = list(checks_of(sysfs_root, qemu))
    if output == "table":
        rows: list[list[Cell]] = [
            [one.name, StyledText(one.state, _STYLES[one.state]), one.needed_for, one.detail] for one in checks
        ]
        print_table(["CHECK", "STATE", "FOR", "WHAT THERE IS, OR WHAT TO DO"], rows, wide=True)
    else:
        print_objects([asdict(one) for one in checks], output)
    return 1 if any(one.is_required and one.state == "missing" for one in checks) else 0
