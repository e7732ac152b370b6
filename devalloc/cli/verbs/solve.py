"""``devalloc solve``: show which claim gets which device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import click

from devalloc.cli.command import verb
from devalloc.cli.options.common import (
    deadline_option,
    manifests_option,
    namespace_option,
    output_option,
    placement_option,
)
from devalloc.cli.render.output import print_content, show_spinner
from devalloc.cli.solver_input import load_solver_input, with_store_option
from devalloc.cli.target import StoreTarget, target_options


@verb("solve")
@manifests_option(required=False)
@namespace_option
@placement_option
@deadline_option
@output_option("table", "wide", "json", "yaml")
@with_store_option
@target_options
def solve(
    files: tuple[str, ...],
    namespace: str,
    placement: str,
    deadline: float | None,
    output: str,
    with_store: bool | None,
    place: StoreTarget,
) -> int:
    """Decide which claim gets which device, and which machine which node. Writes nothing.

    Without -f: for all claims of the store or cluster. With -f: for the claims of the manifests, as if you applied them
    to the cluster of --kubeconfig or to the store. The manifests are used alone if they contain pools and no cluster is
    named, or if there is no store.

    Exit code 1 if a claim gets nothing, 2 if a manifest is invalid; the valid ones are used anyway.

    \b
    devalloc solve -f claim.yaml
    devalloc solve -f examples/whole-gpu
    devalloc solve -f fleet/ -f claim.yaml -o json
    devalloc solve -f claim.yaml --kubeconfig ~/.kube/config
    """
    from devalloc.cli.documents import print_answer_problems
    from devalloc.cli.render.answers import print_answers
    from devalloc.controller.reconcile.vm_scheduling import solve_with_machines

    question = load_solver_input(files, namespace, place, with_store)
    with show_spinner("solving"):
        answer: dict[str, Any] = solve_with_machines(
            question.all, placement=placement, deadline=deadline, admin_namespaces=question.admin_namespaces
        )
    print_answer_problems(answer, question.documents)
    answer = question.of_files(answer)
    if output in ("json", "yaml"):
        print_content(answer, output)
    elif answer["claims"] or answer.get("machines"):
        if answer["claims"]:
            print_answers(answer["claims"], wide=output == "wide")
        if answer.get("machines"):
            if answer["claims"]:
                click.echo()
            print_answers(answer["machines"], wide=output == "wide", machines=True)
    else:
        click.echo(f"no claims{_counted(question.all)}")
    if question.code or question.has_errors(answer):
        return 2
    return 0 if all(one["allocated"] for one in (*answer["claims"], *answer.get("machines", ()))) else 1


def _counted(objects: Sequence[Any]) -> str:
    """The objects other than claims, such as ": 12 DevicePool, 1 DeviceClass"."""
    kinds = Counter(str(one.get("kind")) for one in objects if isinstance(one, dict))
    return f": {', '.join(f'{number} {kind}' for kind, number in sorted(kinds.items()))}" if kinds else ""
