/** Parts of pages that list things and change them. */

import { Link } from "@tanstack/react-router";
import { type ReactNode, useEffect, useRef, useState } from "react";
import { Action, Command, cx, Foreign, PageHead, ProblemNote } from "./basic";
import { Field } from "./fields";
import { Layer } from "./layer";

/** Brings a row into the view of its own list. The page around it stays where it is. */
function scrollInList(row: HTMLElement): void {
  const list = row.closest("ul");
  for (let box = list?.parentElement; box && box.id !== "page"; box = box.parentElement) {
    if (box.scrollHeight <= box.clientHeight || getComputedStyle(box).overflowY !== "auto") continue;
    const [inner, outer] = [row.getBoundingClientRect(), box.getBoundingClientRect()];
    if (inner.top < outer.top) box.scrollTop -= outer.top - inner.top;
    else if (inner.bottom > outer.bottom) box.scrollTop += inner.bottom - outer.bottom;
    return;
  }
}

/** The head of a page with a list. Beside a chosen item on a small screen only its name is left, for those who hear the page. */
export function ListHead({
  title,
  lead,
  isChosen,
  children,
}: {
  title: string;
  lead: ReactNode;
  isChosen: boolean;
  children?: ReactNode;
}) {
  return (
    <div className={cx(isChosen && "max-split:sr-only")}>
      <PageHead title={title} lead={lead}>
        {children && <span className={cx("flex flex-wrap gap-2", isChosen && "max-split:hidden")}>{children}</span>}
      </PageHead>
    </div>
  );
}

/** A row that opens an item beside the list; the address holds which. */
export function RowLink({
  parameter,
  id,
  isChosen,
  children,
}: {
  parameter: string;
  id: string;
  isChosen: boolean;
  children: ReactNode;
}) {
  const element = useRef<HTMLAnchorElement>(null);
  useEffect(() => {
    if (isChosen && element.current) scrollInList(element.current);
  }, [isChosen]);
  return (
    <li>
      <Link
        ref={element}
        to="."
        search={(previous: Record<string, unknown>) => ({ ...previous, [parameter]: id, create: undefined })}
        aria-current={isChosen ? "true" : undefined}
        className={cx(
          "grid min-h-11 grid-cols-1 content-center gap-0.5 border-line border-b px-2 py-1.5 -outline-offset-2 hover:bg-surface",
          isChosen && "bg-select hover:bg-select",
        )}
      >
        {children}
      </Link>
    </li>
  );
}

/** The two lines of a row: a name with what stands at its end, and what explains it. On a phone nothing is cut off: they wrap. */
export function RowLines({
  sign,
  name,
  end,
  below,
}: {
  /** The sign of its state, in a column of its own. */
  sign?: ReactNode;
  name: ReactNode;
  end?: ReactNode;
  below?: ReactNode;
}) {
  const lines = (
    <>
      <span className="flex items-baseline justify-between gap-x-3 max-small:flex-wrap">
        <span className="min-w-0 truncate font-medium max-small:whitespace-normal">{name}</span>
        {end && (
          <span className="max-w-[60%] shrink-0 truncate text-right text-meta text-muted max-small:max-w-full max-small:whitespace-normal">
            {end}
          </span>
        )}
      </span>
      {below && <span className="truncate text-meta text-muted max-small:whitespace-normal">{below}</span>}
    </>
  );
  if (!sign) return lines;
  return (
    <span className="grid grid-cols-[auto_minmax(0,1fr)] items-baseline gap-x-1">
      {sign}
      <span className="grid grid-cols-1 gap-0.5">{lines}</span>
    </span>
  );
}

/** Asks before something is lost. With `typed`, the name must be written first. */
export function ConfirmLayer({
  title,
  action,
  keep,
  children,
  typed,
  reason: missing,
  pending,
  error,
  onConfirm,
  onClose,
}: {
  title: string;
  action: string;
  keep: string;
  children: ReactNode;
  typed?: string;
  /** What else is missing. */
  reason?: string | null;
  pending: boolean;
  error: unknown;
  onConfirm: () => void;
  onClose: () => void;
}) {
  const [text, setText] = useState("");
  const reason = pending ? "It is being sent" : typed !== undefined && text !== typed ? "Type the name first" : missing;
  return (
    <Layer title={title} isOpen onClose={onClose}>
      <div className="grid gap-2">{children}</div>
      {typed !== undefined && <Field label={`Type ${typed} to go on`} value={text} onChange={setText} mono autoFocus />}
      {error ? <ProblemNote error={error} /> : null}
      <div className="flex flex-wrap gap-2">
        <Action tone="danger" onPress={onConfirm} reason={reason}>
          {action}
        </Action>
        <Action tone="quiet" onPress={onClose}>
          {keep}
        </Action>
      </div>
    </Layer>
  );
}

/** A secret that the server shows this once. */
export function SecretOnce({
  label,
  secret,
  children,
  onClose,
}: {
  label: string;
  secret: string;
  children: ReactNode;
  onClose: () => void;
}) {
  return (
    <section aria-label={label} className="grid max-w-[640px] gap-3 rounded-box border border-accent p-4">
      <p role="status" className="font-medium">
        <span aria-hidden="true">! </span>Copy it now. It is shown this once.
      </p>
      <Command line={secret} />
      <div className="text-muted">{children}</div>
      <div>
        <Action tone="primary" onPress={onClose}>
          I have copied it
        </Action>
      </div>
    </section>
  );
}

/** A key in monospace that may break after its dots. */
export function KeyName({ name }: { name: string }) {
  return (
    <code className="font-mono text-code">
      {name.split(/(?<=[._])/).map((part, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: the parts of a key never move
        <span key={index}>
          <Foreign text={part} />
          <wbr />
        </span>
      ))}
    </code>
  );
}

/** Why somebody who is no admin cannot change something. */
export const ADMINS_ONLY = "Only an admin of the installation may do this";
