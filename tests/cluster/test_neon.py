"""Neon's installation beside devalloc's: its agent is permitted what its machines ask for by the controller, with the
rights that `devalloc install --neon` gives it; its machines count on their nodes; pods are named by their labels."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from devalloc.install.manifests import InstallOptions, render_manifests
from devalloc.store.kubernetes import Client, KubernetesStore
from tests.conformance.test_guest_monitor_process import started
from tests.support import kube_rights, neon_installation
from tests.support.controller_processes import Process
from tests.support.fake_guest_tree import GuestTree
from tests.support.host_pools import host
from tests.support.kube_api import Cluster
from tests.support.neon_installation import (
    AgentError,
    MonitorPeer,
    NeonVms,
    ProxyPod,
    ScriptedAgent,
    scheduler_address,
    vm,
)
from tests.support.neon_plugin import scheduler_reserved
from tests.support.permit_bench import GIB, machine
from tests.support.permit_storm_cluster import MACHINES, POOLS, controller, prepared_cluster
from tests.support.ports import free_ports
from tests.support.waiting import until

NODE = "node-a"


@pytest.fixture
def neon(cluster: Cluster) -> Iterator[NeonVms]:
    """A cluster with both CRDs, and a node of 8 CPUs and 16 GiB."""
    with prepared_cluster(cluster, NODE):
        kube_rights.install(cluster, "both", permits=True, neon=True)
        neon_installation.install(cluster)
        assert cluster.create(POOLS, host(NODE, cpus=8, memory=16)).ok
        try:
            yield NeonVms(cluster, NODE)
        finally:
            neon_installation.remove(cluster)


def start(neon: NeonVms, folder: Path, port: int, name: str = "one") -> Process:
    """A controller with a port for agents, which 127.0.0.1 may connect to."""
    process = controller(neon.cluster, folder, name, "4s")
    process.options = (*process.options, "--neon", f"--neon-permits=127.0.0.1:{port}", "--neon-agents=127.0.0.1/32")
    process.start()
    until(lambda: "by plain HTTP" in process.output() and process, f"{name} serves", context=lambda: process.output())
    return process


def permit(neon: NeonVms, name: str) -> Any:
    text = neon.get(name)["metadata"].get("annotations", {}).get("devalloc.io/permitted")
    return text and json.loads(text)


def test_neons_agent_scales_its_machine_by_permits_of_the_controller(neon: NeonVms, tmp_path: Path) -> None:
    neon.start(vm("vm1", ("250m", "8", "250m"), (1, 16, 1)), "vm1-x7k2p")
    neon.start(vm("fixed", ("2", "2", "2"), (4, 4, 4), labels={}), "fixed-p0d")  # it is not scaled, and counts
    (port,) = free_ports(1)
    process = start(neon, tmp_path, port)
    agent = ScriptedAgent(neon, "vm1", ("127.0.0.1", port))
    guest = GuestTree(tmp_path / "guest", memory=GIB, used=300 * 2**20)
    try:
        with started("as a verb", "--root", str(tmp_path / "guest"), "--allow", "127.0.0.1") as (_, monitor_port, _):
            monitor = MonitorPeer(f"ws://127.0.0.1:{monitor_port}/monitor")
            assert agent.ask(250, 1) == (250, 1), "it registers, without a last permit"
            assert agent.grow(monitor, 1000, 4) == (1000, 4)
            given = permit(neon, "vm1")
            assert (given["cpus"], given["memory"], given["runnerPod"]) == ("1", "4Gi", "vm1-x7k2p")
            assert scheduler_reserved(neon.get("vm1")) == (1000, 4 * GIB), (
                "Neon's scheduler, which places pods, knows it"
            )
            assert agent.grow(monitor, 8000, 16) == (6000, 12), "the other machine has the rest of the node"
            assert scheduler_reserved(neon.get("vm1")) == (6000, 12 * GIB)
            guest.set_memory(12 * GIB, 11 * GIB)
            assert not agent.shrink(monitor, 500, 2), "its memory is in use"
            guest.set_memory(12 * GIB, 300 * 2**20)
            until(lambda: agent.shrink(monitor, 500, 2), "the guest agrees")
            assert (permit(neon, "vm1")["cpus"], permit(neon, "vm1")["memory"]) == ("500m", "2Gi")
            assert scheduler_reserved(neon.get("vm1")) == (500, 2 * GIB)

        # What was permitted outlives the controller, and its node is not given away twice.
        agent.grow(_Absent(), 6000, 12)
        process.close()
        with pytest.raises(OSError, match="refused"):
            agent.ask(6000, 12)
        process = start(neon, tmp_path, port, "two")
        again = ScriptedAgent(neon, "vm1", ("127.0.0.1", port))  # one that was restarted, too
        assert again.ask(6000, 12) == (6000, 12)
        assert again.ask(8000, 16) == (6000, 12)

        # A new run has another pod; the permit of the last one is not its own.
        assert neon.cluster.delete(f"{neon_installation.PODS}/vm1-x7k2p?gracePeriodSeconds=0").ok
        again.scale(250, 1)
        neon.run(neon.get("vm1"), "vm1-b2c3d")
        again.last_permit = None
        until(lambda: _try(again, 250, 1) == (250, 1), "the new pod is known")
        assert permit(neon, "vm1")["runnerPod"] == "vm1-b2c3d"
    finally:
        process.close()
    assert "forbidden" not in process.output().lower(), process.output()


class _Absent(MonitorPeer):
    """A guest whose monitor agrees to everything."""

    def __init__(self) -> None:
        super().__init__("")

    def upscaled(self, cpu: int, gib: int) -> bool:
        return True


def _try(agent: ScriptedAgent, cpu: int, gib: int) -> tuple[int, int] | str:
    try:
        return agent.ask(cpu, gib)
    except AgentError as error:
        return str(error)


def test_machines_of_both_share_their_node_and_pods_are_named_in_a_status(neon: NeonVms, tmp_path: Path) -> None:
    """devalloc's own machine has a runner pod as well: the agent may ask for it by that."""
    cluster = neon.cluster
    neon.start(vm("vm1", ("1", "8", "1"), (2, 16, 2)), "vm1-x7k2p")
    (port,) = free_ports(1)
    process = start(neon, tmp_path, port)
    try:
        with closing(KubernetesStore(Client.connect(cluster.kubeconfig("admin")))) as store:
            store.create(machine("web"))
            store.create(machine("plain", labels={}))
            guest = vm("web", ("250m", "8", "250m"), (1, 16, 1))["spec"]["guest"]
            for name, pod in (("web", "web-old"), ("web", "web-new"), ("plain", "plain-pod")):
                neon.pod(pod, name, guest, neon_installation.SCALED)

            def pod_of(name: str) -> Any:
                return cluster.get(f"{MACHINES}/{name}").content.get("status", {}).get("runnerPod")

            until(lambda: pod_of("web") in ("web-new", "web-old"), "its pod is named", context=process.output)
            named = pod_of("web")
            assert cluster.delete(f"{neon_installation.PODS}/{named}?gracePeriodSeconds=0").ok
            other = {"web-new": "web-old", "web-old": "web-new"}[named]
            until(lambda: pod_of("web") == other, "the pod that is left is named")
            assert pod_of("plain") is None, "its owner did not ask for it"

            def ask(pod: str) -> tuple[int, bytes]:
                body = json.dumps(
                    {
                        "protoVersion": 7,
                        "pod": {"namespace": "default", "name": pod},
                        "computeUnit": {"vCPUs": "250m", "mem": "1Gi"},
                        "resources": {"vCPUs": 8, "mem": "16Gi"},
                        "lastPermit": None,
                        "metrics": None,
                    }
                )
                with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
                    connection.request("POST", "/", body)
                    answer = connection.getresponse()
                    return answer.status, answer.read()

            # vm1 has one CPU and 2 GiB of the node's 8 and 16, once its agent says that it has no more; the other
            # machine of devalloc counts for its least.
            assert ScriptedAgent(neon, "vm1", ("127.0.0.1", port)).ask(1000, 2) == (1000, 2)
            until(lambda: ask(other)[0] == 200, "it is asked for by its pod", context=lambda: ask(other))
            assert json.loads(ask(other)[1]) == {"permit": {"vCPUs": "6750m", "mem": "13Gi"}}
            assert ask("web") == (404, b"pod not found"), "by its own name it is not known there"
            assert ask("plain-pod")[0] == 404
    finally:
        process.close()
    assert "forbidden" not in process.output().lower(), process.output()


def test_a_runner_pod_counts_from_its_binding_until_it_has_ended(neon: NeonVms, tmp_path: Path) -> None:
    neon.start(vm("vm1", ("250m", "8", "250m"), (1, 16, 1)), "vm1-x7k2p")
    (port,) = free_ports(1)
    process = start(neon, tmp_path, port)
    try:
        agent = ScriptedAgent(neon, "vm1", ("127.0.0.1", port))
        assert agent.ask(250, 1) == (250, 1)
        neon.bind(vm("next", ("2", "2", "2"), (4, 4, 4), labels={}), "next-a1b2c")
        until(lambda: agent.ask(8000, 16) == (6000, 12), "a pod that is bound counts")
        neon.run(neon.get("next"), "next-a1b2c")
        assert agent.ask(8000, 16) == (6000, 12), "it does not count twice"
        neon.delete("next", "next-a1b2c")
        for _ in range(5):
            assert agent.ask(8000, 16) == (6000, 12), "its pod still has the memory"
            time.sleep(0.2)
        neon.end("next-a1b2c")
        until(lambda: agent.ask(8000, 16) == (8000, 16), "QEMU has released it")
    finally:
        process.close()
    assert "forbidden" not in process.output().lower(), process.output()


def test_an_agent_that_knows_no_address_finds_the_controller_that_leads(neon: NeonVms, tmp_path: Path) -> None:
    """Real accounts and rights; of the proxy's pod, its kubelet is played."""
    cluster = neon.cluster
    kube_rights.install(cluster, "both", permits=True, neon=True, neon_agents="127.0.0.1/32")
    neon.start(vm("vm1", ("250m", "8", "250m"), (1, 16, 1)), "vm1-x7k2p")
    port, health = free_ports(2)
    options = InstallOptions(permits=True, neon=True, neon_agents="127.0.0.1/32")
    (template,) = (
        one["spec"]["template"]
        for one in render_manifests(options, ["controller"])
        if (one["kind"], one["metadata"]["name"]) == ("Deployment", "devalloc-permit-proxy")
    )
    pod = ProxyPod(cluster, template, "127.0.0.1", ("127.0.0.1", health))
    cluster.create("/api/v1/namespaces/kube-system/serviceaccounts", {"metadata": {"name": "default"}})
    pod.create(NODE)
    bound = {"kind": "Pod", "apiVersion": "v1", "name": pod.name, "uid": pod.uid}
    account = kube_rights.token(cluster, "devalloc-permit-proxy", bound, namespace="kube-system")
    kubeconfig = kube_rights.with_token(cluster, "devalloc-permit-proxy", account)
    command = [
        sys.executable, "-m", "devalloc.cli", "permit-proxy", f"--kubeconfig={kubeconfig}", "--log-level=info",
        f"--listen=127.0.0.1:{port}", "--agents=127.0.0.1/32", f"--health-listen=127.0.0.1:{health}",
    ]  # fmt: skip
    first = second = None
    with (tmp_path / "proxy.log").open("wb") as log:
        proxy = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until(lambda: _probed(pod) is False, "it runs, and there is no leader")
        assert scheduler_address(cluster, "devalloc") is None
        first = controller(cluster, tmp_path, "first", "4s")
        first.options = (*first.options, "--neon")
        first.start()
        until(lambda: _probed(pod), "a controller answers", context=(tmp_path / "proxy.log").read_text)
        address = scheduler_address(cluster, "devalloc")
        assert address is not None
        agent = ScriptedAgent(neon, "vm1", (address, port))
        assert agent.ask(250, 1) == (250, 1)
        assert agent.ask(4000, 8) == (4000, 8)
        agent.scale(4000, 8)
        first.close()
        until(lambda: not _probed(pod), "there is no leader")
        assert scheduler_address(cluster, "devalloc") is None, "an agent waits, and loses nothing"
        second = controller(cluster, tmp_path, "second", "4s")
        second.options = (*second.options, "--neon")
        second.start()
        until(lambda: _probed(pod), "the next one answers", context=(tmp_path / "proxy.log").read_text)
        assert agent.ask(4000, 8) == (4000, 8)
        assert permit(neon, "vm1")["cpus"] == "4"
    finally:
        proxy.terminate()
        code = proxy.wait(60)
        for process in (first, second):
            if process is not None:
                process.close()
        cluster.delete(f"{neon_installation.SYSTEM_PODS}/{pod.name}?gracePeriodSeconds=0")
    assert code == 0, (tmp_path / "proxy.log").read_text()
    assert "forbidden" not in (tmp_path / "proxy.log").read_text().lower()


def _probed(pod: ProxyPod) -> bool | None:
    try:
        return pod.probe()
    except OSError:
        return None


@contextmanager
def author(neon: NeonVms, *rules: dict[str, Any]) -> Iterator[Cluster]:
    """The cluster as a user sees it who has these rights everywhere."""
    cluster, name = neon.cluster, "neon-author"
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    space = f"/api/v1/namespaces/{kube_rights.NAMESPACE}/serviceaccounts"
    subject = {"kind": "ServiceAccount", "name": name, "namespace": kube_rights.NAMESPACE}
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    assert cluster.create(space, {"metadata": {"name": name}}).ok
    assert cluster.create(roles, {"metadata": {"name": name}, "rules": [*rules]}).ok
    binding = {"metadata": {"name": name}, "subjects": [subject], "roleRef": ref}
    assert cluster.create(f"{roles.removesuffix('s')}bindings", binding).ok
    try:
        client = Client.connect(kube_rights.with_token(cluster, name, kube_rights.token(cluster, name)))
        yield Cluster(cluster.url, str(client.token()), cluster.folder)
    finally:
        for where in (f"{roles.removesuffix('s')}bindings", roles, space):
            cluster.delete(f"{where}/{name}")


def test_authors_of_machines_write_no_permits(neon: NeonVms) -> None:
    neon.start(vm("vm1", ("1", "8", "1"), (2, 16, 2)), "vm1-x7k2p")
    rule = {"apiGroups": ["vm.neon.tech"], "resources": ["virtualmachines"], "verbs": ["get", "update"]}
    with author(neon, rule) as user:

        def write(name: str) -> Any:
            obj = neon.get("vm1")
            obj["metadata"]["annotations"] = {**obj["metadata"].get("annotations", {}), name: "{}"}
            return user.replace(f"{neon_installation.MACHINES}/vm1", obj)

        assert neon.get("vm1")["metadata"]["name"] == "vm1"
        assert write("example.com/note").ok
        answer = until(lambda: not (refused := write("devalloc.io/permitted")).ok and refused, "the policy counts")
        assert answer.status == 403
        assert "only the controller of devalloc writes devalloc.io/permitted" in answer.message


def test_only_who_runs_machines_of_neonvm_makes_their_pods(neon: NeonVms) -> None:
    """A pod that claims to run one counts on its node, and outlives it if its author likes."""
    neon.start(vm("vm1", ("1", "8", "1"), (2, 16, 2)), "vm1-x7k2p")
    runner = neon.cluster.get(f"{neon.pods}/vm1-x7k2p").content
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "create", "update"]}
    name, size = "vm.neon.tech/name", "vm.neon.tech/resources"

    def pod(of: str, **metadata: Any) -> dict[str, Any]:
        own = {part: runner["metadata"][part] for part in ("labels", "annotations", "ownerReferences")}
        return {**runner, "metadata": {**own, "name": of, **metadata}, "status": {}}

    with author(neon, pods) as user:

        def changed(of: str, **metadata: Any) -> Any:
            there = user.get(f"{neon.pods}/{of}").content
            return user.replace(f"{neon.pods}/{of}", {**there, "metadata": {**there["metadata"], **metadata}})

        refused = until(
            lambda: not (answer := user.create(neon.pods, pod("forged"))).ok and answer, "the policy counts"
        )
        assert refused.status == 403
        assert "only NeonVM's controller" in refused.message
        assert user.create(neon.pods, pod("unowned", ownerReferences=[])).ok, "it is of no machine of NeonVM"
        assert not changed("unowned", ownerReferences=runner["metadata"]["ownerReferences"]).ok
        assert user.create(neon.pods, pod("unlabelled", labels={})).ok
        assert not changed("unlabelled", labels={name: "vm1"}).ok
        assert not changed("vm1-x7k2p", annotations={size: "{}"}).ok
        assert not changed("vm1-x7k2p", labels={name: "vm2"}).ok
        assert changed("vm1-x7k2p", annotations={**runner["metadata"]["annotations"], "example.com/note": "1"}).ok
    status = {"apiGroups": ["vm.neon.tech"], "resources": ["virtualmachines/status"], "verbs": ["update"]}
    with author(neon, pods, status) as controller_of_neonvm:
        answer = controller_of_neonvm.create(neon.pods, pod("vm1-next"))
        assert answer.ok, answer.message


def test_without_neons_crd_a_controller_works_as_ever(cluster: Cluster, tmp_path: Path) -> None:
    with prepared_cluster(cluster, NODE):
        kube_rights.install(cluster, "both", permits=True, neon=True)
        assert cluster.create(POOLS, host(NODE, cpus=8, memory=16)).ok
        (port,) = free_ports(1)
        neon = NeonVms(cluster, NODE)
        process = start(neon, tmp_path, port)
        try:
            # It is found when it comes, without another controller.
            neon_installation.install(cluster)
            neon.start(vm("vm1", ("250m", "4", "250m"), (1, 8, 1)), "vm1-x7k2p")
            agent = ScriptedAgent(neon, "vm1", ("127.0.0.1", port))
            until(
                lambda: _try(agent, 1000, 2) == (1000, 2),
                "it gets a permit",
                context=lambda: (_try(agent, 1000, 2), process.output()),
            )
            assert permit(neon, "vm1")["cpus"] == "1"
        finally:
            process.close()
            neon_installation.remove(cluster)
