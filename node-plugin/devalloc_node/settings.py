"""Settings of the node plugin, as it runs with them.

``devalloc.cli.options.node`` makes them from what an administrator writes.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from devalloc.inventory.capacity import CapacityConfig, HostCapacity
from devalloc.inventory.config import InventoryConfig
from devalloc.scaling.agent_config import AgentConfig
from devalloc.scaling.config import ScalingConfig
from devalloc.scaling.health import HealthLimits
from devalloc.scaling.permits.arithmetic import DEFAULT_ARITHMETIC, PermitArithmetic
from devalloc.scaling.resources import Resources
from devalloc.scaling.state import ScalingTiming
from devalloc.scaling.versions import ProtocolEra
from devalloc_node.binding.binding import BindingConfig
from devalloc_node.machine.machine_files import MachineConfig
from devalloc_node.parts import MakePart


@dataclass(frozen=True, slots=True)
class ScalerTimeouts:
    """All in milliseconds."""

    plugin_timeout: int = 2_000
    metrics_interval: int = 5_000
    metrics_timeout: int = 2_000
    lfc_interval: int = 15_000
    lfc_timeout: int = 5_000
    look_interval: int = 30_000
    """The machine is looked at this often even if nothing changed it,"""
    look_retry: int = 2_000
    """and again after this when it could not be."""
    look_timeout: int = 10_000
    patience: int = 300_000
    """How long a guest may keep more than the machine's maximum by not agreeing to less."""
    guest_patience: int = 60_000
    """How long a guest may take to bring online what its machine has before it is reported as behind."""
    stuck: HealthLimits = field(default_factory=HealthLimits)


def scaler_timeouts(config: AgentConfig) -> ScalerTimeouts:
    """What of an agent's configuration is for each of its scalers."""
    return ScalerTimeouts(
        plugin_timeout=config.plugin_timeout,
        metrics_interval=config.system_interval,
        metrics_timeout=config.system_timeout,
        lfc_interval=config.lfc_interval,
        lfc_timeout=config.lfc_timeout,
        stuck=config.limits,
    )


Network = ipaddress.IPv4Network | ipaddress.IPv6Network
SHIPPED = AgentConfig()
PERMITS = f"http://127.0.0.1:{SHIPPED.plugin_port}/"


@dataclass(frozen=True, slots=True)
class ServerPorts:
    """Where the local permit server listens."""

    requests: int
    """Port of loopback for requests."""
    dump: Path | int | None
    """Where it shows its ledgers: a unix socket, or a port of loopback; None: nowhere."""
    arithmetic: PermitArithmetic = DEFAULT_ARITHMETIC
    """How it counts."""
    migration_seconds: float = 3600.0
    """How long a migration may take before the permit server withdraws it."""


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """All settings of the agent."""

    permits: str = PERMITS
    """URL of the permit server."""
    server: ServerPorts | None = None
    """The permit server that runs beside the agent; None: another process serves permits."""
    token: str | None = field(default=None, repr=False)
    """The token that the permit server expects as ``Authorization: Bearer``."""
    has_own_token: bool = False
    """Whether this process made the token, so that no other process has it."""
    unit: Resources = SHIPPED.unit
    """The compute unit: machines have whole units, as far as their bounds allow."""
    agent: AgentConfig = SHIPPED
    """Parameters of goals for machines that set none, and the delays."""
    compat: ProtocolEra | None = None
    """Which releases of peers to follow if they differ; None: the newest, and v0.31 for granting permits."""
    guests: tuple[Network, ...] = ()
    """Networks in which guests may have addresses, besides those behind a TAP interface of their own machine. A user
    who writes a VirtualMachine chooses its guest's address, and the plugin must not connect to other servers."""
    asks_pods: bool = False
    """Whether the permit server is another program's (``--permits``), which knows machines by their runner pods and
    writes no ``status.permitted``."""
    dump: Path | int | None = None
    """Where the agent shows its state: a unix socket, or a port of loopback; None: nowhere."""
    threads: int = 16
    """Maximum number of machines that it changes at the same time, and that it reads at the same time."""

    @property
    def config(self) -> ScalingConfig:
        """Parameters of goals for machines that set none."""
        return self.agent.scaling

    @property
    def timing(self) -> ScalingTiming:
        """The delays of the state machine."""
        return self.agent.timing

    @property
    def era(self) -> ProtocolEra:
        """The release whose goals the agent computes."""
        return self.compat or ProtocolEra.NEWEST

    def reaches(self, address: str) -> bool:
        """Whether a guest may have this address, by ``guests``."""
        at = ipaddress.ip_address(address)
        if isinstance(at, ipaddress.IPv6Address) and at.ipv4_mapped is not None:
            return False  # IPv4 in other words
        return any(at.version == network.version and at in network for network in self.guests)


@dataclass(frozen=True, slots=True)
class MigrationSettings:
    """How machines move to other nodes, and from them, while they run."""

    address: str | None = None
    """Where this node listens for a machine that moves to it: an address of IPv4 or IPv6. None: it receives none."""
    bandwidth: int | None = None
    """Bytes per second at most that a machine is sent with. None: QEMU's own limit, 128 MiB/s."""
    timeout: float = 7200.0
    """Seconds after which a machine that has not moved stays where it is, should there be no controller that ends its
    migration earlier."""
    sys: Path = Path("/sys")
    """Where the host's sysfs is."""


VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""Services for the kubelet, by the names that the registration has for them."""


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """Settings of the services for the kubelet."""

    folder: Path = Path("/var/lib/kubelet")
    """The kubelet's --root-dir."""
    driver: str = "devalloc.io"
    """The driver's name in ResourceSlices and ResourceClaims."""
    pod_uid: str | None = None
    """UID of this pod. With it, the old and the new pod of a rolling update serve the kubelet side by side. None: the
    plugin does not run in a pod."""
    versions: tuple[str, ...] = VERSIONS
    """Which of VERSIONS to serve."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """All settings of the plugin. The defaults suit a service of the host that root runs."""

    node_name: str
    bindings: BindingConfig
    """Which devices the plugin may take from the host, and how."""
    inventory: InventoryConfig = field(default_factory=InventoryConfig)
    """Which devices the plugin publishes."""
    root: Path = Path("/")
    """The folder that contains the host's sys, proc and dev."""
    state: Path = Path("/var/lib/devalloc/node")
    """Folder of the journal, locks, and what else must outlive the process. Two instances of a rolling update share
    it."""
    socket: Path | None = Path("/run/devalloc/node.sock")
    """Socket of devalloc.node.v1. None: the plugin does not serve it."""
    cdi: Path = Path("/var/run/cdi")
    """Folder in which container runtimes look for CDI specs."""
    rolling: bool = False
    """Wait for the socket, because the old pod of a rolling update may still have it."""
    kubelet: KubeletSettings | None = None
    """None: the plugin does not serve the kubelet."""
    set_aside: bool = False
    """Reserve the node's devices for devalloc's controller, not kube-scheduler (``devalloc.api.dedicated_pools``)."""
    machines: MachineConfig = field(default_factory=MachineConfig)
    """Where machines are on this host, and what of the host they may name."""
    capacity: HostCapacity | None = None
    """What all machines together may have of the host; the plugin starts none that does not fit. None: no limit."""
    limits: CapacityConfig = field(default_factory=CapacityConfig)
    """What the host may promise to machines, as it is configured; its permit server counts with it."""
    scaling: ScalingSettings | None = None
    """How machines with spec.scaling follow the load of their guests. None: they do not."""
    migrations: MigrationSettings = field(default_factory=MigrationSettings)
    """How machines move between nodes while they run."""
    runners: tuple[Network, ...] = ()
    """Networks in which runners of machines may listen, for every client there. Empty: no runners."""
    shared_storage: tuple[Path, ...] = ()
    """Folders that have the same files on every node that names them."""
    parts: tuple[MakePart, ...] = ()
    """What else the node has (``devalloc_node.parts``)."""
    metrics: str | None = None
    """Where to serve metrics: ``HOST:PORT`` (loopback) or ``unix:PATH``. None: nowhere."""
    resync: float = 60.0
    """Seconds between checks of claims and devices without an event."""
    grace: float = 300.0
    """Seconds for which a claim must be gone before the plugin takes back its devices (T16)."""

    @property
    def driver(self) -> str:
        """The name after which CDI devices are named."""
        return KubeletSettings().driver if self.kubelet is None else self.kubelet.driver

    @property
    def data(self) -> Path:
        """Folder of the files that containers get as mounts."""
        return self.state / "files" if self.kubelet is None else self.kubelet.folder / "plugins" / self.driver

    @property
    def written(self) -> tuple[str, ...]:
        """The folders that the plugin writes files of claims to."""
        return (str(self.cdi), str(self.data / "dra-device-metadata"))
