import { expect, test } from "vitest";
import type { Schema } from "../src/api/client";
import {
  checkModelDraft,
  findNextStep,
  judgeSteps,
  parsePrice,
  readForgeAddress,
  toSlug,
  type WelcomeFacts,
} from "../src/logic/welcome";

const MODEL: Schema["ModelView"] = {
  id: "coder",
  title: "coder",
  context_tokens: 1,
  max_output_tokens: 1,
  tools: true,
  images: false,
  json_schema: false,
  skills: false,
  enabled: true,
  routes: [{ provider: "local", upstream: "coder" }],
};
const REPOSITORY: Schema["RepositoryView"] = {
  project_id: "p",
  default_branch: "main",
  head: "abc",
  imported_at: "2026-11-18T06:00:00Z",
};
const READY: WelcomeFacts = {
  checks: [{ name: "models", status: "failed", detail: "", blocks_work: true }],
  models: [MODEL],
  project: "p",
  repository: REPOSITORY,
  environments: [],
  tasks: 0,
};

test("each step is done when the server says so, and unknown until it has spoken", () => {
  expect(judgeSteps({})).toEqual({
    installation: "unknown",
    model: "unknown",
    repository: "unknown",
    environment: "optional",
    task: "unknown",
  });
  expect(judgeSteps(READY)).toEqual({
    installation: "done",
    model: "done",
    repository: "done",
    environment: "optional",
    task: "missing",
  });
  const blocked = [{ name: "nodes", status: "failed", detail: "", blocks_work: true }] as const;
  expect(judgeSteps({ ...READY, checks: blocked, project: null, repository: undefined })).toMatchObject({
    installation: "missing",
    repository: "missing",
  });
});

test("a model of another project is none of this one", () => {
  const models = [{ ...MODEL, project_id: "other" }];
  expect(judgeSteps({ ...READY, models }).model).toBe("missing");
  expect(judgeSteps({ ...READY, models, project: null }).model).toBe("done");
  expect(judgeSteps({ ...READY, models: [{ ...MODEL, enabled: false }] }).model).toBe("missing");
});

test("the next step is the first that is missing, and an environment can be left out", () => {
  const states = judgeSteps(READY);
  expect(findNextStep(states)).toBe("environment");
  expect(findNextStep({ ...states, environment: "done" })).toBe("task");
  expect(findNextStep({ ...states, model: "missing" })).toBe("model");
  expect(findNextStep({ ...states, task: "done" })).toBeNull();
});

test("a title becomes a name for addresses", () => {
  const titles = ["Web shop", "  Größe & Maß!  ", "42 things", "日本", `${"x".repeat(39)} y`];
  expect(titles.map(toSlug)).toEqual(["web-shop", "gro-e-ma", "things", "", "x".repeat(39)]);
});

test("an address of a forge names its kind and its repository", () => {
  const addresses = [
    "https://github.com/acme/web.git",
    "https://gitlab.example.org/group/sub/web/",
    "http://127.0.0.1:3000/acme/web",
    "git@github.com:acme/web.git",
    "https://github.com/acme",
    "javascript:alert(1)",
  ];
  expect(addresses.map(readForgeAddress)).toEqual([
    { forge: "github", repository: "acme/web" },
    { forge: "gitlab", repository: "group/sub/web" },
    { forge: "gitea", repository: "acme/web" },
    null,
    null,
    null,
  ]);
});

test("a model can be connected when address, key, name and prices make sense", () => {
  const draft = { kind: "openai", address: "", upstream: "m", inputPrice: "3", outputPrice: "0,25" } as const;
  const reasons = [
    checkModelDraft(draft, true),
    checkModelDraft(draft, false),
    checkModelDraft({ ...draft, upstream: " " }, true),
    checkModelDraft({ ...draft, inputPrice: "much" }, true),
    checkModelDraft({ ...draft, kind: "compatible" }, false),
    checkModelDraft({ ...draft, kind: "compatible", address: "http://127.0.0.1:1/v1" }, false),
  ];
  expect(reasons).toEqual([
    null,
    "Paste a key of the provider",
    "Write what the model is called there",
    "Write prices such as 3 or 0.25",
    "Write the address of the server",
    null,
  ]);
  expect(["", "3", "0,25", "x"].map(parsePrice)).toEqual([0, 3_000_000, 250_000, null]);
});
