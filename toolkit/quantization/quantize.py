"""The door of this room: a network of floats and data in; one of 8-bit integers, and what it changes, out.

    report = quantize("net.onnx", "photos", "net-int8.onnx", QuantizeOptions(until_sqnr_db=30.0))

Ranges are found on one part of the data, everything that is reported on the rest. Each layer is quantized
alone once: its change of the model's outputs says how much it hurts, and which layers are left in floats
first where a bound is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from boards.files import write_file
from toolkit.errors import InputError
from toolkit.model.change import Change
from toolkit.quantization.noise import changes, quantized_names, worst_db
from toolkit.quantization.quantizer import Quantizer, Scheme, inputs_of, layers_of, prepared
from toolkit.quantization.samples import ImageScale, Samples, known_shapes, read_samples, split
from toolkit.quantization.sessions import ModelSession, require_onnxruntime

Progress = Callable[[int, int], None]
"""Steps done, steps in all."""


class QuantizeOptions(msgspec.Struct, frozen=True):
    """How to quantize; the defaults are those of the command."""

    scheme: Scheme = msgspec.field(default_factory=Scheme)
    scale: ImageScale = msgspec.field(default_factory=ImageScale)
    samples: int = 128
    """At most so many are used, evenly taken from the data."""
    held_out: float = 0.2
    """Share of the samples that are not calibrated with, but compared on."""
    until_sqnr_db: float | None = None
    """Leave out layers until the signal of every output is so far above the noise, in decibels."""
    until_agreement: float | None = None
    """Leave out layers until so large a share of the samples' largest outputs are where they were, 0 to 1."""
    shapes: Mapping[str, tuple[int, ...]] = {}


class LayerNoise(msgspec.Struct, frozen=True):
    """A layer that can be quantized: decibels of signal to noise, None where nothing changed."""

    name: str
    operator: str
    quantized: bool
    sqnr_db: float | None
    """Of its own output in the quantized model, with the noise of all layers before it."""
    alone_db: float | None
    """Of the model's worst output where this layer alone is quantized: the lower, the more it hurts."""


class OutputChange(msgspec.Struct, frozen=True):
    """An output of the model on the samples held out."""

    name: str
    sqnr_db: float | None
    agreement: float | None
    """Share with the largest element of the last axis where it was; None for outputs of one dimension."""


class QuantizeReport(msgspec.Struct, frozen=True):
    model: Path
    output: Path
    calibrated: int
    held_out: int
    layers: tuple[LayerNoise, ...]
    outputs: tuple[OutputChange, ...]
    float_bytes: int
    quantized_bytes: int


def quantize(
    model: Path | str,
    data: Path | str,
    output: Path | str,
    options: QuantizeOptions | None = None,
    progress: Progress = lambda *_: None,
) -> QuantizeReport:
    """Write a model (QDQ form: int8 weights, 8-bit activations) calibrated on a folder of data.

    Raises MissingExtra, ModelError, InputError (data that do not fit, bounds that no model holds), OSError.
    """
    options = options or QuantizeOptions()
    require_onnxruntime()
    path, target = Path(model), Path(output)
    floats = prepared(path)
    specs = known_shapes(inputs_of(floats), options.shapes)
    calibrated, held_out = split(read_samples(data, specs, options.scale, options.samples), options.held_out)
    layers = layers_of(floats)
    if not layers:
        raise InputError(
            f"{path}: no node computes on integers; expected convolutions, matrix products, sums"
        )
    steps = _Steps(progress, len(calibrated) + 2 * len(layers) + 1)
    quantizer = Quantizer(floats, calibrated, options.scheme, steps.one)
    comparison = _Comparison(floats, quantizer, held_out)
    alone = {}
    for layer in layers:
        alone[layer.name] = worst_db(comparison.outputs(quantizer.quantized([layer], alone=True)).values())
        steps.one()
    kept, outputs = layers, comparison.outputs(quantizer.quantized(layers))
    for layer in sorted(layers, key=lambda item: (alone[item.name] is None, alone[item.name])):
        if _hold(options, outputs):
            break
        kept = [item for item in kept if item is not layer]
        if not kept:
            raise InputError(f"{path}: the bounds hold for no model with a quantized layer; loosen them")
        outputs = comparison.outputs(quantizer.quantized(kept))
        steps.one()
    quantized = quantizer.quantized(kept)
    own = comparison.values(quantized, [layer.output for layer in layers])
    content = quantized.SerializeToString()
    write_file(target, content)
    steps.end()
    noise = tuple(
        LayerNoise(
            item.name, item.operator, item in kept, own.get(item.output, Change()).sqnr_db, alone[item.name]
        )
        for item in layers
    )
    changed = tuple(OutputChange(name, item.sqnr_db, item.agreement) for name, item in outputs.items())
    sizes = path.stat().st_size, len(content)
    return QuantizeReport(path, target, len(calibrated), len(held_out), noise, changed, *sizes)


class _Comparison:
    """Compares quantized models with that of floats on the samples held out."""

    def __init__(self, floats: Any, quantizer: Quantizer, samples: Samples) -> None:
        self._floats, self._samples = floats, samples
        self._names = [item.name for item in floats.graph.output]
        session = ModelSession(floats, self._names)
        self._expected = [session.run(feeds) for feeds in samples]

    def outputs(self, model: Any) -> dict[str, Change]:
        """The model's outputs."""
        session = ModelSession(model, self._names)
        return changes(self._expected, session, self._samples, {name: name for name in self._names})

    def values(self, model: Any, values: Sequence[str]) -> dict[str, Change]:
        """Values inside the model, as far as it still has them."""
        names = quantized_names(model, values)
        reference = ModelSession(self._floats, list(names))
        session = ModelSession(model, list(names.values()))
        return changes((reference.run(feeds) for feeds in self._samples), session, self._samples, names)


def _hold(options: QuantizeOptions, outputs: Mapping[str, Change]) -> bool:
    """Whether outputs are within the bounds. Raises InputError for a bound that none of them can have."""
    wanted_db, wanted = options.until_sqnr_db, options.until_agreement
    found_db = worst_db(outputs.values())
    shares = [item.agreement for item in outputs.values() if item.agreement is not None]
    if wanted is not None and not shares:
        raise InputError(
            f"the outputs {', '.join(outputs)} have no classes to agree on: expected one of two or more "
            "dimensions; bound the noise with --until-sqnr"
        )
    quiet = wanted_db is None or found_db is None or found_db >= wanted_db
    return quiet and (wanted is None or min(shares) >= wanted)


class _Steps:
    """Says how many steps are done."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0
        progress(0, total)

    def one(self) -> None:
        self._done = min(self._done + 1, self._total - 1)
        self._progress(self._done, self._total)

    def end(self) -> None:
        self._progress(self._total, self._total)
