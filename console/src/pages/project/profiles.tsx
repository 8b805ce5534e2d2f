/** What the agents of a project may use: the profiles that come with CyNode, those of the installation and its own. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, makeKey, type Schema, unwrap } from "../../api/client";
import { meQuery } from "../../api/queries";
import { profileQuery, profilesQuery, profileVersionsQuery } from "../../api/queries-knowledge";
import {
  changedRows,
  describeSpec,
  EMPTY_SPEC,
  formatSpec,
  fromLines,
  fromRules,
  nameProblem,
  type ProfileSpec,
  parseSpec,
  toBody,
  toLines,
  toRules,
} from "../../logic/profile";
import { Action, Age, Command, Empty, Facts, Foreign, Loaded, ProblemNote, SectionHead } from "../../ui/basic";
import { Choice, Field } from "../../ui/fields";
import { Person } from "../../ui/person";
import { ADMINS_ONLY, ConfirmLayer, RowLines, RowLink } from "../../ui/rows";
import { Split, useRowKeys } from "../../ui/split";
import { Tick } from "../../ui/switch";
import type { Project } from "./use-project-change";

type Profile = Schema["ProfileView"];

/** Profiles of one name can be of the installation and of the project: the address holds which. */
const idOf = (profile: Profile) => (profile.project_id ? `${profile.name}@project` : profile.name);

const ownerOf = (profile: Profile) =>
  profile.shipped ? "comes with CyNode" : profile.project_id ? "of the project" : "of the installation";

export function ProfilesTab({ project }: { project: Project }) {
  const { profile: chosen } = useSearch({ from: "/projects/$project" });
  const navigate = useNavigate({ from: "/projects/$project" });
  const profiles = useQuery(profilesQuery(project.id));
  const [create, setCreate] = useState(false);
  const items = profiles.data?.items ?? [];
  const choose = (next: string | undefined) => {
    setCreate(false);
    void navigate({ search: (previous) => ({ ...previous, profile: next }), replace: true });
  };
  useRowKeys(items.map(idOf), chosen, choose, () => choose(undefined));
  const found = items.find((item) => idOf(item) === chosen);
  return (
    <div className="grid grid-cols-1 gap-4">
      <div className="flex flex-wrap items-start justify-between gap-3">
        <p className="max-w-[70ch] text-muted">
          Agents of a task, a chat or a schedule work under a profile. What it does not name is not there. Without one
          they work under <code className="font-mono text-code">default</code>.
        </p>
        {!create && (
          <Action tone={chosen ? "plain" : "primary"} onPress={() => setCreate(true)}>
            Create profile
          </Action>
        )}
      </div>
      <Loaded query={profiles} lines={6}>
        {() => (
          <Split
            back="Profiles"
            onClose={() => choose(undefined)}
            list={
              <ul aria-label="Profiles" className="border-line border-t">
                {items.map((item) => (
                  <RowLink key={idOf(item)} parameter="profile" id={idOf(item)} isChosen={idOf(item) === chosen}>
                    <RowLines
                      name={<Foreign text={item.name} />}
                      end={ownerOf(item)}
                      below={<Foreign text={item.spec.description ?? ""} />}
                    />
                  </RowLink>
                ))}
              </ul>
            }
            detail={
              create ? (
                <ProfileForm
                  project={project}
                  profile={null}
                  taken={items.map((item) => item.name)}
                  onClose={() => setCreate(false)}
                />
              ) : found ? (
                <ProfileDetail key={idOf(found)} project={project} profile={found} onGone={() => choose(undefined)} />
              ) : chosen ? (
                <Empty title="There is no profile of this name." />
              ) : null
            }
          />
        )}
      </Loaded>
    </div>
  );
}

function ProfileDetail({
  project,
  profile: listed,
  onGone,
}: {
  project: Project;
  profile: Profile;
  onGone: () => void;
}) {
  const client = useQueryClient();
  const me = useQuery(meQuery);
  const [isEdited, setEdited] = useState(false);
  const [isDeleted, setDeleted] = useState(false);
  const area = listed.project_id ?? null;
  const { data: profile } = useQuery({ ...profileQuery(listed.name, area), initialData: listed });
  const remove = useMutation({
    mutationFn: () =>
      unwrap(
        api.DELETE("/v1/profiles/{name}", {
          params: { path: { name: profile.name }, query: area ? { project_id: area } : {} },
        }),
      ),
    onSuccess: onGone,
    onSettled: () => void client.invalidateQueries({ queryKey: ["profiles"] }),
  });
  const reason = profile.shipped
    ? "It comes with CyNode: copy it under another name"
    : area === null && me.data?.installation_role !== "admin"
      ? ADMINS_ONLY
      : null;
  if (isEdited) {
    return <ProfileForm project={project} profile={profile} taken={[]} onClose={() => setEdited(false)} />;
  }
  return (
    <article className="grid grid-cols-1 gap-4">
      <div className="flex flex-wrap items-center justify-between gap-3">
        <h2 className="text-lead">
          <Foreign text={profile.name} />
        </h2>
        <div className="flex flex-wrap gap-2">
          <Action onPress={() => setEdited(true)} reason={reason}>
            Edit profile
          </Action>
          <Action tone="danger" onPress={() => setDeleted(true)} reason={reason}>
            Delete profile…
          </Action>
        </div>
      </div>
      {profile.spec.description && (
        <p>
          <Foreign text={profile.spec.description} />
        </p>
      )}
      <SpecTable spec={profile.spec} />
      <Facts
        rows={[
          ["Whose", ownerOf(profile)],
          ["Version", profile.version],
          profile.updated_at ? ["Written", <Age key="at" at={profile.updated_at} ago />] : null,
          profile.updated_by ? ["By", <Person key="by" id={profile.updated_by} />] : null,
        ]}
      />
      <Command line={`cynork profile show ${profile.name} --project ${project.slug}`} />
      {!profile.shipped && <Versions profile={profile} />}
      {isDeleted && (
        <ConfirmLayer
          title={`Delete ${profile.name}`}
          action="Delete profile"
          keep="Keep profile"
          typed={profile.name}
          pending={remove.isPending}
          error={remove.error}
          onConfirm={() => remove.mutate()}
          onClose={() => setDeleted(false)}
        >
          <p>
            Agents that work under <Foreign text={profile.name} /> are refused everything from then on. They do not fall
            back to another profile.
          </p>
        </ConfirmLayer>
      )}
    </article>
  );
}

function SpecTable({ spec }: { spec: ProfileSpec }) {
  return (
    <table className="w-full border-line border-t text-left">
      <caption className="sr-only">What the profile permits</caption>
      <tbody>
        {describeSpec(spec).map(([name, words]) => (
          <tr key={name} className="border-line border-b align-top">
            <th scope="row" className="w-28 py-1.5 pr-3 font-medium">
              {name}
            </th>
            <td className="py-1.5 break-words">
              <Foreign text={words} />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Versions({ profile }: { profile: Profile }) {
  const versions = useQuery(profileVersionsQuery(profile.name, profile.project_id ?? null));
  return (
    <section className="grid grid-cols-1 gap-1">
      <SectionHead>History</SectionHead>
      <Loaded query={versions} lines={2}>
        {(data) => {
          const newest = data.items.toSorted((one, other) => other.version - one.version);
          return (
            <ol aria-label="Versions" className="border-line border-t">
              {newest.map((version, index) => {
                const before = newest[index + 1];
                const changed = before ? changedRows(before.spec, version.spec) : [];
                return (
                  <li key={version.version} className="flex flex-wrap gap-x-3 border-line border-b py-1.5">
                    <span className="font-medium">Version {version.version}</span>
                    <span className="text-muted">
                      {before ? (changed.length > 0 ? changed.join(", ") : "nothing changed") : "created"}
                    </span>
                    <span className="ml-auto text-meta text-muted">
                      <Age at={version.written_at} ago /> by <Person id={version.written_by} />
                    </span>
                  </li>
                );
              })}
            </ol>
          );
        }}
      </Loaded>
    </section>
  );
}

const MEMORY_OPTIONS = [
  { value: "none", name: "None" },
  { value: "read", name: "Search" },
  { value: "write", name: "Search and remember" },
] as const;

function ProfileForm({
  project,
  profile,
  taken,
  onClose,
}: {
  project: Project;
  profile: Profile | null;
  taken: readonly string[];
  onClose: () => void;
}) {
  const client = useQueryClient();
  const navigate = useNavigate({ from: "/projects/$project" });
  const me = useQuery(meQuery);
  const [name, setName] = useState("");
  const [isCommon, setCommon] = useState(false);
  const [spec, setSpec] = useState<ProfileSpec>(profile?.spec ?? EMPTY_SPEC);
  /** What is typed as JSON; null while the form is used. */
  const [text, setText] = useState<string | null>(null);
  const [key, setKey] = useState(makeKey);
  // The version that the draft began from.
  const [version] = useState(profile?.version ?? 0);
  const parsed = text === null ? { spec, error: null } : parseSpec(text);
  const area = profile ? (profile.project_id ?? null) : project.id;
  const change = (part: Partial<ProfileSpec>) => {
    setSpec((known) => ({ ...known, ...part }));
    setKey(makeKey());
  };
  const save = useMutation({
    mutationFn: (wanted: ProfileSpec) => {
      const spec = toBody(wanted);
      const header = { "Idempotency-Key": key };
      return profile
        ? unwrap(
            api.PUT("/v1/profiles/{name}", {
              params: { path: { name: profile.name }, query: area ? { project_id: area } : {}, header },
              body: { spec, expected_version: version },
            }),
          )
        : unwrap(
            api.POST("/v1/profiles", {
              params: { header },
              body: { name: name.trim(), spec, ...(isCommon ? {} : { project_id: project.id }) },
            }),
          );
    },
    onSuccess: async (saved) => {
      await client.invalidateQueries({ queryKey: ["profiles"] });
      onClose();
      void navigate({ search: (previous) => ({ ...previous, profile: idOf(saved) }), replace: true });
    },
  });
  const reason = save.isPending
    ? "It is being sent"
    : (parsed.error ?? (profile ? null : nameProblem(name.trim(), taken)));
  return (
    <Form
      aria-labelledby="profile-form"
      className="grid max-w-[760px] gap-4"
      onSubmit={(event) => {
        event.preventDefault();
        if (!reason && parsed.spec) save.mutate(parsed.spec);
      }}
    >
      <h2 id="profile-form" className="text-lead">
        {profile ? (
          <>
            Edit <Foreign text={profile.name} />
          </>
        ) : (
          "Create profile"
        )}
      </h2>
      {!profile && (
        <Field
          label="Name"
          value={name}
          onChange={(value) => {
            setName(value);
            setKey(makeKey());
          }}
          autoFocus
          mono
          placeholder="docs-writer"
          description="Never changed. Tasks, chats and schedules of this project name it."
        />
      )}
      {!profile && me.data?.installation_role === "admin" && (
        <Tick
          label="For every project"
          description="A profile of the installation; one of a project comes before it."
          isTicked={isCommon}
          onChange={(value) => {
            setCommon(value);
            setKey(makeKey());
          }}
        />
      )}
      <Tick
        label="Edit as JSON"
        isTicked={text !== null}
        onChange={(isTicked) => {
          if (isTicked) setText(formatSpec(spec));
          else if (parsed.spec) {
            setSpec(parsed.spec);
            setText(null);
          }
        }}
      />
      {text === null ? (
        <SpecFields spec={spec} onChange={change} />
      ) : (
        <Field
          label="Profile"
          value={text}
          onChange={(value) => {
            setText(value);
            setKey(makeKey());
          }}
          lines={24}
          mono
          error={parsed.error}
        />
      )}
      {save.error && <ProblemNote error={save.error} />}
      <div className="flex flex-wrap gap-2">
        <Action type="submit" tone="primary" reason={reason}>
          {profile ? "Save profile" : "Create profile"}
        </Action>
        <Action tone="quiet" onPress={onClose}>
          Cancel
        </Action>
      </div>
    </Form>
  );
}

/** A field of entries, one per line. What is typed stays as it is until the field is left. */
function LinesField({
  label,
  entries,
  onChange,
  description,
  placeholder,
}: {
  label: string;
  entries: string;
  onChange: (text: string) => void;
  description: string;
  placeholder: string;
}) {
  const [text, setText] = useState(entries);
  return (
    <Field
      label={label}
      value={text}
      onChange={(value) => {
        setText(value);
        onChange(value);
      }}
      lines={3}
      mono
      description={description}
      placeholder={placeholder}
    />
  );
}

function SpecFields({ spec, onChange }: { spec: ProfileSpec; onChange: (part: Partial<ProfileSpec>) => void }) {
  const paths = { read: spec.paths?.read ?? [], write: spec.paths?.write ?? [] };
  return (
    <>
      <Field
        label="What it is for"
        value={spec.description ?? ""}
        onChange={(description) => onChange({ description })}
        placeholder="Writes the documentation"
      />
      <LinesField
        label="Tools"
        entries={toLines(spec.tools)}
        onChange={(text) => onChange({ tools: fromLines(text) })}
        description="One per line: a name, a group as memory.*, or *."
        placeholder="memory.*"
      />
      <LinesField
        label="Network"
        entries={toRules(spec.network)}
        onChange={(text) => onChange({ network: fromRules(text) })}
        description="One host per line with its methods; GET and HEAD when none is named. Without a line there is no network."
        placeholder="docs.rs GET"
      />
      <LinesField
        label="Variables"
        entries={toLines(spec.variables)}
        onChange={(text) => onChange({ variables: fromLines(text) })}
        description="Of the project's environment: a name, a prefix as CARGO_*, or *."
        placeholder="CARGO_*"
      />
      <LinesField
        label="Files that a result may change"
        entries={toLines(paths.write)}
        onChange={(text) => onChange({ paths: { ...paths, write: fromLines(text) } })}
        description="Globs, one per line; ** is every file."
        placeholder="docs/**"
      />
      <LinesField
        label="Models"
        entries={toLines(spec.models)}
        onChange={(text) => onChange({ models: fromLines(text) })}
        description="An id, a prefix as local-*, or *."
        placeholder="*"
      />
      <div className="max-w-60">
        <Choice
          label="Memory"
          value={spec.memory ?? "none"}
          onChange={(memory) => onChange({ memory })}
          options={MEMORY_OPTIONS}
        />
      </div>
    </>
  );
}
