"""A board file from what a board says of itself: `new_board` connects, describes, checks and writes.

What the user sets comes first, then what was probed, then what the file of a similar board says. Keys that
are known from none of these stand in the file as comments with what they mean (boards/keys.py); one that is
required ends it. The board that is written passes the validator of every board file, and what
`toolkit doctor` asks of it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from boards.board import converted, parsed, reached_at
from boards.description import Board, Link
from boards.errors import BadBoardFile
from boards.files import write_file
from boards.keys import KEYS, default_text, required, toml_value, unused
from boards.probe import Caches, compiled_for, cpu_facts, host_target, usable_cores
from boards.rules import broken_rules
from boards.target import POCL, Target
from toolkit.errors import InputError, OutputError
from toolkit.measure.fit import require
from toolkit.measure.replies import Cluster, CudaDevice, OpenClDevice, Probe
from toolkit.measure.session import open_session
from toolkit.measure.trust import check_program

Table = dict[str, Any]
HEAD: Final = (
    "# Written by `toolkit boards new` from what the board says of itself; docs/boards.md explains it.\n"
    "# `toolkit boards show` checks the file, `toolkit doctor` compares it with the board.\n"
)
SOURCES: Final = ("/proc, /sys and the GPU drivers of the board, read by `toolkit boards new`",)
CUDA_LANES: Final = {  # of float32 in a multiprocessor, by compute capability: CUDA C++ Programming Guide,
    # table "Throughput of Native Arithmetic Instructions"
    "5.0": 128, "5.2": 128, "5.3": 128, "6.0": 64, "6.1": 128, "6.2": 128, "7.0": 64, "7.2": 64, "7.5": 64,
    "8.0": 64, "8.6": 128, "8.7": 128, "8.9": 128, "9.0": 128, "10.0": 128, "12.0": 128,
}  # fmt: skip
CACHES: Final = {"l1d_bytes": (1, "Data"), "l1i_bytes": (1, "Instruction"), "l2_bytes": (2, "Unified"),
                 "l3_bytes": (3, "Unified")}  # fmt: skip
MEASURED: Final = frozenset({"peak_gflops", "measured_bandwidth_gbs"})  # of one board, by `boards probe`
NVIDIA_OPENCL: Final = "NVIDIA CUDA"  # the platform's name: its devices are CUDA's


class NewBoard(msgspec.Struct, frozen=True):
    """The written file, the board in it, what the board answered, and keys taken from the similar board."""

    path: Path
    board: Board
    answer: Probe
    copied: tuple[str, ...]


def new_board(
    path: Path | str,
    link: Link | str,
    *,
    like: Board | None = None,
    settings: Mapping[str, str] | None = None,
    trust: bool = False,
    cache_dir: Path | str | None = None,
    config_dir: Path | str | None = None,
) -> NewBoard:
    """Write the file of the board that `link` reaches: a Link, or [USER@]HOST[:PORT] over SSH, or
    tcp://HOST:PORT with the setting link.tls_file.

    `settings`: values in TOML by key, `measure.repeat` or, of a target, its name and the key, `cpu.clock_hz`.
    Raises InputError (a setting that is none, required keys that nobody knows, a file that is there),
    BoardError, UntrustedBoard, UnfitBoard (set or copied facts contradict the board), BoardUnreachable,
    OutputError.
    """
    path, given = Path(path), _settings(settings or {})
    if path.exists():
        raise InputError(f"{path} is there already: expected a new file; name another, or move that one away")
    reached = _reached(path, link) if isinstance(link, str) else link
    own_dir = {} if reached.has_address else {"device_dir": f"{Link(kind='ssh').device_dir}/{path.stem}"}
    content = msgspec.to_builtins(reached) | own_dir | given.pop("link", {})
    plain = {key: value for key, value in content.items() if value != getattr(Link(kind=reached.kind), key)}
    bare = _connectable(path, {"kind": reached.kind, **plain})
    own = trust or bool({"link.python", "link.command"} & (settings or {}).keys())  # typed by the user
    check_program(bare, trust=own, config_dir=Path(config_dir) if config_dir else None)
    with open_session(bare, cache_dir=cache_dir, lease=False) as session:
        answer = session.probe()
    text, copied = described(bare, answer, like, given)
    board = parsed(text.encode(), path)
    require(board, board.targets, answer)
    try:
        write_file(path, text.encode(), new=True)
    except FileExistsError as error:
        raise InputError(f"{path} has appeared meanwhile: expected a new file; name another") from error
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}; name another file") from error
    return NewBoard(path, board, answer, copied)


def described(
    bare: Board, answer: Probe, like: Board | None, given: dict[str, Table]
) -> tuple[str, tuple[str, ...]]:
    """The file of a board of which the name and the link are known, and which keys are as in `like`'s.

    `given` are the settings by table. Raises InputError.
    """
    if answer.machine not in ("x86_64", "aarch64"):
        raise InputError(
            f"the board is {answer.machine}: expected x86_64 or aarch64; install a 64-bit system there"
        )
    tables, copied = _tables(bare, answer, like, given)
    _complete(tables)
    return HEAD + "\n".join(_text(tables, set(copied), like)), copied


def _reached(path: Path, text: str) -> Link:
    """The link that a text names. Raises BadAddress."""
    address = text.removeprefix("tcp://")
    link = Link(kind="ssh") if address == text else Link(kind="tcp", port=0)  # a port there must be named
    return reached_at(_bare(path, link), address).link


def _bare(path: Path, link: Link) -> Board:
    """A board of which nothing but its link is known."""
    name = re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-")
    return Board(
        name=name, title=name, description="", sources=SOURCES, emulated=link.kind == "emulator", link=link
    )


def _connectable(path: Path, link: Table) -> Board:
    """The board to connect to; what is wrong with its link or name is said before. Raises BadBoardFile."""
    plain = msgspec.to_builtins(_bare(path, Link(kind=link["kind"])))
    board = converted(plain | {"link": link}, path)
    problems = [one for one in broken_rules(board) if one.key == "name" or one.key.startswith("link")]
    if problems:
        raise BadBoardFile(str(path), problems)
    return board


def _settings(settings: Mapping[str, str]) -> dict[str, Table]:
    """The settings by table ("" for the file's own, "link", "measure", targets' names). Raises InputError."""
    found: dict[str, Table] = {}
    for key, text in settings.items():
        table, _, name = key.rpartition(".")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text  # words need no quotes
        known = KEYS.get(table) or KEYS["targets[]"] | KEYS["targets[].gpu"]
        if name not in known or (not table and name in ("link", "measure", "targets")):
            keys = ", ".join(sorted(known))
            raise InputError(f"--set {key}: expected TABLE.KEY=VALUE with one of the keys {keys}")
        found.setdefault(table, {})[name] = value
    return found


# ------------------------------------------------------------------------------------- from answers to tables


def _tables(
    bare: Board, answer: Probe, like: Board | None, given: dict[str, Table]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The file's tables, and which of their keys were copied from the similar board."""
    copied: list[str] = []
    targets = [_emulated(answer)] if bare.emulated else list(_targets(bare, answer))
    similar = {target.name: target for target in like.targets} if like else {}
    for target in targets:
        own = given.pop(target["name"], {})
        model = next((one for one in similar.values() if _resembles(target, one)), None)
        known = {} if model is None else _explicit("targets[]", model)
        for table, name, found in (("targets[]", "", target), ("targets[].gpu", "gpu", target.get("gpu"))):
            if found is None:
                continue
            copy = (
                known.get(name, {}) if name else {key: value for key, value in known.items() if key != "gpu"}
            )
            for key, value in copy.items():
                if key not in found and key not in MEASURED and key not in unused(table, found):
                    found[key] = value
                    copied.append(f"{target['name']}.{key}")
            found |= {key: value for key, value in own.items() if key in KEYS[table]}
    top = given.pop("", {})
    measure = _explicit("", like).get("measure", {}) if like else {}
    copied += [f"measure.{key}" for key in measure]
    if bare.emulated:
        measure = {"repeat": 1, "min_repeat_ms": 0.0, "timeout_s": 120.0} | measure
    title = answer.cpu.board or answer.cpu.model
    tables: dict[str, Any] = {
        "name": bare.name,
        "title": bare.name if bare.emulated else title or bare.name,
        "description": f"{len(answer.cores)} cores ({answer.machine}), "
        f"{answer.memory.total_bytes / 2**30:.1f} GiB; targets {', '.join(one['name'] for one in targets)}.",
        "sources": [*SOURCES, *(like.sources if like and copied else ())],
        **({"memory_bytes": answer.memory.total_bytes} if answer.memory.total_bytes else {}),
        **({"emulated": True} if bare.emulated else {}),
        **top,
        "link": _explicit("link", bare.link),
        "measure": measure | given.pop("measure", {}),
        "targets": targets,
    }
    if given:
        names = ", ".join(target["name"] for target in targets)
        why = "".join(f"; {text}" for text in answer.gpu_errors)
        raise InputError(f"--set {next(iter(given))}...: the board has no such target, only {names}{why}")
    return tables, tuple(copied)


def _resembles(target: Table, other: Target) -> bool:
    """Whether what cannot be probed of one may be taken from the other: the same core, or kind of GPU."""
    if target["kind"] != other.kind:
        return False
    return other.kind != "cpu" or bool(other.cpu == target.get("cpu", other.cpu))


def _explicit(table: str, value: msgspec.Struct) -> Table:
    """The keys of a struct whose values are not their defaults."""
    plain: Table = msgspec.to_builtins(value)
    defaults = {field.name: field.default for field in msgspec.structs.fields(value)}
    return {
        key: _explicit(key, getattr(value, key)) if isinstance(getattr(value, key), msgspec.Struct) else item
        for key, item in plain.items()
        if getattr(value, key) != defaults[key]
    }


def _emulated(answer: Probe) -> Table:
    """The target of an emulator, whose /proc and /sys are those of the machine that emulates."""
    cores = [core.id for core in answer.cores]
    return {"name": "cpu", "kind": "cpu", "triple": f"{answer.machine}-unknown-linux-gnu", "cores": cores}


def _targets(bare: Board, answer: Probe) -> Iterator[Table]:
    """What is known of each cluster of cores and each GPU."""
    cpus = [_cpu(bare, answer, cluster) for cluster in answer.clusters]
    for cpu in cpus:
        short = str(cpu["cpu"]).rpartition("-")[2]
        cpu["name"] = "cpu" if len(cpus) == 1 else short
    yield from _named(cpus)
    opencl = [device for device in answer.opencl if NVIDIA_OPENCL not in device.platform]
    yield from _named([_opencl(device, cpus[0], len(opencl)) for device in opencl])
    yield from _named([_cuda(device, len(answer.cuda)) for device in answer.cuda])


def _named(targets: Sequence[Table]) -> Iterator[Table]:
    """The targets, with numbers after names that come again."""
    names: list[str] = []
    for target in targets:
        names.append(target["name"])
        count = names.count(target["name"])
        yield target | ({"name": f"{target['name']}-{count}"} if count > 1 else {})


def _cpu(bare: Board, answer: Probe, cluster: Cluster) -> Table:
    """The target of some cores; caches and a clock that the board does not expose are left out."""
    local = bare.link.kind == "local"
    cores = usable_cores(Path("/"), cluster.cores) if local else cluster.cores
    facts = cpu_facts(answer.machine, cluster.identity, frozenset(answer.cpu.features), cores)
    facts = replace(facts, caches=_caches(cluster), clock_hz=float(cluster.max_hz) or facts.clock_hz)
    target = host_target(facts if local else compiled_for(facts))
    plain = msgspec.to_builtins(target)
    exposed = {(cache.level, cache.type) for cache in cluster.caches}
    hidden = {key for key, cache in CACHES.items() if cache not in exposed}
    hidden |= set() if exposed else {"cache_line_bytes"}
    hidden |= set() if facts.clock_hz else {"clock_hz"}
    hidden |= set() if local else {"machine"}
    keys = ["name", "kind", "triple", "cpu", "features", "machine", "cores", "vector_bytes",
            "vector_registers", "cache_line_bytes", *CACHES, "clock_hz", "flops_per_cycle"]  # fmt: skip
    return {key: plain[key] for key in keys if key not in hidden and plain[key] not in ("", [])}


def _caches(cluster: Cluster) -> Caches:
    sizes = {(cache.level, cache.type): cache.size_bytes for cache in cluster.caches}
    known = {key: sizes[cache] for key, cache in CACHES.items() if cache in sizes}
    lines = [cache.line_bytes for cache in cluster.caches if cache.line_bytes]
    return Caches(**known, **({"line_bytes": lines[0]} if lines else {}))


def _opencl(device: OpenClDevice, cpu: Table, count: int) -> Table:
    """The target of an OpenCL device; PoCL is this CPU, of another one no speed is known."""
    pocl = POCL in device.platform
    lanes = max((width for width in (1, 2, 4, 8, 16) if width <= device.vector_float_lanes), default=1)
    longest = {"longest_vector": device.vector_lanes} if device.vector_lanes else {}
    of_cpu = (*CACHES, "cache_line_bytes", "flops_per_cycle", "clock_hz", "machine", "cores")
    return {
        "name": "opencl" if pocl else re.sub(r"[^a-z0-9]+", "-", device.name.lower()).strip("-") or "gpu",
        "kind": "opencl",
        **({"device": POCL if pocl else device.full_name} if pocl or count > 1 else {}),
        **({"l2_bytes": device.cache_bytes} if device.cache_bytes else {}),
        **({"clock_hz": float(device.clock_hz)} if device.clock_hz else {}),
        **({key: cpu[key] for key in of_cpu if key in cpu} if pocl else {}),
        "gpu": {
            **_launches(device),
            "shared_memory_on_chip": device.shared_memory_on_chip,
            "registers_per_block": 0,
            **({"warp_size": 1} if pocl else {}),
            "vector_float_lanes": min(lanes, device.vector_lanes or lanes),
            **longest,
        },
    }


def _cuda(device: CudaDevice, count: int) -> Table:
    lanes = CUDA_LANES.get(device.compute_capability)
    return {
        "name": "gpu",
        "kind": "cuda",
        **({"device": device.name} if count > 1 else {}),
        **({"l2_bytes": device.cache_bytes} if device.cache_bytes else {}),
        "clock_hz": float(device.clock_hz),
        **({"flops_per_cycle": 2 * lanes} if lanes else {}),
        "gpu": {
            **_launches(device),
            "registers_per_block": device.registers_per_block,
            "registers_per_thread": 255,  # of every compute capability since 3.5
            "warp_size": device.warp_size,
            "vector_float_lanes": 4,
            "compute_capability": f"sm_{device.compute_capability.replace('.', '')}",
        },
    }


def _launches(device: OpenClDevice | CudaDevice) -> Table:
    return {
        "max_threads_per_block": device.max_threads_per_block,
        "max_block_dims": list(device.max_block_dims[:3]),
        "shared_memory_bytes": device.shared_memory_bytes,
        "compute_units": device.compute_units,
    }


# -------------------------------------------------------------------------------------- from tables to a file


def _complete(tables: Table) -> None:
    """Raise InputError with the required keys that nobody knows, their meaning and where to find them."""
    missing = []
    for target in tables["targets"]:
        for table, found in (("targets[]", target), ("targets[].gpu", target.get("gpu", {}))):
            for key, about in KEYS[table].items():
                if key not in found and required(table, key) and (table == "targets[]" or found):
                    missing.append(f"  --set {target['name']}.{key}=...: {_meaning(about)}; {about.source}")
        if target["kind"] == "cpu" and "cpu" not in target:
            about = KEYS["targets[]"]["cpu"]
            missing.append(f"  --set {target['name']}.cpu=...: {_meaning(about)}; {about.source}")
    if "memory_bytes" not in tables:
        missing.append("  --set memory_bytes=...: main memory in bytes; `free -b` on the board")
    if missing:
        raise InputError(
            "the board does not say all that a board file needs; set these, or name a similar board with "
            "--like:\n" + "\n".join(missing)
        )


def _text(tables: Table, copied: set[str], like: Board | None) -> Iterator[str]:
    inner = {"link", "measure", "targets"}
    plain = {key: value for key, value in tables.items() if key not in inner}
    mark = f"  # as {like.name} has it" if like else ""
    yield from _lines("", plain, "", copied, mark)
    for name in ("link", "measure"):
        yield f"\n[{name}]"
        yield from _lines(name, tables[name], f"{name}.", copied, mark)
    for target in tables["targets"]:
        prefix = f"{target['name']}."
        yield "\n[[targets]]"
        own = {key: value for key, value in target.items() if key != "gpu"}
        yield from _lines("targets[]", own, prefix, copied, mark)
        if "gpu" in target:
            yield "\n[targets.gpu]"
            yield from _lines("targets[].gpu", target["gpu"], prefix, copied, mark)
    yield ""


def _lines(table: str, given: Table, prefix: str, copied: set[str], mark: str) -> Iterator[str]:
    """The keys of a table in their order: those that are given, and as comments those that may be."""
    left_out = unused(table, given) - given.keys()
    for key, about in KEYS[table].items():
        if key in given:
            yield f"{key} = {toml_value(given[key])}{mark if prefix + key in copied else ''}"
        elif key not in left_out and about.used_by and key not in ("emulated", "probed"):
            yield f"# {key} = {default_text(table, key)}  # {_meaning(about)}"


def _meaning(about: Any) -> str:
    return f"{about.meaning}, in {about.unit}" if about.unit else str(about.meaning)
