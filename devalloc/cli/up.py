"""``devalloc up``: everything on this machine, in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from devalloc.cli.display import Display, displayed
from devalloc.cli.options import duration, inventory_options, placement_option, store_option
from devalloc.cli.verb import verb

if TYPE_CHECKING:
    from devalloc.controller.allocate import Round
    from devalloc.controller.publish import Published
    from devalloc.inventory import Discovery, Known


@verb("up")
@store_option
@inventory_options
@click.option("--no-inventory", is_flag=True, help="Answer claims only; publish nothing of this host.")
@click.option(
    "--resync",
    type=duration,
    default="60s",
    metavar="DURATION",
    help="Look at the devices and at all claims this often, even when no event says that something changed.",
)
@placement_option
@click.option(
    "--deadline",
    type=duration,
    default="10s",
    metavar="DURATION",
    help="How long the solver may think about one batch of claims; then the best answer so far counts.",
)
def up(
    store: Path | None,
    sysfs_root: Path,
    node_name: str | None,
    kinds: tuple[str, ...],
    max_vfs: int | None,
    allow_shared_groups: bool,
    no_inventory: bool,
    resync: float,
    placement: str,
    deadline: float,
) -> int:
    """Publish this host's devices and answer claims until Ctrl-C (SIGTERM does the same).

    Only one `devalloc up` runs on a store. It may be killed at any moment and started again. SIGHUP makes it look at
    the devices now. Exit code 0 after a clean stop.
    """
    import socket

    from devalloc.cli.storage import store_path
    from devalloc.controller.allocate import AllocateSettings
    from devalloc.controller.up import Inventory, Up, signals

    node = node_name or socket.gethostname().lower()
    path = store_path(store)

    def look(known: Known) -> Discovery:
        from devalloc.cli.inventory import settings
        from devalloc.inventory import discover

        config = settings(kinds, max_vfs, allow_shared_groups).knowing(known)
        return discover(sysfs_root, node_name=node, config=config)

    with displayed() as display:
        display.say(f"node {node}, store {path}; Ctrl-C stops")
        loops = Up(
            path,
            None if no_inventory else Inventory(node, look),
            settings=AllocateSettings(placement=placement, deadline=deadline, resync=resync),
            resync=resync,
            on_round=lambda done: _answered(display, done),
            on_published=lambda done: _published(display, done),
        )
        with signals(loops):
            loops.run()
        display.say("stopped")
    return 0


def _published(display: Display, done: Published) -> None:
    if done.created or done.updated or done.deleted or done.refused:
        display.say(f"pools: {done}")


def _answered(display: Display, done: Round) -> None:
    for key in done.granted:
        display.say(f"{key} allocated")
    display.state(
        f"pools {done.pools}, devices {done.devices} ({done.available} available), "
        f"claims {done.claims} ({done.allocated} allocated, {done.waiting} waiting)"
    )
