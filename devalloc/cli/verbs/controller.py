"""``devalloc controller``: allocate the claims of a cluster."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devalloc.cli.command import BadInput, CommandFailed, verb
from devalloc.cli.options.common import parse_duration, placement_option
from devalloc.cli.render.progress import open_display

if TYPE_CHECKING:
    import ssl

    from devalloc.controller.page.html import Markup
    from devalloc.controller.permits.leader_server import PermitListenAddress
    from devalloc.controller.reconcile.device_claims import DeviceClaimRound
    from devalloc.controller.reconcile.resource_claims.allocator import ResourceClaimRound as ResourceRound


@verb("controller")
@click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="PATH",
    envvar="DEVALLOC_KUBECONFIG",
    help="Work for the cluster of this kubeconfig [env: DEVALLOC_KUBECONFIG].",
)
@click.option("--in-cluster", is_flag=True, help="Work for this pod's cluster, with the pod's service account.")
@click.option(
    "--namespace",
    default="devalloc-system",
    metavar="NAME",
    envvar="POD_NAMESPACE",
    help="Namespace of devalloc's own objects, such as its Lease [env: POD_NAMESPACE].",
)
@click.option(
    "--name", metavar="NAME", envvar="POD_NAME", help="Name of this process [env: POD_NAME; default: the host name]."
)
@click.option(
    "--listen",
    default="127.0.0.1:10301",
    metavar="HOST:PORT",
    help="Serve /healthz, /readyz, /metrics and the page here, with TLS; empty: not at all. Port 0: any free port.",
)
@click.option(
    "--tls-certificate",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="PATH",
    help="PEM file for --listen, read again when it changes [default: a self-signed certificate].",
)
@click.option(
    "--tls-key",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="PATH",
    help="The certificate's key.",
)
@click.option(
    "--tls-folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    envvar="DEVALLOC_TLS_FOLDER",
    help="Folder of tls.crt and tls.key, such as a mounted Secret, instead of the two options above. The files may "
    "appear later: until then the certificate is self-signed [env: DEVALLOC_TLS_FOLDER].",
)
@click.option(
    "--token-audience",
    default="devalloc",
    metavar="NAME",
    help="Audience of the tokens that may read metrics and the page (kubectl create token NAME --audience devalloc). "
    "Empty: tokens of the API server [default: devalloc].",
)
@click.option("--open-metrics", is_flag=True, help="Serve /metrics without a token to anyone who can connect.")
@click.option(
    "--permits",
    metavar="HOST:PORT",
    envvar="DEVALLOC_PERMITS_LISTEN",
    help="Run the permit server here while this process leads. Nodes ask it, with TLS and their own tokens, how far "
    "they may scale machines (devalloc node --scaling). Usually 0.0.0.0:10299; port 0: any free port [env: "
    "DEVALLOC_PERMITS_LISTEN; default: no permit server].",
)
@click.option(
    "--permits-address",
    metavar="ADDRESS",
    envvar="POD_IP",
    help="Address at which nodes reach --permits [env: POD_IP; default: its HOST].",
)
@placement_option
@click.option(
    "--deadline",
    type=parse_duration,
    default="10s",
    metavar="DURATION",
    help="Time limit of the solver for one batch of claims; then the best answer so far counts.",
)
@click.option(
    "--resync",
    type=parse_duration,
    default="60s",
    metavar="DURATION",
    help="Check all claims this often, even without events.",
)
@click.option(
    "--resource-claims",
    is_flag=True,
    help="Also allocate ResourceClaims of resource.k8s.io with the label devalloc.io/allocator: devalloc, from nodes "
    "that are set aside (devalloc node --allocator devalloc).",
)
@click.option(
    "--availability-interval",
    type=parse_duration,
    default="5s",
    metavar="DURATION",
    help="Update availableDevices of pools at most this often.",
)
@click.option(
    "--lease",
    "lease_seconds",
    type=parse_duration,
    default="15s",
    metavar="DURATION",
    help="How long a standby controller waits without news from the leader before it takes over. Must be the same for "
    "all controllers.",
)
def controller(
    kubeconfig: Path | None,
    in_cluster: bool,
    namespace: str,
    name: str | None,
    listen: str,
    tls_certificate: Path | None,
    tls_key: Path | None,
    tls_folder: Path | None,
    token_audience: str,
    open_metrics: bool,
    permits: str | None,
    permits_address: str | None,
    placement: str,
    deadline: float,
    resync: float,
    resource_claims: bool,
    availability_interval: float,
    lease_seconds: float,
) -> int:
    """Allocate the DeviceClaims of a cluster and place its VirtualMachines, until Ctrl-C or SIGTERM.

    Several can run: one leads, the others stand by. A leader that loses its lease ends at once with exit code 1 and
    must be started again. Exit code 0 after a clean stop.
    """
    import socket

    from devalloc.cli.cluster_access import connect_cluster
    from devalloc.controller.cluster_process import ClusterProcess, ClusterSettings
    from devalloc.controller.leader.lease import LeaseLost
    from devalloc.controller.page import FleetPage
    from devalloc.controller.reconcile.loop import AllocatorSettings
    from devalloc.controller.standalone import handling_signals

    if kubeconfig is None and not in_cluster:
        raise BadInput("name the cluster with --kubeconfig or --in-cluster; for this machine alone: devalloc up")
    if lease_seconds < 1:
        raise BadInput("--lease must be at least 1s")
    address = _address(listen)
    if tls_folder is not None and (tls_certificate is not None or tls_key is not None):
        raise BadInput("--tls-folder cannot be combined with --tls-certificate and --tls-key")
    tls, unverified = None, ""
    if tls_folder is not None:
        tls_certificate, tls_key = tls_folder / "tls.crt", tls_folder / "tls.key"
        unverified = _certificate_problem(tls_certificate, tls_key)
    if address is not None:
        tls = _tls(address[0], *((None, None) if unverified else (tls_certificate, tls_key)))
    settings = ClusterSettings(
        instance=name or socket.gethostname().lower(),
        namespace=namespace,
        seconds=lease_seconds,
        deadline=lease_seconds * 2 / 3,
        allocate=AllocatorSettings(
            has_conditions=True,
            labels_nodes=True,
            hides_names=True,
            placement=placement,
            deadline=deadline,
            resync=resync,
            availability=availability_interval,
            admin_namespaces="labelled",
        ),
        resource_claims=resource_claims,
        listen=address,
        tls=tls,
        certificate=None if tls_certificate is None else (str(tls_certificate), str(tls_key)),
        audience=token_audience,
        open_metrics=open_metrics,
        permits=_listening(permits, permits_address),
    )
    with open_display() as display:
        if unverified and address is not None:
            display.say(f"{unverified}: serving a self-signed certificate until there is one")

        def answered(done: DeviceClaimRound) -> None:
            for key in done.granted:
                display.say(f"{key} {'placed' if key.kind == 'VirtualMachine' else 'allocated'}")
            stand("claims", done.in_words)

        def resources_answered(done: ResourceRound) -> None:
            for key in done.granted:
                display.say(f"{key} allocated")
            stand("ResourceClaims", done.in_words)

        states = {"claims": "", "ResourceClaims": ""}

        def stand(part: str, text: str) -> None:
            """Show both dialects in one line of state: each runs in a thread of its own."""
            states[part] = text
            display.state(", ".join(filter(None, states.values())))

        process = ClusterProcess(
            connect_cluster(kubeconfig),
            settings,
            pages=lambda process, shown, access: FleetPage(
                process.store, access, optional_store=shown, hint=_hint(token_audience), remarks=process.trouble
            ).mounted(),
            on_state=lambda state, text: display.say(text),
            on_round=answered,
            on_resource_round=resources_answered,
            on_listening=lambda at: display.say(f"health, metrics and pages at https://{at[0]}:{at[1]}"),
            on_permits=lambda url: display.say(f"permit server at {url}"),
        )
        with handling_signals(process):
            try:
                process.run()
            except LeaseLost as lost:
                CommandFailed(f"{lost}; start it again, because what it has in memory may be stale").show()
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(1)  # at once: threads may be in the middle of a solve, or wait for an answer
        display.say("stopped")
    return 0


def _hint(audience: str) -> Markup:
    """How to get a token for the page."""
    from devalloc.controller.page.html import tag

    return tag(
        "p",
        "To get a token, run ",
        tag("code", "kubectl create token NAME" + (f" --audience {audience}" if audience else "")),
        " for a service account that may get the path ",
        tag("code", "/devalloc/"),
        ". The token works for this page only." if audience else ", or use your own.",
    )


def _address(text: str, option: str = "--listen", example: str = "0.0.0.0:10301") -> tuple[str, int] | None:
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise BadInput(f"{option} must be HOST:PORT such as {example}, not {text!r}")
    return host.strip("[]"), int(port)


def _listening(text: str | None, address: str | None) -> PermitListenAddress | None:
    from devalloc.controller.permits.leader_server import PermitListenAddress

    at = _address(text or "", "--permits", "0.0.0.0:10299")
    if at is None:
        return None
    reached = address or at[0]
    if reached in ("0.0.0.0", "::"):
        raise BadInput(
            f"--permits {text} listens on all addresses of this host: name the one that nodes use with "
            "--permits-address"
        )
    if not re.fullmatch(r"[0-9A-Za-z.:-]+", reached):
        raise BadInput(f"--permits-address must be an address or a name, not {reached!r}")
    return PermitListenAddress(*at, reached)


def _certificate_problem(certificate: Path, key: Path) -> str:
    """Why the files cannot be served. They may be added or repaired later; meanwhile claims are allocated anyway."""
    import ssl

    from devalloc.controller.permits.settings import server_tls

    try:
        server_tls(str(certificate), str(key))
    except (OSError, ssl.SSLError) as error:
        return f"{certificate}, {key}: {getattr(error, 'strerror', None) or error}"
    return ""


def _tls(host: str, certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    import socket
    import ssl

    from devalloc.controller.certificate import self_signed
    from devalloc.controller.permits.settings import server_tls

    if (certificate is None) != (key is None):
        raise BadInput("--tls-certificate and --tls-key must be given together")
    if certificate is None:
        return self_signed(["localhost", socket.gethostname(), *([] if host in ("0.0.0.0", "::") else [host])])
    try:
        return server_tls(str(certificate), str(key))
    except (OSError, ssl.SSLError) as error:
        raise BadInput(f"--tls-certificate {certificate}, --tls-key {key}: {error}") from None
