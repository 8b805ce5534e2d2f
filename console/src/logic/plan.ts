/** Layout of a plan: a column for each depth of dependency; in a column, units stand in the lane of what they depend on. */

export interface PlanNode {
  key: string;
  depends_on: readonly string[];
}

export interface PlacedNode<T extends PlanNode> {
  node: T;
  column: number;
  row: number;
}

export interface PlanEdge<T extends PlanNode> {
  from: PlacedNode<T>;
  to: PlacedNode<T>;
}

export interface PlanLayout<T extends PlanNode> {
  nodes: PlacedNode<T>[];
  edges: PlanEdge<T>[];
  columns: number;
  rows: number;
}

/** Columns and rows that are in view, both ends included. */
export interface PlanWindow {
  firstColumn: number;
  lastColumn: number;
  firstRow: number;
  lastRow: number;
}

/** Places units. Dependencies that do not exist are left out, and a circle ends where it was met. */
export function layoutPlan<T extends PlanNode>(units: readonly T[]): PlanLayout<T> {
  const byKey = new Map(units.map((unit) => [unit.key, unit]));
  const depths = new Map<string, number>();
  const path = new Set<string>();
  const depthOf = (unit: T): number => {
    const known = depths.get(unit.key);
    if (known !== undefined) return known;
    path.add(unit.key);
    let depth = 0;
    for (const key of unit.depends_on) {
      const needed = byKey.get(key);
      if (needed && !path.has(key)) depth = Math.max(depth, depthOf(needed) + 1);
    }
    path.delete(unit.key);
    depths.set(unit.key, depth);
    return depth;
  };
  const columns: T[][] = [];
  for (const unit of units) {
    const depth = depthOf(unit);
    const column = columns[depth] ?? [];
    column.push(unit);
    columns[depth] = column;
  }
  const placed = new Map<string, PlacedNode<T>>();
  let rows = 0;
  columns.forEach((column, depth) => {
    const wanted = column.map((unit) => ({ unit, row: meanRow(unit, placed) }));
    wanted.sort((a, b) => a.row - b.row);
    let next = 0;
    for (const { unit, row } of wanted) {
      const free = Math.max(next, Math.floor(row));
      placed.set(unit.key, { node: unit, column: depth, row: free });
      next = free + 1;
    }
    rows = Math.max(rows, next);
  });
  const nodes = units.flatMap((unit) => placed.get(unit.key) ?? []);
  const edges = nodes.flatMap((to) =>
    to.node.depends_on.flatMap((key) => {
      const from = placed.get(key);
      return from ? [{ from, to }] : [];
    }),
  );
  return { nodes, edges, columns: columns.length, rows };
}

/** Returns the mean row of what a unit depends on; 0 when it depends on nothing that is placed. */
function meanRow<T extends PlanNode>(unit: T, placed: ReadonlyMap<string, PlacedNode<T>>): number {
  const rows = unit.depends_on.flatMap((key) => placed.get(key)?.row ?? []);
  return rows.length === 0 ? 0 : rows.reduce((sum, row) => sum + row, 0) / rows.length;
}

/** Returns what of a layout is in view: units, and edges that cross it. */
export function cullPlan<T extends PlanNode>(
  layout: PlanLayout<T>,
  view: PlanWindow,
): Pick<PlanLayout<T>, "nodes" | "edges"> {
  const meets = (columns: readonly number[], rows: readonly number[]) =>
    Math.max(...columns) >= view.firstColumn &&
    Math.min(...columns) <= view.lastColumn &&
    Math.max(...rows) >= view.firstRow &&
    Math.min(...rows) <= view.lastRow;
  return {
    nodes: layout.nodes.filter(({ column, row }) => meets([column], [row])),
    edges: layout.edges.filter(({ from, to }) => meets([from.column, to.column], [from.row, to.row])),
  };
}
