/** How do people log in here? Identity providers, their groups and whether they work. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, type Schema, unwrap } from "../api/client";
import { meQuery } from "../api/queries";
import { groupsQuery, identityProvidersQuery } from "../api/queries-admin";
import { serverOrigin } from "../api/transport";
import { formatCount } from "../logic/format";
import {
  describeSecondFactor,
  type IdentityProvider,
  missingInDraft,
  NEW_PROVIDER,
  type ProviderDraft,
  toChange,
  toDraft,
  toRequest,
} from "../logic/sign-on";
import {
  Action,
  Age,
  Command,
  CopyButton,
  Empty,
  Facts,
  Foreign,
  Loaded,
  Page,
  ProblemNote,
  SectionHead,
  Sign,
} from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { Choice, Field } from "../ui/fields";
import { ADMINS_ONLY, ConfirmLayer, ListHead, RowLines, RowLink } from "../ui/rows";
import { SettingsNav } from "../ui/settings-nav";
import { Split, useRowKeys } from "../ui/split";
import { Switch, Tick } from "../ui/switch";

const FROM_FILE = "The file of the configuration owns it: change it there";

export function IdentityProvidersPage() {
  const { provider: chosenName, create } = useSearch({ from: "/settings/identity-providers" });
  const navigate = useNavigate({ from: "/settings/identity-providers" });
  const me = useQuery(meQuery);
  const providers = useQuery(identityProvidersQuery);
  usePageCommand("cynork identity-provider list", "/v1/identity-providers");
  const items = providers.data?.items ?? [];
  const chosen = items.find((item) => item.name === chosenName);
  const close = () => void navigate({ search: {} });
  useRowKeys(
    items.map((item) => item.name),
    chosenName ?? (create ? "" : undefined),
    (next) => void navigate({ search: { provider: next }, replace: true }),
    close,
  );
  const reason = me.data?.installation_role === "admin" ? null : ADMINS_ONLY;
  const openForm = () => void navigate({ search: { create: true } });
  return (
    <Page wide>
      <SettingsNav />
      <ListHead
        isChosen={chosenName !== undefined || create === true}
        title="Identity providers"
        lead="People log in with the account of their company (OpenID Connect)."
      >
        {!create && items.length > 0 && (
          <Action tone={chosen ? "plain" : "primary"} onPress={openForm} reason={reason}>
            Add provider
          </Action>
        )}
      </ListHead>
      <Loaded query={providers} lines={4}>
        {() =>
          items.length === 0 && !create ? (
            <Empty title="There is no identity provider yet.">
              <p className="text-muted">
                Register CyNode at your provider as a web application with the code flow, then add the provider here.
              </p>
              <Command line="cynork identity-provider set company --issuer https://id.example.com --client-id cynode" />
              <div>
                <Action tone="primary" onPress={openForm} reason={reason}>
                  Add provider
                </Action>
              </div>
            </Empty>
          ) : (
            <Split
              back="Identity providers"
              onClose={close}
              list={
                <ul aria-label="Identity providers" className="border-line border-t">
                  {items.map((item) => (
                    <RowLink key={item.id} parameter="provider" id={item.name} isChosen={item.name === chosenName}>
                      <RowLines
                        name={<Foreign text={item.display_name} />}
                        end={
                          <Sign standing={item.enabled ? "done" : "cancelled"} word={item.enabled ? "In use" : "Off"} />
                        }
                        below={<Foreign text={item.issuer} />}
                      />
                    </RowLink>
                  ))}
                </ul>
              }
              detail={
                create ? (
                  <ProviderForm title="Add identity provider" start={NEW_PROVIDER} isNew onClose={close} />
                ) : chosen ? (
                  <ProviderDetail key={chosen.id} provider={chosen} reason={reason} />
                ) : chosenName ? (
                  <p role="status">There is no such provider.</p>
                ) : null
              }
            />
          )
        }
      </Loaded>
    </Page>
  );
}

/** Stores what changes of a provider. The server replaces the provider as a whole and keeps what is not sent. */
function useSetProvider(name: string, onDone: (provider: IdentityProvider) => void) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: (body: Schema["SetIdentityProvider"]) =>
      unwrap(api.PUT("/v1/identity-providers/{name}", { params: { path: { name } }, body })),
    onSuccess: onDone,
    onSettled: () => {
      void client.invalidateQueries({ queryKey: ["identity-providers"] });
      void client.invalidateQueries({ queryKey: ["login-options"] });
    },
  });
}

function ProviderForm({
  title,
  start,
  isNew,
  onClose,
}: {
  title: string;
  start: ProviderDraft;
  isNew?: boolean;
  onClose: () => void;
}) {
  const navigate = useNavigate({ from: "/settings/identity-providers" });
  const [draft, setDraft] = useState(start);
  const change = (part: Partial<ProviderDraft>) => setDraft((previous) => ({ ...previous, ...part }));
  const save = useSetProvider(draft.name.trim(), (stored) => {
    onClose();
    void navigate({ search: { provider: stored.name } });
  });
  const blocked = save.isPending ? "It is being stored" : missingInDraft(draft);
  return (
    <Form
      aria-label={title}
      className="grid max-w-[640px] gap-4"
      onSubmit={(event) => {
        event.preventDefault();
        if (!blocked) save.mutate(toRequest(draft));
      }}
    >
      <h2 className="text-lead">{title}</h2>
      {isNew && (
        <div className="grid items-start gap-4 small:grid-cols-2">
          <Field
            label="Name in addresses"
            value={draft.name}
            onChange={(name) => change({ name })}
            placeholder="company"
            mono
            autoFocus
          />
          <Field
            label="Issuer"
            value={draft.issuer}
            onChange={(issuer) => change({ issuer })}
            placeholder="https://id.example.com"
            description="Exactly as the provider writes it. It cannot be changed later."
            mono
          />
        </div>
      )}
      <Field
        label="What people see"
        value={draft.displayName}
        onChange={(displayName) => change({ displayName })}
        placeholder="Company account"
      />
      <div className="grid items-start gap-4 small:grid-cols-2">
        <Field label="Client id" value={draft.clientId} onChange={(clientId) => change({ clientId })} mono />
        <Field
          label="Client secret"
          type="password"
          value={draft.secret}
          onChange={(secret) => change({ secret })}
          autoComplete="off"
          description={isNew ? "A public client has none." : "Leave it empty to keep the stored one."}
        />
        <Field
          label="Scopes"
          value={draft.scopes}
          onChange={(scopes) => change({ scopes })}
          description="Beside openid. offline_access lets the server ask each minute whether the person may still be here."
          mono
        />
        <Field
          label="Claim of groups"
          value={draft.groupsClaim}
          onChange={(groupsClaim) => change({ groupsClaim })}
          description="A name, or a path such as realm_access.roles."
          mono
        />
        <Field
          label="Second factor by acr"
          value={draft.secondFactorContexts}
          onChange={(secondFactorContexts) => change({ secondFactorContexts })}
          description="Values of the claim acr that stand for a second factor. mfa, otp or hwk in amr always does."
          mono
        />
      </div>
      <Tick
        label="Make an account at the first login"
        description="A new account has no rights but those of the groups that are mapped."
        isTicked={draft.createAccounts}
        onChange={(createAccounts) => change({ createAccounts })}
      />
      <Tick
        label="It is the provider of the directory"
        description="Accounts that the directory made by SCIM log in by it: its subject is their external id."
        isTicked={draft.linksDirectory}
        onChange={(linksDirectory) => change({ linksDirectory })}
      />
      {save.error && <ProblemNote error={save.error} />}
      <div className="flex flex-wrap gap-2">
        <Action type="submit" tone="primary" reason={blocked}>
          {isNew ? "Add provider" : "Store changes"}
        </Action>
        <Action tone="quiet" onPress={onClose}>
          Cancel
        </Action>
      </div>
    </Form>
  );
}

function ProviderDetail({ provider, reason }: { provider: IdentityProvider; reason: string | null }) {
  const [isEditing, setEditing] = useState(false);
  const [isDeleting, setDeleting] = useState(false);
  const set = useSetProvider(provider.name, () => undefined);
  const blocked = reason ?? (provider.from_file ? FROM_FILE : set.isPending ? "It is being stored" : null);
  if (isEditing) {
    return <ProviderForm title="Change provider" start={toDraft(provider)} onClose={() => setEditing(false)} />;
  }
  return (
    <article className="grid grid-cols-1 gap-6">
      <header className="flex flex-wrap items-baseline justify-between gap-3">
        <h2 className="text-lead">
          <Foreign text={provider.display_name} />
        </h2>
        <Switch
          label={provider.enabled ? "People can log in by it" : "It is switched off"}
          isOn={provider.enabled}
          reason={blocked}
          onChange={(enabled) => set.mutate(toChange(provider, { enabled }))}
        />
      </header>
      <Facts
        rows={[
          ["Issuer", <Foreign key="issuer" text={provider.issuer} />],
          ["Client id", <Foreign key="client" text={provider.client_id} />],
          ["Secret", provider.has_secret ? "Stored encrypted" : "None: a public client"],
          ["Scopes", `openid ${provider.scopes.join(" ")}`],
          ["Claim of groups", <code key="claim">{provider.groups_claim}</code>],
          ["New accounts", provider.create_accounts ? "Made at the first login" : "Not made"],
          ["Directory", provider.links_directory ? "Its accounts log in by it" : "Not of this provider"],
          ["Second factor", <Foreign key="factor" text={describeSecondFactor(provider)} />],
          ["Changed", <Age key="changed" at={provider.updated_at} ago />],
        ]}
      />
      <Addresses provider={provider} />
      {set.error && <ProblemNote error={set.error} />}
      <Discovery provider={provider} reason={reason} />
      <Mappings provider={provider} reason={blocked} />
      <div className="flex flex-wrap gap-2">
        <Action onPress={() => setEditing(true)} reason={blocked}>
          Change provider
        </Action>
        <Action tone="danger" onPress={() => setDeleting(true)} reason={blocked}>
          Delete provider…
        </Action>
      </div>
      {isDeleting && <DeleteLayer provider={provider} onClose={() => setDeleting(false)} />}
    </article>
  );
}

/** What has to be registered at the provider. */
function Addresses({ provider }: { provider: IdentityProvider }) {
  const rows = [
    ["Redirect URI", `${serverOrigin()}${provider.callback_path}`],
    ["After a logout", `${serverOrigin()}/login`],
    ["Back-channel logout", `${serverOrigin()}${provider.logout_path}`],
  ] as const;
  return (
    <section className="grid grid-cols-1 gap-2">
      <SectionHead>Register these at the provider</SectionHead>
      <ul aria-label="Addresses to register">
        {rows.map(([name, address]) => (
          <li key={name} className="flex min-h-10 items-center justify-between gap-3 border-line border-b">
            <span className="grid min-w-0">
              <span className="text-meta text-muted">{name}</span>
              <code className="truncate font-mono text-code">{address}</code>
            </span>
            <CopyButton text={address} label={`Copy: ${name}`} />
          </li>
        ))}
      </ul>
    </section>
  );
}

function Discovery({ provider, reason }: { provider: IdentityProvider; reason: string | null }) {
  const test = useMutation({
    mutationFn: () =>
      unwrap(api.POST("/v1/identity-providers/{name}/test", { params: { path: { name: provider.name } } })),
  });
  const found = test.data;
  return (
    <section className="grid grid-cols-1 gap-2">
      <SectionHead>Test</SectionHead>
      <div>
        <Action
          onPress={() => test.mutate()}
          reason={reason ?? (test.isPending ? "The provider is being asked" : null)}
        >
          Test discovery
        </Action>
      </div>
      {test.error && <ProblemNote error={test.error} />}
      {found && (
        <div role="status" className="grid gap-2">
          <p>
            <span aria-hidden="true">✓ </span>The provider answers, and its keys can be used.
          </p>
          <Facts
            rows={[
              ["Login", <Foreign key="login" text={found.authorization_endpoint} />],
              ["Tokens", <Foreign key="tokens" text={found.token_endpoint} />],
              found.end_session_endpoint
                ? ["Logout", <Foreign key="logout" text={found.end_session_endpoint} />]
                : ["Logout", "The provider has no page for it"],
              ["Sends logouts", found.sends_logout_tokens ? "Yes" : "No"],
              ["Names itself in answers", found.names_issuer ? "Yes" : "No"],
            ]}
          />
        </div>
      )}
    </section>
  );
}

/** Which groups of the provider are which groups here. A group that is not in the table gives no right. */
function Mappings({ provider, reason }: { provider: IdentityProvider; reason: string | null }) {
  const groups = useQuery(groupsQuery);
  const [value, setValue] = useState("");
  const [group, setGroup] = useState("");
  const set = useSetProvider(provider.name, () => setValue(""));
  const target = group || groups.data?.items[0]?.id || "";
  const mappings = provider.mappings.map(({ claim_value, group_id }) => ({ claim_value, group_id }));
  const blocked = reason ?? (set.isPending ? "It is being stored" : null);
  const store = (next: Schema["SetGroupMapping"][]) => set.mutate(toChange(provider, { mappings: next }));
  const roleOf = (id: string) => groups.data?.items.find((it) => it.id === id)?.role;
  return (
    <section className="grid grid-cols-1 gap-2">
      <SectionHead aside={formatCount(mappings.length, "group")}>Groups</SectionHead>
      <p className="text-muted">
        A group of the provider gives the roles of the group here. Other groups give no right.
      </p>
      {provider.mappings.length > 0 && (
        <table className="w-full text-left">
          <thead className="text-meta text-muted">
            <tr>
              <th className="py-1 font-normal">At the provider</th>
              <th className="py-1 font-normal">Here</th>
              <th className="py-1 font-normal">Role everywhere</th>
              <th className="py-1 font-normal">
                <span className="sr-only">Action</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {provider.mappings.map((mapping, index) => (
              <tr key={`${mapping.claim_value} ${mapping.group_id}`} className="border-line border-t">
                <td className="py-1.5 pr-3">
                  <Foreign text={mapping.claim_value} />
                </td>
                <td className="py-1.5 pr-3">
                  <Foreign text={mapping.group_name} />
                </td>
                <td className="py-1.5 pr-3 text-muted">{roleOf(mapping.group_id) ?? "none"}</td>
                <td className="py-0.5 text-right">
                  <Action
                    tone="quiet"
                    aria-label={`Remove ${mapping.claim_value}`}
                    reason={blocked}
                    onPress={() => store(mappings.filter((_, at) => at !== index))}
                  >
                    Remove
                  </Action>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      <Form
        aria-label="Map a group"
        className="grid max-w-[640px] items-end gap-2 small:grid-cols-[1fr_1fr_auto]"
        onSubmit={(event) => {
          event.preventDefault();
          if (!blocked && value.trim() !== "" && target !== "") {
            store([...mappings, { claim_value: value.trim(), group_id: target }]);
          }
        }}
      >
        <Field label="Group at the provider" value={value} onChange={setValue} placeholder="cynode-admins" mono />
        <Choice
          label="Group here"
          value={target}
          onChange={setGroup}
          options={(groups.data?.items ?? []).map((it) => ({ value: it.id, name: it.name }))}
        />
        <Action
          type="submit"
          reason={
            blocked ??
            (target === "" ? "Create a group first" : value.trim() === "" ? "Write the name of the group" : null)
          }
        >
          Map group
        </Action>
      </Form>
      {set.error && <ProblemNote error={set.error} />}
    </section>
  );
}

function DeleteLayer({ provider, onClose }: { provider: IdentityProvider; onClose: () => void }) {
  const client = useQueryClient();
  const navigate = useNavigate({ from: "/settings/identity-providers" });
  const remove = useMutation({
    mutationFn: () =>
      unwrap(api.DELETE("/v1/identity-providers/{name}", { params: { path: { name: provider.name } } })),
    onSuccess: () => void navigate({ search: {} }),
    onSettled: () => void client.invalidateQueries({ queryKey: ["identity-providers"] }),
  });
  return (
    <ConfirmLayer
      title="Delete identity provider"
      action="Delete provider"
      keep="Keep provider"
      typed={provider.name}
      pending={remove.isPending}
      error={remove.error}
      onConfirm={() => remove.mutate()}
      onClose={onClose}
    >
      <p>
        Everybody who logged in by <Foreign text={provider.display_name} /> is logged out at once and loses the groups
        that it gave. Their accounts stay.
      </p>
    </ConfirmLayer>
  );
}
