/** The frame around every page. */

import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, Outlet, useLocation, useNavigate } from "@tanstack/react-router";
import {
  Boxes,
  ChartNoAxesColumn,
  Command as CommandIcon,
  FolderGit2,
  Inbox,
  ListChecks,
  type LucideIcon,
  MessageSquare,
  Monitor,
  Moon,
  MoreHorizontal,
  ScrollText,
  Search,
  Server,
  Settings,
  Sun,
  Terminal,
  Wrench,
} from "lucide-react";
import { lazy, type MouseEvent, Suspense, useCallback, useEffect, useState } from "react";
import { Button, Menu, MenuItem, MenuTrigger, Popover, Separator } from "react-aria-components";
import { api, type Schema, unwrap } from "../api/client";
import { inboxQuery, projectQuery, taskQuery } from "../api/queries";
import { releaseAtLogout } from "../api/web-push";
import { formatDuration, shortenId, toWords } from "../logic/format";
import { RecordingMark } from "../recording/bar";
import { copyText, cx, Foreign, useNow } from "./basic";
import { type PageCommand, PageCommandContext, toCurl } from "./copy";
import { useKeys } from "./keys";
import { Layer } from "./layer";
import { useLive } from "./live";
import type { PaletteCommand } from "./palette";
import { ReloadNotice } from "./reload";
import { SETTINGS_PAGES } from "./settings-nav";
import { readTheme, type Theme, writeTheme } from "./theme";

const Palette = lazy(() => import("./palette").then((module) => ({ default: module.Palette })));

interface Place {
  to: "/" | "/tasks" | "/chat" | "/projects" | "/nodes" | "/models" | "/tools" | "/audit" | "/spend" | "/settings";
  name: string;
  icon: LucideIcon;
  key: string;
  cynork: string;
}

const PLACES: Place[] = [
  { to: "/", name: "Inbox", icon: Inbox, key: "i", cynork: "inbox" },
  { to: "/tasks", name: "Tasks", icon: ListChecks, key: "t", cynork: "task list" },
  { to: "/chat", name: "Chat", icon: MessageSquare, key: "h", cynork: "chat" },
  { to: "/projects", name: "Projects", icon: FolderGit2, key: "p", cynork: "project list" },
  { to: "/nodes", name: "Nodes", icon: Server, key: "n", cynork: "node list" },
  { to: "/models", name: "Models", icon: Boxes, key: "m", cynork: "model list" },
  { to: "/tools", name: "Tools", icon: Wrench, key: "o", cynork: "tool list" },
  { to: "/audit", name: "Audit", icon: ScrollText, key: "a", cynork: "audit search" },
  { to: "/spend", name: "Spend", icon: ChartNoAxesColumn, key: "s", cynork: "usage sum" },
  { to: "/settings", name: "Settings", icon: Settings, key: "e", cynork: "settings list" },
];

/** Pages outside of the navigation. */
const UNLISTED_PLACES: Record<string, string> = { welcome: "First steps", device: "Log a device in" };

/** Pages below `/settings` by their last part. Schedules stand beside them. */
const SETTINGS_NAMES = new Map<string, string>(SETTINGS_PAGES.map((page) => [page.to.replace(/^.*\//, ""), page.name]));

const ACTIVE = "bg-select text-text font-medium";

const IN_BAR = new Set(["/", "/tasks", "/chat", "/spend"]);

const KEYS: [string, string][] = [
  ["Ctrl K or ⌘K", "Find anything"],
  ["g i, g t, g h, g p, g n", "Go to inbox, tasks, chat, projects, nodes"],
  ["g m, g o, g a, g s, g e", "Go to models, tools, audit, spend, settings"],
  ["c", "New task"],
  ["j, k", "Next and previous row"],
  ["Enter", "Open"],
  ["Esc", "Back"],
  ["a", "Approve"],
  ["d", "Send back or deny"],
  ["r", "Revise"],
  ["p", "Pause or resume"],
  ["/", "Filter"],
  [".", "Copy as cynork"],
  ["?", "These keys"],
];

export function Frame({ me }: { me: Schema["MeView"] }) {
  const navigate = useNavigate();
  const client = useQueryClient();
  const [isPaletteOpen, setPaletteOpen] = useState(false);
  const [isHelpOpen, setHelpOpen] = useState(false);
  const [command, setCommand] = useState<PageCommand | null>(null);
  const [notice, setNotice] = useState<string | null>(null);
  const inbox = useQuery(inboxQuery);
  const count = inbox.data?.counts.total ?? 0;
  // The schedules are a page about settings with an address of its own.
  const isAtSchedules = useLocation({ select: (location) => location.pathname === "/schedules" });

  const logOut = useCallback(async () => {
    // A session of an identity provider is ended there, too, where the provider can do so.
    const ended = await unwrap(api.POST("/v1/sessions/current/provider-logout", {})).catch(async () => {
      await unwrap(api.DELETE("/v1/sessions/current", {})).catch(() => undefined);
      return null;
    });
    await releaseAtLogout();
    // Nobody is logged in to a recording; the bar says so.
    if (__DEMO__) return;
    client.clear();
    window.location.assign(ended?.logout_url ?? "/");
  }, [client]);

  const copyCynork = () => {
    if (command) void copyText(command.cynork).then(() => setNotice(`Copied: ${command.cynork}`));
  };

  useEffect(() => {
    if (!notice) return undefined;
    const timer = setTimeout(() => setNotice(null), 2500);
    return () => clearTimeout(timer);
  }, [notice]);

  useEffect(() => {
    document.title = count > 0 ? `(${count}) CyNode` : "CyNode";
  }, [count]);

  useKeys({
    "mod+k": () => setPaletteOpen(true),
    "?": () => setHelpOpen(true),
    c: () => void navigate({ to: "/tasks/new" }),
    ".": copyCynork,
    ...Object.fromEntries(PLACES.map((place) => [`g ${place.key}`, () => void navigate({ to: place.to })])),
  });

  const commands: PaletteCommand[] = [
    { id: "do:new", name: "New task", cynork: "run", run: () => void navigate({ to: "/tasks/new" }) },
    ...PLACES.map((place) => ({
      id: `do:${place.to}`,
      name: place.name,
      cynork: place.cynork,
      run: () => void navigate({ to: place.to }),
    })),
    ...SETTINGS_PAGES.slice(1).map((page) => ({
      id: `do:${page.to}`,
      name: page.name,
      cynork: page.cynork,
      run: () => void navigate({ to: page.to }),
    })),
    ...(["light", "dark", "system"] as const).map((theme) => ({
      id: `do:${theme}`,
      name: theme === "system" ? "Theme of the system" : `${theme === "light" ? "Light" : "Dark"} theme`,
      run: () => writeTheme(theme),
    })),
    { id: "do:keys", name: "Show keys", run: () => setHelpOpen(true) },
    { id: "do:logout", name: "Log out", cynork: "logout", run: () => void logOut() },
  ];

  return (
    <PageCommandContext value={setCommand}>
      <div className="grid h-full grid-cols-[208px_1fr] grid-rows-[48px_1fr] max-wide:grid-cols-[56px_1fr] max-small:grid-cols-1 max-small:grid-rows-[48px_1fr_auto]">
        <a
          href="#page"
          {...(__DEMO__ ? { onClick: focusPage } : {})}
          className="sr-only focus:not-sr-only focus:fixed focus:top-2 focus:left-2 focus:z-50 focus:bg-raised focus:p-2"
        >
          Skip to the page
        </a>
        <nav
          aria-label="Main"
          className="row-span-2 flex flex-col border-line border-r bg-surface max-small:row-span-1 max-small:row-start-3 max-small:flex-row max-small:border-t max-small:border-r-0"
        >
          <Link
            to="/"
            className="flex h-12 items-center gap-2 px-4 font-semibold max-wide:justify-center max-wide:px-0 max-small:hidden"
          >
            <span aria-hidden="true" className="text-accent">
              ◆
            </span>
            <span className="max-wide:sr-only">CyNode</span>
          </Link>
          <ul className="grid gap-0.5 p-2 max-small:flex max-small:flex-1 max-small:justify-around max-small:p-1">
            {PLACES.map((place) => (
              <li key={place.to} className={cx("max-small:flex-1", !IN_BAR.has(place.to) && "max-small:hidden")}>
                <Link
                  to={place.to}
                  activeOptions={{ exact: place.to === "/", includeSearch: false }}
                  activeProps={{ className: ACTIVE, "aria-current": "page" }}
                  inactiveProps={{ className: isAtSchedules && place.to === "/settings" ? ACTIVE : "text-muted" }}
                  className="relative flex min-h-8 items-center gap-2.5 rounded-box px-2.5 hover:text-text max-wide:min-h-10 max-wide:justify-center max-wide:px-0 max-small:h-12 max-small:flex-col max-small:gap-0.5 max-small:text-meta"
                >
                  <place.icon size={16} aria-hidden="true" className="shrink-0" />
                  <span className="max-wide:sr-only max-small:not-sr-only">{place.name}</span>
                  {place.to === "/" && count > 0 && (
                    <span className="ml-auto grid h-4 min-w-4 place-items-center rounded-chip bg-accent px-1 text-[11px] leading-none text-on-accent max-wide:absolute max-wide:top-0.5 max-wide:right-1 max-small:right-[calc(50%-24px)]">
                      {count}
                      <span className="sr-only"> need you</span>
                    </span>
                  )}
                </Link>
              </li>
            ))}
            <li className="hidden max-small:block max-small:flex-1">
              <MoreMenu me={me} onLogOut={logOut} />
            </li>
          </ul>
          <div className="mt-auto p-2 max-small:hidden">
            <AccountMenu me={me} onLogOut={logOut} />
          </div>
        </nav>
        <header className="flex min-w-0 items-center gap-3 border-line border-b bg-bg px-4 small:px-6">
          <Breadcrumb />
          <div className="ml-auto flex shrink-0 items-center gap-2">
            {command && <CopyMenu command={command} />}
            <Button
              onPress={() => setPaletteOpen(true)}
              className="flex h-8 items-center gap-2 rounded-box border border-line px-2.5 text-muted hover:text-text max-small:w-10 max-small:justify-center max-small:border-transparent max-small:px-0"
            >
              <Search size={14} aria-hidden="true" />
              <span className="max-wide:sr-only">Find anything</span>
              <span aria-hidden="true" className="font-mono text-meta max-small:hidden">
                {isApple() ? "⌘K" : "Ctrl K"}
              </span>
            </Button>
            {__DEMO__ ? <RecordingMark /> : <Connection />}
          </div>
        </header>
        <main id="page" tabIndex={-1} className="relative min-w-0 overflow-auto">
          <Outlet />
        </main>
      </div>
      <ReloadNotice />
      {isPaletteOpen && (
        <Suspense>
          <Palette isOpen={isPaletteOpen} onClose={() => setPaletteOpen(false)} commands={commands} />
        </Suspense>
      )}
      <Layer title="Keys" isOpen={isHelpOpen} onClose={() => setHelpOpen(false)}>
        <dl className="grid grid-cols-[max-content_1fr] gap-x-5 gap-y-2">
          {KEYS.map(([keys, words]) => (
            <div key={keys} className="contents">
              <dt className="font-mono text-code">{keys}</dt>
              <dd className="text-muted">{words}</dd>
            </div>
          ))}
        </dl>
      </Layer>
      <div
        role="status"
        className={cx(
          "fixed bottom-4 left-1/2 z-50 -translate-x-1/2 rounded-box border border-line bg-raised px-3 py-2 shadow-float max-small:bottom-16",
          !notice && "sr-only",
        )}
      >
        {notice}
      </div>
    </PageCommandContext>
  );
}

/** Where the address is behind the #, a link to a part of the page would be a link to another page. */
function focusPage(event: MouseEvent): void {
  event.preventDefault();
  document.getElementById("page")?.focus();
}

function isApple(): boolean {
  return /Mac|iPhone|iPad/.test(navigator.platform);
}

/** Where the page is, from its address. */
function Breadcrumb() {
  const { pathname } = useLocation();
  const [first = "", second] = (pathname === "/schedules" ? "/settings/schedules" : pathname)
    .split("/")
    .filter(Boolean);
  const place = PLACES.find((entry) => entry.to === `/${first}`);
  return (
    <nav aria-label="Breadcrumb" className="min-w-0 truncate text-muted">
      {place ? (
        <Link to={place.to} className="hover:text-text">
          {place.name}
        </Link>
      ) : (
        <span>{UNLISTED_PLACES[first] ?? "Not found"}</span>
      )}
      {second && (
        <>
          <span aria-hidden="true" className="px-2 text-faint">
            ›
          </span>
          {second === "new" ? <span>New task</span> : <PlaceName place={first} id={second} />}
        </>
      )}
    </nav>
  );
}

/** The name of what is shown; its identifier until it is known. */
function PlaceName({ place, id }: { place: string; id: string }) {
  const task = useQuery({ ...taskQuery(id), enabled: place === "tasks" });
  const project = useQuery({ ...projectQuery(id), enabled: place === "projects" });
  // Below these, the address names a page and nothing else.
  if (place === "settings") return SETTINGS_NAMES.get(id) ?? toWords(id);
  if (place === "tools") return toWords(id);
  return <Foreign text={task.data?.name ?? project.data?.slug ?? shortenId(id)} />;
}

function Connection() {
  const { state, at } = useLive();
  const now = useNow();
  const age = formatDuration(Math.max(1000, now - at));
  const shown = {
    connecting: { sign: "◐", word: "connecting", tone: "text-muted" },
    live: { sign: "●", word: "live", tone: "text-ok" },
    reconnecting: { sign: "◐", word: `reconnecting (data from ${age} ago)`, tone: "text-warn" },
    offline: { sign: "○", word: `offline (data from ${age} ago)`, tone: "text-bad" },
    signed_out: { sign: "○", word: "logged out", tone: "text-bad" },
  }[state];
  return (
    <span
      role="status"
      className={cx("flex items-center gap-1.5 whitespace-nowrap text-meta", shown.tone)}
      title={shown.word}
    >
      <span aria-hidden="true">{shown.sign}</span>
      <span className={state === "live" ? "" : "max-small:sr-only"}>{shown.word}</span>
    </span>
  );
}

const POPOVER = "min-w-52 rounded-box border border-line bg-raised p-1 shadow-float";
const ITEM =
  "flex min-h-8 cursor-default items-center gap-2 rounded-chip px-2.5 outline-none data-focused:bg-select max-small:min-h-10";

function CopyMenu({ command }: { command: PageCommand }) {
  return (
    <MenuTrigger>
      <Button
        aria-label="Copy as a command"
        className="grid size-8 place-items-center rounded-box text-muted hover:bg-surface hover:text-text max-small:hidden"
      >
        <Terminal size={15} aria-hidden="true" />
      </Button>
      <Popover className={POPOVER}>
        <Menu
          className="outline-none"
          onAction={(key) => void copyText(key === "curl" ? toCurl(command.path) : command.cynork)}
        >
          <MenuItem id="cynork" className={ITEM}>
            Copy as cynork
          </MenuItem>
          <MenuItem id="curl" className={ITEM}>
            Copy as curl
          </MenuItem>
        </Menu>
      </Popover>
    </MenuTrigger>
  );
}

const THEMES: { id: Theme; name: string; icon: LucideIcon }[] = [
  { id: "light", name: "Light", icon: Sun },
  { id: "dark", name: "Dark", icon: Moon },
  { id: "system", name: "As the system", icon: Monitor },
];

function AccountItems({ me, onLogOut }: { me: Schema["MeView"]; onLogOut: () => void }) {
  const [theme, setTheme] = useState(readTheme);
  return (
    <Menu
      className="outline-none"
      aria-label="Account"
      onAction={(key) => {
        if (key === "logout") onLogOut();
      }}
    >
      <MenuItem isDisabled className="px-2.5 py-1.5 text-meta text-muted" textValue={me.user.handle}>
        {me.user.display_name} ·{" "}
        {me.installation_role ??
          (me.needs_second_factor ? "role withheld until you have a second factor" : "no role in the installation")}
      </MenuItem>
      <Separator className="my-1 border-line border-t" />
      {THEMES.map((entry) => (
        <MenuItem
          key={entry.id}
          className={ITEM}
          onAction={() => {
            writeTheme(entry.id);
            setTheme(entry.id);
          }}
          textValue={entry.name}
        >
          <entry.icon size={14} aria-hidden="true" />
          {entry.name}
          {theme === entry.id && <span className="ml-auto text-accent">✓</span>}
        </MenuItem>
      ))}
      <Separator className="my-1 border-line border-t" />
      <MenuItem id="logout" className={ITEM}>
        Log out
      </MenuItem>
    </Menu>
  );
}

function AccountMenu({ me, onLogOut }: { me: Schema["MeView"]; onLogOut: () => void }) {
  return (
    <MenuTrigger>
      <Button className="flex min-h-9 w-full items-center gap-2 rounded-box px-2.5 text-left hover:bg-select max-wide:justify-center max-wide:px-0">
        <span
          aria-hidden="true"
          className="grid size-6 shrink-0 place-items-center rounded-full bg-line text-meta uppercase"
        >
          {me.user.handle.slice(0, 1)}
        </span>
        <span className="truncate max-wide:sr-only">{me.user.handle}</span>
      </Button>
      <Popover placement="top start" className={POPOVER}>
        <AccountItems me={me} onLogOut={onLogOut} />
      </Popover>
    </MenuTrigger>
  );
}

function MoreMenu({ me, onLogOut }: { me: Schema["MeView"]; onLogOut: () => void }) {
  const navigate = useNavigate();
  return (
    <MenuTrigger>
      <Button className="flex h-12 w-full flex-col items-center justify-center gap-0.5 rounded-box text-meta text-muted">
        <MoreHorizontal size={16} aria-hidden="true" />
        More
      </Button>
      <Popover placement="top end" className={POPOVER}>
        <Menu className="outline-none" aria-label="More">
          {PLACES.filter((place) => !IN_BAR.has(place.to)).map((place) => (
            <MenuItem
              key={place.to}
              className={ITEM}
              onAction={() => void navigate({ to: place.to })}
              textValue={place.name}
            >
              <place.icon size={14} aria-hidden="true" />
              {place.name}
            </MenuItem>
          ))}
          <MenuItem className={ITEM} onAction={() => void navigate({ to: "/tasks/new" })} textValue="New task">
            <CommandIcon size={14} aria-hidden="true" />
            New task
          </MenuItem>
        </Menu>
        <Separator className="my-1 border-line border-t" />
        <AccountItems me={me} onLogOut={onLogOut} />
      </Popover>
    </MenuTrigger>
  );
}
