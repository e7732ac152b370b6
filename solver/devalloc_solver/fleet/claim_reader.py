"""Read the manifests of claims; a spec that was read before is not read again, whatever its dialect."""

from __future__ import annotations

import marshal
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

MAX_SPECS = 4_096
"""Specs remembered; when there are more, all are forgotten."""
MAX_SPEC_SIZE = 16_384
"""Bytes of a spec that is remembered; a tenant may write larger ones, which are read anew each time."""

OutcomeT = TypeVar("OutcomeT")
TemplateT = TypeVar("TemplateT")

_METADATA_FIELDS = {
    "name",
    "namespace",
    "annotations",
    "labels",
    "uid",
    "creationTimestamp",
    "resourceVersion",
    "generation",
}


class ClaimReader(ABC, Generic[OutcomeT, TemplateT]):
    """Remembers the specs it has read, each as the template of claims that ask for the same."""

    api_version: ClassVar[str]
    fields: ClassVar[frozenset[str]] = frozenset({"apiVersion", "kind", "metadata", "spec"})
    """what a manifest of the usual form has"""

    def __init__(self) -> None:
        self._specs: dict[Hashable, TemplateT] = {}

    def read(self, manifest: Mapping[str, Any]) -> OutcomeT:
        """Read a manifest, valid or not."""
        key = self._spec_key(manifest)
        template = None if key is None else self._specs.get(key)
        if template is not None:
            metadata = manifest.get("metadata")
            if type(metadata) is dict and metadata.keys() <= _METADATA_FIELDS:
                outcome = self._with_metadata(manifest, metadata, template)
                if outcome is not None:
                    return outcome
        outcome, template = self._read_anew(manifest, is_kept=key is not None)
        if key is not None and template is not None:
            if len(self._specs) >= MAX_SPECS:
                self._specs.clear()
            self._specs[key] = template
        return outcome

    def _spec_key(self, manifest: Mapping[str, Any]) -> Hashable | None:
        """Equal for equal specs; None when it has what no text tells apart, or the claim is of an uncommon form."""
        if type(manifest) is not dict or not manifest.keys() <= self.fields:
            return None
        text = spec_text(manifest.get("spec")) if manifest.get("apiVersion") == self.api_version else None
        return None if text is None or len(text) > MAX_SPEC_SIZE else text

    @abstractmethod
    def _read_anew(self, manifest: Mapping[str, Any], *, is_kept: bool) -> tuple[OutcomeT, TemplateT | None]:
        """A claim, and the template that its spec makes; None if it makes none. Without ``is_kept`` none is used."""

    @abstractmethod
    def _with_metadata(
        self, manifest: Mapping[str, Any], metadata: dict[str, Any], template: TemplateT
    ) -> OutcomeT | None:
        """A claim of a known spec with metadata of the usual fields; None if these must be read in full."""


def spec_text(content: Any) -> bytes | None:
    """Equal for equal content; None for content that no text tells apart, such as numbers that know their digits."""
    try:
        return marshal.dumps(content, 0)
    except ValueError:
        return None
