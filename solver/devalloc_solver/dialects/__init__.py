"""The dialects of claims: from manifests to the solver's vocabulary, and back to answers and reasons."""
