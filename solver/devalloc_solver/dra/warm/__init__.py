"""A cluster that is kept: pools that are one node's own in the index of the core, everything else beside it.

From the outside in: ``state`` (objects as they come and go) fills the index with what ``traits`` makes of slices,
``reader`` reads claims, ``rules`` says which devices they may take, kind by kind; ``refusal`` tells why a claim
gets nothing, from a few nodes (``part``) and the ``counts`` of all; ``world`` answers what these have no words for.
"""
