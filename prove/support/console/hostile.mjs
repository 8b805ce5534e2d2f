// A project whose title, task, plan, log, files, reports and tools are hostile text.
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { until } from "./harness.mjs";
import { waitFor } from "./tasks.mjs";
import { serveTools } from "./tool-server.mjs";

export const PAYLOADS = [
  `<img src=x onerror="window.owned='img'">`,
  `"><svg onload="window.owned='svg'">`,
  `</script><script>window.owned='script'</script>`,
  "[press](javascript:window.owned='link') ![beacon](http://attacker.example/pixel.png)",
  `<iframe srcdoc="<script>parent.owned='frame'</script>"></iframe><base href="http://attacker.example/">`,
  `<style>*{background:url(http://attacker.example/style)}</style><a href="javascript:window.owned='a'">x</a>`,
  "{{constructor.constructor('window.owned=1')()}} ${window.owned=1} `code` http://attacker.example/",
];
/** For places that refuse control characters, and for those that take any. */
export const TEXT = PAYLOADS.join(" ");
const TERMINAL = `\u001b]8;;javascript:window.owned='ansi'\u0007press\u001b]8;;\u0007 \u001b[31;5m\u001b[2J\u001b]0;owned\u0007 \u202etxt\u2066 ${TEXT}`;

function worker(file) {
  const report = {
    kind: "work_completed",
    summary: TEXT,
    details: { files_modified: [file], artifacts: [], notes: [TEXT] },
  };
  return {
    kind: "scripted",
    moves: [
      { move: "say", text: TEXT },
      { move: "write", path: file, text: `${TERMINAL}\n${TEXT}\n` },
      { move: "run", argv: ["sh", "-c", `cat '${file}'; printf '%s\\n' "$0" >&2`, TEXT] },
      { move: "say", text: TERMINAL },
      { move: "tool", name: "pm.report", arguments: report },
    ],
  };
}

const FINDING = { description: TEXT, file_location: "a:1", how_to_fix: TEXT };
const REVIEW = { critical_issues: [], major_issues: [], minor_issues: [FINDING], summary: TEXT };
const REVIEWER = {
  kind: "scripted",
  moves: [{ move: "tool", name: "pm.report", arguments: { kind: "review_approved", summary: TEXT, details: REVIEW } }],
};

/** With `soon`, the task is still being worked on. */
export async function makeHostileWorld(world, { soon = false } = {}) {
  if (world.hostile) return world.hostile;
  await world.setUp();
  const { api } = world;
  const stamp = Date.now().toString(36);
  const slug = `hostile-${stamp}`;
  const file = "a<img src=x onerror=window.owned=1>.md";
  const { id: project } = await api.ask("POST", "/v1/projects", { slug, title: TEXT.slice(0, 80) });
  const copy = join(world.work, slug);
  mkdirSync(copy);
  writeFileSync(join(copy, file), "before\n");
  const git = (...words) => execFileSync("git", ["-c", "user.name=x", "-c", "user.email=x@example.org", "-C", copy, ...words], { stdio: "ignore" });
  git("init", "--quiet", "--initial-branch=main");
  git("add", "--all");
  git("commit", "--quiet", "--message", TEXT);
  git("bundle", "create", "--quiet", join(world.work, `${slug}.bundle`), "main");
  const bundle = readFileSync(join(world.work, `${slug}.bundle`));
  const response = await fetch(`${api.base}/v1/projects/${project}/repository`, {
    method: "PUT",
    headers: { Authorization: `Bearer ${api.token}`, "Content-Type": "application/octet-stream" },
    body: bundle,
  });
  if (response.status >= 300) throw new Error(`the hostile repository: ${response.status} ${await response.text()}`);

  const unit = {
    title: PAYLOADS[0], kind: "implementation", files_to_modify: [file], files_to_read_first: [], pattern_reference: "",
    constraints: [TEXT], requirements: [TEXT], depends_on: [], checks: [],
  };
  const answers = JSON.parse(readFileSync(join(world.root, "crates/cynork/src/sample/answers.json"), "utf8"));
  const own = {
    ...answers,
    plan: { ...answers.plan, answer: { ...answers.plan.answer, reason: TEXT, units: [unit], assumptions: [TEXT] } },
    summarise: { ...answers.summarise, answer: { summary: TEXT } },
    review_artifact: { ...answers.review_artifact, answer: { ...answers.review_artifact.answer, reason: TEXT } },
  };
  const rules = Object.values(own).map(({ asked, answer }) => ({ when: { user_matches: asked }, answer: { text: JSON.stringify(answer) } }));
  await api.ask("PUT", `/v1/providers/${slug}`, { kind: "scripted", script: { rules } });
  const prices = { input: 1_000_000, cached: 100_000, cache_write: 1_000_000, output: 4_000_000 };
  for (const tier of ["fast", "standard", "deep"]) {
    await api.ask("PUT", `/v1/model-registry/${slug}-${tier}`, {
      context_tokens: 200_000, max_output_tokens: 4_000, tools: true, json_schema: true, tier, project_id: project,
      routes: [{ provider: slug, upstream: "scripted", prices }],
    });
  }
  const scope = `scope_type=project&scope_id=${project}`;
  await api.ask("PUT", `/v1/preferences/agents.project_manager.workers.developer?${scope}`, { value: worker(file), expected_version: 0 });
  await api.ask("PUT", `/v1/preferences/agents.project_manager.workers.reviewer?${scope}`, { value: REVIEWER, expected_version: 0 });
  await api.ask("PUT", `/v1/preferences/workflow.approve_plan?${scope}`, { value: true, expected_version: 0 });

  const tools = await serveTools([{ name: "hostile", description: TERMINAL, title: TEXT }]);
  world.closers.push(tools.close);
  const server = await tools.install(api, slug);
  const { id: task } = await api.ask("POST", "/v1/tasks", {
    project_id: project, description: TEXT, acceptance_criteria: [{ text: TEXT, check: { argv: ["true", TEXT] } }],
    budget: { max_cost_micros: 500_000, max_tokens: null },
  });
  const wait = await waitFor(world, task, "approval");
  await api.ask("POST", `/v1/tasks/${task}/approve`, { approved: true, wait_id: wait.wait_id });
  const timeline = await until("the end of the hostile task", async () => {
    const now = await api.ask("GET", `/v1/tasks/${task}/timeline`);
    if (soon && now.jobs?.some((job) => job.ended_at)) return now;
    return now.state === "running" || now.state === "queued" ? null : now;
  }, 60_000);
  const { items } = await api.ask("GET", "/v1/inbox");
  world.hostile = {
    project, task, server, tool: `proof.${slug}.hostile`, files: [file], items: items.filter((it) => it.project_id === project).map((it) => it.id),
    jobs: (timeline.jobs ?? []).map((job) => job.job_id ?? job.id),
  };
  return world.hostile;
}
