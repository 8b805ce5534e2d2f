#!/usr/bin/env python3
"""What somebody could do with old keys: a copy of the old master key and of the rows of the keyring from before a rotation.

    old_keys.py keep DATABASE_URL MASTER_KEY_FILE KEPT
    old_keys.py try DATABASE_URL HEAD SECRET TOKEN KEPT...

`keep` stores what a thief or an old backup has: the master key, the wrapped keys, every sealed secret and every hash of a token. `try` opens
the kept keys and uses them: first on what was kept, where they must open SECRET and find TOKEN, or the attempt would prove nothing; then on
what the database has now, where they must open nothing and find no token. It also signs a head with the newest old signing key and the time
of now, as JSON in the file HEAD: a verifier must refuse it. Prints how much was tried as one JSON object.
"""

import base64
import datetime
import hashlib
import hmac
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

MAGIC, KEY_ID_BYTES, NONCE_BYTES, TAG_BYTES = b"CYSEAL\0\x01", 16, 24, 16
FIRST_KEYS = {f"00000000-0000-8000-8000-00000000000{number}": purpose for number, purpose in ((1, "master"), (2, "signing"), (3, "token"))}
SEALED_COLUMNS = """
    SELECT c.table_name || '.' || c.column_name FROM information_schema.columns c
    WHERE c.table_schema = 'public' AND c.data_type = 'bytea' AND (c.column_name LIKE '%sealed%'
        OR c.table_name = 'project_remotes' AND c.column_name IN ('credential', 'webhook_secret'))
    ORDER BY 1"""
HASH_COLUMNS = """
    SELECT c.table_name || '.' || c.column_name FROM information_schema.columns c
    WHERE c.table_schema = 'public' AND c.data_type = 'bytea' AND c.column_name LIKE '%hash' AND EXISTS (
        SELECT FROM information_schema.columns k
        WHERE k.table_schema = 'public' AND k.table_name = c.table_name AND k.column_name = 'hash_key_id')
    ORDER BY 1"""
# The ciphers below are slow.
MAX_SECRETS = 500
MASK = 0xFFFFFFFF
WORD = 0xFFFFFFFFFFFFFFFF


def query(database, sql):
    done = subprocess.run(["psql", "-XAtq", database, "-c", sql], check=True, capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if line]


def read_columns(database, columns, limit="ALL"):
    """The values of every column of bytes, in hexadecimal, in an order that says nothing about them."""
    found = {}
    for name in query(database, columns):
        table, column = name.split(".")
        found[name] = query(database, f"SELECT encode({column}, 'hex') FROM {table} WHERE octet_length({column}) > 0 ORDER BY md5({column}) LIMIT {limit}")
    return found


def read_keys(database):
    rows = query(database, "SELECT key_id || ' ' || purpose || ' ' || encode(coalesce(wrapped, ''), 'hex') FROM installation_keys WHERE retired_at IS NULL")
    return [dict(zip(("id", "purpose", "wrapped"), row.split(" "), strict=True)) for row in rows]


def keep(database, master_file, kept):
    state = {
        "master": pathlib.Path(master_file).read_text(encoding="ascii").strip(),
        "keys": read_keys(database),
        "sealed": read_columns(database, SEALED_COLUMNS, MAX_SECRETS),
        "hashes": read_columns(database, HASH_COLUMNS),
    }
    pathlib.Path(kept).write_text(json.dumps(state), encoding="ascii")


# ChaCha20, XChaCha20 and Poly1305 (RFC 8439 and draft-irtf-cfrg-xchacha): no library of this machine has them all.


def rotate_left(value, count):
    return ((value << count) | (value >> (32 - count))) & MASK


def mix_block(state):
    """The twenty rounds of ChaCha."""
    x = list(state)
    for _ in range(10):
        for a, b, c, d in ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15), (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)):
            for left, right, turned, count in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                x[left] = (x[left] + x[right]) & MASK
                x[turned] = rotate_left(x[turned] ^ x[left], count)
    return x


def initial_state(key, last):
    return [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), *last]


def xchacha_stream(key, nonce, length):
    """The stream of XChaCha20 from its block 0 on."""
    mixed = mix_block(initial_state(key, struct.unpack("<4I", nonce[:16])))
    subkey = struct.pack("<8I", *mixed[:4], *mixed[12:])
    stream, counter = b"", 0
    while len(stream) < length:
        state = initial_state(subkey, [counter, 0, *struct.unpack("<2I", nonce[16:])])
        stream += struct.pack("<16I", *((mixed + own) & MASK for mixed, own in zip(mix_block(state), state, strict=True)))
        counter += 1
    return stream[:length]


def decrypt(key, nonce, sealed):
    """What the key makes of a text, without a look at its tag."""
    stream = xchacha_stream(key, nonce, 64 + len(sealed))[64:]
    return bytes(left ^ right for left, right in zip(sealed, stream, strict=True))


def poly1305(key, message):
    r, s = int.from_bytes(key[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF, int.from_bytes(key[16:], "little")
    total = 0
    for start in range(0, len(message), 16):
        total = (total + int.from_bytes(message[start : start + 16] + b"\1", "little")) * r % ((1 << 130) - 5)
    return ((total + s) & ((1 << 128) - 1)).to_bytes(16, "little")


def open_sealed(key, nonce, sealed, associated):
    """The text, or None if key, nonce and associated data are not those of its tag."""
    text, tag = sealed[:-TAG_BYTES], sealed[-TAG_BYTES:]

    def pad(part):
        return part + bytes(-len(part) % 16)

    message = pad(associated) + pad(text) + struct.pack("<QQ", len(associated), len(text))
    if not hmac.compare_digest(poly1305(xchacha_stream(key, nonce, 32), message), tag):
        return None
    return decrypt(key, nonce, text)


def threefish(key, tweak, block):
    """One block of Threefish-256, as a token's digest is stored."""
    rotations = ((14, 16), (52, 57), (23, 40), (5, 37), (25, 33), (46, 12), (58, 22), (32, 32))
    k, t = list(struct.unpack("<4Q", key)), list(struct.unpack("<2Q", tweak))
    k.append(0x1BD11BDAA9FC1A22 ^ k[0] ^ k[1] ^ k[2] ^ k[3])
    t.append(t[0] ^ t[1])
    v = list(struct.unpack("<4Q", block))

    def add_subkey(s):
        own = [k[(s + at) % 5] for at in range(4)]
        own[1], own[2], own[3] = own[1] + t[s % 3], own[2] + t[(s + 1) % 3], own[3] + s
        return [(word + part) & WORD for word, part in zip(v, own, strict=True)]

    for turn in range(72):
        if turn % 4 == 0:
            v = add_subkey(turn // 4)
        mixed = []
        for (left, right), count in zip(((v[0], v[1]), (v[2], v[3])), rotations[turn % 8], strict=True):
            left = (left + right) & WORD
            mixed += [left, (((right << count) | (right >> (64 - count))) & WORD) ^ left]
        v = [mixed[0], mixed[3], mixed[2], mixed[1]]
    return struct.pack("<4Q", *add_subkey(18))


def derive(master, label):
    return hmac.digest(master, label, "sha256")


def wrapping_context(key):
    return f"cynode/key/{key['purpose']}/{key['id']}".encode()


def unwrap(master, key):
    wrapped = bytes.fromhex(key["wrapped"])
    return open_sealed(derive(master, b"cynode/key-wrapping/v1"), wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], wrapping_context(key))


def open_keys(state):
    """The kept keys with their material: purpose, id and bytes."""
    master = bytes.fromhex(state["master"])
    first = {
        "master": derive(master, b"cynode/seal/v1"),
        "signing": derive(master, b"cynode/audit-signing/v1"),
        # The first key of tokens is none: the digest itself is stored.
        "token": None,
    }
    opened = []
    for key in state["keys"]:
        material = unwrap(master, key) if key["wrapped"] else first[key["purpose"]]
        if material is None and key["id"] not in FIRST_KEYS:
            raise SystemExit(f"the kept master key does not open the kept key {key['id']}: the attempt would prove nothing")
        opened.append((key["purpose"], key["id"], material))
    return opened


def split_sealed(value):
    """Nonce and rest of a sealed secret, whatever key it names."""
    header = len(MAGIC) + KEY_ID_BYTES
    rest = value[header:] if value.startswith(MAGIC) else value
    return rest[:NONCE_BYTES], rest[NONCE_BYTES:-TAG_BYTES]


def count_opened(sealing, columns, secret):
    """How many sealed secrets a key turns into one that holds this text."""
    values = [bytes.fromhex(value) for values in columns.values() for value in values]
    return sum(secret in decrypt(sealing, *split_sealed(value)) for value in values)


def count_token(material, is_first, columns, token):
    digest = hashlib.sha256(token).digest()
    stored = digest if is_first else threefish(material[:32], b"cynode/token/v1\0", digest)
    return sum(value == stored.hex() for values in columns.values() for value in values)


def sign_head(database, seed, key_id):
    """A head of the newest chain, signed now."""
    chain = query(database, "SELECT chain_id FROM audit_chains ORDER BY number DESC LIMIT 1")[0]
    at = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    root = head = bytes(32)
    micros = int(at.timestamp()) * 1_000_000
    payload = b"cynode/audit/checkpoint/v1\0" + bytes.fromhex(chain.replace("-", "")) + struct.pack(">Q", 1) + root + head
    payload += struct.pack(">q", micros) + b"\0"
    # PKCS #8 of an Ed25519 key.
    der = bytes.fromhex("302e020100300506032b657004220420") + seed
    with tempfile.TemporaryDirectory() as place:
        key, message = pathlib.Path(place, "key.pem"), pathlib.Path(place, "message")
        text = base64.encodebytes(der).decode()
        key.write_text(f"-----BEGIN PRIVATE KEY-----\n{text}-----END PRIVATE KEY-----\n", encoding="ascii")
        message.write_bytes(payload)
        command = ["openssl", "pkeyutl", "-sign", "-rawin", "-inkey", key, "-in", message]
        signature = subprocess.run(command, check=True, capture_output=True).stdout
    return {
        "chain": chain,
        "size": 1,
        "root": root.hex(),
        "head": head.hex(),
        "at": at.isoformat().replace("+00:00", "Z"),
        "closed": False,
        "signature": signature.hex(),
        "key_id": key_id,
    }


def attempt(database, head, secret, token, states):
    sealed, hashes = read_columns(database, SEALED_COLUMNS, MAX_SECRETS), read_columns(database, HASH_COLUMNS)
    keys = read_keys(database)
    old_keys, signing = 0, None
    for state in states:
        master = bytes.fromhex(state["master"])
        opened = open_keys(state)
        kept_open = sum(count_opened(material, state["sealed"], secret) for purpose, _, material in opened if purpose == "master")
        kept_known = sum(count_token(material, key in FIRST_KEYS, state["hashes"], token) for purpose, key, material in opened if purpose == "token")
        if not kept_open or not kept_known:
            raise SystemExit(f"the kept keys open {kept_open} kept secrets and find {kept_known} kept tokens: the attempt proves nothing")
        for purpose, key, material in opened:
            old_keys += 1
            if purpose == "master" and count_opened(material, sealed, secret):
                raise SystemExit(f"the old sealing key {key} opens a secret")
            if purpose == "token" and count_token(material, key in FIRST_KEYS, hashes, token):
                raise SystemExit(f"a token is still stored under the old key {key}")
            if purpose == "signing":
                signing = (material, key)
        for key in keys:
            if unwrap(master, key) is not None:
                raise SystemExit(f"an old master key opens the key {key['id']}")
    pathlib.Path(head).write_text(json.dumps(sign_head(database, *signing)), encoding="ascii")
    values = {name: len(column) for name, column in (sealed | hashes).items()}
    result = {"old_keys": old_keys, "columns": len(values), "columns_with_values": sum(map(bool, values.values())), "values": sum(values.values())}
    print(json.dumps(result))


def main():
    command, database, *rest = sys.argv[1:]
    if command == "keep":
        keep(database, *rest)
    else:
        head, secret, token, *kept = rest
        states = [json.loads(pathlib.Path(file).read_text(encoding="ascii")) for file in kept]
        attempt(database, head, secret.encode(), token.encode(), states)


if __name__ == "__main__":
    main()
