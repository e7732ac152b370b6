"""The command as a whole: help, version, spelling, errors, exit codes, what it imports."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from devalloc.cli.command import SettingOption, Verb, translate_error, verb
from devalloc.cli.main import USUAL_OPTIONS, VERBS, cli
from devalloc.store import paths
from devalloc.store.errors import Invalid, NotFound
from devalloc_solver.problem.placement_policy import POLICIES
from tests.support.cli_shell import Shell, claim, pool, text

ALL = [name for section in VERBS.values() for name in section]


def test_help_names_every_verb_and_the_full_one_says_what_it_does(devalloc: Shell) -> None:
    output = devalloc("--help")

    assert output.code == 0
    assert [name for name in ALL if not re.search(rf"\b{name}\b", output.out.partition("Start here")[2])] == []
    full = devalloc("--help-all").out
    assert [name for name in ALL if f"\n  {name} " not in full] == []


LINES = 40


def _commands(above: click.Context) -> Iterator[click.Context]:
    """A command and those below it."""
    yield above
    if isinstance(above.command, click.Group):
        for name in above.command.list_commands(above):
            command = above.command.get_command(above, name)
            assert command is not None
            yield from _commands(click.Context(command, info_name=name, parent=above, show_default=True))


@pytest.mark.parametrize(
    "ctx", [*_commands(click.Context(cli, info_name="devalloc"))], ids=lambda ctx: ctx.command_path
)
def test_help_fits_on_a_screen(ctx: click.Context) -> None:
    """If it does not, declare fewer usual settings, or name the usual options in USUAL_OPTIONS."""
    assert len(ctx.get_help().splitlines()) < LINES


@pytest.mark.parametrize("name", [*USUAL_OPTIONS, "up", "node", "controller", "guest-monitor"])
def test_the_full_help_has_all_options_and_the_short_one_says_so(devalloc: Shell, name: str) -> None:
    words = name.split()
    ctx = next(
        each for each in _commands(click.Context(cli, info_name="devalloc")) if each.command_path.endswith(f" {name}")
    )
    full, short = devalloc(*words, "--help-all").out, devalloc(*words, "--help").out
    options = [option for option in ctx.command.params if isinstance(option, click.Option) and not option.hidden]
    flags = [option.opts[-1] for option in options]
    usual = {each.opts[-1] for each in options if isinstance(each, SettingOption) and each.usual}
    usual |= {*USUAL_OPTIONS.get(name, "").split()}
    assert usual <= {*flags}
    assert [flag for flag in flags if flag not in full] == []
    number = len(flags) - len(usual) - 1
    assert f"Show {number} more options" in " ".join(short.split())


def test_the_help_of_solve_says_what_each_placement_policy_does(devalloc: Shell) -> None:
    help_text = " ".join(devalloc("solve", "--help").out.split())
    assert [each for each in POLICIES if f"{each.preference} ({each.name})" not in help_text] == []


@pytest.mark.parametrize("name", ALL)
def test_every_verb_explains_itself_and_its_options(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)

    assert command is not None
    assert command.name == name
    for one in (command, *command.commands.values()) if isinstance(command, click.Group) else (command,):
        assert isinstance(one, (Verb, click.Group))
        assert one.help
        assert '[default: ""]' not in one.get_help(click.Context(one, show_default=True)), one.name
        silent = [p.name for p in one.params if isinstance(p, click.Option) and not p.help]
        assert silent == []


@pytest.mark.parametrize("name", ALL)
def test_every_option_is_set_by_the_variable_of_its_long_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = cli.get_command(click.Context(cli), name)

    for context in _contexts(command, f"DEVALLOC_{name.replace('-', '_').upper()}"):
        for option in context.command.params:
            if isinstance(option, click.Option):
                long = next(word for word in option.opts if word.startswith("--"))
                variable = f"{context.info_name}_{long[2:].replace('-', '_').upper()}"
                for other in option.envvar or ():
                    monkeypatch.delenv(other, raising=False)
                with monkeypatch.context() as only:
                    only.setenv(variable, "so")
                    assert option.resolve_envvar_value(context) == "so", variable


def _contexts(command: click.Command | None, prefix: str) -> Iterator[click.Context]:
    """Of a command and of those below it, each with the prefix of its variables as its name."""
    assert command is not None
    yield click.Context(command, info_name=prefix)
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from _contexts(below, f"{prefix}_{name.replace('-', '_').upper()}")


def test_version(devalloc: Shell) -> None:
    assert devalloc("--version").out.startswith("devalloc 0.")


def test_an_unknown_verb_is_bad_input_and_gets_the_nearest_one(devalloc: Shell) -> None:
    output = devalloc("aply")

    assert output.code == 2
    assert "did you mean `apply`?" in output.err


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
        (["get", "nod"], ["nodes"]),
        (["get", "nodes", ""], ["node-a"]),
        (["get", "node/"], ["node/node-a"]),
        (["delete", "nod"], []),
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
        (NotFound("DeviceClaim default/x does not exist"), 4, "DeviceClaim default/x does not exist"),
        (Invalid("metadata.name: must be a string"), 2, "metadata.name: must be a string"),
        (FileNotFoundError(2, "No such file or directory", "x.yaml"), 1, "x.yaml: No such file or directory"),
        (ModuleNotFoundError("No module named 'ortools'", name="ortools"), 1, "pip install devalloc"),
        (ModuleNotFoundError("No module named 'grpc'", name="grpc"), 1, "pip install 'devalloc[node]'"),
        (ZeroDivisionError("division by zero"), 1, "this is a bug in devalloc: ZeroDivisionError"),
    ],
)
def test_errors_reach_people_as_one_line(error: Exception, code: int, words: str) -> None:
    shown = translate_error(error)

    assert shown.exit_code == code
    assert words in shown.format_message()
    assert "\n" not in shown.format_message()


def test_a_missing_store_says_how_to_get_one(devalloc: Shell) -> None:
    output = devalloc("get", "claims")

    assert output.code == 1
    assert "there is no store at" in output.err
    assert "devalloc up" in output.err
    assert not devalloc.store.exists()


def test_environment_variables_set_options(devalloc: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEVALLOC_VALIDATE_OUTPUT", "json")

    assert devalloc("validate", "-f", "-", stdin=text(pool())).json["documents"] == 1


def _verbs(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(command, info_name="devalloc")
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _verbs(below, (*words, name))
    else:
        yield words, command


def _takes_path(param: click.Parameter) -> bool:
    """One whose default is "" may be empty: the guest monitor's program, which there need not be."""
    names_one = re.search(r"\b(PATH|DIR|FILE)\b", param.metavar or "")
    return (isinstance(param.type, click.Path) or names_one is not None) and param.default != ""


LEAST = {
    "--dump-port": 0,
    "--fencing-one-in": 1,
    "--max-vfs": 0,
    "--permits-dump-port": 0,
    "--permits-port": 1,
    "--replicas": 0,
    "--requests": 0,
    "--tail": 1,
    "--vcpus of vm scale": 1,
    "--vcpus of warm take": 0,
    "--warm": 0,
    "--warm-most": 1,
    "--warm-vcpus-per-cpu": 1,
}
"""Of each option that counts something: the least that it takes. A port of 0 is any that is free."""


def test_an_option_that_counts_takes_what_makes_sense() -> None:
    least = {
        (option.opts[-1] if option.opts[-1] in LEAST else f"{option.opts[-1]} of {' '.join(words)}"): option.type.min
        for words, command in _verbs(cli)
        for option in command.params
        if isinstance(option.type, click.IntRange)
    }
    assert least == LEAST


TAKE_PATHS = [
    (words, command, param) for words, command in _verbs(cli) for param in command.params if _takes_path(param)
]


@pytest.mark.parametrize(
    ("words", "command", "param"), TAKE_PATHS, ids=[" ".join((*words, param.opts[0])) for words, _, param in TAKE_PATHS]
)
def test_an_empty_path_is_refused_by_its_name(
    words: tuple[str, ...], command: click.Command, param: click.Parameter
) -> None:
    """It would be the current folder: `backup "$FILE"` with a variable that is not set. Nothing is run here."""
    written = [[""]]
    if isinstance(param, click.Option):
        written = [[name, ""] for name in param.opts] + [[f"{name}="] for name in param.opts if name[:2] == "--"]
    for arguments in written:
        with pytest.raises(click.BadParameter) as raised:
            command.make_context(words[-1], arguments)
        message = raised.value.format_message()
        assert "the path is empty" in message
        assert (arguments[0].rstrip("=") or param.make_metavar(click.Context(command))) in message
    complete = command.make_context(words[-1], written[0], resilient_parsing=True)
    assert complete.params


def test_some_options_and_words_take_paths() -> None:
    options = {" ".join((*words, param.opts[0])) for words, _, param in TAKE_PATHS}

    assert options > {
        "warm replica -f",
        "apply -f",
        "apply paths",
        "backup path",
        "crds -d",
        "up --store",
        "node --state",
    }


NEED_WORDS = [words for words, command in _verbs(cli) if any(each.required for each in command.params)]


@pytest.mark.parametrize("words", NEED_WORDS, ids=" ".join)
def test_a_verb_that_needs_more_gives_an_example(devalloc: Shell, words: tuple[str, ...]) -> None:
    output = devalloc(*words)

    assert output.code == 2
    assert f"for example: devalloc {' '.join(words)}" in output.err


@pytest.mark.parametrize(
    "words",
    [("validate", "-f", "-"), ("get", "claims"), ("solve", "--no-such-option"), ("solve", "-f", "/absent.yaml")],
)
def test_a_command_leaves_the_logging_of_its_process_as_it_was(devalloc: Shell, words: tuple[str, ...]) -> None:
    """The stderr that a command was given may be closed once it is over, and others log in this process."""
    root, handler = logging.getLogger(), logging.NullHandler()
    root.addHandler(handler)
    before = [*root.handlers], root.level

    devalloc(*words, "--log-level", "debug", stdin=text(pool()))

    after = [*root.handlers], root.level
    root.removeHandler(handler)
    assert after == before


@verb("speak")
def speak() -> None:
    """Say something of each level."""
    for level in (logging.DEBUG, logging.WARNING):
        logging.getLogger("somebody").log(level, "hello")


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ((), [r"\d\d:\d\d:\d\d WARNING hello"]),
        (("--log-level", "debug"), [r"\d\d:\d\d:\d\d DEBUG hello", r"\d\d:\d\d:\d\d WARNING hello"]),
        (("--log-level", "error"), []),
        (("--log-format", "json"), [r'\{.*"hello".*\}']),
    ],
)
def test_the_log_goes_to_stderr_in_the_form_and_from_the_level_that_was_asked_for(
    words: tuple[str, ...], lines: list[str]
) -> None:
    output = CliRunner().invoke(speak, words)

    assert (output.exit_code, output.stdout) == (0, "")
    assert len(output.stderr.splitlines()) == len(lines)
    for line, form in zip(output.stderr.splitlines(), lines, strict=True):
        assert re.fullmatch(form, line)


@pytest.mark.parametrize("words", [["--help"], ["--help-all"], ["get", "--help"], ["--version"], ["version"]])
def test_output_that_cannot_be_written_is_one_line(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "devalloc.cli", *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (1, "error: cannot write the output: No space left on device\n")


def test_an_unknown_kind_is_answered_with_the_names_of_all(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(pool()))
    output = devalloc("get", "nothings")
    assert output.err.startswith("error: unknown kind 'nothings'; the kinds are: pools, classes, claims, vms, ")
    assert output.err.endswith("; for an object: claim/nothings\n")
    for name in output.err.partition("are: ")[2].partition(";")[0].split(", "):
        assert devalloc("get", name).code == 0, name


@pytest.mark.parametrize(
    ("script", "prefix", "command"),
    [
        ("/home/me/.venv/bin/devalloc", "/home/me/.venv", "sudo /home/me/.venv/bin/devalloc …"),
        ("/usr/bin/devalloc", sys.base_prefix, "sudo devalloc …"),
        ("/home/me/.venv/bin/pytest", "/home/me/.venv", "sudo devalloc …"),
    ],
)
def test_sudo_is_named_such_that_it_finds_the_command(
    monkeypatch: pytest.MonkeyPatch, script: str, prefix: str, command: str
) -> None:
    """Its PATH has nothing of a virtual environment."""
    monkeypatch.setattr(sys, "argv", [script])
    monkeypatch.setattr(sys, "prefix", prefix)
    assert paths.as_root() == command


def test_a_store_without_rights_names_sudo(devalloc: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of root's, and beside it a file of root's: neither ends in a usage text or a traceback."""

    def refuse(self: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", refuse)
        hidden = devalloc("get", "vms")
    assert (hidden.code, "Permission denied; run as root (sudo devalloc …)" in hidden.err) == (1, True), hidden.err
    devalloc.store.touch(0o600)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "lstat", refuse)
        for words in (("get", "vms"), ("up", "--no-inventory")):
            refused = devalloc(*words)
            assert (refused.code, "Permission denied; run as root (sudo devalloc …)" in refused.err) == (1, True), words
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(devalloc.store).st_uid + 1)
    foreign = devalloc("get", "vms")
    assert (foreign.code != 0, "sudo devalloc …" in foreign.err or "run as that user" in foreign.err) == (True, True)
    assert "Usage" not in foreign.err
