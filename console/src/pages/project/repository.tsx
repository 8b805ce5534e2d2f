/** The repository of a project, its connection to a forge, and the issues that came from there. */

import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, makeKey, type Schema, unwrap } from "../../api/client";
import { repositoryQuery } from "../../api/queries";
import { issuesQuery, remoteQuery } from "../../api/queries-places";
import { serverOrigin } from "../../api/transport";
import { formatDuration } from "../../logic/format";
import { parseCount } from "../../logic/places";
import { readForgeAddress } from "../../logic/welcome";
import {
  Action,
  Age,
  Command,
  Facts,
  Foreign,
  Id,
  Inline,
  Loaded,
  ProblemNote,
  SectionHead,
  Sign,
} from "../../ui/basic";
import { Choice, Field } from "../../ui/fields";
import { Layer } from "../../ui/layer";
import { Person } from "../../ui/person";
import { ConfirmLayer, SecretOnce } from "../../ui/rows";
import { Tick } from "../../ui/switch";
import { BundleUpload } from "../welcome/repository";
import { type Project, useProjectChange } from "./use-project-change";

export function RepositoryTab({ project }: { project: Project }) {
  const remote = useQuery(remoteQuery(project.id));
  return (
    <div className="grid max-w-[960px] grid-cols-1 gap-8">
      <Repository project={project} />
      <Loaded query={remote}>{(data) => <Remote project={project} remote={data} />}</Loaded>
      {remote.data && <Issues project={project} />}
    </div>
  );
}

function Repository({ project }: { project: Project }) {
  const repository = useQuery(repositoryQuery(project.id));
  const address = `${serverOrigin()}/v1/projects/${project.slug}/git`;
  return (
    <section className="grid grid-cols-1 gap-3">
      <SectionHead>Repository</SectionHead>
      <Loaded query={repository}>
        {(data) => (
          <>
            {data ? (
              <Facts
                rows={[
                  ["Branch", <BranchName key="branch" name={data.default_branch} />],
                  ["Head", <Id key="head" id={data.head} />],
                  ["Imported", <Age key="imported" at={data.imported_at} ago />],
                ]}
              />
            ) : (
              <div className="grid max-w-[560px] gap-2">
                <p className="font-medium text-lead">Nothing is imported yet.</p>
                <p className="text-muted">In the repository:</p>
                <Command line={`cynork project import . --project ${project.slug}`} />
              </div>
            )}
            {data && (
              <div className="grid max-w-[640px] gap-2">
                <p className="text-muted">Make a working copy. Nobody can push here; work comes in by tasks.</p>
                <Command line={`cynork project clone ${project.slug}`} />
                <p className="text-muted">Or with git alone; the password is an API key:</p>
                <Command line={`git clone ${address}`} />
              </div>
            )}
            <details open={data === null}>
              <summary className="cursor-default font-medium">
                {data ? "Import newer commits" : "Import from a file"}
              </summary>
              <div className="grid max-w-[640px] grid-cols-1 gap-3 pt-3">
                {data && <p className="text-muted">Branches only move forward; the same file twice changes nothing.</p>}
                <BundleUpload project={project} />
              </div>
            </details>
          </>
        )}
      </Loaded>
    </section>
  );
}

function BranchName({ name }: { name: string }) {
  return (
    <code className="font-mono text-code">
      <Foreign text={name} />
    </code>
  );
}

type Remote = Schema["RemoteView"];

function Remote({ project, remote }: { project: Project; remote: Remote | null }) {
  const [layer, setLayer] = useState<"set" | "delete" | null>(null);
  const [secret, setSecret] = useState<string | null>(null);
  const remove = useProjectChange(
    project.id,
    () => unwrap(api.DELETE("/v1/projects/{project}/remote", { params: { path: { project: project.id } } })),
    () => setLayer(null),
  );
  return (
    <section className="grid grid-cols-1 gap-3">
      <SectionHead
        aside={
          <span className="flex flex-wrap gap-2">
            <Action tone={remote ? "quiet" : "plain"} onPress={() => setLayer("set")}>
              {remote ? "Change connection" : "Connect a forge"}
            </Action>
            {remote && (
              <Action tone="quiet" onPress={() => setLayer("delete")}>
                Delete connection…
              </Action>
            )}
          </span>
        }
      >
        Forge
      </SectionHead>
      {secret && (
        <SecretOnce label="Secret of the webhook" secret={secret} onClose={() => setSecret(null)}>
          The forge signs its deliveries with it. Set it there as the secret of a webhook to{" "}
          <code className="font-mono">{serverOrigin() + (remote?.webhook_path ?? "")}</code>.
        </SecretOnce>
      )}
      {remote ? (
        <RemoteFacts remote={remote} />
      ) : (
        <p className="max-w-[560px] text-muted">
          Connected to GitHub, GitLab, Gitea or Forgejo, tasks start from its newest commits, pull requests are opened
          there, and issues become tasks.
        </p>
      )}
      {layer === "set" && (
        <RemoteForm
          project={project}
          remote={remote}
          onClose={() => setLayer(null)}
          onSet={(view) => {
            setSecret(view.webhook_secret ?? null);
            setLayer(null);
          }}
        />
      )}
      {layer === "delete" && remote && (
        <ConfirmLayer
          title="Delete the connection?"
          action="Delete connection"
          keep="Keep connection"
          pending={remove.isPending}
          error={remove.error}
          onConfirm={() => remove.mutate(undefined)}
          onClose={() => setLayer(null)}
        >
          <p>
            The stored token and the secret of the webhook are lost. Nothing changes on the forge; open pull requests
            there are no longer followed.
          </p>
        </ConfirmLayer>
      )}
    </section>
  );
}

function RemoteFacts({ remote }: { remote: Remote }) {
  const intake = [
    remote.intake.label ? `with the label ${remote.intake.label}` : null,
    remote.intake.assigned_to_bot ? "that are assigned to the bot" : null,
  ].filter(Boolean);
  return (
    <>
      {remote.failure && (
        <p className="border-bad border-l-2 py-1 pl-3">
          <span aria-hidden="true" className="mr-1.5 font-mono text-bad">
            !
          </span>
          The last poll failed: <Foreign text={remote.failure} />
        </p>
      )}
      {remote.missing.length > 0 && (
        <ul aria-label="What does not work yet" className="grid gap-1">
          {remote.missing.map((line) => (
            <li key={line} className="border-warn border-l-2 pl-3">
              <Inline text={line} />
            </li>
          ))}
        </ul>
      )}
      <Facts
        rows={[
          ["Repository", <Foreign key="repository" text={`${remote.repository} on ${remote.forge}`} />],
          ["Cloned from", <Foreign key="url" text={remote.url} />],
          ["Branch", <BranchName key="branch" name={remote.default_branch} />],
          remote.login ? ["Token of", <Foreign key="login" text={remote.login} />] : null,
          [
            "Issues",
            intake.length === 0
              ? "none become tasks"
              : `those ${intake.join(" or ")} become tasks, ${remote.intake.allow_untrusted_authors ? "of anybody" : "of people who may write there"}`,
          ],
          [
            "Polled",
            <span key="polled">
              every {formatDuration(remote.poll_seconds * 1000)}
              {remote.polled_at && ", last "}
              {remote.polled_at && <Age at={remote.polled_at} ago />}
            </span>,
          ],
          remote.fetched_at ? ["Fetched", <Age key="fetched" at={remote.fetched_at} ago />] : null,
          ["Webhook", <Command key="webhook" line={serverOrigin() + remote.webhook_path} />],
          remote.refused_deliveries > 0
            ? ["Refused deliveries", `${remote.refused_deliveries} with a wrong signature`]
            : null,
          [
            "Connected",
            <span key="set">
              <Age at={remote.set_at} ago /> by <Person id={remote.set_by} />
            </span>,
          ],
        ]}
      />
    </>
  );
}

const FORGES = [
  { value: "github", name: "GitHub" },
  { value: "gitlab", name: "GitLab" },
  { value: "gitea", name: "Gitea or Forgejo" },
] as const;

function RemoteForm({
  project,
  remote,
  onClose,
  onSet,
}: {
  project: Project;
  remote: Remote | null;
  onClose: () => void;
  onSet: (remote: Remote) => void;
}) {
  const [url, setUrl] = useState(remote?.url ?? "");
  const address = readForgeAddress(url);
  const [forge, setForge] = useState(remote?.forge ?? "");
  const [repository, setRepository] = useState(remote?.repository ?? "");
  const [branch, setBranch] = useState(remote?.default_branch ?? "main");
  const [credential, setCredential] = useState("");
  const [webhook, setWebhook] = useState("");
  const [server, setServer] = useState(remote?.api ?? "");
  const [seconds, setSeconds] = useState(String(remote?.poll_seconds ?? 120));
  const [label, setLabel] = useState(remote?.intake.label ?? "");
  const [assigned, setAssigned] = useState(remote?.intake.assigned_to_bot ?? false);
  const [anybody, setAnybody] = useState(remote?.intake.allow_untrusted_authors ?? false);
  const [checks, setChecks] = useState(true);
  const kind = forge || address?.forge || "github";
  const name = repository || address?.repository || "";
  const poll = parseCount(seconds);
  const set = useProjectChange(
    project.id,
    () =>
      unwrap(
        api.PUT("/v1/projects/{project}/remote", {
          params: { path: { project: project.id } },
          body: {
            forge: kind,
            url: url.trim(),
            repository: name.trim(),
            default_branch: branch.trim(),
            check: checks,
            intake: {
              assigned_to_bot: assigned,
              allow_untrusted_authors: anybody,
              ...(label.trim() === "" ? {} : { label: label.trim() }),
            },
            ...(poll === null ? {} : { poll_seconds: poll }),
            ...(server.trim() === "" ? {} : { api: server.trim() }),
            ...(credential.trim() === "" ? {} : { credential: credential.trim() }),
            ...(webhook.trim() === "" ? {} : { webhook_secret: webhook.trim() }),
          },
        }),
      ),
    onSet,
  );
  const reason = set.isPending
    ? "It is being connected"
    : !address
      ? "Write the address of the repository"
      : branch.trim() === ""
        ? "Write the branch that work starts from"
        : poll === null || poll < 10
          ? "Poll at most every 10 seconds"
          : !remote && credential.trim() === ""
            ? "Paste a token of the forge"
            : webhook.trim() !== "" && webhook.trim().length < 16
              ? "The secret of the webhook needs at least 16 characters"
              : null;
  return (
    <Layer title={remote ? "Change connection" : "Connect a forge"} isOpen onClose={onClose}>
      <Form
        className="grid gap-4"
        onSubmit={(event) => {
          event.preventDefault();
          if (!reason) set.mutate(undefined);
        }}
      >
        <Field
          label="Address"
          value={url}
          onChange={setUrl}
          mono
          autoFocus
          placeholder="https://github.com/acme/web.git"
          description="As for git clone."
        />
        <div className="grid grid-cols-1 items-start gap-4 small:grid-cols-2">
          <Choice label="Forge" value={kind} onChange={setForge} options={FORGES} />
          <Field label="Name there" value={name} onChange={setRepository} mono placeholder="acme/web" />
        </div>
        <Field label="Branch" value={branch} onChange={setBranch} mono />
        <Field
          label={remote ? "New token" : "Token"}
          type="password"
          value={credential}
          onChange={setCredential}
          autoComplete="off"
          description={
            remote
              ? "Left empty, the stored one stays. It can never be read back."
              : "Contents, pull requests and issues of this repository. It is stored encrypted and sent to that forge only."
          }
        />
        <fieldset className="grid gap-1">
          <legend className="font-medium">Issues that become tasks</legend>
          <Field label="With the label" value={label} onChange={setLabel} placeholder="cynode" />
          <Tick label="Assigned to the account of the token" isTicked={assigned} onChange={setAssigned} />
          <Tick
            label="Also of people who may not write to the repository"
            description="Anybody could then give work to your agents."
            isTicked={anybody}
            onChange={setAnybody}
          />
        </fieldset>
        <details>
          <summary className="cursor-default text-muted">Rarely needed</summary>
          <div className="grid gap-4 pt-3">
            <Field
              label="Address of its API"
              value={server}
              onChange={setServer}
              mono
              description="The usual place when empty."
            />
            <Field label="Poll every so many seconds" value={seconds} onChange={setSeconds} inputMode="numeric" />
            <Field
              label="Secret of the webhook"
              type="password"
              value={webhook}
              onChange={setWebhook}
              autoComplete="off"
              description="Left empty, the stored one stays, or one is made and shown once."
            />
            <Tick label="Test the connection at once" isTicked={checks} onChange={setChecks} />
          </div>
        </details>
        {set.error && <ProblemNote error={set.error} />}
        <div>
          <Action type="submit" tone="primary" reason={reason}>
            {remote ? "Save connection" : "Connect forge"}
          </Action>
        </div>
      </Form>
    </Layer>
  );
}

type Issue = Schema["WantedIssueView"];

function Issues({ project }: { project: Project }) {
  const issues = useQuery(issuesQuery(project.id));
  const [chosen, setChosen] = useState<Issue | null>(null);
  return (
    <section className="grid grid-cols-1 gap-1">
      <SectionHead>Issues</SectionHead>
      <Loaded query={issues}>
        {(data) =>
          data.items.length === 0 ? (
            <p className="text-muted">No issue was chosen for work yet.</p>
          ) : (
            <ul aria-label="Issues">
              {data.items.map((issue) => (
                <li
                  key={issue.number}
                  className="flex flex-wrap items-center gap-x-3 gap-y-1 border-line border-b py-2"
                >
                  <Sign
                    standing={issue.task_id ? "done" : issue.rejection_reason ? "cancelled" : "waits"}
                    word={issue.task_id ? "Became a task" : issue.rejection_reason ? "Not taken" : "Seen"}
                  />
                  <a
                    href={issue.url}
                    target="_blank"
                    rel="noreferrer noopener"
                    className="font-medium text-accent underline"
                  >
                    #{issue.number}
                  </a>
                  <span className="min-w-0 text-muted">
                    <Foreign
                      text={`by ${issue.author}${issue.rejection_reason ? `: ${issue.rejection_reason}` : ""}`}
                    />
                  </span>
                  <span className="ml-auto flex items-center gap-3">
                    <Age at={issue.seen_at} className="text-meta text-faint" />
                    {issue.task_id ? (
                      <Link to="/tasks/$task" params={{ task: issue.task_id }} className="text-accent underline">
                        Open task
                      </Link>
                    ) : (
                      <Action
                        onPress={() => setChosen(issue)}
                        reason={project.archived_at ? "The project is archived" : null}
                      >
                        Start task
                      </Action>
                    )}
                  </span>
                </li>
              ))}
            </ul>
          )
        }
      </Loaded>
      {chosen && <IssueTask project={project} issue={chosen} onClose={() => setChosen(null)} />}
    </section>
  );
}

function IssueTask({ project, issue, onClose }: { project: Project; issue: Issue; onClose: () => void }) {
  const navigate = useNavigate();
  const client = useQueryClient();
  const [text, setText] = useState(`Solve issue #${issue.number} (${issue.url}).\n`);
  const [key, setKey] = useState(makeKey);
  const start = useProjectChange(
    project.id,
    () =>
      unwrap(
        api.POST("/v1/tasks", {
          params: { header: { "Idempotency-Key": key } },
          body: { project_id: project.id, description: text.trim(), acceptance_criteria: [], approve_plan: true },
        }),
      ),
    (task) => {
      void client.invalidateQueries({ queryKey: ["tasks"] });
      void navigate({ to: "/tasks/$task", params: { task: task.id } });
    },
  );
  return (
    <Layer title={`Start a task for issue #${issue.number}`} isOpen onClose={onClose}>
      <Field
        label="What is to be done?"
        value={text}
        onChange={(value) => {
          setText(value);
          setKey(makeKey());
        }}
        lines={6}
        autoFocus
        description="Agents do not read the issue by themselves: write what of it matters. You are asked before the plan is carried out."
      />
      {start.error && <ProblemNote error={start.error} />}
      <div>
        <Action
          tone="primary"
          onPress={() => start.mutate(undefined)}
          reason={start.isPending ? "It is being created" : text.trim() === "" ? "Write what is to be done" : null}
        >
          Start task
        </Action>
      </div>
    </Layer>
  );
}
