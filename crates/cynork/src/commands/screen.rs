//! The terminal screen: what `cynork` alone opens.
//!
//! A pure core: [`state::State`] is what is known and what is shown, [`update`](update::update) takes in one message and says what
//! is wanted, [`view`](view::view) draws. This file is the thin loop around it: keys, the clock, the stream of events and answers become
//! messages; what is wanted becomes calls.

mod graph;
mod input;
mod keys;
mod known;
mod message;
mod needs;
mod reach;
mod shelf;
mod state;
mod text;
mod tty;
mod update;
mod view;

#[cfg(test)]
mod tests;

use std::{io, time::Duration};

use cynode_wire::events::EventView;
use time::OffsetDateTime;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    task::AbortHandle,
    time::{Instant, Interval, MissedTickBehavior},
};
use tokio_util::task::TaskTracker;

use self::{
    message::{Message, Want},
    state::State,
    tty::Tty,
    update::update,
};
use super::account;
use crate::{
    client::{Client, SILENCE},
    context::Context,
    failure::{Failure, Kind, Result},
};

/// It is drawn at most once in this time.
const FRAME: Duration = Duration::from_millis(100);

/// How long the answer to what is under way is waited for when the person leaves.
const FAREWELL: Duration = Duration::from_secs(5);

/// How long the stream of events may take to open.
const OPENING: Duration = Duration::from_secs(20);

/// Opens it.
pub(crate) async fn open(context: &mut Context) -> Result<()> {
    let missing = if context.environment.dumb {
        Some("the screen needs a terminal that it can draw on, and TERM says `dumb`")
    } else if !context.person() {
        Some("the screen needs a terminal, and there is none here")
    } else {
        None
    };
    if let Some(what) = missing {
        return Err(Failure::new(Kind::Usage, what)
            .fix("use a command, such as `cynork task list`; `cynork --help` names all"));
    }
    let broken = |error: io::Error| {
        Failure::internal(format!("the terminal cannot be used: {error}"))
            .fix("use a command, such as `cynork task list`")
    };
    let tty = Tty::take().map_err(broken)?;
    let size = tty.size().unwrap_or(update::UNTOLD);
    let seed = format!("screen-{:016x}", rand::random::<u64>());
    let mut state = State::new(context.client.base(), seed, now(), size);
    state.colour = context.out.paint.0;
    let (keys, typed) = mpsc::unbounded_channel();
    tty.tell(keys).map_err(broken)?;
    let (tell, told) = mpsc::unbounded_channel();
    let mut turn = tokio::time::interval(FRAME);
    turn.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let signals = [SignalKind::terminate(), SignalKind::hangup()];
    let [terminate, hangup] = signals.map(signal);
    let mut ears = Ears {
        typed,
        told,
        turn,
        terminate: terminate.map_err(broken)?,
        hangup: hangup.map_err(broken)?,
    };
    let hands = Hands { tell, tasks: TaskTracker::new(), listener: None };
    run(context, state, tty, &mut ears, hands).await.map_err(broken)
}

/// The time, as it is told to the screen.
#[expect(
    clippy::disallowed_methods,
    reason = "the screen's clock: everything else is told the time"
)]
fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

/// Whence messages come.
struct Ears {
    typed: UnboundedReceiver<Option<Message>>,
    told: UnboundedReceiver<Message>,
    turn: Interval,
    terminate: Signal,
    hangup: Signal,
}

impl Ears {
    /// The next message; none when it is to end.
    async fn next(&mut self) -> Option<Message> {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => None,
            _ = self.hangup.recv() => None,
            typed = self.typed.recv() => typed.flatten(),
            told = self.told.recv() => told,
            _ = self.turn.tick() => Some(Message::Tick(now())),
        }
    }
}

/// What does what is wanted; the answers become messages.
struct Hands {
    tell: UnboundedSender<Message>,
    tasks: TaskTracker,
    listener: Option<AbortHandle>,
}

async fn run(
    context: &mut Context,
    mut state: State,
    mut tty: Tty,
    ears: &mut Ears,
    mut hands: Hands,
) -> io::Result<()> {
    let mut wants = update::open(&mut state, context.client.has_token());
    let mut drawn_at: Option<Instant> = None;
    loop {
        for want in std::mem::take(&mut wants) {
            match want {
                Want::Quit => return leave(&state, ears).await,
                Want::Clear => tty.clear()?,
                Want::Suspend => tty.suspend()?,
                other => hands.work(&context.client, other),
            }
        }
        // Of several changes of its size in a row a terminal may tell an older one last.
        if let Ok(size) = tty.size()
            && size != state.size
        {
            wants = update(&mut state, Message::Resized(size));
            continue;
        }
        if state.changed && drawn_at.is_none_or(|then| then.elapsed() >= FRAME) {
            state.changed = false;
            drawn_at = Some(Instant::now());
            let drawn = tty.draw(&state)?;
            wants = update(&mut state, Message::Drawn(drawn));
            if !wants.is_empty() {
                continue;
            }
        }
        let Some(message) = ears.next().await else { return leave(&state, ears).await };
        wants = update(&mut state, kept(context, message));
    }
}

/// A session that was given is kept before anything is made of it.
fn kept(context: &mut Context, message: Message) -> Message {
    let Message::LoggedIn(Ok(session)) = message else { return message };
    let token = secrecy::SecretString::from(session.token.0.clone());
    context.client = context.client.clone().with_token(token.clone());
    Message::LoggedIn(account::keep(context, &token).map(|()| session))
}

/// What was sent is not left without an answer, for a while.
async fn leave(state: &State, ears: &mut Ears) -> io::Result<()> {
    if state.dialog.as_ref().is_some_and(|dialog| dialog.sending) {
        let done = async {
            while let Some(message) = ears.told.recv().await {
                if matches!(message, Message::Done(..)) {
                    break;
                }
            }
        };
        // Whoever waits longer than that has lost nothing: the server has it or it has not.
        let _ = tokio::time::timeout(FAREWELL, done).await;
    }
    Ok(())
}

impl Hands {
    fn work(&mut self, client: &Client, want: Want) {
        let (client, tell) = (client.clone(), self.tell.clone());
        match want {
            Want::Fetch(topic, from) => {
                self.tasks.spawn(async move {
                    let answer = Box::pin(reach::fetch(&client, &topic, from)).await;
                    let _ = tell.send(Message::Answered(topic, answer));
                });
            }
            Want::Do { number, key, deed, words } => {
                self.tasks.spawn(async move {
                    let done = reach::act(&client, key, &deed, words.as_deref()).await;
                    let _ = tell.send(Message::Done(number, done));
                });
            }
            Want::LogIn { handle, password } => {
                self.tasks.spawn(async move {
                    let session = reach::log_in(&client, &handle, &password).await;
                    let _ = tell.send(Message::LoggedIn(session.map(Box::new)));
                });
            }
            Want::Listen(after) => {
                if let Some(before) = self.listener.take() {
                    before.abort();
                }
                let listening = self.tasks.spawn(listen(client, after, tell));
                self.listener = Some(listening.abort_handle());
            }
            Want::Clear | Want::Suspend | Want::Quit => {}
        }
    }
}

/// Tells what happens, until nothing is heard any more.
async fn listen(client: Client, after: Option<String>, tell: UnboundedSender<Message>) {
    let call = reach::events(after.as_ref());
    let opened = tokio::time::timeout(OPENING, client.events(&call)).await;
    let why = match opened {
        Err(_) => Failure::new(Kind::Unreachable, format!("no answer from {}", client.base())),
        Ok(Err(failure)) => failure,
        Ok(Ok(events)) => {
            let mut events = events.at_most_silent(SILENCE);
            let _ = tell.send(Message::Listening);
            while let Some(heard) = events.next().await {
                // Kinds that this program does not know are passed over.
                if let Ok(event) = serde_json::from_str::<EventView>(&heard.data) {
                    let _ = tell.send(Message::Heard(Box::new(event)));
                }
            }
            let what = format!("the connection to {} has ended", client.base());
            Failure::new(Kind::Unreachable, what)
        }
    };
    let _ = tell.send(Message::Deaf(why));
}
