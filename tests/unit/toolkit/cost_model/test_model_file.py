"""Models in files: what was written is read; whatever is wrong with the bytes is a refusal that says what."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from toolkit.cost_model.gbt import GradientBoostedTrees, TreeOptions
from toolkit.cost_model.model_file import (
    FORMAT_VERSION,
    HEADER,
    MAGIC,
    FeatureFacts,
    ModelCard,
    Provenance,
    SavedModel,
    TrainedOperator,
    check_features,
    facts,
    from_bytes,
    load_cost_model,
    load_model_card,
    save,
    to_bytes,
)
from toolkit.errors import CostModelError, OutputError
from toolkit.features.base import FEATURE_VERSION

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(60, 5)).astype(np.float32)
ORIGIN = Provenance((TrainedOperator("conv", "00ff", "host:cpu", 60, 2),), "0.1", 3, 1.5, 2.5)


def trained() -> SavedModel:
    model = GradientBoostedTrees(seed=3, options=TreeOptions(rounds=5))
    model.fit(FEATURES, np.exp(FEATURES[:, 0]).astype(np.float64))
    return SavedModel("gbt", model, FeatureFacts("relation", 5), ORIGIN)


SAVED = trained()
DATA = to_bytes(SAVED)


def sealed(payload: bytes) -> bytes:
    """A file whose checksum is right, whatever it holds."""
    return HEADER.pack(MAGIC, FORMAT_VERSION, len(payload), hashlib.sha256(payload).digest()) + payload


def test_a_saved_model_comes_back_whole(tmp_path: Path) -> None:
    path = save(tmp_path / "prior.tfbm", SAVED)
    loaded = load_cost_model(path)
    assert replace(loaded, model=SAVED.model) == SAVED
    assert np.array_equal(loaded.model.predict(FEATURES), SAVED.model.predict(FEATURES))
    assert load_model_card(path) == ModelCard("gbt", SAVED.features, ORIGIN)
    assert path.stat().st_mode & 0o777 == 0o644
    assert to_bytes(loaded) == path.read_bytes() == to_bytes(trained())  # the same bytes for the same model


@given(place=st.integers(0, len(DATA) - 1), bit=st.integers(0, 7))
def test_any_flipped_bit_is_refused(place: int, bit: int) -> None:
    damaged = bytearray(DATA)
    damaged[place] ^= 1 << bit
    with pytest.raises(CostModelError, match="here"):
        from_bytes(bytes(damaged), "here")


@given(size=st.integers(0, len(DATA) - 1))
def test_any_truncation_is_refused(size: int) -> None:
    with pytest.raises(CostModelError, match=r"here (is no cost model|is cut short|has the wrong length)"):
        from_bytes(DATA[:size], "here")


@given(payload=st.binary(max_size=200))
def test_bytes_that_are_no_model_are_refused_even_with_the_right_checksum(payload: bytes) -> None:
    with pytest.raises(CostModelError, match="holds no cost model that this tool can read"):
        from_bytes(sealed(payload), "here")


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"kind": "oracle", "state": {}}},
        {"model": {"kind": "gbt", "state": {}}},
        {"model": {"kind": "gbt", "state": {**SAVED.model.state(), "booster": b"no trees"}}},
        {"model": {"kind": "gbt", "state": {**SAVED.model.state(), "objective": "guess"}}},
        {"model": {"kind": "transfer", "state": {"members": [], "columns": 1, "fitted": True}}},
        {"features": {"kind": "relation"}},
        {"provenance": {"operators": 3}},
    ],
)
def test_a_state_that_no_model_wrote_is_refused(change: dict[str, object]) -> None:
    content = msgpack.unpackb(DATA[HEADER.size :])
    with pytest.raises(CostModelError, match="holds no cost model that this tool can read"):
        from_bytes(sealed(msgpack.packb({**content, **change})), "here")


def test_another_version_of_the_features_or_the_format_is_refused() -> None:
    older = replace(SAVED, features=replace(SAVED.features, version=FEATURE_VERSION - 1))
    expected = f"features of version {FEATURE_VERSION - 1}, this tool computes version {FEATURE_VERSION}"
    with pytest.raises(CostModelError, match=expected):
        from_bytes(to_bytes(older), "prior.tfbm")
    newer = HEADER.pack(MAGIC, FORMAT_VERSION + 1, 0, bytes(32))
    with pytest.raises(
        CostModelError, match=f"format {FORMAT_VERSION + 1}, this tool reads format"
    ) as caught:
        from_bytes(newer, "prior.tfbm")
    assert caught.value.exit_code == 2


def test_a_model_that_cannot_be_used_here_can_be_looked_at(tmp_path: Path) -> None:
    content = msgpack.unpackb(DATA[HEADER.size :]) | {"model": {"kind": "of tomorrow", "state": {}}}
    path = tmp_path / "p.tfbm"
    path.write_bytes(sealed(msgpack.packb(content)))
    assert load_model_card(path).provenance == ORIGIN
    with pytest.raises(CostModelError, match="expected a model of a kind among gbt, .*, found 'of tomorrow'"):
        load_cost_model(path)


def test_other_features_are_refused() -> None:
    check_features(SAVED, FeatureFacts("relation", 5), "p")
    with pytest.raises(CostModelError, match="trained on relation features: found context features"):
        check_features(SAVED, FeatureFacts("context", 5), "p")
    with pytest.raises(CostModelError, match="relation features with 5 columns: found 6"):
        check_features(SAVED, FeatureFacts("relation", 6), "p")
    tree = replace(SAVED, features=FeatureFacts("tree", 230, 23))
    check_features(tree, FeatureFacts("tree", 460, 23), "p")  # any number of loops
    with pytest.raises(CostModelError, match="tree features with 23 channels: found 20"):
        check_features(tree, FeatureFacts("tree", 460, 20), "p")
    assert facts(lambda batch: batch).kind == "unnamed"


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(CostModelError, match="cannot be read: No such file"):
        load_cost_model(tmp_path / "none.tfbm")
    with pytest.raises(OutputError, match="cannot be written to .*none/prior.tfbm"):
        save(tmp_path / "none" / "prior.tfbm", SAVED)
    save(tmp_path / "prior.tfbm", SAVED)
    assert [path.name for path in tmp_path.iterdir()] == ["prior.tfbm"]
