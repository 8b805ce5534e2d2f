/** One project. Its parts are tabs, and the address holds which is open. */

import { useQuery } from "@tanstack/react-query";
import { Link, useParams, useSearch } from "@tanstack/react-router";
import { projectQuery } from "../api/queries";
import type { ProjectTab } from "../router";
import { Age, Foreign, Loaded, Page, PageHead } from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { TabBar } from "../ui/tabs";
import { EnvironmentTab } from "./project/environment";
import { HandoffsTab } from "./project/handoffs";
import { MembersTab } from "./project/members";
import { MemoryTab } from "./project/memory";
import { PackagesTab } from "./project/packages";
import { ProfilesTab } from "./project/profiles";
import { PullsTab } from "./project/pulls";
import { RepositoryTab } from "./project/repository";
import { SecretsTab } from "./project/secrets";
import { SettingsTab } from "./project/settings";

const TABS: readonly { id: ProjectTab; name: string }[] = [
  { id: "repository", name: "Repository" },
  { id: "pulls", name: "Pull requests" },
  { id: "environment", name: "Environment" },
  { id: "secrets", name: "Secrets" },
  { id: "packages", name: "Packages" },
  { id: "members", name: "Members" },
  { id: "memory", name: "Memory" },
  { id: "profiles", name: "Profiles" },
  { id: "handoffs", name: "Handoffs" },
  { id: "settings", name: "Settings" },
];

/** The same by cynork and by the API, for each tab. */
const COMMANDS: Record<ProjectTab, readonly [command: string, path: string]> = {
  repository: ["project repository --project", "/repository"],
  pulls: ["pr list --project", "/pull-requests"],
  environment: ["project environment list --project", "/environments"],
  secrets: ["project secret list --project", "/secrets"],
  packages: ["project packages --project", "/packages"],
  members: ["project members --project", "/members"],
  memory: ["memory list --project", "/memories"],
  profiles: ["profile list --project", ""],
  handoffs: ["handoff list --project", "/handoffs"],
  settings: ["project show", ""],
};

export function ProjectPage() {
  const { project: id } = useParams({ from: "/projects/$project" });
  const { tab = "repository" } = useSearch({ from: "/projects/$project" });
  const project = useQuery(projectQuery(id));
  const [command, path] = COMMANDS[tab];
  usePageCommand(
    `cynork ${command} ${project.data?.slug ?? id}`,
    tab === "profiles" ? `/v1/profiles?project_id=${id}` : `/v1/projects/${id}${path}`,
  );
  return (
    <Page wide>
      <Loaded query={project}>
        {(data) => (
          <div className="grid grid-cols-1 gap-5">
            <div className="grid grid-cols-1">
              <PageHead
                title={<Foreign text={data.title} />}
                lead={data.description ? <Foreign text={data.description} /> : undefined}
              >
                <Link to="/tasks" search={{ project: data.id }} className="text-accent underline">
                  Tasks of the project
                </Link>
                {!data.archived_at && (
                  <Link
                    to="/tasks/new"
                    search={{ project: data.id }}
                    className="inline-flex min-h-8 items-center rounded-box border border-control px-3 font-medium hover:bg-surface max-small:min-h-10"
                  >
                    New task
                  </Link>
                )}
              </PageHead>
              {data.archived_at && (
                <p className="mb-3 border-warn border-l-2 py-1 pl-3">
                  Archived <Age at={data.archived_at} ago />. It takes no new tasks until it is unarchived in its
                  settings.
                </p>
              )}
              <TabBar label="Parts of the project" parameter="tab" value={tab} tabs={TABS} />
            </div>
            <TabContent tab={tab} project={data} />
          </div>
        )}
      </Loaded>
    </Page>
  );
}

function TabContent({ tab, project }: { tab: ProjectTab; project: Parameters<typeof SettingsTab>[0]["project"] }) {
  switch (tab) {
    case "repository":
      return <RepositoryTab project={project} />;
    case "pulls":
      return <PullsTab project={project} />;
    case "environment":
      return <EnvironmentTab project={project} />;
    case "secrets":
      return <SecretsTab project={project} />;
    case "packages":
      return <PackagesTab project={project} />;
    case "members":
      return <MembersTab project={project} />;
    case "memory":
      return <MemoryTab project={project} />;
    case "profiles":
      return <ProfilesTab project={project} />;
    case "handoffs":
      return <HandoffsTab project={project} />;
    case "settings":
      return <SettingsTab project={project} />;
  }
}
