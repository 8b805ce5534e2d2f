/** Which task: its name where it is one of the newest, else the identifier. */

import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { taskNamesQuery } from "../api/queries-places";
import { shortenId } from "../logic/format";
import { cx, Foreign } from "./basic";

/** Returns the names of tasks by their identifiers. */
export function useTaskNames(): (id: string) => string {
  const names = useQuery(taskNamesQuery);
  return (id) => names.data?.get(id) ?? shortenId(id);
}

export function TaskName({ id, tab }: { id: string; tab?: "decisions" }) {
  const nameTask = useTaskNames();
  const name = nameTask(id);
  return (
    <Link
      to="/tasks/$task"
      params={{ task: id }}
      {...(tab ? { search: { tab } } : {})}
      title={id}
      className={cx("text-accent underline underline-offset-2", name === shortenId(id) && "font-mono text-code")}
    >
      <Foreign text={name} />
    </Link>
  );
}
