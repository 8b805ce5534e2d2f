/**
 * Editor for the text of a rule: the browser's own text area, with the colours, the marks of errors and the choices drawn around it.
 * Undo, selection, touch keyboards and screen readers are those of the browser.
 */

import { type KeyboardEvent, useId, useLayoutEffect, useMemo, useRef, useState } from "react";
import type { RuleProblem, RuleVocabulary } from "../api/types";
import { type Completion, type Completions, completeCedar, markErrors, type TokenKind, toRange } from "../logic/cedar";
import { splitHidden } from "../logic/text";
import { cx, Foreign } from "./basic";

const TONES: Record<TokenKind, string> = {
  comment: "text-faint italic",
  text: "text-ok",
  keyword: "text-info",
  type: "text-accent",
  number: "text-warn",
  plain: "",
};

/** Both layers must break lines alike: the same font, space and width. */
const LAYER =
  "col-start-1 row-start-1 m-0 min-h-40 w-full whitespace-pre-wrap break-words px-2.5 py-2 font-mono text-code [overflow-wrap:anywhere] max-small:text-[16px]";

const POPUP_WIDTH = 360;

export function RuleEditor({
  label,
  value,
  onChange,
  errors,
  checkedText,
  vocabulary,
  isReadOnly,
}: {
  label: string;
  value: string;
  onChange: (value: string) => void;
  errors: readonly RuleProblem[];
  /** The text that the errors are about: their places mean nothing in another one. */
  checkedText: string;
  vocabulary: RuleVocabulary | undefined;
  isReadOnly?: boolean;
}) {
  const field = useRef<HTMLTextAreaElement>(null);
  const mirror = useRef<HTMLPreElement>(null);
  const [choices, setChoices] = useState<Completions | null>(null);
  const [chosen, setChosen] = useState(0);
  const [place, setPlace] = useState({ left: 0, top: 0 });
  const id = useId();
  const marks = useMemo(
    () =>
      errors.flatMap((error) =>
        typeof error.start === "number" && checkedText === value
          ? [toRange(value, error.start, error.end ?? error.start + 1)]
          : [],
      ),
    [errors, checkedText, value],
  );
  const pieces = useMemo(() => markErrors(value, marks), [value, marks]);
  const hidden = useMemo(() => [...new Set(splitHidden(value).flatMap((it) => (it.hidden ? [it.text] : [])))], [value]);

  const offer = (text: string, caret: number, asked: boolean) => {
    setChoices(vocabulary && !isReadOnly ? completeCedar(text, caret, vocabulary, asked) : null);
    setChosen(0);
  };
  const take = (option: Completion | undefined) => {
    const element = field.current;
    if (!element || !choices || !option) return;
    element.focus();
    element.setSelectionRange(choices.from, choices.to);
    setChoices(null);
    // The browser's own insertion keeps undo. `onChange` follows, and offers the next choice.
    if (!document.execCommand("insertText", false, option.insert)) {
      onChange(value.slice(0, choices.from) + option.insert + value.slice(choices.to));
    }
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === " " && event.ctrlKey) {
      event.preventDefault();
      offer(value, field.current?.selectionStart ?? 0, true);
      return;
    }
    if (!choices) return;
    const count = choices.options.length;
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (move) setChosen((index) => (index + move + count) % count);
    else if (event.key === "Enter" || event.key === "Tab") take(choices.options[chosen]);
    else if (event.key === "Escape") setChoices(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };

  // The list stands below the place in the text that it is about.
  useLayoutEffect(() => {
    if (!choices || !mirror.current) return;
    const box = mirror.current.getBoundingClientRect();
    const at = findPlace(mirror.current, choices.from);
    const left = Math.max(0, Math.min(at.left - box.left, box.width - Math.min(POPUP_WIDTH, box.width)));
    setPlace({ left, top: at.bottom - box.top + 2 });
  }, [choices]);

  const show = (error: RuleProblem) => {
    const element = field.current;
    if (!element || typeof error.start !== "number") return;
    const range = toRange(value, error.start, error.end ?? error.start + 1);
    element.focus();
    element.setSelectionRange(range.start, range.end);
  };
  return (
    <div className="grid gap-2">
      <label htmlFor={`${id}-text`} className="font-medium">
        {label}
      </label>
      <div className="relative grid grid-cols-1 rounded-box border border-control bg-bg focus-within:outline-2 focus-within:outline-accent">
        <pre ref={mirror} aria-hidden="true" className={cx(LAYER, "pointer-events-none")}>
          {pieces.map((piece) => (
            <span
              key={piece.start}
              className={cx(
                TONES[piece.kind],
                piece.wrong && "underline decoration-2 decoration-bad decoration-wavy underline-offset-3",
              )}
            >
              {piece.text}
            </span>
          ))}
          {"\n"}
        </pre>
        <textarea
          id={`${id}-text`}
          ref={field}
          value={value}
          readOnly={isReadOnly}
          spellCheck={false}
          autoCapitalize="off"
          autoComplete="off"
          autoCorrect="off"
          dir="ltr"
          aria-invalid={errors.length > 0}
          aria-describedby={`${id}-help`}
          aria-autocomplete="list"
          aria-haspopup="listbox"
          {...(choices ? { "aria-controls": `${id}-list`, "aria-activedescendant": `${id}-${chosen}` } : {})}
          onChange={(event) => {
            onChange(event.target.value);
            offer(event.target.value, event.target.selectionStart, false);
          }}
          onKeyDown={onKeyDown}
          onBlur={() => setChoices(null)}
          onClick={() => setChoices(null)}
          className={cx(
            LAYER,
            "resize-none overflow-hidden bg-transparent text-transparent caret-text outline-none! selection:text-text",
          )}
        />
        {choices && (
          <ChoiceList
            id={id}
            options={choices.options}
            chosen={chosen}
            style={{ left: place.left, top: place.top }}
            onTake={take}
          />
        )}
      </div>
      <p id={`${id}-help`} className={errors.length > 0 ? "sr-only" : "text-meta text-muted"}>
        {errors.length > 0
          ? `${errors.length} problem${errors.length === 1 ? "" : "s"}: ${errors.map((it) => it.message).join("; ")}`
          : isReadOnly
            ? "Only admins of the installation change rules."
            : "Names of roles, tools and arguments are offered while you write; Ctrl and Space asks for them."}
      </p>
      {errors.length > 0 && (
        <ul aria-label="Problems of the text" className="grid gap-1">
          {errors.map((error) => (
            <li key={`${error.code}-${error.start}-${error.message}`} className="border-bad border-l-2 pl-3">
              <p>
                <span aria-hidden="true" className="mr-1.5 font-mono text-bad">
                  !
                </span>
                {typeof error.line === "number" && typeof error.start === "number" && (
                  <button
                    type="button"
                    onClick={() => show(error)}
                    className="mr-2 font-mono text-code text-accent underline underline-offset-2"
                  >
                    line {error.line}, column {error.column ?? 1}
                  </button>
                )}
                <Foreign text={error.message} />
              </p>
              {error.help && (
                <p className="text-muted">
                  <Foreign text={error.help} />
                </p>
              )}
            </li>
          ))}
        </ul>
      )}
      {hidden.length > 0 && (
        <p role="alert" className="border-bad border-l-2 pl-3">
          <span aria-hidden="true" className="mr-1.5 font-mono text-bad">
            !
          </span>
          The text has characters that cannot be seen: {hidden.join(", ")}. It may not say what it seems to say.
        </p>
      )}
    </div>
  );
}

function ChoiceList({
  id,
  options,
  chosen,
  style,
  onTake,
}: {
  id: string;
  options: readonly Completion[];
  chosen: number;
  style: { left: number; top: number };
  onTake: (option: Completion) => void;
}) {
  const list = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    list.current?.children[chosen]?.scrollIntoView({ block: "nearest" });
  }, [chosen]);
  return (
    <div
      ref={list}
      id={`${id}-list`}
      role="listbox"
      aria-label="What may stand here"
      style={style}
      className="absolute z-20 max-h-56 w-[360px] max-w-full overflow-auto rounded-box border border-line bg-raised p-1 shadow-float"
    >
      {options.map((option, index) => (
        <div
          key={option.label}
          id={`${id}-${index}`}
          role="option"
          tabIndex={-1}
          aria-selected={index === chosen}
          // The text area keeps the focus.
          onMouseDown={(event) => {
            event.preventDefault();
            onTake(option);
          }}
          className={cx(
            "flex min-h-8 cursor-default items-baseline gap-3 rounded-chip px-2 py-1 max-small:min-h-10",
            index === chosen && "bg-select",
          )}
        >
          <span className="shrink-0 font-mono text-code">
            <Foreign text={option.label} />
          </span>
          <span className="min-w-0 truncate text-meta text-muted">
            <Foreign text={option.detail} />
          </span>
        </div>
      ))}
    </div>
  );
}

/** Returns where a character stands on screen. */
function findPlace(element: HTMLElement, offset: number): DOMRect {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  let rest = offset;
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const length = node.textContent?.length ?? 0;
    if (rest <= length) {
      const range = document.createRange();
      range.setStart(node, rest);
      range.setEnd(node, Math.min(rest + 1, length));
      const rects = range.getClientRects();
      return rects[rects.length - 1] ?? range.getBoundingClientRect();
    }
    rest -= length;
  }
  return element.getBoundingClientRect();
}
