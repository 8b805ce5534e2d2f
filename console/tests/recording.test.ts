import { readdirSync, readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { REFUSAL, RecordedApi, type Recording, toResponse } from "../src/recording/answers";

const CALLS = [
  { call_id: "cal_1", tool: "web.fetch", decision: "deny" },
  { call_id: "cal_2", tool: "web.fetch", decision: "allow" },
  { call_id: "cal_3", decision: "allow" },
];
const EVENTS = Array.from({ length: 5 }, (_, number) => ({ number, event: "message" }));

const RECORDING: Recording = {
  recorded_at: "2026-11-18T09:00:00Z",
  answers: [
    { path: "/v1/me", status: 200, body: { user: { id: "usr_1" } } },
    {
      path: "/v1/tasks?limit=200",
      status: 200,
      body: {
        items: [
          { id: "tsk_1", state: "completed", project_id: "prj_1" },
          { id: "tsk_2", state: "running", project_id: "prj_1" },
          { id: "tsk_3", state: "running", project_id: "prj_2" },
        ],
        next_cursor: null,
      },
    },
    { path: "/v1/tasks/tsk_1/park", status: 404, body: { code: "not_found", detail: "It is not parked." } },
    { path: "/v1/audit?limit=1000", status: 200, body: { items: CALLS } },
    { path: "/v1/projects?limit=200", status: 200, body: { items: [{ id: "prj_1" }] } },
    { path: "/v1/projects?archived=true&limit=200", status: 200, body: { items: [{ id: "prj_1" }, { id: "prj_2" }] } },
    { path: "/v1/schedules?limit=200", status: 200, body: { items: [] } },
    { path: "/v1/usage?by=model&from=2026-08-21T00%3A00%3A00.000Z", status: 200, body: { items: [{ key: "m" }] } },
    { path: "/v1/preferences/a%2Fb?scope_type=system", status: 200, body: { key: "a/b" } },
    { path: "/v1/jobs/job_1/events?limit=500", status: 200, body: { items: EVENTS } },
    { path: "/v1/policy/explain-call", question: { call_id: "cal_1" }, status: 200, body: { decision: "deny" } },
    { path: "/v1/task-estimates", question: { project_id: "prj_1" }, status: 200, body: { tasks: 1 } },
  ],
};
const api = new RecordedApi(RECORDING);
const get = (path: string) => api.answer({ method: "GET", path, body: "" });
const ask = (path: string, question: object) => api.answer({ method: "POST", path, body: JSON.stringify(question) });
const idsOf = (path: string) => (get(path).body as { items: { id: string }[] }).items.map((item) => item.id);

describe("a recorded answer", () => {
  it("is found whatever the size of the page and the time are", () => {
    expect(get("/v1/me")).toEqual({ status: 200, body: { user: { id: "usr_1" } }, isRefused: false });
    expect(idsOf("/v1/tasks?limit=50")).toEqual(["tsk_1", "tsk_2", "tsk_3"]);
    expect(get("/v1/usage?from=2026-11-11T00:00:00Z&by=model").body).toEqual({ items: [{ key: "m" }] });
    expect(get("/v1/preferences/a%2Fb?scope_type=system").body).toEqual({ key: "a/b" });
  });

  it("is a refusal where the server refused", () => {
    expect(get("/v1/tasks/tsk_1/park")).toMatchObject({ status: 404, isRefused: false });
    expect(get("/v1/tasks/tsk_1/park").body).toMatchObject({ code: "not_found" });
  });

  it("is filtered by fields of its items, as the server does", () => {
    expect(idsOf("/v1/tasks?limit=50&state=running")).toEqual(["tsk_2", "tsk_3"]);
    expect(idsOf("/v1/tasks?state=running&project=prj_2")).toEqual(["tsk_3"]);
    expect(idsOf("/v1/tasks?state=failed")).toEqual([]);
    expect(get("/v1/audit?tool=web.fetch&since=2026-11-17T00:00:00Z&limit=1000").body).toEqual({
      items: CALLS.slice(0, 2),
    });
    expect(get("/v1/schedules?project=prj_1").body).toEqual({ items: [] });
  });

  it("with filters of its own goes before the whole list", () => {
    expect(idsOf("/v1/projects?limit=100")).toEqual(["prj_1"]);
    expect(idsOf("/v1/projects?limit=200&archived=true")).toEqual(["prj_1", "prj_2"]);
  });

  it("of a job's log is cut into pages", () => {
    expect(get("/v1/jobs/job_1/events?from=0&limit=2").body).toEqual({ items: EVENTS.slice(0, 2) });
    expect(get("/v1/jobs/job_1/events?from=3&limit=500").body).toEqual({ items: EVENTS.slice(3) });
    expect(get("/v1/jobs/job_1/events?from=5&limit=500").body).toEqual({ items: [] });
  });

  it("answers the same question that is asked by POST", () => {
    expect(ask("/v1/policy/explain-call", { call_id: "cal_1" })).toMatchObject({ status: 200, isRefused: false });
    expect(ask("/v1/task-estimates", { description: "anything", project_id: "prj_1" }).body).toEqual({ tasks: 1 });
  });
});

describe("what was not recorded", () => {
  it("is not found, and says so", () => {
    const missing = [
      get("/v1/tasks/tsk_9"),
      get("/v1/usage?by=role"),
      get("/v1/usage?by=model&task_id=tsk_1"),
      get("/v1/jobs/job_9/events?from=0"),
      ask("/v1/policy/explain-call", { call_id: "cal_1", arguments: {} }),
      ask("/v1/rules/check", { text: "forbid" }),
      api.answer({ method: "POST", path: "/v1/rules/check", body: "no JSON" }),
    ];
    for (const answer of missing) {
      expect(answer).toMatchObject({ status: 404, isRefused: false });
      expect(answer.body).toMatchObject({ code: "not_recorded", detail: "The recording has no answer to this." });
    }
  });
});

describe("a change", () => {
  it("is refused with a sentence, whatever it is", () => {
    const changes = [
      { method: "POST", path: "/v1/tasks", body: "{}" },
      { method: "POST", path: "/v1/tasks/tsk_1/approve", body: "{}" },
      { method: "PUT", path: "/v1/settings/a", body: "{}" },
      { method: "PATCH", path: "/v1/users/usr_1", body: "{}" },
      { method: "DELETE", path: "/v1/sessions/current", body: "" },
      { method: "POST", path: "/v1/chat/completions", body: "{}" },
      { method: "PUT", path: "/v1/me", body: "{}" },
    ];
    for (const change of changes) {
      const answer = api.answer(change);
      expect(answer).toMatchObject({ status: 403, isRefused: true });
      expect(answer.body).toMatchObject({ code: "recording", detail: REFUSAL });
    }
  });

  it("is not what only says that somebody looks", async () => {
    const answer = api.answer({ method: "PUT", path: "/v1/inbox/wai_1/presence", body: "{}" });
    expect(answer).toEqual({ status: 204, body: null, isRefused: false });
    expect((await toResponse(answer).text()).length).toBe(0);
  });

  it("reaches a page as a problem of the server does", async () => {
    const response = toResponse(api.answer({ method: "POST", path: "/v1/tasks", body: "{}" }));
    expect(response.status).toBe(403);
    expect(response.headers.get("content-type")).toBe("application/problem+json");
    expect(await response.json()).toMatchObject({ detail: REFUSAL });
  });
});

/** Paths that pages read and the recorder does not ask, and why. */
const NOT_RECORDED: Record<string, string> = {
  "/v1/audit/consistency": "The head of a recording never grows, so no page asks for this proof.",
  "/v1/device-logins/{code}": "A code is looked up when a device waits for its login, and none waits for a recording.",
  "/v1/web-push/key": "It is read when a browser is subscribed, which a recording refuses.",
};

describe("the recorder", () => {
  it("asks everything that pages read, or says why not", () => {
    const folder = new URL("../src/", import.meta.url);
    const source = readdirSync(folder, { recursive: true, encoding: "utf8" })
      .filter((path) => /\.tsx?$/.test(path) && !path.endsWith(".gen.ts"))
      .map((path) => readFileSync(new URL(path, folder), "utf8"))
      .join("\n");
    const read = new Set([...source.matchAll(/api\.GET\(\s*"([^"]+)"/g)].map((found) => found[1] ?? ""));
    const script = readFileSync(new URL("../scripts/record-demo.mjs", import.meta.url), "utf8");
    const asked = new Set([...script.matchAll(/^ {2}"(\/v1\/[^"?]+)[^"]*",$/gm)].map((found) => found[1] ?? ""));
    expect([...read].filter((path) => !asked.has(path) && !(path in NOT_RECORDED))).toEqual([]);
    expect([...asked].filter((path) => !read.has(path))).toEqual([]);
    expect(Object.keys(NOT_RECORDED).filter((path) => asked.has(path))).toEqual([]);
  });
});
