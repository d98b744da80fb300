"""What the loops look like in numbers. choose.py is the door; tests/plain_features.py the specification."""

from toolkit.features.base import FEATURE_VERSION, KINDS, Features
from toolkit.features.choose import make_features
from toolkit.features.context import ContextFeatures
from toolkit.features.joint import JointFeatures
from toolkit.features.tree import TreeFeatures

__all__ = [
    "FEATURE_VERSION",
    "KINDS",
    "ContextFeatures",
    "Features",
    "JointFeatures",
    "TreeFeatures",
    "make_features",
]
