"""The methods that the studies compare, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Method:
    """One way to search.

    `tuner`, `model`, `features`: names of toolkit.explore, toolkit.cost_model, toolkit.features; `spare` is
    lambda and `alpha` the weight of diversity (eq. 3; None: the tool's default). `each`: evaluations on the
    device that count as one trial. `transfer`: a global model of the study's source operators, of the same
    kind and over the same `features`, is there before the first trial (eq. 4); `local` names the features of
    the local model where they are others.
    """

    name: str
    label: str
    tuner: str = "annealing"
    model: str = "gbt"
    features: str = "context"
    spare: float | None = None
    alpha: float | None = None
    each: int = 1
    transfer: bool = False
    local: str = ""

    def described(self) -> dict[str, Any]:
        """What the course of a search depends on, as JSON-able data."""
        kept = asdict(self)
        for presentation in ("name", "label", "each"):
            del kept[presentation]
        return kept


RANDOM: Final = Method("random", "random", tuner="random")
RANDOM_X2: Final = Method("random x2", "random ×2", tuner="random", each=2)
GENETIC: Final = Method("genetic", "genetic", tuner="genetic")
GENETIC_X2: Final = Method("genetic x2", "genetic ×2", tuner="genetic", each=2)
GBT: Final = Method("gbt", "GBT, rank")
GBT_REGRESSION: Final = Method("gbt regression", "GBT, regression", model="gbt-regression")
TREEGRU: Final = Method("treegru", "TreeGRU, rank", model="treegru", features="tree")
TREEGRU_REGRESSION: Final = Method(
    "treegru regression", "TreeGRU, regression", model="treegru-regression", features="tree"
)
LAMBDAS: Final = tuple(
    Method(f"lambda {value}", f"λ = {value}", spare=float(value), alpha=1.0) for value in (1, 2, 4)
)
ACQUISITIONS: Final = tuple(
    Method(f"bootstrap {name}", label, model=f"bootstrap-{name}")
    for name, label in (("mean", "mean"), ("ei", "expected improvement"), ("ucb", "upper confidence bound"))
)
REPRESENTATIONS: Final = (
    Method("configuration", "GBT on the configuration", features="configuration"),
    Method("flattened", "GBT on the flattened context", features="flattened"),
    Method("relation", "GBT on context relations", features="relation"),
    TREEGRU,
)


TRANSFER: Final = Method(
    "transfer",
    "GBT, transfer (relations; context for the rest)",
    features="relation",
    transfer=True,
    local="context",
)


def transferred(method: Method) -> Method:
    """The same method with a global model from the source operators."""
    return replace(method, name=f"{method.name}, transfer", label=f"{method.label}, transfer", transfer=True)
