"""Options of warm setups, and the node plugin's settings that they come to."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devalloc.cli.command import BadInput
from devalloc.cli.documents import read_manifests
from devalloc.cli.render.output import print_note
from devalloc.settings import setting
from devalloc_node.errors import Denied, NodeError

if TYPE_CHECKING:
    from devalloc.api.virtual_machine import VirtualMachine
    from devalloc_node.machine.machine_files import MachineConfig
    from devalloc_node.warm.setup import WarmConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmOptions:
    """Warm setups, which are ready before a machine needs them."""

    warm_vcpus_per_cpu: int | None = setting(
        "Maximum vCPUs per host CPU, of all taken warm setups.",
        type=click.IntRange(1),
        metavar="NUMBER",
        unset="no maximum, the least loaded CPUs",
    )
    warm_machine: str | None = setting(
        "Keep a paused QEMU in each warm setup: a machine like the VirtualMachine in this file, with a network card on "
        "the TAP interface.",
        type=click.Path(dir_okay=False, exists=True),
        metavar="FILE",
    )
    warm_most: int = setting(
        "Maximum number of warm setups, ready and taken.", type=click.IntRange(1), default=256, metavar="NUMBER"
    )
    ready: int | None = setting(
        "Number of warm setups to keep ready: network namespaces with a TAP interface and a folder, so that machines "
        "start at once; 0 makes them on demand.",
        flag="--warm",
        type=click.IntRange(0),
        metavar="NUMBER",
        unset="no warm setups",
    )


def warm_settings(
    options: WarmOptions, node: str, run_dir: Path, machines: MachineConfig, users: range
) -> WarmConfig | None:
    """The settings of the pool of warm setups; None without --warm, and in a dry run.

    ``run_dir``: the folder of the node plugin's socket. ``users``: of paused machines, if the plugin is root. Raises
    BadInput.
    """
    from devalloc_node.machine.machine_files import AllowedFolder
    from devalloc_node.warm.setup import WarmConfig

    file, most = options.warm_machine, options.warm_most
    if options.ready is None:
        if file is not None:
            raise BadInput("--warm-machine needs --warm, the number of paused machines")
        if options.warm_vcpus_per_cpu is not None:
            raise BadInput("--warm-vcpus-per-cpu needs --warm: it limits the CPUs of warm setups")
        if not machines.dry_run:
            warn_of_setups(run_dir)
    if options.ready is None or machines.dry_run:
        return None
    if options.ready > most:
        raise BadInput(f"--warm: cannot keep {options.ready} warm setups ready, because --warm-most allows {most}")
    waiting = None if file is None else _waiting_machine(file, node)
    own = users if waiting is not None and os.geteuid() == 0 else None
    return WarmConfig(
        options.ready,
        most,
        run=_folder(run_dir),
        users=own,
        machine=waiting,
        # The admin defines the paused machine, so it may use files of every namespace's folder.
        machines=replace(
            machines, users=None, folders=tuple(AllowedFolder(each.path, "any") for each in machines.folders)
        ),
        vcpus_per_cpu=options.warm_vcpus_per_cpu,
    )


def _folder(run_dir: Path) -> Path:
    return run_dir / "warm"


def warn_of_setups(run_dir: Path) -> None:
    """Warn about setups that outlive the plugin that made them: without --warm nothing manages them."""
    from devalloc_node.warm.records import SetupRecords

    records, left = SetupRecords(_folder(run_dir) / "records"), 0
    with suppress(OSError, NodeError):  # they belong to another user, who alone can manage them
        if records.are_kept:
            left = sum(map(len, records.all()))
    if left:
        print_note(
            f"warning: {left} warm setups of another run are in {_folder(run_dir)}; they cannot be taken or returned "
            "without --warm; --warm 0 keeps those that are taken and removes the others"
        )


def _waiting_machine(file: str, node: str) -> VirtualMachine:
    from devalloc.api.virtual_machine import VirtualMachine
    from devalloc_node.warm.paused_machine import check_template

    documents = [document.content for document in read_manifests([file], "default").good]
    if len(documents) != 1 or documents[0]["kind"] != "VirtualMachine":
        raise BadInput(f"--warm-machine: {file} must contain one VirtualMachine, and nothing else")
    machine = VirtualMachine.model_validate(documents[0])
    try:
        check_template(machine)
    except Denied as error:
        raise BadInput(f"--warm-machine: {error.message}") from None
    for ignored, field, why in (
        (machine.spec.scaling is not None, "scaling", "the machine that adopts it sets that"),
        (not machine.spec.running, "running", "it is paused until its owner runs it"),
        (machine.spec.node_name not in (None, node), "nodeName", f"it is on this node, {node}"),
    ):
        if ignored:
            print_note(f"--warm-machine {file}: warning: spec.{field}: is ignored: {why}")
    return machine
