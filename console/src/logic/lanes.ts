/** A timeline as lanes on one axis of time. */

import type { Timeline } from "./state";

export interface Span {
  key: string;
  start: number;
  end: number;
  kind: "work" | "failed" | "wait" | "person";
  words: string;
}

export interface Lane {
  name: string;
  spans: Span[];
}

export interface Lanes {
  start: number;
  end: number;
  lanes: Lane[];
  /** Money so far, at each step that cost some. */
  cost: { at: number; micros: number }[];
}

/** Places jobs, waits and costs. What is not over yet lasts until now. */
export function placeLanes(timeline: Timeline, now: number): Lanes {
  const time = (text: string | null | undefined, other: number) => (text ? new Date(text).getTime() : other);
  const ended = timeline.state === "completed" || timeline.state === "failed" || timeline.state === "cancelled";
  const times = [
    ...timeline.steps.map((step) => time(step.at, now)),
    ...timeline.jobs.flatMap((job) => [time(job.queued_at, now), time(job.ended_at, ended ? 0 : now)]),
    ...timeline.waits.flatMap((wait) => [time(wait.opened_at, now), time(wait.resolved_at, ended ? 0 : now)]),
  ].filter((at) => at > 0);
  const start = times.length > 0 ? Math.min(...times) : now;
  const end = Math.max(start + 1, ...times);
  const titles = new Map(timeline.units.map((unit) => [unit.key, unit.title]));
  const lanes = new Map<string, Lane>();
  const lane = (name: string) => {
    const known = lanes.get(name);
    if (known) return known;
    const made: Lane = { name, spans: [] };
    lanes.set(name, made);
    return made;
  };
  for (const wait of timeline.waits) {
    if (wait.owner !== "person") continue;
    const span: Span = {
      key: wait.wait_id,
      start: time(wait.opened_at, now),
      end: time(wait.resolved_at, end),
      kind: "person",
      words:
        wait.reason === "paused"
          ? "was paused"
          : wait.reason === "approval"
            ? "waited for a decision"
            : "waited for an answer",
    };
    lane("Waits for you").spans.push(span);
  }
  for (const job of timeline.jobs) {
    const target = lane(titles.get(job.unit) ?? (job.unit === "base-check" ? "Checks before any change" : job.unit));
    const began = time(job.started_at, time(job.ended_at, end));
    const queued = time(job.queued_at, now);
    if (began > queued) {
      target.spans.push({
        key: `${job.job_id} queue`,
        start: queued,
        end: began,
        kind: "wait",
        words: "waited for a node",
      });
    }
    if (job.started_at) {
      target.spans.push({
        key: job.job_id,
        start: began,
        end: time(job.ended_at, end),
        kind: job.state === "failed" || job.state === "lost" ? "failed" : "work",
        words: `attempt ${job.attempt}, ${job.state}`,
      });
    }
  }
  let micros = 0;
  const cost = timeline.steps
    .filter((step) => step.cost_micros > 0)
    .map((step) => {
      micros += step.cost_micros;
      return { at: time(step.at, now), micros };
    });
  return { start, end, lanes: [...lanes.values()], cost };
}

export interface Attempt {
  number: number;
  jobs: number;
  milliseconds: number;
  /** The state of a job of the attempt that did not succeed. */
  state: string | null;
}

/** Returns the attempts at a unit with how many jobs each had, the work and its checks, and how long they took together. */
export function groupAttempts(timeline: Timeline, unit: string): Attempt[] {
  const attempts = new Map<number, Attempt>();
  for (const job of timeline.jobs.filter((entry) => entry.unit === unit)) {
    const attempt = attempts.get(job.attempt) ?? { number: job.attempt, jobs: 0, milliseconds: 0, state: null };
    attempt.jobs += 1;
    if (job.started_at && job.ended_at) {
      attempt.milliseconds += new Date(job.ended_at).getTime() - new Date(job.started_at).getTime();
    }
    if (job.state !== "succeeded") attempt.state = job.state;
    attempts.set(job.attempt, attempt);
  }
  return [...attempts.values()];
}
