//! Questions of a task to the person: approval of the plan, an answer, approval of a tool call.

use cynode_core::{
    ids::WaitId,
    workflow::{
        environments::{GO_ON_WITHOUT_PROPOSAL, PROPOSAL_QUESTION_START},
        timeline::WaitEntry,
        waits::WaitReason,
    },
};
use cynode_wire::tools::ApprovalView;
use serde_json::{Value, json};

use super::TaskFollower;
use crate::{
    client::ApiRequest,
    commands::task::{send_answer, send_approval, send_instruction},
    draw,
    failure::{CliErrorKind, Result},
    format::escape_invisible,
    operations,
    output::print_stderr_line,
    terminal::{Colorizer, TextStyle, first_line},
};

/// Prefix of comment lines in the editor; they are not sent.
const COMMENT_PREFIX: &str = "#";

/// A question to the person. Questions of the task belong to a wait.
#[derive(Debug)]
pub(super) enum PendingQuestion {
    /// Whether the plan is approved.
    Plan(WaitId),
    /// Why the plan is rejected.
    Why(WaitId),
    /// Whether the task is aborted for good.
    GiveUp(WaitId),
    /// What should be different, if there is no editor.
    Otherwise(WaitId),
    /// A question of the task.
    Answer(WaitId, String),
    /// Whether a tool call is approved.
    Call(Box<ApprovalView>),
}

/// The action that follows from an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AnswerAction {
    /// Approve the plan.
    Approve(WaitId),
    /// Abort the task.
    Abort,
    /// Reject the plan with a reason; it is made anew.
    Refuse(String, WaitId),
    /// Have the plan revised with this text.
    Revise(String, WaitId),
    /// Answer the question.
    Answer(WaitId, String),
    /// Approve or deny the tool call with this id.
    Allow(String, bool),
}

impl TaskFollower<'_> {
    /// Handles a wait: asks the person, or reports that the task waits for one.
    pub(super) async fn handle_wait(&mut self, wait: &WaitEntry) -> Result<()> {
        let id = self.task.id;
        let task = self.context.task_reference(&self.task);
        let question = escape_invisible(wait.question.as_deref().unwrap_or_default());
        match wait.reason {
            WaitReason::Approval if self.context.yes => {
                self.print_timed_line("the plan is carried out (--yes)");
                let said =
                    send_approval(self.context, &id.to_string(), wait.wait_id, true, None).await;
                self.tolerate_conflict(said.map(|_| ()))
            }
            WaitReason::Approval if self.context.is_interactive() => {
                self.open.push_back(PendingQuestion::Plan(wait.wait_id));
                Ok(())
            }
            // `--yes` approves a plan; it accepts nothing that outlasts the task.
            WaitReason::HumanInput
                if self.context.yes && question.contains(PROPOSAL_QUESTION_START) =>
            {
                self.print_alert(
                    "the project has no environment: the task goes on without one (--yes accepts none); see: cynork project environment list",
                );
                let answer = GO_ON_WITHOUT_PROPOSAL;
                let said =
                    send_answer(self.context, &id.to_string(), Some(wait.wait_id), answer).await;
                self.tolerate_conflict(said.map(|_| ()))
            }
            WaitReason::HumanInput if self.context.is_interactive() => {
                self.open.push_back(PendingQuestion::Answer(wait.wait_id, question));
                Ok(())
            }
            WaitReason::Approval => {
                self.print_alert(&format!(
                    "it waits for a yes to the plan: cynork task approve {task}"
                ));
                Ok(())
            }
            WaitReason::HumanInput => {
                self.print_alert(&format!("it asks: {question}"));
                self.print_alert(&format!("answer it with: cynork task answer {task} \"…\""));
                Ok(())
            }
            WaitReason::Paused => {
                // An agent that waits for a person is paused with its question.
                if question.is_empty() {
                    self.print_alert(&format!("it is paused: cynork task resume {task}"));
                } else {
                    self.print_alert(&format!("it is paused: {question}"));
                    self.print_alert(&format!("answer it with: cynork task resume {task} \"…\""));
                }
                Ok(())
            }
            WaitReason::Quota => {
                self.print_alert(&format!("it waits for a provider's quota. {question}"));
                Ok(())
            }
            WaitReason::Job | WaitReason::Retry | WaitReason::Agent => Ok(()),
        }
    }

    /// Prints a line that the person must see, in every output mode.
    pub(super) fn print_alert(&mut self, words: &str) {
        if self.screen.is_some() {
            let words = self.paint_text(TextStyle::Yellow, words);
            self.print_timed_line(&words);
        } else {
            print_stderr_line(&format!("cynork: {words}"));
        }
    }

    /// Removes a question that was answered elsewhere.
    pub(super) fn resolve_wait(&mut self, wait: &WaitEntry) {
        let same = |question: &PendingQuestion| match question {
            PendingQuestion::Plan(id)
            | PendingQuestion::Why(id)
            | PendingQuestion::GiveUp(id)
            | PendingQuestion::Otherwise(id)
            | PendingQuestion::Answer(id, _) => *id == wait.wait_id,
            PendingQuestion::Call(_) => false,
        };
        self.open.retain(|question| !same(question));
        if self.asked.as_ref().is_some_and(same) {
            self.withdraw_question();
        }
        let how = wait.resolution.as_deref().unwrap_or("ended");
        let what = match wait.reason {
            WaitReason::Approval => "the plan",
            WaitReason::HumanInput => "the question",
            WaitReason::Paused => "the pause",
            WaitReason::Job | WaitReason::Retry | WaitReason::Quota | WaitReason::Agent => return,
        };
        let said = wait.answer.as_deref().map(first_line).filter(|it| !it.is_empty());
        let said = said.map(|said| format!(": “{said}”")).unwrap_or_default();
        self.print_timed_line(&format!("{what} was {how}{said}"));
    }

    /// Queues a tool call that needs approval.
    pub(super) fn queue_call_approval(&mut self, call: Box<ApprovalView>) {
        if self.context.is_interactive() {
            self.open.push_back(PendingQuestion::Call(call));
        } else {
            let words = format!(
                "{} waits for a yes: cynork approval show {}",
                first_line(&call.tool),
                call.approval_id
            );
            self.print_alert(&words);
        }
    }

    /// Asks the next question, unless one is open.
    pub(super) fn ask_next_question(&mut self) {
        if self.asked.is_some() {
            return;
        }
        let Some(question) = self.open.pop_front() else { return };
        self.at = None;
        match &question {
            PendingQuestion::Answer(_, text) => {
                let lines: Vec<String> = text.lines().map(str::to_owned).collect();
                for line in lines {
                    let line = self.paint_text(TextStyle::Yellow, &line);
                    self.print_continuation(&line);
                }
            }
            PendingQuestion::Call(call) => {
                let words = format!("a call waits for your yes: {}", first_line(&call.tool));
                let words = self.paint_text(TextStyle::Yellow, &words);
                self.print_timed_line(&words);
                for line in render_arguments(call.arguments.as_ref()) {
                    self.print_continuation(&line);
                }
            }
            PendingQuestion::Plan(_)
            | PendingQuestion::Why(_)
            | PendingQuestion::GiveUp(_)
            | PendingQuestion::Otherwise(_) => {}
        }
        self.ask_question(question);
    }

    fn ask_question(&mut self, question: PendingQuestion) {
        let words = match &question {
            PendingQuestion::Plan(_) => "May it be carried out? [y]es, [e]dit, [n]o, [g]ive up:",
            PendingQuestion::Why(_) => "Why not? It is planned anew with what you say:",
            PendingQuestion::GiveUp(_) => "It is given up for good. Sure? [y]es, [n]o:",
            PendingQuestion::Otherwise(_) => "What should be different?",
            PendingQuestion::Answer(..) => "Your answer:",
            PendingQuestion::Call(_) => "Allow exactly this, once? [y]es, [n]o:",
        };
        self.typist.discard_pending();
        if let Some(screen) = &mut self.screen {
            screen.show_prompt(&format!("       {words}"));
        }
        self.asked = Some(question);
    }

    /// Withdraws the open question and prints the deferred lines.
    pub(super) fn withdraw_question(&mut self) {
        if self.asked.take().is_some()
            && let Some(screen) = &mut self.screen
        {
            screen.print_line("");
        }
        self.flush_held_lines();
    }

    fn flush_held_lines(&mut self) {
        for line in std::mem::take(&mut self.held) {
            self.print_line(line);
        }
    }

    /// Interprets the typed answer. Returns `None` if another question follows instead.
    pub(super) fn interpret_answer(&mut self, line: &str) -> Option<AnswerAction> {
        let question = self.asked.take()?;
        let yes = match line.to_lowercase().as_str() {
            "y" | "yes" => Some(true),
            "n" | "no" => Some(false),
            _ => None,
        };
        let given = (!line.is_empty()).then(|| line.to_owned());
        let again = match (question, yes) {
            (PendingQuestion::Plan(wait), Some(true)) => return Some(AnswerAction::Approve(wait)),
            (PendingQuestion::Plan(wait), Some(false)) => PendingQuestion::Why(wait),
            (PendingQuestion::Plan(wait), None) if matches!(line, "e" | "E" | "edit") => {
                return self.edit_plan(wait);
            }
            (PendingQuestion::Plan(wait), None) if matches!(line, "g" | "G" | "give up") => {
                PendingQuestion::GiveUp(wait)
            }
            (PendingQuestion::Why(wait), _) => match given {
                Some(why) => return Some(AnswerAction::Refuse(why, wait)),
                None => PendingQuestion::Plan(wait),
            },
            (PendingQuestion::GiveUp(_), Some(true)) => return Some(AnswerAction::Abort),
            // Only a clear yes aborts the task.
            (PendingQuestion::GiveUp(wait), _) => PendingQuestion::Plan(wait),
            (PendingQuestion::Otherwise(wait), _) => match given {
                Some(words) => return Some(AnswerAction::Revise(words, wait)),
                None => PendingQuestion::Plan(wait),
            },
            (PendingQuestion::Answer(wait, text), _) => match given {
                Some(words) => return Some(AnswerAction::Answer(wait, words)),
                None => PendingQuestion::Answer(wait, text),
            },
            (PendingQuestion::Call(call), Some(yes)) => {
                return Some(AnswerAction::Allow(call.approval_id.to_string(), yes));
            }
            // An answer that was not understood is asked for again.
            (question @ (PendingQuestion::Plan(_) | PendingQuestion::Call(_)), None) => question,
        };
        self.ask_question(again);
        None
    }

    /// Performs the action.
    pub(super) async fn perform_action(&mut self, deed: AnswerAction) -> Result<()> {
        let (context, id) = (self.context, self.task.id.to_string());
        let said = match deed {
            AnswerAction::Approve(wait) => {
                send_approval(context, &id, wait, true, None).await.map(|_| ())
            }
            AnswerAction::Abort => send_instruction(context, &id, "abort", None).await.map(|_| ()),
            AnswerAction::Refuse(why, wait) => {
                let said = send_approval(context, &id, wait, false, Some(&why)).await.map(|_| ());
                self.report_replan(said, wait)
            }
            AnswerAction::Answer(wait, text) => {
                send_answer(context, &id, Some(wait), &text).await.map(|_| ())
            }
            AnswerAction::Revise(words, wait) => {
                let said = send_instruction(context, &id, "revise", Some(&words)).await.map(|_| ());
                self.report_replan(said, wait)
            }
            AnswerAction::Allow(call, yes) => {
                let call = ApiRequest::with_path_params(operations::DECIDE_APPROVAL, [call])
                    .with_json_body(&json!({ "approved": yes }))
                    .with_idempotency_key(format!("{:032x}", rand::random::<u128>()));
                context.client.send_with_retry_timeout::<Value>(&call).await.map(|_| ())
            }
        };
        let done = self.tolerate_conflict(said);
        self.flush_held_lines();
        done
    }

    /// Treats a conflict as success: another person may have answered first.
    fn tolerate_conflict(&mut self, said: Result<()>) -> Result<()> {
        match said {
            Err(failure) if failure.kind == CliErrorKind::Conflict => {
                let words = self.paint_text(
                    TextStyle::Yellow,
                    &format!("too late: {}", escape_invisible(&failure.detail)),
                );
                self.print_timed_line(&words);
                Ok(())
            }
            other => other,
        }
    }

    /// Opens the plan in the editor; the plan is made anew from the edited text.
    fn edit_plan(&mut self, wait: WaitId) -> Option<AnswerAction> {
        let editor = self.context.environment.editor.as_deref().map(str::trim);
        let Some(editor) = editor.filter(|it| !it.is_empty()) else {
            self.ask_question(PendingQuestion::Otherwise(wait));
            return None;
        };
        let text = self.plan_as_text();
        let edited = dialoguer::Editor::new()
            .executable(editor)
            .extension(".md")
            .require_save(false)
            .edit(&text);
        let words = match edited {
            Ok(edited) => strip_comments(&edited.unwrap_or_default()),
            Err(error) => {
                let words = self
                    .paint_text(TextStyle::Yellow, &format!("{editor} could not be run: {error}"));
                self.print_continuation(&words);
                self.ask_question(PendingQuestion::Otherwise(wait));
                return None;
            }
        };
        if words.is_empty() || words == strip_comments(&text) {
            self.print_continuation("nothing was changed");
            self.ask_question(PendingQuestion::Plan(wait));
            return None;
        }
        Some(AnswerAction::Revise(format!("The plan should be like this:\n{words}"), wait))
    }

    /// Reports the result of a revision request; a text that the server rejects is asked for again.
    fn report_replan(&mut self, said: Result<()>, wait: WaitId) -> Result<()> {
        match said {
            Ok(()) => {
                self.print_timed_line("the plan is made anew with what you said");
                Ok(())
            }
            Err(failure) if failure.kind == CliErrorKind::Invalid => {
                let words = self.paint_text(
                    TextStyle::Yellow,
                    &format!("not taken: {}", escape_invisible(&failure.detail)),
                );
                self.print_continuation(&words);
                self.open.push_front(PendingQuestion::Plan(wait));
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    /// Returns the plan as editable text.
    fn plan_as_text(&self) -> String {
        let plain = Colorizer(false);
        let tree =
            self.planned.as_ref().map(|it| draw::render_plan(&it.plan, plain)).unwrap_or_default();
        format!(
            "{COMMENT_PREFIX} Write what the plan should be; it is made anew with your words.\n\
             {COMMENT_PREFIX} Lines that begin with {COMMENT_PREFIX} are left out. Nothing changed: nothing happens.\n\n{}\n",
            tree.join("\n")
        )
    }
}

fn strip_comments(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with(COMMENT_PREFIX)).map(str::trim_end);
    lines.collect::<Vec<_>>().join("\n").trim().to_owned()
}

/// Renders the exact arguments, so that the person approves nothing else: control characters and invisible characters are
/// escaped, and each argument has its own line, even an empty one.
fn render_arguments(arguments: Option<&Value>) -> Vec<String> {
    let Some(arguments) = arguments else {
        return vec!["what exactly is not shown any more".to_owned()];
    };
    let mut lines = Vec::new();
    let mut put = |name: &str, value: &Value| {
        let text = match value {
            Value::String(text) => text.clone(),
            other => serde_json::to_string_pretty(other).unwrap_or_default(),
        };
        let name = escape_invisible(name).replace('\n', "\\n");
        for (at, line) in escape_invisible(&text).split('\n').enumerate() {
            let head = if at == 0 { format!("{name}:") } else { String::new() };
            lines.push(format!("{head:<10} {line}").trim_end().to_owned());
        }
    };
    match arguments {
        Value::Object(fields) => {
            for (name, value) in fields {
                put(name, value);
            }
        }
        other => put("arguments", other),
    }
    if lines.is_empty() {
        lines.push("without arguments".to_owned());
    }
    lines
}

#[cfg(test)]
mod tests;
