"""Problem: an error or warning about the input, for its author."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, where, and what to do.

    If there is a path, ``message`` completes the sentence "<path> ...". ``source`` names the document, such as
    "fleet.yaml, document 2". An error means that the object was left out, a warning that it was used anyway.
    """

    message: str
    path: str = ""
    kind: str | None = None
    namespace: str | None = None
    name: str | None = None
    source: str | None = None
    severity: Severity = "error"
    group: str | None = None
    """The API group of the object, if objects of several groups could have its kind and name."""

    @property
    def is_error(self) -> bool:
        return self.severity == "error"

    @property
    def subject(self) -> str:
        """The object, as "DeviceClaim team-a/train"; empty if the problem has none."""
        name = "/".join(part for part in (self.namespace, self.name) if part)
        return " ".join(part for part in (self.kind, name) if part)

    @property
    def text(self) -> str:
        """Location and message, without the severity."""
        return ": ".join([*(part for part in (self.source, self.subject, self.path) if part), self.message])

    def __str__(self) -> str:
        return ("warning: " if self.severity == "warning" else "") + self.text

    def to_dict(self) -> dict[str, Any]:
        """JSON content, without unset fields."""
        return {key: value for key, value in asdict(self).items() if value not in (None, "")}


def errors(problems: Iterable[Problem]) -> list[Problem]:
    """Only the problems because of which an object was left out."""
    return [problem for problem in problems if problem.is_error]
