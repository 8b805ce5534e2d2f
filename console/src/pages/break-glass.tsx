/** Logs an admin in with the link that was made on the host. The token stands in the fragment, which no server sees. */

import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, unwrap } from "../api/client";
import { MIN_PASSWORD_CHARS } from "../logic/roles";
import { Action, Command, ProblemNote } from "../ui/basic";
import { Field } from "../ui/fields";
import { Tick } from "../ui/switch";

/** Takes the token out of the address, so that it does not stay in the history. */
function takeToken(): string {
  const token = new URLSearchParams(window.location.hash.slice(1)).get("token") ?? "";
  if (token !== "") window.history.replaceState(window.history.state, "", window.location.pathname);
  return token;
}

export function BreakGlassPage() {
  const client = useQueryClient();
  const navigate = useNavigate();
  const [token] = useState(takeToken);
  const [password, setPassword] = useState("");
  const [deletesFactor, setDeletesFactor] = useState(false);
  const redeem = useMutation({
    mutationFn: async () => {
      await unwrap(
        api.POST("/v1/break-glass", {
          body: {
            token,
            ...(password === "" ? {} : { new_password: password }),
            ...(deletesFactor ? { delete_second_factor: true } : {}),
          },
        }),
      );
    },
    onSuccess: async () => {
      setPassword("");
      await client.resetQueries();
      await navigate({ to: "/settings/security" });
    },
  });
  const reason = redeem.isPending
    ? "Logging in"
    : token === ""
      ? "The address has no token"
      : password !== "" && password.length < MIN_PASSWORD_CHARS
        ? `A password has at least ${MIN_PASSWORD_CHARS} characters`
        : null;
  return (
    <div className="mx-auto grid max-w-[420px] gap-5 px-4 py-[14vh]">
      <h1 className="text-title">
        <span aria-hidden="true" className="mr-2 text-accent">
          ◆
        </span>
        Break-glass login
      </h1>
      <p className="text-muted">
        The link works once. It opens a session of one hour for the admin that it was made for, and it is recorded.
      </p>
      <Form
        className="grid gap-4"
        onSubmit={(event) => {
          event.preventDefault();
          if (!reason) redeem.mutate();
        }}
      >
        <Field
          label="New password, if you need one"
          type="password"
          autoComplete="new-password"
          value={password}
          onChange={setPassword}
          description={`At least ${MIN_PASSWORD_CHARS} characters. Left empty, the old one stays.`}
        />
        <Tick label="I have lost my second factor: delete it" isTicked={deletesFactor} onChange={setDeletesFactor} />
        <Action type="submit" tone="primary" reason={reason}>
          Log in
        </Action>
      </Form>
      {redeem.error && <ProblemNote error={redeem.error} />}
      {token === "" && (
        <div className="grid gap-2">
          <p>Make a link on the host of the server:</p>
          <Command line="cynode admin break-glass NAME" />
        </div>
      )}
    </div>
  );
}
