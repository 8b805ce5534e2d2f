/** One tool server: how it is reached, what it offers, and what of that a person has to accept. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useCallback, useState } from "react";
import { Form } from "react-aria-components";
import { api, type Schema, unwrap } from "../api/client";
import { meQuery, projectsQuery } from "../api/queries";
import type { ServerTool } from "../api/types";
import { formatCount, formatDuration } from "../logic/format";
import { describeServer, describeTransport, findPending, readNumber, type ToolServer } from "../logic/tool-server";
import {
  ANNOTATIONS,
  type Annotations,
  describeAnnotations,
  describeScope,
  readAnnotations,
  SCOPES,
  type ToolScope,
} from "../logic/tools";
import { Action, Age, Facts, Foreign, ProblemNote, SectionHead, Sign, useSeen } from "../ui/basic";
import { DefinitionDiff } from "../ui/definition-diff";
import { Choice, Field } from "../ui/fields";
import { useKeys } from "../ui/keys";
import { Layer } from "../ui/layer";
import { Person } from "../ui/person";
import { Switch, Tick } from "../ui/switch";
import { UndoBar } from "../ui/undo";

const AUDIENCES: Record<ToolServer["audience"], string> = {
  everybody: "everybody's agents",
  project: "agents of one project",
  user: "agents of the person who installed it",
};

type Update = Schema["UpdateServer"];

/** Sends a change of a server; the answer renews what is on screen. */
function useServerChange(server: string) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (body: Update) =>
      unwrap(api.PATCH("/v1/tool-servers/{server}", { params: { path: { server } }, body })),
    onSettled: () => void client.invalidateQueries({ queryKey: ["tools"] }),
  });
}

export function ToolServerDetail({ server, onGone }: { server: ToolServer; onGone: () => void }) {
  const client = useQueryClient();
  const me = useQuery(meQuery);
  const projects = useQuery(projectsQuery);
  const change = useServerChange(server.server_id);
  const [switched, setSwitched] = useState<boolean | null>(null);
  const [isChanging, setChanging] = useState(false);
  const [isUninstalling, setUninstalling] = useState(false);
  const path = { server: server.server_id };
  const refresh = useMutation({
    mutationFn: () => unwrap(api.POST("/v1/tool-servers/{server}/refresh", { params: { path } })),
    onSettled: () => void client.invalidateQueries({ queryKey: ["tools"] }),
  });
  const isAdmin = me.data?.installation_role === "admin";
  const mayChange = isAdmin || server.owner_id === me.data?.user.id;
  const denied = mayChange ? null : "Only an admin or the person who installed it changes it";
  const busy = denied ?? (change.isPending || refresh.isPending ? "It is being sent" : null);
  const { standing, words } = describeServer(server);
  const project = projects.data?.items.find((it) => it.id === server.project_id);
  const setEnabled = (enabled: boolean) => change.mutate({ enabled }, { onSuccess: () => setSwitched(enabled) });
  return (
    <article className="grid gap-5">
      <header className="grid gap-2">
        <div className="flex flex-wrap items-center gap-x-4 gap-y-1">
          <h2 className="min-w-0 text-lead">
            <Foreign text={server.title} />
          </h2>
          <Sign standing={standing} word={words} />
          <Switch
            label={`${server.name} is in use`}
            isOn={server.enabled}
            onChange={setEnabled}
            reason={
              busy ?? (!server.enabled && !isAdmin ? "A server that was switched off is switched on by an admin" : null)
            }
          />
        </div>
        <div className="flex flex-wrap gap-2">
          <Action onPress={() => refresh.mutate()} reason={busy}>
            {refresh.isPending ? "Reading its tools…" : "Refresh tools"}
          </Action>
          <Action onPress={() => setChanging((open) => !open)} reason={denied}>
            Change server…
          </Action>
          <Action tone="danger" onPress={() => setUninstalling(true)} reason={denied}>
            Uninstall server…
          </Action>
        </div>
      </header>
      {(change.error ?? refresh.error) && <ProblemNote error={change.error ?? refresh.error} />}
      {server.failure && (
        <div className="border-bad border-l-2 py-1 pl-3">
          <p className="font-medium">
            <span aria-hidden="true">! </span>Its tools could not be read.
          </p>
          <p className="whitespace-pre-wrap text-muted">
            <Foreign text={server.failure} />
          </p>
        </div>
      )}
      {isChanging && <ChangeForm server={server} isAdmin={isAdmin} onClose={() => setChanging(false)} />}
      <Pending server={server} denied={denied} />
      <Facts
        rows={[
          [
            "Name",
            <code key="name" className="font-mono text-code">
              {server.name}
            </code>,
          ],
          [
            server.transport.type === "http" ? "Address" : "Program",
            <code key="transport" className="font-mono text-code">
              <Foreign text={describeTransport(server.transport)} />
            </code>,
          ],
          server.transport.type === "stdio" && [
            "Network",
            (server.transport.network_hosts ?? []).length > 0
              ? (server.transport.network_hosts ?? []).join(", ")
              : "none: it runs in a sandbox without one",
          ],
          server.transport.type === "http" && [
            "Private addresses",
            server.allow_private ? "allowed by an admin" : "refused: only public addresses are reached",
          ],
          [
            "Audience",
            <span key="audience">
              {AUDIENCES[server.audience]}
              {project && (
                <>
                  {": "}
                  <Foreign text={project.slug} />
                </>
              )}
            </span>,
          ],
          ["Scope", describeScope(server.scope)],
          [
            "Prefix",
            <code key="prefix" className="font-mono text-code">
              {server.prefix}
            </code>,
          ],
          [
            "Secrets",
            server.secrets.length > 0 ? (
              <span key="secrets">
                <code className="font-mono text-code">
                  <Foreign text={server.secrets.join(", ")} />
                </code>{" "}
                <span className="text-muted">(values are sealed and never shown)</span>
              </span>
            ) : (
              "none"
            ),
          ],
          [
            "Limits",
            `${formatDuration(server.timeout_ms)} a call, ${formatCount(server.max_in_flight, "call")} at once`,
          ],
          ["Installed by", <Person key="owner" id={server.owner_id} />],
          ["Tools read", server.listed_at ? <Age key="listed" at={server.listed_at} ago /> : "not yet"],
        ]}
      />
      <Offered server={server} denied={denied} />
      <UninstallLayer server={server} isOpen={isUninstalling} onClose={() => setUninstalling(false)} onGone={onGone} />
      {switched !== null && (
        <UndoBar
          onClose={() => setSwitched(null)}
          onUndo={() => change.mutate({ enabled: !switched }, { onSuccess: () => setSwitched(null) })}
          busy={busy}
        >
          <p className="font-medium">
            {switched
              ? "The server is in use again."
              : `The server is off: calls of its ${formatCount(server.tools.length, "tool")} are refused within 100 ms.`}
          </p>
        </UndoBar>
      )}
    </article>
  );
}

/** What is new or changed, whole, and the one button that accepts exactly what was seen. */
function Pending({ server, denied }: { server: ToolServer; denied: string | null }) {
  const client = useQueryClient();
  const pending = findPending(server);
  const [seen, setSeen] = useState<ReadonlySet<string>>(new Set());
  const [left, setLeft] = useState<ReadonlySet<string>>(new Set());
  const markSeen = useCallback(
    (key: string) => setSeen((known) => (known.has(key) ? known : new Set([...known, key]))),
    [],
  );
  const chosen = pending.filter((tool) => !left.has(tool.tool));
  const unread = chosen.filter((tool) => !seen.has(seenKey(tool)));
  const accept = useMutation({
    mutationFn: () =>
      unwrap(
        api.POST("/v1/tool-servers/{server}/accept", {
          params: { path: { server: server.server_id } },
          body: { tools: Object.fromEntries(chosen.map((tool) => [tool.tool, tool.definition_digest])) },
        }),
      ),
    onSettled: () => {
      for (const queryKey of [["tools"], ["inbox"]]) void client.invalidateQueries({ queryKey });
    },
  });
  const reason =
    denied ??
    (accept.isPending
      ? "It is being sent"
      : chosen.length === 0
        ? "Tick at least one definition"
        : unread.length > 0
          ? `Read ${unread.length === 1 ? "the definition" : `${unread.length} definitions`} to the end first`
          : null);
  useKeys({ a: reason || pending.length === 0 ? undefined : () => accept.mutate() });
  if (pending.length === 0) return null;
  return (
    <section
      aria-labelledby="pending"
      className="grid gap-4 rounded-box border border-line p-3 pb-0 small:p-4 small:pb-0"
    >
      <div className="grid gap-1">
        <h3 id="pending" className="text-body">
          {formatCount(pending.length, "definition")} to accept
        </h3>
        <p className="text-muted">
          Models read these words and follow them. Look for instructions that have nothing to do with the tool. Until
          they are accepted, calls are refused.
        </p>
      </div>
      {pending.map((tool) => (
        <PendingTool
          key={seenKey(tool)}
          tool={tool}
          isChosen={!left.has(tool.tool)}
          onChoose={(isChosen) =>
            setLeft(
              (known) => new Set(isChosen ? [...known].filter((name) => name !== tool.tool) : [...known, tool.tool]),
            )
          }
          onSeen={markSeen}
        />
      ))}
      {accept.error && <ProblemNote error={accept.error} />}
      <div className="sticky bottom-0 z-10 -mx-3 flex flex-wrap items-center gap-3 border-line border-t bg-bg px-3 py-3 small:-mx-4 small:px-4">
        <Action tone="primary" hotkey="A" onPress={() => accept.mutate()} reason={reason}>
          Accept {formatCount(chosen.length, "definition")}
        </Action>
        <span className="text-meta text-muted max-small:sr-only">exactly as shown, bound to their digests</span>
      </div>
    </section>
  );
}

function seenKey(tool: ServerTool): string {
  return `${tool.tool} ${tool.definition_digest}`;
}

function PendingTool({
  tool,
  isChosen,
  onChoose,
  onSeen,
}: {
  tool: ServerTool;
  isChosen: boolean;
  onChoose: (isChosen: boolean) => void;
  onSeen: (key: string) => void;
}) {
  const key = seenKey(tool);
  const [isSeen, setIsSeen] = useState(false);
  const markSeen = useCallback(() => {
    setIsSeen(true);
    onSeen(key);
  }, [onSeen, key]);
  const end = useSeen(!isSeen, markSeen);
  return (
    <div className="grid gap-1.5">
      <Tick
        label={
          <>
            <span className="font-medium font-mono text-code">
              <Foreign text={tool.name} />
            </span>{" "}
            <span className={tool.state === "changed" ? "text-warn" : "text-info"}>
              {tool.state === "changed" ? "! changed" : "+ new"}
            </span>
          </>
        }
        description={
          tool.accepted_by ? (
            <>
              accepted before by <Person id={tool.accepted_by} />
              {tool.accepted_at && (
                <>
                  {" "}
                  <Age at={tool.accepted_at} ago />
                </>
              )}
            </>
          ) : undefined
        }
        isTicked={isChosen}
        onChange={onChoose}
      />
      <DefinitionDiff accepted={tool.accepted ?? null} offered={tool.definition} />
      <div ref={end} className="flex flex-wrap gap-x-3 text-meta text-faint">
        <span>{isSeen ? "✓ seen to its end" : "not seen to its end yet"}</span>
        <span className="font-mono">{tool.definition_digest.slice(0, 16)}…</span>
      </div>
    </div>
  );
}

function Offered({ server, denied }: { server: ToolServer; denied: string | null }) {
  const [open, setOpen] = useState<string | null>(null);
  return (
    <section className="grid gap-1">
      <SectionHead aside={formatCount(server.tools.length, "tool")}>What it offers</SectionHead>
      {server.tools.length === 0 && (
        <p className="py-2 text-muted">
          {server.listed_at
            ? "It offers no tool."
            : "Its tools are read within a minute, or at once by “Refresh tools”."}
        </p>
      )}
      <ul aria-label="Tools of the server">
        {server.tools.map((tool: ServerTool) => (
          <li key={tool.tool} className="grid gap-2 border-line border-b py-1.5">
            <div className="flex flex-wrap items-center gap-x-3 gap-y-1">
              <div className="grid min-w-0 flex-1 basis-52">
                <span className="truncate font-mono text-code">
                  {tool.state === "accepted" ? (
                    <Link to="/tools" search={{ tool: tool.name }} className="text-accent underline underline-offset-2">
                      <Foreign text={tool.name} />
                    </Link>
                  ) : (
                    <Foreign text={tool.name} />
                  )}
                </span>
                <span className="text-meta text-muted">
                  {describeAnnotations(tool.annotations)}
                  {tool.state === "accepted" && tool.accepted_by && (
                    <>
                      {" · accepted by "}
                      <Person id={tool.accepted_by} />
                    </>
                  )}
                </span>
              </div>
              <span className="text-meta">{TOOL_STATES[tool.state] ?? tool.state}</span>
              <Action
                tone="quiet"
                onPress={() => setOpen(open === tool.tool ? null : tool.tool)}
                reason={denied}
                aria-expanded={open === tool.tool}
              >
                Set effects…
              </Action>
            </div>
            {open === tool.tool && <EffectsForm server={server} tool={tool} onClose={() => setOpen(null)} />}
          </li>
        ))}
      </ul>
    </section>
  );
}

const TOOL_STATES: Record<string, string> = {
  accepted: "✓ accepted",
  new: "+ new",
  changed: "! changed",
  gone: "– not offered any more",
};

/** What a tool does to the world, as a person judges it; what its server says about that does not count. */
function EffectsForm({ server, tool, onClose }: { server: ToolServer; tool: ServerTool; onClose: () => void }) {
  const client = useQueryClient();
  const [value, setValue] = useState<Annotations>(() => readAnnotations(tool.annotations));
  const save = useMutation({
    mutationFn: () =>
      unwrap(
        api.PUT("/v1/tool-servers/{server}/tools/{tool}/annotations", {
          params: { path: { server: server.server_id, tool: tool.tool } },
          body: value,
        }),
      ),
    onSuccess: onClose,
    onSettled: () => void client.invalidateQueries({ queryKey: ["tools"] }),
  });
  return (
    <Form
      aria-label={`Effects of ${tool.name}`}
      className="grid gap-1 border-line border-l-2 pl-3"
      onSubmit={(event) => {
        event.preventDefault();
        save.mutate();
      }}
    >
      {ANNOTATIONS.map((it) => (
        <Tick
          key={it.key}
          label={it.name}
          isTicked={value[it.key]}
          onChange={(isTicked) => setValue((known) => ({ ...known, [it.key]: isTicked }))}
        />
      ))}
      {save.error && <ProblemNote error={save.error} />}
      <div className="flex flex-wrap gap-2">
        <Action type="submit" tone="primary" reason={save.isPending ? "It is being sent" : null}>
          Save effects
        </Action>
        <Action tone="quiet" onPress={onClose}>
          Close
        </Action>
      </div>
    </Form>
  );
}

function ChangeForm({ server, isAdmin, onClose }: { server: ToolServer; isAdmin: boolean; onClose: () => void }) {
  const change = useServerChange(server.server_id);
  const [title, setTitle] = useState(server.title);
  const [scope, setScope] = useState(server.scope as ToolScope);
  const [timeout, setTimeoutText] = useState(String(server.timeout_ms));
  const [inFlight, setInFlight] = useState(String(server.max_in_flight));
  const [isPrivate, setPrivate] = useState(server.allow_private);
  const [timeout_ms, max_in_flight] = [readNumber(timeout), readNumber(inFlight)];
  const body: Update = {
    ...(title === server.title ? {} : { title }),
    ...(scope === server.scope ? {} : { scope }),
    ...(timeout_ms && timeout_ms !== server.timeout_ms ? { timeout_ms } : {}),
    ...(max_in_flight && max_in_flight !== server.max_in_flight ? { max_in_flight } : {}),
    ...(isPrivate === server.allow_private ? {} : { allow_private: isPrivate }),
  };
  const reason =
    !timeout_ms || !max_in_flight
      ? "Limits are whole numbers"
      : Object.keys(body).length === 0
        ? "Nothing is different"
        : change.isPending
          ? "It is being sent"
          : null;
  return (
    <Form
      aria-label="Change server"
      className="grid max-w-[560px] gap-3 rounded-box border border-line p-3"
      onSubmit={(event) => {
        event.preventDefault();
        if (!reason) change.mutate(body, { onSuccess: onClose });
      }}
    >
      <Field label="Title" value={title} onChange={setTitle} />
      <Choice label="Who may call its tools" value={scope} onChange={setScope} options={SCOPES} />
      <div className="grid gap-3 small:grid-cols-2">
        <Field
          label="Timeout of a call, ms"
          value={timeout}
          onChange={setTimeoutText}
          inputMode="numeric"
          description="100 to 600,000"
        />
        <Field
          label="Calls at once"
          value={inFlight}
          onChange={setInFlight}
          inputMode="numeric"
          description="1 to 1,000"
        />
      </div>
      {server.transport.type === "http" && (isAdmin || server.allow_private) && (
        <Tick
          label="It may be on this machine or in a private network"
          description="Only an admin allows this; it ends with the admin's role."
          isTicked={isPrivate}
          onChange={setPrivate}
        />
      )}
      <p className="text-meta text-muted">
        Address, name, audience and secrets stay as installed. Uninstall it and install it anew to change them.
      </p>
      {change.error && <ProblemNote error={change.error} />}
      <div className="flex flex-wrap gap-2">
        <Action type="submit" tone="primary" reason={reason}>
          Save server
        </Action>
        <Action tone="quiet" onPress={onClose}>
          Close
        </Action>
      </div>
    </Form>
  );
}

function UninstallLayer({
  server,
  isOpen,
  onClose,
  onGone,
}: {
  server: ToolServer;
  isOpen: boolean;
  onClose: () => void;
  onGone: () => void;
}) {
  const client = useQueryClient();
  const [name, setName] = useState("");
  const uninstall = useMutation({
    mutationFn: () =>
      unwrap(api.DELETE("/v1/tool-servers/{server}", { params: { path: { server: server.server_id } } })),
    onSuccess: () => {
      onClose();
      onGone();
    },
    onSettled: () => {
      for (const queryKey of [["tools"], ["inbox"]]) void client.invalidateQueries({ queryKey });
    },
  });
  const reason = name !== server.name ? "Type the name of the server" : uninstall.isPending ? "It is being sent" : null;
  return (
    <Layer title="Uninstall server" isOpen={isOpen} onClose={onClose}>
      <Form
        className="grid gap-3"
        onSubmit={(event) => {
          event.preventDefault();
          if (!reason) uninstall.mutate();
        }}
      >
        <p>
          Lost for good: {formatCount(server.tools.length, "tool")}, what was accepted of them, their effects and scopes
          {server.secrets.length > 0 && `, and ${formatCount(server.secrets.length, "secret")}`}. Agents lose the tools
          at once. Records of calls stay.
        </p>
        <Field label={`Type ${server.name} to confirm`} value={name} onChange={setName} autoFocus mono />
        {uninstall.error && <ProblemNote error={uninstall.error} />}
        <div>
          <Action type="submit" tone="danger" reason={reason}>
            Uninstall server
          </Action>
        </div>
      </Form>
    </Layer>
  );
}
