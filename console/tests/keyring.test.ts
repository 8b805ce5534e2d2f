import { describe, expect, it } from "vitest";
import { findTrustedKeys } from "../src/logic/audit";
import {
  type AuditSink,
  describeMasterKey,
  describeRotation,
  describeSink,
  describeTarget,
  describeUses,
  EMPTY_SINK,
  findMissing,
  toSinkBody,
} from "../src/logic/keyring";

const sink: AuditSink = {
  name: "siem",
  kind: "syslog",
  target: {},
  enabled: true,
  updated_at: "2026-11-18T12:00:00Z",
  lag_records: 0,
  lag_seconds: 0,
  failures: 0,
};

describe("keys", () => {
  it("names what uses a key, the most frequent first", () => {
    const uses = [
      { kind: "API keys", count: 2 },
      { kind: "sessions", count: 1200 },
    ];
    expect(describeUses({ uses })).toBe("1,200 sessions, 2 API keys");
    expect(describeUses({ uses: [] })).toBe("nothing");
  });
});

describe("the master key", () => {
  it("shows an end that is missing before anything else", () => {
    const master = { place: "vault", version: "vault:transit/cynode:v2", unfinished: false };
    expect(describeMasterKey(master)).toEqual({ standing: "done", words: "In use", place: "a key management service" });
    expect(describeMasterKey({ ...master, problem: "403" }).words).toBe("No answer");
    expect(describeMasterKey({ ...master, problem: "403", unfinished: true }).words).toBe("Not ended");
  });

  it("names the processes that a rotation waits for", () => {
    expect(describeRotation({ remaining: 1 })).toBe("A rotation is under way; 1 secret or token left");
    expect(describeRotation({ remaining: 1, waiting_for: ["web-2 0.0.0.0:7402"] })).toBe(
      "A rotation waits for web-2 0.0.0.0:7402 to load the new key",
    );
  });
});

describe("sinks", () => {
  it("shows a sink that is not reached before one that is behind", () => {
    expect(describeSink(sink).words).toBe("Receives");
    expect(describeSink({ ...sink, lag_seconds: 301 }).words).toBe("Behind");
    expect(describeSink({ ...sink, lag_seconds: 301, failures: 1 }).words).toBe("Not reached");
    expect(describeSink({ ...sink, failures: 1, enabled: false }).words).toBe("Disabled");
  });

  it("says where records go", () => {
    expect(describeTarget({ kind: "syslog", transport: "tls", address: "siem:6514" })).toBe("tls siem:6514");
    expect(describeTarget({ kind: "object_store", bucket: "audit", prefix: "cynode" })).toBe("audit/cynode");
    expect(describeTarget({ kind: "other" })).toBe("");
  });

  it("asks for what a kind needs and sends only that", () => {
    expect(findMissing(EMPTY_SINK)).toBe("Type a name of a-z, 0-9 and -");
    const named = { ...EMPTY_SINK, name: "siem" };
    expect(findMissing(named)).toBe("Type where the records go");
    const syslog = { ...named, address: "siem:6514", secret: "left over" };
    expect(findMissing(syslog)).toBeNull();
    expect(toSinkBody(syslog)).toEqual({ target: { kind: "syslog", transport: "tls", address: "siem:6514" } });
    const hook = { ...named, kind: "webhook" as const, address: "https://siem/", secret: "" };
    expect(findMissing(hook)).toBe("Type the secret");
    expect(toSinkBody({ ...hook, secret: "whsec_x" })).toEqual({
      target: { kind: "webhook", url: "https://siem/" },
      secret: "whsec_x",
    });
    const bucket = {
      ...named,
      kind: "object_store" as const,
      bucket: "audit",
      region: "eu",
      accessKeyId: "id",
      secret: "s",
    };
    expect(findMissing(bucket)).toBeNull();
    expect(toSinkBody(bucket).target).toEqual({
      kind: "object_store",
      region: "eu",
      bucket: "audit",
      prefix: "",
      access_key_id: "id",
    });
  });
});

describe("keys of the audit log", () => {
  const hex = (bytes: ArrayBuffer) =>
    [...new Uint8Array(bytes)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const uuid = (number: number) => `00000000-0000-0000-0000-${String(number).padStart(12, "0")}`;
  const makePair = async () => {
    const pair = (await crypto.subtle.generateKey("Ed25519", true, ["sign", "verify"])) as CryptoKeyPair;
    return { pair, text: hex(await crypto.subtle.exportKey("raw", pair.publicKey)) };
  };
  const sign = async (signer: CryptoKeyPair, domain: string, id: string, key: string, more: number[] = []) => {
    const bytes = (text: string) => Uint8Array.from(text.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
    const payload = [...new TextEncoder().encode(domain), ...bytes(id.replaceAll("-", "")), ...bytes(key), ...more];
    return hex(await crypto.subtle.sign("Ed25519", signer.privateKey, Uint8Array.from(payload)));
  };

  it("trusts the next key only by the signature of the one before, and an old key only by its successor", async () => {
    const [old, next, foreign] = [await makePair(), await makePair(), await makePair()];
    const end = "1970-01-01T00:00:00.000001Z";
    const introduction = await sign(old.pair, "cynode/audit/next-key/v1\0", uuid(2), next.text);
    const endorsement = await sign(
      next.pair,
      "cynode/audit/retired-key/v1\0",
      uuid(1),
      old.text,
      [0, 0, 0, 0, 0, 0, 0, 1],
    );
    const keys = [
      { key_id: uuid(1), public_key: old.text, retired_at: end, endorsed_by: uuid(2), endorsement },
      { key_id: uuid(2), public_key: next.text, introduced_by: uuid(1), introduction },
      // A key that names a signer who did not sign it.
      { key_id: uuid(3), public_key: foreign.text, introduced_by: uuid(2), introduction },
    ];
    expect([...(await findTrustedKeys(old.text, keys))]).toEqual([old.text, next.text]);
    expect([...(await findTrustedKeys(next.text, keys))]).toEqual([next.text, old.text]);
    expect([...(await findTrustedKeys(foreign.text, keys))]).toEqual([foreign.text]);
  });
});
