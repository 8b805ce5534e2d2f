/** Switches and boxes that say in words how they stand. */

import type { ReactNode } from "react";
import { Focusable, TooltipTrigger } from "react-aria-components";
import { cx, HintText } from "./basic";

export interface SwitchProps {
  /** What is switched, for people who do not see the row around it. */
  label: string;
  isOn: boolean;
  onChange: (isOn: boolean) => void;
  /** Why it cannot be switched now. It stays focusable, so that everybody can read the reason. */
  reason?: string | null | undefined;
}

export function Switch({ label, isOn, onChange, reason }: SwitchProps) {
  const button = (
    <button
      type="button"
      role="switch"
      aria-checked={isOn}
      aria-label={label}
      {...(reason ? { "aria-disabled": true } : {})}
      onClick={() => {
        if (!reason) onChange(!isOn);
      }}
      className={cx(
        "inline-flex min-h-8 items-center gap-2 rounded-chip max-small:min-h-10",
        reason && "cursor-not-allowed opacity-55",
      )}
    >
      <span
        aria-hidden="true"
        className={cx(
          "relative h-[18px] w-8 shrink-0 rounded-full border",
          isOn ? "border-accent bg-accent" : "border-control bg-surface",
        )}
      >
        <span
          className={cx(
            "absolute top-[2px] size-3 rounded-full",
            isOn ? "right-[3px] bg-on-accent" : "left-[3px] bg-control",
          )}
        />
      </span>
      <span aria-hidden="true" className={cx("w-6 text-left text-meta", isOn ? "text-text" : "text-muted")}>
        {isOn ? "On" : "Off"}
      </span>
    </button>
  );
  // The same element with and without a reason: another one would lose the focus.
  return (
    <TooltipTrigger delay={100} closeDelay={0} isDisabled={!reason}>
      <Focusable>{button}</Focusable>
      {reason && <HintText>{reason}</HintText>}
    </TooltipTrigger>
  );
}

/** A box that is ticked or not. */
export function Tick({
  label,
  description,
  isTicked,
  onChange,
}: {
  label: ReactNode;
  description?: ReactNode;
  isTicked: boolean;
  onChange: (isTicked: boolean) => void;
}) {
  return (
    <label className="flex min-h-8 items-start gap-2 py-1.5 max-small:min-h-10 max-small:py-2.5">
      <input
        type="checkbox"
        checked={isTicked}
        onChange={(event) => onChange(event.target.checked)}
        className="mt-[2px] size-4 shrink-0 accent-[var(--accent)]"
      />
      <span className="grid">
        <span>{label}</span>
        {description && <span className="text-meta text-muted">{description}</span>}
      </span>
    </label>
  );
}
