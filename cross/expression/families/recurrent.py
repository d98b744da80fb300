"""What one step of a recurrent layer computes behind its matrix product: all gates in one stage.

The products of the inputs and of the last hidden state come with the gates side by side, as ONNX orders them.
Everything else is a [batch, hidden] matrix, or a vector over the hidden units.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from cross.expression.families.elementwise import clip
from cross.expression.language.tensor import Tensor, compute
from cross.expression.language.terms import Term

Activation = Callable[[Term], Term]


class Peepholes(msgspec.Struct, frozen=True):
    """Weights [3 * hidden] with which an LSTM's gates see the cell: of its input, output and forget gate."""

    weights: Tensor

    def seen(self, gate: int, unit: Term, hidden: int, cell: Term) -> Term:
        return self.weights[unit + gate * hidden] * cell


class Gates(msgspec.Struct, frozen=True):
    """The activations of a layer; what goes into one is cut to [-limit, limit] where there is a limit."""

    activations: tuple[Activation, ...]
    limit: float = 0.0

    def __call__(self, number: int, x: Term) -> Term:
        return self.activations[number](clip(x, -self.limit, self.limit) if self.limit else x)


def lstm_cell(
    products: Tensor, cell: Tensor, peepholes: Peepholes | None, gates: Gates, coupled: bool = False
) -> Tensor:
    """The next cell state: f * cell + i * g(c), from products [batch, 4 * hidden] of the gates i, o, f, c.

    `gates` has the activations of the gates i and f, and of c. `coupled`: f is 1 - i.
    """
    batch, hidden = cell.shape

    def body(b: Term, u: Term) -> Term:
        i, f, c = (products[b, u + gate * hidden] for gate in (0, 2, 3))
        if peepholes is not None:
            i = i + peepholes.seen(0, u, hidden, cell[b, u])
            f = f + peepholes.seen(2, u, hidden, cell[b, u])
        opened = gates(0, i)
        kept = 1.0 - opened if coupled else gates(0, f)
        return kept * cell[b, u] + opened * gates(1, c)

    return compute((batch, hidden), body, "lstm_cell", ("b", "u"))


def lstm_output(products: Tensor, cell: Tensor, peepholes: Peepholes | None, gates: Gates) -> Tensor:
    """The next hidden state: o * h(cell), from the products and the next cell state."""
    batch, hidden = cell.shape

    def body(b: Term, u: Term) -> Term:
        o = products[b, u + hidden]
        if peepholes is not None:
            o = o + peepholes.seen(1, u, hidden, cell[b, u])
        return gates(0, o) * gates.activations[1](cell[b, u])

    return compute((batch, hidden), body, "lstm_output", ("b", "u"))


def gru_reset(inputs: Tensor, products: Tensor, state: Tensor, gates: Gates) -> Tensor:
    """r * state, of which the last gate takes a product.

    `inputs` are the products [batch, 3 * hidden] of the gates z, r, h, `products` begin with z and r.
    """
    batch, hidden = state.shape

    def body(b: Term, u: Term) -> Term:
        return gates(0, inputs[b, u + hidden] + products[b, u + hidden]) * state[b, u]

    return compute((batch, hidden), body, "gru_reset", ("b", "u"))


def gru_output(inputs: Tensor, products: Tensor, last: Tensor | None, state: Tensor, gates: Gates) -> Tensor:
    """The next hidden state: (1 - z) * g(h) + z * state.

    `last` has the product of r * state for the gate h; without it, r scales the third of the products.
    """
    batch, hidden = state.shape

    def body(b: Term, u: Term) -> Term:
        z, r = (gates(0, inputs[b, u + gate * hidden] + products[b, u + gate * hidden]) for gate in (0, 1))
        reset = r * products[b, u + 2 * hidden] if last is None else last[b, u]
        kept = z * state[b, u]
        return (1.0 - z) * gates(1, inputs[b, u + 2 * hidden] + reset) + kept

    return compute((batch, hidden), body, "gru_output", ("b", "u"))
