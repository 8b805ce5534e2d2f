/** Keys that work everywhere. A page adds its own while it is on screen. */

import { useEffect, useRef } from "react";

export type KeyHandlers = Record<string, (() => void) | undefined>;

const SEQUENCE_MS = 1000;

const handlers: { current: KeyHandlers }[] = [];
let first: { key: string; at: number } | null = null;

/** Returns whether a key belongs to what has the focus: a field, or an open layer. */
function belongsToField(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  return (
    target.isContentEditable ||
    target.matches("input, textarea, select") ||
    target.closest("[role=dialog], [role=menu], [role=listbox]") !== null
  );
}

function onKeyDown(event: KeyboardEvent): void {
  if (event.defaultPrevented) return;
  const command = event.metaKey || event.ctrlKey;
  const name = command ? `mod+${event.key.toLowerCase()}` : event.key;
  if (!command && (event.altKey || belongsToField(event.target))) return;
  const sequence = first && Date.now() - first.at < SEQUENCE_MS ? `${first.key} ${name}` : null;
  for (const key of [sequence, name]) {
    if (key === null) continue;
    const handler = handlers.findLast((entry) => entry.current[key] !== undefined)?.current[key];
    if (!handler) continue;
    event.preventDefault();
    first = null;
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
    if (handlers.length === 0) document.addEventListener("keydown", onKeyDown);
    handlers.push(entry);
    return () => {
      handlers.splice(handlers.indexOf(entry), 1);
      if (handlers.length === 0) document.removeEventListener("keydown", onKeyDown);
    };
  }, []);
}
