"""``devalloc controller``: the controller of a cluster."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from devalloc.controller.settings import MigrationLimits
from devalloc.program import Program, ProgressDisplay
from devalloc.programs.settings import (
    BATCH_DEADLINE,
    CEL_CHECK,
    IN_CLUSTER,
    KUBECONFIG,
    OTLP_ENDPOINT,
    PLACEMENT,
    host_and_port,
)
from devalloc.scaling.permits.arithmetic import COMPAT, COMPUTE_UNIT, OF_PERMITS, PermitsArithmetic
from devalloc.settings import (
    EXISTING_FILE,
    FOLDER,
    BadSetting,
    Network,
    Whole,
    declared,
    given_options,
    group,
    parse_duration,
    parse_network,
    setting,
)

if TYPE_CHECKING:
    import ssl

    from markupsafe import Markup

    from devalloc.controller.fencing_program import FencingSettings
    from devalloc.controller.reconcile.device_claims import DeviceClaimRound
    from devalloc.controller.reconcile.resource_claims.allocator import ResourceClaimRound as ResourceRound
    from devalloc.machines.permits.leader_server import PermitListenAddress
    from devalloc.programs.controller_parts import ClusterSettings
    from devalloc.scaling.resources import Resources
    from devalloc.store.kubernetes import Client
    from devalloc_neon.plain_port import PlainListener


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerOptions:
    """The controller of a cluster."""

    kubeconfig: Path | None = declared(KUBECONFIG)
    in_cluster: bool = declared(IN_CLUSTER)
    namespace: str = setting(
        "Namespace of devalloc's own objects, such as its Lease.",
        default="devalloc-system",
        metavar="NAME",
        env="POD_NAMESPACE",
    )
    name: str | None = setting("Name of this process.", metavar="NAME", env="POD_NAME", unset="the host name")
    listen: str = setting(
        "Serve /healthz, /readyz, /metrics and the page here, with TLS; empty: not at all. Port 0: any free port.",
        default="127.0.0.1:10301",
        metavar="HOST:PORT",
        usual=True,
    )
    health_listen: str = setting(
        "Also serve /healthz and /readyz here, by plain HTTP, for probes: connections to --listen do not take their "
        "place. Empty: not at all. Port 0: any free port.",
        default="",
        metavar="HOST:PORT",
    )
    tls_certificate: Path | None = setting(
        "PEM file for --listen, read again when it changes.",
        type=EXISTING_FILE,
        metavar="PATH",
        unset="a self-signed certificate",
    )
    tls_key: Path | None = setting("The certificate's key.", type=EXISTING_FILE, metavar="PATH")
    tls_folder: Path | None = setting(
        "Folder of tls.crt and tls.key, such as a mounted Secret, instead of the two options above. The files may "
        "appear later: until then the certificate is self-signed.",
        type=FOLDER,
        metavar="DIR",
        env="DEVALLOC_TLS_FOLDER",
    )
    token_audience: str = setting(
        "Audience of the tokens that may read metrics and the page (kubectl create token NAME --audience devalloc). "
        "Empty: tokens of the API server.",
        default="devalloc",
        metavar="NAME",
    )
    open_metrics: bool = setting("Serve /metrics without a token to anyone who can connect.", default=False)
    permits: str | None = setting(
        "Run the permit server here while this process leads. Nodes ask it, with TLS and their own tokens, how far "
        "they may scale machines (devalloc node --scaling). Usually 0.0.0.0:10299; port 0: any free port.",
        metavar="HOST:PORT",
        env="DEVALLOC_PERMITS_LISTEN",
        unset="no permit server",
        usual=True,
    )
    permits_address: str | None = setting(
        "Address at which nodes reach --permits.", metavar="ADDRESS", env="POD_IP", unset="its HOST"
    )
    neon: bool = setting(
        "Also read machines of NeonVM (vm.neon.tech), if the cluster has them, and runner pods: with --permits these "
        "machines count on their nodes, and VirtualMachines get status.runnerPod.",
        default=False,
        env="DEVALLOC_NEON",
    )
    neon_permits: str | None = setting(
        "Also grant permits here by plain HTTP, without a token, for agents of Neon, which ask for machines by their "
        "runner pods. One address of this host; needs --permits, --neon and --neon-agents.",
        metavar="ADDRESS:PORT",
        env="DEVALLOC_NEON_PERMITS",
        unset="nowhere",
    )
    neon_agents: tuple[Network, ...] = setting(
        "Network of agents that may connect to --neon-permits. Repeatable.",
        type=parse_network,
        default=(),
        metavar="CIDR",
        env="DEVALLOC_NEON_AGENTS",
    )
    compat: str | None = setting(
        "Arithmetic of which release of Neon's scheduler plugin the permit server follows.",
        type=COMPAT.type,
        env=COMPAT.env,
        unset="v0.31",
    )
    compute_unit: Resources | None = declared(COMPUTE_UNIT)
    arithmetic: PermitsArithmetic = group(PermitsArithmetic)
    placement: str = declared(PLACEMENT)
    cel_check: str = declared(CEL_CHECK)
    deadline: float = declared(BATCH_DEADLINE)
    resync: float = setting(
        "Check all claims this often, even without events.", type=parse_duration, default="60s", metavar="DURATION"
    )
    resource_claims: bool = setting(
        "Also allocate ResourceClaims of resource.k8s.io with the label devalloc.io/allocator: devalloc, from nodes "
        "that are set aside (devalloc node --allocator devalloc).",
        default=False,
        usual=True,
    )
    reason_annotations: bool = setting(
        "Also write why a claim has no devices as annotations (devalloc.io/reason, devalloc.io/message), for programs "
        "that do not read conditions, such as devalloc 0.1.0. This doubles the requests for claims that wait.",
        default=False,
    )
    availability_interval: float = setting(
        "Update availableDevices of pools at most this often.",
        type=parse_duration,
        default="5s",
        metavar="DURATION",
    )
    migrations: MigrationLimits = group(MigrationLimits)
    fencing_command: Path | None = setting(
        "Program that powers off a lost node: a Node that has machines or claims, and whose condition Ready has been "
        "Unknown for --fencing-after. It gets the node's name as its argument and in DEVALLOC_NODE. If it ends with 0, "
        "the node is fenced, as with `devalloc fence`; otherwise it is called again later.",
        type=EXISTING_FILE,
        metavar="PROGRAM",
        unset="no node is fenced automatically",
    )
    otlp_endpoint: str | None = declared(OTLP_ENDPOINT)
    fencing_after: float = setting(
        "How long a node must be lost before --fencing-command is called.",
        type=parse_duration,
        default="5m",
        metavar="DURATION",
    )
    fencing_timeout: float = setting(
        "How long --fencing-command may take.", type=parse_duration, default="2m", metavar="DURATION"
    )
    fencing_one_in: int = setting(
        "One in this number of nodes may be lost or fenced at the same time. If more are, the controller does not call "
        "--fencing-command, because a network fault must not power off the fleet.",
        type=Whole(1),
        default=5,
        metavar="NUMBER",
    )
    lease: float = setting(
        "How long a standby controller waits without news from the leader before it takes over. Must be the same for "
        "all controllers.",
        type=parse_duration,
        default="15s",
        metavar="DURATION",
    )

    @property
    def instance(self) -> str:
        """The name of this process."""
        return self.name or socket.gethostname().lower()


def controller(options: ControllerOptions, connect: Callable[[], Client], display: ProgressDisplay) -> Program:
    """Allocate the claims of a cluster and place its machines, as the one of several controllers that leads, or stand
    by. Raises BadSetting."""
    from devalloc.programs.controller_parts import ClusterProcess
    from devalloc.usage.overview.claims import NOT_ANSWERED
    from devalloc.usage.page import FleetPage

    settings, unverified = _settings(options)
    if unverified and settings.listen is not None:
        display.say(f"{unverified}: serving a self-signed certificate until there is one")

    def answered(done: DeviceClaimRound) -> None:
        for key in done.granted:
            display.say(f"{key} {'placed' if key.kind == 'VirtualMachine' else 'allocated'}")
        stand("claims", done.in_words)

    def resources_answered(done: ResourceRound) -> None:
        for key in done.granted:
            display.say(f"{key} allocated")
        stand("ResourceClaims", done.in_words)

    def permits_served(url: str, plain: str | None) -> None:
        display.say(f"permit server at {url}")
        if plain is not None:
            display.say(f"permits for Neon's agents at {plain}, by plain HTTP")

    states = {"claims": "", "ResourceClaims": ""}

    def stand(part: str, text: str) -> None:
        """Show both dialects in one line of state: each runs in a thread of its own."""
        states[part] = text
        display.state(", ".join(filter(None, states.values())))

    process = ClusterProcess(
        connect(),
        settings,
        pages=lambda process, shown, access: FleetPage(
            process.store,
            access,
            optional_store=shown,
            hint=_hint(options.token_audience),
            remarks=process.trouble,
            unserved=process.unserved,
            unanswered=lambda: "" if options.resource_claims else NOT_ANSWERED,
        ).mounted(),
        on_state=lambda state, text: display.say(text),
        on_round=answered,
        on_resource_round=resources_answered,
        on_listening=lambda at: display.say(f"health, metrics and pages at https://{at[0]}:{at[1]}"),
        on_permits=permits_served,
    )
    return process.program()


def _settings(options: ControllerOptions) -> tuple[ClusterSettings, str]:
    """With why the certificate cannot be served yet; "": it can, or there is to be none. Raises BadSetting."""
    from devalloc.controller.reconcile.decision import AnswerForm
    from devalloc.controller.reconcile.loop import AllocatorSettings
    from devalloc.programs.controller_parts import ClusterSettings

    if options.lease < 1:
        raise BadSetting("--lease", "must be at least 1s")
    address, certificate, key = host_and_port(options.listen), options.tls_certificate, options.tls_key
    if options.tls_folder is not None and (certificate is not None or key is not None):
        raise BadSetting("--tls-folder", "cannot be combined with --tls-certificate and --tls-key")
    tls, unverified = None, ""
    if options.tls_folder is not None:
        certificate, key = options.tls_folder / "tls.crt", options.tls_folder / "tls.key"
        unverified = _certificate_problem(certificate, key)
    if address is not None:
        tls = _tls(address[0], *((None, None) if unverified else (certificate, key)))
    settings = ClusterSettings(
        instance=options.instance,
        namespace=options.namespace,
        seconds=options.lease,
        deadline=options.lease * 2 / 3,
        allocate=AllocatorSettings(
            form=AnswerForm(in_conditions=True, in_annotations=options.reason_annotations),
            labels_nodes=True,
            hides_names=True,
            placement=options.placement,
            cel_check=options.cel_check,
            deadline=options.deadline,
            resync=options.resync,
            availability=options.availability_interval,
            admin_namespaces="labelled",
            migrations=options.migrations,
        ),
        resource_claims=options.resource_claims,
        listen=address,
        health=host_and_port(options.health_listen, "--health-listen", "0.0.0.0:10302"),
        tls=tls,
        certificate=None if certificate is None else (str(certificate), str(key)),
        audience=options.token_audience,
        open_metrics=options.open_metrics,
        permits=_permits(options),
        neon=options.neon,
        fencing=_fencing(options),
    )
    return settings, unverified


def _fencing(options: ControllerOptions) -> FencingSettings | None:
    """When lost nodes are powered off; None: never. Raises BadSetting."""
    from devalloc.controller.fencing_program import FencingSettings

    if (command := options.fencing_command) is None:
        of_fencing = ("--fencing-after", "--fencing-timeout", "--fencing-one-in")
        if given := [each for each in given_options(options) if each in of_fencing]:
            raise BadSetting(given[0], "needs --fencing-command")
        return None
    if not os.access(command, os.X_OK):
        raise BadSetting("--fencing-command", f"{command} is not executable: chmod +x {command}")
    return FencingSettings(
        str(command.absolute()), options.fencing_after, options.fencing_timeout, options.fencing_one_in
    )


def _hint(audience: str) -> Markup:
    """How to get a token for the page."""
    from markupsafe import Markup

    return Markup(
        "<p>To get a token, run <code>kubectl create token NAME{}</code> for a service account that may get the path "
        "<code>/devalloc/</code>{}</p>"
    ).format(
        f" --audience {audience}" if audience else "",
        ". The token works for this page only." if audience else ", or use your own.",
    )


def _listening(text: str | None, address: str | None) -> PermitListenAddress | None:
    from devalloc.machines.permits.leader_server import PermitListenAddress

    at = host_and_port(text or "", "--permits", "0.0.0.0:10299")
    if at is None:
        return None
    reached = address or at[0]
    if reached in ("0.0.0.0", "::"):
        raise BadSetting(
            "--permits",
            f"{text} listens on all addresses of this host: name the one that nodes use with --permits-address",
        )
    if not re.fullmatch(r"[0-9A-Za-z.:-]+", reached):
        raise BadSetting("--permits-address", f"must be an address or a name, not {reached!r}")
    return PermitListenAddress(*at, reached)


def _permits(options: ControllerOptions) -> PermitListenAddress | None:
    """Where the permit server listens, and how it counts. Raises BadSetting."""
    at = _listening(options.permits, options.permits_address)
    if at is None:
        of_server = ("--neon-permits", "--neon-agents", "--compat", "--compute-unit", *OF_PERMITS)
        if given := [each for each in given_options(options) if each in of_server]:
            raise BadSetting(given[0], "needs --permits")
        return None
    return replace(
        at,
        arithmetic=options.arithmetic.checked(options.compat, options.compute_unit),
        plain=_plain(options),
        migration_seconds=options.migrations.timeout,
    )


def _plain(options: ControllerOptions) -> PlainListener | None:
    """Where Neon's agents ask. Raises BadSetting."""
    from devalloc.machines.permits.settings import UnsafeSettings
    from devalloc_neon.plain_port import PlainListener

    at = host_and_port(options.neon_permits or "", "--neon-permits", "10.0.0.7:10297")
    if at is None:
        if options.neon_agents:
            raise BadSetting("--neon-agents", "needs --neon-permits")
        return None
    if not options.neon:
        raise BadSetting("--neon-permits", "needs --neon: its agents name machines by their runner pods")
    if not options.neon_agents:
        raise BadSetting(
            "--neon-permits", "needs --neon-agents: anyone who can connect there gets permits without a token"
        )
    try:
        return PlainListener(*at, options.neon_agents)
    except UnsafeSettings as error:
        raise BadSetting("--neon-permits", f"{options.neon_permits}, --neon-agents: {error}") from None


def _certificate_problem(certificate: Path, key: Path) -> str:
    """Why the files cannot be served. They may be added or repaired later; meanwhile claims are allocated anyway."""
    import ssl

    from devalloc.net.http_server import server_tls

    try:
        server_tls(str(certificate), str(key))
    except (OSError, ssl.SSLError) as error:
        return f"{certificate}, {key}: {getattr(error, 'strerror', None) or error}"
    return ""


def _tls(host: str, certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    import ssl

    from devalloc.controller.certificate import self_signed
    from devalloc.net.http_server import server_tls

    if (certificate is None) != (key is None):
        raise BadSetting("--tls-certificate", "and --tls-key must be given together")
    if certificate is None:
        return self_signed(["localhost", socket.gethostname(), *([] if host in ("0.0.0.0", "::") else [host])])
    try:
        return server_tls(str(certificate), str(key))
    except (OSError, ssl.SSLError) as error:
        raise BadSetting("--tls-certificate", f"{certificate}, --tls-key {key}: {error}") from None
