"""The names that a user chooses a cost model by; importing them loads nothing else."""

from typing import Final, Literal

Acquisition = Literal["mean", "ei", "ucb"]

DEFAULT: Final = "gbt"
TREE_MODELS: Final = ("treegru", "treegru-regression", "vanilla-treegru")
"""Models of "tree" features; they need the extra [neural]."""
ENSEMBLES: Final[dict[str, Acquisition]] = {
    "bootstrap-mean": "mean", "bootstrap-ei": "ei", "bootstrap-ucb": "ucb",
}  # fmt: skip
"""Five gbt-regression models, as in section 6.1 of the paper, and what is done with their disagreement."""
PRIOR_MODELS: Final = ("gbt", "gbt-regression", *TREE_MODELS)
"""Models that can be trained once and added to others."""
COST_MODELS: Final = ("gbt", "gbt-regression", *TREE_MODELS, *ENSEMBLES, "random")
