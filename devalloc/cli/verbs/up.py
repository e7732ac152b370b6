"""``devalloc up``: everything on this machine, in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.command import BadInput, CommandFailed, require_packages, verb
from devalloc.cli.options.common import inventory_options, parse_duration, placement_option, store_option
from devalloc.cli.options.host_pool_option import host_pool_options
from devalloc.cli.options.node import node_options
from devalloc.cli.render.progress import ProgressDisplay, open_display, show_published
from devalloc.cli.standalone_page import page_option

if TYPE_CHECKING:
    from devalloc.controller.reconcile.device_claims import DeviceClaimRound
    from devalloc.inventory import DeviceRecords, Discovery


_NODE_SWITCHES = ("enforce_capacity", "host_capacity", "scaling", "warm")
"""Options that enable parts of the node plugin."""


@verb("up")
@store_option
@inventory_options
@click.option("--no-inventory", is_flag=True, help="Only allocate claims; do not publish this host's devices.")
@click.option(
    "--resync",
    type=parse_duration,
    default="60s",
    metavar="DURATION",
    help="Check the devices and all claims this often, even without events.",
)
@placement_option
@click.option(
    "--deadline",
    type=parse_duration,
    default="10s",
    metavar="DURATION",
    help="Time limit of the solver for one batch of claims; then the best answer so far counts.",
)
@click.option(
    "--node/--no-node",
    "with_node",
    default=None,
    help="Also run the node plugin, which binds devices and runs machines [default: if it can run: as root, with its "
    "packages, on this machine's own devices].",
)
@page_option
@node_options
@host_pool_options
def up(
    store: Path | None,
    sysfs_root: Path,
    node_name: str | None,
    no_inventory: bool,
    resync: float,
    placement: str,
    deadline: float,
    with_node: bool | None,
    host_capacity: bool,
    page: str | None,
    **options: Any,
) -> int:
    """Publish this host's devices, allocate claims, and run the node plugin, until Ctrl-C or SIGTERM.

    Only one `devalloc up` can run on a store. You can kill it at any moment and start it again; machines keep running.
    SIGHUP makes it check the devices at once. Exit code 0 after a clean stop.
    """
    import socket
    import sys
    from dataclasses import replace

    from devalloc.cli.node_wiring import abandon_hung_threads
    from devalloc.cli.options.host_pool_option import with_host_pool
    from devalloc.cli.options.node import node_settings
    from devalloc.cli.standalone_node import LoopsAndPlugin, StandaloneNode
    from devalloc.cli.standalone_page import StandalonePage
    from devalloc.cli.storage import is_default_store, node_state_folder, store_path
    from devalloc.controller.reconcile.loop import AllocatorSettings
    from devalloc.controller.standalone import InventorySource, Standalone, handling_signals

    name = node_name or socket.gethostname().lower()
    path = store_path(store)
    state = node_state_folder(options["state"], path)
    # With another store, another plugin may run at the default place.
    door = options["socket"] or (None if is_default_store(path) else state / "node.sock")

    def look(records: DeviceRecords) -> Discovery:
        from devalloc.cli.options.inventory import inventory_config
        from devalloc.cli.options.node import binding_config
        from devalloc.inventory import discover

        if plugin is not None and plugin.node is not None:
            return plugin.node.inventory.discover(records)
        more = records if plugin is None else replace(plugin.initial_records(), held=records.held)
        config = inventory_config(
            options["kinds"], options["max_vfs"], options["allow_shared_groups"], options["adopted"]
        ).with_records(more)
        if plugin is not None:  # do not offer devices that it will not bind, not even while it starts
            config = replace(config, allowed=binding_config(name, options).allowed)
        return discover(sysfs_root, node_name=name, config=config)

    if with_node is False and (idle := _given_node_options(env=False)):
        raise BadInput(f"{' and '.join(idle)}: only for the node plugin, which does not run with --no-node")
    if page is not None:
        require_packages("aiohttp")
    with open_display() as display, abandon_hung_threads(display.say):
        display.say(f"node {name}, store {path}; Ctrl-C stops")
        runs_node = _wants_node(with_node, no_inventory, sysfs_root, display)
        if not runs_node and (idle := _given_node_options(env=True)):
            why = "--no-inventory" if no_inventory else "--sysfs-root"
            because = f" ({why})" if with_node is None and (no_inventory or sysfs_root != Path("/")) else ""
            display.say(f"WARNING: without the node plugin{because} these have no effect: {', '.join(idle)}")
        # If no machine can run here, none must be placed here.
        has_pool = host_capacity and runs_node and not options["dry_run"]
        looked = with_host_pool(look, sysfs_root, name, path, options["limits"]) if has_pool else look
        shown = None if page is None else StandalonePage(page, path, display.say, on_terminal=sys.stdout.isatty())
        loops = Standalone(
            path,
            None if no_inventory else InventorySource(name, looked),
            settings=AllocatorSettings(placement=placement, deadline=deadline, resync=resync),
            resync=resync,
            on_round=lambda done: _show_round(display, done),
            on_published=lambda done: show_published(display, done),
            extra_loops=() if shown is None else (shown.run,),
        )
        plugin = None
        if runs_node:
            options |= {"node": name, "sysfs_root": sysfs_root, "state": state, "socket": door, "resync": resync}
            node_settings(**options)  # reports invalid options before anything starts
            plugin = StandaloneNode(path, state, options, rescan=loops.rescan, say=display.say, failed=loops.fail)
        with handling_signals(loops if plugin is None else LoopsAndPlugin(loops, plugin)):
            try:
                loops.run()
            finally:
                if plugin is not None:
                    plugin.stop()
        display.say("stopped" if plugin is None else "stopped; prepared claims stay prepared")
    return 0


def _wants_node(requested: bool | None, no_inventory: bool, sysfs_root: Path, display: ProgressDisplay) -> bool:
    """Whether to run the node plugin here; reports why not if that is not obvious."""
    import os

    from devalloc.cli.standalone_node import missing_requirement

    if requested is False or (requested is None and (no_inventory or sysfs_root != Path("/"))):
        return False
    if requested and no_inventory:
        raise BadInput("--node needs the inventory; leave out --no-inventory, or run `devalloc node` separately")
    why = missing_requirement()
    if requested:
        if why is not None:
            raise CommandFailed(f"the node plugin cannot run here: {why}")
        return True
    if why is None and os.geteuid() != 0:
        why = "it needs root"
    if why is not None:
        display.say(f"no node plugin, so devices are allocated but not bound: {why}")
    return why is None


def _given_node_options(*, env: bool) -> list[str]:
    """Options of the node plugin that were given. ``env``: include those that variables turn on, except limits and
    paths, which other verbs also read."""
    from click.core import ParameterSource

    context, given = click.get_current_context(), []
    own = {each.name for each in click.command()(host_pool_options(node_options(lambda: None))).params}
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        turned_on = env and source is ParameterSource.ENVIRONMENT and option.name in _NODE_SWITCHES
        if option.name in own and (source is ParameterSource.COMMANDLINE or turned_on):
            given.append(option.opts[0])
    return sorted(given)


def _show_round(display: ProgressDisplay, done: DeviceClaimRound) -> None:
    for key in done.granted:
        display.say(f"{key} {'placed' if key.kind == 'VirtualMachine' else 'allocated'}")
    display.state(done.in_words)
