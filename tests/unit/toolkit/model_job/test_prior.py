"""Priors: trained on a records file alone, over operators and targets, and better than knowing nothing."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from scipy.stats import kendalltau

from boards.board import load
from boards.description import Board
from cross.expression import Operator, placeholder
from cross.expression.families.conv import conv2d
from cross.expression.families.dense import dense
from cross.expression.families.window import Window
from cross.expression.language.description import to_json
from cross.loopnest.program import Programs
from cross.schedule.choose import space_of
from cross.schedule.cpu_sketch import cpu_space
from toolkit.cli.main import main
from toolkit.cost_model.gbt import GradientBoostedTrees
from toolkit.cost_model.model_file import FeatureFacts, Provenance, SavedModel, check_features, facts, save
from toolkit.cost_model.model_file import load_cost_model as load_model
from toolkit.errors import CostModelError, InputError
from toolkit.explore.annealing import AnnealingOptions
from toolkit.explore.search import SearchOptions, make_model, make_proposer, search_features
from toolkit.features.choose import make_features
from toolkit.features.joint import JointFeatures
from toolkit.features.names import SHARED
from toolkit.model_job.prior import train_prior
from toolkit.model_job.training_data import training_data
from toolkit.records import OperatorLine, Records, TuningRecord
from toolkit.tuning.on_board import record_key

PI, ROCK = load("rpi3b"), load("rock960")


def product(name: str, n: int, k: int) -> Operator:
    data, weight = placeholder((8, k), "data"), placeholder((k, n), "weight")
    return Operator(name, (data, weight), dense(data, weight, name="D"), constants=frozenset({1}))


def convolution(size: int, channels: int) -> Operator:
    data = placeholder((1, size, size, channels), "data")
    weight = placeholder((3, 3, channels, channels), "weight")
    output = conv2d(data, weight, Window(pads=(1, 1, 1, 1)), name="C")
    return Operator("conv", (data, weight), output, constants=frozenset({1}))


def cost_s(features: np.ndarray, scale: float) -> np.ndarray:
    """A run time that depends on relation features in the same way for every operator; some runs fail."""
    weights = np.random.default_rng(5).normal(size=features.shape[1]) * (features.shape[1] ** -0.5)
    costs = scale * np.exp(0.4 * features.astype(np.float64) @ weights)
    return np.where(np.arange(len(costs)) % 17 == 3, np.nan, costs)


def measured(operator: Operator, board: Board, n: int, scale: float, kind: str = "cpu") -> list[TuningRecord]:
    target = next(item for item in board.targets if item.kind == kind)
    if operator.name == "wide":  # measured on one of the cores only
        target = msgspec.structs.replace(target, cores=target.cores[:1])
    space = space_of(operator, target)
    key = record_key(space, board)
    batch = space.sample(np.random.default_rng(1), n)
    costs = cost_s(make_features("relation", Programs(space))(batch), scale)
    return [
        TuningRecord(
            operator_key=key.operator_key,
            target_key=key.target_key,
            space_key=key.space_key,
            tool_version=key.tool_version,
            configuration=space.describe(space.configuration(row)),
            seconds=() if np.isnan(cost) else (float(cost),),
            error_kind="timeout" if np.isnan(cost) else "",
            timestamp_s=100.0 + trial,
            seed=0,
            trial=trial,
        )
        for trial, (row, cost) in enumerate(zip(batch, costs, strict=True))
    ]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two products on two boards, a convolution on one, and records that nothing can be learnt from."""
    path = tmp_path_factory.mktemp("prior") / "records.db"
    with Records(path) as records:
        for operator, board, scale in (
            (product("small", 64, 96), PI, 1e-3),
            (product("wide", 256, 64), ROCK, 1e-5),
            (convolution(8, 16), PI, 1.0),
        ):
            records.describe(OperatorLine(operator_key=operator.key, description=to_json(operator)))
            records.add(*measured(operator, board, 120, scale))
        (unknown, *_) = measured(product("forgotten", 32, 32), PI, 1, 1.0)
        records.add(unknown)
    return path


@pytest.mark.slow
def test_a_prior_ranks_an_operator_that_it_never_saw(store: Path, tmp_path: Path) -> None:
    report = train_prior(tmp_path / "prior.tfbm", records=store, seed=3)
    assert report.records == 360 and len(report.provenance.operators) == 3
    assert {item.target_key.partition(":")[0] for item in report.provenance.operators} == {"rpi3b", "rock960"}
    assert all(item.failures == 7 for item in report.provenance.operators)
    assert (report.provenance.first_s, report.provenance.last_s) == (100.0, 219.0)
    (left,) = report.left_out
    assert left.records == 1 and "does not describe the operator" in left.reason
    space = cpu_space(product("new", 128, 128), PI.target())
    options = SearchOptions(prior=report.path, annealing=AnnealingOptions(chains=64, steps=2))
    features = search_features(options, Programs(space))
    assert isinstance(features, JointFeatures) and features.kind == "relation+context"
    batch = space.sample(np.random.default_rng(2), 300)
    truth = cost_s(features.shared(batch), 1.0)
    model = make_model(features, np.random.default_rng(0), options)
    ran = np.isfinite(truth)
    before = kendalltau(model.predict(features(batch))[ran], -truth[ran])[0]
    model.fit(features(batch[:64]), truth[:64])
    after = kendalltau(model.predict(features(batch[64:]))[ran[64:]], -truth[64:][ran[64:]])[0]
    assert before > 0.35 and after > before
    first = make_proposer(space, features, np.random.default_rng(0), options).ask(64)
    saved = load_model(report.path).model
    assert saved.predict(features.shared(first)).mean() > np.quantile(
        saved.predict(features.shared(batch)), 0.8
    )


@pytest.mark.slow
def test_the_commands_train_and_show(store: Path, tmp_path: Path) -> None:
    prior = tmp_path / "pi.tfbm"
    arguments = ["model", "train", "--records", str(store), "--board", "rpi3b", "-o", str(prior), "--json"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.stderr
    assert "left out 1 records of" in done.stderr
    trained = json.loads(done.stdout)
    assert trained["schema"] == "tune-for-board/model-train"
    assert [item["name"] for item in trained["provenance"]["operators"]] == ["small", "conv"]
    shown = CliRunner().invoke(main, ["model", "show", str(prior)])
    assert shown.exit_code == 0, shown.stderr
    assert "gbt, relation features of version" in shown.stdout
    assert "on 240 records of 2 operators and targets" in shown.stdout and "rpi3b:" in shown.stdout
    first = prior.read_bytes()
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert prior.read_bytes() == first
    damaged = tmp_path / "damaged.tfbm"
    damaged.write_bytes(first[:-1] + bytes([first[-1] ^ 1]))
    for command in (["model", "show", str(damaged)], ["model", "show", str(store)]):
        refusal = CliRunner().invoke(main, command)
        assert refusal.exit_code == 2 and "Traceback" not in refusal.stderr
        assert "is damaged: expected the SHA-256" in refusal.stderr or "is no cost model" in refusal.stderr


def test_what_a_prior_cannot_be(store: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a prior cannot be 'random': expected one of gbt, gbt-regression"):
        train_prior(tmp_path / "p", records=store, cost_model="random")
    with pytest.raises(InputError, match="gbt cannot read context features"):
        train_prior(tmp_path / "p", records=store, features="context")
    with pytest.raises(InputError, match="treegru cannot read relation features: expected tree features for"):
        train_prior(tmp_path / "p", records=store, cost_model="treegru", features="relation")
    with pytest.raises(InputError, match="to learn from: none are of ultra96, only of "):
        train_prior(tmp_path / "p", records=store, boards=[load("ultra96")])
    assert SHARED == ("relation", "flattened", "tree") and not (tmp_path / "p").exists()


def test_a_prior_of_other_features_is_refused(tmp_path: Path) -> None:
    saved = SavedModel(
        "gbt", GradientBoostedTrees(), FeatureFacts("relation", 5), Provenance((), "0", 0, 0.0, 0.0)
    )
    path = save(tmp_path / "p.tfbm", saved)
    assert load_model(path).features.width == 5
    space = cpu_space(product("new", 32, 32), PI.target())
    options = SearchOptions(prior=path)
    features = search_features(options, Programs(space))
    with pytest.raises(InputError, match=r"p.tfbm was trained on relation features with 5 columns: found"):
        make_model(features, np.random.default_rng(0), options)


@pytest.mark.parametrize(("cpu", "gpu"), [(30, 20), (20, 30)])
def test_a_model_reads_programs_of_cpus_or_of_gpus(tmp_path: Path, cpu: int, gpu: int) -> None:
    operator = product("small", 64, 96)
    with Records(tmp_path / "records.db") as records:
        records.describe(OperatorLine(operator_key=operator.key, description=to_json(operator)))
        records.add(*measured(operator, ROCK, cpu, 1.0))
        records.add(*measured(operator, ROCK, gpu, 1.0, "opencl"))
        data = training_data(records, "relation")
    (group,), (left,) = data.operators, data.left_out
    assert (group.records, left.records) == (30, 20)
    assert ("opencl/" in group.target_key, "opencl/" in left.target_key) == (gpu > cpu, cpu > gpu)
    assert "a model reads one kind" in left.reason
    target = next(item for item in ROCK.targets if (item.kind == "cpu") == (cpu > gpu))
    here = make_features("relation", Programs(space_of(operator, target)))
    assert data.features.shape == (30, here.width)
    assert facts(here) == data.facts


def test_a_model_of_cpu_programs_is_refused_for_a_gpu(tmp_path: Path) -> None:
    operator = product("small", 64, 96)
    mali = next(item for item in ROCK.targets if item.kind == "opencl")
    of_cpus, of_gpus = (
        make_features("relation", Programs(space_of(operator, target))) for target in (PI.target(), mali)
    )
    model = GradientBoostedTrees(seed=0)
    table = of_cpus(space_of(operator, PI.target()).sample(np.random.default_rng(0), 20))
    model.fit(table, np.arange(1.0, 21.0), np.zeros(20, dtype=np.int64))
    saved = SavedModel("gbt", model, facts(of_cpus), Provenance((), "0", 0, 0.0, 1.0))
    check_features(saved, facts(of_cpus), "prior.tfbm")
    with pytest.raises(CostModelError, match="shared by all programs for CPUs, or all for GPUs, not by both"):
        check_features(saved, facts(of_gpus), "prior.tfbm")
