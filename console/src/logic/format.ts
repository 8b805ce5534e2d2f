/** Numbers, times and durations as the console writes them. */

/** Returns a duration as `3 m 12 s`. */
export function formatDuration(milliseconds: number): string {
  if (milliseconds < 1000) return `${Math.max(0, Math.round(milliseconds))} ms`;
  const seconds = Math.floor(milliseconds / 1000);
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return joinUnits(minutes, "m", seconds % 60, "s");
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return joinUnits(hours, "h", minutes % 60, "m");
  return joinUnits(Math.floor(hours / 24), "d", hours % 24, "h");
}

function joinUnits(whole: number, unit: string, rest: number, restUnit: string): string {
  return rest === 0 ? `${whole} ${unit}` : `${whole} ${unit} ${rest} ${restUnit}`;
}

/** Returns how long ago a time was, in one unit: `2 m`. */
export function formatAge(at: string | number | Date, now: number): string {
  const seconds = Math.max(0, Math.floor((now - new Date(at).getTime()) / 1000));
  if (seconds < 5) return "now";
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} m`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86_400)} d`;
}

/** Returns a time in the zone and language of the reader. */
export function formatTime(at: string | number | Date): string {
  return new Date(at).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}

/** Returns a time to the minute, for what happens by the calendar. */
export function formatMoment(at: string | number | Date): string {
  return new Date(at).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}

/** Returns the day of a time in the zone and language of the reader. */
export function formatDay(at: string | number | Date): string {
  return new Date(at).toLocaleDateString(undefined, { dateStyle: "medium" });
}

/** Returns money of micro-units. Small amounts keep the digits that matter. */
export function formatCost(micros: number, currency = "USD"): string {
  const amount = micros / 1_000_000;
  const digits = amount === 0 || Math.abs(amount) >= 1 ? 2 : Math.abs(amount) >= 0.01 ? 3 : 4;
  const options = { style: "currency", currency, minimumFractionDigits: 2, maximumFractionDigits: digits } as const;
  try {
    return new Intl.NumberFormat("en-US", options).format(amount);
  } catch {
    return `${amount.toFixed(digits)} ${currency}`;
  }
}

/** Returns money with four digits, so that a column of amounts can be compared. */
export function formatCostExactly(micros: number, currency = "USD"): string {
  const options = { style: "currency", currency, minimumFractionDigits: 4, maximumFractionDigits: 4 } as const;
  try {
    return new Intl.NumberFormat("en-US", options).format(micros / 1_000_000);
  } catch {
    return `${(micros / 1_000_000).toFixed(4)} ${currency}`;
  }
}

/** Returns a count with its noun in the right number. */
export function formatCount(count: number, noun: string): string {
  return `${count.toLocaleString("en-US")} ${noun}${count === 1 ? "" : "s"}`;
}

/** Returns an amount of memory. */
export function formatMebibytes(mebibytes: number): string {
  return mebibytes >= 1024 ? `${(mebibytes / 1024).toFixed(1)} GiB` : `${mebibytes} MiB`;
}

/** Returns an amount of bytes. */
export function formatBytes(bytes: number): string {
  if (bytes < 1024) return `${bytes} B`;
  const kibibytes = bytes / 1024;
  return kibibytes < 1024
    ? `${kibibytes.toFixed(kibibytes < 10 ? 1 : 0)} KiB`
    : formatMebibytes(Math.round(kibibytes / 1024));
}

/** Returns the title of a project with its slug, where they differ. */
export function nameProject({ title, slug }: { title: string; slug: string }): string {
  return title === slug ? slug : `${title} (${slug})`;
}

/** Returns the part of an identifier that people compare: its last eight characters, because the first ones are a time. */
export function shortenId(id: string): string {
  return id.length <= 12 ? id : id.slice(-8);
}

/** Returns a name such as `work_completed` in words. */
export function toWords(name: string): string {
  const words = name.replaceAll(/[_.-]+/g, " ").trim();
  return words.charAt(0).toUpperCase() + words.slice(1);
}
