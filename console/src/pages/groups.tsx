/** Who belongs together? Groups, their members and their roles. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, makeKey, type Schema, unwrap } from "../api/client";
import { meQuery, projectsQuery } from "../api/queries";
import { groupsQuery, userChoicesQuery } from "../api/queries-admin";
import { formatCount, toWords } from "../logic/format";
import { ROLE_CHANGES, type RoleChange } from "../logic/roles";
import { quoteShell } from "../logic/text";
import { Action, Age, Command, Empty, Facts, Foreign, Id, Loaded, Page, ProblemNote, SectionHead } from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { Choice, Field } from "../ui/fields";
import { Person } from "../ui/person";
import { RoleChoice } from "../ui/role-choice";
import { ADMINS_ONLY, ListHead, RowLines, RowLink } from "../ui/rows";
import { SettingsNav } from "../ui/settings-nav";
import { Split, useRowKeys } from "../ui/split";
import { Switch } from "../ui/switch";
import { UndoBar } from "../ui/undo";

type Group = Schema["GroupView"];

export function GroupsPage() {
  const { group: chosenId, create } = useSearch({ from: "/settings/groups" });
  const navigate = useNavigate({ from: "/settings/groups" });
  const me = useQuery(meQuery);
  const groups = useQuery(groupsQuery);
  usePageCommand("cynork group list", "/v1/groups");
  const items = groups.data?.items ?? [];
  const chosen = items.find((item) => item.id === chosenId);
  const close = () => void navigate({ search: {} });
  useRowKeys(
    items.map((item) => item.id),
    chosenId ?? (create ? "" : undefined),
    (next) => void navigate({ search: { group: next }, replace: true }),
    close,
  );
  const reason = me.data?.installation_role === "admin" ? null : ADMINS_ONLY;
  const openForm = () => void navigate({ search: { create: true } });
  return (
    <Page wide>
      <SettingsNav />
      <ListHead
        isChosen={chosenId !== undefined || create === true}
        title="Groups"
        lead="People who share roles, preferences and policies."
      >
        {!create && items.length > 0 && (
          <Action tone={chosen ? "plain" : "primary"} onPress={openForm} reason={reason}>
            Create group
          </Action>
        )}
      </ListHead>
      <Loaded query={groups} lines={6}>
        {() =>
          items.length === 0 && !create ? (
            <Empty title="There is no group yet.">
              <p className="text-muted">
                Give several people a role at once, in one project or in the whole installation.
              </p>
              <Command line="cynork group create reviewers" />
              <div>
                <Action tone="primary" onPress={openForm} reason={reason}>
                  Create group
                </Action>
              </div>
            </Empty>
          ) : (
            <Split
              back="Groups"
              onClose={close}
              list={
                <ul aria-label="Groups" className="border-line border-t">
                  {items.map((item) => (
                    <RowLink key={item.id} parameter="group" id={item.id} isChosen={item.id === chosenId}>
                      <RowLines
                        name={<Foreign text={item.name} />}
                        end={item.role ? `${toWords(item.role)} everywhere` : null}
                        below={formatCount(item.members.length, "member")}
                      />
                    </RowLink>
                  ))}
                </ul>
              }
              detail={
                create ? (
                  <CreateForm onClose={close} reason={reason} />
                ) : chosen ? (
                  <GroupDetail key={chosen.id} group={chosen} reason={reason} />
                ) : chosenId ? (
                  <p role="status">There is no such group.</p>
                ) : null
              }
            />
          )
        }
      </Loaded>
    </Page>
  );
}

function CreateForm({ onClose, reason }: { onClose: () => void; reason: string | null }) {
  const client = useQueryClient();
  const navigate = useNavigate({ from: "/settings/groups" });
  const [name, setName] = useState("");
  const [key, setKey] = useState(makeKey);
  const create = useMutation({
    mutationFn: () =>
      unwrap(
        api.POST("/v1/groups", {
          params: { header: { "Idempotency-Key": key } },
          body: { name: name.trim() },
        }),
      ),
    onSuccess: async (group) => {
      await client.invalidateQueries({ queryKey: ["groups"] });
      void navigate({ search: { group: group.id } });
    },
  });
  const blocked =
    reason ?? (create.isPending ? "The group is being created" : name.trim() === "" ? "Write a name" : null);
  return (
    <Form
      aria-labelledby="create-group"
      className="grid max-w-[560px] gap-4"
      onSubmit={(event) => {
        event.preventDefault();
        if (!blocked) create.mutate();
      }}
    >
      <h2 id="create-group" className="text-lead">
        Create group
      </h2>
      <Field
        label="Name"
        value={name}
        onChange={(text) => {
          setName(text);
          setKey(makeKey());
        }}
        autoFocus
        description="Groups are not renamed or deleted: choose a name that lasts."
      />
      {create.error && <ProblemNote error={create.error} />}
      <div className="flex flex-wrap gap-2">
        <Action type="submit" tone="primary" reason={blocked}>
          Create group
        </Action>
        <Action tone="quiet" onPress={onClose}>
          Cancel
        </Action>
      </div>
    </Form>
  );
}

function GroupDetail({ group, reason }: { group: Group; reason: string | null }) {
  const client = useQueryClient();
  const people = useQuery(userChoicesQuery);
  const [added, setAdded] = useState("");
  const [done, setDone] = useState<{ words: string; undo: Schema["UpdateGroup"] } | null>(null);
  const update = useMutation({
    mutationFn: ({ body }: { body: Schema["UpdateGroup"]; words: string; undo: Schema["UpdateGroup"] | null }) =>
      unwrap(api.PATCH("/v1/groups/{group}", { params: { path: { group: group.id } }, body })),
    onSuccess: (_, { words, undo }) => {
      setAdded("");
      setDone(undo ? { words, undo } : null);
    },
    onSettled: () => void client.invalidateQueries({ queryKey: ["groups"] }),
  });
  const blocked = reason ?? (update.isPending ? "It is being sent" : null);
  const nameOf = (id: string) => people.data?.items.find((it) => it.id === id)?.handle ?? id.slice(-8);
  const others = (people.data?.items ?? []).filter((it) => it.active && !group.members.includes(it.id));
  return (
    <article className="grid grid-cols-1 gap-5">
      <h2 className="text-lead">
        <Foreign text={group.name} />
      </h2>
      <Facts
        rows={[
          ["Created", <Age key="created" at={group.created_at} ago />],
          ["Id", <Id key="id" id={group.id} />],
        ]}
      />
      <section className="grid grid-cols-1 gap-2">
        <SectionHead aside={formatCount(group.members.length, "member")}>Members</SectionHead>
        {group.members.length === 0 ? (
          <p className="text-muted">Nobody is in it yet.</p>
        ) : (
          <ul aria-label="Members">
            {group.members.map((member) => (
              <li key={member} className="flex min-h-10 items-center justify-between gap-3 border-line border-b">
                <Link to="/settings/people" search={{ user: member }} className="text-accent underline">
                  <Person id={member} />
                </Link>
                <Action
                  tone="quiet"
                  aria-label={`Remove ${nameOf(member)} from the group`}
                  reason={blocked}
                  onPress={() =>
                    update.mutate({
                      body: { remove: [member] },
                      words: `${nameOf(member)} is no longer in the group.`,
                      undo: { add: [member] },
                    })
                  }
                >
                  Remove
                </Action>
              </li>
            ))}
          </ul>
        )}
        <div className="grid max-w-[420px] grid-cols-[1fr_auto] items-end gap-2">
          <Choice
            label="Add a person"
            value={added}
            onChange={setAdded}
            options={[
              { value: "", name: others.length === 0 ? "Everybody is in it" : "Choose" },
              ...others.map((it) => ({ value: it.id, name: `${it.display_name} (${it.handle})` })),
            ]}
          />
          <Action
            reason={blocked ?? (added === "" ? "Choose a person first" : null)}
            onPress={() =>
              update.mutate({
                body: { add: [added] },
                words: `${nameOf(added)} is in the group now.`,
                undo: { remove: [added] },
              })
            }
          >
            Add member
          </Action>
        </div>
        {people.error && <ProblemNote error={people.error} />}
      </section>
      <section className="grid grid-cols-1 gap-3">
        <SectionHead>Roles</SectionHead>
        <div className="max-w-[420px]">
          <RoleChoice
            label="Role in the installation"
            role={group.role ?? "none"}
            reason={blocked}
            onChange={(role) =>
              update.mutate({
                body: { role },
                words: `The role of the group is ${role} now.`,
                undo: { role: group.role ?? "none" },
              })
            }
          />
        </div>
        <div className="flex items-center gap-3">
          <span>Its members may create projects</span>
          <Switch
            label={`Whether members of ${group.name} may create projects`}
            isOn={group.can_create_projects ?? false}
            reason={blocked}
            onChange={(isOn) =>
              update.mutate({
                body: { can_create_projects: isOn },
                words: isOn ? "Its members may create projects now." : "Its members create no projects any more.",
                undo: { can_create_projects: !isOn },
              })
            }
          />
        </div>
        <ProjectRole group={group} />
      </section>
      <p className="flex flex-wrap gap-x-4 gap-y-1">
        <Link
          to="/settings/preferences"
          search={{ level: `group:${group.id}` }}
          className="text-accent underline underline-offset-2"
        >
          Preferences of the group
        </Link>
        <Link
          to="/settings/policies"
          search={{ level: `group:${group.id}` }}
          className="text-accent underline underline-offset-2"
        >
          Policies of the group
        </Link>
      </p>
      {update.error && <ProblemNote error={update.error} />}
      {done && (
        <UndoBar
          onUndo={() => update.mutate({ body: done.undo, words: "", undo: null })}
          onClose={() => setDone(null)}
          busy={update.isPending ? "It is being sent" : null}
        >
          <Foreign text={done.words} />
        </UndoBar>
      )}
    </article>
  );
}

/** The API gives a group a role in a project, and does not list the roles that it has. */
function ProjectRole({ group }: { group: Group }) {
  const client = useQueryClient();
  const projects = useQuery(projectsQuery);
  const [chosen, setChosen] = useState("");
  const [role, setRole] = useState<RoleChange>("viewer");
  const project = projects.data?.items.find((it) => it.id === chosen) ?? projects.data?.items[0];
  const set = useMutation({
    mutationFn: (request: { project: string; slug: string; role: RoleChange }) =>
      unwrap(
        api.PUT("/v1/projects/{project}/groups/{group}", {
          params: { path: { project: request.project, group: group.id } },
          body: { role: request.role },
        }),
      ),
    onSettled: (_, __, request) => void client.invalidateQueries({ queryKey: ["project", request.project] }),
  });
  if (!project) return null;
  return (
    <Form
      aria-label="Role in a project"
      className="grid max-w-[560px] gap-2"
      onSubmit={(event) => {
        event.preventDefault();
        if (!set.isPending) set.mutate({ project: project.id, slug: project.slug, role });
      }}
    >
      <div className="grid items-end gap-2 small:grid-cols-[1fr_1fr_auto]">
        <Choice
          label="Project"
          value={project.id}
          onChange={setChosen}
          options={(projects.data?.items ?? []).map((it) => ({ value: it.id, name: it.slug }))}
        />
        <Choice label="Role of its members there" value={role} onChange={setRole} options={ROLE_CHANGES} />
        <Action type="submit" reason={set.isPending ? "It is being sent" : null}>
          Set role
        </Action>
      </div>
      <p role="status" className="text-meta text-muted">
        {set.isSuccess && set.variables ? (
          <>
            <span aria-hidden="true">✓ </span>The role in <Foreign text={set.variables.slug} /> is {set.variables.role}{" "}
            now.
          </>
        ) : (
          "The server does not list the roles of groups in projects. Setting one replaces what was there."
        )}
      </p>
      {set.error && <ProblemNote error={set.error} />}
      <details>
        <summary className="cursor-default text-muted">By command</summary>
        <div className="pt-2">
          <Command
            line={quoteShell(["cynork", "project", "grant-group", group.name, role, "--project", project.slug])}
          />
        </div>
      </details>
    </Form>
  );
}
