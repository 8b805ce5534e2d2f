/** The pages about settings, as tabs that are links. */

import { Link, useLocation } from "@tanstack/react-router";
import { useEffect, useRef } from "react";

const PAGES = [
  { to: "/settings", name: "Settings" },
  { to: "/settings/preferences", name: "Preferences" },
  { to: "/settings/policies", name: "Policies" },
  { to: "/settings/people", name: "People" },
  { to: "/settings/groups", name: "Groups" },
  { to: "/settings/keys", name: "API keys" },
  { to: "/settings/notifications", name: "Notifications" },
  { to: "/settings/skills", name: "Skills" },
  { to: "/schedules", name: "Schedules" },
  { to: "/settings/doctor", name: "Doctor" },
] as const;

/** Stands on top of every page below `/settings`, and of the schedules. */
export function SettingsNav() {
  const { pathname } = useLocation();
  const bar = useRef<HTMLElement>(null);
  // biome-ignore lint/correctness/useExhaustiveDependencies: another page scrolls to another tab
  useEffect(() => {
    bar.current?.querySelector("[aria-current=page]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [pathname]);
  return (
    <nav ref={bar} aria-label="Pages about settings" className="mb-5 min-w-0">
      <ul className="flex gap-1 overflow-x-auto border-line border-b px-0.5 [scrollbar-width:none]">
        {PAGES.map((page) => (
          <li key={page.to}>
            <Link
              to={page.to}
              activeOptions={{ exact: true, includeSearch: false }}
              activeProps={{ className: "border-accent font-medium" }}
              inactiveProps={{ className: "border-transparent text-muted hover:text-text" }}
              className="flex min-h-9 items-center whitespace-nowrap border-b-2 px-2.5 -outline-offset-2 max-small:min-h-10"
            >
              {page.name}
            </Link>
          </li>
        ))}
      </ul>
    </nav>
  );
}
