/** Fields of forms. */

import type { ReactNode } from "react";
import { FieldError, Input, Label, Text, TextArea, TextField, type TextFieldProps } from "react-aria-components";
import { cx } from "./basic";

const BOX =
  "w-full rounded-box border border-control bg-bg min-h-[33px] px-2.5 py-1.5 text-body placeholder:text-faint max-small:min-h-10 max-small:text-[16px]";

export interface FieldProps extends Omit<TextFieldProps, "children" | "className"> {
  label: string;
  description?: ReactNode;
  placeholder?: string;
  error?: string | null;
  /** Lines of a field with several. */
  lines?: number;
  mono?: boolean;
}

export function Field({ label, description, placeholder = "", error, lines, mono, ...rest }: FieldProps) {
  const input = cx(BOX, mono && "font-mono text-code");
  return (
    <TextField {...rest} isInvalid={Boolean(error)} className="grid gap-1">
      <Label className="font-medium">{label}</Label>
      {lines ? (
        <TextArea rows={lines} placeholder={placeholder} className={input} />
      ) : (
        <Input placeholder={placeholder} className={input} />
      )}
      {description && (
        <Text slot="description" className="text-meta text-muted">
          {description}
        </Text>
      )}
      <FieldError className="text-meta text-bad">{error}</FieldError>
    </TextField>
  );
}

/** A choice among few. The browser's own list works everywhere, also on phones. */
export function Choice<T extends string>({
  label,
  value,
  onChange,
  options,
  hideLabel,
}: {
  label: string;
  value: T;
  onChange: (value: T) => void;
  options: readonly { value: T; name: string }[];
  hideLabel?: boolean;
}) {
  return (
    <label className="grid gap-1">
      <span className={hideLabel ? "sr-only" : "font-medium"}>{label}</span>
      <select value={value} onChange={(event) => onChange(event.target.value as T)} className={cx(BOX, "py-1")}>
        {options.map((option) => (
          <option key={option.value} value={option.value}>
            {option.name}
          </option>
        ))}
      </select>
    </label>
  );
}
