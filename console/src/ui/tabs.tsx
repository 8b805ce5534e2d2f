/** Parts of a page, as links: the address holds the choice. */

import { Link } from "@tanstack/react-router";
import { useEffect, useRef } from "react";
import { cx } from "./basic";

export interface TabEntry {
  id: string;
  name: string;
  count?: number | undefined;
}

export function TabBar({
  label,
  parameter,
  value,
  tabs,
}: {
  label: string;
  parameter: string;
  value: string;
  tabs: readonly TabEntry[];
}) {
  const first = tabs[0]?.id;
  const bar = useRef<HTMLElement>(null);
  // A count that arrives later makes the tabs before the chosen one wider.
  const counts = tabs.map((tab) => tab.count ?? 0).join(" ");
  // biome-ignore lint/correctness/useExhaustiveDependencies: another choice scrolls to another tab
  useEffect(() => {
    bar.current?.querySelector("[aria-current=page]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [value, counts]);
  return (
    <nav ref={bar} aria-label={label} className="min-w-0 border-line border-b">
      {/* On a phone the row fades at its end, so that one sees that it goes on. */}
      <ul className="flex gap-1 overflow-x-auto px-0.5 [scrollbar-width:none] max-small:scroll-px-8 max-small:pr-8 max-small:[mask-image:linear-gradient(to_right,black_calc(100%-2rem),transparent)]">
        {tabs.map((tab) => (
          <li key={tab.id}>
            <Link
              to="."
              search={(previous: Record<string, unknown>) => ({
                ...previous,
                [parameter]: tab.id === first ? undefined : tab.id,
              })}
              replace
              // Without it the first tab, whose parameter is left out, would always count as the current page.
              activeOptions={{ explicitUndefined: true }}
              aria-current={tab.id === value ? "page" : undefined}
              className={cx(
                "flex min-h-9 items-center gap-1.5 whitespace-nowrap border-b-2 px-2.5 -outline-offset-2 max-small:min-h-10",
                tab.id === value ? "border-accent font-medium" : "border-transparent text-muted hover:text-text",
              )}
            >
              {tab.name}
              {tab.count ? <span className="text-meta text-faint">{tab.count}</span> : null}
            </Link>
          </li>
        ))}
      </ul>
    </nav>
  );
}
