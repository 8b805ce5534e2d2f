/** May this device act in my name? The login of a device without a browser. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, type Schema, unwrap } from "../api/client";
import { deviceLoginQuery } from "../api/queries-admin";
import { readCode } from "../logic/sign-on";
import { Action, Age, Facts, Foreign, Loaded, Page, PageHead, ProblemNote } from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { Field } from "../ui/fields";

export function DevicePage() {
  const { code } = useSearch({ from: "/device" });
  const navigate = useNavigate({ from: "/device" });
  const given = readCode(code ?? "");
  usePageCommand(
    "code" in given ? `cynork device show ${given.code}` : "cynork device show CODE",
    "/v1/device-logins/CODE",
  );
  return (
    <Page>
      <PageHead title="Log a device in" lead="A program on another machine asks to act in your name." />
      {"code" in given ? (
        <Asked key={given.code} code={given.code} onOther={() => void navigate({ search: {} })} />
      ) : (
        <CodeForm onCode={(next) => void navigate({ search: { code: next } })} />
      )}
    </Page>
  );
}

function CodeForm({ onCode }: { onCode: (code: string) => void }) {
  const [text, setText] = useState("");
  const read = readCode(text);
  return (
    <Form
      aria-label="Code of the device"
      className="grid max-w-[420px] gap-4"
      onSubmit={(event) => {
        event.preventDefault();
        if ("code" in read) onCode(read.code);
      }}
    >
      <Field
        label="Code that the device shows"
        value={text}
        onChange={setText}
        placeholder="BCDF-GHJK"
        autoComplete="off"
        mono
        autoFocus
      />
      <div>
        <Action type="submit" tone="primary" reason={"reason" in read ? read.reason : null}>
          Show the device
        </Action>
      </div>
    </Form>
  );
}

function Asked({ code, onOther }: { code: string; onOther: () => void }) {
  const asked = useQuery(deviceLoginQuery(code));
  const client = useQueryClient();
  const decide = useMutation({
    mutationFn: (approved: boolean) =>
      unwrap(api.POST("/v1/device-logins/{code}", { params: { path: { code } }, body: { approved } })),
    onSuccess: () => void client.invalidateQueries({ queryKey: ["sessions"] }),
  });
  if (decide.isSuccess) return <Decided approved={decide.variables} device={decide.data.device} />;
  const pending = decide.isPending ? "It is being sent" : null;
  return (
    <Loaded query={asked} lines={4}>
      {(login) => (
        <article aria-label="The device" className="grid max-w-[640px] gap-5">
          <p className="font-mono text-title">{login.user_code}</p>
          <DeviceFacts login={login} />
          <p role="note" className="rounded-box border border-accent px-3 py-2">
            <span aria-hidden="true">! </span>
            <strong>Approve only what you started yourself a moment ago.</strong> The code on the device has to be this
            one. A person who sent you the code or this page by message would get your rights. The name of the device
            can be invented; the address cannot.
          </p>
          {decide.error && <ProblemNote error={decide.error} />}
          <div className="flex flex-wrap gap-2">
            <Action tone="danger" onPress={() => decide.mutate(false)} reason={pending}>
              Deny the device
            </Action>
            <Action tone="primary" onPress={() => decide.mutate(true)} reason={pending}>
              The codes are the same: approve
            </Action>
            <Action tone="quiet" onPress={onOther}>
              Another code
            </Action>
          </div>
        </article>
      )}
    </Loaded>
  );
}

function DeviceFacts({ login }: { login: Schema["DeviceLoginView"] }) {
  return (
    <Facts
      rows={[
        ["Calls itself", <Foreign key="device" text={login.device} />],
        ["Asks from", <Foreign key="source" text={login.source} />],
        ["Asked", <Age key="created" at={login.created_at} ago />],
      ]}
    />
  );
}

function Decided({ approved, device }: { approved: boolean; device: string }) {
  return (
    <p role="status">
      <span aria-hidden="true">{approved ? "✓ " : "✗ "}</span>
      <Foreign text={device} />{" "}
      {approved ? "is logged in as you. You end its session under Settings, Sessions." : "was denied."} You can close
      this page.
    </p>
  );
}
