"""The TreeGRU network (AutoTVM, section 4, "Context Encoded TreeGRU", and supplement A.3), in JAX.

Every loop of a program is a node. What is known of the loop is embedded; a GRU cell takes the embedding and
the sum of its children's states and gives its own state h, from the innermost loops to the root. Each state
is scattered to memory, out_i = softmax(W^T h)_i h for slots i, the slots are summed over all loops, and a
linear layer maps them to the score. That layer is applied to each loop before the sum, which is the same and
never builds the memory: score = sum_k sum_i softmax(W^T h_k)_i (V_i . h_k).

Start at `Network`. Shapes: L loops, N programs, H hidden units, M slots. Only this file imports jax and
optax, and only when a network is made: they are the optional part [neural].
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from toolkit.cost_model.base import Objective
from toolkit.errors import MissingExtra

Array = Any  # a jax.Array, or a numpy array on its way in
Parameters = dict[str, Any]


class NetworkShape(msgspec.Struct, frozen=True):
    """Sizes of the layers: `inputs` numbers of each loop, and so many loop variables with an embedding each.

    Loop variables from the last number of `identities` on share one embedding; 0: none has one.
    """

    inputs: int
    embedding: int = 128
    hidden: int = 128
    slots: int = 64
    identities: int = 0


def initial_parameters(shape: NetworkShape, rng: np.random.Generator) -> Parameters:
    """Glorot-uniform weights and zero biases, float32."""

    def weights(rows: int, columns: int) -> NDArray[np.float32]:
        bound = math.sqrt(6.0 / (rows + columns))
        return rng.uniform(-bound, bound, (rows, columns)).astype(np.float32)

    hidden = shape.hidden
    parameters: Parameters = {
        "embed": weights(shape.inputs, shape.embedding),
        "embed_bias": np.zeros(shape.embedding, np.float32),
        "input": np.concatenate([weights(shape.embedding, hidden) for _ in range(3)], axis=1),
        "input_bias": np.zeros(3 * hidden, np.float32),
        "state": np.concatenate([weights(hidden, hidden) for _ in range(3)], axis=1),
        "scatter": weights(hidden, shape.slots),
        "score": 0.1 * weights(hidden, shape.slots),
    }
    if shape.identities:
        parameters["identity"] = weights(shape.identities, shape.embedding)
    return parameters


class Network(msgspec.Struct, frozen=True):
    """Compiled functions; one compilation for each shape of their arguments.

    score(parameters, *trees) -> float32 [N]; start(parameters) -> moments; step(parameters, moments, rate,
    trees, labels, groups, offsets) -> (parameters, moments, loss), one step of Adam.
    """

    score: Callable[..., Array]
    step: Callable[..., tuple[Parameters, Any, Array]]
    start: Callable[[Parameters], Any]
    accelerated: bool


@functools.cache
def network(objective: Objective, weight_decay: float) -> Network:
    """The network's functions, shared by all models of this objective. Raises MissingExtra without jax."""
    try:
        import jax
        import optax
    except ImportError as error:
        raise MissingExtra(
            f"the cost model treegru needs jax and optax ({error}): install them with "
            "pip install 'tune-for-board[neural]', or choose --cost-model gbt"
        ) from error
    adam = optax.chain(
        optax.clip_by_global_norm(1.0), optax.scale_by_adam(), optax.add_decayed_weights(weight_decay)
    )

    def loss(
        parameters: Parameters, trees: tuple[Array, ...], labels: Array, groups: Array, offsets: Array
    ) -> Array:
        scores = offsets + forward(jax, parameters, *trees)
        return LOSSES[objective](jax, scores, labels, groups)

    def step(
        parameters: Parameters,
        moments: Any,
        rate: Array,
        trees: tuple[Array, ...],
        labels: Array,
        groups: Array,
        offsets: Array,
    ) -> tuple[Parameters, Any, Array]:
        value, gradient = jax.value_and_grad(loss)(parameters, trees, labels, groups, offsets)
        updates, moments = adam.update(gradient, moments, parameters)
        stepped = jax.tree.map(lambda p, u: p - rate * u, parameters, updates)
        return stepped, moments, value

    return Network(
        score=jax.jit(functools.partial(forward, jax)),
        step=jax.jit(step, donate_argnums=(0, 1)),
        start=adam.init,
        accelerated=jax.default_backend() != "cpu",
    )


def forward(
    jax: Any, parameters: Parameters, context: Array, exists: Array, parent: Array, variable: Array
) -> Array:
    """Scores, float32 [N], of the programs that tree_input.Trees describes; parents come before children."""
    jnp = jax.numpy
    loops, programs = exists.shape
    embedded = context @ parameters["embed"] + parameters["embed_bias"]
    if "identity" in parameters:
        table = parameters["identity"]
        embedded = embedded + table[jnp.minimum(variable, len(table) - 1)]
    inputs = jax.nn.relu(embedded) @ parameters["input"] + parameters["input_bias"]
    hidden = parameters["state"].shape[0]
    every = jnp.arange(programs)

    def loop(children: Array, row: tuple[Array, ...]) -> tuple[Array, Array]:
        position, received, present, above = row
        state = present[:, None] * gru(jax, parameters, received, children[position])
        slots = jax.nn.softmax(state @ parameters["scatter"], axis=-1)
        given = present * jnp.sum(slots * (state @ parameters["score"]), axis=-1)
        return children.at[above, every].add(state), given

    rows = (jnp.arange(loops), inputs, exists, parent)
    none = jnp.zeros((loops + 1, programs, hidden), inputs.dtype)
    return jnp.sum(jax.lax.scan(loop, none, rows, reverse=True)[1], axis=0)


def gru(jax: Any, parameters: Parameters, received: Array, state: Array) -> Array:
    """One cell: received [N, 3 H] from the embedding, state [N, H] the sum of the children; the new state."""
    jnp = jax.numpy
    size = state.shape[1]
    recurrent = state @ parameters["state"]
    reset = jax.nn.sigmoid(received[:, :size] + recurrent[:, :size])
    update = jax.nn.sigmoid(received[:, size : 2 * size] + recurrent[:, size : 2 * size])
    candidate = jnp.tanh(received[:, 2 * size :] + reset * recurrent[:, 2 * size :])
    return (1.0 - update) * candidate + update * state


def rank_loss(jax: Any, scores: Array, labels: Array, groups: Array) -> Array:
    """eq. 2, the mean over the pairs of one group whose labels differ."""
    jnp = jax.numpy
    sign = jnp.sign(labels[:, None] - labels[None, :]) * (groups[:, None] == groups[None, :])
    margin = sign * (scores[:, None] - scores[None, :])
    return jnp.sum(jnp.abs(sign) * jax.nn.softplus(-margin)) / jnp.maximum(jnp.sum(jnp.abs(sign)), 1.0)


def regression_loss(jax: Any, scores: Array, labels: Array, groups: Array) -> Array:
    """The mean squared error of the relative throughput."""
    return jax.numpy.mean((scores - labels) ** 2)


LOSSES: dict[str, Callable[..., Array]] = {"rank": rank_loss, "regression": regression_loss}
