"""The page of the controller, `devalloc top` and `kubectl get` say the same numbers, to those who may see them.

The controllers have the rights that `devalloc install` gives them, and no more.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from devalloc.install.manifests import Options, collection_of, manifests
from tests.support import kube_build, kube_crds, kube_rights
from tests.support.controllers import DEVMGMT, controllers, prepare
from tests.support.fleets import gpu_claim, gpu_class, gpu_pool
from tests.support.go_build import Progress
from tests.support.kube import Cluster
from tests.support.page import ask
from tests.support.shell import Shell, devalloc
from tests.support.waiting import until

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
    """Three pools, a claim that fits and one that does not, the rights that are installed, and users: `viewer` may see
    the page, `stranger` may not."""
    kube_crds.install(cluster)
    broken = gpu_pool("see-c", 2, "see-2")
    broken["spec"]["devices"][0]["attributes"] = [{"name": "devalloc.io/unavailable", "stringValue": "in use: qemu"}]
    prepare(cluster)
    rights = [(collection_of(body), body) for body in manifests(Options(), ["rbac"])]
    viewer = {"kind": "ServiceAccount", "name": "viewer", "namespace": SPACE}
    named: dict[str, Object] = {
        f"{DEVMGMT}/deviceclasses": gpu_class(),
        f"{DEVMGMT}/namespaces/{SPACE}/deviceclaims": gpu_claim("fits", 2, SPACE),
        f"{ROLES}/clusterrolebindings": {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "see-viewer"},
            "subjects": [viewer],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "devalloc-page"},
        },
    }
    made = [*rights, ("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})]
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

    shipped = ["--kubeconfig", str(kube_rights.controller_kubeconfig(fleet))]
    # a long lease: one that a busy machine makes it lose ends the process, and nobody starts it again here
    with controllers(fleet, tmp_path, 2, "--listen", "127.0.0.1:0", *shipped, lease="60s") as processes:
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

        def agreed(available: int) -> None:
            """Once the controller has counted so many of ours, all three say what is right of all."""

            def ours() -> int:
                cards = (card for node in top()["nodes"] for card in node["cards"])
                return sum(card["counts"]["available"] for card in cards if card["name"].startswith("see-"))

            until(lambda: ours() == available and top()["settled"], f"{available} of ours are available")
            counted, told = top(), json.loads(kubectl("get", "dpool", "-o", "json"))["items"]
            rows = [line.split() for line in kubectl("get", "dpool").splitlines()]
            column = rows[0].index("AVAILABLE")
            claims = json.loads(kubectl("get", "dclaim", "-A", "-o", "json"))["items"]
            right = {
                "Devices": sum(len(pool["spec"]["devices"]) for pool in told),
                "Available": sum(int(row[column]) for row in rows[1:]),
                "Claims pending": sum(not claim.get("status", {}).get("allocations") for claim in claims),
                "Claims allocated": sum(bool(claim.get("status", {}).get("allocations")) for claim in claims),
            }
            until(lambda: right.items() <= numbers().items(), f"the page says {right}")
            seen = numbers()
            until(lambda: shown(other) == seen, "who stands by shows the same, to whom the other signed in")
            counts = counted["counts"]
            assert right == {
                "Devices": counts["devices"],
                "Available": counts["available"],
                "Claims pending": counted["pending"],
                "Claims allocated": counted["allocated"],
            }
            assert (seen["In use"], seen["Unavailable"]) == (counts["inUse"], counts["unavailable"])
            cards = {card["name"]: card["counts"]["available"] for node in counted["nodes"] for card in node["cards"]}
            assert cards == {pool["metadata"]["name"]: pool["status"]["availableDevices"] for pool in told}

        content = json.loads(kubeconfig.read_text())
        content["users"][0]["user"]["token"] = token(fleet, "stranger")
        (tmp_path / "stranger").write_text(json.dumps(content))
        refused = devalloc("top", "--kubeconfig", tmp_path / "stranger")
        assert (refused.code, "cannot list" in refused.err) == (1, True), refused.err
        agreed(available=4)
        page = ask(url, "view?open=node:see-1&open=card:see-a&open=node:see-2&open=card:see-b", **viewer)[2].decode()
        assert "NotEnoughDevices" in page
        assert f"{SPACE}/fits" in page
        assert fleet.delete(f"{DEVMGMT}/namespaces/{SPACE}/deviceclaims/fits").ok
        agreed(available=6)
