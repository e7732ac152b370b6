"""``devalloc solve``: which claim gets which device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import click

from devalloc.cli.contents import contents, with_store_option
from devalloc.cli.options import (
    deadline_option,
    manifests_option,
    namespace_option,
    output_option,
    placement_option,
)
from devalloc.cli.place import Place, place_options
from devalloc.cli.verb import verb


@verb("solve")
@manifests_option(required=False)
@namespace_option
@placement_option
@deadline_option
@output_option("table", "wide", "json", "yaml")
@with_store_option
@place_options
def solve(
    files: tuple[str, ...],
    namespace: str,
    placement: str,
    deadline: float | None,
    output: str,
    with_store: bool | None,
    place: Place,
) -> int:
    """Decide which claim gets which device, and which node which machine. Nothing is written.

    Without -f for what the store, or the cluster, has. With -f for the claims of the manifests: as if they were applied
    to the cluster that --kubeconfig names, or to the store; on a fleet of their own, if there are pools among them and
    no cluster is named, or there is no store.

    Exit code 1 when a claim gets nothing, 2 when a manifest is wrong; the others are answered all the same.

    \b
    devalloc solve -f claim.yaml
    devalloc solve -f examples/whole-gpu
    devalloc solve -f fleet/ -f claim.yaml -o json
    devalloc solve -f claim.yaml --kubeconfig ~/.kube/config
    """
    from devalloc.cli.answers import answer_table, show_answer_problems
    from devalloc.cli.output import dump, working
    from devalloc.controller.placing import solve_with_machines

    question = contents(files, namespace, place, with_store)
    with working("solving"):
        answer: dict[str, Any] = solve_with_machines(
            question.all, placement=placement, deadline=deadline, admin_namespaces=question.admin_namespaces
        )
    show_answer_problems(answer, question.documents)
    answer = question.of_files(answer)
    if output in ("json", "yaml"):
        dump(answer, output)
    elif answer["claims"] or answer.get("machines"):
        if answer["claims"]:
            answer_table(answer["claims"], wide=output == "wide")
        if answer.get("machines"):
            if answer["claims"]:
                click.echo()
            answer_table(answer["machines"], wide=output == "wide", machines=True)
    else:
        click.echo(f"no claims{_counted(question.all)}")
    if question.code or question.has_errors(answer):
        return 2
    return 0 if all(one["allocated"] for one in (*answer["claims"], *answer.get("machines", ()))) else 1


def _counted(objects: Sequence[Any]) -> str:
    """What there was instead of claims, such as ": 12 DevicePool, 1 DeviceClass"."""
    kinds = Counter(str(one.get("kind")) for one in objects if isinstance(one, dict))
    return f": {', '.join(f'{number} {kind}' for kind, number in sorted(kinds.items()))}" if kinds else ""
