/** Where do tools come from? Servers that people installed, and what they offer. */

import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { Plus } from "lucide-react";
import { useEffect, useRef } from "react";
import { toolServersQuery } from "../api/queries-tools";
import { formatCount } from "../logic/format";
import { describeServer, describeTransport, type ToolServer } from "../logic/tool-server";
import { Command, cx, Empty, Foreign, Loaded, Page, PageHead, Sign } from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { Split, useRowKeys } from "../ui/split";
import { ToolsNav } from "../ui/tools-nav";
import { ToolServerDetail } from "./tool-server-detail";
import { InstallServerForm } from "./tool-server-install";

const NEW = "new";

export function ToolServersPage() {
  usePageCommand("cynork tool servers", "/v1/tool-servers");
  const { server: chosen } = useSearch({ from: "/tools/servers" });
  const servers = useQuery(toolServersQuery);
  return (
    <Page wide>
      <ToolsNav />
      <div
        className={cx(
          "flex items-start justify-between gap-x-4 max-small:flex-col max-small:pb-4",
          chosen && "max-split:sr-only",
        )}
      >
        <PageHead
          title="Tool servers"
          lead="MCP servers that people installed. A tool is called only after a person accepted its exact definition."
        />
        {chosen !== NEW && (
          <Link
            to="/tools/servers"
            search={{ server: NEW }}
            className={cx(
              "inline-flex min-h-8 shrink-0 items-center gap-1.5 rounded-box border border-control px-3 font-medium hover:bg-surface max-small:min-h-10",
              chosen && "max-split:hidden",
            )}
          >
            <Plus size={15} aria-hidden="true" /> Install server
          </Link>
        )}
      </div>
      <Loaded query={servers}>{(data) => <ServersContent servers={data.items} />}</Loaded>
    </Page>
  );
}

function ServersContent({ servers }: { servers: ToolServer[] }) {
  const { server: chosenId } = useSearch({ from: "/tools/servers" });
  const navigate = useNavigate({ from: "/tools/servers" });
  const isNew = chosenId === NEW;
  const isWide = window.matchMedia("(min-width: 1200px)").matches;
  const chosen =
    servers.find((server) => server.server_id === chosenId) ?? (isWide && !chosenId ? servers[0] : undefined);
  const choose = (id: string) => void navigate({ search: { server: id }, replace: true });
  const close = () => void navigate({ search: {} });
  useRowKeys(
    servers.map((server) => server.server_id),
    isNew ? undefined : chosen?.server_id,
    choose,
    close,
  );
  if (servers.length === 0 && !isNew) {
    return (
      <Empty title="No tool server is installed.">
        <p className="text-muted">
          A server of the Model Context Protocol brings its own tools. Install one here, or on the command line:
        </p>
        <Command line="cynork tool install todo --http https://todo.example.org/mcp --scope sandbox" />
        <p>
          <Link to="/tools/servers" search={{ server: NEW }} className="font-medium text-accent underline">
            Install a tool server
          </Link>
        </p>
      </Empty>
    );
  }
  const list =
    servers.length === 0 ? (
      <p className="text-muted">No tool server is installed yet.</p>
    ) : (
      <ul aria-label="Tool servers" className="border-line border-t">
        {servers.map((server) => (
          <Row key={server.server_id} server={server} isChosen={!isNew && server.server_id === chosen?.server_id} />
        ))}
      </ul>
    );
  const detail = isNew ? (
    <InstallServerForm onClose={close} onInstalled={choose} />
  ) : chosen ? (
    <ToolServerDetail key={chosen.server_id} server={chosen} onGone={close} />
  ) : chosenId ? (
    <Empty title="There is no such server.">
      <p className="text-muted">It may have been uninstalled, or you may not see it.</p>
    </Empty>
  ) : null;
  return <Split list={list} detail={detail} onClose={close} back="Tool servers" />;
}

function Row({ server, isChosen }: { server: ToolServer; isChosen: boolean }) {
  const element = useRef<HTMLAnchorElement>(null);
  useEffect(() => {
    if (isChosen) element.current?.scrollIntoView({ block: "nearest" });
  }, [isChosen]);
  const { standing, words } = describeServer(server);
  return (
    <li>
      <Link
        ref={element}
        to="/tools/servers"
        search={{ server: server.server_id }}
        aria-current={isChosen ? "true" : undefined}
        className={cx(
          "grid min-h-[52px] grid-cols-[1fr_auto] gap-x-3 gap-y-0.5 border-line border-b px-3 py-2 -outline-offset-2",
          isChosen ? "bg-select" : "hover:bg-surface",
        )}
      >
        <span className="truncate font-medium">
          <Foreign text={server.title} />
        </span>
        <Sign standing={standing} word={words} />
        <span className="col-span-2 truncate text-meta text-muted">
          <Foreign text={`${formatCount(server.tools.length, "tool")} · ${describeTransport(server.transport)}`} />
        </span>
      </Link>
    </li>
  );
}
