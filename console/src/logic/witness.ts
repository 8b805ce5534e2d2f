/**
 * This browser as a witness: it keeps the last signed head of each chain that it saw, and believes a newer one only with a proof that
 * nothing was removed or changed since. A head that contradicts what was seen never replaces it.
 */

import { type Checkpoint, verifyCheckpoint } from "./audit";
import { fromHex, verifyConsistency } from "./merkle";

export interface SeenHead extends Checkpoint {
  /** When this browser saw it. */
  seen_at: string;
}

export interface Witness {
  /** The public key that signed the first head that was seen. */
  public_key: string | null;
  /** Number and link hash of the newest chain, as the server writes it: `12:ab…`. */
  registry: string | null;
  chains: Record<string, SeenHead>;
}

export type HeadState =
  /** Seen for the first time: there is nothing to compare with. */
  | "first"
  /** The same as last time. */
  | "same"
  /** Longer than last time, and proven to begin with what was seen. */
  | "grown"
  /** The server says that its records were removed because their time was over. */
  | "pruned"
  /** Shorter than what was seen, or gone. */
  | "cut_off"
  /** As long or longer, but not with the records that were seen. */
  | "rewritten"
  /** The signature does not fit. */
  | "forged"
  /** Another key than the one that was seen signs now. */
  | "other_key"
  /** The server gave no proof, so nothing is known. */
  | "unproven";

export interface HeadVerdict {
  chain: string;
  state: HeadState;
  /** In plain words. */
  words: string;
  seen: SeenHead | null;
  offered: Checkpoint | null;
}

/** States in which somebody has to act: the log is not what it was. */
export const ALARMS: ReadonlySet<HeadState> = new Set(["cut_off", "rewritten", "forged", "other_key"]);

/** Chains that are kept at most; beyond that, the oldest ones that are closed are forgotten first. */
const MAX_CHAINS = 1000;

export const EMPTY_WITNESS: Witness = { public_key: null, registry: null, chains: {} };

/** Reads what was kept. What is not whole is treated as never seen. */
export function parseWitness(text: string | null): Witness {
  try {
    const value = JSON.parse(text ?? "null") as Partial<Witness> | null;
    if (value === null || typeof value !== "object" || typeof value.chains !== "object" || value.chains === null) {
      return EMPTY_WITNESS;
    }
    const chains = Object.entries(value.chains).filter(([chain, head]) => isHead(head) && head.chain === chain);
    return {
      public_key: typeof value.public_key === "string" ? value.public_key : null,
      registry: typeof value.registry === "string" ? value.registry : null,
      chains: Object.fromEntries(chains),
    };
  } catch {
    return EMPTY_WITNESS;
  }
}

function isHead(value: unknown): value is SeenHead {
  if (typeof value !== "object" || value === null) return false;
  const head = value as Record<string, unknown>;
  return (
    ["chain", "root", "head", "at", "signature", "seen_at"].every((name) => typeof head[name] === "string") &&
    Number.isSafeInteger(head.size) &&
    typeof head.closed === "boolean"
  );
}

/** Asks for the hashes that lead from one size of a chain to a later one. */
export type ProveGrowth = (chain: string, from: number, to: number) => Promise<string[]>;

/** Judges a head that the server offers against the one that was seen. */
export async function judgeHead(
  seen: SeenHead | null,
  offered: Checkpoint,
  publicKey: string,
  prove: ProveGrowth,
): Promise<HeadVerdict> {
  const verdict = (state: HeadState, words: string): HeadVerdict => ({
    chain: offered.chain,
    state,
    words,
    seen,
    offered,
  });
  if (!(await verifyCheckpoint(offered, publicKey).catch(() => false))) {
    return verdict("forged", "The signature under this head does not fit the installation's key.");
  }
  if (seen === null) return verdict("first", "This browser sees this chain for the first time.");
  const count = (size: number) => `${size.toLocaleString("en-US")} record${size === 1 ? "" : "s"}`;
  if (offered.size < seen.size) {
    const words = `This chain had ${count(seen.size)} when this browser last looked, and the server now shows ${count(offered.size)}. Records were cut off at its end.`;
    return verdict("cut_off", words);
  }
  if (offered.size === seen.size) {
    return offered.root === seen.root && offered.head === seen.head
      ? verdict("same", "The same as when this browser last looked.")
      : verdict(
          "rewritten",
          `The ${count(seen.size)} of this chain are not those that this browser saw. Records were changed.`,
        );
  }
  if (seen.closed) {
    return verdict("rewritten", "This chain was closed with a signature, and records were added after that.");
  }
  let path: string[];
  try {
    path = await prove(offered.chain, seen.size, offered.size);
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    return verdict("unproven", `The server gave no proof that this chain only grew: ${why}`);
  }
  const earlier = { size: seen.size, root: fromHex(seen.root, 32) };
  const later = { size: offered.size, root: fromHex(offered.root, 32) };
  const grew = await readPath(path).then(
    (hashes) => verifyConsistency(earlier, later, hashes),
    () => false,
  );
  return grew
    ? verdict(
        "grown",
        `${count(offered.size - seen.size)} more than when this browser last looked; nothing before them was changed.`,
      )
    : verdict(
        "rewritten",
        `The first ${count(seen.size)} of this chain are not those that this browser saw. Records were changed or removed.`,
      );
}

async function readPath(path: readonly string[]): Promise<Uint8Array[]> {
  return path.map((hash) => fromHex(hash, 32));
}

/** A chain that was seen and of which the server shows no head any more. */
export function judgeMissing(seen: SeenHead, prunedAt: string | null): HeadVerdict {
  const count = seen.size.toLocaleString("en-US");
  const words =
    prunedAt === null
      ? `This browser saw this chain with ${count} records. The server does not have it any more: it was removed as a whole.`
      : `The server says that the ${count} records of this chain were removed when their time was over (audit.retention_days).`;
  return { chain: seen.chain, state: prunedAt === null ? "cut_off" : "pruned", words, seen, offered: null };
}

/** Returns what is wrong with the list of chains, in words; null when nothing is. Each new chain is linked to the one before it. */
export function judgeRegistry(seen: string | null, offered: string): string | null {
  if (seen === null || seen === offered) return null;
  const [before, now] = [parseRegistry(seen), parseRegistry(offered)];
  if (before === null) return null;
  if (now === null || now.number < before.number) {
    return `There were ${before.number} chains when this browser last looked, and the server now shows ${now?.number ?? 0}. The newest chains were removed as a whole.`;
  }
  if (now.number === before.number && now.link !== before.link) {
    return `The newest chain is another one than the one that this browser saw. The list of chains was rewritten.`;
  }
  return null;
}

function parseRegistry(text: string): { number: number; link: string } | null {
  const match = /^(\d+):([0-9a-f]+)$/.exec(text);
  return match?.[1] && match[2] ? { number: Number(match[1]), link: match[2] } : null;
}

/** What looking at the heads of the server showed. */
export interface Look {
  public_key: string;
  /** Every key that follows from the one that this browser trusts. */
  trusted_keys?: ReadonlySet<string>;
  registry: string;
  verdicts: readonly HeadVerdict[];
}

/**
 * Returns what to keep after looking: heads that were proven take the place of shorter ones, and nothing else changes. Another tab may
 * have looked further meanwhile, so `witness` is read anew just before.
 */
export function keepHeads(witness: Witness, look: Look, now: string): Witness {
  const isTrusted = witness.public_key === look.public_key || look.trusted_keys?.has(look.public_key);
  if (witness.public_key !== null && !isTrusted) return witness;
  const chains = { ...witness.chains };
  for (const { chain, state, offered } of look.verdicts) {
    const isProven = state === "first" || state === "grown" || state === "same";
    if (offered && isProven && offered.size >= (chains[chain]?.size ?? 0)) chains[chain] = { ...offered, seen_at: now };
  }
  const byAge = Object.values(chains).sort((one, other) => (one.at < other.at ? -1 : 1));
  for (const head of byAge.filter((it) => it.closed).slice(0, Math.max(0, byAge.length - MAX_CHAINS))) {
    delete chains[head.chain];
  }
  const isListKept = judgeRegistry(witness.registry, look.registry) !== null || parseRegistry(look.registry) === null;
  return { public_key: look.public_key, registry: isListKept ? witness.registry : look.registry, chains };
}
