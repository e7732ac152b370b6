"""``devalloc top``: the fleet at a glance, live."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devalloc.cli.options import duration, output_option, store_option
from devalloc.cli.verb import BadInput, verb

if TYPE_CHECKING:
    from devalloc.store import Store


@verb("top")
@click.option("--once", is_flag=True, help="Show it once and end. So it is wherever this is no terminal.")
@click.option("--interval", type=duration, default="2s", metavar="DURATION", help="How often it is looked at anew.")
@output_option("table", "wide", "json", "yaml")
@store_option
@click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="PATH",
    envvar="DEVALLOC_KUBECONFIG",
    help="Of the cluster that is shown, instead of the embedded store [env: DEVALLOC_KUBECONFIG].",
)
@click.option("--in-cluster", is_flag=True, help="As --kubeconfig, with the service account of the pod this runs in.")
def top(once: bool, interval: float, output: str, store: Path | None, kubeconfig: Path | None, in_cluster: bool) -> int:
    """Nodes with what is free and in use, claims that wait and why, and machines, until Ctrl-C.

    AVAILABLE is what `devalloc get pools` and `kubectl get dpool` say; a device is held, or shared, free, unavailable
    (it says why) or excluded (what it needs of its card is taken). -o wide: cards too, and devices that are not free,
    with who holds them. What machines use of this host: `devalloc vm top`.

    \b
    devalloc top
    devalloc top --once -o wide
    devalloc top --kubeconfig ~/.kube/config
    """
    from devalloc.cli.fleet import content, lines_of, watched
    from devalloc.cli.output import dump
    from devalloc.controller.sight import LEAST_SECONDS, Sight

    given = {name for name in ("store", "kubeconfig", "in_cluster") if _is_said(name)}
    if len(given) > 1:
        raise BadInput("--store, --kubeconfig and --in-cluster: give one of them")
    if "store" in given:
        kubeconfig, in_cluster = None, False
    elif "kubeconfig" in given:
        in_cluster = False
    elif in_cluster:
        kubeconfig = None
    with _source(store, kubeconfig, in_cluster) as source:
        sight = Sight(source)
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


def _is_said(name: str) -> bool:
    """On the command line, which counts more than what variables say."""
    from click.core import ParameterSource

    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


@contextmanager
def _source(store: Path | None, kubeconfig: Path | None, in_cluster: bool) -> Iterator[Store]:
    if kubeconfig is None and not in_cluster:
        from devalloc.cli.storage import opened

        with opened(store) as found:
            yield found
        return
    from devalloc.cli.clusters import connect
    from devalloc.store.kubernetes import KubernetesStore

    with closing(KubernetesStore(connect(kubeconfig))) as cluster:
        yield cluster
