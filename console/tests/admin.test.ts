import { describe, expect, it } from "vitest";
import { staleKeys } from "../src/events/invalidate";
import { API_SCOPES, describeKey, describeLimits, toLimitRequest } from "../src/logic/api-keys";
import { type Certificate, describeExpiry, judgeCertificate, orderCertificates } from "../src/logic/certificates";
import { describeCron, findNextRuns } from "../src/logic/cron";
import { describeLevel, listLevels, toLevelFlags, toLevelKey } from "../src/logic/levels";
import { EVENT_WORDS, type Notification, nextReadDelay, parseGap, toChannelRequest } from "../src/logic/notifications";
import {
  findKnown,
  findPlaceholder,
  formatShort,
  KNOWN_POLICIES,
  KNOWN_PREFERENCES,
  KNOWN_SETTINGS,
  listKeys,
  PLACEHOLDERS,
  toKind,
} from "../src/logic/registry";
import { toUserRequest } from "../src/logic/roles";
import { listNextRuns, type Schedule, toScheduleDraft, toScheduleRequest } from "../src/logic/schedules";
import { formatValue, parseValue, toDraft } from "../src/logic/values";

const NOW = Date.parse("2026-11-18T07:00:00Z");
const utc = (text: string) => Date.parse(`${text}:00Z`);

describe("the registries", () => {
  it("hold every row of the reference's tables, with a kind of value for each", () => {
    expect(KNOWN_SETTINGS.find((it) => it.key === "gateway.calls_per_second")).toEqual({
      key: "gateway.calls_per_second",
      takes: "1 to 1000000",
      fallback: "50",
      bounds: "",
      meaning: "Rate limit: tool calls of one agent per second.",
      kind: { type: "integer", min: 1, max: 1_000_000 },
    });
    expect(KNOWN_PREFERENCES.find((it) => it.key === "delivery.mode")).toEqual({
      key: "delivery.mode",
      takes: "`pull_request`, `branch` or `none`",
      fallback: "pull_request",
      bounds: "",
      meaning: "How finished work is offered: as a pull request, as a branch, or not at all.",
      kind: { type: "choice", options: ["pull_request", "branch", "none"] },
    });
    expect(KNOWN_POLICIES.map((it) => [it.key, it.kind.type])).toEqual([
      ["approvals.four_eyes", "demand"],
      ["delivery.require_approval", "demand"],
      ["model_routing.allowed_external_providers", "list"],
      ["placement.allowed_labels", "list"],
      ["placement.allowed_nodes", "list"],
      ["sandbox.allowed_images", "list"],
      ["security.web_browse.allowed_domains", "list"],
      ["workflow.approve_plan", "demand"],
    ]);
    expect([...PLACEHOLDERS.keys()]).toEqual(["<agent>", "<step>", "<worker>", "<name>"]);
    const known = [...KNOWN_SETTINGS, ...KNOWN_PREFERENCES, ...KNOWN_POLICIES];
    expect(known.filter((it) => it.key === "" || it.meaning === "" || it.takes === "")).toEqual([]);
  });

  it("take only what is no other kind as plain text", () => {
    const texts = new Set(
      [...KNOWN_SETTINGS, ...KNOWN_PREFERENCES].filter((it) => it.kind.type === "text").map((it) => it.takes),
    );
    expect([...texts].sort()).toEqual([
      "a text",
      'an ISO 4217 code of three capital letters, such as "USD" or "EUR"',
      "an address with http or https, without a password and without a fragment",
      "the id of a model",
      "written `Name <address>`",
    ]);
    expect(toKind("an object with `kind`: `acp`, `command` or `scripted`")).toEqual({ type: "json" });
  });

  it("know a key that fills in a placeholder, and prefer an exact one", () => {
    expect(findKnown(KNOWN_PREFERENCES, "workflow.node_timeouts.plan_steps")?.key).toBe(
      "workflow.node_timeouts.<step>",
    );
    expect(findKnown(KNOWN_PREFERENCES, "standards.markdown.line_length")?.kind).toEqual({
      type: "integer",
      min: 0,
      max: null,
    });
    expect(findKnown(KNOWN_PREFERENCES, "nobody.reads.this")).toBeUndefined();
    expect(findPlaceholder("standards.<name>")).toBe("<name>");
    expect(findPlaceholder("memory.profile")).toBeNull();
  });

  it("are found by words of the key and of the meaning, with keys in use among them", () => {
    expect(listKeys(KNOWN_SETTINGS, [], "budget default")).toEqual(["budget.task_default", "budget.user_default"]);
    expect(listKeys(KNOWN_PREFERENCES, ["standards.tabs"], "standards.t")).toEqual(["standards.tabs"]);
  });
});

describe("a value in a list", () => {
  const short = (key: string, text: string) => formatShort(findKnown(KNOWN_SETTINGS, key), text, "EUR");

  it("has the unit that its key names", () => {
    expect([
      short("artifacts.max_bytes_per_task", "1073741824"),
      short("models.budget_wait_seconds", "1"),
      short("budget.task_default", "2.50"),
      short("gateway.calls_per_task_hour", "20000"),
    ]).toEqual(["1.0 GiB", "1 second", "€2.50", "20,000"]);
  });

  it("stays as it is written where it is no number", () => {
    expect([short("budget.task_default", "none"), formatShort(undefined, "5")]).toEqual(["none", "5"]);
  });
});

describe("a value", () => {
  it("is read as its kind demands", () => {
    expect(parseValue({ type: "boolean" }, "true")).toEqual({ value: true });
    expect(parseValue({ type: "integer", min: 1, max: 10 }, " 7 ")).toEqual({ value: 7 });
    expect(parseValue({ type: "integer", min: 1, max: 10 }, "11")).toEqual({
      error: "Write a whole number from 1 to 10",
    });
    expect(parseValue({ type: "integer", min: 1, max: null }, "9007199254740993")).toEqual({
      error: "A browser cannot write a number that great. Use cynork for it",
    });
    expect(parseValue({ type: "amount" }, "2.50")).toEqual({ value: 2.5 });
    expect(parseValue({ type: "amount" }, "none")).toEqual({ value: "none" });
    expect(parseValue({ type: "amount" }, "0")).toEqual({ error: "Write an amount such as 2.50, or none" });
    expect(parseValue({ type: "list" }, "a\n\n b \n")).toEqual({ value: ["a", "b"] });
    expect(parseValue({ type: "list" }, "")).toEqual({ value: [] });
    expect(parseValue({ type: "texts" }, "one")).toEqual({ value: "one" });
    expect(parseValue({ type: "texts" }, "one\ntwo")).toEqual({ value: ["one", "two"] });
    expect(parseValue({ type: "choice", options: ["a"] }, "b")).toEqual({ error: "Choose a" });
    expect(parseValue({ type: "json" }, '{"kind":"acp"}')).toEqual({ value: { kind: "acp" } });
    expect(parseValue({ type: "json" }, "{")).toHaveProperty("error");
  });

  it("comes back the same when it is typed again", () => {
    for (const [kind, value] of [
      [{ type: "boolean" }, false],
      [{ type: "integer", min: 0, max: null }, 3],
      [{ type: "list" }, ["a", "b"]],
      [{ type: "texts" }, "one"],
      [{ type: "json" }, { kind: "acp", agent: "goose" }],
    ] as const) {
      expect(parseValue(kind, toDraft(kind, value))).toEqual({ value });
    }
    expect(formatValue(["a", "b"])).toBe("a, b");
    expect(formatValue([])).toBe("[]");
  });
});

describe("the levels", () => {
  const levels = listLevels({
    task: "tsk_00000001",
    project: { id: "prj_1", name: "web" },
    user: { id: "usr_1", name: "ada" },
    groups: [
      { id: "grp_1", name: "first", members: ["usr_1"] },
      { id: "grp_2", name: "second", members: ["usr_1"] },
      { id: "grp_3", name: "others", members: ["usr_2"] },
    ],
  });

  it("go from the most specific to the widest, and leave out groups of others", () => {
    expect(levels.map(describeLevel)).toEqual([
      "Task 00000001",
      "Project web",
      "Person ada",
      "Group second",
      "Group first",
      "Installation",
    ]);
    expect(levels.map(toLevelKey)).toEqual(["task", "project", "user", "group:grp_2", "group:grp_1", "system"]);
  });

  it("have the flags of cynork", () => {
    expect(levels.map(toLevelFlags)).toEqual([
      ["--task", "tsk_00000001"],
      ["--project", "web"],
      ["--user", "ada"],
      ["--group", "second"],
      ["--group", "first"],
      ["--system"],
    ]);
  });
});

describe("a cron expression", () => {
  it("is put in words where they are short", () => {
    const words = Object.fromEntries(
      [
        "0 9 * * mon",
        "30 6 * * 1-5",
        "0 0 1 * *",
        "5 4 * * *",
        "*/30 * * * *",
        "0 * * * *",
        "0 9 * 1 *",
        "0 0 L * *",
      ].map((expression) => [expression, describeCron(expression)]),
    );
    expect(words).toEqual({
      "0 9 * * mon": "each Monday at 09:00",
      "30 6 * * 1-5": "Monday to Friday at 06:30",
      "0 0 1 * *": "on day 1 of each month at 00:00",
      "5 4 * * *": "every day at 04:05",
      "*/30 * * * *": "every 30 minutes",
      "0 * * * *": "each hour",
      "0 9 * 1 *": null,
      "0 0 L * *": null,
    });
  });

  it("runs by the clock of its zone, before and after the clock is changed", () => {
    expect(findNextRuns("0 9 * * mon", "Europe/Berlin", utc("2026-10-18T12:00"), 2)).toEqual([
      utc("2026-10-19T07:00"),
      utc("2026-10-26T08:00"),
    ]);
  });

  it("takes lists, ranges, steps and names, and either of two days", () => {
    expect(findNextRuns("0,30 8-9/1 * jan,feb *", "UTC", utc("2026-12-31T23:00"), 3)).toEqual([
      utc("2027-01-01T08:00"),
      utc("2027-01-01T08:30"),
      utc("2027-01-01T09:00"),
    ]);
    expect(findNextRuns("0 0 13 * fri", "UTC", utc("2026-11-10T00:00"), 3)).toEqual([
      utc("2026-11-13T00:00"),
      utc("2026-11-20T00:00"),
      utc("2026-11-27T00:00"),
    ]);
    expect(findNextRuns("0 0 29 2 *", "UTC", NOW, 1)).toEqual([utc("2028-02-29T00:00")]);
  });

  it("leaves out a time that the clock skips, and says so when no time ever comes", () => {
    expect(findNextRuns("30 2 28-30 3 *", "Europe/Berlin", utc("2027-03-27T12:00"), 2)).toEqual([
      utc("2027-03-29T00:30"),
      utc("2027-03-30T00:30"),
    ]);
    expect(findNextRuns("0 0 31 2 *", "UTC", NOW, 1)).toEqual([]);
  });

  it("is left to the server where it means more than this", () => {
    for (const expression of ["0 0 L * *", "0 0 * *", "61 * * * *", "0 0 * * mon#2"]) {
      expect(findNextRuns(expression, "UTC", NOW, 1)).toBeNull();
    }
    expect(findNextRuns("0 0 * * *", "Nowhere/Else", NOW, 1)).toBeNull();
  });
});

describe("a schedule", () => {
  const schedule: Schedule = {
    schedule_id: "sch_1",
    project_id: "prj_1",
    name: "nightly",
    trigger: { kind: "cron", expression: "0 9 * * *", timezone: "UTC" },
    action: {
      kind: "task",
      description: "Build everything.",
      acceptance_criteria: [{ text: "it builds", check: { argv: ["make", "-j"] } }],
      budget: { max_tokens: 1000 },
    },
    missed_policy: "skip",
    enabled: true,
    next_at: "2026-11-18T09:00:00Z",
    firings: 0,
    version: 1,
    acts_for: "usr_1",
    created_by: "usr_1",
    created_at: "2026-11-18T06:00:00Z",
    updated_at: "2026-11-18T06:00:00Z",
  };

  it("keeps checks and limits that the form cannot write when only its words change", () => {
    const draft = { ...toScheduleDraft(schedule, "UTC"), text: "Build all." };
    expect(toScheduleRequest(draft, schedule, "UTC")).toEqual({
      body: {
        name: "nightly",
        trigger: { kind: "cron", expression: "0 9 * * *", timezone: "UTC" },
        action: { ...schedule.action, description: "Build all." },
        missed_policy: "skip",
      },
    });
  });

  it("says what is missing", () => {
    const draft = toScheduleDraft(schedule, "UTC");
    expect(toScheduleRequest({ ...draft, name: " " }, null, "UTC")).toEqual({ missing: "Write a name" });
    expect(toScheduleRequest({ ...draft, when: "once", at: "" }, null, "UTC")).toEqual({ missing: "Choose a time" });
    expect(toScheduleRequest({ ...draft, text: "" }, null, "UTC")).toEqual({ missing: "Write what is wanted" });
  });

  it("lists its next times only as far as the server agrees", () => {
    expect(listNextRuns(schedule, NOW, 2)).toEqual([utc("2026-11-18T09:00"), utc("2026-11-19T09:00")]);
    expect(listNextRuns({ ...schedule, next_at: "2026-11-18T09:30:00Z" }, NOW, 2)).toEqual([utc("2026-11-18T09:30")]);
    expect(listNextRuns({ ...schedule, next_at: null }, NOW, 2)).toEqual([]);
  });
});

describe("notifications", () => {
  const notification = (part: Partial<Notification>): Notification => ({
    notification_id: "ntf_1",
    channel_id: "cnl_1",
    kind: "task.waiting",
    state: "sent",
    occurred_at: "2026-11-18T06:00:00Z",
    attempts: [],
    ...part,
  });

  it("are read again when the next attempt must have been made, and not while none is due", () => {
    expect(nextReadDelay([notification({})], NOW)).toBeNull();
    const due = notification({ state: "pending", due_at: new Date(NOW + 5000).toISOString() });
    expect(nextReadDelay([notification({}), due], NOW)).toBe(6500);
    expect(nextReadDelay([notification({ state: "pending" })], NOW)).toBe(1500);
  });

  it("are sent by a channel that says what is left out", () => {
    const draft = {
      name: " phone ",
      kind: "ntfy" as const,
      address: "https://ntfy.sh/topic",
      secret: "",
      gap: "60",
      scope: "user" as const,
      project: "",
      kinds: EVENT_WORDS.map((it) => it.kind),
    };
    const body = {
      name: "phone",
      kind: "ntfy",
      address: "https://ntfy.sh/topic",
      scope: "user",
      min_gap_seconds: 60,
    };
    expect(toChannelRequest(draft)).toEqual({ body });
    expect(toChannelRequest({ ...draft, kinds: ["task.failed"] })).toEqual({
      body: { ...body, kinds: ["task.failed"] },
    });
    expect(toChannelRequest({ ...draft, kinds: [] })).toEqual({ missing: "Choose at least one kind of event" });
    expect(toChannelRequest({ ...draft, scope: "project" })).toEqual({ missing: "Choose a project" });
    expect(parseGap("3601")).toEqual({ seconds: 0, error: "Write seconds from 0 to 3600" });
  });
});

describe("people and keys", () => {
  it("get no account without a handle and a long password", () => {
    const draft = { handle: "ada", name: "", email: "", password: "a-long-password", role: "none" as const };
    expect(toUserRequest(draft)).toEqual({
      body: { handle: "ada", display_name: "ada", password: "a-long-password" },
    });
    expect(toUserRequest({ ...draft, handle: "" })).toEqual({ missing: "Write a handle" });
    expect(toUserRequest({ ...draft, password: "short" })).toEqual({
      missing: "Write a password of at least 12 characters",
    });
  });

  it("say whether a key works", () => {
    const key = { id: "key_1", name: "ci", created_at: "2026-11-01T00:00:00Z" };
    expect(describeKey(key, NOW)).toEqual({ standing: "done", words: "Works", works: true });
    expect(describeKey({ ...key, expires_at: "2026-11-02T00:00:00Z" }, NOW).words).toBe("Expired");
    expect(describeKey({ ...key, revoked_at: "2026-11-02T00:00:00Z" }, NOW).words).toBe("Revoked");
  });

  it("say what they open, and ask for no limit that nobody chose", () => {
    expect(describeLimits({ scopes: null, projects: null })).toBe("Everything of its person");
    expect(describeLimits({ scopes: ["tasks", "models"], projects: ["prj_1"], read_only: true })).toBe(
      "tasks, models; 1 project; reads only",
    );
    expect(describeLimits({ scopes: null, projects: [] })).toBe("0 projects");
    expect(toLimitRequest({ scopes: [], isReadOnly: false, projects: [] })).toEqual({});
    expect(toLimitRequest({ scopes: ["tasks"], isReadOnly: true, projects: ["prj_1"] })).toEqual({
      scopes: ["tasks"],
      read_only: true,
      projects: ["prj_1"],
    });
    expect(new Set(API_SCOPES.map((scope) => scope.value)).size).toBe(15);
  });
});

describe("events of administration", () => {
  it("make the pages old that show what changed", () => {
    const keysOf = (kind: string) => staleKeys({ kind, project_id: null, task_id: null });
    expect(keysOf("setting.deleted")).toEqual([["settings"]]);
    expect(keysOf("policy.set")).toEqual([["policies"], ["preferences"]]);
    expect(keysOf("user.updated")).toEqual([["me"], ["users"], ["api-keys"]]);
    expect(keysOf("second_factor.enrolled")).toEqual([["me"]]);
    expect(keysOf("scim_token.revoked")).toEqual([["scim-tokens"]]);
    expect(keysOf("notification_channel.set")).toEqual([["notifications"]]);
    expect(keysOf("content.reviewed")).toEqual([["skills"], ["schedules"]]);
    expect(keysOf("schedule.fired")).toEqual([["schedules"]]);
    expect(keysOf("task.started")).toEqual([["tasks"], ["schedules"]]);
  });
});

describe("certificates", () => {
  const make = (name: string, days_left: number | null, problems: string[] = []): Certificate => ({
    used_for: "node",
    origin: "own",
    name,
    host_names: [],
    problems,
    ...(days_left === null ? {} : { days_left }),
  });

  it("that expired fail, and come before those that somebody should look at", () => {
    const good = make("good", 29);
    const soon = make("soon", 3, ["it expires in 3 days"]);
    const gone = make("gone", -2, ["it is not valid now"]);
    expect([good, soon, gone].map(judgeCertificate)).toEqual(["ok", "warn", "fail"]);
    expect(orderCertificates([good, soon, gone])).toEqual([gone, soon, good]);
  });

  it("say how long they are valid", () => {
    expect([29, 1, 0, -1, null].map((days) => describeExpiry(make("it", days)))).toEqual([
      "29 days left",
      "1 day left",
      "0 days left",
      "expired 1 day ago",
      "not there yet",
    ]);
  });

  it("are read again when one is issued or revoked", () => {
    const of = (kind: string) => staleKeys({ kind, project_id: null, task_id: null });
    expect([of("certificate.issued"), of("certificate.revoked")]).toEqual([[["certificates"]], [["certificates"]]]);
  });
});
