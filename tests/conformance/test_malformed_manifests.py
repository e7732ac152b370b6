"""2,000 malformed manifests: each a clear error with its place or a valid object, and good ones beside them load."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from devalloc.api.decode import decode
from devalloc.api.manifests import dump_yaml, load
from devalloc.api.problems import Problem
from tests.support.examples import examples
from tests.support.good_manifests import examples as good_examples
from tests.support.good_manifests import good_manifests
from tests.support.manifest_mutations import mutated, mutated_text

COUNT = examples(500, 5.0)
BATCH = 500
GOOD = "apiVersion: devmgmtproto.k8s.io/v1alpha1\nkind: DeviceClass\nmetadata: {name: good}\n"


def is_clear(problem: Problem) -> bool:
    """Words for a person, in one line, with a file and document."""
    text = str(problem)
    jargon = ("Traceback", "Error(", "Input should", "pydantic", "object at 0x", "NoneType", "type=")
    return (
        bool(problem.message)
        and text.isprintable()
        and not any(word in text for word in jargon)
        and bool(problem.source)
    )


@pytest.mark.parametrize("batch", range(COUNT // BATCH))
def test_malformed_manifests_are_clear_errors_or_valid_objects(batch: int, tmp_path: Path) -> None:
    random = Random(f"malformed-{batch}")
    sources = good_manifests() + [content for _, content in good_examples()]
    for i in range(BATCH):
        content = random.choice(sources)
        if i % 2:
            path, text = tmp_path / f"{i:03}.yaml", mutated_text(dump_yaml([content]), random)
        else:
            path, text = tmp_path / f"{i:03}.json", json.dumps(mutated(content, random))
        path.write_text(text)
        # a good document in the same file where the format has separators, else in a file beside it
        if i % 2:
            path.write_text(f"{GOOD}---\n{text}\n---\n{GOOD}")
        else:
            (tmp_path / f"{i:03}-good.yaml").write_text(GOOD)
    parsed = load([tmp_path])
    problems = list(parsed.problems)
    good = 0
    for document in parsed.documents:
        decoded = decode(document.content)
        wrong = [problem for problem in decoded.problems if problem.is_error]
        assert (decoded.object is None) == bool(wrong), document.source
        assert all(problem.path for problem in wrong), [str(problem) for problem in wrong]
        problems += [document.place(problem) for problem in decoded.problems]
        if decoded.object is not None:
            again = decode(decoded.object.to_manifest())
            assert again.object == decoded.object, document.source
            good += document.content.get("metadata", {}).get("name") == "good"
    assert [str(problem) for problem in problems if not is_clear(problem)] == []
    assert good == BATCH // 2 * 2 + BATCH // 2
