"""What `prepare` is measured on: an engine with its real parts over a kernel that another process plays."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from devalloc.api import meta
from devalloc.inventory.sysfs import Folder, Tree
from devalloc.store.sqlite import SQLiteStore
from devalloc_node.binding.binding import BindingConfig
from devalloc_node.binding.registry import Bindings, step_kinds
from devalloc_node.claims import ClaimLocks, Claims, DeviceHost
from devalloc_node.claims.claim_files import ClaimFiles, FileKind
from devalloc_node.claims.store_grants import StoreGrants, claim_ref
from devalloc_node.host.files import Files
from devalloc_node.journal import Journal, open_journal
from devalloc_node.journal.sqlite import SQLiteJournal
from devalloc_node.model.grant import ClaimRef, GrantedDevice
from tests.support.fake_host import FakeHost, RemoteHost, serving
from tests.support.fake_tree import memory_folder
from tests.support.fault_gates import CHANGES, WRITES
from tests.support.toy_host import ToyGrants

_ALIASES = 20_000
"""Lines of ``modules.alias`` on a host with a distribution's kernel."""


@dataclass(frozen=True)
class PrepareSubject:
    """What is prepared, and where."""

    build: Callable[[FakeHost], None]
    device: GrantedDevice
    busy: bool = False
    """Look for who has the device open among the processes of this machine, which have thousands of descriptors."""
    whole: bool = False
    """With the claim in a store and a CDI spec on disk, as ``devalloc node`` has them."""


class WaitTimes(threading.local):
    """What the calls of a thread waited for since the last `take`, in seconds."""

    journal = kernel = 0.0
    writes = 0

    def take(self) -> tuple[float, float, int]:
        taken = self.journal, self.kernel, self.writes
        self.journal = self.kernel = 0.0
        self.writes = 0
        return taken


class TimedJournal:
    """A journal whose calls tell what they wait for."""

    def __init__(self, journal: SQLiteJournal, waits: WaitTimes, host: TimedHost) -> None:
        self.inner, self.waits, self.host = journal, waits, host

    def __getattr__(self, name: str) -> object:
        method = getattr(self.inner, name)

        def timed(*arguments: object) -> object:
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                return method(*arguments)
            finally:
                self.waits.journal += (time.perf_counter() - wall) - (time.thread_time() - cpu)
                self.waits.writes += name in WRITES

        return timed


class _BusyTree(Tree):
    """The files of a fake host, and the processes of this machine."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.proc = Folder(self, "/proc")

    def holds(self, path: str) -> bool:
        return super().holds(path) or path.startswith("/proc/")


class TimedHost(RemoteHost):
    """A host whose calls tell what they wait for, and which remembers its changes."""

    def __init__(self, root: Path, address: str, waits: WaitTimes, folder: str, *, busy: bool) -> None:
        super().__init__(root, address)
        self.waits, self.busy = waits, busy
        self.files = Files((folder,))
        self.changes: list[tuple[str, tuple[Any, ...]]] = []

    def tree(self) -> Tree:
        return _BusyTree(self.root) if self.busy else super().tree()

    def call(self, method: str, *arguments: Any) -> Any:
        if method in CHANGES:
            self.changes.append((method, arguments))
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            return super().call(method, *arguments)
        finally:
            self.waits.kernel += (time.perf_counter() - wall) - (time.thread_time() - cpu)

    def put_file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        self.files.put(path, content, mode)

    def remove_file(self, path: str) -> None:
        self.files.remove(path)


class StoredClaims:
    """Allocated claims in a store on disk."""

    def __init__(self, folder: Path) -> None:
        self.store = SQLiteStore(folder / "devalloc.db")
        self.grants = StoreGrants(self.store, "n")

    def add(self, uid: str, *devices: GrantedDevice) -> ClaimRef:
        """A claim that holds these."""
        name = f"claim-{uid}-{time.monotonic_ns()}"
        spec = {"claims": [{"deviceClass": "any", "count": len(devices)}]}
        metadata = {"name": name, "namespace": "default"}
        made = self.store.create(
            {"apiVersion": meta.DEVMGMT, "kind": "DeviceClaim", "metadata": metadata, "spec": spec}
        )
        allocations = [{"devicePoolName": device.pool, "deviceName": device.device} for device in devices]
        return claim_ref(self.store.replace_status({**made, "status": {"allocations": allocations}}))


Source = ToyGrants | StoredClaims


@contextmanager
def open_bench(
    subject: PrepareSubject, folder: str | None, build: Callable[[FakeHost], None] | None = None
) -> Iterator[tuple[Claims, Source]]:
    """An engine over a kernel that another process plays."""
    waits = WaitTimes()
    with ExitStack() as stack:
        root = Path(stack.enter_context(memory_folder()))
        state = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        address = stack.enter_context(_kernel(root, build or subject.build))
        journal = stack.enter_context(closing(open_journal(state / "node")))
        host = TimedHost(root, address, waits, str(state), busy=subject.busy)
        bindings = Bindings(host, BindingConfig("n", allowed=frozenset({"gpu", "vgpu", "vf"})))
        source: Source = ToyGrants()
        if subject.whole:
            source = StoredClaims(state)
            stack.callback(source.store.close)
        files = ClaimFiles("devalloc.io", state / "cdi", state / "data", journal)
        yield (
            Claims(
                cast(Journal, TimedJournal(journal, waits, host)),
                ClaimLocks(state / "locks"),
                {"DeviceClaim": source.grants if isinstance(source, StoredClaims) else source},
                DeviceHost(bindings.choose, remains=files.remains if subject.whole else lambda uid: ()),
                {**step_kinds(host), "file": FileKind(host)},
                render={"DeviceClaim": [files.spec]} if subject.whole else {},
            ),
            source,
        )


@contextmanager
def _kernel(root: Path, build: Callable[[FakeHost], None]) -> Iterator[str]:
    """A process that plays the kernel; the address it listens at."""
    ready_reader, says = os.pipe()
    stop_reader, asks = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(asks)
            host = FakeHost(root)
            build(host)
            host.proc("sys/kernel/osrelease", "6.12.0-bench\n")
            modules = root / "lib/modules/6.12.0-bench"
            modules.mkdir(parents=True)
            lines = (f"alias pci:v00008086d{number:08X}sv*sd*bc*sc*i* module_{number}\n" for number in range(_ALIASES))
            (modules / "modules.alias").write_text("".join(lines) + "alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci\n")
            with serving(host) as address:
                os.write(says, address.encode())
                os.read(stop_reader, 1)
        finally:
            os._exit(0)
    os.close(stop_reader)
    try:
        yield os.read(ready_reader, 4096).decode()
    finally:
        os.close(asks)
        os.waitpid(child, 0)
        os.close(ready_reader)
        os.close(says)


@contextmanager
def descriptors_held(count: int, each: int = 500) -> Iterator[None]:
    """Processes that have so many descriptors open between them, half of them pipes and half of them a file."""
    stop_reader, asks = os.pipe()
    ready_reader, says = os.pipe()
    children = []
    for _ in range(count // each):
        child = os.fork()
        if child == 0:
            try:
                os.close(asks)
                held = [os.pipe() for _ in range(each // 4)], [os.open(__file__, os.O_RDONLY) for _ in range(each // 2)]
                os.write(says, b"." if held else b"")
                os.read(stop_reader, 1)
            finally:
                os._exit(0)
        children.append(child)
    os.close(stop_reader)
    try:
        for _ in children:
            os.read(ready_reader, 1)
        yield
    finally:
        os.close(asks)
        for child in children:
            os.waitpid(child, 0)
        os.close(ready_reader)
        os.close(says)
