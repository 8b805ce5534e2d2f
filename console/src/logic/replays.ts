/** Replays of decisions: which models can be asked, and how an answer compares with the recorded one. */

import type { Schema } from "../api/client";
import { formatCost, formatDuration, toWords } from "./format";

export type Replay = Schema["DecisionReplayView"];
export type Replays = Schema["DecisionReplays"];
export type FieldDifference = Schema["FieldDifference"];
type RegisteredModel = Pick<Schema["ModelView"], "id" | "title" | "enabled" | "project_id" | "tier">;

const OWN_PREFIX = "cynodeai.";

export interface ModelOption {
  value: string;
  name: string;
}

/** Returns the models that can be asked in a project: the recorded one first, then the tiers, then each model. */
export function listReplayModels(
  models: readonly RegisteredModel[],
  project: string,
  recorded: string,
): readonly ModelOption[] {
  const usable = models.filter((model) => model.enabled && (!model.project_id || model.project_id === project));
  const tiers = [...new Set(usable.flatMap((model) => (model.tier ? [model.tier] : [])))].toSorted();
  return [
    { value: "", name: `The same model, ${recorded}` },
    ...tiers.map((tier) => ({ value: `${OWN_PREFIX}${tier}`, name: `Tier ${tier}` })),
    ...usable.map((model) => ({ value: model.id, name: model.title })),
  ].filter((option) => option.value !== recorded);
}

export interface ComparedRow {
  name: string;
  recorded: string;
  replay: string;
}

/** Returns what a decision and a replay took, row by row. What a replay does not know is a dash. */
export function compareFigures(replays: Replays, replay: Replay, currency: string): ComparedRow[] {
  const { decision } = replays;
  const tokens = (count: number | null | undefined) => (count == null ? "–" : count.toLocaleString("en-US"));
  const answeredBy = [replay.provider, replay.upstream].filter(Boolean).join(", ");
  return [
    { name: "Model", recorded: decision.model, replay: replay.model },
    { name: "Answered by", recorded: "not recorded", replay: answeredBy || "–" },
    { name: "State", recorded: decision.output == null ? "No answer" : "Answered", replay: toWords(replay.state) },
    {
      name: "Cost",
      recorded: formatCost(replays.cost_micros, currency),
      replay: replay.cost_micros == null ? "–" : formatCost(replay.cost_micros, currency),
    },
    {
      name: "Took",
      recorded: formatDuration(decision.latency_ms),
      replay: replay.latency_ms == null ? "–" : formatDuration(replay.latency_ms),
    },
    { name: "Tokens in", recorded: tokens(decision.input_tokens), replay: tokens(replay.input_tokens) },
    { name: "Tokens out", recorded: tokens(decision.output_tokens), replay: tokens(replay.output_tokens) },
    {
      name: "Asked",
      recorded: decision.attempts === 1 ? "once" : `${decision.attempts} times`,
      replay: "once",
    },
  ];
}

/** Returns a value of an answer as text; nothing where there is none. */
export function writeAnswerValue(value: unknown): string {
  if (value === undefined || value === null) return "";
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

/** Returns what came of a replay in one sentence. */
export function describeReplay(replay: Replay): string {
  if (replay.state === "running") return "The model is being asked.";
  if (replay.state === "failed") return "There is no answer.";
  if (replay.state === "invalid") return "The answer is not of the form that was asked for.";
  if (replay.is_same == null) return "There is no recorded answer to compare it with.";
  if (replay.is_same) return "The answer is the recorded one, field by field.";
  const count = replay.differences?.length ?? 0;
  return `The answer differs in ${count === 1 ? "one field" : `${count} fields`}.`;
}
