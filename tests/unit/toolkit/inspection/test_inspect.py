"""`toolkit inspect`: kernels of a records store and of a bundle, from the schedule to the machine code."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from msgspec.structs import asdict, replace

from boards.board import load
from cross.expression import Operator, placeholder
from cross.expression.families.conv import conv2d
from cross.expression.families.window import Window
from cross.expression.language.description import to_json
from cross.inspection import cortex_a53
from cross.loopnest import Programs
from cross.schedule.choose import space_of
from tests.bundles import small_model, write_bundle
from tests.quick import others_slow
from toolkit.bundle.sign import open_key
from toolkit.cli.main import main
from toolkit.errors import InputError
from toolkit.inspection.inspect import inspected, inspection_text, roof_of
from toolkit.inspection.kernels import chosen_kernel, found_kernels
from toolkit.inspection.words import schedule_words
from toolkit.measure.peak import load_board
from toolkit.records import OperatorLine, Records, TuningRecord
from toolkit.tuning.on_board import record_key

SECONDS = 2e-3


def conv(outputs: int) -> Operator:
    data, weight = placeholder((1, 14, 14, 16), "data"), placeholder((3, 3, 16, outputs), "weight")
    output = conv2d(data, weight, Window(pads=(1, 1, 1, 1)), name="conv")
    return Operator("conv", (data, weight), output, constants=frozenset({1}))


def store(path: Path, board_name: str, *operators: Operator, winograd: bool = True) -> Path:
    """Records of the untuned schedule of each operator, as if it had been measured on a board."""
    board = load(board_name)
    with Records(path) as records:
        for operator in operators:
            space = space_of(operator, board.target(), winograd=winograd)
            records.describe(OperatorLine(operator_key=operator.key, description=to_json(operator)))
            described = space.describe(space.default())
            key = asdict(record_key(space, board))
            records.add(
                TuningRecord(
                    **key, configuration=described, seconds=(SECONDS,), timestamp_s=0.0, seed=0, trial=0
                )
            )
    return path


@pytest.mark.parametrize("winograd", others_slow([True, False], True))
def test_a_record_is_told_with_the_cycles_of_its_hot_loop(winograd: bool, tmp_path: Path) -> None:
    board = load_board("rpi3b", to_run=False)
    path = store(tmp_path / "r.db", "rpi3b", conv(32), conv(64), winograd=winograd)
    found = found_kernels(path, path, (), board=board)
    assert {item.name for item in found} == {f"conv 3x3 14x14 16->{outputs}" for outputs in (32, 64)}
    kernel = next(item for item in found if item.operator.output.shape[-1] == 64)
    text = inspection_text(inspected(kernel))
    flops = 2 * 14 * 14 * 64 * 16 * 9
    assert f"{flops / SECONDS / 1e9:.1f} GFLOP/s of a peak of 38.4 GFLOP/s (estimated)" in text
    for part in (
        "shared out between the threads",
        "in one vector",
        "parallel conv",
        "define i32 @kernel(ptr",
        f"by {cortex_a53.NAME}",
    ):
        assert part in text, part
    lines = text[text.index("one iteration of that loop, with the cycles of each line") :].splitlines()[1:]
    listed = [line.split(maxsplit=1) for line in lines[: lines.index("")]]
    assert sum("fmla" in code for _, code in listed) > 8
    hot = inspected(kernel).code.hot
    assert sum(float(cycles) for cycles, _ in listed) == pytest.approx(hot.predictions[0].cycles, rel=0.01)
    assert "no other configuration is recorded" in text
    short = inspection_text(inspected(kernel), ["schedule"])
    assert "define i32" not in short and "in one vector" in short


def test_the_kernels_of_a_bundle_are_those_that_it_was_packed_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    operator, board = conv(32), load("host")
    records = store(tmp_path / "r.db", "host", operator)
    space = space_of(operator, board.target())
    model = small_model(target=board.target())
    made = replace(
        model.plan.kernels[0].provenance,
        operator_key=operator.key,
        configuration=space.describe(space.default()),
    )
    symbols = [kernel.provenance.symbol for kernel in model.plan.kernels]
    kernels = tuple(
        replace(kernel, provenance=replace(made, symbol=symbol))
        for kernel, symbol in zip(model.plan.kernels, symbols, strict=True)
    )
    model = dataclasses.replace(model, plan=replace(model.plan, kernels=kernels))
    bundle = write_bundle(tmp_path, open_key(tmp_path / "home/.config/tune-for-board/signing_key"), model)

    def invoke(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["inspect", str(bundle), "--records", str(records), *arguments])
        return result.exit_code, result.output

    code, said = invoke("--json")
    assert code == 0
    content = json.loads(said)
    assert (content["operator_key"], content["layers"]) == (operator.key, ["k_scale"])
    assert content["nest"].startswith("kernel conv") and content["hot_loop"]
    assert 0 < content["roof"]["share"]
    code, said = invoke("--target", "gpu")
    assert code == 2 and "has no variant for target 'gpu': expected cpu" in said
    result = CliRunner().invoke(main, ["inspect", str(records)])
    assert result.exit_code == 2 and "holds records of any board: name one with --board" in result.output
    empty = store(tmp_path / "empty.db", "host")
    result = CliRunner().invoke(main, ["inspect", str(bundle), "--records", str(empty)])
    assert result.exit_code == 2 and "does not know the operator" in result.output


def test_a_gpu_kernel_is_told_by_its_launches(tmp_path: Path) -> None:
    board = load_board("rock960", to_run=False)
    path = store(tmp_path / "r.db", "rock960", conv(32))
    target = board.target(None)
    (kernel,) = found_kernels(path, path, (), board=board)
    assert kernel.target == target
    text = inspection_text(inspected(kernel))
    expected = "in blocks of threads" if target.kind != "cpu" else "shared out between the threads"
    assert expected in text


def test_one_kernel_is_named_by_its_number_its_layer_or_its_key(tmp_path: Path) -> None:
    path = store(tmp_path / "r.db", "rpi3b", conv(32), conv(64))
    found = found_kernels(path, path, (), board=load("rpi3b"))
    first = replace(found[0], layers=("stem",))
    both = (first, found[1])
    assert chosen_kernel(both, "2") is found[1]
    assert chosen_kernel((replace(first, layers=("a", "b")), found[1]), "slowest").layers == (
        "a",
        "b",
    )
    assert chosen_kernel(both, "stem") is first
    assert chosen_kernel(both, found[1].operator_key[:12]) is found[1]
    for wrong in ("", "3", "nothing"):
        with pytest.raises(InputError, match="expected a number from 1 to 2"):
            chosen_kernel(both, wrong)
    stale = replace(first, configuration={"no such knob": [1]}, space_key="")
    with pytest.raises(InputError, match="tune the operator again"):
        stale.programs()


def test_the_words_follow_the_loops() -> None:
    target = load("rpi3b").target()
    space = space_of(conv(32), target, winograd=False)
    nest = Programs(space).nest(space.default())
    words = "\n".join(schedule_words(nest))
    assert words.count("in one vector") >= 1
    assert "keep" in words and "in registers" in words
    assert "compute" in words


def test_the_lower_roof_holds() -> None:
    target = replace(load("rpi3b").target(), peak_gflops=10.0, bandwidth_gbs=1.0)
    operator = conv(32)
    moved = 4 * (14 * 14 * 16 + 9 * 16 * 32 + 14 * 14 * 32)
    arithmetic = roof_of(operator, target, 1e-2)
    assert (arithmetic.bound, arithmetic.measured) == ("the arithmetic", True)
    assert arithmetic.share == pytest.approx(operator.flops / 1e10 / 1e-2)
    slow = roof_of(operator, replace(target, bandwidth_gbs=1e-3), 1.0)
    assert slow.bound == "main memory" and slow.share == pytest.approx(moved / 1e6)
    assert np.isclose(slow.gflops, operator.flops / 1e9)


def test_the_nearest_alternatives_are_told_with_what_they_cost(tmp_path: Path) -> None:
    path = store(tmp_path / "r.db", "rpi3b", conv(32))
    (kernel,) = found_kernels(path, path, (), board=load("rpi3b"))
    space = space_of(kernel.operator, kernel.target)
    drawn = [space.describe(space.configuration(row)) for row in space.sample(np.random.default_rng(1), 3)]
    one = dict(kernel.configuration)
    knob = next(name for name in one if any(item.get(name) != one[name] for item in drawn))
    near = {**one, knob: next(item[knob] for item in drawn if item.get(knob) != one[knob])}
    with Records(path) as records:
        first = next(iter(records))
        tried = [(near, (4 * SECONDS,)), (near, (3 * SECONDS,)), (drawn[0], ()), (one, (SECONDS,))]
        for trial, (configuration, seconds) in enumerate(tried, 1):
            error = "" if seconds else "wrong_answer"
            records.add(replace(
                first, configuration=configuration, seconds=seconds, error_kind=error, trial=trial
            ))  # fmt: skip
    found = inspected(kernel)
    assert [(item.seconds, item.failure) for item in found.alternatives] == [
        (3 * SECONDS, ""), (None, "wrong_answer")
    ]  # fmt: skip
    assert found.alternatives[0].knobs == {knob: near[knob]}
    text = inspection_text(found, ["alternatives"])
    assert "3.00x" in text and "wrong_answer" in text and knob in text
