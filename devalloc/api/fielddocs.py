"""What the models' source says about their fields: the texts below the fields.

Pydantic can collect them too, at the cost of parsing the source at every start; they are needed only for the CRDs.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache

from devalloc.api.fields import ApiModel


@cache
def docs_of(model: type[ApiModel]) -> dict[str, str]:
    """The text about each field, in one line, by JSON name; inherited fields too."""
    docs: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if isinstance(base, type) and issubclass(base, ApiModel) and base is not ApiModel:
            docs |= _own(base)
    return {model.model_fields[name].alias or name: text for name, text in docs.items()}


def _own(model: type[ApiModel]) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0]
    assert isinstance(tree, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            docs[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return docs
