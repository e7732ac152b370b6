"""A record of how a real machine is scaled: what the parties say on the wire, and what QEMU did, by QEMU's own clock.

Nothing of it comes from devalloc, so that it can judge devalloc: messages are read off the network (``wiretap``), and
what a machine has comes from QEMU's trace of its own commands and of its virtio-mem device (``QEMU_TRACE``).
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from devalloc.scaling.peer_json import bytes_from_json, cpu_from_json
from devalloc.store.sqlite import SQLiteStore
from tests.support.wiretap import WireMessage, wiretap

GAUGES, PERMITS, MONITOR = 9100, 10299, 10301
TRACE_FILE = "trace.log"
QEMU_TRACE = (
    *("-msg", "timestamp=on", "-D", TRACE_FILE, "-trace", "handle_qmp_command", "-trace", "monitor_qmp_respond"),
    *("-trace", "virtio_mem_plug_request", "-trace", "virtio_mem_unplug_request"),
    *("-trace", "virtio_mem_send_response"),
)
"""Arguments of QEMU, 10 or newer; it writes ``TRACE_FILE`` in the folder that it runs in."""
BLOCK, GIB = 2 << 20, 1 << 30
STATUS = ("wanted", "permitted", "applied", "observed")
_LINE = re.compile(r"\d+@(\d+\.\d+):(\w+) (.*)")
_BLOCKS = re.compile(r"nb_blocks=(\d+)")
_GAUGE = re.compile(r"^(host_\w+|devalloc_guest_\w+) ([0-9.e+-]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Amounts:
    """CPUs, and bytes of memory."""

    cpus: float
    memory: int

    def at_least(self, other: Amounts) -> bool:
        return self.cpus >= other.cpus and self.memory >= other.memory

    @property
    def named(self) -> dict[str, float]:
        return {"cpus": self.cpus, "memory": self.memory}

    @property
    def as_status(self) -> dict[str, str]:
        """As a VirtualMachine's status has it: whole GiB."""
        return {"cpus": f"{self.cpus:g}", "memory": f"{self.memory >> 30}Gi"}


@dataclass(frozen=True, slots=True)
class Event:
    """CPUs in whole and parts, memory in bytes; None where it is not spoken of."""

    at: float
    """Seconds since 1970."""
    what: str
    """``load``: gauges were read. ``asked``, ``permitted``. ``told``: what it has now, to the monitor; ``heard``: the
    monitor has it. ``may``: the monitor is asked for less; ``agreed``, ``denied``. ``wants``: the monitor wants more.
    ``plugging``, ``unplugging``: QEMU was asked; ``has``: QEMU has done it. Anything else is the test's own, and
    ``status``, what the machine's object says."""
    cpus: float | None = None
    memory: int | None = None
    more: dict[str, Any] = field(default_factory=dict)


class Record:
    """Of one machine. ``events`` is for any thread, in the order of time."""

    def __init__(self, least_memory: int, cpus: int = 1) -> None:
        self._heard: list[Event] = []
        self._mutex = threading.Lock()
        self._requests: dict[int, tuple[float, int]] = {}
        self._least = (float(cpus), least_memory)
        self._trace: Callable[[], Path | None] = lambda: None

    @contextmanager
    def running(self, trace: Callable[[], Path | None]) -> Iterator[None]:
        """Record what is said in this thread's network. ``trace`` finds QEMU's file, once it is there."""
        self._trace = trace
        with wiretap(frozenset((GAUGES, PERMITS, MONITOR)), self._hear):
            yield

    @contextmanager
    def following(self, store: Path) -> Iterator[None]:
        """Note also what the machine's status says: ``status``."""
        over = threading.Event()
        with ThreadPoolExecutor(1, "status") as executor:
            watching = executor.submit(self._follow, store, over)
            try:
                yield
            finally:
                over.set()
                watching.result()

    def _follow(self, path: Path, over: threading.Event) -> None:
        before: dict[str, Any] = {}
        with closing(SQLiteStore(path)) as store:
            for change in store.watch(["VirtualMachine"], stop=over):
                status = change.object.get("status", {})
                parts = {name: _wire_amounts(status[name]) for name in STATUS if name in status}
                if parts != before:
                    self.note("status", **parts)
                    before = parts

    def phase(self, name: str) -> float:
        """What the guest does from now on; when."""
        return self.note("phase", name=name)

    def note(self, what: str, **more: Any) -> float:
        """Something that the test does or saw; when."""
        now = time.time()
        self._add(Event(now, what, more=more))
        return now

    def events(self) -> list[Event]:
        trace = self._trace()
        of_qemu = [] if trace is None else list(done_by_qemu(trace.read_text(errors="replace"), *self._least))
        with self._mutex:
            return sorted([*self._heard, *of_qemu], key=lambda event: event.at)

    def first(self, what: str, after: float = 0.0, **amounts: float) -> Event:
        """The first such event; AssertionError where there is none."""
        event = self.find(what, after, **amounts)
        assert event is not None, f"no {what} {amounts or ''} in\n" + "\n".join(map(event_text, self.events()))
        return event

    def find(self, what: str, after: float = 0.0, **amounts: float) -> Event | None:
        for event in self.events():
            if event.at > after and event.what == what and amounts.items() <= asdict(event).items():
                return event
        return None

    def content(self) -> list[dict[str, Any]]:
        """As JSON, in seconds since the beginning, and of memory that comes or goes no more than can be seen."""
        events = self.events()
        begun, last, rows = events[0].at, 0.0, []
        for event, after in zip(events, [*events[1:], None], strict=True):
            if event.what == "has" and after is not None and after.what == "has" and event.at < last + 0.1:
                continue
            last = event.at
            fields = {name: value for name, value in asdict(event).items() if value not in (None, {})}
            rows.append({**fields, "at": round(event.at - begun, 4)})
        return rows

    def last(self, what: str, before: float) -> Event:
        """The last such event until then."""
        return [event for event in self.events() if event.at < before and event.what == what][-1]

    def _add(self, event: Event) -> None:
        with self._mutex:
            self._heard.append(event)

    def _hear(self, message: WireMessage) -> None:
        content = json.loads(message.text) if message.text.startswith("{") else {}
        if message.port == GAUGES and message.by_server:
            gauges = {name: float(value) for name, value in _GAUGE.findall(message.text)}
            if gauges:
                self._add(Event(message.at, "load", more=gauges))
        elif message.port == PERMITS and content:
            what, part = ("permitted", "permit") if message.by_server else ("asked", "resources")
            self._add(Event(message.at, what, *_amounts(content[part]["vCPUs"], content[part]["mem"])))
        elif message.port == MONITOR and content:
            self._between(message, content)

    def _between(self, message: WireMessage, content: dict[str, Any]) -> None:
        """Agent and monitor."""
        kind, about = content.get("type"), content.get("content", {})
        if kind in ("UpscaleNotification", "DownscaleRequest"):
            amounts = about.get("granted") or about["target"]
            self._requests[content["id"]] = _amounts(amounts["cpu"], amounts["mem"])
            self._add(Event(message.at, "told" if "granted" in about else "may", *self._requests[content["id"]]))
        elif kind == "UpscaleConfirmation":
            self._add(Event(message.at, "heard", *self._requests.get(content["id"], (None, None))))
        elif kind == "DownscaleResult":
            requested = self._requests.get(content["id"], (None, None))
            self._add(
                Event(message.at, "agreed" if content["Ok"] else "denied", *requested, more={"why": content["Status"]})
            )
        elif kind == "UpscaleRequest":
            self._add(Event(message.at, "wants"))


def steps_wait_for_each_other(events: list[Event], least: Amounts) -> None:
    """At no instant has any part gone ahead of the one before it in the order (docs/scaling.md)."""
    has = permitted = requested = allowed = least
    for event in events:
        amounts = Amounts(event.cpus or 0, event.memory or 0)
        if event.what == "asked":
            # Less is asked for when QEMU has let go of it, not before.
            assert amounts.at_least(requested) or amounts.at_least(has), f"{event_text(event)}: it still has {has}"
            requested = amounts
        elif event.what == "permitted":
            permitted = amounts
        elif event.what == "plugging":
            assert permitted.at_least(amounts), f"{event_text(event)}: permitted are {permitted}"
        elif event.what == "told":
            assert has.at_least(amounts), f"{event_text(event)}: it has {has}"
            allowed = amounts
        elif event.what == "agreed":
            allowed = amounts
        elif event.what == "unplugging":
            left = Amounts(event.cpus or has.cpus, event.memory or has.memory)
            assert left.at_least(allowed), f"{event_text(event)}: agreed to are {allowed}"
        elif event.what == "has":
            has = Amounts(event.cpus or has.cpus, event.memory or has.memory)


def done_by_qemu(trace: str, cpus: float, memory: int) -> Iterator[Event]:
    """What QEMU was asked to change, and when it was done. It begins with ``cpus`` and ``memory``."""
    base, waiting, blocks = memory, None, 0
    for line in trace.splitlines():
        if (match := _LINE.match(line)) is None:
            continue
        at, what, text = float(match[1]), match[2], match[3]
        if what == "handle_qmp_command":
            waiting = json.loads(text.partition("req: ")[2])
            arguments = waiting.get("arguments", {})
            if waiting["execute"] in ("device_add", "device_del") and _is_cpu(arguments):
                way = "plugging" if waiting["execute"] == "device_add" else "unplugging"
                yield Event(at, way, cpus=cpus + (1 if way == "plugging" else -1))
            elif waiting["execute"] == "qom-set" and arguments.get("property") == "requested-size":
                wanted = base + int(arguments["value"])
                if wanted != memory:
                    yield Event(at, "plugging" if wanted > memory else "unplugging", memory=wanted)
        elif what == "monitor_qmp_respond" and waiting is not None and "resp: " in text:
            answer = json.loads(text.partition("resp: ")[2])
            if "return" in answer and waiting["execute"] == "device_add" and _is_cpu(waiting["arguments"]):
                cpus += 1
                yield Event(at, "has", cpus=cpus)
            there = answer.get("return") if waiting["execute"] == "query-hotpluggable-cpus" else None
            if there is not None and (now := sum("qom-path" in slot for slot in there)) != cpus:
                cpus = float(now)
                yield Event(at, "has", cpus=cpus)
            if "return" in answer or "error" in answer:
                waiting = None
        elif what in ("virtio_mem_plug_request", "virtio_mem_unplug_request") and (count := _BLOCKS.search(text)):
            blocks = int(count[1]) if what == "virtio_mem_plug_request" else -int(count[1])
        elif what == "virtio_mem_send_response" and blocks:
            if text.split("=")[-1].strip() == "0":  # done
                memory += blocks * BLOCK
                yield Event(at, "has", memory=memory)
            blocks = 0


def event_text(event: Event) -> str:
    amounts = "" if event.cpus is None else f" {event.cpus:g} CPU"
    amounts += "" if event.memory is None else f" {event.memory / (1 << 20):.0f}Mi"
    load = f" {event.more['host_load1']:g}" if event.what == "load" else ""
    return f"{time.strftime('%H:%M:%S', time.gmtime(event.at))}.{event.at % 1 * 1000:03.0f} {event.what}{amounts}{load}"


def _amounts(cpus: Any, memory: Any) -> tuple[float, int]:
    """Numbers, or quantities as the protocols have them."""
    return cpu_from_json(cpus) / 1000, bytes_from_json(memory)


def _wire_amounts(amounts: dict[str, Any]) -> dict[str, float]:
    cpus, memory = _amounts(amounts["cpus"], amounts["memory"])
    return {"cpus": cpus, "memory": memory}


def _is_cpu(arguments: dict[str, Any]) -> bool:
    return bool(re.fullmatch(r"cpu\d+", str(arguments.get("id", ""))))
