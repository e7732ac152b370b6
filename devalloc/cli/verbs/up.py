"""``devalloc up``: everything on this machine, in the foreground."""

from __future__ import annotations

import click
from click.core import ParameterSource

from devalloc.cli.command import require_packages
from devalloc.cli.options.common import tracing
from devalloc.cli.render.output import open_display
from devalloc.cli.terminal import print_note
from devalloc.program import Control, abandon_hung_threads, run
from devalloc.programs import up as program
from devalloc.programs.node_options import PluginOptions
from devalloc.programs.options import UpOptions
from devalloc.programs.settings import HOST_CAPACITY
from devalloc.settings import settings_of

_NODE_SWITCHES = ("enforce_capacity", "host_capacity", "scaling", "warm")
"""Options that enable parts of the node plugin."""


def up(options: UpOptions) -> int:
    if options.page is not None:
        require_packages("jinja2", "aiohttp")
    traced = tracing(options.otlp_endpoint, "devalloc-up", options.inventory.node)
    control = Control()
    with open_display() as display, abandon_hung_threads(display.say), traced, control.signals():
        made = program.up(options, display, print_note, _given_node_options)
        run(made, control)
        had_node = bool(made.endpoints)
        display.say("stopped; prepared claims stay prepared, and machines run on" if had_node else "stopped")
    return 0


def _given_node_options(env: bool) -> list[str]:
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
