"""Why trials failed: in the table of a job, in its display, and read from a store of records."""

from __future__ import annotations

import io
import json
from pathlib import Path

from click.testing import CliRunner
from msgspec.structs import replace

from tests.unit.toolkit.report.test_displays import RECORD, planned, result
from tests.unit.toolkit.report.test_tables import CONV
from toolkit.cli.main import main
from toolkit.records import Records, TuningRecord
from toolkit.records.failures import FailureReason, failure_reasons
from toolkit.report.tables import operator_table
from toolkit.report.tune_display import TuneDisplay
from toolkit.tuning.progress import OperatorDone, OperatorStatistics


def failed(trial: int, kind: str, text: str) -> TuningRecord:
    return TuningRecord(
        operator_key="o", target_key="t", space_key="s", tool_version="0", configuration={"tile": trial},
        seconds=(), error_kind=kind, error_text=text, timestamp_s=0.0, seed=0, trial=trial,
    )  # fmt: skip


FAILED = [failed(1, "timeout", "no answer within 2 s"), failed(2, "crash", "killed by SIGSEGV"),
          failed(3, "crash", "killed by SIGBUS"), failed(4, "crash", "killed by SIGBUS")]  # fmt: skip
REASONS = (
    FailureReason("crash", 3, "killed by SIGSEGV", {"tile": 2}),
    FailureReason("timeout", 1, "no answer within 2 s", {"tile": 1}),
)
TEXT = """\
: 4 of 5 trials failed
  3 x crash: killed by SIGSEGV
    with {"tile": 2}
  1 x timeout: no answer within 2 s
    with {"tile": 1}"""


def test_the_most_frequent_kind_comes_first_with_its_first_text() -> None:
    assert failure_reasons([RECORD, *FAILED]) == REASONS
    assert failure_reasons([RECORD]) == ()


def test_a_result_says_why_its_trials_failed() -> None:
    books = OperatorStatistics("conv", 1, untuned={})
    for record in (RECORD, *FAILED):
        books.note(record)
    assert books.result().reasons == REASONS
    assert books.result().failures == 4


def test_the_table_ends_with_the_reasons() -> None:
    text = operator_table([replace(CONV, trials=5, failures=4, reasons=REASONS)], emulated=False)
    assert text.endswith(f"\n\n{CONV.name}{TEXT}")


def test_the_display_names_every_kind_in_a_line_of_80_columns() -> None:
    stream = io.StringIO()
    long = (*REASONS, FailureReason("build", 1, "word " * 100, {}))
    with TuneDisplay(stream, live=False) as display:
        display(planned())
        display(OperatorDone("conv", replace(result(5), reasons=long)))
    lines = stream.getvalue().splitlines()[2:]
    assert lines[:2] == [
        "    failed: 3 x crash: killed by SIGSEGV",
        "    failed: 1 x timeout: no answer within 2 s",
    ]
    assert len(lines) == 3 and len(lines[2]) == 80


def test_the_command_reads_the_reasons_from_a_store(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    with Records(path) as records:
        records.add(RECORD, *FAILED)
    run = CliRunner().invoke(main, ["records", "failures", "--records", str(path)])
    assert run.stdout == f"o on t{TEXT}\n"
    document = json.loads(
        CliRunner().invoke(main, ["records", "failures", "--records", str(path), "--json"]).stdout
    )
    (operator,) = document["operators"]
    assert operator["trials"] == 5
    assert operator["reasons"][0] == {
        "kind": "crash", "count": 3, "text": "killed by SIGSEGV", "configuration": {"tile": 2},
    }  # fmt: skip
