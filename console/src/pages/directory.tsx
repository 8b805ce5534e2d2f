/** Which directory provisions people and groups? Tokens of SCIM 2.0. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, makeKey, type Schema, unwrap } from "../api/client";
import { meQuery } from "../api/queries";
import { scimTokensQuery } from "../api/queries-admin";
import { serverOrigin } from "../api/transport";
import { describeKey } from "../logic/api-keys";
import { formatTime } from "../logic/format";
import {
  Action,
  Age,
  Command,
  Empty,
  Foreign,
  Id,
  Loaded,
  Page,
  PageHead,
  ProblemNote,
  Sign,
  useNow,
} from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { Choice, Field } from "../ui/fields";
import { ADMINS_ONLY, ConfirmLayer, SecretOnce } from "../ui/rows";
import { SettingsNav } from "../ui/settings-nav";

type ScimToken = Schema["ScimTokenView"];

const LIFETIMES = [
  { value: "90", name: "90 days" },
  { value: "180", name: "180 days" },
  { value: "365", name: "1 year" },
] as const;

export function DirectoryPage() {
  usePageCommand("cynork scim-token list", "/v1/scim-tokens");
  const { create } = useSearch({ from: "/settings/directory" });
  const navigate = useNavigate({ from: "/settings/directory" });
  const me = useQuery(meQuery);
  const isAdmin = me.data?.installation_role === "admin";
  const tokens = useQuery({ ...scimTokensQuery, enabled: isAdmin });
  const [revoking, setRevoking] = useState<ScimToken | null>(null);
  const now = useNow();
  const setCreate = (isOpen: boolean) => void navigate({ search: { create: isOpen || undefined } });
  return (
    <Page wide>
      <SettingsNav />
      <PageHead
        title="Directory"
        lead={
          <>
            The directory of a company creates, changes and disables people and groups by SCIM 2.0. It gives no role:
            you bind roles to its <GroupsLink />.
          </>
        }
      >
        {!create && (
          <Action tone="primary" onPress={() => setCreate(true)} reason={isAdmin ? null : ADMINS_ONLY}>
            Issue token
          </Action>
        )}
      </PageHead>
      <div className="grid grid-cols-1 gap-5">
        <p>
          Address for the directory: <code className="font-mono text-code">{serverOrigin()}/scim/v2</code>
        </p>
        {create && isAdmin && <CreateForm onClose={() => setCreate(false)} />}
        {isAdmin && (
          <Loaded query={tokens} lines={4}>
            {(list) =>
              list.items.length === 0 ? (
                !create && (
                  <Empty title="No directory has a token.">
                    <Command line="cynork scim-token create entra" />
                  </Empty>
                )
              ) : (
                <ul aria-label="Tokens of directories" className="border-line border-t">
                  {list.items.map((token) => (
                    <Row key={token.id} token={token} now={now} onRevoke={() => setRevoking(token)} />
                  ))}
                </ul>
              )
            }
          </Loaded>
        )}
      </div>
      {revoking && <RevokeLayer token={revoking} onClose={() => setRevoking(null)} />}
    </Page>
  );
}

function GroupsLink() {
  return (
    <Link to="/settings/groups" className="text-accent underline underline-offset-2">
      groups
    </Link>
  );
}

function Row({ token, now, onRevoke }: { token: ScimToken; now: number; onRevoke: () => void }) {
  const state = describeKey(token, now);
  return (
    <li className="grid min-h-10 grid-cols-[100px_1fr_130px_260px_auto] items-center gap-x-4 gap-y-0.5 border-line border-b px-2 py-1 max-medium:grid-cols-[1fr_auto] max-medium:py-2">
      <Sign standing={state.standing} word={state.words} />
      <span className="min-w-0 truncate font-medium max-medium:order-first">
        <Foreign text={token.name} />
      </span>
      <span className="max-medium:hidden">
        <Id id={token.id} />
      </span>
      <span className="text-meta text-muted">
        {token.last_used_at ? (
          <>
            Used <Age at={token.last_used_at} ago />
          </>
        ) : (
          "Never used"
        )}
        , until {formatTime(token.expires_at)}
      </span>
      <Action
        tone="quiet"
        onPress={onRevoke}
        aria-label={`Revoke ${token.name}`}
        reason={state.works ? null : `It is ${state.words.toLowerCase()} already`}
      >
        Revoke…
      </Action>
    </li>
  );
}

function RevokeLayer({ token, onClose }: { token: ScimToken; onClose: () => void }) {
  const client = useQueryClient();
  const revoke = useMutation({
    mutationFn: () =>
      unwrap(api.DELETE("/v1/scim-tokens/{scim_token}", { params: { path: { scim_token: token.id } } })),
    onSuccess: onClose,
    onSettled: () => void client.invalidateQueries({ queryKey: scimTokensQuery.queryKey }),
  });
  return (
    <ConfirmLayer
      title="Revoke token"
      action="Revoke token"
      keep="Keep token"
      pending={revoke.isPending}
      error={revoke.error}
      onConfirm={() => revoke.mutate()}
      onClose={onClose}
    >
      <p>
        The directory that uses <Foreign text={token.name} /> is refused at once. People whom it disables later stay
        active here until it has a new token.
      </p>
    </ConfirmLayer>
  );
}

function CreateForm({ onClose }: { onClose: () => void }) {
  const client = useQueryClient();
  const [name, setName] = useState("");
  const [days, setDays] = useState<(typeof LIFETIMES)[number]["value"]>("365");
  const [key, setKey] = useState(makeKey);
  const create = useMutation({
    mutationFn: () =>
      unwrap(
        api.POST("/v1/scim-tokens", {
          params: { header: { "Idempotency-Key": key } },
          body: { name: name.trim(), expires_in_days: Number(days) },
        }),
      ),
    onSettled: () => void client.invalidateQueries({ queryKey: scimTokensQuery.queryKey }),
  });
  if (create.data) {
    return (
      <SecretOnce label="The new token" secret={create.data.token} onClose={onClose}>
        The directory sends it as <code className="font-mono text-code">Authorization: Bearer …</code>. It opens
        <code className="font-mono text-code"> /scim/v2</code> and nothing else.
      </SecretOnce>
    );
  }
  const reason = create.isPending ? "The token is being issued" : name.trim() === "" ? "Write a name" : null;
  return (
    <Form
      aria-labelledby="create-token"
      className="grid max-w-[640px] gap-4 rounded-box border border-line p-4"
      onSubmit={(event) => {
        event.preventDefault();
        if (!reason) create.mutate();
      }}
    >
      <h2 id="create-token" className="text-lead">
        Issue token
      </h2>
      <div className="grid items-start gap-4 small:grid-cols-2">
        <Field
          label="Name"
          value={name}
          onChange={(text) => {
            setName(text);
            setKey(makeKey());
          }}
          autoFocus
          placeholder="entra"
          description="For which directory it is."
        />
        <Choice
          label="Works for"
          value={days}
          onChange={(value) => {
            setDays(value);
            setKey(makeKey());
          }}
          options={LIFETIMES}
        />
      </div>
      {create.error && <ProblemNote error={create.error} />}
      <div className="flex flex-wrap gap-2">
        <Action type="submit" tone="primary" reason={reason}>
          Issue token
        </Action>
        <Action tone="quiet" onPress={onClose}>
          Cancel
        </Action>
      </div>
    </Form>
  );
}
