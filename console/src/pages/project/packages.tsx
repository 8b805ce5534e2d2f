/** The packages that jobs of a project fetched or were refused. */

import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { packagesQuery } from "../../api/queries-places";
import { formatCount, formatMebibytes, shortenId } from "../../logic/format";
import { Age, Command, cx, Empty, Foreign, Id, Loaded } from "../../ui/basic";
import { Tick } from "../../ui/switch";
import type { Project } from "./use-project-change";

export function PackagesTab({ project }: { project: Project }) {
  const { refused } = useSearch({ from: "/projects/$project" });
  const navigate = useNavigate({ from: "/projects/$project" });
  const packages = useQuery(packagesQuery(project.id, refused === true));
  return (
    <div className="grid grid-cols-1 gap-3">
      <Tick
        label="Refused ones only"
        isTicked={refused === true}
        onChange={(isTicked) =>
          void navigate({ search: (previous) => ({ ...previous, refused: isTicked || undefined }), replace: true })
        }
      />
      <Loaded query={packages}>
        {(data) =>
          data.items.length === 0 ? (
            <Empty title={refused ? "No package was refused." : "No job fetched a package yet."}>
              <p className="text-muted">
                The set-up of an environment fetches packages through a cache of this installation; each is listed here
                with its digest.
              </p>
              <Command line={`cynork project packages --project ${project.slug}`} />
            </Empty>
          ) : (
            <>
              <p className="text-meta text-muted">{formatCount(data.items.length, "package")}, newest first</p>
              <ul aria-label="Packages" className="border-line border-t">
                {data.items.map((entry) => (
                  <li
                    key={`${entry.job_id} ${entry.source} ${entry.package} ${entry.version} ${entry.fetched_at}`}
                    className={cx(
                      "flex flex-wrap items-baseline gap-x-3 border-line border-b py-1.5",
                      entry.refused && "border-l-2 border-l-bad pl-2",
                    )}
                  >
                    <code className="font-mono text-code">
                      <Foreign text={`${entry.package} ${entry.version}`} />
                    </code>
                    <span className="text-meta text-muted">
                      {entry.source} · {formatSize(entry.bytes)}
                      {entry.cached && " · from the cache"}
                    </span>
                    {entry.refused ? (
                      <span className="text-bad text-meta">
                        ✗ refused: <Foreign text={entry.refused} />
                      </span>
                    ) : (
                      entry.sha256 && <Id id={entry.sha256} />
                    )}
                    <span className="ml-auto flex gap-3 text-meta">
                      <Link to="/tasks/$task" params={{ task: entry.task_id }} className="text-accent underline">
                        task {shortenId(entry.task_id)}
                      </Link>
                      <Age at={entry.fetched_at} className="text-faint" />
                    </span>
                  </li>
                ))}
              </ul>
            </>
          )
        }
      </Loaded>
    </div>
  );
}

function formatSize(bytes: number): string {
  if (bytes < 1024) return `${bytes} B`;
  if (bytes < 1024 * 1024) return `${(bytes / 1024).toFixed(1)} KiB`;
  return formatMebibytes(Math.round(bytes / (1024 * 1024)));
}
