import { createHash, generateKeyPairSync, sign } from "node:crypto";
import { describe, expect, it } from "vitest";
import {
  type AuditAgent,
  type AuditEntry,
  type CallProof,
  type Checkpoint,
  encodeEntry,
  hashRecord,
  toMicros,
  verifyCheckpoint,
  verifyProof,
} from "../src/logic/audit";
import { fromHex, hashLeaf, toHex, verifyConsistency, verifyInclusion } from "../src/logic/merkle";
import {
  EMPTY_WITNESS,
  type HeadVerdict,
  judgeHead,
  judgeMissing,
  judgeRegistry,
  keepHeads,
  parseWitness,
  type SeenHead,
  type Witness,
} from "../src/logic/witness";

// RFC 6962, section 2.1, word for word and with another implementation of SHA-256.
const hash = (...parts: Buffer[]) => createHash("sha256").update(Buffer.concat(parts)).digest();
const split = (count: number) => {
  let half = 1;
  while (half * 2 < count) half *= 2;
  return half;
};
function treeHash(leaves: Buffer[]): Buffer {
  if (leaves.length === 1) return hash(Buffer.of(0), leaves[0] as Buffer);
  const half = split(leaves.length);
  return hash(Buffer.of(1), treeHash(leaves.slice(0, half)), treeHash(leaves.slice(half)));
}
function pathOf(index: number, leaves: Buffer[]): Buffer[] {
  if (leaves.length === 1) return [];
  const half = split(leaves.length);
  return index < half
    ? [...pathOf(index, leaves.slice(0, half)), treeHash(leaves.slice(half))]
    : [...pathOf(index - half, leaves.slice(half)), treeHash(leaves.slice(0, half))];
}
function subProof(size: number, leaves: Buffer[], whole: boolean): Buffer[] {
  if (size === leaves.length) return whole ? [] : [treeHash(leaves)];
  const half = split(leaves.length);
  return size <= half
    ? [...subProof(size, leaves.slice(0, half), whole), treeHash(leaves.slice(half))]
    : [...subProof(size - half, leaves.slice(half), false), treeHash(leaves.slice(0, half))];
}
const leavesOf = (count: number) => Array.from({ length: count }, (_, index) => hash(Buffer.from(`leaf ${index}`)));
const flip = (bytes: Uint8Array) => Uint8Array.from(bytes, (byte, index) => (index === 7 ? byte ^ 1 : byte));

describe("a Merkle tree", () => {
  it("has the root that the test vectors of Certificate Transparency name", () => {
    const leaves = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"];
    const root = treeHash(leaves.map((leaf) => Buffer.from(leaf, "hex")));
    expect(root.toString("hex")).toBe("5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328");
  });

  it("hashes a leaf with a zero in front", async () => {
    expect(toHex(await hashLeaf(new Uint8Array()))).toBe(
      "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    );
  });

  it("takes the path of every leaf of every size, and no other leaf, place, size, root or path", async () => {
    for (let size = 1; size <= 20; size += 1) {
      const leaves = leavesOf(size);
      const root = treeHash(leaves);
      for (let index = 0; index < size; index += 1) {
        const leaf = await hashLeaf(leaves[index] as Buffer);
        const path = pathOf(index, leaves);
        expect(await verifyInclusion(leaf, index, size, path, root)).toBe(true);
        const wrong = [
          verifyInclusion(flip(leaf), index, size, path, root),
          verifyInclusion(leaf, index, size, path, flip(root)),
          verifyInclusion(leaf, index, size, [...path, root], root),
          verifyInclusion(leaf, size, size, path, root),
          verifyInclusion(leaf, -1, size, path, root),
          verifyInclusion(leaf, index, 0, path, root),
          ...path.flatMap((step, at) => [
            verifyInclusion(leaf, index, size, path.with(at, Buffer.from(flip(step))), root),
            verifyInclusion(leaf, index, size, path.toSpliced(at, 1), root),
          ]),
        ];
        expect(await Promise.all(wrong)).toEqual(wrong.map(() => false));
      }
    }
  });

  it("takes the proof between every two sizes, and no cut, changed or longer one", async () => {
    for (let to = 1; to <= 20; to += 1) {
      const leaves = leavesOf(to);
      const later = { size: to, root: treeHash(leaves) };
      for (let from = 1; from <= to; from += 1) {
        const earlier = { size: from, root: treeHash(leaves.slice(0, from)) };
        const path = subProof(from, leaves, true);
        expect(await verifyConsistency(earlier, later, path)).toBe(true);
        const wrong = [
          verifyConsistency({ ...earlier, root: flip(earlier.root) }, later, path),
          verifyConsistency(earlier, { ...later, root: flip(later.root) }, path),
          verifyConsistency(earlier, later, [...path, later.root]),
          verifyConsistency({ ...earlier, size: to + 1 }, later, path),
          verifyConsistency({ ...earlier, size: 0 }, later, path),
          ...path.flatMap((step, at) => [
            verifyConsistency(earlier, later, path.with(at, Buffer.from(flip(step)))),
            verifyConsistency(earlier, later, path.toSpliced(at, 1)),
          ]),
        ];
        expect(await Promise.all(wrong)).toEqual(wrong.map(() => false));
      }
    }
  });

  it("does not take a tree whose first leaves were changed for one that only grew", async () => {
    const leaves = leavesOf(13);
    const changed = leaves.with(2, hash(Buffer.from("another")));
    const earlier = { size: 6, root: treeHash(leaves.slice(0, 6)) };
    const later = { size: 13, root: treeHash(changed) };
    expect(await verifyConsistency(earlier, later, subProof(6, changed, true))).toBe(false);
    expect(await verifyConsistency(earlier, later, subProof(6, leaves, true))).toBe(false);
  });

  it("reads hexadecimal whole or not at all", () => {
    expect(fromHex("00ff10")).toEqual(Uint8Array.of(0, 255, 16));
    for (const wrong of ["0", "0g", "FF", " 00", "0x00"]) expect(() => fromHex(wrong)).toThrow();
    expect(() => fromHex("00", 2)).toThrow();
  });
});

const CHAIN = "0192d5c8-b6f0-7cc1-a1a3-c2b4d5e6f708";
const id = (digit: string) =>
  `${digit.repeat(8)}-${digit.repeat(4)}-${digit.repeat(4)}-${digit.repeat(4)}-${digit.repeat(12)}`;
const entry: AuditEntry = {
  call: id("1"),
  at: "2026-01-02T03:04:05.000678Z",
  phase: "outcome",
  decision: "allow",
  reason: "allowed",
  rules: [],
  shadow: ["no-fetch"],
  outcome: "tool_error",
  agent: {
    token: id("2"),
    kind: "sandbox",
    role: "developer",
    user: id("3"),
    project: null,
    task: id("4"),
    run: null,
    job: null,
  },
  method: "tools/call",
  tool: "web.fetch",
  definition: "ab".repeat(32),
  server: null,
  node: id("5"),
  policy: "cd".repeat(32),
  catalogue: "ef".repeat(32),
  trace: "0".repeat(32),
  arguments: "01".repeat(32),
  arguments_size: 70000,
  result: null,
  result_size: 3,
  duration_us: 5_000_000_000,
};

const text = (value: string) => {
  const length = Buffer.alloc(4);
  length.writeUInt32BE(Buffer.byteLength(value));
  return Buffer.concat([length, Buffer.from(value)]);
};
const raw = (hex: string) => Buffer.from(hex.replaceAll("-", ""), "hex");
const u64 = (value: bigint) => {
  const out = Buffer.alloc(8);
  out.writeBigUInt64BE(value);
  return out;
};
const micros = BigInt(Date.UTC(2026, 0, 2, 3, 4, 5)) * 1000n + 678n;
/** The bytes of the entry above, field by field as the audit crate writes them. */
const entryBytes = Buffer.concat([
  Buffer.of(1),
  raw(id("1")),
  u64(micros),
  Buffer.of(2, 1),
  text("allowed"),
  Buffer.of(0, 0, 0, 0),
  Buffer.of(0, 0, 0, 1),
  text("no-fetch"),
  Buffer.of(1, 2),
  Buffer.of(1),
  raw(id("2")),
  text("sandbox"),
  text("developer"),
  Buffer.of(1),
  raw(id("3")),
  Buffer.of(0, 1),
  raw(id("4")),
  Buffer.of(0, 0),
  text("tools/call"),
  Buffer.of(1),
  text("web.fetch"),
  Buffer.of(1),
  raw("ab".repeat(32)),
  Buffer.of(0, 1),
  raw(id("5")),
  raw("cd".repeat(32)),
  raw("ef".repeat(32)),
  text("0".repeat(32)),
  Buffer.of(1),
  raw("01".repeat(32)),
  Buffer.of(0, 1, 0x11, 0x70),
  Buffer.of(0),
  Buffer.of(0, 0, 0, 3),
  u64(5_000_000_000n),
]);

const { privateKey, publicKey } = generateKeyPairSync("ed25519");
const KEY = publicKey.export({ type: "spki", format: "der" }).subarray(-32).toString("hex");
function signHead(head: Omit<Checkpoint, "signature">, key = privateKey): Checkpoint {
  const payload = Buffer.concat([
    Buffer.from("cynode/audit/checkpoint/v1\0"),
    raw(head.chain),
    u64(BigInt(head.size)),
    raw(head.root),
    raw(head.head),
    u64(BigInt(Date.parse(head.at)) * 1000n),
    Buffer.of(head.closed ? 1 : 0),
  ]);
  return { ...head, signature: sign(null, payload, key).toString("hex") };
}
const headOf = (leaves: Buffer[], part: Partial<Checkpoint> = {}, key = privateKey) =>
  signHead(
    {
      chain: CHAIN,
      size: leaves.length,
      root: treeHash(leaves).toString("hex"),
      head: (leaves.at(-1) as Buffer).toString("hex"),
      at: "2026-01-02T03:05:00Z",
      closed: false,
      ...part,
    },
    key,
  );

describe("a proof of a call", () => {
  const prev = "77".repeat(32);
  const recordHash = hash(Buffer.from("cynode/audit/record/v1\0"), raw(CHAIN), u64(3n), raw(prev), entryBytes);
  const leaves = leavesOf(6).with(3, recordHash);
  const proof: CallProof = {
    record: { chain: CHAIN, seq: 3, entry, prev, hash: recordHash.toString("hex") },
    checkpoint: headOf(leaves),
    inclusion: { chain: CHAIN, seq: 3, size: 6, path: pathOf(3, leaves).map((step) => step.toString("hex")) },
    public_key: KEY,
  };
  const outcome = async (changed: CallProof, key = KEY) =>
    (await verifyProof(changed, key)).checks.map((check) => (check.passed ? check.name : `not ${check.name}`));

  it("hashes exactly the bytes that the server hashes", async () => {
    expect(Buffer.from(encodeEntry(entry)).toString("hex")).toBe(entryBytes.toString("hex"));
    expect(toHex(await hashRecord(proof.record))).toBe(recordHash.toString("hex"));
  });

  it("hashes the profile of an agent behind its identifiers, in a version of its own", () => {
    const under = { ...entry, agent: { ...(entry.agent as AuditAgent), profile: "builder" } };
    const before = entryBytes.indexOf(text("tools/call"));
    const expected = Buffer.concat([
      Buffer.of(2),
      entryBytes.subarray(1, before),
      text("builder"),
      entryBytes.subarray(before),
    ]);
    expect(Buffer.from(encodeEntry(under)).toString("hex")).toBe(expected.toString("hex"));
  });

  it("holds when nothing was changed", async () => {
    expect(await verifyProof(proof, KEY)).toEqual({
      proof,
      leaf: hash(Buffer.of(0), recordHash).toString("hex"),
      passed: true,
      checks: [
        { name: "record", passed: true, problem: null },
        { name: "place", passed: true, problem: null },
        { name: "signature", passed: true, problem: null },
      ],
    });
  });

  it("fails when the record says something else than was hashed", async () => {
    const changes: Partial<AuditEntry>[] = [
      { decision: "deny" },
      { tool: "web.search" },
      { tool: null },
      { at: "2026-01-02T03:04:05.000679Z" },
      { rules: ["no-fetch"], shadow: [] },
      { outcome: null },
      { duration_us: 5_000_000_001 },
      { decision: "a word of another version" },
    ];
    for (const change of changes) {
      const changed = { ...proof, record: { ...proof.record, entry: { ...entry, ...change } } };
      expect(await outcome(changed)).toEqual(["not record", "place", "signature"]);
    }
  });

  it("fails when the record stands elsewhere, in another chain or in another tree", async () => {
    const moved = { ...proof, inclusion: { ...proof.inclusion, seq: 2 } };
    expect(await outcome(moved)).toEqual(["record", "not place", "signature"]);
    const other = { ...proof, checkpoint: headOf(leaves, { chain: id("9") }) };
    expect(await outcome(other)).toEqual(["record", "not place", "signature"]);
    const smaller = { ...proof, checkpoint: headOf(leaves.slice(0, 5)) };
    expect(await outcome(smaller)).toEqual(["record", "not place", "signature"]);
  });

  it("fails when the head was changed or signed by another key", async () => {
    const changed = { ...proof, checkpoint: { ...proof.checkpoint, closed: true } };
    expect(await outcome(changed)).toEqual(["record", "place", "not signature"]);
    const stranger = generateKeyPairSync("ed25519").privateKey;
    expect(await outcome({ ...proof, checkpoint: headOf(leaves, {}, stranger) })).toEqual([
      "record",
      "place",
      "not signature",
    ]);
    expect(await verifyCheckpoint(proof.checkpoint, KEY)).toBe(true);
  });

  it("fails, and does not break, when it is not what it should be", async () => {
    const broken = { ...proof, record: { ...proof.record, hash: "nonsense" }, public_key: "" };
    expect(await outcome(broken, "")).toEqual(["not record", "not place", "not signature"]);
  });

  it("reads times to the microsecond", () => {
    expect(toMicros("1970-01-01T00:00:01.5Z")).toBe(1_500_000n);
    expect(toMicros("1970-01-01T01:00:00.000001+01:00")).toBe(1n);
    expect(() => toMicros("1970-01-01T00:00:00.0000001Z")).toThrow();
    expect(() => toMicros("yesterday")).toThrow();
  });
});

describe("this browser as a witness", () => {
  const leaves = leavesOf(11);
  const NOW = "2026-01-02T04:00:00Z";
  const seen: SeenHead = { ...headOf(leaves.slice(0, 5)), seen_at: "2026-01-01T00:00:00Z" };
  const proves = (list: Buffer[]) => async (_chain: string, from: number) =>
    subProof(from, list, true).map((step) => step.toString("hex"));
  const judge = async (offered: Checkpoint, list = leaves, before: SeenHead | null = seen) =>
    (await judgeHead(before, offered, KEY, proves(list))).state;

  const REGISTRY = `2:${"ab".repeat(32)}`;
  const witness: Witness = { public_key: KEY, registry: REGISTRY, chains: { [CHAIN]: seen } };
  const look = (verdict: HeadVerdict) => ({ public_key: KEY, registry: REGISTRY, verdicts: [verdict] });

  it("keeps the first head that it sees", async () => {
    const verdict = await judgeHead(null, seen, KEY, proves(leaves));
    expect(verdict.state).toBe("first");
    expect(keepHeads(EMPTY_WITNESS, look(verdict), NOW)).toEqual({
      public_key: KEY,
      registry: REGISTRY,
      chains: { [CHAIN]: { ...seen, seen_at: NOW } },
    });
  });

  it("follows a chain that only grew", async () => {
    const offered = headOf(leaves);
    const verdict = await judgeHead(seen, offered, KEY, proves(leaves));
    expect([verdict.state, verdict.words]).toEqual([
      "grown",
      "6 records more than when this browser last looked; nothing before them was changed.",
    ]);
    expect(keepHeads(witness, look(verdict), NOW).chains[CHAIN]).toEqual({ ...offered, seen_at: NOW });
    expect(await judge(headOf(leaves.slice(0, 5), { at: "2026-01-02T09:00:00Z" }))).toBe("same");
  });

  it("does not go back to a shorter head when another tab has seen a longer one", async () => {
    const longer = { ...witness, chains: { [CHAIN]: { ...headOf(leaves), seen_at: NOW } } };
    const verdict = await judgeHead(seen, headOf(leaves.slice(0, 8)), KEY, proves(leaves.slice(0, 8)));
    expect(verdict.state).toBe("grown");
    expect(keepHeads(longer, look(verdict), NOW)).toEqual(longer);
  });

  it("keeps the old head of a chain that was cut off, rewritten, forged, reopened or removed", async () => {
    const changed = leaves.with(1, hash(Buffer.from("another")));
    const stranger = generateKeyPairSync("ed25519").privateKey;
    const verdicts = [
      await judgeHead(seen, headOf(leaves.slice(0, 4)), KEY, proves(leaves)),
      await judgeHead(seen, headOf(changed.slice(0, 5)), KEY, proves(changed)),
      await judgeHead(seen, headOf(changed), KEY, proves(changed)),
      await judgeHead(seen, headOf(changed), KEY, proves(leaves)),
      await judgeHead(seen, headOf(leaves, {}, stranger), KEY, proves(leaves)),
      await judgeHead({ ...seen, closed: true }, headOf(leaves), KEY, proves(leaves)),
      await judgeHead(seen, headOf(leaves), KEY, async () => ["not a hash"]),
      await judgeHead(seen, headOf(leaves), KEY, () => Promise.reject(new Error("the server does not answer"))),
      judgeMissing(seen, null),
      judgeMissing(seen, NOW),
    ];
    expect(verdicts.map((verdict) => verdict.state)).toEqual([
      "cut_off",
      "rewritten",
      "rewritten",
      "rewritten",
      "forged",
      "rewritten",
      "rewritten",
      "unproven",
      "cut_off",
      "pruned",
    ]);
    for (const verdict of verdicts) expect(keepHeads(witness, look(verdict), NOW)).toEqual(witness);
  });

  it("says how many records are gone", async () => {
    const verdict = await judgeHead(seen, headOf(leaves.slice(0, 4)), KEY, proves(leaves));
    expect(verdict.words).toBe(
      "This chain had 5 records when this browser last looked, and the server now shows 4 records. Records were cut off at its end.",
    );
  });

  it("keeps everything when another key signs", async () => {
    const offered = headOf(leaves);
    const verdict = await judgeHead(seen, offered, KEY, proves(leaves));
    expect(keepHeads(witness, { ...look(verdict), public_key: "00".repeat(32) }, NOW)).toEqual(witness);
  });

  it("finds that the newest chains were removed or replaced, and keeps the list that it saw", () => {
    const [less, other, more] = [`1:${"cd".repeat(32)}`, `2:${"cd".repeat(32)}`, `3:${"cd".repeat(32)}`];
    expect([null, REGISTRY, more].map((text) => judgeRegistry(text, more))).toEqual([null, null, null]);
    expect([less, other, ""].map((text) => judgeRegistry(REGISTRY, text))).toEqual([
      "There were 2 chains when this browser last looked, and the server now shows 1. The newest chains were removed as a whole.",
      "The newest chain is another one than the one that this browser saw. The list of chains was rewritten.",
      "There were 2 chains when this browser last looked, and the server now shows 0. The newest chains were removed as a whole.",
    ]);
    const registryAfter = (registry: string) => keepHeads(witness, { public_key: KEY, registry, verdicts: [] }, NOW);
    expect([less, other, "", more].map((text) => registryAfter(text).registry)).toEqual([
      REGISTRY,
      REGISTRY,
      REGISTRY,
      more,
    ]);
  });

  it("reads back what it kept, and takes nothing that is not whole", () => {
    expect(parseWitness(JSON.stringify(witness))).toEqual(witness);
    for (const text of [null, "", "{", "[]", '{"chains":3}']) expect(parseWitness(text)).toEqual(EMPTY_WITNESS);
    const damaged = { ...witness, chains: { [CHAIN]: { ...seen, root: 5 }, other: seen } };
    expect(parseWitness(JSON.stringify(damaged))).toEqual({ ...witness, chains: {} });
  });
});
