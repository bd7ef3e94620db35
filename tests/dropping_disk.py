"""`DroppingDisk`: a real folder; a power loss keeps what was synced, and any part of the rest.

    pwrite, fallocate, truncate    pending of the file    -- fsync, fdatasync of it -->  durable
    create, rename, link, remove   pending of its folder  -- fsync of the folder ----->  durable

It stands in front of the functions of `os`, so that whoever writes below `root` goes through it,
whatever file the code is in. The folder itself holds what a running process sees, the page cache;
beside it, this object knows what is durable and what is pending. What reaches the folder by another
way is found by `check_complete`.

A power loss keeps, independently of each other,
- of each sector of a file what it had when the file was synced, or after any later write;
- of a file's length that of then, or of any time since;
- of the changes of names in a folder any subset, in their order. A rename is one change.

That is what POSIX allows and more than journaling file systems do: those keep the order of changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

SECTOR_BYTES = 512
#: Stands for a file's length, where sectors have numbers.
LENGTH = -1


@dataclass(eq=False, slots=True)
class File:
    """`pending` are the writes since the last sync, oldest first: (offset, bytes), or a new length
    as (length, None)."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)

    def sync(self) -> None:
        self.durable = self.content()
        self.pending.clear()

    def content(self) -> bytearray:
        """The content for a running process."""
        content = bytearray(self.durable)
        for at, data in self.pending:
            _apply(content, at, data)
        return content

    def surviving(self, loss: Loss) -> bytearray:
        """The content after a power loss."""
        if not self.pending:
            return bytearray(self.durable)
        kept = loss.kept_writes(len(self.pending))
        content = bytearray(self.durable)
        if isinstance(kept, int):
            for at, data in self.pending[:kept]:
                _apply(content, at, data)
            return content
        length = len(content)
        for number, (at, data) in enumerate(self.pending):
            end = at if data is None else at + len(data)
            if number < kept(LENGTH):
                length = end if data is None else max(length, end)
            if data is None and end < len(content):
                data, end = bytes(len(content) - end), len(content)
            elif end > len(content):
                _apply(content, end, None)
            for begin, until in _sectors(at, end) if data else ():
                if number < kept(begin // SECTOR_BYTES):
                    content[begin:until] = data[begin - at : until - at]
        _apply(content, length, None)
        return content


@dataclass(eq=False, slots=True)
class Folder:
    """`pending` are changes of names, each atomic: the new target of a name, or None."""

    durable: dict[str, File | Folder] = field(default_factory=dict)
    pending: list[dict[str, File | Folder | None]] = field(default_factory=list)
    #: The names for a running process.
    entries: dict[str, File | Folder] = field(default_factory=dict)

    def change(self, names: dict[str, File | Folder | None]) -> None:
        self.pending.append(names)
        _change(self.entries, names)

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.pending.clear()

    def surviving(self, loss: Loss) -> Folder:
        """The tree after a power loss, all of it durable."""
        entries = dict(self.durable)
        for names in self.pending:
            if loss.keeps_change():
                _change(entries, names)
        after = {
            name: File(node.surviving(loss)) if isinstance(node, File) else node.surviving(loss)
            for name, node in entries.items()
        }
        return Folder(after, [], dict(after))


class Loss:
    """The pending changes that a power loss keeps: by default none, or all."""

    def __init__(self, *, keeps_data: bool = False, keeps_names: bool = False) -> None:
        self.keeps_data = keeps_data
        self.keeps_names = keeps_names

    def __repr__(self) -> str:
        return f"Loss(keeps_data={self.keeps_data}, keeps_names={self.keeps_names})"

    def kept_writes(self, writes: int) -> int | Callable[[int], int]:
        """How many of the pending writes of a file are kept; or how many of those of a sector, and
        of the file's length (LENGTH)."""
        return writes if self.keeps_data else 0

    def keeps_change(self) -> bool:
        return self.keeps_names


class RandomLoss(Loss):
    """Each file is treated separately: all lost, all kept, the first writes kept, or each sector
    separately; the names, too."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._random = Random(f"loss {seed}")
        self._kept_names = self._random.choice((0.0, 0.5, 0.5, 1.0))

    def __repr__(self) -> str:
        return f"RandomLoss({self._seed})"

    def kept_writes(self, writes: int) -> int | Callable[[int], int]:
        random, chosen = self._random, dict[int, int]()
        fate = random.randrange(4)
        choices = (0, writes, random.randint(0, writes))
        if fate < 3:
            return choices[fate]
        return lambda sector: chosen.setdefault(sector, random.choice(choices))

    def keeps_change(self) -> bool:
        return self._random.random() < self._kept_names


#: The corner cases; everything else is random.
LOSSES = tuple(
    Loss(keeps_data=data, keeps_names=names) for data in (False, True) for names in (False, True)
)


class DroppingDisk:
    """`with disk.watching():` every change below `root` goes through it. The initial content is
    durable. `before` is called with the name of each call that changes or syncs something, and its
    path, before it happens; it may raise."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.before: Callable[[str, str], None] = lambda call, path: None
        self._tree = _read_tree(root)
        self._descriptors: dict[int, tuple[File | Folder, str]] = {}
        self._real: dict[str, Any] = {}
        self._is_aside = False

    # ---- power losses

    def surviving(self, loss: Loss, path: Path | None = None) -> Folder:
        """The remaining tree, or the remaining folder `path` in it."""
        return self._folder(str(path or self.root)).surviving(loss)

    def lose_power(self, loss: Loss, path: Path | None = None) -> None:
        """The folder gets the remaining content. All processes with open files have ended."""
        target = str(path or self.root)
        folder = self._folder(target)
        after = folder.surviving(loss)
        self._is_aside = True
        _rewrite(Path(target), folder.entries, after)
        self._is_aside = False
        folder.durable, folder.entries, folder.pending = after.durable, after.entries, []

    def check_complete(self) -> None:
        """The folder has exactly the content that this object expects."""
        found = _read_tree(Path(self.root))
        _check_same(self.root, self._tree, found)

    def find(self, path: Path) -> File | Folder | None:
        """The file or folder at a path, as a running process sees it."""
        return self._find(str(path))

    def flip(self, path: Path, offset: int, bits: int) -> None:
        """Flip bits of a byte of a file, on the disk and in the page cache."""
        file = self._find(str(path))
        assert isinstance(file, File)
        assert not any(at <= offset < at + len(data or b"") for at, data in file.pending)
        file.durable[offset] ^= bits
        with path.open("r+b") as real:
            real.seek(offset)
            real.write(bytes([file.durable[offset]]))

    # ---- replacements of system calls

    @contextmanager
    def watching(self) -> Iterator[DroppingDisk]:
        stand_ins = {
            name.removeprefix("_os_"): getattr(self, name)
            for name in dir(self)
            if name.startswith("_os_")
        }
        self._real = {name: getattr(os, name) for name in stand_ins}
        try:
            for name, stand_in in stand_ins.items():
                setattr(os, name, stand_in)
            yield self
        finally:
            for name, real in self._real.items():
                setattr(os, name, real)
            self._descriptors.clear()

    def _os_open(self, path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
        name = self._below(path, options)
        if name is None:
            return int(self._real["open"](path, flags, mode, **options))
        is_new = flags & os.O_CREAT and self._find(name) is None
        if is_new or flags & os.O_TRUNC:
            self.before("open", name)
        fd = int(self._real["open"](path, flags, mode, **options))
        folder, entry = self._parent(name)
        if is_new:
            folder.change({entry: File()})
        node = self._tree if name == self.root else folder.entries[entry]
        if flags & os.O_TRUNC and isinstance(node, File):
            node.pending.append((0, None))
        self._descriptors[fd] = node, name
        return fd

    def _os_close(self, fd: int) -> None:
        self._descriptors.pop(fd, None)
        self._real["close"](fd)

    def _os_pwrite(self, fd: int, data: Any, offset: int) -> int:
        found = self._file(fd, "pwrite")
        written = int(self._real["pwrite"](fd, data, offset))
        if found is not None:
            found.pending.append((offset, bytes(data[:written])))
        return written

    def _os_posix_fallocate(self, fd: int, offset: int, length: int) -> None:
        found = self._file(fd, "posix_fallocate")
        before = os.fstat(fd).st_size
        self._real["posix_fallocate"](fd, offset, length)
        if found is not None:
            found.pending.append((max(before, offset + length), None))

    def _os_ftruncate(self, fd: int, length: int) -> None:
        found = self._file(fd, "ftruncate")
        self._real["ftruncate"](fd, length)
        if found is not None:
            found.pending.append((length, None))

    def _os_fsync(self, fd: int) -> None:
        """Not called: the kernel's promise is not tested."""
        if fd not in self._descriptors:
            self._real["fsync"](fd)
            return
        node, name = self._descriptors[fd]
        self.before("fsync", name)
        node.sync()

    def _os_fdatasync(self, fd: int) -> None:
        """With the length, without which the data could not be read back."""
        if fd not in self._descriptors:
            self._real["fdatasync"](fd)
            return
        node, name = self._descriptors[fd]
        self.before("fdatasync", name)
        node.sync()

    def _os_mkdir(self, path: Any, *options: Any) -> None:
        name = self._below(path)
        if name is not None and self._find(name) is None:
            self.before("mkdir", name)
        self._real["mkdir"](path, *options)
        if name is not None:
            folder, entry = self._parent(name)
            folder.change({entry: Folder()})

    def _os_rename(self, old: Any, new: Any, **options: Any) -> None:
        name, new_name = self._below(old), self._below(new)
        if name is None and new_name is None:
            self._real["rename"](old, new, **options)
            return
        assert name is not None
        assert new_name is not None
        folder, entry = self._parent(name)
        new_folder, new_entry = self._parent(new_name)
        if entry in folder.entries:
            self.before("rename", new_name)
        self._real["rename"](old, new, **options)
        node = folder.entries[entry]
        if folder is new_folder:
            folder.change({entry: None, new_entry: node})
        else:  # two folders, so two changes
            new_folder.change({new_entry: node})
            folder.change({entry: None})

    def _os_replace(self, old: Any, new: Any, **options: Any) -> None:
        self._os_rename(old, new, **options)

    def _os_link(self, old: Any, new: Any, **options: Any) -> None:
        name, new_name = self._below(old), self._below(new)
        if new_name is not None:
            self.before("link", new_name)
        self._real["link"](old, new, **options)
        if name is not None and new_name is not None:
            folder, entry = self._parent(new_name)
            node = self._find(name)
            assert node is not None
            folder.change({entry: node})

    def _os_unlink(self, path: Any, **options: Any) -> None:
        self._remove("unlink", path, **options)

    def _os_remove(self, path: Any, **options: Any) -> None:
        self._remove("remove", path, **options)

    def _os_rmdir(self, path: Any, **options: Any) -> None:
        self._remove("rmdir", path, **options)

    def _remove(self, call: str, path: Any, **options: Any) -> None:
        name = self._below(path, options)
        if name is not None and self._find(name) is not None:
            self.before(call, name)
        self._real[call](path, **options)
        if name is not None:
            folder, entry = self._parent(name)
            folder.change({entry: None})

    # ---- names

    def _below(self, path: Any, options: Mapping[str, Any] = MappingProxyType({})) -> str | None:
        """The path, if it is below the root."""
        if isinstance(path, int) or self._is_aside:
            return None
        name = os.fspath(path)
        if options.get("dir_fd") is not None:
            name = f"{self._descriptors.get(options['dir_fd'], (None, ''))[1]}/{name}"
        if isinstance(name, str) and (name == self.root or name.startswith(self.root + "/")):
            return name
        return None

    def _find(self, name: str) -> File | Folder | None:
        node: File | Folder | None = self._tree
        for part in name[len(self.root) + 1 :].split("/"):
            if part:
                node = node.entries.get(part) if isinstance(node, Folder) else None
        return node

    def _folder(self, name: str) -> Folder:
        node = self._find(name)
        assert isinstance(node, Folder), name
        return node

    def _parent(self, name: str) -> tuple[Folder, str]:
        above, _, entry = name.rpartition("/")
        if name == self.root:
            return self._tree, ""
        return self._folder(above), entry

    def _file(self, fd: int, call: str) -> File | None:
        node, name = self._descriptors.get(fd, (None, ""))
        if node is None:
            return None
        assert isinstance(node, File)
        self.before(call, name)
        return node


def write_tree(folder: Folder, path: Path) -> None:
    """Write `folder` to a new path."""
    path.mkdir()
    _rewrite(path, {}, folder)


def _rewrite(path: Path, before: dict[str, File | Folder], after: Folder) -> None:
    """Change the content of a folder into another one; equal parts are not touched."""
    for name, node in before.items():
        if name not in after.entries or isinstance(node, File) != isinstance(
            after.entries[name], File
        ):
            _delete(path / name, node)
    for name, node in after.entries.items():
        was = before.get(name)
        if isinstance(node, File):
            if not (isinstance(was, File) and not was.pending and was.durable == node.durable):
                (path / name).write_bytes(node.durable)
        else:
            (path / name).mkdir(exist_ok=True)
            _rewrite(path / name, was.entries if isinstance(was, Folder) else {}, node)


def _delete(path: Path, node: File | Folder) -> None:
    if isinstance(node, Folder):
        for name, child in node.entries.items():
            _delete(path / name, child)
        path.rmdir()
    else:
        path.unlink()


def _read_tree(path: Path) -> Folder:
    entries: dict[str, File | Folder] = {}
    for child in path.iterdir():
        entries[child.name] = (
            _read_tree(child) if child.is_dir() else File(bytearray(child.read_bytes()))
        )
    return Folder(entries, [], dict(entries))


def _check_same(path: str, known: File | Folder | None, found: File | Folder | None) -> None:
    if isinstance(known, Folder) and isinstance(found, Folder):
        for name in known.entries.keys() | found.entries.keys():
            _check_same(f"{path}/{name}", known.entries.get(name), found.entries.get(name))
    elif isinstance(known, File) and isinstance(found, File):
        assert known.content() == found.durable, f"{path} was written by another way"
    else:
        raise AssertionError(f"{path} is {type(found).__name__}, not {type(known).__name__}")


def _change(entries: dict[str, File | Folder], names: dict[str, File | Folder | None]) -> None:
    for name, node in names.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def _apply(content: bytearray, at: int, data: bytes | None) -> None:
    """Write bytes at an offset; without bytes, `at` is the new length."""
    if data is None:
        if at < len(content):
            del content[at:]
        else:
            content.extend(bytes(at - len(content)))
        return
    if at > len(content):
        content.extend(bytes(at - len(content)))
    content[at : at + len(data)] = data


def _sectors(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """[begin, end) cut at the ends of sectors."""
    while begin < end:
        until = min(begin - begin % SECTOR_BYTES + SECTOR_BYTES, end)
        yield begin, until
        begin = until
