"""The command as a process: signals, pipes, what the terminal cannot show, and ``up`` from its start to its end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from devalloc.cli.verbs.vm_create import machine_request
from devalloc_node.pb import node_pb2 as pb
from tests.support import dra_builders
from tests.support.cli_shell import INTERRUPTED, Shell, claim, devalloc, device_class, pool, text
from tests.support.fake_tree import one_nic
from tests.support.node_service import Served, served
from tests.support.repository import REPO
from tests.support.toy_machines import vm

__all__ = ["devalloc"]


def test_ctrl_c_ends_a_wait_at_once_with_130_and_no_message(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(claim()))
    environment = {**os.environ, "DEVALLOC_STORE": str(devalloc.store)}
    process = subprocess.Popen(
        [sys.executable, "-m", "devalloc.cli", "wait", "train", "--timeout=5m"],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not _sleeps(process.pid):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)

    _, err = process.communicate()
    assert process.returncode in INTERRUPTED
    assert err.strip() == ""


@pytest.mark.parametrize("arguments", [["crds"], ["--help"], ["get", "--help"]], ids=" ".join)
def test_a_reader_that_has_seen_enough_is_no_error(arguments: list[str]) -> None:
    """The exit code is that of a command that SIGPIPE ended, as the shell knows it."""
    reader, writer = os.pipe()
    os.close(reader)  # before the first byte: what fits into a pipe fails, too
    command = [sys.executable, "-m", "devalloc.cli", *arguments]

    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)

    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_up_answers_claims_of_both_dialects(devalloc: Shell) -> None:
    foreign = dra_builders.claim(dra_builders.request(class_name="gpu"), name="theirs")
    published = dra_builders.slice_("s", dra_builders.devices("gpu-0"), driver="gpu.example.com", pool="n")
    classes = device_class(), dra_builders.device_class("gpu")
    devalloc("apply", "-f", "-", stdin=text(pool(), *classes, foreign, published))
    environment = {**os.environ, "DEVALLOC_STORE": str(devalloc.store)}
    up = subprocess.Popen(
        [sys.executable, "-m", "devalloc.cli", "up", "--no-inventory", "--no-node"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        devalloc("apply", "-f", "-", stdin=text(claim()))
        waited = devalloc("wait", "train", "--timeout", "60s")
        other = devalloc("wait", "resourceclaim/theirs", "--timeout", "60s")
    finally:
        up.send_signal(signal.SIGTERM)
        _, log = up.communicate(timeout=60)

    assert (waited.code, waited.out) == (0, "deviceclaim/train allocated\n")
    assert (other.code, other.out) == (0, "resourceclaim/theirs allocated\n")
    assert "Traceback" not in log


BASE_ONLY = """
import contextlib, importlib.abc, io, json, sys
EXTRAS = {"aiohttp", "cryptography", "grpc", "grpc_health", "grpc_reflection", "h11", "jinja2", "kubernetes"}
EXTRAS |= {"markupsafe", "prometheus_client", "pyroute2", "pyudev", "qemu", "websockets"}
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
from devalloc.cli.main import run
for words in json.load(sys.stdin):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = run(words)
    print(code, bool(out.getvalue()))
"""


def test_what_every_installation_brings_is_enough() -> None:
    """Without the packages of any extra; that the solver's are no extra, tests of the images hold."""
    commands = {
        "demo": 0,
        "solve -f examples/whole-gpu": 0,
        "explain pair -f examples/unsatisfiable": 3,
        "capacity notebook -f examples/whole-gpu": 0,
        "dra allocate -f examples/dra --node example-a": 0,
    }
    words = json.dumps([command.split() for command in commands])
    done = subprocess.run([sys.executable, "-c", BASE_ONLY], input=words, cwd=REPO, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "".join(f"{code} True\n" for code in commands.values())


def _sleeps(pid: int) -> bool:
    """Whether the process has its store open: it is in its loop, or about to be."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            if "store.db" in os.readlink(link):
                return True
    return False


_IN_ALL_FORMS = """
import sys
from devalloc.cli.main import run

for form in ("table", "yaml", "json"):
    print(form, run(["solve", "-f", sys.argv[1], "-o", form]), flush=True)
"""


def test_what_cannot_be_written_is_escaped(tmp_path: Path) -> None:
    """Half a surrogate pair: in a name, and in what a claim holds, which is echoed as it came."""
    held = {"devices": {"results": [{"request": "r", "driver": "d", "pool": "p", "device": "HALF"}]}}
    claims: list[Any] = [{"metadata": {"name": "HALF"}}, {"metadata": {"name": "held"}, "status": {"allocation": held}}]
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    file = tmp_path / "half.json"
    file.write_text("".join(json.dumps({**kind, **one}) for one in claims).replace("HALF", "m\\ud800"))
    done = subprocess.run([sys.executable, "-c", _IN_ALL_FORMS, str(file)], capture_output=True, text=True)

    assert "bug in devalloc" not in done.stderr
    table, yaml, as_json = re.split(r"^(?:table|yaml|json) 2\n", done.stdout, flags=re.MULTILINE)[:3]
    assert all("m\\ud800" in each.lower() for each in (table, yaml, as_json))
    (echo,) = [one for one in json.loads(as_json)["claims"] if one["allocated"]]
    assert echo["allocations"] == {"devices": {"results": [{**held["devices"]["results"][0], "device": "m\ud800"}]}}


@pytest.fixture
def nic(tmp_path: Path) -> Path:
    """The root of a tree with one network card."""
    return one_nic(tmp_path / "host")


def test_up_answers_claims_until_it_gets_a_signal(devalloc: Shell, nic: Path) -> None:
    environment = {**os.environ, "DEVALLOC_STORE": str(devalloc.store)}
    arguments = ["up", "--sysfs-root", str(nic), "--node-name", "node-a"]
    process = subprocess.Popen(
        [sys.executable, "-m", "devalloc.cli", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not devalloc.store.exists() and process.poll() is None:
            time.sleep(0.05)
        devalloc("apply", "-f", "-", stdin=text(pool(), device_class(), claim()))
        assert devalloc("wait", "train", "--timeout", "1m").code == 0
        second = devalloc("up", "--no-inventory")
        assert second.code == 1
        assert f"process {process.pid} already runs devalloc on" in second.err
        assert second.out == "", "it does not say that it runs"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()

    assert process.returncode == 0
    assert "pools: created node-a-0000-00-03" in out
    assert "DeviceClaim default/train allocated" in out
    assert out.splitlines()[-1].endswith("stopped")
    assert "Traceback" not in err


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "node") as server:
        yield server


def test_watch_tells_what_is_and_what_changes(plugin: Served) -> None:
    command = [sys.executable, "-u", "-m", "devalloc.cli", "vm", "watch", "--socket", str(plugin.socket)]
    plugin.node.CreateMachine(machine_request(vm()))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().split()[:2] == ["CHANGE", "NAME"]
        assert process.stdout.readline().split()[:3] == ["Is", "web", "Running"]
        plugin.node.DeleteMachine(pb.DeleteMachineRequest(machine=pb.MachineRef(name="web")))
        assert any("Gone" in line for line in iter(process.stdout.readline, ""))
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in INTERRUPTED


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_with_its_output_closed_nothing_is_written_into_the_store_instead(devalloc: Shell, closed: str) -> None:
    devalloc("apply", "-f", "-", stdin=text(claim()))
    command = f'"{sys.executable}" -m devalloc.cli get claims {closed}'
    done = subprocess.run(["sh", "-c", command], env={**os.environ, "DEVALLOC_STORE": str(devalloc.store)})

    assert done.returncode == 0
    assert "train" in devalloc("get", "claims").out


_IN_THE_MIDDLE = """
import threading
from ortools.sat.python import cp_model
from devalloc.cli import main

begun = threading.Event()

class Watch(cp_model.CpSolverSolutionCallback):
    def on_solution_callback(self):
        begun.set()

def solve():
    model = cp_model.CpModel()
    for _ in range(40):
        model.new_bool_var("")
    solver = cp_model.CpSolver()
    solver.parameters.enumerate_all_solutions = True
    solver.parameters.max_time_in_seconds = 600
    solver.solve(model, Watch())

def run(arguments):
    threading.Thread(target=solve, daemon=True).start()
    assert begun.wait(120)
    print("ended")
    return 3

main.run = run
main.main([])
"""


def test_a_process_ends_cleanly_in_the_middle_of_a_solve() -> None:
    """Python cancels threads at its end. In C++ code that aborts the process: it looked like a crash to supervisors."""
    done = subprocess.run([sys.executable, "-c", _IN_THE_MIDDLE], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout, done.stderr) == (3, "ended\n", "")
