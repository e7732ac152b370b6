"""The parts of ``devalloc up`` beside the allocator: the node plugin, in a thread of its own, and the page."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from socket import AF_INET, AF_INET6, create_server, gethostname
from typing import TYPE_CHECKING, Any

from devalloc.backoff import Backoff
from devalloc.cli.command import BadInput, CommandFailed
from devalloc.service_manager import Heartbeat, Round, ServiceManager
from devalloc.settings import Setting
from devalloc.worker import DONE, repeat
from devalloc_node.errors import NodeError

if TYPE_CHECKING:
    import threading

    from devalloc.api.views import MachineView
    from devalloc.controller.standalone import Standalone
    from devalloc.inventory.config import DeviceRecords
    from devalloc.store import Event, Key, Store
    from devalloc.store.watcher import Listed
    from devalloc_node.machines import MachineSettings
    from devalloc_node.node import Node

log = logging.getLogger(__name__)

REQUIRED_PACKAGES = ("grpc", "qemu.qmp", "pyroute2", "prometheus_client")
"""Packages that only the node plugin needs, not the rest of ``devalloc up``."""
RETRY_SECONDS, MAX_RETRY_SECONDS = 5.0, 300.0
"""Seconds before another try after a failed start, doubled after each failure; and the maximum."""
_MACHINE = "VirtualMachine"
_MAX_REASONS = 20
"""Reasons why one machine cannot start that the log has at most, until the machine runs."""
_SETTLED_PHASES = ("Running", "Paused", "Stopped", "Failed")
_LIVE_PHASES = ("Running", "Paused")
STOP_SECONDS = 5.0
"""How long a stop waits for it, in seconds. Unfinished work is in its journal."""


def missing_requirement() -> str | None:
    """Why it cannot run in this process; None if it can."""
    absent = [name for name in REQUIRED_PACKAGES if not _is_there(name)]
    return f"missing packages: {', '.join(absent)}; pip install 'devalloc[node]'" if absent else None


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


class StandaloneNode:
    """The plugin's thread. It starts with the first look at the devices: only then no other ``devalloc up`` can run."""

    def __init__(
        self,
        store: Path,
        state: Path,
        node_name: str,
        settings: Callable[[], MachineSettings],
        *,
        rescan: Callable[[], None],
        say: Callable[[str], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """``settings``: called at each start, since what they depend on may have changed. ``failed``: called with the
        error that ends the plugin after it has served."""
        self._store = store
        self._state = state
        self._node_name = node_name
        self._settings = settings
        self._rescan = rescan
        self._print = say
        self._reported: set[str] = set()
        """What tries that failed have said already."""
        self._failed = failed
        self._serving = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._node: Node | None = None

    @property
    def node(self) -> Node | None:
        """The plugin; None while it is not running."""
        return self._node

    @property
    def is_serving(self) -> bool:
        """Whether it has served since it started."""
        return self._serving.is_set()

    def initial_records(self) -> DeviceRecords:
        """What its journal knows about the devices, before it runs: reading the journal is faster than loading it."""
        from devalloc.inventory.config import DeviceRecords
        from devalloc.store import StoreError

        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="node-plugin", daemon=True)
            self._thread.start()
        try:
            return _recorded(self._state, self._store, self._node_name)
        except StoreError as error:  # the plugin reports the error, and may create a new journal
            self._say(f"cannot read the journal of the node plugin yet: {error}")
            return DeviceRecords()

    def stop(self) -> bool:
        """Stop it, and wait for a short time; False if it has not ended by then."""
        self._stopped.set()
        if (node := self._node) is not None:
            node.stop()
        if self._thread is None:
            return True
        self._thread.join(STOP_SECONDS)
        return not self._thread.is_alive()

    def _say(self, text: str) -> None:
        """Print a line. Until the plugin serves, repeated lines are printed once."""
        if not self._serving.is_set():
            if text in self._reported:
                return
            self._reported.add(text)
        self._print(text)

    def _run(self) -> None:
        backoff = Backoff(RETRY_SECONDS, MAX_RETRY_SECONDS)

        def serve() -> float:
            try:
                self._serve()
            except Exception as error:
                self._node = None
                if not self._serving.is_set():
                    pause = backoff.next_delay()
                    self._print(
                        "WARNING: the node plugin does not run, so devices are allocated but not bound, and machines "
                        f"do not start; next try in {pause:.0f} s: {error}"
                    )
                    self._rescan()
                    return pause
                ended = CommandFailed(f"the node plugin ended: {error}")
                ended.__cause__ = error
                self._failed(ended)
            return DONE

        repeat(self._stopped, serve, RETRY_SECONDS, "the node plugin does not run")

    def _serve(self) -> None:
        from devalloc.cli import node_wiring as on
        from devalloc.store.sqlite import SQLiteStore
        from devalloc_node.daemon import Publisher, run_daemon
        from devalloc_node.node import open_node

        settings = self._settings()
        dry_run = settings.dry_run
        with ExitStack() as stack:
            host = on.make_host(settings, dry_run=dry_run, say=self._say)
            store = stack.enter_context(closing(SQLiteStore(self._store)))
            node = stack.enter_context(open_node(settings, host, on.store_source(store, settings.node_name)))
            node.reconciler.look()
            self._node = node
            if self._stopped.is_set():
                return
            self._rescan()
            extra_loops: list[Callable[[threading.Event], None]] = [self._has_begun]
            if not dry_run:  # a dry run neither starts nor ends machines
                extra_loops += on.store_loops(store, node, alone=True, say=self._say)
            run_daemon(node, Publisher((), self._rescan), self._say, extra_loops=extra_loops)

    def _has_begun(self, stop: threading.Event) -> None:
        self._serving.set()


@dataclass(frozen=True)
class LoopsAndPlugin:
    """The loops and the plugin together, for signals."""

    loops: Standalone
    plugin: StandaloneNode

    def stop(self) -> None:
        self.loops.stop()

    def rescan(self) -> None:
        node = self.plugin.node  # it checks its claims, too
        (self.loops if node is None else node).rescan()


def heartbeat(loops: Standalone, plugin: Callable[[], StandaloneNode | None]) -> Heartbeat:
    """What systemd hears of `devalloc up`: it is ready when devices are published and the plugin, if any, serves."""

    def is_ready() -> bool:
        started = plugin()
        return loops.is_looked.is_set() and (started is None or started.is_serving)

    def rounds() -> Iterator[Round]:
        yield from loops.rounds
        started = plugin()
        if started is not None and (node := started.node) is not None:
            yield from node.rounds

    return Heartbeat(ServiceManager(), is_ready, rounds)


def previous_name(state: Path) -> str | None:
    """The name under which the plugin with this state folder last served; None: none has, or that cannot be read."""
    from devalloc.store import StoreError
    from devalloc_node.journal import open_journal
    from devalloc_node.journal.sqlite import FILE, NODE_NAME

    if not (state / FILE).exists():
        return None
    try:
        with closing(open_journal(state)) as journal:
            return journal.setting(NODE_NAME)
    except (StoreError, NodeError) as error:  # the plugin reports it too, and may create a new journal
        log.warning("cannot read the previous name of this node: %s", error)
        return None


def _recorded(state: Path, store: Path, node_name: str) -> DeviceRecords:
    from devalloc.inventory.config import DeviceRecords
    from devalloc.store.sqlite import SQLiteStore
    from devalloc_node.claims.cleanup import check_existence
    from devalloc_node.claims.journal_content import inventory_facts
    from devalloc_node.claims.store_grants import KIND, StoreGrants
    from devalloc_node.journal import open_journal
    from devalloc_node.journal.sqlite import FILE

    if not (state / FILE).exists():
        return DeviceRecords()
    with closing(open_journal(state)) as journal, closing(SQLiteStore(store)) as objects:
        try:
            gone = check_existence(journal, {KIND: StoreGrants(objects, node_name)}).unknown
        except NodeError:  # the plugin reports it
            gone = {}
        return inventory_facts(journal, gone)


class MachineLog:
    """Says once of each machine of the store that it started, stopped or moved, not what was so before; and once for
    each reason why it cannot start."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._seen: dict[str, tuple[str, str]] = {}
        """Phase and node of each machine, by the UID of its object."""
        self._logged_reasons: dict[str, set[str]] = {}
        """By UID: reasons logged since the machine last ran."""

    def run(self, store: Store, stop: threading.Event) -> None:
        """Follow the store until ``stop`` is set. Raises Unusable."""
        from devalloc.store.watcher import Watcher

        Watcher(store, _MACHINE, self._heard, "could not watch the machines").run(stop)

    def _heard(self, change: Listed | Event) -> None:
        from devalloc.store import Event

        if isinstance(change, Event):
            self.note(change.object, is_gone=change.type.value == "DELETED")
            return
        uids = {machine["metadata"]["uid"] for machine in change.objects}
        self._seen = {uid: state for uid, state in self._seen.items() if uid in uids}
        self._logged_reasons = {uid: reasons for uid, reasons in self._logged_reasons.items() if uid in uids}
        for machine in change.objects:
            self.note(machine, is_new=machine["metadata"]["uid"] not in self._seen)

    def note(self, machine: dict[str, Any], *, is_new: bool = False, is_gone: bool = False) -> None:
        """Compare the state of a machine with its last one. ``is_new``: it was like this when the log began."""
        from devalloc.api.views import MachineView
        from devalloc.store import Key

        view, uid = MachineView(machine), machine["metadata"]["uid"]
        phase, node = str(view.status.get("phase", "")), str(view.status.get("nodeName") or "")
        before, before_node = self._seen.pop(uid, ("", ""))
        has_left = phase == "Pending" and not view.is_held  # else it is on its way from one phase to another
        if phase not in _SETTLED_PHASES and not has_left and not is_gone:
            phase, node = before, before_node
        name, ran, runs = Key.of(machine), before in _LIVE_PHASES, phase in _LIVE_PHASES and not is_gone
        if not is_gone:
            self._seen[uid] = (phase, node)
        if is_gone or view.status.get("phase") == "Running":
            self._logged_reasons.pop(uid, None)
        else:
            self._note_wait(name, uid, view, has_just_stopped=ran and not runs)
        if is_new:
            return
        if runs and not ran:
            self._say(f"{name} started on node {node}")
        elif runs and node != before_node:
            self._say(f"{name} moved from node {before_node} to node {node}")
        elif runs and phase != before:
            why = view.status.get("message") or view.status.get("reason")
            self._say(f"{name} runs again" if phase == "Running" else f"{name} is paused{f': {why}' if why else ''}")
        elif ran and not runs:
            why = "it was deleted" if is_gone else view.status.get("message") or view.status.get("reason")
            self._say(f"{name} stopped{f': {why}' if why else ''}")

    def _note_wait(self, name: Key, uid: str, view: MachineView, *, has_just_stopped: bool) -> None:
        """``has_just_stopped``: the line about that has the reason."""
        reason = str(view.status.get("reason") or "")
        reported = self._logged_reasons.setdefault(uid, set())
        phase = view.status.get("phase")
        is_waiting = phase == "Pending" or (phase == "Unknown" and reason == "MachineRuns")  # another folder's plugin
        if (
            not (is_waiting and reason)
            or view.metadata.get("deletionTimestamp")
            or reason in reported
            or len(reported) >= _MAX_REASONS
        ):
            return
        reported.add(reason)
        if not has_just_stopped:
            message = view.status.get("message")
            self._say(f"{name} cannot start ({reason}){f': {message}' if message else ''}")


TOKEN_FILE = "page-token"
"""Name of the token's file, beside the store."""


PAGE = Setting(
    "Serve a page with nodes, devices, claims and machines here, such as 127.0.0.1:10301. It asks for a token; a new "
    f"one is printed at every start and kept in {TOKEN_FILE} beside the store. Addresses other than those of this "
    "machine itself use TLS.",
    flag="--page",
    metavar="HOST:PORT",
    usual=True,
)


class StandalonePage:
    """A page that shows a store to everyone who has the token."""

    def __init__(self, address: str, store: Path, say: Callable[[str], None], *, on_terminal: bool) -> None:
        """Raises BadInput for an invalid address."""
        from secrets import token_urlsafe

        self.host, self.port = _host_and_port(address)
        self._file = store.parent / TOKEN_FILE
        self._say = say
        self._on_terminal = on_terminal
        self._token = token_urlsafe(32)

    def check_port(self) -> None:
        """Before anything is written: whether it can listen there. Raises CommandFailed."""
        try:
            create_server((self.host, self.port), family=AF_INET6 if ":" in self.host else AF_INET).close()
        except OSError as error:
            raise self._listen_error(error) from error

    def _listen_error(self, error: OSError) -> CommandFailed:
        why = os.strerror(error.errno) if error.errno else str(error)  # asyncio's strerror also has the address
        advice = "; name another port" if error.errno == errno.EADDRINUSE else ""
        return CommandFailed(f"--page cannot listen at {self.host}:{self.port}: {why}{advice}")

    def run(self, store: Store, stop: threading.Event) -> None:
        """Serve until ``stop`` is set. Raises CommandFailed if it cannot listen."""
        from markupsafe import Markup

        from devalloc.controller.http_endpoints import HttpSite
        from devalloc.controller.page import FleetPage, SingleTokenAuthorizer

        hint = Markup("<p>devalloc up printed it at its start; it is also in the file <code>{}</code>.</p>").format(
            self._file
        )
        pages = FleetPage(store, SingleTokenAuthorizer(self._token), hint=hint)
        site = HttpSite(
            pages.mounted(),
            None,
            host=self.host,
            port=self.port,
            tls=None if self._is_local else self._tls(),
            on_ready=self._tell,
        )
        try:
            with self._token_file():
                site.run(stop)
        except OSError as error:
            raise self._listen_error(error) from error
        finally:
            pages.close()

    @property
    def _is_local(self) -> bool:
        return self.host == "localhost" or ip_address(self.host).is_loopback

    def _tls(self) -> Any:
        try:
            from devalloc.controller.certificate import self_signed

            return self_signed([self.host, gethostname(), "localhost"])
        except ImportError:
            raise CommandFailed(
                f"--page needs a certificate at {self.host}, and cryptography to make one: "
                "pip install 'devalloc[controller]', or use 127.0.0.1"
            ) from None

    def _tell(self, address: tuple[str, int]) -> None:
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        how = f"token {self._token}" if self._on_terminal else f"its token is in {self._file}"
        self._say(f"page http{'' if self._is_local else 's'}://{host}:{address[1]}/devalloc/, {how}")

    @contextmanager
    def _token_file(self) -> Iterator[None]:
        """While inside, keep the token in its file, which only this user can read."""
        with suppress(FileNotFoundError):
            self._file.unlink()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(self._file, flags, 0o600), "w") as file:
            file.write(f"{self._token}\n")
        try:
            yield
        finally:
            with suppress(OSError):
                self._file.unlink()


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        if host != "localhost":
            ip_address(host)
        if not port.isascii() or not port.isdecimal() or int(port) > 65535:
            raise ValueError
    except ValueError:
        raise BadInput(f"--page {address}: use an IP address and a port, such as 127.0.0.1:10301") from None
    return host, int(port)
