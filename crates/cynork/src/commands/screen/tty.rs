//! The terminal: taken when the screen opens, given back however it ends.

use std::{
    io::{self, BufWriter, Stdout, Write as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ratatui::{
    Terminal,
    backend::CrosstermBackend,
    buffer::Buffer,
    crossterm::{
        cursor::Show,
        event::{
            self, DisableBracketedPaste, DisableMouseCapture, EnableBracketedPaste,
            EnableMouseCapture, Event,
        },
        execute,
        terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode},
    },
    layout::{Position, Rect},
};
use rustix::process::{Signal, getpid, kill_process};
use tokio::sync::mpsc::UnboundedSender;

use super::{
    message::Message,
    state::{Drawn, Size, State},
    view::{paint, view},
};

/// How often it is looked whether keys are still wanted.
const LOOK: Duration = Duration::from_millis(250);

/// A terminal that is ours.
pub(super) struct Tty {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
    done: Arc<AtomicBool>,
    /// What is shown now.
    shown: Option<(Buffer, Option<Position>)>,
}

impl Tty {
    /// Takes the terminal. A panic gives it back before it says a word.
    pub(super) fn take() -> io::Result<Self> {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            before(panic);
        }));
        let made = begin()
            .and_then(|()| Terminal::new(CrosstermBackend::new(BufWriter::new(io::stdout()))));
        match made {
            Ok(terminal) => Ok(Self { terminal, done: Arc::default(), shown: None }),
            Err(error) => {
                give_back();
                Err(error)
            }
        }
    }

    /// Tells what is typed, clicked and resized, from a thread of its own.
    pub(super) fn tell(&self, to: UnboundedSender<Option<Message>>) -> io::Result<()> {
        let done = Arc::clone(&self.done);
        let read = move || {
            while !done.load(Ordering::Relaxed) {
                let event = match event::poll(LOOK) {
                    Ok(false) => continue,
                    Ok(true) => event::read(),
                    Err(error) => Err(error),
                };
                let message = match event {
                    Ok(Event::Key(key)) => Some(Message::Key(key)),
                    Ok(Event::Mouse(mouse)) => Some(Message::Mouse(mouse)),
                    Ok(Event::Paste(text)) => Some(Message::Pasted(text)),
                    Ok(Event::Resize(width, height)) => {
                        Some(Message::Resized(Size { width, height }))
                    }
                    Ok(Event::FocusGained | Event::FocusLost) => continue,
                    // The terminal has gone.
                    Err(_) => None,
                };
                let last = message.is_none();
                if to.send(message).is_err() || last {
                    break;
                }
            }
        };
        std::thread::Builder::new().name("keys".to_owned()).spawn(read).map(drop)
    }

    /// How large it is.
    pub(super) fn size(&self) -> io::Result<Size> {
        let size = self.terminal.size()?;
        Ok(Size { width: size.width, height: size.height })
    }

    /// Draws. Only cells that are different are sent, and not a byte when none is.
    pub(super) fn draw(&mut self, state: &State) -> io::Result<Drawn> {
        let size = self.terminal.size()?;
        let mut next = Buffer::empty(Rect::new(0, 0, size.width, size.height));
        let (mut drawn, cursor) = paint(state, &mut next);
        let next = (next, cursor);
        if self.shown.as_ref() != Some(&next) {
            self.terminal.draw(|frame| drawn = view(state, frame))?;
            self.shown = Some(next);
        }
        Ok(drawn)
    }

    /// Gives the terminal to the shell, and takes it again when the shell calls back.
    pub(super) fn suspend(&mut self) -> io::Result<()> {
        give_back();
        kill_process(getpid(), Signal::TSTP)?;
        begin()?;
        self.clear()
    }

    /// Forgets what is shown, so that all of it is sent again.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        self.shown = None;
        self.terminal.clear()
    }
}

impl Drop for Tty {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        give_back();
    }
}

/// Takes the keyboard, the mouse and the whole of the screen.
fn begin() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen, EnableMouseCapture, EnableBracketedPaste)
}

/// Gives the terminal back as it was; what cannot be given back any more is nobody's.
fn give_back() {
    let _ = disable_raw_mode();
    let _ = execute!(
        io::stdout(),
        DisableBracketedPaste,
        DisableMouseCapture,
        LeaveAlternateScreen,
        Show
    );
    let _ = io::stdout().flush();
}

#[cfg(test)]
mod tests;
