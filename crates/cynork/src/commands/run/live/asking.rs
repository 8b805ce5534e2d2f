//! Where a task asks, the person is asked: for a yes to the plan, for an answer, for a yes to a call.

use cynode_core::{ids::WaitId, workflow::waits::WaitReason};
use cynode_wire::{gate::ApprovalView, timeline::WaitEntry};
use serde_json::{Value, json};

use super::Scene;
use crate::{
    client::Call,
    commands::task::{answered, approved, instructed},
    draw,
    failure::{Kind, Result},
    look::visible,
    operations,
    output::tell,
    terminal::{Paint, Style, first_line},
};

/// What the person is told with the plan in the editor; lines that begin so are not sent.
const COMMENT: &str = "#";

/// Somebody must say something; about a task, to the wait that it was asked for.
#[derive(Debug)]
pub(super) enum Question {
    /// Whether the plan may be carried out.
    Plan(WaitId),
    /// Why not.
    Why(WaitId),
    /// Whether it is given up for good.
    GiveUp(WaitId),
    /// What should be different, where there is no editor.
    Otherwise(WaitId),
    /// What the task asks.
    Answer(WaitId, String),
    /// Whether a call may be made.
    Call(Box<ApprovalView>),
}

/// What is to be done because of what the person said.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Deed {
    /// The plan is carried out.
    Approve(WaitId),
    /// The task is given up.
    Abort,
    /// The plan is not carried out, and made anew with why.
    Refuse(String, WaitId),
    /// The plan is made anew with these words.
    Revise(String, WaitId),
    /// The question is answered.
    Answer(WaitId, String),
    /// The call of that name may be made, or not.
    Allow(String, bool),
}

impl Scene<'_> {
    /// Whoever waits for a person is told so, or the person is asked.
    pub(super) async fn wait(&mut self, wait: &WaitEntry) -> Result<()> {
        let id = self.task.id;
        let question = visible(wait.question.as_deref().unwrap_or_default());
        match wait.reason {
            WaitReason::Approval if self.context.yes => {
                self.say("the plan is carried out (--yes)");
                let said = approved(self.context, &id.to_string(), wait.wait_id, true, None).await;
                self.unless_late(said.map(|_| ()))
            }
            WaitReason::Approval if self.context.person() => {
                self.open.push_back(Question::Plan(wait.wait_id));
                Ok(())
            }
            WaitReason::HumanInput if self.context.person() => {
                self.open.push_back(Question::Answer(wait.wait_id, question));
                Ok(())
            }
            WaitReason::Approval => {
                self.notice(&format!("it waits for a yes to the plan: cynork task approve {id}"));
                Ok(())
            }
            WaitReason::HumanInput => {
                self.notice(&format!("it asks: {question}"));
                self.notice(&format!("answer it with: cynork task answer {id} \"…\""));
                Ok(())
            }
            WaitReason::Paused => {
                // An agent that waits for a person is paused with its question.
                if question.is_empty() {
                    self.notice(&format!("it is paused: cynork task resume {id}"));
                } else {
                    self.notice(&format!("it is paused: {question}"));
                    self.notice(&format!("answer it with: cynork task resume {id} \"…\""));
                }
                Ok(())
            }
            WaitReason::Quota => {
                self.notice(&format!("it waits for a provider's quota. {question}"));
                Ok(())
            }
            WaitReason::Job | WaitReason::Retry | WaitReason::Agent => Ok(()),
        }
    }

    /// What somebody must know, whatever is written where.
    pub(super) fn notice(&mut self, words: &str) {
        if self.screen.is_some() {
            let words = self.dye(Style::Yellow, words);
            self.say(&words);
        } else {
            tell(&format!("cynork: {words}"));
        }
    }

    /// A question that was answered need not be asked any more.
    pub(super) fn waited(&mut self, wait: &WaitEntry) {
        let same = |question: &Question| match question {
            Question::Plan(id)
            | Question::Why(id)
            | Question::GiveUp(id)
            | Question::Otherwise(id)
            | Question::Answer(id, _) => *id == wait.wait_id,
            Question::Call(_) => false,
        };
        self.open.retain(|question| !same(question));
        if self.asked.as_ref().is_some_and(same) {
            self.settle();
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
        self.say(&format!("{what} was {how}{said}"));
    }

    /// A call of a tool that needs a person's yes.
    pub(super) fn call(&mut self, call: Box<ApprovalView>) {
        if self.context.person() {
            self.open.push_back(Question::Call(call));
        } else {
            let words = format!(
                "{} waits for a yes: cynork approval show {}",
                first_line(&call.tool),
                call.approval_id
            );
            self.notice(&words);
        }
    }

    /// Puts the next question, when none is put.
    pub(super) fn put(&mut self) {
        if self.asked.is_some() {
            return;
        }
        let Some(question) = self.open.pop_front() else { return };
        self.at = None;
        match &question {
            Question::Answer(_, text) => {
                let lines: Vec<String> = text.lines().map(str::to_owned).collect();
                for line in lines {
                    let line = self.dye(Style::Yellow, &line);
                    self.more(&line);
                }
            }
            Question::Call(call) => {
                let words = format!("a call waits for your yes: {}", first_line(&call.tool));
                let words = self.dye(Style::Yellow, &words);
                self.say(&words);
                for line in exactly(call.arguments.as_ref()) {
                    self.more(&line);
                }
            }
            Question::Plan(_) | Question::Why(_) | Question::GiveUp(_) | Question::Otherwise(_) => {
            }
        }
        self.ask(question);
    }

    fn ask(&mut self, question: Question) {
        let words = match &question {
            Question::Plan(_) => "May it be carried out? [y]es, [e]dit, [n]o, [g]ive up:",
            Question::Why(_) => "Why not? It is planned anew with what you say:",
            Question::GiveUp(_) => "It is given up for good. Sure? [y]es, [n]o:",
            Question::Otherwise(_) => "What should be different?",
            Question::Answer(..) => "Your answer:",
            Question::Call(_) => "Allow exactly this, once? [y]es, [n]o:",
        };
        self.typist.forget();
        if let Some(screen) = &mut self.screen {
            screen.ask(&format!("       {words}"));
        }
        self.asked = Some(question);
    }

    /// The question that was put needs no answer: what was held back is told.
    pub(super) fn settle(&mut self) {
        if self.asked.take().is_some()
            && let Some(screen) = &mut self.screen
        {
            screen.say("");
        }
        self.release();
    }

    fn release(&mut self) {
        for line in std::mem::take(&mut self.held) {
            self.line(line);
        }
    }

    /// What the person means by what was typed; nothing when another question is put in its place.
    pub(super) fn decide(&mut self, line: &str) -> Option<Deed> {
        let question = self.asked.take()?;
        let yes = match line.to_lowercase().as_str() {
            "y" | "yes" => Some(true),
            "n" | "no" => Some(false),
            _ => None,
        };
        let given = (!line.is_empty()).then(|| line.to_owned());
        let again = match (question, yes) {
            (Question::Plan(wait), Some(true)) => return Some(Deed::Approve(wait)),
            (Question::Plan(wait), Some(false)) => Question::Why(wait),
            (Question::Plan(wait), None) if matches!(line, "e" | "E" | "edit") => {
                return self.edit(wait);
            }
            (Question::Plan(wait), None) if matches!(line, "g" | "G" | "give up") => {
                Question::GiveUp(wait)
            }
            (Question::Why(wait), _) => match given {
                Some(why) => return Some(Deed::Refuse(why, wait)),
                None => Question::Plan(wait),
            },
            (Question::GiveUp(_), Some(true)) => return Some(Deed::Abort),
            // Only a clear yes gives up.
            (Question::GiveUp(wait), _) => Question::Plan(wait),
            (Question::Otherwise(wait), _) => match given {
                Some(words) => return Some(Deed::Revise(words, wait)),
                None => Question::Plan(wait),
            },
            (Question::Answer(wait, text), _) => match given {
                Some(words) => return Some(Deed::Answer(wait, words)),
                None => Question::Answer(wait, text),
            },
            (Question::Call(call), Some(yes)) => {
                return Some(Deed::Allow(call.approval_id.to_string(), yes));
            }
            // What was not understood is asked again.
            (question @ (Question::Plan(_) | Question::Call(_)), None) => question,
        };
        self.ask(again);
        None
    }

    /// Does what the person means.
    pub(super) async fn act(&mut self, deed: Deed) -> Result<()> {
        let (context, id) = (self.context, self.task.id.to_string());
        let said = match deed {
            Deed::Approve(wait) => approved(context, &id, wait, true, None).await.map(|_| ()),
            Deed::Abort => instructed(context, &id, "abort", None).await.map(|_| ()),
            Deed::Refuse(why, wait) => {
                let said = approved(context, &id, wait, false, Some(&why)).await.map(|_| ());
                self.anew(said, wait)
            }
            Deed::Answer(wait, text) => answered(context, &id, Some(wait), &text).await.map(|_| ()),
            Deed::Revise(words, wait) => {
                let said = instructed(context, &id, "revise", Some(&words)).await.map(|_| ());
                self.anew(said, wait)
            }
            Deed::Allow(call, yes) => {
                let call = Call::to(operations::DECIDE_APPROVAL, [call])
                    .body(&json!({ "approved": yes }))
                    .key(format!("{:032x}", rand::random::<u128>()));
                context.client.for_a_while::<Value>(&call).await.map(|_| ())
            }
        };
        let done = self.unless_late(said);
        self.release();
        done
    }

    /// Somebody else may have been quicker: then it is done.
    fn unless_late(&mut self, said: Result<()>) -> Result<()> {
        match said {
            Err(failure) if failure.kind == Kind::Conflict => {
                let words =
                    self.dye(Style::Yellow, &format!("too late: {}", visible(&failure.detail)));
                self.say(&words);
                Ok(())
            }
            other => other,
        }
    }

    /// Gives the person the plan to write in; it is made anew by what was written.
    fn edit(&mut self, wait: WaitId) -> Option<Deed> {
        let editor = self.context.environment.editor.as_deref().map(str::trim);
        let Some(editor) = editor.filter(|it| !it.is_empty()) else {
            self.ask(Question::Otherwise(wait));
            return None;
        };
        let text = self.written();
        let edited = dialoguer::Editor::new()
            .executable(editor)
            .extension(".md")
            .require_save(false)
            .edit(&text);
        let words = match edited {
            Ok(edited) => uncommented(&edited.unwrap_or_default()),
            Err(error) => {
                let words = self.dye(Style::Yellow, &format!("{editor} could not be run: {error}"));
                self.more(&words);
                self.ask(Question::Otherwise(wait));
                return None;
            }
        };
        if words.is_empty() || words == uncommented(&text) {
            self.more("nothing was changed");
            self.ask(Question::Plan(wait));
            return None;
        }
        Some(Deed::Revise(format!("The plan should be like this:\n{words}"), wait))
    }

    /// Says what came of words that the plan is to be made anew with; words that are not taken are asked for again.
    fn anew(&mut self, said: Result<()>, wait: WaitId) -> Result<()> {
        match said {
            Ok(()) => {
                self.say("the plan is made anew with what you said");
                Ok(())
            }
            Err(failure) if failure.kind == Kind::Invalid => {
                let words =
                    self.dye(Style::Yellow, &format!("not taken: {}", visible(&failure.detail)));
                self.more(&words);
                self.open.push_front(Question::Plan(wait));
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    /// The plan as a text that a person can change.
    fn written(&self) -> String {
        let plain = Paint(false);
        let tree = self.planned.as_ref().map(|it| draw::plan(&it.plan, plain)).unwrap_or_default();
        format!(
            "{COMMENT} Write what the plan should be; it is made anew with your words.\n\
             {COMMENT} Lines that begin with {COMMENT} are left out. Nothing changed: nothing happens.\n\n{}\n",
            tree.join("\n")
        )
    }
}

fn uncommented(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with(COMMENT)).map(str::trim_end);
    lines.collect::<Vec<_>>().join("\n").trim().to_owned()
}

/// Exactly what is to be done, so that nobody says yes to something else: what a terminal would obey or a reader would
/// not see is written out, and each argument has a line, also one without words.
fn exactly(arguments: Option<&Value>) -> Vec<String> {
    let Some(arguments) = arguments else {
        return vec!["what exactly is not shown any more".to_owned()];
    };
    let mut lines = Vec::new();
    let mut put = |name: &str, value: &Value| {
        let text = match value {
            Value::String(text) => text.clone(),
            other => serde_json::to_string_pretty(other).unwrap_or_default(),
        };
        let name = visible(name).replace('\n', "\\n");
        for (at, line) in visible(&text).split('\n').enumerate() {
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
