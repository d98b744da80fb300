"""toolkit flash, also installed as flash."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import toolkit
from toolkit.cli.answers import (
    answer,
    answering,
    board_option,
    board_to_run,
    columns,
    duration,
    trust_option,
    wait_option,
    wide_option,
)

if TYPE_CHECKING:
    from toolkit import FlashReport, SlotStatus

MIB = 1 << 20


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path), required=False)
@board_option
@click.option("--rollback", is_flag=True, help="Make the bundle before the current one current again.")
@click.option("--status", "show", is_flag=True, help="Show what is installed; changes nothing.")
@click.option("--dry-run", is_flag=True, help="Verify and look, but change nothing on the board.")
@click.option("--allow-downgrade", is_flag=True,
              help="Flash a bundle older than one that was committed under its name.")  # fmt: skip
@click.option(
    "--target", default="", help="Variant to start; default: the first that the board has a device for."
)
@click.option("--test-timeout", "test_timeout_s", type=duration, default="120s", metavar="TIME",
              show_default=True, help="Longest that the self-test may take.")  # fmt: skip
@wait_option
@wide_option
@trust_option
@answering
def flash(
    *, bundle: Path | None, board_name: str, rollback: bool, show: bool, as_json: bool, **options: Any
) -> None:
    """Put BUNDLE on a board: upload what is missing, self-test, switch, health check, commit.

    Whatever fails, a bundle that passed its self-test stays current. Flashing the same bundle again changes
    nothing.
    """
    if (bundle is not None) + rollback + show != 1:
        raise click.UsageError("give one of: a BUNDLE, --status, --rollback")
    board, chosen = board_to_run(board_name), toolkit.FlashOptions(**options)
    if bundle is not None:
        report = toolkit.flash_bundle(bundle, board, chosen, toolkit.FlashDisplay())
        answer("flash", report, flash_text(report), as_json=as_json)
        return
    if rollback:
        status = toolkit.roll_back(board, chosen, toolkit.FlashDisplay())
    else:
        status = toolkit.slot_status(board, chosen)
    answer("flash-status", status, status_text(board.name, status), as_json=as_json)


def flash_text(report: FlashReport) -> str:
    """What a flash did, in two or three lines."""
    name = f"{report.name} ({report.bundle_id})"
    where = f"{report.board}, {report.device_dir}"
    if report.dry_run:
        return f"{name} would go to {where}; {report.missing_bytes / MIB:.1f} MiB to upload"
    if not report.changed:
        return f"{name} is installed and current on {where}; nothing was changed"
    lines = [
        f"{name} is current on {where}",
        f"self-test: largest relative error {report.max_relative_error:.1e}; "
        f"uploaded {report.missing_bytes / MIB:.1f} of {report.total_bytes / MIB:.1f} MiB in "
        f"{report.seconds:.1f} s",
    ]
    if report.variant is not None:
        lines.append(f"runs {report.variant.text}")
    if report.previous:
        lines.append(f"the one before, {report.previous}, is kept: flash --board {report.board} --rollback")
    return "\n".join(lines)


def status_text(board: str, status: SlotStatus) -> str:
    """One line for each installed bundle."""
    rows = []
    for slot in status.slots:
        marks = [
            word
            for word, holds in (
                ("current", slot.id == status.current),
                ("on trial", slot.id == status.current and status.on_trial),
                ("previous", slot.id == status.previous),
                ("not tested", not slot.tested),
                ("DAMAGED", slot.damaged),
                ("REFUSED", slot.refused != ""),
            )
            if holds
        ]
        rows.append((slot.id, slot.name, f"{slot.size_bytes / MIB:.1f} MiB", ", ".join(marks)))
    head = f"{board}: {status.device_dir}"
    if not rows:
        return f"{head}\nno bundle is installed"
    reasons = "".join(f"\nrefused: {slot.refused}" for slot in status.slots if slot.refused)
    table = toolkit.table(("bundle", "model", "size", "state"), rows, left=4, width=columns())
    return f"{head}\n{table}{reasons}"
