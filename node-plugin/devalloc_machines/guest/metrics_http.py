"""The gauges of a guest, from which goals are computed, and the page for metrics collectors: small, with a few requests
at a time at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from devalloc.scaling import metrics
from devalloc_machines.guest.memory import MemoryPolicy, read_memory
from devalloc_machines.guest.system import GuestSystem, online_cpus, present_cpus

_SECONDS = 5.0
_MOST_REQUEST = 4096
_MOST_AT_ONCE = 8


def gauges(system: GuestSystem, guard: MemoryPolicy, is_connected: bool) -> str:
    """In Prometheus' text format. Raises OSError, ValueError: without all of them an agent would judge by half."""
    load1, load5, *_ = system.read("proc/loadavg").split()
    float(load1), float(load5)
    now = read_memory(system)
    values = [
        ("host_load1", "Processes that run or wait for a CPU or a disk, averaged over 1 minute.", load1),
        ("host_load5", "Processes that run or wait for a CPU or a disk, averaged over 5 minutes.", load5),
        (metrics.MEMORY, "Memory that the guest has online.", now.total),
        ("host_memory_available_bytes", "Memory that is available without swapping.", now.available),
        ("host_memory_cached_bytes", "Page cache.", now.cached),
        (metrics.CPUS, "CPUs that the guest uses.", len(online_cpus(system))),
        ("devalloc_guest_cpus_present", "CPUs that the machine has.", len(present_cpus(system))),
        ("devalloc_guest_memory_used_bytes", "Memory in use as the monitor measures it.", guard.used),
        ("devalloc_guest_memory_threshold_bytes", "Usage at which the monitor requests more memory.", guard.threshold),
        ("devalloc_guest_agent_connected", "Whether an agent is connected.", int(is_connected)),
    ]
    return "".join(f"# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}\n" for name, help, value in values)


async def serve(page: Callable[[], str], host: str, port: int) -> asyncio.Server:
    """Serve ``/metrics``. Where ``page`` raises OSError or ValueError the answer is 503. Raises OSError."""
    busy = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal busy
        if busy >= _MOST_AT_ONCE:
            writer.transport.abort()
            return
        busy += 1
        try:
            async with asyncio.timeout(_SECONDS):
                writer.write(_answer(await reader.readuntil(b"\r\n\r\n"), page))
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            writer.transport.abort()  # it says nothing, too much, or does not listen
        finally:
            busy -= 1
            writer.close()

    return await asyncio.start_server(handle, host, port, limit=_MOST_REQUEST)


def _answer(request: bytes, page: Callable[[], str]) -> bytes:
    method, _, rest = request.partition(b"\r\n")[0].partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if method not in (b"GET", b"HEAD"):
        return _response("405 Method Not Allowed", "Only GET.\n")
    if path != b"/metrics":
        return _response("404 Not Found", "The metrics are at /metrics.\n")
    try:
        return _response("200 OK", page(), head=method == b"HEAD")
    except (OSError, ValueError) as error:
        return _response("503 Service Unavailable", f"{error}\n")


def _response(status: str, body: str, *, head: bool = False) -> bytes:
    content = body.encode("utf-8", "replace")
    lines = (
        f"HTTP/1.1 {status}",
        "Content-Type: text/plain; version=0.0.4; charset=utf-8",
        f"Content-Length: {len(content)}",
        "Connection: close",
        "\r\n",
    )
    return "\r\n".join(lines).encode() + (b"" if head else content)
