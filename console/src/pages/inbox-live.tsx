/** Who else looks at an item of the inbox, and who has decided it. */

import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect } from "react";
import { api } from "../api/client";
import { meQuery } from "../api/queries";
import { membersQuery, personQuery } from "../api/queries-task";
import { type Decision, describeDecision, describeViewers, type InboxItem } from "../logic/inbox";
import { Age, Foreign, Prose } from "../ui/basic";

/** A presence ends after 30 s; it is renewed so often while the item is on screen. */
const PRESENCE_MS = 15_000;

/** Says that this person looks at an item, as long as the tab is visible, and who else does. */
export function Presence({ item }: { item: InboxItem }) {
  const client = useQueryClient();
  const hasViewers = (item.viewers?.length ?? 0) > 0;
  useEffect(() => {
    const say = () => {
      if (document.hidden) return;
      const options = { params: { path: { item: item.id } }, body: {} };
      // Who cannot be seen by others still decides.
      void api.PUT("/v1/inbox/{item}/presence", options).catch(() => undefined);
      // Nobody says that they have gone: it shows when the list is read again.
      if (hasViewers) void client.invalidateQueries({ queryKey: ["inbox"] });
    };
    say();
    const timer = setInterval(say, PRESENCE_MS);
    document.addEventListener("visibilitychange", say);
    return () => {
      clearInterval(timer);
      document.removeEventListener("visibilitychange", say);
    };
  }, [item.id, hasViewers, client]);
  const words = describeViewers(item.viewers ?? []);
  return words ? (
    <p role="status" className="border-info border-l-2 py-1 pl-3 text-meta">
      <Foreign text={words} />
    </p>
  ) : null;
}

/** Returns the name of an account, as far as the reader may know it. */
function usePersonName(user: string | null, project: string | null): string {
  const me = useQuery(meQuery);
  const isMe = user !== null && me.data?.user.id === user;
  const person = useQuery({ ...personQuery(user ?? ""), enabled: user !== null && !isMe });
  const members = useQuery({
    ...membersQuery(project ?? ""),
    enabled: user !== null && !isMe && project !== null && person.data === null,
  });
  if (isMe) return "You";
  const handle = members.data?.items.find((member) => member.user_id === user)?.handle;
  return person.data ?? handle ?? "Somebody else";
}

/** An item that is decided: what was asked, who decided it, and when. Nothing can be pressed any more. */
export function DecidedItem({ item, decision }: { item: InboxItem; decision: Decision | null }) {
  const name = usePersonName(decision?.actor ?? null, item.project_id ?? null);
  return (
    <article className="grid grid-cols-1 gap-4">
      <h2 className="text-lead">
        <Foreign text={item.title} />
      </h2>
      <p role="status" className="border-ok border-l-2 py-1 pl-3">
        {decision ? (
          <>
            <span className="font-medium">
              <Foreign text={name} />
            </span>{" "}
            {describeDecision(decision)} <Age at={decision.at} ago />. Nothing more is needed.
          </>
        ) : (
          "This has been decided, here or by somebody else. Nothing more is needed."
        )}
      </p>
      <Prose text={item.text} className="text-muted" />
    </article>
  );
}
