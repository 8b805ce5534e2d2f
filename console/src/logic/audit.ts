/**
 * What the audit log signs, computed again in this browser: the bytes of a record, its hash, its place in the tree of its chain, and the
 * signature under the tree's head. Nothing that the server says about its own proofs is believed.
 */

import { type Bytes, concatBytes, equalBytes, fromHex, hashLeaf, sha256, toHex, verifyInclusion } from "./merkle";

export interface AuditAgent {
  token: string;
  kind: string;
  role: string;
  user: string | null;
  project: string | null;
  task: string | null;
  run: string | null;
  job: string | null;
  /** Records of earlier releases have none. */
  profile?: string | null;
}

/** The content of a record, in the form in which it is signed: identifiers are bare UUIDs, hashes are hexadecimal. */
export interface AuditEntry {
  call: string;
  at: string;
  phase: string;
  decision: string;
  reason: string;
  rules: string[];
  shadow: string[];
  outcome: string | null;
  agent: AuditAgent | null;
  method: string;
  tool: string | null;
  definition: string | null;
  server: string | null;
  node: string | null;
  policy: string;
  catalogue: string;
  trace: string;
  arguments: string | null;
  arguments_size: number;
  result: string | null;
  result_size: number;
  duration_us: number;
}

export interface AuditRecord {
  chain: string;
  seq: number;
  entry: AuditEntry;
  prev: string;
  hash: string;
}

/** A signed statement: so many records, with this root, at this time. */
export interface Checkpoint {
  chain: string;
  size: number;
  root: string;
  head: string;
  at: string;
  closed: boolean;
  signature: string;
}

export interface Inclusion {
  chain: string;
  seq: number;
  size: number;
  path: string[];
}

export interface CallProof {
  record: AuditRecord;
  checkpoint: Checkpoint;
  inclusion: Inclusion;
  public_key: string;
}

const RECORD_DOMAIN = "cynode/audit/record/v1\0";
const CHECKPOINT_DOMAIN = "cynode/audit/checkpoint/v1\0";
/** An entry whose agent names a profile has the second version. */
const ENTRY_VERSIONS = { plain: 1, profile: 2 };

const PHASES = ["decision", "outcome"];
const DECISIONS = ["allow", "deny", "needs_approval"];
const OUTCOMES = [
  "success",
  "tool_error",
  "protocol_error",
  "timeout",
  "cancelled",
  "disconnected",
  "revoked",
  "not_forwarded",
  "unknown",
];

const encoder = new TextEncoder();

/** Numbers are big-endian and of fixed width, texts and lists begin with their length, an absent value is a zero byte. */
class ByteWriter {
  private readonly parts: Uint8Array[] = [];

  bytes(bytes: Uint8Array): this {
    this.parts.push(bytes);
    return this;
  }

  u8(value: number): this {
    return this.bytes(Uint8Array.of(value));
  }

  u32(value: number): this {
    if (!Number.isInteger(value) || value < 0 || value > 0xffff_ffff) throw new Error(`not a 32-bit number: ${value}`);
    const out = new Uint8Array(4);
    new DataView(out.buffer).setUint32(0, value);
    return this.bytes(out);
  }

  u64(value: number): this {
    if (!Number.isSafeInteger(value) || value < 0) throw new Error(`not a number that is read exactly: ${value}`);
    const out = new Uint8Array(8);
    new DataView(out.buffer).setBigUint64(0, BigInt(value));
    return this.bytes(out);
  }

  time(at: string): this {
    const out = new Uint8Array(8);
    new DataView(out.buffer).setBigInt64(0, toMicros(at));
    return this.bytes(out);
  }

  uuid(id: string): this {
    return this.bytes(parseUuid(id));
  }

  text(text: string): this {
    const bytes = encoder.encode(text);
    return this.u32(bytes.length).bytes(bytes);
  }

  list(texts: readonly string[]): this {
    this.u32(texts.length);
    for (const text of texts) this.text(text);
    return this;
  }

  optional<T>(value: T | null | undefined, put: (value: T) => void): this {
    if (value === null || value === undefined) return this.u8(0);
    this.u8(1);
    put(value);
    return this;
  }

  /** A word is one byte: its place in the list, from 1. */
  word(word: string, words: readonly string[]): this {
    const code = words.indexOf(word) + 1;
    if (code === 0) throw new Error(`a word that this page does not know: ${word}`);
    return this.u8(code);
  }

  finish(): Bytes {
    return concatBytes(this.parts);
  }
}

/** Returns a time of RFC 3339 in microseconds. A `Date` would lose the last three digits, which are signed. */
export function toMicros(at: string): bigint {
  const match = /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?(Z|[+-]\d\d:\d\d)$/.exec(at);
  const seconds = match ? Date.parse(`${match[1]}${match[3]}`) : Number.NaN;
  if (Number.isNaN(seconds)) throw new Error(`not a time in whole microseconds: ${at}`);
  return BigInt(seconds) * 1000n + BigInt((match?.[2] ?? "").padEnd(6, "0"));
}

function parseUuid(id: string): Bytes {
  if (!/^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/.test(id)) throw new Error(`not a UUID: ${id}`);
  return fromHex(id.replaceAll("-", ""));
}

/** Returns the bytes of an entry that are hashed. */
export function encodeEntry(entry: AuditEntry): Bytes {
  const out = new ByteWriter();
  const profile = entry.agent?.profile ?? null;
  out
    .u8(profile === null ? ENTRY_VERSIONS.plain : ENTRY_VERSIONS.profile)
    .uuid(entry.call)
    .time(entry.at)
    .word(entry.phase, PHASES)
    .word(entry.decision, DECISIONS)
    .text(entry.reason)
    .list(entry.rules)
    .list(entry.shadow)
    .optional(entry.outcome, (outcome) => out.word(outcome, OUTCOMES))
    .optional(entry.agent, (agent) => {
      out.uuid(agent.token).text(agent.kind).text(agent.role);
      for (const id of [agent.user, agent.project, agent.task, agent.run, agent.job]) {
        out.optional(id, (value) => out.uuid(value));
      }
      if (profile !== null) out.text(profile);
    })
    .text(entry.method)
    .optional(entry.tool, (tool) => out.text(tool))
    .optional(entry.definition, (digest) => out.bytes(fromHex(digest, 32)))
    .optional(entry.server, (server) => out.uuid(server))
    .optional(entry.node, (node) => out.uuid(node))
    .bytes(fromHex(entry.policy, 32))
    .bytes(fromHex(entry.catalogue, 32))
    .text(entry.trace)
    .optional(entry.arguments, (digest) => out.bytes(fromHex(digest, 32)))
    .u32(entry.arguments_size)
    .optional(entry.result, (digest) => out.bytes(fromHex(digest, 32)))
    .u32(entry.result_size)
    .u64(entry.duration_us);
  return out.finish();
}

/** Returns the hash of a record: of its chain, its place, the record before it and what it says. */
export function hashRecord(record: Omit<AuditRecord, "hash">): Promise<Bytes> {
  const place = new ByteWriter().uuid(record.chain).u64(record.seq).bytes(fromHex(record.prev, 32)).finish();
  return sha256(encoder.encode(RECORD_DOMAIN), place, encodeEntry(record.entry));
}

/** Returns the bytes of a checkpoint that are signed. */
export function checkpointPayload(checkpoint: Omit<Checkpoint, "signature">): Bytes {
  return new ByteWriter()
    .bytes(encoder.encode(CHECKPOINT_DOMAIN))
    .uuid(checkpoint.chain)
    .u64(checkpoint.size)
    .bytes(fromHex(checkpoint.root, 32))
    .bytes(fromHex(checkpoint.head, 32))
    .time(checkpoint.at)
    .u8(checkpoint.closed ? 1 : 0)
    .finish();
}

/** Returns whether the key signed the checkpoint as it is. */
export async function verifyCheckpoint(checkpoint: Checkpoint, publicKey: string): Promise<boolean> {
  return verifySignature(checkpointPayload(checkpoint), checkpoint.signature, publicKey);
}

/** A public key of the installation, with the signatures of the keys before and after it. */
export interface PublicKey {
  key_id: string;
  public_key: string;
  retired_at?: string | null;
  introduced_by?: string | null;
  introduction?: string | null;
  endorsed_by?: string | null;
  endorsement?: string | null;
}

const INTRODUCTION_DOMAIN = "cynode/audit/next-key/v1\0";
const ENDORSEMENT_DOMAIN = "cynode/audit/retired-key/v1\0";

/**
 * Returns the keys that follow from one that is trusted: it signed them as its successor or its predecessor, or a key between them did.
 * Signing keys are rotated, and whoever only writes to the database cannot add one.
 */
export async function findTrustedKeys(trusted: string, keys: readonly PublicKey[]): Promise<ReadonlySet<string>> {
  const found = new Set([trusted]);
  for (let size = 0; size !== found.size; ) {
    size = found.size;
    for (const key of keys) {
      if (!found.has(key.public_key) && (await isSignedBy(key, found, keys))) found.add(key.public_key);
    }
  }
  return found;
}

async function isSignedBy(key: PublicKey, trusted: ReadonlySet<string>, keys: readonly PublicKey[]): Promise<boolean> {
  const signer = (id: string | null | undefined) =>
    keys.find((other) => other.key_id === id && trusted.has(other.public_key));
  const payload = (domain: string) =>
    new ByteWriter().bytes(encoder.encode(domain)).uuid(key.key_id).bytes(fromHex(key.public_key, 32));
  const [before, after] = [signer(key.introduced_by), signer(key.endorsed_by)];
  try {
    if (before && key.introduction) {
      const signed = payload(INTRODUCTION_DOMAIN).finish();
      if (await verifySignature(signed, key.introduction, before.public_key)) return true;
    }
    if (after && key.endorsement && key.retired_at) {
      const signed = payload(ENDORSEMENT_DOMAIN).time(key.retired_at).finish();
      return await verifySignature(signed, key.endorsement, after.public_key);
    }
  } catch {
    // What cannot be read is not signed.
  }
  return false;
}

async function verifySignature(payload: Bytes, signature: string, publicKey: string): Promise<boolean> {
  const key = await crypto.subtle.importKey("raw", fromHex(publicKey, 32), "Ed25519", false, ["verify"]);
  return crypto.subtle.verify("Ed25519", key, fromHex(signature, 64), payload);
}

/** Why this browser cannot check proofs; null when it can. */
export async function findMissingCrypto(): Promise<string | null> {
  if (!globalThis.crypto?.subtle) {
    return "This page was opened over an insecure connection, and browsers then offer no cryptography. Open the console over HTTPS or on the machine itself (127.0.0.1).";
  }
  try {
    const raw = fromHex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a");
    await crypto.subtle.importKey("raw", raw, "Ed25519", false, ["verify"]);
    return null;
  } catch {
    return "This browser does not know Ed25519 signatures. Chromium 137, Firefox 129 and Safari 17 know them, or use `cynork audit prove` with another program.";
  }
}

export type CheckName = "record" | "place" | "signature";

export interface ProofCheck {
  name: CheckName;
  passed: boolean;
  /** What is wrong, in words; null when nothing is. */
  problem: string | null;
}

export interface CheckedProof {
  proof: CallProof;
  checks: ProofCheck[];
  /** The hash of the record as a leaf of the tree. */
  leaf: string;
  passed: boolean;
}

/** Checks a proof of one record against one public key. Anything that cannot be read fails the check that needs it. */
export async function verifyProof(proof: CallProof, publicKey: string): Promise<CheckedProof> {
  const { record, checkpoint, inclusion } = proof;
  const checks = [
    await runCheck("record", "What the record says is not what was hashed: it was changed.", async () =>
      equalBytes(await hashRecord(record), fromHex(record.hash, 32)),
    ),
    await runCheck("place", "The path does not lead from this record to the signed root.", async () => {
      const agree =
        inclusion.chain === record.chain &&
        inclusion.seq === record.seq &&
        checkpoint.chain === record.chain &&
        checkpoint.size === inclusion.size;
      const path = inclusion.path.map((hash) => fromHex(hash, 32));
      const leaf = await hashLeaf(fromHex(record.hash, 32));
      return agree && (await verifyInclusion(leaf, record.seq, checkpoint.size, path, fromHex(checkpoint.root, 32)));
    }),
    await runCheck("signature", "The signature does not fit: the head was changed, or another key signed it.", () =>
      verifyCheckpoint(checkpoint, publicKey),
    ),
  ];
  const leaf = /^[0-9a-f]{64}$/.test(record.hash) ? toHex(await hashLeaf(fromHex(record.hash))) : "";
  return { proof, checks, leaf, passed: checks.every((check) => check.passed) };
}

async function runCheck(name: CheckName, problem: string, check: () => Promise<boolean>): Promise<ProofCheck> {
  try {
    const passed = await check();
    return { name, passed, problem: passed ? null : problem };
  } catch (error) {
    return { name, passed: false, problem: `${problem} (${error instanceof Error ? error.message : String(error)})` };
  }
}
