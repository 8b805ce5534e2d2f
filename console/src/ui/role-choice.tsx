/** A role, and the button that sets another one. */

import { useState } from "react";
import { ROLE_CHANGES, type RoleChange } from "../logic/roles";
import { Action } from "./basic";
import { Choice } from "./fields";

/** A role that is changed by choosing another one. */
export function RoleChoice({
  label,
  role,
  reason,
  onChange,
}: {
  label: string;
  role: RoleChange;
  reason: string | null;
  onChange: (role: RoleChange) => void;
}) {
  const [chosen, setChosen] = useState<RoleChange | null>(null);
  const value = chosen ?? role;
  return (
    <div className="grid grid-cols-[1fr_auto] items-end gap-2">
      <Choice label={label} value={value} onChange={setChosen} options={ROLE_CHANGES} />
      <Action
        onPress={() => {
          onChange(value);
          setChosen(null);
        }}
        reason={reason ?? (value === role ? "Choose another role first" : null)}
      >
        Set role
      </Action>
    </div>
  );
}
