"""What must hold between the keys of a board file: one named check per rule.

The types of the keys are checked before, by `boards.board`. A rule yields one finding per broken key; all
rules run, so that a user sees everything that is wrong at once.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator

from boards.description import LINK_KINDS, Board
from boards.errors import Problem
from boards.target import POCL, Target

Finding = tuple[str, str, str]  # key, expected, found
Rule = Callable[[Board], Iterator[Finding]]

PLACEHOLDERS = frozenset({"qemu", "sysroot", "python"})
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_TRIPLE = re.compile(r"(x86_64|aarch64)-[a-z0-9_]+-linux-gnu")


def broken_rules(board: Board) -> tuple[Problem, ...]:
    """Every rule of `RULES` that the board breaks, in order."""
    return tuple(
        Problem(name, key, expected, found) for name, rule in RULES for key, expected, found in rule(board)
    )


def board_name(board: Board) -> Iterator[Finding]:
    if not _NAME.fullmatch(board.name):
        yield "name", "lower-case letters, digits and single hyphens, such as rpi3b", repr(board.name)


def has_sources(board: Board) -> Iterator[Finding]:
    if not board.sources:
        yield "sources", "at least one place the figures were taken from", "none"


def has_memory(board: Board) -> Iterator[Finding]:
    if board.memory_bytes <= 0 and not board.probed:
        yield "memory_bytes", "the size of main memory in bytes, above 0", str(board.memory_bytes)


def targets_or_probed(board: Board) -> Iterator[Finding]:
    if board.probed and board.link.kind != "local":
        found = f"true with link.kind {board.link.kind!r}"
        yield "probed", "false, because only this machine can be probed", found
    elif board.probed and not all(target.is_pocl for target in board.targets):
        expected = f"none, or ones with device {POCL!r}, because `probed` fills them in"
        yield "targets", expected, f"{len(board.targets)} target(s)"
    elif not board.probed and not board.targets:
        yield "targets", "at least one [[targets]] table", "none"


def emulated_says_so(board: Board) -> Iterator[Finding]:
    expected = board.link.kind == "emulator"
    if board.emulated != expected:
        text = f"{expected} with link.kind {board.link.kind!r}".lower()
        yield "emulated", text, str(board.emulated).lower()


def link_is_complete(board: Board) -> Iterator[Finding]:
    link = board.link
    for key, expected in LINK_KINDS[link.kind].needs.items():
        if not getattr(link, key):
            yield f"link.{key}", expected.format(kind=link.kind), "nothing"
    if not link.device_dir:
        yield "link.device_dir", "a folder on the board", "nothing"


def link_keys_fit_its_kind(board: Board) -> Iterator[Finding]:
    link = board.link
    defaults = type(link)(kind=link.kind)
    for key in sorted(frozenset[str]().union(*(kind.all for kind in LINK_KINDS.values()))):
        found = getattr(link, key)
        if key not in LINK_KINDS[link.kind].all and found != getattr(defaults, key):
            yield f"link.{key}", f"nothing, because link.kind {link.kind!r} has no use for it", repr(found)


def link_numbers(board: Board) -> Iterator[Finding]:
    if not 1 <= board.link.port <= 65535:
        yield "link.port", "1 to 65535", str(board.link.port)
    if board.link.connect_timeout_s <= 0:
        yield "link.connect_timeout_s", "seconds above 0", str(board.link.connect_timeout_s)


def link_placeholders(board: Board) -> Iterator[Finding]:
    known = ", ".join(f"{{{name}}}" for name in sorted(PLACEHOLDERS))
    for i, argument in enumerate(board.link.command):
        try:
            fields = {field for _, field, _, _ in string.Formatter().parse(argument) if field is not None}
        except ValueError as error:
            yield f"link.command[{i}]", f"text with the placeholders {known}", f"{argument!r} ({error})"
            continue
        for field in sorted(fields - PLACEHOLDERS):
            yield f"link.command[{i}]", f"one of the placeholders {known}", f"{{{field}}}"


def measure_numbers(board: Board) -> Iterator[Finding]:
    measure = board.measure
    for key, lowest in (("number", 1), ("repeat", 1), ("min_repeat_ms", 0), ("cooldown_s", 0)):
        if getattr(measure, key) < lowest:
            yield f"measure.{key}", f"{lowest} or more", str(getattr(measure, key))
    if measure.timeout_s <= 0:
        yield "measure.timeout_s", "seconds above 0", str(measure.timeout_s)


def target_names(board: Board) -> Iterator[Finding]:
    names = [target.name for target in board.targets]
    for i, name in enumerate(names):
        key = f"targets[{i}].name"
        if not _NAME.fullmatch(name):
            yield key, "lower-case letters, digits and single hyphens, such as a72", repr(name)
        if name in names[:i]:
            yield key, "a name no other target of this board has", repr(name)


def cpu_targets_name_their_machine(target: Target) -> Iterator[Finding]:
    if target.kind != "cpu":
        for name in ("triple", "cpu", "features"):
            if getattr(target, name):
                yield name, f"nothing, because the kind is {target.kind!r}", repr(getattr(target, name))
        return
    if not _TRIPLE.fullmatch(target.triple):
        yield "triple", "x86_64-...-linux-gnu or aarch64-...-linux-gnu", repr(target.triple)
    if not target.cpu:
        yield "cpu", "LLVM's name of the CPU, such as cortex-a53", "nothing"
    for feature in target.features:
        if not re.fullmatch(r"[+-][a-z0-9.-]+", feature):
            yield "features", "LLVM features with their sign, such as +neon", repr(feature)


def gpu_targets_have_limits(target: Target) -> Iterator[Finding]:
    if target.kind == "cpu" and target.gpu is not None:
        yield "gpu", "no such table, because the kind is 'cpu'", "a table"
    if target.kind != "cpu" and target.gpu is None:
        yield "gpu", f"a table with the limits of the GPU, because the kind is {target.kind!r}", "none"


def gpu_limits_fit(target: Target) -> Iterator[Finding]:
    gpu = target.gpu
    if gpu is None:
        return
    for name in ("max_threads_per_block", "shared_memory_bytes", "warp_size", "compute_units"):
        if getattr(gpu, name) < 1:
            yield f"gpu.{name}", "1 or more", str(getattr(gpu, name))
    for name in ("registers_per_block", "registers_per_thread"):
        if getattr(gpu, name) < 0:
            yield f"gpu.{name}", "0 (unknown) or more", str(getattr(gpu, name))
    if min(gpu.max_block_dims) < 1:
        yield "gpu.max_block_dims", "three numbers, each 1 or more", str(list(gpu.max_block_dims))
    lanes = "1, 2, 4, 8 or 16"
    if gpu.vector_float_lanes not in (1, 2, 4, 8, 16):
        yield "gpu.vector_float_lanes", lanes, str(gpu.vector_float_lanes)
    if gpu.widest_vector_lanes not in (0, 1, 2, 4, 8, 16):
        yield "gpu.widest_vector_lanes", f"0 (as vector_float_lanes), {lanes}", str(gpu.widest_vector_lanes)
    if gpu.longest_vector not in (1, 2, 4, 8, 16):
        yield "gpu.longest_vector", lanes, str(gpu.longest_vector)


def devices_fit_kind(target: Target) -> Iterator[Finding]:
    if target.kind == "cpu" and target.device:
        yield "device", "nothing, because the kind is 'cpu'", repr(target.device)


def storage_fits_kind(target: Target) -> Iterator[Finding]:
    if target.kind == "cpu" and target.storage != "float32":
        yield "storage", "float32, because the kind is 'cpu'", repr(target.storage)


def compute_capability_fits_kind(target: Target) -> Iterator[Finding]:
    if target.gpu is None:
        return
    name, capability = "gpu.compute_capability", target.gpu.compute_capability
    if target.kind == "cuda" and not re.fullmatch(r"sm_\d{2,3}a?", capability):
        yield name, "sm_ and the compute capability without its point, such as sm_53", repr(capability)
    if target.kind != "cuda" and capability:
        yield name, f"nothing, because the kind is {target.kind!r}", repr(capability)


def cores_are_distinct(target: Target) -> Iterator[Finding]:
    cores = target.cores
    if not cores or min(cores) < 0 or len(set(cores)) != len(cores):
        yield "cores", "one or more different core ids from 0", str(list(cores))


def vectors_fit(target: Target) -> Iterator[Finding]:
    if target.vector_bytes not in (8, 16, 32, 64):
        yield "vector_bytes", "8, 16, 32 or 64", str(target.vector_bytes)
    if not 8 <= target.vector_registers <= 64:
        yield "vector_registers", "8 to 64", str(target.vector_registers)


def caches_grow(target: Target) -> Iterator[Finding]:
    if target.cache_line_bytes not in (16, 32, 64, 128, 256):
        yield "cache_line_bytes", "16, 32, 64, 128 or 256", str(target.cache_line_bytes)
    for name in ("l1d_bytes", "l1i_bytes"):
        if getattr(target, name) < 1024:
            yield name, "bytes, 1024 or more", str(getattr(target, name))
    if target.l2_bytes < target.l1d_bytes:
        yield "l2_bytes", f"bytes, at least l1d_bytes = {target.l1d_bytes}", str(target.l2_bytes)
    if target.l3_bytes and target.l3_bytes < target.l2_bytes:
        yield "l3_bytes", f"0 (none) or at least l2_bytes = {target.l2_bytes}", str(target.l3_bytes)


def speeds_are_possible(target: Target) -> Iterator[Finding]:
    if not 1e7 <= target.clock_hz <= 1e10:
        yield "clock_hz", "Hz, 1e7 (10 MHz) to 1e10 (10 GHz)", f"{target.clock_hz:g}"
    if not 0 < target.flops_per_cycle <= 4096:
        yield "flops_per_cycle", "above 0, at most 4096", f"{target.flops_per_cycle:g}"
    for name in ("peak_gflops", "bandwidth_gbs", "measured_bandwidth_gbs"):
        value = getattr(target, name)
        if value is not None and value <= 0:
            yield name, "above 0, or left out while nobody measured it", f"{value:g}"


def _of_each_target(rule: Callable[[Target], Iterator[Finding]]) -> Rule:
    """The rule about a target as one about a board, whose keys begin with `targets[i].`"""

    def of_board(board: Board) -> Iterator[Finding]:
        for i, target in enumerate(board.targets):
            for key, expected, found in rule(target):
                yield f"targets[{i}].{key}", expected, found

    of_board.__name__ = rule.__name__
    return of_board


_OF_BOARDS = (
    board_name, has_sources, has_memory, targets_or_probed, emulated_says_so, link_is_complete,
    link_keys_fit_its_kind, link_numbers, link_placeholders, measure_numbers, target_names,
)  # fmt: skip
_OF_TARGETS = (
    cpu_targets_name_their_machine, gpu_targets_have_limits, gpu_limits_fit, devices_fit_kind,
    storage_fits_kind, compute_capability_fits_kind, cores_are_distinct, vectors_fit, caches_grow,
    speeds_are_possible,
)  # fmt: skip
RULES: tuple[tuple[str, Rule], ...] = tuple(
    (rule.__name__.replace("_", "-"), rule) for rule in (*_OF_BOARDS, *map(_of_each_target, _OF_TARGETS))
)
