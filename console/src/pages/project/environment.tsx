/** The environment that the jobs of a project run in: versions, reasons, differences, trials and decisions. */

import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { api, type Schema, unwrap } from "../../api/client";
import { Problem } from "../../api/problem";
import { environmentsQuery } from "../../api/queries";
import { acceptedEnvironmentQuery, environmentQuery } from "../../api/queries-places";
import { describeBase, listSpec } from "../../logic/environment";
import { formatCount, toWords } from "../../logic/format";
import { compareSpecs, parseSpec } from "../../logic/places";
import type { Standing } from "../../logic/state";
import {
  Action,
  Age,
  Command,
  cx,
  Empty,
  Facts,
  Foreign,
  Id,
  Loaded,
  ProblemNote,
  SectionHead,
  Sign,
} from "../../ui/basic";
import { Field } from "../../ui/fields";
import { Layer } from "../../ui/layer";
import { Person } from "../../ui/person";
import { RowLines } from "../../ui/rows";
import { Split, useRowKeys } from "../../ui/split";
import { Tick } from "../../ui/switch";
import { type Project, useProjectChange } from "./use-project-change";

type Environment = Schema["EnvironmentView"];

const STATES: Record<Environment["state"], Standing> = {
  proposed: "person",
  accepted: "done",
  rejected: "failed",
  superseded: "cancelled",
};

const ORIGINS: Record<Environment["origin"], string> = {
  person: "written by a person",
  detected: "detected",
  repository: "from the repository",
  devcontainer: "from the devcontainer file",
};

const nameState = (state: Environment["state"]) => (state === "proposed" ? "Waits for acceptance" : toWords(state));

export function EnvironmentTab({ project }: { project: Project }) {
  const { version } = useSearch({ from: "/projects/$project" });
  const navigate = useNavigate({ from: "/projects/$project" });
  const environments = useQuery(environmentsQuery(project.id));
  const accepted = useQuery(acceptedEnvironmentQuery(project.id));
  const [devcontainer, setDevcontainer] = useState(false);
  const [proposes, setProposes] = useState(false);
  const items = environments.data?.items ?? [];
  const open = (chosen: number | undefined) =>
    void navigate({ search: (previous) => ({ ...previous, version: chosen }), replace: true });
  useRowKeys(
    items.map((entry) => String(entry.version)),
    version === undefined ? undefined : String(version),
    (next) => open(Number(next)),
    () => open(undefined),
  );
  const detect = useProjectChange(
    project.id,
    () =>
      unwrap(
        api.POST("/v1/projects/{project}/environments/detect", {
          params: { path: { project: project.id } },
          body: { devcontainer },
        }),
      ),
    (view) => open(view.version),
  );
  if (environments.error instanceof Problem && environments.error.status === 404 && !environments.data) {
    return <p className="text-muted">This server has no environments: its jobs run on the node's own system.</p>;
  }
  const current = accepted.data;
  const isWide = window.matchMedia("(min-width: 1200px)").matches;
  const first = items.find((entry) => entry.state === "proposed")?.version ?? current?.version;
  const shown = version ?? (isWide ? first : undefined);
  return (
    <div className="grid grid-cols-1 gap-5">
      <div className="flex flex-wrap items-center justify-between gap-x-6 gap-y-2">
        <p className="text-lead">
          {current ? (
            <>
              Jobs run in version {current.version}: <Foreign text={describeBase(current.spec)} />.
            </>
          ) : (
            "Jobs run on the node's own system: no environment is accepted."
          )}
        </p>
        <div className="flex flex-wrap items-center gap-2">
          <Tick label="Read the devcontainer file" isTicked={devcontainer} onChange={setDevcontainer} />
          <Action
            tone={items.length === 0 ? "primary" : "plain"}
            onPress={() => detect.mutate(undefined)}
            reason={detect.isPending ? "It is being detected" : null}
          >
            Detect environment
          </Action>
          <Action onPress={() => setProposes(true)}>Propose environment…</Action>
        </div>
      </div>
      {detect.error && <ProblemNote error={detect.error} />}
      <Loaded query={environments}>
        {() =>
          items.length === 0 ? (
            <Empty title="No environment was proposed yet.">
              <p className="text-muted">
                Detect one from the files of the repository: what it would install and run is shown with its reasons
                before anybody accepts it.
              </p>
              <Command line={`cynork project environment detect --project ${project.slug}`} />
            </Empty>
          ) : (
            <Split
              back="Versions"
              onClose={() => open(undefined)}
              list={
                <ul aria-label="Versions" className="border-line border-t">
                  {items.map((entry) => (
                    <VersionRow key={entry.version} entry={entry} isChosen={entry.version === shown} />
                  ))}
                </ul>
              }
              detail={
                shown === undefined ? null : (
                  <EnvironmentDetail key={shown} project={project} version={shown} accepted={current ?? null} />
                )
              }
            />
          )
        }
      </Loaded>
      {proposes && (
        <Proposal
          project={project}
          from={items.find((entry) => entry.version === (shown ?? first))?.spec ?? null}
          onClose={() => setProposes(false)}
          onPropose={(view) => {
            setProposes(false);
            open(view.version);
          }}
        />
      )}
    </div>
  );
}

function VersionRow({ entry, isChosen }: { entry: Environment; isChosen: boolean }) {
  const lines = listSpec(entry.spec).reduce((sum, part) => sum + part.lines.length, 0);
  return (
    <li>
      <Link
        to="."
        search={(previous: Record<string, unknown>) => ({ ...previous, version: entry.version })}
        replace
        aria-current={isChosen ? "true" : undefined}
        className={cx(
          "grid min-h-11 grid-cols-1 content-center gap-0.5 border-line border-b px-2 py-1.5 -outline-offset-2 hover:bg-surface",
          isChosen && "bg-select hover:bg-select",
        )}
      >
        <RowLines
          name={`Version ${entry.version}`}
          end={<Age at={entry.proposed_at} />}
          below={
            <span className="flex flex-wrap gap-x-3">
              <Sign standing={STATES[entry.state]} word={nameState(entry.state)} />
              {ORIGINS[entry.origin]}, {formatCount(lines, "line")}
            </span>
          }
        />
      </Link>
    </li>
  );
}

function EnvironmentDetail({
  project,
  version,
  accepted,
}: {
  project: Project;
  version: number;
  accepted: Environment | null;
}) {
  const environment = useQuery(environmentQuery(project.id, version));
  return (
    <Loaded query={environment}>
      {(data) => (
        <article className="grid grid-cols-1 gap-5">
          <div className="flex flex-wrap items-baseline gap-x-3">
            <h2 className="text-lead">Version {data.version}</h2>
            <Sign standing={STATES[data.state]} word={nameState(data.state)} />
          </div>
          {(data.warnings ?? []).map((warning) => (
            <p key={warning} className="border-warn border-l-2 pl-3">
              <span aria-hidden="true" className="mr-1.5 font-mono text-warn">
                !
              </span>
              <Foreign text={warning} />
            </p>
          ))}
          <EnvironmentActions project={project} environment={data} />
          {accepted && accepted.version !== data.version && <SpecDifference before={accepted} after={data} />}
          <Spec environment={data} />
          <Facts
            rows={[
              [
                "Proposed",
                <span key="proposed">
                  <Age at={data.proposed_at} ago />
                  {data.proposed_by && (
                    <>
                      {" by "}
                      <Person id={data.proposed_by} />
                    </>
                  )}
                  , {ORIGINS[data.origin]}
                </span>,
              ],
              data.decided_at
                ? [
                    "Decided",
                    <span key="decided">
                      <Age at={data.decided_at} ago />
                      {data.decided_by && (
                        <>
                          {" by "}
                          <Person id={data.decided_by} />
                        </>
                      )}
                    </span>,
                  ]
                : null,
              data.note ? ["Note", <Foreign key="note" text={data.note} />] : null,
              data.source_commit ? ["From commit", <Id key="commit" id={data.source_commit} />] : null,
              ["Digest", <Id key="digest" id={data.digest} />],
            ]}
          />
        </article>
      )}
    </Loaded>
  );
}

function EnvironmentActions({ project, environment }: { project: Project; environment: Environment }) {
  const navigate = useNavigate();
  const [note, setNote] = useState("");
  const { version } = environment;
  const decide = useProjectChange(project.id, (accepts: boolean) => {
    const options = {
      params: { path: { project: project.id, version } },
      body: { note: note.trim() === "" ? null : note.trim() },
    };
    return accepts
      ? unwrap(api.POST("/v1/projects/{project}/environments/{version}/accept", options))
      : unwrap(api.POST("/v1/projects/{project}/environments/{version}/reject", options));
  });
  const attempt = useProjectChange(
    project.id,
    () =>
      unwrap(
        api.POST("/v1/projects/{project}/environments/try", {
          params: { path: { project: project.id } },
          body: { version },
        }),
      ),
    (task) => void navigate({ to: "/tasks/$task", params: { task: task.id } }),
  );
  const busy = decide.isPending || attempt.isPending ? "It is being sent" : null;
  const isProposed = environment.state === "proposed";
  return (
    <section aria-label="Decide" className="grid max-w-[640px] grid-cols-1 gap-3">
      {environment.state !== "rejected" && (
        <Field
          label="Note"
          value={note}
          onChange={setNote}
          description={
            isProposed
              ? "Jobs of the project run in it as soon as it is accepted."
              : environment.state === "accepted"
                ? "If you reject it, jobs run on the node's own system again."
                : undefined
          }
        />
      )}
      <div className="flex flex-wrap gap-2">
        {environment.state !== "accepted" && (
          <Action tone={isProposed ? "primary" : "plain"} onPress={() => decide.mutate(true)} reason={busy}>
            Accept environment
          </Action>
        )}
        {(isProposed || environment.state === "accepted") && (
          <Action tone={isProposed ? "plain" : "danger"} onPress={() => decide.mutate(false)} reason={busy}>
            Reject environment
          </Action>
        )}
        <Action
          onPress={() => attempt.mutate(undefined)}
          reason={busy ?? (project.archived_at ? "The project is archived" : null)}
        >
          Try environment
        </Action>
      </div>
      {(decide.error || attempt.error) && <ProblemNote error={decide.error ?? attempt.error} />}
    </section>
  );
}

function Spec({ environment }: { environment: Environment }) {
  const reasons = new Map((environment.reasons ?? []).map((reason) => [reason.line, reason]));
  return (
    <section className="grid grid-cols-1 gap-3">
      <SectionHead>What it installs and runs</SectionHead>
      <Facts
        rows={[
          ["System", <Foreign key="base" text={describeBase(environment.spec)} />],
          ...listSpec(environment.spec).map(
            ({ name, lines }) =>
              [
                name,
                <ul key={name} className="grid gap-1">
                  {lines.map((line) => {
                    const reason = reasons.get(line.key);
                    return (
                      <li key={line.key}>
                        <code className="font-mono text-code whitespace-pre-wrap">
                          <Foreign text={line.text} />
                        </code>
                        {reason && (
                          <span className="block text-meta text-faint">
                            <Foreign text={`${reason.reason} (${reason.file})`} />
                          </span>
                        )}
                      </li>
                    );
                  })}
                </ul>,
              ] as const,
          ),
        ]}
      />
    </section>
  );
}

const CHANGES = {
  same: { sign: " ", word: "", tone: "" },
  added: { sign: "+", word: "added: ", tone: "bg-added" },
  removed: { sign: "−", word: "removed: ", tone: "bg-removed" },
} as const;

function SpecDifference({ before, after }: { before: Environment; after: Environment }) {
  const changes = compareSpecs(before.spec, after.spec).filter((change) => change.kind !== "same");
  const bases = [describeBase(before.spec), describeBase(after.spec)] as const;
  return (
    <section className="grid grid-cols-1 gap-2">
      <SectionHead>Compared with version {before.version}, which is accepted</SectionHead>
      {changes.length === 0 && bases[0] === bases[1] && <p className="text-muted">Both say the same.</p>}
      {bases[0] !== bases[1] && (
        <p>
          System: <Foreign text={bases[0]} /> becomes <Foreign text={bases[1]} />.
        </p>
      )}
      {changes.length > 0 && (
        <ul className="overflow-hidden rounded-box border border-line font-mono text-code">
          {changes.map((change) => (
            <li
              key={`${change.kind} ${change.part} ${change.text}`}
              className={cx("flex gap-2 px-2 py-0.5", CHANGES[change.kind].tone)}
            >
              <span aria-hidden="true" className={cx("w-3", change.kind === "added" ? "text-ok" : "text-bad")}>
                {CHANGES[change.kind].sign}
              </span>
              <span className="sr-only">{CHANGES[change.kind].word}</span>
              <span className="text-muted">{change.part}</span>
              <span className="min-w-0 whitespace-pre-wrap">
                <Foreign text={change.text} />
              </span>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

const EXAMPLE = { base: "host", setup: ["npm ci"], checks: [{ kind: "test", command: "npm test" }] };

function Proposal({
  project,
  from,
  onClose,
  onPropose,
}: {
  project: Project;
  from: Schema["EnvironmentSpec"] | null;
  onClose: () => void;
  onPropose: (environment: Environment) => void;
}) {
  const [text, setText] = useState(() => JSON.stringify(from ?? EXAMPLE, null, 2));
  const parsed = parseSpec(text);
  const propose = useProjectChange(
    project.id,
    (spec: Schema["EnvironmentSpec"]) =>
      unwrap(
        api.POST("/v1/projects/{project}/environments", {
          params: { path: { project: project.id } },
          body: { spec },
        }),
      ),
    onPropose,
  );
  return (
    <Layer title="Propose environment" isOpen onClose={onClose} width="max-w-[720px]">
      <Field
        label="Specification"
        value={text}
        onChange={setText}
        lines={18}
        mono
        autoFocus
        error={"error" in parsed ? parsed.error : null}
        description="It takes effect when an admin of the project accepts it."
      />
      {propose.error && <ProblemNote error={propose.error} />}
      <div>
        <Action
          tone="primary"
          onPress={() => "spec" in parsed && propose.mutate(parsed.spec)}
          reason={propose.isPending ? "It is being sent" : "error" in parsed ? parsed.error : null}
        >
          Propose environment
        </Action>
      </div>
    </Layer>
  );
}
