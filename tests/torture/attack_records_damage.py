"""Records that are damaged on the disk: the store, its journal, exported lines. Read by the tool's commands.

Every command reads intact records only, and says that others are missing; or it refuses with exit code 2 and
a way out. `check` knows (6). After `repair` the store is sound and holds every record that still stood there.
"""

from __future__ import annotations

import hashlib
import logging
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from click.testing import CliRunner

from tests.torture.attack import Attack, Run
from toolkit.cli.main import main
from toolkit.records import OperatorLine, Records, TuningRecord
from toolkit.records.lines import read_lines

PAGE = 4096
TAIL_BYTES = 8 * (PAGE + 24)  # the end of a journal, where damage looks as what a power cut leaves


def some_record(trial: int, seed: int = 0) -> TuningRecord:
    """Short and long ones (over a page), times and failures, of three operators."""
    failed = trial % 7 == 3
    words = "SIGSEGV \u00e9 " * (600 if trial % 40 == 3 else 3)
    return TuningRecord(
        operator_key=f"dense/{trial % 3}",
        target_key="host:cpu/x86-64",
        space_key="s/1",
        tool_version="0.1.0",
        configuration={"tile": [trial, seed], "unroll": trial % 5},
        seconds=() if failed else (1e-3 + trial * 1e-6, 2e-3),
        error_kind="crash" if failed else "",
        error_text=words if failed else "",
        facts={"spent_s": {"build": trial / 8}, "note": "x" * (trial % 50)},
        timestamp_s=1e9 + trial,
        seed=seed,
        trial=trial,
    )


@dataclass(frozen=True, slots=True)
class Originals:
    """Files to damage, and what they hold: lines of records and operators as they are stored."""

    folder: Path
    lines: frozenset[bytes]


def originals(folder: Path, records: int, in_journal: int, seed: int = 0) -> Originals:
    """A store, of whose records the last are in the journal only, and the same as exported lines."""
    folder.mkdir()
    operators = [
        OperatorLine(operator_key=f"dense/{n}", description=f'{{"name":"dense{n}"}}') for n in range(3)
    ]
    found = [some_record(trial) for trial in range(records)]
    work = folder / "work.db"
    with Records(work) as store:
        store.describe(*operators)
        store.add(*found[: records - in_journal])
    with Records(work) as store:
        for item in found[records - in_journal :]:
            store.add(item)
        store.export_jsonl(folder / "lines.jsonl")
        for suffix in ("", "-wal", "-shm") if in_journal else ("",):
            shutil.copy(f"{work}{suffix}", folder / f"records.db{suffix}")
    work.unlink()
    return Originals(folder, frozenset(msgspec.json.encode(line) for line in [*operators, *found]))


# -- damage -------------------------------------------------------------------------------------------------


def flip(data: bytearray, rng: random.Random) -> int:
    for _ in range(rng.choice((1, 1, 1, 4, 40))):
        place = rng.randrange(len(data))
        data[place] ^= 1 << rng.randrange(8)
    return place


def one_byte(data: bytearray, rng: random.Random) -> int:
    place = rng.randrange(len(data))
    data[place] = rng.choice((0, 1, 0x20, 0x7F, 0xFF, rng.randrange(256)))
    return place


def header(data: bytearray, rng: random.Random) -> int:
    data[rng.randrange(min(100, len(data)))] = rng.randrange(256)
    return 0


def cut(data: bytearray, rng: random.Random) -> int:
    keep = rng.choice((0, rng.randrange(len(data)), rng.randrange(len(data)) // PAGE * PAGE))
    del data[keep:]
    return 1 << 62


def zeros(data: bytearray, rng: random.Random) -> int:
    return _fill(data, rng, bytes(PAGE))


def garbage(data: bytearray, rng: random.Random) -> int:
    return _fill(data, rng, rng.randbytes(PAGE))


def _fill(data: bytearray, rng: random.Random, page: bytes) -> int:
    first = rng.randrange(len(data))
    if rng.random() < 0.7:
        first -= first % PAGE
    page = page[: rng.choice((PAGE, PAGE, 100))]
    size = len(data)
    data[first : first + len(page)] = page
    del data[size:]
    return first + len(page)


def swap(data: bytearray, rng: random.Random) -> int:
    pages = [bytes(data[at : at + PAGE]) for at in range(0, len(data), PAGE)]
    if len(pages) > 2:
        one, other = rng.sample(range(len(pages)), 2)
        if rng.random() < 0.5:
            pages[one], pages[other] = pages[other], pages[one]
        else:
            pages[one] = pages[other]
        data[:] = b"".join(pages)
        return max(one, other) * PAGE + PAGE
    return flip(data, rng)


def shift(data: bytearray, rng: random.Random) -> int:
    place = rng.randrange(len(data))
    if rng.random() < 0.5:
        data[place:place] = rng.randbytes(rng.choice((1, 7, PAGE)))
    else:
        del data[place : place + rng.choice((1, 7, PAGE))]
    return place


DAMAGES: tuple[Callable[[bytearray, random.Random], int], ...] = (
    flip, flip, one_byte, header, cut, zeros, garbage, swap, shift,
)  # fmt: skip


# -- what must hold -----------------------------------------------------------------------------------------


class Said(logging.Handler):
    """What the store warned of."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


class Broken(AssertionError):
    """What must hold does not."""


def must(holds: bool, text: str) -> None:
    if not holds:
        raise Broken(text)


def command(codes: tuple[int, ...], *arguments: object) -> tuple[int, str]:
    """Exit code and output of a command of the tool: one of these codes, no traceback."""
    result = CliRunner().invoke(main, ["records", *map(str, arguments)])
    ended = result.exception is None or isinstance(result.exception, SystemExit)
    must(ended, f"{arguments[0]} raised {result.exception!r}")
    must(result.exit_code in codes, f"{arguments[0]} ended with {result.exit_code}: {result.output}")
    return result.exit_code, result.output


def lines_of(path: Path) -> set[bytes]:
    return {msgspec.json.encode(line) for line in read_lines(path)}


def still_there(data: bytes, lines: frozenset[bytes]) -> set[bytes]:
    """Lines that stand in a file in one piece, close after their digest, as rows have them."""
    found = set()
    for line in lines:
        place = data.find(line)
        while place >= 0:
            if hashlib.sha256(line).digest() in data[max(0, place - 500) : place]:
                found.add(line)
            place = data.find(line, place + 1)
    return found


def attack_store(case: Path, lines: frozenset[bytes], silent: bool, readable: tuple[Path, ...]) -> None:
    """All commands on the damaged store of a case. `silent`: records may be missing without a word."""
    store, out, said = case / "records.db", case / "out.jsonl", Said()
    there = set().union(*(still_there(file.read_bytes(), lines) for file in readable if file.exists()))
    size = store.stat().st_size if store.exists() else 0  # an empty one may be written to
    logging.getLogger("toolkit.records").addHandler(said)
    try:
        code, text = command((0, 2), "export", out, "--records", store)
        found = lines_of(out) if code == 0 else set()
        must(found <= lines, f"export gave {len(found - lines)} other records")
        if code == 0 and not silent:
            must(found == lines or bool(said.texts), f"{len(lines - found)} lines are missing without a word")
        if code == 2:
            must(text.startswith("error: ") and "records.db" in text, f"refused without a name: {text}")
        command((code,), "list", "--records", store)
        checked, words = command((0, 2, 6), "check", store)
        must(not (code == 2 and checked == 0), f"check finds nothing where export was refused: {text}")
        must(checked != 0 or silent or found == lines, "check finds nothing, and lines are missing")
        # a writer ends a transaction that a power cut has left; repair shall see what was left
        copied = shutil.copytree(case, case / "copy", ignore=shutil.ignore_patterns("*.jsonl"))
        copy = copied / store.name
        written, text = command((0, 2), "import", case / "one.jsonl", "--records", copy)
        must(written == code or not size, f"export ended with {code}, import with {written}: {text}")
        code, text = command((0, 2), "repair", store)
        if code == 2:
            must(
                any(words in text for words in ("no record is left", "no records file", "it is empty")),
                f"repair refused: {text}; check: {words}",
            )
            must(not there, f"repair finds nothing, {len(there)} lines are there")
            return
        command((0,), "check", store)
        command((0,), "export", out, "--records", store)
        kept = lines_of(out)
        must(kept <= lines, f"after a repair there are {len(kept - lines)} other records")
        must(
            there | found <= kept,
            f"a repair lost {len((there | found) - kept)} of {len(there | found)} lines",
        )
    finally:
        logging.getLogger("toolkit.records").removeHandler(said)


def attack_lines(case: Path, lines: frozenset[bytes]) -> None:
    """An import is whole or refused by line."""
    code, text = command((0, 2), "import", case / "lines.jsonl", "--records", case / "new.db")
    if code == 2:
        must("lines.jsonl:" in text, f"refused without a line: {text}")
    command((0,), "export", case / "out.jsonl", "--records", case / "new.db")
    found = lines_of(case / "out.jsonl")
    must(found == (lines if code == 0 else set()), f"import ended with {code} and gave {len(found)} lines")


def damaged_case(run: Run, number: int, places: dict[str, Originals], other: Originals) -> None:
    """Make one case and carry it out. Raises Broken."""
    rng, case = run.rng, run.folder / "case"
    shutil.rmtree(case, ignore_errors=True)
    what = rng.choice(("plain", "plain", "plain", "journal", "journal", "journal", "lines", "files"))
    place = places["journal" if what == "files" else "plain" if what == "lines" else what]
    shutil.copytree(place.folder, case)
    with Records(run.folder / "one.db") as one:
        one.add(some_record(0, seed=9))
        one.export_jsonl(case / "one.jsonl")
    store, journal = case / "records.db", case / "records.db-wal"
    if what == "files":
        kind = rng.choice(
            ("no journal", "no store", "empty store", "no memory", "other memory", "other journal")
        )
        if kind == "no journal":
            journal.unlink()
        elif kind == "no store":
            store.unlink()
        elif kind == "empty store":
            store.write_bytes(b"")
        elif kind == "no memory":
            (case / "records.db-shm").unlink()
        elif kind == "other memory":
            (case / "records.db-shm").write_bytes(rng.randbytes(1 << 15))
        else:
            shutil.copy(other.folder / "records.db-wal", journal)
        silent = kind == "no journal"
        try:
            attack_store(case, place.lines, silent, (store,) if kind == "other journal" else (store, journal))
        except Broken as error:
            raise Broken(f"case {number}: {kind}: {error}") from None
        return
    name = {"plain": "records.db", "lines": "lines.jsonl"}.get(what) or rng.choice(
        ("records.db", "records.db-wal")
    )
    damage = rng.choice(DAMAGES)
    data = bytearray((case / name).read_bytes())
    size, before = len(data), bytes(data)
    end = damage(data, rng)
    (case / name).write_bytes(data)
    told = f"case {number}: {damage.__name__} of {name} ({what}), the last byte at {end} of {size}"
    try:
        if what == "lines":
            attack_lines(case, place.lines)
        else:
            silent = name.endswith("-wal") and end > size - TAIL_BYTES
            attack_store(case, place.lines, silent or bytes(data) == before, (store, journal))
    except Broken as error:
        raise Broken(f"{told}: {error}") from None


def damaged_records(run: Run) -> None:
    places = {
        "plain": originals(run.folder / "plain", 160, 0),
        "journal": originals(run.folder / "journal", 160, 60),
    }
    other = originals(run.folder / "other", 12, 12, seed=5)
    for number in run:
        try:
            damaged_case(run, number, places, other)
        except Broken as error:
            run.fails(str(error))
        else:
            run.passed()


ATTACKS = (
    Attack(
        name="damaged-records",
        what="a store, its journal or exported lines are flipped, cut, zeroed, swapped or replaced",
        cases=1200,
        sample=20,
        run=damaged_records,
    ),
)
