"""Serve the CPU time of machines to controllers that speak the runner protocol, each at an address of its own."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import threading
from collections.abc import Callable
from functools import partial

from devalloc.scaling.peer_json import RequestError, Unreadable
from devalloc.settings import Network
from devalloc_machines.agent.actuator import running_machine
from devalloc_machines.agent.agent import WakeableRounds
from devalloc_machines.agent.channels import RunnerAddress
from devalloc_machines.qemu.records import MachineView
from devalloc_machines.qemu.spec import CPU
from devalloc_machines.service.operations import MachineOperations
from devalloc_neon import runner_messages as wire
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.net.http import JSON, HttpLimits, HttpRequest, HttpResponse, HttpServer

_log = logging.getLogger("devalloc.agent.cpu_time_server")
Allows = Callable[[str], bool]
LIMITS = HttpLimits(body=wire.MAX_BODY, connections=8)


CALLER = "runner"
ANSWER_SECONDS = 4.0
"""A controller waits for 5."""
LOOK_SECONDS = 1.0


class MachineCpuShare:
    """The CPU time of one run of a machine of the platform."""

    def __init__(self, operations: MachineOperations, at: RunnerAddress) -> None:
        self._operations, self._at = operations, at

    def set(self, milli: int) -> None:
        """Raises Denied where the machine cannot have that, NodeError."""
        self._seen()
        due = Deadline.after(ANSWER_SECONDS)
        self._operations.scale(self._at.key, "cpu", milli, due, owner=self._at.uid, caller=CALLER)

    def get(self) -> int:
        """What was set, until another caller changes it. Raises NodeError."""
        machine = self._seen()
        observed, set_to, vcpus = machine.observed.cpu_milli, machine.applied.cpu_milli, machine.observed.vcpus
        if observed is None or vcpus is None:
            raise Failed("MachineUnclear", f"cannot read the CPU limit of machine {self._at.key}")
        # More than its vCPUs can use is not seen, and a controller would set it again and again.
        return set_to if set_to is not None and min(set_to, vcpus * CPU) == observed else observed

    def _seen(self) -> MachineView:
        return running_machine(self._operations, self._at.key, self._at.uid, self._at.run)


class Runner:
    """The server. Listen where only the machine's controller gets to: it does not authenticate callers (T28)."""

    def __init__(
        self, machine: str, share: MachineCpuShare, limits: HttpLimits = LIMITS, allows: Allows = lambda peer: True
    ) -> None:
        """``machine``: what log lines call it. ``allows``: whether a controller may come from an address."""
        self._machine = machine
        self._share = share
        self._turn = asyncio.Lock()
        self._server = HttpServer(self._respond, limits, allows=allows)

    async def listen(self, host: str, port: int = wire.PORT) -> tuple[str, int]:
        """Begin to answer; the address. Raises OSError."""
        return await self._server.listen(host, port)

    async def close(self) -> None:
        await self._server.close()

    async def _respond(self, request: HttpRequest) -> HttpResponse:
        try:
            wire.check_endpoint(request.method, request.path)
            wanted = wire.decode_cpu(request.body) if request.path == wire.CHANGE_PATH else None
            async with self._turn:
                if wanted is None:
                    return HttpResponse(200, wire.encode_cpu(await asyncio.to_thread(self._share.get)), JSON)
                await asyncio.to_thread(self._share.set, wanted)
            return HttpResponse(200)
        except RequestError as refused:
            return HttpResponse(refused.status, refused.text.encode())
        except (Unreadable, Denied) as error:
            _log.info("%s: %s: %s", self._machine, request.path, error)
            return HttpResponse(400, str(error).encode())
        except NodeError as error:
            _log.error("%s: %s: %s", self._machine, request.path, error)
            return HttpResponse(500, str(error).encode())


class RunnerServers:
    """``run`` in a thread; the other methods are for any thread."""

    def __init__(
        self,
        operations: MachineOperations,
        networks: tuple[Network, ...],
        *,
        changed: Callable[[str], None] = lambda key: None,
    ) -> None:
        """``networks``: where runners may listen, and who may call them. ``changed`` gets the key of each machine whose
        runner began or failed to listen."""
        self.networks = networks
        self._operations = operations
        self._changed = changed
        self._mutex = threading.Lock()
        self._wanted: dict[str, RunnerAddress] = {}
        self._problems: dict[str, str] = {}
        self._rounds = WakeableRounds("runners", LOOK_SECONDS)

    def keep(self, at: RunnerAddress) -> None:
        """Have it listen, from now on or as before."""
        with self._mutex:
            if self._wanted.get(at.key) == at:
                return
            self._wanted[at.key] = at
        self._rounds.wake()

    def drop(self, key: str) -> None:
        """Close it."""
        with self._mutex:
            self._problems.pop(key, None)
            if self._wanted.pop(key, None) is None:
                return
        self._rounds.wake()

    def problem(self, key: str) -> str | None:
        """Why it does not listen; None where it does, or that is not known yet."""
        with self._mutex:
            return self._problems.get(key)

    def allows(self, address: str) -> bool:
        """Whether an address is one of the networks'."""
        at = ipaddress.ip_address(address)
        return any(at.version == network.version and at in network for network in self.networks)

    def run(self, stop: threading.Event) -> None:
        """Serve until the event is set."""
        asyncio.run(self.serve(stop))

    async def serve(self, stop: threading.Event) -> None:
        """The same, in an event loop that is there."""
        open_ones: dict[RunnerAddress, Runner] = {}
        try:
            await self._rounds.run(stop, partial(self._match, open_ones))
        finally:
            await asyncio.gather(*(runner.close() for runner in open_ones.values()))

    async def _match(self, open_ones: dict[RunnerAddress, Runner]) -> None:
        with self._mutex:
            wanted = set(self._wanted.values())
        for at in [at for at in open_ones if at not in wanted]:
            await open_ones.pop(at).close()
        for at in wanted - open_ones.keys():
            runner = Runner(at.key, MachineCpuShare(self._operations, at), allows=self.accepts_peer)
            try:
                await runner.listen(at.address, at.port)
            except OSError as error:
                self._note(at, f"its runner cannot listen at {at.address} port {at.port}: {error.strerror or error}")
            else:
                open_ones[at] = runner
                self._note(at, None)

    def accepts_peer(self, peer: str) -> bool:
        """Whether who comes from there is answered: this host itself may come from another address of its own."""
        return ipaddress.ip_address(peer).is_loopback or self.allows(peer)

    def _note(self, at: RunnerAddress, problem: str | None) -> None:
        with self._mutex:
            if self._wanted.get(at.key) != at or self._problems.get(at.key) == problem:
                return
            if problem is None:
                self._problems.pop(at.key)
            else:
                self._problems[at.key] = problem
        if problem is not None:
            _log.warning("%s: %s", at.key, problem)
        self._changed(at.key)
