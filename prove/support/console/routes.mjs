// Every address of the console, from its router.
import { readFileSync } from "node:fs";

/** Tabs of the task page. */
export const TASK_TABS = ["overview", "plan", "timeline", "logs", "changes", "evidence", "decisions"];

/** The paths that console/src/router.tsx knows. */
export function readRoutes(root) {
  const source = readFileSync(`${root}/console/src/router.tsx`, "utf8");
  return [...source.matchAll(/^ {2}path: "([^"]+)"/gm)].map((found) => found[1]);
}

/** An address for every route and every tab, with the task and the project given. */
export function readAddresses(root, { task, project }) {
  return readRoutes(root).flatMap((path) => {
    if (path === "/tasks/$task") return TASK_TABS.map((tab) => `/tasks/${task}?tab=${tab}`);
    return [path.replace("$project", project)];
  });
}
