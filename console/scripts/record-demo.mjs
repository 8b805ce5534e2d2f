// Records what the pages of the console read from an installation, for the demo that needs no server (npm run build:demo).
//
//   node scripts/record-demo.mjs INSTALLATION_URL NAME PASSWORD_FILE [FILE]
//
// It asks every path below, with the identifiers that it finds on the way, and writes one JSON file. It fails when a secret, an e-mail
// address or a name of this machine is left in it, or when the file is too large.
import { readFileSync, writeFileSync } from "node:fs";
import { homedir, hostname } from "node:os";
import { dirname, resolve } from "node:path";
import { gzipSync } from "node:zlib";

const [base, name, passwordFile, file = "recording.json"] = process.argv.slice(2);
if (!passwordFile) {
  console.error("usage: node scripts/record-demo.mjs INSTALLATION_URL NAME PASSWORD_FILE [FILE]");
  process.exit(2);
}

/** What is asked. The same names as in docs/openapi.json stand in braces; a test compares the paths with those of the pages. */
const READS = [
  "/v1/me",
  "/v1/me/identities",
  "/v1/me/second-factor",
  "/v1/login-options",
  "/v1/sessions",
  "/v1/sessions?user_id={user}",
  "/v1/inbox",
  "/v1/readiness",
  "/v1/readiness?project_id={project}",
  "/v1/doctor",
  "/v1/certificates",
  "/v1/processes",
  "/v1/backups",
  "/v1/keyring",
  "/v1/projects",
  "/v1/projects?archived=true",
  "/v1/projects/{project}",
  "/v1/projects/{project}/repository",
  "/v1/projects/{project}/remote",
  "/v1/projects/{project}/remote/issues",
  "/v1/projects/{project}/members",
  "/v1/projects/{project}/environments",
  "/v1/projects/{project}/environments/accepted",
  "/v1/projects/{project}/environments/{version}",
  "/v1/projects/{project}/secrets",
  "/v1/projects/{project}/packages",
  "/v1/projects/{project}/packages?refused=true",
  "/v1/projects/{project}/pull-requests",
  "/v1/projects/{project}/handoffs",
  "/v1/pull-requests/{pull_request}",
  "/v1/pull-requests/{pull_request}/files",
  "/v1/pull-requests/{pull_request}/diff?path={path}",
  "/v1/tasks",
  "/v1/tasks/{task}",
  "/v1/tasks/{task}/timeline",
  "/v1/tasks/{task}/evidence",
  "/v1/tasks/{task}/reports",
  "/v1/tasks/{task}/artifacts",
  "/v1/tasks/{task}/park",
  "/v1/tasks/{task}/diff",
  "/v1/tasks/{task}/diff?path={path}",
  "/v1/jobs/{job}/events",
  "/v1/handoffs/{handoff}",
  "/v1/handoffs/{handoff}/decisions/{step}/prompt",
  "/v1/handoffs/{handoff}/decisions/{step}/replays",
  "/v1/chat/threads",
  "/v1/chat/threads/{thread}/messages",
  "/v1/nodes",
  "/v1/nodes/{node}",
  "/v1/model-registry",
  "/v1/providers",
  "/v1/model-choices",
  "/v1/model-choices?project_id={project}",
  "/v1/model-choices?agent_role={role}",
  "/v1/model-choices?project_id={project}&agent_role={role}",
  "/v1/model-choices?project_id={project}&agent_role=project_manager&tier=standard",
  "/v1/usage?by={by}&from={from}",
  "/v1/usage?by={by}&project_id={project}&from={from}",
  "/v1/usage?by=model&task_id={task}",
  "/v1/usage/series?step=day&by=model&from={from}",
  "/v1/usage/series?step=day&by=model&project_id={project}&from={from}",
  "/v1/usage/calls",
  "/v1/budgets",
  "/v1/budgets?scope_type=project&scope_id={project}",
  "/v1/budgets?scope_type=task&scope_id={task}",
  "/v1/tools",
  "/v1/tool-stats",
  "/v1/allowlists",
  "/v1/tool-servers",
  "/v1/tool-servers/{server}",
  "/v1/agent-tokens?project_id={project}",
  "/v1/approvals",
  "/v1/approvals?decided=true",
  "/v1/approvals/{approval}",
  "/v1/allowed-images",
  "/v1/rules",
  "/v1/rules/vocabulary",
  "/v1/rules/{name}/history",
  "/v1/audit",
  "/v1/audit/head",
  "/v1/audit/verify",
  "/v1/audit/sinks",
  "/v1/audit/{call}/proof",
  "/v1/settings",
  "/v1/settings/{key}",
  "/v1/settings/{key}/history",
  "/v1/preferences?scope_type=system",
  "/v1/preferences?scope_type=project&scope_id={project}",
  "/v1/preferences?scope_type=task&scope_id={task}",
  "/v1/preferences?scope_type=user&scope_id={user}",
  "/v1/preferences?scope_type=group&scope_id={group}",
  "/v1/preferences/{key}?scope_type={scope_type}",
  "/v1/preferences/{key}?scope_type={scope_type}&scope_id={scope_id}",
  "/v1/preferences/{key}/history?scope_type={scope_type}",
  "/v1/preferences/{key}/history?scope_type={scope_type}&scope_id={scope_id}",
  "/v1/effective-preferences",
  "/v1/effective-preferences?project_id={project}",
  "/v1/effective-preferences?task_id={task}",
  "/v1/policies?scope_type=system",
  "/v1/policies?scope_type=project&scope_id={project}",
  "/v1/policies?scope_type=group&scope_id={group}",
  "/v1/effective-policies",
  "/v1/effective-policies?project_id={project}",
  "/v1/effective-policies?task_id={task}",
  "/v1/users",
  "/v1/users/{user}",
  "/v1/groups",
  "/v1/identity-providers",
  "/v1/scim-tokens",
  "/v1/api-keys",
  "/v1/api-keys?user_id={user}",
  "/v1/notification-channels",
  "/v1/notification-channels?all=true",
  "/v1/notification-channels/{channel}",
  "/v1/notifications",
  "/v1/notifications?all=true",
  "/v1/skills",
  "/v1/skills?project={project}",
  "/v1/skills/{skill}",
  "/v1/skills/{skill}/versions",
  "/v1/skills/{skill}/versions/{version}",
  "/v1/profiles?project_id={project}",
  "/v1/profiles/{name}",
  "/v1/profiles/{name}?project_id={project}",
  "/v1/profiles/{name}/versions",
  "/v1/profiles/{name}/versions?project_id={project}",
  "/v1/projects/{project}/memories?profile=default&state={state}",
  "/v1/memories/{memory}",
  "/v1/projects/{project}/memory-ingests?profile=default",
  "/v1/schedules",
  "/v1/schedules/{schedule}",
];

/** Questions that change nothing and are asked by POST. A field of `ignored` is sent, and the demo asks with any. */
const QUESTIONS = [
  { path: "/v1/policy/explain-call", question: { call_id: "{call}" } },
  { path: "/v1/rules/check", question: { name: "{rule}", mode: "{mode}", text: "{text}" } },
  { path: "/v1/task-estimates", question: { project_id: "{project}" }, ignored: { description: "estimate" } },
];

/** Kinds of identifiers, by what they begin with. Identifiers of calls are taken from the audit log alone. */
const ID_KINDS = {
  apr: "approval",
  cnl: "channel",
  grp: "group",
  hof: "handoff",
  job: "job",
  mem: "memory",
  nod: "node",
  prj: "project",
  pul: "pull_request",
  sch: "schedule",
  skl: "skill",
  srv: "server",
  thr: "thread",
  tsk: "task",
  usr: "user",
};

const DAY_MS = 86_400_000;
/** Calls of which the proof and the explanation are recorded, the newest first. */
const MAX_CALLS = 60;
const MAX_ITEMS = 2000;
const MAX_REQUESTS = 5000;
const MAX_GZIP_KB = 300;
const RETRIES = 120;
const RETRY_MS = 500;

/** The installation as the demo names it; `RECORDED_ORIGIN` of the console is the same. */
const SHOWN_ORIGIN = "http://127.0.0.1:12080";

/** Values that go together, such as a task and a file that it changed. */
const FOLLOW = {
  "/v1/tasks/{task}/diff": (body, { task }) => body.files?.files?.map(({ path }) => ({ task, path })),
  "/v1/pull-requests/{pull_request}/files": (body, { pull_request }) =>
    body.files?.map(({ path }) => ({ pull_request, path })),
  "/v1/handoffs/{handoff}": (body, { handoff }) => body.decisions?.map(({ step }) => ({ handoff, step })),
  "/v1/projects/{project}/environments": (body, { project }) =>
    body.items?.map(({ version }) => ({ project, version })),
  "/v1/skills/{skill}/versions": (body, { skill }) => body.items?.map(({ version }) => ({ skill, version })),
  "/v1/profiles": (body, { project }) =>
    body.items?.map((profile) => (profile.project_id ? { name: profile.name, project } : { name: profile.name })),
  "/v1/rules": (body) => body.items?.flatMap(({ name: rule, mode, text }) => [{ name: rule }, { rule, mode, text }]),
  "/v1/settings": (body) => body.items?.map(({ key }) => ({ key })),
  "/v1/audit": (body) =>
    [...new Set(body.items?.map((record) => record.call_id))].slice(0, MAX_CALLS).map((call) => ({ call })),
  "/v1/preferences": (body, _, query) =>
    body.items?.map(({ key }) => ({ key, ...Object.fromEntries(new URLSearchParams(query)) })),
};

const PATTERNS_OF_SECRETS = [
  /\bcyn_[a-z]+_[A-Za-z0-9_-]{16,}/,
  /\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}/,
  /\b(?:ghp|gho|ghs|ghu|glpat|github_pat|xox[abprs]|AKIA|AIza)[A-Za-z0-9_-]{12,}/,
  /\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\./,
  /\bbearer\s+[A-Za-z0-9._~+/=-]{16,}/i,
  /\b[a-z][a-z0-9+.-]*:\/\/[^\s:/@"]*:[^\s/@"]+@/,
  /\$argon2id?\$/,
  /-----BEGIN [A-Z ]*PRIVATE KEY-----/,
  /\b[A-Za-z0-9._%+-]+@(?!(?:[a-z0-9-]+\.)*(?:example|invalid|test|localhost)\b)[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}\b/,
];

const password = readFileSync(passwordFile, "utf8").trim();
const pause = () => new Promise((resume) => setTimeout(resume, RETRY_MS));

/** Sends a request, and again while the server starts or limits us. */
async function send(method, path, body, token) {
  for (let attempt = 0; ; attempt += 1) {
    const headers = { "content-type": "application/json", ...(token ? { authorization: `Bearer ${token}` } : {}) };
    const options = { method, headers, ...(body === undefined ? {} : { body: JSON.stringify(body) }) };
    const response = await fetch(new URL(path, base), options).catch((error) => ({ status: 0, error }));
    if (response.status === 0 || response.status === 429 || response.status === 503) {
      if (attempt >= RETRIES) throw response.error ?? new Error(`${path}: status ${response.status}`);
      await pause();
      continue;
    }
    return response;
  }
}

const session = await (await send("POST", "/v1/sessions", { handle: name, password })).json();
if (!session.token) throw new Error(`The login of ${name} failed: ${session.detail ?? "no token"}`);
const { token } = session;

async function readJson(path) {
  const response = await send("GET", path, undefined, token);
  if (response.status >= 500) throw new Error(`${path}: status ${response.status}`);
  return { status: response.status, body: await response.json() };
}

const { body: document } = await readJson("/v1/openapi.json");

/** Reads a list whole. */
async function readWhole(template, path) {
  const parameters = document.paths[template.split("?")[0]]?.get?.parameters ?? [];
  const has = (wanted) => parameters.some((it) => it.in === "query" && it.name === wanted);
  const limit = template === "/v1/audit" ? 1000 : template === "/v1/jobs/{job}/events" ? 500 : 200;
  const join = (more) => `${path}${path.includes("?") ? "&" : "?"}${new URLSearchParams(more)}`;
  const first = await readJson(has("limit") ? join({ limit }) : path);
  if (first.body === null) return first;
  let page = first.body;
  while (Array.isArray(first.body.items) && first.body.items.length < MAX_ITEMS) {
    if (page.next_cursor) page = (await readJson(join({ limit, cursor: page.next_cursor }))).body;
    else if (template === "/v1/jobs/{job}/events" && page.items.length === limit) {
      page = (await readJson(join({ limit, from: page.items.at(-1).number + 1 }))).body;
    } else break;
    first.body.items.push(...page.items);
  }
  if ("next_cursor" in first.body) first.body.next_cursor = null;
  return first;
}

/** Sets of values, by the names that they have values for. */
const values = new Map();
function addValues(set) {
  const names = Object.keys(set).sort().join();
  const known = values.get(names) ?? new Map();
  known.set(JSON.stringify(Object.entries(set).sort()), set);
  values.set(names, known);
}
for (const by of ["model", "project", "task", "user", "role", "provider", "day"]) addValues({ by });
for (const state of ["accepted", "proposed", "rejected"]) addValues({ state });
for (const role of ["project_manager", "project_analyst", "developer", "reviewer"]) addValues({ role });
addValues({ from: new Date(Math.floor(Date.now() / DAY_MS) * DAY_MS - 89 * DAY_MS).toISOString() });

/** Returns the sets of values for the names of a template: those that were found together, or each with each. */
function setsOf(names) {
  const together = values.get(names.toSorted().join());
  if (together) return [...together.values()];
  // What is only found together is not mixed.
  if (names.some((it) => !values.has(it))) return [];
  return names.reduce(
    (sets, it) => sets.flatMap((set) => [...values.get(it).values()].map((more) => ({ ...set, ...more }))),
    [{}],
  );
}

const namesOf = (text) => [...text.matchAll(/\{(\w+)\}/g)].map((found) => found[1]);
const fill = (text, set) => text.replaceAll(/\{(\w+)\}/g, (_, it) => encodeURIComponent(set[it]));

const answers = new Map();
function keep(key, answer) {
  answers.set(key, answer);
  if (answers.size > MAX_REQUESTS) throw new Error(`More than ${MAX_REQUESTS} answers; record a smaller installation.`);
}
function findIds(body) {
  for (const [, id, kind] of JSON.stringify(body).matchAll(/"(([a-z]{3})_[0-9a-f]{32})"/g)) {
    if (ID_KINDS[kind]) addValues({ [ID_KINDS[kind]]: id });
  }
}

// What is found on the way makes more questions, until nothing new is found.
for (let before = -1; before !== answers.size; ) {
  before = answers.size;
  for (const template of READS) {
    const [plain, query = ""] = template.split("?");
    const names = namesOf(template);
    for (const set of names.length === 0 ? [{}] : setsOf(names)) {
      const path = fill(template, set);
      if (answers.has(path)) continue;
      const { status, body } = await readWhole(template, path);
      keep(path, { path, status, body });
      if (status >= 400 || body === null) continue;
      findIds(body);
      for (const more of FOLLOW[plain]?.(body, set, fill(query, set)) ?? []) addValues(more);
    }
  }
  for (const { path, question, ignored } of QUESTIONS) {
    for (const set of setsOf(namesOf(JSON.stringify(question)))) {
      const asked = Object.fromEntries(Object.entries(question).map(([field, it]) => [field, set[namesOf(it)[0]]]));
      const key = `${path} ${JSON.stringify(asked)}`;
      if (answers.has(key)) continue;
      const response = await send("POST", path, { ...asked, ...ignored }, token);
      keep(key, { path, question: asked, status: response.status, body: await response.json() });
    }
  }
}

/** Names of this machine, and what the recording says instead. */
const replacements = [
  [new URL(base).origin, SHOWN_ORIGIN],
  [dirname(resolve(passwordFile)), "/var/lib/cynode"],
  ...(homedir().length > 5 ? [[homedir(), "/home/ada"]] : []),
  ...(hostname().length > 3 ? [[hostname(), "demo-node"]] : []),
];
const clean = (text) => replacements.reduce((result, [from, to]) => result.replaceAll(from, to), text);
// What is signed stays as it is; a name of this machine in it is found below.
const isSigned = ({ path }) => /\/proof$|\/audit\/head/.test(path);
const shown = [...answers.values()]
  .map((answer) => (isSigned(answer) ? answer : JSON.parse(clean(JSON.stringify(answer)))))
  .sort((a, b) => (a.path < b.path ? -1 : 1));

const problems = [];
for (const answer of shown) {
  const text = JSON.stringify(answer);
  if (text.includes(token) || text.includes(password)) problems.push(`${answer.path}: the login of this recording`);
  for (const pattern of PATTERNS_OF_SECRETS) {
    const found = pattern.exec(text);
    if (found)
      problems.push(`${answer.path}: ${found[0].slice(0, 12)}… looks like a secret or an address (${pattern})`);
  }
  for (const [from] of replacements) if (text.includes(from)) problems.push(`${answer.path}: a name of this machine`);
}
const text = `${JSON.stringify({ recorded_at: new Date().toISOString(), answers: shown })}\n`;
const size = gzipSync(text, { level: 9 }).length / 1024;
if (size > MAX_GZIP_KB) {
  const sizes = shown.map((answer) => [JSON.stringify(answer).length, answer.path]).sort((a, b) => b[0] - a[0]);
  problems.push(`${size.toFixed(0)} KB after gzip, more than ${MAX_GZIP_KB}; the largest answers:`);
  for (const [bytes, path] of sizes.slice(0, 10)) problems.push(`  ${(bytes / 1024).toFixed(0)} KB  ${path}`);
}
await send("DELETE", "/v1/sessions/current", undefined, token);
for (const problem of problems) console.error(`! ${problem}`);
if (problems.length === 0) writeFileSync(file, text);
console.log(`${shown.length} answers, ${(text.length / 1024).toFixed(0)} KB, ${size.toFixed(0)} KB after gzip`);
process.exitCode = problems.length > 0 ? 1 : 0;
