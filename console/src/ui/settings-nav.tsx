/** The pages about settings, as tabs that are links. */

import { Link, useLocation } from "@tanstack/react-router";
import { useEffect, useRef } from "react";

export const SETTINGS_PAGES = [
  { to: "/settings", name: "Settings", cynork: "settings list" },
  { to: "/settings/preferences", name: "Preferences", cynork: "prefs effective" },
  { to: "/settings/policies", name: "Policies", cynork: "policy explain" },
  { to: "/settings/people", name: "People", cynork: "user list" },
  { to: "/settings/groups", name: "Groups", cynork: "group list" },
  { to: "/settings/directory", name: "Directory", cynork: "scim-token list" },
  { to: "/settings/identity-providers", name: "Identity providers", cynork: "identity-provider list" },
  { to: "/settings/security", name: "Security", cynork: "second-factor show" },
  { to: "/settings/sessions", name: "Sessions", cynork: "session list" },
  { to: "/settings/keys", name: "API keys", cynork: "api-key list" },
  { to: "/settings/keyring", name: "Keys and export", cynork: "keyring" },
  { to: "/settings/notifications", name: "Notifications", cynork: "channel list" },
  { to: "/settings/skills", name: "Skills", cynork: "skill list" },
  { to: "/schedules", name: "Schedules", cynork: "schedule list" },
  { to: "/settings/doctor", name: "Doctor", cynork: "doctor" },
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
    <nav ref={bar} aria-label="Pages about settings" className="mb-5 min-w-0 border-line border-b">
      {/* Where the row does not fit, it fades at its end, so that one sees that it goes on. */}
      <ul className="flex gap-1 overflow-x-auto px-0.5 [scrollbar-width:none] max-wide:scroll-px-8 max-wide:pr-8 max-wide:[mask-image:linear-gradient(to_right,black_calc(100%-2rem),transparent)]">
        {SETTINGS_PAGES.map((page) => (
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
