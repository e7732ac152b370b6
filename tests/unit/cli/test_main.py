"""The command as a whole: help, version, spelling, errors, exit codes, what it imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete

from devalloc.cli.main import VERBS, cli
from devalloc.cli.verb import Verb, translated
from devalloc.store.errors import Invalid, NotFound
from tests.unit.cli.conftest import Shell, claim, pool, text

ALL = [name for section in VERBS.values() for name in section]


def test_help_names_every_verb(devalloc: Shell) -> None:
    found = devalloc("--help")

    assert found.code == 0
    assert [name for name in ALL if f"\n  {name} " not in found.out] == []


@pytest.mark.parametrize("name", ALL)
def test_every_verb_explains_itself_and_its_options(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)

    assert command is not None
    assert command.name == name
    for one in (command, *command.commands.values()) if isinstance(command, click.Group) else (command,):
        assert isinstance(one, (Verb, click.Group))
        assert one.help
        silent = [p.name for p in one.params if isinstance(p, click.Option) and not p.help]
        assert silent == []


def test_version(devalloc: Shell) -> None:
    assert devalloc("--version").out.startswith("devalloc 0.")


def test_an_unknown_verb_is_bad_input_and_gets_the_nearest_one(devalloc: Shell) -> None:
    found = devalloc("aply")

    assert found.code == 2
    assert "did you mean `apply`?" in found.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_complete_this_command(devalloc: Shell, shell: str) -> None:
    assert "_DEVALLOC_COMPLETE" in devalloc("completion", shell).out


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["de"], ["demo", "describe", "delete"]),
        (["get", "cl"], ["classes", "claims"]),
        (["get", "claims", "t"], ["train"]),
        (["get", "dclaim/"], ["dclaim/train"]),
        (["describe", "pools", ""], ["gpus"]),
        (["explain", ""], ["train"]),
        (["explain", "-n", "team-a", ""], []),
        (["get", "nonsense/"], []),
        (["solve", "--pl"], ["--placement"]),
    ],
)
def test_completion_offers_verbs_options_kinds_and_names(
    devalloc: Shell, monkeypatch: pytest.MonkeyPatch, words: list[str], offered: list[str]
) -> None:
    devalloc("apply", "-f", "-", stdin=text(pool(), claim()))
    monkeypatch.setenv("DEVALLOC_STORE", str(devalloc.store))

    completion = ShellComplete(cli, {}, "devalloc", "_DEVALLOC_COMPLETE")

    assert [item.value for item in completion.get_completions(words[:-1], words[-1])] == offered


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (NotFound("DeviceClaim default/x does not exist"), 1, "DeviceClaim default/x does not exist"),
        (Invalid("metadata.name: must be a text"), 2, "metadata.name: must be a text"),
        (FileNotFoundError(2, "No such file or directory", "x.yaml"), 1, "x.yaml: No such file or directory"),
        (ModuleNotFoundError("No module named 'ortools'", name="ortools"), 1, "pip install 'devalloc[all]'"),
        (ZeroDivisionError("division by zero"), 1, "this is a bug in devalloc: ZeroDivisionError"),
    ],
)
def test_errors_reach_people_as_one_line(error: Exception, code: int, words: str) -> None:
    shown = translated(error)

    assert shown.exit_code == code
    assert words in shown.format_message()
    assert "\n" not in shown.format_message()


def test_a_missing_store_says_how_to_get_one(devalloc: Shell) -> None:
    found = devalloc("get", "claims")

    assert found.code == 1
    assert "there is no store at" in found.err
    assert "devalloc up" in found.err
    assert not devalloc.store.exists()


def test_environment_variables_set_options(devalloc: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEVALLOC_VALIDATE_OUTPUT", "json")

    assert devalloc("validate", "-f", "-", stdin=text(pool())).json["documents"] == 1


def test_discover_as_json_loads_neither_the_solver_nor_the_tables(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    program = (
        "import sys; from devalloc.cli.main import run\n"
        f"run(['discover', '-o', 'json', '--sysfs-root', {str(tmp_path)!r}])\n"
        "costly = {'rich', 'ortools', 'celpy', 'yaml', 'sqlite3', 'numpy'}\n"
        "print(sorted(costly & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stderr.splitlines()[-1] == "[]"


def test_ctrl_c_ends_a_wait_at_once_with_130_and_without_a_word(devalloc: Shell) -> None:
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
    assert process.returncode == 130
    assert err.strip() == ""


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m devalloc.cli crds | head -n 1; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
    )

    assert done.stdout.splitlines()[-1] in ("141", "0")  # 0 when everything fitted into the pipe
    assert done.stderr == ""


def _sleeps(pid: int) -> bool:
    """Whether the process has its store open: it is in its loop, or about to be."""
    return any("store.db" in os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink())


@pytest.mark.parametrize("form", ["table", "json", "yaml"])
def test_what_cannot_be_written_is_escaped(tmp_path: Path, form: str) -> None:
    """Half a surrogate pair: in a name, and in what a claim holds, which is echoed as it came."""
    held = {"devices": {"results": [{"request": "r", "driver": "d", "pool": "p", "device": "HALF"}]}}
    claims: list[Any] = [{"metadata": {"name": "HALF"}}, {"metadata": {"name": "held"}, "status": {"allocation": held}}]
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    file = tmp_path / "half.json"
    file.write_text("".join(json.dumps({**kind, **one}) for one in claims).replace("HALF", "m\\ud800"))
    verb = [sys.executable, "-m", "devalloc.cli", "solve", "-f", str(file), "-o", form]
    done = subprocess.run(verb, capture_output=True)

    assert done.returncode == 2
    assert "bug in devalloc" not in done.stderr.decode()
    assert "m\\ud800" in done.stdout.decode().lower()
    if form == "json":
        (echo,) = [one for one in json.loads(done.stdout)["claims"] if one["allocated"]]
        assert echo["allocations"] == {"devices": {"results": [{**held["devices"]["results"][0], "device": "m\ud800"}]}}
