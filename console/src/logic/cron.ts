/** The next times of a cron expression, to be shown before a schedule is saved. The server decides when it fires. */

const MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const DAY_MS = 86_400_000;
/** So many days are looked at; a 29th of February is found. */
const MAX_DAYS = 366 * 5;
/** No clock is set back further. */
const MAX_SHIFT_MS = 3 * 3_600_000;

interface CronFields {
  minutes: number[];
  hours: number[];
  days: Set<number>;
  months: Set<number>;
  weekdays: Set<number>;
  anyDay: boolean;
  anyWeekday: boolean;
}

function parseNumber(text: string, names: readonly string[], first: number): number | null {
  const named = names.indexOf(text.toLowerCase());
  if (named >= 0) return named + first;
  return /^\d+$/.test(text) ? Number(text) : null;
}

/** Returns the numbers that a field means; null for what only the server understands. */
function parseField(text: string, min: number, max: number, names: readonly string[] = []): number[] | null {
  const numbers = new Set<number>();
  for (const part of text.split(",")) {
    const [range = "", step, ...rest] = part.split("/");
    const [from = "", to, ...more] = range.split("-");
    if (rest.length > 0 || more.length > 0) return null;
    const every = step === undefined ? 1 : parseNumber(step, [], 0);
    const isAny = range === "*" || range === "?";
    const start = isAny ? min : parseNumber(from, names, min);
    const end = isAny ? max : to === undefined ? (step === undefined ? start : max) : parseNumber(to, names, min);
    if (!every || start === null || end === null || start < min || end > max || start > end) return null;
    for (let number = start; number <= end; number += every) numbers.add(number);
  }
  return [...numbers].sort((a, b) => a - b);
}

function parseCron(expression: string): CronFields | null {
  const [minute, hour, day, month, weekday, ...rest] = expression.trim().split(/\s+/);
  if (!minute || !hour || !day || !month || !weekday || rest.length > 0) return null;
  const minutes = parseField(minute, 0, 59);
  const hours = parseField(hour, 0, 23);
  const days = parseField(day, 1, 31);
  const months = parseField(month, 1, 12, MONTHS);
  const weekdays = parseField(weekday, 0, 7, DAYS);
  if (!minutes || !hours || !days || !months || !weekdays) return null;
  return {
    minutes,
    hours,
    days: new Set(days),
    months: new Set(months),
    weekdays: new Set(weekdays.map((it) => it % 7)),
    anyDay: day === "*" || day === "?",
    anyWeekday: weekday === "*" || weekday === "?",
  };
}

function matchesDay(fields: CronFields, date: Date): boolean {
  if (!fields.months.has(date.getUTCMonth() + 1)) return false;
  const day = fields.days.has(date.getUTCDate());
  const weekday = fields.weekdays.has(date.getUTCDay());
  if (fields.anyDay) return weekday;
  if (fields.anyWeekday) return day;
  return day || weekday;
}

/** Returns a function that gives the time of day in a zone, as if that zone were UTC; null for an unknown zone. */
function makeClock(zone: string): ((at: number) => number) | null {
  try {
    const format = new Intl.DateTimeFormat("en-US", {
      timeZone: zone,
      hourCycle: "h23",
      year: "numeric",
      month: "numeric",
      day: "numeric",
      hour: "numeric",
      minute: "numeric",
      second: "numeric",
    });
    return (at) => {
      const parts = new Map(format.formatToParts(at).map((part) => [part.type, Number(part.value)]));
      const part = (name: Intl.DateTimeFormatPartTypes) => parts.get(name) ?? 0;
      return Date.UTC(part("year"), part("month") - 1, part("day"), part("hour"), part("minute"), part("second"));
    };
  } catch {
    return null;
  }
}

/** Returns the next times of an expression in a zone; null where only the server can tell. */
export function findNextRuns(expression: string, zone: string, from: number, count: number): number[] | null {
  const fields = parseCron(expression);
  const clock = makeClock(zone);
  if (!fields || !clock) return null;
  const runs: number[] = [];
  const start = clock(from);
  const firstDay = Math.floor(start / DAY_MS) * DAY_MS;
  for (let day = firstDay; day < firstDay + MAX_DAYS * DAY_MS; day += DAY_MS) {
    if (!matchesDay(fields, new Date(day))) continue;
    for (const hour of fields.hours) {
      for (const minute of fields.minutes) {
        const local = day + (hour * 60 + minute) * 60_000;
        if (local < start - MAX_SHIFT_MS) continue;
        const guess = local - (clock(local) - local);
        const at = guess - (clock(guess) - local);
        // A time that the clock skips is left out.
        if (clock(at) === local && at > from) runs.push(at);
        if (runs.length === count) return runs;
      }
    }
  }
  return runs;
}

const DAY_NAMES = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/** Returns a simple expression in words; null for one that words would make longer. */
export function describeCron(expression: string): string | null {
  const fields = parseCron(expression);
  const [minute, second] = fields?.minutes ?? [];
  if (!fields || minute === undefined || fields.months.size < 12) return null;
  const isDaily = fields.anyDay && fields.anyWeekday;
  if (fields.hours.length === 24 && isDaily) {
    if (second === undefined) return minute === 0 ? "each hour" : `each hour at minute ${minute}`;
    const isEven = fields.minutes.every((it, index) => it === index * second) && 60 % second === 0;
    return isEven && fields.minutes.length === 60 / second ? `every ${second} minutes` : null;
  }
  const [hour, later] = fields.hours;
  if (hour === undefined || later !== undefined || second !== undefined) return null;
  const time = [hour, minute].map((it) => String(it).padStart(2, "0")).join(":");
  if (isDaily) return `every day at ${time}`;
  if (fields.anyDay) return `${listDays(fields.weekdays)} at ${time}`;
  const [day, other] = [...fields.days];
  return fields.anyWeekday && other === undefined ? `on day ${day} of each month at ${time}` : null;
}

function listDays(weekdays: ReadonlySet<number>): string {
  if (weekdays.size === 5 && !weekdays.has(0) && !weekdays.has(6)) return "Monday to Friday";
  return `each ${DAY_NAMES.filter((_, day) => weekdays.has(day)).join(", ")}`;
}
