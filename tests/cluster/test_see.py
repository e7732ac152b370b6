"""The page of the controller, `devalloc top` and `kubectl get` say the same numbers, to those who may see them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import kube_build, kube_crds
from tests.support.controllers import DEVMGMT, controllers, until
from tests.support.fleets import gpu_claim, gpu_class, gpu_pool
from tests.support.go_build import Progress
from tests.support.kube import Cluster
from tests.support.page import ask
from tests.support.shell import Shell, devalloc

__all__ = ["devalloc"]

Object = dict[str, Any]
SPACE = "see"
ROLES = "/apis/rbac.authorization.k8s.io/v1"


class Tiles(HTMLParser):
    """The numbers at the top of the page, by name."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self._tag = ""
        self._words: list[str] = []
        self.feed(page.decode())
        self.numbers = dict(zip(self._words[::2], map(int, self._words[1::2]), strict=True))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag = tag

    def handle_data(self, data: str) -> None:
        if self._tag in ("dt", "dd"):
            self._words.append(data)
        self._tag = ""


@pytest.fixture
def fleet(cluster: Cluster) -> Iterator[Cluster]:
    """Three pools, a claim that fits and one that does not, and users: `viewer` may see the page, `stranger` not."""
    kube_crds.install(cluster)
    broken = gpu_pool("see-c", 2, "see-2")
    broken["spec"]["devices"][0]["attributes"] = [{"name": "devalloc.io/unavailable", "stringValue": "in use: qemu"}]
    shipped = yaml.safe_load_all(Path("deploy/base/users.yaml").read_text())
    role = next(obj for obj in shipped if obj["metadata"]["name"] == "devalloc-page")
    viewer = {"kind": "ServiceAccount", "name": "viewer", "namespace": SPACE}
    named: dict[str, Object] = {
        f"{DEVMGMT}/deviceclasses": gpu_class(),
        f"{DEVMGMT}/namespaces/{SPACE}/deviceclaims": gpu_claim("fits", 2, SPACE),
        f"{ROLES}/clusterroles": role,
        f"{ROLES}/clusterrolebindings": {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "see-viewer"},
            "subjects": [viewer],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "devalloc-page"},
        },
    }
    made = [("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})]
    made += [
        (
            f"/api/v1/namespaces/{SPACE}/serviceaccounts",
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}},
        )
        for name in ("viewer", "stranger")
    ]
    made += [
        (f"{DEVMGMT}/devicepools", pool) for pool in (gpu_pool("see-a", 2, "see-1"), gpu_pool("see-b", 3, "see-2"))
    ]
    made += [(f"{DEVMGMT}/devicepools", broken), *named.items()]
    made += [(f"{DEVMGMT}/namespaces/{SPACE}/deviceclaims", gpu_claim("big", 99, SPACE))]
    here = []
    for path, obj in made:
        answer = cluster.create(path, obj)
        assert answer.ok or answer.status == 409, answer.message
        here += [(path, obj)] if answer.ok else []
    yield cluster
    for path, obj in reversed(here):  # what others made stays theirs
        cluster.delete(f"{path}/{obj['metadata']['name']}")


def token(cluster: Cluster, account: str) -> str:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = cluster.create(f"/api/v1/namespaces/{SPACE}/serviceaccounts/{account}/token", body)
    assert answer.ok, answer.message
    return str(answer.content["status"]["token"])


def test_page_top_and_kubectl_say_the_same(fleet: Cluster, tmp_path: Path, progress: Progress, devalloc: Shell) -> None:
    kubeconfig = fleet.kubeconfig("admin")

    def kubectl(*words: str) -> str:
        command = [str(kube_build.kubectl(progress)), "--kubeconfig", str(kubeconfig), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def top() -> Object:
        return dict(devalloc("top", "-o", "json", "--kubeconfig", kubeconfig).json)

    with controllers(fleet, tmp_path, 2, "--listen", "127.0.0.1:0") as processes:
        pages = [
            until(lambda one=one: re.search(r"pages at (https://\S+)", one.said()), "it listens") for one in processes
        ]
        url, other = (f"{page[1]}/devalloc/" for page in pages)  # one of them leads, the other stands by
        viewer = {"Authorization": f"Bearer {token(fleet, 'viewer')}"}
        assert ask(url, "view", Authorization="Bearer nonsense")[0] == 401
        assert ask(url, "view", Authorization=f"Bearer {token(fleet, 'stranger')}")[0] == 403
        assert ask(url, "view")[0] == 401
        status, headers, _ = ask(url, "login", method="POST", body=f"token={token(fleet, 'viewer')}")
        cookie = {"Cookie": headers["Set-Cookie"].partition(";")[0]}
        assert status == 303

        def numbers() -> dict[str, int]:
            return shown(url)

        def shown(at: str) -> dict[str, int]:
            status, _, page = ask(at, "view", **cookie)
            assert status == 200, page
            return Tiles(page).numbers

        def agreed(available: int, pending: int) -> None:
            """Once the controller has counted, all three say what is right."""
            seen = until(
                lambda: (n := numbers())["Available"] == available and n["Claims pending"] == pending and n, ""
            )
            until(lambda: shown(other) == seen, "who stands by shows the same, to whom the other signed in")
            until(lambda: (found := top())["settled"] and found["counts"]["available"] == available, "top")
            rows = [line.split() for line in kubectl("get", "dpool").splitlines()]
            column = rows[0].index("AVAILABLE")
            assert sum(int(row[column]) for row in rows[1:]) == seen["Available"]
            counts, told = top()["counts"], json.loads(kubectl("get", "dpool", "-o", "json"))["items"]
            assert seen["Devices"] == counts["devices"] == sum(len(pool["spec"]["devices"]) for pool in told)
            assert (seen["In use"], seen["Unavailable"]) == (counts["inUse"], counts["unavailable"])
            claims = json.loads(kubectl("get", "dclaim", "-A", "-o", "json"))["items"]
            without = [claim["metadata"]["name"] for claim in claims if not claim.get("status", {}).get("allocations")]
            assert seen["Claims pending"] == len(without) == top()["pending"]
            cards = {card["name"]: card["counts"]["available"] for node in top()["nodes"] for card in node["cards"]}
            assert cards == {pool["metadata"]["name"]: pool["status"]["availableDevices"] for pool in told}

        agreed(available=4, pending=1)
        page = ask(url, "view?open=node:see-1&open=card:see-a&open=node:see-2&open=card:see-b", **viewer)[2].decode()
        assert "NotEnoughDevices" in page
        assert f"{SPACE}/fits" in page
        assert fleet.delete(f"{DEVMGMT}/namespaces/{SPACE}/deviceclaims/fits").ok
        agreed(available=6, pending=1)
