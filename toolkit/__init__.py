"""The Python API of tune-for-board: everything the commands do, as functions.

    import toolkit

    board = toolkit.load_board("host")
    report = toolkit.tune("squeezenet.onnx", board, toolkit.TuneOptions(trials=64))
    toolkit.flash_bundle(report.bundle, board)

A name's module is loaded when the name is first used, so that `import toolkit` costs nothing (PEP 562). Every
name is listed once, as an import for type checkers; where it comes from is read from there.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from boards.board import board_names as board_names
    from boards.description import Board as Board
    from boards.description import Link as Link
    from boards.target import Target as Target
    from cross.expression import Operator as Operator
    from cross.expression import compute as compute
    from cross.expression import max as max
    from cross.expression import min as min
    from cross.expression import placeholder as placeholder
    from cross.expression import reduce_axis as reduce_axis
    from cross.expression import sum as sum
    from toolkit.bundle.verify import open_bundle as open_bundle
    from toolkit.bundle.verify import trusted_keys as trusted_keys
    from toolkit.cost_model.model_file import ModelCard as ModelCard
    from toolkit.cost_model.model_file import SavedModel as SavedModel
    from toolkit.cost_model.model_file import load_cost_model as load_cost_model
    from toolkit.cost_model.model_file import load_model_card as load_model_card
    from toolkit.cost_model.shipped import find_prior as find_prior
    from toolkit.cost_model.shipped import shipped_priors as shipped_priors
    from toolkit.errors import MissingExtra as MissingExtra
    from toolkit.errors import ToolkitError as ToolkitError
    from toolkit.escaping import printable as printable
    from toolkit.explore.search import SearchOptions as SearchOptions
    from toolkit.explore.search import annealing_options as annealing_options
    from toolkit.flash.job import flash_bundle as flash_bundle
    from toolkit.flash.job import roll_back as roll_back
    from toolkit.flash.job import slot_status as slot_status
    from toolkit.flash.values import FlashOptions as FlashOptions
    from toolkit.flash.values import FlashReport as FlashReport
    from toolkit.flash.values import SlotStatus as SlotStatus
    from toolkit.inspection.bundles import BundleChanges as BundleChanges
    from toolkit.inspection.bundles import bundle_changes as bundle_changes
    from toolkit.inspection.bundles import bundle_content as bundle_content
    from toolkit.inspection.bundles import bundle_text as bundle_text
    from toolkit.inspection.bundles import changes_text as changes_text
    from toolkit.inspection.bundles import signer_content as signer_content
    from toolkit.inspection.inspect import Inspection as Inspection
    from toolkit.inspection.inspect import inspected as inspected
    from toolkit.inspection.inspect import inspection_content as inspection_content
    from toolkit.inspection.inspect import inspection_text as inspection_text
    from toolkit.inspection.inspect import kernel_table as kernel_table
    from toolkit.inspection.kernels import FoundKernel as FoundKernel
    from toolkit.inspection.kernels import chosen_kernel as chosen_kernel
    from toolkit.inspection.kernels import found_kernels as found_kernels
    from toolkit.measure.archive import runtime_archive as runtime_archive
    from toolkit.measure.credentials import make_credentials as make_credentials
    from toolkit.measure.emulation import fetch_emulation as fetch_emulation
    from toolkit.measure.fit import Check as Check
    from toolkit.measure.new_board import NewBoard as NewBoard
    from toolkit.measure.new_board import new_board as new_board
    from toolkit.measure.peak import BoardFacts as BoardFacts
    from toolkit.measure.peak import load_board as load_board
    from toolkit.measure.peak import probe_board as probe_board
    from toolkit.measure.replies import Probe as Probe
    from toolkit.measure.session import Session as Session
    from toolkit.measure.session import open_session as open_session
    from toolkit.model.distinct import distinct_operators as distinct_operators
    from toolkit.model.labels import operator_names as operator_names
    from toolkit.model.load import load_model as load_model
    from toolkit.model_job.bench import BenchOptions as BenchOptions
    from toolkit.model_job.bench import BenchReport as BenchReport
    from toolkit.model_job.bench import bench as bench
    from toolkit.model_job.installed import ModelRun as ModelRun
    from toolkit.model_job.installed import read_array as read_array
    from toolkit.model_job.installed import run_installed as run_installed
    from toolkit.model_job.installed import write_arrays as write_arrays
    from toolkit.model_job.job import plan_tuning as plan_tuning
    from toolkit.model_job.job import tune as tune
    from toolkit.model_job.job_file import JobFile as JobFile
    from toolkit.model_job.job_file import job_files as job_files
    from toolkit.model_job.job_file import latest_job as latest_job
    from toolkit.model_job.job_file import read_job as read_job
    from toolkit.model_job.operator import tune_operator as tune_operator
    from toolkit.model_job.options import DEFAULT_RECORDS as DEFAULT_RECORDS
    from toolkit.model_job.options import DEFAULT_TRIALS as DEFAULT_TRIALS
    from toolkit.model_job.options import TuneOptions as TuneOptions
    from toolkit.model_job.options import TuneReport as TuneReport
    from toolkit.model_job.prior import PriorReport as PriorReport
    from toolkit.model_job.prior import train_prior as train_prior
    from toolkit.model_job.recorded import RecordedModel as RecordedModel
    from toolkit.model_job.recorded import recorded_model as recorded_model
    from toolkit.quantization.quantize import QuantizeOptions as QuantizeOptions
    from toolkit.quantization.quantize import QuantizeReport as QuantizeReport
    from toolkit.quantization.quantize import quantize as quantize
    from toolkit.quantization.quantizer import Scheme as Scheme
    from toolkit.quantization.samples import ImageScale as ImageScale
    from toolkit.records import Records as Records
    from toolkit.records import TuningRecord as TuningRecord
    from toolkit.records import check_records as check_records
    from toolkit.records import repair_records as repair_records
    from toolkit.records.failures import recorded_failures as recorded_failures
    from toolkit.report.bench import BenchDisplay as BenchDisplay
    from toolkit.report.bench import bench_content as bench_content
    from toolkit.report.bench import bench_csv as bench_csv
    from toolkit.report.bench import bench_text as bench_text
    from toolkit.report.bench import bench_trace as bench_trace
    from toolkit.report.columns import fold as fold
    from toolkit.report.columns import named as named
    from toolkit.report.columns import table as table
    from toolkit.report.documents import document as document
    from toolkit.report.failures import recorded_text as recorded_text
    from toolkit.report.flash_display import FlashDisplay as FlashDisplay
    from toolkit.report.health import check_board as check_board
    from toolkit.report.job_page import job_page as job_page
    from toolkit.report.job_page import page_beside as page_beside
    from toolkit.report.job_page import write_job_page as write_job_page
    from toolkit.report.quantize import quantize_text as quantize_text
    from toolkit.report.tables import NO_GPU as NO_GPU
    from toolkit.report.tables import accounts_text as accounts_text
    from toolkit.report.tables import operator_table as operator_table
    from toolkit.report.tables import plan_table as plan_table
    from toolkit.report.tables import time_text as time_text
    from toolkit.report.tables import tune_table as tune_table
    from toolkit.report.tune_display import TuneDisplay as TuneDisplay
    from toolkit.report.watch import watch as watch
    from toolkit.reuse.plan.lineage import Descent as Descent
    from toolkit.reuse.plan.lineage import lineage as lineage
    from toolkit.reuse.plan.lineage import lineage_tree as lineage_tree
    from toolkit.tuning.operator_search import TuningOptions as TuningOptions
    from toolkit.tuning.progress import Budget as Budget
    from toolkit.tuning.progress import TuningResult as TuningResult
    from toolkit.tuning.time_breakdown import TimeBreakdown as TimeBreakdown
    from toolkit.version import TOOL_VERSION as TOOL_VERSION

_CHECKED = next(node for node in ast.parse(Path(__file__).read_bytes()).body if isinstance(node, ast.If))
_HOMES = {
    entry.name: str(node.module)
    for node in _CHECKED.body
    if isinstance(node, ast.ImportFrom)
    for entry in node.names
}
__all__ = sorted(_HOMES)  # noqa: PLE0605 - type checkers go by the imports above


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'toolkit' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
