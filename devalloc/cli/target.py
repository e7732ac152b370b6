"""The target of a verb: the embedded store, or a cluster; opening and connecting to it."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from devalloc.api.dedicated_pools import NOT_ANSWERED
from devalloc.api.meta import CONTROLLER_LEASE, parse_time
from devalloc.api.reasons import Reason
from devalloc.api.views import ClaimView, MachineView
from devalloc.cli.command import CommandFailed
from devalloc.cli.options.places import StoreTarget, chosen_context, existing_kubeconfig, kubeconfig_of_kubectl
from devalloc.cli.served_store import ServedStore, served_view
from devalloc.cli.storage import open_embedded_store, root_store_note
from devalloc.store import Store
from devalloc.store.errors import Forbidden
from devalloc.store.serving import is_answered, lacks_plugin

if TYPE_CHECKING:
    from devalloc.store.kubernetes import Client


def connect_cluster(kubeconfig: Path | None) -> Client:
    """Connect to the cluster of a kubeconfig, or of the pod in which this runs. Raises CommandFailed."""
    from devalloc.store.kubernetes import ApiError, Client

    try:
        return Client.connect(kubeconfig, chosen_context())
    except ApiError as error:
        raise CommandFailed(f"cannot connect to the API server: {error}") from error


def connect_as_admin(kubeconfig: Path | None) -> Client:
    """Connect to the cluster of a kubeconfig, by default kubectl's. Raises CommandFailed."""
    return connect_cluster(existing_kubeconfig(kubeconfig or kubeconfig_of_kubectl()))


_BINDING = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{}"
_LEASE = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/{}"
_SILENT_SECONDS = 60.0
"""Seconds after which a lease counts as abandoned. Leaders renew it every few seconds, but clocks may differ."""


@contextmanager
def open_target(place: StoreTarget) -> Iterator[Store]:
    """Open the store; close it at the end. Raises CommandFailed if it does not exist."""
    if not place.is_cluster:
        with open_embedded_store(place.store) as store:
            yield store
        return
    from devalloc.cli.served_cluster import ServedCluster

    with closing(ServedCluster(connect_cluster(place.kubeconfig), within=place.namespace)) as cluster:
        yield cluster


@contextmanager
def open_readable_target(place: StoreTarget, namespace: str) -> Iterator[Store]:
    """Like ``open_target``: the whole cluster, or that namespace if the user may not list claims of all."""
    with open_target(place) as whole:
        try:
            if place.is_cluster:
                whole.list("DeviceClaim")
        except Forbidden:
            pass
        else:
            yield whole
            return
    with open_target(place.within(namespace)) as part:
        yield part


def missing_node_note(machine: dict[str, Any]) -> str:
    """A sentence if no node has taken a machine that has its node; "" otherwise, or if its status says more."""
    view = MachineView(machine)
    if (
        view.node is None
        or view.is_held
        or view.status.get("message")
        or view.status.get("phase", "Pending") != "Pending"
    ):
        return ""
    return f"no node has taken the machine yet: is a node plugin running on node {view.node}?"


def no_plugin_takes(store: Store, machine: dict[str, Any]) -> bool:
    """Whether no plugin is there to take a machine that waits for its node. False if that cannot be told."""
    if not isinstance(store, ServedStore) or not missing_node_note(machine):
        return False
    return lacks_plugin(store.path, str(MachineView(machine).node))


def explain_waiting(store: Store, *, answers: bool = False) -> None:
    """Have an embedded store show of machines that wait whether there is a node plugin to take them. ``answers``: and
    of claims their answers as on a cluster."""
    if isinstance(store, ServedStore):
        store.explains_waiting, store.shows_answers = True, answers


def unserved_note(store: Store, *nodes: str | None) -> str:
    """A sentence if the plugin of a node has ended; "" otherwise, or if that cannot be told. ``nodes``: those that
    matter; by default all that have anything."""
    if (served := served_view(store)) is None:
        return ""
    try:
        wanted = [node for node in nodes if node] if nodes else [*served.unserved_nodes(store)]
    except Forbidden:  # users of a cluster may have no right to read pools
        return ""
    return "; ".join(filter(None, map(served.why_unserved, wanted)))


def unanswered_note(store: Store, remedy: str = "; start it, and repeat the command") -> str:
    """A sentence if the store is an embedded one that no controller answers now; "" otherwise. ``remedy``: its end."""
    if not isinstance(store, ServedStore) or is_answered(store.path):
        return ""
    return f"no `devalloc up` runs on this store{root_store_note(store.path)}{remedy}"


def silence_note(store: Store, objects: Iterable[dict[str, Any]]) -> str:
    """A sentence if some of these claims and machines have no answer, and no controller is there to give one; ""
    otherwise. Of an embedded store only on a terminal: programs read stderr."""
    if not any(map(_is_unanswered, objects)):
        return ""
    remedy = ": claims and machines are answered when one does"
    return missing_controller_note(store) or (unanswered_note(store, remedy) if sys.stderr.isatty() else "")


def _is_unanswered(obj: dict[str, Any]) -> bool:
    """Whether it is a claim or machine without an answer yet."""
    if obj["kind"] == "DeviceClaim":
        return not obj.get("status") and not ClaimView(obj).reason
    return obj["kind"] == "VirtualMachine" and not obj.get("status")


def unserved_reason(machine: dict[str, Any]) -> tuple[str, str]:
    """Code and message if no plugin serves the node of a machine; both empty otherwise."""
    status = machine.get("status") or {}
    is_unserved = status.get("reason") == Reason.NODE_NOT_SERVED
    return (str(status["reason"]), str(status.get("message") or "")) if is_unserved else ("", "")


def why_not_running(machine: dict[str, Any]) -> tuple[str, str]:
    """Why a machine that is to run does not, or not as its spec says: code and message of its status, each of which may
    be empty; both are if it is as it should be, or is to run no more."""
    view = MachineView(machine)
    if view.is_deleting or view.spec.get("running") is False or view.has_ended:
        return "", ""
    return str(view.status.get("reason") or ""), str(view.status.get("message") or "")


def current_user(store: Store) -> str:
    """The user as the cluster knows them; on an embedded store that of this host, in containers often a number
    without a name."""
    from devalloc.store.kubernetes import ApiError, KubernetesStore

    if isinstance(store, KubernetesStore):
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {}}
        try:
            answer = store.client.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
            return str(answer["status"]["userInfo"]["username"])
        except (ApiError, KeyError, TypeError):
            pass  # the name only informs others
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


def unanswered_claims_note(store: Store) -> str:
    """A sentence if a cluster's controller is installed and answers no ResourceClaims; "" otherwise, or if the user may
    not read that."""
    from devalloc.store.kubernetes import ApiError, KubernetesStore

    if not isinstance(store, KubernetesStore):
        return ""
    try:
        store.client.get(_BINDING.format(CONTROLLER_LEASE))
    except ApiError:
        return ""
    try:
        store.client.get(_BINDING.format(f"{CONTROLLER_LEASE}-resourceclaims"))
    except ApiError as error:
        return NOT_ANSWERED if error.is_not_found else ""
    return ""


def unanswered_advice(store: Store) -> str:
    """What to check of an object that waited for its answer: why no controller gives it one, or whether one runs."""
    from devalloc.store.kubernetes import KubernetesStore

    if isinstance(store, KubernetesStore):
        return missing_controller_note(store) or "wait longer (--timeout)"
    return "is `devalloc up` running on this store?"


def missing_controller_note(store: Store) -> str:
    """A sentence if no controller leads on the cluster; "" if one does, or if the user may not read the lease."""
    from devalloc.store.kubernetes import ApiError, KubernetesStore

    if not isinstance(store, KubernetesStore):
        return ""
    namespace = store.namespace
    try:
        binding = store.client.get(_BINDING.format(CONTROLLER_LEASE))
        namespace = next((each["namespace"] for each in binding.get("subjects", ()) if "namespace" in each), namespace)
        renewed = str(store.client.get(_LEASE.format(namespace, CONTROLLER_LEASE))["spec"].get("renewTime") or "")
        age = (datetime.now(UTC) - parse_time(renewed)).total_seconds()
    except ApiError as error:
        if error.is_not_found:
            return f"no controller: none is installed, and none has led in namespace {namespace}"
        return ""
    except (KeyError, TypeError, ValueError):
        return ""
    if age < _SILENT_SECONDS:
        return ""
    return (
        f"no controller has renewed its lease since {renewed}, so claims are not allocated: "
        f"kubectl -n {namespace} get deployments,pods"
    )
