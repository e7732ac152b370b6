"""The page: the overview of a fleet in a browser. It only shows, and needs a token that may read it (T31).

The page works without scripts; ``static/page.js`` keeps it up to date.

- ``pages``: requests and responses, and who may see it
- ``view``: what is shown of an overview, as values for the HTML of ``templates/``
"""

from devalloc.usage.page.pages import PATH, FleetPage, SingleTokenAuthorizer

__all__ = ["PATH", "FleetPage", "SingleTokenAuthorizer"]
