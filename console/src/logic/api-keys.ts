/** API keys in words. */

import type { Schema } from "../api/client";
import type { Standing } from "./state";

export type ApiKey = Schema["ApiKeyView"];

export const LIFETIMES: readonly { value: string; name: string }[] = [
  { value: "7", name: "7 days" },
  { value: "30", name: "30 days" },
  { value: "90", name: "90 days" },
  { value: "365", name: "1 year" },
  { value: "", name: "Until it is revoked" },
];

/** Returns how a key stands. */
export function describeKey(key: ApiKey, now: number): { standing: Standing; words: string; works: boolean } {
  if (key.revoked_at) return { standing: "cancelled", words: "Revoked", works: false };
  if (key.expires_at && Date.parse(key.expires_at) <= now) {
    return { standing: "cancelled", words: "Expired", works: false };
  }
  return { standing: "done", words: "Works", works: true };
}
