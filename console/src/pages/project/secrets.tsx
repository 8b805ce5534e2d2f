/** Secrets of a project: set and deleted, never read back. */

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, unwrap } from "../../api/client";
import { secretsQuery } from "../../api/queries-places";
import { Action, Age, Command, Foreign, Loaded, ProblemNote, SectionHead } from "../../ui/basic";
import { Field } from "../../ui/fields";
import { Person } from "../../ui/person";
import { ConfirmLayer } from "../../ui/rows";
import { type Project, useProjectChange } from "./use-project-change";

const MIN_SECRET_BYTES = 8;

export function SecretsTab({ project }: { project: Project }) {
  const secrets = useQuery(secretsQuery(project.id));
  const [chosen, setChosen] = useState<string | null>(null);
  const [name, setName] = useState("");
  // The value is in memory only, and only until it is stored.
  const [value, setValue] = useState("");
  const set = useProjectChange(
    project.id,
    () =>
      unwrap(
        api.PUT("/v1/projects/{project}/secrets/{secret}", {
          params: { path: { project: project.id, secret: name.trim() } },
          body: { value },
        }),
      ),
    () => {
      setName("");
      setValue("");
    },
  );
  const remove = useProjectChange(
    project.id,
    (secret: string) =>
      unwrap(
        api.DELETE("/v1/projects/{project}/secrets/{secret}", { params: { path: { project: project.id, secret } } }),
      ),
    () => setChosen(null),
  );
  const known = secrets.data?.items.some((secret) => secret.name === name.trim());
  const reason = set.isPending
    ? "It is being stored"
    : name.trim() === ""
      ? "Write a name"
      : new TextEncoder().encode(value).length < MIN_SECRET_BYTES
        ? `The value needs at least ${MIN_SECRET_BYTES} bytes`
        : null;
  return (
    <div className="grid max-w-[760px] grid-cols-1 gap-8">
      <section className="grid grid-cols-1 gap-1">
        <SectionHead>Secrets</SectionHead>
        <p className="py-1 text-muted">
          The set-up of an accepted environment can use them by name. They are stored sealed, redacted from logs, and no
          agent sees them.
        </p>
        <Loaded query={secrets}>
          {(data) =>
            data.items.length === 0 ? (
              <div className="grid max-w-[560px] gap-2 py-2">
                <p className="font-medium">There is no secret.</p>
                <Command line={`cynork project secret set NAME --value-stdin --project ${project.slug}`} />
              </div>
            ) : (
              <ul aria-label="Secrets" className="border-line border-t">
                {data.items.map((secret) => (
                  <li key={secret.name} className="flex flex-wrap items-center gap-x-3 border-line border-b py-1.5">
                    <code className="font-mono text-code">
                      <Foreign text={secret.name} />
                    </code>
                    <span className="text-meta text-muted">
                      set <Age at={secret.set_at} ago /> by <Person id={secret.set_by} />
                    </span>
                    <Action tone="quiet" className="ml-auto" onPress={() => setChosen(secret.name)}>
                      Delete {secret.name}…
                    </Action>
                  </li>
                ))}
              </ul>
            )
          }
        </Loaded>
      </section>
      <Form
        className="grid max-w-[560px] gap-4"
        onSubmit={(event) => {
          event.preventDefault();
          if (!reason) set.mutate(undefined);
        }}
      >
        <h2 className="text-body">Set a secret</h2>
        <Field
          label="Name"
          value={name}
          onChange={setName}
          mono
          placeholder="registry-token"
          description={
            known ? "There is one of this name: its value is replaced." : "Lower-case letters, digits and dashes."
          }
        />
        <Field
          label="Value"
          type="password"
          value={value}
          onChange={setValue}
          autoComplete="off"
          description="8 to 4096 bytes. It can never be read back."
        />
        {set.error && <ProblemNote error={set.error} />}
        <div>
          <Action type="submit" tone="primary" reason={reason}>
            {known ? "Replace secret" : "Set secret"}
          </Action>
        </div>
      </Form>
      {chosen !== null && (
        <ConfirmLayer
          title={`Delete ${chosen}?`}
          action="Delete secret"
          keep="Keep secret"
          pending={remove.isPending}
          error={remove.error}
          onConfirm={() => remove.mutate(chosen)}
          onClose={() => setChosen(null)}
        >
          <p>Its value is lost. The set-up of an environment that needs it fails until it is set again.</p>
        </ConfirmLayer>
      )}
    </div>
  );
}
