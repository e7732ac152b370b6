"""The examples on a cluster with devalloc installed: each is applied by those who may, and ends as its README says.

An admin applies what belongs to the cluster: `classes.yaml` and `pools.yaml`. A tenant applies the rest, with `edit` in
the namespace and the other rights that the example's README names.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from devalloc.api.manifests import load
from devalloc.api.quantity import Quantity
from devalloc.cli.main import run
from devalloc.machines.schedule.what_if import solve_with_machines
from tests.support import (
    console_blocks,
    kube_build,
    kube_claims,
    kube_controllers,
    kube_installed,
    kube_node,
    kube_rights,
)
from tests.support.claim_judge import why_not
from tests.support.controller_processes import Process, leader_process
from tests.support.go_build import Progress, Unavailable
from tests.support.kube_api import Cluster, Processes, running
from tests.support.kube_claims import Space
from tests.support.waiting import until

Object = dict[str, Any]
EXAMPLES = Path(__file__).parents[2] / "examples"
OF_OTHERS = ("dra", "pods")
"""Of resource.k8s.io: tests of their own below."""
NAMES = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name not in OF_OTHERS)
ADMIN = ("classes.yaml", "pools.yaml")
"""The rest is the tenant's."""
CLAIMS_FIRST = {
    "groups-and-pins": "a group that is not whole yet is answered as it is",
    "priorities": "priorities decide between claims that wait at the same time",
}
"""Examples whose claims must wait together, and why: their pools come last, as with `kubectl apply -f FOLDER`."""
ON_A_CLUSTER = {
    "LostToCompetition": "DevicesInUse",
    "LostToHigherPriority": "DevicesInUse",
}
"""Reasons of one batch, and what a cluster says: losers are answered when the winners have the devices."""
MACHINES_ON_A_CLUSTER = {
    "replica-set": dict.fromkeys(("resize-1", "resize-2", "resize-3"), "NoHostCapacity"),
    "virtual-machine": dict.fromkeys(("builder", "legacy", "vault", "web"), "NodeNotFound"),
}
"""By example: reasons of machines that their README tells, and that a file without a cluster does not have."""
ACCOUNT = "--serviceaccount=default:tenant"
MACHINES = (
    'cannot create resource "virtualmachines"',
    ("create", "rolebinding", "example", "--clusterrole=devalloc-machines", ACCOUNT),
)
HOST_PATHS = (
    "only those who may use-host-paths",
    ("create", "clusterrolebinding", "example", "--clusterrole=devalloc-host-paths", ACCOUNT),
)
NEEDS: dict[str, list[tuple[str, tuple[str, ...]]]] = {
    "admin-access": [("devalloc.io/admin-access", ("label", "namespace", "default", "devalloc.io/admin-access=true"))],
    "gpu-machine": [MACHINES],
    "laptop-machine": [MACHINES],
    "migration": [MACHINES],
    "placed-machines": [MACHINES],
    "priorities": [
        (
            "a priority above 0 is set or raised only by those who may",
            ("create", "clusterrolebinding", "example", "--clusterrole=devalloc-prioritize", ACCOUNT),
        )
    ],
    "replica-set": [('cannot create resource "virtualmachinereplicasets"', MACHINES[1])],
    "virtual-machine": [
        MACHINES,
        HOST_PATHS,
    ],
}
"""What an admin must give besides, by example, as its README says: what the tenant reads before, and the command."""
CONTROLLERS = (
    "--controllers=namespace-controller,garbage-collector-controller,clusterrole-aggregation-controller,"
    "serviceaccount-controller,resourceclaim-controller"
)


ROOTS = {
    "deviceclaims": "/apis/devmgmtproto.k8s.io/v1alpha1",
    "virtualmachines": "/apis/devalloc.io/v1alpha1",
    "resourceclaims": "/apis/resource.k8s.io/v1",
    "pods": "/api/v1",
    "events": "/api/v1",
}

INSTALL = ("--resource-claims", "--image-prefix", kube_installed.IMAGE_PREFIX)


@dataclass(frozen=True)
class People:
    """Who applies what, with kubectl."""

    program: Path
    home: Path
    admin: Path
    tenant: Path
    tenants_view: Cluster

    def kubectl(self, kubeconfig: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        environment = {"HOME": str(self.home), "KUBECONFIG": str(kubeconfig), "PATH": os.environ["PATH"]}
        command = [str(self.program), *map(str, arguments)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)

    def as_admin(self, *arguments: str | Path) -> str:
        done = self.kubectl(self.admin, *arguments)
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout

    def as_tenant(self, *arguments: str | Path) -> str:
        done = self.kubectl(self.tenant, *arguments)
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout

    def read(self, kind: str) -> list[Object]:
        """Objects of the namespace default, as the tenant sees them. The API server is asked itself: tests look again
        and again, and each kubectl asks it first for all that it serves."""
        answer = self.tenants_view.get(f"{ROOTS[kind]}/namespaces/default/{kind}")
        assert answer.ok, answer.message
        return list(answer.content["items"])


@dataclass(frozen=True)
class Installed:
    """A cluster, and the controller that answers there."""

    cluster: Cluster
    controller: Process


@pytest.fixture(scope="module")
def installed(progress: Progress, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """A cluster of its own, with devalloc installed by its command, and the controller with its account's token."""
    folder = tmp_path_factory.mktemp("examples")
    processes = Processes(folder)
    try:
        with ExitStack() as stack:
            cluster = stack.enter_context(running(kube_build.binaries(progress), tmp_path_factory.mktemp("kubernetes")))
            stack.callback(processes.stop)
            kube_controllers.start(cluster, kube_build.node_binaries(progress), processes, CONTROLLERS)
            kube_node.start_scheduler(cluster, kube_build.node_binaries(progress), processes)
            kube_claims.ready_node(cluster, "worker")
            assert run(["install", *INSTALL, "--kubeconfig", str(cluster.kubeconfig("admin"))]) == 0
            controller = Process(cluster, folder, "controller", "6s", "--resource-claims")
            controller.kubeconfig = kube_rights.controller_kubeconfig(cluster)
            stack.callback(controller.close)
            controller.start()
            until(lambda: leader_process(cluster, [controller]), "the controller leads", context=controller.output)
            yield Installed(cluster, controller)
    except Unavailable as reason:
        pytest.skip(f"no Kubernetes controllers: {reason}")


@pytest.fixture(scope="module")
def people(installed: Installed, progress: Progress, tmp_path_factory: pytest.TempPathFactory) -> People:
    """An admin, and a tenant who may edit the namespace default and see the cluster's classes."""
    program, home = kube_build.kubectl(progress), tmp_path_factory.mktemp("home")
    admin = installed.cluster.kubeconfig("admin")
    everybody = People(program, home, admin, admin, installed.cluster)
    everybody.as_admin("create", "namespace", "network")
    everybody.as_admin("create", "serviceaccount", "tenant")
    everybody.as_admin("create", "rolebinding", "tenant", "--clusterrole=edit", ACCOUNT)
    everybody.as_admin("create", "clusterrolebinding", "tenant-classes", "--clusterrole=devalloc-classes", ACCOUNT)
    token = kube_rights.token(installed.cluster, "tenant", namespace="default")
    tenant = kube_rights.with_token(installed.cluster, "tenant", token)
    both = People(program, home, admin, tenant, replace(installed.cluster, token=token))
    until(lambda: may(both, "create", "deviceclaims"), "the tenant's rights count")
    return both


def may(people: People, verb: str, resource: str, *options: str) -> bool:
    return people.kubectl(people.tenant, "auth", "can-i", verb, resource, *options).stdout.strip() == "yes"


@pytest.fixture
def fresh(people: People, name: str) -> Iterator[People]:
    """Without what the example of that name brought, afterwards."""
    yield people
    people.as_admin("delete", "vmrs", "--all", "--all-namespaces", "--cascade=foreground")
    people.as_admin("delete", "dclaim,vmachine,vfconfig", "--all", "--all-namespaces")
    people.as_admin("delete", "dpool,dclass", "--all")
    if name in NEEDS:
        people.as_admin("delete", "rolebinding,clusterrolebinding", "example", "--ignore-not-found")
        people.as_admin("label", "namespace", "default", "devalloc.io/admin-access-")


# -- the examples of our own API --------------------------------------------------------------------------------------


def of_tenant(name: str) -> list[Path]:
    return [path for path in sorted((EXAMPLES / name).glob("*.yaml")) if path.name not in ADMIN]


def flags(paths: list[Path]) -> list[str | Path]:
    return [word for path in paths for word in ("-f", path)]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_ends_as_its_readme_says(fresh: People, name: str) -> None:
    contents = [document.content for document in load([EXAMPLES / name]).documents]
    answer = solve_with_machines(contents)
    classes, pools = (EXAMPLES / name / file for file in ADMIN)

    if classes.exists():
        fresh.as_admin("apply", "-f", classes)
    if name not in CLAIMS_FIRST and pools.exists():
        fresh.as_admin("apply", "-f", pools)
    for words, command in NEEDS.get(name, []):
        until(lambda words=words: words in _refusal(fresh, name), f"it is refused: {words}")  # type: ignore[misc]
        fresh.as_admin(*command)
    until(lambda: not _refusal(fresh, name), "what the README says is enough", context=lambda: _refusal(fresh, name))
    fresh.as_tenant("apply", *flags(of_tenant(name)))
    if name in CLAIMS_FIRST:
        fresh.as_admin("apply", "-f", pools)

    expected = {claim["name"]: _solved(claim) for claim in answer["claims"]}
    until(lambda: _claims(fresh) == expected, "the claims end so", context=lambda: (_claims(fresh), expected))
    placed = {machine["name"]: _solved(machine) for machine in answer.get("machines", [])}
    placed |= MACHINES_ON_A_CLUSTER.get(name, {})
    until(lambda: _machines(fresh) == placed, "the machines end so", context=lambda: (_machines(fresh), placed))
    until(lambda: _served(fresh) <= {"NodeNotFound"}, "none has a node of this cluster", context=lambda: _served(fresh))


def _refusal(people: People, name: str) -> str:
    """What the API server says against it, warnings as well."""
    return people.kubectl(people.tenant, "apply", "--dry-run=server", *flags(of_tenant(name))).stderr


def _solved(one: Object) -> Object | str:
    """Node and devices, or why not, as a cluster says it."""
    if one["allocated"]:
        return {"node": one["node"], "devices": _devices(one["allocations"])}
    return ON_A_CLUSTER.get(one["reason"], one["reason"])


def _devices(allocations: list[Object]) -> Object:
    """Pools and devices, in any order, and of shares how much of all of them: which device gives how much depends on
    whether the claims came at one moment, as in a file, or one by one, as kubectl sends them."""
    amounts: Counter[str] = Counter()
    for each in allocations:
        for share in each.get("allocations") or ():
            amounts[share["name"]] += Quantity.parse(share["allocation"]).nano
    names = sorted(f"{each['devicePoolName']}/{each['deviceName']}" for each in allocations)
    return {"names": names, "amounts": dict(amounts)}


def _claims(people: People) -> Object:
    by_name: Object = {}
    for claim in people.read("deviceclaims"):
        annotations, status = claim["metadata"].get("annotations", {}), claim.get("status", {})
        if allocations := status.get("allocations"):
            node = annotations["devalloc.io/allocated-node"]
            by_name[claim["metadata"]["name"]] = {"node": node, "devices": _devices(allocations)}
        else:
            by_name[claim["metadata"]["name"]] = why_not(claim)
    return by_name


def _machines(people: People) -> Object:
    by_name: Object = {}
    for machine in people.read("virtualmachines"):
        status = machine.get("status", {})
        if allocations := status.get("allocations"):
            by_name[machine["metadata"]["name"]] = {"node": status["nodeName"], "devices": _devices(allocations)}
        else:
            by_name[machine["metadata"]["name"]] = status.get("reason")
    return by_name


def _served(people: People) -> set[str]:
    """What machines that have a node, by their specs or their statuses, say of its plugin; empty for nothing."""
    reasons = set()
    for machine in people.read("virtualmachines"):
        status = machine.get("status", {})
        if machine["spec"].get("nodeName") or status.get("nodeName"):
            served = [each for each in status.get("conditions", []) if each["type"] == "Served"]
            reasons.add(served[0]["reason"] if served else "")
    return reasons


# -- those of resource.k8s.io ------------------------------------------------------------------------------------------


def test_claims_of_kubernetes_are_answered_from_what_a_cluster_has_and_left_alone_there(
    people: People, tmp_path: Path
) -> None:
    """`dra` is for `devalloc dra allocate`: on a cluster no controller allocates a claim that no pod uses."""
    folder = EXAMPLES / "dra"
    admins = flags([folder / name for name in ("nodes.yaml", "classes.yaml", "slices.yaml")])
    people.as_admin("apply", *admins)
    try:
        people.as_tenant("apply", "-f", folder / "claims.yaml")
        kinds = "nodes,deviceclasses.resource.k8s.io,resourceslices,resourceclaims"
        (tmp_path / "all.yaml").write_text(people.as_admin("get", kinds, "-o", "yaml"))
        (block,) = (
            block for block in console_blocks.blocks(folder / "README.md") if block.command.endswith("example-a")
        )
        printed = console_blocks.run(block.command.replace("examples/dra", str(tmp_path / "all.yaml")))
        assert sorted(printed.splitlines()) == sorted(block.output.splitlines()), "a cluster lists claims by name"
        assert all(not claim.get("status") for claim in people.read("resourceclaims"))
    finally:
        people.as_admin("delete", "--ignore-not-found", "-f", folder / "claims.yaml", *admins)


def test_pods_get_a_device_each_from_kube_scheduler_and_from_the_controller(
    installed: Installed, people: People
) -> None:
    folder, log = EXAMPLES / "pods", installed.controller.output
    space = Space(installed.cluster, "default")
    kube_claims.ready_node(installed.cluster, "node-b")
    people.as_admin("label", "node", "node-b", "devalloc.io/publish=set-aside")
    space.slice("worker", ["0000-3b-01-0"], aside=False, function="vf")
    space.slice("node-b", ["0000-3b-01-0"], function="vf")
    people.as_admin("apply", "-f", folder / "classes.yaml")
    people.as_tenant("apply", *flags(of_tenant("pods")))

    def nodes() -> dict[str, str]:
        return {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in people.read("pods")}

    expected = {"first-fit": "worker", "jointly": "node-b"}
    until(lambda: nodes() == expected, "both pods have a node", context=lambda: people.read("events"))
    for claim in people.read("resourceclaims"):
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        pod = claim["metadata"]["ownerReferences"][0]["name"]
        if pod == "jointly":
            words = f"ResourceClaim default/{claim['metadata']['name']} allocated"
            until(lambda words=words: words in log(), words, context=log)  # type: ignore[misc]
        assert result["pool"] == {"first-fit": "worker-card", "jointly": "node-b-card.devalloc"}[pod]
    until(lambda: "ResourceClaims 1 (1 allocated, 0 waiting)" in log(), "the log says how many there are", context=log)
