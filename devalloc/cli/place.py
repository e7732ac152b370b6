"""Where the objects are that a verb is about: in the embedded store, or in a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.options import store_option
from devalloc.cli.verb import BadInput

if TYPE_CHECKING:
    from devalloc.store import Store


@dataclass(frozen=True)
class Place:
    """A file, the default one where none is named; or a cluster."""

    store: Path | None = None
    kubeconfig: Path | None = None
    in_cluster: bool = False

    @property
    def is_cluster(self) -> bool:
        return self.kubeconfig is not None or self.in_cluster


def place_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--store, --kubeconfig and --in-cluster: passed as ``place: Place``."""

    @wraps(function)
    def placed(*of: Any, store: Path | None, kubeconfig: Path | None, in_cluster: bool, **more: Any) -> Any:
        return function(*of, place=_chosen(Place(store, kubeconfig, in_cluster)), **more)

    placed = click.option(
        "--in-cluster", is_flag=True, help="As --kubeconfig, with the service account of the pod this runs in."
    )(placed)
    placed = click.option(
        "--kubeconfig",
        type=click.Path(dir_okay=False, exists=True, path_type=Path),
        metavar="PATH",
        envvar="DEVALLOC_KUBECONFIG",
        help="The cluster that it is about, instead of the embedded store [env: DEVALLOC_KUBECONFIG].",
    )(placed)
    return store_option(placed)


def _chosen(place: Place) -> Place:
    """What was said on the command line counts more than what variables say. Raises BadInput."""
    given = {name for name in ("store", "kubeconfig", "in_cluster") if _is_said(name)}
    if len(given) > 1:
        raise BadInput("--store, --kubeconfig and --in-cluster: give one of them")
    if "store" in given:
        return Place(place.store)
    if "kubeconfig" in given:
        return Place(kubeconfig=place.kubeconfig)
    return Place(in_cluster=True) if place.in_cluster else place


def _is_said(name: str) -> bool:
    from click.core import ParameterSource

    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


@contextmanager
def opened(place: Place) -> Iterator[Store]:
    """The store there, closed at the end. Raises Failed when there is none."""
    if not place.is_cluster:
        from devalloc.cli.storage import opened as in_file

        with in_file(place.store) as found:
            yield found
        return
    from devalloc.cli.clusters import connect
    from devalloc.store.kubernetes import KubernetesStore

    with closing(KubernetesStore(connect(place.kubeconfig))) as cluster:
        yield cluster
