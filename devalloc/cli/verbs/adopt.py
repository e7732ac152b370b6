"""``devalloc adopt`` and ``unadopt``: let devalloc's controller allocate the devices of a DRA driver, and no longer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from devalloc.api.adopted_pools import AdoptionRule
from devalloc.api.fields import is_subdomain_name
from devalloc.cli.command import BadInput, CommandFailed
from devalloc.cli.render.output import print_table, show_spinner
from devalloc.cli.target import connect_as_admin
from devalloc.cli.terminal import print_line, print_note
from devalloc.install import adoption
from devalloc.install.adoption import ClusterClaims
from devalloc.install.apply import NotInstalled
from devalloc.store.kubernetes import Client

_MAX_DRIVER, _MAX_POOL = 63, 253


def adopt(
    names: tuple[str, ...],
    pools: tuple[str, ...],
    dry_run: bool,
    timeout: float,
    kubeconfig: Path | None,
    namespace: str,
) -> int:
    client = connect_as_admin(kubeconfig)
    try:
        if not names:
            if pools:
                raise BadInput("--pools needs a driver: devalloc adopt driver/NAME --pools NAME...")
            return _list(client)
        driver, pools = _target(names, pools)
        adoption.check_installed(client)
        there = adoption.read_claims(client)
        adoption.check_target(there, driver, pools)
        for line in _summary(there, driver, pools):
            print_line(line)
        for concern in adoption.find_concerns(there, driver, pools):
            print_note(f"note: {concern}")
        adoption.adopt(client, driver, pools, namespace, print_line, dry_run=dry_run)
        if dry_run:
            return 0
        names_of_rules = [rule.name for rule in adoption.read_rules(client) if rule.driver == driver]
        with show_spinner("waiting for the controller to be sure that kube-scheduler allocates none of them"):
            late = adoption.wait_for_rules(
                client,
                names_of_rules,
                adoption.deadline(timeout),
                lambda rule: rule is not None and bool(rule.adopted_at),
            )
    except NotInstalled as error:
        raise CommandFailed(str(error)) from error
    if late:
        why = next((rule.message for rule in late if rule.message), "")
        hint = "check that it runs with --resource-claims: kubectl -n " + namespace + " logs deploy/devalloc-controller"
        raise CommandFailed(f"the controller does not allocate them yet: {why or hint}")
    print_line(f"driver/{driver} adopted: label claims or namespaces devalloc.io/allocator=devalloc")
    return 0


def unadopt(
    names: tuple[str, ...],
    pools: tuple[str, ...],
    dry_run: bool,
    force: bool,
    timeout: float,
    kubeconfig: Path | None,
    namespace: str,
) -> int:
    driver, pools = _target(names, pools)
    client = connect_as_admin(kubeconfig)
    try:
        adopted = [rule for rule in adoption.read_rules(client) if rule.driver == driver]
        chosen = [rule for rule in adopted if not pools or rule.pool in pools]
        if missing := [pool for pool in pools if pool not in {rule.pool for rule in chosen}]:
            whole = any(rule.pool is None for rule in adopted)
            hint = "; the driver is adopted as a whole" if whole else ""
            raise CommandFailed(f"pool {missing[0]} of driver {driver} is not adopted{hint}; see: devalloc adopt")
        if not chosen:
            raise CommandFailed(f"driver {driver} is not adopted; `devalloc adopt` lists what is")
        for rule in chosen:
            print_line(f"{rule.title}: {_use_text(adoption.read_claims(client, with_pods=False), rule)}")
        adoption.unadopt(client, chosen, print_line, dry_run=dry_run, force=force)
        if dry_run:
            return 0
        with show_spinner("waiting for the controller to stop"):
            late = adoption.wait_for_rules(
                client, [rule.name for rule in chosen], adoption.deadline(timeout), lambda rule: rule is None
            )
        if not late:
            adoption.remove_rights(client, driver)
    except NotInstalled as error:
        raise CommandFailed(str(error)) from error
    if late:
        raise CommandFailed(
            f"the controller has not let go of {late[0].title} in time; check that one runs: kubectl -n {namespace} "
            "get pods; if it is gone for good: --force"
        )
    print_line(f"driver/{driver} is kube-scheduler's again")
    return 0


def _target(words: Sequence[str], pools: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The driver, and its pools: further words name pools too if --pools does. Raises BadInput."""
    named = [word for word in words if word.startswith("driver/")]
    others = [word for word in words if word not in named]
    if len(named) != 1 or (others and not pools):
        wrong = next(iter(others or named), "")
        hint = f"driver/{wrong}" if others and "/" not in wrong else "driver/NAME"
        raise BadInput(f"name one driver, as {hint}; `kubectl get resourceslices` lists drivers and pools")
    driver = named[0].removeprefix("driver/")
    if len(driver) > _MAX_DRIVER or not is_subdomain_name(driver):
        raise BadInput(f"{driver!r:.80} is not the name of a driver, such as gpu.nvidia.com")
    chosen = tuple(dict.fromkeys(name for each in (*pools, *others) for name in each.split(",") if name))
    for name in chosen:
        if len(name) > _MAX_POOL or not all(map(is_subdomain_name, name.split("/"))):
            raise BadInput(f"{name!r:.80} is not the name of a pool")
    return driver, chosen


def _summary(there: ClusterClaims, driver: str, pools: Iterable[str]) -> Iterable[str]:
    for pool in [*pools] or (None,):
        use = adoption.find_use(there, driver, pool)
        what = f"driver/{driver}" + (f" pool {pool}" if pool else "")
        where = f"{_number(use.pools, 'pool')} of {_number(use.nodes, 'node')}"
        yield f"{what}: {_number(use.devices, 'device')} in {where}, {use.in_use} in use"


def _use_text(there: ClusterClaims, rule: AdoptionRule) -> str:
    use = adoption.find_use(there, rule.driver, rule.pool)
    return f"{use.in_use} of {_number(use.devices, 'device')} in use"


def _list(client: Client) -> int:
    rules = adoption.read_rules(client)
    if not rules:
        print_line("nothing is adopted")
        return 0
    there = adoption.read_claims(client, with_pods=False)
    rows = []
    for rule in rules:
        use = adoption.find_use(there, rule.driver, rule.pool)
        state = "ending" if rule.is_ending else "since " + rule.adopted_at if rule.adopted_at else "not yet"
        users = ", ".join(f"{name} {number}" for name, number in list(use.by_namespace.items())[:3])
        more = f" and {len(use.by_namespace) - 3} more" if len(use.by_namespace) > 3 else ""
        rows.append([rule.driver, rule.pool or "all", state, f"{use.in_use}/{use.devices}", users + more])
    print_table(["DRIVER", "POOL", "ADOPTED", "IN USE", "BY NAMESPACE"], rows)
    for rule in rules:
        if rule.message and not rule.is_ending:
            print_note(f"{rule.title}: {rule.message}")
    return 0


def _number(count: int, what: str) -> str:
    return f"1 {what}" if count == 1 else f"{count} {what}s"
