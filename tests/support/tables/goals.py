"""Goals: what a machine should have by its metrics, and by what its guest refused."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from devalloc.scaling.goals import DeniedDownscale, RequestedUpscale, compute_goal, desired_resources
from devalloc.scaling.resources import ResourceFlags
from devalloc.scaling.versions import ProtocolEra
from tests.support.tables.table_form import CaseVerdict, Failure, TableForm, differences, each, has_cases, verdict
from tests.support.tables.values import amounts_as_table, config, lfc, resources, system


def _goals(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    yield from each(content["cases"], _goal)


def _goal(case: dict[str, Any]) -> CaseVerdict:
    given = case["input"]
    buckets = None if given.get("lfc") is None else given["lfc"]["workingSetSizeBuckets"]

    def judge() -> dict[str, Any]:
        unit, era = resources(given["computeUnit"]), ProtocolEra(given.get("era", "newest"))
        got = compute_goal(unit, config(given["config"]), system(given.get("system")), lfc(buckets), era)
        parts = {
            "goalCU": got.units,
            "hasAllMetrics": got.complete,
            "cpu": got.cpu,
            "mem": got.memory,
            "lfc": got.lfc,
        }
        return {name: parts[name] for name in case["expected"]}

    return verdict(case["name"], case["expected"], judge)


def _cpu_goals(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    unit, tolerance = resources(content["compute_unit"]), content.get("tolerance", 1e-9)

    def one(case: dict[str, Any]) -> CaseVerdict:
        zones = {"cpuStableZoneRatio": case.get("stable", 0), "cpuMixedZoneRatio": case.get("mixed", 0)}
        metrics = None if case["load1"] is None else system(case)
        parameters = config({"loadAverageFractionTarget": content["loadAverageFractionTarget"], **zones})
        got = compute_goal(unit, parameters, metrics)
        failures = []
        expected = case["expected_cpu_goal"]
        near = got.cpu is None if expected is None else math.isclose(got.cpu or 0.0, expected, abs_tol=tolerance)
        if not near:
            failures.append(Failure(expected, got.cpu))
        if got.complete is not case.get("has_all_metrics", metrics is not None):
            failures.append(Failure(case.get("has_all_metrics"), got.complete, "has all metrics"))
        return CaseVerdict(case["name"], failures)

    yield from each(content["cases"], one)


def _all_desired(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    unit = resources(content["compute_unit"])
    minimum, maximum = (resources(content["bounds"][name]) for name in ("min", "max"))

    def one(case: dict[str, Any]) -> CaseVerdict:
        using, refused = resources(case["using"]), case.get("denied_downscale_requested")
        parameters = config(content["config"], enableLFCMetrics=case.get("enable_lfc", False))
        metrics = system(case["system_metrics"]), lfc(case.get("lfc_wss_buckets_8k_pages"))
        denied = None if refused is None else DeniedDownscale(0, using, resources(refused))
        requested = case.get("requested_upscale")
        more = None if requested is None else ResourceFlags(requested.get("cpu", False), requested.get("memory", False))
        upscale = None if requested is None or more is None else RequestedUpscale(0, resources(requested["base"]), more)
        era = ProtocolEra(case.get("era", "newest"))
        wish = compute_goal(unit, parameters, *metrics, era)
        got = desired_resources(unit, minimum, maximum, using, wish, upscale, denied, era)
        failures = []
        if got.resources != resources(case["expected"]):
            failures.append(
                Failure(case["expected"], amounts_as_table(got.resources, gib="mem_gib" in case["expected"]))
            )
        failures += _gist(case.get("warning_gist", ()), got.warnings)
        if era is ProtocolEra.NEWEST and case.get("versions") == "v0.31+":
            wish = compute_goal(unit, parameters, *metrics, ProtocolEra.V0_31)
            before = desired_resources(unit, minimum, maximum, using, wish, upscale, denied, ProtocolEra.V0_31)
            failures += differences(
                case["expected"], amounts_as_table(before.resources, gib="mem_gib" in case["expected"]), "v0.31"
            )
        # Peers tell that metrics are missing before there are any, too: a difference that is listed.
        peers_warn = era is ProtocolEra.NEWEST and metrics == (None, None)
        count = case.get("expected_warning_count", len(got.warnings))
        if count - len(got.warnings) not in ((0, 1) if peers_warn else (0,)):
            failures.append(Failure(case.get("warning_gist"), list(got.warnings), "warnings"))
        return CaseVerdict(case["name"], failures)

    yield from each(content["cases"], one)
    for number, case in enumerate(content["cases"], 1):
        if not isinstance(case, dict):
            continue
        name, releases, gists = case.get("name", number), case.get("versions"), case.get("warning_gist")
        if releases is not None and releases != "v0.31+" and not str(releases).startswith("HEAD"):
            yield CaseVerdict(f"versions {releases} of {name}", unjudged="no releases that are known")
        for gist in gists if isinstance(gists, list) else []:
            if str(gist) not in _GISTS:
                yield CaseVerdict(
                    f"warning {gist} of {name}", unjudged="no warning that is known; how many there are is"
                )


_GISTS = {"cannot decrease to within VM maximum because of denied downscale": "cannot decrease to within the machine's"}
_GISTS |= {"deciding without all required metrics": "deciding without all required metrics"}


def _gist(theirs: Iterable[str], ours: Iterable[str]) -> list[Failure]:
    """Each warning of a peer must be one of ours, which has words of its own."""
    left, failures = list(ours), []
    for gist in theirs:
        if (words := _GISTS.get(str(gist))) is None:
            continue
        same = next((warning for warning in left if warning.startswith(words)), None)
        if same is None:
            failures.append(Failure(gist, left, "warnings"))
        else:
            left.remove(same)
    return failures


FORMS = [
    TableForm("goals", lambda content: has_cases(content, "input.computeUnit", "expected.goalCU"), _goals),
    TableForm("goals of CPU", lambda content: has_cases(content, "load1", "expected_cpu_goal"), _cpu_goals),
    TableForm(
        "what is desired",
        lambda content: has_cases(content, "using", "expected", "system_metrics"),
        _all_desired,
    ),
]
