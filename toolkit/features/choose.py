"""The door of this room: features by their kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from cross.loopnest.program import Programs
from toolkit.errors import InputError
from toolkit.features.base import Features
from toolkit.features.configuration import ConfigurationFeatures
from toolkit.features.context import ContextFeatures
from toolkit.features.flattened import FlattenedFeatures
from toolkit.features.names import KINDS
from toolkit.features.relation import RelationFeatures
from toolkit.features.tree import TreeFeatures

_MAKERS: Final[Mapping[str, Callable[[Programs], Features]]] = {
    "context": ContextFeatures,
    "relation": RelationFeatures,
    "flattened": FlattenedFeatures,
    "configuration": ConfigurationFeatures,
    "tree": TreeFeatures,
}


def make_features(kind: str, programs: Programs) -> Features:
    """The features of this kind for the space of `programs`. Raises InputError for an unknown kind.

    "context" is for the search within one operator; "relation" and "flattened" have one width for every
    operator; "configuration" is the knobs alone; "tree" is one row for each loop, for models over trees.
    """
    if kind not in _MAKERS:
        raise InputError(f"unknown features {kind!r}: expected one of {', '.join(KINDS)}")
    return _MAKERS[kind](programs)
