/** Layout of a plan: a column for each depth of dependency, rows in the order of the plan. */

export interface PlanNode {
  key: string;
  depends_on: readonly string[];
}

export interface PlacedNode<T extends PlanNode> {
  node: T;
  column: number;
  row: number;
}

export interface PlanLayout<T extends PlanNode> {
  nodes: PlacedNode<T>[];
  edges: { from: PlacedNode<T>; to: PlacedNode<T> }[];
  columns: number;
  rows: number;
}

/** Places units. Dependencies that do not exist are left out, and a circle ends where it was met. */
export function layoutPlan<T extends PlanNode>(units: readonly T[]): PlanLayout<T> {
  const byKey = new Map(units.map((unit) => [unit.key, unit]));
  const depths = new Map<string, number>();
  const depthOf = (unit: T, path: ReadonlySet<string>): number => {
    const known = depths.get(unit.key);
    if (known !== undefined) return known;
    let depth = 0;
    for (const key of unit.depends_on) {
      const needed = byKey.get(key);
      if (needed && !path.has(key)) depth = Math.max(depth, depthOf(needed, new Set([...path, key])) + 1);
    }
    depths.set(unit.key, depth);
    return depth;
  };
  const used: number[] = [];
  const placed = new Map<string, PlacedNode<T>>();
  for (const unit of units) {
    const column = depthOf(unit, new Set([unit.key]));
    const row = used[column] ?? 0;
    used[column] = row + 1;
    placed.set(unit.key, { node: unit, column, row });
  }
  const nodes = [...placed.values()];
  const edges = nodes.flatMap((to) =>
    to.node.depends_on.flatMap((key) => {
      const from = placed.get(key);
      return from ? [{ from, to }] : [];
    }),
  );
  return { nodes, edges, columns: used.length, rows: Math.max(0, ...used.map((count) => count ?? 0)) };
}
