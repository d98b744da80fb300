"""Batch normalization in training, and the optimizers of ai.onnx.preview.training, as ONNX functions.

Source: github.com/onnx/onnx, docs/Operators.md. `BODIES` is as in microsoft.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from toolkit.model.body_text import Body, Types, attribute_of, rank_of

TRAINING = "ai.onnx.preview.training"


def _number(name: str, value: float) -> str:
    return f"{name} = Constant <value = float {{{float(value)!r}}}> ()"


def _batch_normalization(node: Any, types: Types) -> str | None:
    """By the mean and variance of the batch, which the running ones move towards; in float32."""
    if not attribute_of(node, "training_mode", 0):
        return None
    rank = rank_of(node, types, 0)
    axes = ", ".join(str(axis) for axis in range(rank) if axis != 1)
    view = ", ".join(["-1", *("1" for _ in range(rank - 2))])
    momentum = float(attribute_of(node, "momentum", 0.9))
    lines = [
        _number("epsilon", attribute_of(node, "epsilon", 1e-5)),
        _number("kept", momentum),
        _number("moved", 1.0 - momentum),
        f"""
        axes = Constant <value_ints = [{axes}]> ()
        view = Constant <value_ints = [{view}]> ()
        x = Cast <to = 1> (i0)
        m = ReduceMean (x, axes)
        apart = Sub (x, m)
        square = Mul (apart, apart)
        v = ReduceMean (square, axes)
        above = Add (v, epsilon)
        deviation = Sqrt (above)
        normal = Div (apart, deviation)
        scale = Cast <to = 1> (i1)
        scales = Reshape (scale, view)
        shift = Cast <to = 1> (i2)
        shifts = Reshape (shift, view)
        scaled = Mul (normal, scales)
        y = Add (scaled, shifts)
        o0 = CastLike (y, i0)""",
    ]
    for output, (running, current) in enumerate((("i3", "m"), ("i4", "v")), start=1):
        if len(node.output) > output and node.output[output]:
            lines.append(f"""
        {running}_float = Cast <to = 1> ({running})
        {running}_kept = Mul ({running}_float, kept)
        {current}_flat = Squeeze ({current}, axes)
        {current}_moved = Mul ({current}_flat, moved)
        {running}_new = Add ({running}_kept, {current}_moved)
        o{output} = CastLike ({running}_new, {running})""")
    return " ".join(lines)


class _Optimizer(msgspec.Struct, frozen=True):
    """One step of an optimizer of several tensors.

    Its inputs are a rate i0, a number of updates i1, then all tensors, all gradients and all of each state;
    its outputs the new tensors and states. `once` is computed once; `each` for a tensor x with a gradient g
    and states a and b, to y, c and d; xn and gr are there. `numbers` are attributes with their defaults.
    """

    states: int
    numbers: Mapping[str, float]
    once: str
    each: str

    def __call__(self, node: Any, types: Types) -> str:
        count = (len(node.input) - 2) // (2 + self.states)
        constants = {"one": 1.0, "zero": 0.0, "norm_coefficient": 0.0, "epsilon": 1e-6, **self.numbers}
        parts = [_number(name, attribute_of(node, name, default)) for name, default in constants.items()]
        parts += ["count = Cast <to = 1> (i1)", self.once]
        regularized = "xn{n} = Mul (norm_coefficient, {x}) gr{n} = Add (xn{n}, {g})"
        for n in range(count):
            inputs = {name: f"i{2 + place * count + n}" for place, name in enumerate("xgab")}
            outputs = {name: f"o{place * count + n}" for place, name in enumerate("ycd")}
            parts.append(f"{regularized} {self.each}".format(**inputs, **outputs, n=n))
        return " ".join(parts)


_ADAGRAD = _Optimizer(
    states=1,
    numbers={"decay_factor": 0.0},
    once="decay = Mul (count, decay_factor) slower = Add (one, decay) rate = Div (i0, slower)",
    each="""
        square{n} = Mul (gr{n}, gr{n})
        {c} = Add ({a}, square{n})
        root{n} = Sqrt ({c})
        divisor{n} = Add (root{n}, epsilon)
        step{n} = Mul (rate, gr{n})
        change{n} = Div (step{n}, divisor{n})
        {y} = Sub ({x}, change{n})""",
)
_ADAM = _Optimizer(
    states=2,
    numbers={"alpha": 0.9, "beta": 0.999, "norm_coefficient_post": 0.0},
    once="""
        less_alpha = Sub (one, alpha)
        less_beta = Sub (one, beta)
        kept = Sub (one, norm_coefficient_post)
        alpha_power = Pow (alpha, count)
        beta_power = Pow (beta, count)
        below = Sub (one, alpha_power)
        above = Sub (one, beta_power)
        root = Sqrt (above)
        corrected = Mul (i0, root)
        adjusted = Div (corrected, below)
        begun = Greater (count, zero)
        rate = Where (begun, adjusted, i0)""",
    each="""
        old_mean{n} = Mul (alpha, {a})
        new_mean{n} = Mul (less_alpha, gr{n})
        {c} = Add (old_mean{n}, new_mean{n})
        square{n} = Mul (gr{n}, gr{n})
        old_square{n} = Mul (beta, {b})
        new_square{n} = Mul (less_beta, square{n})
        {d} = Add (old_square{n}, new_square{n})
        root{n} = Sqrt ({d})
        divisor{n} = Add (root{n}, epsilon)
        step{n} = Mul (rate, {c})
        change{n} = Div (step{n}, divisor{n})
        new{n} = Sub ({x}, change{n})
        {y} = Mul (kept, new{n})""",
)
_MOMENTUM_ONCE = "begun = Greater (count, zero) damped = Where (begun, beta, one)"
_MOMENTUM_EACH = """
        old{n} = Mul (alpha, {a})
        new{n} = Mul (damped, gr{n})
        {c} = Add (old{n}, new{n})"""
_MOMENTUM = {
    mode: _Optimizer(
        states=1,
        numbers={"alpha": 0.0, "beta": 0.0},
        once=_MOMENTUM_ONCE,
        each=f"{_MOMENTUM_EACH} {step} change{{n}} = Mul (i0, step{{n}}) {{y}} = Sub ({{x}}, change{{n}})",
    )
    for mode, step in {
        b"standard": "step{n} = Identity ({c})",
        b"nesterov": "more{n} = Mul (alpha, {c}) step{n} = Add (gr{n}, more{n})",
    }.items()
}


def _momentum(node: Any, types: Types) -> str:
    return _MOMENTUM[attribute_of(node, "mode", b"standard")](node, types)


BODIES: dict[str, Body] = {
    "BatchNormalization": _batch_normalization,
    f"{TRAINING}.Adagrad": _ADAGRAD,
    f"{TRAINING}.Adam": _ADAM,
    f"{TRAINING}.Momentum": _momentum,
}
