"""The page: the overview of a fleet in a browser. It only shows, and needs a token that may read it (T31).

``html`` writes elements, ``render``, ``tree`` and ``parts`` make them of an overview (``controller.sight`` keeps
that of a store), ``login`` is who may see it, ``pages`` answers requests. The page works without scripts;
``static/page.js`` keeps it up to date.
"""

from devalloc.controller.page.login import OneToken
from devalloc.controller.page.pages import PATH, Pages

__all__ = ["PATH", "OneToken", "Pages"]
