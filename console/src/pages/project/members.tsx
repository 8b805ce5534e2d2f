/** Who may do what in a project. */

import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useMemo, useState } from "react";
import { api, type Schema, unwrap } from "../../api/client";
import { meQuery } from "../../api/queries";
import { groupsQuery, userChoicesQuery } from "../../api/queries-admin";
import { membersQuery } from "../../api/queries-places";
import { formatCount } from "../../logic/format";
import { ROLE_CHANGES, type RoleChange } from "../../logic/roles";
import { Action, Age, Command, Foreign, Loaded, ProblemNote, SectionHead } from "../../ui/basic";
import { Choice, Field } from "../../ui/fields";
import { ConfirmLayer } from "../../ui/rows";
import { type Project, useProjectChange } from "./use-project-change";

type Role = Schema["Role"];
type Member = Schema["Page_MemberView"]["items"][number];

const ROLES = ROLE_CHANGES.filter((entry): entry is { value: Role; name: string } => entry.value !== "none");

export function MembersTab({ project }: { project: Project }) {
  return (
    <div className="grid max-w-[960px] grid-cols-1 gap-8">
      <Members project={project} />
      <GroupRole project={project} />
    </div>
  );
}

function Members({ project }: { project: Project }) {
  const me = useQuery(meQuery);
  const members = useInfiniteQuery(membersQuery(project.id));
  const items = useMemo(() => members.data?.pages.flatMap((page) => page.items) ?? [], [members.data]);
  const [leaving, setLeaving] = useState<Member | null>(null);
  const set = useProjectChange(project.id, ({ user, role }: { user: string; role: Role }) =>
    unwrap(
      api.PUT("/v1/projects/{project}/members/{user}", {
        params: { path: { project: project.id, user } },
        body: { role },
      }),
    ),
  );
  const remove = useProjectChange(
    project.id,
    (user: string) =>
      unwrap(api.DELETE("/v1/projects/{project}/members/{user}", { params: { path: { project: project.id, user } } })),
    () => setLeaving(null),
  );
  return (
    <section className="grid grid-cols-1 gap-3">
      <SectionHead>Members</SectionHead>
      <Loaded query={members}>
        {() => (
          <ul aria-label="Members" className="-mt-3">
            {items.map((member) => (
              <li
                key={member.user_id}
                className="flex flex-wrap items-center gap-x-3 gap-y-1 border-line border-b py-1.5"
              >
                <span className="min-w-0 font-medium">
                  <Foreign text={member.handle} />
                  {member.user_id === me.data?.user.id && <span className="font-normal text-muted"> (you)</span>}
                </span>
                <span className="text-meta text-muted">
                  added <Age at={member.added_at} ago />
                </span>
                <span className="ml-auto flex flex-wrap items-center gap-2">
                  <Choice
                    label={`Role of ${member.handle}`}
                    hideLabel
                    value={member.role}
                    onChange={(role) => set.mutate({ user: member.user_id, role })}
                    options={ROLES}
                  />
                  <Action tone="quiet" onPress={() => setLeaving(member)}>
                    Remove {member.handle}…
                  </Action>
                </span>
              </li>
            ))}
          </ul>
        )}
      </Loaded>
      {members.hasNextPage && (
        <div>
          <Action
            onPress={() => void members.fetchNextPage()}
            reason={members.isFetchingNextPage ? "They are being read" : null}
          >
            Show more members
          </Action>
        </div>
      )}
      {set.error && <ProblemNote error={set.error} />}
      <AddMember
        project={project}
        known={items.map((member) => member.user_id)}
        busy={set.isPending}
        onAdd={(user, role) => set.mutate({ user, role })}
      />
      {leaving && (
        <ConfirmLayer
          title={`Remove ${leaving.handle} from ${project.slug}?`}
          action="Remove member"
          keep="Keep member"
          pending={remove.isPending}
          error={remove.error}
          onConfirm={() => remove.mutate(leaving.user_id)}
          onClose={() => setLeaving(null)}
        >
          <p>
            The person no longer sees this project, unless a group or a role of the installation says otherwise. Their
            tasks go on.
          </p>
        </ConfirmLayer>
      )}
    </section>
  );
}

function AddMember({
  project,
  known,
  busy,
  onAdd,
}: {
  project: Project;
  known: readonly string[];
  busy: boolean;
  onAdd: (user: string, role: Role) => void;
}) {
  const users = useQuery(userChoicesQuery);
  const [user, setUser] = useState("");
  const [role, setRole] = useState<Role>("operator");
  const others = (users.data?.items ?? []).filter((entry) => entry.active && !known.includes(entry.id));
  return (
    <div className="grid max-w-[640px] gap-3">
      <div className="grid grid-cols-1 items-end gap-3 small:grid-cols-[1fr_1fr_auto]">
        {users.data ? (
          <Choice
            label="Person"
            value={user}
            onChange={setUser}
            options={[
              { value: "", name: others.length === 0 ? "Everybody is a member" : "Choose a person" },
              ...others.map((entry) => ({ value: entry.id, name: `${entry.display_name} (${entry.handle})` })),
            ]}
          />
        ) : (
          <Field label="Person" value={user} onChange={setUser} mono placeholder="usr_…" />
        )}
        <Choice label="Role" value={role} onChange={setRole} options={ROLES} />
        <Action
          onPress={() => {
            onAdd(user.trim(), role);
            setUser("");
          }}
          reason={busy ? "It is being sent" : user.trim() === "" ? "Choose a person" : null}
        >
          Add member
        </Action>
      </div>
      {others.length === 0 && users.data && (
        <Command line={`cynork project grant HANDLE ${role} --project ${project.slug}`} />
      )}
    </div>
  );
}

function GroupRole({ project }: { project: Project }) {
  const groups = useQuery(groupsQuery);
  const [group, setGroup] = useState("");
  const [role, setRole] = useState<RoleChange>("viewer");
  const set = useProjectChange(project.id, () =>
    unwrap(
      api.PUT("/v1/projects/{project}/groups/{group}", {
        params: { path: { project: project.id, group } },
        body: { role },
      }),
    ),
  );
  const chosen = groups.data?.items.find((entry) => entry.id === group);
  return (
    <section className="grid grid-cols-1 gap-3">
      <SectionHead>Roles of groups</SectionHead>
      <p className="max-w-[640px] text-muted">
        Everybody in a group gets its role in this project. “None” takes it away. Who is in a group stands on its page.
      </p>
      <Loaded query={groups}>
        {(data) =>
          data.items.length === 0 ? (
            <p>
              There is no group yet.{" "}
              <Link to="/settings/groups" className="text-accent underline">
                Create a group
              </Link>
            </p>
          ) : (
            <div className="grid max-w-[640px] grid-cols-1 items-end gap-3 small:grid-cols-[1fr_1fr_auto]">
              <Choice
                label="Group"
                value={group}
                onChange={(value) => {
                  setGroup(value);
                  set.reset();
                }}
                options={[
                  { value: "", name: "Choose a group" },
                  ...data.items.map((entry) => ({
                    value: entry.id,
                    name: `${entry.name} (${formatCount(entry.members.length, "member")})`,
                  })),
                ]}
              />
              <Choice label="Role" value={role} onChange={setRole} options={ROLE_CHANGES} />
              <Action
                onPress={() => set.mutate(undefined)}
                reason={set.isPending ? "It is being sent" : group === "" ? "Choose a group" : null}
              >
                Set role of group
              </Action>
            </div>
          )
        }
      </Loaded>
      {set.error && <ProblemNote error={set.error} />}
      {set.isSuccess && (
        <p role="status" className="border-ok border-l-2 py-1 pl-3">
          The role{chosen ? ` of ${chosen.name}` : ""} is set.
        </p>
      )}
    </section>
  );
}
