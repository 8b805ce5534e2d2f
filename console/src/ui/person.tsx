/** Who did something: the name where the reader may know it, else the identifier. */

import { useQuery } from "@tanstack/react-query";
import { meQuery } from "../api/queries";
import { peopleNamesQuery } from "../api/queries-tools";
import { Foreign, Id } from "./basic";

export function Person({ id }: { id: string }) {
  const me = useQuery(meQuery);
  const isMe = me.data?.user.id === id;
  const names = useQuery({ ...peopleNamesQuery, enabled: me.data !== undefined && !isMe });
  const name = isMe ? me.data?.user.handle : names.data?.get(id);
  if (!name) return <Id id={id} />;
  return (
    <span title={id}>
      <Foreign text={name} />
      {isMe && <span className="text-muted"> (you)</span>}
    </span>
  );
}
