"""The claims that `solve`, `explain` and `capacity` make for the pods in manifests."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.support.cli_shell import Result, Shell, claim, device_class, pool, text
from tests.support.dra_builders import ANY, devices, request, slice_
from tests.support.dra_builders import claim as resource_claim

Object = dict[str, Any]


def template(name: str, count: int, **spec: Any) -> Object:
    metadata = {"name": name, "namespace": "default"}
    own = {"spec": resource_claim(request("r", count))["spec"]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": metadata,
        "spec": own | spec,
    }


SLICE = slice_("s", devices("a", "b", "c"))


def only(node: str) -> Object:
    """The node selector of an allocation."""
    return {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}


def problems(shown: Result) -> list[str]:
    """What a verb prints beside its answer, without the lines."""
    return re.sub(r", line \d+", "", shown.err).splitlines()


def pod(name: str, *templates: str, **status: Any) -> Object:
    entries = [{"name": f"x{n}", "resourceClaimTemplateName": each} for n, each in enumerate(templates)]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"resourceClaims": entries}} | status


def test_solve_makes_the_claims_of_pods_as_kubernetes_does(devalloc: Shell) -> None:
    """Of templates in their namespace; several of one pod are on one node, and a pod that has ended has none."""
    two = slice_("s2", devices("d"), pool="q", nodeName="n0")
    ended = pod("ended", "one", status={"phase": "Succeeded"})
    given = (ANY, SLICE, two, template("one", 1), pod("web", "one", "one"), pod("db", "one"), ended)
    shown = devalloc("solve", "-f", "-", "-o", "json", stdin=text(*given))
    answers = {each["name"]: each for each in json.loads(shown.out)["claims"]}
    assert answers.keys() == {"web-x0", "web-x1", "db-x0"}
    assert {each["node"] for name, each in answers.items() if name.startswith("web")} == {"n1"}
    assert (shown.code, [line for line in shown.err.splitlines() if "ended" not in line]) == (0, [])


def test_a_claim_of_a_pod_that_is_given_is_not_made_again(devalloc: Shell) -> None:
    made = resource_claim(request("r", 2), name="web-x0")
    shown = devalloc(
        "solve", "-f", "-", "-o", "json", stdin=text(ANY, SLICE, template("one", 1), made, pod("web", "one"))
    )
    (answer,) = json.loads(shown.out)["claims"]
    assert (answer["name"], len(answer["allocations"])) == ("web-x0", 2)


@pytest.mark.parametrize("is_named", [True, False], ids=["named by the pod", "made already"])
def test_all_claims_of_a_pod_are_on_one_node(devalloc: Shell, is_named: bool) -> None:
    """Also one that the manifests contain, whose devices are on a node that has no more of them."""
    own = resource_claim(request("r", 2), name="mine" if is_named else "web-x0")
    web = pod("web", "one") if is_named else pod("web", "one", "one")
    if is_named:
        web["spec"]["resourceClaims"].append({"name": "own", "resourceClaimName": "mine"})
    slices = [slice_("s0", devices("a"), pool="p", nodeName="n0"), slice_("s1", devices("b", "c"), pool="q")]
    few = devalloc("solve", "-f", "-", stdin=text(ANY, *slices, template("one", 1), web, own))
    assert few.code == 3
    slices[1] = slice_("s1", devices("b", "c", "d"), pool="q")
    shown = devalloc("solve", "-f", "-", "-o", "json", stdin=text(ANY, *slices, template("one", 1), web, own))
    assert [each["node"] for each in json.loads(shown.out)["claims"]] == ["n1"] * 2


def test_a_claim_that_kubernetes_has_made_for_a_pod_is_not_made_again(devalloc: Shell) -> None:
    """Its name ends at random: the pod's status tells it."""
    made = resource_claim(request("r", 2), name="web-x0-7k2p9")
    status = {"phase": "Pending", "resourceClaimStatuses": [{"name": "x0", "resourceClaimName": "web-x0-7k2p9"}]}
    given = (ANY, SLICE, template("one", 1), made, pod("web", "one", status=status))
    shown = devalloc("solve", "-f", "-", "-o", "json", stdin=text(*given))
    assert [each["name"] for each in json.loads(shown.out)["claims"]] == ["web-x0-7k2p9"]


@pytest.mark.parametrize("annotations", [["a"], "a", 5])
def test_annotations_of_a_template_that_are_no_map_are_its_fault(devalloc: Shell, annotations: Any) -> None:
    broken = template("one", 1, metadata={"annotations": annotations})
    shown = devalloc("solve", "-f", "-", stdin=text(ANY, SLICE, broken, pod("web", "one")))
    assert shown.code == 2
    assert "ResourceClaimTemplate default/one: spec.metadata.annotations: must be a map" in shown.err


@pytest.mark.parametrize("metadata", ["a", ["a"], 5])
def test_metadata_for_the_claims_of_a_template_that_are_no_map_are_its_fault(devalloc: Shell, metadata: Any) -> None:
    broken = template("one", 1, metadata=metadata)
    shown = devalloc("solve", "-f", "-", stdin=text(ANY, SLICE, broken, pod("web", "one")))
    assert shown.code == 2
    assert "ResourceClaimTemplate default/one: spec.metadata: must be a map" in shown.err


def test_a_template_without_metadata_for_its_claims_is_none_with_a_fault(devalloc: Shell) -> None:
    given = text(ANY, SLICE, template("one", 1, metadata=None), pod("web", "one"))
    assert devalloc("solve", "-f", "-", stdin=given).code == 0


# -- pods that get none ------------------------------------------------------------------------------------------------


def test_a_pod_that_names_what_is_not_given_gets_no_claim_and_is_an_error(devalloc: Shell) -> None:
    """Kubernetes does not run it before all its claims are made: then none is in the way of others."""
    lost = pod("lost", "one", "other")
    lost["spec"]["resourceClaims"].append({"name": "mine", "resourceClaimName": "nope"})
    shown = devalloc("solve", "-f", "-", stdin=text(ANY, SLICE, template("one", 1), lost, pod("web", "one")))
    assert shown.code == 2
    assert problems(shown) == [
        f"error: stdin, document 4: Pod default/lost: spec.resourceClaims[{place}: there is no {what} in the "
        "manifests, so its claims are not made; add it"
        for place, what in (
            ("1].resourceClaimTemplateName", "ResourceClaimTemplate default/other"),
            ("2].resourceClaimName", "ResourceClaim default/nope"),
        )
    ]
    assert [line.split()[:2] for line in shown.out.splitlines()[1:]] == [["default/web-x0", "yes"]]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([{"name": "x", "resourceClaimTemplatName": "one"}], "[0].resourceClaimTemplatName: is not a known field of a "
         "pod's claim: did you mean resourceClaimTemplateName?"),
        ([{"nam": "x", "resourceClaimTemplateName": "one"}], "[0].nam: is not a known field of a pod's claim: did you "
         "mean name?"),
        ([{"name": "x", "source": {}}], "[0].source: is not a known field of a pod's claim: write its field in the "
         "entry itself"),
        ([{"resourceClaimTemplateName": "one"}], "[0].name: is missing"),
        ([{"name": "x" * 100_000, "resourceClaimTemplateName": "one"}], "[0].name: must be a DNS label"),
        ([{"name": "x", "resourceClaimName": "o\u202ene"}], "[0].resourceClaimName: must be a DNS name"),
        ([{"name": "x"}], "[0]: must set one of resourceClaimName and resourceClaimTemplateName"),
        ([{"name": "x", "resourceClaimName": "c", "resourceClaimTemplateName": "one"}], "[0]: must set one of"),
        ([{"name": "x", "resourceClaimTemplateName": "one"}] * 2, ": has two entries named 'x'; rename one"),
        (["one"], "[0]: must be a map (name, resourceClaimName, resourceClaimTemplateName), not a string"),
        ({"name": "x"}, ": must be a list, not a map"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_the_claims_of_a_pod_is_an_error_at_its_place(
    devalloc: Shell, entries: Any, message: str
) -> None:
    web = pod("web") | {"spec": {"resourceClaims": entries}}
    shown = devalloc("solve", "-f", "-", stdin=text(ANY, SLICE, template("one", 1), web))
    assert (shown.code, "yes" in shown.out) == (2, False)
    assert problems(shown)[0].startswith(f"error: stdin, document 4: Pod default/web: spec.resourceClaims{message}")
    assert len(shown.err) < 500


def test_a_misspelled_list_of_claims_is_noticed(devalloc: Shell) -> None:
    web = pod("web") | {"spec": {"resourceClaim": [], "resources": {}, "containers": []}}
    shown = devalloc("solve", "-f", "-", stdin=text(ANY, SLICE, web))
    assert (
        "Pod default/web: spec.resourceClaim: is not a known field of a pod: did you mean resourceClaims?" in shown.err
    )
    assert shown.code == 2


def test_two_pods_of_one_name_are_an_error_of_the_second(devalloc: Shell) -> None:
    shown = devalloc(
        "solve", "-f", "-", stdin=text(ANY, SLICE, template("one", 1), pod("web", "one"), pod("web", "one"))
    )
    assert "Pod default/web: metadata.name: is the name of two pods in this namespace; rename one" in shown.err
    assert shown.code == 2


@pytest.mark.parametrize(("name", "namespace"), [("Web", "default"), ("web", "A_B")])
def test_names_that_no_pod_can_have_are_an_error(devalloc: Shell, name: str, namespace: str) -> None:
    odd = pod("web", "one") | {"metadata": {"name": name, "namespace": namespace}}
    shown = devalloc("solve", "-f", "-", stdin=text(ANY, SLICE, template("one", 1), odd))
    assert shown.code == 2
    assert "must be a DNS" in shown.err


@pytest.mark.parametrize("metadata", [5, [], {}, {"name": 5}, {"name": "x", "namespace": 5}, {"name": "x" * 100_000}])
def test_metadata_that_no_object_has_are_an_error_once(devalloc: Shell, metadata: Any) -> None:
    odd = pod("web", "one") | {"metadata": metadata}
    shown = devalloc("solve", "--no-store", "-f", "-", stdin=text(ANY, SLICE, template("one", 1), odd))
    assert (shown.code, "web-x0" in shown.out) == (2, False)
    assert [line for line in shown.err.splitlines() if "metadata" in line and len(line) < 500]
    assert "bug in devalloc" not in shown.err


def test_a_fault_of_a_template_is_said_once_however_many_pods_name_it(devalloc: Shell) -> None:
    broken = template("one", 1, spek={})
    shown = devalloc("solve", "-f", "-", stdin=text(ANY, SLICE, broken, *(pod(f"p{n}", "one") for n in range(20))))
    assert shown.code == 2
    assert shown.err == (
        "error: stdin, document 3, line 37: ResourceClaimTemplate default/one: spec.spek: is not a known field of "
        "resource.k8s.io/v1: did you mean spec?\n"
    )


@pytest.mark.parametrize("verb", ["solve", "explain", "capacity"])
def test_beside_a_store_pods_do_not_count_which_is_said(devalloc: Shell, verb: str) -> None:
    assert devalloc("apply", "-f", "-", stdin=text(pool(), device_class(), claim())).code == 0
    words = () if verb == "solve" else ("train",)
    shown = devalloc(verb, *words, "--with-store", "-f", "-", stdin=text(pod("web", "one")))
    assert "warning: ResourceClaims, their templates and pods do not count beside a store; use --no-store" in shown.err


# -- `explain` and `capacity` ------------------------------------------------------------------------------------------

WEB = text(ANY, SLICE, template("one", 1), template("many", 9), pod("web", "one", "many"), pod("db", "one"))


@pytest.mark.parametrize("words", [["pod/web"], ["pod", "web"], ["pods/web"], ["web"]])
def test_a_pod_is_explained_by_the_claim_that_cannot_be_satisfied(devalloc: Shell, words: list[str]) -> None:
    shown = devalloc("explain", *words, "-f", "-", stdin=WEB)
    assert shown.code == 3
    assert shown.err == "it has 2 claims; this one is web-x1:\n"
    assert shown.out.startswith("default/web-x1 is not allocated: NotEnoughDevices")


def test_the_only_pod_of_manifests_is_explained_without_its_name(devalloc: Shell) -> None:
    shown = devalloc("explain", "-f", "-", stdin=text(ANY, SLICE, template("one", 1), pod("db", "one")))
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith("default/db-x0 is allocated on node n1")


def test_a_claim_of_a_pod_is_explained_and_counted_and_so_is_its_template(devalloc: Shell) -> None:
    explained = devalloc("explain", "db-x0", "-f", "-", stdin=WEB)
    assert (explained.code, explained.err) == (0, "")
    assert devalloc("capacity", "db-x0", "-f", "-", stdin=WEB).out == "3 more like default/db-x0: 3 on n1\n"
    assert devalloc("capacity", "resourceclaimtemplate/one", "-f", "-", stdin=WEB).out.startswith("3 more like")
    assert devalloc("explain", "resourceclaimtemplate/one", "-f", "-", stdin=WEB).code == 0


def test_reasons_name_the_pod_whose_claims_do_not_fit_together(devalloc: Shell) -> None:
    given = text(ANY, SLICE, template("two", 2), pod("web", "two", "two"))
    shown = devalloc("solve", "-f", "-", "-o", "json", stdin=given)
    (first, _) = json.loads(shown.out)["claims"]
    assert first["message"] == ("all claims of pod web must fit on one node; take claim default/web-x1 out of the pod")
    assert (first["causes"][0]["pod"], first["blockers"][0]["pod"]) == ("web", "web")


def test_pods_that_share_a_claim_are_on_one_node_with_all_their_claims(devalloc: Shell) -> None:
    own, web, db = resource_claim(request("r", 1), name="mine"), pod("web", "one"), pod("db", "one")
    for one in (web, db):
        one["spec"]["resourceClaims"].append({"name": "own", "resourceClaimName": "mine"})
    few = slice_("s0", devices("x", "y"), pool="q", nodeName="n0")
    given = text(ANY, few, SLICE, template("one", 1), own, web, db)
    shown = devalloc("solve", "-f", "-", "-o", "json", stdin=given)
    assert [one["node"] for one in json.loads(shown.out)["claims"]] == ["n1"] * 3


@pytest.mark.parametrize(
    ("path", "spec"),
    [
        ("spec.nodeName", {"nodeName": "n9"}),
        ("spec.nodeSelector", {"nodeSelector": {"zone": "b"}}),
        ("spec.affinity.nodeAffinity", {"affinity": {"nodeAffinity": {"required": []}, "podAntiAffinity": {}}}),
        ("", {"affinity": {"podAntiAffinity": {"required": []}}, "nodeSelector": {}}),
        ("", {"affinity": "a"}),
    ],
)
def test_that_it_does_not_count_where_a_pod_may_run_is_said(devalloc: Shell, path: str, spec: Object) -> None:
    web = pod("web", "one")
    web["spec"] |= spec
    shown = devalloc("explain", "pod/web", "-f", "-", stdin=text(ANY, SLICE, template("one", 1), web))
    assert shown.code == 0
    assert (f"Pod default/web: {path}: does not count here" in shown.err) is bool(path)
    assert bool(shown.err) is bool(path)


def test_a_pod_whose_claims_are_on_several_nodes_can_run_on_none_which_is_said(devalloc: Shell) -> None:
    own = [resource_claim(request("r", 1), name=name) for name in ("a", "b")]
    for one, node in zip(own, ("n0", "n1"), strict=True):
        device = {"request": "r", "driver": "gpu.example.com", "pool": node, "device": "a"}
        one["status"] = {"allocation": {"devices": {"results": [device]}, "nodeSelector": only(node)}}
    web = pod("web")
    web["spec"]["resourceClaims"] = [{"name": name, "resourceClaimName": name} for name in ("a", "b")]
    shown = devalloc("explain", "pod/web", "-f", "-", stdin=text(ANY, SLICE, *own, web))
    assert "warning: its claims have devices of nodes n0, n1, so it can run on none; delete" in shown.err


def test_a_pod_that_is_not_in_manifests_is_an_error_with_those_that_are(devalloc: Shell) -> None:
    there = "there is no pod default/wbe with claims in manifests; did you mean web?"
    assert there in devalloc("explain", "pod/wbe", "-f", "-", stdin=WEB).err
    assert "; there are db, web\n" in devalloc("explain", "pod/cache", "-f", "-", stdin=WEB).err


def test_a_pod_without_manifests_is_explained_by_its_claims(devalloc: Shell) -> None:
    devalloc("apply", "-f", "-", stdin=text(pool(), device_class(), claim()))
    for words in (("pod/web",), ("pod/web", "-f", "-")):
        shown = devalloc("explain", *words, stdin=text(ANY, SLICE))
        assert shown.code != 0
        assert "explain its claims: devalloc explain resourceclaim/NAME, or give its manifests with -f" in shown.err
    assert "its claims have reasons: devalloc explain resourceclaim/NAME" in devalloc("get", "pods").err
