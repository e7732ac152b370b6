"""Loading: every document that can be read is read, and everything else is a problem with its place."""

from __future__ import annotations

import io
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.api import manifests
from devalloc.api.decode import decode
from devalloc.api.json_content import MAX_FIELDS, DecimalFloat
from devalloc.api.manifests import Manifests, dump_yaml, load, load_text
from devalloc.api.problems import Problem
from tests.support.examples import examples

CLASS = "apiVersion: devmgmtproto.k8s.io/v1alpha1\nkind: DeviceClass\nmetadata: {name: %s}\n"


def contents(text: str, source: str = "f.yaml") -> list[dict[str, Any]]:
    parsed = load_text(text, source)
    assert [problem for problem in parsed.problems if problem.is_error] == []
    return [document.content for document in parsed.documents]


def problems(text: str, source: str = "f.yaml") -> list[str]:
    return [str(problem) for problem in load_text(text, source).problems]


def value(text: str) -> Any:
    return contents(f"a: {text}")[0]["a"]


# -- scalars ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("off", "off"),
        ("y", "y"),
        ("2026-01-31", "2026-01-31"),
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"),
        ("1:30", "1:30"),
        ("08:00.0", "08:00.0"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("12", 12),
        ("-3", -3),
        ("0x1F", 31),
        ("0o17", 15),
        ("0b11", 3),
        ("1_000", 1000),
        ("089", 89),
        ("1.50", 1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("10Gi", "10Gi"),
        ("500m", "500m"),
        ("1.2.3", "1.2.3"),
        ("0xZZ", "0xZZ"),
        ("'12'", "12"),
        ('"true"', "true"),
        ("!!str 12", "12"),
        ("'\\u00e9'", "\\u00e9"),
        ("é", "é"),
    ],
)
def test_scalars_are_read_as_kubectl_reads_them(text: str, expected: Any) -> None:
    scalar = value(text)
    assert scalar == expected
    assert isinstance(scalar, type(expected))


def test_numbers_keep_their_text() -> None:
    for number in (value("1.50"), contents('{"a": 1.50}', "f.json")[0]["a"]):
        assert isinstance(number, DecimalFloat)
        assert number.text == "1.50"


def test_an_old_octal_number_is_warned_of() -> None:
    parsed = load_text("a: 0777", "f.yaml")
    assert parsed.documents[0].content == {"a": 511}
    (problem,) = parsed.problems
    assert problem.severity == "warning"
    assert "octal" in problem.message
    assert problem.path == "a"


@pytest.mark.parametrize(
    "text", [".nan", ".inf", "-.inf", "1" * 500, "!!binary aGk=", "!!python/name:os.system x", "!x y"]
)
def test_what_json_cannot_say_is_an_error(text: str) -> None:
    (line,) = problems(f"a: {text}")
    assert line.startswith("f.yaml, document 1, line 1: a: ")


def test_keys_are_texts_whatever_they_look_like() -> None:
    assert contents("1: a\ntrue: b\n1.5: c\nnull: d\n") == [{"1": "a", "true": "b", "1.5": "c", "null": "d"}]


def test_aliases_and_merge_keys_work() -> None:
    text = "base: &b {x: 1, y: 2}\none: {<<: *b, y: 3}\ntwo: {<<: [*b, {z: 4}]}\nlist: [*b, *b]\n'<<': text\n"
    content = contents(text)[0]
    assert content["one"] == {"x": 1, "y": 3}
    assert content["two"] == {"x": 1, "y": 2, "z": 4}
    assert content["list"] == [{"x": 1, "y": 2}] * 2
    assert content["<<"] == "text"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:\n\t- 1\n", "line 2: has a tab in column 1; indent with spaces"),
        ("a: 1\nb: @x\n", "line 2: has '@' in column 4, which YAML reserves; quote the string"),
        ("é: `x`\n", "line 1: has '`' in column 4, which YAML reserves; quote the string"),
        ("\ufeffa: 1\nb: %x\n", "line 2: has '%' in column 4, which YAML reserves; quote the string"),
    ],
)
def test_a_character_that_yaml_reserves_is_named_with_its_column(text: str, message: str) -> None:
    assert problems(text) == [f"f.yaml, document 1, {message}"]


# -- documents -------------------------------------------------------------------------------------------------------


def test_a_broken_document_costs_only_itself() -> None:
    text = CLASS % "one" + "---\nfoo: [\n---\n" + CLASS % "two" + "---\na: 1\na: 2\n--- # three\n" + CLASS % "three"
    parsed = load_text(text, "f.yaml")
    assert [d.content["metadata"]["name"] for d in parsed.documents] == ["one", "two", "three"]
    assert [d.source for d in parsed.documents] == [f"f.yaml, document {n}" for n in (1, 3, 5)]
    assert [str(problem) for problem in parsed.problems] == [
        "f.yaml, document 2, line 6: is not valid YAML: did not find expected node content",
        "f.yaml, document 4, line 12: a: appears twice, first in line 11",
    ]


def test_every_double_key_of_a_document_is_named_with_its_path() -> None:
    assert problems("a: {b: 1, b: 2}\nc:\n- {d: 1}\n- d: 1\n  d: 2\n") == [
        "f.yaml, document 1, line 1: a.b: appears twice, first in line 1",
        "f.yaml, document 1, line 5: c[1].d: appears twice, first in line 4",
    ]
    (line,) = problems('{"a": {"b": 1, "b": 1}}', "f.json")
    assert line == "f.json, document 1, line 1: a.b: appears twice"


@pytest.mark.parametrize(
    "text", ["", "\n", "# only a comment\n", "---\n---\n", "%YAML 1.2\n---\n", "---\n# x\n...\n", "null\n", "\ufeff"]
)
def test_a_file_without_documents_is_a_warning(text: str) -> None:
    parsed = load_text(text.removeprefix("\ufeff"), "f.yaml")
    assert parsed.documents == []
    assert [problem.severity for problem in parsed.problems] == ["warning"]


def test_lists_are_taken_apart() -> None:
    for head in ("kind: List\napiVersion: v1\n", "apiVersion: v1\n", ""):
        parsed = load_text(head + "items: [{a: 1}, 5, {b: 2}]\n", "f.yaml")
        assert [(d.content, d.source) for d in parsed.documents] == [
            ({"a": 1}, "f.yaml, document 1, item 1"),
            ({"b": 2}, "f.yaml, document 1, item 3"),
        ]
        assert [problem.source for problem in parsed.problems] == ["f.yaml, document 1, item 2"]


def test_json_documents_may_stand_in_a_row_or_between_separators() -> None:
    for text in (
        '{"a": 1}\n{"a": 2} {"a": 3}',
        '{"a": 1}\n---\n{"a": 2}\n---\na: 3\n',
        '[1]\n---\n{"a": 1}{"a": 2}{"a": 3}',
    ):
        assert [d.content["a"] for d in load_text(text).documents] == [1, 2, 3]


def test_json_escapes_that_yaml_lacks_are_read() -> None:
    assert contents(r'{"a": "\ud83d\ude00\/"}')[0]["a"] == "\U0001f600/"


def test_json_before_an_error_is_read() -> None:
    parsed = load_text('{"a": 1}\n{"a": \n', "f.json")
    assert [d.content for d in parsed.documents] == [{"a": 1}]
    assert [str(problem) for problem in parsed.problems] == [
        "f.json, document 2, line 3: is not valid JSON: expecting value"
    ]


def test_flow_maps_that_are_no_json_are_yaml() -> None:
    assert contents("{a: 1, b: [x]}") == [{"a": 1, "b": ["x"]}]


@pytest.mark.parametrize(
    "text",
    [
        "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 30)),
        "[" * 100_000,
        "- " * 5_000,
        '{"a":' * 100_000,
        "a: &a [*a]",
        "a: *nothing",
        "? {a: 1}\n: b\n",
        "a: \x00",
        "a:\tb\n\tc: d",
        "a: 'never closed\n",
        "a: &a {<<: 5}",
    ],
    ids=range(11),
)
def test_bombs_and_broken_texts_are_one_error(text: str) -> None:
    parsed = load_text(text)
    assert parsed.documents == []
    (problem,) = parsed.problems
    assert problem.is_error
    assert problem.source is not None
    assert problem.source.startswith("text, document 1")


def test_half_a_surrogate_pair_is_no_text() -> None:
    (problem,) = load_text("a: 1\nb: \ud800").problems
    assert (problem.source, problem.message) == ("text, line 2", "is not UTF-8 text (byte 0xed)")


def test_decoding_problems_are_placed_in_their_line() -> None:
    text = "# first\n---\n" + CLASS % "a" + "spec:\n  driver: x\n  Constrains: 'true'\n  configs:\n  - kind: A\n"
    (document,) = load_text(text, "f.yaml").documents
    placed = [document.place(problem) for problem in decode(document.content).problems]
    assert [problem.source for problem in placed] == [
        "f.yaml, document 1, line 8",
        *["f.yaml, document 1, line 10"] * 3,
    ]
    assert document.place(Problem("x", "metadata.annotations[nowhere]")).source == "f.yaml, document 1, line 5"


def test_lines_are_found_inside_lists_of_objects() -> None:
    text = "kind: List\nitems:\n- a: 1\n- metadata:\n    name: X\n"
    document = load_text(text, "f.yaml").documents[1]
    assert document.place(Problem("x", "metadata.name")).source == "f.yaml, document 1, item 2, line 5"


def test_each_item_of_a_list_has_its_line() -> None:
    text = "a:\n- 1\n- b: 2\n- - 3\n  - 4\nc: 5\n"
    (document,) = load_text(text, "f.yaml").documents
    lines = {path: document.place(Problem("x", path)).source for path in ("a[0]", "a[1].b", "a[2][0]", "a[2][1]", "c")}
    assert [source.rpartition(" ")[2] for source in lines.values() if source] == ["2", "3", "4", "5", "6"]


def test_documents_of_one_content_and_source_are_equal_wherever_they_were_read() -> None:
    one, other, third = (
        load_text(text, name).documents[0] for text, name in [("a: 1", "f"), ("# 1\na: 1", "f"), ("a: 1", "g")]
    )
    assert one == other
    assert one != third


# -- files -----------------------------------------------------------------------------------------------------------


def test_folders_are_read_in_order_with_what_ends_in_yaml_yml_and_json(tmp_path: Path) -> None:
    for name in ("b.yaml", "a/z.yml", "a/a.json", "c.txt", ".hidden/x.yaml", ".y.yaml"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"name": name}))
    parsed = load([tmp_path])
    assert [document.content["name"] for document in parsed.documents] == ["a/a.json", "a/z.yml", "b.yaml"]
    assert parsed.problems == []
    assert [d.content["name"] for d in load([tmp_path / "c.txt"]).documents] == ["c.txt"]


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: 1")
    assert len(load([tmp_path, tmp_path / "a.yaml"]).documents) == 1


def test_bad_files_cost_only_themselves(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text("a: 1")
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: \xe9\n")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "broken.yaml").symlink_to(tmp_path / "nowhere")
    (tmp_path / "itself.yaml").symlink_to(tmp_path / "itself.yaml")
    os.mkfifo(tmp_path / "pipe.yaml")
    parsed = load([tmp_path, tmp_path / "missing.yaml", "a\x00b"])
    assert [document.content for document in parsed.documents] == [{"a": 1}]
    by_name = {Path(str(p.source).partition(",")[0]).name: (p.severity, p.message) for p in parsed.problems}
    assert by_name.pop("loop") == ("warning", "is a link to a parent folder, skipped")
    assert by_name.pop("latin.yaml") == ("error", "is not UTF-8 text (byte 0xe9)")
    assert by_name.pop("missing.yaml") == ("error", "no such file or folder")
    assert set(by_name) == {"broken.yaml", "itself.yaml", "pipe.yaml", "a\x00b"}


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    (problem,) = load([tmp_path]).problems
    assert "contains no manifests" in problem.message


@pytest.mark.parametrize("stream", [io.StringIO("a: 1"), io.BytesIO(b"\xef\xbb\xbfa: 1")])
def test_a_dash_is_stdin(stream: Any) -> None:
    (document,) = load(["-"], stdin=stream).documents
    assert (document.content, document.source) == ({"a": 1}, "stdin, document 1")


# -- output ----------------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.text(st.characters(codec="utf-8"), max_size=12)
    | st.sampled_from(
        ["yes", "1e3", "0777", "1:30", "2026-01-01", "null", "~", ".inf", "a\nb\n", " x", "x ", "- a", "<<", "#", "1_0"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=6), inner, max_size=3)
    ),
    max_leaves=10,
)


@settings(max_examples=examples(24, 0.2), deadline=None)
@given(st.lists(st.dictionaries(st.text("abc", min_size=1), json_values, min_size=1), min_size=1, max_size=3))
def test_dumped_yaml_is_read_back_equal(objects: list[dict[str, Any]]) -> None:
    assert contents(dump_yaml(objects)) == objects


def test_numbers_are_written_with_their_text() -> None:
    assert dump_yaml([{"a": DecimalFloat("1.50")}]) == "a: 1.50\n"


def loaded(text: str) -> tuple[Manifests, float]:
    """What is read of a text, and the most MiB that it took."""
    tracemalloc.start()
    try:
        return load_text(text), tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("line", ["#\n", "# a comment\r\n", "%TAG ! x\n", "...\n", "  \n"])
def test_lines_without_content_take_no_memory(line: str) -> None:
    text = line * (2**20 // len(line))
    parsed, mebibytes = loaded(text)
    assert [problem.message for problem in parsed.problems] == ["contains no documents"]
    assert mebibytes < 15, "a few copies of the text"
    assert len(load_text(f"{text}--- {{kind: x}}\n").documents) == 1


@pytest.mark.parametrize(
    ("text", "documents"),
    [
        ("---\n" * 12, 0),
        ("---\na: 1\n" * 12, 10),
        ("---\na: 1\n...\n" * 12, 10),
        ("{}\n" * 10 + "---\na: 1\n", 10),
        ("{}\n" * 12, 10),
        ("{}\n" * 11 + "{", 10),
    ],
    ids=["separators", "documents", "ends of documents", "YAML after JSON", "JSON", "JSON that ends in an error"],
)
def test_too_many_documents_are_refused(text: str, documents: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "MAX_DOCUMENTS", 10)
    parsed = load_text(text)
    assert len(parsed.documents) == documents
    (problem,) = parsed.problems
    assert problem.message == "contains more than 10 documents; the rest is left out: split it"
    assert problem.source == "text"


def test_documents_beyond_the_bound_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "MAX_DOCUMENTS", 10)
    parsed, mebibytes = loaded("---\n" * 2**19)
    assert parsed.problems[0].message == "contains more than 10 documents; the rest is left out: split it"
    assert mebibytes < 8, "the text is 2 MiB; the places of its separators would take more"


def test_as_many_documents_as_a_file_may_have_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "MAX_DOCUMENTS", 10)
    for text in ("---\na: 1\n" * 10, "{}\n" * 10):
        parsed = load_text(text)
        assert (len(parsed.documents), parsed.problems) == (10, [])


@pytest.mark.parametrize("as_json", [False, True])
def test_a_map_with_too_many_fields_is_refused(as_json: bool) -> None:
    fields = {f"k{number}": number for number in range(MAX_FIELDS + 1)}
    few = dict(list(fields.items())[:-1])
    for content, count in ((few, 1), (fields, 0)):
        text = json.dumps(content) if as_json else "".join(f"{key}: {value}\n" for key, value in content.items())
        parsed = load_text(text, "x.json" if as_json else "x.yaml")
        assert len(parsed.documents) == count
        assert len(parsed.problems) == 1 - count
        assert all(f"more than {MAX_FIELDS} fields" in problem.message for problem in parsed.problems)


def test_fields_that_are_there_twice_are_found_in_one_go() -> None:
    """The search does not count each of them among all."""
    text = "{" + ", ".join(f'"k{number}": 1, "k{number}": 2' for number in range(MAX_FIELDS // 2)) + "}"
    problems = load_text(text, "x.json").problems
    assert len(problems) == MAX_FIELDS // 2
    assert {problem.message for problem in problems} == {"appears twice"}


def test_two_manifests_without_a_line_between_them_are_one_mistake() -> None:
    head = ["apiVersion: v1", "kind: A", "metadata: {name: a}", "spec: {}"]
    (problem,) = load_text("\n".join([*head, *head, ""])).problems
    assert (problem.path, problem.source) == ("apiVersion", "text, document 1, line 5")
    assert problem.message == "appears twice, first in line 1; is `---` missing before this line?"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("spec:\n  claims:\n   - a: 1\n  - b: 2\n", "is indented differently from the lines before it"),
        ("metadata: {name: {{ .Values.x }}}\n", "render a template ({{ ... }}) first, or quote it"),
    ],
)
def test_errors_of_the_parser_are_in_words_of_manifests(text: str, words: str) -> None:
    assert any(words in problem.message for problem in load_text(text).problems)
