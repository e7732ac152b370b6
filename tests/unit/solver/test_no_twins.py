"""One place per idea: what both dialects once had a version of, each, stays away."""

import re
from functools import cache

import pytest

from tests.support.repository import REPO

SOLVER, CONTROLLER = REPO / "solver" / "devalloc_solver", REPO / "devalloc" / "controller"

GONE = {
    "the flow of a solve": (
        *("pipeline/device_claims.py", "pipeline/resource_k8s.py", "pipeline/one_node.py"),
        *("PreparedProblem", "PreparedCluster", "explain_in_time"),
    ),
    "the problem of a call for one node": (
        *(
            "dialects/resource_k8s/allocation_task.py",
            "dialects/resource_k8s/one_node.py",
            "AllocationTask",
            "CallInput",
        ),
    ),
    "reasons": (
        *("explain/device_claims", "explain/resource_k8s", "dialects/resource_k8s/one_node_explainer.py"),
        *("describe_remedy", "describe_shortage", "join_sentences", "redact", "with_machine_names"),
    ),
    "answers": ("rejected_answer", "MissingDevice"),
    "what claims hold": ("recover_allocation",),
    "who must leave": ("explain/blocking_claims.py", "BlockingClaimFinder", "BlockingClaims"),
    "the judge of expressions": ("SelectorJudge", "_VerdictCount", "_evaluate_all"),
    "what is known of a request": ("expressions_of", "drivers_of_class", "attribute_names"),
    "the device that is judged": ("_changing_devices",),
    "how a request takes devices": ("counts_devices", "takes_exclusively", "_minimum_amount"),
    "whether a relation holds": ("_constraint_holds",),
    "the search by columns": ("allocate_quickly", "_place_quickly_by_columns"),
    "the devices of a fleet": ("fleet/resource_k8s/full_solve.py", "FullCluster", "SharedDevices"),
    "the fleet": ("fleet/device_claims", "fleet/resource_k8s"),
    "the objects of a fleet": ("ManifestStore", "all_but_claims", "_written_on"),
    "the snapshot of ResourceSlices": ("local_snapshot", "network_snapshot", "_to_snapshot_device"),
    "what DeviceClaims hold, and its ghosts": ("of_invalid", "_with_ghosts"),
    "the solver of a round": (
        *("reconcile/warm_solver.py", "IncrementalSolver", "IncrementalResourceSolver", "WarmFleet"),
        *("_PreviousRound", "_RefusedClaims", "_WaitingFleet"),
    ),
}
"""idea -> files, folders and names of the solver and the controller"""


@cache
def words_of_the_product() -> frozenset[str]:
    paths = (path for folder in (SOLVER, CONTROLLER) for path in folder.rglob("*.py"))
    return frozenset(word for path in paths for word in re.findall(r"\w+", path.read_text()))


def is_there(twin: str) -> bool:
    """Whether one of the two has the file, or a module in the folder: git leaves one that has cached bytecode."""
    if "/" not in twin:
        return twin in words_of_the_product()
    paths = [folder / twin for folder in (SOLVER, CONTROLLER)]
    return any(path.is_file() or any(path.rglob("*.py")) for path in paths)


@pytest.mark.parametrize(("idea", "twin"), [(idea, twin) for idea, twins in GONE.items() for twin in twins])
def test_an_idea_has_no_second_version(idea: str, twin: str) -> None:
    assert not is_there(twin), f"{twin} is back; extend the one version of {idea}"


def test_only_the_judge_evaluates_expressions() -> None:
    """But for the check, which is independent of the solver."""
    imports = re.compile(r"from devalloc_solver\.cel\.(budget import [^)]*\bCosts\b|free_evaluations)")
    paths = [path.relative_to(SOLVER).as_posix() for path in SOLVER.rglob("*.py") if imports.search(path.read_text())]
    assert paths == ["eligibility/judge.py"]
