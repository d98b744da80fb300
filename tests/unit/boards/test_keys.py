"""docs/boards.md explains every key that the validator knows; `make golden` writes it."""

from __future__ import annotations

import msgspec

from boards.keys import KEYS, OF_CPUS, OF_GPUS, TABLES, default_text, required
from boards.target import Target
from tests.conftest import GoldenCheck

HEAD = """# Board files

A board is a TOML file: what it is, how it is reached, and what code can be generated for. `toolkit boards
show FILE.toml` checks every key and every rule between keys, and says what is wrong with which; `toolkit
doctor FILE.toml` compares the file with the board.

## A file for your board

    toolkit boards new mine.toml --ssh pi@192.168.1.7                # asks the board over SSH
    toolkit boards new mine.toml --ssh pi@192.168.1.7 --like rpi3b   # the rest is as in rpi3b's file
    toolkit boards new mine.toml --tcp 192.168.1.7:7070 --set link.tls_file=bench.host.pem   # it listens
    toolkit boards new here.toml --local                             # this machine, its GPUs and PoCL
    toolkit boards new emulated.toml --like emulated-a53             # reached as emulated-a53 is
    toolkit boards new mine.toml --ssh pi@192.168.1.7 --set cpu.l2_bytes=524288

The board is asked what `toolkit boards probe` asks: cores by their kind, caches, clock, memory, OpenCL and
CUDA devices. There is a target for each kind of core and for each GPU. `--set KEY=VALUE` sets a key of the
file, of `[link]` and `[measure]` as `link.KEY` and `measure.KEY`, of a target as `NAME.KEY`; it comes
before what was probed, which comes before what the file of `--like` says (marked in the file). What nobody
knows stands in the file as a comment with its default and meaning; where a key is required, the command
ends with exit code 2 and says which ones to set. Nothing is written that the validator refuses or that
contradicts the board, and no file is overwritten. Many boards do not expose their caches (older device
trees), and no OpenCL device says how fast it computes: `flops_per_cycle` and, except for PoCL, `warp_size`
have to be set or copied.

"""
TITLES = {
    "": "## The file's own keys",
    "link": "## [link]\n\nHow the board is reached. Keys that a kind has no use for are refused.",
    "measure": "## [measure]\n\nHow a kernel is timed unless a command says otherwise; may be left out.",
    "targets[]": "## [[targets]]\n\nOne table for each cluster of cores and each GPU.",
    "targets[].gpu": "## [targets.gpu]\n\nOf a GPU: what one launch of a kernel "
    "may ask for ([GPU boards](gpu.md#what-is-searched)).",
}


def rows(table: str) -> list[str]:
    lines = ["| key | meaning | unit | default | used by | how to find it out |", "|---|---|---|---|---|---|"]
    for name, key in KEYS[table].items():
        default = "required" if required(table, name) else default_text(table, name)
        of = (
            {name in OF_CPUS: " (CPUs)", name in OF_GPUS: " (GPUs)"}.get(True, "")
            if table == "targets[]"
            else ""
        )
        shown = f"`{default}`" if default and default != "required" else default
        lines.append(
            f"| `{name}`{of} | {key.meaning} | {key.unit} | {shown} | {key.used_by} | {key.source} |"
        )
    return lines


def test_the_document_has_every_key(golden: GoldenCheck) -> None:
    sections = [f"{title}\n\n" + "\n".join(rows(table)) for table, title in TITLES.items()]
    golden("../../../docs/boards.md", HEAD + "\n\n".join(sections) + "\n")


def test_every_key_is_explained_and_no_other() -> None:
    assert {table: set(keys) for table, keys in KEYS.items()} == {
        table: set(struct.__struct_fields__) for table, struct in TABLES.items()
    }
    assert [
        name for keys in KEYS.values() for name, key in keys.items() if not key.meaning or "|" in str(key)
    ] == []
    assert OF_CPUS | OF_GPUS < {field.name for field in msgspec.structs.fields(Target)}
