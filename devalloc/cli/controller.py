"""``devalloc controller``: answer the claims of a cluster."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devalloc.cli.display import displayed
from devalloc.cli.options import duration, placement_option
from devalloc.cli.verb import BadInput, Failed, verb

if TYPE_CHECKING:
    import ssl

    from devalloc.controller.allocate import Round
    from devalloc.controller.page.html import Markup
    from devalloc.controller.permits.leader import Listening
    from devalloc.controller.resourceclaims.allocator import Round as ResourceRound


@verb("controller")
@click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="PATH",
    envvar="DEVALLOC_KUBECONFIG",
    help="The cluster whose claims are answered [env: DEVALLOC_KUBECONFIG].",
)
@click.option("--in-cluster", is_flag=True, help="As --kubeconfig, with the service account of the pod this runs in.")
@click.option(
    "--namespace",
    default="devalloc-system",
    metavar="NAME",
    envvar="POD_NAMESPACE",
    help="Where devalloc's own objects are, its Lease among them [env: POD_NAMESPACE].",
)
@click.option(
    "--name", metavar="NAME", envvar="POD_NAME", help="What this process is called [env: POD_NAME; default: the host]."
)
@click.option(
    "--listen",
    default="127.0.0.1:10301",
    metavar="HOST:PORT",
    help="Where /healthz, /readyz, /metrics and the page are, by TLS; empty for nowhere. Port 0: any that is free.",
)
@click.option(
    "--tls-certificate",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="PATH",
    help="PEM file for --listen, read again when it changes. One that is signed by itself by default.",
)
@click.option(
    "--tls-key", type=click.Path(dir_okay=False, exists=True, path_type=Path), metavar="PATH", help="Its key."
)
@click.option(
    "--tls-folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    envvar="DEVALLOC_TLS_FOLDER",
    help="Where tls.crt and tls.key are, in place of the two options above, as a Secret is mounted. They may come "
    "later: until then the certificate is one that is signed by itself [env: DEVALLOC_TLS_FOLDER].",
)
@click.option(
    "--token-audience",
    default="devalloc",
    metavar="NAME",
    help="Tokens that read metrics and the page must be for this audience (kubectl create token NAME --audience "
    "devalloc). Empty for tokens of the API server [default: devalloc].",
)
@click.option("--open-metrics", is_flag=True, help="Let anybody read /metrics who can connect, without a token.")
@click.option(
    "--permits",
    metavar="HOST:PORT",
    envvar="DEVALLOC_PERMITS_LISTEN",
    help="While it leads, give permits to machines that are scaled: their nodes ask here, by TLS and with their own "
    "tokens (devalloc node --scaling). Usually 0.0.0.0:10299; port 0: any that is free. Nowhere by default [env: "
    "DEVALLOC_PERMITS_LISTEN].",
)
@click.option(
    "--permits-address",
    metavar="ADDRESS",
    envvar="POD_IP",
    help="Where nodes reach --permits [env: POD_IP; default: its HOST].",
)
@placement_option
@click.option(
    "--deadline",
    type=duration,
    default="10s",
    metavar="DURATION",
    help="How long the solver may think about one batch of claims; then the best answer so far counts.",
)
@click.option(
    "--resync",
    type=duration,
    default="60s",
    metavar="DURATION",
    help="Look at all claims this often, even when no event says that something changed.",
)
@click.option(
    "--resource-claims",
    is_flag=True,
    help="Also allocate ResourceClaims of resource.k8s.io with the label devalloc.io/allocator: devalloc, from nodes "
    "that are set aside (devalloc node --allocator devalloc).",
)
@click.option(
    "--availability-interval",
    type=duration,
    default="5s",
    metavar="DURATION",
    help="Write availableDevices of pools not more often than this.",
)
@click.option(
    "--lease",
    "lease_seconds",
    type=duration,
    default="15s",
    metavar="DURATION",
    help="How long another controller waits before it takes the place of one that it does not hear of. The same for "
    "all of them.",
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
    """Answer the DeviceClaims of a cluster and place its VirtualMachines, until Ctrl-C (SIGTERM does the same).

    Several may run: one leads, the others stand by. One that loses its lease ends with exit code 1 at once and is to be
    started again. Exit code 0 after a clean stop.
    """
    import socket

    from devalloc.cli.clusters import connect
    from devalloc.controller.allocate import AllocateSettings
    from devalloc.controller.cluster import Cluster, ClusterSettings
    from devalloc.controller.lease import Lost
    from devalloc.controller.page import Pages
    from devalloc.controller.up import signals

    if kubeconfig is None and not in_cluster:
        raise BadInput("--kubeconfig or --in-cluster must say which cluster this is for; for this machine: devalloc up")
    if lease_seconds < 1:
        raise BadInput("--lease must be at least 1s")
    address = _address(listen)
    if tls_folder is not None and (tls_certificate is not None or tls_key is not None):
        raise BadInput("--tls-folder must not stand next to --tls-certificate and --tls-key")
    tls, unverified = None, ""
    if tls_folder is not None:
        tls_certificate, tls_key = tls_folder / "tls.crt", tls_folder / "tls.key"
        unverified = _why_not(tls_certificate, tls_key)
    if address is not None:
        tls = _tls(address[0], *((None, None) if unverified else (tls_certificate, tls_key)))
    settings = ClusterSettings(
        instance=name or socket.gethostname().lower(),
        namespace=namespace,
        seconds=lease_seconds,
        deadline=lease_seconds * 2 / 3,
        allocate=AllocateSettings(
            has_conditions=True,
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
    with displayed() as display:
        if unverified and address is not None:
            display.say(f"{unverified}: until there is a certificate, it is one that nobody can verify")

        def answered(done: Round) -> None:
            for key in done.granted:
                display.say(f"{key} {'placed' if key.kind == 'VirtualMachine' else 'allocated'}")
            stand("claims", done.in_words)

        def resources_answered(done: ResourceRound) -> None:
            for key in done.granted:
                display.say(f"{key} allocated")
            stand("ResourceClaims", done.in_words)

        states = {"claims": "", "ResourceClaims": ""}

        def stand(part: str, text: str) -> None:
            """Both dialects in one line of state: each is answered in a thread of its own."""
            states[part] = text
            display.state(", ".join(filter(None, states.values())))

        process = Cluster(
            connect(kubeconfig),
            settings,
            pages=lambda process, shown, access: Pages(
                process.store, access, beside=shown, hint=_hint(token_audience), remarks=process.trouble
            ).mounted(),
            on_state=lambda state, text: display.say(text),
            on_round=answered,
            on_resource_round=resources_answered,
            on_listening=lambda at: display.say(f"health, metrics and pages at https://{at[0]}:{at[1]}"),
            on_permits=lambda url: display.say(f"permits are given at {url}"),
        )
        with signals(process):
            try:
                process.run()
            except Lost as lost:
                Failed(f"{lost}; to be started again, for it knows what may be over").show()
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(1)  # now: threads may be in the middle of a solve, or wait for an answer
        display.say("stopped")
    return 0


def _hint(audience: str) -> Markup:
    """How somebody gets a token for the page."""
    from devalloc.controller.page.html import tag

    return tag(
        "p",
        "A token is what ",
        tag("code", "kubectl create token NAME" + (f" --audience {audience}" if audience else "")),
        " prints for a service account that may get the path ",
        tag("code", "/devalloc/"),
        ". It is good for this page and nothing else." if audience else ", or your own.",
    )


def _address(text: str, option: str = "--listen", example: str = "0.0.0.0:10301") -> tuple[str, int] | None:
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise BadInput(f"{option} must be HOST:PORT such as {example}, not {text!r}")
    return host.strip("[]"), int(port)


def _listening(text: str | None, address: str | None) -> Listening | None:
    from devalloc.controller.permits.leader import Listening

    at = _address(text or "", "--permits", "0.0.0.0:10299")
    if at is None:
        return None
    reached = address or at[0]
    if reached in ("0.0.0.0", "::"):
        raise BadInput(f"--permits {text} is everywhere on this host: --permits-address must say where nodes reach it")
    if not re.fullmatch(r"[0-9A-Za-z.:-]+", reached):
        raise BadInput(f"--permits-address must be an address or a name, not {reached!r}")
    return Listening(*at, reached)


def _why_not(certificate: Path, key: Path) -> str:
    """Why files that may come later, or be mended later, cannot be served: claims are answered all the same."""
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
        raise BadInput("--tls-certificate and --tls-key go together")
    if certificate is None:
        return self_signed(["localhost", socket.gethostname(), *([] if host in ("0.0.0.0", "::") else [host])])
    try:
        return server_tls(str(certificate), str(key))
    except (OSError, ssl.SSLError) as error:
        raise BadInput(f"--tls-certificate {certificate}, --tls-key {key}: {error}") from None
