"""The arithmetic of the permit server: what each machine of a node counts for, what one more may get, and which machine
should leave. Pure: a ledger of one node goes in, another one comes out."""

PORT = 10299
"""Where permit servers listen if nothing else is said."""
