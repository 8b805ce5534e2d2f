//! Connections to a port of 127.0.0.1, carried to a socket of the node.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// Most connections at once through one door. Each takes two of the threads that the job may have.
const MOST: usize = 64;
/// A thread only copies.
const STACK: usize = 64 << 10;

/// A port that is open, and where it leads.
pub(crate) struct Open {
    listener: TcpListener,
    socket: PathBuf,
}

impl Open {
    /// Opens the port.
    pub(crate) fn new(port: u16, socket: PathBuf) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::bind((Ipv4Addr::LOCALHOST, port))?, socket })
    }

    /// Carries connections from now on, in threads of its own.
    pub(crate) fn serve(self) -> io::Result<()> {
        threaded(move || {
            let busy = Arc::new(AtomicUsize::new(0));
            for incoming in self.listener.incoming().flatten() {
                // One too many is closed, and the client sees it.
                if busy.fetch_add(1, Ordering::Relaxed) >= MOST {
                    busy.fetch_sub(1, Ordering::Relaxed);
                    continue;
                }
                let guard = Busy(Arc::clone(&busy));
                let socket = self.socket.clone();
                // Without threads left the connection is dropped, guard and all.
                let _ = threaded(move || {
                    let _guard = guard;
                    let _ = carry(&incoming, &socket);
                });
            }
        })
    }
}

/// Counts a connection as long as it lives.
struct Busy(Arc<AtomicUsize>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn threaded(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().stack_size(STACK).spawn(work).map(|_| ())
}

/// Copies both ways until both have ended.
fn carry(near: &TcpStream, socket: &Path) -> io::Result<()> {
    let far = UnixStream::connect(socket)?;
    near.set_nodelay(true)?;
    let (near_again, far_again) = (near.try_clone()?, far.try_clone()?);
    threaded(move || {
        copy(&near_again, &far_again);
        let _ = far_again.shutdown(Shutdown::Write);
    })?;
    copy(&far, near);
    near.shutdown(Shutdown::Both)?;
    far.shutdown(Shutdown::Both)
}

/// Copies to the end, or until one of the two is gone.
fn copy(mut from: impl Read, mut to: impl Write) {
    let mut buffer = [0; 16 << 10];
    while let Ok(read) = from.read(&mut buffer) {
        if read == 0 || to.write_all(&buffer[..read]).is_err() {
            return;
        }
    }
}
