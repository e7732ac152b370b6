"""``devalloc node``: the node plugin, in the foreground."""

from __future__ import annotations

from devalloc.cli.command import BadInput, CommandFailed
from devalloc.cli.options.common import tracing
from devalloc.cli.render.output import open_display
from devalloc.cli.target import connect_cluster
from devalloc.cli.terminal import print_note
from devalloc.inventory.capacity import CapacityError
from devalloc.program import Control, abandon_hung_threads, run
from devalloc.programs import node as program
from devalloc.programs.options import NodeOptions
from devalloc_node.errors import NodeError


def node(options: NodeOptions) -> int:
    client = connect_cluster(options.kubeconfig) if options.is_cluster else None
    control = Control()
    traced = tracing(options.otlp_endpoint, "devalloc-node", options.inventory.node)
    with open_display() as display, abandon_hung_threads(display.say), traced, control.signals():
        try:
            run(program.node(options, client, display, print_note, control), control)
        except NodeError as error:
            wrong = error.code.endswith(("Invalid", "TooLong"))
            raise (BadInput if wrong else CommandFailed)(error.message) from error
        except CapacityError:
            raise
        except ValueError as error:
            raise BadInput(str(error)) from error
        display.say("stopped; prepared claims stay prepared, and machines run on")
    return 0
