/** Makes a project, and brings its repository in one of three ways. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, type Schema, unwrap } from "../../api/client";
import { repositoryQuery } from "../../api/queries";
import { nameProject } from "../../logic/format";
import { readForgeAddress, toSlug } from "../../logic/welcome";
import { Action, Age, Command, Facts, Foreign, Id, Inline, ProblemNote, Sign } from "../../ui/basic";
import { Choice, Field } from "../../ui/fields";

type Project = Schema["ProjectView"];
type Way = "cynork" | "bundle" | "forge";

const WAYS: readonly { value: Way; name: string }[] = [
  { value: "cynork", name: "From my machine, with cynork" },
  { value: "bundle", name: "As a file, with git alone" },
  { value: "forge", name: "From GitHub, GitLab, Gitea or Forgejo" },
];

export function RepositoryStep({ project, projects }: { project: Project | null; projects: readonly Project[] }) {
  const navigate = useNavigate({ from: "/welcome" });
  const repository = useQuery({ ...repositoryQuery(project?.id ?? ""), enabled: project !== null });
  const [way, setWay] = useState<Way>("cynork");
  if (!project) return <NewProject />;
  return (
    <div className="grid grid-cols-1 gap-4">
      {projects.length > 1 && (
        <Choice
          label="Project"
          value={project.id}
          onChange={(id) => void navigate({ search: (previous) => ({ ...previous, project: id }), replace: true })}
          options={projects.map((it) => ({ value: it.id, name: nameProject(it) }))}
        />
      )}
      {repository.data && (
        <div className="grid gap-2">
          <Sign standing="done" word="The repository is here" />
          <Facts
            rows={[
              ["Project", <Foreign key="project" text={project.slug} />],
              ["Branch", <Foreign key="branch" text={repository.data.default_branch} />],
              ["Head", <Id key="head" id={repository.data.head} />],
              ["Imported", <Age key="imported" at={repository.data.imported_at} ago />],
            ]}
          />
        </div>
      )}
      {repository.error && <ProblemNote error={repository.error} onRetry={() => void repository.refetch()} />}
      <details open={repository.data === null}>
        <summary className="cursor-default font-medium">
          {repository.data ? "Bring newer commits" : "Bring the repository"}
        </summary>
        <div className="grid grid-cols-1 gap-4 pt-3">
          <Choice label="How" value={way} onChange={setWay} options={WAYS} />
          {way === "cynork" && (
            <div className="grid gap-2">
              <p className="text-muted">In the repository. This page notices when it has arrived.</p>
              <Command line={`cynork project import . --project ${project.slug}`} />
            </div>
          )}
          {way === "bundle" && <BundleUpload project={project} />}
          {way === "forge" && <ForgeConnection project={project} />}
        </div>
      </details>
      <details>
        <summary className="cursor-default font-medium">Make another project</summary>
        <div className="pt-3">
          <NewProject />
        </div>
      </details>
    </div>
  );
}

function NewProject() {
  const client = useQueryClient();
  const navigate = useNavigate({ from: "/welcome" });
  const [title, setTitle] = useState("");
  const [typed, setTyped] = useState<string | null>(null);
  const slug = typed ?? toSlug(title);
  const create = useMutation({
    mutationFn: () => unwrap(api.POST("/v1/projects", { body: { title: title.trim(), slug } })),
    onSuccess: async (project) => {
      setTitle("");
      setTyped(null);
      await client.invalidateQueries({ queryKey: ["projects"] });
      void navigate({
        search: (previous) => ({ ...previous, project: project.id, step: "repository" }),
        replace: true,
      });
    },
  });
  const reason = create.isPending
    ? "It is being made"
    : title.trim() === ""
      ? "Write what the project is called"
      : slug === ""
        ? "Write a name for addresses"
        : null;
  return (
    <Form
      className="grid gap-4"
      onSubmit={(event) => {
        event.preventDefault();
        if (!reason) create.mutate();
      }}
    >
      <Field
        label="Project"
        value={title}
        onChange={setTitle}
        placeholder="Web shop"
        description="What people call it."
      />
      <Field
        label="Name in addresses and commands"
        value={slug}
        onChange={setTyped}
        mono
        description="Lower-case letters, digits and dashes."
      />
      {create.error && <ProblemNote error={create.error} />}
      <div>
        <Action type="submit" tone="primary" reason={reason}>
          Make project
        </Action>
      </div>
    </Form>
  );
}

/** A bundle is uploaded as it is; the server checks every object of it. */
function uploadBundle(project: string, file: File): Promise<Schema["RepositoryView"]> {
  return unwrap(
    api.PUT("/v1/projects/{project}/repository", {
      params: { path: { project } },
      headers: { "Content-Type": "application/x-git-bundle" },
      // The description of the interface has no word for the bytes of a file.
      body: file as unknown as number[],
      bodySerializer: (body) => body as unknown as BodyInit,
    }),
  );
}

export function BundleUpload({ project }: { project: Project }) {
  const client = useQueryClient();
  const [file, setFile] = useState<File | null>(null);
  const upload = useMutation({
    mutationFn: (chosen: File) => uploadBundle(project.id, chosen),
    onSettled: () => {
      for (const queryKey of [["project", project.id], ["projects"]]) void client.invalidateQueries({ queryKey });
    },
  });
  return (
    <div className="grid gap-3">
      <p className="text-muted">In the repository, make one file of all its branches:</p>
      <Command line={`git bundle create ${project.slug}.bundle --branches --tags HEAD`} />
      <label className="grid gap-1">
        <span className="font-medium">Bundle</span>
        <input
          type="file"
          accept=".bundle"
          onChange={(event) => setFile(event.target.files?.[0] ?? null)}
          className="max-w-full text-muted file:mr-3 file:min-h-8 file:rounded-box file:border file:border-control file:border-solid file:bg-bg file:px-3 file:font-medium file:text-text max-small:file:min-h-10"
        />
      </label>
      {upload.error && <ProblemNote error={upload.error} />}
      <div>
        <Action
          tone="primary"
          onPress={() => file && upload.mutate(file)}
          reason={upload.isPending ? "It is being uploaded" : file ? null : "Choose the file first"}
        >
          Upload repository
        </Action>
      </div>
    </div>
  );
}

function ForgeConnection({ project }: { project: Project }) {
  const client = useQueryClient();
  const [url, setUrl] = useState("");
  const [branch, setBranch] = useState("main");
  const [token, setToken] = useState("");
  const address = readForgeAddress(url);
  const connect = useMutation({
    mutationFn: async () => {
      if (!address) throw new Error("The address is not one of a repository.");
      const remote = await unwrap(
        api.PUT("/v1/projects/{project}/remote", {
          params: { path: { project: project.id } },
          body: { ...address, url: url.trim(), default_branch: branch.trim(), credential: token.trim() },
        }),
      );
      setToken("");
      return remote;
    },
    onSettled: () => {
      for (const queryKey of [["project", project.id], ["projects"]]) void client.invalidateQueries({ queryKey });
    },
  });
  const reason = connect.isPending
    ? "It is being connected"
    : !address
      ? "Write the address of the repository"
      : branch.trim() === ""
        ? "Write the branch that work starts from"
        : token.trim() === ""
          ? "Paste a token of the forge"
          : null;
  return (
    <Form
      className="grid gap-4"
      onSubmit={(event) => {
        event.preventDefault();
        if (!reason) connect.mutate();
      }}
    >
      <Field
        label="Address"
        value={url}
        onChange={setUrl}
        mono
        placeholder="https://github.com/acme/web.git"
        description={address ? `${address.repository} on ${address.forge}` : "As for git clone."}
      />
      <Field label="Branch" value={branch} onChange={setBranch} mono />
      <Field
        label="Token"
        type="password"
        value={token}
        onChange={setToken}
        autoComplete="off"
        description="Contents, pull requests and issues of this repository. It is stored encrypted and sent to that forge only."
      />
      {connect.error && <ProblemNote error={connect.error} />}
      {connect.data &&
        (connect.data.missing.length === 0 ? (
          <Sign standing="done" word={connect.data.login ? `Connected as ${connect.data.login}` : "Connected"} />
        ) : (
          <ul aria-label="What does not work yet" className="grid gap-1">
            {connect.data.missing.map((line) => (
              <li key={line} className="border-warn border-l-2 pl-3">
                <Inline text={line} />
              </li>
            ))}
          </ul>
        ))}
      <div>
        <Action type="submit" tone="primary" reason={reason}>
          Connect and fetch repository
        </Action>
      </div>
    </Form>
  );
}
