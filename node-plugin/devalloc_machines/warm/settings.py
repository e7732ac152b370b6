"""Settings of the pool of warm setups."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from devalloc.settings import EXISTING_FILE, BadSetting, OneOf, Whole, given_options, group, setting
from devalloc_machines.qemu.settings import AllowedFolder, MachineConfig
from devalloc_machines.warm.addresses import BridgeNetwork, CniNetwork

if TYPE_CHECKING:
    from devalloc.api.virtual_machine import VirtualMachine
    from devalloc_machines.warm.setup import Setup

_ONLY_OF = (
    ("bridge", ("--warm-uplink", "--warm-isolated", "--warm-reach-host", "--warm-nameserver")),
    ("cni", ("--cni-network",)),
)
"""Options that need one of the networks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmConfig:
    """Warm setups, which are ready before a machine needs them."""

    target: int | None = setting(
        "Number of warm setups to keep ready: network namespaces with a TAP interface and a folder, so that machines "
        "start at once; 0 makes them on demand.",
        flag="--warm",
        type=Whole(0),
        metavar="NUMBER",
        unset="no warm setups",
    )
    most: int = setting(
        "Maximum number of warm setups, ready and taken.",
        flag="--warm-most",
        type=Whole(1),
        default=256,
        metavar="NUMBER",
    )
    """Also those that are being made and being removed."""
    vcpus_per_cpu: int | None = setting(
        "Maximum vCPUs per host CPU, of all taken warm setups.",
        flag="--warm-vcpus-per-cpu",
        type=Whole(1),
        metavar="NUMBER",
        unset="no maximum, the least loaded CPUs",
    )
    machine_file: Path | None = setting(
        "Keep a paused QEMU in each warm setup: a machine like the VirtualMachine in this file, with a network card on "
        "the TAP interface.",
        flag="--warm-machine",
        type=EXISTING_FILE,
        metavar="FILE",
    )
    network_kind: Literal["bridge", "cni"] | None = setting(
        "Give each warm setup an address in a network: of a bridge that the plugin makes, or by CNI plugins.",
        flag="--warm-network",
        type=OneOf(["bridge", "cni"]),
        unset="a TAP interface that is connected to nothing",
    )
    bridge: BridgeNetwork = group(BridgeNetwork, titled=False)
    cni: CniNetwork = group(CniNetwork, titled=False)
    nft: str = setting(
        "The nft program, which filters what guests of warm setups send.",
        flag="--nft",
        default="nft",
        metavar="PROGRAM",
    )
    """Also removes what an earlier run made."""
    on_demand: bool = True
    """Whether one is made for who finds none ready, which takes him tens of milliseconds."""
    run: Path = Path("/run/devalloc/warm")
    """Records and folders of setups, best in memory, as the namespaces are. Those of another boot are removed."""
    namespaces: Path = Path("/run/netns")
    """Where namespaces get their names; ``ip netns`` looks there."""
    prefix: str = "warm"
    """What ids of setups begin with."""
    users: range | None = None
    """User ids, one for each setup at a time: whose its folder, TAP interface and machine are. None: the plugin's."""
    machine: VirtualMachine | None = None
    """What waits, paused, in each setup: a machine like this, with a network card on the TAP. None: no machine."""
    network: BridgeNetwork | CniNetwork | None = None
    """What the TAP interfaces of setups are connected to; None: nothing."""
    cni_cache: Path | None = None
    """Folder of what CNI plugins added and did not delete yet; None: in ``run``. It should outlive a reboot, as what
    they write down does."""
    machines: MachineConfig = field(default_factory=MachineConfig)
    """How these are run; its folders for state and sockets are replaced by those of the pool."""
    workers: int = 4
    """Setups made, or removed, at the same time."""
    lease_seconds: float = 300.0
    """How long nothing may live in a taken setup until it counts as given back by an owner that has forgotten it."""
    look_seconds: float = 5.0
    """Between looks at what is taken."""

    def __post_init__(self) -> None:
        """Raises Denied ``IdentifierInvalid``, ValueError."""
        from devalloc_machines.warm.setup import MAX_IDENTIFIER, check_identifier

        check_identifier("prefix of warm setups", self.prefix)
        if len(self.prefix) > MAX_IDENTIFIER // 2:
            raise ValueError(
                f"the prefix of warm setups must have at most {MAX_IDENTIFIER // 2} characters, got {len(self.prefix)}"
            )
        if self.target is not None and not 0 <= self.target <= self.most:
            raise BadSetting(
                "--warm",
                f": cannot keep {self.target} warm setups ready, because --warm-most allows {self.most}",
            )
        if self.vcpus_per_cpu is not None and self.vcpus_per_cpu < 1:
            raise ValueError(f"vCPUs per CPU must be at least 1, got {self.vcpus_per_cpu}")
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")

    def checked(self, node: str, run: Path, machines: MachineConfig, note: Callable[[str], None]) -> Self:
        """As a node runs with it. ``run``: the folder of setups; ``note``: gets warnings. Raises BadSetting."""
        self._check_network()
        if self.target is None:
            if self.machine_file is not None:
                raise BadSetting("--warm-machine", "needs --warm, the number of paused machines")
            if self.vcpus_per_cpu is not None:
                raise BadSetting("--warm-vcpus-per-cpu", "needs --warm: it limits the CPUs of warm setups")
            return self
        machine = None
        if self.machine_file is not None:
            from devalloc_machines.warm.paused_machine import read_template

            machine = read_template(self.machine_file, node, note)
        # The admin defines the paused machine, so it may use files of every namespace's folder.
        folders = tuple(AllowedFolder(each.path, "any") for each in machines.folders)
        networks = {"bridge": replace(self.bridge, nft=self.nft), "cni": self.cni, None: None}
        return replace(
            self,
            run=run,
            users=machines.waiting_users if machine is not None and os.geteuid() == 0 else None,
            machine=machine,
            machines=replace(machines, users=None, folders=folders),
            network=networks[self.network_kind],
            cni_cache=machines.state.parent / "cni",
        )

    def _check_network(self) -> None:
        given = given_options(self)
        for kind, flags in _ONLY_OF:
            if self.network_kind != kind and (used := [flag for flag in flags if flag in given]):
                raise BadSetting(used[0], f"needs --warm-network {kind}")
        if self.network_kind is None:
            return
        if self.target is None:
            raise BadSetting("--warm-network", "needs --warm, the number of warm setups to keep ready")
        if shutil.which(self.nft) is None:
            raise BadSetting(
                "--warm-network", f"needs nft, but {self.nft} was not found: install nftables, or set --nft"
            )
        if self.network_kind == "cni":
            from devalloc_machines.warm.cni import load_list

            try:
                load_list(self.cni)
            except OSError as error:
                raise BadSetting("--warm-network", f"cni: {error.filename}: {error.strerror}") from None

    @property
    def attachments(self) -> Path:
        """The folder of what CNI plugins added."""
        return self.cni_cache or self.run / "cni"

    @property
    def paused(self) -> MachineConfig:
        """How machines that wait are run: apart from all others of this node."""
        return replace(self.machines, state=self.run / "lives", run=self.run / "machines")

    def setup(self, name: str) -> Setup:
        """The setup of that id, as far as its name tells. Raises Denied ``IdentifierInvalid``."""
        from devalloc_machines.warm.setup import Setup, check_identifier

        check_identifier("id of a setup", name)
        return Setup(name, self.namespaces / name, self.run / "setups" / name)
