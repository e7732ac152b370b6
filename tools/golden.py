"""Compare what the product answers with what it answered at a recorded commit.

    python -m tools.golden compare [SECTION...] [--show KEY]
    python -m tools.golden record

A record is one line for each answer: its key, a digest of its structure (codes, numbers, names) and a digest of all of
it, wording included. So a reworded message shows as wording, and a different allocation as a difference. What people
read (output of commands, HTTP and gRPC transcripts, manifests) is recorded as text, so that the comparison can print
both. An intended difference is listed with its reason in ``intended.toml``.

``--show KEY`` prints an answer in full. To see what it was, run the same in a worktree of the recorded commit.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import lzma
import multiprocessing
import os
import re
import shlex
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "data" / "golden"
RECORD = FOLDER / "record.json.xz"
INTENDED = FOLDER / "intended.toml"
INSTANCES = 5_000
"""Random instances of each dialect."""
SEQUENCES = 500
"""Random sequences of calls of a warm fleet, of each dialect."""
DEADLINE = 120.0
"""Seconds: so long that a busy machine gives the same answers."""

Answer = Any
"""JSON, or a text."""
Job = tuple[str, Callable[[], Answer]]

_WORDING = {"message", "warnings", "what", "example", "text"}
"""Keys of an answer whose values are sentences."""
_MASKS = (
    (re.compile(r"\b\d+(\.\d+)? (ms|s|min)\b"), r"N \2"),
    (re.compile(re.escape(str(ROOT))), "ROOT"),
    (re.compile(r"\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?"), "TIME"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "UID"),
    (re.compile(r'"givenBy": "[^"]*"'), '"givenBy": "SERVER"'),
)


def cases() -> Iterator[Job]:
    """Cases with known answers, of both dialects, and the examples."""
    from tests.support import reference_data

    for case in reference_data.claim_cases():
        yield f"cases/claims/{case['name']}", partial(_solve_claims, reference_data.documents(case))
    for case in reference_data.resource_claim_cases():
        yield f"cases/resourceclaims/{case['name']}", partial(_allocate, case)
    for folder in sorted(path for path in (ROOT / "examples").iterdir() if path.is_dir()):
        yield f"examples/{folder.name}", partial(_example, folder)


def claims() -> Iterator[Job]:
    """Random DeviceClaims, solved together."""
    for seed in range(INSTANCES):
        yield f"claims/{seed}", partial(_random_claims, seed)


def resourceclaims() -> Iterator[Job]:
    """Random ResourceClaims on a node, and a tenth as many on several nodes."""
    for seed in range(INSTANCES):
        yield f"resourceclaims/node/{seed}", partial(_random_resource_claims, seed)
    for seed in range(INSTANCES // 10):
        yield f"resourceclaims/cluster/{seed}", partial(_random_cluster, seed)


def fleets() -> Iterator[Job]:
    """Warm fleets that are asked for claim after claim while their devices change."""
    for seed in range(SEQUENCES):
        yield f"fleets/claims/{seed}", partial(_claim_fleet, seed)
        yield f"fleets/resourceclaims/{seed}", partial(_resource_fleet, seed)


def commands() -> Iterator[Job]:
    """What commands print: those of the documents, the help of each verb, CRDs and manifests."""
    for command in _commands():
        yield f"commands/{command}", partial(_run, command)


def wire() -> Iterator[Job]:
    """What is answered over HTTP and gRPC."""
    yield from _pages()
    yield from _dialogues()
    yield "grpc/files", _grpc_files
    yield "grpc/node", _grpc_node


def manifests() -> Iterator[Job]:
    """Manifests that are checked in."""
    for folder in ("crds", "deploy"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".yaml", ".json", ".tpl", ".conf", ".service") and path.is_file():
                yield f"manifests/{path.relative_to(ROOT)}", partial(_file, path)


SECTIONS: dict[str, Callable[[], Iterator[Job]]] = {
    section.__name__: section for section in (cases, claims, resourceclaims, fleets, commands, wire, manifests)
}
AS_TEXT = ("commands", "wire", "manifests")


# -- the solver -------------------------------------------------------------------------------------------------------


def _answer(content: Any) -> Answer:
    """An answer without what differs from run to run."""
    if isinstance(content, dict):
        return {key: _answer(value) for key, value in content.items() if key not in ("seconds", "shareID")}
    if isinstance(content, list | tuple):
        return [_answer(each) for each in content]
    return content


def _raised(error: Exception) -> Answer:
    facts = {key: _answer(value) for key, value in vars(error).items() if isinstance(value, str | int | bool | list)}
    return {"raised": type(error).__name__, "text": str(error), "facts": facts}


def _solve_claims(documents: list[Any]) -> Answer:
    from devalloc_solver import solve_manifests

    return _answer(solve_manifests(documents, deadline=DEADLINE))


def _random_claims(seed: int) -> Answer:
    from tests.support import random_fleets

    return _solve_claims(random_fleets.documents(Random(seed)))


def _allocate(instance: Any) -> Answer:
    from devalloc_solver import dra

    given = instance["input"]
    features = sorted(name for name, on in (instance.get("features") or {}).items() if on)
    allocated = {
        "devices": given.get("allocatedDevices") or [],
        "shares": given.get("allocatedSharedDeviceIDs") or [],
        "consumedCapacity": given.get("aggregatedCapacity") or [],
    }
    wanted, classes, slices = (given.get(key) or [] for key in ("claimsToAllocate", "classes", "slices"))
    arguments: dict[str, Any] = {"allocated": allocated, "features": features}
    try:
        results = dra.allocate(given["node"], wanted, classes, slices, deadline=DEADLINE, **arguments)
    except dra.AllocationError as error:
        return _raised(error)
    if results is None:
        return {"results": None, "explained": _answer(dra.explain(given["node"], wanted, classes, slices, **arguments))}
    return {"results": _answer(results)}


def _random_resource_claims(seed: int) -> Answer:
    from tests.support import dra_instances

    return _allocate(dra_instances.instance(Random(seed)))


def _random_cluster(seed: int) -> Answer:
    from devalloc_solver import dra
    from tests.support.dra_random_clusters import RandomCluster

    rng = Random(seed)
    cluster = RandomCluster(rng)
    documents = [*cluster.documents.values(), *(cluster.claim() for _ in range(4))]
    return _answer(dra.solve_manifests(documents, deadline=DEADLINE))


def _example(folder: Path) -> Answer:
    from devalloc.api.manifests import load
    from devalloc.machines.schedule.what_if import solve_with_machines

    loaded = load([folder])
    return {
        "answer": _answer(solve_with_machines([document.content for document in loaded.documents], deadline=DEADLINE)),
        "warnings": [str(problem) for problem in loaded.problems],
    }


def _claim_fleet(seed: int) -> Answer:
    from devalloc_solver import Fleet
    from tests.support import random_fleets

    documents = random_fleets.documents(Random(seed))
    waiting = [each for each in documents if each["kind"] == "DeviceClaim" and "status" not in each]
    fleet = Fleet.from_manifests([each for each in documents if each not in waiting])
    answers = [_called(fleet.allocate, claim, None) for claim in waiting]
    for claim in waiting[::2]:
        _called(fleet.release, claim["metadata"].get("namespace", "default"), claim["metadata"]["name"])
    answers.append(_called(fleet.allocate_all, waiting, None))
    pools = [each for each in documents if each["kind"] == "DevicePool"]
    if pools:
        answers.append(_called(fleet.update, {**pools[0], "spec": {**pools[0]["spec"], "devices": []}}))
        answers += [_called(fleet.allocate, claim, None) for claim in waiting]
    return answers


def _resource_fleet(seed: int) -> Answer:
    from devalloc_solver import Fleet
    from tests.support.dra_random_clusters import RandomCluster

    rng = Random(seed)
    cluster = RandomCluster(rng)
    fleet = Fleet.from_manifests([*cluster.documents.values()])
    answers, names = [], []
    for turn in range(8):
        claim = cluster.claim()
        names.append(claim["metadata"]["name"])
        answers.append(_called(fleet.allocate, claim, None))
        if turn % 3 == 2:
            answers.append(_called(fleet.release, "default", rng.choice(names)))
        if turn % 2 and (changed := cluster.changed_slice()) is not None:
            answers.append(_called(fleet.update, changed))
            cluster.put(changed)
    return answers


def _called(call: Callable[..., Any], *arguments: Any) -> Answer:
    try:
        return _answer(call(*deepcopy(arguments)))
    except (KeyError, ValueError) as error:
        return {"raised": type(error).__name__, "text": str(error)}


# -- commands ---------------------------------------------------------------------------------------------------------


def _commands() -> list[str]:
    """Those of the record; when there is none yet, those of the documents and of the help."""
    if RECORD.exists() and not _is_recording():
        return [key.removeprefix("commands/") for key in _read_record()["commands"]]
    from devalloc.cli.main import VERBS
    from tests.support import console_blocks

    documents = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("examples/*/README.md"))]
    listed = [block.command for document in documents for block in console_blocks.blocks(document)]
    verbs = [f"devalloc {verb} --help" for group in VERBS.values() for verb in group]
    printed = [
        "devalloc --help",
        "devalloc crds",
        "devalloc install --image-prefix localhost/ --dry-run=client",
        "devalloc version",
    ]
    return list(dict.fromkeys([*listed, *verbs, *printed]))


def _run(command: str) -> str:
    """What a command prints, and how it ends; in a folder that is the repository's root."""
    executable = [sys.executable, "-c", "from devalloc.cli.main import main; main()"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "solver", ROOT / "node-plugin"))),
        "COLUMNS": "120",
        "TERM": "dumb",
    }
    process = subprocess.run(
        [*executable, *shlex.split(command)[1:]],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
        check=False,
        encoding="utf-8",
    )
    return f"{process.stdout}exit {process.returncode}\n"


# -- the wire ---------------------------------------------------------------------------------------------------------


def _pages() -> Iterator[Job]:
    from devalloc.api.manifests import load

    for folder in sorted(path for path in (ROOT / "examples").iterdir() if path.is_dir()):
        objects = [document.content for document in load([folder]).documents]
        yield f"http/page/{folder.name}", partial(_page, objects)
    for method, path in (("GET", "healthz"), ("GET", "nowhere"), ("POST", ""), ("GET", "login"), ("GET", "style.css")):
        yield f"http/page/{method} {path}", partial(_request, method, path)


def _page(objects: list[Any]) -> str:
    from tests.support.served_page import TOKEN, FixedStore, ask, served

    full = []
    for number, obj in enumerate(objects):
        metadata = {"namespace": "default", "uid": f"uid-{number}", "resourceVersion": "1", **obj.get("metadata", {})}
        metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
        full.append({**obj, "metadata": metadata})
    with served(FixedStore(full)) as url:
        status, _, body = ask(url, Authorization=f"Bearer {TOKEN}")
    return f"{status}\n{body.decode()}"


def _request(method: str, path: str) -> str:
    from tests.support.served_page import FixedStore, ask, served

    with served(FixedStore([])) as url:
        status, headers, body = ask(url, path, method=method)
    shown = {name.lower(): value for name, value in headers.items() if name.lower() not in ("date", "server", "etag")}
    return f"{status} {json.dumps(shown, sort_keys=True)}\n{body.decode(errors='replace')}"


def _dialogues() -> Iterator[Job]:
    path = ROOT / "tests" / "conformance" / "exchanges" / "permits.yaml"
    for case in yaml.safe_load(path.read_text()):
        yield f"http/permits/{case['name']}", partial(_dialogue, case)


def _dialogue(case: dict[str, Any]) -> str:
    import http.client

    from devalloc.api.quantity import Quantity
    from devalloc.machines.permits import Host
    from devalloc.scaling.resources import Resources
    from devalloc.store.sqlite import SQLiteStore
    from tests.support.fake_tree import memory_folder
    from tests.support.permit_bench import machine, running, serving, write_status_part

    def resources(of: dict[str, Any]) -> Resources:
        return Resources(Quantity.parse(of["cpu"]).nano // 10**6, Quantity.parse(of["memory"]).nano // 10**9)

    about, lines = case["machine"], []
    with memory_folder() as name:
        file = Path(name) / "store.db"
        with closing(SQLiteStore(file)) as store:
            slot = about.get("slot")
            vm = machine("vm", slot=None if slot is None else Quantity.parse(slot).nano // 10**9)
            running(store, vm, resources(about["use"]))
            more = {"conditions": [{"type": "Migrating", "status": "True"}]} if about.get("migrating") else {}
            write_status_part(store, "vm", runnerPod="vm-runner", **more)
        hosts = {"node-a": Host(resources(case["node"]), {("kube-system", "dns"): Resources(0, 0)})}
        with serving(file, lambda: hosts) as bench:
            for turn in case["dialogue"]:
                body = turn["text"].encode() if "text" in turn else json.dumps(turn.get("send")).encode()
                body = b" " * (turn.get("padded_to", 0) - len(body)) + body
                with closing(http.client.HTTPConnection(*bench.addresses.requests, timeout=60)) as connection:
                    connection.request(turn.get("method", "POST"), turn.get("path", "/"), body)
                    answer = connection.getresponse()
                    lines.append(f"{answer.status} {answer.headers.get('Content-Type')} {answer.read()!r}")
            with closing(SQLiteStore(file)) as store:
                status = store.get("VirtualMachine", "default", "vm")["status"]
                lines.append(json.dumps(status.get("permitted"), sort_keys=True))
    return "\n".join(lines) + "\n"


def _grpc_files() -> str:
    """What a client can know of the wire: every message and service."""
    lines = []
    for path in sorted((ROOT / "node-plugin" / "devalloc_node" / "pb").glob("*.proto")):
        lines.append(f"== {path.name}\n{path.read_text()}")
    return "\n".join(lines)


def _grpc_node() -> str:
    """A conversation with the node's service: claims, machines, and what is refused."""
    import grpc
    from google.protobuf import json_format

    from devalloc_node.pb import node_pb2 as pb
    from tests.support.fake_tree import memory_folder
    from tests.support.node_service import served

    spec = pb.MachineSpec(
        cpu=pb.CpuBounds(min_milli=1000, use_milli=2000, max_milli=4000),
        memory=pb.MemoryBounds(min_bytes=512 << 20, use_bytes=1 << 30, max_bytes=2 << 30),
        start=pb.Start(kernel="/images/vmlinuz"),
    )
    web = pb.MachineRef(name="web")
    lines: list[str] = []

    with memory_folder() as name, served(Path(name)) as node:
        node.bench.grants.add("claim-uid-0", "a/slot-0", name="claim-uid-0")
        node.bench.grants.add("claim-uid-1", "a/slot-1", name="claim-uid-1")
        first, second, nowhere = (pb.ClaimRef(name=each) for each in ("claim-uid-0", "claim-uid-1", "nowhere"))
        calls: list[tuple[str, dict[str, Any]]] = [
            ("GetNode", {}),
            ("ListDevices", {}),
            ("PrepareClaim", {"claim": first}),
            ("PrepareClaim", {"claim": nowhere}),
            ("ListClaims", {}),
            ("CreateMachine", {"machine": web, "spec": spec, "claims": [first]}),
            ("CreateMachine", {"machine": pb.MachineRef(name="Bad Name"), "spec": spec}),
            ("CreateMachine", {"machine": pb.MachineRef(name="empty")}),
            ("ListMachines", {}),
            ("GetMachine", {"machine": web}),
            ("GetMachine", {"machine": pb.MachineRef(name="nowhere")}),
            ("AttachClaim", {"machine": web, "claim": second}),
            ("UnprepareClaim", {"claim": first}),
            ("ScaleMachine", {"machine": web}),
            ("DetachClaim", {"machine": web, "claim": second}),
            ("StopMachine", {"machine": web}),
            ("DeleteMachine", {"machine": web}),
            ("UnprepareClaim", {"claim": first}),
            ("UnprepareClaim", {"claim": second}),
            ("ListClaims", {}),
        ]
        for method, fields in calls:
            call, request = getattr(node.node, method), getattr(pb, f"{method}Request")
            try:
                answer = call(request(**fields), timeout=60)
                text = json_format.MessageToJson(answer, sort_keys=True)
            except grpc.RpcError as error:
                text = f"{error.code()} {error.details()}"
            except (TypeError, ValueError) as error:
                text = f"{type(error).__name__}: {error}"
            lines.append(f"{method}\n{text.replace(name, 'FOLDER')}")
    return "\n".join(lines) + "\n"


def _file(path: Path) -> str:
    return path.read_text()


# -- records ----------------------------------------------------------------------------------------------------------


def _without_wording(value: Answer) -> Answer:
    if isinstance(value, dict):
        return {key: _without_wording(each) for key, each in value.items() if key not in _WORDING}
    if isinstance(value, list):
        return [_without_wording(each) for each in value]
    return value


def _without_added(value: Answer, added: frozenset[str], warnings: tuple[str, ...]) -> Answer:
    """Without fields that came later and maps that have nothing else, and without warnings that came later."""
    if isinstance(value, dict):
        others = {key: _without_added(each, added, warnings) for key, each in value.items() if key not in added}
        return {key: each for key, each in others.items() if each != {} or value[key] == {}}
    if isinstance(value, list):
        return [_without_added(each, added, warnings) for each in value if not _is_added_warning(each, warnings)]
    return value


def _is_added_warning(value: Answer, warnings: tuple[str, ...]) -> bool:
    is_warning = isinstance(value, dict) and value.get("severity") == "warning"
    return is_warning and str(value.get("message", "")).endswith(warnings)


def _digest(value: Answer) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _masked(text: str) -> str:
    for pattern, instead in _MASKS:
        text = pattern.sub(instead, text)
    return text


def _crash(error: Exception) -> Answer:
    return {"crash": f"{type(error).__name__}: {error}"}


def _entry(section: str, key: str, job: Callable[[], Answer]) -> tuple[str, str]:
    try:
        answer = job()
    except Exception as error:
        answer = _crash(error)
    if section in AS_TEXT:
        return key, _masked(answer if isinstance(answer, str) else json.dumps(answer))
    answer = _without_added(answer, added_fields(), added_warnings())
    return key, f"{_digest(_without_wording(answer))} {_digest(answer)}"


_jobs: list[Job] = []
"""What the worker processes choose from: they are forked, so that nothing has to be sent to them."""


def _entry_of(section: str, number: int) -> tuple[str, str]:
    return _entry(section, *_jobs[number])


def _answers(section: str, workers: int) -> dict[str, str]:
    """The record of a section, as the tree answers now; with progress on stderr."""
    _jobs[:] = SECTIONS[section]()
    begun = shown = time.monotonic()
    entries = {}
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for key, entry in pool.imap(partial(_entry_of, section), range(len(_jobs)), chunksize=8):
            entries[key] = entry
            if time.monotonic() - shown > 5:
                shown = time.monotonic()
                print(f"{section}: {len(entries)} of {len(_jobs)}", file=sys.stderr, flush=True)
    print(f"{section}: {len(entries)} in {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return entries


def _read_record() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(lzma.decompress(RECORD.read_bytes()))
    return content


@dataclass(frozen=True)
class Intended:
    """A difference that is wanted."""

    keys: str
    """a pattern of keys, as a shell has it"""
    reason: str
    is_wording: bool
    """whether only sentences may differ"""
    old: str = ""
    """a regular expression; with ``new``, both texts must be equal after it was replaced"""
    new: str = ""

    def explains(self, key: str, before: str, now: str) -> bool:
        """Empty: there is no such answer."""
        if not fnmatchcase(key, self.keys):
            return False
        if not before or not now:
            return not self.old
        if self.old:
            return re.sub(self.old, self.new, before) == now
        return not self.is_wording or before.split()[0] == now.split()[0]


def _is_recording() -> bool:
    """Whether answers are recorded, whole and with nothing taken from the record before."""
    return "GOLDEN_RECORD" in os.environ


@cache
def _added(what: str) -> frozenset[str]:
    if _is_recording() or not INTENDED.exists():
        return frozenset()
    return frozenset(tomllib.loads(INTENDED.read_text()).get(what, []))


def added_fields() -> frozenset[str]:
    """Fields of answers that came later, and that are left out of the comparison."""
    return _added("added")


def added_warnings() -> tuple[str, ...]:
    """How warnings end that came later."""
    return tuple(_added("added_warnings"))


def intended() -> list[Intended]:
    listed = tomllib.loads(INTENDED.read_text()).get("difference", []) if INTENDED.exists() else []
    return [
        Intended(each["keys"], each["reason"], each.get("wording", False), each.get("old", ""), each.get("new", ""))
        for each in listed
    ]


def record(sections: list[str], workers: int) -> int:
    """Write the record of these sections anew; do this in a worktree of the commit that is to be compared with."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, check=True, text=True)
    os.environ["GOLDEN_RECORD"] = "1"
    content: dict[str, Any] = {**(_read_record() if RECORD.exists() else {}), "commit": commit.stdout.strip()}
    for section in sections:
        content[section] = _answers(section, workers)
    FOLDER.mkdir(parents=True, exist_ok=True)
    RECORD.write_bytes(lzma.compress(json.dumps(content).encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{RECORD.relative_to(ROOT)}: {RECORD.stat().st_size // 1024} kB")
    return 0


def compare(sections: list[str], workers: int, most: int) -> int:
    """Print each difference that no line of ``intended.toml`` explains; 1 if there is one."""
    before, explanations, used = _read_record(), intended(), Counter[str]()
    print(f"recorded at {before['commit'][:12]}")
    wrong = 0
    for section in sections:
        now = _answers(section, workers)
        differences = [key for key in before[section].keys() | now.keys() if before[section].get(key) != now.get(key)]
        unexplained = []
        for key in sorted(differences):
            old, new = before[section].get(key, ""), now.get(key, "")
            reason = next((each.reason for each in explanations if each.explains(key, old, new)), None)
            if reason is None:
                unexplained.append(key)
            else:
                used[reason] += 1
        print(f"{section}: {len(now)} answers, {len(differences)} differ, {len(unexplained)} of these not intended")
        for key in unexplained[:most]:
            print(f"\n  {key}: {_what(before[section].get(key), now.get(key), section in AS_TEXT)}")
        if len(unexplained) > most:
            print(f"\n  … and {len(unexplained) - most} more (--most)")
        wrong += len(unexplained)
    for reason, count in used.items():
        print(f"intended, {count} times: {reason}")
    return 1 if wrong else 0


def _what(old: str | None, new: str | None, is_text: bool) -> str:
    if old is None or new is None:
        return "new" if old is None else "gone"
    if is_text:
        lines = difflib.unified_diff(old.splitlines(), new.splitlines(), "recorded", "now", lineterm="", n=1)
        return "\n" + "\n".join(f"    {line}" for line in [*lines][:40])
    return "wording only" if old.split()[0] == new.split()[0] else "another answer"


def show(key: str) -> int:
    """Print an answer in full."""
    for section in SECTIONS.values():
        for name, job in section():
            if name == key:
                answer = job()
                print(answer if isinstance(answer, str) else json.dumps(answer, indent=1, sort_keys=True, default=str))
                return 0
    print(f"no answer has the key {key!r}: `compare` prints keys", file=sys.stderr)
    return 2


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("compare", "record"))
    parser.add_argument("sections", nargs="*", help=f"default: all of {', '.join(SECTIONS)}")
    parser.add_argument("--show", metavar="KEY", help="print one answer in full, and compare nothing")
    parser.add_argument("--most", type=int, default=5, help="differences of a section to print (default %(default)s)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: CPUs)")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.sections if name not in SECTIONS]:
        parser.error(f"no section {unknown[0]!r}: choose from {', '.join(SECTIONS)}")
    if given.show:
        return show(given.show)
    if given.verb == "record":
        return record(given.sections or [*SECTIONS], given.workers)
    return compare(given.sections or [*SECTIONS], given.workers, given.most)


if __name__ == "__main__":
    sys.exit(main())
