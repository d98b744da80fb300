"""An uncertainty estimate for any cost model, by bootstrapping (AutoTVM, section 3.3).

Five models are fitted on five resamples of the measurements. Where they agree the prediction is certain; an
acquisition function turns mean and deviation into the score that the search maximizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final, get_args

import numpy as np
from numpy.typing import NDArray

from toolkit.cost_model.base import Costs, Groups, Rows, Saveable, check_lengths
from toolkit.cost_model.names import Acquisition
from toolkit.cost_model.pairs import rows_of_groups

MEMBERS: Final = 5
_LEAST_DEVIATION: Final = 1e-6


class BootstrapEnsemble:
    """Several models of one kind, each fitted on rows drawn with replacement.

    members: the models; they are fitted here, so that each must be an object of its own. acquisition: "mean";
    "ei", the logarithm of the expected improvement over the best measured configuration; "ucb", the upper
    confidence bound mean + `confidence` * deviation.
    """

    kind: ClassVar = "bootstrap"

    def __init__(
        self,
        members: Sequence[Saveable],
        acquisition: Acquisition = "mean",
        *,
        seed: int = 0,
        confidence: float = 1.0,
    ) -> None:
        known = get_args(Acquisition)
        if acquisition not in known:
            raise ValueError(f"acquisition: expected one of {', '.join(known)}, found {acquisition!r}")
        if len(members) < 2:
            raise ValueError(f"a bootstrap ensemble needs at least 2 members: found {len(members)}")
        self.members = tuple(members)
        self.acquisition = acquisition
        self.seed = seed
        self.confidence = confidence
        self._best = 0.0

    def fit(
        self, features: Rows, costs_s: Costs, groups: Groups | None = None, offsets: Rows | None = None
    ) -> None:
        """See CostModel.fit. Every group keeps its number of rows in every resample."""
        check_lengths(features, costs_s, groups, offsets)
        rng = np.random.default_rng(self.seed)
        rows = rows_of_groups(groups, len(costs_s))
        for member in self.members:
            drawn = np.concatenate([rng.choice(group, len(group)) for group in rows])
            member.fit(
                features[drawn],
                costs_s[drawn],
                None if groups is None else groups[drawn],
                None if offsets is None else offsets[drawn],
            )
        # The incumbent in the model's own units: a rank has no others.
        self._best = float(self.distribution(features)[0].max())

    def distribution(self, features: Rows) -> tuple[Rows, Rows]:
        """Mean and deviation of the members' scores, float32 [N] each."""
        scores = np.stack([member.predict(features) for member in self.members])
        mean: Rows = scores.mean(axis=0)
        deviation: Rows = scores.std(axis=0, ddof=1)
        return mean, deviation

    def predict(self, features: Rows) -> Rows:
        """See CostModel.predict: the acquisition function."""
        mean, deviation = self.distribution(features)
        match self.acquisition:
            case "mean":
                return mean
            case "ucb":
                return mean + np.float32(self.confidence) * deviation
            case "ei":
                return log_expected_improvement(mean, deviation, self._best)

    def state(self) -> dict[str, Any]:
        """See Saveable.state."""
        return {
            "members": [{"kind": member.kind, "state": member.state()} for member in self.members],
            "acquisition": self.acquisition,
            "seed": self.seed,
            "confidence": self.confidence,
            "best": self._best,
        }

    @classmethod
    def restore(cls, state: dict[str, Any], members: Sequence[Saveable]) -> BootstrapEnsemble:
        """The ensemble of `state` around its members, restored already."""
        result = cls(members, state["acquisition"], seed=state["seed"], confidence=state["confidence"])
        result._best = float(state["best"])
        return result


def log_expected_improvement(mean: Rows, deviation: Rows, best: float) -> Rows:
    """log E[max(0, score - best)] of normal scores, float32 [N].

    The logarithm keeps the order where the improvement itself is too small for a float, so that a search
    far from the best still sees which way is up.
    """
    sigma = np.maximum(deviation.astype(np.float64), _LEAST_DEVIATION)
    z = (mean.astype(np.float64) - best) / sigma
    density = np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
    near = np.maximum(density + z * normal_cdf(z), np.finfo(np.float64).tiny)
    far = np.minimum(z, -5.0)  # there near would be a small difference of large terms: its series instead
    square = 1.0 / (far * far)
    tail = -0.5 * far * far - 0.5 * np.log(2.0 * np.pi) + np.log(square * (1.0 - 3.0 * square))
    logarithm: Rows = (np.log(sigma) + np.where(z < -5.0, tail, np.log(near))).astype(np.float32)
    return logarithm


_ERFC: Final = (
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587,
    -0.82215223, 0.17087277,
)  # fmt: skip


def normal_cdf(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """P(Z <= z) of a standard normal Z, relative error below 2e-7 (Press et al., Numerical Recipes, 6.2)."""
    x = np.abs(z) / np.sqrt(2.0)
    t = 1.0 / (1.0 + 0.5 * x)
    beyond = 0.5 * t * np.exp(-x * x + np.polynomial.polynomial.polyval(t, _ERFC))
    result: NDArray[np.float64] = np.where(z > 0.0, 1.0 - beyond, beyond)
    return result
