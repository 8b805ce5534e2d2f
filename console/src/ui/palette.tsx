/** The palette: everything that the console can do, by name. */

import { useQuery } from "@tanstack/react-query";
import { useNavigate, useParams, useRouter } from "@tanstack/react-router";
import {
  Autocomplete,
  Collection,
  Dialog,
  Header,
  Input,
  Menu,
  MenuItem,
  MenuSection,
  Modal,
  ModalOverlay,
  SearchField,
  useFilter,
} from "react-aria-components";
import { api, unwrap } from "../api/client";
import { projectsQuery, tasksQuery } from "../api/queries";
import { addressOf, OPERATION_COMMANDS } from "../logic/operations";
import { SIGNS, standingOf } from "../logic/state";

export interface PaletteCommand {
  id: string;
  name: string;
  /** The name of the same operation in cynork, which also finds it. */
  cynork?: string;
  hint?: string;
  run: () => void;
}

export function Palette({
  isOpen,
  onClose,
  commands,
}: {
  isOpen: boolean;
  onClose: () => void;
  commands: PaletteCommand[];
}) {
  return (
    <ModalOverlay
      isOpen={isOpen}
      onOpenChange={(open) => !open && onClose()}
      isDismissable
      className="fixed inset-0 z-50 flex items-start justify-center bg-[rgb(0_0_0/0.35)] p-4 pt-[10vh]"
    >
      <Modal className="w-full max-w-[600px] overflow-hidden rounded-box border border-line bg-raised shadow-float">
        <Dialog aria-label="Palette" className="grid">
          <PaletteContent onClose={onClose} commands={commands} />
        </Dialog>
      </Modal>
    </ModalOverlay>
  );
}

function PaletteContent({ onClose, commands }: { onClose: () => void; commands: PaletteCommand[] }) {
  const navigate = useNavigate();
  const { contains } = useFilter({ sensitivity: "base" });
  const filter = tasksQuery({});
  const tasks = useQuery({
    queryKey: ["tasks", "palette"],
    queryFn: ({ signal }) => unwrap(api.GET("/v1/tasks", { signal, params: { query: { limit: 50 } } })),
    placeholderData: filter.placeholderData,
  });
  const projects = useQuery(projectsQuery);
  const router = useRouter();
  const open = useParams({ strict: false });
  const offered = new Set(commands.map((command) => command.cynork));
  const operationCommands: PaletteCommand[] = OPERATION_COMMANDS.filter((entry) => !offered.has(entry.cynork)).map(
    (entry) => ({
      id: `operation:${entry.cynork}`,
      name: entry.cynork,
      cynork: entry.cynork,
      run: () => router.history.push(addressOf(entry, open)),
    }),
  );
  const taskCommands: PaletteCommand[] = (tasks.data?.items ?? []).map((task) => ({
    id: task.id,
    name: task.name,
    hint: SIGNS[standingOf(task)].words,
    run: () => void navigate({ to: "/tasks/$task", params: { task: task.id } }),
  }));
  const projectCommands: PaletteCommand[] = (projects.data?.items ?? []).map((project) => ({
    id: project.id,
    name: project.title,
    hint: project.slug,
    run: () => void navigate({ to: "/projects/$project", params: { project: project.id } }),
  }));
  const sections = [
    { id: "do", title: "Do", items: commands },
    { id: "tasks", title: "Tasks", items: taskCommands },
    { id: "projects", title: "Projects", items: projectCommands },
    { id: "operations", title: "Operations", items: operationCommands },
  ].filter((section) => section.items.length > 0);
  const all = new Map(sections.flatMap((section) => section.items).map((command) => [command.id, command]));
  return (
    <Autocomplete filter={contains}>
      <SearchField aria-label="Find an operation, task or project" autoFocus className="border-line border-b">
        <Input
          placeholder="Find an operation, task or project"
          className="w-full bg-transparent px-4 py-3 text-lead outline-none placeholder:text-faint"
        />
      </SearchField>
      <Menu
        aria-label="Results"
        className="max-h-[50vh] overflow-auto p-1.5 outline-none"
        renderEmptyState={() => <p className="p-3 text-muted">Nothing has this name.</p>}
        onAction={(key) => {
          onClose();
          all.get(String(key))?.run();
        }}
      >
        {sections.map((section) => (
          <MenuSection key={section.id} id={section.id}>
            <Header className="px-2.5 pt-2 pb-1 text-meta text-faint">{section.title}</Header>
            <Collection items={section.items}>
              {(command) => (
                <MenuItem
                  id={command.id}
                  textValue={`${command.name} ${command.cynork ?? ""} ${command.hint ?? ""}`}
                  className="flex min-h-8 cursor-default items-center justify-between gap-4 rounded-chip px-2.5 outline-none data-focused:bg-select max-small:min-h-10"
                >
                  <span className="min-w-0 truncate">{command.name}</span>
                  <span className="shrink-0 truncate text-meta text-faint">
                    {command.cynork ? <code className="font-mono">cynork {command.cynork}</code> : command.hint}
                  </span>
                </MenuItem>
              )}
            </Collection>
          </MenuSection>
        ))}
      </Menu>
    </Autocomplete>
  );
}
