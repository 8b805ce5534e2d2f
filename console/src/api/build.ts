/** One version with the server: every answer names the build of the console that the server has. */

const BUILD_HEADER = "x-cynode-console";
const CHANNEL_NAME = "cynode-build";

/** Remembers the build that this page was loaded from, which is the first that it hears of, and notices another one. */
export class BuildWatch {
  private own: string | null = null;
  private latest: string | null = null;
  private readonly readers = new Set<() => void>();

  /** `share` hands a build on to other tabs, of which only one reads events. */
  constructor(private readonly share: (build: string) => void = () => undefined) {}

  note(build: string | null, isShared = false): void {
    if (build === null || build === this.latest) return;
    // A build of another tab says nothing about what this page was loaded from.
    if (this.own === null && isShared) return;
    this.own ??= build;
    this.latest = build;
    if (!isShared) this.share(build);
    for (const reader of this.readers) reader();
  }

  isOutdated = (): boolean => this.latest !== this.own;

  subscribe = (reader: () => void): (() => void) => {
    this.readers.add(reader);
    return () => this.readers.delete(reader);
  };
}

const isBrowser = typeof window !== "undefined" && "BroadcastChannel" in window;
const channel = isBrowser ? new BroadcastChannel(CHANNEL_NAME) : null;

export const buildWatch = new BuildWatch((build) => channel?.postMessage(build));
channel?.addEventListener("message", (event: MessageEvent<unknown>) => {
  if (typeof event.data === "string") buildWatch.note(event.data, true);
});

export function noteBuild(headers: Headers): void {
  buildWatch.note(headers.get(BUILD_HEADER));
}
