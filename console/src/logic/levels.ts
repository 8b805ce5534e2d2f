/** Who said what: the levels that speak, from the most specific to the widest. */

import type { Schema } from "../api/client";

export interface Level {
  type: Schema["ScopeType"];
  id: string | null;
  /** How people call it. */
  name: string;
}

const WORDS: Record<Schema["ScopeType"], string> = {
  system: "Installation",
  group: "Group",
  user: "Person",
  project: "Project",
  task: "Task",
};

/** Returns a level as the address and the title of a row write it: `project`, `group:grp_1`. */
export function toLevelKey(level: Pick<Level, "type" | "id">): string {
  return level.type === "group" ? `group:${level.id}` : level.type;
}

export function describeLevel(level: Pick<Level, "type" | "name">): string {
  return level.name === "" ? WORDS[level.type] : `${WORDS[level.type]} ${level.name}`;
}

export interface LevelContext {
  task?: string | undefined;
  project: { id: string; name: string } | null;
  user: { id: string; name: string };
  groups: readonly { id: string; name: string; members: readonly string[] }[];
}

/** Returns the levels that speak for a person in a project, the most specific first. Among groups the greater id wins. */
export function listLevels(context: LevelContext): Level[] {
  const groups = context.groups.filter((group) => group.members.includes(context.user.id));
  return [
    ...(context.task ? [{ type: "task" as const, id: context.task, name: context.task.slice(-8) }] : []),
    ...(context.project ? [{ type: "project" as const, ...context.project }] : []),
    { type: "user", ...context.user },
    ...groups
      .toSorted((a, b) => (a.id < b.id ? 1 : -1))
      .map((group) => ({ type: "group" as const, id: group.id, name: group.name })),
    { type: "system", id: null, name: "" },
  ];
}

/** Returns the flags by which cynork names a level. */
export function toLevelFlags(level: Level): string[] {
  if (level.type === "system") return ["--system"];
  const name = level.type === "task" ? (level.id ?? "") : level.name;
  return [`--${level.type}`, name];
}
