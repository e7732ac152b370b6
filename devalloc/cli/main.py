"""The ``devalloc`` command: its verbs, of which only the one that is used is imported, and its exit codes.

Exit codes: 0 success, 1 failed, 2 bad input, 3 refused (a claim or machine gets nothing), 4 an object does not exist,
130 interrupted, 141 the reader closed the pipe.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from devalloc import plugins
from devalloc.cli.command import CommandFailed, Verb, VerbGroup, help_all_option, shows_all, translate_error
from devalloc.cli.terminal import print_line

VERBS: dict[str, dict[str, str]] = {
    "Start here": {
        "demo": "show what devalloc does, on a small sample fleet",
        "up": "run everything on this machine: publish, allocate, bind",
        "check-host": "show what this host has for machines and devices, and what it lacks",
        "discover": "list the devices of this host, as DevicePools",
        "examples": "list manifests to copy, and print or write those of one",
    },
    "Manifests": {
        "validate": "check manifests; report every error with file, document and path",
        "solve": "show which claim gets which device; writes nothing",
        "apply": "create or update objects in the store",
        "crds": "print the CustomResourceDefinitions of all kinds",
    },
    "Objects in the store": {
        "get": "list or print objects",
        "describe": "show all details of an object",
        "top": "show the fleet live: what is free, what is in use, what waits",
        "usage": "show who used which devices, CPUs and memory in a month, and for how long",
        "delete": "delete objects",
        "wait": "wait until claims are allocated or released, machines running",
    },
    "Claims": {
        "explain": "show why a claim got its devices, or why it got none",
        "capacity": "count how many more claims like this one fit",
        "dra": "allocate ResourceClaims of Kubernetes on one node",
        "release": "take back a claim's devices, but keep the claim",
    },
    "Machines": {
        "start": "start machines that are stopped or have ended",
        "stop": "power machines down; they keep their disks",
        "restart": "power machines down and start them again as their specs say",
        "pause": "stop the CPUs of machines that run",
        "resume": "let the CPUs of paused machines run again",
        "scale": "change a machine's CPUs and memory while it runs, or how many machines a set has",
    },
    "Machines on this node": {
        "console": "open the console of a machine's guest",
        "logs": "show what a machine's guest, or its QEMU, has written",
        "vm": "start, adopt, scale and stop machines, and plug devices of claims into them",
        "warm": "use prepared network namespaces, TAP interfaces and folders for machines",
    },
    "Inside a machine": {
        "guest-monitor": "measure memory, request more, agree to less, bring plugged memory and CPUs online",
    },
    "On Kubernetes": {
        "controller": "allocate the claims of a Kubernetes cluster",
        "node": "run the node plugin: bind this host's devices and pass them to machines and pods",
        "install": "install devalloc on a cluster, or print all manifests",
        "uninstall": "remove devalloc from a cluster",
        "adopt": "allocate the devices of another DRA driver, or list what is adopted",
        "unadopt": "leave the devices of a driver to kube-scheduler again",
        "kubeconfig": "write and renew a kubeconfig for a node plugin that runs outside pods",
        "permit-proxy": "forward requests for permits of Neon's agents to the controller that leads",
    },
    "Maintenance": {
        "cordon": "exclude devices or a node from allocation",
        "uncordon": "allow their allocation again",
        "migrate": "move a machine to another node while it runs",
        "drain": "cordon a node, and move its machines and claims to other nodes",
        "fence": "state that a lost node is powered off, so that its machines start elsewhere",
        "unfence": "state that a fenced node is back",
        "snapshot": "write all objects and the answer to one file",
        "replay": "solve a snapshot again, offline, and compare",
        "backup": "copy the store, even while it is in use, and the node plugin's journal",
        "restore": "restore a backup",
        "completion": "print shell completion for bash, zsh or fish",
        "version": "print the version",
        "help": "show the help of a command",
    },
}
_OURS = dict.fromkeys(name for section in VERBS.values() for name in section)
MODULES = {
    "start": ("demo", "examples", "completion", "version", "help"),
    "hosts": ("up", "node", "check-host", "discover"),
    "controllers": ("controller", "permit-proxy"),
    "guest": ("guest-monitor",),
    "manifests": ("validate", "solve", "apply", "delete", "explain", "capacity", "dra"),
    "objects": ("get", "describe", "top", "usage", "wait"),
    "machines": ("start", "stop", "restart", "pause", "resume", "scale", "migrate"),
    "vm": ("vm", "console", "logs"),
    "warm": ("warm",),
    "clusters": ("install", "uninstall", "crds", "kubeconfig", "adopt", "unadopt"),
    "maintenance": (
        *("cordon", "uncordon", "release", "drain", "fence", "unfence"),
        *("snapshot", "replay", "backup", "restore"),
    ),
}
"""The modules of ``devalloc.cli.options``, and the verbs that each declares."""
_MODULE_OF = {name: module for module, names in MODULES.items() for name in names}
_EDIT = (
    "change the manifest and apply it: devalloc get KIND/NAME -o yaml > object.yaml, edit it, "
    "devalloc apply -f object.yaml"
)
_PODS = "devalloc does not manage Pods and Deployments; use kubectl for those of a cluster"
_CLUSTER = "devalloc uses the cluster of --kubeconfig; for anything else about the cluster use kubectl"
VERB_SYNONYMS = {
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
    "taint": "cordon",
    "why": "explain",
    "lint": "validate",
}
"""Verbs of other commands, and the verb that does it here."""
ADVICE = {
    "annotate": _EDIT,
    "edit": _EDIT,
    "label": _EDIT,
    "set": _EDIT,
    "api-resources": "`devalloc get all` lists the objects of all kinds, and `devalloc crds` prints their schemas",
    "api-versions": "`devalloc crds` prints all kinds with their versions",
    "events": "objects have a message: devalloc describe KIND/NAME, devalloc explain NAME",
    "kustomize": "use: kubectl kustomize DIR | devalloc apply -f -",
    "attach": "to plug a claim's devices into a machine: `devalloc vm attach`",
    **dict.fromkeys(("autoscale", "cp", "debug", "exec", "expose", "port-forward", "rollout", "run"), _PODS),
    **dict.fromkeys(("auth", "certificate", "cluster-info", "config", "proxy"), _CLUSTER),
    "options": "`devalloc help COMMAND` shows the options of a command",
    "plugin": "`devalloc --help` lists the commands, also those of other packages",
}
"""Verbs of kubectl and virtctl that devalloc does not have, and what to use instead."""
BEFORE_THE_VERB = {"-n", "--namespace", "--store", "--kubeconfig", "--context", "--log-level", "--log-format"}
"""Options of verbs, with a value, that can also precede the verb, as with kubectl."""


EVERY_DAY = ("apply", "get", "describe", "explain", "solve", "top", "wait", "release", "delete")
"""Verbs that `devalloc --help` shows with what they do, besides those to start with; of all others only the names."""
_FEW = 3
"""Sections with fewer other verbs share a line of that help."""
USUAL_OPTIONS = {
    "capacity": "--filename --namespace --output --store --kubeconfig --host",
    "install": "--kubeconfig --image-prefix --dry-run --publish --resource-claims --permits --workers-only",
    "solve": "--filename --namespace --output --placement --with-store --store --kubeconfig",
    "explain": "--filename --namespace --output --store --kubeconfig",
    "get": "--namespace --all-namespaces --selector --output --watch --sort-by --store --kubeconfig",
    "drain": "--dry-run --reason --timeout --store --kubeconfig",
    "snapshot": "--filename --namespace --store --kubeconfig",
    "discover": "--output --node-name --kind --sysfs-root",
    "top": "--once --interval --namespace --output --store --kubeconfig",
    "usage": "--month --by --of --output --store --kubeconfig",
    "migrate": "--to --timeout --no-wait --namespace --store --kubeconfig",
    "fence": "--reason --dry-run --yes --timeout --store --kubeconfig",
    "scale": "--cpu --memory --replicas --timeout --namespace --store --kubeconfig",
    "wait": "--for --timeout --namespace --store --kubeconfig",
    "release": "--force --abandon --timeout --namespace --store --kubeconfig",
    "warm replica": "--file --replicas --requests --node --apply --namespace --output",
}
"""Options that `--help` of a verb shows if it has many, beside its usual settings; `--help-all` shows all."""


class DevallocCommand(VerbGroup):
    """Imports the options of a verb when it is named, and what it does when it runs: so a help costs little. Verbs of
    other packages come after ours, and are looked for when there is no verb of ours with the name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(dict.fromkeys((*_OURS, *(each.name for each in plugins.registered(plugins.VERBS)))))

    def has_command(self, ctx: click.Context, name: str) -> bool:
        return name in _OURS or any(each.name == name for each in plugins.registered(plugins.VERBS))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = cmd_name.replace("-", "_")
        command: click.Command
        if cmd_name in _OURS:
            command = getattr(importlib.import_module(f"devalloc.cli.options.{_MODULE_OF[cmd_name]}"), name)
        else:
            added = [each for each in plugins.registered(plugins.VERBS) if each.name == cmd_name]
            if not added:
                return None
            try:
                command = plugins.load(added[0], click.Command)
            except plugins.BadPackage as error:
                return _unusable(cmd_name, error)
        _shorten_help(command, cmd_name)
        _add_variables(command, f"DEVALLOC_{name.upper()}")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not ctx.resilient_parsing:
            _refuse_store_beside_cluster(ctx, args)
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _pipe_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _pipe_errors():
            return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._after_the_verb(ctx, args))

    def _after_the_verb(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The arguments, with options before the verb moved behind it."""
        moved: list[str] = []
        rest = list(args)
        while rest and rest[0].partition("=")[0] in BEFORE_THE_VERB:
            length = 1 if "=" in rest[0] else 2
            moved, rest = [*moved, *rest[:length]], rest[length:]
        if not moved or not rest or not self.has_command(ctx, rest[0]):
            return args
        # For `devalloc vm list` they go behind `list`.
        at = 2 if isinstance(self.get_command(ctx, rest[0]), click.Group) else 1
        return [*rest[:at], *moved, *rest[at:]]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if shows_all(ctx):
            super().format_epilog(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        added = [name for name in self.list_commands(ctx) if name not in _OURS]
        commands = ((name, self.get_command(ctx, name)) for name in added)
        more = {name: one.get_short_help_str(limit=1000) for name, one in commands if one is not None}
        sections = {**VERBS, **({"Other packages": more} if more else {})}
        if shows_all(ctx):
            for title, verbs in sections.items():
                with formatter.section(title):
                    formatter.write_dl(list(verbs.items()))
            return
        (start, first), *others = sections.items()
        about = {name: text for _, verbs in others for name, text in verbs.items()}
        for title, rows in ((start, [*first.items()]), ("Every day", [(name, about[name]) for name in EVERY_DAY])):
            with formatter.section(title):
                formatter.write_dl(rows)
        rest = [(title, [name for name in verbs if name not in EVERY_DAY]) for title, verbs in others]
        few = [name for _, names in rest if len(names) < _FEW for name in names]
        many = [(title, names) for title, names in rest if len(names) >= _FEW]
        with formatter.section("More (--help-all says what they do)"):
            formatter.write_dl([(title, ", ".join(names)) for title, names in [*many, ("Other", few)]])


def _unusable(name: str, error: plugins.BadPackage) -> click.Command:
    """A verb that cannot be loaded: it fails when it is used, not each help that names it."""

    def fail() -> None:
        raise CommandFailed(str(error)) from error

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(name, context_settings=anything, callback=fail, help=f"Unusable: {error}.")


class OutputClosed(Exception):
    """The reader of the output closed the pipe. Not an OSError, because click exits with 1 for those."""


@contextmanager
def _pipe_errors() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise OutputClosed from error


def _shorten_help(command: click.Command, name: str) -> None:
    if isinstance(command, Verb):
        command.shorten_help(USUAL_OPTIONS.get(name, "").split())
    if isinstance(command, click.Group):
        for below, one in command.commands.items():
            _shorten_help(one, f"{name} {below}")


def _add_variables(command: click.Command, prefix: str) -> None:
    """Let every option be set by a variable that is derived from its long name, in addition to its own variable."""
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

    print_line(f"devalloc {VERSION}")
    ctx.exit()


@click.group(
    cls=DevallocCommand,
    other_words=VERB_SYNONYMS,
    advice=ADVICE,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "DEVALLOC", "show_default": True},
    epilog="Every option can be set in the environment: DEVALLOC_<VERB>_<OPTION>, such as DEVALLOC_SOLVE_PLACEMENT.",
)
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version.")
def cli() -> None:
    """Find devices (GPUs, vGPU slices, SR-IOV functions) and allocate them.

    New here? Run `devalloc demo`.
    """


cli.params.append(help_all_option())


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point. Exits."""
    code = run(arguments)
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    if any(thread.daemon for thread in others):
        # Such as a search that is not over: Python would cancel the thread inside the solver's C++ code, which ends the
        # process with SIGABRT ("FATAL: exception not rethrown"). What goes on has written nothing.
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    _reopen_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # escape characters that cannot be encoded, as JSON does
    try:
        name = "devalloc"
        if arguments is None and Path(sys.argv[0]).name == PLUGIN:
            name = AS_PLUGIN
            _use_cluster_of_kubectl()
        code = cli.main(None if arguments is None else list(arguments), prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130
    except (OutputClosed, BrokenPipeError):
        return 141
    except (OSError, plugins.BadPackage) as error:  # of what no verb has, such as a help text on a full disk
        failure = translate_error(error)
        failure.show()
        return failure.exit_code
    finally:
        _drop_unwritable_output()
    return code if isinstance(code, int) else 0


def _drop_unwritable_output() -> None:
    """Otherwise Python reports the error again when it flushes stdout at exit, some versions with an exit code of their
    own."""
    try:
        with suppress(ValueError):  # it is closed
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


PLUGIN = "kubectl-devalloc"
"""The second name of the command: kubectl runs it for `kubectl devalloc`."""
AS_PLUGIN = "kubectl devalloc"
INSTEAD_ON_CLUSTERS = {
    ("apply",): "kubectl apply",
    ("delete",): "kubectl delete",
    ("backup",): "a backup of etcd",
    ("restore",): "a backup of etcd",
    ("warm", "replica", "--apply"): "kubectl apply with what it prints without --apply",
}
"""Commands that write to or read an embedded store only, by their words, and what to use on a cluster."""


def _refuse_store_beside_cluster(ctx: click.Context, args: Sequence[str]) -> None:
    """Refuse a command about a store that no option names, while `devalloc get` shows a cluster."""
    instead = next(
        (text for words, text in INSTEAD_ON_CLUSTERS.items() if args[0] == words[0] and {*words} <= {*args}), ""
    )
    names_store = any(word.partition("=")[0] == "--store" for word in args)
    if not instead or names_store or {"-h", "--help", "--help-all"} & {*args}:
        return
    about = f"`devalloc {args[0]}` is about a store of this host"
    if ctx.info_name == AS_PLUGIN and "DEVALLOC_STORE" not in os.environ:
        ctx.fail(f"{about}; for the cluster use {instead}")
    if os.environ.get("DEVALLOC_KUBECONFIG"):
        ctx.fail(f"{about}, but DEVALLOC_KUBECONFIG is set; use {instead}, or name the store with --store")


def _use_cluster_of_kubectl() -> None:
    """As a plugin of kubectl, use kubectl's kubeconfig unless a store or another kubeconfig is named."""
    if {"DEVALLOC_STORE", "DEVALLOC_KUBECONFIG"} & os.environ.keys():
        return
    from devalloc.cli.options.places import kubeconfig_of_kubectl

    path = kubeconfig_of_kubectl()
    if os.environ.get("KUBECONFIG") or path.is_file():
        os.environ["DEVALLOC_KUBECONFIG"] = str(path)


def _reopen_standard_streams() -> None:
    """Open closed standard streams: otherwise the next file, such as the store, would get their descriptor."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  lives as long as the process
