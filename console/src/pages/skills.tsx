/** What are agents told to do? Skills: instructions and files as text, which nobody here obeys. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, makeKey, type Schema, unwrap } from "../api/client";
import { projectsQuery } from "../api/queries";
import {
  commonSkillsQuery,
  skillQuery,
  skillsQuery,
  skillVersionQuery,
  skillVersionsQuery,
} from "../api/queries-admin";
import { COMMON, describeOwner, folderProblem, pathInFolder, type SkillFile, type SkillScope } from "../logic/skill";
import { quoteShell } from "../logic/text";
import { Action, Age, Command, Empty, Facts, Foreign, Id, Loaded, Page, ProblemNote, SectionHead } from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { Choice, Field } from "../ui/fields";
import { useKeys } from "../ui/keys";
import { Person } from "../ui/person";
import { ConfirmLayer, ListHead, RowLines, RowLink } from "../ui/rows";
import { SettingsNav } from "../ui/settings-nav";
import { Split, useRowKeys } from "../ui/split";
import { Unreviewed } from "../ui/unreviewed";

type Skill = Schema["SkillView"];

export function SkillsPage() {
  const search = useSearch({ from: "/settings/skills" });
  const projects = useQuery(projectsQuery);
  const chosen = useQuery({ ...skillQuery(search.skill ?? ""), enabled: search.skill !== undefined });
  const owner = chosen.data && (chosen.data.project_id ?? COMMON);
  const project = search.project ?? owner ?? projects.data?.items[0]?.id ?? COMMON;
  const slug = projects.data?.items.find((it) => it.id === project)?.slug ?? "PROJECT";
  usePageCommand(
    search.skill
      ? quoteShell(["cynork", "skill", "show", search.skill])
      : quoteShell(["cynork", "skill", "list", ...(project === COMMON ? ["--installation"] : ["--project", slug])]),
    search.skill ? `/v1/skills/${search.skill}` : project === COMMON ? "/v1/skills" : `/v1/skills?project=${project}`,
  );
  return (
    <Page wide>
      <SettingsNav />
      <Loaded query={projects}>
        {(data) => <SkillsContent key={project} project={project} slug={slug} projects={data.items} />}
      </Loaded>
    </Page>
  );
}

function SkillsContent({
  project,
  slug,
  projects,
}: {
  project: string;
  slug: string;
  projects: Schema["ProjectView"][];
}) {
  const { skill: chosen, create } = useSearch({ from: "/settings/skills" });
  const navigate = useNavigate({ from: "/settings/skills" });
  const isCommon = project === COMMON;
  const ofProject = useQuery({ ...skillsQuery(project), enabled: !isCommon });
  const common = useQuery({ ...commonSkillsQuery, enabled: isCommon });
  const skills = isCommon ? common : ofProject;
  const [isImported, setImported] = useState(false);
  const items = skills.data?.items ?? [];
  const close = () => {
    setImported(false);
    void navigate({ search: { project } });
  };
  const openForm = () => void navigate({ search: { project, create: true } });
  useRowKeys(
    items.map((item) => item.skill_id),
    chosen ?? (create ? "" : undefined),
    (next) => void navigate({ search: { project, skill: next }, replace: true }),
    close,
  );
  useKeys({ "/": () => document.querySelector<HTMLElement>("#filter select")?.focus() });
  return (
    <>
      <ListHead
        isChosen={chosen !== undefined || create === true}
        title="Skills"
        lead="Instructions that agents are given when they fit the work: of the installation, of a project, or your own."
      >
        {!create && !isImported && (
          <>
            <Action onPress={() => setImported(true)}>Import skill</Action>
            {items.length > 0 && (
              <Action tone={chosen ? "plain" : "primary"} onPress={openForm}>
                Create skill
              </Action>
            )}
          </>
        )}
      </ListHead>
      <Split
        back="Skills"
        onClose={close}
        list={
          <div className="grid grid-cols-1 gap-3">
            <div id="filter" className="max-w-80">
              <Choice
                label="Whose"
                value={project}
                onChange={(value) => void navigate({ search: { project: value } })}
                options={[
                  ...projects.map((it) => ({ value: it.id, name: it.slug })),
                  { value: COMMON, name: "The installation's and mine" },
                ]}
              />
            </div>
            <Loaded query={skills} lines={6}>
              {() =>
                items.length === 0 ? (
                  !create && (
                    <Empty title={isCommon ? "There is no such skill." : "This project has no skill."}>
                      <p className="text-muted">
                        Write down once how something is done here; agents read it when they need it.
                      </p>
                      <Command
                        line={`cynork skill create release --about 'When a release is made' --body @release.md ${isCommon ? "--mine" : `--project ${quoteShell([slug])}`}`}
                      />
                      <div>
                        <Action tone="primary" onPress={openForm}>
                          Create skill
                        </Action>
                      </div>
                    </Empty>
                  )
                ) : (
                  <ul aria-label="Skills" className="border-line border-t">
                    {items.map((item) => (
                      <RowLink
                        key={item.skill_id}
                        parameter="skill"
                        id={item.skill_id}
                        isChosen={item.skill_id === chosen}
                      >
                        <RowLines
                          name={<Foreign text={item.name} />}
                          end={
                            item.unreviewed ? (
                              <span className="text-warn">
                                <span aria-hidden="true">? </span>not reviewed
                              </span>
                            ) : (
                              <Age at={item.updated_at} ago />
                            )
                          }
                          below={<Foreign text={item.description} />}
                        />
                      </RowLink>
                    ))}
                  </ul>
                )
              }
            </Loaded>
          </div>
        }
        detail={
          isImported ? (
            <ImportForm project={project} onClose={close} />
          ) : create ? (
            <SkillForm project={project} skill={null} onClose={close} />
          ) : chosen ? (
            <SkillDetail key={chosen} id={chosen} project={project} />
          ) : null
        }
      />
    </>
  );
}

function SkillDetail({ id, project }: { id: string; project: string }) {
  const skill = useQuery(skillQuery(id));
  const [isEdited, setEdited] = useState(false);
  return (
    <Loaded query={skill}>
      {(data) =>
        isEdited ? (
          <SkillForm project={project} skill={data} onClose={() => setEdited(false)} />
        ) : (
          <SkillContent skill={data} onEdit={() => setEdited(true)} />
        )
      }
    </Loaded>
  );
}

function SkillContent({ skill, onEdit }: { skill: Skill; onEdit: () => void }) {
  const client = useQueryClient();
  const navigate = useNavigate({ from: "/settings/skills" });
  const [isDeleted, setDeleted] = useState(false);
  const remove = useMutation({
    mutationFn: () => unwrap(api.DELETE("/v1/skills/{skill}", { params: { path: { skill: skill.skill_id } } })),
    onSuccess: () => {
      void navigate({ search: { project: skill.project_id ?? COMMON } });
      void client.invalidateQueries({ queryKey: ["skills", "list"] });
    },
  });
  return (
    <article className="grid grid-cols-1 gap-4">
      <div className="flex flex-wrap items-center justify-between gap-3">
        <h2 className="text-lead">
          <Foreign text={skill.name} />
        </h2>
        <div className="flex flex-wrap gap-2">
          <Action onPress={onEdit}>Edit skill</Action>
          <Action tone="danger" onPress={() => setDeleted(true)}>
            Delete skill…
          </Action>
        </div>
      </div>
      {skill.unreviewed && <Unreviewed what="skill" body={{ skill_id: skill.skill_id }} area="skills" />}
      <Facts
        rows={[
          ["Of use", <Foreign key="description" text={skill.description} />],
          ["Belongs to", describeOwner(skill.scope)],
          skill.license ? ["Licence", <Foreign key="license" text={skill.license} />] : null,
          skill.allowed_tools && skill.allowed_tools.length > 0
            ? ["Says it needs", <Foreign key="tools" text={skill.allowed_tools.join(", ")} />]
            : null,
          ["Written", <Age key="updated" at={skill.updated_at} ago />],
          ["First by", <Person key="by" id={skill.created_by} />],
          ["Version", skill.version],
          ["Id", <Id key="id" id={skill.skill_id} />],
        ]}
      />
      <section className="grid grid-cols-1 gap-2">
        <SectionHead aside="Shown as text; nothing of it is carried out here">Instructions</SectionHead>
        <pre className="rounded-box border border-line bg-surface p-3 font-mono text-code break-words whitespace-pre-wrap">
          <Foreign text={skill.body} />
        </pre>
      </section>
      <SkillFiles files={skill.files ?? []} />
      <p>
        <a
          href={`/v1/skills/${skill.skill_id}/export`}
          download={`${skill.name}.json`}
          className="text-accent underline"
        >
          Export skill
        </a>
      </p>
      <SkillVersions skill={skill} />
      {isDeleted && (
        <ConfirmLayer
          title="Delete skill"
          action="Delete skill"
          keep="Keep skill"
          typed={skill.name}
          pending={remove.isPending}
          error={remove.error}
          onConfirm={() => remove.mutate()}
          onClose={() => setDeleted(false)}
        >
          <p>
            The instructions of <Foreign text={skill.name} /> are lost. Agents are not given them any more.
          </p>
        </ConfirmLayer>
      )}
    </article>
  );
}

/** The files beside `SKILL.md`, each as text. */
function SkillFiles({ files }: { files: readonly SkillFile[] }) {
  if (files.length === 0) return null;
  return (
    <section className="grid grid-cols-1 gap-2">
      <SectionHead>Files</SectionHead>
      {files.map((file) => (
        <details key={file.path} className="rounded-box border border-line">
          <summary className="min-h-8 cursor-pointer px-3 py-1.5">
            <code className="font-mono text-code break-all">
              <Foreign text={file.path} />
            </code>
            {file.executable && <span className="ml-2 text-meta text-muted">can be run</span>}
          </summary>
          <pre className="border-line border-t p-3 font-mono text-code break-words whitespace-pre-wrap">
            <Foreign text={file.text} />
          </pre>
        </details>
      ))}
    </section>
  );
}

function SkillVersions({ skill }: { skill: Skill }) {
  const versions = useQuery(skillVersionsQuery(skill.skill_id));
  const [open, setOpen] = useState<number | null>(null);
  return (
    <section className="grid grid-cols-1 gap-1">
      <SectionHead>History</SectionHead>
      <Loaded query={versions} lines={2}>
        {(data) => (
          <ol aria-label="Versions" className="border-line border-t">
            {data.items.map((version) => (
              <li key={version.version} className="grid grid-cols-1 gap-2 border-line border-b py-1.5">
                <span className="flex flex-wrap items-center gap-x-3">
                  <span className="font-medium">Version {version.version}</span>
                  {version.by_agent && <span className="text-warn">by an agent</span>}
                  <span className="text-meta text-muted">
                    <Age at={version.written_at} ago /> by <Person id={version.written_by} />
                  </span>
                  <Action
                    tone="quiet"
                    className="ml-auto"
                    aria-expanded={open === version.version}
                    aria-label={`Show version ${version.version}`}
                    onPress={() => setOpen((known) => (known === version.version ? null : version.version))}
                  >
                    Show version
                  </Action>
                </span>
                {open === version.version && <SkillVersion skill={skill.skill_id} version={version.version} />}
              </li>
            ))}
          </ol>
        )}
      </Loaded>
    </section>
  );
}

function SkillVersion({ skill, version }: { skill: string; version: number }) {
  const read = useQuery(skillVersionQuery(skill, version));
  return (
    <Loaded query={read} lines={3}>
      {(data) => (
        <>
          <pre className="rounded-box border border-line bg-surface p-3 font-mono text-code break-words whitespace-pre-wrap">
            <Foreign text={data.body} />
          </pre>
          <SkillFiles files={data.files ?? []} />
        </>
      )}
    </Loaded>
  );
}

/** Whose skill is written where no project is chosen. */
const COMMON_SCOPES = [
  { value: "person", name: "Mine" },
  { value: "installation", name: "The installation's" },
] as const;

/** What a request says of the owner. */
const toOwner = (project: string, scope: SkillScope) =>
  project === COMMON ? { scope } : ({ scope: "project", project_id: project } as const);

async function readFolder(chosen: FileList): Promise<SkillFile[]> {
  const files = [...chosen].map(async (file) => ({ path: pathInFolder(file), text: await file.text() }));
  return await Promise.all(files);
}

function ImportForm({ project, onClose }: { project: string; onClose: () => void }) {
  const client = useQueryClient();
  const navigate = useNavigate({ from: "/settings/skills" });
  const [files, setFiles] = useState<SkillFile[]>([]);
  const [scope, setScope] = useState<SkillScope>("person");
  const [key, setKey] = useState(makeKey);
  const send = useMutation({
    mutationFn: () =>
      unwrap(
        api.POST("/v1/skills/import", {
          params: { header: { "Idempotency-Key": key } },
          body: { ...toOwner(project, scope), files },
        }),
      ),
    onSuccess: async (saved) => {
      await client.invalidateQueries({ queryKey: ["skills"] });
      onClose();
      void navigate({ search: { project, skill: saved.skill_id } });
    },
  });
  const reason = send.isPending ? "It is being sent" : folderProblem(files);
  return (
    <Form
      aria-labelledby="skill-import"
      className="grid max-w-[760px] gap-4"
      onSubmit={(event) => {
        event.preventDefault();
        if (!reason) send.mutate();
      }}
    >
      <h2 id="skill-import" className="text-lead">
        Import skill
      </h2>
      <p className="text-muted">
        A folder with a <code className="font-mono text-code">SKILL.md</code> in the open format that coding agents
        read. Malicious content is refused.
      </p>
      {project === COMMON && (
        <div className="max-w-60">
          <Choice label="Whose" value={scope} onChange={setScope} options={COMMON_SCOPES} />
        </div>
      )}
      <label className="grid gap-1">
        <span className="font-medium">Folder</span>
        <input
          type="file"
          multiple
          {...{ webkitdirectory: "" }}
          onChange={(event) => {
            setKey(makeKey());
            if (event.target.files) void readFolder(event.target.files).then(setFiles);
          }}
          className="max-w-full text-muted file:mr-3 file:min-h-8 file:rounded-box file:border file:border-control file:border-solid file:bg-bg file:px-3 file:font-medium file:text-text max-small:file:min-h-10"
        />
      </label>
      {files.length > 0 && (
        <ul aria-label="Files of the folder" className="text-meta text-muted">
          {files.map((file) => (
            <li key={file.path}>
              <Foreign text={file.path} />
            </li>
          ))}
        </ul>
      )}
      {send.error && <ProblemNote error={send.error} />}
      <div className="flex flex-wrap gap-2">
        <Action type="submit" tone="primary" reason={reason}>
          Import skill
        </Action>
        <Action tone="quiet" onPress={onClose}>
          Cancel
        </Action>
      </div>
    </Form>
  );
}

const MAX_BODY_BYTES = 64 * 1024;

function SkillForm({ project, skill, onClose }: { project: string; skill: Skill | null; onClose: () => void }) {
  const client = useQueryClient();
  const navigate = useNavigate({ from: "/settings/skills" });
  const [draft, setDraft] = useState({
    name: skill?.name ?? "",
    description: skill?.description ?? "",
    body: skill?.body ?? "",
    /** The version that the draft began from. */
    version: skill?.version ?? 0,
  });
  const [scope, setScope] = useState<SkillScope>("person");
  const [key, setKey] = useState(makeKey);
  const change = (part: Partial<typeof draft>) => {
    setDraft((known) => ({ ...known, ...part }));
    setKey(makeKey());
  };
  const save = useMutation({
    mutationFn: () => {
      const header = { "Idempotency-Key": key };
      const text = { description: draft.description.trim(), body: draft.body };
      return skill
        ? unwrap(
            api.PUT("/v1/skills/{skill}", {
              params: { path: { skill: skill.skill_id }, header },
              body: { ...text, expected_version: draft.version },
            }),
          )
        : unwrap(
            api.POST("/v1/skills", {
              params: { header },
              body: { ...text, ...toOwner(project, scope), name: draft.name.trim() },
            }),
          );
    },
    onSuccess: async (saved) => {
      await client.invalidateQueries({ queryKey: ["skills"] });
      if (skill) onClose();
      else void navigate({ search: { project, skill: saved.skill_id } });
    },
  });
  const overtaken = skill !== null && skill.version !== draft.version;
  const bytes = new TextEncoder().encode(draft.body).length;
  const reason = save.isPending
    ? "It is being sent"
    : draft.name.trim() === ""
      ? "Write a name"
      : draft.description.trim() === ""
        ? "Write when it is of use"
        : draft.body.trim() === ""
          ? "Write the instructions"
          : bytes > MAX_BODY_BYTES
            ? "The instructions are longer than 64 KiB"
            : overtaken
              ? "First decide about what was written meanwhile"
              : null;
  return (
    <Form
      aria-labelledby="skill-form"
      className="grid max-w-[760px] gap-4"
      onSubmit={(event) => {
        event.preventDefault();
        if (!reason) save.mutate();
      }}
    >
      <h2 id="skill-form" className="text-lead">
        {skill ? (
          <>
            Edit <Foreign text={skill.name} />
          </>
        ) : (
          "Create skill"
        )}
      </h2>
      {!skill && (
        <Field
          label="Name"
          value={draft.name}
          onChange={(name) => change({ name })}
          autoFocus
          mono
          placeholder="release"
          description="Unique for whom it belongs to, and never changed."
        />
      )}
      {!skill && project === COMMON && (
        <div className="max-w-60">
          <Choice
            label="Whose"
            value={scope}
            onChange={(value) => {
              setScope(value);
              setKey(makeKey());
            }}
            options={COMMON_SCOPES}
          />
        </div>
      )}
      <Field
        label="When it is of use"
        value={draft.description}
        onChange={(description) => change({ description })}
        placeholder="When a release is made"
        description="Skills are chosen by it: use the words that tasks use."
      />
      <Field
        label="Instructions"
        value={draft.body}
        onChange={(body) => change({ body })}
        lines={16}
        mono
        description={`Markdown. ${(bytes / 1024).toFixed(1)} of 64 KiB.`}
        error={bytes > MAX_BODY_BYTES ? "Shorten it to 64 KiB" : null}
      />
      {overtaken && (
        <div role="status" className="grid gap-2 border-warn border-l-2 py-1 pl-3">
          <p>
            <span aria-hidden="true" className="mr-1.5 font-mono text-warn">
              !
            </span>
            Somebody wrote version {skill.version} meanwhile. What you typed is still here.
          </p>
          <div className="flex flex-wrap gap-2">
            <Action onPress={() => change({ version: skill.version })}>Keep mine</Action>
            <Action
              onPress={() => change({ description: skill.description, body: skill.body, version: skill.version })}
            >
              Take theirs
            </Action>
          </div>
        </div>
      )}
      {save.error && <ProblemNote error={save.error} />}
      <div className="flex flex-wrap gap-2">
        <Action type="submit" tone="primary" reason={reason}>
          {skill ? "Save skill" : "Create skill"}
        </Action>
        <Action tone="quiet" onPress={onClose}>
          Cancel
        </Action>
      </div>
    </Form>
  );
}
