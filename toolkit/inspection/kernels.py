"""Which kernels a bundle or a records store holds: operators with the configuration that was found for each.

Both name an operator by its key alone; what it computes is kept beside the records of its tuning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from boards.description import Board
from boards.target import Target
from cross.errors import ScheduleError
from cross.expression import Operator
from cross.expression.language.description import from_json
from cross.loopnest.program import Programs
from cross.schedule.choose import space_of
from cross.schedule.space import Configuration
from toolkit.bundle.container import MAGIC
from toolkit.bundle.sign import PublicKey
from toolkit.bundle.verify import open_bundle
from toolkit.errors import InputError
from toolkit.measure.peak import load_board
from toolkit.model.labels import short_name
from toolkit.records import Records, TuningRecord
from toolkit.tuning.on_board import target_key
from toolkit.version import TOOL_VERSION

SLOWEST: Final = "slowest"


class FoundKernel(msgspec.Struct, frozen=True):
    """An operator on a board and the configuration of its kernel, as `ScheduleSpace.describe` wrote it.

    `layers`: nodes of the model, for a bundle. `tuned`: chosen from measurements. `space_key` is empty for
    a bundle, which does not say it.
    """

    board: Board
    target: Target
    operator: Operator
    operator_key: str
    layers: tuple[str, ...]
    configuration: dict[str, Any]
    seconds: float | None
    tuned: bool
    records: Path
    """Where its trials are recorded."""
    space_key: str = ""

    @property
    def name(self) -> str:
        """For people: `conv 3x3 55x55 16->64`."""
        return short_name(self.operator)

    def trials(self) -> list[TuningRecord]:
        """What was recorded of its operator on the target, by this version of the tool."""
        here = (self.operator_key, target_key(self.board.name, self.target), TOOL_VERSION)
        with Records(self.records, read_only=True) as store:
            return [
                record
                for key, _ in store.keys()  # noqa: SIM118 - not a mapping
                if (key.operator_key, key.target_key, key.tool_version) == here
                and self.space_key in ("", key.space_key)
                for record in store.for_key(key)
            ]

    def programs(self) -> tuple[Programs, Configuration]:
        """The programs of its schedule space, with or without Winograd's algorithms, and its configuration.

        Raises InputError where no space of this version holds the configuration.
        """
        reason = "another schedule space"
        for winograd in (True, False):
            space = space_of(self.operator, self.target, winograd=winograd)
            if self.space_key in ("", space.key):
                try:
                    return Programs(space), space.parse(self.configuration)
                except ScheduleError as error:
                    reason = str(error)
        raise InputError(
            f"{self.name}: its configuration is none of this version's schedule space on target "
            f"{self.target.name} of board {self.board.name}: {reason}; tune the operator again"
        )


def found_kernels(
    path: Path | str,
    records: Path | str,
    trusted: Sequence[PublicKey],
    *,
    board: Board | None = None,
    target: str = "",
) -> tuple[FoundKernel, ...]:
    """The kernels of a bundle, for which `records` knows the operators, or of a records store itself.

    A bundle names its board; a store needs one. `target` is one of the board's: by default a bundle's first
    variant, of a store the target with the highest peak.

    Raises InputError, RecordsError, BoardError, VerificationError.
    """
    path, records = Path(path), Path(records)
    try:
        with path.open("rb") as stream:
            is_bundle = stream.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise InputError(
            f"{path} cannot be opened: {error.strerror}; name a bundle or a records file"
        ) from error
    if is_bundle:
        return tuple(_of_bundle(path, records, trusted, board, target))
    if board is None:
        raise InputError(f"{path} holds records of any board: name one with --board")
    return tuple(_of_records(path, board, board.target(target or None)))


def _of_bundle(
    path: Path, records: Path, trusted: Sequence[PublicKey], board: Board | None, name: str
) -> Iterator[FoundKernel]:
    bundle = open_bundle(path, trusted)
    board = board or load_board(bundle.manifest.compatibility.boards[0], to_run=False)
    variant = bundle.variant(name)
    target = board.target(variant.target)
    if target.key != variant.target_key:
        raise InputError(
            f"{path} was made for {variant.target_key}, target {target.name} of board {board.name} is "
            f"{target.key}: name the board that it was tuned on with --board"
        )
    with Records(records, read_only=True) as store:
        known = {line.operator_key: line.description for line in store.operators()}
    for kernel in {kernel.operator_key: kernel for kernel in variant.kernels}.values():
        if kernel.operator_key not in known:
            raise InputError(
                f"{records} does not know the operator {kernel.operator or kernel.operator_key} of {path}: "
                "name the records that it was tuned with by --records"
            )
        yield FoundKernel(
            board=board,
            target=target,
            operator=from_json(known[kernel.operator_key]),
            operator_key=kernel.operator_key,
            layers=kernel.layers,
            configuration=kernel.configuration,
            seconds=kernel.seconds,
            tuned=kernel.tuned,
            records=records,
        )


def _of_records(path: Path, board: Board, target: Target) -> Iterator[FoundKernel]:
    """The fastest record of each operator on the target, by this version of the tool."""
    with Records(path, read_only=True) as store:
        known = {line.operator_key: line.description for line in store.operators()}
        for key, _ in store.keys():  # noqa: SIM118 - not a mapping
            here = (key.target_key, key.tool_version) == (target_key(board.name, target), TOOL_VERSION)
            best = store.best(key) if here and key.operator_key in known else None
            if best is not None:
                yield FoundKernel(
                    board=board,
                    target=target,
                    operator=from_json(known[key.operator_key]),
                    operator_key=key.operator_key,
                    layers=(),
                    configuration=best.configuration,
                    seconds=best.cost_s,
                    tuned=True,
                    records=path,
                    space_key=key.space_key,
                )


def chosen_kernel(found: Sequence[FoundKernel], wanted: str) -> FoundKernel:
    """The one that `wanted` names: its number in the list from 1, a layer, or the beginning of its key.

    "slowest" is the one whose calls together take longest. Raises InputError for none, and for several.
    """
    if wanted == SLOWEST and found:
        return max(found, key=lambda item: (item.seconds or 0.0) * max(1, len(item.layers)))
    if wanted.isdigit() and 1 <= int(wanted) <= len(found):
        return found[int(wanted) - 1]
    matching = [item for item in found if wanted in item.layers or item.operator_key.startswith(wanted)]
    if len(matching) == 1 and wanted:
        return matching[0]
    raise InputError(
        f"--operator {wanted!r} names {len(matching) if wanted else 'no one'} of {len(found)} operators: "
        f"expected a number from 1 to {len(found)}, the name of a layer, the beginning of a key, or {SLOWEST}"
    )
