/** The programs of the installation with their versions, for its admins. */

import { useQuery } from "@tanstack/react-query";
import { processesQuery } from "../api/queries-admin";
import { CHECK_WORDS } from "../logic/doctor";
import { judgeProcess, PROCESS_KINDS, type Process } from "../logic/processes";
import { Age, Command, cx, Foreign, Loaded, SectionHead } from "./basic";

export function Processes() {
  const processes = useQuery(processesQuery);
  return (
    <section aria-labelledby="processes" className="grid gap-2">
      <SectionHead>
        <span id="processes">Versions</span>
      </SectionHead>
      <Loaded query={processes} lines={4}>
        {(data) => (
          <ul aria-label="Versions">
            {data.items.map((process) => (
              <ProcessRow key={`${process.kind} ${process.name} ${process.version}`} process={process} />
            ))}
          </ul>
        )}
      </Loaded>
      <Command line="cynork process list" />
    </section>
  );
}

function ProcessRow({ process }: { process: Process }) {
  const words = CHECK_WORDS[judgeProcess(process)];
  return (
    <li className="grid grid-cols-1 gap-1 border-line border-b py-2 small:grid-cols-[200px_1fr_auto_auto] small:gap-4">
      <div className="flex items-baseline gap-2">
        <span className={cx("inline-flex items-baseline gap-1.5 whitespace-nowrap", words.tone)}>
          <span aria-hidden="true" className="inline-block w-[1.1em] text-center font-mono">
            {words.sign}
          </span>
          <span className="sr-only">{words.word}</span>
        </span>
        <span className="font-medium">{PROCESS_KINDS[process.kind]}</span>
      </div>
      <p className="min-w-0 break-words">
        <Foreign text={process.name} />{" "}
        {process.skewed && <span className={words.tone}>does not fit this server: install its version</span>}
      </p>
      <span className="whitespace-nowrap tabular-nums">
        <Foreign text={process.version} />
      </span>
      <span className="whitespace-nowrap text-muted">
        {process.present ? "running" : <Age at={process.last_seen_at} ago />}
      </span>
    </li>
  );
}
