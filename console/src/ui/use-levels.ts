/** The levels that speak for the reader, for another person or for a task. */

import { useQuery } from "@tanstack/react-query";
import { meQuery, projectsQuery, taskQuery } from "../api/queries";
import { groupsQuery } from "../api/queries-admin";
import { peopleNamesQuery } from "../api/queries-tools";
import { type Level, listLevels } from "../logic/levels";
import type { ScopedSearch } from "../router";

export function useLevels(search: ScopedSearch): Level[] {
  const me = useQuery(meQuery);
  const projects = useQuery(projectsQuery);
  const groups = useQuery(groupsQuery);
  const names = useQuery(peopleNamesQuery);
  const task = useQuery({ ...taskQuery(search.task ?? ""), enabled: search.task !== undefined });
  const user = search.user ?? task.data?.created_by ?? me.data?.user.id ?? "";
  const project = task.data?.project_id ?? search.project;
  const own = me.data?.user.id === user ? me.data.user.handle : undefined;
  const levels = listLevels({
    task: search.task,
    project: project
      ? { id: project, name: projects.data?.items.find((it) => it.id === project)?.slug ?? project.slice(-8) }
      : null,
    user: { id: user, name: own ?? names.data?.get(user) ?? user.slice(-8) },
    groups: groups.data?.items ?? [],
  });
  // A group in the address is shown, whoever is in it.
  const wanted = search.level?.startsWith("group:") ? search.level.slice("group:".length) : null;
  const group = groups.data?.items.find((it) => it.id === wanted);
  if (group && !levels.some((level) => level.id === group.id)) {
    levels.push({ type: "group", id: group.id, name: group.name });
  }
  return levels.filter((level) => level.id !== "");
}
