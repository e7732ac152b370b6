"""``devalloc check-host``: what this host has for machines and devices, and what it lacks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from devalloc.cli.command import verb
from devalloc.cli.host_checks import check_host as checks_of
from devalloc.cli.options.common import output_option
from devalloc.cli.render.output import Cell, StyledText, print_objects, print_table, show_spinner

_STYLES = {"ok": "green", "missing": "yellow", "limited": "yellow"}


@verb("check-host")
@click.option(
    "--qemu", default="qemu-system-x86_64", metavar="PROGRAM", envvar="DEVALLOC_QEMU", help="The QEMU program."
)
@click.option(
    "--sysfs-root", default="/", type=click.Path(path_type=Path), metavar="DIR", help="Where /sys and /dev are."
)
@output_option("table", "json", "yaml")
def check_host(qemu: str, sysfs_root: Path, output: str) -> int:
    """Show what this host has for machines and devices: QEMU, KVM, IOMMU, VFIO, UEFI firmware, TPM, nft, huge pages.

    Each line says what the part is needed for. The command changes nothing. Exit code 1 if no machine can start.

    \b
    devalloc check-host
    sudo devalloc check-host -o json
    """
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
