"""The sections of an inspection, as a user names them; importing them loads nothing else."""

from typing import Final

SECTIONS: Final = ("schedule", "nest", "source", "code", "alternatives")
