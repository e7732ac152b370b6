"""A network within one event loop whose clock jumps: connections without sockets, that can be cut and mended.

What is sent while a connection's link is cut arrives when it is mended, as TCP sends it again; who is gone by then
answers with a reset. No end hears of a cut: only timers notice it. Work for threads is done at once, or one step at a
time (`Lockstep`), so that nothing but the clock decides what comes first.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any, TypeVar, cast

from aiohttp import BaseConnector, ClientSession, ClientTimeout, DummyCookieJar
from aiohttp.client_proto import ResponseHandler

from tests.support.virtual_time import VirtualLoop

Result = TypeVar("Result")
Address = tuple[str, int]
Factory = Callable[[], asyncio.BaseProtocol]
LATENCY = 0.001


class Network:
    """Who listens where, and which links are cut. A link is all that leads to one address."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._listeners: dict[Address, Factory] = {}
        self._cut: dict[Address, asyncio.Future[None]] = {}
        self._ends: dict[_End, Address] = {}
        """The ends of those who listen."""

    def cut(self, link: Address) -> None:
        self._cut.setdefault(link, self.loop.create_future())

    def mend(self, link: Address) -> None:
        if (cut := self._cut.pop(link, None)) is not None:
            cut.set_result(None)
            for end, at in list(self._ends.items()):
                if at == link:
                    end.mended()
                    end.peer.mended()

    def is_cut(self, link: Address) -> bool:
        return link in self._cut

    def kill(self, address: Address) -> None:
        """Who listens there is no more, and neither are its connections."""
        self._listeners.pop(address, None)
        for end, at in list(self._ends.items()):
            if at == address:
                end.vanish()

    def listen(self, factory: Factory, address: Address) -> _Server:
        if address in self._listeners:
            raise OSError(98, "the port is in use")
        self._listeners[address] = factory
        return _Server(self, address)

    async def connect(self, factory: Factory, address: Address) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        while (cut := self._cut.get(address)) is not None:
            await asyncio.shield(cut)
        await asyncio.sleep(2 * LATENCY)
        if (listener := self._listeners.get(address)) is None:
            raise ConnectionRefusedError(111, "Connection refused")
        near, far = _End(self, address), _End(self, address)
        near.peer, far.peer = far, near
        self._ends[far] = address
        far.begin(listener())
        near.begin(factory())
        return near, near.get_protocol()

    def closed(self, end: _End) -> None:
        self._ends.pop(end, None)


class _Server:
    """As far as servers of asyncio are used."""

    def __init__(self, network: Network, address: Address) -> None:
        self._network, self._address = network, address
        self.sockets = (self,)

    def getsockname(self) -> Address:
        return self._address

    def close(self) -> None:
        self._network._listeners.pop(self._address, None)

    async def wait_closed(self) -> None:
        return


class _End(asyncio.Transport):
    """One end of a connection."""

    peer: _End

    def __init__(self, network: Network, link: Address) -> None:
        super().__init__({"peername": ("192.0.2.1", 1), "sockname": link})
        self._network, self._link = network, link
        self._protocol: asyncio.Protocol | None = None
        self._closing = self._is_gone = self._paused = False
        self._arriving: deque[Callable[[], None]] = deque()
        """What the network still has for this end, in order."""

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast("asyncio.Protocol", protocol)
        protocol.connection_made(self)

    # For the protocol

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if not self._closing:
            content = bytes(data)
            self.peer._send(lambda: self.peer._receive(content))

    def write_eof(self) -> None:
        self.peer._send(self.peer._receive_eof)

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.peer._send(self.peer._receive_eof)
            self._network.loop.call_soon(self._lost, None)

    def abort(self) -> None:
        if not self._is_gone:
            self._closing = True
            self.peer._send(self.peer._receive_reset)
            self._network.loop.call_soon(self._lost, None)

    def is_closing(self) -> bool:
        return self._closing

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast("asyncio.Protocol", protocol)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self.mended()

    def is_reading(self) -> bool:
        return not self._paused

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    # For the network

    def vanish(self) -> None:
        """Its process was killed: the protocol hears nothing, the peer a reset."""
        if not self._is_gone:
            self._closing = self._is_gone = True
            self._network.closed(self)
            self.peer._send(self.peer._receive_reset)

    def mended(self) -> None:
        if self._arriving:
            self._network.loop.call_later(LATENCY, self._arrive)

    def _send(self, what: Callable[[], None]) -> None:
        self._arriving.append(what)
        self._network.loop.call_later(LATENCY, self._arrive)

    def _arrive(self) -> None:
        while self._arriving and not self._paused and not self._network.is_cut(self._link):
            self._arriving.popleft()()

    def _receive(self, data: bytes) -> None:
        if self._is_gone:
            self.peer._send(self.peer._receive_reset)
        elif not self._closing and self._protocol is not None:
            self._protocol.data_received(data)

    def _receive_eof(self) -> None:
        if not self._closing and self._protocol is not None and not self._protocol.eof_received():
            self.close()

    def _receive_reset(self) -> None:
        if not self._is_gone:
            self._closing = True
            self._lost(ConnectionResetError(104, "Connection reset by peer"))

    def _lost(self, error: Exception | None) -> None:
        if not self._is_gone and self._protocol is not None:
            self._is_gone = True
            self._network.closed(self)
            self._protocol.connection_lost(error)


class NetworkLoop(VirtualLoop):
    """All its connections are of `network`."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.network = Network(self)

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        return await self.network.connect(factory, (host, port))

    async def create_server(self, factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        return self.network.listen(factory, (host, port))

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        if executor is not None:
            return asyncio.wrap_future(executor.submit(func, *args), loop=self)
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except BaseException as error:
            done.set_exception(error)
        return done


class _Connector(BaseConnector):
    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> ResponseHandler:
        _, protocol = await self._loop.create_connection(self._factory, req.url.host, req.url.port)
        return protocol


class ProcessKilled(BaseException):
    """Its process is no more."""


class Lockstep(Executor):
    """Threads of a process that run only while the loop waits for them: what they wait for takes time of its clock."""

    def __init__(self) -> None:
        self.running: set[_Thread] = set()
        self.is_killed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        thread = _Thread(self, lambda: fn(*args, **named))
        self.running.add(thread)
        thread.go_on()
        return thread.future

    def kill(self) -> None:
        """None of them goes on, nor does what it waits for."""
        self.is_killed = True
        for thread in self.running:
            if thread.waiting is not None:
                thread.waiting.cancel()


class _Thread:
    here = threading.local()

    def __init__(self, lockstep: Lockstep, work: Callable[[], Any]) -> None:
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()  # as one that a thread has begun with
        self._lockstep, self._work = lockstep, work
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._waits_for: Coroutine[Any, Any, Any] | None = None
        self.waiting: asyncio.Task[Any] | None = None
        self._end: tuple[Any, BaseException | None] | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def go_on(self) -> None:
        """In the loop: let it run until it waits for something, or ends."""
        self._go.release()
        self._stopped.acquire()
        if self._waits_for is not None:
            coroutine, self._waits_for = self._waits_for, None
            self.waiting = asyncio.get_running_loop().create_task(coroutine)
            self.waiting.add_done_callback(self._got_it)
            return
        self._lockstep.running.discard(self)
        assert self._end is not None
        result, error = self._end
        if isinstance(error, ProcessKilled):
            return  # no end is there to hear of it
        self.future.set_result(result) if error is None else self.future.set_exception(error)

    def wait_for(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """In the thread."""
        self._waits_for = coroutine
        self._stopped.release()
        self._go.acquire()
        assert self.waiting is not None
        if self._lockstep.is_killed:
            raise ProcessKilled
        return cast("Result", self.waiting.result())

    def _got_it(self, task: asyncio.Task[Any]) -> None:
        self.go_on()

    def _run(self) -> None:
        _Thread.here.thread = self
        self._go.acquire()
        try:
            self._end = self._work(), None
        except BaseException as error:
            self._end = None, error
        self._stopped.release()


def waited(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """In a thread of a `Lockstep`: what came of it, in the loop."""
    thread: _Thread = _Thread.here.thread
    return thread.wait_for(coroutine)


def session() -> ClientSession:
    """As `devalloc_machines.agent.http_client.new_session`, but for where its connections lead."""
    return ClientSession(
        connector=_Connector(limit=100),
        cookie_jar=DummyCookieJar(),
        auto_decompress=False,
        headers={"Accept-Encoding": "identity", "User-Agent": "devalloc"},
        timeout=ClientTimeout(total=None),
    )


def run(main: Callable[[NetworkLoop], Coroutine[Any, Any, Result]]) -> Result:
    """Run it on such a loop; what is logged as an error by the loop is raised."""
    errors: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=NetworkLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, NetworkLoop)
        loop.set_exception_handler(lambda _, context: errors.append(context))
        result = runner.run(main(loop))
    if errors:
        raise AssertionError(f"the event loop reported: {errors}") from errors[0].get("exception")
    return result
