import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useLocation } from "@tanstack/react-router";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, type Schema, unwrap } from "../api/client";
import { Problem } from "../api/problem";
import { meQuery } from "../api/queries";
import { loginOptionsQuery } from "../api/queries-admin";
import { describeRefusal, returnPath } from "../logic/sign-on";
import { Action, Command, Foreign, ProblemNote } from "../ui/basic";
import { Field } from "../ui/fields";

/** Logs in. The server answers with a cookie that no script can read; the token in the answer is not kept. */
export function Login({ again }: { again?: string }) {
  const { pathname, searchStr, search } = useLocation();
  const options = useQuery(loginOptionsQuery);
  const refusal = describeRefusal(readText(search, "sso"));
  // Where the server does not answer, the form says so when it is sent.
  const hasPassword = options.data?.password ?? true;
  const providers = options.data?.providers ?? [];
  return (
    <div className="mx-auto grid max-w-[360px] gap-5 px-4 py-[14vh]">
      <h1 className="text-title">
        <span aria-hidden="true" className="mr-2 text-accent">
          ◆
        </span>
        {again ? "Log in again" : "Log in to CyNode"}
      </h1>
      {again && <p className="text-muted">The session ended. What you typed is still there.</p>}
      {refusal && (
        <p role="alert" className="rounded-box border border-bad px-3 py-2">
          <span aria-hidden="true">! </span>
          {refusal}
        </p>
      )}
      {providers.length > 0 && <Providers providers={providers} returnTo={returnPath(pathname, searchStr)} />}
      {providers.length > 0 && hasPassword && <p className="text-center text-meta text-muted">or with a password</p>}
      {hasPassword && <PasswordForm again={again} />}
      <details className="text-muted">
        <summary className="cursor-default">No account, or the password is lost?</summary>
        <div className="grid gap-2 pt-2">
          <p>An admin makes accounts, sets passwords and deletes a lost second factor:</p>
          <Command line="cynork user create NAME" />
          <p>An admin who is locked out gets a link on the host:</p>
          <Command line="cynode admin break-glass NAME" />
          <p>
            The link for the first admin stands in the output of <code className="font-mono">cynode up</code>.
          </p>
        </div>
      </details>
    </div>
  );
}

function readText(search: unknown, name: string): string | undefined {
  const value = (search as Record<string, unknown>)[name];
  return typeof value === "string" ? value : undefined;
}

/** A page of the server sends the browser to the provider. */
function Providers({ providers, returnTo }: { providers: Schema["LoginProvider"][]; returnTo: string }) {
  return (
    <ul aria-label="Identity providers" className="grid gap-2">
      {providers.map((provider) => (
        <li key={provider.name}>
          <a
            href={`/v1/sso/${encodeURIComponent(provider.name)}/login?return_to=${encodeURIComponent(returnTo)}`}
            className="flex min-h-9 items-center justify-center rounded-box border border-control px-3 font-medium hover:bg-surface max-small:min-h-10"
          >
            <span className="truncate">
              Log in by <Foreign text={provider.display_name} />
            </span>
          </a>
        </li>
      ))}
    </ul>
  );
}

function PasswordForm({ again }: { again: string | undefined }) {
  const client = useQueryClient();
  const [handle, setHandle] = useState(again ?? "");
  const [password, setPassword] = useState("");
  const [code, setCode] = useState("");
  const [asksCode, setAsksCode] = useState(false);
  const login = useMutation({
    mutationFn: async () => {
      await unwrap(
        api.POST("/v1/sessions", { body: { handle, password, ...(asksCode ? { code: code.trim() } : {}) } }),
      );
    },
    onError: (error) => {
      setCode("");
      if (isCodeMissing(error)) setAsksCode(true);
    },
    onSuccess: async () => {
      setPassword("");
      setCode("");
      setAsksCode(false);
      await client.resetQueries({ queryKey: meQuery.queryKey });
      await client.invalidateQueries();
    },
  });
  return (
    <>
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
        {asksCode && (
          <Field
            label="Code of your second factor"
            value={code}
            onChange={setCode}
            autoComplete="one-time-code"
            inputMode="numeric"
            isRequired
            autoFocus
            description="Six digits of your authenticator, or a recovery code."
          />
        )}
        <Action type="submit" tone="primary" reason={login.isPending ? "Logging in" : null}>
          Log in
        </Action>
      </Form>
      {login.error && !isCodeMissing(login.error) && <Refusal error={login.error} hasCode={asksCode} />}
    </>
  );
}

/** The words of the interface are for programs: a person typed a name and a password. */
function Refusal({ error, hasCode }: { error: unknown; hasCode: boolean }) {
  if (!(error instanceof Problem) || error.status !== 401) return <ProblemNote error={error} />;
  return (
    <div role="alert" className="border-l-2 border-bad py-1 pl-3">
      <p className="font-medium">
        <span aria-hidden="true" className="mr-1.5 font-mono text-bad">
          !
        </span>
        {hasCode ? "The name, the password or the code is wrong." : "The name or the password is wrong."}
      </p>
      <p className="text-muted">After several failures each further one has to wait longer.</p>
    </div>
  );
}

/** Whether the password was right and only the code is missing. */
function isCodeMissing(error: unknown): boolean {
  return error instanceof Problem && error.code === "second_factor_required";
}
