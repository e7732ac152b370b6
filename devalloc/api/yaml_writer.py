"""Writing YAML that every YAML 1.1 and 1.2 reader understands in the same way."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from devalloc.api.fields import ApiModel
from devalloc.api.json_content import DecimalFloat
from devalloc.api.yaml_reader import resolve_scalar


def dump_yaml(objects: Iterable[ApiModel | dict[str, Any]]) -> str:
    """The objects as YAML documents, with fields in their order."""
    contents = [obj.to_manifest() if isinstance(obj, ApiModel) else obj for obj in objects]
    return "---\n".join(
        yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=120)
        for content in contents
    )


_Base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_Base):  # type: ignore[misc]
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    if "\n" in text and _fits_block(text):
        style: str | None = "|"
    else:
        style = None if _is_plain(text) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _fits_block(text: str) -> bool:
    return all(line.isprintable() and line == line.rstrip() for line in text.split("\n"))


def _is_plain(text: str) -> bool:
    """Whether the text needs no quotes. Our own reader accepts more numbers than PyYAML does, such as 1e3."""
    try:
        return not text or isinstance(resolve_scalar(text), str)
    except ValueError:
        return False


def _number(dumper: yaml.SafeDumper, number: DecimalFloat) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:float", number.text)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(DecimalFloat, _number)
