"""toolkit records: look at the store of measurements, and move measurements between machines."""

from __future__ import annotations

from pathlib import Path

import click

import toolkit
from toolkit.cli.answers import answer, answering, columns, wide_option

DAMAGED = 6
file_argument = click.argument(
    "file",
    type=click.Path(path_type=Path),
    required=False,
    callback=lambda _, __, file: file or toolkit.DEFAULT_RECORDS,
)
records_option = click.option(
    "--records", "store", type=click.Path(path_type=Path), metavar="FILE",
    callback=lambda _, __, file: file or toolkit.DEFAULT_RECORDS,
    help="The store, or a file exported from one.  [default: ~/.local/share/tune-for-board/records.db]",
)  # fmt: skip


@click.group()
def records() -> None:
    """The store of everything that was measured."""


@records.command("list")
@records_option
@wide_option
@answering
def list_records(*, store: Path, as_json: bool) -> None:
    """List operators and targets with the number of records and the best time."""
    lines = []
    with toolkit.Records(store, read_only=True) as opened:
        names = toolkit.operator_names(opened)
        for key, count in opened.keys():  # noqa: SIM118 - not a mapping
            best = opened.best(key)
            lines.append((key, count, best.cost_s if best else None))
    rows = [
        (
            names.get(key.operator_key, ""),
            key.operator_key,
            key.target_key,
            key.tool_version,
            str(count),
            toolkit.time_text(best),
        )
        for key, count, best in lines
    ]
    headers = ("operator", "key", "board and target", "tool", "records", "best")
    text = toolkit.table(headers, rows, left=4, width=columns(), optional=(3, 1))
    content = [
        {"key": key, "name": names.get(key.operator_key, ""), "records": count, "best_seconds": best}
        for key, count, best in lines
    ]
    answer("records-list", {"operators": content}, text, as_json=as_json)


@records.command("failures")
@records_option
@wide_option
@answering
def list_failures(*, store: Path, as_json: bool) -> None:
    """Say why recorded trials failed: kind, count, and the first message with its configuration."""
    with toolkit.Records(store, read_only=True) as opened:
        found, names = toolkit.recorded_failures(opened), toolkit.operator_names(opened)
    shown = [names.get(item.key.operator_key, item.key.operator_key) for item in found]
    text = toolkit.recorded_text(found, shown, columns())
    answer("records-failures", {"operators": found}, text, as_json=as_json)


@records.command("export")
@click.argument("output", type=click.Path(path_type=Path))
@records_option
@answering
def export_records(*, output: Path, store: Path, as_json: bool) -> None:
    """Write every record as a line of JSON to the file OUTPUT."""
    with toolkit.Records(store, read_only=True) as opened:
        count = opened.export_jsonl(output)
    answer(
        "records-export", {"path": output, "records": count}, f"{count} records in {output}", as_json=as_json
    )


@records.command("best")
@click.argument("output", type=click.Path(path_type=Path))
@records_option
@answering
def export_best(*, output: Path, store: Path, as_json: bool) -> None:
    """Write the fastest record of every operator, board and target to the small file OUTPUT.

    It can be given to --records wherever records are read; `tune` adds it to the usual store.
    """
    with toolkit.Records(store, read_only=True) as opened:
        count = opened.export_jsonl(output, best=True)
    text = f"the best of {count} operators and targets in {output}"
    answer("records-best", {"path": output, "records": count}, text, as_json=as_json)


@records.command("import")
@click.argument("lines", type=click.Path(path_type=Path))
@records_option
@answering
def import_records(*, lines: Path, store: Path, as_json: bool) -> None:
    """Add the records of the file LINES, which `toolkit records export` wrote."""
    with toolkit.Records(store) as opened:
        new = opened.import_jsonl(lines)
    answer("records-import", {"path": store, "new": new}, f"{new} new records in {store}", as_json=as_json)


@records.command("tree")
@records_option
@answering
def show_tree(*, store: Path, as_json: bool) -> None:
    """Draw which operator's search began with whose tuned program."""
    with toolkit.Records(store, read_only=True) as opened:
        found = toolkit.lineage(opened)
    answer("records-tree", {"operators": found}, toolkit.lineage_tree(found), as_json=as_json)


@records.command()
@file_argument
@answering
def check(*, file: Path, as_json: bool) -> None:
    """Say which records of the store FILE are damaged; changes nothing.

    FILE is the usual store unless named. Exit code 0: nothing is damaged; 6: something is.
    """
    found = toolkit.check_records(file)
    state = "damaged:" if found.damage else "nothing is damaged"
    lines = [f"{file}: {found.records} records and {found.operators} operators are intact; {state}"]
    answer("records-check", found, "\n  ".join([*lines, *found.damage]), as_json=as_json)
    if found.damage:
        raise SystemExit(DAMAGED)


@records.command()
@file_argument
@answering
def repair(*, file: Path, as_json: bool) -> None:
    """Keep every intact record of the damaged store FILE; the damaged file stays beside it.

    FILE is the usual store unless named. A store that is not damaged is not changed,
    unless a power cut left intact records in its journal that are not in it.
    """
    found = toolkit.repair_records(file)
    kept = f"{file}: {found.records} records and {found.operators} operators kept"
    lines = [f"{kept}; nothing was damaged" if found.backup is None else f"{kept}; as it was: {found.backup}"]
    answer("records-repair", found, "\n  ".join([*lines, *found.damage]), as_json=as_json)
