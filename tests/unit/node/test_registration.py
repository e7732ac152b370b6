"""Where the kubelet finds the plugin, and what it learns there."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path

import pytest

from devalloc_node.errors import Denied
from devalloc_node.net.unix_sockets import MAX_PATH_BYTES
from devalloc_node.service.kubelet_sockets import Registration, kubelet_paths, registration_socket
from devalloc_node.service.server import serve
from tests.support.kubelet_client import kubelet_client
from tests.support.node_errors import raises

KUBELET = Path("/var/lib/kubelet")
UID = "8d9c1f0e-6f3a-4f0e-9a55-1b0c5a6f7e11"


def b64(content: str, size: int) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()[:size]).decode().rstrip("=")


def test_paths_of_a_single_instance() -> None:
    paths = kubelet_paths(KUBELET, "devalloc.io")
    assert paths.registration == KUBELET / "plugins_registry/devalloc.io-reg.sock"
    assert paths.endpoint == KUBELET / "plugins/devalloc.io/dra.sock"
    assert paths.data == KUBELET / "plugins/devalloc.io"


def test_instances_of_a_rolling_update_have_sockets_of_their_own() -> None:
    paths = kubelet_paths(KUBELET, "devalloc.io", UID)
    assert paths.registration == KUBELET / f"plugins_registry/devalloc.io-{UID}-reg.sock"
    assert paths.endpoint == KUBELET / f"plugins/devalloc.io/dra-{UID}.sock"
    assert paths.data == KUBELET / "plugins/devalloc.io"


def test_long_paths_fall_back_to_hashes_just_when_they_must() -> None:
    driver = "a-driver-of-devalloc.example.com"
    names = [
        f"{driver}-{UID}-reg.sock",
        f"{driver}-{b64(UID, 8)}-reg.sock",
        f"dra-{b64(driver + chr(0) + UID, 16)}-reg.sock",
    ]
    assert len(names[0]) > len(names[1]) > len(names[2])
    for name in names:
        kubelet = Path("/" + "k" * (MAX_PATH_BYTES - len("//plugins_registry/") - len(name)))
        path = registration_socket(kubelet, driver, UID)
        assert path == kubelet / "plugins_registry" / name
        assert len(os.fsencode(path)) == MAX_PATH_BYTES


def test_a_folder_that_leaves_no_room_is_refused() -> None:
    with raises(Denied, "SocketPathTooLong", match="shorter folder"):
        kubelet_paths(Path("/" + "k" * 100), "devalloc.io", UID)


@pytest.mark.parametrize("driver", ["", "../x", "a/b", "Devalloc.io", "a..b", "-a", "a" * 64, "a\0b", "a\n"])
def test_driver_names_never_become_paths_unchecked(driver: str) -> None:
    with raises(Denied, "DriverNameInvalid"):
        kubelet_paths(KUBELET, driver)


@pytest.mark.parametrize("uid", ["", "../x", "a/b", "a\0b", "a" * 200, "a\n"])
def test_pod_uids_never_become_paths_unchecked(uid: str) -> None:
    with raises(Denied, "PodUidInvalid"):
        kubelet_paths(KUBELET, "devalloc.io", uid)


def test_the_kubelet_asks_and_reports(tmp_path: Path) -> None:
    statuses: list[tuple[bool, str]] = []
    versions = ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
    registration = Registration(
        "devalloc.io", Path("/x/dra.sock"), versions, lambda ok, error: statuses.append((ok, error))
    )
    server = serve(tmp_path / "reg.sock", [registration.service])
    try:
        with kubelet_client(tmp_path / "reg.sock") as kubelet:
            info = kubelet.info()
            assert (info.type, info.name, info.endpoint) == ("DRAPlugin", "devalloc.io", "/x/dra.sock")
            assert list(info.supported_versions) == versions
            assert registration.status == (False, "")
            kubelet.notify(registered=True)
            assert registration.status == (True, "")
            kubelet.notify(registered=False, error="name taken")
            assert registration.status == (False, "name taken")
            kubelet.notify(registered=False)
            assert registration.status == (False, "the kubelet gave no reason")
    finally:
        server.stop()
    assert statuses == [(True, ""), (False, "name taken"), (False, "the kubelet gave no reason")]
