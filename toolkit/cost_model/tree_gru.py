"""TreeGRU as a cost model: what the network learns from, in which order, and for how long.

A fit is a bounded number of steps of Adam from the same initial weights, so that a refit takes seconds and
one seed gives one result. Arrays have few distinct shapes (a training batch has always the same size,
predictions are padded to one of a few), because every new shape is compiled.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec
import numpy as np
from msgspec.structs import asdict
from numpy.typing import NDArray

from toolkit.cost_model.arrays import packed, unpacked
from toolkit.cost_model.base import (
    Costs,
    Groups,
    Objective,
    Rows,
    check_lengths,
    check_objective,
    throughput,
)
from toolkit.cost_model.pairs import rows_of_groups
from toolkit.cost_model.tree_input import Scale, TreeReader, measured_scale, padded_depth, trees
from toolkit.cost_model.tree_network import NetworkShape, Parameters, initial_parameters, network

SIZES: Final = (64, 512)
"""Rows of one prediction; the last is the size of the pieces of a long one."""
ACCELERATED_SIZES: Final = (64, 512, 8192)
VARIABLES: Final = 64
"""Loop variables with an embedding of their own in the vanilla network."""
TOGETHER: Final = 16
"""Rows of one operator that stand together in a training batch, so that there are pairs to compare."""


class TrainingOptions(msgspec.Struct, frozen=True):
    """How long and how fast to learn: `passes` over the records, within bounds on the steps of `batch` rows.

    What a step takes grows with the loops of the programs: `most_loops` bounds those of all steps together.
    The learning rate rises over the first tenth of the steps and falls to 0 over the others.
    """

    passes: int = 40
    fewest_steps: int = 100
    most_steps: int = 300
    most_loops: int = 1 << 19
    batch: int = 64
    rate: float = 3e-3
    weight_decay: float = 1e-2

    def steps(self, records: int, depth: int) -> int:
        """Steps for so many records of programs with `depth` loops."""
        most = min(self.most_steps, self.most_loops // (self.batch * depth))
        return max(self.fewest_steps, min(most, self.passes * records // self.batch))


class Level(msgspec.Struct, frozen=True):
    """Where the labels of a regression lie: the network learns them in units of their deviation."""

    center: float
    spread: float

    @classmethod
    def of(cls, labels: NDArray[np.float32]) -> Level:
        """Mean and deviation."""
        return cls(float(labels.mean()), max(float(labels.std()), 1e-3))


class TreeGRU:
    """The neural cost model. `vanilla` replaces the context of a loop by an embedding of its variable and
    what the program text says of it (Figure 3c of the paper), for comparison.

    channels: of the "tree" features. Raises MissingExtra where jax is not installed.
    """

    kind: ClassVar = "treegru"

    def __init__(
        self,
        channels: int,
        objective: Objective = "rank",
        *,
        vanilla: bool = False,
        seed: int = 0,
        options: TrainingOptions = TrainingOptions(),
    ) -> None:
        check_objective(objective)
        self.objective: Objective = objective
        self.seed = seed
        self.options = options
        self._reader = TreeReader(channels, vanilla)
        self._shape = NetworkShape(self._reader.inputs, identities=VARIABLES if vanilla else 0)
        self._network = network(objective, options.weight_decay)
        self._fitted: tuple[Parameters, Scale, Level] | None = None

    def fit(
        self, features: Rows, costs_s: Costs, groups: Groups | None = None, offsets: Rows | None = None
    ) -> None:
        """See CostModel.fit."""
        check_lengths(features, costs_s, groups, offsets)
        rng = np.random.default_rng(self.seed)
        labels = throughput(costs_s, groups).astype(np.float32)
        group = np.zeros(len(labels), np.int64) if groups is None else groups
        known = np.zeros(len(labels), np.float32) if offsets is None else offsets
        level = Level(0.0, 1.0)
        if self.objective == "regression":
            level = Level.of(labels - known)
            labels, known = (labels - known - level.center) / level.spread, np.zeros_like(known)
        reader, scale = self._reader, measured_scale(self._reader, features)
        depth = padded_depth(int(reader.depths(features).max()))
        parameters = initial_parameters(self._shape, rng)
        moments = self._network.start(parameters)
        batch, steps = self.options.batch, self.options.steps(len(labels), depth)
        order = blocks(group, rng, batch * steps)
        for step in range(steps):
            rows = order[step * batch : (step + 1) * batch]
            parameters, moments, _ = self._network.step(
                parameters,
                moments,
                np.float32(self.options.rate * share(step / steps)),
                trees(reader, scale, features[rows], depth),
                labels[rows],
                group[rows].astype(np.int32),
                known[rows],
            )
        self._fitted = {name: np.asarray(value) for name, value in parameters.items()}, scale, level

    def predict(self, features: Rows) -> Rows:
        """See CostModel.predict. Programs with about as many loops are scored together."""
        scores = np.zeros(len(features), np.float32)
        if self._fitted is None or not len(features):
            return scores
        parameters, scale, level = self._fitted
        sizes = ACCELERATED_SIZES if self._network.accelerated else SIZES
        depths = self._reader.depths(features)
        order = np.argsort(depths, kind="stable")
        for start in range(0, len(order), sizes[-1]):
            rows = order[start : start + sizes[-1]]
            size = next(size for size in sizes if size >= len(rows))
            padded = np.zeros((size, features.shape[1]), np.float32)
            padded[: len(rows)] = features[rows]
            given = self._network.score(
                parameters, *trees(self._reader, scale, padded, padded_depth(int(depths[rows[-1]])))
            )
            scores[rows] = np.asarray(given)[: len(rows)]
        return scores * np.float32(level.spread) + np.float32(level.center)

    def state(self) -> dict[str, Any]:
        """See Saveable.state."""
        fitted = None
        if self._fitted is not None:
            parameters, scale, level = self._fitted
            fitted = {
                "parameters": {name: packed(value) for name, value in parameters.items()},
                "center": packed(scale.center),
                "deviation": packed(scale.deviation),
                "level": asdict(level),
            }
        return {
            "channels": self._reader.channels,
            "vanilla": self._reader.vanilla,
            "objective": self.objective,
            "seed": self.seed,
            "options": asdict(self.options),
            "fitted": fitted,
        }

    @classmethod
    def restore(cls, state: dict[str, Any]) -> TreeGRU:
        """The model that `state` describes. Raises ValueError when its arrays do not have its sizes."""
        settings = {key: state[key] for key in ("channels", "objective", "vanilla", "seed")}
        model, stored = cls(**settings, options=TrainingOptions(**state["options"])), state["fitted"]
        if stored is None:
            return model
        parameters = {name: unpacked(value) for name, value in stored["parameters"].items()}
        scale = Scale(unpacked(stored["center"]), unpacked(stored["deviation"]))
        found = {name: value.shape for name, value in parameters.items()}
        expected = initial_parameters(model._shape, np.random.default_rng(0))
        inputs = (model._reader.inputs,)
        if found != {name: value.shape for name, value in expected.items()} or not (
            scale.center.shape == scale.deviation.shape == inputs
        ):
            raise ValueError(f"the layers of a TreeGRU do not have the sizes that belong together: {found}")
        model._fitted = parameters, scale, Level(**stored["level"])
        return model


def share(progress: float) -> float:
    """Learning rate as a share of the highest: up over the first tenth, then down."""
    return min(10.0 * progress + 0.1, 1.0) * (1.0 - progress)


def blocks(groups: Groups, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
    """At least `count` row numbers: TOGETHER of one group in turn, groups as often as they have rows."""
    parts = rows_of_groups(groups, len(groups))
    shares = np.array([len(part) for part in parts], dtype=np.float64)
    chosen = rng.choice(len(parts), -(-count // TOGETHER), p=shares / shares.sum())
    orders = [rng.permutation(part) for part in parts]
    used = np.zeros(len(parts), np.int64)
    result = []
    for index in chosen:
        places = np.arange(used[index], used[index] + TOGETHER) % len(orders[index])
        result.append(orders[index][places])
        used[index] += TOGETHER
    return np.concatenate(result)
