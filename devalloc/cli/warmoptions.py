"""Options of the node plugin about warm setups: what they come to."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from devalloc.cli.output import note
from devalloc.cli.verb import BadInput

if TYPE_CHECKING:
    from devalloc.api.virtualmachine import VirtualMachine
    from devalloc_node.machine.config import MachineConfig
    from devalloc_node.warm.setup import WarmConfig


def warm_settings(
    sizes: tuple[int, int, int | None],
    file: str | None,
    node: str,
    beside: Path,
    machines: MachineConfig,
    users: range,
) -> WarmConfig:
    """``sizes``: setups that are ready, setups in all, and vCPUs for each CPU. ``file``: a machine that waits in each.
    ``beside``: the folder of the node plugin's socket. ``users``: of machines that wait, where the plugin is root.
    Raises BadInput."""
    from devalloc_node.machine.config import Folder
    from devalloc_node.warm.setup import WarmConfig

    target, most, vcpus = sizes
    if target > most:
        raise BadInput(f"--warm: {target} warm setups cannot be kept ready where --warm-most allows {most}")
    waiting = None if file is None else _waiting_machine(file, node)
    own = users if waiting is not None and os.geteuid() == 0 else None
    return WarmConfig(
        target,
        most,
        run=_folder(beside),
        users=own,
        machine=waiting,
        # The machine that waits is the admin's own words: it may name what lies in any namespace's folder.
        machines=replace(machines, users=None, folders=tuple(Folder(each.path, "any") for each in machines.folders)),
        vcpus_per_cpu=vcpus,
    )


def _folder(beside: Path) -> Path:
    return beside / "warm"


def tell_of_setups(beside: Path) -> None:
    """Those of a run that was killed, or that somebody has, outlive it; without --warm nobody looks after them."""
    from devalloc_node.errors import NodeError
    from devalloc_node.warm.records import Records

    records, left = Records(_folder(beside) / "records"), 0
    with suppress(OSError, NodeError):  # another user's, who alone may look after them
        if records.are_kept:
            left = sum(map(len, records.all()))
    if left:
        note(
            f"warning: {left} warm setups of another run are in {_folder(beside)}, and cannot be taken or "
            "returned without --warm; --warm 0 keeps those that are taken and removes the others"
        )


def _waiting_machine(file: str, node: str) -> VirtualMachine:
    from devalloc.api.virtualmachine import VirtualMachine
    from devalloc.cli.documents import read
    from devalloc_node.errors import Denied
    from devalloc_node.warm.paused import check_template

    found = [document.content for document in read([file], "default").good]
    if len(found) != 1 or found[0]["kind"] != "VirtualMachine":
        raise BadInput(f"--warm-machine: {file} must hold one VirtualMachine, and nothing else")
    machine = VirtualMachine.model_validate(found[0])
    try:
        check_template(machine)
    except Denied as error:
        raise BadInput(f"--warm-machine: {error.message}") from None
    for ignored, field, why in (
        (machine.spec.scaling is not None, "scaling", "the machine that adopts one says that"),
        (not machine.spec.running, "running", "it waits, and its owner lets it run"),
        (machine.spec.node_name not in (None, node), "nodeName", f"it waits on this node, {node}"),
    ):
        if ignored:
            note(f"--warm-machine {file}: warning: spec.{field}: is ignored: {why}")
    return machine
