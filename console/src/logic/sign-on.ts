/** Words about single sign-on: why a login was refused, how a session was started, and what a provider needs. */

import type { Schema } from "../api/client";

export type IdentityProvider = Schema["IdentityProviderView"];
export type OpenSession = Schema["OpenSessionView"];

const REFUSALS: Readonly<Record<string, string>> = {
  stale: "The login took too long, or began in another browser. Begin it again.",
  denied: "The identity provider did not log you in.",
  unreachable: "The identity provider cannot be reached. Try again in a moment.",
  provider: "The identity provider gave an answer that cannot be trusted. An admin finds the reason in the log.",
  no_account: "You have no account here. Ask an admin for one.",
  disabled: "Your account is disabled. Ask an admin.",
  already_linked: "That account belongs to somebody else here, or you have another one of that provider.",
  failed: "The login failed. Try again in a moment.",
};

/** Returns why a login was refused, by the code in the address. An unknown code gets the general words. */
export function describeRefusal(code: string | undefined): string | null {
  if (code === undefined) return null;
  return Object.hasOwn(REFUSALS, code) ? (REFUSALS[code] ?? null) : (REFUSALS.failed ?? null);
}

/** Returns the address that a login at a provider returns to: the page that is open, if it is one. */
export function returnPath(pathname: string, search: string): string {
  return pathname === "/login" ? "/" : `${pathname}${search}`;
}

const METHODS: Readonly<Record<NonNullable<OpenSession["method"]>, string>> = {
  password: "With a password",
  provider: "By an identity provider",
  device: "Confirmed for a device",
  break_glass: "With a link made on the host",
};

/** Returns how a session was started. */
export function describeMethod(session: Pick<OpenSession, "method" | "provider">): string {
  if (!session.method) return "Before this was recorded";
  if (session.method === "device" && session.provider) return `${METHODS.device}, by ${session.provider}`;
  return session.provider ? `By ${session.provider}` : METHODS[session.method];
}

/** Returns a device as a person knows it: the program and the system in a `User-Agent`, or the name that it gave itself. */
export function describeDevice(device: string | null | undefined): string {
  if (!device) return "Unknown device";
  const browser = [
    ["Edg/", "Edge"],
    ["Firefox/", "Firefox"],
    ["Chrome/", "Chrome"],
    ["Safari/", "Safari"],
  ].find(([sign]) => sign && device.includes(sign))?.[1];
  const system = [
    ["Android", "Android"],
    ["iPhone", "iPhone"],
    ["iPad", "iPad"],
    ["Windows", "Windows"],
    ["Mac OS", "macOS"],
    ["Linux", "Linux"],
  ].find(([sign]) => sign && device.includes(sign))?.[1];
  if (device.startsWith("Mozilla/") && browser) return system ? `${browser} on ${system}` : browser;
  return device;
}

export interface ProviderDraft {
  name: string;
  displayName: string;
  issuer: string;
  clientId: string;
  secret: string;
  scopes: string;
  groupsClaim: string;
  createAccounts: boolean;
  linksDirectory: boolean;
  secondFactorContexts: string;
}

export const NEW_PROVIDER: ProviderDraft = {
  name: "",
  displayName: "",
  issuer: "",
  clientId: "",
  secret: "",
  scopes: "profile email offline_access",
  groupsClaim: "groups",
  createAccounts: true,
  linksDirectory: false,
  secondFactorContexts: "",
};

export function toDraft(provider: IdentityProvider): ProviderDraft {
  return {
    name: provider.name,
    displayName: provider.display_name,
    issuer: provider.issuer,
    clientId: provider.client_id,
    secret: "",
    scopes: provider.scopes.join(" "),
    groupsClaim: provider.groups_claim,
    createAccounts: provider.create_accounts,
    linksDirectory: provider.links_directory,
    secondFactorContexts: provider.second_factor_contexts.join(" "),
  };
}

/** Returns when a login at a provider counts as one with a second factor. */
export function describeSecondFactor(provider: Pick<IdentityProvider, "second_factor_contexts">): string {
  return ["amr mfa, otp or hwk", ...provider.second_factor_contexts.map((context) => `acr ${context}`)].join("; ");
}

/** Returns what is missing before a provider can be stored. */
export function missingInDraft(draft: ProviderDraft): string | null {
  if (!/^[a-z][a-z0-9-]{0,30}$/.test(draft.name.trim())) return "Write a name of small letters, digits and dashes";
  if (draft.displayName.trim() === "") return "Write what people see";
  if (!/^https?:\/\/[^\s/]+\S*$/.test(draft.issuer.trim())) return "Write the issuer as an address";
  if (draft.clientId.trim() === "") return "Write the client id";
  if (draft.groupsClaim.trim() === "") return "Write the claim of groups";
  return null;
}

/** Returns the request that stores a provider. A secret that is not typed stays. */
export function toRequest(draft: ProviderDraft): Schema["SetIdentityProvider"] {
  return {
    display_name: draft.displayName.trim(),
    issuer: draft.issuer.trim(),
    client_id: draft.clientId.trim(),
    ...(draft.secret === "" ? {} : { client_secret: draft.secret }),
    scopes: draft.scopes.split(/\s+/).filter((scope) => scope !== "" && scope !== "openid"),
    groups_claim: draft.groupsClaim.trim(),
    create_accounts: draft.createAccounts,
    links_directory: draft.linksDirectory,
    second_factor_contexts: draft.secondFactorContexts.split(/\s+/).filter((context) => context !== ""),
  };
}

/** Returns the request that changes one thing of a provider and leaves the rest. */
export function toChange(
  provider: IdentityProvider,
  change: Pick<Schema["SetIdentityProvider"], "enabled" | "mappings">,
): Schema["SetIdentityProvider"] {
  return {
    display_name: provider.display_name,
    issuer: provider.issuer,
    client_id: provider.client_id,
    ...change,
  };
}

/** Returns a code of a device as it is written, or what is wrong with it. */
export function readCode(text: string): { code: string } | { reason: string } {
  const letters = text.toUpperCase().replaceAll(/[\s-]/g, "");
  if (letters.length < 8) return { reason: "Write the eight letters that the device shows" };
  if (!/^[BCDFGHJKLMNPQRSTVWXZ]{8}$/.test(letters)) return { reason: "A code has eight letters and no vowels" };
  return { code: `${letters.slice(0, 4)}-${letters.slice(4)}` };
}
