import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, unwrap } from "../api/client";
import { meQuery, projectsQuery, usageQuery } from "../api/queries";
import { allProjectsQuery } from "../api/queries-places";
import { formatCost } from "../logic/format";
import { toSlug } from "../logic/welcome";
import { Action, Age, Command, cx, Empty, Foreign, Loaded, Page, PageHead, ProblemNote } from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { Field } from "../ui/fields";
import { useKeys } from "../ui/keys";
import { Layer } from "../ui/layer";
import { Tick } from "../ui/switch";

export function ProjectsPage() {
  const { archived, create } = useSearch({ from: "/projects" });
  const navigate = useNavigate({ from: "/projects" });
  usePageCommand(
    `cynork project list${archived ? " --archived" : ""}`,
    `/v1/projects${archived ? "?archived=true" : ""}`,
  );
  const projects = useQuery(archived ? allProjectsQuery : projectsQuery);
  const usage = useQuery(usageQuery("project"));
  const me = useQuery(meQuery);
  const costs = new Map((usage.data?.items ?? []).map((sum) => [sum.key, sum.cost_micros]));
  const items = projects.data?.items ?? [];
  const [cursor, setCursor] = useState(-1);
  const chosen = items[cursor];
  useKeys({
    j: () => setCursor((index) => Math.min(index + 1, items.length - 1)),
    k: () => setCursor((index) => Math.max(index - 1, 0)),
    Enter: chosen ? () => void navigate({ to: "/projects/$project", params: { project: chosen.id } }) : undefined,
  });
  const openForm = () => void navigate({ search: (previous) => ({ ...previous, create: true }) });
  const closeForm = () => void navigate({ search: (previous) => ({ ...previous, create: undefined }) });
  return (
    <Page wide>
      <PageHead title="Projects" lead="Each is a repository with its people, models and limits.">
        <Tick
          label="Show archived projects"
          isTicked={archived === true}
          onChange={(isTicked) =>
            void navigate({ search: (previous) => ({ ...previous, archived: isTicked || undefined }), replace: true })
          }
        />
        <Action tone="primary" onPress={openForm}>
          Create project
        </Action>
      </PageHead>
      <Loaded query={projects}>
        {() =>
          items.length === 0 ? (
            <Empty title="There is no project yet.">
              <p className="text-muted">
                A project is a repository with its people, models and limits. Make one and import the repository that
                you stand in:
              </p>
              <Command line="cynork project create NAME" />
              <Command line="cynork project import . --project NAME" />
            </Empty>
          ) : (
            <ul aria-label="Projects" className="border-line border-t">
              {items.map((project, index) => (
                <li key={project.id}>
                  <Link
                    to="/projects/$project"
                    params={{ project: project.id }}
                    className={cx(
                      "flex min-h-10 flex-wrap items-center gap-x-4 border-line border-b px-2 py-1.5 -outline-offset-2 hover:bg-surface",
                      index === cursor && "bg-select",
                    )}
                  >
                    <span className="font-medium">
                      <Foreign text={project.title} />
                    </span>
                    {project.title !== project.slug && (
                      <code className="font-mono text-code text-muted">{project.slug}</code>
                    )}
                    {project.archived_at && <span className="text-meta text-muted">– archived</span>}
                    <span className="ml-auto text-right text-meta text-muted">
                      {formatCost(costs.get(project.id) ?? 0, me.data?.currency)} spent
                    </span>
                    <span className="w-28 text-right text-meta text-faint">
                      created <Age at={project.created_at} ago />
                    </span>
                  </Link>
                </li>
              ))}
            </ul>
          )
        }
      </Loaded>
      {create && <CreateProject onClose={closeForm} />}
    </Page>
  );
}

function CreateProject({ onClose }: { onClose: () => void }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const [title, setTitle] = useState("");
  const [typed, setTyped] = useState<string | null>(null);
  const [description, setDescription] = useState("");
  const slug = typed ?? toSlug(title);
  const create = useMutation({
    mutationFn: () =>
      unwrap(
        api.POST("/v1/projects", {
          body: {
            title: title.trim(),
            slug: slug.trim(),
            ...(description.trim() === "" ? {} : { description: description.trim() }),
          },
        }),
      ),
    onSuccess: async (project) => {
      await client.invalidateQueries({ queryKey: ["projects"] });
      void navigate({ to: "/projects/$project", params: { project: project.id } });
    },
  });
  const reason = create.isPending
    ? "It is being created"
    : title.trim() === ""
      ? "Write what the project is called"
      : slug.trim() === ""
        ? "Write a name for addresses"
        : null;
  return (
    <Layer title="Create project" isOpen onClose={onClose}>
      <Form
        className="grid gap-4"
        onSubmit={(event) => {
          event.preventDefault();
          if (!reason) create.mutate();
        }}
      >
        <Field label="Title" value={title} onChange={setTitle} placeholder="Web shop" autoFocus />
        <Field
          label="Name in addresses and commands"
          value={slug}
          onChange={setTyped}
          mono
          description="Lower-case letters, digits and dashes. It cannot be changed later."
        />
        <Field label="What it is about" value={description} onChange={setDescription} lines={2} />
        {create.error && <ProblemNote error={create.error} />}
        <div>
          <Action type="submit" tone="primary" reason={reason}>
            Create project
          </Action>
        </div>
      </Form>
    </Layer>
  );
}
