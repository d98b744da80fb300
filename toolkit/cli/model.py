"""toolkit model: train a cost model on records, to begin other searches with, and look at one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

import toolkit
from toolkit.cli.answers import answer, answering, columns, say, wide_option
from toolkit.cli.records import records_option
from toolkit.cost_model.names import DEFAULT, PRIOR_MODELS
from toolkit.features.names import SHARED

if TYPE_CHECKING:
    from toolkit.cost_model.model_file import FeatureFacts, ModelCard, Provenance


@click.group()
def model() -> None:
    """Cost models that learnt from records: the priors of `toolkit tune --prior`."""


@model.command()
@records_option
@click.option("--board", "-b", "board_names", multiple=True, metavar="BOARD",
              help="Learn from this board's records only; may be repeated.  [default: all]")  # fmt: skip
@click.option("--cost-model", type=click.Choice(PRIOR_MODELS), default=DEFAULT, show_default=True)
@click.option("--features", type=click.Choice(SHARED), help="What it sees of a program."
              "  [default: tree for treegru, else relation]")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("prior.tfbm"),
              show_default=True, help="The model.")  # fmt: skip
@answering
def train(
    *, store: Path, board_names: tuple[str, ...], cost_model: str, features: str | None, seed: int,
    output: Path, as_json: bool,
) -> None:  # fmt: skip
    """Train a cost model on the records of every operator and target, and write it to a file."""
    report = toolkit.train_prior(
        output,
        records=store,
        boards=[toolkit.load_board(name, to_run=False) for name in board_names],
        cost_model=cost_model,
        features=features or "",
        seed=seed,
        tell=say,
    )
    for item in report.left_out:
        say(f"left out {item.records} records of {item.operator_key} on {item.target_key}: {item.reason}")
    text = described(report.path, report.name, report.features, report.provenance)
    answer("model-train", report, text, as_json=as_json)


@model.command("list")
@wide_option
@answering
def list_(*, as_json: bool) -> None:
    """List the models that come with the tool, by the names that --prior takes."""
    cards = {name: toolkit.load_model_card(path) for name, path in toolkit.shipped_priors().items()}
    rows = [(name, *counted(card)) for name, card in cards.items()]
    content = [
        {"name": name, "model": card.name, "features": card.features, "provenance": card.provenance}
        for name, card in cards.items()
    ]
    text = toolkit.table(
        ("name", "model", "features", "records", "operators", "targets"), rows, left=3, width=columns()
    )
    answer("model-list", {"models": content}, text, as_json=as_json)


@model.command()
@click.argument("file", type=click.Path(path_type=Path))
@wide_option
@answering
def show(*, file: Path, as_json: bool) -> None:
    """Say what the model FILE, or the one of that name, is, what it reads, and what it was trained on."""
    file = toolkit.find_prior(file)
    card = toolkit.load_model_card(file)
    text = described(file, card.name, card.features, card.provenance)
    content = {"path": file, "name": card.name, "features": card.features, "provenance": card.provenance}
    answer("model-show", content, text, as_json=as_json)


def counted(card: ModelCard) -> tuple[str, ...]:
    """A model in the list: what it is, and of how many records, operators and targets."""
    trained = card.provenance.operators
    sizes = (
        sum(item.records for item in trained),
        len({item.operator_key for item in trained}),
        len({item.target_key for item in trained}),
    )
    return card.name, card.features.kind, *map(str, sizes)


def described(path: Path, name: str, features: FeatureFacts, provenance: Provenance) -> str:
    """A model's file for people."""
    rows = [
        (item.name, item.operator_key, item.target_key, str(item.records), str(item.failures))
        for item in provenance.operators
    ]
    table = toolkit.table(
        ("operator", "key", "board and target", "records", "failed"), rows, left=3, width=columns()
    )
    records = sum(item.records for item in provenance.operators)
    return (
        f"{path}: {name}, {features.kind} features of version {features.version}, trained by version "
        f"{provenance.tool_version} with seed {provenance.seed} on {records} records of "
        f"{len(provenance.operators)} operators and targets\n\n{table}"
    )
