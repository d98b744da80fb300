"""The priors that come with the tool: models of what was measured on machines of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from toolkit.cost_model.model_file import SavedModel, load_cost_model

FOLDER: Final = Path(__file__).parent / "priors"
SUFFIX: Final = ".tfbm"


def shipped_priors() -> dict[str, Path]:
    """Their files by name, in order of the names."""
    return {path.stem: path for path in sorted(FOLDER.glob(f"*{SUFFIX}"))}


def find_prior(asked: Path | str) -> Path:
    """The file that `--prior` means: one of the user's, or else the one that comes with the tool so named."""
    path = Path(asked)
    return path if path.exists() else shipped_priors().get(str(asked), path)


def load_prior(asked: Path | str) -> SavedModel:
    """The model of `find_prior`. Raises CostModelError; MissingExtra where it needs a part not installed."""
    return load_cost_model(find_prior(asked))
