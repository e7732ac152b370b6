"""The command itself: its verbs, loaded only when used, and how it ends.

Exit codes: 0 all is well, 1 not satisfied or failed, 2 bad input, 130 interrupted, 141 the output's reader is gone.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from devalloc.cli.verb import Verbs

VERBS: dict[str, dict[str, str]] = {
    "Start here": {
        "demo": "the main job, shown in one screen on a small recorded fleet",
        "up": "run everything on this machine in the foreground: publish, allocate, release",
        "controller": "answer the claims of a Kubernetes cluster",
        "node": "the node plugin: bind this host's devices for its claims, hand them to machines and pods",
        "discover": "the devices of this host, as DevicePools",
    },
    "Manifests": {
        "validate": "check manifests; every error with file, document and path",
        "solve": "which claim gets which device; nothing is written",
        "apply": "create or update objects in the store",
        "crds": "the CustomResourceDefinitions of all kinds",
    },
    "Objects in the store": {
        "get": "list objects, or print them",
        "describe": "all about one object, for people",
        "top": "the fleet at a glance: what is free, who holds what, what waits and why",
        "delete": "delete objects",
        "wait": "wait until claims are allocated, released or deleted, machines running",
    },
    "Claims": {
        "explain": "why a claim has what it has, or has nothing",
        "capacity": "how many more claims like this one fit",
        "dra": "ResourceClaims of Kubernetes: which devices, on one node",
        "release": "take a claim's devices back and keep the claim",
    },
    "Machines on this node": {
        "vm": "start, adopt, scale and stop machines, and plug claims' devices into them",
        "warm": "namespaces, TAP interfaces and folders that are ready for machines",
    },
    "Inside a machine": {
        "guest-monitor": "measure its memory, ask for more, agree to less, bring what is plugged online",
    },
    "On Kubernetes": {
        "install": "bring devalloc to a cluster, or print all manifests",
        "uninstall": "take it off again, with nothing left behind",
        "kubeconfig": "keep for a node plugin outside pods what it reaches the cluster by",
    },
    "Care": {
        "cordon": "keep devices or a node from being allocated",
        "uncordon": "let them be allocated again",
        "drain": "cordon a node, and take back what its claims hold",
        "snapshot": "write all objects and the answer into one file",
        "replay": "solve a snapshot again, offline, and compare",
        "backup": "copy the store while it is in use, and the node plugin's journal",
        "restore": "put such a copy back",
        "completion": "shell completion for bash, zsh or fish",
        "version": "the version of the command",
        "help": "the help of a verb",
    },
}
_EDIT = (
    "write it into the manifest and apply that: devalloc get KIND/NAME -o yaml > object.yaml, edit it, "
    "devalloc apply -f object.yaml"
)
_PODS = "devalloc has no Pods and Deployments; for those of a cluster use kubectl"
_CLUSTER = "devalloc asks the cluster that --kubeconfig names; for all else about it use kubectl"
OTHER_WORDS = {
    "create": "apply",
    "replace": "apply",
    "patch": "apply",
    "list": "get",
    "ls": "get",
    "show": "describe",
    "status": "top",
    "rm": "delete",
    "remove": "delete",
    "plan": "solve",
    "diff": "apply --dry-run",
    "scale": "vm scale",
    "taint": "cordon",
    "why": "explain",
    "logs": "describe",
    "lint": "validate",
}
"""What people write who know other commands, and the verb that does it here."""
ADVICE = {
    "annotate": _EDIT,
    "edit": _EDIT,
    "label": _EDIT,
    "set": _EDIT,
    "api-resources": "`devalloc get all` lists the objects of all kinds, and `devalloc crds` prints their schemas",
    "api-versions": "`devalloc crds` prints all kinds with their versions",
    "events": "objects say why in their message: devalloc describe KIND/NAME, devalloc explain NAME",
    "kustomize": "write: kubectl kustomize DIR | devalloc apply -f -",
    "attach": "to plug a claim's devices into a machine: `devalloc vm attach`",
    **dict.fromkeys(("autoscale", "cp", "debug", "exec", "expose", "port-forward", "rollout", "run"), _PODS),
    **dict.fromkeys(("auth", "certificate", "cluster-info", "config", "proxy"), _CLUSTER),
    "options": "`devalloc help VERB` shows the options of a verb",
    "plugin": "there are no plugins; `devalloc --help` lists the verbs",
}
"""Verbs of kubectl that devalloc does not have, and what to do."""
BEFORE_THE_VERB = {"-n", "--namespace", "--store", "--kubeconfig", "--log-level", "--log-format"}
"""Options with a value of verbs that may also stand before the verb, as with kubectl."""


class Devalloc(Verbs):
    """Imports a verb's module (``devalloc.cli.<verb>``) when the verb is used, so that the others cost nothing."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for section in VERBS.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = cmd_name.replace("-", "_")
        command = getattr(importlib.import_module(f"devalloc.cli.{module}"), module)
        assert isinstance(command, click.Command)
        _add_variables(command, f"DEVALLOC_{module.upper()}")
        return command

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _pipe_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _pipe_errors():
            return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._after_the_verb(ctx, args))

    def _after_the_verb(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The arguments with options that stand before the verb behind it."""
        moved: list[str] = []
        rest = list(args)
        while rest and rest[0].partition("=")[0] in BEFORE_THE_VERB:
            length = 1 if "=" in rest[0] else 2
            moved, rest = [*moved, *rest[:length]], rest[length:]
        if not moved or not rest or rest[0] not in self.list_commands(ctx):
            return args
        # The options of `devalloc vm list` go behind `list`.
        at = 2 if isinstance(self.get_command(ctx, rest[0]), click.Group) else 1
        return [*rest[:at], *moved, *rest[at:]]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, verbs in VERBS.items():
            with formatter.section(title):
                formatter.write_dl(list(verbs.items()))


class ReaderGone(Exception):
    """The reader of the output closed the pipe. This is no OSError, because click ends the process with 1 for those."""


@contextmanager
def _pipe_errors() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderGone from error


def _add_variables(command: click.Command, prefix: str) -> None:
    """Every option can be set by the variable that its long name gives, whatever its parameter is called in Python and
    whichever variable it has besides."""
    for option in command.params:
        if isinstance(option, click.Option):
            name = next((name for name in option.opts if name.startswith("--")), "")
            variable = f"{prefix}_{name[2:].replace('-', '_').upper()}"
            others = [option.envvar] if isinstance(option.envvar, str) else [*(option.envvar or ())]
            option.envvar = [*(other for other in others if other != variable), variable]
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            _add_variables(below, f"{prefix}_{name.replace('-', '_').upper()}")


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from devalloc.version import VERSION

    click.echo(f"devalloc {VERSION}")
    ctx.exit()


@click.group(
    cls=Devalloc,
    other_words=OTHER_WORDS,
    advice=ADVICE,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "DEVALLOC", "show_default": True},
    epilog="Every option can be set in the environment: DEVALLOC_<VERB>_<OPTION>, such as DEVALLOC_SOLVE_PLACEMENT.",
)
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="The version.")
def cli() -> None:
    """Finds devices (GPUs, vGPU slices, SR-IOV functions) and decides which claim gets which.

    New here? Run `devalloc demo`.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point. Exits."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    _open_what_is_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # what cannot be written is escaped: in JSON, as JSON has it
    try:
        code = cli.main(None if arguments is None else list(arguments), prog_name="devalloc", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130
    except (ReaderGone, BrokenPipeError):
        # Python would complain once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code if isinstance(code, int) else 0


def _open_what_is_closed() -> None:
    """Without this the store, or a socket, could be the next file to be opened and so be what others print to."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  lives as long as the process
