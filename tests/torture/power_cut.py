"""What a disk may hold after a power cut: a model of a file system that keeps only what was synced.

`recorded` reads the log of io_shim.c. A Disk applies its records one by one; `cut` then builds one of the
states that the disk may be in: names changed since the last fsync of their directory are lost or not, each on
its own and in any order; bytes written since the last fsync of their file are there, lost or torn. A rename
within a directory is one change; one between two is lost as a whole while neither is synced.
"""

from __future__ import annotations

import copy
import os
import random
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

HEADER: Final = struct.Struct("<8sQqII")  # struct record of io_shim.c
KEPT: Final = ("all", "nothing", "names", "bytes", "some")  # of what was not synced


@dataclass(frozen=True, slots=True)
class Record:
    """One change: `path` and `inode` of what is changed; `data` is what is written, a link's target, or a
    rename's source."""

    what: str
    inode: int
    offset: int
    path: str
    data: bytes


def recorded(log: Path) -> list[Record]:
    """The records of a log, in their order."""
    found, data, at = [], log.read_bytes(), 0
    while at < len(data):
        what, inode, offset, first, second = HEADER.unpack_from(data, at)
        at += HEADER.size
        path = data[at : at + first].decode()
        found.append(
            Record(what.rstrip(b"\0").decode(), inode, offset, path, data[at + first : at + first + second])
        )
        at += first + second
    return found


@dataclass(eq=False)
class File:
    """`synced` bytes, and the bytes with what was written since."""

    synced: bytes = b""
    now: bytes = b""

    def cut(self, kept: str, rng: random.Random) -> bytes:
        """What may be there."""
        if self.now == self.synced or kept in ("all", "bytes"):
            return self.now
        if kept == "nothing":
            return self.synced
        torn = self.now[: rng.randint(0, len(self.now))]
        return rng.choice([self.synced, b"", torn, torn.ljust(len(self.now), b"\0")])


@dataclass(eq=False)
class Link:
    """A symbolic link."""

    target: str


@dataclass(eq=False)
class Change:
    """Names that a directory gets (None: loses) at once; `other`: the other half of a rename between two."""

    names: dict[str, Node | None]
    other: Change | None = None


@dataclass(eq=False)
class Folder:
    """Names at the last fsync, and the changes since."""

    synced: dict[str, Node] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)

    def now(self) -> dict[str, Node]:
        """The names that a running system sees."""
        return _changed(self.synced, self.changes)


Node = File | Link | Folder


class Disk:
    """The folder at `root` on a disk, all of it synced."""

    def __init__(self, root: Path) -> None:
        self.path = str(root)
        self.root = _read(root)
        self._files: dict[int, File] = {}
        self._inodes(root, self.root)

    def copy(self) -> Disk:
        """Another disk, on which the same can happen once more."""
        return copy.deepcopy(self)

    def _inodes(self, path: Path, node: Node) -> None:
        if isinstance(node, File):
            self._files[path.stat().st_ino] = node
        elif isinstance(node, Folder):
            for name, child in node.synced.items():
                self._inodes(path / name, child)

    def apply(self, record: Record) -> None:
        """Do what the record says."""
        if record.what == "write":
            file = self._files[record.inode]
            before = file.now.ljust(record.offset, b"\0")
            file.now = before[: record.offset] + record.data + before[record.offset + len(record.data) :]
        elif record.what == "cut":
            file = self._files[record.inode]
            file.now = file.now[: record.offset].ljust(record.offset, b"\0")
        elif record.what == "fsync":
            self._sync(record)
        elif record.what == "rename":
            self._rename(record.data.decode(), record.path)
        else:
            self._name(record)

    def _name(self, record: Record) -> None:
        folder, name = self._parent(record.path)
        made: dict[str, Node | None] = {
            "create": File(),
            "mkdir": Folder(),
            "symlink": Link(record.data.decode()),
            "unlink": None,
        }
        node = made[record.what]
        if isinstance(node, File):
            self._files[record.inode] = node
        folder.changes.append(Change({name: node}))

    def _rename(self, old: str, new: str) -> None:
        (source, old_name), (target, new_name) = self._parent(old), self._parent(new)
        node = source.now()[old_name]
        if source is target:
            source.changes.append(Change({old_name: None, new_name: node}))
            return
        gone, there = Change({old_name: None}), Change({new_name: node})
        gone.other, there.other = there, gone
        source.changes.append(gone)
        target.changes.append(there)

    def _sync(self, record: Record) -> None:
        node = self._files.get(record.inode)
        if node is not None and self._node(record.path) is node:
            node.synced = node.now
            return
        folder = self._node(record.path)
        assert isinstance(folder, Folder), record
        folder.synced = folder.now()
        for change in folder.changes:
            if change.other is not None:
                change.other.other = (
                    None  # from now on on its own; a name may be there twice, but never not at all
                )
        folder.changes.clear()

    def _node(self, path: str) -> Node:
        node: Node = self.root
        for name in path.removeprefix(self.path).strip("/").split("/"):
            if name:
                assert isinstance(node, Folder), path
                node = node.now()[name]
        return node

    def _parent(self, path: str) -> tuple[Folder, str]:
        folder, _, name = path.rpartition("/")
        node = self._node(folder)
        assert isinstance(node, Folder), path
        return node, name

    # ------------------------------------------------------------------------------------------ power cuts

    def cut(self, kept: str, rng: random.Random, target: Path) -> None:
        """Write to the new folder `target` what may be on the disk when the power goes now.

        `kept` of what was not synced: all, nothing, only names or only bytes, or some of it by chance.
        """
        chosen: dict[int, bool] = {}

        def survives(change: Change) -> bool:
            if kept in ("all", "names"):
                return True
            if kept in ("nothing", "bytes"):
                return False
            if change.other is not None and id(change.other) in chosen:
                return chosen[id(change.other)]
            return chosen.setdefault(id(change), rng.random() < 0.5)

        def write(node: Node, path: Path) -> None:
            if isinstance(node, Link):
                path.symlink_to(node.target)
            elif isinstance(node, File):
                path.write_bytes(node.cut(kept, rng))
            else:
                path.mkdir()
                changes = [change for change in node.changes if survives(change)]
                if kept == "some" and rng.random() < 0.5:
                    rng.shuffle(changes)
                for name, child in sorted(_changed(node.synced, changes).items()):
                    write(child, path / name)

        write(self.root, target)


def _changed(names: dict[str, Node], changes: list[Change]) -> dict[str, Node]:
    found = dict(names)
    for change in changes:
        for name, node in change.names.items():
            found.pop(name, None)
            if node is not None:
                found[name] = node
    return found


def _read(path: Path) -> Folder:
    folder = Folder()
    for entry in sorted(path.iterdir()):
        if entry.is_symlink():
            folder.synced[entry.name] = Link(os.readlink(entry))
        elif entry.is_dir():
            folder.synced[entry.name] = _read(entry)
        else:
            data = entry.read_bytes()
            folder.synced[entry.name] = File(data, data)
    return folder
