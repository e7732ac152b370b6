"""``devalloc up``: everything on this machine, in the foreground."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from devalloc.cli.command import BadInput, CommandFailed, require_packages, verb
from devalloc.cli.options.common import settings_options, tracing
from devalloc.cli.options.inventory import InventoryOptions
from devalloc.cli.options.migrations import MigrationOptions
from devalloc.cli.options.node import PluginOptions, check_published
from devalloc.cli.render.output import ProgressDisplay, open_display, show_published
from devalloc.cli.storage import is_default_store, node_state_folder, open_embedded_store, store_path
from devalloc.cli.up_parts import (
    PAGE,
    LoopsAndPlugin,
    MachineLog,
    StandaloneNode,
    StandalonePage,
    heartbeat,
    missing_requirement,
    previous_name,
)
from devalloc.programs.settings import BATCH_DEADLINE, CEL_CHECK, HOST_CAPACITY, OTLP_ENDPOINT, PLACEMENT, RESYNC, STORE
from devalloc.settings import declared, group, setting, settings_of

if TYPE_CHECKING:
    from devalloc.api.virtual_machine import VirtualMachine
    from devalloc.controller.host_inventory import DiscoverFunction
    from devalloc.controller.reconcile.device_claims import DeviceClaimRound
    from devalloc.inventory.config import DeviceRecords
    from devalloc.inventory.discover import Discovery
    from devalloc.store import Key


_NODE_SWITCHES = ("enforce_capacity", "host_capacity", "scaling", "warm")
"""Options that enable parts of the node plugin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """Everything on one machine."""

    store: Path | None = declared(STORE)
    inventory: InventoryOptions = group(InventoryOptions)
    no_inventory: bool = setting("Only allocate claims; do not publish this host's devices.", default=False, usual=True)
    resync: float = declared(RESYNC)
    placement: str = declared(PLACEMENT)
    cel_check: str = declared(CEL_CHECK)
    deadline: float = declared(BATCH_DEADLINE)
    with_node: bool | None = setting(
        "Also run the node plugin, which binds devices and runs machines.",
        flag="--node/--no-node",
        unset="if it can run: as root or with options of it, with its packages, on this machine's own devices",
        usual=True,
    )
    page: str | None = declared(PAGE)
    plugin: PluginOptions = group(PluginOptions)
    migrations: MigrationOptions = group(MigrationOptions)
    host_capacity: bool = declared(HOST_CAPACITY)
    otlp_endpoint: str | None = declared(OTLP_ENDPOINT)


@verb("up")
@settings_options(UpOptions, "options")
def up(options: UpOptions) -> int:
    """Publish this host's devices, allocate claims, and run the node plugin, until Ctrl-C or SIGTERM.

    Only one `devalloc up` can run on a store. You can kill it at any moment and start it again; machines keep running.
    SIGHUP makes it check the devices at once. Exit code 0 after a clean stop.
    """

    from devalloc.cli.node_machines import machines_with_disk
    from devalloc.cli.node_wiring import abandon_hung_threads
    from devalloc.cli.options.node import node_settings
    from devalloc.controller.host_inventory import with_host_pool
    from devalloc.controller.reconcile.loop import AllocatorSettings
    from devalloc.controller.standalone import InventorySource, Standalone, handling_signals
    from devalloc.store.paths import hold_store, prepare_folder

    inventory, root, page = options.inventory, options.inventory.sysfs_root, options.page
    name, path = inventory.node, store_path(options.store)
    state = node_state_folder(options.plugin.state, path)
    # With another store, another plugin may run at the default place.
    door = options.plugin.socket or (None if is_default_store(path) else state / "node.sock")
    plugin_options = replace(options.plugin, state=state, socket=door)

    def look(records: DeviceRecords) -> Discovery:
        from devalloc.inventory.discover import discover

        if plugin is not None and plugin.node is not None:
            return plugin.node.inventory.discover(records)
        more = records if plugin is None else replace(plugin.initial_records(), held=records.held)
        config = replace(inventory.config, records=more)
        if plugin is not None:  # do not offer devices that it will not bind, not even while it starts
            config = replace(config, allowed=plugin_options.allowed_kinds())
        return discover(root, node_name=name, config=config)

    if options.with_node is False and (idle := _given_node_options(env=False)):
        raise BadInput(f"{' and '.join(idle)}: only for the node plugin, which does not run with --no-node")
    check_published(plugin_options, host_capacity=options.host_capacity)
    if page is not None:
        require_packages("jinja2", "aiohttp")
    traced = tracing(options.otlp_endpoint, "devalloc-up", name)
    with open_display() as display, abandon_hung_threads(display.say), traced:
        prepare_folder(path)
        with hold_store(path):  # another `devalloc up` is reported before anything else
            display.say(f"node {name}, store {path}; Ctrl-C stops")
        runs_node = _wants_node(options, display)
        if runs_node or not options.no_inventory:
            inventory.check_node_name()
        if not runs_node and (idle := _given_node_options(env=True)):
            why = "--no-inventory" if options.no_inventory else "--sysfs-root"
            because = f" ({why})" if options.with_node is None and _looks_elsewhere(options) else ""
            display.say(f"WARNING: without the node plugin{because} these have no effect: {', '.join(idle)}")
        # If no machine can run here, none must be placed here.
        has_pool = options.host_capacity and runs_node and not plugin_options.dry_run
        shared, receives = plugin_options.access.shared_storage, plugin_options.machines.migration_address is not None

        def reserving() -> list[VirtualMachine]:
            with open_embedded_store(path, create=True) as objects:
                return machines_with_disk(objects, name)

        looked: DiscoverFunction = look
        if has_pool:
            config = plugin_options.limits.checked(path.parent)
            looked = with_host_pool(look, root, name, config, shared, reserving, live_migration=receives)
        shown = None if page is None else StandalonePage(page, path, display.say, on_terminal=sys.stdout.isatty())
        if shown is not None:
            shown.check_port()
        loops = Standalone(
            path,
            None
            if options.no_inventory
            else InventorySource(
                name,
                looked,
                with_plugin=runs_node and not plugin_options.dry_run,
                stop_plugin=lambda: plugin is None or plugin.stop(),
                previous_name=previous_name(state) if runs_node else None,
            ),
            settings=AllocatorSettings(
                placement=options.placement,
                cel_check=options.cel_check,
                deadline=options.deadline,
                resync=options.resync,
                migrations=options.migrations.limits,
            ),
            resync=options.resync,
            on_round=lambda done: _show_round(display, done),
            on_published=lambda done: show_published(display, done),
            extra_loops=(
                MachineLog(display.say).run,
                lambda store, stop: heartbeat(loops, lambda: plugin).run(stop),
                *(() if shown is None else (shown.run,)),
            ),
        )
        loops.on_granted = lambda keys: _show_granted(display, keys)
        plugin: StandaloneNode | None = None
        if runs_node:
            settings = partial(node_settings, inventory, plugin_options, options.resync, migrations=options.migrations)
            settings()  # reports invalid options before anything starts
            plugin = StandaloneNode(
                path,
                state,
                name,
                settings,
                rescan=loops.rescan,
                say=display.say,
                failed=loops.fail,
            )
        with handling_signals(loops if plugin is None else LoopsAndPlugin(loops, plugin)):
            loops.run()
        display.say("stopped" if plugin is None else "stopped; prepared claims stay prepared, and machines run on")
    return 0


def _looks_elsewhere(options: UpOptions) -> bool:
    """Whether the devices are not those of this machine, or not published."""
    return options.no_inventory or options.inventory.sysfs_root != Path("/")


def _wants_node(options: UpOptions, display: ProgressDisplay) -> bool:
    """Whether to run the node plugin here; reports why not if that is not obvious."""

    requested = options.with_node
    if requested is False or (requested is None and _looks_elsewhere(options)):
        return False
    if requested and options.no_inventory:
        raise BadInput("--node needs the inventory; leave out --no-inventory, or run `devalloc node` separately")
    why = missing_requirement()
    if requested:
        if why is not None:
            raise CommandFailed(f"the node plugin cannot run here: {why}")
        return True
    # Who gives options of it wants it: without root it binds nothing, but runs machines.
    if why is None and os.geteuid() != 0 and not _given_node_options(env=True):
        why = "it needs root; --node runs machines without devices"
    if why is not None:
        display.say(f"no node plugin, so devices are allocated but not bound: {why}")
    return why is None


def _given_node_options(*, env: bool) -> list[str]:
    """Options of the node plugin that were given. ``env``: include those that variables turn on, except limits and
    paths, which other verbs also read."""

    context, given = click.get_current_context(), []
    own = {each.parameter for each in (*settings_of(PluginOptions), HOST_CAPACITY)}
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        turned_on = env and source is ParameterSource.ENVIRONMENT and option.name in _NODE_SWITCHES
        if option.name in own and (source is ParameterSource.COMMANDLINE or turned_on):
            given.append(option.opts[0])
    return sorted(given)


def _show_granted(display: ProgressDisplay, keys: Iterable[Key]) -> None:
    for key in keys:
        display.say(f"{key} allocated")


def _show_round(display: ProgressDisplay, done: DeviceClaimRound) -> None:
    for key in done.granted:
        display.say(f"{key} {'placed' if key.kind == 'VirtualMachine' else 'allocated'}")
    display.state(done.in_words)
