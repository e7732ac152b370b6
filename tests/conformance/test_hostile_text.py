"""Whatever others wrote into objects, no verb lets it act on the terminal that shows it."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from devalloc.api.cordon import NODE_KIND
from devalloc.cli.main import cli
from devalloc.store.sqlite import SQLiteStore
from devalloc_solver import testing
from tests.support import fast_yaml, pci_cards
from tests.support.cli_shell import Shell
from tests.support.fake_sysfs import FakeSysfs
from tests.support.good_manifests import good_manifests
from tests.support.hostile_plugin import hostile_plugin
from tests.support.machine_allocator import machine_allocator
from tests.support.resource_manifests import device, resource_claim, slice_of
from tests.support.terminal import HOSTILE, Terminal, acts_on, hostile

KINDS = sorted({content["kind"] for content in good_manifests()})
NAMED = [
    f"{one['kind']}/{one['metadata']['name']}"
    for one in good_manifests()
    if one["metadata"].get("namespace", "team-a") == "team-a"
]

ON_STORE: dict[str, list[list[str]]] = {
    "get": [["get", kind, "-A", *form] for kind in KINDS for form in ([], ["-o", "wide"], ["-o", "name"])]
    + [["get", ",".join(KINDS), "-A", "-o", form] for form in ("yaml", "json")]
    + [["get", "nodes"]],
    "describe": [["describe", name, "-n", "team-a"] for name in NAMED],
    "explain": [["explain", name, "-n", "team-a", *form]
                for name in ("waits", "train", "held", "vm/trainer", "vm/scaled", "migration/trainer-moves")
                for form in ([], ["-o", "json"], ["-o", "yaml"])],
    "top": [["top", "--once"], ["top", "--once", "-o", "wide"], ["top", "-o", "json"], ["top", "-o", "yaml"]],
    "usage": [["usage"], ["usage", "-o", "json"]],
    "solve": [["solve"], ["solve", "-o", "wide"], ["solve", "-o", "json"]],
    "capacity": [["capacity", "waits", "-n", "team-a"], ["capacity", "waits", "-n", "team-a", "-o", "json"]],
    "cordon": [["cordon"], ["cordon", "pool/network"], ["cordon", "node/node-a", "--reason", HOSTILE]],
    "uncordon": [["uncordon", "node/node-a"], ["uncordon", "pool/nothing"]],
    "release": [["release", "held", "-n", "team-a", "--timeout", "1s"], ["release", "waits", "-n", "team-a"]],
    "migrate": [["migrate", "vm/trainer", "-n", "team-a", "--no-wait"],
                ["migrate", "vm/adopted", "-n", "team-a", "--timeout", "1s"]],
    "start": [["start", "vm/trainer", "-n", "team-a", "--timeout", "1s"]],
    "stop": [["stop", "vm/trainer", "-n", "team-a", "--timeout", "1s"]],
    "restart": [["restart", "vm/trainer", "-n", "team-a", "--timeout", "1s"]],
    "pause": [["pause", "vm/trainer", "-n", "team-a", "--timeout", "1s"]],
    "resume": [["resume", "vm/trainer", "-n", "team-a", "--timeout", "1s"]],
    "scale": [["scale", "vm/trainer", "-n", "team-a", "--cpu", "1", "--timeout", "1s"],
              ["scale", "vm/trainer", "-n", "team-a", "--cpu", "1000000", "--timeout", "1s"]],
    "drain": [["drain", "node/node-a", "--dry-run"], ["drain", "node/node-a", "--force", "--timeout", "1s"]],
    "fence": [["fence", "node/node-a", "--dry-run"], ["fence", "node/node-a"]],
    "unfence": [["unfence", "node/node-a"]],
    "wait": [["wait", name, "-n", "team-a", "--timeout", "1s"] for name in ("waits", "vm/scaled")],
    "delete": [["delete", *NAMED, "-n", "team-a", "--dry-run"], ["delete", *NAMED, "-n", "team-a"]],
    "snapshot": [["snapshot", "{folder}/answer.json"]],
    "replay": [["replay", "{folder}/recorded.json"]],
    "backup": [["backup", "{folder}/copy.db"]],
    "restore": [["restore", "{folder}/hostile.db", "--force"]],
}  # fmt: skip
ON_FILES: dict[str, list[list[str]]] = {
    "validate": [["validate", "-f", "{folder}/all.yaml"], ["validate", "-f", "{folder}/all.yaml", "-o", "json"]],
    "apply": [["apply", "-f", "{folder}/all.yaml"], ["apply", "--dry-run", "-f", "{folder}/all.yaml"]],
    "solve": [["solve", "-f", "{folder}/all.yaml"], ["solve", "-f", "{folder}/all.yaml", "-o", "yaml"]],
    "explain": [["explain", name, "-n", "team-a", "-f", "{folder}/all.yaml"] for name in ("waits", "vm/trainer")]
    + [["explain", "rclaim/pods", "-f", "{folder}/dra.yaml"]],
    "capacity": [["capacity", "waits", "-n", "team-a", "-f", "{folder}/all.yaml"]],
    "delete": [["delete", "-f", "{folder}/all.yaml"]],
    "dra allocate": [["dra", "allocate", "--node", "n", "-f", "{folder}/dra.yaml", *form]
                     for form in ([], ["-o", "json"])],
    "discover": [["discover", "--sysfs-root", "{folder}/host", "--node-name", "node-a", "-o", form]
                 for form in ("table", "wide", "yaml", "json")],
    "warm replica": [["warm", "replica", "-f", "{folder}/deployment.json"]],
}  # fmt: skip
ON_PLUGIN: dict[str, list[list[str]]] = {
    "vm list": [["vm", "list", "-A"], ["vm", "list", "-A", "-o", "wide"], ["vm", "list", "-A", "-o", "name"],
                ["vm", "list", "-A", "-o", "yaml"], ["vm", "list", "-A", "-o", "json"]],
    "vm get": [["vm", "get", "a"]],
    "vm top": [["vm", "top"]],
    "vm watch": [["vm", "watch", "-A"]],
    "vm create": [["vm", "create", "-f", "{folder}/machine.yaml"]],
    "vm adopt": [["vm", "adopt", "a", "--qmp-socket", "/run/a.qmp"]],
    "vm stop": [["vm", "stop", "a"]],
    "vm delete": [["vm", "delete", "a"]],
    "vm scale": [["vm", "scale", "a", "--cpu", "1"]],
    "vm power-down": [["vm", "power-down"]],
    "vm attach": [["vm", "attach", "a", "c"]],
    "vm detach": [["vm", "detach", "a", "c"]],
    "vm plug": [["vm", "plug", "a", "--disk", "/x"]],
    "vm unplug": [["vm", "unplug", "a", "d"]],
    "vm unprepare": [["vm", "unprepare", "c"]],
    "warm list": [["warm", "list"], ["warm", "list", "-o", "yaml"]],
    "warm take": [["warm", "take", "a"]],
    "warm return": [["warm", "return", "a"]],
}  # fmt: skip
ELSEWHERE = {
    "up": "prints by ProgressDisplay (tests/unit/cli/test_display.py) and logs by LineFormatter (test_main.py)",
    "node": "as up", "controller": "as up", "kubeconfig": "as up", "guest-monitor": "as up",
    "permit-proxy": "as up",
    "logs": "its lines are the guest's (test_the_log_of_a_guest_does_not_act_on_the_terminal)",
    "console": "gives the terminal to the guest, as its guide says; errors are those of all verbs of the plugin",
    "demo": "shows no objects but its own", "check-host": "shows no objects", "examples": "shows files of the command",
    "crds": "shows no objects", "completion": "shows no objects",
    "version": "shows no objects", "help": "shows no objects",
    "install": "needs an API server; prints by print_line alone", "uninstall": "as install", "adopt": "as install",
    "unadopt": "as install",
}  # fmt: skip


def verbs(command: click.Command, name: str = "") -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield name
        return
    context = click.Context(command)
    for inner in command.list_commands(context):
        each = command.get_command(context, inner)
        assert each is not None
        yield from verbs(each, f"{name} {inner}".strip())


def test_each_verb_has_a_case_here_or_a_reason_why_not() -> None:
    assert sorted(verbs(cli)) == sorted({*ON_STORE, *ON_FILES, *ON_PLUGIN, *ELSEWHERE})


def contents() -> list[dict[str, Any]]:
    """Good manifests of every kind, and a claim that nothing satisfies."""
    entry = {"deviceClass": "gpu", "constraints": "device.kind == 'gp'"}
    return [*good_manifests(), testing.claim("waits", entry, namespace="team-a")]


@pytest.fixture(scope="module", params=[False, True], ids=["words", "everywhere"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, and files, with hostile text in the fields for words, or in all fields."""
    folder, everywhere = tmp_path_factory.mktemp("hostile"), request.param
    with closing(SQLiteStore(folder / "hostile.db")) as store:
        for content in contents():
            store.create(content)
        allocator = machine_allocator(store)
        allocator.loop.ignore_kind(NODE_KIND)
        allocator.round()
    with closing(sqlite3.connect(folder / "hostile.db")) as database, database:
        status = {(one["kind"], one["metadata"]["name"]): one["status"] for one in contents() if "status" in one}
        for row, text in database.execute("SELECT rowid, content FROM objects").fetchall():
            content = json.loads(text)
            if (key := (content["kind"], content["metadata"]["name"])) in status:
                content["status"] = status[key]
            changed = json.dumps(hostile(content, everywhere=everywhere))
            database.execute("UPDATE objects SET content = ? WHERE rowid = ?", (changed, row))
    (folder / "all.yaml").write_text(fast_yaml.dump_all([hostile(one, everywhere=everywhere) for one in contents()]))
    claim = resource_claim("pods")
    claim["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": "device.driver == 'x'"}}]
    dra = [slice_of("card", "n", [device("d", kind="a")]), claim, {
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {},
    }]  # fmt: skip
    (folder / "dra.yaml").write_text(fast_yaml.dump_all([hostile(one, everywhere=everywhere) for one in dra]))
    host = FakeSysfs(folder / "host")
    host.add(pci_cards.gpu())
    machine = next(one for one in contents() if one["metadata"]["name"] == "scaled")
    (folder / "machine.yaml").write_text(fast_yaml.dump_all([{**machine, "status": {}}]))
    (folder / "deployment.json").write_text(
        json.dumps({"service": HOSTILE, "image": HOSTILE, "labels": {"a": HOSTILE}})
    )
    Shell(folder / "hostile.db")("snapshot", folder / "recorded.json")
    return folder


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    return Terminal(monkeypatch)


@pytest.fixture
def own_folder(folder: Path, tmp_path: Path) -> Path:
    """A copy, which a verb can change."""
    return Path(shutil.copytree(folder, tmp_path / "copy", symlinks=True))


def run_all(terminal: Terminal, folder: Path, lines: list[list[str]]) -> None:
    for line in lines:
        shown = terminal(*(word.format(folder=folder) if word != HOSTILE else word for word in line))
        assert shown, line
        assert not acts_on(shown), line


@pytest.mark.parametrize("verb", ON_STORE)
def test_objects_of_the_store(verb: str, own_folder: Path, terminal: Terminal) -> None:
    terminal.monkeypatch.setenv("DEVALLOC_STORE", str(own_folder / "hostile.db"))
    run_all(terminal, own_folder, ON_STORE[verb])


@pytest.mark.parametrize("verb", ON_FILES)
def test_objects_of_files(verb: str, own_folder: Path, terminal: Terminal, tmp_path: Path) -> None:
    terminal.monkeypatch.setenv("DEVALLOC_STORE", str(tmp_path / "new.db"))
    run_all(terminal, own_folder, ON_FILES[verb])


@pytest.mark.parametrize("details", [None, HOSTILE], ids=["answers", "errors"])
@pytest.mark.parametrize("verb", ON_PLUGIN)
def test_answers_of_a_node_plugin(
    verb: str, details: str | None, folder: Path, tmp_path: Path, terminal: Terminal
) -> None:
    with hostile_plugin(tmp_path / "node.sock", details=details) as socket:
        terminal.monkeypatch.setenv("DEVALLOC_NODE_SOCKET", str(socket))
        run_all(terminal, folder, ON_PLUGIN[verb])


@pytest.mark.parametrize("form", [[], ["--qemu"]], ids=["guest", "qemu"])
def test_the_log_of_a_guest_does_not_act_on_the_terminal(tmp_path: Path, terminal: Terminal, form: list[str]) -> None:
    """Its lines look as the guest likes: nothing of ours is printed beside them."""
    with hostile_plugin(tmp_path / "node.sock") as socket:
        shown = terminal("logs", "vm/a", *form, "--socket", str(socket))
    assert [each for each in acts_on(shown) if not each.startswith("error: ")] == []


def test_a_template_gets_the_terminals_text_escaped_and_a_programs_as_it_is(folder: Path, terminal: Terminal) -> None:
    terminal.monkeypatch.setenv("DEVALLOC_STORE", str(folder / "hostile.db"))
    line = ["get", "vm", "trainer", "-n", "team-a", "-o", r"jsonpath={.status.message}{'\t'}{.metadata.name}{'\n'}"]
    shown = terminal(*line)
    assert not [each for each in acts_on(shown) if each.startswith("'")]
    assert "\ttrainer" in shown
    written = f"the guest does not take the memory{HOSTILE}\ttrainer\n"
    read = Shell(folder / "hostile.db")(*line).out
    assert read == written.replace("\r\n", "\n"), "as the test runner of click reads it"


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_programs_read_the_same_content(form: str, folder: Path) -> None:
    path = folder / "hostile.db"
    with closing(SQLiteStore(path)) as store:
        machine = store.get("VirtualMachine", "team-a", "trainer")
    out = Shell(path)("get", "vm", "trainer", "-n", "team-a", "-o", form).out
    assert out.replace("\n", "").isprintable()
    read = json.loads(out) if form == "json" else yaml.safe_load(out)
    assert read == machine
