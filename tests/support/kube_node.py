"""The rest of a cluster: kube-controller-manager, kube-scheduler, and a node with a real kubelet, containerd and runc.

The node lives in namespaces of its own (mounts, processes): its end takes every container, shim and mount along, also
when the tests are killed. What it has outside is one folder and its cgroups. Pods must use the host's network, so that
no network plugin runs: devices are what is tested here.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import kube_controllers
from tests.support.go_build import Unavailable
from tests.support.kube_api import SCHEDULER, START_SECONDS, Cluster, Processes, last_lines, running
from tests.support.kube_images import IMAGE
from tests.support.kube_runc import Runc
from tests.support.ports import free_ports

NODE = "node-a"
VFIO_GROUPS = 64
"""How many /dev/vfio/N the node has."""
_CGROUPS = Path("/sys/fs/cgroup")

_NETWORK = {"cniVersion": "1.0.0", "name": "none", "plugins": [{"type": "loopback"}]}
"""Makes the node ready; only pods with a network of their own would call it."""


@dataclass(frozen=True)
class Programs:
    """Where the binaries are."""

    control_plane: Path
    node: Path
    runtime: Path
    runc: Runc
    image: Path


@dataclass
class Node:
    """A cluster with one node that runs pods."""

    cluster: Cluster
    folder: Path
    programs: Programs
    _processes: Processes
    _init: int
    """The first process of the node's namespaces."""
    name: str = NODE

    @property
    def kubelet_folder(self) -> Path:
        return self.folder / "kubelet"

    @property
    def cdi_folder(self) -> Path:
        return self.folder / "cdi"

    def start_kubelet(self) -> None:
        kubelet: list[str | Path] = [
            self.programs.node / "kubelet",
            f"--config={self.folder / 'kubelet.json'}",
            f"--kubeconfig={self.cluster.kubeconfig(f'system:node:{self.name}')}",
            f"--root-dir={self.kubelet_folder}",
            f"--hostname-override={self.name}",
            f"--cert-dir={self.folder / 'kubelet-certs'}",
        ]
        self._processes.start("kubelet", [*_inside(self._init), *kubelet])

    def runs(self, *command: str) -> None:
        """Run a command as the node's pods see the host."""
        subprocess.run([*_inside(self._init), *command], check=True, capture_output=True)

    def stop_kubelet(self) -> None:
        self._processes.stop_one("kubelet")

    def wait_until(self, what: str, condition: Callable[[], Any], seconds: float = START_SECONDS) -> Any:
        """The first true answer. Fails with the latest events of the cluster and the kubelet's last words."""
        deadline = time.monotonic() + seconds
        while not (answer := condition()):
            self._processes.check()
            if time.monotonic() > deadline:
                items = self.cluster.get("/api/v1/events").content.get("items", [])
                events = "\n".join(f"{item['reason']}: {item['message']}" for item in items[-8:])
                kubelet = last_lines(self.folder, "kubelet")
                raise AssertionError(f"{what}: not after {seconds:.0f} s\n{events}\nkubelet: {kubelet}")
            time.sleep(0.1)
        return answer

    def takes_pods(self) -> bool:
        """The kubelet says so, the controllers believe it, and pods can be created."""
        answer = self.cluster.get(f"/api/v1/nodes/{self.name}")
        if not answer.ok or answer.content["spec"].get("taints"):
            return False
        ready = [c["status"] for c in answer.content["status"].get("conditions", []) if c["type"] == "Ready"]
        return ready == ["True"] and self.cluster.get("/api/v1/namespaces/default/serviceaccounts/default").ok

    def output(self, pod: str, namespace: str = "default") -> list[str]:
        """The lines that the pod's container has written so far; of this pod, not of one that had its name before."""
        reply = self.cluster.get(f"/api/v1/namespaces/{namespace}/pods/{pod}")
        uid = reply.content["metadata"].get("uid")
        logs = sorted((self.folder / "logs" / f"{namespace}_{pod}_{uid}").glob("*/*.log"))
        if not logs:
            return []
        return [line.split(" ", 3)[3] for line in logs[-1].read_text().splitlines()]


def why_not() -> str | None:
    """Why no node can run here; None when one can."""
    if os.geteuid() != 0:
        return "a kubelet needs root"
    if missing := [name for name in ("unshare", "nsenter", "mount", "openssl") if shutil.which(name) is None]:
        return f"{', '.join(missing)} not found"
    if not _hierarchies():
        return f"no cgroups below {_CGROUPS}"
    return None


@contextmanager
def node_running(programs: Programs, name: str = NODE) -> Iterator[Node]:
    """Start everything, wait until the node is ready, and leave nothing in the end. Raises Unavailable."""
    folder = Path(tempfile.mkdtemp(prefix="kube-"))  # short: sockets have 107 bytes of path
    control = folder / "control-plane"
    control.mkdir()
    cgroup = folder.name
    processes = Processes(folder)
    init = None
    try:
        for hierarchy in _hierarchies():
            (hierarchy / cgroup).mkdir()
        _write_settings(folder, programs, cgroup)
        init = _namespaces(folder)
        containerd: list[str | Path] = [programs.runtime / "containerd", f"--config={folder / 'containerd.json'}"]
        path = os.pathsep.join([str(programs.runtime), os.environ.get("PATH", "")])
        settings = {"PATH": path}
        if programs.runc.libraries is not None:
            settings["LD_LIBRARY_PATH"] = str(programs.runc.libraries)
        processes.start("containerd", [*_inside(init.pid), *containerd], **settings)
        with running(programs.control_plane, control, nodes=(name,)) as cluster:
            node = Node(cluster, folder, programs, processes, init.pid, name)
            _start_control_plane(node, processes)
            import_image(node, programs.image)
            node.start_kubelet()
            try:
                node.wait_until("the node is ready", node.takes_pods)
            except AssertionError as error:
                raise Unavailable(str(error)) from None
            yield node
    finally:
        if init is not None:
            os.killpg(init.pid, signal.SIGKILL)
            init.wait()
        processes.stop("containerd", "kubelet")
        _remove_cgroups(cgroup)
        shutil.rmtree(folder)


def _start_control_plane(node: Node, processes: Processes) -> None:
    kube_controllers.start(node.cluster, node.programs.node, processes, "--node-monitor-period=1s")
    start_scheduler(node.cluster, node.programs.node, processes)


def start_scheduler(cluster: Cluster, binaries: Path, processes: Processes, *options: str) -> None:
    """kube-scheduler. ``binaries``: the folder that holds it; ``options``: more for its command line."""
    config = cluster.kubeconfig(SCHEDULER)
    command: list[str | Path] = [
        binaries / "kube-scheduler",
        f"--kubeconfig={config}",
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        "--bind-address=127.0.0.1",
        "--secure-port=0",
        "--leader-elect=false",
        *options,
    ]
    processes.start("kube-scheduler", command)


def import_image(node: Node, archive: Path) -> None:
    """Wait until containerd listens, and give it an image. Raises Unavailable where it does not take it."""
    node.wait_until("containerd listens", (node.folder / "containerd.sock").exists)
    deadline = time.monotonic() + START_SECONDS
    while (why := _ctr(node, "import", archive)) is not None:
        if time.monotonic() > deadline:
            raise Unavailable(f"containerd does not take {archive.name}: {why}")
        time.sleep(0.2)


def tag_image(node: Node, name: str, other: str) -> None:
    """Give an image another name, too. Both are full names."""
    why = _ctr(node, "tag", "--force", name, other)
    assert why is None, why


def _ctr(node: Node, *words: str | Path) -> str | None:
    """Why containerd does not do this with its images; None where it did."""
    ctr: list[str | Path] = [node.programs.runtime / "ctr", "--address", node.folder / "containerd.sock"]
    command = [*_inside(node._init), *ctr, "-n", "k8s.io", "images", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr[-400:] if done.returncode else None


def leftovers(folder: Path) -> list[str]:
    """What is left of a node that has ended: its folder, mounts, cgroups, processes."""
    left = [str(folder)] if folder.exists() else []
    left += (line for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line)
    left += (str(hierarchy / folder.name) for hierarchy in _hierarchies() if (hierarchy / folder.name).exists())
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in command:
                left.append(f"{process.name}: {command}")
    return left


# -- namespaces and cgroups --------------------------------------------------------------------------------------------


def _namespaces(folder: Path) -> subprocess.Popen[bytes]:
    """A process that holds the node's namespaces: when it is killed everything in them is gone.

    /run and /var/log are its own, for containerd and the kubelet write to places below them that no setting moves. So
    is what pods write below /var/lib, as those of devalloc do, and /dev, where nodes of VFIO groups stand for those of
    a fake host; they are what /dev/null is.
    """
    ready = folder / "ready"
    for name in ("dev", "dev-work", "lib", "lib-work"):
        (folder / name).mkdir()
    steps = [
        "mount -t tmpfs run /run",
        "mount -t tmpfs log /var/log",
        f"mount -t overlay lib -o lowerdir=/var/lib,upperdir={folder}/lib,workdir={folder}/lib-work /var/lib",
        f"mount -t overlay dev -o lowerdir=/dev,upperdir={folder}/dev,workdir={folder}/dev-work /dev",
        "rm -rf /dev/vfio",
        "mkdir /dev/vfio",
        f"for name in vfio $(seq 0 {VFIO_GROUPS - 1}); do mknod -m 600 /dev/vfio/$name c 1 3 || exit 1; done",
        f"touch {ready}",
        "trap '' CHLD",
        "exec sleep infinity",
    ]
    script = " && ".join(steps)
    command = ["unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "--mount-proc"]
    holder = subprocess.Popen([*command, "sh", "-c", script], stdin=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 60
    while not ready.exists():
        if holder.poll() is not None or time.monotonic() > deadline:
            holder.kill()
            raise Unavailable("no mount and process namespaces can be made here")
        time.sleep(0.01)
    return holder


def _inside(holder: int) -> list[str | Path]:
    """The beginning of a command that runs in the node's namespaces."""
    children = Path(f"/proc/{holder}/task/{holder}/children").read_text().split()
    return ["nsenter", f"--target={children[0]}", "--mount", "--pid", "--"]


def _hierarchies() -> list[Path]:
    """Where cgroups are made: the controllers' folders in version 1, the only one in version 2."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    kinds = ("cgroup", "cgroup2")  # both in a hybrid: runc makes a cgroup in version 2 too
    return sorted({Path(point) for _, point, kind, *_ in mounts if kind in kinds and _CGROUPS in Path(point).parents})


def _remove_cgroups(name: str) -> None:
    """A cgroup goes when its last process has ended, which takes the kernel a moment after a kill."""
    deadline = time.monotonic() + 60
    for hierarchy in _hierarchies():
        for folder, _, _ in os.walk(hierarchy / name, topdown=False):
            while True:
                try:
                    os.rmdir(folder)
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)


# -- settings ----------------------------------------------------------------------------------------------------------


def _write_settings(folder: Path, programs: Programs, cgroup: str) -> None:
    for name in ("kubelet", "cdi", "network"):
        (folder / name).mkdir()
    (folder / "network" / "10-none.conflist").write_text(json.dumps(_NETWORK))
    (folder / "containerd.json").write_text(_containerd(folder, programs))
    (folder / "kubelet.json").write_text(json.dumps(_kubelet(folder, cgroup)))


def _containerd(folder: Path, programs: Programs) -> str:
    """TOML, whose strings are written like those of JSON."""

    def text(path: Path | str) -> str:
        return json.dumps(str(path))

    return f"""version = 3
root = {text(folder / "containerd")}
state = {text(folder / "containerd-state")}
[grpc]
  address = {text(folder / "containerd.sock")}
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = {text(IMAGE)}
[plugins.'io.containerd.cri.v1.runtime']
  enable_cdi = true
  restrict_oom_score_adj = true
  cdi_spec_dirs = [{text(folder / "cdi")}]
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = [{text(folder / "network")}]
    conf_dir = {text(folder / "network")}
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = {text(programs.runc.program)}
      SystemdCgroup = false
"""


def _kubelet(folder: Path, cgroup: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "enforceNodeAllocatable": [],
        "containerRuntimeEndpoint": f"unix://{folder / 'containerd.sock'}",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "address": "127.0.0.1",
        "port": free_ports(1)[0],  # 0 would be 10250, which another cluster on this machine may have
        "readOnlyPort": 0,
        "healthzPort": 0,
        "failSwapOn": False,
        "podLogsDir": str(folder / "logs"),
        "volumePluginDir": str(folder / "volume-plugins"),
        "evictionHard": {"memory.available": "50Mi"},
        "localStorageCapacityIsolation": False,
        "nodeStatusUpdateFrequency": "1s",
        "syncFrequency": "1s",
    }
