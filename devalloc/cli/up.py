"""``devalloc up``: everything on this machine, in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.display import Display, displayed, say_published
from devalloc.cli.hostpool import host_pool_options
from devalloc.cli.nodeoptions import node_options
from devalloc.cli.options import duration, inventory_options, placement_option, store_option
from devalloc.cli.uppage import page_option
from devalloc.cli.verb import BadInput, Failed, need, verb

if TYPE_CHECKING:
    from devalloc.controller.allocate import Round
    from devalloc.inventory import Discovery, Known


_TURNS_ON = ("enforce_capacity", "host_capacity", "scaling", "warm")
"""Options without which the node plugin does less."""


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
@click.option(
    "--node/--no-node",
    "with_node",
    default=None,
    help="Run the node plugin too, which binds devices and runs machines; by default where it can (as root, with its "
    "packages, on this machine's own devices).",
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
    """Publish this host's devices, answer claims, and run the node plugin, until Ctrl-C (SIGTERM does the same).

    Only one `devalloc up` runs on a store. It may be killed at any moment and started again; machines go on meanwhile.
    SIGHUP makes it look at the devices now. Exit code 0 after a clean stop.
    """
    import socket
    import sys
    from dataclasses import replace

    from devalloc.cli.hostpool import with_host_pool
    from devalloc.cli.nodeoptions import node_settings
    from devalloc.cli.nodesources import cutting_off
    from devalloc.cli.storage import is_default, node_state, store_path
    from devalloc.cli.upnode import Both, UpNode
    from devalloc.cli.uppage import UpPage
    from devalloc.controller.allocate import AllocateSettings
    from devalloc.controller.up import Inventory, Up, signals

    name = node_name or socket.gethostname().lower()
    path = store_path(store)
    state = node_state(options["state"], path)
    # Beside another store another plugin may run, at the usual place.
    door = options["socket"] or (None if is_default(path) else state / "node.sock")

    def look(known: Known) -> Discovery:
        from devalloc.cli.inventory import settings
        from devalloc.cli.nodeoptions import bindings
        from devalloc.inventory import discover

        if plugin is not None and plugin.node is not None:
            return plugin.node.survey.discover(known)
        more = known if plugin is None else replace(plugin.first_look(), held=known.held)
        config = settings(
            options["kinds"], options["max_vfs"], options["allow_shared_groups"], options["adopted"]
        ).knowing(more)
        if plugin is not None:  # what it will not bind is not offered while it begins either
            config = replace(config, allowed=bindings(name, options).allowed)
        return discover(sysfs_root, node_name=name, config=config)

    if with_node is False and (idle := _of_node(env=False)):
        raise BadInput(f"{' and '.join(idle)}: of the node plugin, which does not run with --no-node")
    if page is not None:
        need("aiohttp")
    with displayed() as display, cutting_off(display.say):
        display.say(f"node {name}, store {path}; Ctrl-C stops")
        runs_node = _wants_node(with_node, no_inventory, sysfs_root, display)
        if not runs_node and (idle := _of_node(env=True)):
            why = "--no-inventory" if no_inventory else "--sysfs-root"
            because = f" ({why})" if with_node is None and (no_inventory or sysfs_root != Path("/")) else ""
            display.say(f"WARNING: without the node plugin{because} these have no effect: {', '.join(idle)}")
        # Where no machine is run none is to be placed.
        has_pool = host_capacity and runs_node and not options["dry_run"]
        looked = with_host_pool(look, sysfs_root, name, path, options["limits"]) if has_pool else look
        shown = None if page is None else UpPage(page, path, display.say, on_terminal=sys.stdout.isatty())
        loops = Up(
            path,
            None if no_inventory else Inventory(name, looked),
            settings=AllocateSettings(placement=placement, deadline=deadline, resync=resync),
            resync=resync,
            on_round=lambda done: _answered(display, done),
            on_published=lambda done: say_published(display, done),
            beside=() if shown is None else (shown.run,),
        )
        plugin = None
        if runs_node:
            options |= {"node": name, "sysfs_root": sysfs_root, "state": state, "socket": door, "resync": resync}
            node_settings(**options)  # what is wrong with them is said before anything begins
            plugin = UpNode(path, state, options, rescan=loops.rescan, say=display.say, failed=loops.fail)
        with signals(loops if plugin is None else Both(loops, plugin)):
            try:
                loops.run()
            finally:
                if plugin is not None:
                    plugin.stop()
        display.say("stopped" if plugin is None else "stopped; what is prepared stays so")
    return 0


def _wants_node(asked: bool | None, no_inventory: bool, sysfs_root: Path, display: Display) -> bool:
    """Whether the node plugin is to run here; says why not where somebody may wonder."""
    import os

    from devalloc.cli.upnode import missing

    if asked is False or (asked is None and (no_inventory or sysfs_root != Path("/"))):
        return False
    if asked and no_inventory:
        raise BadInput("--node needs the inventory; leave --no-inventory out, or run `devalloc node` beside it")
    why = missing()
    if asked:
        if why is not None:
            raise Failed(f"the node plugin cannot run here: {why}")
        return True
    if why is None and os.geteuid() != 0:
        why = "it needs root"
    if why is not None:
        display.say(f"without the node plugin, so that devices are allocated and not bound: {why}")
    return why is None


def _of_node(*, env: bool) -> list[str]:
    """Options of the node plugin that were given. ``env``: those too that variables turn on; limits and places, which
    other verbs read from there as well, are not meant then."""
    from click.core import ParameterSource

    context, found = click.get_current_context(), []
    own = {each.name for each in click.command()(host_pool_options(node_options(lambda: None))).params}
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        turned_on = env and source is ParameterSource.ENVIRONMENT and option.name in _TURNS_ON
        if option.name in own and (source is ParameterSource.COMMANDLINE or turned_on):
            found.append(option.opts[0])
    return sorted(found)


def _answered(display: Display, done: Round) -> None:
    for key in done.granted:
        display.say(f"{key} {'placed' if key.kind == 'VirtualMachine' else 'allocated'}")
    display.state(done.in_words)
