"""A fitted cost model as one file, `*.tfbm`: a prior to ship and to start other searches from.

    offset 0    magic, 8 bytes
           8    format version, u32; size of the payload in bytes, u64; SHA-256 of the payload, 32 bytes
           52   payload: one msgpack map with what the features mean, what the model was trained on, and the
                model's own state (XGBoost's UBJSON for trees, arrays for networks)

Integers are little endian. Nothing in the file is code. What does not fit is refused with a CostModelError
that says what was expected and found: another magic or format, a length or checksum that is wrong, features
of another version, a state that no model of this tool wrote.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgpack
import msgspec

from boards.files import write_file
from toolkit.cost_model.base import Saveable
from toolkit.cost_model.bootstrap import BootstrapEnsemble
from toolkit.cost_model.gbt import GradientBoostedTrees
from toolkit.cost_model.random_model import RandomModel
from toolkit.cost_model.transfer import Transfer
from toolkit.cost_model.tree_gru import TreeGRU
from toolkit.errors import CostModelError, writing
from toolkit.features.base import FEATURE_VERSION

MAGIC: Final = b"TFBMODEL"
FORMAT_VERSION: Final = 2
HEADER: Final = struct.Struct("<8sIQ32s")
LARGEST_BYTES: Final = 1 << 28
_AGAIN: Final = "train it again with toolkit model train"

_SINGLE: Final[dict[str, Callable[[dict[str, Any]], Saveable]]] = {
    "gbt": GradientBoostedTrees.restore,
    "treegru": TreeGRU.restore,
    "random": RandomModel.restore,
}
_COMPOSED: Final[dict[str, Callable[[dict[str, Any], list[Saveable]], Saveable]]] = {
    "bootstrap": BootstrapEnsemble.restore,
    "transfer": Transfer.restore,
}


class FeatureFacts(msgspec.Struct, frozen=True):
    """What the columns that a model was fitted on mean. `channels` of "tree" features, else 0."""

    kind: str
    width: int
    channels: int = 0
    version: int = FEATURE_VERSION


class TrainedOperator(msgspec.Struct, frozen=True):
    """One operator on one target among the training data, and how many of its records failed."""

    name: str
    operator_key: str
    target_key: str
    records: int
    failures: int


class Provenance(msgspec.Struct, frozen=True):
    """What a model was trained on, and by which version of the tool. Times in seconds since 1970."""

    operators: tuple[TrainedOperator, ...]
    tool_version: str
    seed: int
    first_s: float
    last_s: float


class ModelCard(msgspec.Struct, frozen=True):
    """What a file says of its model. `name` is the model's name at the door (choose.py)."""

    name: str
    features: FeatureFacts
    provenance: Provenance


class SavedModel(msgspec.Struct, frozen=True):
    """What a file holds. `name` is the model's name at the door (choose.py)."""

    name: str
    model: Saveable
    features: FeatureFacts
    provenance: Provenance


def save(path: Path | str, saved: SavedModel) -> Path:
    """Write a model; the file is whole or not there. Raises OutputError."""
    path = Path(path)
    data = to_bytes(saved)
    with writing("the cost model", path, "name a file in an existing folder that you may write to"):
        write_file(path, data)
    return path


def load_cost_model(path: Path | str) -> SavedModel:
    """Read a model. Raises CostModelError; MissingExtra where it needs a part that is not installed."""
    return from_bytes(_read(Path(path)), str(path))


def load_model_card(path: Path | str) -> ModelCard:
    """Read what a file says of its model, which need not be usable here. Raises CostModelError."""
    return _card(_content(_read(Path(path)), str(path)), str(path))


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise CostModelError(
                f"{path} has {path.stat().st_size} bytes: expected a cost model of at most {LARGEST_BYTES}"
            )
        return path.read_bytes()
    except OSError as error:
        raise CostModelError(
            f"the cost model {path} cannot be read: {error.strerror}; name a file that "
            "`toolkit model train -o` wrote, or a model of `toolkit model list`"
        ) from error


def to_bytes(saved: SavedModel) -> bytes:
    """The bytes of a model's file."""
    payload: bytes = msgpack.packb(
        {
            "name": saved.name,
            "features": msgspec.to_builtins(saved.features),
            "provenance": msgspec.to_builtins(saved.provenance),
            "model": {"kind": saved.model.kind, "state": saved.model.state()},
        }
    )
    digest = hashlib.sha256(payload).digest()
    return HEADER.pack(MAGIC, FORMAT_VERSION, len(payload), digest) + payload


def from_bytes(data: bytes, where: str) -> SavedModel:
    """The model in a file's bytes; `where` names the file. Raises CostModelError, MissingExtra."""
    content = _content(data, where)
    card = _card(content, where)
    try:
        return SavedModel(card.name, _restored(content["model"]), card.features, card.provenance)
    except (KeyError, TypeError, ValueError) as error:  # XGBoostError is a ValueError
        raise _not_ours(where, error) from error


def _card(content: dict[str, Any], where: str) -> ModelCard:
    try:
        features = FeatureFacts(**content["features"])
        provenance = dict(content["provenance"])
        provenance["operators"] = tuple(TrainedOperator(**item) for item in provenance["operators"])
        card = ModelCard(str(content["name"]), features, Provenance(**provenance))
    except (KeyError, TypeError, ValueError) as error:
        raise _not_ours(where, error) from error
    if features.version != FEATURE_VERSION:
        raise CostModelError(
            f"{where} was trained on features of version {features.version}, this tool computes version "
            f"{FEATURE_VERSION}: {_AGAIN}, from the same records"
        )
    return card


def facts(features: object) -> FeatureFacts:
    """What a model reads that is fitted on these features (toolkit.features.Features, or any other maker)."""
    kind, width, channels = (getattr(features, name, 0) for name in ("kind", "width", "channels"))
    return FeatureFacts(str(kind or "unnamed"), int(width), int(channels))


def check_features(saved: SavedModel, found: FeatureFacts, where: str) -> None:
    """Raise CostModelError unless a model fits features: their kind, and width or channels."""
    expected = saved.features
    if expected.kind != found.kind:
        raise CostModelError(
            f"{where} was trained on {expected.kind} features: found {found.kind} features; "
            f"search with the kind it was trained on, or {_AGAIN} --features {found.kind}"
        )
    same = expected.channels == found.channels if expected.channels else expected.width == found.width
    if not same:
        unit = "channels" if expected.channels else "columns"
        sizes = [item.channels if expected.channels else item.width for item in (expected, found)]
        raise CostModelError(
            f"{where} was trained on {expected.kind} features with {sizes[0]} {unit}: found {sizes[1]}; "
            "relation, flattened and tree features are shared by all programs for CPUs, or all for GPUs, "
            f"not by both, others by those of one operator: {_AGAIN} from records of such programs"
        )


def _payload(data: bytes, where: str) -> bytes:
    if not data.startswith(MAGIC):
        raise CostModelError(
            f"{where} is no cost model: expected it to begin with {MAGIC!r}, found {data[: len(MAGIC)]!r}; "
            "name a file that `toolkit model train -o` wrote"
        )
    if len(data) < HEADER.size:
        raise CostModelError(
            f"{where} is cut short: expected a header of {HEADER.size} bytes, found {len(data)}; "
            "copy the file again"
        )
    _, version, size_bytes, digest = HEADER.unpack_from(data)
    if version != FORMAT_VERSION:
        raise CostModelError(
            f"{where} has cost model format {version}, this tool reads format {FORMAT_VERSION}: {_AGAIN}"
        )
    payload = data[HEADER.size :]
    if len(payload) != size_bytes:
        raise CostModelError(
            f"{where} has the wrong length: expected {HEADER.size + size_bytes} bytes, found {len(data)}; "
            "copy the file again"
        )
    found = hashlib.sha256(payload).digest()
    if found != digest:
        raise CostModelError(
            f"{where} is damaged: expected the SHA-256 {digest.hex()[:16]}..., found {found.hex()[:16]}...; "
            "copy the file again"
        )
    return payload


def _content(data: bytes, where: str) -> dict[str, Any]:
    """The map in a file's bytes."""
    payload = _payload(data, where)
    try:
        content = msgpack.unpackb(payload)
    except (ValueError, msgpack.UnpackException) as error:
        raise _not_ours(where, error) from error
    if not isinstance(content, dict):
        raise _not_ours(where, TypeError(f"expected a map, found {type(content).__name__}"))
    return content


def _restored(stored: dict[str, Any]) -> Saveable:
    kind, state = stored["kind"], stored["state"]
    if kind in _SINGLE:
        return _SINGLE[kind](state)
    if kind in _COMPOSED:
        return _COMPOSED[kind](state, [_restored(member) for member in state["members"]])
    known = ", ".join((*_SINGLE, *_COMPOSED))
    raise ValueError(f"expected a model of a kind among {known}, found {kind!r}")


def _not_ours(where: str, error: Exception) -> CostModelError:
    return CostModelError(
        f"{where} holds no cost model that this tool can read ({type(error).__name__}: {error}): {_AGAIN}"
    )
