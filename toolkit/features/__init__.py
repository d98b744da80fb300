"""What the loops look like in numbers. Start at plain.py (the specification), then context.py."""

from toolkit.features.context import ContextFeatures, features
from toolkit.features.plain import FEATURE_VERSION, plain_features

__all__ = ["FEATURE_VERSION", "ContextFeatures", "features", "plain_features"]
