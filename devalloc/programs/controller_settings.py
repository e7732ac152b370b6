"""Settings of the controller of a cluster, and of a proxy of its permit server."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from devalloc.controller.settings import FencingSettings, MigrationLimits
from devalloc.programs.settings import (
    BATCH_DEADLINE,
    CEL_CHECK,
    IN_CLUSTER,
    KUBECONFIG,
    OTLP_ENDPOINT,
    PLACEMENT,
)
from devalloc.scaling.permits.arithmetic import COMPAT, COMPUTE_UNIT, OF_PERMITS, PermitsArithmetic
from devalloc.settings import (
    EXISTING_FILE,
    FOLDER,
    BadSetting,
    HostPort,
    Network,
    declared,
    given_options,
    group,
    parse_duration,
    parse_network,
    setting,
)

if TYPE_CHECKING:
    import ssl

    from devalloc.controller.reconcile.loop import AllocatorSettings
    from devalloc.machines.permits.leader_server import PermitListenAddress
    from devalloc.scaling.resources import Resources
    from devalloc_neon.plain_port import PlainListener


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
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
    listen: tuple[str, int] | None = setting(
        "Serve /healthz, /readyz, /metrics and the page here, with TLS; empty: not at all. Port 0: any free port.",
        type=HostPort("0.0.0.0:10301"),
        default="127.0.0.1:10301",
        metavar="HOST:PORT",
        usual=True,
    )
    health_listen: tuple[str, int] | None = setting(
        "Also serve /healthz and /readyz here, by plain HTTP, for probes: connections to --listen do not take their "
        "place. Empty: not at all. Port 0: any free port.",
        type=HostPort("0.0.0.0:10302"),
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
    permits: tuple[str, int] | None = setting(
        "Run the permit server here while this process leads. Nodes ask it, with TLS and their own tokens, how far "
        "they may scale machines (devalloc node --scaling). Usually 0.0.0.0:10299; port 0: any free port.",
        type=HostPort("0.0.0.0:10299"),
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
    neon_permits: tuple[str, int] | None = setting(
        "Also grant permits here by plain HTTP, without a token, for agents of Neon, which ask for machines by their "
        "runner pods. One address of this host; needs --permits, --neon and --neon-agents.",
        type=HostPort("10.0.0.7:10297"),
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
    otlp_endpoint: str | None = declared(OTLP_ENDPOINT)
    fencing: FencingSettings = group(FencingSettings, titled=False)
    lease: float = setting(
        "How long a standby controller waits without news from the leader before it takes over. Must be the same for "
        "all controllers.",
        type=parse_duration,
        default="15s",
        metavar="DURATION",
    )

    tls: ssl.SSLContext | None = None
    """What ``listen`` is served with, as ``checked`` makes it; None: no TLS."""
    allocate: AllocatorSettings | None = None
    """How claims are answered, as ``checked`` makes it."""
    permit_server: PermitListenAddress | None = None
    """Where nodes ask for permits, and how the server counts, as ``checked`` makes it; None: nowhere."""

    @property
    def instance(self) -> str:
        """The name of this process."""
        return self.name or socket.gethostname().lower()

    @property
    def certificate(self) -> tuple[str, str] | None:
        """The files that ``tls`` is of, or is to be of when they are there."""
        if self.tls_folder is not None:
            return str(self.tls_folder / "tls.crt"), str(self.tls_folder / "tls.key")
        return None if self.tls_certificate is None else (str(self.tls_certificate), str(self.tls_key))

    def checked(self, say: Callable[[str], None]) -> Self:
        """With all that other settings and files decide. ``say``: told of a certificate that cannot be served yet.
        Raises BadSetting."""
        from devalloc.controller.reconcile.decision import AnswerForm
        from devalloc.controller.reconcile.loop import AllocatorSettings

        if self.lease < 1:
            raise BadSetting("--lease", "must be at least 1s")
        self.fencing.check()
        allocate = AllocatorSettings(
            form=AnswerForm(in_conditions=True, in_annotations=self.reason_annotations),
            labels_nodes=True,
            hides_names=True,
            placement=self.placement,
            cel_check=self.cel_check,
            deadline=self.deadline,
            resync=self.resync,
            availability=self.availability_interval,
            admin_namespaces="labelled",
            migrations=self.migrations,
        )
        return replace(self, tls=self._tls(say), allocate=allocate, permit_server=self._permit_server())

    def _tls(self, say: Callable[[str], None]) -> ssl.SSLContext | None:
        import ssl

        from devalloc.controller.certificate import self_signed
        from devalloc.net.http_server import server_tls

        if self.tls_folder is not None and (self.tls_certificate is not None or self.tls_key is not None):
            raise BadSetting("--tls-folder", "cannot be combined with --tls-certificate and --tls-key")
        if self.listen is None:
            return None
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise BadSetting("--tls-certificate", "and --tls-key must be given together")
        if self.certificate is not None:
            try:
                return server_tls(*self.certificate)
            except (OSError, ssl.SSLError) as error:
                certificate, key = self.certificate
                if self.tls_folder is None:
                    raise BadSetting("--tls-certificate", f"{certificate}, --tls-key {key}: {error}") from None
                # They may be added or repaired later; meanwhile claims are allocated anyway.
                why = getattr(error, "strerror", None) or error
                say(f"{certificate}, {key}: {why}: serving a self-signed certificate until there is one")
        host = self.listen[0]
        return self_signed(["localhost", socket.gethostname(), *([] if host in ("0.0.0.0", "::") else [host])])

    def _permit_server(self) -> PermitListenAddress | None:
        from devalloc.machines.permits.leader_server import PermitListenAddress

        if self.permits is None:
            of_server = ("--neon-permits", "--neon-agents", "--compat", "--compute-unit", *OF_PERMITS)
            if given := [each for each in given_options(self) if each in of_server]:
                raise BadSetting(given[0], "needs --permits")
            return None
        reached = self.permits_address or self.permits[0]
        if reached in ("0.0.0.0", "::"):
            raise BadSetting(
                "--permits",
                f"{self.permits[0]}:{self.permits[1]} listens on all addresses of this host: name the one that nodes "
                "use with --permits-address",
            )
        if not re.fullmatch(r"[0-9A-Za-z.:-]+", reached):
            raise BadSetting("--permits-address", f"must be an address or a name, not {reached!r}")
        return PermitListenAddress(
            *self.permits,
            reached,
            arithmetic=self.arithmetic.checked(self.compat, self.compute_unit),
            plain=self._plain(),
            migration_seconds=self.migrations.timeout,
        )

    def _plain(self) -> PlainListener | None:
        """Where Neon's agents ask."""
        from devalloc.machines.permits.settings import UnsafeSettings
        from devalloc_neon.plain_port import PlainListener

        if self.neon_permits is None:
            if self.neon_agents:
                raise BadSetting("--neon-agents", "needs --neon-permits")
            return None
        if not self.neon:
            raise BadSetting("--neon-permits", "needs --neon: its agents name machines by their runner pods")
        if not self.neon_agents:
            raise BadSetting(
                "--neon-permits", "needs --neon-agents: anyone who can connect there gets permits without a token"
            )
        host, port = self.neon_permits
        try:
            return PlainListener(host, port, self.neon_agents)
        except UnsafeSettings as error:
            raise BadSetting("--neon-permits", f"{host}:{port}, --neon-agents: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class PermitProxyOptions:
    """A proxy of the permit server."""

    kubeconfig: Path | None = declared(KUBECONFIG)
    in_cluster: bool = declared(IN_CLUSTER)
    namespace: str = setting("Namespace of the controller.", default="devalloc-system", metavar="NAME")
    listen: tuple[str, int] | None = setting(
        "Admit agents here, by plain HTTP. One address of this host.",
        type=HostPort("10.0.0.7:10297"),
        metavar="ADDRESS:PORT",
        env="DEVALLOC_PROXY_LISTEN",
        default="",
        unset="port 10297 of POD_IP",
    )
    agents: tuple[Network, ...] = setting(
        "Network of the agents, which may connect to --listen. Repeatable.",
        type=parse_network,
        default=(),
        metavar="CIDR",
        env="DEVALLOC_NEON_AGENTS",
    )
    health_listen: tuple[str, int] | None = setting(
        "Serve /healthz and /readyz here, by plain HTTP. Ready: the controller that leads answers. Empty: not at all.",
        type=HostPort("0.0.0.0:10302"),
        default="",
        metavar="HOST:PORT",
    )
