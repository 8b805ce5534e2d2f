/** How do I log in? The own password and the second factor. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Form } from "react-aria-components";
import { api, type Schema, unwrap } from "../api/client";
import { meQuery } from "../api/queries";
import { secondFactorQuery } from "../api/queries-admin";
import { MIN_PASSWORD_CHARS } from "../logic/roles";
import { Action, Command, Facts, Foreign, Loaded, Page, PageHead, ProblemNote, SectionHead, Sign } from "../ui/basic";
import { usePageCommand } from "../ui/copy";
import { Field } from "../ui/fields";
import { Layer } from "../ui/layer";
import { SettingsNav } from "../ui/settings-nav";
import { Tick } from "../ui/switch";

export function SecurityPage() {
  usePageCommand("cynork second-factor show", "/v1/me/second-factor");
  const me = useQuery(meQuery);
  const factor = useQuery(secondFactorQuery);
  return (
    <Page wide>
      <SettingsNav />
      <PageHead
        title="Security"
        lead={
          me.data && (
            <>
              How <Foreign text={me.data.user.handle} /> logs in.
            </>
          )
        }
      />
      <div className="grid grid-cols-1 gap-8">
        {me.data?.needs_second_factor && (
          <p role="status" className="max-w-[640px] rounded-box border border-accent p-4">
            <span aria-hidden="true">! </span>Admins of this installation need a second factor. Until this session has
            one, your role in the installation is withheld.
          </p>
        )}
        <section className="grid grid-cols-1 gap-3">
          <SectionHead>Second factor</SectionHead>
          <Loaded query={factor} lines={3}>
            {(view) => <SecondFactor view={view} />}
          </Loaded>
        </section>
        <section className="grid grid-cols-1 gap-3">
          <SectionHead>Password</SectionHead>
          <PasswordForm />
        </section>
      </div>
    </Page>
  );
}

function PasswordForm() {
  const [draft, setDraft] = useState({ old: "", next: "", again: "", revokes: false });
  const change = useMutation({
    mutationFn: () =>
      unwrap(
        api.PUT("/v1/me/password", {
          body: {
            old_password: draft.old,
            new_password: draft.next,
            ...(draft.revokes ? { revoke_keys: true } : {}),
          },
        }),
      ),
    onSuccess: () => setDraft({ old: "", next: "", again: "", revokes: false }),
  });
  const reason = change.isPending
    ? "It is being sent"
    : draft.old === ""
      ? "Write your present password"
      : draft.next.length < MIN_PASSWORD_CHARS
        ? `Write a new password of at least ${MIN_PASSWORD_CHARS} characters`
        : draft.next !== draft.again
          ? "Write the new password twice"
          : null;
  return (
    <Form
      aria-label="Change password"
      className="grid max-w-[420px] gap-4"
      onSubmit={(event) => {
        event.preventDefault();
        if (!reason) change.mutate();
      }}
    >
      <Field
        label="Present password"
        type="password"
        autoComplete="current-password"
        value={draft.old}
        onChange={(old) => setDraft({ ...draft, old })}
      />
      <Field
        label="New password"
        type="password"
        autoComplete="new-password"
        value={draft.next}
        onChange={(next) => setDraft({ ...draft, next })}
        description={`At least ${MIN_PASSWORD_CHARS} characters.`}
      />
      <Field
        label="New password, once more"
        type="password"
        autoComplete="new-password"
        value={draft.again}
        onChange={(again) => setDraft({ ...draft, again })}
      />
      <Tick
        label="Revoke my API keys, too"
        isTicked={draft.revokes}
        onChange={(revokes) => setDraft({ ...draft, revokes })}
      />
      {change.error && <ProblemNote error={change.error} />}
      <div className="flex flex-wrap items-center gap-3">
        <Action type="submit" tone="primary" reason={reason}>
          Change password
        </Action>
        <p role="status" className="text-meta text-muted">
          {change.isSuccess ? "The new password holds. Your other sessions ended." : "Your other sessions end."}
        </p>
      </div>
    </Form>
  );
}

type Step = "enrol" | "verify" | "codes" | "delete";

function SecondFactor({ view }: { view: Schema["SecondFactorView"] }) {
  const client = useQueryClient();
  const [step, setStep] = useState<Step | null>(null);
  const [codes, setCodes] = useState<readonly string[] | null>(null);
  const refresh = () => void client.invalidateQueries({ queryKey: ["me"] });
  const finish = (next: readonly string[] | null) => {
    setStep(null);
    setCodes(next);
    refresh();
  };
  return (
    <div className="grid grid-cols-1 gap-4">
      <Facts
        rows={[
          [
            "State",
            view.enrolled ? (
              <Sign key="state" standing="done" word="Enrolled" />
            ) : (
              <Sign key="state" standing="waits" word={view.required ? "Missing" : "None"} />
            ),
          ],
          ["Needed for your role", view.required ? "Yes" : "No"],
          view.enrolled && ["Shown in this session", view.session_verified ? "Yes" : "No"],
          view.enrolled && ["Recovery codes left", String(view.recovery_codes_left)],
        ]}
      />
      {codes && <CodeList codes={codes} onClose={() => setCodes(null)} />}
      <div className="flex flex-wrap gap-2">
        {view.enrolled ? (
          <>
            {!view.session_verified && (
              <Action tone="primary" onPress={() => setStep("verify")}>
                Show second factor…
              </Action>
            )}
            <Action onPress={() => setStep("codes")}>New recovery codes…</Action>
            <Action tone="danger" onPress={() => setStep("delete")}>
              Delete second factor…
            </Action>
          </>
        ) : (
          <Action tone="primary" onPress={() => setStep("enrol")}>
            Enrol second factor…
          </Action>
        )}
      </div>
      {step === "enrol" && <EnrolLayer onDone={finish} onClose={() => setStep(null)} />}
      {step === "verify" && <VerifyLayer onDone={() => finish(null)} onClose={() => setStep(null)} />}
      {step === "codes" && <CodesLayer onDone={finish} onClose={() => setStep(null)} />}
      {step === "delete" && <DeleteLayer onDone={() => finish(null)} onClose={() => setStep(null)} />}
    </div>
  );
}

function CodeList({ codes, onClose }: { codes: readonly string[]; onClose: () => void }) {
  return (
    <section aria-label="Recovery codes" className="grid max-w-[640px] gap-3 rounded-box border border-accent p-4">
      <p role="status" className="font-medium">
        <span aria-hidden="true">! </span>Keep these codes now. They are shown this once.
      </p>
      <p className="text-muted">Each stands in for the second factor once, if you lose your authenticator.</p>
      <ul className="grid gap-1 font-mono text-code small:grid-cols-2">
        {codes.map((code) => (
          <li key={code}>{code}</li>
        ))}
      </ul>
      <Command line={codes.join(" ")} />
      <div>
        <Action tone="primary" onPress={onClose}>
          I have kept them
        </Action>
      </div>
    </section>
  );
}

/** The field of a code. */
function CodeField({ code, onChange, label }: { code: string; onChange: (code: string) => void; label: string }) {
  return <Field label={label} value={code} onChange={onChange} autoComplete="one-time-code" inputMode="numeric" mono />;
}

function EnrolLayer({ onDone, onClose }: { onDone: (codes: readonly string[]) => void; onClose: () => void }) {
  const [password, setPassword] = useState("");
  const [code, setCode] = useState("");
  const begin = useMutation({
    mutationFn: () => unwrap(api.POST("/v1/me/second-factor", { body: password === "" ? {} : { password } })),
  });
  const confirm = useMutation({
    mutationFn: () => unwrap(api.POST("/v1/me/second-factor/confirm", { body: { code: code.trim() } })),
    onSuccess: (answer) => onDone(answer.codes),
  });
  const enrolment = begin.data;
  if (!enrolment) {
    return (
      <Layer title="Enrol second factor" isOpen onClose={onClose}>
        <Form
          className="grid gap-4"
          onSubmit={(event) => {
            event.preventDefault();
            if (!begin.isPending) begin.mutate();
          }}
        >
          <p className="text-muted">An authenticator on your phone or computer shows a code for each login.</p>
          <Field
            label="Your password"
            type="password"
            autoComplete="current-password"
            value={password}
            onChange={setPassword}
            autoFocus
            description="An account without a password leaves it empty."
          />
          {begin.error && <ProblemNote error={begin.error} />}
          <div className="flex flex-wrap gap-2">
            <Action type="submit" tone="primary" reason={begin.isPending ? "It is being sent" : null}>
              Go on
            </Action>
            <Action tone="quiet" onPress={onClose}>
              Cancel
            </Action>
          </div>
        </Form>
      </Layer>
    );
  }
  return (
    <Layer title="Enrol second factor" isOpen onClose={onClose}>
      <Form
        className="grid gap-4"
        onSubmit={(event) => {
          event.preventDefault();
          if (!confirm.isPending && code.trim() !== "") confirm.mutate();
        }}
      >
        <p>Scan the picture with your authenticator, or type the secret into it.</p>
        <img
          src={`data:image/svg+xml,${encodeURIComponent(enrolment.qr_svg)}`}
          alt="QR code of the secret"
          width={240}
          height={240}
          className="rounded-box bg-white"
        />
        <Command line={enrolment.secret} />
        <CodeField label="Code that it shows" code={code} onChange={setCode} />
        {confirm.error && <ProblemNote error={confirm.error} />}
        <div className="flex flex-wrap gap-2">
          <Action
            type="submit"
            tone="primary"
            reason={confirm.isPending ? "It is being sent" : code.trim() === "" ? "Write the code" : null}
          >
            Enrol
          </Action>
          <Action tone="quiet" onPress={onClose}>
            Cancel
          </Action>
        </div>
      </Form>
    </Layer>
  );
}

/** A session of an identity provider that asked for no second factor begins without it. */
function VerifyLayer({ onDone, onClose }: { onDone: () => void; onClose: () => void }) {
  const [code, setCode] = useState("");
  const verify = useMutation({
    mutationFn: () => unwrap(api.POST("/v1/me/second-factor/verify", { body: { code: code.trim() } })),
    onSuccess: onDone,
    onError: () => setCode(""),
  });
  return (
    <Layer title="Show second factor" isOpen onClose={onClose}>
      <Form
        className="grid gap-4"
        onSubmit={(event) => {
          event.preventDefault();
          if (!verify.isPending && code.trim() !== "") verify.mutate();
        }}
      >
        <p>This session began without your second factor.</p>
        <CodeField label="Code of your second factor" code={code} onChange={setCode} />
        {verify.error && <ProblemNote error={verify.error} />}
        <div className="flex flex-wrap gap-2">
          <Action
            type="submit"
            tone="primary"
            reason={verify.isPending ? "It is being sent" : code.trim() === "" ? "Write the code" : null}
          >
            Show it
          </Action>
          <Action tone="quiet" onPress={onClose}>
            Cancel
          </Action>
        </div>
      </Form>
    </Layer>
  );
}

function CodesLayer({ onDone, onClose }: { onDone: (codes: readonly string[]) => void; onClose: () => void }) {
  const [code, setCode] = useState("");
  const issue = useMutation({
    mutationFn: () => unwrap(api.POST("/v1/me/second-factor/recovery-codes", { body: { code: code.trim() } })),
    onSuccess: (answer) => onDone(answer.codes),
    onError: () => setCode(""),
  });
  return (
    <Layer title="New recovery codes" isOpen onClose={onClose}>
      <Form
        className="grid gap-4"
        onSubmit={(event) => {
          event.preventDefault();
          if (!issue.isPending && code.trim() !== "") issue.mutate();
        }}
      >
        <p>The codes that you have stop working.</p>
        <CodeField label="Code of your second factor" code={code} onChange={setCode} />
        {issue.error && <ProblemNote error={issue.error} />}
        <div className="flex flex-wrap gap-2">
          <Action
            type="submit"
            tone="primary"
            reason={issue.isPending ? "It is being sent" : code.trim() === "" ? "Write the code" : null}
          >
            Get new codes
          </Action>
          <Action tone="quiet" onPress={onClose}>
            Cancel
          </Action>
        </div>
      </Form>
    </Layer>
  );
}

function DeleteLayer({ onDone, onClose }: { onDone: () => void; onClose: () => void }) {
  const [password, setPassword] = useState("");
  const [code, setCode] = useState("");
  const remove = useMutation({
    mutationFn: () =>
      unwrap(
        api.POST("/v1/me/second-factor/delete", {
          body: { code: code.trim(), ...(password === "" ? {} : { password }) },
        }),
      ),
    onSuccess: onDone,
    onError: () => setCode(""),
  });
  return (
    <Layer title="Delete second factor" isOpen onClose={onClose}>
      <Form
        className="grid gap-4"
        onSubmit={(event) => {
          event.preventDefault();
          if (!remove.isPending && code.trim() !== "") remove.mutate();
        }}
      >
        <p>Your password alone logs you in again. Your other sessions end.</p>
        <Field
          label="Your password"
          type="password"
          autoComplete="current-password"
          value={password}
          onChange={setPassword}
          autoFocus
          description="An account without a password leaves it empty."
        />
        <CodeField label="Code of your second factor, or a recovery code" code={code} onChange={setCode} />
        {remove.error && <ProblemNote error={remove.error} />}
        <div className="flex flex-wrap gap-2">
          <Action
            type="submit"
            tone="danger"
            reason={remove.isPending ? "It is being sent" : code.trim() === "" ? "Write the code" : null}
          >
            Delete second factor
          </Action>
          <Action tone="quiet" onPress={onClose}>
            Keep second factor
          </Action>
        </div>
      </Form>
    </Layer>
  );
}
