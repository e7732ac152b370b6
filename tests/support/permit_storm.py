"""Many machines that compete for a full node, over HTTP, with all that goes wrong: replies that are lost, requests that
come after newer ones, servers that are killed or replaced, permits that are made up, machines that end and begin again.

A machine here keeps to what it heard, as an agent has to: before it says that it has less it takes itself to have no
more than that. Some say so before they have let go of it, when their node has told of what they use. So the sum of what
the machines take themselves to have is the truth that the server is held against.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from devalloc.scaling.peer_json import bytes_to_json, cpu_to_json
from devalloc.scaling.resources import Resources
from devalloc.store import Store
from devalloc.store.sqlite import SQLiteStore
from tests.support.permit_bench import GIB, KIND, NODE, machine, permit_of, running, write_status_part

UNIT = Resources(250, GIB // 4)
LEAST = UNIT
MOST = UNIT * 40
MALFORMED = (b"", b"{", b"[]", b"\xff" * 10, b'{"protoVersion":7}', b'{"protoVersion":99}', b" " * 1100 + b"{}")


@dataclass
class StormAgent:
    """One machine and its agent: what it takes itself to have, and what it uses of that."""

    name: str
    permit: Resources | None = None
    use: Resources = LEAST
    shown: Resources = LEAST
    """What its node has told of."""
    run: int = 1

    @property
    def has(self) -> Resources:
        return self.use if self.permit is None else self.use.most(self.permit)


@dataclass
class PermitTally:
    """What happened, and what should not have."""

    requests: int = 0
    granted: int = 0
    lost: int = 0
    late: int = 0
    refused: int = 0
    kills: int = 0
    replaced: int = 0
    """Servers that stood still until another one had answered, and went on."""
    ended: int = 0
    full: int = 0
    """Rounds after which a resource of the node was used up."""
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.requests} requests ({self.granted} granted, {self.lost} replies lost, {self.late} late, "
            f"{self.refused} refused), "
            f"{self.kills} servers killed, {self.replaced} replaced, "
            f"{self.ended} machines restarted, {self.full} rounds on a full node, "
            f"{len(self.wrong)} wrong"
        )


class PermitStorm:
    """20 machines on one node, and one server at a time."""

    def __init__(self, path: Path, seed: int, *, machines: int = 20, units: int = 90) -> None:
        self.limit = UNIT * units
        self.tally = PermitTally()
        self._path = path
        self._random = random.Random(seed)
        self._agents = [StormAgent(f"m{number}") for number in range(machines)]
        self._process: subprocess.Popen[str] | None = None
        self._port = 0
        self._on_the_way: list[bytes] = []
        """Requests that were given up by those who sent them, and come later."""
        self._headers = b""
        """More lines of each request."""
        self._links: dict[str, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        with self._opened() as store:
            for agent in self._agents:
                running(store, machine(agent.name, least=LEAST, most=MOST))

    def _opened(self) -> AbstractContextManager[Store]:
        """The store as nodes and users have it."""
        return closing(SQLiteStore(self._path))

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """To the server. Raises OSError."""
        return await asyncio.open_connection("127.0.0.1", self._port)

    def run(self, requests: int, *, between_kills: int) -> PermitTally:
        """So many requests; the server is ended each time about ``between_kills`` of them have been made."""
        over = threading.Event()
        checking = threading.Thread(target=self._check_store, args=(over,))
        checking.start()
        try:
            self._start()
            asyncio.run(self._rounds(requests, between_kills))
        finally:
            over.set()
            checking.join()
            self._end(signal.SIGKILL)
        return self.tally

    # -- the server --------------------------------------------------------------------------------------------------

    def _start(self, *more: str) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.support.permit_process", str(self._path)),
                *(str(self.limit.cpu), str(self.limit.memory), *more),
            ],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.strip(), "the server does not listen"
        self._port = int(line)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    # -- the machines ------------------------------------------------------------------------------------------------

    async def _rounds(self, requests: int, between_kills: int) -> None:
        draw, next_kill = self._random, between_kills
        with self._opened() as store:
            while self.tally.requests < requests:
                some = draw.sample(self._agents, draw.randint(1, len(self._agents)))
                for agent in some:
                    self._live(store, agent)
                tasks = [asyncio.create_task(self._ask(agent)) for agent in some]
                if len(self._on_the_way) > draw.randint(0, 3):
                    late = self._on_the_way.pop(draw.randrange(len(self._on_the_way)))
                    tasks.append(asyncio.create_task(self._come(late)))
                if self.tally.requests >= next_kill and self._is_replaced():
                    next_kill += between_kills
                    await asyncio.gather(*tasks)
                    await self._replace(store)
                elif self.tally.requests >= next_kill:
                    next_kill += between_kills
                    await asyncio.sleep(draw.random() * 0.02)
                    how = signal.SIGTERM if draw.random() < 0.2 else signal.SIGKILL
                    await asyncio.to_thread(self._end, how)
                    self.tally.kills += 1
                await asyncio.gather(*tasks)
                if self._process is None:
                    self._hang_up()
                    if draw.random() < 0.5:
                        for agent in draw.sample(self._agents, 3):
                            self._live(store, agent)
                    await asyncio.to_thread(self._start)
                self._check_agents(store)
            self._hang_up()

    def _is_replaced(self) -> bool:
        """Whether the next server that ends is replaced by another one."""
        return (self.tally.kills + self.tally.replaced) % 3 == 2

    async def _replace(self, store: Store) -> None:
        """The server stands still with requests, another one takes its place and answers, and it goes on."""
        self.tally.replaced += 1
        old, draw = self._process, self._random
        assert old is not None
        old.send_signal(signal.SIGSTOP)
        self._hang_up()
        mixed = draw.sample(self._agents, len(self._agents))
        stuck = [asyncio.create_task(self._ask(agent)) for agent in mixed[:6]]
        await asyncio.sleep(0.1)  # they are on their way
        for agent in mixed[:6]:
            self._links.pop(agent.name, None)
        await asyncio.to_thread(self._start, NODE, "--replaces")
        for _ in range(3):
            await asyncio.gather(*(self._ask(agent) for agent in mixed[6:]))
        old.send_signal(signal.SIGCONT)
        await asyncio.gather(*stuck)
        self._check_agents(store)
        self._hang_up()
        new, self._process = self._process, old
        await asyncio.to_thread(self._end, signal.SIGKILL)
        self._process = new

    def _live(self, store: Store, agent: StormAgent) -> None:
        """Use more or less of what it may have; or end, and begin anew. Its node tells of it, or is late."""
        draw = self._random
        if draw.random() < 0.004:
            self.tally.ended += 1
            write_status_part(store, agent.name, phase="Stopped", machineID=None, observed=None, permitted=None)
            agent.run += 1
            agent.use, agent.permit, agent.shown = LEAST, None, LEAST
        elif draw.random() < 0.5:
            room = agent.has
            agent.use = Resources(draw.randint(LEAST.cpu, room.cpu), draw.randint(LEAST.memory, room.memory))
            if draw.random() < 0.7:
                return  # its node has not looked yet
        else:
            return
        observed = {"cpus": f"{agent.use.cpu}m", "memory": str(agent.use.memory)}
        write_status_part(store, agent.name, phase="Running", machineID=f"run-{agent.run}", observed=observed)
        agent.shown = agent.use

    async def _ask(self, agent: StormAgent) -> None:
        draw = self._random
        self.tally.requests += 1
        if draw.random() < 0.02:
            status, _ = await self._exchange(agent, draw.choice(MALFORMED), lose=False)
            self.tally.refused += status == 400
            if status not in (0, 400):
                self.tally.wrong.append(f"a malformed request was answered {status}")
            return
        wanted = UNIT * draw.randint(1, 40)
        if draw.random() < 0.3:
            wanted = Resources(draw.randint(LEAST.cpu, MOST.cpu), draw.randint(LEAST.memory, MOST.memory))
        elif draw.random() < 0.2:
            wanted = agent.use
        if agent.shown != agent.use or draw.random() < 0.8:
            wanted = wanted.most(agent.use)  # a decrease is made before it is reported
        last = agent.permit
        if draw.random() < 0.3:
            last = draw.choice([None, MOST, Resources(2**31, 2**50), UNIT * draw.randint(0, 90)])
        message = {
            "protoVersion": 7,
            "pod": {"namespace": "default", "name": agent.name},
            "computeUnit": {"vCPUs": cpu_to_json(UNIT.cpu), "mem": bytes_to_json(UNIT.memory)},
            "resources": {"vCPUs": cpu_to_json(wanted.cpu), "mem": bytes_to_json(wanted.memory)},
            "lastPermit": last and {"vCPUs": cpu_to_json(last.cpu), "mem": bytes_to_json(last.memory)},
            "metrics": None if draw.random() < 0.1 else {"loadAvg1M": round(draw.random() * 8, 2)},
        }
        had = agent.has
        if agent.permit is not None:
            agent.permit = agent.permit.least(wanted)
        request = json.dumps(message).encode()
        if draw.random() < 0.03:
            self._on_the_way.append(request)
            return
        status, body = await self._exchange(agent, request, lose=draw.random() < 0.1)
        if status != 200:
            self.tally.lost += status == 0
            if status not in (0, 503):
                self.tally.wrong.append(f"{agent.name} was answered {status} {body!r} to {message}")
            return
        answer = json.loads(body)["permit"]
        permit = Resources(milli(answer["vCPUs"]), in_bytes(answer["mem"]))
        for name in ("cpu", "memory"):
            got, goal, before = (getattr(r, name) for r in (permit, wanted, had))
            if not min(before, goal) <= got <= max(goal, before):
                self.tally.wrong.append(f"{agent.name} had {before} {name}, asked for {goal} and got {got}")
        self.tally.granted += permit.exceeds(had)
        agent.permit = permit

    async def _exchange(self, agent: StormAgent, body: bytes, *, lose: bool) -> tuple[int, bytes]:
        """Status and body; 0 where nothing was heard."""
        try:
            link = self._links.get(agent.name)
            if link is None:
                link = self._links[agent.name] = await self._connect()
            reader, writer = link
            writer.write(posted(body, self._headers))
            await writer.drain()
            if lose:
                await asyncio.sleep(self._random.random() * 0.005)
                raise ConnectionError("lost on purpose")
            status = int((await reader.readuntil(b"\r\n")).split()[1])
            length = closes = 0
            while (line := (await reader.readuntil(b"\r\n")).lower()) != b"\r\n":
                if line.startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
                closes |= line.startswith(b"connection: close")
            answer = await reader.readexactly(length)
            if closes:
                self._drop(agent.name)
            return status, answer
        except (OSError, asyncio.IncompleteReadError, IndexError):
            self._drop(agent.name)
            return 0, b""

    async def _come(self, body: bytes) -> None:
        """A request comes whose sender gave it up: the end of the connection comes with it."""
        process, port = self._process, self._port
        if process is None:
            return
        self.tally.late += 1
        with suppress(OSError):
            await asyncio.to_thread(_send_and_go, process, port, posted(body))

    def _drop(self, name: str) -> None:
        link = self._links.pop(name, None)
        if link is not None:
            with suppress(OSError):
                link[1].close()

    def _hang_up(self) -> None:
        for name in list(self._links):
            self._drop(name)

    # -- what has to hold --------------------------------------------------------------------------------------------

    def _check_agents(self, store: Store) -> None:
        """Between two rounds no agent is waiting for an answer."""
        has = Resources(sum(agent.has.cpu for agent in self._agents), sum(agent.has.memory for agent in self._agents))
        self.tally.full += not (
            self.limit.excess_over(has).cpu >= UNIT.cpu and self.limit.excess_over(has).memory >= UNIT.memory
        )
        if has.exceeds(self.limit):
            self.tally.wrong.append(f"the machines have {has} of {self.limit}")
        for agent in self._random.sample(self._agents, 2):
            permit = permit_of(store, agent.name)
            if agent.permit is not None and (
                permit is None
                or agent.permit.exceeds(Resources(milli(permit["cpus"]), in_bytes(permit["memory"])).most(agent.use))
            ):
                self.tally.wrong.append(f"{agent.name} heard {agent.permit}, and written down is {permit}")

    def _check_store(self, over: threading.Event) -> None:
        """At every moment what is written down is within the limit."""
        with self._opened() as store:
            while not over.wait(0.01):
                cpu = memory = 0
                for obj in store.list(KIND).objects:
                    permit = obj.get("status", {}).get("permitted") or {"cpus": f"{LEAST.cpu}m", "memory": LEAST.memory}
                    cpu, memory = cpu + milli(permit["cpus"]), memory + in_bytes(permit["memory"])
                if Resources(cpu, memory).exceeds(self.limit):
                    self.tally.wrong.append(f"written down are {cpu}m and {memory} bytes of {self.limit}")


def posted(body: bytes, headers: bytes = b"") -> bytes:
    """A request. ``headers``: more lines."""
    return b"POST / HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n%b" % (headers, len(body), body)


def _send_and_go(process: subprocess.Popen[str], port: int, data: bytes) -> None:
    """The server sees the request and the end of its connection at once, because it stands still meanwhile."""
    process.send_signal(signal.SIGSTOP)
    try:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        with closing(socket.create_connection(("127.0.0.1", port), timeout=30)) as connection:
            connection.sendall(data)
    finally:
        process.send_signal(signal.SIGCONT)


def milli(value: object) -> int:
    text = str(value)
    return int(text[:-1]) if text.endswith("m") else int(text) * 1000


def in_bytes(value: object) -> int:
    text = str(value)
    for suffix, unit in (("Ki", 2**10), ("Mi", 2**20), ("Gi", 2**30), ("Ti", 2**40)):
        if text.endswith(suffix):
            return int(text.removesuffix(suffix)) * unit
    return int(text)
