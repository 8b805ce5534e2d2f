/** What the pages below `/settings` and the schedules read. */

import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { nextReadDelay } from "../logic/notifications";
import { api, type Schema, unwrap } from "./client";

const PER_PAGE = 50;

interface CursorPage {
  next_cursor?: string | null;
}

const paged = {
  initialPageParam: null as string | null,
  getNextPageParam: (page: CursorPage) => page.next_cursor ?? null,
  placeholderData: keepPreviousData,
};

const pageQuery = (cursor: string | null) => ({ limit: PER_PAGE, ...(cursor ? { cursor } : {}) });

interface PageContext {
  signal: AbortSignal;
  pageParam: string | null;
}

export const certificatesQuery = queryOptions({
  queryKey: ["certificates"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/certificates", { signal })),
});

export const processesQuery = queryOptions({
  queryKey: ["processes"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/processes", { signal })),
});

export const backupsQuery = queryOptions({
  queryKey: ["backups"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/backups", { signal })),
});

export const settingsQuery = queryOptions({
  queryKey: ["settings", "list"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/settings", { signal })),
});

/** One setting; null without a question where the list says that it is not set. */
export const settingQuery = (key: string, isSet: boolean) =>
  queryOptions({
    queryKey: ["settings", "one", key, isSet ? "set" : "unset"],
    queryFn: ({ signal }): Promise<Schema["ValueView"] | null> =>
      isSet ? unwrap(api.GET("/v1/settings/{key}", { signal, params: { path: { key } } })) : Promise.resolve(null),
    placeholderData: keepPreviousData,
  });

export const settingHistoryQuery = (key: string) =>
  queryOptions({
    queryKey: ["settings", "history", key],
    queryFn: ({ signal }) => unwrap(api.GET("/v1/settings/{key}/history", { signal, params: { path: { key } } })),
  });

export interface Scope {
  type: Schema["ScopeType"];
  id: string | null;
}

export const toScopeQuery = (scope: Scope) => ({
  scope_type: scope.type,
  ...(scope.id === null ? {} : { scope_id: scope.id }),
});

export const preferencesQuery = (scope: Scope) =>
  queryOptions({
    queryKey: ["preferences", "list", scope.type, scope.id ?? ""],
    queryFn: ({ signal }) => unwrap(api.GET("/v1/preferences", { signal, params: { query: toScopeQuery(scope) } })),
  });

/** One preference; null without a question where the list says that the level says nothing. */
export const preferenceQuery = (key: string, scope: Scope, isSet: boolean) =>
  queryOptions({
    queryKey: ["preferences", "one", key, scope.type, scope.id ?? "", isSet ? "set" : "unset"],
    queryFn: ({ signal }): Promise<Schema["ValueView"] | null> =>
      isSet
        ? unwrap(api.GET("/v1/preferences/{key}", { signal, params: { path: { key }, query: toScopeQuery(scope) } }))
        : Promise.resolve(null),
    placeholderData: keepPreviousData,
  });

export const preferenceHistoryQuery = (key: string, scope: Scope) =>
  queryOptions({
    queryKey: ["preferences", "history", key, scope.type, scope.id ?? ""],
    queryFn: ({ signal }) =>
      unwrap(
        api.GET("/v1/preferences/{key}/history", { signal, params: { path: { key }, query: toScopeQuery(scope) } }),
      ),
  });

export interface View {
  project?: string | undefined;
  task?: string | undefined;
}

const toViewQuery = (view: View) =>
  view.task ? { task_id: view.task } : view.project ? { project_id: view.project } : {};

export const effectivePreferencesQuery = (view: View) =>
  queryOptions({
    queryKey: ["preferences", "effective", view.task ?? "", view.project ?? ""],
    queryFn: ({ signal }) =>
      unwrap(api.GET("/v1/effective-preferences", { signal, params: { query: toViewQuery(view) } })),
    placeholderData: keepPreviousData,
  });

export const effectivePoliciesQuery = (view: View) =>
  queryOptions({
    queryKey: ["policies", "effective", view.task ?? "", view.project ?? ""],
    queryFn: ({ signal }) =>
      unwrap(api.GET("/v1/effective-policies", { signal, params: { query: toViewQuery(view) } })),
    placeholderData: keepPreviousData,
  });

export const policiesQuery = (scope: Scope) =>
  queryOptions({
    queryKey: ["policies", "list", scope.type, scope.id ?? ""],
    queryFn: ({ signal }) => unwrap(api.GET("/v1/policies", { signal, params: { query: toScopeQuery(scope) } })),
  });

export const usersQuery = {
  queryKey: ["users", "pages"],
  queryFn: ({ signal, pageParam }: PageContext) =>
    unwrap(api.GET("/v1/users", { signal, params: { query: pageQuery(pageParam) } })),
  ...paged,
};

/** People to choose from. */
export const userChoicesQuery = queryOptions({
  queryKey: ["users", "choices"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/users", { signal, params: { query: { limit: 200 } } })),
  retry: false,
});

export const userQuery = (user: string) =>
  queryOptions({
    queryKey: ["users", "one", user],
    queryFn: ({ signal }) => unwrap(api.GET("/v1/users/{user}", { signal, params: { path: { user } } })),
  });

export const groupsQuery = queryOptions({
  queryKey: ["groups"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/groups", { signal, params: { query: { limit: 200 } } })),
  retry: false,
});

export const roleInProjectQuery = (project: string, user: string) =>
  queryOptions({
    queryKey: ["project", project, "role-of", user],
    queryFn: async ({ signal }) => {
      let cursor: string | null = null;
      for (;;) {
        const page: Schema["Page_MemberView"] = await unwrap(
          api.GET("/v1/projects/{project}/members", {
            signal,
            params: { path: { project }, query: { limit: 200, ...(cursor ? { cursor } : {}) } },
          }),
        );
        const member = page.items.find((it) => it.user_id === user);
        if (member) return member;
        cursor = page.next_cursor ?? null;
        if (cursor === null) return null;
      }
    },
  });

export const secondFactorQuery = queryOptions({
  queryKey: ["me", "second-factor"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/me/second-factor", { signal })),
});

export const scimTokensQuery = queryOptions({
  queryKey: ["scim-tokens"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/scim-tokens", { signal })),
});

/** How people can log in. It is read before a login, and needs none. */
export const loginOptionsQuery = queryOptions({
  queryKey: ["login-options"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/login-options", { signal })),
});

export const identityProvidersQuery = queryOptions({
  queryKey: ["identity-providers"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/identity-providers", { signal })),
  retry: false,
});

export const identitiesQuery = queryOptions({
  queryKey: ["identities"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/me/identities", { signal })),
});

export const sessionsQuery = (user: string | undefined) => ({
  queryKey: ["sessions", user ?? ""],
  queryFn: ({ signal, pageParam }: PageContext) =>
    unwrap(
      api.GET("/v1/sessions", {
        signal,
        params: { query: { ...pageQuery(pageParam), ...(user ? { user_id: user } : {}) } },
      }),
    ),
  ...paged,
});

/** The login of a device that waits for a decision. A code is looked up once: the server counts the tries. */
export const deviceLoginQuery = (code: string) =>
  queryOptions({
    queryKey: ["device-login", code],
    queryFn: ({ signal }) => unwrap(api.GET("/v1/device-logins/{code}", { signal, params: { path: { code } } })),
    retry: false,
    staleTime: Number.POSITIVE_INFINITY,
  });

export const apiKeysQuery = (user: string | undefined) => ({
  queryKey: ["api-keys", user ?? ""],
  queryFn: ({ signal, pageParam }: PageContext) =>
    unwrap(
      api.GET("/v1/api-keys", {
        signal,
        params: { query: { ...pageQuery(pageParam), ...(user ? { user_id: user } : {}) } },
      }),
    ),
  ...paged,
});

export const channelsQuery = (all: boolean) => ({
  queryKey: ["notifications", "channels", all ? "all" : "own"],
  queryFn: ({ signal, pageParam }: PageContext) =>
    unwrap(
      api.GET("/v1/notification-channels", {
        signal,
        params: { query: { ...pageQuery(pageParam), ...(all ? { all } : {}) } },
      }),
    ),
  ...paged,
});

export const channelQuery = (channel: string) =>
  queryOptions({
    queryKey: ["notifications", "channel", channel],
    queryFn: ({ signal }) =>
      unwrap(api.GET("/v1/notification-channels/{channel}", { signal, params: { path: { channel } } })),
  });

export interface NotificationFilter {
  all: boolean;
  state: "pending" | "sent" | "failed" | "dropped" | undefined;
}

/** A delivery comes without an event: while one is due, it is read again when it must have been tried. */
export const notificationsQuery = (filter: NotificationFilter) => ({
  queryKey: ["notifications", "list", filter.all ? "all" : "own", filter.state ?? ""],
  queryFn: ({ signal, pageParam }: PageContext) =>
    unwrap(
      api.GET("/v1/notifications", {
        signal,
        params: {
          query: {
            ...pageQuery(pageParam),
            ...(filter.all ? { all: true } : {}),
            ...(filter.state ? { state: filter.state } : {}),
          },
        },
      }),
    ),
  ...paged,
  refetchInterval: ({
    state: { data },
  }: {
    state: { data: { pages: { items: Schema["NotificationView"][] }[] } | undefined };
  }) => nextReadDelay(data?.pages.flatMap((page) => page.items) ?? [], Date.now()) ?? false,
});

export const skillsQuery = (project: string) =>
  queryOptions({
    queryKey: ["skills", "list", project],
    queryFn: ({ signal }) => unwrap(api.GET("/v1/skills", { signal, params: { query: { project } } })),
    enabled: project !== "",
  });

/** The skills of the installation, and one's own. */
export const commonSkillsQuery = queryOptions({
  queryKey: ["skills", "list", "common"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/skills", { signal })),
});

export const skillVersionsQuery = (skill: string) =>
  queryOptions({
    queryKey: ["skills", "versions", skill],
    queryFn: ({ signal }) => unwrap(api.GET("/v1/skills/{skill}/versions", { signal, params: { path: { skill } } })),
  });

export const skillVersionQuery = (skill: string, version: number) =>
  queryOptions({
    queryKey: ["skills", "version", skill, version],
    queryFn: ({ signal }) =>
      unwrap(api.GET("/v1/skills/{skill}/versions/{version}", { signal, params: { path: { skill, version } } })),
  });

export const skillQuery = (skill: string) =>
  queryOptions({
    queryKey: ["skills", "one", skill],
    queryFn: ({ signal }) => unwrap(api.GET("/v1/skills/{skill}", { signal, params: { path: { skill } } })),
  });

export const schedulesQuery = (project: string | undefined) => ({
  queryKey: ["schedules", "list", project ?? ""],
  queryFn: ({ signal, pageParam }: PageContext) =>
    unwrap(
      api.GET("/v1/schedules", {
        signal,
        params: { query: { ...pageQuery(pageParam), ...(project ? { project } : {}) } },
      }),
    ),
  ...paged,
});

export const scheduleQuery = (schedule: string) =>
  queryOptions({
    queryKey: ["schedules", "one", schedule],
    queryFn: ({ signal }) => unwrap(api.GET("/v1/schedules/{schedule}", { signal, params: { path: { schedule } } })),
  });

/** Keys of the installation. A rotation goes on by itself, so it is read again while one is under way. */
export const keyringQuery = queryOptions({
  queryKey: ["keyring"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/keyring", { signal })),
  refetchInterval: (query) => (query.state.data?.rotating ? 3_000 : false),
  retry: false,
});

export const auditSinksQuery = queryOptions({
  queryKey: ["audit-sinks"],
  queryFn: ({ signal }) => unwrap(api.GET("/v1/audit/sinks", { signal })),
  refetchInterval: 15_000,
  retry: false,
});
