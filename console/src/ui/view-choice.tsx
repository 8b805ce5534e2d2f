/** Whose view is shown: of a project, of a task, or of no project. */

import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { projectsQuery, taskQuery } from "../api/queries";
import { Foreign } from "./basic";
import { Choice, Field } from "./fields";

export function ViewChoice({
  project,
  task,
  words,
  onProject,
  onWords,
}: {
  project: string | undefined;
  task: string | undefined;
  words: string;
  onProject: (project: string | undefined) => void;
  onWords: (words: string | undefined) => void;
}) {
  const projects = useQuery(projectsQuery);
  const shown = useQuery({ ...taskQuery(task ?? ""), enabled: task !== undefined });
  return (
    <div id="filter" className="grid max-w-[640px] gap-3 small:grid-cols-2">
      <Field label="Filter" value={words} onChange={(text) => onWords(text || undefined)} placeholder="plan" />
      {task ? (
        <p className="grid content-start gap-1">
          <span className="font-medium">What holds for</span>
          <span className="flex min-h-8 flex-wrap items-center gap-x-3">
            <span>
              Task <Foreign text={shown.data?.name ?? task.slice(-8)} />
            </span>
            <Link
              to="."
              search={(previous: Record<string, unknown>) => ({ ...previous, task: undefined, level: undefined })}
              className="text-accent underline"
            >
              Leave the task
            </Link>
          </span>
        </p>
      ) : (
        <Choice
          label="What holds for you in"
          value={project ?? ""}
          onChange={(value) => onProject(value || undefined)}
          options={[
            { value: "", name: "No project" },
            ...(projects.data?.items ?? []).map((it) => ({ value: it.id, name: it.slug })),
          ]}
        />
      )}
    </div>
  );
}
