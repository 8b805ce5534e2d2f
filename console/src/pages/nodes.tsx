/** Machines that run jobs. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, type Schema, unwrap } from "../api/client";
import { meQuery, nodesQuery } from "../api/queries";
import { nodeQuery } from "../api/queries-places";
import { formatCount, formatMebibytes, formatTime, toWords } from "../logic/format";
import { joinCommand, parseCount, parseWords } from "../logic/places";
import {
  Action,
  Age,
  Command,
  cx,
  Empty,
  Facts,
  Foreign,
  Id,
  Inline,
  Loaded,
  Page,
  PageHead,
  ProblemNote,
  SectionHead,
  Sign,
} from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { Field } from "../ui/fields";
import { ADMINS_ONLY, ConfirmLayer, SecretOnce } from "../ui/rows";
import { useRowKeys } from "../ui/split";
import { UndoBar } from "../ui/undo";

type Node = Schema["NodeView"];

const FACT_WORDS: Record<string, string> = {
  arch: "Architecture",
  machine: "Kind of machine",
  overlays: "Overlay mounts",
};

export function NodesPage() {
  const { node: chosen } = useSearch({ from: "/nodes" });
  const navigate = useNavigate({ from: "/nodes" });
  usePageCommand(
    chosen ? `cynork node show ${chosen}` : "cynork node list",
    chosen ? `/v1/nodes/${chosen}` : "/v1/nodes",
  );
  const me = useQuery(meQuery);
  const nodes = useQuery(nodesQuery);
  const items = nodes.data?.items ?? [];
  const reason = me.data?.installation_role === "admin" ? null : ADMINS_ONLY;
  const open = (node: string | undefined) => void navigate({ search: { node }, replace: true });
  useRowKeys(
    items.map((node) => node.node_id),
    chosen,
    open,
    () => open(undefined),
  );
  return (
    <Page wide>
      <PageHead title="Nodes" lead="Machines that run jobs in sandboxes. They open every connection themselves." />
      <Loaded query={nodes}>
        {() => (
          <div className="grid grid-cols-1 gap-8">
            {items.length === 0 ? (
              <Empty title="No machine has joined yet.">
                <p className="text-muted">Create a join token below, and join with it on the new machine.</p>
              </Empty>
            ) : (
              <ul aria-label="Nodes" className="grid grid-cols-1 gap-4 split:grid-cols-2">
                {items.map((node) => (
                  <NodeCard key={node.node_id} node={node} isOpen={node.node_id === chosen} reason={reason} />
                ))}
              </ul>
            )}
            <JoinForm reason={reason} />
          </div>
        )}
      </Loaded>
    </Page>
  );
}

function useNodeChange<Input, Output>(send: (input: Input) => Promise<Output>, onSuccess?: (output: Output) => void) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: send,
    ...(onSuccess ? { onSuccess } : {}),
    onSettled: () => {
      for (const queryKey of [["nodes"], ["readiness"]]) void client.invalidateQueries({ queryKey });
    },
  });
}

function describeNode(node: Node) {
  if (!node.alive) return { standing: "trouble", word: "Not connected" } as const;
  if (node.state === "active") return { standing: "works", word: "Takes jobs" } as const;
  return { standing: "waits", word: node.jobs > 0 ? "Draining: finishes its jobs" : "Drained: takes no jobs" } as const;
}

function NodeCard({ node, isOpen, reason }: { node: Node; isOpen: boolean; reason: string | null }) {
  const slots = node.report.slots ?? 0;
  const [asks, setAsks] = useState(false);
  const [drained, setDrained] = useState(false);
  const params = { path: { node: node.node_id } };
  const drain = useNodeChange(
    (draining: boolean) => unwrap(api.PATCH("/v1/nodes/{node}", { params, body: { draining, labels: null } })),
    (view) => setDrained(view.state === "draining"),
  );
  const remove = useNodeChange(
    () => unwrap(api.DELETE("/v1/nodes/{node}", { params })),
    () => setAsks(false),
  );
  const busy = drain.isPending ? "It is being sent" : reason;
  return (
    <li className="grid grid-cols-1 content-start gap-3 rounded-box border border-line p-4">
      <div className="flex flex-wrap items-baseline gap-x-3">
        <h2 className="text-lead">
          <Foreign text={node.name} />
        </h2>
        <Sign {...describeNode(node)} />
        <span className="text-meta text-muted">
          seen <Age at={node.last_seen_at} ago />
        </span>
      </div>
      <div className="flex flex-wrap items-center gap-2">
        <div role="img" aria-label={`${node.jobs} of ${slots} slots in use`} className="flex flex-wrap gap-1">
          {Array.from({ length: slots }, (_, index) => (
            <span
              // biome-ignore lint/suspicious/noArrayIndexKey: slots are all alike
              key={index}
              className={cx(
                "size-4 rounded-[3px] border",
                index < node.jobs ? "border-accent bg-accent" : "border-control",
              )}
            />
          ))}
        </div>
        <span className="text-meta text-muted">
          {node.jobs} of {slots} slots in use
        </span>
      </div>
      {(node.report.warnings ?? []).map((warning) => (
        <p key={warning} className="border-warn border-l-2 pl-3">
          <Foreign text={warning} />
        </p>
      ))}
      <Facts
        rows={[
          [
            "Machine",
            `${node.report.cores === undefined ? "? cores" : formatCount(node.report.cores, "core")}, ${formatMebibytes(node.report.memory_mib ?? 0)} memory, ${formatMebibytes(node.report.disk_free_mib ?? 0)} of disk free`,
          ],
          [
            "Sandboxes",
            (node.report.backends ?? []).length === 0 ? (
              <Sign key="none" standing="trouble" word="None works" />
            ) : (
              <span key="backends" className="flex flex-wrap gap-x-3">
                {(node.report.backends ?? []).map((it) => (
                  <span key={it.backend}>
                    <Foreign text={it.version} /> <Sign standing="done" word="Self-test passed" />
                  </span>
                ))}
              </span>
            ),
          ],
          [
            "Agents",
            (node.report.agents ?? []).map((it) => `${it.agent} ${it.version}`).join(", ") || "none installed",
          ],
          ["Version", node.report.version ?? ""],
          node.labels.length > 0 && ["Labels", <Foreign key="labels" text={node.labels.join(", ")} />],
        ]}
      />
      {isOpen && <NodeDetail node={node} reason={reason} />}
      <div className="flex flex-wrap items-center gap-2">
        {node.state === "draining" ? (
          <Action onPress={() => drain.mutate(false)} reason={busy}>
            Undrain node
          </Action>
        ) : (
          <Action onPress={() => drain.mutate(true)} reason={busy}>
            Drain node
          </Action>
        )}
        <Action tone="danger" onPress={() => setAsks(true)} reason={reason}>
          Delete node…
        </Action>
        <Link
          to="."
          search={{ node: isOpen ? undefined : node.node_id }}
          replace
          aria-expanded={isOpen}
          className="ml-auto inline-flex min-h-8 items-center text-accent underline max-small:min-h-10"
        >
          {isOpen ? "Show less" : "Show labels and details"}
        </Link>
      </div>
      {drain.error && <ProblemNote error={drain.error} />}
      {drained && node.state === "draining" && (
        <UndoBar onUndo={() => drain.mutate(false)} onClose={() => setDrained(false)} busy={busy}>
          <span>
            <Foreign text={node.name} /> finishes {formatCount(node.jobs, "job")} and takes no other.
          </span>
        </UndoBar>
      )}
      {asks && (
        <ConfirmLayer
          title={`Delete ${node.name}?`}
          action="Delete node"
          keep="Keep node"
          typed={node.name}
          pending={remove.isPending}
          error={remove.error}
          onConfirm={() => remove.mutate(undefined)}
          onClose={() => setAsks(false)}
        >
          <p>
            Its credentials stop working at once.{" "}
            {node.jobs > 0
              ? `${formatCount(node.jobs, "running job")} of it are lost and start again elsewhere. Drain it first to let them end.`
              : "No job runs on it now."}{" "}
            The machine can join again with a new token.
          </p>
        </ConfirmLayer>
      )}
    </li>
  );
}

/** What a node says about itself, and its labels. */
function NodeDetail({ node, reason }: { node: Node; reason: string | null }) {
  const detail = useQuery({ ...nodeQuery(node.node_id), initialData: node });
  const [labels, setLabels] = useState(node.labels.join(", "));
  const wanted = parseWords(labels);
  const save = useNodeChange(() =>
    unwrap(
      api.PATCH("/v1/nodes/{node}", {
        params: { path: { node: node.node_id } },
        body: { labels: wanted, draining: null },
      }),
    ),
  );
  const limits = detail.data.report.job_limits;
  const facts: Record<string, string> = detail.data.report.facts ?? {};
  const unchanged = wanted.join(" ") === node.labels.join(" ");
  return (
    <div className="grid grid-cols-1 gap-3 border-line border-t pt-3">
      <Facts
        rows={[
          ["Id", <Id key="id" id={node.node_id} />],
          ["Joined", formatTime(detail.data.joined_at)],
          limits
            ? [
                "One job at most",
                `${formatMebibytes(limits.memory_mib)} memory, ${formatCount(limits.cpu_percent / 100, "core")}, ${limits.processes.toLocaleString("en-US")} processes, ${formatMebibytes(limits.disk_mib)} disk`,
              ]
            : null,
          ...Object.entries(facts)
            // Most machines name their architecture twice.
            .filter(([name, value]) => name !== "machine" || value !== facts.arch)
            .map(([name, value]) => [FACT_WORDS[name] ?? toWords(name), <Foreign key={name} text={value} />] as const),
        ]}
      />
      <Form
        className="grid gap-2"
        onSubmit={(event) => {
          event.preventDefault();
          if (!unchanged && !reason) save.mutate(undefined);
        }}
      >
        <Field
          label="Labels"
          value={labels}
          onChange={setLabels}
          mono
          placeholder="gpu, large"
          description="Jobs that ask for a label run only on nodes that have it."
        />
        {save.error && <ProblemNote error={save.error} />}
        <div>
          <Action
            type="submit"
            reason={reason ?? (save.isPending ? "It is being saved" : unchanged ? "Nothing is changed" : null)}
          >
            Save labels
          </Action>
        </div>
      </Form>
    </div>
  );
}

function JoinForm({ reason }: { reason: string | null }) {
  const [labels, setLabels] = useState("");
  const [minutes, setMinutes] = useState("60");
  const [address, setAddress] = useState("");
  const [name, setName] = useState("");
  const lifetime = parseCount(minutes);
  const issue = useNodeChange((seconds: number) =>
    unwrap(
      api.POST("/v1/nodes/join-tokens", {
        body: { expires_in_seconds: seconds, labels: parseWords(labels) },
      }),
    ),
  );
  const missing =
    reason ??
    (issue.isPending ? "It is being created" : lifetime === null || lifetime > 1440 ? "Write 1 to 1440 minutes" : null);
  return (
    <section className="grid max-w-[760px] grid-cols-1 gap-4">
      <SectionHead>Add a node</SectionHead>
      {issue.data ? (
        <SecretOnce label="Join token" secret={issue.data.join_token} onClose={() => issue.reset()}>
          <div className="grid gap-2">
            <p>
              It lets one machine join, until {formatTime(issue.data.expires_at)}. On that machine, run this and paste
              the token:
            </p>
            <Command line={joinCommand(address, name)} />
          </div>
        </SecretOnce>
      ) : (
        <Form
          className="grid gap-4"
          onSubmit={(event) => {
            event.preventDefault();
            if (!missing && lifetime !== null) issue.mutate(lifetime * 60);
          }}
        >
          <div className="grid grid-cols-1 items-start gap-4 small:grid-cols-2">
            <Field label="Name of the machine" value={name} onChange={setName} mono placeholder="builder-1" />
            <Field
              label="Address that it reaches"
              value={address}
              onChange={setAddress}
              mono
              placeholder="http://10.0.0.5:12082"
              description={<Inline text="Where the server listens for nodes: `server.internal_listen`." />}
            />
            <Field label="Labels" value={labels} onChange={setLabels} mono placeholder="gpu, large" />
            <Field label="Minutes that the token works" value={minutes} onChange={setMinutes} inputMode="numeric" />
          </div>
          {issue.error && <ProblemNote error={issue.error} />}
          <div className="flex flex-wrap items-center gap-3">
            <Action type="submit" tone="primary" reason={missing}>
              Create join token
            </Action>
            <span className="text-meta text-muted">The token is shown once.</span>
          </div>
        </Form>
      )}
    </section>
  );
}
