"""``devalloc top``: the fleet at a glance, live."""

from __future__ import annotations

import sys
import time
from functools import partial

import click

from devalloc.cli.options import duration, output_option
from devalloc.cli.place import Place, no_controller, opened_as_allowed, place_options
from devalloc.cli.verb import verb


@verb(
    "top",
    advice={
        "": "it shows nodes, claims and machines together: devalloc top; what machines use: devalloc vm top",
    },
)
@click.option("--once", is_flag=True, help="Show it once and end. This is the default if the output is not a terminal.")
@click.option("--interval", type=duration, default="2s", metavar="DURATION", help="How often to look again.")
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    envvar="DEVALLOC_NAMESPACE",
    help="Only claims, machines and quotas of this one. On a cluster also for who may see no other, by default that of "
    "the kubeconfig's context.",
)
@output_option("table", "wide", "json", "yaml")
@place_options
def top(once: bool, interval: float, namespace: str | None, output: str, place: Place) -> int:
    """Nodes with what is free and in use, claims that wait and why, and machines, until Ctrl-C.

    AVAILABLE is what `devalloc get pools` and `kubectl get dpool` say; a device is held, or shared, free, unavailable
    (it says why) or excluded (what it needs of its card is taken). -o wide: cards too, and devices that are not free,
    with who holds them. What machines use of this host: `devalloc vm top`.

    \b
    devalloc top
    devalloc top --once -o wide
    devalloc top -n team-a
    devalloc top --kubeconfig ~/.kube/config
    """
    from devalloc.cli.clusters import namespace_of
    from devalloc.cli.fleet import content, lines_of, watched
    from devalloc.cli.output import dump
    from devalloc.controller.sight import LEAST_SECONDS, Sight

    own = namespace or (namespace_of(place.kubeconfig) if place.is_cluster else None) or "default"
    with opened_as_allowed(place, own) as source:
        sight = Sight(
            source, source if place.is_cluster else None, namespace=namespace, remarks=partial(no_controller, source)
        )
        if output in ("json", "yaml"):
            dump(content(sight.latest().overview), output)
        elif once or not sys.stdout.isatty():
            for line in lines_of(sight.latest().overview, wide=output == "wide"):
                click.echo(line)
        else:
            with watched(wide=output == "wide") as show:
                while True:
                    show(sight.latest())
                    time.sleep(max(interval, LEAST_SECONDS))
    return 0
