//! The terminal: acquired when the screen opens, restored however it ends.

use std::{
    io::{self, BufWriter, Stdout, Write as _},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
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
    message::ScreenMessage,
    state::{ScreenLayout, ScreenState, TerminalSize},
    view::{render_frame, render_screen},
};

/// Interval of the check whether the keyboard is still in use.
const KEY_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Interval of the check whether the keyboard was returned.
const LENT_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The acquired terminal.
pub(super) struct Tty {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
    keyboard: Arc<Keyboard>,
    /// The last frame.
    shown: Option<(Buffer, Option<Position>)>,
}

/// Ownership of keyboard input.
#[derive(Debug, Default)]
struct Keyboard {
    /// Reading has ended.
    done: AtomicBool,
    /// Another program reads the keyboard.
    lent: AtomicBool,
    /// Locked by the current reader.
    reader: Mutex<()>,
}

impl Keyboard {
    fn lock_reader(&self) -> MutexGuard<'_, ()> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tty {
    /// Acquires the terminal. A panic restores it before its message is printed.
    pub(super) fn acquire_terminal() -> io::Result<Self> {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore_terminal();
            before(panic);
        }));
        let made = enter_screen_mode()
            .and_then(|()| Terminal::new(CrosstermBackend::new(BufWriter::new(io::stdout()))));
        match made {
            Ok(terminal) => Ok(Self { terminal, keyboard: Arc::default(), shown: None }),
            Err(error) => {
                restore_terminal();
                Err(error)
            }
        }
    }

    /// Forwards keys, clicks and resizes, from its own thread.
    pub(super) fn spawn_event_reader(
        &self,
        to: UnboundedSender<Option<ScreenMessage>>,
    ) -> io::Result<()> {
        let keyboard = Arc::clone(&self.keyboard);
        let read = move || {
            while !keyboard.done.load(Ordering::Relaxed) {
                if keyboard.lent.load(Ordering::Acquire) {
                    std::thread::sleep(LENT_POLL_INTERVAL);
                    continue;
                }
                let held = keyboard.lock_reader();
                let event = match event::poll(KEY_POLL_INTERVAL) {
                    Ok(false) => continue,
                    Ok(true) => event::read(),
                    Err(error) => Err(error),
                };
                drop(held);
                let message = match event {
                    Ok(Event::Key(key)) => Some(ScreenMessage::Key(key)),
                    Ok(Event::Mouse(mouse)) => Some(ScreenMessage::Mouse(mouse)),
                    Ok(Event::Paste(text)) => Some(ScreenMessage::Pasted(text)),
                    Ok(Event::Resize(width, height)) => {
                        Some(ScreenMessage::Resized(TerminalSize { width, height }))
                    }
                    Ok(Event::FocusGained | Event::FocusLost) => continue,
                    // The terminal is gone.
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

    /// Returns the size of the terminal.
    pub(super) fn terminal_size(&self) -> io::Result<TerminalSize> {
        let size = self.terminal.size()?;
        Ok(TerminalSize { width: size.width, height: size.height })
    }

    /// Draws a frame. Only changed cells are sent, and no byte if nothing changed.
    pub(super) fn draw_screen(&mut self, state: &ScreenState) -> io::Result<ScreenLayout> {
        let size = self.terminal.size()?;
        let mut next = Buffer::empty(Rect::new(0, 0, size.width, size.height));
        let (mut drawn, cursor) = render_screen(state, &mut next);
        let next = (next, cursor);
        if self.shown.as_ref() != Some(&next) {
            self.terminal.draw(|frame| drawn = render_frame(state, frame))?;
            self.shown = Some(next);
        }
        Ok(drawn)
    }

    /// Suspends the process to the shell, and acquires the terminal again afterwards.
    pub(super) fn suspend_process(&mut self) -> io::Result<()> {
        restore_terminal();
        kill_process(getpid(), Signal::TSTP)?;
        enter_screen_mode()?;
        self.clear_screen()
    }

    /// Lends the terminal to another program until it ends, and acquires it again.
    pub(super) async fn lend_to_program<T: Send + 'static>(
        &mut self,
        program: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        self.keyboard.lent.store(true, Ordering::Release);
        restore_terminal();
        let keyboard = Arc::clone(&self.keyboard);
        // Events are still received meanwhile.
        let ended = tokio::task::spawn_blocking(move || {
            let _held = keyboard.lock_reader();
            program()
        })
        .await;
        self.keyboard.lent.store(false, Ordering::Release);
        enter_screen_mode()?;
        self.clear_screen()?;
        ended.map_err(io::Error::other)
    }

    /// Discards the last frame, so that everything is sent again.
    pub(super) fn clear_screen(&mut self) -> io::Result<()> {
        self.shown = None;
        self.terminal.clear()
    }
}

impl Drop for Tty {
    fn drop(&mut self) {
        self.keyboard.done.store(true, Ordering::Relaxed);
        restore_terminal();
    }
}

/// Enables raw mode, mouse events and the alternate screen.
fn enter_screen_mode() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen, EnableMouseCapture, EnableBracketedPaste)
}

/// Restores the terminal; errors are ignored, because nothing more can be done.
fn restore_terminal() {
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
