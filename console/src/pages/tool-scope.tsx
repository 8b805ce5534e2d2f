/** Who may call a tool. */

import { describeScope, SCOPES, type Tool, type ToolScope } from "../logic/tools";
import { Hint } from "../ui/basic";
import { Choice } from "../ui/fields";
import type { ToolChange } from "./use-set-tool";

export function ScopeChoice({
  tool,
  reason,
  onChange,
}: {
  tool: Tool;
  reason: string | null;
  onChange: (change: ToolChange) => void;
}) {
  if (reason) return <Hint text={reason}>{describeScope(tool.scope)}</Hint>;
  return (
    <Choice
      label={`Scope of ${tool.name}`}
      hideLabel
      value={tool.scope as ToolScope}
      onChange={(scope) => onChange({ scope })}
      options={SCOPES}
    />
  );
}
