/** One project: its repository, and the environment that its jobs run in. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useParams } from "@tanstack/react-router";
import { api, type Schema, unwrap } from "../api/client";
import { Problem } from "../api/problem";
import { environmentsQuery, projectQuery, repositoryQuery } from "../api/queries";
import { describeBase, listSpec } from "../logic/environment";
import { formatCount, toWords } from "../logic/format";
import type { Standing } from "../logic/state";
import {
  Action,
  Age,
  Command,
  Facts,
  Foreign,
  Id,
  Loaded,
  Page,
  PageHead,
  ProblemNote,
  SectionHead,
  Sign,
} from "../ui/basic";
import { usePageCommand } from "../ui/copy";

export function ProjectPage() {
  const { project: id } = useParams({ from: "/projects/$project" });
  const project = useQuery(projectQuery(id));
  const repository = useQuery(repositoryQuery(id));
  usePageCommand(`cynork project show ${id}`, `/v1/projects/${id}`);
  return (
    <Page>
      <Loaded query={project}>
        {(data) => (
          <div className="grid gap-6">
            <PageHead
              title={<Foreign text={data.title} />}
              lead={data.description ? <Foreign text={data.description} /> : undefined}
            >
              <Link to="/tasks" search={{ project: id }} className="text-accent underline">
                Its tasks
              </Link>
              <Link
                to="/tasks/new"
                search={{ project: id }}
                className="inline-flex min-h-8 items-center rounded-box border border-control px-3 font-medium hover:bg-surface"
              >
                New task
              </Link>
            </PageHead>
            <section className="grid gap-3">
              <SectionHead>Repository</SectionHead>
              {repository.data === null ? (
                <div className="grid max-w-[560px] gap-2">
                  <p className="text-muted">Nothing is imported yet. In the repository:</p>
                  <Command line={`cynork project import . --project ${data.slug}`} />
                </div>
              ) : (
                <Loaded query={repository}>
                  {(found) =>
                    found && (
                      <Facts
                        rows={[
                          [
                            "Name",
                            <code key="slug" className="font-mono text-code">
                              {data.slug}
                            </code>,
                          ],
                          [
                            "Branch",
                            <code key="branch" className="font-mono text-code">
                              {found.default_branch}
                            </code>,
                          ],
                          ["Head", <Id key="head" id={found.head} />],
                          ["Imported", <Age key="imported" at={found.imported_at} ago />],
                        ]}
                      />
                    )
                  }
                </Loaded>
              )}
            </section>
            <Environments project={id} />
          </div>
        )}
      </Loaded>
    </Page>
  );
}

type EnvironmentView = Schema["EnvironmentView"];

const STATES: Record<EnvironmentView["state"], Standing> = {
  proposed: "person",
  accepted: "done",
  rejected: "failed",
  superseded: "cancelled",
};

function Environments({ project }: { project: string }) {
  const client = useQueryClient();
  const environments = useQuery(environmentsQuery(project));
  const renew = () => {
    for (const queryKey of [["project", project], ["inbox"]]) void client.invalidateQueries({ queryKey });
  };
  const detect = useMutation({
    mutationFn: () =>
      unwrap(
        api.POST("/v1/projects/{project}/environments/detect", {
          params: { path: { project } },
          body: { devcontainer: false },
        }),
      ),
    onSettled: renew,
  });
  const decide = useMutation({
    mutationFn: ({ version, accepts }: { version: number; accepts: boolean }) => {
      const options = { params: { path: { project, version } }, body: { note: null } };
      return accepts
        ? unwrap(api.POST("/v1/projects/{project}/environments/{version}/accept", options))
        : unwrap(api.POST("/v1/projects/{project}/environments/{version}/reject", options));
    },
    onSettled: renew,
  });
  const busy = detect.isPending || decide.isPending ? "It is being sent" : null;
  if (environments.error instanceof Problem && environments.error.status === 404 && !environments.data) {
    return (
      <section className="grid gap-3">
        <SectionHead>Environment</SectionHead>
        <p className="text-muted">This server has no environments: its jobs run on the node's own system.</p>
      </section>
    );
  }
  return (
    <section className="grid gap-3">
      <SectionHead
        aside={
          <Action tone="quiet" onPress={() => detect.mutate()} reason={busy}>
            Detect environment
          </Action>
        }
      >
        Environment
      </SectionHead>
      {(detect.error || decide.error) && <ProblemNote error={detect.error ?? decide.error} />}
      <Loaded query={environments}>
        {(data) => {
          const current = data.items.filter((entry) => entry.state === "proposed" || entry.state === "accepted");
          const older = data.items.filter((entry) => !current.includes(entry));
          return (
            <>
              {current.length === 0 && (
                <p className="max-w-[560px] text-muted">
                  Jobs run on the node's own system. Detect an environment from the files of the repository: what it
                  would install and run is shown before anybody accepts it.
                </p>
              )}
              {current.map((entry) => (
                <Environment
                  key={entry.version}
                  environment={entry}
                  busy={busy}
                  onDecide={(accepts) => decide.mutate({ version: entry.version, accepts })}
                />
              ))}
              {older.length > 0 && (
                <details>
                  <summary className="cursor-default text-muted">{formatCount(older.length, "older version")}</summary>
                  <ul>
                    {older.map((entry) => (
                      <li key={entry.version} className="flex items-baseline gap-3 border-line border-b py-1.5">
                        <Sign standing={STATES[entry.state]} word={toWords(entry.state)} />
                        version {entry.version}, {toWords(entry.origin).toLowerCase()}
                        <Age at={entry.proposed_at} className="text-meta text-faint" />
                      </li>
                    ))}
                  </ul>
                </details>
              )}
            </>
          );
        }}
      </Loaded>
    </section>
  );
}

function Environment({
  environment,
  busy,
  onDecide,
}: {
  environment: EnvironmentView;
  busy: string | null;
  onDecide: (accepts: boolean) => void;
}) {
  const reasons = new Map((environment.reasons ?? []).map((reason) => [reason.line, reason]));
  return (
    <article className="grid gap-3 rounded-box border border-line p-4">
      <div className="flex flex-wrap items-baseline gap-x-3">
        <h3>Version {environment.version}</h3>
        <Sign
          standing={STATES[environment.state]}
          word={environment.state === "proposed" ? "Waits for acceptance" : toWords(environment.state)}
        />
        <span className="text-meta text-muted">
          {toWords(environment.origin).toLowerCase()} · <Age at={environment.proposed_at} ago />
        </span>
        <Id id={environment.digest} />
      </div>
      {(environment.warnings ?? []).map((warning) => (
        <p key={warning} className="border-warn border-l-2 pl-3">
          <span aria-hidden="true" className="mr-1.5 font-mono text-warn">
            !
          </span>
          <Foreign text={warning} />
        </p>
      ))}
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
      {environment.state === "proposed" && (
        <div className="flex gap-2">
          <Action tone="primary" onPress={() => onDecide(true)} reason={busy}>
            Accept environment
          </Action>
          <Action onPress={() => onDecide(false)} reason={busy}>
            Reject environment
          </Action>
        </div>
      )}
    </article>
  );
}
