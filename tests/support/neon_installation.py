"""What an installation of Neon's autoscaling has on a cluster, and its agent, written from its protocol alone.

The CRD has the names, the status subresource and the fields that the protocol uses, and keeps all others. ``NeonVms``
writes objects as NeonVM's controller does; ``ScriptedAgent`` asks as the agent does, in the order of its steps.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import urllib.request
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from devalloc.api.quantity import NANO, Quantity
from tests.support.kube_api import Cluster
from tests.support.kube_crds import CRDS, conditions
from tests.support.waiting import until

Object = dict[str, Any]
GIB = 2**30
GROUP, VERSION = "vm.neon.tech", "v1"
MACHINES = f"/apis/{GROUP}/{VERSION}/namespaces/default/virtualmachines"
PODS = "/api/v1/namespaces/default/pods"
SYSTEM_PODS = "/api/v1/namespaces/kube-system/pods"
SCALED = {"autoscaling.neon.tech/enabled": "true"}
_NAME = f"virtualmachines.{GROUP}"
_CPU = {"x-kubernetes-int-or-string": True, "pattern": r"^[0-9]+((\.[0-9]*)?|m)"}
_SLOTS = {"type": "integer", "minimum": 1, "maximum": 512}
_QUANTITY = {"x-kubernetes-int-or-string": True}


def _open(**properties: Any) -> Object:
    return {"type": "object", "properties": properties, "x-kubernetes-preserve-unknown-fields": True}


def crd() -> Object:
    """Of its machines."""
    guest = _open(
        cpus=_open(min=_CPU, max=_CPU, use=_CPU),
        memorySlots=_open(min=_SLOTS, max=_SLOTS, use=_SLOTS),
        memorySlotSize={**_QUANTITY, "default": "1Gi"},
    )
    status = _open(phase={"type": "string"}, podName={"type": "string"}, node={"type": "string"}, cpus=_CPU)
    schema = _open(spec=_open(guest=guest), status=status)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": _NAME},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": "VirtualMachine",
                "plural": "virtualmachines",
                "singular": "virtualmachine",
                "listKind": "VirtualMachineList",
                "shortNames": ["neonvm"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }


def install(cluster: Cluster) -> None:
    """Have its machines served."""
    answer = cluster.create(CRDS, crd())
    assert answer.ok or answer.status == 409, answer.message
    until(
        lambda: (
            conditions(cluster.get(f"{CRDS}/{_NAME}").content).get("Established") == "True" and cluster.get(MACHINES).ok
        ),
        "NeonVM's machines are served",
    )


def remove(cluster: Cluster) -> None:
    """Its machines, their pods, and the CRD."""
    everywhere = (path.replace("/namespaces/default", "") for path in (MACHINES, PODS))
    for path in everywhere:
        for obj in cluster.get(path).content.get("items", []):
            space, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
            folder, _, plural = path.rpartition("/")
            cluster.delete(f"{folder}/namespaces/{space}/{plural}/{name}?gracePeriodSeconds=0")
    cluster.delete(f"{CRDS}/{_NAME}")


def vm(name: str, cpus: tuple[str, str, str], slots: tuple[int, int, int], **metadata: dict[str, str]) -> Object:
    """A machine as its owner writes it: least, most and present CPUs, and slots of 1 GiB."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "VirtualMachine",
        "metadata": {"name": name, "labels": SCALED, **metadata},
        "spec": {
            "schedulerName": "autoscale-scheduler",
            "guest": {
                "cpus": dict(zip(("min", "max", "use"), cpus, strict=True)),
                "memorySlots": dict(zip(("min", "max", "use"), slots, strict=True)),
                "memorySlotSize": "1Gi",
                "rootDisk": {"image": "registry.example.com/postgres:16"},
            },
        },
    }


@dataclass
class NeonVms:
    """NeonVM's controller, as far as objects go."""

    cluster: Cluster
    node: str
    namespace: str = "default"

    @property
    def machines(self) -> str:
        return MACHINES.replace("/default/", f"/{self.namespace}/")

    @property
    def pods(self) -> str:
        return PODS.replace("/default/", f"/{self.namespace}/")

    def start(self, machine: Object, pod: str) -> None:
        """The machine, with the pod that runs it."""
        answer = self.cluster.create(self.machines, machine)
        assert answer.ok, answer.message
        self.run(answer.content, pod)

    def run(self, machine: Object, pod: str) -> None:
        """A pod that runs it, and the status that says so."""
        metadata, guest = machine["metadata"], machine["spec"]["guest"]
        if not self.cluster.get(f"{self.pods}/{pod}").ok:
            self.pod(pod, metadata["name"], guest, metadata.get("labels", {}), uid=metadata["uid"])
        else:
            self.begin(pod)
        self.settle(metadata["name"], podName=pod)

    def bind(self, machine: Object, pod: str) -> None:
        """The machine, with a pod that is on its node and pulls its image: until it runs, the status names no node."""
        answer = self.cluster.create(self.machines, machine)
        assert answer.ok, answer.message
        created = answer.content
        name, guest = created["metadata"]["name"], created["spec"]["guest"]
        labels = created["metadata"].get("labels", {})
        self.pod(pod, name, guest, labels, uid=created["metadata"]["uid"], phase="Pending")

        def written() -> bool:
            now = {**self.get(name), "status": {"phase": "Pending", "podName": pod}}
            return self.cluster.replace(f"{self.machines}/{name}/status", now).ok

        until(written, f"the status of {name} is written")

    def begin(self, pod: str) -> None:
        """The pod's container runs."""
        there = self.cluster.get(f"{self.pods}/{pod}").content
        begun = {**there, "status": {**there["status"], "phase": "Running"}}
        assert self.cluster.replace(f"{self.pods}/{pod}/status", begun).ok

    def delete(self, name: str, pod: str) -> None:
        """The machine's object; then, as the garbage collector does, its pod is asked to end, and goes when it has."""
        assert self.cluster.delete(f"{self.machines}/{name}").ok
        assert self.cluster.delete(f"{self.pods}/{pod}?gracePeriodSeconds=300").ok

    def end(self, pod: str) -> None:
        """QEMU has ended, and the kubelet says so."""
        assert self.cluster.delete(f"{self.pods}/{pod}?gracePeriodSeconds=0").ok

    def pod(
        self, name: str, machine: str, guest: Object, labels: dict[str, str], uid: str = "", *, phase: str = "Running"
    ) -> None:
        """A pod that runs a machine, as it is when its container runs."""
        resources = {part: guest[part] for part in ("cpus", "memorySlots", "memorySlotSize")}
        owner = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "VirtualMachine", "name": machine, "uid": uid or "none"}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "labels": {**labels, "vm.neon.tech/name": machine, "vm.neon.tech/runner-version": "1"},
                "annotations": {"vm.neon.tech/resources": json.dumps(resources)},
                "ownerReferences": [{**owner, "controller": True}],
            },
            "spec": {
                "nodeName": self.node,
                "containers": [{"name": "neonvm-runner", "image": "registry.example.com/runner"}],
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
            },
        }
        self.cluster.create(self.pods.replace("/pods", "/serviceaccounts"), {"metadata": {"name": "default"}})
        answer = self.cluster.create(self.pods, body)
        assert answer.ok, answer.message
        running = {**answer.content, "status": {"phase": phase, "podIP": "10.77.0.5"}}
        answer = self.cluster.replace(f"{self.pods}/{name}/status", running)
        assert answer.ok, answer.message

    def settle(self, name: str, **status: str) -> None:
        """QEMU has what the spec asks for."""

        def written() -> bool:
            machine = self.cluster.get(f"{self.machines}/{name}").content
            guest = machine["spec"]["guest"]
            size = f"{guest['memorySlots']['use']}Gi"
            has = {"cpus": guest["cpus"]["use"], "memorySize": size, "phase": "Running", "node": self.node}
            machine["status"] = {**machine.get("status", {}), **has, **status}
            return self.cluster.replace(f"{self.machines}/{name}/status", machine).ok

        until(written, f"the status of {name} is written")

    def get(self, name: str) -> Object:
        return dict(self.cluster.get(f"{self.machines}/{name}").content)


def scheduler_address(cluster: Cluster, name: str) -> str | None:
    """Whom Neon's agent asks: the IP of the newest ready pod of kube-system with this label ``name``."""
    ready = [
        pod
        for pod in cluster.get(f"{SYSTEM_PODS}?labelSelector=name%3D{name}").content["items"]
        if conditions(pod).get("Ready") == "True" and pod["status"].get("podIP")
    ]
    newest = max(ready, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), default=None)
    return None if newest is None else str(newest["status"]["podIP"])


@dataclass
class ProxyPod:
    """The pod of `devalloc permit-proxy` as its Deployment makes it, and a kubelet that probes it."""

    cluster: Cluster
    template: Object
    address: str
    health: tuple[str, int]
    name: str = "devalloc-permit-proxy-7d9f"
    uid: str = ""

    def create(self, node: str) -> None:
        """Bound to a node, and not ready."""
        metadata = {"name": self.name, "labels": self.template["metadata"]["labels"]}
        body = {"metadata": metadata, "spec": {**self.template["spec"], "nodeName": node}}
        answer = self.cluster.create(SYSTEM_PODS, body)
        assert answer.ok, answer.message
        self.uid = answer.content["metadata"]["uid"]

    def probe(self) -> bool:
        """Whether it is ready, which its status says then."""
        with closing(http.client.HTTPConnection(*self.health, timeout=30)) as connection:
            connection.request("GET", "/readyz")
            is_ready = connection.getresponse().status == 200
        pod = self.cluster.get(f"{SYSTEM_PODS}/{self.name}").content
        ready = {"type": "Ready", "status": str(is_ready)}
        pod["status"] |= {"phase": "Running", "podIP": self.address, "conditions": [ready]}
        assert self.cluster.replace(f"{SYSTEM_PODS}/{self.name}/status", pod).ok
        return is_ready


class AgentError(Exception):
    """What its agent takes for a failed request."""


@dataclass
class ScriptedAgent:
    """Neon's agent for one machine: requests of protocol v5.0 by plain HTTP, without a token."""

    vms: NeonVms
    machine: str
    server: tuple[str, int]
    source: str = "127.0.0.1"
    last_permit: Object | None = None
    sent: list[Object] = field(default_factory=list)

    @property
    def using(self) -> tuple[int, int]:
        """Thousandths of a CPU, and GiB."""
        guest = self.vms.get(self.machine)["spec"]["guest"]
        return milli(guest["cpus"]["use"]), int(guest["memorySlots"]["use"])

    def ask(self, cpu: int, gib: int) -> tuple[int, int]:
        """What it is permitted of a total. Raises AgentError for answers that Neon's agent refuses."""
        pod = self.vms.get(self.machine)["status"]["podName"]
        message = {
            "protoVersion": 7,
            "pod": {"namespace": "default", "name": pod},
            "computeUnit": {"vCPUs": "250m", "mem": "1Gi"},
            "resources": {"vCPUs": cpus(cpu), "mem": f"{gib}Gi"},
            "lastPermit": self.last_permit,
            "metrics": {"loadAvg1M": 0.5},
        }
        self.sent.append(message)
        connection = http.client.HTTPConnection(*self.server, timeout=30, source_address=(self.source, 0))
        with closing(connection):
            connection.request("POST", "/", json.dumps(message), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            body = answer.read()
        if answer.status != 200:
            raise AgentError(f"{answer.status}: {body.decode()}")
        permit = json.loads(body)["permit"]
        granted = milli(permit["vCPUs"]), Quantity.parse(permit["mem"]).nano // NANO // GIB
        used = self.using
        if not all(have <= got <= most for have, got, most in zip(used, granted, (cpu, gib), strict=True)):
            raise AgentError(f"{permit} of {message['resources']} with {used} in use")
        self.last_permit = permit
        return granted

    def scale(self, cpu: int, gib: int) -> None:
        """Change the machine, as its agent does: a JSON patch of what it is to use."""
        operations = [
            {"op": "replace", "path": "/spec/guest/cpus/use", "value": f"{cpu}m" if cpu % 1000 else str(cpu // 1000)},
            {"op": "replace", "path": "/spec/guest/memorySlots/use", "value": gib},
        ]
        cluster = self.vms.cluster
        headers = {"Authorization": f"Bearer {cluster.token}", "Content-Type": "application/json-patch+json"}
        url = f"{cluster.url}{self.vms.machines}/{self.machine}"
        request = urllib.request.Request(url, json.dumps(operations).encode(), headers, method="PATCH")
        with urllib.request.urlopen(request, timeout=60, context=ssl._create_unverified_context()) as answer:
            assert answer.status == 200
        self.vms.settle(self.machine)

    def grow(self, monitor: MonitorPeer, cpu: int, gib: int) -> tuple[int, int]:
        """Permit, machine, guest; what it has then."""
        granted = self.ask(cpu, gib)
        self.scale(*granted)
        assert monitor.upscaled(*granted)
        return granted

    def shrink(self, monitor: MonitorPeer, cpu: int, gib: int) -> bool:
        """Guest, machine, permit; whether the guest agreed."""
        if not monitor.may_shrink(cpu, gib):
            return False
        self.scale(cpu, gib)
        assert self.ask(cpu, gib) == (cpu, gib)
        return True


@dataclass
class MonitorPeer:
    """The agent's connection to the monitor in a guest: text frames, replies carry the request's even number."""

    url: str
    number: int = 0

    def upscaled(self, cpu: int, gib: int) -> bool:
        granted = {"granted": {"cpu": cpu / 1000, "mem": gib * GIB}}
        return bool(self._call("UpscaleNotification", granted)["type"] == "UpscaleConfirmation")

    def may_shrink(self, cpu: int, gib: int) -> bool:
        reply = self._call("DownscaleRequest", {"target": {"cpu": cpu / 1000, "mem": gib * GIB}})
        assert reply["type"] == "DownscaleResult"
        return bool(reply["Ok"])

    def _call(self, kind: str, content: Object) -> Object:
        return asyncio.run(self._exchange(kind, content))

    async def _exchange(self, kind: str, content: Object) -> Object:
        async with asyncio.timeout(60), connect(self.url, ping_interval=None) as socket:
            await socket.send('{"min":1,"max":1}')
            assert json.loads(await socket.recv()) == {"version": 1}
            await asyncio.sleep(0.5)  # a monitor that has just begun has no samples yet
            return await self._reply(socket, kind, content)

    async def _reply(self, socket: ClientConnection, kind: str, content: Object) -> Object:
        self.number += 2
        await socket.send(json.dumps({"content": content, "type": kind, "id": self.number}))
        while True:
            message: Object = json.loads(await socket.recv())
            if message["id"] == self.number:
                return message
            assert message["type"] == "UpscaleRequest", message


def milli(amount: object) -> int:
    """Thousandths of a CPU."""
    return Quantity.parse(amount).nano // (NANO // 1000)


def cpus(amount: int) -> int | str:
    """Thousandths of a CPU as the agent writes them."""
    return f"{amount}m" if amount % 1000 else amount // 1000
