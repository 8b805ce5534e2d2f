/** The bundle that the audit log exports: one JSON object per line, and a last line that says what should be there. */

export interface BundleSummary {
  records: number;
  proven: number;
  /** Whether everything that matches is in it. */
  complete: boolean;
}

/** Reads the end of a bundle, and counts. A bundle without its end, or with fewer records than it says, was cut off. */
export function readBundle(text: string): BundleSummary {
  const lines = text.trimEnd().split("\n");
  const end = parseLine(lines.at(-1) ?? "");
  const records = lines.filter((line) => parseLine(line)?.type === "record").length;
  if (end?.type !== "end" || end.records !== records) {
    throw new Error("The bundle is not whole: the connection ended before it did. Export it again.");
  }
  return { records, proven: Number(end.proven), complete: end.complete === true };
}

function parseLine(line: string): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(line);
    return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : null;
  } catch {
    return null;
  }
}
