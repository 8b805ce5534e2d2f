import { describe, expect, it } from "vitest";
import { staleKeys } from "../src/events/invalidate";
import { type AgentToken, describeToken, type TokenDraft, toTokenRequest } from "../src/logic/agent-token";
import { compareLines, splitChange, splitIndent, toLines } from "../src/logic/definition";
import { describeServer, EMPTY_INSTALL, type ToolServer, toInstallRequest } from "../src/logic/tool-server";
import {
  type AuditRecord,
  countHours,
  describeAnnotations,
  describeSchema,
  filterTools,
  findAllowlistLines,
  findRuleConcern,
  formatMicroseconds,
  joinCalls,
  measureRefusal,
  sortTools,
  type Tool,
  type ToolStat,
} from "../src/logic/tools";

const tool = (name: string, part: Partial<Tool> = {}): Tool => ({
  name,
  wire_name: name.replaceAll(".", "__"),
  aliases: [],
  title: name,
  description: "",
  enabled: true,
  scope: "both",
  origin: "native",
  accepted: true,
  bound_to: [],
  network: false,
  annotations: {},
  definition_digest: "",
  roles: [],
  input_schema: {},
  ...part,
});

const record = (part: Partial<AuditRecord>): AuditRecord => ({
  chain_id: "chn",
  seq: 1,
  at: "2026-01-01T10:00:00Z",
  call_id: "cal",
  phase: "decision",
  decision: "allow",
  reason: "allowed",
  rules: [],
  shadow: [],
  method: "tools/call",
  policy_hash: "",
  trace_id: "",
  arguments_size: 0,
  result_size: 0,
  duration_us: 0,
  hash: "",
  tool: "web.fetch",
  ...part,
});

describe("tools", () => {
  it("finds tools by every word, whatever it is of them, and by their state", () => {
    const tools = [
      tool("git.push", { roles: ["developer"], enabled: false }),
      tool("web.fetch", { title: "Read a page", origin: "srv" }),
      tool("ext.todo.add", { origin: "srv", accepted: false }),
    ];
    const find = (words: string, state?: "on" | "off" | "changed") =>
      filterTools(tools, words, state, (origin) => (origin === "srv" ? "todo" : "built in")).map((it) => it.name);
    expect(find("")).toEqual(["git.push", "web.fetch", "ext.todo.add"]);
    expect(find("TODO page")).toEqual(["web.fetch"]);
    expect(find("developer")).toEqual(["git.push"]);
    expect([find("", "on"), find("", "off"), find("", "changed")]).toEqual([
      ["web.fetch", "ext.todo.add"],
      ["git.push"],
      ["ext.todo.add"],
    ]);
  });

  it("says what a tool does, and takes the worst where nobody said anything", () => {
    const hints = { readOnlyHint: true, destructiveHint: false, idempotentHint: true, openWorldHint: false };
    expect(describeAnnotations(hints)).toBe("reads");
    expect(describeAnnotations({})).toBe("writes · destroys · open world");
    expect(describeAnnotations({ ...hints, readOnlyHint: false })).toBe("writes · repeatable");
  });

  it("names the line of an allowlist that decides", () => {
    const lists = [
      {
        role: "project_manager",
        kind: "pm",
        lines: [{ tools: "sandbox.images.*", setting: "x" }, { tools: "sandbox.*" }],
      },
      { role: "developer", kind: "sandbox", lines: [{ tools: "git.*" }] },
    ];
    expect(findAllowlistLines(lists, "sandbox.images.add")).toEqual([
      { role: "project_manager", pattern: "sandbox.images.*", setting: "x" },
    ]);
    expect(findAllowlistLines(lists, "gitx.push")).toEqual([]);
  });

  it("finds the rules that concern a tool by name, by group and because they name none", () => {
    const one = 'forbid (principal, action == Action::"git.push", resource);';
    const group = 'forbid (principal, action in [Action::"web.*"], resource);';
    expect(["git.push", "web.fetch"].map((name) => findRuleConcern(one, name))).toEqual(["named", null]);
    expect(findRuleConcern(group, "web.fetch")).toBe("named");
    expect(findRuleConcern("forbid (principal, action, resource);", "web.fetch")).toBe("every");
    expect(
      findRuleConcern('// Action::"web.fetch"\nforbid (principal, action == Action::"a.b", resource);', "web.fetch"),
    ).toBe(null);
  });

  it("counts each call once, by its decision", () => {
    const records = [
      record({ call_id: "2", at: "2026-01-01T11:30:00Z", decision: "deny", reason: "disabled" }),
      record({ call_id: "1", phase: "outcome", outcome: "success", duration_us: 7 }),
      record({ call_id: "1" }),
    ];
    expect(countHours(records, Date.parse("2026-01-01T12:00:00Z"), 3)).toEqual([
      { allowed: 1, refused: 0 },
      { allowed: 0, refused: 0 },
      { allowed: 0, refused: 1 },
    ]);
    expect(joinCalls(records).map((call) => [call.callId, call.reason, call.outcome, call.durationUs])).toEqual([
      ["2", "disabled", null, null],
      ["1", "allowed", "success", 7],
    ]);
  });

  it("sorts tools by what was counted, and those that were not called come last", () => {
    const stat = (name: string, part: Partial<ToolStat>): [string, ToolStat] => [
      name,
      {
        tool: name,
        allowed: 0,
        refused: 0,
        needs_approval: 0,
        failed: 0,
        last_at: "2026-01-01T00:00:00Z",
        ...part,
      },
    ];
    const stats = new Map([
      stat("b", { allowed: 2, p95_us: 900 }),
      stat("c", { refused: 3, last_at: "2026-01-02T00:00:00Z" }),
    ]);
    const order = (sort: Parameters<typeof sortTools>[1]) =>
      sortTools(
        ["a", "b", "c"].map((name) => tool(name)),
        sort,
        stats,
      )
        .map((it) => it.name)
        .join("");
    expect(order("name")).toBe("abc");
    expect(order("calls")).toBe("cba");
    expect(order("p95")).toBe("bca");
    expect(order("used")).toBe("cba");
    expect([400, 1500, 4_440_000, 61_000_000].map(formatMicroseconds)).toEqual(["400 µs", "2 ms", "4.4 s", "1 m 1 s"]);
  });

  it("draws a schema as rows, follows references and ends where one refers to itself", () => {
    const schema = {
      type: "object",
      required: ["url"],
      properties: {
        url: { type: "string", description: "Where.", maxLength: 10, format: "uri" },
        mode: { enum: ["a", "b"], default: "a" },
        list: { type: "array", items: { type: "object", properties: { x: { type: ["integer", "null"] } } } },
        self: { $ref: "#/$defs/node" },
      },
      $defs: { node: { type: "object", properties: { next: { $ref: "#/$defs/node" } } } },
    };
    const rows = describeSchema(schema);
    expect(rows.slice(0, 4)).toEqual([
      {
        depth: 0,
        name: "url",
        type: "string",
        required: true,
        description: "Where.",
        limits: ["characters at most 10", "format uri"],
      },
      {
        depth: 0,
        name: "mode",
        type: "any",
        required: false,
        description: "",
        limits: ['one of "a", "b"', '"a" when left out'],
      },
      { depth: 0, name: "list", type: "array of object", required: false, description: "", limits: [] },
      { depth: 1, name: "x", type: "integer or null", required: false, description: "", limits: [] },
    ]);
    expect(rows.slice(4).map((row) => `${row.depth} ${row.name}`)).toEqual([
      "0 self",
      ...Array.from({ length: 7 }, (_, index) => `${index + 1} next`),
    ]);
    expect(describeSchema("no schema")).toEqual([]);
  });
});

describe("switching a tool off", () => {
  const measure = (reasons: string[] | null) => {
    let now = 1000;
    const spend = (milliseconds: number) => {
      now += milliseconds;
    };
    return measureRefusal({
      now: () => now,
      switchOff: async () => spend(30),
      explain:
        reasons &&
        (async () => {
          spend(10);
          const reason = reasons.shift();
          if (reason === undefined) throw new Error("no answer");
          return reason;
        }),
    });
  };

  it("measures until a call is refused because of it, not for another reason", async () => {
    expect(await measure(["disabled"])).toEqual({ storedMs: 30, refusedMs: 40 });
    expect(await measure(["allowed", "not_allowlisted", "disabled"])).toEqual({ storedMs: 30, refusedMs: 60 });
  });

  it("says that nothing was measured when no agent can be asked about or the question fails", async () => {
    expect(await measure(null)).toEqual({ storedMs: 30, refusedMs: null });
    expect(await measure([])).toEqual({ storedMs: 30, refusedMs: null });
  });
});

describe("definitions", () => {
  it("writes a definition as lines in which a text cannot look like a key", () => {
    const definition = {
      name: "echo",
      description: "One\ninputSchema: {}",
      inputSchema: { required: ["a"], type: "object" },
      list: [{ b: 1 }],
      none: {},
    };
    expect(toLines(definition)).toEqual([
      "description:",
      "  | One",
      "  | inputSchema: {}",
      "inputSchema:",
      '  required: ["a"]',
      '  type: "object"',
      "list:",
      "  -",
      "    b: 1",
      'name: "echo"',
      "none: {}",
    ]);
  });

  it("sets removed and added lines beside each other and keeps what is the same", () => {
    expect(compareLines(["a", "b", "c", "d"], ["a", "x", "c", "d", "e"])).toEqual([
      { kind: "same", before: "a", after: "a" },
      { kind: "changed", before: "b", after: "x" },
      { kind: "same", before: "c", after: "c" },
      { kind: "same", before: "d", after: "d" },
      { kind: "added", before: null, after: "e" },
    ]);
    expect(compareLines(["a", "b"], ["b"])).toEqual([
      { kind: "removed", before: "a", after: null },
      { kind: "same", before: "b", after: "b" },
    ]);
  });

  it("loses no line of either side, also where it compares no more", () => {
    const long = (word: string) => Array.from({ length: 2500 }, (_, index) => `${word} ${index}`);
    const rows = compareLines(long("a"), [...long("b"), "end"]);
    expect(rows.flatMap((row) => row.before ?? [])).toEqual(long("a"));
    expect(rows.flatMap((row) => row.after ?? [])).toEqual([...long("b"), "end"]);
  });

  it("marks only what differs in a line", () => {
    expect(splitChange("say 🦀 once", "say 🦞 once")).toEqual({
      before: ["say ", "🦀", " once"],
      after: ["say ", "🦞", " once"],
    });
  });
});

describe("events", () => {
  it("renews the pages about tools by the events that change them", () => {
    const keys = (kind: string) => staleKeys({ kind, project_id: null, task_id: null });
    expect(keys("tool.set")).toEqual([["tools"], ["rules"]]);
    expect(keys("tool_server.accepted")).toEqual([["inbox"], ["tools"], ["rules"]]);
    expect(keys("agent_token.revoked")).toEqual([["agent-tokens"]]);
    expect(keys("images.changed")).toEqual([["images"]]);
  });
});

describe("lines of a definition", () => {
  it("compares a description that got a second line by its lines", () => {
    const lines = (description: string) => toLines({ description, inputSchema: { description: "" } });
    expect(compareLines(lines("One."), lines("One.\nTwo.")).map((row) => [row.kind, row.after])).toEqual([
      ["same", "description:"],
      ["same", "  | One."],
      ["added", "  | Two."],
      ["same", "inputSchema:"],
      ["same", "  description:"],
      ["same", "    | "],
    ]);
  });

  it("separates the bar of a text from the text, so that a wrapped line stays behind it", () => {
    expect([splitIndent("    | | a"), splitIndent("  - b"), splitIndent("type: 1")]).toEqual([
      ["    | ", "| a"],
      ["  - ", "b"],
      ["", "type: 1"],
    ]);
  });
});

describe("tool servers", () => {
  const draft = { ...EMPTY_INSTALL, name: "todo", scope: "both" as const };

  it("asks for what is missing, one thing at a time", () => {
    const missing = (part: Partial<typeof EMPTY_INSTALL>) => {
      const request = toInstallRequest({ ...EMPTY_INSTALL, ...part });
      return "missing" in request ? request.missing : null;
    };
    expect([
      missing({}),
      missing({ name: "todo" }),
      missing({ ...draft }),
      missing({ ...draft, url: "https://a.example/mcp", audience: "project" }),
      missing({ ...draft, url: "https://a.example/mcp", timeoutMs: "soon" }),
      missing({ ...draft, url: "https://a.example/mcp", secrets: [{ name: "A", value: "" }] }),
      missing({ ...draft, kind: "stdio" }),
      missing({ ...draft, kind: "server_json", document: "[]" }),
      missing({ ...draft, url: "https://a.example/mcp" }),
    ]).toEqual([
      "Give it a name of small letters, digits and dashes",
      "Choose who may call its tools",
      "Give the address of the server, with http:// or https://",
      "Choose the project",
      "Limits are whole numbers",
      "Give each secret a name and a value",
      "Give the program of the server",
      "Paste the server.json of a registry: it is no JSON object yet",
      null,
    ]);
  });

  it("sends only what was chosen, for each way to reach a server", () => {
    const secrets = [
      { name: "Authorization", value: "Bearer x" },
      { name: "", value: "" },
    ];
    expect(toInstallRequest({ ...draft, url: "https://a.example/mcp", secrets, timeoutMs: "500" })).toEqual({
      body: {
        name: "todo",
        scope: "both",
        audience: "user",
        transport: { type: "http", url: "https://a.example/mcp" },
        timeout_ms: 500,
        secrets: { Authorization: "Bearer x" },
      },
    });
    const program = { kind: "stdio" as const, command: "todo", args: "--a b\n\n-c", hosts: " api.example.org \n" };
    expect(toInstallRequest({ ...draft, ...program, audience: "project", project: "prj" })).toEqual({
      body: {
        name: "todo",
        scope: "both",
        audience: "project",
        project_id: "prj",
        transport: {
          type: "stdio",
          command: "todo",
          args: ["--a b", "-c"],
          network: true,
          network_hosts: ["api.example.org"],
        },
      },
    });
  });

  it("says first what is worst about a server", () => {
    const server = (part: Partial<ToolServer>) =>
      describeServer({ enabled: true, tools: [], listed_at: "2026-01-01T00:00:00Z", ...part } as ToolServer).words;
    const changed = [{ state: "changed" }, { state: "new" }, { state: "gone" }] as ToolServer["tools"];
    expect([
      server({}),
      server({ listed_at: null }),
      server({ tools: changed }),
      server({ tools: changed, failure: "no answer" }),
      server({ tools: changed, failure: "no answer", enabled: false }),
    ]).toEqual(["In use", "Not read yet", "2 to accept", "Does not answer", "Off"]);
  });
});

describe("agent tokens", () => {
  const draft: TokenDraft = {
    role: "developer",
    kind: "sandbox",
    task: "",
    seconds: "3600",
    profile: " ",
    network: false,
    models: "",
    tools: "",
  };

  it("needs a task unless the agent is a project manager", () => {
    expect(toTokenRequest("prj", draft)).toEqual({
      missing: "Choose the task: only a project manager works without one",
    });
    expect(toTokenRequest("prj", { ...draft, role: "project_manager", kind: "pm", tools: "web.fetch\n" })).toEqual({
      body: {
        role: "project_manager",
        project_id: "prj",
        network: false,
        expires_in_seconds: 3600,
        tools: ["web.fetch"],
      },
    });
  });

  it("works until it is revoked or expires", () => {
    const token = (part: Partial<AgentToken>) =>
      describeToken(part as AgentToken, Date.parse("2026-01-02T00:00:00Z")).words;
    expect([
      token({}),
      token({ expires_at: "2026-01-02T00:00:01Z" }),
      token({ expires_at: "2026-01-02T00:00:00Z" }),
      token({ revoked_at: "2026-01-01T00:00:00Z", expires_at: "2026-01-02T00:00:01Z" }),
    ]).toEqual(["Works", "Works", "Expired", "Revoked"]);
  });
});
