/** The parts of the frame that only the demo has. */

import { type ReactNode, useSyncExternalStore } from "react";
import { formatTime } from "../logic/format";
import { REFUSAL } from "./answers";
import { readRecordedAt, readRefusals, subscribeToRefusals } from "./start";

/** Puts a bar above the page that says that it is a recording, and where to install. */
export function RecordingFrame({ children }: { children: ReactNode }) {
  const refusals = useSyncExternalStore(subscribeToRefusals, readRefusals);
  return (
    <div className="flex h-full flex-col">
      <aside
        aria-label="Recording"
        className="flex flex-wrap items-center gap-x-3 gap-y-1 border-line border-b bg-select px-4 py-1 text-meta"
      >
        <p className="min-w-0 flex-1">
          <span className="font-medium">A recording of a demo run</span>, {formatTime(readRecordedAt())}. No server
          answers.{" "}
          <span role="status">
            {refusals > 0 && (
              <span key={refusals} className="font-medium text-warn">
                {REFUSAL}
              </span>
            )}
          </span>
        </p>
        <InstallHint />
      </aside>
      <div className="min-h-0 flex-1">{children}</div>
    </div>
  );
}

function InstallHint() {
  if (__INSTALL_URL__ === "") {
    return (
      <p className="text-muted">
        See it live: <code className="font-mono">cynode demo --open</code>
      </p>
    );
  }
  return (
    <a href={__INSTALL_URL__} className="text-accent underline">
      Install CyNode
    </a>
  );
}

/** Stands where the frame of an installation shows its connection. */
export function RecordingMark() {
  return (
    <span
      className="flex items-center gap-1.5 whitespace-nowrap text-meta text-muted"
      title="Everything here was recorded"
    >
      <span aria-hidden="true">○</span>
      recording
    </span>
  );
}
