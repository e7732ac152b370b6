"""NeonVM's webhook is down: its machines get no permits, and devalloc's own get theirs, and no node gives more than it
has whatever becomes of the writes that were under way."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest

from devalloc.machines.permits import writer as writer_module
from devalloc.machines.permits.decide import PermitAnswer, PermitRecord, PermitRefused
from devalloc.machines.permits.leadership import ProcessLeadership
from devalloc.machines.permits.ledger import Host, PermitLedgers
from devalloc.machines.permits.metrics import PermitMetrics
from devalloc.machines.permits.settings import Settings
from devalloc.machines.permits.sources import MachineSources
from devalloc.machines.permits.writer import OutcomeUnknown, PermitWriter, StoreChanges
from devalloc.scaling.resources import NO_RESOURCES, Resources
from devalloc.store import Change, CommitOutcomes
from devalloc.store.kubernetes import ApiError, KubernetesStore, object_writer
from devalloc_machines.agent.http_client import new_session
from devalloc_neon.machines import NEON_MACHINES, PERMIT, NeonMachines
from devalloc_node.errors import NodeError
from tests.support.fake_kube import FakeClient, FakeKube
from tests.support.neon_installation import MACHINES, vm
from tests.support.permit_bench import amounts
from tests.support.permit_records import SOURCES
from tests.support.waiting import until
from tests.unit.machines.permits.test_leader import Agent, ask, kube, leading, server_of
from tests.unit.machines.permits.test_runner_usage import OWNER
from tests.unit.machines.permits.test_runner_usage import pod as runner_pod

__all__ = ["kube"]
POD = "vm1-x7k2p"
UNIT = amounts(250, 1)
NOW = "2026-02-02T00:00:00Z"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_writer, "PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(writer_module, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(writer_module, "MAX_SETTLE_SECONDS", 0.05)


@pytest.fixture
def both(kube: FakeKube) -> FakeKube:
    """The node of 8 CPUs and 16 GiB with a machine of NeonVM of at most 4 CPUs and 8 GiB, beside two of devalloc."""
    obj = vm("vm1", ("250m", "4", "250m"), (1, 8, 1))
    status = {"phase": "Running", "node": "node-a", "podName": POD, "cpus": "250m", "memorySize": "1Gi"}
    metadata = {**obj["metadata"], "namespace": "default"}
    put(kube, "vm1", {**obj, "metadata": metadata, "status": status})
    return kube


def put(kube: FakeKube, name: str, obj: dict[str, Any]) -> None:
    with kube.changed:
        kube._put(f"{MACHINES}/{name}", obj, "ADDED")


def down() -> None:
    raise ApiError(500, "InternalError", 'failed calling webhook "vvirtualmachine.kb.io": connection refused')


def neon_permit(kube: FakeKube) -> Any:
    text = kube.get(f"{MACHINES}/vm1")["metadata"].get("annotations", {}).get(PERMIT)
    return text and json.loads(text)


async def granted(kube: FakeKube, name: str, wanted: Resources, last: Resources | None = None) -> Resources | None:
    """The permit; None if the server cannot answer."""
    async with new_session() as session:
        try:
            return await ask(session, server_of(kube, "node-a"), name, wanted, last)
        except NodeError as error:
            if "503" not in error.message:
                raise
            return None


def answered(kube: FakeKube, name: str, wanted: Resources, last: Resources | None = None) -> Resources:
    """The permit, as soon as the server can answer."""
    permit = until(lambda: asyncio.run(granted(kube, name, wanted, last)), f"{name} is answered")
    assert permit is not None
    return permit


def begin(kube: FakeKube, b: Resources) -> None:
    """The first requests of all machines; until then they count for their most."""
    assert answered(kube, "a", amounts(250, 1)) == amounts(250, 1)
    assert answered(kube, "b", b) == b
    assert answered(kube, POD, amounts(1000, 2)) == amounts(1000, 2)


def test_devallocs_machines_get_permits_and_neonvms_do_when_its_webhook_is_back(both: FakeKube) -> None:
    with leading(both, "one", neon=True) as process:
        begin(both, amounts(1000, 2))
        process.webhook = down
        assert asyncio.run(granted(both, POD, amounts(2000, 4), amounts(1000, 2))) is None
        for _ in range(3):
            assert asyncio.run(granted(both, POD, amounts(3000, 4), amounts(1000, 2))) is None
            assert asyncio.run(granted(both, "b", amounts(250, 1))) == amounts(250, 1)
            assert asyncio.run(granted(both, "b", amounts(1000, 2))) == amounts(1000, 2)
        # The write of 2 CPUs may still be done, so they count: 8 - 2 - 1.
        assert asyncio.run(granted(both, "a", amounts(8000, 4), amounts(250, 1))) == amounts(5000, 4)
        process.webhook = lambda: None
        assert answered(both, "a", amounts(1000, 4), amounts(5000, 4)) == amounts(1000, 4)
        assert answered(both, POD, amounts(3000, 4), amounts(1000, 2)) == amounts(3000, 4)
        assert neon_permit(both)["cpus"] == "3"
        assert answered(both, "a", amounts(8000, 4), amounts(1000, 4)) == amounts(4000, 4)


def test_a_webhook_that_hangs_holds_up_its_own_machines_only(both: FakeKube) -> None:
    go_on = threading.Event()
    with leading(both, "one", neon=True, patience=0.1) as process:
        begin(both, amounts(1000, 2))
        process.webhook = lambda: go_on.wait(60) and None  # type: ignore[func-returns-value]
        try:
            assert asyncio.run(granted(both, POD, amounts(2000, 4), amounts(1000, 2))) is None
            assert asyncio.run(granted(both, "a", amounts(8000, 4), amounts(250, 1))) == amounts(5000, 4)
            assert not go_on.is_set()
            assert neon_permit(both)["cpus"] == "1"
        finally:
            go_on.set()
        until(lambda: neon_permit(both)["cpus"] == "2", "the write is done after all")
        assert asyncio.run(granted(both, "a", amounts(8000, 4), amounts(5000, 4))) == amounts(5000, 4)
        assert answered(both, POD, amounts(2000, 4), amounts(1000, 2)) == amounts(2000, 4)


def test_a_leader_that_comes_while_it_is_down_serves_devallocs_machines_and_counts_neonvms_for_their_most(
    both: FakeKube,
) -> None:
    with leading(both, "one", neon=True):
        begin(both, amounts(250, 1))
    with leading(both, "two", neon=True, webhook=down) as process:
        assert answered(both, "a", amounts(8000, 4), amounts(250, 1)) == amounts(3750, 4), "8 - 4 - 0.25"
        assert asyncio.run(granted(both, POD, amounts(1000, 2), amounts(1000, 2))) is None
        assert process.permits.failing is None
        process.webhook = lambda: None
        assert answered(both, POD, amounts(1000, 2), amounts(1000, 2)) == amounts(1000, 2)
        assert answered(both, "a", amounts(8000, 4), amounts(3750, 4)) == amounts(6750, 4)


def test_a_write_of_which_the_answer_is_lost_counts(both: FakeKube) -> None:
    with leading(both, "one", neon=True) as process:
        begin(both, amounts(250, 1))
        process.webhook = down
        at = len(process.client.writes)
        assert asyncio.run(granted(both, POD, amounts(4000, 8), amounts(1000, 2))) is None
        assert len(process.client.writes) > at
        # It is done late, as it was sent: nothing of the node is left for another.
        late = both.get(f"{MACHINES}/vm1")
        content = {**neon_permit(both), "cpus": "4", "memory": "8Gi"}
        late["metadata"]["annotations"][PERMIT] = json.dumps(content)
        both.replace(f"{MACHINES}/vm1", late)
        assert answered(both, "a", amounts(8000, 4), amounts(250, 1)) == amounts(3750, 4)


def test_a_leader_that_begins_counts_the_pods_of_machines_that_were_deleted_before_and_names_them(
    both: FakeKube, caplog: pytest.LogCaptureFixture
) -> None:
    gone = runner_pod(phase="Running", name="gone-p", use=("2", 3), owner={**OWNER, "uid": "u-gone"})
    book = PermitLedgers(Settings(), SOURCES)
    with (
        closing(KubernetesStore(FakeClient(both), resources=(NEON_MACHINES,))) as store,  # type: ignore[arg-type]
        ThreadPoolExecutor(1) as writer,
    ):
        leader = ProcessLeadership("one", lambda: True)
        deciding = PermitWriter(store, book, SOURCES, leader, PermitMetrics(book), writer)
        asyncio.run(deciding.load({"node-a": Host(amounts(8000, 16))}, [gone]))
        with_it = book.nodes["node-a"].counted
        assert "runner pod default/gone-p counts on node node-a for what it says itself" in caplog.text
        book.drop_runner(("default", "gone-p"))
    without = book.nodes["node-a"].counted
    assert Resources(with_it.cpu - without.cpu, with_it.memory - without.memory) == amounts(2000, 3)


def test_machines_without_number_are_written_a_few_at_a_time(both: FakeKube) -> None:
    template = both.get(f"{MACHINES}/vm1")
    for number in range(11):
        metadata = {"name": f"w{number}", "namespace": "default", "labels": template["metadata"]["labels"]}
        status = {**template["status"], "podName": f"w{number}-p"}
        put(both, f"w{number}", {**template, "metadata": metadata, "status": status})

    async def course() -> list[Resources | None]:
        return list(await asyncio.gather(*(granted(both, f"w{n}-p", amounts(500, 1)) for n in range(11))))

    with leading(both, "one", neon=True):
        begin(both, amounts(250, 1))
        assert asyncio.run(course()) == [amounts(500, 1)] * 11


@contextmanager
def slow_writer(kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> Iterator[PermitWriter]:
    """Each write takes longer than NeonVM's machines are waited for."""
    with (
        closing(KubernetesStore(FakeClient(kube), resources=(NEON_MACHINES,))) as store,  # type: ignore[arg-type]
        ThreadPoolExecutor(1) as thread,
    ):
        sources = MachineSources(NeonMachines(store, patience=0.05))
        book, leader = PermitLedgers(Settings(), sources), ProcessLeadership("one", lambda: True)
        writer = PermitWriter(store, book, sources, leader, PermitMetrics(book), thread)
        commit = writer._commit

        def slowly(changes: Sequence[Change]) -> CommitOutcomes:
            time.sleep(0.3)
            return commit(changes)

        monkeypatch.setattr(writer, "_commit", slowly)
        asyncio.run(writer.load({"node-a": Host(amounts(8000, 16))}))
        yield writer


def test_only_the_writes_of_neonvms_machines_have_a_time_limit(both: FakeKube, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would make the server doubt a write of devalloc's own machine."""
    keys = ("default", "a"), ("default", "vm.neon.tech/vm1")
    own, neon = (PermitRecord(key, UNIT, NO_RESOURCES, {}, UNIT, "one", NOW) for key in keys)
    with slow_writer(both, monkeypatch) as writer:
        lane, _ = writer._lanes.values()
        assert len(asyncio.run(writer._write(lane, [own]))) == 1
    with slow_writer(both, monkeypatch) as writer:
        _, lane = writer._lanes.values()
        with pytest.raises(OutcomeUnknown):
            asyncio.run(writer._write(lane, [neon]))


def test_a_request_for_a_machine_that_came_unheard_of_is_written_as_that_machines_are(
    both: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was known by its name when it was taken up; all is read before it is decided."""
    obj = both.get(f"{MACHINES}/vm1")
    both.delete(f"{MACHINES}/vm1", obj["metadata"]["uid"], obj["metadata"]["resourceVersion"])
    with slow_writer(both, monkeypatch) as writer:
        put(both, "vm1", obj)
        writer._store.refresh()  # type: ignore[attr-defined]  # lists come from a mirror, which follows by a watch

        async def course() -> PermitAnswer:
            writer.see(StoreChanges(gap=True))
            deciding = asyncio.create_task(writer.run())
            try:
                return await writer.ask(Agent(POD).request(amounts(2000, 4)), lambda: False, by_pod=True)
            finally:
                deciding.cancel()

        answer = asyncio.run(course())
        assert answer == PermitRefused(503, "machines of NeonVM cannot be written now; ask again")
