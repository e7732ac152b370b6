"""Machines on a cluster, from `kubectl apply` to `kubectl delete`: controller and plugin of a host as processes, with
the rights that `devalloc install` gives them and no more, a user who may edit a namespace, and a real QEMU.

Only the cards are played, by a fake host, so that none has to be there.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from devalloc.api import meta
from devalloc.api.serving import lease_name
from devalloc.cli.main import run
from devalloc_machines.qemu.confinement import OURS
from devalloc_machines.qemu.process import process
from devalloc_machines.qemu.spec import machine_id
from tests.support import kube_build, kube_rights, micro_image, neon_installation, pci_cards, tiny_guest
from tests.support.controller_processes import DEVMGMT, Process
from tests.support.fake_guest_tree import GuestTree
from tests.support.fake_host import FakeHost
from tests.support.go_build import Progress, Unavailable
from tests.support.guest_network import guest_network
from tests.support.images import Image
from tests.support.kube_api import Cluster
from tests.support.kube_plugin import Bed, Plugin, plugin_bed
from tests.support.machines import short_folder
from tests.support.neon_installation import NeonVms
from tests.support.neon_plugin import ScriptedPlugin, serving
from tests.support.waiting import until

NODE = "machines-node"
SPACE = "machines"
GPU = "0000:01:00.0"
READY = "DeviceClaims and VirtualMachines of the cluster"
MACHINES = f"/apis/devalloc.io/v1alpha1/namespaces/{SPACE}/virtualmachines"
CLAIMS = f"{DEVMGMT}/namespaces/{SPACE}/deviceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
EVENTS = f"/apis/events.k8s.io/v1/namespaces/{SPACE}/events"
ROLES = "/apis/rbac.authorization.k8s.io/v1"
USER = "machines-user"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/devalloc-system/leases/{lease_name(NODE)}"
CGROUPS = Path("/sys/fs/cgroup")
Object = dict[str, Any]
Kubectl = Callable[..., str]

CLASS = """\
apiVersion: devmgmtproto.k8s.io/v1alpha1
kind: DeviceClass
metadata: {name: machines-gpu}
spec: {driver: gpu.devalloc.io, deviceType: gpu}
"""
CLAIM = """\
apiVersion: devmgmtproto.k8s.io/v1alpha1
kind: DeviceClaim
metadata: {name: card}
spec: {claims: [{deviceClass: machines-gpu}]}
"""
MACHINE = """\
apiVersion: devalloc.io/v1alpha1
kind: VirtualMachine
metadata: {name: NAME}
spec:
  cpu: {min: 1, max: 4}
  memory: {min: 128Mi, max: 384Mi, method: dimm, slotSize: 128Mi}
  start: {kernel: KERNEL}
  powerdownSeconds: 20
"""


@pytest.fixture(scope="module")
def image(progress: Progress) -> Iterator[Image]:
    """A QEMU, and a guest that is up at once and obeys the power button, where every user can read them."""
    try:
        micro = micro_image.image(progress)
    except Unavailable as reason:
        pytest.skip(f"no test machine: {reason}")
    with short_folder() as folder:
        folder.chmod(0o755)
        made = folder / "image"
        subprocess.run(["cp", "-al", str(micro.folder), str(made)], check=True)
        launcher = (made / "qemu").read_text().replace(str(micro.folder), str(made))
        (made / "qemu").unlink()
        (made / "qemu").write_text(launcher)
        (made / "qemu").chmod(0o755)
        tiny_guest.write(made / "tiny")
        yield Image(made)


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Iterator[Cluster]:
    """What `devalloc install` brings but for what runs, a node whose machines are run by its host, and a user."""
    only = [f"--only={part}" for part in ("namespace", "crds", "rbac", "policies")]
    assert run(["install", *only, f"--kubeconfig={cluster.kubeconfig('admin')}"]) == 0
    account = {"kind": "ServiceAccount", "name": USER, "namespace": kube_rights.NAMESPACE}
    made = {
        "/api/v1/namespaces": {"metadata": {"name": SPACE}},
        "/api/v1/nodes": {"metadata": {"name": NODE, "labels": {"devalloc.io/publish": "host"}}},
        f"/api/v1/namespaces/{kube_rights.NAMESPACE}/serviceaccounts": {"metadata": {"name": USER}},
    }
    for path, body in made.items():
        assert cluster.create(path, body).ok, path
    # With the roles that are put together where a cluster's controllers run: `view` and `edit`.
    roles = {"devalloc-fleet": "", "devalloc-view": "", "devalloc-edit": SPACE, "system:aggregate-to-view": SPACE}
    roles |= {"devalloc-machines": SPACE, "devalloc-host-paths": ""}
    for role, where in roles.items():
        name = f"machines-{role.rpartition('-')[2]}-{'of' if where else 'all'}"
        space, kind = (f"/namespaces/{where}", "RoleBinding") if where else ("", "ClusterRoleBinding")
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
        path = f"{ROLES}{space}/{kind.lower()}s"
        made[path + "#" + name] = {"metadata": {"name": name}}
        assert cluster.create(path, {"metadata": {"name": name}, "subjects": [account], "roleRef": ref}).ok
    yield cluster
    for path, body in reversed(made.items()):
        assert cluster.delete(f"{path.partition('#')[0]}/{body['metadata']['name']}").ok


@pytest.fixture
def kubectl(installed: Cluster, progress: Progress, tmp_path: Path) -> Kubectl:
    """kubectl as a user who may edit the namespace, and keeps the cluster's classes; what it prints."""
    program = kube_build.kubectl(progress)
    token = kube_rights.token(installed, USER)
    kubeconfig = kube_rights.with_token(installed, USER, token)
    environment = {"HOME": str(tmp_path), "KUBECONFIG": str(kubeconfig), "PATH": os.environ["PATH"]}

    def call(*words: str, stdin: str = "") -> str:
        command = [str(program), f"--namespace={SPACE}", *words]
        done = subprocess.run(command, env=environment, input=stdin, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


@dataclass
class Site:
    """A cluster with a controller, and a host that runs machines."""

    cluster: Cluster
    controller: Process
    bed: Bed
    image: Image
    run: Path
    """Where machines have their sockets."""

    def start(self, *more: str) -> Plugin:
        """A plugin, with ``more`` options."""
        return self.bed.start(
            *more,
            "--publish=pools",
            "--host-capacity",
            f"--qemu={self.image.qemu}",
            f"--image-folder={self.image.folder}:shared",
            f"--machine-dir={self.run}",
            emulated=True,
            ready=READY,
        )

    def machine(self, name: str = "web") -> Object:
        return dict(self.cluster.get(f"{MACHINES}/{name}").content)

    def status(self, name: str = "web") -> Object:
        return dict(self.machine(name).get("status", {}))

    def claim(self) -> Object:
        return dict(self.cluster.get(f"{CLAIMS}/card").content)

    def left(self) -> list[str]:
        """What it has now of machines and claims: objects, processes, cgroups, sockets, records of QEMU."""
        names = [item["metadata"]["name"] for path in (MACHINES, CLAIMS) for item in items(self.cluster, path)]
        groups = [str(path) for path in CGROUPS.glob(f"*/{OURS}/{machine_id(f'{SPACE}/web')}")]
        files = [str(path) for folder in (self.run, self.bed.state / "machines") for path in folder.rglob("*")]
        return [*names, *groups, *files, *map(str, self.processes())]

    def processes(self) -> list[int]:
        """Of machines that live."""
        return [int(each.name) for each in Path("/proc").glob("[0-9]*") if is_below(each / "cwd", self.run)]

    def until(self, met: Callable[[], Any], what: str) -> Any:
        try:
            return until(met, what)
        except AssertionError as error:
            output = [line for plugin in self.bed.running for line in plugin.output if "no change" not in line]
            output = [json.dumps(self.machine()), *output]
            raise AssertionError("\n".join([str(error), self.controller.output(), *output])) from None

    def end_machines(self) -> None:
        for pid in self.processes():
            with suppress(ProcessLookupError):  # it ended meanwhile
                os.kill(pid, signal.SIGKILL)


def is_below(link: Path, folder: Path) -> bool:
    try:
        return os.readlink(link).startswith(f"{folder}/")
    except OSError:
        return False


@pytest.fixture
def site(installed: Cluster, image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("DEVALLOC_ACCEL", "tcg")
    own = replace(
        installed, tokens={**installed.tokens, "controller": kube_rights.token(installed, kube_rights.CONTROLLER)}
    )
    controller = Process(own, tmp_path, "controller", "6s")
    controller.user = "controller"
    with short_folder() as folder:
        host = FakeHost(folder / "host", folders=(str(tmp_path / "cdi"),))
        host.add(pci_cards.gpu(iommu_group=15))
        host.proc("meminfo", "MemTotal: 16777216 kB\nMemAvailable: 16777216 kB\n")
        kubeconfig = kube_rights.kubeconfig(installed, NODE)
        with plugin_bed(host, NODE, folder, tmp_path / "cdi", tmp_path / "kubelet", kubeconfig) as bed:
            made = Site(installed, controller, bed, image, folder / "run")
            try:
                controller.start()
                yield made
            finally:
                controller.close()
                for plugin in bed.running:
                    plugin.kill()  # it would publish its pools again
                made.end_machines()
                clear(installed)


def clear(cluster: Cluster) -> None:
    """Nothing of a test is left on the cluster, also where it failed."""
    for path in (CLAIMS, MACHINES):
        for item in items(cluster, path):
            item["metadata"]["finalizers"] = []
            cluster.replace(f"{path}/{item['metadata']['name']}", item)
        cluster.delete(path)
    cluster.delete(f"{DEVMGMT}/deviceclasses/machines-gpu")
    for item in items(cluster, f"{DEVMGMT}/devicepools"):  # which would go with their node
        if item["spec"].get("nodeName") == NODE:
            cluster.delete(f"{DEVMGMT}/devicepools/{item['metadata']['name']}")


def items(cluster: Cluster, path: str) -> list[Object]:
    return list(cluster.get(path).content["items"])


def test_a_machine_from_kubectl_apply_to_kubectl_delete(site: Site, kubectl: Kubectl) -> None:
    before = site.bed.host.snapshot()
    site.start()
    kubectl("apply", "-f", "-", stdin=manifest(site, "web"))
    kubectl("wait", "vmachine/web", "--for=jsonpath={.status.phase}=Running", "--timeout=120s")
    began = site.status()
    qemu = process(began["pid"])
    assert qemu is not None
    shown = {"NAME": "web", "NODE": NODE, "PHASE": "Running", "CPUS": "1", "MEMORY": "128Mi"}
    assert columns(kubectl("get", "vmachine")) == shown
    assert {each["type"]: each["status"] for each in began["conditions"]}["Placed"] == "True"
    site.until(lambda: "Placed" in described(kubectl, "web"), "an Event says that it was placed")
    writers = {each["manager"] for each in site.machine()["metadata"]["managedFields"]}
    assert writers == {"kubectl-client-side-apply", "devalloc"}

    change(kubectl, {"cpu": {"use": 3}, "memory": {"use": "256Mi"}})
    site.until(lambda: site.status()["observed"] == {"cpus": "3", "memory": "256Mi"}, "it has grown while it runs")

    kubectl("apply", "-f", "-", stdin=CLASS)
    kubectl("apply", "-f", "-", stdin=CLAIM)
    change(kubectl, {"claims": ["card"]})
    (card,) = site.until(lambda: site.status().get("devices"), "it has the card")
    assert (card["claim"], card["pool"], card["device"]) == ("card", f"{NODE}-0000-01-00", "0000-01-00-0")
    assert site.bed.host.functions[GPU].driver == "vfio-pci"
    site.until(lambda: columns(kubectl("get", "dclaim")).get("DEVICES") == f"{card['pool']}/{card['device']}", "shown")
    assert site.claim()["metadata"]["finalizers"] == [meta.NODE_FINALIZER]
    site.until(lambda: site.claim()["status"].get("podNames") == [f"{SPACE}/web"], "the claim says who uses it")

    site.bed.running[-1].kill()
    assert site.controller.end() == 0
    assert process(qemu.pid) == qemu, "it needs neither of them"
    change(kubectl, {"cpu": {"use": 4}, "claims": []})
    site.controller.start()
    site.start()
    site.until(lambda: site.status()["observed"]["cpus"] == "4", "it has what was asked for meanwhile")
    site.until(lambda: not site.status().get("devices"), "it has let go of the card")
    assert (site.status()["machineID"], site.status()["pid"]) == (began["machineID"], qemu.pid)
    site.until(lambda: site.bed.host.snapshot() == before, "the card is as it was")

    change(kubectl, {"claims": ["card"]})
    site.until(lambda: site.status().get("devices"), "it has the card again")
    kubectl("delete", "vmachine/web", "dclaim/card", "dclass/machines-gpu", "--timeout=120s")
    assert process(qemu.pid) is None
    assert site.bed.host.snapshot() == before
    assert site.left() == []

    other = site.bed.start("--publish=slices", ready="serves the devices of this host")
    assert "publishes them as DevicePools and runs machines; waiting" in "\n".join(other.output)
    other.kill()
    assert items(site.cluster, SLICES) == [], "a pod that was not to be there offers nothing"

    kubectl("apply", "-f", "-", stdin=manifest(site, "huge").replace("min: 1, max: 4", "min: 1000, max: 1000"))
    site.until(lambda: columns(kubectl("get", "vmachine")).get("REASON") == "NodesTooSmall", "it says why")
    states = [(one["type"], one["status"], one["reason"]) for one in site.status("huge")["conditions"]]
    assert states == [("Placed", "False", "NodesTooSmall"), ("Ready", "False", "NodesTooSmall")]
    site.until(lambda: "NodesTooSmall" in described(kubectl, "huge"), "an Event says so, too")
    kubectl("delete", "vmachine/huge", "--timeout=120s")


def test_a_node_is_drained_of_a_machine_and_its_card(site: Site, kubectl: Kubectl) -> None:
    """With the rights of each: the user asks, the node stops it, the controller takes its node and devices away."""
    before = site.bed.host.snapshot()
    kubeconfig = kube_rights.with_token(site.cluster, USER, kube_rights.token(site.cluster, USER))
    site.start()
    kubectl("apply", "-f", "-", stdin=CLASS)
    kubectl("apply", "-f", "-", stdin=CLAIM)
    kubectl("apply", "-f", "-", stdin=manifest(site, "web").replace("spec:", "spec:\n  claims: [card]", 1))
    site.until(lambda: site.status().get("devices"), "it runs with the card")
    began = site.status()

    def devalloc(*words: str) -> int:
        return run([words[0], f"node/{NODE}", *words[1:], f"--kubeconfig={kubeconfig}"])

    assert devalloc("drain") == 1, "it runs"
    assert process(began["pid"]) is not None
    assert devalloc("drain", "--force", "--timeout=120s") == 0
    assert (process(began["pid"]), site.processes()) == (None, [])
    assert site.bed.host.snapshot() == before, "the card is as it was"
    assert "allocations" not in site.claim().get("status", {})
    metadata, status = site.machine()["metadata"], site.status()
    assert (metadata.get("finalizers", []), status.get("nodeName"), status["phase"]) == ([], None, "Pending")
    assert metadata["annotations"][meta.LAST_NODE] == NODE
    assert meta.EVICT not in metadata["annotations"]
    assert meta.NODE_LABEL not in metadata.get("labels", {})

    assert devalloc("uncordon") == 0
    site.until(lambda: site.status().get("devices"), "it runs again, with a card")
    assert site.status()["machineID"] != began["machineID"]
    kubectl("delete", "vmachine/web", "dclaim/card", "dclass/machines-gpu", "--timeout=120s")
    assert site.left() == []


def test_a_plugin_that_is_dead_is_seen_though_its_node_is_ready(
    site: Site, kubectl: Kubectl, capfd: pytest.CaptureFixture[str]
) -> None:
    """With the rights of each: the plugin writes its Lease, and who keeps the fleet reads it."""
    kubeconfig = kube_rights.with_token(site.cluster, USER, kube_rights.token(site.cluster, USER))

    def devalloc(*words: str) -> tuple[int, str]:
        capfd.readouterr()
        code = run([*words, f"--kubeconfig={kubeconfig}"])
        shown = capfd.readouterr()
        return code, shown.out + shown.err

    def holder() -> Object:
        return dict(site.cluster.get(LEASE).content.get("spec", {}))

    site.start()
    kubectl("apply", "-f", "-", stdin=manifest(site, "web"))
    site.until(lambda: site.status().get("phase") == "Running", "it runs")
    site.until(lambda: holder().get("holderIdentity"), "the plugin shows that it runs")
    assert "NotServed" not in devalloc("get", "nodes", NODE)[1]
    assert "Running" in devalloc("get", "vms", "-n", SPACE)[1]

    site.bed.running[-1].kill()
    stored = site.cluster.get(LEASE).content  # as two minutes without a renewal leave it
    old = {**stored, "spec": {**stored["spec"], "renewTime": "2026-01-01T00:00:00.000000Z"}}
    assert site.cluster.replace(LEASE, old).ok
    assert "NotServed" in devalloc("get", "nodes", NODE)[1]
    assert "Unknown" in devalloc("get", "vms", "-n", SPACE)[1]
    for words in (("migrate", "vm/web", "-n", SPACE), ("drain", f"node/{NODE}")):
        code, shown = devalloc(*words)
        assert (code, "no node plugin serves node" in shown) == (1, True), shown
    assert site.status()["phase"] == "Running", "nothing of that is written"

    site.start()
    site.until(lambda: holder()["renewTime"] > "2026-01-02", "the next plugin shows that it runs")
    assert "NotServed" not in devalloc("get", "nodes", NODE)[1]
    kubectl("delete", "vmachine/web", "--timeout=120s")


def test_a_machine_scales_by_permits_of_neons_scheduler_plugin(site: Site, kubectl: Kubectl, tmp_path: Path) -> None:
    """Objects as NeonVM makes them name the machine's pod; no other writer puts it into its status."""
    kube_rights.install(site.cluster, "both", neon=True)
    site.controller.close()
    site.controller.options = ("--neon",)
    site.controller.start()
    vms = NeonVms(site.cluster, NODE, SPACE)
    neon_installation.install(site.cluster)
    tree = GuestTree(tmp_path / "guest", memory=2**28, used=10 * 2**20)
    tree.put("proc/loadavg", "0.10 0.10 0.10 1/100 100\n")
    plugin = ScriptedPlugin(site.cluster, (2000, 2**29))
    try:
        with guest_network() as network, serving(plugin) as url:
            monitor = network.monitor(tmp_path / "guest", tmp_path / "monitor.log")
            try:
                vms.start(neon_installation.vm("web", ("1", "4", "1"), (1, 3, 1)), "web-x7k2p")
                site.start(
                    "--scaling", f"--permits={url}", "--compute-unit=1,256Mi", f"--guest-network={network.network}"
                )
                scaling = f"  scaling: {{address: {network.guest}}}\n"
                labels = "name: web, labels: {autoscaling.neon.tech/enabled: 'true'}"
                written = manifest(site, "web").replace("name: web", labels) + scaling
                for before, after in (("384Mi", "768Mi"), ("128Mi", "256Mi")):
                    written = written.replace(before, after)
                kubectl("apply", "-f", "-", stdin=written)
                run = site.until(lambda: site.status().get("machineID"), "it runs")
                site.until(lambda: site.status().get("runnerPod") == "web-x7k2p", "its pod is named")
                given = {"givenBy": url, "machineID": run}
                site.until(
                    lambda: site.status().get("permitted") == {"cpus": "1", "memory": "256Mi", **given},
                    "what it has is permitted",
                )
                tree.put("proc/loadavg", "2.50 2.50 2.50 1/100 100\n")
                short = {"cpus": "2", "memory": "512Mi"}
                site.until(lambda: site.status().get("observed") == short, "it has grown as far as there is room")
                site.until(lambda: site.status()["reason"] == "PermitShort", "it says why it has no more")
                assert site.status()["permitted"] == {**short, **given}

                # It repeats its request without a write; it writes once that it counts as stuck.
                count, versions = len(plugin.requests), set[str]()

                def asks_again() -> bool:
                    versions.add(site.machine()["metadata"]["resourceVersion"])
                    return len(plugin.requests) >= count + 5

                site.until(asks_again, "it asks again")
                assert len(versions) <= 2, versions

                plugin.room = (4000, 2**30)
                site.until(lambda: site.status()["observed"]["cpus"] == "3", "it has what it needs")
                site.until(lambda: site.status()["permitted"]["cpus"] == "3", "and that is permitted")
                assert {each["pod"]["name"] for each in plugin.requests} == {"web-x7k2p"}
                kubectl("delete", "vmachine/web", "--timeout=120s")
            finally:
                monitor.kill()
                monitor.wait()
    finally:
        neon_installation.remove(site.cluster)
    # Before its pod was named there was only its own name to ask by.
    assert all("pod not found" in each and '"name":"web"' in each for each in plugin.refused), plugin.refused
    assert site.left() == []


def manifest(site: Site, name: str) -> str:
    return MACHINE.replace("NAME", name).replace("KERNEL", str(site.image.folder / "tiny"))


def change(kubectl: Kubectl, spec: Object) -> None:
    kubectl("patch", "vmachine", "web", "--type=merge", "-p", json.dumps({"spec": spec}))


def described(kubectl: Kubectl, name: str) -> str:
    """The Events of a machine, as `kubectl describe` shows them."""
    return kubectl("describe", "vmachine", name).partition("\nEvents:")[2]


def columns(table: str) -> dict[str, str]:
    """The one row of what `kubectl get` shows, by column; but for the age, and what is empty."""
    header, row = table.splitlines()
    starts = [match.start() for match in re.finditer(r"\S+( \S+)*", header)]
    cut = [slice(a, b) for a, b in zip(starts, [*starts[1:], None], strict=True)]
    cells = {header[each].strip(): row[each].strip() for each in cut}
    return {name: text for name, text in cells.items() if text and name != "AGE"}
