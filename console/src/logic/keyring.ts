/** Keys of the installation and sinks of audit records in words. */

import type { Schema } from "../api/client";
import { formatCount } from "./format";
import type { Standing } from "./state";

export type InstallationKey = Schema["KeyView"];
export type MasterKey = Schema["MasterKeyView"];
export type AuditSink = Schema["AuditSinkView"];

/** What each kind of key does. */
export const PURPOSES: Readonly<Record<string, string>> = {
  master: "Seals secrets",
  signing: "Signs audit records",
  token: "Stores tokens",
};

const KEY_STATES: Readonly<Record<string, { standing: Standing; words: string }>> = {
  staged: { standing: "waits", words: "Being loaded" },
  active: { standing: "done", words: "In use" },
  retiring: { standing: "works", words: "Being replaced" },
  retired: { standing: "cancelled", words: "Retired" },
};

/** Returns how a key stands. */
export function describeKeyState(key: Pick<InstallationKey, "state">): { standing: Standing; words: string } {
  return KEY_STATES[key.state] ?? { standing: "waits", words: key.state };
}

/** Returns what names a key, the most frequent first. */
export function describeUses(key: Pick<InstallationKey, "uses">): string {
  const uses = [...key.uses].sort((left, right) => right.count - left.count);
  return uses.length === 0
    ? "nothing"
    : uses.map((use) => `${use.count.toLocaleString("en-US")} ${use.kind}`).join(", ");
}

const PLACES: Readonly<Record<string, string>> = {
  file: "a file",
  credential: "a credential of systemd",
  vault: "a key management service",
};

/** Returns how the master key stands: an end that is missing lets the old one open what it wrapped. */
export function describeMasterKey(master: Omit<MasterKey, "since">): {
  standing: Standing;
  words: string;
  place: string;
} {
  const place = PLACES[master.place] ?? master.place;
  if (master.unfinished) return { standing: "trouble", words: "Not ended", place };
  if (master.problem) return { standing: "failed", words: "No answer", place };
  return { standing: "done", words: "In use", place };
}

/** Returns what a rotation does or waits for. */
export function describeRotation(keyring: Pick<Schema["KeyringView"], "remaining" | "waiting_for">): string {
  const waits = keyring.waiting_for ?? [];
  if (waits.length > 0) return `A rotation waits for ${waits.join(", ")} to load the new key`;
  return `A rotation is under way; ${formatCount(keyring.remaining, "secret or token")} left`;
}

/** Returns how a sink stands. */
export function describeSink(sink: AuditSink): { standing: Standing; words: string } {
  if (!sink.enabled) return { standing: "cancelled", words: "Disabled" };
  if (sink.failures > 0) return { standing: "failed", words: "Not reached" };
  if (sink.lag_seconds > 300) return { standing: "trouble", words: "Behind" };
  return { standing: "done", words: "Receives" };
}

/** Returns where a sink sends its records. */
export function describeTarget(target: Readonly<Record<string, unknown>>): string {
  const text = (name: string) => (typeof target[name] === "string" ? (target[name] as string) : "");
  switch (target.kind) {
    case "syslog":
      return `${text("transport")} ${text("address")}`;
    case "webhook":
      return text("url");
    case "object_store":
      return [text("endpoint"), text("bucket"), text("prefix")].filter((part) => part !== "").join("/");
    default:
      return "";
  }
}

export type SinkKind = "syslog_tls" | "syslog_tcp" | "syslog_unix" | "webhook" | "object_store";

export const SINK_KINDS: readonly { value: SinkKind; name: string }[] = [
  { value: "syslog_tls", name: "Syslog over TLS" },
  { value: "syslog_tcp", name: "Syslog over TCP, in a private network" },
  { value: "syslog_unix", name: "Syslog on this machine" },
  { value: "webhook", name: "Signed webhook" },
  { value: "object_store", name: "S3 bucket" },
];

export interface SinkDraft {
  name: string;
  kind: SinkKind;
  /** The address, the URL or the endpoint. */
  address: string;
  region: string;
  bucket: string;
  prefix: string;
  accessKeyId: string;
  secret: string;
}

export const EMPTY_SINK: SinkDraft = {
  name: "",
  kind: "syslog_tls",
  address: "",
  region: "",
  bucket: "",
  prefix: "",
  accessKeyId: "",
  secret: "",
};

/** Returns what is missing in a draft; null when it can be sent. */
export function findMissing(draft: SinkDraft): string | null {
  if (!/^[a-z][a-z0-9-]{0,62}$/.test(draft.name)) return "Type a name of a-z, 0-9 and -";
  if (draft.kind === "object_store") {
    if (!draft.bucket || !draft.region || !draft.accessKeyId) return "Type the bucket, its region and the access key";
  } else if (!draft.address) {
    return "Type where the records go";
  }
  return needsSecret(draft.kind) && !draft.secret ? "Type the secret" : null;
}

export function needsSecret(kind: SinkKind): boolean {
  return kind === "webhook" || kind === "object_store";
}

/** Returns the body that sets a sink. */
export function toSinkBody(draft: SinkDraft): { target: Record<string, never>; secret?: string } {
  const target: Record<string, string> =
    draft.kind === "webhook"
      ? { kind: "webhook", url: draft.address }
      : draft.kind === "object_store"
        ? {
            kind: "object_store",
            ...(draft.address ? { endpoint: draft.address } : {}),
            region: draft.region,
            bucket: draft.bucket,
            prefix: draft.prefix,
            access_key_id: draft.accessKeyId,
          }
        : { kind: "syslog", transport: draft.kind.slice("syslog_".length), address: draft.address };
  // The interface describes the target as any object.
  const body = { target: target as Record<string, never> };
  return needsSecret(draft.kind) ? { ...body, secret: draft.secret } : body;
}
