/** The first steps of an installation. What is done is read from the server, never remembered by the browser. */

import type { Schema } from "../api/client";

export const WELCOME_STEPS = ["installation", "model", "repository", "environment", "task"] as const;
export type WelcomeStep = (typeof WELCOME_STEPS)[number];

export const STEP_TITLES: Record<WelcomeStep, string> = {
  installation: "Check the installation",
  model: "Connect a model",
  repository: "Bring a repository",
  environment: "Accept an environment",
  task: "Start a first task",
};

/** What the server says; undefined while it is not known. */
export interface WelcomeFacts {
  checks?: readonly Schema["ReadinessCheck"][] | undefined;
  models?: readonly Schema["ModelView"][] | undefined;
  project?: string | null | undefined;
  repository?: Schema["RepositoryView"] | null | undefined;
  environments?: readonly Schema["EnvironmentView"][] | undefined;
  tasks?: number | undefined;
}

/** `optional` is not needed for a first task, but makes it better. */
export type StepState = "unknown" | "done" | "missing" | "optional";

/** Returns how far each step is. */
export function judgeSteps(facts: WelcomeFacts): Record<WelcomeStep, StepState> {
  const { checks, models, project, repository, environments, tasks } = facts;
  const needed = (isDone: boolean | undefined): StepState =>
    isDone === undefined ? "unknown" : isDone ? "done" : "missing";
  const accepted = environments?.some((it) => it.state === "accepted");
  return {
    // Models have a step of their own.
    installation: needed(checks && !checks.some((check) => check.blocks_work && check.name !== "models")),
    model: needed(models?.some((model) => isUsable(model, project ?? null))),
    repository: needed(project === null ? false : repository === undefined ? undefined : repository !== null),
    environment: accepted ? "done" : "optional",
    task: needed(tasks === undefined ? undefined : tasks > 0),
  };
}

/** Returns whether a model can be asked in a project. Without a project, one of any project counts. */
function isUsable(model: Schema["ModelView"], project: string | null): boolean {
  const isOpen = model.project_id == null || project === null || model.project_id === project;
  return model.enabled && model.routes.length > 0 && isOpen;
}

/** Returns the first step that is not done, or null. An optional step counts until a task was started without it. */
export function findNextStep(states: Record<WelcomeStep, StepState>): WelcomeStep | null {
  return (
    WELCOME_STEPS.find(
      (step) => states[step] === "missing" || (states[step] === "optional" && states.task === "missing"),
    ) ?? null
  );
}

export function isWelcomeStep(value: unknown): value is WelcomeStep {
  return WELCOME_STEPS.some((step) => step === value);
}

/** Returns a name for addresses: lower-case letters, digits and dashes. */
export function toSlug(title: string): string {
  return title
    .normalize("NFKD")
    .replaceAll(/\p{M}/gu, "")
    .toLowerCase()
    .replaceAll(/[^a-z0-9]+/g, "-")
    .replace(/^[^a-z]+|-+$/g, "")
    .slice(0, 40)
    .replace(/-+$/, "");
}

export interface ForgeAddress {
  forge: "github" | "gitlab" | "gitea";
  repository: string;
}

/** Reads the address of a repository on a forge: its kind by the host, its name by the path. */
export function readForgeAddress(text: string): ForgeAddress | null {
  let url: URL;
  try {
    url = new URL(text.trim());
  } catch {
    return null;
  }
  if (url.protocol !== "https:" && url.protocol !== "http:") return null;
  const repository = url.pathname.replace(/^\/+|\/+$/g, "").replace(/\.git$/, "");
  if (!/^[\w.-]+(\/[\w.-]+)+$/.test(repository)) return null;
  const host = url.hostname;
  const forge = host.includes("github") ? "github" : host.includes("gitlab") ? "gitlab" : "gitea";
  return { forge, repository };
}

export interface ModelDraft {
  kind: "anthropic" | "openai" | "compatible";
  address: string;
  upstream: string;
  inputPrice: string;
  outputPrice: string;
}

/** Returns why a model cannot be connected as it was typed, or null. */
export function checkModelDraft(draft: ModelDraft, hasKey: boolean): string | null {
  if (draft.kind === "compatible" && !URL.canParse(draft.address.trim())) return "Write the address of the server";
  if (draft.kind !== "compatible" && !hasKey) return "Paste a key of the provider";
  if (draft.upstream.trim() === "") return "Write what the model is called there";
  if ([draft.inputPrice, draft.outputPrice].some((price) => parsePrice(price) === null)) {
    return "Write prices such as 3 or 0.25";
  }
  return null;
}

/** Reads a price per million tokens in micro-units; empty is free, null is no price. */
export function parsePrice(text: string): number | null {
  const trimmed = text.trim().replace(",", ".");
  if (trimmed === "") return 0;
  return /^\d+(\.\d{1,6})?$/.test(trimmed) ? Math.round(Number(trimmed) * 1_000_000) : null;
}
