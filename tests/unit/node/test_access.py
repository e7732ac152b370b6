"""What a pod keeps in a folder of its host, so that a plugin outside pods reaches the cluster by it."""

from __future__ import annotations

import json
import os
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from devalloc_node.errors import Failed
from devalloc_node.kube import credentials
from devalloc_node.kube.credentials import ClusterCredentials
from tests.support.node_errors import raises
from tests.support.waiting import until


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """As the kubelet has it: links, which it turns at once."""
    folder = tmp_path / "account"
    (folder / "..first").mkdir(parents=True)
    (folder / "..data").symlink_to("..first")
    for name, content in {"token": "first", "ca.crt": "certificate"}.items():
        (folder / "..first" / name).write_text(content)
        (folder / name).symlink_to(f"..data/{name}")
    return folder


@pytest.fixture
def pod_access(tmp_path: Path, account: Path) -> ClusterCredentials:
    return ClusterCredentials(tmp_path / "cluster", account, "https://10.0.0.1:443", "node-a")


def renew(account: Path, token: str) -> None:
    (account / "..first" / "token").write_text(token)


def test_only_its_own_user_can_read_what_a_service_needs(pod_access: ClusterCredentials) -> None:
    pod_access.folder.mkdir(mode=0o755)
    assert pod_access.write() == ["ca.crt", "token", "kubeconfig", "environment"]
    assert stat.S_IMODE(pod_access.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in pod_access.folder.iterdir()} == {0o600}
    config = json.loads((pod_access.folder / "kubeconfig").read_text())
    (cluster,), (user,) = config["clusters"], config["users"]
    assert cluster["cluster"] == {"server": "https://10.0.0.1:443", "certificate-authority": "ca.crt"}
    assert user["user"] == {"tokenFile": "token"}
    assert (pod_access.folder / "environment").read_text() == "DEVALLOC_NODE_NODE_NAME=node-a\n"


def test_only_what_differs_is_written(pod_access: ClusterCredentials, account: Path) -> None:
    pod_access.write()
    assert pod_access.write() == []
    renew(account, "second")
    assert pod_access.write() == ["token"]
    (pod_access.folder / "token").chmod(0o644)
    (pod_access.folder / "ca.crt").unlink()
    assert pod_access.write() == ["ca.crt", "token"]
    assert (pod_access.folder / "token").read_text() == "second"


def test_a_link_is_replaced_and_not_followed(pod_access: ClusterCredentials, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("first")
    (tmp_path / "elsewhere").chmod(0o600)
    pod_access.folder.mkdir()
    (pod_access.folder / "token").symlink_to(tmp_path / "elsewhere")
    pod_access.write()
    assert not (pod_access.folder / "token").is_symlink()
    pod_access.folder.rename(tmp_path / "moved")
    pod_access.folder.symlink_to(tmp_path / "moved")
    with pytest.raises(Failed, match="is a link"):
        pod_access.write()


def test_the_token_is_kept_fresh_and_taken_away_in_the_end(
    pod_access: ClusterCredentials, account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "LOOK_SECONDS", 0.01)
    stop, messages = threading.Event(), list[str]()
    thread = threading.Thread(target=pod_access.keep, args=(stop, messages.append))
    thread.start()
    token = pod_access.folder / "token"
    until(lambda: token.exists(), "the token is there")
    renew(account, "")  # no kubelet writes it so
    until(lambda: any("no content" in line for line in messages), "it says that there is none")
    assert token.read_text() == "first"
    renew(account, "second")
    until(lambda: token.read_text() == "second", "the next token is there")
    stop.set()
    thread.join(60)
    assert not token.exists()


def test_what_a_pod_left_that_was_killed_while_it_wrote_is_removed(pod_access: ClusterCredentials) -> None:
    pod_access.folder.mkdir(mode=0o700)
    for name in (".token.0123456789abcdef", ".kubeconfig.fedcba9876543210", ".token.kept-by-the-admin"):
        (pod_access.folder / name).write_text("first")
    stop = threading.Event()
    stop.set()
    pod_access.keep(stop, lambda message: None)
    left = sorted(path.name for path in pod_access.folder.iterdir())
    assert left == [".token.kept-by-the-admin", "ca.crt", "environment", "kubeconfig"]


def test_the_token_of_the_pod_that_came_after_stays(pod_access: ClusterCredentials, account: Path) -> None:
    pod_access.write()
    (pod_access.folder / "token").write_text("of the next pod")
    pod_access.withdraw()
    assert (pod_access.folder / "token").read_text() == "of the next pod"


def test_of_two_pods_the_one_that_came_after_keeps_the_token(
    pod_access: ClusterCredentials, account: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a rolling update. They would else take turns, and the service be without one when the first one ends."""
    monkeypatch.setattr(credentials, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(credentials, "LEFT_SECONDS", 3600.0)
    after = replace(pod_access, account=tmp_path / "after")
    after.account.mkdir()
    for name, content in {"token": "of the next pod", "ca.crt": "certificate"}.items():
        (after.account / name).write_text(content)
    looks: list[float | None] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            looks.append(timeout)
            return super().wait(timeout)

    stop, token = Stop(), pod_access.folder / "token"
    thread = threading.Thread(target=pod_access.keep, args=(stop, lambda message: None))
    thread.start()
    until(lambda: len(looks) > 1, "the first pod looks after its token")

    def stays() -> bool:
        after.write()
        seen = len(looks)
        until(lambda: len(looks) > seen + 3, "it looks again")
        return token.read_text() == "of the next pod"

    until(stays, "the first pod leaves it alone")
    os.utime(token, (0, 0))
    until(lambda: token.read_text() == "first", "a file without care is written anew")
    until(stays, "and again")
    stop.set()
    thread.join(60)
    assert token.read_text() == "of the next pod"


def test_a_pod_without_a_token_says_so(pod_access: ClusterCredentials, account: Path) -> None:
    (account / "token").unlink()
    with raises(Failed, "AccessUnavailable", match=r"cannot store the cluster credentials in .*account/token"):
        pod_access.keep(threading.Event(), print)
