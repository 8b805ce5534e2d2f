//! `cynork chat`: a conversation with the project manager.

use std::{
    io::{BufRead as _, IsTerminal as _, Read as _},
    path::Path,
};

use clap::{Args, Subcommand};
use cynode_wire::handoffs::{ChatTurn, ThreadView};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{
    answers::Pages,
    client::{Call, Items},
    context::Context,
    failure::{Failure, Kind, Result},
    given,
    look::visible,
    names::In,
    operations,
    output::{Form, Output, closed, put, say, tell},
    terminal::Style,
};

/// Talks with the project manager; the answer is shown as it comes.
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Example: cynork chat --message \"What is everybody working on?\" --project web"
)]
pub(crate) struct Chat {
    /// One question; `@FILE` takes it from a file, `@-` from standard input. Without it, a conversation begins.
    #[arg(long, short, value_name = "TEXT")]
    message: Option<String>,
    #[command(flatten)]
    place: In,
    /// Whom to talk with.
    #[arg(long, default_value = "cynodeai.pm")]
    model: String,
    #[command(subcommand)]
    about: Option<About>,
}

#[derive(Subcommand)]
pub(crate) enum About {
    /// Lists your conversations with the project manager, newest first.
    #[command(after_help = "Example: cynork chat threads --limit 5")]
    Threads(Pages),
    /// Shows what was said in a conversation, oldest first.
    #[command(after_help = "Example: cynork chat show thr_0192d5c8b6f07cc1a1a3c2b4d5e6f708")]
    Show {
        /// Its id; the newest when it is left out.
        thread: Option<String>,
    },
}

/// An answer, whole.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Answered {
    model: String,
    content: String,
    finish_reason: Option<String>,
}

impl Chat {
    pub(crate) async fn run(self, context: &Context) -> Result<()> {
        match self.about {
            Some(About::Threads(pages)) => return threads(context, &pages).await,
            Some(About::Show { thread }) => return show(context, thread).await,
            None => {}
        }
        // Without a project the preference `chat.default_project` decides, or there is only one.
        let named = context.meant(self.place.project, Path::new("."));
        let project = context.project_id_if(named.as_deref()).await?;
        let mut talk = Talk { context, model: self.model, project, messages: Vec::new() };
        match self.message {
            Some(message) => talk.once(&given::words(&message)?).await,
            None if context.person() => talk.long().await,
            None if !std::io::stdin().is_terminal() => {
                let mut question = String::new();
                std::io::stdin().read_to_string(&mut question).map_err(|error| {
                    Failure::invalid(format!("standard input cannot be read: {error}"))
                })?;
                talk.once(question.trim()).await
            }
            None => Err(Failure::new(Kind::Usage, "what do you want to say?")
                .fix("say it with --message TEXT")),
        }
    }
}

async fn threads(context: &Context, pages: &Pages) -> Result<()> {
    let name = |it: &ThreadView| it.thread_id.to_string();
    context
        .list(
            &Call::of(operations::LIST_THREADS),
            Some(pages),
            name,
            ["id", "about", "last word", "begun"],
            |it: &ThreadView, look| {
                [
                    it.thread_id.to_string(),
                    look.bold(&it.title),
                    look.when(it.updated_at),
                    look.when(it.created_at),
                ]
            },
        )
        .await
}

async fn show(context: &Context, thread: Option<String>) -> Result<()> {
    let thread = match thread {
        Some(thread) => thread,
        None => {
            let newest = Call::of(operations::LIST_THREADS).query("limit", Some(1));
            let newest: Items<ThreadView> = context.read(&newest).await?;
            let newest = newest.items.into_iter().next().map(|it| it.thread_id.to_string());
            newest.ok_or_else(|| {
                Failure::new(Kind::NotFound, "you have said nothing yet")
                    .fix("begin with `cynork chat`")
            })?
        }
    };
    let value = context.ask(&Call::to(operations::LIST_MESSAGES, [thread])).await?;
    context.show(
        &value,
        |list: &Items<ChatTurn>| list.items.iter().map(|turn| turn.content.clone()).collect(),
        |list, look| {
            let turns = list.items.iter().map(|turn| {
                let who = if turn.role == "user" { "you" } else { turn.role.as_str() };
                let state = if turn.state == "whole" {
                    String::new()
                } else {
                    format!(" ({})", look.state(&turn.state))
                };
                format!(
                    "{}{state}, {}\n{}",
                    look.bold(who),
                    look.dim(&look.when(turn.at)),
                    turn.content
                )
            });
            turns.collect::<Vec<_>>().join("\n\n")
        },
    )
}

/// A conversation.
struct Talk<'a> {
    context: &'a Context,
    model: String,
    project: Option<String>,
    messages: Vec<Value>,
}

impl Talk<'_> {
    /// One question and its answer.
    async fn once(&mut self, question: &str) -> Result<()> {
        let form = self.context.out.form;
        let answered = self.ask(question, form != Form::Json).await?;
        if form == Form::Json {
            return Output::json(&answered);
        }
        Ok(())
    }

    /// Until the person has nothing more to say.
    async fn long(&mut self) -> Result<()> {
        let paint = self.context.out.paint;
        tell(&paint.dye(Style::Dim, "Ctrl-C stops an answer, Ctrl-D ends the conversation."));
        let mut lines = typed();
        loop {
            put(&paint.dye(Style::Cyan, "you › "));
            if closed() {
                return Ok(());
            }
            let line = tokio::select! {
                line = lines.recv() => line,
                _ = tokio::signal::ctrl_c() => None,
            };
            let Some(line) = line else {
                say("");
                return Ok(());
            };
            if line.trim().is_empty() {
                continue;
            }
            put(&paint.dye(Style::Green, "pm  › "));
            tokio::select! {
                answered = self.ask(line.trim(), true) => match answered {
                    Err(failure) if failure.kind == Kind::Refused => return Err(failure),
                    // The next question may be answered.
                    Err(failure) => self.context.out.complain(&failure),
                    Ok(_) => {}
                },
                // Whoever hangs up stops everything behind.
                _ = tokio::signal::ctrl_c() => say(&paint.dye(Style::Dim, " (stopped)")),
            }
        }
    }

    /// Asks, and shows the answer as it comes if it is to be shown. What was not answered to its end was not said: given up
    /// in between, the next question goes without it.
    async fn ask(&mut self, question: &str, shown: bool) -> Result<Answered> {
        let mut messages = self.messages.clone();
        messages.push(json!({ "role": "user", "content": question }));
        let body = json!({ "model": self.model, "stream": true, "messages": messages });
        let mut call = Call::of(operations::COMPLETIONS).body(&body);
        if let Some(project) = &self.project {
            call = call.header("OpenAI-Project", project);
        }
        let answered = self.listen(&call, shown).await?;
        messages.push(json!({ "role": "assistant", "content": answered.content }));
        self.messages = messages;
        Ok(answered)
    }

    async fn listen(&self, call: &Call, shown: bool) -> Result<Answered> {
        let mut answered = Answered { model: self.model.clone(), ..Answered::default() };
        let mut events = self.context.client.events(call).await?;
        let mut whole = false;
        while let Some(heard) = events.next().await {
            if heard.data == "[DONE]" {
                whole = true;
                break;
            }
            let piece = answered.take(&heard.data)?;
            if shown {
                put(&visible(&piece));
            }
        }
        if shown {
            say("");
        }
        if whole {
            Ok(answered)
        } else {
            Err(Failure::new(Kind::Unreachable, "the answer broke off").fix("ask again"))
        }
    }
}

impl Answered {
    /// Takes one event of a stream; gives the words in it.
    fn take(&mut self, data: &str) -> Result<String> {
        let event: Value = serde_json::from_str(data)
            .map_err(|error| Failure::internal(format!("the answer cannot be read: {error}")))?;
        if let Some(message) = event["error"]["message"].as_str() {
            return Err(Failure::new(Kind::EndedBadly, message));
        }
        let choice = &event["choices"][0];
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.finish_reason = Some(reason.to_owned());
        }
        let words = choice["delta"]["content"].as_str().unwrap_or_default();
        self.content.push_str(words);
        Ok(words.to_owned())
    }
}

/// The lines that a person types. A thread reads them, so that Ctrl-C is heard meanwhile; it ends with the program.
fn typed() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if sender.blocking_send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Environment, File};

    #[tokio::test]
    async fn a_question_that_was_stopped_is_not_sent_along_with_the_next() {
        let place = tempfile::tempdir().unwrap();
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", silent.local_addr().unwrap());
        let environment = Environment::default();
        let context = Context {
            client: crate::client::Client::new(&address).unwrap(),
            out: Output::new(Form::Json, false),
            file: File::read(Some(place.path().join("none")), &environment).unwrap(),
            environment,
            yes: false,
        };
        let said = vec![json!({ "role": "user", "content": "before" })];
        let model = "cynodeai.pm".to_owned();
        let mut talk = Talk { context: &context, model, project: None, messages: said.clone() };
        tokio::select! {
            answered = talk.ask("stopped", false) => panic!("{answered:?}"),
            // It was asked, and nobody answers.
            asked = silent.accept() => drop(asked.unwrap()),
        }
        assert_eq!(talk.messages, said);
    }

    #[test]
    fn an_answer_is_put_together_from_its_pieces() {
        let mut answered = Answered::default();
        for data in [
            r#"{"choices":[{"delta":{"role":"assistant"}}]}"#,
            r#"{"choices":[{"delta":{"content":"Hel"}}]}"#,
            r#"{"choices":[{"delta":{"content":"lo"},"finish_reason":"stop"}]}"#,
            r#"{"choices":[],"usage":{}}"#,
        ] {
            answered.take(data).unwrap();
        }
        assert_eq!(
            (answered.content.as_str(), answered.finish_reason.as_deref()),
            ("Hello", Some("stop"))
        );
        let failure = answered.take(r#"{"error":{"message":"no more"}}"#).unwrap_err();
        assert_eq!((failure.kind, failure.detail.as_str()), (Kind::EndedBadly, "no more"));
    }
}
