"""ResourceClaims that devalloc's controller allocates on a real API server, with its shipped rights and policy."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from devalloc.api.dedicated_pools import ALLOCATOR_KEY
from devalloc.store.kubernetes import ApiError, Client
from tests.support import kube_claims, kube_rights
from tests.support.faulty_proxy import FaultyProxy
from tests.support.kube_api import SCHEDULER, Cluster
from tests.support.kube_claims import RULES, Space, allocating
from tests.support.waiting import until

ANY = 'device.driver == "devalloc.io"'
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def api(cluster: Cluster) -> Cluster:
    kube_claims.install(cluster)
    return cluster


@pytest.fixture(scope="module")
def client(api: Cluster) -> Client:
    return kube_claims.controller(api)


@pytest.fixture
def space(api: Cluster) -> Iterator[Space]:
    """With the class ``any``, and two nodes that are set aside: of two and of four devices."""
    number = next(_NUMBERS)
    made = kube_claims.make_space(api, f"claims-{number}")
    made.device_class(f"any-{number}", f'{ANY} && device.attributes["devalloc.io"].?of.orValue("") == "{made.name}"')
    for node, devices in (("small", 2), ("large", 4)):
        made.node(f"{node}-{number}", size=node)
        made.slice(f"{node}-{number}", (f"{node}-{index}" for index in range(devices)), of=made.name)
    yield made
    made.clear()


def any_of(space: Space) -> str:
    return f"any-{space.name.removeprefix('claims-')}"


def on(space: Space, node: str) -> str:
    return f"{node}-{space.name.removeprefix('claims-')}"


# -- who gets what -----------------------------------------------------------------------------------------------------


def test_what_pods_wait_for_is_allocated_jointly_and_reserved_for_them(space: Space, client: Client) -> None:
    """The small node is full with one pod's two claims, so the large one's four are whole: no first fit finds that."""
    space.claim("four", any_of(space), 4)
    for name in ("a", "b"):
        space.claim(name, any_of(space))
    uid = space.pod("pair", "a", "b")
    space.pod("whole", "four")
    space.claim("unused", any_of(space))
    with allocating(client) as allocator:
        a, b, four = space.all_given("a", "b", "four")
        assert (a | b, len(four)) == ({"small-0", "small-1"}, 4)
        claim = space.get("a")
        assert claim["status"]["reservedFor"] == [{"resource": "pods", "name": "pair", "uid": uid}]
        assert claim["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
        assert space.node_of("a") == on(space, "small")
        until(lambda: len(allocator.notes("Allocated")) == 3, "each has an event")
        assert not space.given("unused"), "no pod waits for it"
        assert {each.regarding["name"] for each in allocator.events} == {"a", "b", "four"}


def test_only_set_aside_devices_go_to_labelled_claims_only(space: Space, client: Client) -> None:
    space.node("open")
    space.slice("open", ["open-0"], aside=False, of=space.name)
    space.claim("seven", any_of(space), 5)
    space.claim("not-ours", any_of(space), ours=False)
    space.claim("ours", any_of(space))
    space.pod("p1", "seven")
    space.pod("p2", "not-ours")
    space.pod("p3", "ours")
    with allocating(client) as allocator:
        space.all_given("ours")
        assert space.node_of("ours") != "open"
        (note,) = until(lambda: allocator.notes("NotEnoughDevices"), "its Event has the reason")
        assert "5" in note
    assert not space.given("seven")
    assert not space.given("not-ours")


def test_a_pod_is_not_sent_where_it_may_not_run(space: Space, client: Client) -> None:
    space.claim("a", any_of(space))
    space.claim("b", any_of(space))
    space.pod("p1", "a", nodeSelector={"size": "large"})
    space.pod("p2", "b", nodeSelector={"size": "huge"})
    with allocating(client) as allocator:
        space.all_given("a")
        assert space.node_of("a") == on(space, "large")
        (note,) = until(lambda: allocator.notes("NoSuitableNode"), "its Event has the reason")
        assert "suits pod p2" in note
        assert space.get("a")["spec"]["devices"]["requests"][0]["exactly"].get("selectors") is None


def test_device_taint_rules_count_from_the_moment_they_are_there(space: Space, client: Client) -> None:
    space.rule(f"{space.name}-small", pool=f"{on(space, 'small')}-card.devalloc")
    space.rule(f"{space.name}-one", device="large-0", driver="devalloc.io")
    space.rule(f"{space.name}-none", device="large-1", driver="gpu.example.com")
    space.claim("a", any_of(space), 4)
    space.pod("p", "a")
    with allocating(client) as allocator:
        until(lambda: allocator.notes("NotEnoughDevices") or allocator.notes("NoMatchingDevices"), "it is refused")
        assert space.cluster.delete(f"{RULES}/{space.name}-one").ok
        (devices,) = space.all_given("a")
        assert devices == {f"large-{number}" for number in range(4)}


def test_what_becomes_free_goes_to_who_waits(space: Space, client: Client) -> None:
    space.claim("first", any_of(space), 4)
    space.pod("p1", "first")
    with allocating(client):
        space.all_given("first")
        space.claim("second", any_of(space), 4)
        space.pod("p2", "second")
        first = space.get("first")
        space.cluster.delete(f"{space.pods}/p1?gracePeriodSeconds=0")
        assert space.cluster.replace(f"{space.claims}/first/status", {**first, "status": {}}).ok
        space.all_given("second")
    assert not space.given("first"), "its pod is gone"


def test_a_claim_that_is_sent_back_is_tried_elsewhere(space: Space, client: Client) -> None:
    """As kube-scheduler does where the pod does not fit on the node."""
    space.claim("a", any_of(space))
    space.pod("p", "a")
    with allocating(client) as allocator:
        space.all_given("a")
        before = space.node_of("a")
        assert space.cluster.replace(f"{space.claims}/a/status", {**space.get("a"), "status": {}}).ok
        until(lambda: space.given("a") and space.node_of("a") != before, "it is on the other node")
        (note,) = allocator.notes("SentBack")
        assert before in note


def test_what_a_pod_holds_without_the_rest_is_given_back_for_a_place_with_all(space: Space, client: Client) -> None:
    """As a crash between two writes leaves it."""
    space.claim("a", any_of(space))
    space.pod("p", "a", nodeSelector={"size": "small"})
    with allocating(client):
        space.all_given("a")
        assert space.node_of("a") == on(space, "small")
    uid = space.get("a")["status"]["reservedFor"][0]["uid"]
    space.cluster.delete(f"{space.pods}/p?gracePeriodSeconds=0")
    space.claim("b", any_of(space), 3)
    again = space.pod("q", "a", "b")
    stale = space.get("a")
    stale["status"]["reservedFor"] = [{"resource": "pods", "name": "q", "uid": again}]
    assert uid != again
    assert space.cluster.replace(f"{space.claims}/a/status", stale).ok
    with allocating(client):
        until(lambda: space.given("b") and space.given("a"), "both have devices")
        until(lambda: {space.node_of("a"), space.node_of("b")} == {on(space, "large")}, "on one node")


# -- who may -----------------------------------------------------------------------------------------------------------


def allocation(space: Space, pool: str, device: str, **more: Any) -> dict[str, Any]:
    results = [{"request": "r", "driver": "devalloc.io", "pool": pool, "device": device, **more}]
    return {"allocation": {"devices": {"results": results}}}


def test_the_policy_keeps_scheduler_and_controller_apart(space: Space, client: Client) -> None:
    """Whatever tolerations a claim has, and whatever either has missed."""
    space.claim("ours", any_of(space))
    space.claim("theirs", any_of(space), ours=False)
    scheduler = space.cluster.as_user(SCHEDULER)
    pool = f"{on(space, 'large')}-card.devalloc"

    def refused(claim: str, words: str, status: dict[str, Any]) -> None:
        def tried() -> bool:
            answer = scheduler.replace(
                f"{space.claims}/{claim}/status", {**space.get(claim), "status": status}, dry_run=True
            )
            return words in answer.message

        until(tried, f"{claim}: {words}")

    refused("theirs", "only devalloc's controller allocates", allocation(space, pool, "large-0"))
    refused("ours", "leaves this claim to devalloc's controller", allocation(space, "other", "open-0"))
    plain = {**space.get("theirs"), "status": allocation(space, "other", "open-0")}
    assert scheduler.replace(f"{space.claims}/theirs/status", plain, dry_run=True).ok
    for claim, where in (("theirs", pool), ("ours", "other")):
        body = {**space.get(claim), "status": allocation(space, where, "large-0")}
        with pytest.raises(ApiError, match="allocates only devices of nodes that are set aside"):
            client.replace(f"{space.claims}/{claim}/status", body)
    body = {**space.get("ours"), "status": allocation(space, pool, "large-0")}
    assert client.replace(f"{space.claims}/ours/status", body, {"dryRun": "All"})


def test_what_an_old_leader_still_writes_is_refused(space: Space, client: Client) -> None:
    """It read the claim while it led; the new one has written on it before it decides."""
    space.claim("a", any_of(space), 9)
    space.claim("not-ours", any_of(space), ours=False)
    space.pod("p", "a")
    seen, other = space.get("a"), space.get("not-ours")
    with allocating(client, "2 new") as allocator:
        until(lambda: allocator.notes("NotEnoughDevices"), "it leads")
        body = {**seen, "status": allocation(space, f"{on(space, 'large')}-card.devalloc", "large-0")}
        with pytest.raises(ApiError) as late:
            client.replace(f"{space.claims}/a/status", body)
        assert late.value.is_conflict
        assert space.get("a")["metadata"]["annotations"]["devalloc.io/leader"].startswith("2 new")
        assert space.get("not-ours") == other
        version = space.get("a")["metadata"]["resourceVersion"]
        space.claim("b", any_of(space), 9)
        space.pod("q", "b")
        until(lambda: any(each.regarding["name"] == "b" for each in allocator.events), "what comes later is answered")
        assert space.get("a")["metadata"]["resourceVersion"] == version, "nothing is written while nothing changes"


def test_a_claim_without_the_label_any_more_still_counts_for_what_it_holds(space: Space, client: Client) -> None:
    space.claim("a", any_of(space), 4)
    space.pod("p", "a")
    with allocating(client):
        space.all_given("a")
    bare = space.get("a")
    del bare["metadata"]["labels"][ALLOCATOR_KEY]
    assert space.cluster.replace(f"{space.claims}/a", bare).ok
    space.claim("b", any_of(space), 4)
    space.claim("c", any_of(space))
    space.pod("q", "b")
    space.pod("r", "c")
    with allocating(client) as allocator:
        space.all_given("c")
        assert space.node_of("c") == on(space, "small")
        until(lambda: allocator.notes("DevicesInUse"), "its event names what is in the way")
    assert not space.given("b")


# -- the API server is away, and answers are lost ----------------------------------------------------------------------


def test_answers_that_are_lost_give_no_device_twice(space: Space, api: Cluster, tmp_path: Path) -> None:
    """Connections are cut in the middle of answers again and again: what was written stays hidden until it is read."""
    proxy = FaultyProxy(int(api.url.rpartition(":")[2]))
    path = kube_rights.controller_kubeconfig(api)
    around = tmp_path / "around.kubeconfig"
    around.write_text(path.read_text().replace(api.url, f"https://127.0.0.1:{proxy.port}"))
    names = [f"c{number}" for number in range(6)]
    chance = Random(7)
    try:
        with allocating(Client.connect(around)):
            for name in names:
                space.claim(name, any_of(space))
                space.pod(name, name)
                proxy.cut_after(chance.randrange(200, 6000))
            deadline = time.monotonic() + 60
            while not all(space.given(name) for name in names):
                assert time.monotonic() < deadline, {name: space.given(name) for name in names}
                proxy.cut_after(chance.randrange(200, 20000))
                time.sleep(chance.uniform(0.05, 0.4))
            proxy.cut_after(None)
    finally:
        proxy.close()
    given = [device for name in names for device in space.given(name)]
    assert sorted(given) == sorted(set(given))
    assert len(given) == len(names)
