/** Looks at the signed heads of the audit log, judges them, and keeps in this browser what was proven. */

import { queryOptions } from "@tanstack/react-query";
import {
  type CallProof,
  type CheckedProof,
  type Checkpoint,
  findMissingCrypto,
  findTrustedKeys,
  verifyProof,
} from "../logic/audit";
import { fromHex, verifyConsistency } from "../logic/merkle";
import {
  ALARMS,
  EMPTY_WITNESS,
  type HeadVerdict,
  judgeHead,
  judgeMissing,
  judgeRegistry,
  keepHeads,
  parseWitness,
  type SeenHead,
  type Witness,
} from "../logic/witness";
import { api, unwrap } from "./client";
import { Problem } from "./problem";
import { auditHeadsQuery, proofQuery } from "./queries-policy";
import type { AuditHeads, ChainHead } from "./types";

const STORAGE_KEY = "cynode.audit.witness";
/** Chains beyond the list of the server that are asked for one by one. */
const MAX_SINGLE_CHAINS = 50;

export function readWitness(): Witness {
  try {
    return parseWitness(localStorage.getItem(STORAGE_KEY));
  } catch {
    return EMPTY_WITNESS;
  }
}

/** Returns whether it was kept: a browser may store nothing. */
function writeWitness(witness: Witness): boolean {
  try {
    localStorage.setItem(STORAGE_KEY, JSON.stringify(witness));
    return true;
  } catch {
    return false;
  }
}

export function forgetWitness(): void {
  try {
    localStorage.removeItem(STORAGE_KEY);
  } catch {
    // Nothing was kept.
  }
}

export interface WitnessReport {
  /** Why nothing can be checked here; null when it can. */
  unable: string | null;
  /** What is wrong with the list of chains or its key. */
  alarms: string[];
  verdicts: HeadVerdict[];
  heads: ChainHead[];
  /** When this browser had looked before. */
  before: string | null;
  /** What was kept before, for whoever has to find out what happened. */
  witness: Witness;
  isKept: boolean;
}

async function proveGrowth(chain: string, from: number, to: number): Promise<string[]> {
  const query = { chain: toChainId(chain), from, to };
  const proof = await unwrap(api.GET("/v1/audit/consistency", { params: { query } }));
  return proof.path;
}

/** Returns the id of a chain as the interface writes it, from the form in which it is signed. */
function toChainId(chain: string): string {
  return `chn_${chain.replaceAll("-", "")}`;
}

async function lookAtHeads(answer: AuditHeads): Promise<WitnessReport> {
  const witness = readWitness();
  const report: WitnessReport = {
    unable: await findMissingCrypto(),
    alarms: [],
    verdicts: [],
    heads: answer.heads,
    before: Object.values(witness.chains).reduce<string | null>(
      (last, head) => (last === null || head.seen_at > last ? head.seen_at : last),
      null,
    ),
    witness,
    isKept: true,
  };
  if (report.unable) return report;
  const trusted = await findTrustedKeys(witness.public_key ?? answer.public_key, answer.public_keys ?? []);
  if (!trusted.has(answer.public_key)) {
    report.alarms.push(
      "Another key signs the log than the one that this browser knows, and that one did not introduce it. Whoever holds the new key can have rewritten everything.",
    );
    return report;
  }
  const registry = judgeRegistry(witness.registry, answer.registry_head);
  if (registry) report.alarms.push(registry);
  const listed = new Set<string>();
  for (const head of answer.heads) {
    const verdict = await judgeChain(head, witness, keyOf(answer, head, trusted));
    if (verdict) report.verdicts.push(verdict);
    listed.add(head.chain_id);
  }
  const unlisted = Object.values(witness.chains).filter((seen) => !listed.has(toChainId(seen.chain)));
  report.verdicts.push(...(await judgeUnlisted(unlisted, answer, trusted)));
  const look = {
    public_key: answer.public_key,
    trusted_keys: trusted,
    registry: answer.registry_head,
    verdicts: report.verdicts,
  };
  report.isKept = writeWitness(keepHeads(readWitness(), look, new Date().toISOString()));
  return report;
}

/** Returns the key that a head names, if it is trusted; otherwise the present one, with which the head is not genuine. */
function keyOf(answer: AuditHeads, head: ChainHead, trusted: ReadonlySet<string>): string {
  const named = answer.public_keys?.find((key) => key.key_id === head.checkpoint?.key_id);
  return named && trusted.has(named.public_key) ? named.public_key : answer.public_key;
}

async function judgeChain(head: ChainHead, witness: Witness, publicKey: string): Promise<HeadVerdict | null> {
  const { checkpoint, pruned_at: prunedAt = null } = head;
  const seen = Object.values(witness.chains).find((it) => toChainId(it.chain) === head.chain_id) ?? null;
  if (!checkpoint) return seen ? judgeMissing(seen, prunedAt) : null;
  if (toChainId(checkpoint.chain) !== head.chain_id) {
    const words = "The server shows the head of another chain here.";
    return { chain: checkpoint.chain, state: "forged", words, seen, offered: checkpoint };
  }
  const verdict = await judgeHead(seen, checkpoint, publicKey, proveGrowth);
  if (prunedAt && seen && !ALARMS.has(verdict.state)) return judgeMissing(seen, prunedAt);
  return verdict;
}

/** Chains that were seen and are not in the list: gone, or too old for a list that has an end. */
async function judgeUnlisted(
  chains: readonly SeenHead[],
  answer: AuditHeads,
  trusted: ReadonlySet<string>,
): Promise<HeadVerdict[]> {
  if (answer.complete) return chains.map((seen) => judgeMissing(seen, null));
  const verdicts: HeadVerdict[] = [];
  for (const seen of chains.slice(-MAX_SINGLE_CHAINS)) {
    try {
      const query = { chain: toChainId(seen.chain) };
      const single = await unwrap(api.GET("/v1/audit/head", { params: { query } }));
      const head = single.heads[0];
      const witness = { ...EMPTY_WITNESS, chains: { [seen.chain]: seen } };
      const verdict = head ? await judgeChain(head, witness, keyOf(answer, head, trusted)) : judgeMissing(seen, null);
      if (verdict) verdicts.push(verdict);
    } catch (error) {
      if (!(error instanceof Problem) || error.status !== 404) throw error;
      verdicts.push(judgeMissing(seen, null));
    }
  }
  return verdicts;
}

/** Every look may replace a head by a longer one, so it is done when the page is opened and when somebody asks for it. */
export const witnessQuery = queryOptions({
  queryKey: ["audit", "witness"],
  queryFn: async ({ client }) => lookAtHeads(await client.fetchQuery({ ...auditHeadsQuery, staleTime: 0 })),
  retry: false,
  staleTime: 0,
  structuralSharing: false,
});

export interface VerifiedCall {
  unable: string | null;
  proofs: (CheckedProof & { relation: Relation })[];
}

/** How the head of a proof stands to the last head of its chain that this browser saw. */
export interface Relation {
  passed: boolean;
  words: string;
  seen: SeenHead | null;
}

async function relate(checkpoint: Checkpoint, key: string): Promise<Relation> {
  const witness = readWitness();
  const seen = witness.chains[checkpoint.chain] ?? null;
  if (!seen) return { passed: true, words: "This browser has not seen a head of this chain before.", seen };
  if (checkpoint.size > seen.size) {
    const verdict = await judgeHead(seen, checkpoint, key, proveGrowth);
    return { passed: verdict.state === "grown", words: verdict.words, seen };
  }
  const path = checkpoint.size === seen.size ? [] : await proveGrowth(checkpoint.chain, checkpoint.size, seen.size);
  const earlier = { size: checkpoint.size, root: fromHex(checkpoint.root, 32) };
  const later = { size: seen.size, root: fromHex(seen.root, 32) };
  const hashes = path.map((hash) => fromHex(hash, 32));
  return (await verifyConsistency(earlier, later, hashes))
    ? { passed: true, words: "The head of this proof is part of the last head that this browser saw.", seen }
    : { passed: false, words: "The head of this proof contradicts the last head that this browser saw.", seen };
}

/** Reads the proof of a call and checks all of it here. */
export const verifiedCallQuery = (call: string) =>
  queryOptions({
    queryKey: ["audit", "verified", call],
    queryFn: async ({ client }): Promise<VerifiedCall> => {
      const proofs = await client.fetchQuery({ ...proofQuery(call), staleTime: 0 });
      const unable = await findMissingCrypto();
      if (unable) return { unable, proofs: [] };
      const pinned = readWitness().public_key;
      const isPinned = proofs.every((proof) => pinned === null || proof.public_key === pinned);
      const keys = isPinned ? [] : ((await client.fetchQuery(auditHeadsQuery)).public_keys ?? []);
      const trusted = await findTrustedKeys(pinned ?? "", keys);
      const keyFor = (proof: CallProof) =>
        pinned === null || trusted.has(proof.public_key) ? proof.public_key : pinned;
      const checked = proofs.map(async (proof) => ({
        ...(await verifyProof(proof, keyFor(proof))),
        relation: await relate(proof.checkpoint, keyFor(proof)).catch((error: unknown) => ({
          passed: false,
          words: `The server gave no proof that this head and the last one seen belong together: ${error instanceof Error ? error.message : String(error)}`,
          seen: null,
        })),
      }));
      return { unable, proofs: await Promise.all(checked) };
    },
    retry: false,
    staleTime: 0,
    structuralSharing: false,
  });
