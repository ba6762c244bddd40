"""Shared objects made of nothing but what a reader looks at: an ELF header, and kernels by architecture."""

import struct
from collections.abc import Sequence


def fatbin(entries: Sequence[tuple[int, int]]) -> bytes:
    """One group of kernels: (kind, architecture) each, with a payload of sixteen bytes."""
    body = b"".join(
        struct.pack("<HHIQ", kind, 257, 64, 16) + bytes(12) + struct.pack("<I", architecture) + bytes(32 + 16)
        for kind, architecture in entries
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def shared_object(*groups: bytes, section: bytes = b".nv_fatbin", machine: int = 62) -> bytes:
    """A 64-bit little-endian ELF file whose one section beside the names holds the groups."""
    names = b"\0" + section + b"\0.shstrtab\0"
    content = b"".join(group + bytes(-len(group) % 8) for group in groups)
    names_at = 64
    content_at = names_at + len(names) + -(names_at + len(names)) % 8
    table_at = content_at + len(content)
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHI", 3, machine, 1) + bytes(16)
    header += struct.pack("<QIHHHHHH", table_at, 0, 64, 0, 0, 64, 3, 2)
    table = bytes(64)
    for name, at, size in ((1, content_at, len(content)), (2 + len(section), names_at, len(names))):
        table += struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, at, size, 0, 0, 8, 0)
    return header + names + bytes(content_at - names_at - len(names)) + content + table
