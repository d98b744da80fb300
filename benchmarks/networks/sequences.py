"""Networks of text and sound: recurrent ones and transformers as published, weights seeded."""

from __future__ import annotations

import numpy as np

from benchmarks.networks.builder import Network


def attention(net: Network, data: str, hidden: int, heads: int, mask: str = "") -> str:
    """Attention over all tokens [1, tokens, hidden]; `mask` is added to the scores where there is one."""
    each = hidden // heads

    def in_heads(perm: tuple[int, ...]) -> str:
        return net.transpose(net.reshape(net.linear(data, hidden, hidden), 1, -1, heads, each), *perm)

    query, value, key = in_heads((0, 2, 1, 3)), in_heads((0, 2, 1, 3)), in_heads((0, 2, 3, 1))
    scores = net.add("Div", [net.add("MatMul", [query, key]), net.constant(np.sqrt(each))])
    weights = net.add("Softmax", [net.add("Add", [scores, mask]) if mask else scores], axis=-1)
    context = net.transpose(net.add("MatMul", [weights, value]), 0, 2, 1, 3)
    return net.linear(net.reshape(context, 1, -1, hidden), hidden, hidden)


def encoder(net: Network, data: str, hidden: int, heads: int, mask: str = "") -> str:
    """One layer of Devlin et al., 2018."""
    data = net.layer_norm(net.add("Add", [attention(net, data, hidden, heads, mask), data]), hidden, 1e-12)
    inner = net.linear(net.gelu(net.linear(data, hidden, 4 * hidden)), 4 * hidden, hidden)
    return net.layer_norm(net.add("Add", [inner, data]), hidden, 1e-12)


def embedded(net: Network, tokens: str, vocabulary: int, hidden: int) -> str:
    """The rows of a table that the tokens name."""
    return net.add("Gather", [net.constant(net.rng.normal(0.0, 1.0, (vocabulary, hidden))), tokens], axis=0)


def bert(net: Network, size: int = 128) -> str:
    """Two encoder layers of Devlin et al., 2018, on embedded tokens; `size` is the sequence's length.

    Hidden size 256 in 4 heads, padding masked away at the last quarter of the sequence.
    """
    hidden, tokens = 256, np.arange(size)
    data = net.input(1, size, hidden)
    mask = net.constant(np.where(tokens < size - size // 4, 0.0, -10000.0).reshape(1, 1, 1, -1))
    data = net.layer_norm(data, hidden, 1e-12)
    for _ in range(2):
        data = encoder(net, data, hidden, 4, mask)
    return data


def transformer(net: Network, size: int = 768) -> str:
    """BERT-base (Devlin et al., 2018) for masked words: 128 token ids to the logits of every word.

    `size` is the hidden size, a multiple of 12.
    """
    tokens, words = 128, 30522
    data = embedded(net, net.input(1, tokens, dtype="int64"), words, size)
    data = net.add("Add", [data, net.constant(net.rng.normal(0.0, 1.0, (1, tokens, size)))])
    data = net.layer_norm(data, size, 1e-12)
    for _ in net.blocks(12):
        data = encoder(net, data, size, 12)
    data = net.layer_norm(net.gelu(net.linear(data, size, size)), size, 1e-12)
    return net.linear(data, size, words)


def vit_tiny(net: Network, size: int = 224) -> str:
    """ViT-Ti/16 (Touvron et al., "DeiT", 2021): 12 layers, 192 wide, 3 heads; `size` is the image's."""
    hidden, tokens = 192, (size // 16) ** 2
    data = net.window(net.input(1, 3, size, size), hidden, (16, 16), (16, 16))
    data = net.transpose(net.reshape(data, 1, hidden, tokens), 0, 2, 1)
    data = net.add("Concat", [net.constant(net.rng.normal(0.0, 1.0, (1, 1, hidden))), data], axis=1)
    data = net.add("Add", [data, net.constant(net.rng.normal(0.0, 1.0, (1, tokens + 1, hidden)))])
    for _ in net.blocks(12):
        data = net.add("Add", [data, attention(net, net.layer_norm(data, hidden, 1e-6), hidden, 3)])
        inner = net.gelu(net.linear(net.layer_norm(data, hidden, 1e-6), hidden, 4 * hidden))
        data = net.add("Add", [data, net.linear(inner, 4 * hidden, hidden)])
    first = net.add("Gather", [net.layer_norm(data, hidden, 1e-6), net.constant(0, "int64")], axis=1)
    return net.linear(first, hidden, 1000)


def lstm_lm(net: Network, size: int = 650) -> str:
    """The medium language model of Zaremba et al., 2014: 35 words to the logits of the next ones.

    Two layers over a vocabulary of 10,000; `size` is the number of units in each.
    """
    data = embedded(net, net.input(35, 1, dtype="int64"), 10000, size)
    for _ in range(2):
        data = net.recurrent("LSTM", data, size, size)[0]
    return net.linear(net.reshape(data, 35, size), size, 10000)


def gru_spotter(net: Network, size: int = 400) -> str:
    """The large keyword spotter with a GRU of Zhang et al., "Hello Edge", 2017: 12 words.

    One second of sound as 49 frames of 10 coefficients; `size` is the number of units.
    """
    frames = net.transpose(net.input(1, 49, 10), 1, 0, 2)
    _, last = net.recurrent("GRU", frames, 10, size)
    return net.add("Softmax", [net.linear(net.reshape(last, 1, size), size, 12)], axis=-1)


def conformer(net: Network, size: int = 100) -> str:
    """One block of Gulati et al., 2020, 256 wide with 4 heads; `size` is the number of frames."""
    hidden, heads = 256, 4
    each = hidden // heads

    def forward(data: str) -> str:
        """Half a step of a feed-forward module."""
        inner = net.silu(net.linear(net.layer_norm(data, hidden), hidden, 4 * hidden))
        inner = net.linear(inner, 4 * hidden, hidden)
        return net.add("Add", [data, net.add("Mul", [inner, net.constant(0.5)])])

    def in_heads(data: str, *perm: int) -> str:
        return net.transpose(net.reshape(data, 1, -1, heads, each), *perm)

    def shifted(scores: str) -> str:
        """Row t of the scores of 2 * size - 1 relative places begins at the place of frame 0 seen from t."""
        data = net.add("Pad", [scores, net.constant([0, 0, 0, 1, 0, 0, 0, 0], "int64")])
        data = net.reshape(data, 1, heads, 2 * size, size)
        ends = [net.constant([at], "int64") for at in (1, 2 * size, 2)]
        data = net.reshape(net.add("Slice", [data, *ends]), 1, heads, size, 2 * size - 1)
        return net.add("Slice", [data, *(net.constant([at], "int64") for at in (0, size, 3))])

    def seen(data: str) -> str:
        """Attention with relative places, as in Transformer-XL."""
        angles = np.arange(size - 1, -size, -1)[:, None] / 10000.0 ** (np.arange(0, hidden, 2) / hidden)
        places = np.stack([np.sin(angles), np.cos(angles)], 2).reshape(1, -1, hidden)
        table = net.add("MatMul", [net.constant(places), net.normal((hidden, hidden), hidden, 1.0)])
        own = [net.linear(data, hidden, hidden) for _ in range(3)]
        query = net.reshape(own[0], 1, size, heads, each)
        biases = [net.constant(net.rng.normal(0.0, 0.1, (heads, each))) for _ in range(2)]
        content, place = (net.transpose(net.add("Add", [query, bias]), 0, 2, 1, 3) for bias in biases)
        scores = net.add("MatMul", [content, in_heads(own[1], 0, 2, 3, 1)])
        scores = net.add("Add", [scores, shifted(net.add("MatMul", [place, in_heads(table, 0, 2, 3, 1)]))])
        weights = net.add("Softmax", [net.add("Div", [scores, net.constant(np.sqrt(each))])], axis=-1)
        context = net.add("MatMul", [weights, in_heads(own[2], 0, 2, 1, 3)])
        return net.linear(net.reshape(net.transpose(context, 0, 2, 1, 3), 1, size, hidden), hidden, hidden)

    def convolved(data: str) -> str:
        """A gated pointwise convolution, a depthwise one over 31 frames, and a pointwise one."""
        data = net.transpose(data, 0, 2, 1)
        net.channels[data] = hidden
        wide = net.window(data, 2 * hidden, (1,), (1,))
        parts = net.several("Split", [wide, net.constant([hidden] * 2, "int64")], 2, hidden, axis=1)
        data = net.add("Mul", [parts[0], net.add("Sigmoid", [parts[1]])])
        data = net.silu(net.batch_norm(net.window(data, hidden, (31,), (1,), (15,), hidden, bias=False)))
        return net.transpose(net.window(data, hidden, (1,), (1,)), 0, 2, 1)

    data = forward(net.input(1, size, hidden))
    data = net.add("Add", [data, seen(net.layer_norm(data, hidden))])
    data = net.add("Add", [data, convolved(net.layer_norm(data, hidden))])
    return net.layer_norm(forward(data), hidden)


def vad(net: Network, size: int = 512) -> tuple[str, ...]:
    """A streaming detector of voices in the manner of Silero's: `size` samples, and the states of two LSTMs.

    A filter bank with padding by reflection, its magnitudes, strided convolutions, the LSTMs, one number in
    0..1. The states come in and go out: the caller hands them on to the next call.
    """
    hidden, bank = 64, 129
    sound = net.input(1, size, name="sound")
    states = [net.input(2, 1, hidden, name=name) for name in ("hidden", "cell")]
    data = net.add("Unsqueeze", [sound, net.constant([1], "int64")], 1)
    data = net.add("Pad", [data, net.constant([0, 0, 96, 0, 0, 96], "int64")], 1, mode="reflect")
    data = net.window(data, 2 * bank, (256,), (64,), bias=False)
    parts = net.several("Split", [data, net.constant([bank, bank], "int64")], 2, bank, axis=1)
    squares = [net.add("Mul", [part, part]) for part in parts]
    data = net.add("Sqrt", [net.add("Add", squares)])
    for co, stride in ((32, 1), (hidden, 2), (hidden, 2)):
        data = net.add("Relu", [net.window(data, co, (3,), (stride,), (1,))])
    data = net.transpose(data, 2, 0, 1)
    given = [net.several("Split", [state, net.constant([1, 1], "int64")], 2, axis=0) for state in states]
    left: list[list[str]] = []
    for layer in range(2):
        data, *last = net.recurrent("LSTM", data, hidden, hidden, *(each[layer] for each in given))
        left.append(last)
    data = net.transpose(net.add("Relu", [data]), 1, 2, 0)
    net.channels[data] = hidden
    voice = net.add("Sigmoid", [net.window(data, 1, (1,), (1,))])
    mean = net.add("ReduceMean", [voice], axes=[1, 2], keepdims=0)
    return mean, *(net.add("Concat", list(each), axis=0) for each in zip(*left, strict=True))
