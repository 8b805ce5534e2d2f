/** What the page on screen would be on the command line. */

import { createContext, useContext, useEffect } from "react";
import { serverOrigin } from "../api/transport";

export interface PageCommand {
  /** The same by cynork. */
  cynork: string;
  /** The path of the API that the page shows. */
  path: string;
}

export const PageCommandContext = createContext<(command: PageCommand | null) => void>(() => undefined);

/** Says what the page would be on the command line, for “Copy as”. */
export function usePageCommand(cynork: string, path: string): void {
  const set = useContext(PageCommandContext);
  useEffect(() => {
    set({ cynork, path });
    return () => set(null);
  }, [set, cynork, path]);
}

export function toCurl(path: string): string {
  return `curl -H "Authorization: Bearer $CYNODE_TOKEN" '${serverOrigin()}${path}'`;
}
