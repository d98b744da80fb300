"""If, Loop and Scan against onnxruntime: by numpy, and in the shared object of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from tests.bundles import host_target
from tests.model_libraries import kernels, run_library
from tests.onnx_models import onnxruntime_values, save
from toolkit.bundle.assemble import assemble
from toolkit.errors import ModelError
from toolkit.model.graph import Repeat
from toolkit.model.load import load_model
from toolkit.model.memory import check_memory, plan_memory
from toolkit.model.reference import cut, run_reference

Array = NDArray[Any]

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
# by name: the text of a model, and its inputs
CHOICE = """m (float[3, 4] x, bool c) => (float[3, 4] y, float[3, 4] z) {
    a = Relu (x)
    y, t = If (c) <then_branch = one () => (float[3, 4] p, float[3, 4] q) { p = Mul (a, a) q = Identity (a) },
        else_branch = two () => (float[3, 4] r, float[3, 4] s) { r = Identity (x) s = Exp (x) }>
    z = Add (t, x)
}"""
WHILE = """m (float[4] x, float limit) => (float[4] y, float n) {
    most = Constant <value = int64 {20}> ()
    total = ReduceSum <keepdims = 0> (x)
    begin = Less (total, limit)
    zero = Constant <value = float {0.0}> ()
    y, n = Loop (most, begin, x, zero) <body = b (int64 i, bool go, float[4] s, float k) =>
        (bool next, float[4] s2, float k2) {
        f = Constant <value = float {1.5}> ()
        s1 = Mul (s, f)
        s2 = Add (s1, x)
        sum = ReduceSum <keepdims = 0> (s2)
        next = Less (sum, limit)
        j = Cast <to = 1> (i)
        k2 = Add (k, j)
    }>
}"""
NESTED = """m (float[2, 4] x, bool c) => (float[2, 4] y, float[3, 2, 4] all) {
    three = Constant <value = int64 {3}> ()
    go = Constant <value = bool {1}> ()
    y, all = Loop (three, go, x) <body = outer (int64 i, bool g, float[2, 4] s) =>
        (bool g2, float[2, 4] s2, float[2, 4] kept) {
        g2 = Identity (g)
        two = Constant <value = int64 {2}> ()
        t = Loop (two, g, s) <body = inner (int64 j, bool h, float[2, 4] u) => (bool h2, float[2, 4] u2) {
            h2 = Identity (h)
            v = Add (u, x)
            u2 = If (c) <then_branch = p () => (float[2, 4] w) { w = Add (v, s) },
                else_branch = q () => (float[2, 4] w2) { w2 = Tanh (v) }>
        }>
        s2 = Identity (t)
        kept = Mul (t, s)
    }>
}"""
SWAP = """m (float[16] x, float[16] z) => (float[16] a, float[16] b) {
    five = Constant <value = int64 {5}> ()
    go = Constant <value = bool {1}> ()
    a, b = Loop (five, go, x, z) <body = g (int64 i, bool c, float[16] p, float[16] q) =>
        (bool c2, float[16] p2, float[16] q2) { c2 = Identity (c) p2 = Identity (q) q2 = Sub (p, q) }>
}"""
SCAN = """m (float[4] first, float[4, 5] u, float[5, 3] v) => (float[4] last, float[4, 5] s, float[5, 3] t) {
    last, s, t = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [0, 1],
        scan_output_axes = [1, 0], scan_output_directions = [1, 0],
        body = g (float[4] state, float[4] e, float[3] f) => (float[4] state2, float[4] o, float[3] w) {
        state2 = Add (state, e) o = Mul (state, e) w = Neg (f) }>
        (first, u, v)
}"""

STACKED = """m (int64 most, float[2, 4] x, float limit) => (float[2, 4] y, int64 n, float[M, 2, 4] all) {
    eight = Constant <value = int64 {8}> ()
    zero = Constant <value = int64 {0}> ()
    runs = Min (most, eight)
    go = Constant <value = bool {1}> ()
    y, n, all = Loop (eight, go, x, zero) <body = b (int64 i, bool g, float[2, 4] s, int64 k) =>
        (bool g2, float[2, 4] s2, int64 k2, float[2, 4] kept) {
        s2 = Add (s, x)
        sum = ReduceSum <keepdims = 0> (s2)
        small = Less (sum, limit)
        more = Less (i, runs)
        g2 = And (small, more)
        k2 = Add (i, k)
        kept = Sub (s2, x)
    }>
}"""
COUNTED = """m (int64 most, float[4] x, bool go) => (float[4] y) {
    y = Loop (most, go, x) <body = b (int64 i, bool g, float[4] s) => (bool g2, float[4] s2) {
        g2 = Identity (g)
        j = Cast <to = 1> (i)
        t = Mul (s, j)
        s2 = Add (t, x)
    }>
}"""
# as TensorFlow writes a loop over a sequence: what is carried says when it ends
STEPS = """m (float[5, 4] x, float[4] first) => (float[4] y, float[5, 4] all, int32 n) {
    size = Shape <start = 0, end = 1> (x)
    steps = Cast <to = 6> (size)
    most = Squeeze (steps)
    zero = Constant <value = int32 {0}> ()
    go = Less (zero, most)
    n, y, same, all = Loop (, go, zero, first, most) <body = b
        (int64 i, bool g, int32 t, float[4] s, int32 m) =>
        (bool g2, int32 t2, float[4] s2, int32 m2, float[4] kept) {
        one = Constant <value = int32 {1}> ()
        t2 = Add (t, one)
        row = Gather (x, t)
        sum = Add (row, s)
        s2 = Tanh (sum)
        kept = Identity (s2)
        a = Cast <to = 1> (t2)
        b2 = Cast <to = 1> (m)
        g2 = Less (a, b2)
        m2 = Identity (m)
    }>
}"""
# weights are carried from run to run as they are, once through a copy, and become another carried value
PASSED_ON = """m (float[4] x, float[4, 4] w, float[4] b) =>
    (float[4] y, float[4] last, float[4, 4] w2, float[3, 4] all) {
    three = Constant <value = int64 {3}> ()
    go = Constant <value = bool {1}> ()
    y, w2, same, last, all = Loop (three, go, x, w, b, x) <body = g
        (int64 i, bool c, float[4] s, float[4, 4] u, float[4] v, float[4] t) =>
        (bool c2, float[4] s2, float[4, 4] u, float[4] v2, float[4] v, float[4] kept) {
        c2 = Identity (c)
        p = MatMul (s, u)
        q = Add (p, t)
        s2 = Tanh (q)
        v2 = Identity (v)
        kept = Add (s2, v)
    }>
}"""
# each run reads as many elements as its number says, and the carried value grows
GROWING = """m (float[6] x) => (float[N] y, float[3, 2] pairs) {
    three = Constant <value = int64 {3}> ()
    go = Constant <value = bool {1}> ()
    none = Constant <value = float[0] {}> ()
    y, pairs = Loop (three, go, none) <body = b (int64 i, bool g, float[K] s) =>
        (bool g2, float[L] s2, float[2] pair) {
        g2 = Identity (g)
        first = Constant <value = int64[1] {0}> ()
        one = Constant <value = int64 {1}> ()
        two = Constant <value = int64[1] {2}> ()
        j = Add (i, one)
        end = Unsqueeze (j, first)
        part = Slice (x, first, end, first)
        odd = Mod (i, one)
        is = Equal (i, one)
        s1 = If (is) <then_branch = t () => (float[A] p) { p = Neg (part) },
            else_branch = e () => (float[B] q) { q = Identity (part) }>
        s2 = Concat <axis = 0> (s, s1)
        k = Add (end, two)
        pair = Slice (x, end, k, first)
    }>
}"""


def random(*shape: int) -> Array:
    return np.random.default_rng(5).uniform(-1.0, 1.0, shape).astype(np.float32)


CASES: dict[str, tuple[str, dict[str, Array]]] = {
    "then": (CHOICE, {"x": random(3, 4), "c": np.array(True)}),
    "else": (CHOICE, {"x": random(3, 4), "c": np.array(False)}),
    "while": (WHILE, {"x": np.abs(random(4)), "limit": np.array(40.0, np.float32)}),
    "while-never": (WHILE, {"x": np.abs(random(4)), "limit": np.array(0.0, np.float32)}),
    "while-to-the-end": (WHILE, {"x": np.abs(random(4)), "limit": np.array(1e30, np.float32)}),
    "nested-then": (NESTED, {"x": random(2, 4), "c": np.array(True)}),
    "nested-else": (NESTED, {"x": random(2, 4), "c": np.array(False)}),
    "swap": (SWAP, {"x": random(16), "z": random(16)[::-1]}),
    "stacked-by-sum": (
        STACKED,
        {"most": np.array(9), "x": np.abs(random(2, 4)), "limit": np.array(12, np.float32)},
    ),
    "stacked-by-number": (
        STACKED,
        {"most": np.array(2), "x": random(2, 4), "limit": np.array(1e9, np.float32)},
    ),
    "stacked-to-the-end": (
        STACKED,
        {"most": np.array(9), "x": random(2, 4), "limit": np.array(1e9, np.float32)},
    ),
    "stacked-within-a-bound": (
        STACKED.replace("(eight, go,", "(runs, go,"),
        {"most": np.array(3), "x": random(2, 4), "limit": np.array(1e9, np.float32)},
    ),
    "counted": (COUNTED, {"most": np.array(3), "x": random(4), "go": np.array(True)}),
    "counted-to-none": (COUNTED, {"most": np.array(0), "x": random(4), "go": np.array(True)}),
    "counted-never": (COUNTED, {"most": np.array(3), "x": random(4), "go": np.array(False)}),
    "steps": (STEPS, {"x": random(5, 4), "first": random(4)}),
    "passed-on": (PASSED_ON, {"x": random(4), "w": random(4, 4), "b": random(4)}),
    "growing": (GROWING, {"x": random(6)}),
    "scan": (SCAN, {"first": random(4), "u": random(4, 5), "v": random(5, 3)}),
}


def parsed(text: str) -> Any:
    return onnx.shape_inference.infer_shapes(onnx.parser.parse_model(HEADER + text))


@pytest.mark.parametrize("name", CASES)
def test_control_equals_onnxruntime(name: str, tmp_path: Path) -> None:
    text, inputs = CASES[name]
    graph = load_model(save(tmp_path, parsed(text)))
    inputs = {name: np.asarray(value) for name, value in inputs.items()}
    got = cut(graph, run_reference(graph, inputs))
    want = onnxruntime_values(parsed(text), inputs, list(got))
    for output in got:
        assert got[output].shape == want[output].shape
        np.testing.assert_allclose(got[output], want[output], rtol=1e-5, atol=1e-6, err_msg=output)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [CHOICE, WHILE, NESTED, SWAP, SCAN, STACKED, COUNTED, STEPS, PASSED_ON],
    ids=["if", "while", "nested", "swap", "scan", "stacked", "counted", "steps", "passed-on"],
)
def test_the_library_loops_and_chooses(text: str, tmp_path: Path) -> None:
    graph = load_model(save(tmp_path, parsed(text)))
    plan = assemble(graph, kernels(graph), host_target())
    for number, inputs in enumerate(given for model, given in CASES.values() if model == text):
        folder = tmp_path / str(number)
        folder.mkdir()
        got, want = (
            cut(graph, found) for found in (run_library(plan, inputs, folder), run_reference(graph, inputs))
        )
        for output in got:
            np.testing.assert_allclose(got[output], want[output], rtol=1e-5, atol=1e-6, err_msg=output)


def test_what_a_loop_passes_on_is_read_from_around_it(tmp_path: Path) -> None:
    text = PASSED_ON.replace("float[4, 4] w, ", "").replace(
        "three =", f"w = Constant <value = float[4, 4] {{{', '.join(map(str, range(16)))}}}> ()\n    three ="
    )
    graph = load_model(save(tmp_path, parsed(text)))
    (repeat,) = [node.control for node in graph.nodes if isinstance(node.control, Repeat)]
    shapes = [repeat.body.values[name].shape for name in repeat.body.inputs]
    assert (4, 4) not in shapes and repeat.carried == 3  # the number of the run, s and t


def test_an_empty_state_that_is_passed_on_is_no_state(tmp_path: Path) -> None:
    text = """m (float[2, 4] x) => (float[2, 4] y) {
        nothing = Constant <value = float[0] {}> ()
        two = Constant <value = int64 {2}> ()
        none, y = Loop (two, , nothing, x) <body = b (int64 n, bool go, float[0] s, float[2, 4] t) =>
            (bool again, float[0] s, float[2, 4] u) { again = Identity (go) u = Neg (t) }>
    }"""
    graph = load_model(save(tmp_path, onnx.parser.parse_model(HEADER + text)))
    x = random(2, 4)
    np.testing.assert_array_equal(run_reference(graph, {"x": x})["y"], x)


def test_a_known_condition_leaves_one_branch(tmp_path: Path) -> None:
    text = CHOICE.replace(", bool c)", ")").replace(
        "a = Relu", "c = Constant <value = bool {0}> ()\n a = Relu"
    )
    graph = load_model(save(tmp_path, parsed(text)))
    assert all(node.control is None for node in graph.nodes)
    x = random(3, 4)
    np.testing.assert_allclose(run_reference(graph, {"x": x})["z"], np.exp(x) + x, rtol=1e-6)


@pytest.mark.parametrize(
    ("old", "new", "runs", "conditional"),
    [
        ("", "", 5, False),
        ("(, go,", "(eight, go,", 5, False),
        ("g2 = Less (a, b2)", "t3 = Mul (a, a) g2 = Less (t3, b2)", 3, False),  # 1, 4, 9
        ("(x)\n    steps", "(x)\n    size1 = Identity (size)\n    steps", 5, False),
        ("(, go,", "(three, go,", 3, False),
        ("g2 = Less (a, b2)", "sums = ReduceSum <keepdims = 0> (s2) g2 = Less (sums, b2)", 8, True),
    ],
)
def test_a_loop_that_constants_end_runs_just_so_often(
    old: str, new: str, runs: int, conditional: bool, tmp_path: Path
) -> None:
    limits = "eight = Constant <value = int64 {8}> () three = Constant <value = int64 {3}> ()\n    size ="
    text = STEPS.replace("size =", limits).replace(old, new)
    if conditional:
        text = text.replace("(, go,", "(eight, go,")
    graph = load_model(
        save(tmp_path, onnx.parser.parse_model(HEADER + text.replace("float[5, 4] all", "float[N, 4] all")))
    )
    (repeat,) = [node.control for node in graph.nodes if node.control is not None]
    assert isinstance(repeat, Repeat) and (repeat.count, repeat.conditional) == (runs, conditional)


@pytest.mark.parametrize(
    ("text", "old", "new", "words"),
    [
        (STACKED, "(eight, go,", "(most, go,", "it stacks as many slices as data say"),
        (WHILE, "s2 = Add (s1, x)", "s2 = Concat <axis = 0> (s1, x)", "expected sizes that do not change"),
    ],
)
def test_what_depends_on_data_is_refused(text: str, old: str, new: str, words: str, tmp_path: Path) -> None:
    text = text.replace(old, new).replace("float[4] s2", "float[N] s2").replace("float[4] y", "float[N] y")
    with pytest.raises(ModelError, match=words):
        load_model(save(tmp_path, onnx.parser.parse_model(HEADER + text)))


def test_memory_holds_the_weights_of_branches(tmp_path: Path) -> None:
    weight = ", ".join(map(str, range(12)))
    branch = f"w = Constant <value = float[3, 4] {{{weight}}}> () p = Mul (a, w)"
    graph = load_model(save(tmp_path, parsed(CHOICE.replace("p = Mul (a, a)", branch))))
    arena_bytes, own_bytes = plan_memory(graph).arena_bytes, 3 * 48 + 1  # x, y and z; c
    check_memory(graph, arena_bytes + own_bytes + 48, "small")
    with pytest.raises(ModelError, match="the memory of board small"):
        check_memory(graph, arena_bytes + own_bytes + 47, "small")
