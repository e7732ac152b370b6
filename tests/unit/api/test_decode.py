"""Decoding never raises, knows its kinds, and says what it read leniently."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.api.claim import DeviceClaim
from devalloc.api.decode import MAX_PROBLEMS, decode
from devalloc.api.device_class import ConfigObject, DeviceClass
from devalloc.api.json_content import MAX_DEPTH
from devalloc.api.kinds import API_KINDS, find_kind
from devalloc.api.pool import DevicePool
from devalloc.api.problems import errors
from tests.support.examples import examples
from tests.support.good_manifests import good
from tests.support.manifest_edit import with_change

DEVMGMT = "devmgmtproto.k8s.io/v1alpha1"


def warnings(content: object) -> dict[str, str]:
    """Message by path of a document that is read."""
    decoded = decode(content)
    assert decoded.object is not None, [str(problem) for problem in decoded.problems]
    assert all(problem.severity == "warning" for problem in decoded.problems)
    return {problem.path: problem.message for problem in decoded.problems}


# -- kinds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api_version", "kind", "path", "words"),
    [
        (DEVMGMT, "DevicePol", "kind", "did you mean DevicePool?"),
        (DEVMGMT, "deviceclaim", "kind", "did you mean DeviceClaim?"),
        (DEVMGMT, "Pod", "kind", "the kinds are DevicePool, DeviceClass, DeviceClaim"),
        (DEVMGMT, "VfConfig", "apiVersion", "must be devalloc.io/v1alpha1"),
        ("devmgmtproto.k8s.io/v1", "DevicePool", "apiVersion", f"must be {DEVMGMT}"),
        ("devmgmtproto.k8s/v1alpha1", "DevicePool", "apiVersion", f"must be {DEVMGMT}"),
        ("v1alpha1", "DevicePool", "apiVersion", f"must be {DEVMGMT}"),
        (None, "DevicePool", "apiVersion", f"is required: {DEVMGMT} for a DevicePool"),
        (DEVMGMT, None, "kind", "required"),
        (1, "DevicePool", "apiVersion", "string"),
        (DEVMGMT, ["DevicePool"], "kind", "string"),
    ],
)
def test_an_unknown_kind_or_version_names_the_nearest(api_version: Any, kind: Any, path: str, words: str) -> None:
    decoded = decode({"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}})
    assert decoded.object is None
    (problem,) = decoded.problems
    assert problem.path == path
    assert words in problem.message


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [("v1", "ConfigMap"), ("resource.k8s.io/v1", "DeviceClass"), ("foozer.example.com/v1", "FoozerConfig")],
)
def test_objects_of_other_apis_are_kept_as_they_are(api_version: str, kind: str) -> None:
    content = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "a:b", "x": None}, "data": {"1": [None]}}
    decoded = decode(content)
    assert isinstance(decoded.object, ConfigObject)
    assert decoded.object.to_manifest()["data"] == {"1": [None]}
    assert decoded.problems == []


def test_objects_of_other_apis_still_need_a_name() -> None:
    (problem,) = decode({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "a"}}).problems
    assert problem.path == "metadata.name"


@pytest.mark.parametrize("kind", API_KINDS.values(), ids=lambda kind: kind.kind)
def test_kinds_are_found_by_all_their_names(kind: Any) -> None:
    for word in (kind.kind, kind.plural, kind.singular, f"{kind.plural}.{kind.group}", *kind.short_names):
        assert find_kind(word) is kind
    assert find_kind(f"{kind.plural}.example.com") is None


# -- lenient reading -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", ["Driver", "DRIVER", "dRiver"])
def test_class_fields_with_malformed_tags_are_read_in_any_case(spelling: str) -> None:
    content = with_change(with_change(good("DeviceClass"), "spec.driver", None), f"spec.{spelling}", "nic")
    assert warnings(content) == {f"spec.{spelling}": "is read as 'driver'"}
    obj = decode(content).object
    assert isinstance(obj, DeviceClass)
    assert obj.spec.driver == "nic"
    assert obj.to_manifest()["spec"]["driver"] == "nic"


def test_both_spellings_at_once_are_an_error() -> None:
    (problem,) = decode(with_change(good("DeviceClass"), "spec.Driver", "nic")).problems
    assert problem.path == "spec.Driver"


def test_other_fields_are_not_read_in_any_case() -> None:
    (problem,) = decode(with_change(good("DevicePool"), "spec.Driver", "nic")).problems
    assert "did you mean `driver`?" in problem.message


def test_nulls_are_read_as_not_set() -> None:
    content = good("DeviceClaim")
    content["spec"]["claims"][0]["deviceType"] = None
    content["status"] = {
        "allocations": None,
        "deviceStatuses": [{"devicePoolName": "p", "deviceName": "d", "conditions": None}],
    }
    content["metadata"]["creationTimestamp"] = None
    by_path = warnings(content)
    assert list(by_path) == ["spec.claims[0].deviceType", "status.allocations", "status.deviceStatuses[0].conditions"]
    assert set(by_path.values()) == {"is null, read as not set"}
    obj = decode(content).object
    assert obj is not None
    assert "deviceType" not in obj.to_manifest()["spec"]["claims"][0]


def test_null_in_a_required_field_is_an_error() -> None:
    content = good("DevicePool")
    content["spec"]["driver"] = None
    (problem,) = decode(content).problems
    assert (problem.path, problem.severity) == ("spec.driver", "error")


def test_annotations_and_labels_without_quotes_are_read_as_texts() -> None:
    content = good("DeviceClaim")
    content["metadata"]["annotations"] = {"devalloc.io/priority": 7, "on": True}
    content["metadata"]["labels"] = {"version": 1.5}
    assert warnings(content) == {
        "metadata.annotations[devalloc.io/priority]": "is a number without quotes, read as the string '7'",
        "metadata.annotations[on]": "is a boolean without quotes, read as the string 'true'",
        "metadata.labels[version]": "is a number without quotes, read as the string '1.5'",
    }
    claim = decode(content).object
    assert isinstance(claim, DeviceClaim)
    assert claim.priority == 7


def test_a_namespace_on_a_cluster_scoped_object_is_ignored() -> None:
    content = with_change(good("DevicePool"), "metadata.namespace", "team-a")
    assert list(warnings(content)) == ["metadata.namespace"]
    pool = decode(content).object
    assert isinstance(pool, DevicePool)
    assert pool.metadata.namespace is None


def test_a_detail_that_names_nothing_is_valid_and_warned_of() -> None:
    content = good("DeviceClaim")
    content["spec"]["claims"] = [{}, {"oneOf": [{"deviceClass": "gpu"}, {"requests": {"memory": "1Gi"}}]}]
    assert list(warnings(content)) == ["spec.claims[0]", "spec.claims[1].oneOf[1]"]


# -- whatever comes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [None, True, 1, 1.5, "x", [], [good("DevicePool")], {}, {"items": []}])
def test_content_other_than_an_object_is_an_error(content: object) -> None:
    decoded = decode(content)
    assert decoded.object is None
    assert decoded.problems


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (float("nan"), "finite"),
        (float("-inf"), "finite"),
        (10**5000, "too large"),
        ("\ud800", "invalid character"),
        (date(2026, 1, 1), "JSON content"),
        (b"x", "JSON content"),
    ],
    ids=["nan", "inf", "huge", "surrogate", "date", "bytes"],
)
@pytest.mark.parametrize("where", ["spec.driver", "spec.attributes.0.stringValue", "metadata.labels.rack"])
def test_values_that_json_lacks_are_named_and_hide_nothing(where: str, value: object, words: str) -> None:
    content = with_change(with_change(good("DevicePool"), where, value), "spec.resources.0.capacity", "-1")
    problems = errors(decode(content).problems)
    assert len(problems) == 2
    assert words in problems[0].message
    assert problems[1].path == "spec.resources[0].capacity"
    assert all(str(problem).isprintable() for problem in problems)


@pytest.mark.parametrize("key", [1, None, True, 1.5, ("a",)])
def test_keys_that_are_no_texts_are_named(key: object) -> None:
    content = good("DevicePool")
    content["spec"][key] = "x"
    (problem,) = errors(decode(content).problems)
    assert "has a key that must be a string" in problem.message


@pytest.mark.parametrize("depth", [MAX_DEPTH, 2_000])
def test_deep_nesting_is_an_error_with_its_place(depth: int) -> None:
    content: Any = {}
    for _ in range(depth):
        content = {"a": content}
    (problem,) = decode(
        {"apiVersion": "example.com/v1", "kind": "X", "metadata": {"name": "x"}, "spec": content}
    ).problems
    assert "nested too deeply" in problem.message
    assert problem.path.startswith("spec.a.a")


def test_values_shared_so_often_that_they_are_too_many_are_an_error() -> None:
    content: Any = "x"
    for _ in range(40):
        content = [content] * 10
    (problem,) = decode(
        {"apiVersion": "example.com/v1", "kind": "X", "metadata": {"name": "x"}, "spec": content}
    ).problems
    assert "too large" in problem.message


def test_endless_errors_are_counted_and_not_listed() -> None:
    content = good("DevicePool")
    content["spec"]["devices"] = [{"name": i} for i in range(3_000)]
    problems = decode(content).problems
    assert len(problems) == MAX_PROBLEMS + 1
    assert "more problems" in problems[-1].message


json_content = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
places = st.sampled_from(
    [
        "spec",
        "metadata",
        "status",
        "kind",
        "spec.claims",
        "spec.devices",
        "spec.attributes",
        "spec.resources",
        "spec.configs",
        "metadata.annotations",
        "metadata.managedFields",
        "spec.matchAttributes",
        "status.deviceStatuses",
        "spec.devices.0",
        "spec.claims.0",
        "spec.claims.0.requests",
        "spec.claims.0.oneOf",
        "spec.attributes.0",
        "status.classConfigs",
    ]
)


@settings(max_examples=examples(24, 0.2), deadline=None)
@given(st.sampled_from(["DevicePool", "DeviceClass", "DeviceClaim", "VfConfig"]), places, json_content)
def test_any_content_at_any_place_gives_an_object_or_errors_in_words(kind: str, where: str, value: Any) -> None:
    try:
        content = with_change(good(kind), where, value)
    except (KeyError, IndexError, TypeError):
        return
    decoded = decode(content)
    assert (decoded.object is None) == bool(errors(decoded.problems))
    for problem in decoded.problems:
        assert problem.message
        assert str(problem).isprintable()
        assert "Input should" not in problem.message
    if decoded.object is not None:
        assert decode(decoded.object.to_manifest()).object == decoded.object


def test_unprintable_names_are_escaped_in_messages() -> None:
    content = good("DeviceClaim")
    content["spec"]["claims"][0] |= {"requests": {"a\u2028b": 2}, "limits": {"a\u2028b": 1}}
    (problem,) = decode(content).problems
    assert str(problem).isprintable()
    assert "requests.a\\u2028b (2)" in problem.message


def test_problems_say_what_where_and_which_object() -> None:
    (problem,) = decode(with_change(good("DeviceClaim"), "spec.claims.0.requests.count", 0)).problems
    assert str(problem) == "DeviceClaim team-a/train: spec.claims[0].requests[count]: must be more than zero, but is 0"
    assert problem.to_dict() == {
        "message": "must be more than zero, but is 0",
        "path": "spec.claims[0].requests[count]",
        "kind": "DeviceClaim",
        "namespace": "team-a",
        "name": "train",
        "severity": "error",
    }
