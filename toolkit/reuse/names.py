"""The names that a user chooses bridges by; importing them loads nothing else."""

from typing import Literal

Hops = Literal["none", "one-hop", "all"]
"""Operators that no model has, tuned to be reused: none, those between two operators, or all."""
