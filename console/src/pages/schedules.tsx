/** What starts by itself, and when? */

import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useMemo, useState } from "react";
import { Form } from "react-aria-components";
import { api, makeKey, type Schema, unwrap } from "../api/client";
import { meQuery, projectsQuery } from "../api/queries";
import { scheduleQuery, schedulesQuery } from "../api/queries-admin";
import { findNextRuns } from "../logic/cron";
import { formatCost, formatMoment, formatTime, toWords } from "../logic/format";
import {
  describeOutcome,
  describeSchedule,
  describeTrigger,
  EMPTY_SCHEDULE,
  listNextRuns,
  type Schedule,
  type ScheduleDraft,
  type ScheduleRequest,
  toScheduleDraft,
  toScheduleRequest,
} from "../logic/schedules";
import { describeCommand, quoteShell } from "../logic/text";
import {
  Action,
  Age,
  Command,
  Empty,
  Facts,
  Foreign,
  Id,
  Loaded,
  Page,
  ProblemNote,
  Prose,
  SectionHead,
  Sign,
  useNow,
} from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { Choice, Field } from "../ui/fields";
import { useKeys } from "../ui/keys";
import { Person } from "../ui/person";
import { ConfirmLayer, ListHead, RowLines, RowLink } from "../ui/rows";
import { SettingsNav } from "../ui/settings-nav";
import { Split, useRowKeys } from "../ui/split";
import { UndoBar } from "../ui/undo";
import { Unreviewed } from "../ui/unreviewed";

const SHOWN_RUNS = 5;

/** The zone of the reader. */
const OWN_ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";

export function SchedulesPage() {
  const search = useSearch({ from: "/schedules" });
  const navigate = useNavigate({ from: "/schedules" });
  const projects = useQuery(projectsQuery);
  const schedules = useInfiniteQuery(schedulesQuery(search.project));
  const items = schedules.data?.pages.flatMap((page) => page.items) ?? [];
  const slugs = new Map((projects.data?.items ?? []).map((it) => [it.id, it.slug]));
  usePageCommand(
    search.schedule ? quoteShell(["cynork", "schedule", "show", search.schedule]) : "cynork schedule list",
    search.schedule
      ? `/v1/schedules/${search.schedule}`
      : `/v1/schedules${search.project ? `?project=${search.project}` : ""}`,
  );
  const close = () => void navigate({ search: { project: search.project } });
  const openForm = () => void navigate({ search: { project: search.project, create: true } });
  useRowKeys(
    items.map((item) => item.schedule_id),
    search.schedule ?? (search.create ? "" : undefined),
    (next) => void navigate({ search: { project: search.project, schedule: next }, replace: true }),
    close,
  );
  useKeys({ "/": () => document.querySelector<HTMLElement>("#filter select")?.focus() });
  const reason = projects.data?.items.length === 0 ? "A schedule belongs to a project, and there is none yet" : null;
  return (
    <Page wide>
      <SettingsNav />
      <ListHead
        isChosen={search.schedule !== undefined || search.create === true}
        title="Schedules"
        lead="Work that starts by itself. Times are those of your time zone."
      >
        {!search.create && items.length > 0 && (
          <Action tone={search.schedule ? "plain" : "primary"} onPress={openForm} reason={reason}>
            New schedule
          </Action>
        )}
      </ListHead>
      <Split
        back="Schedules"
        onClose={close}
        list={
          <div className="grid grid-cols-1 gap-3">
            <div id="filter" className="max-w-80">
              <Choice
                label="Project"
                value={search.project ?? ""}
                onChange={(project) =>
                  void navigate({ search: (previous) => ({ ...previous, project: project || undefined }) })
                }
                options={[
                  { value: "", name: "Every project" },
                  ...(projects.data?.items ?? []).map((it) => ({ value: it.id, name: it.slug })),
                ]}
              />
            </div>
            <Loaded query={schedules} lines={6}>
              {() =>
                items.length === 0 ? (
                  !search.create && (
                    <Empty title="Nothing starts by itself.">
                      <p className="text-muted">
                        Say once what is wanted and when: updates each Monday, release notes at a given time.
                      </p>
                      <Command line="cynork schedule create weekly-updates --cron '0 9 * * mon' --timezone Europe/Berlin --words 'Find outdated dependencies and update them.'" />
                      <div>
                        <Action tone="primary" onPress={openForm} reason={reason}>
                          New schedule
                        </Action>
                      </div>
                    </Empty>
                  )
                ) : (
                  <>
                    <ul aria-label="Schedules" className="border-line border-t">
                      {items.map((item) => (
                        <RowLink
                          key={item.schedule_id}
                          parameter="schedule"
                          id={item.schedule_id}
                          isChosen={item.schedule_id === search.schedule}
                        >
                          <Row schedule={item} project={slugs.get(item.project_id) ?? ""} />
                        </RowLink>
                      ))}
                    </ul>
                    {schedules.hasNextPage && (
                      <div>
                        <Action
                          onPress={() => void schedules.fetchNextPage()}
                          reason={schedules.isFetchingNextPage ? "They are being read" : null}
                        >
                          Show more schedules
                        </Action>
                      </div>
                    )}
                  </>
                )
              }
            </Loaded>
          </div>
        }
        detail={
          search.create ? (
            <ScheduleForm project={search.project ?? null} schedule={null} onClose={close} />
          ) : search.schedule ? (
            <ScheduleDetail key={search.schedule} id={search.schedule} />
          ) : null
        }
      />
    </Page>
  );
}

function Row({ schedule, project }: { schedule: Schedule; project: string }) {
  const state = describeSchedule(schedule);
  return (
    <RowLines
      sign={<Sign standing={state.standing} />}
      name={<Foreign text={schedule.name} />}
      end={
        schedule.next_at ? (
          <time dateTime={schedule.next_at} title={formatTime(schedule.next_at)}>
            next {formatMoment(schedule.next_at)}
          </time>
        ) : (
          state.words
        )
      }
      below={
        <Foreign
          text={[project, describeTrigger(schedule.trigger), schedule.unreviewed ? "not reviewed" : ""]
            .filter(Boolean)
            .join(" · ")}
        />
      }
    />
  );
}

function ScheduleDetail({ id }: { id: string }) {
  const schedule = useQuery(scheduleQuery(id));
  const [isEdited, setEdited] = useState(false);
  return (
    <Loaded query={schedule}>
      {(data) =>
        isEdited ? (
          <ScheduleForm project={data.project_id} schedule={data} onClose={() => setEdited(false)} />
        ) : (
          <ScheduleContent schedule={data} onEdit={() => setEdited(true)} />
        )
      }
    </Loaded>
  );
}

function ScheduleContent({ schedule, onEdit }: { schedule: Schedule; onEdit: () => void }) {
  const client = useQueryClient();
  const navigate = useNavigate({ from: "/schedules" });
  const projects = useQuery(projectsQuery);
  const me = useQuery(meQuery);
  const now = useNow();
  const [isDeleted, setDeleted] = useState(false);
  const [paused, setPaused] = useState<boolean | null>(null);
  const path = { schedule: schedule.schedule_id };
  const renew = () => void client.invalidateQueries({ queryKey: ["schedules"] });
  const run = useMutation({
    mutationFn: () => unwrap(api.POST("/v1/schedules/{schedule}/run", { params: { path } })),
    onSettled: renew,
  });
  const pause = useMutation({
    mutationFn: (enabled: boolean) =>
      unwrap(
        api.PATCH("/v1/schedules/{schedule}", {
          params: { path },
          body: { enabled, expected_version: schedule.version },
        }),
      ),
    onSuccess: (_, enabled) => setPaused(!enabled),
    onSettled: renew,
  });
  const remove = useMutation({
    mutationFn: () => unwrap(api.DELETE("/v1/schedules/{schedule}", { params: { path } })),
    onSuccess: () => {
      void navigate({ search: { project: schedule.project_id } });
      void client.invalidateQueries({ queryKey: ["schedules", "list"] });
    },
  });
  const busy = run.isPending || pause.isPending ? "It is being sent" : null;
  useKeys({ p: busy ? undefined : () => pause.mutate(!schedule.enabled) });
  const state = describeSchedule(schedule);
  const runs = useMemo(() => listNextRuns(schedule, now, SHOWN_RUNS), [schedule, now]);
  const zone = schedule.trigger.kind === "cron" ? (schedule.trigger.timezone ?? "UTC") : null;
  const project = projects.data?.items.find((it) => it.id === schedule.project_id);
  const { action } = schedule;
  return (
    <article className="grid grid-cols-1 gap-5">
      <div className="grid gap-2">
        <div className="flex flex-wrap items-baseline gap-x-3">
          <h2 className="text-lead">
            <Foreign text={schedule.name} />
          </h2>
          <Sign standing={state.standing} word={state.words} />
        </div>
        <div className="flex flex-wrap gap-2">
          <Action onPress={() => run.mutate()} reason={busy}>
            Run now
          </Action>
          <Action onPress={() => pause.mutate(!schedule.enabled)} reason={busy} hotkey="P">
            {schedule.enabled ? "Pause schedule" : "Resume schedule"}
          </Action>
          <Action onPress={onEdit}>Edit schedule</Action>
          <Action tone="danger" onPress={() => setDeleted(true)}>
            Delete schedule…
          </Action>
        </div>
      </div>
      {(run.error ?? pause.error) ? <ProblemNote error={run.error ?? pause.error} /> : null}
      {run.data && (
        <p role="status" className="border-ok border-l-2 py-1 pl-3">
          Run {run.data.number}: {describeOutcome(run.data.outcome).words.toLowerCase()}. Its next time stays the same.
        </p>
      )}
      {schedule.unreviewed && (
        <Unreviewed what="schedule" body={{ schedule_id: schedule.schedule_id }} area="schedules" />
      )}
      <Facts
        rows={[
          [
            "Project",
            <Link
              key="project"
              to="/projects/$project"
              params={{ project: schedule.project_id }}
              className="text-accent underline"
            >
              <Foreign text={project?.slug ?? schedule.project_id.slice(-8)} />
            </Link>,
          ],
          ["When", <Foreign key="when" text={describeTrigger(schedule.trigger)} />],
          schedule.trigger.kind !== "once" && [
            "Cron",
            <code key="cron" className="font-mono text-code">
              <Foreign text={schedule.trigger.expression} />
            </code>,
          ],
          ["Missed times", schedule.missed_policy === "once" ? "are made up for by one run" : "are skipped"],
          [
            "Acts for",
            <span key="for">
              <Person id={schedule.acts_for} />
              {schedule.acts_for !== me.data?.user.id && (
                <span className="text-muted">; when you change it, it acts for you</span>
              )}
            </span>,
          ],
          ["Made", <Age key="made" at={schedule.created_at} ago />],
          ["Runs so far", schedule.firings],
          ["Version", schedule.version],
          ["Id", <Id key="id" id={schedule.schedule_id} />],
        ]}
      />
      <section className="grid grid-cols-1 gap-2">
        <SectionHead aside={`In your zone, ${OWN_ZONE}`}>Next runs</SectionHead>
        {runs.length === 0 ? (
          <p className="text-muted">{schedule.enabled ? "None: it is over." : "None while it is paused."}</p>
        ) : (
          <RunList runs={runs} zone={zone} />
        )}
      </section>
      <section className="grid grid-cols-1 gap-2">
        <SectionHead>{action.kind === "words" ? "What the project manager is asked" : "The task"}</SectionHead>
        <Prose text={action.kind === "words" ? action.text : action.description} />
        {action.kind === "task" && (action.acceptance_criteria ?? []).length > 0 && (
          <ul aria-label="Checks" className="grid gap-1">
            {(action.acceptance_criteria ?? []).map((it) => (
              <li key={it.text} className="font-mono text-code break-words">
                <Foreign text={it.check ? describeCommand(it.check.argv) : it.text} />
              </li>
            ))}
          </ul>
        )}
        {action.kind === "task" && action.budget?.max_cost_micros ? (
          <p className="text-muted">
            Each may spend {formatCost(action.budget.max_cost_micros, me.data?.currency ?? "USD")}.
          </p>
        ) : null}
      </section>
      <section className="grid grid-cols-1 gap-2">
        <SectionHead>Last run</SectionHead>
        {schedule.last_firing ? <Firing firing={schedule.last_firing} /> : <p className="text-muted">None so far.</p>}
      </section>
      {paused !== null && (
        <UndoBar onUndo={() => pause.mutate(paused)} onClose={() => setPaused(null)} busy={busy}>
          {paused ? "The schedule is paused." : "The schedule runs at its next time from now."}
        </UndoBar>
      )}
      {isDeleted && (
        <ConfirmLayer
          title="Delete schedule"
          action="Delete schedule"
          keep="Keep schedule"
          typed={schedule.name}
          pending={remove.isPending}
          error={remove.error}
          onConfirm={() => remove.mutate()}
          onClose={() => setDeleted(false)}
        >
          <p>
            What <Foreign text={schedule.name} /> asks for and the record of its {schedule.firings} runs are lost. The
            tasks that it made stay.
          </p>
        </ConfirmLayer>
      )}
    </article>
  );
}

/** Times in the reader's zone, and in that of the schedule where it is another one. */
function RunList({ runs, zone }: { runs: readonly number[]; zone: string | null }) {
  return (
    <ol aria-label="Next runs" className="grid grid-cols-[max-content_1fr] gap-x-4 max-small:grid-cols-1">
      {runs.map((at) => (
        <li key={at} className="col-span-full grid grid-cols-subgrid py-0.5">
          <time dateTime={new Date(at).toISOString()} className="tabular-nums">
            {new Date(at).toLocaleString(undefined, { dateStyle: "full", timeStyle: "short" })}
          </time>
          {zone && zone !== OWN_ZONE && (
            <span className="text-muted">
              {new Date(at).toLocaleString(undefined, {
                timeZone: zone,
                weekday: "short",
                hour: "2-digit",
                minute: "2-digit",
              })}{" "}
              in {zone}
            </span>
          )}
        </li>
      ))}
    </ol>
  );
}

function Firing({ firing }: { firing: Schema["FiringView"] }) {
  const outcome = describeOutcome(firing.outcome);
  return (
    <div className="grid gap-2">
      <div className="flex flex-wrap items-baseline gap-x-3">
        <Sign standing={outcome.standing} word={outcome.words} />
        <span className="text-muted">
          run {firing.number}, {firing.cause === "asked" ? "asked for by a person" : "due"} ·{" "}
          <Age at={firing.fired_at} ago />
        </span>
      </div>
      {firing.note && <Prose text={firing.note} />}
      {firing.missed_count > 0 && <p className="text-muted">{firing.missed_count} times before it were missed.</p>}
      {firing.handoff_id && (
        <p className="text-muted">
          The request to the project manager is {toWords(firing.handoff_state ?? "queued").toLowerCase()}{" "}
          <Id id={firing.handoff_id} />
        </p>
      )}
      {firing.tasks.length > 0 && (
        <ul aria-label="Tasks that came of it">
          {firing.tasks.map((task) => (
            <li key={task.task_id} className="flex flex-wrap items-baseline gap-x-3 py-0.5">
              <Link to="/tasks/$task" params={{ task: task.task_id }} className="text-accent underline">
                <Foreign text={task.name} />
              </Link>
              <span className="text-meta text-muted">{toWords(task.state)}</span>
            </li>
          ))}
        </ul>
      )}
      <p className="text-meta text-faint">
        trace <Id id={firing.trace_id} />
      </p>
    </div>
  );
}

function ScheduleForm({
  project: preset,
  schedule,
  onClose,
}: {
  project: string | null;
  schedule: Schedule | null;
  onClose: () => void;
}) {
  const client = useQueryClient();
  const navigate = useNavigate({ from: "/schedules" });
  const me = useQuery(meQuery);
  const projects = useQuery(projectsQuery);
  const [chosen, setChosen] = useState(preset ?? "");
  const project = chosen || projects.data?.items[0]?.id || "";
  // Where the draft began: the schedule as it was read then.
  const [before, setBefore] = useState(schedule);
  const [draft, setDraft] = useState<ScheduleDraft>(() =>
    schedule ? toScheduleDraft(schedule, OWN_ZONE) : { ...EMPTY_SCHEDULE, timezone: OWN_ZONE },
  );
  const [key, setKey] = useState(makeKey);
  const change = (part: Partial<ScheduleDraft>) => {
    setDraft((known) => ({ ...known, ...part }));
    setKey(makeKey());
  };
  const request = toScheduleRequest(draft, before, OWN_ZONE);
  const overtaken = schedule !== null && before !== null && schedule.version !== before.version;
  const save = useMutation({
    mutationFn: (body: ScheduleRequest) => {
      const header = { "Idempotency-Key": key };
      return before
        ? unwrap(
            api.PATCH("/v1/schedules/{schedule}", {
              params: { path: { schedule: before.schedule_id }, header },
              body: { ...body, expected_version: before.version },
            }),
          )
        : unwrap(api.POST("/v1/schedules", { params: { header }, body: { ...body, project_id: project } }));
    },
    onSuccess: async (saved) => {
      await client.invalidateQueries({ queryKey: ["schedules"] });
      if (before) onClose();
      else void navigate({ search: { project: preset ?? undefined, schedule: saved.schedule_id } });
    },
  });
  const reason = save.isPending
    ? "It is being sent"
    : overtaken
      ? "First decide about what was written meanwhile"
      : project === ""
        ? "Choose a project"
        : "missing" in request
          ? request.missing
          : null;
  return (
    <Form
      aria-labelledby="schedule-form"
      className="grid max-w-[640px] gap-4"
      onSubmit={(event) => {
        event.preventDefault();
        if (!reason && "body" in request) save.mutate(request.body);
      }}
    >
      <h2 id="schedule-form" className="text-lead">
        {schedule ? (
          <>
            Edit <Foreign text={schedule.name} />
          </>
        ) : (
          "Create schedule"
        )}
      </h2>
      <div className="grid items-start gap-4 small:grid-cols-2">
        <Field
          label="Name"
          value={draft.name}
          onChange={(name) => change({ name })}
          autoFocus
          mono
          placeholder="weekly-updates"
        />
        {!schedule && (
          <Choice
            label="Project"
            value={project}
            onChange={setChosen}
            options={(projects.data?.items ?? []).map((it) => ({ value: it.id, name: it.slug }))}
          />
        )}
      </div>
      <WhenFields draft={draft} change={change} />
      <Choice
        label="What it asks for"
        value={draft.what}
        onChange={(what) => change({ what })}
        options={[
          { value: "words", name: "Words: the project manager makes tasks of them each time" },
          { value: "task", name: "The same task each time" },
        ]}
      />
      <Field
        label="What is to be done"
        value={draft.text}
        onChange={(text) => change({ text })}
        lines={4}
        placeholder="Find outdated dependencies and update them."
      />
      {draft.what === "task" && (
        <>
          <Field
            label="Checks"
            value={draft.checks}
            onChange={(checks) => change({ checks })}
            lines={3}
            mono
            placeholder="npm test"
            description="One shell command per line."
          />
          <Field
            label={`Limit of each in ${me.data?.currency ?? "USD"}`}
            value={draft.limit}
            onChange={(limit) => change({ limit })}
            inputMode="decimal"
            placeholder="0.50"
          />
        </>
      )}
      <Choice
        label="Times that passed while CyNode was down"
        value={draft.missed}
        onChange={(missed) => change({ missed })}
        options={[
          { value: "once", name: "One run makes up for them" },
          { value: "skip", name: "They are skipped" },
        ]}
      />
      <p className="text-meta text-muted">It acts in your name, with the rights that you have when it runs.</p>
      {overtaken && (
        <div role="status" className="grid gap-2 border-warn border-l-2 py-1 pl-3">
          <p>
            <span aria-hidden="true" className="mr-1.5 font-mono text-warn">
              !
            </span>
            Somebody wrote version {schedule.version} meanwhile. What you typed is still here.
          </p>
          <div className="flex flex-wrap gap-2">
            <Action onPress={() => setBefore(schedule)}>Keep mine</Action>
            <Action
              onPress={() => {
                setBefore(schedule);
                setDraft(toScheduleDraft(schedule, OWN_ZONE));
              }}
            >
              Take theirs
            </Action>
          </div>
        </div>
      )}
      {save.error && <ProblemNote error={save.error} />}
      <div className="flex flex-wrap gap-2">
        <Action type="submit" tone="primary" reason={reason}>
          {schedule ? "Save schedule" : "Create schedule"}
        </Action>
        <Action tone="quiet" onPress={onClose}>
          Cancel
        </Action>
      </div>
    </Form>
  );
}

function WhenFields({ draft, change }: { draft: ScheduleDraft; change: (part: Partial<ScheduleDraft>) => void }) {
  const now = useNow();
  const zones = useMemo(() => {
    const known = Intl.supportedValuesOf("timeZone");
    return [...new Set([OWN_ZONE, "UTC", draft.timezone, ...known])].map((zone) => ({ value: zone, name: zone }));
  }, [draft.timezone]);
  const runs = useMemo(
    () => (draft.when === "cron" ? findNextRuns(draft.expression, draft.timezone, now, 3) : null),
    [draft.when, draft.expression, draft.timezone, now],
  );
  return (
    <>
      <Choice
        label="When"
        value={draft.when}
        onChange={(when) => change({ when })}
        options={[
          { value: "cron", name: "Again and again" },
          { value: "once", name: "One time" },
        ]}
      />
      {draft.when === "once" ? (
        <Field
          label={`Time in your zone, ${OWN_ZONE}`}
          value={draft.at}
          onChange={(at) => change({ at })}
          type={"datetime-local" as "text"}
        />
      ) : (
        <>
          <div className="grid items-start gap-4 small:grid-cols-2">
            <Field
              label="Cron expression"
              value={draft.expression}
              onChange={(expression) => change({ expression })}
              mono
              placeholder="0 9 * * mon"
              description="Minute, hour, day of the month, month, day of the week."
            />
            <Choice
              label="By the clock of"
              value={draft.timezone}
              onChange={(timezone) => change({ timezone })}
              options={zones}
            />
          </div>
          <div aria-live="polite" className="grid gap-1 text-meta">
            {runs === null ? (
              <p className="text-muted">The server says when it is due, once it is saved.</p>
            ) : runs.length === 0 ? (
              <p className="text-warn">
                <span aria-hidden="true">! </span>This time never comes.
              </p>
            ) : (
              <>
                <p className="text-muted">It would run at, in your zone:</p>
                <RunList runs={runs} zone={draft.timezone} />
              </>
            )}
          </div>
        </>
      )}
    </>
  );
}
