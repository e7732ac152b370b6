"""What an administrator sets about the node plugin."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from devalloc.inventory import InventoryConfig
from devalloc.inventory.capacity import HostCapacity
from devalloc_node.agent.settings import Network, ScalingSettings
from devalloc_node.binding.config import BindingConfig
from devalloc_node.machine.paths import MachineConfig
from devalloc_node.warm.setup import WarmConfig

VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""What the kubelet can be served, as the registration calls it."""


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """How the kubelet is served."""

    folder: Path = Path("/var/lib/kubelet")
    """The kubelet's --root-dir."""
    driver: str = "devalloc.io"
    """The name that ResourceSlices and ResourceClaims call this driver."""
    pod_uid: str | None = None
    """Of the pod that this instance runs in. With it the kubelet is served by the old and the new pod of a rolling
    update side by side."""
    versions: tuple[str, ...] = VERSIONS
    """What of that is served."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """All of the plugin. The defaults are those of a service of the host that root runs."""

    node_name: str
    bindings: BindingConfig
    """Which devices may be taken from the host, and how."""
    inventory: InventoryConfig = field(default_factory=InventoryConfig)
    """Which devices are published."""
    root: Path = Path("/")
    """The folder that holds the host's sys, proc and dev."""
    state: Path = Path("/var/lib/devalloc/node")
    """The journal, locks, and what else must outlive the process. Two instances of a rolling update share it."""
    socket: Path | None = Path("/run/devalloc/node.sock")
    """Where our own service answers. None: it is not served."""
    cdi: Path = Path("/var/run/cdi")
    """Where container runtimes look for CDI specs."""
    rolling: bool = False
    """Whether another instance may still have the socket, the old pod of a rolling update, which is then waited for."""
    kubelet: KubeletSettings | None = None
    """None: the kubelet is not served."""
    set_aside: bool = False
    """Reserve the node's devices for devalloc's controller, not kube-scheduler (``devalloc.api.dedicated_pools``)."""
    machines: MachineConfig = field(default_factory=MachineConfig)
    """Where machines live, and what they may name."""
    capacity: HostCapacity | None = None
    """What machines may have of the host in all; one that does not fit is not started. None: no limit."""
    scaling: ScalingSettings | None = None
    """How machines whose objects ask for it follow what their guests do. None: they do not."""
    runners: tuple[Network, ...] = ()
    """Networks in which runners of machines may listen, for any client there. Empty: there are no runners."""
    warm: WarmConfig | None = None
    """How many warm setups are kept ready. None: none are kept or made."""
    metrics: str | None = None
    """Where metrics are served: ``HOST:PORT`` (loopback) or ``unix:PATH``. None: nowhere."""
    resync: float = 60.0
    """Seconds between looks at claims and devices when nothing says that something changed."""
    grace: float = 300.0
    """Seconds that a claim must be gone before what is prepared of it is taken back (T16)."""

    @property
    def driver(self) -> str:
        """What CDI devices are named after."""
        return KubeletSettings().driver if self.kubelet is None else self.kubelet.driver

    @property
    def data(self) -> Path:
        """Where files lie that are mounted into containers."""
        return self.state / "files" if self.kubelet is None else self.kubelet.folder / "plugins" / self.driver

    @property
    def written(self) -> tuple[str, ...]:
        """The folders that the plugin writes files of claims to."""
        return (str(self.cdi), str(self.data / "dra-device-metadata"))
