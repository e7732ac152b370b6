"""Settings of the node plugin, as it runs with them.

``devalloc.programs.node_options`` makes them from what an administrator writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from devalloc.inventory.config import InventoryConfig
from devalloc_node.binding.binding import BindingConfig
from devalloc_node.parts import MakePart

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
    """Settings of a node that has devices; those of its parts are the parts' own. The defaults suit a service of the
    host that root runs."""

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
    dry_run: bool = False
    """Change nothing on the host."""
    rolling: bool = False
    """Wait for the socket, because the old pod of a rolling update may still have it."""
    kubelet: KubeletSettings | None = None
    """None: the plugin does not serve the kubelet."""
    set_aside: bool = False
    """Reserve the node's devices for devalloc's controller, not kube-scheduler (``devalloc.api.dedicated_pools``)."""
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
