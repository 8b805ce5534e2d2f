/** Where a task stands, in signs and sentences. The signs are those of the terminal screen. */

import type { Schema } from "../api/client";
import { formatAge, formatCount } from "./format";
import { firstLine, firstSentence } from "./text";

export type Task = Schema["TaskView"];
export type Timeline = Schema["TaskTimeline"];
export type Unit = Schema["UnitView"];
export type Wait = Schema["WaitEntry"];

export type Standing = "waits" | "works" | "judged" | "person" | "done" | "failed" | "cancelled" | "trouble";

export const SIGNS: Record<Standing, { sign: string; words: string; tone: string }> = {
  waits: { sign: "○", words: "Waits", tone: "text-faint" },
  works: { sign: "▸", words: "Works", tone: "text-accent" },
  judged: { sign: "◆", words: "Is judged", tone: "text-info" },
  person: { sign: "?", words: "Needs a person", tone: "text-warn" },
  done: { sign: "✓", words: "Done", tone: "text-ok" },
  failed: { sign: "✗", words: "Given up", tone: "text-bad" },
  cancelled: { sign: "–", words: "Cancelled", tone: "text-faint" },
  trouble: { sign: "!", words: "In trouble", tone: "text-bad" },
};

/** Returns the open question to a person, if there is one. A pause waits for a person, too, but nobody was asked. */
export function findPersonWait(timeline: Timeline): Wait | null {
  const asks = (wait: Wait) => wait.reason === "approval" || wait.reason === "human_input";
  return timeline.waits.findLast((wait) => !wait.resolved_at && wait.owner === "person" && asks(wait)) ?? null;
}

/** Returns whether a person paused the task. */
export function isPaused(timeline: Timeline): boolean {
  return timeline.waits.some((wait) => !wait.resolved_at && wait.reason === "paused");
}

/** Returns where a task stands. Without a timeline only its state is known. */
export function standingOf(task: Pick<Task, "state">, timeline?: Timeline | null): Standing {
  switch (task.state) {
    case "completed":
      return "done";
    case "failed":
      return "failed";
    case "cancelled":
      return "cancelled";
    case "queued":
      return "waits";
    case "running":
      break;
  }
  if (!timeline) return "works";
  if (findPersonWait(timeline)) return "person";
  if ((timeline.stalls ?? []).length > 0) return "trouble";
  if (isPaused(timeline)) return "waits";
  return timeline.node === "verify_step_result" ? "judged" : "works";
}

export function standingOfUnit(unit: Pick<Unit, "state" | "attempts">): Standing {
  switch (unit.state) {
    case "pending":
      return "waits";
    case "dispatched":
      return "works";
    case "collected":
      return "judged";
    case "done":
      return "done";
    case "failed":
      return "failed";
    case "cancelled":
      return "cancelled";
  }
}

/** The seven steps of every task, in the words of the terminal. */
export const STEPS = [
  { node: "load_task_context", words: "Read task" },
  { node: "plan_steps", words: "Plan" },
  { node: "dispatch_step", words: "Start work" },
  { node: "collect_result", words: "Wait for work" },
  { node: "verify_step_result", words: "Check work" },
  { node: "finalize_summary", words: "Sum up" },
  { node: "mark_failed", words: "Give up" },
] as const;

export interface StepState {
  node: string;
  words: string;
  state: "before" | "now" | "passed" | "failed";
  visits: number;
}

/** Returns the steps with how often each was done and which one is now. Giving up is a step only where it happened. */
export function describeSteps(timeline: Timeline): StepState[] {
  const ended = timeline.state === "completed" || timeline.state === "failed" || timeline.state === "cancelled";
  const givesUp = timeline.node === "mark_failed" || timeline.steps.some((step) => step.node === "mark_failed");
  return STEPS.filter(({ node }) => node !== "mark_failed" || givesUp).map(({ node, words }) => {
    const entries = timeline.steps.filter((step) => step.node === node);
    const visits = entries.filter((step) => step.verdict !== "wait").length;
    const now = !ended && timeline.node === node;
    const failed = node === "mark_failed" && entries.length > 0;
    return { node, words, visits, state: now ? "now" : failed ? "failed" : entries.length > 0 ? "passed" : "before" };
  });
}

const ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"];

/** Returns an attempt in words. */
export function nameAttempt(attempt: number): string {
  return `${ORDINALS[attempt - 1] ?? `${attempt}th`} attempt`;
}

export interface StandingSentence {
  /** What happens, or happened. */
  text: string;
  /** Who is needed now. */
  need: string;
}

/** Returns one sentence about where a task stands, and one about who is needed. */
export function describeStanding(task: Task, timeline: Timeline | null, now: number): StandingSentence {
  if (task.state === "queued") {
    const needs = task.depends_on.length;
    const text = needs > 0 ? `Waits for ${formatCount(needs, "other task")}.` : "Waits to be started.";
    return { text, need: "Nothing is needed from you." };
  }
  if (task.state === "cancelled") return { text: "It was cancelled.", need: "Nothing is needed from you." };
  if (task.state === "failed") {
    const reason = task.failure ?? timeline?.summary ?? null;
    const text = reason ? `It was given up: ${firstLine(reason)}` : "It was given up.";
    return { text, need: "Try again, or change what is asked for." };
  }
  if (task.state === "completed") return describeCompletion(timeline);
  if (!timeline) return { text: "It runs.", need: "" };
  return describeWork(timeline, now);
}

function describeCompletion(timeline: Timeline | null): StandingSentence {
  const text = timeline?.summary ? firstSentence(timeline.summary) : "It is done: its acceptance criteria hold.";
  const request = timeline?.pull_request;
  switch (request?.state) {
    case "open":
      return { text, need: `Pull request #${request.number} waits for your review.` };
    case "merged":
      return { text, need: `Pull request #${request.number} is merged. Nothing is needed from you.` };
    case "failed":
      return { text, need: `Pull request #${request.number} failed${request.failure ? `: ${request.failure}` : "."}` };
    case "closed":
      return { text, need: `Pull request #${request.number} was closed. Nothing is needed from you.` };
    default:
      return { text, need: "Nothing is needed from you." };
  }
}

function describeWork(timeline: Timeline, now: number): StandingSentence {
  const wait = findPersonWait(timeline);
  if (wait) {
    const since = formatAge(wait.opened_at, now);
    const asked = wait.question ? firstLine(wait.question) : "It waits for you.";
    const need = wait.reason === "approval" ? "Your decision is needed" : "Your answer is needed";
    return { text: asked, need: since === "now" ? `${need} now.` : `${need} since ${since}.` };
  }
  const stall = timeline.stalls?.[0];
  if (stall) return { text: stall.detail, need: stall.commands.length > 0 ? "An admin can mend it, see below." : "" };
  if (isPaused(timeline)) return { text: "It is paused.", need: "Resume it when you want it to go on." };
  const job = timeline.jobs.findLast((entry) => entry.state === "running" || entry.state === "queued");
  const unit = job && timeline.units.find((entry) => entry.key === job.unit);
  if (job && unit) {
    const verb = job.state === "running" ? "Works on" : "Waits for a node to work on";
    const since = formatAge(job.started_at ?? job.queued_at, now);
    const attempt = job.attempt > 1 ? `, ${nameAttempt(job.attempt)}` : "";
    const begun = since === "now" ? "just begun" : `since ${since}`;
    return { text: `${verb} “${unit.title}”${attempt}, ${begun}.`, need: "Nothing is needed from you." };
  }
  const waits = timeline.waits.findLast((entry) => !entry.resolved_at);
  if (waits?.reason === "quota")
    return { text: "It waits until the model may be called again.", need: "Nothing is needed from you." };
  const step = STEPS.find((entry) => entry.node === timeline.node);
  const text = timeline.standing
    ? `${timeline.standing.charAt(0).toUpperCase()}${timeline.standing.slice(1)}.`
    : step
      ? `${step.words}.`
      : "It runs.";
  return { text, need: "Nothing is needed from you." };
}

/** The line of a summary that names the pull request. */
const DELIVERY_LINE = /\n*^Pull request #\d+(?:: \S+)?$\n*/m;

/** Returns the summary of a task for a page that shows the pull request itself. */
export function withoutDelivery(summary: string): string {
  return summary.replace(DELIVERY_LINE, "\n\n").trim();
}

export const PULL_REQUEST_STANDINGS: Record<Schema["PullRequestState"], Standing> = {
  opening: "works",
  open: "person",
  merged: "done",
  closed: "cancelled",
  failed: "failed",
};

/** Returns whether more can happen in a task. */
export function isAlive(state: Task["state"]): boolean {
  return state === "queued" || state === "running";
}
