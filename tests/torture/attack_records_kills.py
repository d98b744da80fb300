"""kill -9 of what writes records: of the tuner at any moment, and of writers beside others and readers.

The processes are forked from one that has imported everything (multiprocessing's fork server), so that a kill
costs a second and not an import.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import time
import traceback
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from tests.loopback import tuning_process
from tests.torture.attack import Attack, Run
from toolkit.records import RecordKey, Records, TuningRecord, check_records

TRIALS = 48  # of a tuning run, and what it may take at most
TUNED_S = 120.0
KILLS = 12  # of one store, before it is looked at as a whole
GROUP = 3  # records of one transaction
KILLED_EVERY_S = 0.25  # at most, a writer
PAUSE_S = 0.01  # of a writer: the store should not grow too large to be read again and again
STILL_S = 60.0  # without a word from a reader or writer: too long

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["tests.torture.attack_records_kills"])


def started(said: Path, target: Any, *arguments: object) -> ForkServerProcess:
    """A process that says what it did into a file, and why it ended."""
    said.touch()
    process = FORKED.Process(target=_saying, args=(str(said), target, arguments))
    process.start()
    return process


def _saying(said: str, target: Any, arguments: tuple[object, ...]) -> None:
    file = os.open(said, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    try:
        target(*arguments)
    except BaseException:  # said whatever it is, and raised again
        print("error", traceback.format_exc().replace("\n", " | "), flush=True)
        raise


def words_in(said: Path) -> list[list[str]]:
    """The whole lines of what a process said: a killed one may leave a part."""
    return [line.split() for line in said.read_text().split("\n")[:-1]]


# -- the tuner ----------------------------------------------------------------------------------------------


def tuned(path: Path) -> tuple[list[tuple[str, int]], str]:
    """Operators and trials in a store, and what is wrong with them."""
    names = {tuning_process.small_dense().key: "dense", tuning_process.small_dense(rows=24).key: "other"}
    damage = check_records(path).damage
    with Records(path, read_only=True) as records:
        found = list(records)
    trials = [(names[record.operator_key], record.trial) for record in found]
    tried = {(record.operator_key, str(record.configuration)) for record in found}
    if damage:
        return trials, f"the store is damaged: {damage}"
    if len(tried) < len(found):
        return trials, f"{len(found) - len(tried)} configurations were measured twice"
    for name in names.values():
        numbers = [trial for operator, trial in trials if operator == name]
        if numbers != list(range(len(numbers))):
            return trials, f"trials of {name} are numbered {numbers}"
    failures = [record.error_text for record in found if record.error_kind]
    return trials, f"trials failed: {failures[:3]}" if failures else ""


def tuner_kills(run: Run) -> None:
    for store in itertools.count():
        if run.count >= run.cases:
            return
        folder = run.folder / f"store-{store}"
        folder.mkdir()
        kill_one_tuner(run, folder)


def kill_one_tuner(run: Run, folder: Path) -> None:
    """Tuning runs of one store, each killed; the last one finishes, and one more has nothing to do."""
    path, device = folder / "records.db", folder / "device"
    acknowledged: set[tuple[str, int]] = set()
    for kill in range(min(KILLS, run.cases - run.count)):
        said = folder / f"said-{kill}"
        tuner = started(said, tuning_process.main, str(path), str(device), str(TRIALS))
        wanted = run.rng.randrange(6)  # trials before it, none: while it begins
        deadline_s = time.monotonic() + TUNED_S
        while len(words_in(said)) < wanted and tuner.is_alive() and time.monotonic() < deadline_s:
            time.sleep(0.005)
        time.sleep(run.rng.uniform(0.0, 0.05 if wanted else 1.0))
        tuner.kill()
        tuner.join()
        lines = words_in(said)
        again = acknowledged & {(name, int(trial)) for name, trial, *_ in lines if name != "error"}
        acknowledged |= {(name, int(trial)) for name, trial, *_ in lines if name != "error"}
        trials, wrong = tuned(path) if path.exists() and path.stat().st_size else ([], "")
        lost = acknowledged - set(trials)
        if len(trials) > len(acknowledged) + kill + 1:
            wrong = f"{len(trials)} records, {len(acknowledged)} acknowledged after {kill + 1} kills"
        wrong = wrong or "".join(" ".join(line) for line in lines if line[0] == "error")
        run.check(
            not lost and not again and not wrong,
            f"{folder.name}, kill {kill}: lost {sorted(lost)}, again {sorted(again)}, {wrong}",
        )
    for name in ("said-last", "said-again"):
        tuner = started(folder / name, tuning_process.main, str(path), str(device), str(TRIALS))
        tuner.join(TUNED_S)
        ended = tuner.exitcode
        tuner.kill()
        trials, wrong = tuned(path)
        said = (
            {(operator, int(trial)) for operator, trial, *_ in words_in(folder / name)}
            if ended == 0
            else set()
        )
        if (
            ended != 0
            or wrong
            or len(trials) != TRIALS
            or said & acknowledged
            or not acknowledged <= set(trials)
            or {operator for operator, _ in trials} != {"dense", "other"}
        ):
            run.fails(f"{folder.name}, {name}: ended with {ended}, {len(trials)} trials, {wrong}")
        acknowledged |= said


# -- writers and readers ------------------------------------------------------------------------------------


def group(writer: int, number: int) -> list[TuningRecord]:
    """The records of one transaction, of one operator; their content follows from writer and number."""
    rng = random.Random(f"{writer} {number}")
    return [
        TuningRecord(
            operator_key=f"dense/{writer % 5}",
            target_key="t",
            space_key="s",
            tool_version="1",
            configuration={"number": number, "part": part, "noise": rng.random()},
            seconds=(1e-3 + rng.random(),),
            facts={"long": "x" * rng.choice((10, 10, 10, 6000))},
            timestamp_s=float(number),
            seed=writer,
            trial=part,
        )
        for part in range(GROUP)
    ]


def write(path: str, writer: int) -> None:
    """Add groups until it is killed; some by a file of lines. Opens the store anew now and then."""
    for number in itertools.count():
        if number % 10 == 0:
            records = Records(path)
        if number % 10 == 3:
            with Records(f"{path}.{writer}") as other:
                other.add(*group(writer, number))
                other.export_jsonl(f"{path}.{writer}.jsonl")
            os.unlink(f"{path}.{writer}")
            records.import_jsonl(f"{path}.{writer}.jsonl")
        else:
            records.add(*group(writer, number))
        print(writer, number, flush=True)
        time.sleep(PAUSE_S)
        if number % 10 == 9:
            records.close()


def complete_groups(found: list[TuningRecord]) -> set[tuple[int, int]]:
    """Writers and numbers of the groups; raises AssertionError for a part of one, or another content."""
    parts = {(item.seed, item.configuration["number"], item.trial): item for item in found}
    assert len(parts) == len(found), "a record is there twice"
    groups = {(writer, number) for writer, number, _ in parts}
    for writer, number in groups:
        assert [parts.get((writer, number, part)) for part in range(GROUP)] == group(writer, number), (
            f"group {number} of writer {writer} is not as it was written"
        )
    return groups


def read(path: str, reader: int) -> None:
    """Read until it is killed: by key, all, and exported; what was there is there for ever."""
    known: set[tuple[int, int]] = set()
    key = RecordKey(f"dense/{reader % 5}", "t", "s", "1")
    for number in itertools.count():
        with Records(path, read_only=True) as records:
            for _ in range(3):
                complete_groups(records.for_key(key))
                found = complete_groups(list(records))
                assert known <= found, f"{len(known - found)} groups were there and are not"
                known = found
                print("read", len(found), flush=True)
            if number % 5 == reader:
                records.export_jsonl(f"{path}.read-{reader}.jsonl")


def records_writers(run: Run) -> None:
    for store in itertools.count():
        if run.count >= run.cases:
            return
        folder = run.folder / f"store-{store}"
        folder.mkdir()
        kill_writers(run, folder)


def kill_writers(run: Run, folder: Path) -> None:
    """8 writers and 4 readers of one store; a writer is killed, another begins; at the end all are."""
    path, numbers = folder / "records.db", itertools.count()
    Records(path).close()

    def new_writer() -> tuple[Path, ForkServerProcess]:
        number = next(numbers)
        said = folder / f"writer-{number}"
        return said, started(said, write, str(path), number)

    readers = [
        (folder / f"reader-{n}", started(folder / f"reader-{n}", read, str(path), n)) for n in range(4)
    ]
    writers, killed = [new_writer() for _ in range(8)], []
    try:
        wait_for_words([said for said, _ in (*readers, *writers)])
        for _ in range(min(KILLS, run.cases - run.count)):
            time.sleep(run.rng.uniform(0.0, KILLED_EVERY_S))
            said, process = writers.pop(run.rng.randrange(len(writers)))
            process.kill()
            process.join()
            killed.append(said)
            writers.append(new_writer())
            run.passed()
        wait_for_words([said for said, _ in (*readers, *writers)])
    finally:
        for _, process in (*writers, *readers):
            process.kill()
            process.join()
    wrote = [words_in(said) for said in (*killed, *(said for said, _ in writers))]
    errors = [
        " ".join(line)
        for lines in (*wrote, *(words_in(said) for said, _ in readers))
        for line in lines
        if line[0] == "error"
    ]
    acknowledged = {(int(line[0]), int(line[1])) for lines in wrote for line in lines if line[0] != "error"}
    damage = check_records(path).damage
    with Records(path, read_only=True) as records:
        found = complete_groups(list(records))
    if errors or damage or not acknowledged <= found:
        run.fails(f"{folder.name}: lost {sorted(acknowledged - found)}, damage {damage}, {errors}")


def wait_for_words(files: list[Path]) -> None:
    """Until each has something to say; after STILL_S it waits for what does not come."""
    deadline_s = time.monotonic() + STILL_S
    for said in files:
        before = said.stat().st_size
        while said.stat().st_size == before:
            if time.monotonic() > deadline_s:
                raise AssertionError(f"{said.name} said nothing for {STILL_S} s, after {words_in(said)[-3:]}")
            time.sleep(0.01)


ATTACKS = (
    Attack(
        name="tuner-kills",
        what="the tuner is killed at a random moment, and resumed",
        cases=200,
        sample=6,
        run=tuner_kills,
    ),
    Attack(
        name="records-writers",
        what="one of 8 writers beside 4 readers is killed at a random moment",
        cases=200,
        sample=6,
        run=records_writers,
    ),
)
