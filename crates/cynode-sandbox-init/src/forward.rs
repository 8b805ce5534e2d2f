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
const MAX_CONNECTIONS: usize = 64;
/// A thread only copies.
const THREAD_STACK_BYTES: usize = 64 << 10;

/// A port that is open, and where it leads.
pub(crate) struct PortListener {
    listener: TcpListener,
    socket: PathBuf,
}

impl PortListener {
    /// Opens the port.
    pub(crate) fn new(port: u16, socket: PathBuf) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::bind((Ipv4Addr::LOCALHOST, port))?, socket })
    }

    /// Carries connections from now on, in threads of its own.
    pub(crate) fn serve_connections(self) -> io::Result<()> {
        spawn_thread(move || {
            let busy = Arc::new(AtomicUsize::new(0));
            for incoming in self.listener.incoming().flatten() {
                // One too many is closed, and the client sees it.
                if busy.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
                    busy.fetch_sub(1, Ordering::Relaxed);
                    continue;
                }
                let guard = ConnectionSlot(Arc::clone(&busy));
                let socket = self.socket.clone();
                // Without threads left the connection is dropped, guard and all.
                let _ = spawn_thread(move || {
                    let _guard = guard;
                    let _ = relay_connection(&incoming, &socket);
                });
            }
        })
    }
}

/// Counts a connection as long as it lives.
struct ConnectionSlot(Arc<AtomicUsize>);

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn spawn_thread(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().stack_size(THREAD_STACK_BYTES).spawn(work).map(|_| ())
}

/// Copies both ways until both have ended.
fn relay_connection(near: &TcpStream, socket: &Path) -> io::Result<()> {
    let far = UnixStream::connect(socket)?;
    near.set_nodelay(true)?;
    let (near_again, far_again) = (near.try_clone()?, far.try_clone()?);
    spawn_thread(move || {
        copy_stream(&near_again, &far_again);
        let _ = far_again.shutdown(Shutdown::Write);
    })?;
    copy_stream(&far, near);
    near.shutdown(Shutdown::Both)?;
    far.shutdown(Shutdown::Both)
}

/// Copies to the end, or until one of the two is gone.
fn copy_stream(mut from: impl Read, mut to: impl Write) {
    let mut buffer = [0; 16 << 10];
    while let Ok(read) = from.read(&mut buffer) {
        if read == 0 || to.write_all(&buffer[..read]).is_err() {
            return;
        }
    }
}
