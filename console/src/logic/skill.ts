/** Skills: whose they are, and the files of a folder. */

import type { Schema } from "../api/client";

export type SkillFile = Schema["SkillFile"];
export type SkillScope = Schema["SkillScope"];

/** What stands in place of a project for the skills of the installation and one's own. */
export const COMMON = "common";

const OWNERS: Record<SkillScope, string> = {
  installation: "the installation",
  project: "the project",
  person: "one person",
};

export function describeOwner(scope: SkillScope | undefined): string {
  return OWNERS[scope ?? "project"];
}

/** The path of a chosen file below the folder that was chosen: the browser puts the folder before it. */
export function pathInFolder(file: { name: string; webkitRelativePath?: string }): string {
  const path = file.webkitRelativePath || file.name;
  return path.includes("/") ? path.slice(path.indexOf("/") + 1) : path;
}

/** Why a folder is no skill; null when it may be one. The server checks the rest. */
export function folderProblem(files: readonly SkillFile[]): string | null {
  if (files.length === 0) return "Choose the folder first";
  return files.some((file) => file.path === "SKILL.md") ? null : "The folder has no SKILL.md";
}
