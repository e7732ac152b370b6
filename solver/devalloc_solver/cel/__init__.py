"""CEL: one engine, and a sub-package for each dialect.

A dialect has a front end, which makes the syntax tree out of a text, and an ``Environment``. Everything else exists
once: tree, reads, closures, values, functions (``library``) and the budgets that bound evaluation.
"""
