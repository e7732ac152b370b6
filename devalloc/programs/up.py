"""``devalloc up``: everything on this machine in one process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from devalloc.api.virtual_machine import VirtualMachine
from devalloc.controller.host_inventory import DiscoverFunction, InventorySource, machines_with_disk, with_host_pool
from devalloc.controller.reconcile.device_claims import DeviceClaimRound
from devalloc.controller.reconcile.loop import AllocatorSettings
from devalloc.inventory.config import DeviceRecords
from devalloc.inventory.discover import Discovery, discover
from devalloc.program import Program, ProgramFailed, ProgressDisplay
from devalloc.programs.machine_log import MachineLog
from devalloc.programs.node_options import check_published, node_settings
from devalloc.programs.options import UpOptions
from devalloc.programs.settings import (
    node_state_folder,
    store_path,
)
from devalloc.programs.store_loops import StoreProgress, show_published, store_program
from devalloc.service_manager import Heartbeat, Round, ServiceManager
from devalloc.settings import BadSetting
from devalloc.store import Key
from devalloc.store.paths import check_not_held, prepare_folder
from devalloc.store.sqlite import SQLiteStore

if TYPE_CHECKING:  # it needs those
    from devalloc.programs.plugin_thread import PluginThread

REQUIRED_PACKAGES = ("grpc", "qemu.qmp", "pyroute2", "prometheus_client")
"""Packages that only the node plugin needs, not the rest of ``devalloc up``."""


def up(
    options: UpOptions,
    display: ProgressDisplay,
    note: Callable[[str], None],
    given: Callable[[bool], Sequence[str]],
) -> Program:
    """Publish this host's devices, allocate claims, and run the node plugin.

    ``note``: gets warnings about options. ``given``: the options of the node plugin that were given; True: also those
    that variables turn on. Raises BadSetting, CapacityError, ProgramFailed, and as ``store_program``.
    """
    inventory, root = options.inventory, options.inventory.sysfs_root
    name, path = inventory.node, store_path(options.store)
    state = node_state_folder(options.plugin.state, path)
    plugin_options = options.plugin.for_store(path)
    if options.with_node is False and (idle := given(False)):
        raise BadSetting(" and ".join(idle), ": only for the node plugin, which does not run with --no-node")
    check_published(plugin_options, host_capacity=options.host_capacity)
    prepare_folder(path)
    check_not_held(path)  # another `devalloc up` is reported before anything else
    display.say(f"node {name}, store {path}; Ctrl-C stops")
    runs_node = _wants_node(options, display, given)
    if runs_node or not options.no_inventory:
        inventory.check_node_name()
    if not runs_node and (idle := given(True)):
        why = "--no-inventory" if options.no_inventory else "--sysfs-root"
        because = f" ({why})" if options.with_node is None and _looks_elsewhere(options) else ""
        display.say(f"WARNING: without the node plugin{because} these have no effect: {', '.join(idle)}")
    progress = StoreProgress(
        partial(_show_round, display),
        partial(show_published, display),
        partial(_show_granted, display),
    )
    plugin: PluginThread | None = None
    previous: str | None = None
    if runs_node:
        from devalloc.programs.plugin_thread import PluginThread, previous_name

        settings = partial(
            node_settings, inventory, plugin_options, options.resync, migrations=options.migrations, note=note
        )
        settings()  # reports invalid options before anything starts
        previous = previous_name(state)
        plugin = PluginThread(path, state, name, settings, rescan=lambda: progress.rescan(), say=display.say)

    def look(records: DeviceRecords) -> Discovery:
        if plugin is not None and plugin.node is not None:
            return plugin.node.inventory.discover(records)
        more = records if plugin is None else replace(plugin.initial_records(), held=records.held)
        config = replace(inventory.config, records=more)
        if plugin is not None:  # do not offer devices that it will not bind, not even while it starts
            config = replace(config, allowed=plugin_options.allowed_kinds())
        return discover(root, node_name=name, config=config)

    def reserving() -> list[VirtualMachine]:
        with closing(SQLiteStore(path)) as objects:
            return machines_with_disk(objects, name)

    looked: DiscoverFunction = look
    if options.host_capacity and runs_node and not plugin_options.dry_run:  # else no machine can run here
        config = plugin_options.limits.checked(path.parent)
        shared, receives = plugin_options.access.shared_storage, plugin_options.machines.migrations.address is not None
        looked = with_host_pool(look, root, name, config, shared, reserving, live_migration=receives)
    extra_loops = [MachineLog(display.say).run, lambda store, stop: _heartbeat(progress, plugin).run(stop)]
    if options.page is not None:
        from devalloc.programs.store_page import StorePage

        page = StorePage(options.page, path, display.say, on_terminal=sys.stdout.isatty())
        page.check_port()
        extra_loops.append(page.run)
    source = InventorySource(
        name,
        looked,
        with_plugin=runs_node and not plugin_options.dry_run,
        previous_name=previous,
    )
    program = store_program(
        path,
        None if options.no_inventory else source,
        settings=AllocatorSettings(
            placement=options.placement,
            cel_check=options.cel_check,
            deadline=options.deadline,
            resync=options.resync,
            migrations=options.migrations,
        ),
        resync=options.resync,
        progress=progress,
        extra_loops=extra_loops,
        plugin=None if plugin is None else plugin.run,
    )

    def rescan() -> None:
        node = None if plugin is None else plugin.node  # it checks its claims, too
        (program if node is None else node).rescan()

    return replace(program, rescan=rescan)


def _heartbeat(progress: StoreProgress, plugin: PluginThread | None) -> Heartbeat:
    """What systemd hears: it is ready when devices are published and the plugin, if any, serves."""

    def rounds() -> Iterator[Round]:
        yield from progress.rounds
        if plugin is not None and (node := plugin.node) is not None:
            yield from node.rounds

    return Heartbeat(
        ServiceManager(), lambda: progress.is_looked.is_set() and (plugin is None or plugin.is_serving), rounds
    )


def _looks_elsewhere(options: UpOptions) -> bool:
    """Whether the devices are not those of this machine, or not published."""
    return options.no_inventory or options.inventory.sysfs_root != Path("/")


def _wants_node(options: UpOptions, display: ProgressDisplay, given: Callable[[bool], Sequence[str]]) -> bool:
    """Whether to run the node plugin here; reports why not if that is not obvious."""
    requested = options.with_node
    if requested is False or (requested is None and _looks_elsewhere(options)):
        return False
    if requested and options.no_inventory:
        raise BadSetting("--node", "needs the inventory; leave out --no-inventory, or run `devalloc node` separately")
    why = _missing_requirement()
    if requested:
        if why is not None:
            raise ProgramFailed(f"the node plugin cannot run here: {why}")
        return True
    # Who gives options of it wants it: without root it binds nothing, but runs machines.
    if why is None and os.geteuid() != 0 and not given(True):
        why = "it needs root; --node runs machines without devices"
    if why is not None:
        display.say(f"no node plugin, so devices are allocated but not bound: {why}")
    return why is None


def _show_granted(display: ProgressDisplay, keys: Iterable[Key]) -> None:
    for key in keys:
        display.say(f"{key} allocated")


def _show_round(display: ProgressDisplay, done: DeviceClaimRound) -> None:
    for key in done.granted:
        display.say(f"{key} {'placed' if key.kind == 'VirtualMachine' else 'allocated'}")
    display.state(done.in_words)


def _missing_requirement() -> str | None:
    """Why it cannot run in this process; None if it can."""
    absent = [name for name in REQUIRED_PACKAGES if not _is_there(name)]
    return f"missing packages: {', '.join(absent)}; pip install 'devalloc[node]'" if absent else None


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False
