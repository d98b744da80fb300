"""The names that a user chooses a search by; importing them loads nothing else."""

from typing import Final

TUNERS: Final = ("annealing", "genetic", "random", "grid")
FIRST: Final = ("untuned", "random")
"""Where annealing without a prior begins on a CPU; see SearchOptions."""
PRESET_NAMES: Final = ("wide", "paper")
"""Settings of annealing by name; toolkit.explore.annealing has their numbers."""
