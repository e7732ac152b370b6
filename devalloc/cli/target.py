"""The target of a verb: the embedded store, or a cluster; opening and connecting to it."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from devalloc.api.meta import parse_time
from devalloc.api.reasons import Reason
from devalloc.api.views import ClaimView, MachineView
from devalloc.cli.command import BadInput, CommandFailed
from devalloc.cli.options.common import store_option
from devalloc.cli.storage import open_embedded_store, root_store_note
from devalloc.store.errors import Forbidden
from devalloc.store.serving import is_answered, lacks_plugin

if TYPE_CHECKING:
    from devalloc.store import Store
    from devalloc.store.kubernetes import Client


_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def connect_cluster(kubeconfig: Path | None) -> Client:
    """Connect to the cluster of a kubeconfig, or of the pod in which this runs. Raises CommandFailed."""
    from devalloc.store.kubernetes import ApiError, Client

    try:
        return Client.connect(kubeconfig, chosen_context())
    except ApiError as error:
        raise CommandFailed(f"cannot connect to the API server: {error}") from error


def current_namespace(kubeconfig: Path | None) -> str | None:
    """The namespace of the kubeconfig's current context, or of the pod in which this runs; None if there is none."""
    if kubeconfig is None:
        try:
            return _POD_NAMESPACE.read_text().strip() or None
        except OSError:
            return None
    from kubernetes.config import list_kube_config_contexts

    from devalloc.store.kubernetes.client import credential_errors, malformed_errors

    try:
        every, context = list_kube_config_contexts(str(kubeconfig))  # type: ignore[no-untyped-call]
        if (name := chosen_context()) is not None:
            context = next((each for each in every if each["name"] == name), {"context": {}})
        namespace = context["context"].get("namespace")
    except (*credential_errors(), *malformed_errors()):
        return None  # the error is reported when it is used
    return namespace if isinstance(namespace, str) and namespace else None


_CONTEXT = "devalloc.context"
"""Key in a context's ``meta``: the context of the kubeconfig."""


def chosen_context() -> str | None:
    """The context of the kubeconfig that --context names; None: its current one."""
    invoked = click.get_current_context(silent=True)
    return None if invoked is None else invoked.meta.get(_CONTEXT)


def _choose_context(ctx: click.Context, _: click.Parameter, name: str | None) -> None:
    if name is not None:
        ctx.meta[_CONTEXT] = name


def context_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--context NAME, for ``connect_cluster``."""
    return click.option(
        "--context",
        metavar="NAME",
        expose_value=False,
        callback=_choose_context,
        help="Use this context of the kubeconfig, by default kubectl's, instead of its current one.",
    )(function)


def kubeconfig_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--kubeconfig PATH of an administrator, passed as ``kubeconfig: Path | None``; and --context."""
    return click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path),  # several paths can be separated by colons, as in KUBECONFIG
        metavar="PATH",
        envvar=["DEVALLOC_KUBECONFIG", "KUBECONFIG"],
        help="Use its current context's cluster [env: DEVALLOC_KUBECONFIG, KUBECONFIG; default: ~/.kube/config].",
    )(context_option(function))


def connect_as_admin(kubeconfig: Path | None) -> Client:
    """Connect to the cluster of a kubeconfig, by default kubectl's. Raises CommandFailed."""
    return connect_cluster(_existing_kubeconfig(kubeconfig or kubeconfig_of_kubectl()))


def kubeconfig_of_kubectl() -> Path:
    """The kubeconfig, or several separated by colons, that kubectl uses."""
    return Path(os.environ.get("KUBECONFIG") or Path(os.environ.get("HOME") or "/") / ".kube" / "config")


def _existing_kubeconfig(path: Path) -> Path:
    """The path, if it names a file. Raises CommandFailed."""
    several = [Path(each) for each in str(path).split(os.pathsep) if each]
    if not any(each.is_file() for each in several):
        if folder := next((each for each in several if each.is_dir()), None):
            raise CommandFailed(f"{folder} is a directory; name a kubeconfig in it with --kubeconfig")
        raise CommandFailed(f"{path} does not exist; name a kubeconfig with --kubeconfig or KUBECONFIG")
    return path


def install_namespace_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """-n NAMESPACE, passed as ``namespace: str``."""
    return click.option(
        "-n",
        "--namespace",
        default="devalloc-system",
        metavar="NAME",
        help="Namespace of the pods of the controller and the nodes.",
    )(function)


_BINDING = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{}"
_LEASE = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/{}"
_SILENT_SECONDS = 60.0
"""Seconds after which a lease counts as abandoned. Leaders renew it every few seconds, but clocks may differ."""


@dataclass(frozen=True)
class StoreTarget:
    """A store file, by default the usual one; or a cluster."""

    store: Path | None = None
    kubeconfig: Path | None = None
    in_cluster: bool = False
    namespace: str | None = None
    """Read only this namespace of a cluster, for users without rights in others; None: all."""

    def within(self, namespace: str | None) -> StoreTarget:
        """The same place, limited to one namespace and cluster-scoped objects."""
        return replace(self, namespace=namespace)

    @property
    def is_cluster(self) -> bool:
        return self.kubeconfig is not None or self.in_cluster


class _Kubeconfig(click.Path):
    """A kubeconfig, or several separated by colons as in KUBECONFIG, of which some may be missing."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        files = [part for part in str(value).split(os.pathsep) if part]
        if len(files) > 1 and any(Path(part).expanduser().is_file() for part in files):
            return Path(value)
        return super().convert(files[0] if len(files) == 1 else value, param, ctx)


def target_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--store, --kubeconfig and --in-cluster, passed as ``place: Place``. On a cluster, ``namespace`` defaults to that
    of the kubeconfig's context."""

    @wraps(function)
    def placed(*of: Any, store: Path | None, kubeconfig: Path | None, in_cluster: bool, **more: Any) -> Any:
        place = _resolve_conflict(StoreTarget(store, kubeconfig, in_cluster))
        if chosen_context() is not None and place.kubeconfig is None:
            if other := next((name for name in ("store", "in_cluster") if _is_on_command_line(name)), None):
                option = f"--{other.replace('_', '-')}"
                raise BadInput(f"{option} and --context exclude each other: give one of them")
            place = StoreTarget(kubeconfig=_existing_kubeconfig(kubeconfig_of_kubectl()))
        if more.get("namespace") is not None and place.is_cluster and _is_default("namespace"):
            more["namespace"] = current_namespace(place.kubeconfig) or more["namespace"]
        return function(*of, place=place, **more)

    placed = click.option("--in-cluster", is_flag=True, help="Use this pod's cluster, with the pod's service account.")(
        placed
    )
    placed = click.option(
        "--kubeconfig",
        type=_Kubeconfig(dir_okay=False, exists=True, path_type=Path),
        metavar="PATH",
        envvar="DEVALLOC_KUBECONFIG",
        help="Use the cluster of this kubeconfig instead of the embedded store [env: DEVALLOC_KUBECONFIG].",
    )(placed)
    return store_option(context_option(placed))


def _resolve_conflict(place: StoreTarget) -> StoreTarget:
    """Options on the command line take precedence over variables. Raises BadInput."""
    given = {name for name in ("store", "kubeconfig", "in_cluster") if _is_on_command_line(name)}
    if len(given) > 1:
        raise BadInput("--store, --kubeconfig and --in-cluster exclude each other: give one of them")
    if "store" in given:
        return StoreTarget(place.store)
    if "kubeconfig" in given:
        return StoreTarget(kubeconfig=place.kubeconfig)
    return StoreTarget(in_cluster=True) if place.in_cluster else place


def _is_on_command_line(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def _is_default(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is ParameterSource.DEFAULT


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
    from devalloc.cli.served_store import ServedStore

    if not isinstance(store, ServedStore) or not missing_node_note(machine):
        return False
    return lacks_plugin(store.path, str(MachineView(machine).node))


def explain_waiting(store: Store, *, answers: bool = False) -> None:
    """Have an embedded store show of machines that wait whether there is a node plugin to take them. ``answers``: and
    of claims their answers as on a cluster."""
    from devalloc.cli.served_store import ServedStore

    if isinstance(store, ServedStore):
        store.explains_waiting, store.shows_answers = True, answers


def unserved_note(store: Store, *nodes: str | None) -> str:
    """A sentence if the plugin of a node has ended; "" otherwise, or if that cannot be told. ``nodes``: those that
    matter; by default all that have anything."""
    from devalloc.cli.served_store import served_view

    if (served := served_view(store)) is None:
        return ""
    try:
        wanted = [node for node in nodes if node] if nodes else [*served.unserved_nodes(store)]
    except Forbidden:  # users of a cluster may have no right to read pools
        return ""
    return "; ".join(filter(None, map(served.why_unserved, wanted)))


def unanswered_note(store: Store, remedy: str = "; start it, and repeat the command") -> str:
    """A sentence if the store is an embedded one that no controller answers now; "" otherwise. ``remedy``: its end."""
    from devalloc.cli.served_store import ServedStore

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


def has_ended_for_good(machine: dict[str, Any]) -> bool:
    """Whether a machine ended, and its restart policy keeps it from running again."""
    from devalloc.api.decode import decode
    from devalloc.api.virtual_machine import VirtualMachine
    from devalloc.machines.schedule.machines import has_ended

    vm = decode(machine).object
    return isinstance(vm, VirtualMachine) and has_ended(vm)


def why_not_running(machine: dict[str, Any]) -> tuple[str, str]:
    """Why a machine that is to run does not, or not as its spec says: code and message of its status, each of which may
    be empty; both are if it is as it should be, or is to run no more."""
    view = MachineView(machine)
    if view.is_deleting or view.spec.get("running") is False or has_ended_for_good(machine):
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
    from devalloc.controller.leader.election import LEASE_NAME
    from devalloc.store.kubernetes import ApiError, KubernetesStore
    from devalloc.usage.overview.claims import NOT_ANSWERED

    if not isinstance(store, KubernetesStore):
        return ""
    try:
        store.client.get(_BINDING.format(LEASE_NAME))
    except ApiError:
        return ""
    try:
        store.client.get(_BINDING.format(f"{LEASE_NAME}-resourceclaims"))
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
    from devalloc.controller.leader.election import LEASE_NAME
    from devalloc.store.kubernetes import ApiError, KubernetesStore

    if not isinstance(store, KubernetesStore):
        return ""
    namespace = store.namespace
    try:
        binding = store.client.get(_BINDING.format(LEASE_NAME))
        namespace = next((each["namespace"] for each in binding.get("subjects", ()) if "namespace" in each), namespace)
        renewed = str(store.client.get(_LEASE.format(namespace, LEASE_NAME))["spec"].get("renewTime") or "")
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
