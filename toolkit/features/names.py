"""The names of the kinds of features; importing them loads nothing else."""

from typing import Final

KINDS: Final = ("context", "relation", "flattened", "configuration", "tree")
SHARED: Final = ("relation", "flattened", "tree")
"""Kinds that mean the same for every operator: what a prior can be trained on."""
