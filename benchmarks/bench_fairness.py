"""How long a tenant's claim waits for its answer, by what another tenant does."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, benchmark
from devalloc.store import Conflict, NotFound
from devalloc.store.sqlite import SQLiteStore
from devalloc_solver import testing
from tests.support.waiting import until

Object = dict[str, Any]
NODES, DEVICES = 100, 8
BEFORE = "FAIRNESS_BEFORE"
"""The environment variable that names another checkout, to be measured in turns with this one."""
SECONDS_PER_RUN = 2.0
"""How long a window is for each run that is asked for."""
PATIENCE = 60.0
"""How long an answer is waited for; longer ones count as that."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Attack:
    """What tenant A does."""

    what: str
    act: Callable[[SQLiteStore], None]
    driver: str = "nic.devalloc.io"
    """of the device that tenant B asks for"""
    is_settled: bool = False
    """B is measured once A's claims have their answers, and not from the first on"""


@benchmark(
    "fairness",
    "The answer to one tenant, by what another tenant does",
    method=f"Real time from a claim of tenant B for one free device until it has it, again and again; `devalloc up "
    f"--no-inventory --no-node` on {NODES} nodes with {DEVICES} GPUs each, and 16 devices of B's. Answers that took "
    f"longer than {PATIENCE:g} s count as that. `at once`: from the moment when A begins. `later`: once all of A's "
    f"claims have an answer. `CPU s`: of the controller for each answer. `before`: the checkout that the environment "
    f"variable {BEFORE} names, in turns. Each window takes {SECONDS_PER_RUN:g} s for each run.",
)
def fairness(runs: int) -> Iterator[Row]:
    trees = {"before": os.environ[BEFORE]} if BEFORE in os.environ else {}
    trees["now"] = str(Path(__file__).parents[1])
    for attack in ATTACKS:
        for name, tree in trees.items():
            with _controller(Path(tree), attack.driver) as (store, process, path):
                for when, seconds, cpu in _windows(attack, store, process, path, runs * SECONDS_PER_RUN):
                    p90 = sorted(seconds)[len(seconds) * 9 // 10] * 1000
                    what: dict[str, str | int] = {
                        "tenant A": attack.what,
                        "tree": name,
                        "B": when,
                        "answers": len(seconds),
                    }
                    yield Row({**what, "CPU s": f"{cpu:.2f}", "p90": f"{p90:.0f}"}, tuple(seconds))


def _windows(
    attack: Attack, store: SQLiteStore, process: subprocess.Popen[bytes], path: Path, window: float
) -> Iterator[tuple[str, list[float], float]]:
    yield "quiet", *_measure(store, process, window / 2)
    attacker = get_context("spawn").Process(target=_attack, args=(ATTACKS.index(attack), path))
    attacker.start()
    try:
        if not attack.is_settled:
            yield "at once", *_measure(store, process, window)
        else:
            attacker.join(600)
            until(lambda: not _unanswered(store), "all claims of tenant A have an answer", 900)
            time.sleep(2)
        yield "later", *_measure(store, process, window)
    finally:
        attacker.kill()
        attacker.join()


def _measure(store: SQLiteStore, process: subprocess.Popen[bytes], window: float) -> tuple[list[float], float]:
    seconds: list[float] = []
    began, cpu = time.perf_counter(), _cpu(process)
    while time.perf_counter() - began < window:
        store.create(_claim("b", f"b{time.monotonic_ns()}", "theirs"))
        started = time.perf_counter()
        (name,) = (one["metadata"]["name"] for one in store.list("DeviceClaim", namespace="b").objects)
        while time.perf_counter() - started < PATIENCE:
            if (store.get("DeviceClaim", "b", name).get("status") or {}).get("allocations"):
                break
            time.sleep(0.005)
        seconds.append(time.perf_counter() - started)
        store.delete("DeviceClaim", "b", name)
        time.sleep(0.3)
    return seconds, (_cpu(process) - cpu) / len(seconds)


def _cpu(process: subprocess.Popen[bytes]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _unanswered(store: SQLiteStore) -> bool:
    return any(
        not (claim["metadata"].get("annotations") or {}).get("devalloc.io/reason")
        and not (claim.get("status") or {}).get("allocations")
        for claim in store.list("DeviceClaim").objects
    )


@contextmanager
def _controller(tree: Path, driver: str) -> Iterator[tuple[SQLiteStore, subprocess.Popen[bytes], Path]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        store = SQLiteStore(path)
        for node in range(NODES):
            devices = [testing.device(f"d{number}") for number in range(DEVICES)]
            attributes = {"model": "L40S"}
            store.create(
                testing.pool(f"g{node}", f"n{node}", "gpu.devalloc.io", attributes=attributes, devices=devices)
            )
        devices = [testing.device(f"b{number}") for number in range(16)]
        store.create(testing.pool("b", "n0", driver, attributes={"model": "B"}, devices=devices))
        store.create(testing.device_class("gpu", driver="gpu.devalloc.io", constraints="device.model == 'L40S'"))
        store.create(testing.device_class("theirs", driver=driver, constraints="device.model == 'B'"))
        command = [sys.executable, "-m", "devalloc", "up", "--no-inventory", "--no-node", "--store", str(path)]
        parts = [tree, tree / "solver", tree / "node-plugin"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, parts))}
        process = subprocess.Popen(
            command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            store.create(_claim("b", "first", "theirs"))
            until(
                lambda: bool((store.get("DeviceClaim", "b", "first").get("status") or {}).get("allocations")),
                "the controller answers",
                120,
            )
            store.delete("DeviceClaim", "b", "first")
            yield store, process, path
        finally:
            process.terminate()
            process.wait(60)
            store.close()


def _claim(namespace: str, name: str, device_class: str, count: int = 1, **more: Any) -> Object:
    entry = {"deviceClass": device_class, "requests": {"count": str(count)}, **more}
    return _of_entries(namespace, name, [entry])


def _of_entries(namespace: str, name: str, entries: list[Object], **notes: str) -> Object:
    metadata: Object = {"name": name, "namespace": namespace}
    if notes:
        metadata["annotations"] = {f"devalloc.io/{key}": value for key, value in notes.items()}
    kind = {"apiVersion": "devmgmtproto.k8s.io/v1alpha1", "kind": "DeviceClaim"}
    return {**kind, "metadata": metadata, "spec": {"claims": entries}}


# -- what tenant A does ------------------------------------------------------------------------------------------------


def _attack(number: int, path: Path) -> None:
    store = SQLiteStore(path)
    ATTACKS[number].act(store)
    store.close()


def _many(count: int) -> Callable[[SQLiteStore], None]:
    def act(store: SQLiteStore) -> None:
        for number in range(count):
            store.create(_claim("a", f"a{number:05}", "gpu"))

    return act


def _edits(store: SQLiteStore) -> None:
    """10,000 claims wait; of these five a second are edited."""
    _many(10_000)(store)
    until(lambda: not _unanswered(store), "all have an answer", 600)
    waiting = [c["metadata"]["name"] for c in store.list("DeviceClaim").objects if not c.get("status")]
    for number, name in enumerate(waiting):
        there = store.get("DeviceClaim", "a", name)
        _unless_changed(store.replace, {**there, "spec": _claim("", "", "gpu", number + 9)["spec"]})
        time.sleep(0.2)


def _hopeless(store: SQLiteStore) -> None:
    for number in range(200):
        store.create(_claim("a", f"a{number}", "gpu", 9 + number))


def _hard(store: SQLiteStore) -> None:
    for number in range(200):
        entries = [{"deviceClass": "gpu", "requests": {"count": str(1 + number % 5)}}]
        notes = {"group": f"g{number % 25}", "group-match": "model"}
        store.create(_of_entries("a", f"a{number}", entries, **notes))


def _alternatives(store: SQLiteStore) -> None:
    for number in range(200):
        entries = [
            {
                "oneOf": [
                    {
                        "deviceClass": "gpu",
                        "requests": {"count": "5"},
                        "constraints": f"device.numa == {k} && device.id > {k * 1000 + e}",
                    }
                    for k in range(8)
                ]
            }
            for e in range(8)
        ]
        store.create(_of_entries("a", f"a{number}", entries))


def _expressions(store: SQLiteStore) -> None:
    nested = "1 == 1"
    for depth in range(10):
        numbers = ", ".join(map(str, range(20)))
        nested = f"[{numbers}].all(x{depth}, {nested})"
    for number in range(50):
        store.create(_claim("a", f"a{number}", "gpu", constraints=f"{number} != -1 && {nested}"))


def _flaps(store: SQLiteStore) -> None:
    for number in range(100_000):
        store.create(_claim("a", f"a{number}", "gpu"))
        if number >= 20:
            _unless_changed(store.delete, "DeviceClaim", "a", f"a{number - 20}")
        time.sleep(0.02)


def _deletes(store: SQLiteStore) -> None:
    _many(3_800)(store)
    until(lambda: not _unanswered(store), "all have an answer", 600)
    held = [c["metadata"]["name"] for c in store.list("DeviceClaim").objects if c.get("status")]
    for name in held:
        _unless_changed(store.delete, "DeviceClaim", "a", name)
        time.sleep(0.05)


def _replica_set(store: SQLiteStore) -> None:
    start = {"disks": [{"path": "/images/shared/a.raw", "format": "raw", "clone": "overlay"}]}
    spec = {"cpu": {"min": 1, "max": 1}, "memory": {"min": "512Mi", "max": "512Mi"}, "disk": "3Gi", "start": start}
    kind = {"apiVersion": "devalloc.io/v1alpha1", "kind": "VirtualMachineReplicaSet"}
    metadata = {"name": "a", "namespace": "a"}
    template = {"spec": {**spec, "restartPolicy": "Never"}}
    store.create({**kind, "metadata": metadata, "spec": {"replicas": 10_000, "template": template}})


def _unless_changed(act: Callable[..., object], *arguments: object) -> None:
    with suppress(Conflict, NotFound):
        act(*arguments)


GPU = "gpu.devalloc.io"
ATTACKS = (
    Attack("one replica set of 10,000 machines", _replica_set),
    Attack("10,000 claims, 800 fit", _many(10_000)),
    Attack("10,000 claims wait", _many(10_000), is_settled=True),
    Attack("the same, B of the same driver", _many(10_000), GPU, is_settled=True),
    Attack("200 hopeless claims, B of the same driver", _hopeless, GPU),
    Attack("200 claims in 25 groups, B of the same driver", _hard, GPU),
    Attack("200 claims of 8 x 8 alternatives", _alternatives),
    Attack("50 claims with hostile expressions", _expressions),
    Attack("50 claims a second come and go", _flaps),
    Attack("3,000 wait, of 800 held 20 a second go", _deletes),
    Attack("10,000 wait, 5 a second are edited", _edits),
)
