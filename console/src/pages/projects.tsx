import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { meQuery, projectsQuery, usageQuery } from "../api/queries";
import { formatCost } from "../logic/format";
import { Age, Command, Empty, Foreign, Loaded, Page, PageHead } from "../ui/basic";
import { usePageCommand } from "../ui/copy";

export function ProjectsPage() {
  usePageCommand("cynork project list", "/v1/projects");
  const projects = useQuery(projectsQuery);
  const usage = useQuery(usageQuery("project"));
  const me = useQuery(meQuery);
  const costs = new Map((usage.data?.items ?? []).map((sum) => [sum.key, sum.cost_micros]));
  return (
    <Page>
      <PageHead title="Projects" />
      <Loaded query={projects}>
        {(data) =>
          data.items.length === 0 ? (
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
              {data.items.map((project) => (
                <li key={project.id}>
                  <Link
                    to="/projects/$project"
                    params={{ project: project.id }}
                    className="flex min-h-10 flex-wrap items-center gap-x-4 border-line border-b px-2 py-1.5 -outline-offset-2 hover:bg-surface"
                  >
                    <span className="font-medium">
                      <Foreign text={project.title} />
                    </span>
                    <code className="font-mono text-code text-muted">{project.slug}</code>
                    <span className="ml-auto text-meta text-muted">
                      {formatCost(costs.get(project.id) ?? 0, me.data?.currency)} spent
                    </span>
                    <Age at={project.created_at} className="w-12 text-right text-meta text-faint" />
                  </Link>
                </li>
              ))}
            </ul>
          )
        }
      </Loaded>
    </Page>
  );
}
