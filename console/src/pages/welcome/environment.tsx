/** Proposes an environment from the files of the repository. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { api, type Schema, unwrap } from "../../api/client";
import { environmentsQuery } from "../../api/queries";
import { describeBase, listSpec } from "../../logic/environment";
import { Action, Facts, Foreign, Inline, ProblemNote, Sign } from "../../ui/basic";

export function EnvironmentStep({
  project,
  hasRepository,
}: {
  project: Schema["ProjectView"] | null;
  hasRepository: boolean;
}) {
  if (!project || !hasRepository) {
    return <p className="text-muted">It is read from the files of the repository, which is not here yet.</p>;
  }
  return <ProposedEnvironment project={project.id} />;
}

function ProposedEnvironment({ project }: { project: string }) {
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
  const tryOut = useMutation({
    mutationFn: (version: number) =>
      unwrap(api.POST("/v1/projects/{project}/environments/try", { params: { path: { project } }, body: { version } })),
  });
  const busy = detect.isPending || decide.isPending || tryOut.isPending ? "It is being sent" : null;
  const items = environments.data?.items ?? [];
  const current = items.find((it) => it.state === "proposed") ?? items.find((it) => it.state === "accepted");
  const error = detect.error ?? decide.error ?? tryOut.error ?? environments.error;
  return (
    <div className="grid grid-cols-1 gap-3">
      <p className="text-muted">
        What jobs of the project run in: packages, set-up and checks. Without one they run on the node's own system.
      </p>
      {current && (
        <>
          <p>
            Version {current.version}{" "}
            <Sign
              standing={current.state === "accepted" ? "done" : "person"}
              word={current.state === "accepted" ? "Accepted" : "Waits for acceptance"}
            />
          </p>
          {(current.warnings ?? []).map((warning) => (
            <p key={warning} className="border-warn border-l-2 pl-3">
              <Inline text={warning} />
            </p>
          ))}
          <Facts
            rows={[
              ["System", <Foreign key="base" text={describeBase(current.spec)} />],
              ...listSpec(current.spec).map(
                ({ name, lines }) =>
                  [
                    name,
                    <ul key={name} className="grid gap-1 font-mono text-code">
                      {lines.map((line) => (
                        <li key={line.key}>
                          <Foreign text={line.text} />
                        </li>
                      ))}
                    </ul>,
                  ] as const,
              ),
            ]}
          />
        </>
      )}
      {error && <ProblemNote error={error} />}
      {tryOut.data && (
        <p role="status">
          It is being tried:{" "}
          <Link to="/tasks/$task" params={{ task: tryOut.data.id }} className="text-accent underline">
            <Foreign text={tryOut.data.name} />
          </Link>
        </p>
      )}
      <div className="flex flex-wrap items-center gap-2">
        {current?.state === "proposed" ? (
          <>
            <Action
              tone="primary"
              onPress={() => decide.mutate({ version: current.version, accepts: true })}
              reason={busy}
            >
              Accept environment
            </Action>
            <Action onPress={() => tryOut.mutate(current.version)} reason={busy}>
              Try environment
            </Action>
            <Action onPress={() => decide.mutate({ version: current.version, accepts: false })} reason={busy}>
              Reject environment
            </Action>
          </>
        ) : (
          <Action tone={current ? "plain" : "primary"} onPress={() => detect.mutate()} reason={busy}>
            Detect environment
          </Action>
        )}
        {current && (
          <Link to="/projects/$project" params={{ project }} className="text-accent underline">
            Why each line is there
          </Link>
        )}
      </div>
    </div>
  );
}
