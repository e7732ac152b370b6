"""A kind of objects, the devices that these keep from claims, and a verb: an example of what packages add to devalloc.

A package with these modules registers them in its ``pyproject.toml``, and changes nothing else:

    [project.entry-points."devalloc.kinds"]
    loans = "toy_loans:LOAN"
    [project.entry-points."devalloc.requesters"]
    loans = "toy_loans.requester:LOANS"
    [project.entry-points."devalloc.verbs"]
    loans = "toy_loans.verb:loans"
"""

from devalloc.api.api_kind import ApiKind

LOAN = ApiKind("Loan", "toys.example.com/v1", "loans", "loan", (), True, "toy_loans.model:Loan", has_status=True)
