"""Where the objects are that a verb is about: in the embedded store, or in a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
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
    namespace: str | None = None
    """The only one of a cluster that is read of, for who has rights there alone; None: all."""

    def within(self, namespace: str | None) -> Place:
        """Of it only what is in that namespace, or in none."""
        return replace(self, namespace=namespace)

    @property
    def is_cluster(self) -> bool:
        return self.kubeconfig is not None or self.in_cluster


def place_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--store, --kubeconfig and --in-cluster: passed as ``place: Place``. On a cluster ``namespace`` is by default that
    of the kubeconfig's context."""

    @wraps(function)
    def placed(*of: Any, store: Path | None, kubeconfig: Path | None, in_cluster: bool, **more: Any) -> Any:
        place = _chosen(Place(store, kubeconfig, in_cluster))
        if more.get("namespace") is not None and place.is_cluster and _is_default("namespace"):
            from devalloc.cli.clusters import namespace_of

            more["namespace"] = namespace_of(place.kubeconfig) or more["namespace"]
        return function(*of, place=place, **more)

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


def _is_default(name: str) -> bool:
    from click.core import ParameterSource

    return click.get_current_context().get_parameter_source(name) is ParameterSource.DEFAULT


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

    with closing(KubernetesStore(connect(place.kubeconfig), within=place.namespace)) as cluster:
        yield cluster


@contextmanager
def opened_as_allowed(place: Place, namespace: str) -> Iterator[Store]:
    """As ``opened``: all of the cluster, or that namespace where claims of all namespaces may not be listed."""
    from devalloc.store.errors import Forbidden

    with opened(place) as whole:
        try:
            if place.is_cluster:
                whole.list("DeviceClaim")
        except Forbidden:
            pass
        else:
            yield whole
            return
    with opened(place.within(namespace)) as part:
        yield part
