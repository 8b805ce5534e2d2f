/** What are the agents of a project told to do? Skills: instructions as text, which nobody here obeys. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, makeKey, type Schema, unwrap } from "../api/client";
import { projectsQuery } from "../api/queries";
import { skillQuery, skillsQuery } from "../api/queries-admin";
import { quoteShell } from "../logic/text";
import {
  Action,
  Age,
  Command,
  Empty,
  Facts,
  Foreign,
  Id,
  Loaded,
  Page,
  PageHead,
  ProblemNote,
  SectionHead,
} from "../ui/basic";
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
  const project = search.project ?? chosen.data?.project_id ?? projects.data?.items[0]?.id ?? "";
  const slug = projects.data?.items.find((it) => it.id === project)?.slug ?? "PROJECT";
  usePageCommand(
    search.skill
      ? quoteShell(["cynork", "skill", "show", search.skill])
      : quoteShell(["cynork", "skill", "list", "--project", slug]),
    search.skill ? `/v1/skills/${search.skill}` : `/v1/skills?project=${project}`,
  );
  return (
    <Page wide>
      <SettingsNav />
      <Loaded query={projects}>
        {(data) =>
          data.items.length === 0 ? (
            <>
              <PageHead title="Skills" />
              <Empty title="There is no project yet.">
                <p className="text-muted">Skills belong to a project. Make one in a repository:</p>
                <Command line="cynork project import ." />
                <p>
                  <Link to="/projects" className="font-medium text-accent underline">
                    Projects
                  </Link>
                </p>
              </Empty>
            </>
          ) : (
            <SkillsContent key={project} project={project} slug={slug} projects={data.items} />
          )
        }
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
  const skills = useQuery(skillsQuery(project));
  const items = skills.data?.items ?? [];
  const close = () => void navigate({ search: { project } });
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
        lead="Instructions that the agents of a project are given when they are of use."
      >
        {!create && items.length > 0 && (
          <Action tone={chosen ? "plain" : "primary"} onPress={openForm}>
            Create skill
          </Action>
        )}
      </ListHead>
      <Split
        back="Skills"
        onClose={close}
        list={
          <div className="grid grid-cols-1 gap-3">
            <div id="filter" className="max-w-80">
              <Choice
                label="Project"
                value={project}
                onChange={(value) => void navigate({ search: { project: value } })}
                options={projects.map((it) => ({ value: it.id, name: it.slug }))}
              />
            </div>
            <Loaded query={skills} lines={6}>
              {() =>
                items.length === 0 ? (
                  !create && (
                    <Empty title="This project has no skill.">
                      <p className="text-muted">
                        Write down once how something is done here; agents read it when they need it.
                      </p>
                      <Command
                        line={`cynork skill create release --about 'When a release is made' --body @release.md --project ${quoteShell([slug])}`}
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
          create ? (
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
      void navigate({ search: { project: skill.project_id } });
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
              body: { ...text, name: draft.name.trim(), project_id: project },
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
          description="Unique in the project, and never changed."
        />
      )}
      <Field
        label="When it is of use"
        value={draft.description}
        onChange={(description) => change({ description })}
        placeholder="When a release is made"
        description="Agents see this and ask for the instructions when it fits."
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
