"""The Python API of tune-for-board: everything the commands do, as functions.

    import toolkit

    board = toolkit.load_board("host")
    report = toolkit.tune("squeezenet.onnx", board, toolkit.TuneOptions(trials=64))
    toolkit.flash_bundle(report.bundle, board)

A name's module is loaded when the name is first used, so that `import toolkit` costs nothing (PEP 562).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from boards.board import names as board_names
    from boards.description import Board
    from boards.target import Target
    from cross.expression import Operator, compute, max, min, placeholder, reduce_axis, sum
    from toolkit.bundle.verify import open_bundle, trusted_keys
    from toolkit.cost_model.model_file import ModelCard, SavedModel
    from toolkit.cost_model.model_file import load as load_cost_model
    from toolkit.cost_model.model_file import load_card as load_model_card
    from toolkit.cost_model.shipped import find_prior, shipped_priors
    from toolkit.errors import ToolkitError
    from toolkit.escaping import printable
    from toolkit.explore.search import SearchOptions, annealing_options
    from toolkit.flash import FlashOptions, FlashReport, SlotStatus
    from toolkit.flash import flash as flash_bundle
    from toolkit.flash import rollback as roll_back
    from toolkit.flash import status as slot_status
    from toolkit.inspection.inspect import (
        Inspection,
        inspected,
        inspection_content,
        inspection_text,
        kernel_table,
    )
    from toolkit.inspection.kernels import FoundKernel, chosen_kernel, found_kernels
    from toolkit.measure.archive import runtime_archive
    from toolkit.measure.credentials import make_credentials
    from toolkit.measure.emulation import fetch as fetch_emulation
    from toolkit.measure.fit import Check
    from toolkit.measure.peak import BoardFacts, load_board, probe_board
    from toolkit.measure.replies import Probe
    from toolkit.measure.session import Session, open_session
    from toolkit.model.load import load_model
    from toolkit.model.tasks import tasks
    from toolkit.model_job.installed import ModelRun, read_array, run_installed, write_arrays
    from toolkit.model_job.job import plan_tuning, tune
    from toolkit.model_job.operator import tune_operator
    from toolkit.model_job.options import DEFAULT_RECORDS, TuneOptions, TuneReport
    from toolkit.model_job.prior import PriorReport, train_prior
    from toolkit.model_job.recorded import recorded_operators
    from toolkit.records import Records, TuningRecord
    from toolkit.records import check as check_records
    from toolkit.records import repair as repair_records
    from toolkit.records.failures import recorded_failures
    from toolkit.report.documents import document
    from toolkit.report.failures import recorded_text
    from toolkit.report.flash_display import FlashDisplay
    from toolkit.report.health import check_board
    from toolkit.report.tables import (
        NO_GPU,
        accounts_text,
        operator_table,
        plan_table,
        table,
        time_text,
        tune_table,
    )
    from toolkit.report.tune_display import TuneDisplay
    from toolkit.reuse.plan.lineage import Descent, lineage, lineage_tree
    from toolkit.tuning.algorithm import TuningOptions
    from toolkit.tuning.progress import Budget, TuningResult
    from toolkit.tuning.time_breakdown import Accounts
    from toolkit.version import TOOL_VERSION

_HOMES = {
    "boards.board": ("board_names=names",),
    "boards.description": ("Board",),
    "boards.target": ("Target",),
    "cross.expression": ("Operator", "compute", "max", "min", "placeholder", "reduce_axis", "sum"),
    "toolkit.tuning.time_breakdown": ("Accounts",),
    "toolkit.bundle.verify": ("open_bundle", "trusted_keys"),
    "toolkit.cost_model.model_file": (
        "ModelCard", "SavedModel", "load_cost_model=load", "load_model_card=load_card",
    ),
    "toolkit.cost_model.shipped": ("find_prior", "shipped_priors"),
    "toolkit.measure.emulation": ("fetch_emulation=fetch",),
    "toolkit.errors": ("ToolkitError",),
    "toolkit.explore.search": ("SearchOptions", "annealing_options"),
    "toolkit.flash": (
        "FlashOptions", "FlashReport", "SlotStatus",
        "flash_bundle=flash", "roll_back=rollback", "slot_status=status",
    ),
    "toolkit.inspection.inspect": (
        "Inspection", "inspected", "inspection_content", "inspection_text", "kernel_table",
    ),
    "toolkit.inspection.kernels": ("FoundKernel", "chosen_kernel", "found_kernels"),
    "toolkit.measure.archive": ("runtime_archive",),
    "toolkit.measure.credentials": ("make_credentials",),
    "toolkit.measure.fit": ("Check",),
    "toolkit.measure.peak": ("BoardFacts", "load_board", "probe_board"),
    "toolkit.measure.replies": ("Probe",),
    "toolkit.measure.session": ("Session", "open_session"),
    "toolkit.model.load": ("load_model",),
    "toolkit.model.tasks": ("tasks",),
    "toolkit.model_job.installed": ("ModelRun", "read_array", "run_installed", "write_arrays"),
    "toolkit.model_job.job": ("plan_tuning", "tune"),
    "toolkit.model_job.operator": ("tune_operator",),
    "toolkit.model_job.options": ("DEFAULT_RECORDS", "TuneOptions", "TuneReport"),
    "toolkit.model_job.prior": ("PriorReport", "train_prior"),
    "toolkit.model_job.recorded": ("recorded_operators",),
    "toolkit.escaping": ("printable",),
    "toolkit.tuning.progress": ("Budget", "TuningResult"),
    "toolkit.records": ("Records", "TuningRecord", "check_records=check", "repair_records=repair"),
    "toolkit.records.failures": ("recorded_failures",),
    "toolkit.report.documents": ("document",),
    "toolkit.report.failures": ("recorded_text",),
    "toolkit.report.flash_display": ("FlashDisplay",),
    "toolkit.report.health": ("check_board",),
    "toolkit.report.tables": (
        "NO_GPU", "accounts_text", "operator_table", "plan_table", "table", "time_text", "tune_table",
    ),
    "toolkit.report.tune_display": ("TuneDisplay",),
    "toolkit.reuse.plan.lineage": ("Descent", "lineage", "lineage_tree"),
    "toolkit.tuning.algorithm": ("TuningOptions",),
    "toolkit.version": ("TOOL_VERSION",),
}  # fmt: skip

_PLACES = {
    entry.partition("=")[0]: (module, entry.rpartition("=")[2])
    for module, entries in _HOMES.items()
    for entry in entries
}

__all__ = [
    "DEFAULT_RECORDS",
    "NO_GPU",
    "TOOL_VERSION",
    "Accounts",
    "Board",
    "BoardFacts",
    "Budget",
    "Check",
    "Descent",
    "FlashDisplay",
    "FlashOptions",
    "FlashReport",
    "FoundKernel",
    "Inspection",
    "ModelCard",
    "ModelRun",
    "Operator",
    "PriorReport",
    "Probe",
    "Records",
    "SavedModel",
    "SearchOptions",
    "Session",
    "SlotStatus",
    "Target",
    "ToolkitError",
    "TuneDisplay",
    "TuneOptions",
    "TuneReport",
    "TuningOptions",
    "TuningRecord",
    "TuningResult",
    "accounts_text",
    "annealing_options",
    "board_names",
    "check_board",
    "check_records",
    "chosen_kernel",
    "compute",
    "document",
    "fetch_emulation",
    "find_prior",
    "flash_bundle",
    "found_kernels",
    "inspected",
    "inspection_content",
    "inspection_text",
    "kernel_table",
    "lineage",
    "lineage_tree",
    "load_board",
    "load_cost_model",
    "load_model",
    "load_model_card",
    "make_credentials",
    "max",
    "min",
    "open_bundle",
    "open_session",
    "operator_table",
    "placeholder",
    "plan_table",
    "plan_tuning",
    "printable",
    "probe_board",
    "read_array",
    "recorded_failures",
    "recorded_operators",
    "recorded_text",
    "reduce_axis",
    "repair_records",
    "roll_back",
    "run_installed",
    "runtime_archive",
    "shipped_priors",
    "slot_status",
    "sum",
    "table",
    "tasks",
    "time_text",
    "train_prior",
    "trusted_keys",
    "tune",
    "tune_operator",
    "tune_table",
    "write_arrays",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'toolkit' has no attribute {name!r}; it has {', '.join(__all__)}")
    module, attribute = _PLACES[name]
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
