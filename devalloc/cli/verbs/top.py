"""``devalloc top``: the fleet at a glance, live."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from devalloc.cli.command import parse_duration, verb
from devalloc.cli.keys import pressed_keys
from devalloc.cli.options.common import output_option
from devalloc.cli.render.output import print_content
from devalloc.cli.target import (
    StoreTarget,
    current_namespace,
    explain_waiting,
    missing_controller_note,
    open_readable_target,
    silence_note,
    target_options,
    unanswered_claims_note,
    unanswered_note,
    unserved_note,
)

if TYPE_CHECKING:
    from devalloc.cli.keys import Keys
    from devalloc.cli.render.top_screen import DrawTop, TopScreen
    from devalloc.store import Store
    from devalloc.usage.overview.cache import OverviewCache

_ASKING = ("DeviceClaim", "VirtualMachine")
MIN_SECONDS = 1.0
"""Between two looks at the store, whatever the interval."""


@verb(
    "top",
    advice={
        "": "it shows nodes, claims and machines together: devalloc top; for resource usage of machines: devalloc vm "
        "top",
    },
)
@click.option(
    "--once", is_flag=True, help="Show it once and exit. This is the default if the output is not a terminal."
)
@click.option("--interval", type=parse_duration, default="2s", metavar="DURATION", help="How often to refresh.")
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    envvar="DEVALLOC_NAMESPACE",
    help="Only claims, machines and quotas of this namespace. On a cluster, also for users who can read only one "
    "namespace; default: the namespace of the kubeconfig's context.",
)
@output_option("table", "wide", "json", "yaml")
@target_options
def top(once: bool, interval: float, namespace: str | None, output: str, place: StoreTarget) -> int:
    """Show nodes with free and used devices, waiting claims with reasons, and machines, until Ctrl-C.

    AVAILABLE is the same number as in `devalloc get pools` and `kubectl get dpool`. A device is held, shared, free,
    unavailable (with the reason) or excluded (other partitions of its card are in use). -o wide also shows cards, and
    devices that are not free with their claims. For resource usage of machines: `devalloc vm top`.

    Keys: arrows move; enter shows the cards of a node with who holds their parts, or what is in the way of a claim; esc
    goes back; / searches; q quits.

    \b
    devalloc top
    devalloc top --once -o wide
    devalloc top -n team-a
    devalloc top --kubeconfig ~/.kube/config
    """
    from devalloc.cli.render.fleet import overview_json, print_overview
    from devalloc.cli.render.top_screen import TopScreen, live_screen
    from devalloc.usage.overview.cache import OverviewCache

    own = namespace or (current_namespace(place.kubeconfig) if place.is_cluster else None) or "default"
    with open_readable_target(place, own) as source:
        explain_waiting(source)
        sight = OverviewCache(
            source,
            source if place.is_cluster else None,
            namespace=namespace,
            remarks=lambda: "; ".join(filter(None, (_silence(source), unserved_note(source)))),
            unanswered=lambda: unanswered_claims_note(source),
        )
        if output in ("json", "yaml"):
            print_content(overview_json(sight.latest().overview), output)
        elif once or not sys.stdout.isatty():
            print_overview(sight.latest().overview, wide=output == "wide")
        else:
            with pressed_keys() as keys, live_screen() as draw:
                _show(TopScreen(wide=output == "wide", has_keys=keys.is_there), sight, keys, draw, interval)
    return 0


def _silence(store: Store) -> str:
    """As ``silence_note``; on a cluster also if everything has an answer."""
    if unanswered_note(store):
        return silence_note(store, store.list(_ASKING).objects)
    return missing_controller_note(store)


def _show(screen: TopScreen, sight: OverviewCache, keys: Keys, draw: DrawTop, interval: float) -> None:
    """Draw at every interval and after every key, until one ends it."""
    while True:
        draw(screen, sight)
        ends = time.monotonic() + max(interval, MIN_SECONDS)
        while (left := ends - time.monotonic()) > 0:
            key = keys.next(left)
            if key is not None:
                if not screen.press(key):
                    return
                break
