/** Who may use the installation, and as what? */

import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, makeKey, type Schema, unwrap } from "../api/client";
import { meQuery, projectsQuery } from "../api/queries";
import { groupsQuery, roleInProjectQuery, userQuery, usersQuery } from "../api/queries-admin";
import { toWords } from "../logic/format";
import { MIN_PASSWORD_CHARS, type NewUser, ROLE_CHANGES, type RoleChange, toUserRequest } from "../logic/roles";
import { quoteShell } from "../logic/text";
import { Action, Age, Facts, Foreign, Id, Loaded, Page, ProblemNote, SectionHead, Sign } from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { Choice, Field } from "../ui/fields";
import { Layer } from "../ui/layer";
import { RoleChoice } from "../ui/role-choice";
import { ADMINS_ONLY, ConfirmLayer, ListHead, RowLines, RowLink } from "../ui/rows";
import { SettingsNav } from "../ui/settings-nav";
import { Split, useRowKeys } from "../ui/split";
import { Switch } from "../ui/switch";
import { UndoBar } from "../ui/undo";

type User = Schema["UserView"];

export function PeoplePage() {
  const { user, create } = useSearch({ from: "/settings/people" });
  const navigate = useNavigate({ from: "/settings/people" });
  const me = useQuery(meQuery);
  const users = useInfiniteQuery(usersQuery);
  usePageCommand(
    user ? quoteShell(["cynork", "user", "show", user]) : "cynork user list",
    user ? `/v1/users/${user}` : "/v1/users",
  );
  const items = users.data?.pages.flatMap((page) => page.items) ?? [];
  const close = () => void navigate({ search: {} });
  useRowKeys(
    items.map((item) => item.id),
    user ?? (create ? "" : undefined),
    (next) => void navigate({ search: { user: next }, replace: true }),
    close,
  );
  const reason = me.data?.installation_role === "admin" ? null : ADMINS_ONLY;
  return (
    <Page wide>
      <SettingsNav />
      <ListHead
        isChosen={user !== undefined || create === true}
        title="People"
        lead="Everybody with an account. A role here holds in every project."
      >
        {!create && (
          <Action
            tone={user ? "plain" : "primary"}
            onPress={() => void navigate({ search: { create: true } })}
            reason={reason}
          >
            Create user
          </Action>
        )}
      </ListHead>
      <Loaded query={users} lines={8}>
        {() => (
          <Split
            back="People"
            onClose={close}
            list={
              <>
                <ul aria-label="People" className="border-line border-t">
                  {items.map((item) => (
                    <RowLink key={item.id} parameter="user" id={item.id} isChosen={item.id === user}>
                      <RowLines
                        name={
                          <>
                            <Foreign text={item.handle} />
                            {item.id === me.data?.user.id && <span className="font-normal text-muted"> (you)</span>}
                          </>
                        }
                        end={
                          item.active ? (
                            item.role ? (
                              toWords(item.role)
                            ) : (
                              "No role of its own"
                            )
                          ) : (
                            <Sign standing="cancelled" word="Disabled" />
                          )
                        }
                        below={<Foreign text={[item.display_name, item.email].filter(Boolean).join(" · ")} />}
                      />
                    </RowLink>
                  ))}
                </ul>
                {users.hasNextPage && (
                  <div className="py-3">
                    <Action
                      onPress={() => void users.fetchNextPage()}
                      reason={users.isFetchingNextPage ? "They are being read" : null}
                    >
                      Show more people
                    </Action>
                  </div>
                )}
              </>
            }
            detail={
              create ? (
                <CreateForm onClose={close} reason={reason} />
              ) : user ? (
                <UserDetail key={user} id={user} reason={reason} />
              ) : null
            }
          />
        )}
      </Loaded>
    </Page>
  );
}

const EMPTY_USER: NewUser = { handle: "", name: "", email: "", password: "", role: "none" };

function CreateForm({ onClose, reason }: { onClose: () => void; reason: string | null }) {
  const client = useQueryClient();
  const navigate = useNavigate({ from: "/settings/people" });
  const [draft, setDraft] = useState(EMPTY_USER);
  const [key, setKey] = useState(makeKey);
  const change = (part: Partial<NewUser>) => {
    setDraft((known) => ({ ...known, ...part }));
    setKey(makeKey());
  };
  const request = toUserRequest(draft);
  const create = useMutation({
    mutationFn: (body: Schema["CreateUser"]) =>
      unwrap(api.POST("/v1/users", { params: { header: { "Idempotency-Key": key } }, body })),
    onSuccess: (user) => void navigate({ search: { user: user.id } }),
    onSettled: () => void client.invalidateQueries({ queryKey: ["users"] }),
  });
  const blocked =
    reason ?? (create.isPending ? "The user is being created" : "missing" in request ? request.missing : null);
  return (
    <Form
      aria-labelledby="create-user"
      className="grid max-w-[560px] gap-4"
      onSubmit={(event) => {
        event.preventDefault();
        if (!blocked && "body" in request) create.mutate(request.body);
      }}
    >
      <h2 id="create-user" className="text-lead">
        Create user
      </h2>
      <Field
        label="Handle"
        value={draft.handle}
        onChange={(handle) => change({ handle })}
        autoFocus
        autoComplete="off"
        description="What the person logs in with."
      />
      <Field label="Name" value={draft.name} onChange={(name) => change({ name })} description="What others see." />
      <Field label="Email, if there is one" value={draft.email} onChange={(email) => change({ email })} type="email" />
      <Field
        label="Password"
        value={draft.password}
        onChange={(password) => change({ password })}
        type="password"
        autoComplete="new-password"
        description={`At least ${MIN_PASSWORD_CHARS} characters. Hand it over by a way that nobody else reads.`}
      />
      <Choice
        label="Role in the installation"
        value={draft.role}
        onChange={(role) => change({ role })}
        options={ROLE_CHANGES}
      />
      <p className="text-meta text-muted">Without a role, the person sees only projects that gave them one.</p>
      {create.error && <ProblemNote error={create.error} />}
      <div className="flex flex-wrap gap-2">
        <Action type="submit" tone="primary" reason={blocked}>
          Create user
        </Action>
        <Action tone="quiet" onPress={onClose}>
          Cancel
        </Action>
      </div>
    </Form>
  );
}

function UserDetail({ id, reason }: { id: string; reason: string | null }) {
  const query = useQuery(userQuery(id));
  return <Loaded query={query}>{(user) => <UserContent user={user} reason={reason} />}</Loaded>;
}

function UserContent({ user, reason }: { user: User; reason: string | null }) {
  const client = useQueryClient();
  const me = useQuery(meQuery);
  const groups = useQuery(groupsQuery);
  const [asks, setAsks] = useState<"disable" | "password" | "keys" | "factor" | "directory" | null>(null);
  const [done, setDone] = useState<{ words: string; undo: Schema["UpdateUser"] | null } | null>(null);
  const update = useMutation({
    mutationFn: ({ body }: { body: Schema["UpdateUser"]; words: string; undo: Schema["UpdateUser"] | null }) =>
      unwrap(api.PATCH("/v1/users/{user}", { params: { path: { user: user.id } }, body })),
    onSuccess: (_, { words, undo }) => {
      setAsks(null);
      setDone(words === "" ? null : { words, undo });
    },
    onSettled: () => {
      for (const queryKey of [["users"], ["api-keys"], ["me"]]) void client.invalidateQueries({ queryKey });
    },
  });
  const blocked = reason ?? (update.isPending ? "It is being sent" : null);
  const isMe = me.data?.user.id === user.id;
  const memberOf = (groups.data?.items ?? []).filter((group) => group.members.includes(user.id));
  return (
    <article className="grid grid-cols-1 gap-5">
      <div className="flex flex-wrap items-baseline gap-x-3">
        <h2 className="text-lead">
          <Foreign text={user.display_name} />
        </h2>
        {user.active ? <Sign standing="done" word="Active" /> : <Sign standing="cancelled" word="Disabled" />}
      </div>
      <Facts
        rows={[
          ["Handle", <Foreign key="handle" text={user.handle} />],
          user.email ? ["Email", <Foreign key="email" text={user.email} />] : null,
          ["Created", <Age key="created" at={user.created_at} ago />],
          ["Id", <Id key="id" id={user.id} />],
          memberOf.length > 0 && [
            "Groups",
            <span key="groups" className="flex flex-wrap gap-x-3">
              {memberOf.map((group) => (
                <Link
                  key={group.id}
                  to="/settings/groups"
                  search={{ group: group.id }}
                  className="text-accent underline"
                >
                  <Foreign text={group.name} />
                  {group.role && ` (${group.role})`}
                </Link>
              ))}
            </span>,
          ],
        ]}
      />
      <div className="max-w-[420px]">
        <RoleChoice
          label="Role in the installation"
          role={user.role ?? "none"}
          reason={blocked}
          onChange={(role) =>
            update.mutate({
              body: { role },
              words: `${user.handle} is ${role === "none" ? "without a role of their own" : role} now.`,
              undo: { role: user.role ?? "none" },
            })
          }
        />
      </div>
      <div className="flex items-center gap-3">
        <span>May create projects</span>
        <Switch
          label={`Whether ${user.handle} may create projects`}
          isOn={user.can_create_projects ?? false}
          reason={blocked}
          onChange={(isOn) =>
            update.mutate({
              body: { can_create_projects: isOn },
              words: isOn ? `${user.handle} may create projects now.` : `${user.handle} creates no projects any more.`,
              undo: { can_create_projects: !isOn },
            })
          }
        />
      </div>
      <ProjectRole key={user.id} user={user} />
      <section className="grid grid-cols-1 gap-3">
        <SectionHead>Access</SectionHead>
        <div className="flex flex-wrap gap-2">
          {!isMe && (
            <>
              <Action onPress={() => setAsks("password")} reason={reason}>
                Set password…
              </Action>
              <Action onPress={() => setAsks("factor")} reason={reason}>
                Delete second factor…
              </Action>
            </>
          )}
          <Action onPress={() => setAsks("directory")} reason={reason}>
            Directory…
          </Action>
          <Action onPress={() => setAsks("keys")} reason={reason}>
            Revoke all API keys…
          </Action>
          {user.active ? (
            <Action tone="danger" onPress={() => setAsks("disable")} reason={reason}>
              Disable account…
            </Action>
          ) : (
            <Action
              onPress={() =>
                update.mutate({ body: { active: true }, words: "The account works again.", undo: { active: false } })
              }
              reason={blocked}
            >
              Enable account
            </Action>
          )}
        </div>
        <p className="flex flex-wrap gap-x-4 gap-y-1">
          {isMe && (
            <Link to="/settings/security" className="text-accent underline underline-offset-2">
              Password and second factor
            </Link>
          )}
          <Link
            to="/settings/keys"
            search={isMe ? {} : { user: user.id }}
            className="text-accent underline underline-offset-2"
          >
            API keys
          </Link>
          <Link
            to="/settings/sessions"
            search={isMe ? {} : { user: user.id }}
            className="text-accent underline underline-offset-2"
          >
            Sessions
          </Link>
          <Link
            to="/settings/preferences"
            search={{ user: user.id, level: "user" }}
            className="text-accent underline underline-offset-2"
          >
            Preferences
          </Link>
        </p>
      </section>
      {update.error && asks === null && <ProblemNote error={update.error} />}
      {asks === "password" && (
        <PasswordLayer
          user={user}
          pending={update.isPending}
          error={update.error}
          onClose={() => setAsks(null)}
          onSet={(password) => update.mutate({ body: { password }, words: "The new password works.", undo: null })}
        />
      )}
      {asks === "factor" && (
        <ConfirmLayer
          title="Delete second factor"
          action="Delete second factor"
          keep="Keep second factor"
          pending={update.isPending}
          error={update.error}
          onClose={() => setAsks(null)}
          onConfirm={() =>
            update.mutate({ body: { delete_second_factor: true }, words: "The second factor is deleted.", undo: null })
          }
        >
          <p>
            For <Foreign text={user.handle} />, who has lost it. Make sure that it is them who asks: afterwards the
            password alone is enough. Every session of theirs ends.
          </p>
        </ConfirmLayer>
      )}
      {asks === "directory" && (
        <DirectoryLayer
          user={user}
          pending={update.isPending}
          error={update.error}
          onClose={() => setAsks(null)}
          onSet={(name) =>
            update.mutate({
              body: { scim_user_name: name },
              words:
                name === "" ? "The directory does not see the account any more." : "The directory has the account.",
              undo: null,
            })
          }
        />
      )}
      {asks === "keys" && (
        <ConfirmLayer
          title="Revoke all API keys"
          action="Revoke all keys"
          keep="Keep keys"
          pending={update.isPending}
          error={update.error}
          onClose={() => setAsks(null)}
          onConfirm={() =>
            update.mutate({ body: { revoke_keys: true }, words: "All API keys are revoked.", undo: null })
          }
        >
          <p>
            Every program that uses an API key of <Foreign text={user.handle} /> is refused at once. A revoked key never
            works again.
          </p>
        </ConfirmLayer>
      )}
      {asks === "disable" && (
        <ConfirmLayer
          title="Disable account"
          action="Disable account"
          keep="Keep account"
          pending={update.isPending}
          error={update.error}
          onClose={() => setAsks(null)}
          onConfirm={() =>
            update.mutate({ body: { active: false }, words: "The account is disabled.", undo: { active: true } })
          }
        >
          <p>
            Every session of <Foreign text={user.handle} /> ends at once, also in this browser if it is yours. Schedules
            in their name are refused. Tasks and everything else stay.
          </p>
        </ConfirmLayer>
      )}
      {done && (
        <UndoBar
          {...(done.undo ? { onUndo: () => update.mutate({ body: done.undo ?? {}, words: "", undo: null }) } : {})}
          onClose={() => setDone(null)}
          busy={update.isPending ? "It is being sent" : null}
        >
          <Foreign text={done.words} />
        </UndoBar>
      )}
    </article>
  );
}

function ProjectRole({ user }: { user: User }) {
  const client = useQueryClient();
  const projects = useQuery(projectsQuery);
  const [chosen, setChosen] = useState("");
  const project = chosen || projects.data?.items[0]?.id || "";
  const member = useQuery({ ...roleInProjectQuery(project, user.id), enabled: project !== "" });
  const set = useMutation({
    mutationFn: async (role: RoleChange) => {
      const path = { project, user: user.id };
      if (role === "none") await unwrap(api.DELETE("/v1/projects/{project}/members/{user}", { params: { path } }));
      else await unwrap(api.PUT("/v1/projects/{project}/members/{user}", { params: { path }, body: { role } }));
    },
    onSettled: () => void client.invalidateQueries({ queryKey: ["project", project] }),
  });
  if (!projects.data || projects.data.items.length === 0) return null;
  return (
    <section className="grid grid-cols-1 gap-3">
      <SectionHead>Role in a project</SectionHead>
      <div className="grid max-w-[420px] gap-3">
        <Choice
          label="Project"
          value={project}
          onChange={setChosen}
          options={projects.data.items.map((it) => ({ value: it.id, name: it.slug }))}
        />
        <RoleChoice
          label="Role there"
          role={member.data?.role ?? "none"}
          reason={set.isPending ? "It is being sent" : member.isPending ? "The role is being read" : null}
          onChange={(role) => set.mutate(role)}
        />
      </div>
      {(set.error ?? member.error) ? <ProblemNote error={set.error ?? member.error} /> : null}
      <p role="status" className="text-meta text-muted">
        {member.data ? (
          <>
            {toWords(member.data.role)} there since <Age at={member.data.added_at} ago />.
          </>
        ) : (
          member.data === null && "No role of their own there; a group or the installation may give one."
        )}
      </p>
    </section>
  );
}

function PasswordLayer({
  user,
  pending,
  error,
  onSet,
  onClose,
}: {
  user: User;
  pending: boolean;
  error: unknown;
  onSet: (password: string) => void;
  onClose: () => void;
}) {
  const [password, setPassword] = useState("");
  const isShort = password.length < MIN_PASSWORD_CHARS;
  return (
    <ConfirmLayer
      title={`Set password of ${user.handle}`}
      action="Set password"
      keep="Keep password"
      pending={pending}
      error={error}
      reason={isShort ? `Write at least ${MIN_PASSWORD_CHARS} characters` : null}
      onClose={onClose}
      onConfirm={() => onSet(password)}
    >
      <p>
        Every session of this person ends, every API key is revoked, and their notification channels are switched off.
      </p>
      <Field
        label="New password"
        value={password}
        onChange={setPassword}
        type="password"
        autoComplete="new-password"
        description={`At least ${MIN_PASSWORD_CHARS} characters.`}
        autoFocus
      />
    </ConfirmLayer>
  );
}

function DirectoryLayer({
  user,
  pending,
  error,
  onSet,
  onClose,
}: {
  user: User;
  pending: boolean;
  error: unknown;
  onSet: (name: string) => void;
  onClose: () => void;
}) {
  const [name, setName] = useState(user.email ?? "");
  return (
    <Layer title={`Directory and ${user.handle}`} isOpen onClose={onClose}>
      <p>
        The directory sees and changes this account if it knows its user name there. It can then disable it, which ends
        every session and key at once.
      </p>
      <Field
        label="User name in the directory"
        value={name}
        onChange={setName}
        autoFocus
        description="Empty takes the account out of the directory."
      />
      {error ? <ProblemNote error={error} /> : null}
      <div className="flex flex-wrap gap-2">
        <Action tone="primary" onPress={() => onSet(name.trim())} reason={pending ? "It is being sent" : null}>
          {name.trim() === "" ? "Take it out" : "Hand it over"}
        </Action>
        <Action tone="quiet" onPress={onClose}>
          Cancel
        </Action>
      </div>
    </Layer>
  );
}
