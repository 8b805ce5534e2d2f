/** Says what was changed, and takes it back. It stays until the next change: nobody has to be fast. */

import { X } from "lucide-react";
import type { ReactNode } from "react";
import { Button } from "react-aria-components";
import { Action } from "./basic";

export function UndoBar({
  children,
  onUndo,
  onClose,
  busy,
}: {
  children: ReactNode;
  onUndo?: (() => void) | undefined;
  onClose: () => void;
  busy?: string | null;
}) {
  return (
    <div className="sticky bottom-3 z-20 mt-4 flex w-fit max-w-full items-center gap-3 rounded-box border border-line bg-raised py-1.5 pr-1.5 pl-3 shadow-float">
      <div role="status" className="grid min-w-0 gap-0.5">
        {children}
      </div>
      {onUndo && (
        <Action onPress={onUndo} reason={busy}>
          Undo
        </Action>
      )}
      <Button
        aria-label="Close this message"
        onPress={onClose}
        className="grid size-8 shrink-0 place-items-center rounded-box text-muted hover:bg-surface"
      >
        <X size={15} aria-hidden="true" />
      </Button>
    </div>
  );
}
