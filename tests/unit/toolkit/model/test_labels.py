"""Short names of operators: what they compute, and where in the network."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.networks import write
from cross.expression.families.conv import conv2d, dense_conv, depthwise_conv, grouped_conv
from cross.expression.families.data_movement import concat
from cross.expression.families.dense import batch_matmul, dense
from cross.expression.families.pool import pool
from cross.expression.families.window import Window
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import Tensor, placeholder
from cross.expression.rewrites.joined_dimensions import with_joined_dimensions
from toolkit.model.distinct import distinct_operators
from toolkit.model.labels import PLACE_LIMIT, short_name, short_places
from toolkit.model.load import load_model

PADDED = Window(strides=(2, 2), pads=(1, 1, 1, 1))


def of(name: str, output: Tensor, *inputs: Tensor) -> str:
    return short_name(Operator(name, inputs, output, frozenset({1}) if len(inputs) > 1 else frozenset()))


def made(*shape: int) -> Tensor:
    return placeholder(shape, f"t{len(shape)}")


def test_windows_name_kernel_stride_image_and_channels() -> None:
    data, weight = made(1, 112, 112, 64), placeholder((3, 3, 64, 128), "w")
    assert of("conv", conv2d(data, weight, PADDED), data, weight) == "conv 3x3 s2 112x112 64->128"
    window = Window(strides=(1, 2), dilations=(2, 2))
    assert of("conv", conv2d(data, weight, window), data, weight) == "conv 3x3 s1x2 d2 112x112 64->128"
    single = placeholder((1, 1, 64, 8), "w")
    assert of("conv", conv2d(data, single, Window()), data, single) == "conv 1x1 112x112 64->8"
    depth = placeholder((5, 5, 64), "w")
    assert of("conv", depthwise_conv(data, depth, Window()), data, depth) == "conv 5x5 112x112 64->64 g64"
    assert of("maxpool", pool(data, (3, 3), PADDED, "max"), data) == "maxpool 3x3 s2 112x112 64"


def test_a_convolution_with_joined_rows_names_its_pixels() -> None:
    data, weight = made(1, 14, 14, 64), placeholder((1, 1, 64, 8), "w")
    operator = Operator("conv", (data, weight), conv2d(data, weight, Window()), frozenset({1}))
    assert short_name(with_joined_dimensions(operator)) == "conv 1x1 196 64->8"
    data, weight = made(1, 14, 14, 4, 16), placeholder((4, 1, 1, 16, 8), "w")
    operator = Operator("conv", (data, weight), grouped_conv(data, weight, Window()), frozenset({1}))
    assert short_name(with_joined_dimensions(operator)) == "conv 1x1 196 64->32 g4"


def test_groups_and_other_ranks() -> None:
    data, weight = made(1, 8, 8, 4, 16), placeholder((4, 3, 3, 16, 8), "w")
    assert of("conv", grouped_conv(data, weight, Window()), data, weight) == "conv 3x3 8x8 64->32 g4"
    solid, cube = made(1, 8, 9, 10, 4), placeholder((3, 1, 2, 4, 6), "w")
    window = Window((1, 1, 1), (0,) * 6, (1, 1, 1))
    assert of("conv", dense_conv(solid, cube, window), solid, cube) == "conv 3x1x2 8x9x10 4->6"


def test_products_and_what_only_moves() -> None:
    left, right = made(12, 64), placeholder((64, 256), "w")
    assert of("matmul", dense(left, right), left, right) == "matmul 12x64x256"
    several, others = placeholder((4, 12, 64), "a"), placeholder((4, 64, 32), "b")
    assert of("matmul", batch_matmul(several, others), several, others) == "matmul 4 x 12x64x32"
    a, b = placeholder((1, 5, 5, 8), "a"), placeholder((1, 5, 5, 8), "b")
    joined = Operator("concat", (a, b), concat([a, b], 3))
    assert short_name(joined) == "concat 2 x 5x5x8 -> 5x5x16"


def test_long_names_of_nodes_are_shortened_and_stay_apart() -> None:
    head = "StatefulPartitionedCall/mobilenet/" + "inner/" * 60
    names = [f"{head}block_{number}/{'deep' * 5}/Conv2D;{head}other" for number in range(3)]
    places = short_places([*names, names[0]])
    assert all(place.split("#")[0].endswith("/Conv2D") for place in places)
    assert len(set(places)) == 4
    assert max(map(len, places)) <= PLACE_LIMIT + 2
    assert short_places(["x" * 400])[0].startswith("...xxx")
    assert short_places(["net/a/conv", "net/b/conv"]) == ["a/conv", "b/conv"]
    assert short_places(["conv"]) == ["conv"]


@pytest.mark.parametrize("network", ["mobilenet_v2", "bert"])
def test_the_operators_of_a_network_have_names_of_their_own(network: str, tmp_path: Path) -> None:
    write(network, tmp_path / "net.onnx", 0, 32)
    names = [item.name for item in distinct_operators(load_model(tmp_path / "net.onnx"))]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= 64
