/** The questions of the gateway in words, and what would have to change for another answer. */

export const QUESTIONS: Record<string, string> = {
  token: "Is the token of an agent, and valid now?",
  tool: "Does the tool exist for this agent, with the definition that was accepted?",
  enabled: "Is the tool enabled?",
  scope: "Is the agent on the side that the tool is for?",
  allowlist: "Do the allowlists of the role and of the token have the tool?",
  profile: "May the agent use the network, and may its user do more than read?",
  arguments: "Do the arguments fit the schema, and the ids in them the token?",
  rules: "Do the rules permit the call?",
  limits: "Is the call within its rate limits and quotas?",
  audit: "Is the decision written to the audit log?",
};

export interface Remedy {
  words: string;
  /** The page on which it is changed. */
  to?:
    | "/tools"
    | "/tools/servers"
    | "/tools/rules"
    | "/tools/tokens"
    | "/tools/approvals"
    | "/settings"
    | "/settings/people";
  link?: string;
}

const TOKEN: Remedy = { words: "The agent needs another token.", to: "/tools/tokens", link: "Tokens" };
const IDS: Remedy = {
  words: "The ids in the arguments must be those that the token is for. Leave them out: the gateway fills them in.",
};

/** What would have to change, by the code of the refusal. */
const REMEDIES: Record<string, Remedy> = {
  invalid_token: TOKEN,
  token_expired: TOKEN,
  token_revoked: TOKEN,
  stale_policy: { words: "Nothing: the gateway could not confirm its policy in time. The call may be repeated." },
  unknown_tool: {
    words: "A tool of this name must exist for this agent: check the name, or install the server that has it.",
    to: "/tools/servers",
    link: "Tool servers",
  },
  definition_changed: {
    words: "A person must accept the changed definition of the tool.",
    to: "/tools/servers",
    link: "Compare the definitions",
  },
  disabled: { words: "An admin must enable the tool.", to: "/tools", link: "The tool" },
  wrong_scope: {
    words: "The scope of the tool must include the side that this agent is on.",
    to: "/tools",
    link: "The tool",
  },
  not_allowlisted: { words: "The allowlist of the role must have the tool.", to: "/tools", link: "The tool" },
  disabled_by_setting: {
    words: "The setting that permits this tool for the role must be on.",
    to: "/settings",
    link: "Settings",
  },
  not_granted_by_token: {
    words: "The token is for other tools only: the agent needs one that has this tool.",
    to: "/tools/tokens",
    link: "Tokens",
  },
  unknown_profile: {
    words: "The agent needs a token under a profile that exists.",
    to: "/tools/tokens",
    link: "Tokens",
  },
  not_in_profile: {
    words: "The profile that the agent works under must name the tool.",
    to: "/tools/tokens",
    link: "Tokens",
  },
  network_denied: {
    words: "The agent must run under a profile that permits the network.",
    to: "/tools/tokens",
    link: "Tokens",
  },
  user_lacks_permission: {
    words: "The person whom the agent works for must be an operator of the project.",
    to: "/settings/people",
    link: "People",
  },
  missing_id: IDS,
  wrong_id: IDS,
  wrong_role: { words: "The role in the arguments must be that of the token." },
  unbound_token: {
    words: "The agent needs a token that is for a task, run or job.",
    to: "/tools/tokens",
    link: "Tokens",
  },
  invalid_arguments: { words: "The arguments must fit the schema of the tool." },
  denied_by_rule: {
    words: "The rule must not apply any more: narrow it, set it to shadow, or delete it.",
    to: "/tools/rules",
  },
  rule_failed: { words: "The rule cannot be evaluated, which counts as a refusal: mend it.", to: "/tools/rules" },
  needs_approval: { words: "A person must approve exactly this call.", to: "/tools/approvals", link: "Approvals" },
  approval_denied: { words: "A person denied exactly this call. Only another call can be approved." },
  too_many_pending_approvals: {
    words: "People must answer what waits already.",
    to: "/tools/approvals",
    link: "Approvals",
  },
  rate_limited: {
    words: "The agent must wait, or gateway.calls_per_second must be higher.",
    to: "/settings",
    link: "Settings",
  },
  duplicate_call: {
    words: "The agent must do something else, or gateway.max_identical_calls must be higher.",
    to: "/settings",
    link: "Settings",
  },
  quota_exceeded: {
    words: "The hour must end, or gateway.calls_per_task_hour must be higher.",
    to: "/settings",
    link: "Settings",
  },
  audit_unavailable: { words: "The audit log must be writable again: see the readiness of the server." },
};

export function findRemedy(reason: string): Remedy | null {
  return REMEDIES[reason] ?? null;
}

export type RungState = "passed" | "refused" | "not_reached" | "at_the_call" | "not_recorded";

export const RUNGS: Record<RungState, { sign: string; words: string; tone: string }> = {
  passed: { sign: "✓", words: "passed", tone: "text-muted" },
  refused: { sign: "✗", words: "refused", tone: "text-bad" },
  not_reached: { sign: "·", words: "not asked", tone: "text-faint" },
  at_the_call: { sign: "○", words: "only a real call can tell", tone: "text-faint" },
  not_recorded: { sign: "○", words: "needs the arguments, which are not recorded", tone: "text-warn" },
};

export function toRungState(result: string): RungState {
  return result in RUNGS ? (result as RungState) : "not_reached";
}

export const DECISIONS: Record<string, { sign: string; words: string; tone: string }> = {
  allow: { sign: "✓", words: "Allowed", tone: "text-ok" },
  deny: { sign: "✗", words: "Refused", tone: "text-bad" },
  needs_approval: { sign: "?", words: "Needs approval", tone: "text-warn" },
};

/** Returns a decision in words; one that this page does not know keeps its name. */
export function describeDecision(decision: string): { sign: string; words: string; tone: string } {
  return DECISIONS[decision] ?? { sign: "·", words: decision, tone: "text-muted" };
}

/** How a call ended that was allowed. */
const END_WORDS: Record<string, string> = {
  success: "succeeded",
  tool_error: "failed",
  protocol_error: "broke the protocol",
  timeout: "timed out",
  cancelled: "was cancelled",
  disconnected: "lost its connection",
  revoked: "was revoked",
  not_forwarded: "was not forwarded",
  unknown: "has an unknown end",
};

/** Returns how a call ended in words. */
export function describeEnd(outcome: string | null | undefined): string {
  return END_WORDS[outcome ?? "unknown"] ?? `ended as ${outcome}`;
}

type SchemaNode = {
  type?: unknown;
  properties?: Record<string, SchemaNode>;
  required?: unknown;
  enum?: unknown[];
  default?: unknown;
};

/** Returns arguments to begin with: every required field of a schema with a value of its type. */
export function sampleArguments(schema: unknown, bound: readonly string[]): Record<string, unknown> {
  const node = (typeof schema === "object" && schema !== null ? schema : {}) as SchemaNode;
  const required = Array.isArray(node.required) ? node.required.filter((name) => typeof name === "string") : [];
  return Object.fromEntries(
    required.filter((name) => !bound.includes(name)).map((name) => [name, sampleValue(node.properties?.[name] ?? {})]),
  );
}

function sampleValue(node: SchemaNode): unknown {
  if (node.default !== undefined) return node.default;
  if (Array.isArray(node.enum) && node.enum.length > 0) return node.enum[0];
  const type = Array.isArray(node.type) ? node.type[0] : node.type;
  if (type === "integer" || type === "number") return 0;
  if (type === "boolean") return false;
  if (type === "array") return [];
  if (type === "object") return sampleArguments(node, []);
  return "";
}

/** Reads arguments that somebody typed. Nothing typed is no arguments. */
export function parseArguments(text: string): { value: Record<string, unknown> } | { problem: string } {
  if (text.trim() === "") return { value: {} };
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === "object" && value !== null && !Array.isArray(value)) {
      return { value: value as Record<string, unknown> };
    }
    return { problem: "Arguments are one JSON object, such as {}." };
  } catch (error) {
    return { problem: error instanceof Error ? error.message : String(error) };
  }
}
