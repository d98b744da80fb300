"""Cost models of the studies by name."""

from __future__ import annotations

from importlib.util import find_spec

from toolkit.cost_model.base import Saveable
from toolkit.cost_model.choose import TREE_MODELS, make_cost_model
from toolkit.features.tree import CHANNELS


def cost_model(name: str, seed: int, *, patient: bool = False) -> Saveable:
    """The model of this name, a `patient` one for what is fitted once; tree models read "tree" features."""
    return make_cost_model(name, seed, channels=len(CHANNELS), patient=patient)


def available(name: str) -> bool:
    """Whether a model of this name can be made here: tree models need the extra [neural]."""
    return name not in TREE_MODELS or find_spec("jax") is not None
