/** Switches a tool or sets its scope, measures when it is refused, and remembers how to take it back. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, type Schema, unwrap } from "../api/client";
import { projectsQuery } from "../api/queries";
import { activeAgentsQuery, toolsQuery } from "../api/queries-tools";
import { measureRefusal, type RefusalTiming, type Tool, type ToolScope } from "../logic/tools";

export interface ToolChange {
  enabled?: boolean;
  scope?: ToolScope;
}

interface Wanted {
  tool: Tool;
  change: ToolChange;
  isUndo?: boolean;
}

interface Done {
  tool: Tool;
  change: ToolChange;
  undo: ToolChange;
  timing: RefusalTiming | null;
  agent: Schema["AgentTokenView"] | null;
}

export function useSetTool() {
  const client = useQueryClient();
  const projects = useQuery(projectsQuery);
  const agents = useQuery(activeAgentsQuery((projects.data?.items ?? []).map((project) => project.id)));
  const [done, setDone] = useState<Done | null>(null);

  const write = (name: string, change: ToolChange) =>
    client.setQueryData(toolsQuery.queryKey, (known) =>
      known
        ? { ...known, items: known.items.map((tool) => (tool.name === name ? { ...tool, ...change } : tool)) }
        : known,
    );

  const mutation = useMutation({
    mutationFn: async ({ tool, change }: Wanted) => {
      const send = () =>
        unwrap(api.PUT("/v1/tools/{name}", { params: { path: { name: tool.name } }, body: { ...change } }));
      const now = Date.now();
      const agent =
        (agents.data ?? []).find(
          (token) =>
            tool.roles.includes(token.role) &&
            !token.revoked_at &&
            (!token.expires_at || new Date(token.expires_at).getTime() > now),
        ) ?? null;
      const explain = async () => {
        const body = { agent_token_id: agent?.agent_token_id ?? "", tool: tool.name };
        return (await unwrap(api.POST("/v1/policy/explain", { body }))).reason;
      };
      const timing = await measureRefusal({
        now: () => performance.now(),
        switchOff: send,
        explain: change.enabled === false && agent ? explain : null,
      });
      return { timing, agent };
    },
    onMutate: ({ tool, change }) => {
      write(tool.name, change);
      setDone(null);
    },
    onError: (_, { tool, change }) => write(tool.name, invertChange(tool, change)),
    onSuccess: ({ timing, agent }, { tool, change, isUndo }) => {
      setDone(
        isUndo ? null : { tool: { ...tool, ...change }, change, undo: invertChange(tool, change), timing, agent },
      );
    },
    onSettled: () => void client.invalidateQueries({ queryKey: ["tools"] }),
  });
  return { ...mutation, done, forget: () => setDone(null) };
}

/** Returns the change that makes a tool again what it was. */
function invertChange(tool: Tool, change: ToolChange): ToolChange {
  return {
    ...(change.enabled === undefined ? {} : { enabled: tool.enabled }),
    ...(change.scope === undefined ? {} : { scope: tool.scope as ToolScope }),
  };
}
