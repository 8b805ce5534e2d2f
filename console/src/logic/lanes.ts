/** A timeline as lanes, marks and entries on one axis of time. */

import type { Schema } from "../api/client";
import { formatDuration, shortenId, toWords } from "./format";
import { STEPS, type Standing, type Timeline } from "./state";

export type Handoff = Pick<
  Schema["HandoffView"],
  "handoff_id" | "role" | "kind" | "state" | "attempt" | "expired_leases" | "created_at" | "ended_at"
>;

type Takeover = Schema["LeaseTakeover"];

export interface Span {
  key: string;
  start: number;
  end: number;
  kind: "work" | "check" | "failed" | "wait" | "person";
  words: string;
}

export interface Lane {
  name: string;
  spans: Span[];
}

/** A moment at which another process had the work, and what is recorded about it. */
export interface RecoveryMark {
  key: string;
  at: number;
  words: string;
}

export interface Lanes {
  start: number;
  end: number;
  lanes: Lane[];
  marks: RecoveryMark[];
  /** Money so far, at each step that cost some. */
  cost: CostPoint[];
}

export interface CostPoint {
  at: number;
  micros: number;
}

const BASE_UNIT = "base-check";

function toTime(text: string | null | undefined, other: number): number {
  return text ? new Date(text).getTime() : other;
}

/** Returns how the units of a task are called by people. */
export function nameUnits(timeline: Timeline): (unit: string) => string {
  const titles = new Map(timeline.units.map((unit) => [unit.key, unit.title]));
  return (unit) => titles.get(unit) ?? (unit === BASE_UNIT ? "Checks before any change" : unit);
}

/** Returns the words for an attempt; the checks before any change belong to none. */
export function nameTry(attempt: number): string | null {
  return attempt > 0 ? `attempt ${attempt}` : null;
}

const VERDICT_WORDS: Record<string, string> = {
  pass: "done",
  done: "all done",
  redo: "once more",
  revise: "plan again",
  wait: "waits",
  fail: "failed",
};

function nameVerdict(verdict: string): string {
  return VERDICT_WORDS[verdict] ?? verdict;
}

/** Places steps, jobs, waits, restarts and costs. What is not over yet lasts until now. */
export function placeLanes(timeline: Timeline, now: number, handoffs: readonly Handoff[] = []): Lanes {
  const ended = timeline.state === "completed" || timeline.state === "failed" || timeline.state === "cancelled";
  let start = Number.POSITIVE_INFINITY;
  let last = 0;
  const cover = (at: number) => {
    if (at <= 0) return;
    start = Math.min(start, at);
    last = Math.max(last, at);
  };
  for (const step of timeline.steps) cover(toTime(step.at, now));
  for (const job of timeline.jobs) {
    cover(toTime(job.queued_at, now));
    cover(toTime(job.ended_at, ended ? 0 : now));
  }
  for (const wait of timeline.waits) {
    cover(toTime(wait.opened_at, now));
    cover(toTime(wait.resolved_at, ended ? 0 : now));
  }
  if (!Number.isFinite(start)) start = now;
  const end = Math.max(start + 1, last);
  const name = nameUnits(timeline);
  const lanes = new Map<string, Lane>();
  const lane = (title: string) => {
    const known = lanes.get(title);
    if (known) return known;
    const made: Lane = { name: title, spans: [] };
    lanes.set(title, made);
    return made;
  };
  placeSteps(timeline, lane);
  placeWaits(timeline, end, now, lane);
  for (const job of timeline.jobs) {
    const target = lane(name(job.unit));
    const began = toTime(job.started_at, toTime(job.ended_at, end));
    const queued = toTime(job.queued_at, now);
    if (began > queued) {
      const words = "waited for a node";
      target.spans.push({ key: `${job.job_id} queue`, start: queued, end: began, kind: "wait", words });
    }
    if (job.started_at) {
      target.spans.push({
        key: job.job_id,
        start: began,
        end: toTime(job.ended_at, end),
        kind: job.state === "failed" || job.state === "lost" ? "failed" : "work",
        words: [nameTry(job.attempt), job.state].filter(Boolean).join(", "),
      });
    }
  }
  const marks = findRecoveries(timeline, handoffs);
  return { start, end, lanes: [...lanes.values()], marks, cost: sumStepCosts(timeline) };
}

/** One lane for what the workflow itself did: the steps that took time. */
function placeSteps(timeline: Timeline, lane: (name: string) => Lane): void {
  for (const step of timeline.steps) {
    if (step.duration_ms <= 0) continue;
    const at = toTime(step.at, 0);
    lane("Steps").spans.push({
      key: `step ${step.sequence}`,
      start: at - step.duration_ms,
      end: at,
      kind: step.verdict === "fail" ? "failed" : step.node === "verify_step_result" ? "check" : "work",
      words: `${nameStep(step.node)}, ${nameVerdict(step.verdict)}`,
    });
  }
}

const WAIT_WORDS: Record<Timeline["waits"][number]["reason"], string> = {
  job: "waited for work",
  approval: "waited for a decision",
  human_input: "waited for an answer",
  paused: "was paused",
  retry: "waited for the next attempt",
  quota: "waited for the quota of a provider",
  agent: "waited for the project manager",
};

/** Waits for people and for what is outside. That work takes time shows in the lanes of the units. */
function placeWaits(timeline: Timeline, end: number, now: number, lane: (name: string) => Lane): void {
  for (const wait of timeline.waits) {
    if (wait.owner !== "person" && wait.reason !== "quota" && wait.reason !== "retry") continue;
    lane(wait.owner === "person" ? "Waits for you" : "Other waits").spans.push({
      key: wait.wait_id,
      start: toTime(wait.opened_at, now),
      end: toTime(wait.resolved_at, end),
      kind: wait.owner === "person" ? "person" : "wait",
      words: WAIT_WORDS[wait.reason],
    });
  }
}

/** Returns the words for a step. */
export function nameStep(node: string): string {
  return STEPS.find((entry) => entry.node === node)?.words ?? toWords(node);
}

/**
 * Returns where another process had the work than before: it took over the lease of a task, it stored a step, a node fell silent, or the
 * claim of a handoff expired. The words say what is recorded, and no more.
 */
export function findRecoveries(timeline: Timeline, handoffs: readonly Handoff[] = []): RecoveryMark[] {
  const takeovers = timeline.takeovers ?? [];
  const marks = [
    ...takeovers.map((takeover) => describeTakeover(timeline, takeover)),
    ...findOtherDrivers(timeline, takeovers),
  ];
  timeline.jobs.forEach((job, index) => {
    if (job.state !== "lost") return;
    const again = timeline.jobs.slice(index + 1).some((later) => later.unit === job.unit);
    const node = job.worker ? `node ${shortenId(job.worker)}` : "the node";
    const words = `${node} fell silent here; ${again ? "its job was given out again" : "no other attempt is recorded"}`;
    marks.push({ key: job.job_id, at: toTime(job.ended_at, toTime(job.started_at, 0)), words });
  });
  for (const handoff of handoffs) {
    const mark = describeExpiredClaim(handoff);
    if (mark) marks.push(mark);
  }
  return marks.sort((a, b) => a.at - b.at);
}

function nameProcess(holder: string, instance: string | null | undefined): string {
  return instance ? `${holder} (process ${instance.slice(0, 8)})` : holder;
}

/** Who had the lease, when it was last heard of, how its lease ended, and when the work went on. */
function describeTakeover(timeline: Timeline, takeover: Takeover): RecoveryMark {
  const at = toTime(takeover.taken_at, 0);
  const before = (moment: string) => `${formatDuration(at - toTime(moment, at))} before`;
  const previous = nameProcess(takeover.previous_holder, takeover.previous_instance);
  const next =
    takeover.previous_holder === takeover.holder && takeover.previous_instance === takeover.instance
      ? "the same process"
      : nameProcess(takeover.holder, takeover.instance);
  const ending = {
    released: `${previous} gave its lease back ${before(takeover.lease_ended_at)}`,
    expired: `${previous} was last heard of ${before(takeover.previous_seen_at)}, and its lease expired ${before(takeover.lease_ended_at)}`,
    replaced: `${previous} was last heard of ${before(takeover.previous_seen_at)}, and the engine repeated its call`,
  }[takeover.ended_by];
  const went = timeline.steps.find((step) => step.sequence > takeover.sequence && toTime(step.at, 0) >= at);
  const after = went
    ? `stored step ${went.sequence} ${formatDuration(toTime(went.at, at) - at)} later`
    : "has stored no step since";
  const words = `${ending}; ${next} took over here after step ${takeover.sequence} and ${after}`;
  return { key: `takeover ${takeover.taken_at}`, at, words };
}

/** Steps of another process than the one before, where no takeover is recorded. Steps of people belong to no process. */
function findOtherDrivers(timeline: Timeline, takeovers: readonly Takeover[]): RecoveryMark[] {
  const marks: RecoveryMark[] = [];
  let last: Timeline["steps"][number] | null = null;
  for (const step of timeline.steps) {
    if (step.actor.startsWith("usr_")) continue;
    const previous = last;
    last = step;
    if (previous === null) continue;
    const isOther =
      step.actor !== previous.actor ||
      (step.instance != null && previous.instance != null && step.instance !== previous.instance);
    const isTold = takeovers.some(({ sequence }) => sequence >= previous.sequence && sequence < step.sequence);
    if (!isOther || isTold) continue;
    const next = nameProcess(step.actor, step.instance);
    const words = `${next} stored step ${step.sequence} here, ${nameProcess(previous.actor, previous.instance)} step ${previous.sequence}`;
    marks.push({ key: `step ${step.sequence}`, at: toTime(step.at, 0), words });
  }
  return marks;
}

/** A handoff of which nothing was heard for longer than a lease. When that was is not recorded; its end is. */
function describeExpiredClaim(handoff: Handoff): RecoveryMark | null {
  const expired = handoff.expired_leases ?? 0;
  if (expired === 0) return null;
  const times = expired === 1 ? "once" : `${expired} times`;
  const subject = `“${toWords(handoff.kind).toLowerCase()}” of the ${toWords(handoff.role).toLowerCase()}`;
  const end = handoff.ended_at
    ? `attempt ${handoff.attempt} ended it here: ${handoff.state}`
    : `attempt ${handoff.attempt} is ${handoff.state}`;
  const words = `the lease of ${subject} expired ${times} without a word; ${end}`;
  return { key: handoff.handoff_id, at: toTime(handoff.ended_at, toTime(handoff.created_at, 0)), words };
}

function sumStepCosts(timeline: Timeline): CostPoint[] {
  const costs = timeline.steps
    .filter((step) => step.cost_micros > 0)
    .map((step) => ({ at: toTime(step.at, 0), micros: step.cost_micros }));
  return accumulateCosts(costs);
}

/** Returns the money spent so far at each of some costs, oldest first. */
export function accumulateCosts(costs: readonly CostPoint[]): CostPoint[] {
  let micros = 0;
  return costs
    .toSorted((a, b) => a.at - b.at)
    .map((cost) => {
      micros += cost.micros;
      return { at: cost.at, micros };
    });
}

/** Returns what was spent at a time. */
export function costAt(cost: readonly CostPoint[], at: number): number {
  let low = 0;
  let high = cost.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((cost[middle]?.at ?? 0) <= at) low = middle + 1;
    else high = middle;
  }
  return cost[low - 1]?.micros ?? 0;
}

/** Returns what a task will have cost when the rest of its units cost as much as those that are done; null before the first one. */
export function forecastCost(timeline: Pick<Timeline, "units" | "state">, spent: number): number | null {
  if (timeline.state !== "running" || spent <= 0) return null;
  const counted = timeline.units.filter((unit) => unit.state !== "cancelled");
  const done = counted.filter((unit) => unit.state === "done" || unit.state === "failed").length;
  if (done === 0 || done === counted.length) return null;
  return Math.round((spent / done) * counted.length);
}

export interface TimelineEntry {
  key: string;
  at: number;
  what: string;
  tone: "ok" | "bad" | "warn" | "muted" | "mark";
  state: string;
  unit: string | null;
  note: string | null;
  micros: number;
  job: string | null;
}

/** What is wanted from a person. */
const PERSON_WORDS: Partial<Record<Timeline["waits"][number]["reason"], string>> = {
  approval: "Decision",
  human_input: "Question",
  paused: "Pause",
};

/** Returns everything that happened in one list, oldest first: steps, jobs, questions to people and restarts. */
export function listEntries(timeline: Timeline, handoffs: readonly Handoff[] = []): TimelineEntry[] {
  const name = nameUnits(timeline);
  const entries: TimelineEntry[] = [];
  for (const step of timeline.steps) {
    // A wait without words says only that the one before it goes on.
    if (step.verdict === "wait" && !step.note) continue;
    const tones: Record<string, TimelineEntry["tone"]> = { pass: "ok", done: "ok", wait: "muted", fail: "bad" };
    const tone = tones[step.verdict] ?? "warn";
    entries.push({
      key: `step ${step.sequence}`,
      at: toTime(step.at, 0),
      what: nameStep(step.node),
      tone,
      state: nameVerdict(step.verdict),
      unit: step.unit ? name(step.unit) : null,
      note: step.note ?? null,
      micros: step.cost_micros,
      job: null,
    });
  }
  for (const job of timeline.jobs) {
    const entry = { unit: name(job.unit), micros: 0, job: job.job_id };
    if (job.started_at) {
      const note = [nameTry(job.attempt), job.worker ? `on node ${shortenId(job.worker)}` : null].filter(Boolean);
      const at = toTime(job.started_at, 0);
      entries.push({
        ...entry,
        key: `${job.job_id} start`,
        at,
        what: "Job",
        tone: "muted",
        state: "began",
        note: note.join(" ") || null,
      });
    }
    if (job.ended_at) {
      const took = job.started_at ? toTime(job.ended_at, 0) - toTime(job.started_at, 0) : 0;
      entries.push({
        ...entry,
        key: `${job.job_id} end`,
        at: toTime(job.ended_at, 0),
        what: "Job",
        tone: job.state === "succeeded" ? "ok" : "bad",
        state: job.state,
        note: [nameTry(job.attempt), formatDuration(took)].filter(Boolean).join(", "),
      });
    }
  }
  for (const wait of timeline.waits) {
    if (wait.owner !== "person") continue;
    const what = PERSON_WORDS[wait.reason] ?? "Question";
    const entry = { what, unit: null, micros: 0, job: null };
    const at = toTime(wait.opened_at, 0);
    const asked = {
      state: wait.reason === "paused" ? "began" : "asked",
      note: wait.question ?? WAIT_WORDS[wait.reason],
    };
    entries.push({ ...entry, ...asked, key: `${wait.wait_id} open`, at, tone: "warn" });
    if (wait.resolved_at) {
      const answered = { state: wait.resolution ?? "answered", note: wait.answer ?? null };
      entries.push({ ...entry, ...answered, key: `${wait.wait_id} end`, at: toTime(wait.resolved_at, 0), tone: "ok" });
    }
  }
  for (const mark of findRecoveries(timeline, handoffs)) {
    const rest = { what: "Recovery", state: "!", unit: null, micros: 0, job: null };
    entries.push({ ...rest, key: `mark ${mark.key}`, at: mark.at, tone: "mark", note: mark.words });
  }
  return entries.sort((a, b) => a.at - b.at);
}

/** Returns the index of the last entry at or before a time; 0 when there is none. */
export function entryAt(entries: readonly TimelineEntry[], at: number): number {
  let low = 0;
  let high = entries.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((entries[middle]?.at ?? 0) <= at) low = middle + 1;
    else high = middle;
  }
  return Math.max(0, low - 1);
}

export interface Attempt {
  number: number;
  jobs: number;
  milliseconds: number;
  /** The state of a job of the attempt that did not succeed. */
  state: string | null;
}

/** Returns the attempts at each unit with how many jobs each had, the work and its checks, and how long they took together. */
export function groupAttempts(timeline: Timeline): Map<string, Attempt[]> {
  const units = new Map<string, Map<number, Attempt>>();
  for (const job of timeline.jobs) {
    const attempts = units.get(job.unit) ?? new Map<number, Attempt>();
    units.set(job.unit, attempts);
    const attempt = attempts.get(job.attempt) ?? { number: job.attempt, jobs: 0, milliseconds: 0, state: null };
    attempt.jobs += 1;
    if (job.started_at && job.ended_at) {
      attempt.milliseconds += new Date(job.ended_at).getTime() - new Date(job.started_at).getTime();
    }
    if (job.state !== "succeeded") attempt.state = job.state;
    attempts.set(job.attempt, attempt);
  }
  return new Map([...units].map(([unit, attempts]) => [unit, [...attempts.values()]]));
}

/** Returns how an attempt stands. An attempt before the last one was not taken, whatever its jobs did. */
export function standingOfAttempt(attempt: Attempt, isLast: boolean, unit: Standing): Standing {
  if (isLast) return unit;
  return attempt.state === "cancelled" ? "cancelled" : "failed";
}
