/** The backups of the installation with their last verification, for its admins. */

import { useQuery } from "@tanstack/react-query";
import { backupsQuery } from "../api/queries-admin";
import { CHECK_WORDS } from "../logic/doctor";
import { formatBytes } from "../logic/format";
import { type Backup, describeRecipients, describeVerification, judgeBackup } from "../logic/processes";
import { Age, Command, cx, Foreign, Loaded, SectionHead } from "./basic";

export function Backups() {
  const backups = useQuery(backupsQuery);
  return (
    <section aria-labelledby="backups" className="grid gap-2">
      <SectionHead>
        <span id="backups">Backups</span>
      </SectionHead>
      <Loaded query={backups} lines={3}>
        {(data) =>
          data.items.length === 0 ? (
            <p className="text-muted">No backup is known. It is made on the server.</p>
          ) : (
            <ul aria-label="Backups">
              {data.items.map((backup) => (
                <BackupRow key={backup.backup_id} backup={backup} />
              ))}
            </ul>
          )
        }
      </Loaded>
      <Command line="cynork backup list" />
    </section>
  );
}

function BackupRow({ backup }: { backup: Backup }) {
  const words = CHECK_WORDS[judgeBackup(backup)];
  return (
    <li className="grid grid-cols-1 gap-1 border-line border-b py-2 small:grid-cols-[200px_1fr_auto] small:gap-4">
      <div className="flex items-baseline gap-2">
        <span className={cx("inline-flex items-baseline gap-1.5 whitespace-nowrap", words.tone)}>
          <span aria-hidden="true" className="inline-block w-[1.1em] text-center font-mono">
            {words.sign}
          </span>
          <span className="sr-only">{words.word}</span>
        </span>
        <span className="font-medium">
          <Age at={backup.taken_at} ago />
        </span>
      </div>
      <div className="grid min-w-0 gap-1">
        <p className={cx("break-words", words.tone)}>
          <Foreign text={describeVerification(backup)} />{" "}
          {backup.verified_at && (
            <span className="text-muted">
              <Age at={backup.verified_at} ago />
            </span>
          )}
        </p>
        <p className="break-all text-meta text-muted">
          <Foreign text={backup.location} />
        </p>
        <p className="break-all text-meta text-muted">
          <Foreign text={describeRecipients(backup)} />
        </p>
      </div>
      <span className="whitespace-nowrap tabular-nums">{formatBytes(backup.bytes)}</span>
    </li>
  );
}
