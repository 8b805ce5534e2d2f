/** Where am I logged in? Sessions with their devices, and accounts at identity providers. */

import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { api, type Schema, unwrap } from "../api/client";
import { meQuery } from "../api/queries";
import { identitiesQuery, loginOptionsQuery, sessionsQuery } from "../api/queries-admin";
import { formatTime } from "../logic/format";
import { describeDevice, describeMethod, describeRefusal, type OpenSession } from "../logic/sign-on";
import { Action, Age, Foreign, Loaded, Page, PageHead, ProblemNote, SectionHead, Sign } from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { Person } from "../ui/person";
import { ConfirmLayer } from "../ui/rows";
import { SettingsNav } from "../ui/settings-nav";

export function SessionsPage() {
  const { user, sso } = useSearch({ from: "/settings/sessions" });
  const me = useQuery(meQuery);
  const isOther = user !== undefined && user !== me.data?.user.id;
  usePageCommand(
    isOther ? `cynork session list --user ${user}` : "cynork session list",
    isOther ? `/v1/sessions?user_id=${user}` : "/v1/sessions",
  );
  const sessions = useInfiniteQuery(sessionsQuery(isOther ? user : undefined));
  const items = sessions.data?.pages.flatMap((page) => page.items) ?? [];
  const [ending, setEnding] = useState<OpenSession | null>(null);
  const refusal = describeRefusal(sso);
  return (
    <Page wide>
      <SettingsNav />
      <PageHead
        title="Sessions"
        lead={
          isOther ? (
            <>
              Of <Person id={user} />.{" "}
              <Link to="/settings/sessions" className="text-accent underline">
                Show mine
              </Link>
            </>
          ) : (
            "Where you are logged in, and since when."
          )
        }
      />
      <div className="grid grid-cols-1 gap-6">
        {refusal && (
          <p role="alert" className="rounded-box border border-bad px-3 py-2">
            <span aria-hidden="true">! </span>
            {refusal}
          </p>
        )}
        <Loaded query={sessions} lines={4}>
          {() => (
            <div>
              <ul aria-label="Sessions" className="border-line border-t">
                {items.map((session) => (
                  <Row key={session.id} session={session} onEnd={() => setEnding(session)} />
                ))}
              </ul>
              {sessions.hasNextPage && (
                <div className="py-3">
                  <Action
                    onPress={() => void sessions.fetchNextPage()}
                    reason={sessions.isFetchingNextPage ? "They are being read" : null}
                  >
                    Show more sessions
                  </Action>
                </div>
              )}
            </div>
          )}
        </Loaded>
        {!isOther && <Accounts />}
      </div>
      {ending && <EndLayer session={ending} onClose={() => setEnding(null)} />}
    </Page>
  );
}

function Row({ session, onEnd }: { session: OpenSession; onEnd: () => void }) {
  const device = describeDevice(session.device);
  return (
    <li className="flex min-h-11 items-center justify-between gap-3 border-line border-b px-2 py-1.5">
      <span className="grid min-w-0 gap-0.5">
        <span className="flex min-w-0 items-baseline gap-2">
          <span className="min-w-0 truncate font-medium">
            <Foreign text={device} />
          </span>
          {session.current && <Sign standing="done" word="This one" />}
        </span>
        <span className="text-meta text-muted">
          <Foreign text={describeMethod(session)} />
          {session.source ? (
            <>
              , from <Foreign text={session.source} />
            </>
          ) : null}
          , since <Age at={session.created_at} ago />, until {formatTime(session.expires_at)}
        </span>
      </span>
      <Action
        tone="quiet"
        onPress={onEnd}
        aria-label={`End the session of ${device}`}
        reason={session.current ? "Log out to end this session" : null}
      >
        End…
      </Action>
    </li>
  );
}

function EndLayer({ session, onClose }: { session: OpenSession; onClose: () => void }) {
  const client = useQueryClient();
  const end = useMutation({
    mutationFn: () => unwrap(api.DELETE("/v1/sessions/{session}", { params: { path: { session: session.id } } })),
    onSuccess: onClose,
    onSettled: () => void client.invalidateQueries({ queryKey: ["sessions"] }),
  });
  return (
    <ConfirmLayer
      title="End session"
      action="End session"
      keep="Keep session"
      pending={end.isPending}
      error={end.error}
      onConfirm={() => end.mutate()}
      onClose={onClose}
    >
      <p>
        <Foreign text={describeDevice(session.device)} /> is logged out at once.
      </p>
    </ConfirmLayer>
  );
}

/** Accounts of mine at identity providers. One is linked in a session of mine, and never by an e-mail address. */
function Accounts() {
  const client = useQueryClient();
  const identities = useQuery(identitiesQuery);
  const options = useQuery(loginOptionsQuery);
  const [unlinking, setUnlinking] = useState<Schema["IdentityView"] | null>(null);
  const link = useMutation({
    mutationFn: (provider: string) => unwrap(api.POST("/v1/me/identities", { body: { provider } })),
    onSuccess: (begun) => window.location.assign(begun.authorization_url),
  });
  const unlink = useMutation({
    mutationFn: (identity: string) =>
      unwrap(api.DELETE("/v1/me/identities/{identity}", { params: { path: { identity } } })),
    onSuccess: () => setUnlinking(null),
    onSettled: () => void client.invalidateQueries({ queryKey: ["identities"] }),
  });
  const linked = identities.data?.items ?? [];
  const others = (options.data?.providers ?? []).filter((it) => !linked.some((one) => one.provider === it.name));
  if (linked.length === 0 && others.length === 0) return null;
  return (
    <section className="grid grid-cols-1 gap-2">
      <SectionHead>Accounts at identity providers</SectionHead>
      <ul aria-label="Linked accounts">
        {linked.map((identity) => (
          <li key={identity.id} className="flex min-h-10 items-center justify-between gap-3 border-line border-b px-2">
            <span className="min-w-0 truncate">
              <Foreign text={identity.provider_title} />{" "}
              <span className="text-meta text-muted">
                linked <Age at={identity.linked_at} ago />
              </span>
            </span>
            <Action
              tone="quiet"
              aria-label={`Unlink ${identity.provider_title}`}
              onPress={() => {
                unlink.reset();
                setUnlinking(identity);
              }}
            >
              Unlink…
            </Action>
          </li>
        ))}
        {others.map((provider) => (
          <li
            key={provider.name}
            className="flex min-h-10 items-center justify-between gap-3 border-line border-b px-2"
          >
            <span className="min-w-0 truncate">
              <Foreign text={provider.display_name} /> <span className="text-meta text-muted">not linked</span>
            </span>
            <Action
              tone="quiet"
              aria-label={`Link ${provider.display_name}`}
              onPress={() => link.mutate(provider.name)}
              reason={link.isPending ? "The provider is being asked" : null}
            >
              Link
            </Action>
          </li>
        ))}
      </ul>
      {link.error && <ProblemNote error={link.error} />}
      {unlinking && (
        <ConfirmLayer
          title="Unlink account"
          action="Unlink account"
          keep="Keep it"
          pending={unlink.isPending}
          error={unlink.error}
          onConfirm={() => unlink.mutate(unlinking.id)}
          onClose={() => setUnlinking(null)}
        >
          <p>
            You no longer log in by <Foreign text={unlinking.provider_title} />. Sessions of it end, and so do the
            groups that it gave you.
          </p>
        </ConfirmLayer>
      )}
    </section>
  );
}
