"""Permits of a controller that leads: where they are, by whom they are asked for, and what becomes of them when a write
is lost, is late, or is the last one of its process."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any

import pytest

from devalloc.machines.permits.caller_auth import NODE_NAME_KEY
from devalloc.machines.permits.decide import PermitGrant
from devalloc.machines.permits.hosts import published
from devalloc.machines.permits.leader_server import LeaderPermitServer, PermitListenAddress
from devalloc.machines.permits.leadership import ProcessLeadership
from devalloc.machines.permits.ledger import Host, PermitLedgers
from devalloc.machines.permits.metrics import PermitMetrics
from devalloc.machines.permits.server import PermitServices
from devalloc.machines.permits.settings import Settings
from devalloc.machines.permits.sources import MachineSources
from devalloc.machines.permits.store_migrator import MovableMachines, StoreMigrator
from devalloc.machines.permits.writer import PermitWriter
from devalloc.programs.controller import ObjectClient
from devalloc.scaling.messages.permits import PermitRequest, PodName, decode_request
from devalloc.scaling.permits.endpoint import NAME, PublishedEndpoint, parse_endpoint
from devalloc.scaling.resources import NO_RESOURCES, Resources
from devalloc.store import StoreError
from devalloc.store.fencing import fence_objects
from devalloc.store.kubernetes import ApiError, KubernetesStore, object_writer
from devalloc_machines.agent.http_client import new_session
from devalloc_machines.agent.permit_client import ClusterEndpoint, HttpPermits
from devalloc_neon.billing import billing
from devalloc_neon.machines import NEON_MACHINES, NeonMachines
from devalloc_node.errors import Denied, Failed, NodeError
from tests.support.fake_kube import ClientKilled, FakeClient, FakeKube
from tests.support.host_pools import host
from tests.support.permit_bench import amounts, machine, permit_of, running
from tests.support.permit_storm_cluster import counts_for
from tests.support.waiting import in_threads, until

Object = dict[str, Any]
NAMESPACE = "devalloc-system"
LIMIT = amounts(8000, 16)
UNIT = amounts(250, 1)
OWN = MachineSources()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_writer, "PAUSE_SECONDS", 0.001)


@pytest.fixture
def kube() -> FakeKube:
    """A node with two machines."""
    kube = FakeKube()
    for node in ("node-a", "node-b"):
        kube.users[node] = {"username": "plugin", "extra": {NODE_NAME_KEY: [node]}}
    with closing(KubernetesStore(FakeClient(kube))) as store:  # type: ignore[arg-type]
        store.create(host("node-a", cpus=8, memory=16))
        running(store, machine("a"))
        running(store, machine("b", most=amounts(2000, 8)))  # for which it counts until it asks
    return kube


class Leading:
    """One process; it may be over any moment. What it writes of NeonVM's machines passes ``webhook``."""

    def __init__(self, kube: FakeKube, name: str, port: int = 0, *, neon: bool = False, patience: float = 2.0) -> None:
        self.client = FakeClient(kube)
        self.webhook: Callable[[], None] = lambda: None
        self.client.before = lambda number, what: self.webhook() if "vm.neon.tech" in what else None
        self.is_led = True
        self.store = KubernetesStore(
            self.client,  # type: ignore[arg-type]
            resources=(NEON_MACHINES,) if neon else (),
            may_write=lambda: self.is_led,
        )
        self.urls: list[str] = []
        config_maps = ObjectClient(self.client, NAMESPACE, lambda: self.is_led)  # type: ignore[arg-type]
        services = PermitServices(
            store=self.store,
            hosts=published(self.store),
            leadership=ProcessLeadership(name, lambda: self.is_led),
            migrator=StoreMigrator(self.store),
            movable=partial(MovableMachines, self.store),
            sources=[NeonMachines(self.store, f"1 {name}", patience=patience)] if neon else [],
            accounts=billing(config_maps, NAMESPACE),
        )
        self.permits = LeaderPermitServer(
            services,
            PermitListenAddress("127.0.0.1", port, "127.0.0.1"),
            self.client.create,
            config_maps,
            NAMESPACE,
            lambda url, plain: self.urls.append(url),
        )


@contextmanager
def leading(
    kube: FakeKube,
    name: str,
    *,
    neon: bool = False,
    webhook: Callable[[], None] = lambda: None,
    patience: float = 2.0,
) -> Iterator[Leading]:
    process = Leading(kube, name, neon=neon, patience=patience)
    process.webhook = webhook
    with closing(process.store), in_threads(process.permits.run):
        until(lambda: process.urls, "it serves, and says where")
        yield process


def server_of(kube: FakeKube, token: str) -> ClusterEndpoint:
    """As a node finds the server."""

    def read() -> tuple[PublishedEndpoint, str]:
        try:
            return parse_endpoint(kube.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{NAME}")), token
        except ApiError as error:
            raise ValueError(str(error)) from None

    return ClusterEndpoint(read)


async def ask(
    session: Any, server: ClusterEndpoint, name: str, wanted: Resources, last: Resources | None = None
) -> Resources:
    return await HttpPermits(session, server, PodName("default", name), UNIT).ask(last, wanted, None)


def test_a_node_finds_it_and_gets_permits_for_its_own_machines(kube: FakeKube) -> None:
    async def course() -> None:
        async with new_session() as session:
            own = server_of(kube, "node-a")
            before = len(process.client.writes)
            assert await ask(session, own, "a", amounts(2000, 4)) == amounts(2000, 4)
            assert len(process.client.writes) == before + 1, "one request a permit"
            assert await ask(session, own, "a", amounts(2000, 4), amounts(2000, 4)) == amounts(2000, 4)
            assert len(process.client.writes) == before + 1, "and none where nothing changes"
            with pytest.raises(Denied, match="403: this machine is not on the node"):
                await ask(session, server_of(kube, "node-b"), "a", amounts(1000, 1))
            with pytest.raises(Denied, match="401: a token that the API server knows"):
                await ask(session, server_of(kube, "made up"), "a", amounts(1000, 1))
            assert b'"permit"' in (await process.permits.server.seen(process.permits.server.shown) or b"")

    with leading(kube, "one") as process:
        asyncio.run(course())
        permit: Any = permit_of(process.store, "a")
        assert (permit["cpus"], permit["memory"], permit["givenBy"]) == ("2", "4Gi", "one")


def test_agents_that_wait_when_a_server_stops_get_an_answer(kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent asks the next server at once, and not after its own deadline."""
    queued: list[str] = []
    writing, go_on, stop = threading.Event(), threading.Event(), threading.Event()
    enqueue = PermitWriter.ask

    async def ask_decider(self: PermitWriter, request: PermitRequest, *how: Any, **more: Any) -> Any:
        queued.append(request.pod.name)
        return await enqueue(self, request, *how, **more)

    def hang(number: int, what: str) -> None:
        if "/virtualmachines/a" in what:
            writing.set()
            go_on.wait(60)

    async def course() -> None:
        async with new_session() as session:
            own = server_of(kube, "node-a")
            first = asyncio.create_task(ask(session, own, "a", amounts(2000, 4)))
            await asyncio.to_thread(until, writing.is_set, "the first is being written")
            second = asyncio.create_task(ask(session, own, "b", amounts(1000, 2)))
            await asyncio.to_thread(until, lambda: "b" in queued, "the second waits behind it")
            stop.set()
            with pytest.raises(NodeError, match=r"503.*does not answer any more"):
                await second
            go_on.set()
            with suppress(NodeError):
                await first

    monkeypatch.setattr(PermitWriter, "ask", ask_decider)
    process = Leading(kube, "one")
    process.client.before = hang
    with closing(process.store):
        serving = threading.Thread(target=process.permits.run, args=(stop,), daemon=True)
        serving.start()
        try:
            until(lambda: process.urls, "it serves")
            asyncio.run(course())
        finally:
            stop.set()
            go_on.set()
            serving.join(60)
    assert not serving.is_alive()


def test_a_node_goes_from_a_leader_that_is_gone_to_the_next_one(kube: FakeKube) -> None:
    async def course() -> None:
        async with new_session() as session:
            server = server_of(kube, "node-a")
            with leading(kube, "one") as old:
                assert await ask(session, server, "a", amounts(6000, 4)) == amounts(6000, 4)
                old.is_led = False
            with leading(kube, "two") as new:
                assert new.urls != old.urls
                with pytest.raises(NodeError, match=r"cannot be reached|did not answer"):
                    await ask(session, server, "b", amounts(1000, 1))
                server._since -= 10  # as if it had not read it just now
                server.doubt()
                assert await ask(session, server, "b", amounts(8000, 8)) == amounts(2000, 8), "a has 6"

    asyncio.run(course())


def test_a_server_that_is_not_the_leader_gets_no_request(kube: FakeKube) -> None:
    """Another process listens where the last leader did: he has not its key."""

    async def course() -> None:
        async with new_session() as session:
            with leading(kube, "one") as first, leading(kube, "two"):
                kube_map = kube.objects[f"/api/v1/namespaces/{NAMESPACE}/configmaps/{NAME}"]
                kube_map["data"] = {**kube_map["data"], "url": first.urls[0]}  # the second one's certificate
                with pytest.raises(Failed, match=r"the certificate of .* cannot be verified: self-signed certificate"):
                    await ask(session, server_of(kube, "node-a"), "a", amounts(1000, 1))

    asyncio.run(course())


def test_the_leader_writes_its_removed_address_again(kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devalloc.machines.permits.leader_server.CHECK_SECONDS", 0.01)
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{NAME}"
    with leading(kube, "one") as process:
        metadata = kube.get(path)["metadata"]
        kube.delete(path, metadata["uid"], metadata["resourceVersion"])
        until(lambda: path in kube.objects, "it is written again")
        kube.replace(path, {**kube.get(path), "data": {"url": "https://10.0.0.1/"}})
        until(lambda: kube.get(path)["data"].get("url") == process.urls[0], "and mended")


def test_readiness_shows_since_when_no_permits_are_served(kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> None:
    """By it the controller is not ready: for its port is taken, or the ConfigMap may not be written."""
    monkeypatch.setattr("devalloc.machines.permits.leader_server.RETRY_SECONDS", 0.01)
    monkeypatch.setattr("devalloc.machines.permits.server.LISTEN_SECONDS", 0.01)
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as other:
        process = Leading(kube, "one", other.getsockname()[1])
        permits, write = process.permits, process.permits._write

        def forbidden(place: PublishedEndpoint) -> None:
            raise StoreError("forbidden")

        monkeypatch.setattr(permits, "_write", forbidden)
        assert permits.failing is None
        thread = threading.Thread(target=permits.run, args=(stop,), daemon=True)
        thread.start()
        until(lambda: permits.failing is not None, "the port is another's")
        assert permits._untold is None
    until(lambda: permits._unheard is None and permits.failing is not None, "it listens, and nodes cannot be told")
    monkeypatch.setattr(permits, "_write", write)
    until(lambda: process.urls and permits.failing is None, "it gives permits")
    stop.set()
    thread.join(60)
    process.store.close()
    assert not thread.is_alive()


# -- faults ------------------------------------------------------------------------------------------------------------


class Agent:
    """What a machine takes itself to have."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.permit: Resources | None = None

    def request(self, wanted: Resources) -> Any:
        last = self.permit
        if last is not None:
            self.permit = last.least(wanted)
        return decode_request(
            b'{"protoVersion":7,"pod":{"namespace":"default","name":"%s"},"computeUnit":{"vCPUs":"250m","mem":"1Gi"},'
            b'"resources":{"vCPUs":"%dm","mem":%d},"lastPermit":%s,"metrics":null}'
            % (
                self.name.encode(),
                wanted.cpu,
                wanted.memory,
                b"null" if last is None else b'{"vCPUs":"%dm","mem":%d}' % (last.cpu, last.memory),
            )
        )


STEPS = (
    {"a": amounts(250, 1), "b": amounts(250, 1)},
    {"a": amounts(6000, 4), "b": amounts(2000, 4)},
    {"a": amounts(1000, 4), "b": amounts(7000, 8)},
    {"a": amounts(6000, 8), "b": amounts(1000, 4)},
    {"b": amounts(4000, 12), "a": amounts(2000, 2)},
)


def judged(kube: FakeKube) -> None:
    """At each revision the machines have no more than their node."""
    has: dict[str, Resources] = {}
    for revision, _, path, obj, _ in kube.history:
        if "/virtualmachines/" in path:
            has[path] = counts_for(obj)
            sums = sum(has.values(), NO_RESOURCES)
            assert not sums.exceeds(LIMIT), (revision, sums)


class Process:
    """A server without its doors, and the process that it is in."""

    def __init__(self, kube: FakeKube, number: int) -> None:
        self.client = FakeClient(kube)
        self.alive = True
        self.store = KubernetesStore(self.client, may_write=lambda: self.alive)  # type: ignore[arg-type]
        self.number = number
        self.once: set[str] = set()
        """Who does not ask again."""

    async def course(self, agents: dict[str, Agent], steps: list[dict[str, Resources]]) -> None:
        """Ask step by step, each until all are answered; what is done is taken off. Raises ClientKilled."""
        fence_objects(self.store, f"leader-{self.number}", threading.Event())
        book = PermitLedgers(Settings(), OWN)
        right = ProcessLeadership(f"p{self.number}", lambda: self.alive)
        with ThreadPoolExecutor(1) as writer:
            decider = PermitWriter(self.store, book, OWN, right, PermitMetrics(book), writer)
            await decider.load({"node-a": Host(LIMIT)})
            deciding = asyncio.create_task(decider.run())
            try:
                while steps:
                    await self._step(decider, deciding, agents, dict(steps[0]))
                    steps.pop(0)
            finally:
                deciding.cancel()
                with suppress(asyncio.CancelledError, Exception, ClientKilled):
                    await deciding

    async def _step(
        self, decider: PermitWriter, deciding: asyncio.Task[None], agents: dict[str, Agent], left: dict[str, Resources]
    ) -> None:
        while left:
            asking = {
                name: asyncio.create_task(decider.ask(agents[name].request(wanted), lambda: False))
                for name, wanted in left.items()
            }
            await asyncio.wait([asyncio.gather(*asking.values()), deciding], return_when=asyncio.FIRST_COMPLETED)
            if not self.alive:
                raise ClientKilled
            assert not deciding.done(), deciding
            for name, task in asking.items():
                answer = await task
                if isinstance(answer, PermitGrant):
                    agents[name].permit = answer.permit
                    del left[name]
                else:
                    assert answer.status == 503, answer
                    if name in self.once:
                        del left[name]
            has = sum((agent.permit or NO_RESOURCES for agent in agents.values()), NO_RESOURCES)
            assert not has.exceeds(LIMIT), has


Fault = Callable[[Process, int, str], None]


def killed_before(process: Process, number: int, what: str) -> None:
    process.alive = False
    raise ClientKilled


def lost(process: Process, number: int, what: str) -> None:
    raise ApiError(0, "NoAnswer", "the answer is lost")


def refused(process: Process, number: int, what: str) -> None:
    raise ApiError(503, "", "the server is busy")


@pytest.mark.parametrize(
    ("when", "fault"),
    [("before", killed_before), ("after", killed_before), ("before", lost), ("after", lost), ("before", refused)],
    ids=["killed before", "killed after", "never sent", "answer lost", "refused"],
)
def test_no_node_gives_more_than_it_has_whichever_write_goes_wrong(when: str, fault: Fault) -> None:
    at, is_there = 0, True
    while is_there:
        kube = FakeKube()
        with closing(KubernetesStore(FakeClient(kube))) as store:  # type: ignore[arg-type]
            for name in ("a", "b"):
                running(store, machine(name))
        agents, steps, writes = {name: Agent(name) for name in ("a", "b")}, [*STEPS], 0
        for number in range(2):
            process = Process(kube, number)

            def meddle(count: int, what: str, process: Process = process, at: int = at) -> None:
                nonlocal writes
                if not process.alive:
                    raise ClientKilled
                if what.endswith("/status"):
                    writes += 1
                    if writes == at + 1:
                        fault(process, count, what)

            setattr(process.client, when, meddle)
            with closing(process.store), suppress(ClientKilled):
                asyncio.run(process.course(agents, steps))
            if not steps:
                break
        assert steps == []
        judged(kube)
        is_there, at = writes > at, at + 1
    assert at > 8, "of so many writes each"


def is_late(process: Process, cpus: str) -> list[tuple[str, Object]]:
    """Lose the first write that permits machine a so many CPUs, and for a moment all else; the write is returned."""
    late: list[tuple[str, Object]] = []
    replace, get, cut = process.client.replace, process.client.get, threading.Event()

    def replaced(path: str, body: Object) -> Object:
        if cut.is_set() or (not late and path.endswith("/a/status") and body["status"]["permitted"]["cpus"] == cpus):
            if not late:
                late.append((path, body))
                cut.set()
                threading.Timer(0.3, cut.clear).start()
            raise ApiError(0, "NoAnswer", "the answer is lost")
        return replace(path, body)

    def got(path: str, params: Any = None) -> Object:
        if cut.is_set():
            raise ApiError(0, "NoAnswer", "no answer")
        return get(path, params)

    process.client.replace, process.client.get = replaced, got  # type: ignore[method-assign]
    return late


def test_a_write_that_arrives_late_takes_nothing_from_those_who_were_answered_since() -> None:
    """Its answer is lost, and for a while no server can look what became of it."""
    kube = FakeKube()
    with closing(KubernetesStore(FakeClient(kube))) as store:  # type: ignore[arg-type]
        for name in ("a", "b"):
            running(store, machine(name))
    process = Process(kube, 0)
    late = is_late(process, "6")
    agents = {name: Agent(name) for name in ("a", "b")}
    process.once = {"a"}
    with closing(process.store):
        asyncio.run(process.course(agents, [STEPS[0], {"a": amounts(6000, 4)}, {"b": amounts(7000, 8)}]))
    with pytest.raises(ApiError, match="modified"):
        kube.replace(*late[0])
    judged(kube)
    assert agents["b"].permit == amounts(7000, 8)


def test_a_machine_that_came_while_this_server_gives_permits_counts_for_its_lower_bound() -> None:
    """No server can have permitted it anything, as another may have before this one began: that one counts for its
    upper bound until it asks. The server has not heard of the new one, so that it has to read all objects anew."""
    kube = FakeKube()
    process, book = Process(kube, 0), PermitLedgers(Settings(), OWN)
    running(process.store, machine("before", most=amounts(1000, 2)))
    running(process.store, machine("a"))

    async def course() -> Any:
        fence_objects(process.store, "leader", threading.Event())
        with ThreadPoolExecutor(1) as writer:
            right = ProcessLeadership("p", lambda: True)
            decider = PermitWriter(process.store, book, OWN, right, PermitMetrics(book), writer)
            await decider.load({"node-a": Host(LIMIT)})
            running(process.store, machine("new"))
            deciding = asyncio.create_task(decider.run())
            try:
                return await decider.ask(Agent("a").request(amounts(6000, 4)), lambda: False)
            finally:
                deciding.cancel()

    with closing(process.store):
        granted = asyncio.run(course())
    assert granted.permit == amounts(6000, 4)
    counted = {key[1]: one.reserved for key, one in book.nodes["node-a"].machines.items()}
    assert counted == {"before": amounts(1000, 2), "a": amounts(6000, 4), "new": amounts(250, 1)}


class Steady(Agent):
    """One that goes by its last answer until the next, whatever it asked for meanwhile."""

    def request(self, wanted: Resources) -> Any:
        last = self.permit
        try:
            return super().request(wanted)
        finally:
            self.permit = last


def test_a_release_with_a_lost_answer_is_written_again_before_it_counts() -> None:
    """Nothing has changed as far as the server knows, so that there is nothing to write; and still that may arrive."""
    kube = FakeKube()
    with closing(KubernetesStore(FakeClient(kube))) as store:  # type: ignore[arg-type]
        for name in ("a", "b"):
            running(store, machine(name))
    process = Process(kube, 0)
    late = is_late(process, "1")
    agents: dict[str, Agent] = {"a": Steady("a"), "b": Agent("b")}
    process.once = {"a"}
    steps = [STEPS[0], {"a": amounts(6000, 4)}, {"a": amounts(1000, 4)}]
    with closing(process.store):
        asyncio.run(process.course(agents, [*steps, {"b": amounts(250, 1)}, {"a": amounts(6000, 4)}]))
    assert late, "the write was lost"
    assert agents["a"].permit == amounts(6000, 4)
    with pytest.raises(ApiError, match="modified"):
        kube.replace(*late[0])
