"""Validation of manifests: report every problem of a document, with its path.

- ``errors``: run the model, and turn its errors into messages
- ``repair``: replace invalid parts, so that one run finds the remaining errors too
- ``lenient``: read spellings that are not the API's but have a clear meaning
- ``schema``: the fields of a model and their types
"""
