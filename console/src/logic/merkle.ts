/** Merkle trees of RFC 6962 over SHA-256: hashes, and proofs that a reader checks without trusting whoever made them. */

export type Bytes = Uint8Array<ArrayBuffer>;

/** Trees have at most this many leaves; the arithmetic below is exact far beyond it. */
const MAX_TREE_SIZE = 2 ** 40;
const HASH_BYTES = 32;

export async function sha256(...parts: readonly Uint8Array[]): Promise<Bytes> {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", concatBytes(parts)));
}

export function hashLeaf(content: Uint8Array): Promise<Bytes> {
  return sha256(Uint8Array.of(0), content);
}

export function hashNode(left: Uint8Array, right: Uint8Array): Promise<Bytes> {
  return sha256(Uint8Array.of(1), left, right);
}

/** Returns the root that a path leads to from a leaf, or null when the path has not the form of such a tree. */
export async function rootOfInclusion(
  leaf: Uint8Array,
  index: number,
  size: number,
  path: readonly Uint8Array[],
): Promise<Bytes | null> {
  if (!isTreeSize(size) || !Number.isSafeInteger(index) || index < 0 || index >= size) return null;
  let at = index;
  let last = size - 1;
  let hash = Uint8Array.from(leaf);
  for (const sibling of path) {
    if (last === 0 || sibling.length !== HASH_BYTES) return null;
    if (at % 2 === 1 || at === last) {
      hash = await hashNode(sibling, hash);
      while (at % 2 === 0 && at !== 0) {
        at = at / 2;
        last = Math.floor(last / 2);
      }
    } else {
      hash = await hashNode(hash, sibling);
    }
    at = Math.floor(at / 2);
    last = Math.floor(last / 2);
  }
  return last === 0 ? hash : null;
}

/** Returns whether a leaf stands at a place of the tree with this root. */
export async function verifyInclusion(
  leaf: Uint8Array,
  index: number,
  size: number,
  path: readonly Uint8Array[],
  root: Uint8Array,
): Promise<boolean> {
  const found = await rootOfInclusion(leaf, index, size, path);
  return found !== null && equalBytes(found, root);
}

export interface TreeHead {
  size: number;
  root: Uint8Array;
}

/** Returns whether the later tree has every leaf of the earlier one unchanged and in place, and only more after them. */
export async function verifyConsistency(
  earlier: TreeHead,
  later: TreeHead,
  path: readonly Uint8Array[],
): Promise<boolean> {
  if (!isTreeSize(earlier.size) || !isTreeSize(later.size) || earlier.size > later.size) return false;
  if (path.some((hash) => hash.length !== HASH_BYTES)) return false;
  if (earlier.size === later.size) return path.length === 0 && equalBytes(earlier.root, later.root);
  // A full earlier tree is itself a node of the later one; its hash is known and is left out of the path.
  const [start, ...rest] = isPowerOfTwo(earlier.size) ? [earlier.root, ...path] : path;
  if (start === undefined) return false;
  let at = earlier.size - 1;
  let last = later.size - 1;
  while (at % 2 === 1) {
    at = Math.floor(at / 2);
    last = Math.floor(last / 2);
  }
  let old = Uint8Array.from(start);
  let now = Uint8Array.from(start);
  for (const hash of rest) {
    if (last === 0) return false;
    if (at % 2 === 1 || at === last) {
      old = await hashNode(hash, old);
      now = await hashNode(hash, now);
      while (at % 2 === 0 && at !== 0) {
        at = at / 2;
        last = Math.floor(last / 2);
      }
    } else {
      now = await hashNode(now, hash);
    }
    at = Math.floor(at / 2);
    last = Math.floor(last / 2);
  }
  return last === 0 && equalBytes(old, earlier.root) && equalBytes(now, later.root);
}

function isTreeSize(size: number): boolean {
  return Number.isSafeInteger(size) && size > 0 && size <= MAX_TREE_SIZE;
}

function isPowerOfTwo(size: number): boolean {
  return Number.isInteger(Math.log2(size));
}

export function equalBytes(one: Uint8Array, other: Uint8Array): boolean {
  return one.length === other.length && one.every((byte, index) => byte === other[index]);
}

export function concatBytes(parts: readonly Uint8Array[]): Bytes {
  const out = new Uint8Array(parts.reduce((total, part) => total + part.length, 0));
  let end = 0;
  for (const part of parts) {
    out.set(part, end);
    end += part.length;
  }
  return out;
}

/** Returns the bytes of a hexadecimal text. A text that is none is an error: it is never read as something shorter. */
export function fromHex(text: string, length?: number): Bytes {
  if (!/^(?:[0-9a-f]{2})*$/.test(text) || (length !== undefined && text.length !== length * 2)) {
    throw new Error(`not ${length ?? "whole"} bytes in hexadecimal: ${text.slice(0, 80)}`);
  }
  return Uint8Array.from({ length: text.length / 2 }, (_, index) =>
    Number.parseInt(text.slice(index * 2, index * 2 + 2), 16),
  );
}

export function toHex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
