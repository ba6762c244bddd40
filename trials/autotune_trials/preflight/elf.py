"""What a shared object says of itself without being loaded: its machine, and the GPUs its kernels were built for.

Kernels lie in the section ``.nv_fatbin`` (relocatable ones in ``__nv_relfatbin``) as groups: a header with a magic
word and a size, then one entry per target with its kind (1 = PTX, 2 = machine code), size and architecture. NVIDIA
does not document that; it was compared with what ``cuobjdump`` lists of NCCL's library.
"""

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MACHINES = {62: "x86_64", 183: "aarch64"}
"""ELF machine numbers by the name that ``platform.machine()`` has for them."""

_FATBIN_SECTIONS = (b".nv_fatbin", b"__nv_relfatbin")
_FATBIN_MAGIC = 0xBA55ED50
_PTX, _CODE = 1, 2


class Target(NamedTuple):
    """One architecture that a library holds kernels for.

    Attributes:
        compute_capability: Major and minor number.
        ptx: Whether it is PTX, which the driver compiles for newer GPUs too.
    """

    compute_capability: tuple[int, int]
    ptx: bool


def machine(path: Path) -> str:
    """The processor that a shared object is for, as ``platform.machine()`` says it.

    Raises:
        ValueError: it is no 64-bit little-endian ELF file.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(20)
    if len(head) < 20 or head[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path} is not a shared object: it begins with {head[:6].hex() or 'nothing'}")
    number = struct.unpack_from("<H", head, 18)[0]
    return MACHINES.get(number, f"ELF machine {number}")


def targets(path: Path) -> frozenset[Target]:
    """Architectures that a shared object holds kernels for; empty when it holds none, or none that can be read.

    Raises:
        ValueError: it is no 64-bit little-endian ELF file.
        OSError: it cannot be read.
    """
    machine(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
        try:
            return frozenset(target for start, end in _fatbins(image) for target in _entries(image, start, end))
        except (struct.error, OverflowError, IndexError):  # cut off, or a layout that this reader does not know
            return frozenset()


def runs_on(found: frozenset[Target], compute_capability: tuple[int, int]) -> bool:
    """Whether one of the targets runs on a GPU: code of its own generation, or PTX that is not newer than it."""
    return any(
        target.compute_capability <= compute_capability
        and (target.ptx or target.compute_capability[0] == compute_capability[0])
        for target in found
    )


def _fatbins(image: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Where the sections with kernels begin and end."""
    table = struct.unpack_from("<Q", image, 0x28)[0]
    size, count, names = struct.unpack_from("<HHH", image, 0x3A)
    if not count:
        return
    sections = [struct.unpack_from("<IIQQQQ", image, table + index * size) for index in range(count)]
    names_at = sections[names][4]
    for name, _, _, _, start, length in sections:
        at = names_at + name
        if image[at : image.find(b"\0", at)] in _FATBIN_SECTIONS:
            yield start, start + length


def _entries(image: mmap.mmap, start: int, end: int) -> Iterator[Target]:
    at = start
    while at + 16 <= end:
        magic, _, header, length = struct.unpack_from("<IHHQ", image, at)
        if magic != _FATBIN_MAGIC:
            at += 8  # groups are aligned to eight bytes, with padding between them
            continue
        entry, group_end = at + header, min(at + header + length, end)
        while entry + 32 <= group_end:
            kind, _, entry_header, payload = struct.unpack_from("<HHIQ", image, entry)
            architecture = struct.unpack_from("<I", image, entry + 28)[0]
            if entry_header == 0:
                break
            if kind in (_PTX, _CODE):
                yield Target(divmod(architecture, 10), kind == _PTX)
            entry += entry_header + payload
        at = max(group_end, at + 8)
        at += -at % 8
