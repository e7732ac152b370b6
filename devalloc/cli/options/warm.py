"""The node plugin's settings for warm setups, from its options."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from devalloc.cli.command import BadInput
from devalloc.cli.render.output import print_note

if TYPE_CHECKING:
    from devalloc.api.virtual_machine import VirtualMachine
    from devalloc_node.machine.paths import MachineConfig
    from devalloc_node.warm.setup import WarmConfig


def warm_settings(
    sizes: tuple[int, int, int | None],
    file: str | None,
    node: str,
    run_dir: Path,
    machines: MachineConfig,
    users: range,
) -> WarmConfig:
    """``sizes``: ready setups, setups in all, and vCPUs per CPU. ``file``: the paused machine of each setup.
    ``run_dir``: the folder of the node plugin's socket. ``users``: of paused machines, if the plugin is root. Raises
    BadInput."""
    from devalloc_node.machine.paths import AllowedFolder
    from devalloc_node.warm.setup import WarmConfig

    target, most, vcpus = sizes
    if target > most:
        raise BadInput(f"--warm: cannot keep {target} warm setups ready, because --warm-most allows {most}")
    waiting = None if file is None else _waiting_machine(file, node)
    own = users if waiting is not None and os.geteuid() == 0 else None
    return WarmConfig(
        target,
        most,
        run=_folder(run_dir),
        users=own,
        machine=waiting,
        # The admin defines the paused machine, so it may use files of every namespace's folder.
        machines=replace(
            machines, users=None, folders=tuple(AllowedFolder(each.path, "any") for each in machines.folders)
        ),
        vcpus_per_cpu=vcpus,
    )


def _folder(run_dir: Path) -> Path:
    return run_dir / "warm"


def warn_of_setups(run_dir: Path) -> None:
    """Warn about setups that outlive the plugin that made them: without --warm nothing manages them."""
    from devalloc_node.errors import NodeError
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
    from devalloc.cli.documents import read_manifests
    from devalloc_node.errors import Denied
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
