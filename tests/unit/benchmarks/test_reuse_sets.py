"""The operator sets of ETO's Table 2: as many operators as the paper counts, each a real operator."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.harness.operators import Convolution, Product
from benchmarks.reuse.sets import NETWORKS, operator_set, union
from tests.unit.toolkit.reuse.operators import BERT_BASE, RESNET50
from toolkit.reuse.plan.bridges import one_hop_bridges

BOTH = " or cross-thread"
PAPER = {
    "resnet-50": {"conv2d": 20},
    "mobilenet-v2": {"conv2d": 20, "conv2d" + BOTH: 1, "depthwise": 10},
    "resnest-50": {"conv2d": 22, "conv2d" + BOTH: 4, "grouped": 7},
    "1d-ir": {"conv1d": 34, "conv1d" + BOTH: 1},  # the paper: 35 conv1d of a length that it does not give
    "r2plus1d-18": {"conv3d": 25},
    "dcgan": {"transposed": 5},
    "bert-base": {"batch_matmul": 5},
    "resnet-50-l": {"conv2d": 40},
    "bert-l": {"batch_matmul": 36},
}
LAYERS = {"resnet-50": 53, "mobilenet-v2": 53, "resnest-50": 3 + 16 * 5 + 4, "1d-ir": 244, "dcgan": 5}


@pytest.mark.parametrize("name", NETWORKS)
def test_counts_are_the_papers(name: str) -> None:
    found = operator_set(name)
    assert Counter(item.kind for item in found) == PAPER[name]
    assert len({item.operator.key for item in found}) == len(found)
    assert sum(item.count for item in found) == LAYERS.get(name, sum(item.count for item in found))


@pytest.mark.parametrize("name", NETWORKS)
def test_major_loops_do_the_work_of_the_operator(name: str) -> None:
    for item in operator_set(name):
        assert 2 * item.loops.size == item.operator.flops
        assert all(dimensions for dimensions in item.loops.inputs)


def test_resnet_50_and_bert_base_are_the_operators_of_the_paper_check() -> None:
    expected = Counter((*shape, 1)[:5] for shape in RESNET50)
    found: Counter[tuple[int, ...]] = Counter()
    for item in operator_set("resnet-50"):
        layer = item.layer
        assert isinstance(layer, Convolution)
        found[layer.outputs, item.loops.space[1], layer.inputs, layer.kernel[0], layer.strides[0]] += 1
    assert found == expected
    assert len(one_hop_bridges([item.loops.extents for item in operator_set("resnet-50")])) == 44
    products = [item.layer for item in operator_set("bert-base")]
    assert [
        (layer.batch, layer.rows, layer.columns, layer.inner)
        for layer in products
        if isinstance(layer, Product)
    ] == BERT_BASE


def test_the_networks_compute_what_is_published() -> None:
    """Multiply-adds of one run, the classifiers of the other CNNs than MobileNetV2 left out."""

    def macs(name: str) -> float:
        return sum(item.count * item.loops.size for item in operator_set(name))

    assert macs("resnet-50") == pytest.approx(3.86e9, rel=0.01)
    assert macs("mobilenet-v2") == pytest.approx(0.300e9, rel=0.01)
    assert macs("resnest-50") == pytest.approx(5.39e9, rel=0.01)
    assert macs("r2plus1d-18") == pytest.approx(40.52e9, rel=0.01)
    assert macs("bert-base") == 12 * 128 * (12 * 768**2 + 2 * 128 * 768)


def test_the_union_has_every_layer_once() -> None:
    found = union(tuple(NETWORKS))
    assert len(found) == len({item.layer for item in found}) == 195
