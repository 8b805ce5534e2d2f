/** Small parts that every page is made of. */

import { Check, Copy } from "lucide-react";
import { Fragment, type ReactNode, useEffect, useRef, useState, useSyncExternalStore } from "react";
import {
  Button as AriaButton,
  type ButtonProps as AriaButtonProps,
  Focusable,
  Tooltip,
  TooltipTrigger,
} from "react-aria-components";
import { asProblem } from "../api/problem";
import { formatAge, formatTime, shortenId } from "../logic/format";
import { SIGNS, type Standing } from "../logic/state";
import { directionOf, splitBlocks, splitHidden, type TextItem, toSentence } from "../logic/text";

export function cx(...names: (string | false | null | undefined)[]): string {
  return names.filter(Boolean).join(" ");
}

/** One clock for all ages on screen. It stands still while the page is hidden. */
const clock = (() => {
  let now = Date.now();
  const readers = new Set<() => void>();
  let timer: ReturnType<typeof setInterval> | null = null;
  const tick = () => {
    if (document.hidden) return;
    now = Date.now();
    for (const reader of readers) reader();
  };
  return {
    subscribe(reader: () => void) {
      if (readers.size === 0) now = Date.now();
      readers.add(reader);
      timer ??= setInterval(tick, 5000);
      return () => {
        readers.delete(reader);
        if (readers.size === 0 && timer !== null) {
          clearInterval(timer);
          timer = null;
        }
      };
    },
    read: () => now,
  };
})();

/** The time, renewed every five seconds. */
export function useNow(): number {
  return useSyncExternalStore(clock.subscribe, clock.read);
}

export function Hint({ text, children }: { text: string; children: ReactNode }) {
  return (
    <TooltipTrigger delay={300} closeDelay={0}>
      <Focusable>
        <span className="cursor-default">{children}</span>
      </Focusable>
      <HintText>{text}</HintText>
    </TooltipTrigger>
  );
}

export function HintText({ children }: { children: ReactNode }) {
  return (
    <Tooltip
      offset={6}
      className="max-w-80 rounded-box border border-line bg-raised px-2 py-1 text-meta text-text shadow-float"
    >
      {children}
    </Tooltip>
  );
}

/** How long ago something was; the exact time on hover. */
export function Age({ at, ago, className }: { at: string; ago?: boolean; className?: string }) {
  const now = useNow();
  const age = formatAge(at, now);
  return (
    <time dateTime={at} title={formatTime(at)} className={cx("whitespace-nowrap", className)}>
      {!ago ? age : age === "now" ? "just now" : `${age} ago`}
    </time>
  );
}

/** The sign of a state, with its word for everybody who does not know it. */
export function Sign({ standing, word }: { standing: Standing; word?: boolean | string }) {
  const { sign, words, tone } = SIGNS[standing];
  const label = typeof word === "string" ? word : words;
  return (
    <span className={cx("inline-flex items-baseline gap-1.5 whitespace-nowrap", tone)} title={label}>
      <span aria-hidden="true" className="inline-block w-[1.1em] text-center font-mono">
        {sign}
      </span>
      <span className={word ? "" : "sr-only"}>{label}</span>
    </span>
  );
}

/** Foreign text: shown as text, and what hides in it is written out. */
export function Foreign({ text }: { text: string }) {
  return (
    <bdi>
      {splitHidden(text).map((piece, index) =>
        piece.hidden ? (
          // biome-ignore lint/suspicious/noArrayIndexKey: the pieces of a text never move
          <mark key={index} className="rounded-chip bg-transparent px-0.5 font-mono text-meta text-bad ring-1 ring-bad">
            {piece.text}
          </mark>
        ) : (
          // biome-ignore lint/suspicious/noArrayIndexKey: the pieces of a text never move
          <Fragment key={index}>{piece.text}</Fragment>
        ),
      )}
    </bdi>
  );
}

/** Foreign text of several lines: paragraphs and lists, each in the direction of its own script. */
export function Prose({ text, className }: { text: string; className?: string }) {
  return (
    <div className={cx("grid max-w-[760px] grid-cols-1 gap-2 whitespace-pre-wrap", className)}>
      {splitBlocks(text).map((block, index) =>
        block.kind === "text" ? (
          // biome-ignore lint/suspicious/noArrayIndexKey: the blocks of a text never move
          <p key={index} dir={directionOf(block.text)}>
            <Inline text={block.text} />
          </p>
        ) : (
          // biome-ignore lint/suspicious/noArrayIndexKey: the blocks of a text never move
          <ProseList key={index} items={block.items} />
        ),
      )}
    </div>
  );
}

/** The numbers are those of the text: nobody counts again what somebody else decides about. */
function ProseList({ items }: { items: readonly TextItem[] }) {
  return (
    <ul className="grid grid-cols-[auto_minmax(0,1fr)] gap-x-2">
      {items.map((item, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: the items of a list never move
        <li key={index} className="col-span-2 grid grid-cols-subgrid">
          <span className={item.number === null ? "pl-0.5 text-faint" : "text-right text-muted"}>
            {item.number ?? "•"}
          </span>
          <span dir={directionOf(item.text)}>
            <Inline text={item.text} />
          </span>
        </li>
      ))}
    </ul>
  );
}

/** Foreign text with `code` in monospace. Nothing else of it is markup. */
export function Inline({ text }: { text: string }) {
  return (
    <>
      {text.split(/(`[^`\n]+`)/).map((piece, index) =>
        piece.startsWith("`") && piece.endsWith("`") && piece.length > 2 ? (
          // biome-ignore lint/suspicious/noArrayIndexKey: the pieces of a text never move
          <code key={index} className="font-mono text-[0.94em]">
            <Foreign text={piece.slice(1, -1)} />
          </code>
        ) : (
          // biome-ignore lint/suspicious/noArrayIndexKey: the pieces of a text never move
          <Foreign key={index} text={piece} />
        ),
      )}
    </>
  );
}

export type Tone = "primary" | "plain" | "danger" | "quiet";

const TONES: Record<Tone, string> = {
  primary: "border-accent bg-accent text-on-accent hover:opacity-90",
  plain: "border-control bg-bg text-text hover:bg-surface",
  danger: "border-bad bg-bg text-bad hover:bg-removed",
  quiet: "border-transparent bg-transparent text-muted hover:bg-surface hover:text-text",
};

export interface ActionProps extends Omit<AriaButtonProps, "className" | "children" | "isDisabled"> {
  children: ReactNode;
  tone?: Tone;
  /** Why it cannot be pressed now. It stays focusable, so that everybody can read the reason. */
  reason?: string | null | undefined;
  /** The key that does the same. */
  hotkey?: string;
  className?: string;
}

/** A button. When it is disabled it says why. */
export function Action({ children, tone = "plain", reason, hotkey, className, onPress, ...rest }: ActionProps) {
  // The button is the same element with and without a reason: another one would lose the focus.
  return (
    <TooltipTrigger delay={100} closeDelay={0} isDisabled={!reason}>
      <AriaButton
        {...rest}
        {...(reason ? { "aria-disabled": true } : {})}
        {...(!reason && onPress ? { onPress } : {})}
        className={cx(
          "inline-flex min-h-8 items-center justify-center gap-1.5 rounded-box border px-3 font-medium text-body whitespace-nowrap max-small:min-h-10",
          TONES[tone],
          reason && "cursor-not-allowed opacity-55",
          className,
        )}
      >
        {children}
        {hotkey && (
          <span
            className="rounded-chip px-1 font-mono text-meta opacity-75 ring-1 ring-current max-small:hidden"
            aria-hidden="true"
          >
            {hotkey}
          </span>
        )}
      </AriaButton>
      {reason && <HintText>{reason}</HintText>}
    </TooltipTrigger>
  );
}

/** The name of a key. */
export function Key({ name }: { name: string }) {
  return <kbd className="rounded-chip px-1 font-mono text-meta text-muted ring-1 ring-line">{name}</kbd>;
}

/** Copies a text and says that it did. */
export function CopyButton({ text, label }: { text: string; label: string }) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return undefined;
    const timer = setTimeout(() => setCopied(false), 1500);
    return () => clearTimeout(timer);
  }, [copied]);
  return (
    <AriaButton
      aria-label={copied ? `${label}: copied` : label}
      onPress={() => void copyText(text).then(() => setCopied(true))}
      className="inline-grid size-6 shrink-0 place-items-center rounded-chip text-faint hover:bg-surface hover:text-text"
    >
      {copied ? <Check size={13} aria-hidden="true" /> : <Copy size={13} aria-hidden="true" />}
    </AriaButton>
  );
}

/** Copies a text; without a secure context by a selection. */
export async function copyText(text: string): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "sr-only";
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

export function Id({ id }: { id: string }) {
  return (
    <span className="inline-flex items-center gap-0.5 font-mono text-code text-muted">
      <span title={id}>{shortenId(id)}</span>
      {/* Its height is for fingers; the line stays as high as its text. */}
      <span className="-my-1 inline-flex">
        <CopyButton text={id} label={`Copy ${id}`} />
      </span>
    </span>
  );
}

/** A command to type elsewhere. */
export function Command({ line }: { line: string }) {
  return (
    <div className="flex max-w-full items-start gap-1 rounded-box border border-line bg-surface py-1 pr-1 pl-2.5">
      <code className="min-w-0 flex-1 py-0.5 font-mono text-code whitespace-pre-wrap">
        <Foreign text={line} />
      </code>
      <CopyButton text={line} label="Copy the command" />
    </div>
  );
}

/** What happened, what to do next, and the trace. */
export function ProblemNote({ error, onRetry }: { error: unknown; onRetry?: (() => void) | undefined }) {
  const problem = asProblem(error);
  return (
    <div role="alert" className="max-w-[760px] border-l-2 border-bad py-1 pl-3">
      <p className="font-medium">
        <span aria-hidden="true" className="mr-1.5 font-mono text-bad">
          !
        </span>
        <Inline text={toSentence(problem.message)} />
      </p>
      {problem.fix && (
        <p className="text-muted">
          <Inline text={toSentence(problem.fix)} />
        </p>
      )}
      <div className="mt-1 flex flex-wrap items-center gap-x-3 gap-y-1">
        {onRetry && <Action onPress={onRetry}>Try again</Action>}
        {problem.traceId && (
          <span className="inline-flex items-center gap-1 text-meta text-faint">
            trace <code className="font-mono">{problem.traceId}</code>
            <CopyButton text={problem.traceId} label="Copy the trace" />
          </span>
        )}
      </div>
    </div>
  );
}

/** Grey lines while something is read, only after 200 ms. */
export function Skeleton({ lines = 4 }: { lines?: number }) {
  return (
    <div aria-busy="true" className="fade-late grid gap-3 py-2">
      <span className="sr-only">Loading</span>
      {Array.from({ length: lines }, (_, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: the lines are all alike
        <div key={index} className={cx("h-3 rounded-chip bg-line", index % 3 === 2 ? "w-2/5" : "w-3/4")} />
      ))}
    </div>
  );
}

interface Readable<T> {
  data: T | undefined;
  error: unknown;
  isPending: boolean;
  refetch(): unknown;
}

/** Shows a query: what is known, else what went wrong, else grey lines. What is known stays when reading it again fails. */
export function Loaded<T>({
  query,
  children,
  lines,
}: {
  query: Readable<T>;
  children: (data: T) => ReactNode;
  lines?: number;
}) {
  if (query.data !== undefined) {
    return (
      <>
        {query.error ? <ProblemNote error={query.error} onRetry={() => void query.refetch()} /> : null}
        {children(query.data)}
      </>
    );
  }
  if (query.error) return <ProblemNote error={query.error} onRetry={() => void query.refetch()} />;
  return <Skeleton {...(lines === undefined ? {} : { lines })} />;
}

/** A state without data that teaches the next step. */
export function Empty({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <div className="grid max-w-[560px] grid-cols-1 gap-3 py-6">
      <p className="font-semibold text-lead">{title}</p>
      {children}
    </div>
  );
}

export function PageHead({ title, lead, children }: { title: ReactNode; lead?: ReactNode; children?: ReactNode }) {
  return (
    <header className="flex flex-wrap items-start justify-between gap-x-6 gap-y-3 pb-4">
      <div className={cx("grid min-w-0 gap-1", Boolean(lead) && "max-small:basis-full")}>
        <h1 className="text-title">{title}</h1>
        {lead && <div className="max-w-[760px] text-pretty text-lead text-muted">{lead}</div>}
      </div>
      {children && <div className="flex flex-wrap items-center gap-2">{children}</div>}
    </header>
  );
}

export function SectionHead({ children, aside }: { children: ReactNode; aside?: ReactNode }) {
  return (
    <div className="flex flex-wrap items-baseline justify-between gap-2 border-line border-b pb-1">
      <h2 className="text-body">{children}</h2>
      {aside && <div className="text-meta text-muted">{aside}</div>}
    </div>
  );
}

export function Page({ children, wide }: { children: ReactNode; wide?: boolean }) {
  return (
    <div className={cx("w-full px-4 py-5 small:px-6", wide ? "max-w-[1440px]" : "max-w-[1100px]")}>{children}</div>
  );
}

/** Names and values, one below the other. */
export function Facts({ rows }: { rows: (readonly [string, ReactNode] | null | false | undefined)[] }) {
  return (
    <dl className="grid grid-cols-[max-content_1fr] items-baseline gap-x-4 gap-y-1.5">
      {rows.map(
        (row) =>
          row && (
            <Fragment key={row[0]}>
              <dt className="text-muted">{row[0]}</dt>
              <dd className="min-w-0">{row[1]}</dd>
            </Fragment>
          ),
      )}
    </dl>
  );
}

/** Money or tokens that were spent and reserved, against a limit. */
export function SpendBar({
  spent,
  reserved,
  limit,
  forecast,
  label,
}: {
  spent: number;
  reserved: number;
  limit: number | null;
  /** What it will be in the end, as far as one can tell: a mark. */
  forecast?: number | null;
  label: string;
}) {
  const whole = Math.max(limit ?? 0, spent + reserved, forecast ?? 0, 1);
  const over = limit !== null && spent + reserved > limit * 0.9;
  return (
    <div
      role="img"
      aria-label={label}
      title={label}
      className="relative flex h-2 w-full overflow-hidden rounded-chip bg-line"
    >
      <div className={over ? "bg-warn" : "bg-accent"} style={{ width: `${(spent / whole) * 100}%` }} />
      <div className="hatched" style={{ width: `${(reserved / whole) * 100}%` }} />
      {forecast != null && (
        <div
          className="absolute inset-y-0 w-0.5 bg-text"
          style={{ left: `calc(${(forecast / whole) * 100}% - 2px)` }}
        />
      )}
    </div>
  );
}

/** Calls `onSeen` when the element was in view. */
export function useSeen(active: boolean, onSeen: () => void) {
  const element = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const target = element.current;
    if (!active || !target) return undefined;
    const observer = new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting)) onSeen();
    });
    observer.observe(target);
    return () => observer.disconnect();
  }, [active, onSeen]);
  return element;
}
