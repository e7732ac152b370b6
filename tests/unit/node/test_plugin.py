"""One instance as the kubelet meets it: signed on after it serves, signed off before it ends, two side by side."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied
from devalloc_node.health.watch import HealthSnapshot
from devalloc_node.model.grant import ClaimRef
from devalloc_node.model.step import Prepared
from devalloc_node.service.kubelet_sockets import VERSIONS, KubeletSockets, kubelet_paths
from devalloc_node.settings import KubeletSettings
from tests.support.kubelet_client import kubelet_client
from tests.support.node_errors import raises

REF = ClaimRef("default", "c", "u-1")


class Nothing:
    """Claims without devices, and no device to tell of. ``gate`` holds calls up."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.was_called = threading.Event()

    def prepare(self, ref: ClaimRef, deadline: Deadline) -> Prepared:
        self.was_called.set()
        self.gate.wait(60)
        return Prepared(ref, ())

    def unprepare(self, ref: ClaimRef, deadline: Deadline) -> None:
        return None

    def snapshot(self) -> HealthSnapshot:
        return HealthSnapshot(0, ())

    def wait(self, version: int, timeout: float) -> bool:
        return threading.Event().wait(timeout)


@contextmanager
def instance(kubelet: Path, uid: str | None = None, **options: object) -> Iterator[KubeletSockets]:
    nothing = options.pop("nothing", None) or Nothing()
    sockets = KubeletSockets(kubelet_paths(kubelet, "d.io", uid), "d.io", nothing, nothing, **options)
    try:
        yield sockets
    finally:
        sockets.stop(grace=5)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("k")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_socket())


def test_the_kubelet_is_sent_to_what_is_served(folder: Path) -> None:
    with instance(folder) as sockets:
        (registrar,) = (folder / "plugins_registry").iterdir()
        with kubelet_client(registrar) as kubelet:
            info = kubelet.info()
            assert tuple(info.supported_versions) == VERSIONS
            assert KubeletSettings().versions == VERSIONS
            assert VERSIONS[:2] == ("v1.DRAPlugin", "v1beta1.DRAPlugin")
            kubelet.notify(registered=True)
        assert sockets.status == (True, "")
        with kubelet_client(Path(info.endpoint)) as kubelet:
            for version in ("v1", "v1beta1"):
                assert kubelet.prepare([REF], version)[REF.uid].error == ""
            for version in ("v1", "v1alpha1"):
                assert list(next(kubelet.watch(version)).devices) == []
    assert names(folder) == []


def test_the_oldest_version_alone(folder: Path) -> None:
    with instance(folder, versions=["v1beta1.DRAPlugin"]):
        with kubelet_client(folder / "plugins_registry" / "d.io-reg.sock") as kubelet:
            assert list(kubelet.info().supported_versions) == ["v1beta1.DRAPlugin"]
        with kubelet_client(folder / "plugins" / "d.io" / "dra.sock") as kubelet:
            assert kubelet.prepare([REF], "v1beta1")[REF.uid].error == ""
            with pytest.raises(grpc.RpcError) as error:
                kubelet.prepare([REF], "v1")
            assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("versions", [[], ["v1.DRAResourceHealth"], ["v1.DRAPlugin", "v2.DRAPlugin"]])
def test_versions_that_make_no_plugin_are_refused(folder: Path, versions: list[str]) -> None:
    with raises(Denied, "VersionUnknown", match="supported: v1"), instance(folder, versions=versions):
        pass
    assert names(folder) == []


def test_two_instances_of_a_rolling_update_serve_side_by_side(folder: Path) -> None:
    with instance(folder, "old-1"):
        with instance(folder, "new-2"):
            assert names(folder) == ["d.io-new-2-reg.sock", "d.io-old-1-reg.sock", "dra-new-2.sock", "dra-old-1.sock"]
            for uid in ("old-1", "new-2"):
                with kubelet_client(folder / "plugins" / "d.io" / f"dra-{uid}.sock") as kubelet:
                    assert kubelet.prepare([REF])[REF.uid].error == ""
        assert names(folder) == ["d.io-old-1-reg.sock", "dra-old-1.sock"]


def test_without_pod_uids_the_second_instance_is_refused_with_a_remedy(folder: Path) -> None:
    with instance(folder), pytest.raises(Denied, match="--pod-uid"), instance(folder):
        pass


def test_a_registration_that_cannot_be_made_leaves_no_endpoint(folder: Path) -> None:
    (folder / "plugins_registry").mkdir()
    (folder / "plugins_registry" / "d.io-reg.sock").write_text("precious")
    with pytest.raises(Denied, match="is not a socket"), instance(folder):
        pass
    assert names(folder) == []


def test_it_signs_off_first_and_calls_under_way_are_answered(folder: Path) -> None:
    nothing = Nothing()
    nothing.gate.clear()
    sockets = KubeletSockets(kubelet_paths(folder, "d.io"), "d.io", nothing, nothing)
    answers: list[str] = []
    with kubelet_client(folder / "plugins" / "d.io" / "dra.sock") as kubelet:
        caller = threading.Thread(target=lambda: answers.append(kubelet.prepare([REF])[REF.uid].error))
        caller.start()
        assert nothing.was_called.wait(60)
        stopper = threading.Thread(target=sockets.stop)
        stopper.start()
        while names(folder):
            threading.Event().wait(0.01)
        assert answers == []
        nothing.gate.set()
        caller.join()
        stopper.join()
    assert answers == [""]
