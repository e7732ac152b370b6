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

_LEASE = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/{}"
_SILENT_SECONDS = 60.0
"""After which a lease that should be renewed every few seconds is one of nobody. Clocks may differ."""


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


def no_controller(store: Store) -> str:
    """On a cluster: that no controller leads, as a sentence; "" where one does, or that may not be seen here."""
    from datetime import UTC, datetime

    from devalloc.api.meta import parse_time
    from devalloc.controller.leading import NAME
    from devalloc.store.kubernetes import ApiError, KubernetesStore

    if not isinstance(store, KubernetesStore):
        return ""
    namespace = store.namespace
    try:
        binding = store.client.get(f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{NAME}")
        namespace = next((each["namespace"] for each in binding.get("subjects", ()) if "namespace" in each), namespace)
        renewed = str(store.client.get(_LEASE.format(namespace, NAME))["spec"].get("renewTime") or "")
        age = (datetime.now(UTC) - parse_time(renewed)).total_seconds()
    except ApiError as error:
        if error.is_not_found:
            return f"no controller is there: neither installed, nor has one led in namespace {namespace}"
        return ""
    except (KeyError, TypeError, ValueError):
        return ""
    if age < _SILENT_SECONDS:
        return ""
    return (
        f"no controller has renewed its lease since {renewed}, so nobody answers claims: "
        f"kubectl -n {namespace} get deployments,pods"
    )
