"""The contract of stores on a real API server, and what becomes of it when that is killed, forgets or is cut off.

It has a cluster to itself: it kills the server.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from devalloc.api.kinds import API_KINDS
from devalloc.api.meta import TRANSACTION
from devalloc.store import Change, Conflict, EventType, Key, NotFound, StoreError, Unavailable, UnknownOutcome
from devalloc.store.kubernetes import NAMESPACE, ApiError, Client, KubernetesStore, object_writer, transaction
from devalloc.store.kubernetes import client as client_module
from devalloc.store.kubernetes.transaction import RECORDS
from tests.support import kube_build, kube_crds
from tests.support.cluster_contract import *  # noqa: F403
from tests.support.faulty_proxy import FaultyProxy
from tests.support.go_build import Progress
from tests.support.go_build import Unavailable as NoCluster
from tests.support.kube_api import Cluster, running
from tests.support.minimal_manifests import claim
from tests.support.store_contract import *  # noqa: F403
from tests.support.waiting import until

Object = dict[str, Any]
ALL = (*API_KINDS, "Lease")


def records(store: KubernetesStore) -> list[Object]:
    """Of transactions."""
    (page,) = store.client.list(RECORDS.within(NAMESPACE), {"labelSelector": f"{TRANSACTION}=record"})
    items: list[Object] = page["items"]
    return items


@pytest.fixture(scope="module")
def own_cluster(progress: Progress, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    try:
        with running(kube_build.binaries(progress), tmp_path_factory.mktemp("store")) as cluster:
            kube_crds.install(cluster)
            for name in ("other", "z", "devalloc-system"):
                namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
                assert cluster.create("/api/v1/namespaces", namespace).ok
            yield cluster
    except NoCluster as reason:
        pytest.skip(f"no Kubernetes API server: {reason}")


@pytest.fixture(scope="module")
def client(own_cluster: Cluster) -> Client:
    return Client.connect(own_cluster.kubeconfig("admin"))


@pytest.fixture(scope="module")
def opened(client: Client) -> Iterator[KubernetesStore]:
    with closing(KubernetesStore(client, deletions_kept=20)) as opened:
        yield opened


@pytest.fixture
def store(opened: KubernetesStore) -> Iterator[KubernetesStore]:
    """One for all tests, empty for each."""
    opened.list(ALL)
    yield opened
    opened.refresh()
    for obj in opened.list(ALL).objects:
        metadata = obj["metadata"]
        with suppress(NotFound):  # it goes with its last finalizer
            if metadata.get("finalizers"):
                opened.replace({**obj, "metadata": {**metadata, "finalizers": []}})
            opened.delete(*Key.of(obj))
    assert records(opened) == []


@pytest.fixture
def cut(own_cluster: Cluster, tmp_path: Path) -> Iterator[tuple[FaultyProxy, Client]]:
    """A way to the server that can be cut, and a client that goes by it."""
    proxy = FaultyProxy(urlsplit(own_cluster.url).port or 0)
    config = json.loads(own_cluster.kubeconfig("admin").read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{proxy.port}"
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    yield proxy, Client.connect(tmp_path / "kubeconfig")
    proxy.close()


@contextmanager
def following(store: KubernetesStore) -> Iterator[dict[Key, Object]]:
    """What a reader of a watch alone knows of the claims."""
    objects: dict[Key, Object] = {}
    stop = threading.Event()

    def follow() -> None:
        for event in store.watch("DeviceClaim", "0", stop=stop):
            if event.type is EventType.DELETED:
                objects.pop(Key.of(event.object), None)
            else:
                objects[Key.of(event.object)] = event.object

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield objects
    finally:
        stop.set()
        thread.join()


def truth(store: KubernetesStore, client: Client) -> dict[Key, Object]:
    """The claims by a list of their own."""
    with closing(KubernetesStore(client)) as fresh:
        return {Key.of(obj): obj for obj in fresh.list("DeviceClaim").objects}


class TestFaults:
    def test_cut_off_it_hears_afterwards_what_happened(
        self, store: KubernetesStore, client: Client, cut: tuple[FaultyProxy, Client]
    ) -> None:
        proxy, own_client = cut
        keeps, goes, returns = (store.create(claim(name)) for name in ("keeps", "goes", "returns"))
        with closing(KubernetesStore(own_client)) as away, following(away) as seen:
            until(lambda: len(seen) == 3)
            proxy.cut(up=False)
            store.replace_status({**keeps, "status": {"podNames": ["x"]}})
            store.delete(*Key.of(goes))
            store.delete(*Key.of(returns))
            store.create(claim("returns"))
            with pytest.raises((Unavailable, UnknownOutcome)):
                away.replace_status({**keeps, "status": {"podNames": ["y"]}})
            until(lambda: away.silent_seconds > 0)
            assert len(away.list("DeviceClaim").objects) == 3, "what is known is still told"
            proxy.cut(up=True)
            until(lambda: seen == truth(store, client))
            until(lambda: away.silent_seconds == 0)
            assert {Key.of(obj): obj for obj in away.list("DeviceClaim").objects} == seen

    def test_cut_in_the_middle_of_what_the_server_says_nothing_is_lost(
        self, store: KubernetesStore, client: Client, cut: tuple[FaultyProxy, Client]
    ) -> None:
        proxy, own_client = cut
        for number in range(20):
            store.create(claim(f"n{number}", annotations={"long": "x" * 5000}))
        proxy.cut_after(60_000)  # in the first lists
        with closing(KubernetesStore(own_client)) as away, following(away) as seen:
            until(lambda: len(seen) == 20)
            for number in range(20):
                proxy.cut_after(3000 + 100 * number)  # in the middle of an event
                store.delete("DeviceClaim", "default", f"n{number}")
                store.create(claim(f"m{number}", annotations={"long": "y" * 5000}))
            proxy.cut_after(None)
            until(lambda: seen == truth(store, client))

    def test_a_server_that_was_killed_and_forgot_is_read_anew(
        self,
        store: KubernetesStore,
        client: Client,
        own_cluster: Cluster,
        cut: tuple[FaultyProxy, Client],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """A watch cannot resume from what neither the new server nor etcd remembers (410)."""
        caplog.set_level("INFO", "devalloc")
        server = own_cluster.server
        assert server is not None
        for name in "ab":
            store.create(claim(name))
        identity = store.identity()
        proxy, own_client = cut
        with closing(KubernetesStore(own_client)) as away, following(away) as seen:
            until(lambda: len(seen) == 2)
            proxy.cut(up=False)
            store.delete("DeviceClaim", "default", "a")
            for number in range(3):
                store.create(claim(f"n{number}"))
            own_cluster.compact()
            server.kill()
            with pytest.raises(StoreError):
                store.create(claim("lost"))
            server.start(own_cluster)
            proxy.cut(up=True)
            expected = until(lambda: truth(store, client))
            assert len(expected) == 4
            until(lambda: seen == expected)
            assert away.identity() == identity
            gone = [record for record in caplog.records if "too old" in record.message]
            assert gone, "it was told 410"
        until(lambda: store.silent_seconds == 0)
        after = store.create(claim("after"))
        assert store.commit([Change(Key.of(after), after["metadata"]["resourceVersion"], {"podNames": ["x"]})])

    def test_of_what_etcd_forgets_between_two_pages_nothing_is_lost(
        self, store: KubernetesStore, own_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nor between two kinds, which are read as of one moment."""
        for number in range(5):
            store.create(claim(f"n{number}"))
        monkeypatch.setattr(client_module, "PAGE", 2)
        forgotten: list[str] = []

        class Slow(Client):
            """After its first pages all that was is forgotten."""

            def _request(self, verb: str, method: str, path: str, params: Any, *of: Any, **more: Any) -> Object:
                done = super()._request(verb, method, path, params, *of, **more)
                if verb == "list" and "deviceclaims" in path and not forgotten:
                    forgotten.append(path)
                    store.delete("DeviceClaim", "default", "n4")
                    store.create(claim("late"))
                    own_cluster.compact()
                return done

        with closing(KubernetesStore(Slow.connect(own_cluster.kubeconfig("admin")))) as own_store:
            until(lambda: listed(own_store) == {"late", "n0", "n1", "n2", "n3"})
            assert forgotten


def listed(store: KubernetesStore) -> set[str]:
    """The names of the claims, once they can be read; asked again as a controller does."""
    with suppress(StoreError):
        objects = store.list(["DeviceClaim", "DevicePool"]).objects
        return {obj["metadata"]["name"] for obj in objects if obj["kind"] == "DeviceClaim"}
    return set()


class Lossy(Client):
    """Loses the answer to the write of that number."""

    lost = -1
    writes = 0

    def _request(self, verb: str, *of: Any, **more: Any) -> Object:
        done = super()._request(verb, *of, **more)
        if verb in ("create", "update", "delete"):
            self.writes += 1
            if self.writes - 1 == self.lost:
                raise ApiError(0, "NoAnswer", "the answer was lost")
        return done


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What became of a write is looked for at once."""
    monkeypatch.setattr(object_writer, "PAUSE_SECONDS", 0.001)


@pytest.mark.usefixtures("soon")
class TestLostAnswers:
    def test_the_outcome_of_a_write_with_a_lost_answer_is_read_back(
        self, store: KubernetesStore, own_cluster: Cluster
    ) -> None:
        for lost in range(5):
            lossy = Lossy.connect(own_cluster.kubeconfig("admin"))
            assert isinstance(lossy, Lossy)
            lossy.lost = lost
            with closing(KubernetesStore(lossy)) as own_store:
                name = f"c{lost}"
                made = own_store.create(claim(name, finalizers=["f.example/f"]))
                made = own_store.replace({**made, "spec": wants("other")})  # noqa: F405
                made = own_store.replace_status({**made, "status": {"podNames": ["x"]}})
                assert store.get(*Key.of(made)) == made
                made = own_store.delete(*Key.of(made))
                own_store.replace({**made, "metadata": {**made["metadata"], "finalizers": []}})
                assert lossy.writes >= 5
                assert name not in {obj["metadata"]["name"] for obj in own_store.list("DeviceClaim").objects}

    def test_a_commit_of_several_is_whole_whichever_answer_is_lost(
        self, store: KubernetesStore, own_cluster: Cluster
    ) -> None:
        a, b = store.create(claim("a")), store.create(claim("b"))
        for lost in range(9):
            lossy = Lossy.connect(own_cluster.kubeconfig("admin"))
            assert isinstance(lossy, Lossy)
            lossy.lost = lost
            with closing(KubernetesStore(lossy)) as own_store:
                done = own_store.commit([both(a, lost), both(b, lost)])
                assert lossy.writes >= 9
                a, b = done.objects
                assert [store.get(*Key.of(obj)) for obj in (a, b)] == [a, b]
                assert [obj["metadata"]["annotations"] for obj in (a, b)] == [{"n": str(lost)}] * 2
                assert records(own_store) == []


def both(obj: Object, value: int) -> Change:
    version = obj["metadata"]["resourceVersion"]
    return Change(Key.of(obj), version, {"podNames": [str(value)]}, {"n": str(value)})


def test_of_many_who_write_the_same_objects_each_is_whole(store: KubernetesStore, client: Client) -> None:
    names = ("a", "b", "c")
    for name in names:
        store.create(claim(name, annotations={"n": "0"}))
    wins: list[int] = []

    def work(seed: int) -> None:
        choice = random.Random(seed)
        with closing(KubernetesStore(client)) as own_store:
            done = 0
            while done < 4:
                order = choice.sample(names, 3)
                olds = [own_store.get("DeviceClaim", "default", name) for name in order]
                value = int(olds[0]["metadata"]["annotations"]["n"]) + 1
                try:
                    own_store.commit([both(old, value) for old in olds])
                except Conflict:
                    time.sleep(choice.uniform(0, 0.1))
                else:
                    done += 1
                    wins.append(value)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(wins) == list(range(1, 17))
    stored = [store.get("DeviceClaim", "default", name) for name in names]
    assert [obj["metadata"]["annotations"] for obj in stored] == [{"n": "16"}] * 3
    assert [obj["status"] for obj in stored] == [{"podNames": ["16"]}] * 3


def test_a_process_that_ends_in_the_middle_leaves_what_another_brings_to_its_end(
    store: KubernetesStore, client: Client
) -> None:
    a, b = store.create(claim("a")), store.create(claim("b"))
    written = 0

    def may_write() -> bool:
        """Not any more after the first status."""
        nonlocal written
        written += 1
        return written <= 4

    with (
        closing(KubernetesStore(client, may_write=may_write)) as deposed,
        pytest.raises(StoreError, match="no longer the leader"),
    ):
        deposed.commit([both(a, 1), both(b, 1)])
    half = store.get(*Key.of(a))
    assert half["status"] == {"podNames": ["1"]}
    assert transaction.transaction_of(half)
    with closing(KubernetesStore(client)) as heir:
        heir.recover()
        for old in (a, b):
            now = heir.get(*Key.of(old))
            assert (now.get("status"), now["metadata"].get("annotations")) == (None, None)
        assert records(heir) == []
