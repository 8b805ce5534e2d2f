import { useQuery } from "@tanstack/react-query";
import { nodesQuery } from "../api/queries";
import { formatMebibytes } from "../logic/format";
import { Age, Command, cx, Empty, Facts, Foreign, Loaded, Page, PageHead, Sign } from "../ui/basic";
import { usePageCommand } from "../ui/copy";

export function NodesPage() {
  usePageCommand("cynork node list", "/v1/nodes");
  const nodes = useQuery(nodesQuery);
  return (
    <Page>
      <PageHead title="Nodes" lead="Machines that run jobs in sandboxes. They open every connection themselves." />
      <Loaded query={nodes}>
        {(data) => (
          <div className="grid gap-6">
            {data.items.length === 0 && <Empty title="No machine has joined yet." />}
            <ul aria-label="Nodes" className="grid gap-6">
              {data.items.map((node) => {
                const slots = node.report.slots ?? 0;
                return (
                  <li key={node.node_id} className="grid gap-3 border-line border-t pt-4">
                    <div className="flex flex-wrap items-baseline gap-x-3">
                      <h2 className="text-lead">
                        <Foreign text={node.name} />
                      </h2>
                      <Sign
                        standing={!node.alive ? "trouble" : node.state === "active" ? "works" : "waits"}
                        word={!node.alive ? "Not connected" : node.state === "active" ? "Takes jobs" : node.state}
                      />
                      <span className="text-meta text-muted">
                        seen <Age at={node.last_seen_at} ago />
                      </span>
                    </div>
                    <div className="flex flex-wrap items-center gap-2">
                      <div role="img" aria-label={`${node.jobs} of ${slots} slots work`} className="flex gap-1">
                        {Array.from({ length: slots }, (_, index) => (
                          <span
                            // biome-ignore lint/suspicious/noArrayIndexKey: slots are all alike
                            key={index}
                            className={cx(
                              "size-4 rounded-[3px] border",
                              index < node.jobs ? "border-accent bg-accent" : "border-control",
                            )}
                          />
                        ))}
                      </div>
                      <span className="text-meta text-muted">
                        {node.jobs} of {slots} slots work
                      </span>
                    </div>
                    {(node.report.warnings ?? []).map((warning) => (
                      <p key={warning} className="border-warn border-l-2 pl-3">
                        <Foreign text={warning} />
                      </p>
                    ))}
                    <Facts
                      rows={[
                        [
                          "Machine",
                          `${node.report.cores ?? "?"} cores, ${formatMebibytes(node.report.memory_mib ?? 0)} memory, ${formatMebibytes(node.report.disk_free_mib ?? 0)} free`,
                        ],
                        ["Sandboxes", (node.report.backends ?? []).map((it) => it.version).join(", ") || "none"],
                        [
                          "Agents",
                          (node.report.agents ?? []).map((it) => `${it.agent} ${it.version}`).join(", ") ||
                            "none installed",
                        ],
                        ["Version", node.report.version ?? ""],
                        node.labels.length > 0 && ["Labels", node.labels.join(", ")],
                      ]}
                    />
                  </li>
                );
              })}
            </ul>
            <section className="grid max-w-[560px] gap-2 border-line border-t pt-4">
              <h2 className="text-body">Add a node</h2>
              <p className="text-muted">On a machine with cynork:</p>
              <Command line="cynork node join-token --quiet > token" />
              <p className="text-muted">On the new machine, with that file:</p>
              <Command line="cynode-node join --url INTERNAL_URL --token-file token --name NAME" />
            </section>
          </div>
        )}
      </Loaded>
    </Page>
  );
}
