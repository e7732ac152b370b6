"""The descriptions of fields: the texts below the fields in the models' source.

Pydantic can collect them, too, but then parses the source at every start; only the CRDs need them.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache

from devalloc.api.fields import ApiModel


@cache
def docs_by_field(model: type[ApiModel]) -> dict[str, str]:
    """The description of each field, in one line, by JSON name; includes inherited fields."""
    docs: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if isinstance(base, type) and issubclass(base, ApiModel) and base is not ApiModel:
            docs |= _own_docs(base)
    return {model.model_fields[name].alias or name: text for name, text in docs.items()}


def _own_docs(model: type[ApiModel]) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0]
    assert isinstance(tree, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            docs[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return docs
