/** Spend per day, stacked by model. Bars are boxes of the page: they need no canvas, follow its width and can be read aloud. */

import { useState } from "react";
import { OTHER_KEY, roundUp, type SpendStack } from "../../logic/places";
import { cx, Foreign } from "../../ui/basic";

const TONES = ["bg-accent", "bg-info", "bg-warn", "bg-ok", "bg-faint"];

const toneOf = (key: string, index: number) => (key === OTHER_KEY ? "hatched" : (TONES[index] ?? "bg-faint"));

function nameDay(day: string, style: "short" | "long"): string {
  return new Date(`${day}T00:00:00Z`).toLocaleDateString(undefined, {
    timeZone: "UTC",
    day: "numeric",
    month: "short",
    ...(style === "long" ? { weekday: "short", year: "numeric" } : {}),
  });
}

export function SpendChart({ stack, money }: { stack: SpendStack; money: (micros: number) => string }) {
  const { days, keys, highest } = stack;
  const [cursor, setCursor] = useState<number | null>(null);
  const top = roundUp(highest);
  const index = Math.min(cursor ?? days.length - 1, days.length - 1);
  const chosen = days[index];
  const move = (by: number) => setCursor(Math.min(Math.max(index + by, 0), days.length - 1));
  const first = days[0];
  const last = days.at(-1);
  if (!chosen || !first || !last) return null;
  return (
    <figure className="grid grid-cols-1 gap-3">
      <div className="grid grid-cols-[auto_1fr] gap-x-2">
        {/* Each amount stands at its line. */}
        <div aria-hidden="true" className="-my-2 flex h-48 flex-col justify-between text-right text-meta text-faint">
          {[top, top / 2, 0].map((micros) => (
            <span key={micros} className="leading-4">
              {money(micros)}
            </span>
          ))}
        </div>
        <div
          role="slider"
          tabIndex={0}
          aria-label="Spend per day"
          aria-valuemin={1}
          aria-valuemax={days.length}
          aria-valuenow={index + 1}
          aria-valuetext={`${nameDay(chosen.day, "long")}: ${money(chosen.total)}`}
          onKeyDown={(event) => {
            const by = { ArrowLeft: -1, ArrowRight: 1, Home: -days.length, End: days.length }[event.key];
            if (by === undefined) return;
            event.preventDefault();
            move(by);
          }}
          className="flex h-44 items-stretch border-line border-y bg-[linear-gradient(var(--line),var(--line))] bg-[length:100%_1px] bg-[position:0_50%] bg-no-repeat"
        >
          {days.map((day, at) => (
            <div
              key={day.day}
              title={`${nameDay(day.day, "long")}: ${money(day.total)}`}
              onPointerEnter={() => setCursor(at)}
              className={cx("flex min-w-0 flex-1 flex-col-reverse px-px small:px-0.5", at === index && "bg-select")}
            >
              {day.parts.map((part, key) => (
                <div
                  key={keys[key]}
                  className={cx("mx-auto w-full max-w-12 shrink-0", toneOf(keys[key] ?? "", key))}
                  style={{ height: `${(part / top) * 100}%` }}
                />
              ))}
            </div>
          ))}
        </div>
        <div aria-hidden="true" className="col-start-2 flex justify-between pt-1 text-meta text-faint">
          <span>{nameDay(first.day, "short")}</span>
          <span>{nameDay(last.day, "short")}</span>
        </div>
      </div>
      <figcaption className="grid grid-cols-1 gap-1">
        <p>
          <span className="font-medium">{nameDay(chosen.day, "long")}</span>{" "}
          <span className="text-muted">{chosen.total === 0 ? "nothing spent" : money(chosen.total)}</span>
        </p>
        <ul className="flex flex-wrap gap-x-5 gap-y-1 text-meta">
          {keys.map((key, at) => (
            <li key={key} className="inline-flex items-center gap-1.5">
              <span aria-hidden="true" className={cx("size-2.5 shrink-0 rounded-[2px]", toneOf(key, at))} />
              <Foreign text={key} />
              <span className="text-muted">{money(chosen.parts[at] ?? 0)}</span>
            </li>
          ))}
        </ul>
      </figcaption>
    </figure>
  );
}
