"""Verbs about machines of objects."""

from __future__ import annotations

from collections.abc import Callable

import click

from devalloc.cli.command import WholeNumber, parse_duration, runs, verb
from devalloc.cli.options.common import namespace_option
from devalloc.cli.options.places import target_options

_names = click.argument("names", nargs=-1, required=True, metavar="vm/NAME... | vmrs/NAME")


no_wait_option = click.option(
    "--no-wait", is_flag=True, help="Only write what is wanted; `devalloc wait` waits for it."
)


_timeout = click.option(
    "--timeout",
    type=parse_duration,
    metavar="DURATION",
    help="How long to wait [default: powerdownSeconds and 30s, or 90s; 15s if nothing serves it].",
)


def _power_verb(name: str) -> Callable[[Callable[..., int | None]], click.Command]:
    """A verb with the names of machines or sets, --timeout and --no-wait."""

    def decorated(function: Callable[..., int | None]) -> click.Command:
        for option in (target_options, namespace_option, no_wait_option, _timeout, _names):
            function = option(function)
        return verb(name)(function)

    return decorated


@_power_verb("start")
@runs("devalloc.cli.verbs.power")
def start() -> None:
    """Start machines that are stopped, paused or have ended, and wait until they run.

    A set stands for all its machines. The object says what is wanted (spec.running, spec.paused); `devalloc apply` of a
    manifest that says otherwise changes it again.

    \b
    devalloc start vm/web
    devalloc start vmrs/workers
    """


@_power_verb("stop")
@runs("devalloc.cli.verbs.power")
def stop() -> None:
    """Power machines down, and wait until they are stopped. They keep their disks, UEFI variables and TPM.

    A guest that does not power down within powerdownSeconds is ended. A stopped machine gives up its CPUs and memory:
    `devalloc start` waits for room. A set stands for all its machines, and replaces none of them.

    \b
    devalloc stop vm/web
    devalloc stop vmrs/workers
    """


@_power_verb("restart")
@runs("devalloc.cli.verbs.power")
def restart() -> None:
    """Power machines down and start them again as their specs say, and wait until they run.

    They keep their node, devices and room. Several machines restart one after another, each when the one before runs
    and, with guestReports, is ready. A machine that is stopped is not started.

    \b
    devalloc restart vm/web
    devalloc restart vmrs/workers --timeout 10m
    """


@_power_verb("pause")
@runs("devalloc.cli.verbs.power")
def pause() -> None:
    """Stop the CPUs of machines that run, and wait until they stand still. `devalloc resume` lets them run again.

    A paused machine keeps its memory, devices and room. Its clock stands still, too, and its connections may time out.

    \b
    devalloc pause vm/web
    """


@_power_verb("resume")
@runs("devalloc.cli.verbs.power")
def resume() -> None:
    """Let the CPUs of paused machines run again, and wait until they do.

    \b
    devalloc resume vm/web
    """


@verb("scale")
@click.argument("name", metavar="vm/NAME|vmrs/NAME")
@click.option("--cpu", metavar="CPUS", help="CPUs of a machine from now on (cpu.use), such as 2 or 1500m.")
@click.option("--memory", metavar="BYTES", help="Memory of a machine from now on (memory.use), such as 2Gi.")
@click.option("--replicas", type=WholeNumber(0), metavar="NUMBER", help="How many machines a set has.")
@click.option(
    "--timeout",
    type=parse_duration,
    metavar="DURATION",
    help="How long to wait [default: 60s; 15s if nothing serves it].",
)
@no_wait_option
@namespace_option
@target_options
@runs("devalloc.cli.verbs.scale")
def scale() -> None:
    """Change how many CPUs and how much memory a machine has, or how many machines a set has, and wait for it.

    CPUs and memory change while the machine runs, between min and max of its spec. Larger bounds apply at its next
    start: change the manifest, then `devalloc restart vm/NAME`. For machines without an object: `devalloc vm scale`.

    \b
    devalloc scale vm/web --cpu 2 --memory 4Gi
    devalloc scale vmrs/workers --replicas 5
    """


@verb("migrate")
@click.argument("name", metavar="vm/NAME")
@click.option("--to", "target", metavar="NODE", help="The node it moves to [default: one that devalloc chooses].")
@click.option(
    "--timeout",
    type=parse_duration,
    default="10m",
    metavar="DURATION",
    help="How long to wait; after that the migration is withdrawn.",
)
@click.option("--no-wait", is_flag=True, help="Only create the migration; `devalloc wait migration/NAME` waits for it.")
@namespace_option
@target_options
@runs("devalloc.cli.verbs.migrate")
def migrate() -> None:
    """Move a machine to another node while it runs, and wait until it has moved.

    The target has room for the machine and reaches its disks; by default devalloc chooses it. The machine's address,
    permit and claims of network devices move with it. Its guest has a short downtime.

    If you stop the command, or the time is up, the migration is withdrawn: the machine then stays on its node, unless
    it has moved already. Exit code 1 if it stays.

    \b
    devalloc migrate vm/web
    devalloc migrate vm/web --to node-b --timeout 1h
    """
