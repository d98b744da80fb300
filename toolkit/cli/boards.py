"""toolkit boards: which boards there are, what is known about one, what it says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

import toolkit
from toolkit.cli.answers import (
    TRUST,
    answer,
    answering,
    board_to_run,
    columns,
    say,
    trust_option,
    wait_option,
    wide_option,
)

if TYPE_CHECKING:
    from toolkit import Board, Probe, Target


@click.group()
def boards() -> None:
    """Boards that the tool knows, and what they say of themselves."""


@boards.command("list")
@wide_option
@answering
def list_boards(*, as_json: bool) -> None:
    """List the boards that ship with the tool."""
    known = [toolkit.load_board(name) for name in toolkit.board_names()]
    rows = [
        (board.name, board.title, board.link.kind, ", ".join(f"{t.name} ({t.kind})" for t in board.targets))
        for board in known
    ]
    text = toolkit.table(("board", "what it is", "link", "targets"), rows, left=4, width=columns())
    answer("boards-list", {"boards": known}, text, as_json=as_json)


@boards.command()
@click.argument("name")
@answering
def show(*, name: str, as_json: bool) -> None:
    """Show a board's facts and targets. NAME may be a board file."""
    board = toolkit.load_board(name, to_run=False)
    answer("boards-show", board, board_text(board), as_json=as_json)


@boards.command()
@click.argument("name")
@wait_option
@trust_option
@answering
def probe(*, name: str, wait_s: float, as_json: bool) -> None:
    """Ask a board what it is, measure its float32 peak and its bandwidth; later tables and pages use them."""
    board = board_to_run(name)
    say(f"asking {board.name} and measuring it")
    found = toolkit.probe_board(board, wait_s=wait_s)
    lines = list(_facts(found.answer))
    for target, facts in found.facts.targets.items():
        mark = " (emulated)" if board.emulated else ""
        lines.append(
            (f"peak of {target}", f"{facts.peak_gflops:.1f} GFLOP/s float32, {len(facts.cores)} cores{mark}")
        )
        if facts.bandwidth_gbs is not None:
            lines.append((f"main memory of {target}", f"{facts.bandwidth_gbs:.1f} GB/s read{mark}"))
    answer("boards-probe", found, "\n".join(toolkit.named(lines)), as_json=as_json)
    say(f"kept in {found.stored}")


@boards.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--ssh", "address", metavar="[USER@]HOST[:PORT]", help="The board is reached over SSH.")
@click.option("--tcp", metavar="HOST:PORT",
              help="A runtime listens there; --set link.tls_file=NAME.host.pem.")  # fmt: skip
@click.option("--local", is_flag=True, help="The board is this machine.")
@click.option("--like", default="", metavar="BOARD",
      help="What cannot be probed is as in its file; so is the link, if none is named.")  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE",
              help="A key of the file: memory_bytes, link.python, cpu.clock_hz (of target cpu).")  # fmt: skip
@trust_option
@answering
def new(
    *,
    file: Path,
    address: str | None,
    tcp: str | None,
    local: bool,
    like: str,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write the board file FILE (NAME.toml) by asking a board what it is; it must not be there yet.

    Name one of --ssh, --tcp, --local and --like. docs/boards.md explains every key.
    """
    named = bool(address) + bool(tcp) + local
    if named > 1 or not (named or like):
        raise click.UsageError(
            "name one of --ssh [USER@]HOST[:PORT], --tcp HOST:PORT, --local and --like BOARD"
        )
    if file.suffix != ".toml":
        raise click.UsageError(f"{file} is no board file: expected NAME.toml")
    pairs = dict(text.partition("=")[::2] for text in settings)
    similar = board_to_run(like) if like and not named else None
    similar = similar or (toolkit.load_board(like, to_run=False) if like else None)
    link = (
        address
        or (tcp and f"tcp://{tcp}")
        or (toolkit.Link(kind="local") if local or similar is None else similar.link)
    )
    say("asking the board")
    trust = click.get_current_context().meta[TRUST]
    found = toolkit.new_board(file, link, like=similar, settings=pairs, trust=trust)
    lines = [f"wrote {file}", *toolkit.named(_facts(found.answer)), "", board_text(found.board)]
    answer("boards-new", found, "\n".join(lines), as_json=as_json)
    say(f"next: `toolkit doctor {file}`, then `toolkit boards probe {file}` measures its peak")


def board_text(board: Board) -> str:
    """Everything in the board's file that a user asks for."""
    lines = [("name", board.name), ("title", board.title), ("description", board.description)]
    lines += [("memory", _gib(board.memory_bytes)), ("link", board.link.kind)]
    if board.link.address:
        lines.append(("address", board.link.address))
    lines.append(("folder there", board.link.device_dir))
    lines += [(f"target {target.name}", _target_text(target)) for target in board.targets]
    lines += [("source", source) for source in board.sources]
    return "\n".join(toolkit.named(lines))


def _target_text(target: Target) -> str:
    mark = "measured" if target.peak_gflops is not None else "estimated"
    peak = f"{target.estimated_peak_gflops:.1f} GFLOP/s float32 ({mark})"
    if target.gpu is not None:
        return f"{target.kind}, {target.gpu.compute_units} units at {target.clock_hz / 1e6:.0f} MHz, {peak}"
    cores = ", ".join(map(str, target.cores))
    return (
        f"{target.triple} {target.cpu}, cores {cores} at {target.clock_hz / 1e6:.0f} MHz, "
        f"{8 * target.vector_bytes}-bit vectors, {peak}"
    )


def _facts(probe: Probe) -> list[tuple[str, str]]:
    cpu, memory, storage = probe.cpu, probe.memory, probe.storage
    caches = [f"L{cache.level} {cache.type.lower()} {cache.size_bytes >> 10} KiB" for cache in probe.caches]
    lines = [
        ("machine", f"{probe.machine}, {probe.system}, {probe.libc}"),
        ("cpu", cpu.board or cpu.model or f"implementer {cpu.implementer} part {cpu.part}"),
        ("cores", ", ".join(str(core.id) for core in probe.cores)),
        ("caches", ", ".join(caches) or "not exposed"),
        ("memory", f"{_gib(memory.available_bytes)} of {_gib(memory.total_bytes)} free"),
        ("storage", f"{_gib(storage.free_bytes)} free in {storage.device_dir}"),
        ("python", probe.python),
        ("runtime", f"{probe.runtime}, protocol {probe.protocol}"),
    ]
    lines += [("temperature", f"{zone.celsius:.0f} °C ({zone.name})") for zone in probe.thermal]
    lines += [(kind, device.text) for kind, devices in probe.gpus.items() for device in devices]
    lines += [("GPU error", text) for text in probe.gpu_errors]
    return lines


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
