/** Checks of an installation, each with what to do about it. */

import type { DoctorCheck } from "../api/types";
import { CHECK_WORDS } from "../logic/doctor";
import { toWords } from "../logic/format";
import { Command, cx, Inline } from "./basic";

export function CheckList({ checks }: { checks: readonly DoctorCheck[] }) {
  return (
    <ul aria-label="Checks" className="border-line border-t">
      {checks.map((check) => {
        const words = CHECK_WORDS[check.state];
        return (
          <li
            key={`${check.name} ${check.detail}`}
            className="grid grid-cols-1 gap-1 border-line border-b py-2 small:grid-cols-[210px_1fr]"
          >
            <div className="grid grid-cols-[100px_1fr] items-baseline gap-2">
              <span className={cx("inline-flex items-baseline gap-1.5 whitespace-nowrap", words.tone)}>
                <span aria-hidden="true" className="inline-block w-[1.1em] text-center font-mono">
                  {words.sign}
                </span>
                {words.word}
              </span>
              <span className="font-medium">{toWords(check.name)}</span>
            </div>
            <div className="grid min-w-0 gap-1.5">
              {/* The name of a thing stays as it is written. */}
              <p className={cx(!check.detail.startsWith("`") && "first-letter:uppercase")}>
                <Inline text={check.detail} />
              </p>
              {check.state !== "ok" && (check.fix || check.blocks_work) && (
                <p className="text-muted">
                  {check.blocks_work && <span className="text-bad">No task can be done until then. </span>}
                  {check.fix && <Inline text={`To do: ${check.fix}.`} />}
                </p>
              )}
              {check.state !== "ok" && (check.commands ?? []).map((line) => <Command key={line} line={line} />)}
            </div>
          </li>
        );
      })}
    </ul>
  );
}
