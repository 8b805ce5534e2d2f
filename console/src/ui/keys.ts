/** Keys that work everywhere. A page adds its own while it is on screen. */

import { useEffect, useRef } from "react";

export type KeyHandlers = Record<string, (() => void) | undefined>;

const SEQUENCE_MS = 1000;

const handlers: { current: KeyHandlers }[] = [];
let first: { key: string; at: number } | null = null;
/** Whether keys of a page chose something since the focus came to where it is. */
let isSteered = false;

/** Returns whether a key belongs to what has the focus: a field, or an open layer. */
function belongsToField(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  return (
    target.isContentEditable ||
    target.matches("input, textarea, select") ||
    target.closest("[role=dialog], [role=menu], [role=listbox]") !== null
  );
}

/** Returns whether Enter belongs to the link or button that has the focus, and not to what `j` and `k` chose. */
function belongsToControl(event: KeyboardEvent): boolean {
  if (event.key !== "Enter" || isSteered || !(event.target instanceof HTMLElement)) return false;
  return (
    event.target.closest("a[href], button, summary, [role=button], [role=link], [role=tab], [role=switch]") !== null
  );
}

function onFocusIn(): void {
  isSteered = false;
}

function onKeyDown(event: KeyboardEvent): void {
  if (event.defaultPrevented) return;
  const command = event.metaKey || event.ctrlKey;
  const name = command ? `mod+${event.key.toLowerCase()}` : event.key;
  if (!command && (event.altKey || belongsToField(event.target))) return;
  if (!command && belongsToControl(event)) return;
  const sequence = first && Date.now() - first.at < SEQUENCE_MS ? `${first.key} ${name}` : null;
  for (const key of [sequence, name]) {
    if (key === null) continue;
    const handler = handlers.findLast((entry) => entry.current[key] !== undefined)?.current[key];
    if (!handler) continue;
    event.preventDefault();
    first = null;
    isSteered = true;
    handler();
    return;
  }
  first = name.length === 1 ? { key: name, at: Date.now() } : null;
}

/** Handles keys while the component is mounted; `g i` is a sequence, `mod+k` is Control or Command. */
export function useKeys(keys: KeyHandlers): void {
  const entry = useRef(keys);
  entry.current = keys;
  useEffect(() => {
    if (handlers.length === 0) {
      document.addEventListener("keydown", onKeyDown);
      document.addEventListener("focusin", onFocusIn);
    }
    handlers.push(entry);
    return () => {
      handlers.splice(handlers.indexOf(entry), 1);
      if (handlers.length > 0) return;
      document.removeEventListener("keydown", onKeyDown);
      document.removeEventListener("focusin", onFocusIn);
    };
  }, []);
}
