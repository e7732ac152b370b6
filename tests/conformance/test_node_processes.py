"""Two plugins on one state folder, as in a rolling update, with 32 requests each for the same VFs; one is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from devalloc_node.binding.binding import BindingConfig
from devalloc_node.binding.registry import Bindings, step_kinds
from devalloc_node.claims import ClaimLocks, Claims, DeviceHost
from devalloc_node.claims.cleanup import Reconciler
from devalloc_node.errors import NodeError
from devalloc_node.host.boundary import Host
from devalloc_node.journal import open_journal
from devalloc_node.model.grant import ClaimRef, GrantedDevice
from tests.support import pci_cards
from tests.support.fake_host import FakeHost, LocalHost, RemoteHost, serving
from tests.support.fake_tree import memory_folder
from tests.support.repository import REPO
from tests.support.toy_host import ToyGrants
from tests.support.waiting import until

VFS = 16
CLAIMS = 64
ROUNDS = 3
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(str(REPO / folder) for folder in (".", "solver", "node-plugin")),
}

PLUGIN = """
import sys
from tests.conformance.test_node_processes import use
use(*sys.argv[1:])
"""


@contextmanager
def plugin(host: Host, state: Path) -> Iterator[tuple[Claims, ToyGrants, list[ClaimRef]]]:
    """A plugin and the claims there are: each wants one or two of the VFs."""
    grants = ToyGrants()
    refs = []
    for number in range(CLAIMS):
        vfs = dict.fromkeys((number % VFS, number * 7 % VFS) if number % 3 == 0 else (number % VFS,))
        devices = [GrantedDevice(("0",), "n-0000-61-00", vf_name(vf)) for vf in vfs]
        refs.append(grants.add(f"uid-{number}", *devices))
    config = BindingConfig("n", allowed=frozenset({"vf"}))
    with closing(open_journal(state)) as journal:
        locks = ClaimLocks(state / "locks")
        yield (
            Claims(
                journal, locks, {"DeviceClaim": grants}, DeviceHost(Bindings(host, config).choose), step_kinds(host)
            ),
            grants,
            refs,
        )


def vf_name(index: int) -> str:
    number = 2 + index
    return f"0000-61-{number >> 3:02x}-{number & 7}"


def use(root: str, address: str, state: str, owned: str, first: str) -> None:
    """What each process does: half of the claims come and go, in threads; a file stands for each VF that is owned."""
    from concurrent.futures import ThreadPoolExecutor

    outcomes: Counter[str] = Counter()

    def user(ref: ClaimRef) -> None:
        for _ in range(ROUNDS):
            try:
                answer = claims.prepare(ref)
            except NodeError as error:
                outcomes[error.code] += 1
                time.sleep(0.01)
                continue
            functions = [function for device in answer.devices for function in device.functions]
            for function in functions:  # raises where it is owned already
                os.close(os.open(f"{owned}/{function}", os.O_CREAT | os.O_EXCL))
            outcomes["prepared"] += 1
            for function in functions:
                os.unlink(f"{owned}/{function}")
            claims.unprepare(ref)

    with plugin(RemoteHost(Path(root), address), Path(state)) as (claims, _, refs):
        with ThreadPoolExecutor(CLAIMS // 2) as pool:
            print("started", flush=True)
            list(pool.map(user, refs[int(first) :: 2]))
        print(json.dumps(outcomes), flush=True)


@contextmanager
def host_with_vfs() -> Iterator[tuple[FakeHost, Path, Path]]:
    """A host, the folder of a plugin's state, and an empty folder. At the end the host is as it was."""
    with memory_folder() as folder:
        owned = Path(folder) / "owned"
        owned.mkdir()
        host = FakeHost(Path(folder) / "host")
        host.add(pci_cards.connectx(sriov=pci_cards.Sriov(VFS, 2, 1, vf_device=0x101E, vf_driver="mlx5_core")))
        before = host.snapshot()
        yield host, Path(folder) / "state", owned
        assert host.snapshot() == before


def test_no_vf_is_owned_twice_and_all_is_put_back() -> None:
    with host_with_vfs() as (host, state, owned):
        with serving(host) as address:
            arguments = [sys.executable, "-c", PLUGIN, str(host.root), address, str(state), str(owned)]
            children = [
                subprocess.Popen([*arguments, first], env=ENVIRONMENT, cwd=REPO, stdout=subprocess.PIPE, text=True)
                for first in "01"
            ]
            outcomes: Counter[str] = Counter()
            for child in children:
                output, _ = child.communicate(timeout=240)
                assert child.returncode == 0, output
                outcomes += Counter(json.loads(output.splitlines()[-1]))
        assert outcomes["prepared"] > CLAIMS / 2
        assert set(outcomes) == {"prepared", "DeviceInUse"}
        assert list(owned.iterdir()) == []
        with plugin(LocalHost(host), state) as (claims, _, _refs):
            report = Reconciler(claims, boot_id=lambda: "boot").recover()
            assert report.stuck == []
            assert claims.describe() == {"claims": [], "shared": [], "withheld": []}


def test_what_a_killed_plugin_left_is_undone_by_the_other() -> None:
    with host_with_vfs() as (host, state, owned):
        before = host.snapshot()
        with serving(host) as address:
            others = threading.active_count()
            arguments = [sys.executable, "-c", PLUGIN, str(host.root), address, str(state), str(owned), "0"]
            with subprocess.Popen(arguments, env=ENVIRONMENT, cwd=REPO, stdout=subprocess.PIPE, text=True) as child:
                assert child.stdout is not None
                assert child.stdout.readline() == "started\n"
                until(lambda: host.snapshot() != before, "it has changed the host")
                child.kill()
                child.wait()
            # A process is dead, and its locks free, when its last call to the kernel has ended.
            until(lambda: threading.active_count() <= others, "its last call has ended")
        with plugin(LocalHost(host), state) as (claims, _, refs):
            reconciler = Reconciler(claims, boot_id=lambda: "boot")
            assert reconciler.recover().stuck == []
            for ref in refs:
                claims.unprepare(ref)
            assert reconciler.reconcile().stuck == []
            assert claims.describe() == {"claims": [], "shared": [], "withheld": []}
