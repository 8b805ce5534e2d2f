import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, unwrap } from "../api/client";
import { Problem } from "../api/problem";
import { meQuery } from "../api/queries";
import { Action, Command, ProblemNote } from "../ui/basic";
import { Field } from "../ui/fields";

/** Logs in. The server answers with a cookie that no script can read; the token in the answer is not kept. */
export function Login({ again }: { again?: string }) {
  const client = useQueryClient();
  const [handle, setHandle] = useState(again ?? "");
  const [password, setPassword] = useState("");
  const login = useMutation({
    mutationFn: async () => {
      await unwrap(api.POST("/v1/sessions", { body: { handle, password } }));
    },
    onSuccess: async () => {
      setPassword("");
      await client.resetQueries({ queryKey: meQuery.queryKey });
      await client.invalidateQueries();
    },
  });
  return (
    <div className="mx-auto grid max-w-[360px] gap-5 px-4 py-[14vh]">
      <h1 className="text-title">
        <span aria-hidden="true" className="mr-2 text-accent">
          ◆
        </span>
        {again ? "Log in again" : "Log in to CyNode"}
      </h1>
      {again && <p className="text-muted">The session ended. What you typed is still there.</p>}
      <Form
        className="grid gap-4"
        onSubmit={(event) => {
          event.preventDefault();
          if (!login.isPending) login.mutate();
        }}
      >
        <Field label="Name" value={handle} onChange={setHandle} autoComplete="username" isRequired autoFocus={!again} />
        <Field
          label="Password"
          type="password"
          value={password}
          onChange={setPassword}
          autoComplete="current-password"
          isRequired
          autoFocus={Boolean(again)}
        />
        <Action type="submit" tone="primary" reason={login.isPending ? "Logging in" : null}>
          Log in
        </Action>
      </Form>
      {login.error && <Refusal error={login.error} />}
      <details className="text-muted">
        <summary className="cursor-default">No account, or the password is lost?</summary>
        <div className="grid gap-2 pt-2">
          <p>An admin makes accounts and sets passwords:</p>
          <Command line="cynork user create NAME" />
          <p>
            The link for the first admin stands in the output of <code className="font-mono">cynode up</code>.
          </p>
        </div>
      </details>
    </div>
  );
}

/** The words of the interface are for programs: a person typed a name and a password. */
function Refusal({ error }: { error: unknown }) {
  if (!(error instanceof Problem) || error.status !== 401) return <ProblemNote error={error} />;
  return (
    <div role="alert" className="border-l-2 border-bad py-1 pl-3">
      <p className="font-medium">
        <span aria-hidden="true" className="mr-1.5 font-mono text-bad">
          !
        </span>
        The name or the password is wrong.
      </p>
      <p className="text-muted">After several failures each further one has to wait longer.</p>
    </div>
  );
}
