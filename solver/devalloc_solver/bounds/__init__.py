"""Bounds that show without a search what cannot fit."""
