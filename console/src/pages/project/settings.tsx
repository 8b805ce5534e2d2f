/** Title, description, archive and the end of a project. */

import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, unwrap } from "../../api/client";
import { Action, Age, Facts, Id, ProblemNote, SectionHead } from "../../ui/basic";
import { Field } from "../../ui/fields";
import { Person } from "../../ui/person";
import { ConfirmLayer } from "../../ui/rows";
import { UndoBar } from "../../ui/undo";
import { type Project, useProjectChange } from "./use-project-change";

export function SettingsTab({ project }: { project: Project }) {
  return (
    <div className="grid max-w-[760px] grid-cols-1 gap-8">
      <Names key={`${project.title} ${project.description ?? ""}`} project={project} />
      <Archive project={project} />
    </div>
  );
}

function Names({ project }: { project: Project }) {
  const [title, setTitle] = useState(project.title);
  const [description, setDescription] = useState(project.description ?? "");
  const save = useProjectChange(project.id, () =>
    unwrap(
      api.PATCH("/v1/projects/{project}", {
        params: { path: { project: project.id } },
        body: { title: title.trim(), ...(description.trim() === "" ? {} : { description: description.trim() }) },
      }),
    ),
  );
  const unchanged = title.trim() === project.title && description.trim() === (project.description ?? "");
  const reason = save.isPending
    ? "It is being saved"
    : title.trim() === ""
      ? "Write a title"
      : unchanged
        ? "Nothing is changed"
        : project.description && description.trim() === ""
          ? "A description can be changed, but not emptied"
          : null;
  return (
    <section className="grid grid-cols-1 gap-4">
      <SectionHead>Name</SectionHead>
      <Form
        className="grid gap-4"
        onSubmit={(event) => {
          event.preventDefault();
          if (!reason) save.mutate(undefined);
        }}
      >
        <Field label="Title" value={title} onChange={setTitle} />
        <Field label="What it is about" value={description} onChange={setDescription} lines={3} />
        {save.error && <ProblemNote error={save.error} />}
        <div>
          <Action type="submit" tone="primary" reason={reason}>
            Save project
          </Action>
        </div>
      </Form>
      <Facts
        rows={[
          [
            "Name in addresses",
            <code key="slug" className="font-mono text-code">
              {project.slug}
            </code>,
          ],
          ["Id", <Id key="id" id={project.id} />],
          [
            "Created",
            <span key="created">
              <Age at={project.created_at} ago /> by <Person id={project.created_by} />
            </span>,
          ],
        ]}
      />
    </section>
  );
}

function Archive({ project }: { project: Project }) {
  const navigate = useNavigate();
  const [asks, setAsks] = useState(false);
  const [done, setDone] = useState(false);
  const options = { params: { path: { project: project.id } } };
  const archive = useProjectChange(
    project.id,
    () => unwrap(api.POST("/v1/projects/{project}/archive", options)),
    () => setDone(true),
  );
  const unarchive = useProjectChange(
    project.id,
    () => unwrap(api.POST("/v1/projects/{project}/unarchive", options)),
    () => setDone(false),
  );
  const remove = useProjectChange(
    project.id,
    () => unwrap(api.DELETE("/v1/projects/{project}", options)),
    () => void navigate({ to: "/projects" }),
  );
  const busy = archive.isPending || unarchive.isPending ? "It is being sent" : null;
  return (
    <section className="grid grid-cols-1 gap-4">
      <SectionHead>Archive and delete</SectionHead>
      {project.archived_at ? (
        <p className="text-muted">An unarchived project takes new tasks again. Nothing of it was lost.</p>
      ) : (
        <p className="text-muted">
          An archived project takes no new tasks. Everything of it stays and can be read; open tasks prevent it.
        </p>
      )}
      {(archive.error || unarchive.error) && <ProblemNote error={archive.error ?? unarchive.error} />}
      <div className="flex flex-wrap gap-2">
        {project.archived_at ? (
          <Action onPress={() => unarchive.mutate(undefined)} reason={busy}>
            Unarchive project
          </Action>
        ) : (
          <Action onPress={() => archive.mutate(undefined)} reason={busy}>
            Archive project
          </Action>
        )}
        <Action
          tone="danger"
          onPress={() => setAsks(true)}
          reason={project.archived_at ? busy : "Archive it first: only an archived project can be deleted"}
        >
          Delete project…
        </Action>
      </div>
      {done && project.archived_at && (
        <UndoBar onUndo={() => unarchive.mutate(undefined)} onClose={() => setDone(false)} busy={busy}>
          The project is archived.
        </UndoBar>
      )}
      {asks && (
        <ConfirmLayer
          title={`Delete ${project.slug}?`}
          action="Delete project"
          keep="Keep project"
          typed={project.slug}
          pending={remove.isPending}
          error={remove.error}
          onConfirm={() => remove.mutate(undefined)}
          onClose={() => setAsks(false)}
        >
          <p>
            Its tasks, repository, pull requests, models, budgets, schedules, secrets and preferences are deleted. This
            cannot be undone. The audit log stays.
          </p>
        </ConfirmLayer>
      )}
    </section>
  );
}
