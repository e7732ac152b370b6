"""Options that name the store, the cluster or the node plugin that a verb is about."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from devalloc.cli.command import BadInput, CommandFailed, later, parse_duration
from devalloc.cli.options.common import store_option
from devalloc.programs.settings import DEFAULT_SOCKET, is_default_store, node_state_folder

_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


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


complete_objects = later("devalloc.cli.shell_completion", "complete_objects")
"""Completes KIND first, then names of that kind; KIND/NAME in one word too."""
complete_claims = later("devalloc.cli.shell_completion", "complete_claims")


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


def kubeconfig_of_kubectl() -> Path:
    """The kubeconfig, or several separated by colons, that kubectl uses."""
    return Path(os.environ.get("KUBECONFIG") or Path(os.environ.get("HOME") or "/") / ".kube" / "config")


def existing_kubeconfig(path: Path) -> Path:
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
    """--store, --kubeconfig and --in-cluster, passed as ``place: StoreTarget``. On a cluster, ``namespace`` defaults to
    that of the kubeconfig's context."""

    @wraps(function)
    def placed(*of: Any, store: Path | None, kubeconfig: Path | None, in_cluster: bool, **more: Any) -> Any:
        place = _resolve_conflict(StoreTarget(store, kubeconfig, in_cluster))
        if chosen_context() is not None and place.kubeconfig is None:
            if other := next((name for name in ("store", "in_cluster") if _is_on_command_line(name)), None):
                option = f"--{other.replace('_', '-')}"
                raise BadInput(f"{option} and --context exclude each other: give one of them")
            place = StoreTarget(kubeconfig=existing_kubeconfig(kubeconfig_of_kubectl()))
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


def with_store_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--with-store and --no-store, passed as ``with_store: bool | None``."""
    return click.option(
        "--with-store/--no-store",
        "with_store",
        default=None,
        show_default=False,
        help="With -f: answer as if the manifests were applied to the store, or for the manifests alone. The default "
        "is to apply them to the cluster of --kubeconfig, or to the store if it exists and the manifests contain no "
        "pools.",
    )(function)


_STORE = "devalloc.store"
"""Key in a context's ``meta``: the store whose plugin is asked."""


def socket_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--socket PATH, passed as ``socket: Path``. --store PATH: its plugin is used if no socket is given."""
    function = click.option(
        "--store",
        type=click.Path(path_type=Path),
        metavar="PATH",
        envvar="DEVALLOC_STORE",
        is_eager=True,
        expose_value=False,
        callback=lambda ctx, param, path: ctx.meta.__setitem__(_STORE, path),
        help="Use the `devalloc up` or `devalloc node` of this store [env: DEVALLOC_STORE].",
    )(function)
    return click.option(
        "--socket",
        type=click.Path(path_type=Path),
        metavar="PATH",
        envvar="DEVALLOC_NODE_SOCKET",
        callback=lambda ctx, param, path: path or default_socket(ctx.meta.get(_STORE)),
        help="The node plugin's socket [env: DEVALLOC_NODE_SOCKET; default: beside the store, if --store names one "
        f"that is not the default; else that of this user's own plugin; else, and for root, {DEFAULT_SOCKET}].",
    )(function)


def plugin_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--socket and --store as ``socket_option``; --timeout, passed as ``timeout: float`` in seconds."""
    what = "How long to wait for the answer, at most 10m."
    return socket_option(
        click.option("--timeout", type=parse_duration, default="40s", metavar="DURATION", help=what)(function)
    )


def force_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--force, passed as ``force: bool``."""
    what = "KILL THE MACHINE, like a power cut, if its guest does not comply."
    return click.option("--force", is_flag=True, help=what)(function)


def grace_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--grace, passed as ``grace: float | None`` in seconds."""
    what = "Time limit for the guest to power down [default: the machine's own]."
    return click.option("--grace", type=parse_duration, metavar="DURATION", help=what)(function)


def default_socket(store: Path | None = None) -> Path:
    """The socket that ``devalloc up`` and ``devalloc node`` choose: beside a store other than the default one.
    Otherwise a user's own plugin takes precedence over root's, whose socket no user may open."""
    from devalloc.store.errors import Unusable
    from devalloc.store.paths import default_path

    if store is not None and store.name and not is_default_store(store):
        state = os.environ.get("DEVALLOC_NODE_STATE")
        return node_state_folder(Path(state) if state else None, store) / DEFAULT_SOCKET.name
    if os.geteuid() == 0:
        return DEFAULT_SOCKET
    # The environment's store does not matter here.
    here = {name: value for name, value in os.environ.items() if name in ("HOME", "XDG_STATE_HOME")}
    try:
        own = default_path(here).parent / "node" / DEFAULT_SOCKET.name
    except Unusable:  # without a home folder a user has no plugin
        return DEFAULT_SOCKET
    return own if own.exists() else DEFAULT_SOCKET
