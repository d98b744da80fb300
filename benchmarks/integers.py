"""int8 convolutions of the suites conv and depthwise: our kernels, ONNX Runtime's, and inner loops of boards.

    python -m benchmarks.integers measure --only C2,D1 --threads 1,2 --drawn 16
    python -m benchmarks.integers loops --board rpi3b
    python -m benchmarks.integers networks --only bert --trials 32

measure: our default schedule and the fastest of some drawn ones, in turn with ONNX Runtime on the same
QLinearConv: as the file has it, and channels last (com.microsoft), which moves nothing around; and with
OpenVINO, in its faster layout, and LiteRT on the same as a QDQ file. All compute uint8 from uint8 with int8
weights, a scale and a bias a channel. Our outputs must be those of ONNX Runtime, other libraries' within two
steps. Without VNNI ONNX Runtime's usual sums of two products saturate at 16 bits, which is far off with
weights beyond +-63: then its way with uint8 weights counts, and "saturating" has the time of the usual one.
Ours of C1 reads its image padded and its three channels filled to four ahead of time, which takes a pass
where a network begins.
loops: products of bytes a cycle of the hottest inner loop by a model of the core, for weights within +-127
and within +-63; of a reduction that is written out whole, up to its last sum, without scaling.
networks: ResNet-50, MobileNet-v2 and a BERT encoder end to end beside ONNX Runtime, OpenVINO and LiteRT on
the same QDQ file, and beside our own floats (integer_networks.py).
steps: the results of their layers beside ONNX Runtime's (integer_steps.py).
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.command import Asked, finished, names, numbers, program, subcommands
from benchmarks.harness.place import HOST, board_with
from benchmarks.harness.text import aligned as columns
from benchmarks.integer_networks import FOLDER, measure_networks, print_networks, quantized_network
from benchmarks.integer_networks import NAMES as NETWORKS
from benchmarks.integer_rivals import NAMES as RIVALS
from benchmarks.integer_rivals import Rivals, running
from benchmarks.integer_steps import steps_table
from benchmarks.kernels.libraries.quantized_steps import moved_up
from benchmarks.kernels.loaded import LoadedCode, aligned
from benchmarks.kernels.rounds import Plan
from benchmarks.kernels.tune import Effort
from benchmarks.kernels.turn import Call, take_turn
from benchmarks.kernels.workloads import Array, Image, Workload, chosen
from benchmarks.networks.quantized import SCHEMES
from boards.target import Target
from cross.compile import Kernel, compile
from cross.expression.reference import evaluate
from cross.inspection.cpu_loops import LoopReport, inspect
from cross.loopnest.program import Programs
from cross.schedule.choose import space_of
from toolkit.model.graph import Graph, Group
from toolkit.model.load import adapted, load_model
from toolkit.model.reference import run_steps

SUITES = ("conv", "depthwise")
RECORDS, PEERS = FOLDER / "records.db", Path("build/peers")
FULL, NARROW = 127, 63
BATCH_S = 0.01
ROUNDS = 15
ZERO_POINT = 128
PRODUCT, LANES = re.compile(r"[su]mlal2?\t|[su]mull2?\t"), 8  # of bytes, on aarch64 without dot products
ADDITION = re.compile(r"[su]adalp\t")
OURS = ("default", "fastest")
ONNXRUNTIME = ("onnxruntime", "channels last")
SATURATING = "saturating"
WHO = (*OURS, *ONNXRUNTIME, *RIVALS, SATURATING)


def quantized(workload: Workload, bound: int, *, channels_last: bool, unsigned: bool = False) -> Any:
    """The workload as one QLinearConv (onnx.ModelProto) with seeded weights within +-bound, int8 or as
    `unsigned` ones 128 above them."""
    import onnx
    from onnx import helper, numpy_helper

    image, rng = workload.of, np.random.default_rng(1)
    assert isinstance(image, Image)
    shapes = [(s[0], *s[2:], s[1]) if channels_last else s for s in (image.shapes[0], image.shapes[2])]
    weight = rng.integers(-bound, bound, image.shapes[1], np.int8, endpoint=True)
    zero = np.zeros(image.outputs, np.int8)
    if unsigned:
        weight, zero = (moved_up(item) for item in (weight, zero))
    sums = 256 * bound * math.sqrt(weight[0].size) / 3  # what most sums stay within
    constants = {
        "x_scale": np.float32(0.02), "x_zero": np.uint8(ZERO_POINT), "w": weight,
        "w_scale": rng.uniform(0.005, 0.02, image.outputs).astype(np.float32),
        "w_zero": zero, "y_scale": np.float32(sums * 0.02 * 0.01 / 100),
        "y_zero": np.uint8(ZERO_POINT), "bias": rng.integers(-5000, 5000, image.outputs, np.int32),
    }  # fmt: skip
    attributes = {
        "pads": [image.pad] * 4,
        "strides": [image.stride] * 2,
        "group": image.inputs if image.family == "depthwise" else 1,
    }
    if channels_last:
        attributes["channels_last"] = 1
    inputs = ["x", "x_scale", "x_zero", "w", "w_scale", "w_zero", "y_scale", "y_zero", "bias"]
    domain = "com.microsoft" if channels_last else ""
    node = helper.make_node("QLinearConv", inputs, ["y"], domain=domain, **attributes)
    ends = [
        helper.make_tensor_value_info(name, onnx.TensorProto.UINT8, shape)
        for name, shape in zip("xy", shapes, strict=True)
    ]
    weights = [numpy_helper.from_array(np.asarray(data), name) for name, data in constants.items()]
    graph = helper.make_graph([node], workload.name, ends[:1], ends[1:], weights)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def as_qdq(workload: Workload, bound: int) -> Any:
    """`quantized` as a Conv between DequantizeLinear and QuantizeLinear, channels first."""
    from onnx import helper, numpy_helper

    model = quantized(workload, bound, channels_last=False)
    (conv,), (tensors) = model.graph.node, {item.name: item for item in model.graph.initializer}
    scale = numpy_helper.to_array(tensors["x_scale"]) * numpy_helper.to_array(tensors["w_scale"])
    zeros = np.zeros(scale.shape, np.int32)
    model.graph.initializer.extend(
        [numpy_helper.from_array(scale, "bias_scale"), numpy_helper.from_array(zeros, "bias_zero")]
    )
    made = [helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["xf"])]
    made += [
        helper.make_node("DequantizeLinear", [name, f"{name}_scale", f"{name}_zero"], [f"{name}f"], axis=0)
        for name in ("w", "bias")
    ]
    made += [
        helper.make_node("Conv", ["xf", "wf", "biasf"], ["yf"]),
        helper.make_node("QuantizeLinear", ["yf", "y_scale", "y_zero"], ["y"]),
    ]
    made[-2].attribute.extend(conv.attribute)
    model.graph.ClearField("node")
    model.graph.node.extend(made)
    return model


def convolution(workload: Workload, bound: int, target: Target) -> tuple[Graph, Group]:
    """The workload as a target computes it: the graph, and the operator that multiplies in it."""
    with tempfile.TemporaryDirectory(prefix="tfb-bench-") as folder:
        path = Path(folder, "model.onnx")
        path.write_bytes(quantized(workload, bound, channels_last=False).SerializeToString())
        graph = adapted(load_model(path), target)
    return graph, max(graph.groups, key=lambda group: group.operator.flops)


# ---------------------------------------------------------------------------------------------- measuring


@dataclass(frozen=True, slots=True)
class _Rounds:
    """Seconds of every round by who computed; `ours`: our columns, the default first."""

    seconds: dict[str, Array]

    def fastest(self, ours: bool) -> str:
        """Whose median is the least, among us or the others that are right."""
        names = [name for name in self.seconds if (name in OURS) == ours and name != SATURATING]
        return min(names, key=lambda name: float(np.median(self.seconds[name])))

    def cells(self) -> list[str]:
        """Milliseconds of everybody, ours over the fastest other with quartiles, and who that is."""
        best = self.fastest(ours=False)
        low, middle, high = np.quantile(
            self.seconds[best] / self.seconds[self.fastest(ours=True)], (0.25, 0.5, 0.75)
        )
        times = [f"{1e3 * np.median(self.seconds[who]):.3f}" if who in self.seconds else "-" for who in WHO]
        return [*times, f"{middle:.2f}", f"{low:.2f} to {high:.2f}", best]


def _measure(asked: Asked) -> None:
    import onnxruntime

    rows = [["", "", *(f"{who} ms" for who in WHO), "ratio", "quartiles", "over", "products/s"]]
    left_out: dict[str, str] = {}
    for threads in asked.threads:
        _, target = board_with(threads)
        with running(asked.peers, threads) as rivals:
            for workload in _workloads(asked):
                rounds = _rounds(workload, target, asked.drawn, onnxruntime, rivals)
                ours = float(np.median(rounds.seconds[rounds.fastest(ours=True)]))
                speed = workload.flops / 2 / ours / 1e9
                rows.append([workload.name, str(threads), *rounds.cells(), f"{speed:.1f} G"])
                print(" ".join(rows[-1]), flush=True)
            left_out |= rivals.left_out
    print("\n".join(columns(rows)))
    for name, why in left_out.items():
        print(f"not measured: {name}: {why}")
    ratios = [float(row[2 + len(WHO)]) for row in rows[1:]]
    print(f"geometric mean {math.exp(float(np.mean(np.log(ratios)))):.2f}, least {min(ratios):.2f}")


def _rounds(workload: Workload, target: Target, drawn: int, onnxruntime: Any, rivals: Rivals) -> _Rounds:
    """Our default and our fastest drawn schedule, and each library's fastest way, in turn.

    Raises RuntimeError where outputs differ.
    """
    image = workload.of
    assert isinstance(image, Image)
    data = np.random.default_rng(0).integers(0, 256, image.shapes[0], np.uint8)
    last = np.ascontiguousarray(data.transpose(0, 2, 3, 1))
    theirs = [
        (name, *_session(workload, target, onnxruntime, array, precise=precise))
        for precise in (True, False)
        for name, array in zip(ONNXRUNTIME, (data, last), strict=True)
    ]
    for _, call, _ in theirs:
        call()
    want = theirs[1][2]()
    first = np.ascontiguousarray(want.transpose(0, 3, 1, 2))
    with tempfile.TemporaryDirectory(prefix="tfb-bench-") as folder:
        others = rivals.open(workload, as_qdq(workload, FULL), data, first, Path(folder))
        # last: our pool pins this thread to a core, which threads and processes started later would inherit
        kernels, loaded = _kernels(workload, target, drawn, data)
        for (call, output), name in zip(kernels, ["default", *["drawn"] * len(kernels)], strict=False):
            call()
            if not np.array_equal(output().reshape(want.shape), want):
                raise RuntimeError(
                    f"{workload.name}: the {name} schedule's output differs from ONNX Runtime's"
                )
        fastest = min((call for call, _ in kernels), key=lambda call: _seconds(call, 3))
        turns: list[tuple[str, Callable[[], float]]] = [
            (name, partial(_batch, call)) for name, call in zip(OURS, (kernels[0][0], fastest), strict=True)
        ]
        for (name, call, output), right in zip(theirs, (first, want) * 2, strict=True):
            turns.append((name if np.array_equal(output(), right) else SATURATING, partial(_batch, call)))
        turns += [(other.library, partial(other.seconds, BATCH_S)) for other in others]
        rounds = np.array([[seconds() for _, seconds in turns] for _ in range(ROUNDS)])
    loaded.close()
    found: dict[str, Array] = {}
    for (name, _), column in zip(turns, rounds.T, strict=True):
        if name not in found or np.median(column) < np.median(found[name]):
            found[name] = column
    return _Rounds(found)


def _kernels(
    workload: Workload, target: Target, drawn: int, data: Array
) -> tuple[list[tuple[Call, Any]], LoadedCode]:
    """The default schedule and drawn ones on the data, each with what reads its output."""
    graph, group = convolution(workload, FULL, target)
    space = space_of(group.operator, target)
    programs = Programs(space)
    found = [space.default(), *map(space.configuration, space.sample(np.random.default_rng(0), drawn))]
    artifact = compile([(f"k{place}", programs.nest(item)) for place, item in enumerate(found)], target)
    loaded = LoadedCode(artifact.code, target.cores)
    inputs = [_operand(graph, name, data) for name in group.inputs]
    return [_prepared(kernel, loaded, inputs) for kernel in artifact.kernels], loaded


def _operand(graph: Graph, name: str, data: Array) -> Array:
    """A weight, or the data as what comes before the convolution lays it out, as numpy computes that."""
    stored, root = graph.values[name].data, graph.root(name)
    if stored is not None:
        return np.asarray(stored)
    steps = run_steps(graph, {graph.inputs[0]: data}, evaluate)
    return data if root in graph.inputs else next(array for made, array in steps if made == root)


def _prepared(kernel: Kernel, loaded: LoadedCode, inputs: Sequence[Array]) -> tuple[Call, Any]:
    *arguments, result = kernel.arguments
    arrays = []
    for argument, array in zip(arguments, inputs, strict=True):
        packed = array if argument.packing is None else argument.packing.apply(array)
        arrays.append(aligned(packed))
    output = aligned(np.zeros(result.shape, result.dtype))
    return loaded.kernel(kernel.symbol, [*arrays, output], kernel.workspace_bytes), lambda: output


def _session(
    workload: Workload, target: Target, onnxruntime: Any, data: Array, *, precise: bool
) -> tuple[Call, Any]:
    """ONNX Runtime on the data, and what reads its output. `precise`: with weights as uint8, whose sums fit;
    it makes them of int8 itself on request, but not of its operators with channels last."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = target.threads, 1
    image = workload.of
    assert isinstance(image, Image)
    model = quantized(workload, FULL, channels_last=data.shape != image.shapes[0], unsigned=precise)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(data))
    (result,) = session.get_outputs()
    output = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(result.shape, np.uint8))
    binding.bind_ortvalue_output("y", output)

    def call() -> int:
        session.run_with_iobinding(binding)
        return 0

    return call, output.numpy


def _batch(call: Call) -> float:
    """Seconds of a call in a turn like that of the libraries with processes of their own."""
    turn = take_turn(call, batches=1, batch_s=BATCH_S)
    return min([*turn.kept, *turn.disturbed])


def _seconds(call: Call, batches: int) -> float:
    return min(_batch(call) for _ in range(batches))


def _networks(asked: Asked) -> None:
    effort, plan = Effort(asked.trials, None, 0), Plan(asked.rounds)
    for threads in asked.threads:
        names = asked.only or NETWORKS
        rows = measure_networks(names, threads, effort, plan, asked.peers, asked.records, asked.form)
        print_networks(rows)


def _steps(asked: Asked) -> None:
    for name in asked.only or NETWORKS:
        print(f"{name}, steps between our results and those of ONNX Runtime:")
        print(steps_table(quantized_network(name, FOLDER)[1], asked.seed), flush=True)


# -------------------------------------------------------------------------------------------------- loops


def _loops(asked: Asked) -> None:
    _, target = board_with(1, asked.board)
    print(f"{asked.board} ({target.cpu}), products of bytes a cycle of the hottest loop by a model:")
    rows = [["", "", f"+-{FULL}", "spills", f"+-{NARROW}", "spills", ""]]
    for workload in _workloads(asked):
        found = [rate_and_spills(workload, bound, target) for bound in (FULL, NARROW)]
        cells = [["-", "-"] if item is None else [f"{item[0]:.2f}", str(item[1])] for item in found]
        rows.append([workload.name, workload.text, *cells[0], *cells[1], ""])
    print("\n".join(columns(rows)))


def rate_and_spills(workload: Workload, bound: int, target: Target) -> tuple[float, int] | None:
    """Products of bytes a cycle of the hottest loop, by the model of the core, and the registers it spills;
    None without a model of it."""
    space = space_of(convolution(workload, bound, target)[1].operator, target)
    hot = inspect("kernel", Programs(space).nest(space.default()), target).hot
    if hot is None or not hot.predictions or not hot.flops:
        return None
    products, cycles = _products(hot)
    return products / cycles, hot.spills


def _products(hot: LoopReport) -> tuple[float, float]:
    """Products of bytes of a loop, and their cycles.

    Where pairs of products are added to the sums of a reduction that is written out whole, the loop also
    scales and stores results: what follows the last addition does not count.
    """
    additions = [place for place, line in enumerate(hot.lines) if ADDITION.match(line)]
    if not additions or not hot.store_bytes:
        return hot.flops / 2, hot.predictions[0].cycles
    until = additions[-1] + 1
    return LANES * sum(PRODUCT.match(line) is not None for line in hot.lines), sum(hot.line_cycles[:until])


def _workloads(asked: Asked) -> list[Workload]:
    return [item for item in chosen(asked.only or SUITES) if item.suite in SUITES]


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = program("integers", __doc__)
    add = subcommands(parser)
    measuring = add("measure", _measure, "our kernels and ONNX Runtime's in turn")
    measuring.add_argument("--threads", type=numbers, default=[1], metavar="COUNTS", help="1, 2 or 1,2")
    measuring.add_argument("--drawn", type=int, default=16, help="random schedules of ours (default 16)")
    loops = add("loops", _loops, "inner loops as machine code, by a model of the core")
    loops.add_argument("--board", default=HOST, help=f"its name or file (default {HOST})")
    networks = add("networks", _networks, "whole networks beside other libraries and our own floats")
    networks.add_argument("--threads", type=numbers, default=[1], metavar="COUNTS", help="1, 2 or 1,2")
    networks.add_argument("--trials", type=int, default=16, help="at most, of an operator (default 16)")
    networks.add_argument("--form", choices=SCHEMES, default="onnxruntime", help="who wrote the files")
    networks.add_argument("--rounds", type=int, default=Plan().rounds)
    networks.add_argument("--records", type=Path, default=RECORDS, help=f"tuning records (default {RECORDS})")
    for command in (measuring, networks):
        command.add_argument(
            "--peers", type=Path, default=PEERS, help=f"the libraries' environments (default {PEERS})"
        )
    steps = add("steps", _steps, "results of whole networks layer by layer beside ONNX Runtime's")
    steps.add_argument("--seed", type=int, default=0, help="of the input")
    for command in (measuring, loops, networks, steps):
        command.add_argument(
            "--only", type=names, default=[], metavar="NAMES", help="C1,D3,conv (default: all)"
        )
    return finished(parser, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
