/** Installs a tool server. Its secrets are sent once and never shown again. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, type Schema, unwrap } from "../api/client";
import { meQuery, projectsQuery } from "../api/queries";
import { EMPTY_INSTALL, type InstallDraft, toInstallRequest } from "../logic/tool-server";
import { SCOPES } from "../logic/tools";
import { Action, ProblemNote } from "../ui/basic";
import { Choice, Field } from "../ui/fields";
import { Tick } from "../ui/switch";

export function InstallServerForm({
  onClose,
  onInstalled,
}: {
  onClose: () => void;
  onInstalled: (server: string) => void;
}) {
  const client = useQueryClient();
  const me = useQuery(meQuery);
  const projects = useQuery(projectsQuery);
  const [draft, setDraft] = useState<InstallDraft>(EMPTY_INSTALL);
  const change = (part: Partial<InstallDraft>) => setDraft((known) => ({ ...known, ...part }));
  const isAdmin = me.data?.installation_role === "admin";
  const request = toInstallRequest(draft);
  const install = useMutation({
    mutationFn: async (body: Schema["InstallServer"]) => {
      const server = await unwrap(api.POST("/v1/tool-servers", { body }));
      // Its tools are read at once, so that there is something to look at; a failure of that is shown at the server.
      const path = { server: server.server_id };
      await unwrap(api.POST("/v1/tool-servers/{server}/refresh", { params: { path } })).catch(() => undefined);
      return server.server_id;
    },
    onSuccess: onInstalled,
    onSettled: () => void client.invalidateQueries({ queryKey: ["tools"] }),
  });
  const reason = "missing" in request ? request.missing : install.isPending ? "It is being installed" : null;
  const setSecret = (index: number, part: Partial<InstallDraft["secrets"][number]>) =>
    change({ secrets: draft.secrets.map((secret, at) => (at === index ? { ...secret, ...part } : secret)) });
  return (
    <Form
      aria-labelledby="install"
      className="grid max-w-[640px] gap-4"
      onSubmit={(event) => {
        event.preventDefault();
        if (!reason && "body" in request) install.mutate(request.body);
      }}
    >
      <h2 id="install" className="text-lead">
        Install a tool server
      </h2>
      <Field
        label="Name"
        value={draft.name}
        onChange={(name) => change({ name })}
        description={
          <>
            Its tools are called <code className="font-mono">{draft.prefix || `ext.${draft.name || "NAME"}`}.…</code>
          </>
        }
        placeholder="todo"
        mono
        autoFocus
      />
      <Choice
        label="How it is reached"
        value={draft.kind}
        onChange={(kind) => change({ kind })}
        options={[
          { value: "http", name: "Over HTTP (streamable)" },
          { value: "stdio", name: "A program in a sandbox" },
          { value: "server_json", name: "The server.json of a registry" },
        ]}
      />
      {draft.kind === "http" && (
        <Field
          label="Address"
          value={draft.url}
          onChange={(url) => change({ url })}
          placeholder="https://todo.example.org/mcp"
          type="url"
          mono
        />
      )}
      {draft.kind === "stdio" && (
        <>
          <Field
            label="Program"
            value={draft.command}
            onChange={(command) => change({ command })}
            placeholder="/usr/bin/todo-mcp"
            mono
          />
          <Field
            label="Arguments"
            value={draft.args}
            onChange={(args) => change({ args })}
            description="One per line."
            lines={2}
            mono
          />
          <Field
            label="Hosts that it may reach"
            value={draft.hosts}
            onChange={(hosts) => change({ hosts })}
            description="One name per line; HTTPS only. Without any it has no network."
            lines={2}
            mono
          />
        </>
      )}
      {draft.kind === "server_json" && (
        <Field
          label="server.json"
          value={draft.document}
          onChange={(document) => change({ document })}
          description="Its first streamable HTTP remote is used."
          lines={6}
          mono
        />
      )}
      {draft.kind !== "stdio" && isAdmin && (
        <Tick
          label="It may be on this machine or in a private network"
          description="Only an admin allows this; it ends with the admin's role."
          isTicked={draft.allowPrivate}
          onChange={(allowPrivate) => change({ allowPrivate })}
        />
      )}
      <div className="grid items-start gap-4 small:grid-cols-2">
        <Choice
          label="Whose agents may use it"
          value={draft.audience}
          onChange={(audience) => change({ audience })}
          options={[
            { value: "user", name: "Mine" },
            { value: "project", name: "Those of a project" },
            ...(isAdmin ? [{ value: "everybody" as const, name: "Everybody's" }] : []),
          ]}
        />
        {draft.audience === "project" && (
          <Choice
            label="Project"
            value={draft.project}
            onChange={(project) => change({ project })}
            options={[
              { value: "", name: "Choose" },
              ...(projects.data?.items ?? []).map((project) => ({ value: project.id, name: project.slug })),
            ]}
          />
        )}
        <Choice
          label="Who may call its tools"
          value={draft.scope}
          onChange={(scope) => change({ scope })}
          options={[{ value: "", name: "Choose" }, ...SCOPES]}
        />
      </div>
      <fieldset className="grid gap-2">
        <legend className="font-medium">Secrets</legend>
        <p className="text-meta text-muted">
          {draft.kind === "stdio" ? "Variables of the program." : "Headers of each request."} They are sealed when they
          arrive; nobody can read them again.
        </p>
        {draft.secrets.map((secret, index) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: a secret has no other name until it is typed
          <div key={index} className="grid items-end gap-2 small:grid-cols-[1fr_1fr_auto]">
            <Field
              label={`Name of secret ${index + 1}`}
              value={secret.name}
              onChange={(name) => setSecret(index, { name })}
              placeholder={draft.kind === "stdio" ? "API_KEY" : "Authorization"}
              mono
            />
            <Field
              label={`Value of secret ${index + 1}`}
              value={secret.value}
              onChange={(value) => setSecret(index, { value })}
              type="password"
              autoComplete="off"
              mono
            />
            <Action
              tone="quiet"
              aria-label={`Remove secret ${index + 1}`}
              onPress={() => change({ secrets: draft.secrets.filter((_, at) => at !== index) })}
            >
              Remove
            </Action>
          </div>
        ))}
        <div>
          <Action onPress={() => change({ secrets: [...draft.secrets, { name: "", value: "" }] })}>Add secret</Action>
        </div>
      </fieldset>
      <details>
        <summary className="cursor-default text-muted">Title, prefix and limits</summary>
        <div className="grid gap-4 pt-3 small:grid-cols-2">
          <Field
            label="Title"
            value={draft.title}
            onChange={(title) => change({ title })}
            description="What people read."
          />
          {isAdmin && (
            <Field
              label="Prefix of its tools"
              value={draft.prefix}
              onChange={(prefix) => change({ prefix })}
              placeholder={`ext.${draft.name || "NAME"}`}
              mono
            />
          )}
          <Field
            label="Timeout of a call, ms"
            value={draft.timeoutMs}
            onChange={(timeoutMs) => change({ timeoutMs })}
            placeholder="30000"
            inputMode="numeric"
          />
          <Field
            label="Calls at once"
            value={draft.maxInFlight}
            onChange={(maxInFlight) => change({ maxInFlight })}
            placeholder="32"
            inputMode="numeric"
          />
        </div>
      </details>
      {install.error && <ProblemNote error={install.error} />}
      <div className="flex flex-wrap gap-2">
        <Action type="submit" tone="primary" reason={reason}>
          Install server
        </Action>
        <Action tone="quiet" onPress={onClose}>
          Cancel
        </Action>
      </div>
    </Form>
  );
}
