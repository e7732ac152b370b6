"""Every verb with the rights of a tenant: those of one namespace, and none on statuses or on what is the cluster's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from devalloc.api.kinds import API_KINDS
from devalloc.cli import target
from devalloc.cli.role_hints import role_hint
from devalloc.install.manifests import InstallOptions, render_manifests
from devalloc.store.kubernetes import ApiError, KubernetesStore
from tests.support import fast_yaml
from tests.support.cli_shell import Result, Shell, devalloc
from tests.support.fake_kube import FakeClient, FakeKube
from tests.support.fleet_manifests import gpu_claim, gpu_class, gpu_pool
from tests.support.host_pools import machine
from tests.support.machine_allocator import machine_allocator

__all__ = ["devalloc"]
OURS = frozenset(kind.plural for kind in API_KINDS.values() if kind.namespaced)


class Tenant(FakeClient):
    """Who may edit one namespace."""

    def __init__(self, kube: FakeKube, namespace: str) -> None:
        super().__init__(kube)
        self.namespace = namespace

    def get(self, path: str, params: Any = None) -> dict[str, Any]:
        self._ask(path, "get")
        return super().get(path, params)

    def list(self, path: str, params: Any = None) -> Iterator[dict[str, Any]]:
        self._ask(path, "list")
        yield from super().list(path, params)

    def watch(self, path: str, *of: Any) -> Iterator[dict[str, Any]]:
        self._ask(path, "watch")
        yield from super().watch(path, *of)

    def replace(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self._ask(path, "update")
        return super().replace(path, body)

    def _ask(self, path: str, verb: str) -> None:
        _, is_in, rest = path.partition(f"/namespaces/{self.namespace}/")
        if not is_in or rest.split("/")[0] not in OURS or path.endswith("/status"):
            raise ApiError(403, "Forbidden", _refusal(path, verb))


_PATH = re.compile(r"/apis?/(?:([^/]+\.[^/]+)/)?v[^/]+/(?:namespaces/([^/]+)/)?([^/]+)(?:/[^/]+(/status)?)?")


def _refusal(path: str, verb: str) -> str:
    """The words of an API server with RBAC."""
    matched = _PATH.fullmatch(path)
    assert matched is not None, path
    group, namespace, plural, status = matched.groups()
    scope = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    what = f'resource "{plural}{status or ""}" in API group "{group or ""}" {scope}'
    return f'{plural} is forbidden: User "alice" cannot {verb} {what}'


@dataclass
class Team:
    """team-a of a cluster, with a claim that is allocated, one that waits, and a neighbour."""

    kube: FakeKube
    shell: Shell
    kubeconfig: Path
    is_admin: bool = False

    def __call__(self, *words: str) -> Result:
        return self.shell(*words, "--kubeconfig", str(self.kubeconfig))

    def controller(self) -> None:
        store = KubernetesStore(FakeClient(self.kube))  # type: ignore[arg-type]
        try:
            machine_allocator(store, kinds=API_KINDS).round()
        finally:
            store.close()


@pytest.fixture
def team(devalloc: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Team:
    kube = FakeKube()
    team = Team(kube, devalloc, tmp_path / "kubeconfig")

    def connect(path: Path | None) -> FakeClient:
        return FakeClient(kube) if team.is_admin else Tenant(kube, "team-a")

    monkeypatch.setattr(target, "connect_cluster", connect)
    context = {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "team-a"}}
    named = {
        "clusters": [{"name": "c", "cluster": {"server": "https://nowhere"}}],
        "users": [{"name": "u", "user": {}}],
    }
    content = {"apiVersion": "v1", "kind": "Config", "contexts": [context], "current-context": "c", **named}
    team.kubeconfig.write_text(fast_yaml.dump_all([content]))
    store = KubernetesStore(FakeClient(kube))  # type: ignore[arg-type]
    store.create(gpu_pool(devices=2))
    store.create(gpu_class())
    for name, count, namespace in (("train", 1, "team-a"), ("big", 9, "team-a"), ("theirs", 1, "team-b")):
        store.create(gpu_claim(name, count, namespace))
    web = machine("web")
    store.create({**web, "metadata": {**web["metadata"], "namespace": "team-a"}})
    store.close()
    team.controller()
    return team


def test_claims_of_the_namespace_are_listed(team: Team) -> None:
    for words in ((), ("-n", "team-a")):
        output = team("get", "claims", *words)
        assert output.code == 0, output.err
        assert "train" in output.out
        assert "theirs" not in output.out
    assert 'User "alice" cannot' in team("get", "claims", "-A").err
    assert team("get", "claims", "-n", "team-b").code == 1
    assert "train" in team("get", "dclaim/train").out
    assert "there is no" not in team("get", "dclaim/none").out


@pytest.mark.parametrize(
    ("words", "role"),
    [
        (("get", "claims", "-A"), "view, by a ClusterRoleBinding"),
        (("get", "claims", "-n", "team-b"), "view, by a RoleBinding in namespace team-b"),
        (("top", "--once", "-n", "team-b"), "view, by a RoleBinding in namespace team-b"),
        (("get", "pools"), "view, by a ClusterRoleBinding"),
        (("get", "classes"), "devalloc-classes, by a ClusterRoleBinding"),
        (("cordon",), "view, by a ClusterRoleBinding"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_a_refusal_names_the_role_that_an_admin_can_bind(team: Team, words: tuple[str, ...], role: str) -> None:
    output = team(*words)
    assert output.code == 1
    assert 'User "alice" cannot ' in output.err
    assert output.err.endswith(f"; ask an admin for ClusterRole {role}\n")


@pytest.mark.parametrize(
    ("verb", "resource", "scope", "role"),
    [
        (
            "update",
            '"devicepools" in API group "devmgmtproto.k8s.io"',
            "at the cluster scope",
            "devalloc-fleet, by a Cl",
        ),
        ("create", '"deviceclaims" in API group "devmgmtproto.k8s.io"', 'in the namespace "a"', "edit, by a RoleB"),
        (
            "patch",
            '"virtualmachines" in API group "devalloc.io"',
            'in the namespace "a"',
            "devalloc-machines, by a RoleB",
        ),
        ("update", '"virtualmachines/status" in API group "devalloc.io"', 'in the namespace "a"', ""),
        ("list", '"nodes" in API group ""', "at the cluster scope", ""),
    ],
)
def test_a_role_is_named_that_has_the_right(verb: str, resource: str, scope: str, role: str) -> None:
    hint = role_hint(f'x is forbidden: User "alice" cannot {verb} resource {resource} {scope}')
    assert hint.startswith(f"; ask an admin for ClusterRole {role}") if role else hint == ""


def test_no_role_of_people_is_named_to_a_part_of_devalloc() -> None:
    what = 'resource "devicepools" in API group "devmgmtproto.k8s.io" at the cluster scope'
    assert role_hint(f'User "system:serviceaccount:devalloc-system:devalloc-node" cannot list {what}') == ""
    assert role_hint(f'User "system:serviceaccount:team-a:ci" cannot list {what}') != ""


def test_the_named_roles_are_installed() -> None:
    """`view` and `edit` are those of Kubernetes, of which ours are parts."""
    roles = {one["metadata"]["name"] for one in render_manifests(InstallOptions()) if one["kind"] == "ClusterRole"}
    assert {"devalloc-view", "devalloc-edit", "devalloc-classes", "devalloc-fleet", "devalloc-machines"} <= roles


def test_whether_a_class_is_valid_is_shown(team: Team) -> None:
    team.is_admin = True
    store = KubernetesStore(FakeClient(team.kube))  # type: ignore[arg-type]
    cls = store.get("DeviceClass", None, "gpu")
    why = {"type": "Valid", "status": "False", "reason": "ClassInvalid", "message": "it does not compile"}
    store.replace_status({**cls, "status": {"conditions": [why]}})
    store.close()
    header, line = team("get", "classes", "-o", "wide").out.splitlines()
    assert "VALID" in header
    assert "False" in line
    assert "it does not compile" in line


def test_the_namespace_of_the_context_counts_unless_another_one_is_named(team: Team) -> None:
    team.is_admin = True
    assert "train" in team("get", "claims").out
    assert "theirs" in team("get", "claims", "-n", "team-b").out
    assert "theirs" in team("get", "claims", "-A").out


def test_what_a_claim_holds_is_described_and_why_one_waits(team: Team) -> None:
    held = team("describe", "dclaim/train")
    assert held.code == 0, held.err
    assert ["p", "d0", "whole"] in [line.split() for line in held.out.splitlines()]
    waits = team("describe", "dclaim/big")
    assert waits.code == 0, waits.err
    assert "NotEnoughDevices" in waits.out


def test_the_fleet_is_shown_as_far_as_it_may_be_seen(team: Team) -> None:
    for words in ((), ("-n", "team-a")):
        output = team("top", "--once", *words)
        assert output.code == 0, output.err
        assert "team-a/big" in output.out
        assert not [line for line in output.out.splitlines() if line.startswith("team-b/")]
        assert "The list of DevicePools is not shown" in output.out
        assert "The list of DeviceClasses is not shown" in output.out
        assert output.out.startswith("Nodes, cards and devices: not shown. Claims: 1 allocated, 1 pending.")
    assert team("top", "--once", "-n", "team-b").code == 1


def test_an_admin_sees_all_or_one_namespace(team: Team) -> None:
    team.is_admin = True
    whole, part = team("top", "-o", "json").json, team("top", "-o", "json", "-n", "team-a").json
    assert {each["name"] for each in whole["claims"]} == {"train", "big", "theirs"}
    assert {each["name"] for each in part["claims"]} == {"train", "big"}
    assert part["nodes"] == whole["nodes"], "all that hold devices count"


def test_a_claim_is_released_by_the_controller_that_is_asked_to(team: Team) -> None:
    late = team("release", "train", "--timeout=10ms")
    assert late.code == 1
    assert "the node has not released the devices" in late.err
    path = "/apis/devmgmtproto.k8s.io/v1alpha1/namespaces/team-a/deviceclaims/train"
    assert team.kube.get(path)["metadata"]["annotations"]["devalloc.io/release"] == "asked"
    team.controller()
    assert "status" not in team.kube.get(path)
    assert team("release", "train").out == "deviceclaim/train held nothing\n"


def test_it_is_waited_for(team: Team) -> None:
    assert team("wait", "train").code == 0
    late = team("wait", "big", "--timeout=10ms")
    assert late.code == 3
    assert "NotEnoughDevices" in late.err


def test_why_a_claim_waits_is_explained_as_the_controller_wrote_it(team: Team) -> None:
    waits = team("explain", "big")
    assert waits.code == 3
    assert waits.out.startswith("team-a/big is not allocated: NotEnoughDevices\n")
    assert "no node has 9 devices" in waits.out
    assert "ClusterRole view, by a ClusterRoleBinding" in waits.err
    held = team("explain", "claim/train")
    assert (held.code, held.out) == (0, "team-a/train is allocated on node n.\n")
    assert "none does not exist; there are big, train" in team("explain", "none").err
    team.is_admin = True
    assert "ClusterRole" not in team("explain", "big").err


def test_what_the_controller_wrote_is_data_too(team: Team) -> None:
    waits, held = (json.loads(team("explain", name, "-o", "json").out) for name in ("big", "train"))
    assert (waits["allocated"], waits["node"], waits["reason"]) == (False, None, "NotEnoughDevices")
    assert "no node has 9 devices" in waits["message"]
    none = {"reason": None, "message": None}
    assert held == {"namespace": "team-a", "name": "train", "allocated": True, "node": "n", **none}


def test_a_machine_is_explained_as_its_node_wrote_it(team: Team) -> None:
    store = KubernetesStore(FakeClient(team.kube))  # type: ignore[arg-type]
    web = store.get("VirtualMachine", "team-a", "web")
    store.replace_status({**web, "status": {"phase": "Running", "nodeName": "n"}})
    runs = team("explain", "vm/web")
    assert (runs.code, runs.out) == (0, "team-a/web is placed on node n.\n")
    web = store.get("VirtualMachine", "team-a", "web")
    why = {"reason": "DiskFailed", "message": "the disk is full"}
    store.replace_status({**web, "status": {"phase": "Paused", "nodeName": "n", **why}})
    store.close()
    stands = team("explain", "vm/web")
    assert stands.code == 1
    assert stands.out == "team-a/web is placed on node n.\nIts CPUs stand still: DiskFailed: the disk is full\n"


def test_capacity_of_a_class_asks_for_a_claim_of_it(team: Team) -> None:
    team.is_admin = True
    output = team("capacity", "gpu")
    assert output.code == 4
    assert "gpu is a class: to count claims of it, give one with -f" in output.err


def test_a_cordon_has_the_name_that_the_cluster_knows(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    def create(self: FakeClient, path: str, body: Any, params: Any = None) -> Any:
        assert path == "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        return {"status": {"userInfo": {"username": "alice@example.com"}}}

    team.is_admin = True
    monkeypatch.setattr(FakeClient, "create", create)
    assert team("cordon", "pool/p", "--reason", "fan").code == 0
    assert "by alice@example.com, " in team("cordon").out


# -- no leader ---------------------------------------------------------------------------------------------------------

LEASE = "/apis/coordination.k8s.io/v1/namespaces/devices/leases"


def leads(kube: FakeKube, renewed: str) -> None:
    """devalloc is in namespace ``devices``, and its controller has renewed its lease then."""
    subjects = [{"kind": "ServiceAccount", "name": "devalloc-controller", "namespace": "devices"}]
    bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    kube.create(bindings, {"metadata": {"name": "devalloc-controller"}, "subjects": subjects})
    kube.create(LEASE, {"metadata": {"name": "devalloc-controller"}, "spec": {"renewTime": renewed}})


WORDS = (("top", "--once"), ("get", "claims"), ("describe", "dclaim/new"), ("wait", "new", "--timeout=10ms"))


@pytest.mark.parametrize("words", WORDS, ids=lambda words: words[0])
def test_a_claim_without_a_controller_shows_since_when(team: Team, words: tuple[str, ...]) -> None:
    team.is_admin = True
    leads(team.kube, "2026-01-01T00:00:00.000000Z")
    path = "/apis/devmgmtproto.k8s.io/v1alpha1/namespaces/team-a/deviceclaims"
    team.kube.create(path, gpu_claim("new", 1, "team-a"))
    output = team(*words)
    remark = "no controller has renewed its lease since 2026-01-01T00:00:00.000000Z, so claims are not allocated"
    assert remark in output.out + output.err
    assert "kubectl -n devices get" in output.out + output.err


@pytest.mark.parametrize("words", WORDS, ids=lambda words: words[0])
def test_no_remark_appears_with_a_leader_or_without_the_right_to_see_leases(team: Team, words: tuple[str, ...]) -> None:
    path = "/apis/devmgmtproto.k8s.io/v1alpha1/namespaces/team-a/deviceclaims"
    team.kube.create(path, gpu_claim("new", 1, "team-a"))
    leads(team.kube, datetime.now(UTC).isoformat().replace("+00:00", "Z"))
    for team.is_admin in (True, False):
        output = team(*words)
        assert "controller" not in output.out + output.err


def test_top_reports_a_cluster_without_a_controller(team: Team) -> None:
    team.is_admin = True
    assert "no controller: none is installed" in team("top", "--once").out
