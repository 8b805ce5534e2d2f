//! Forwards connections from a port of 127.0.0.1 to a Unix socket of the node.

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

/// Maximum number of concurrent connections per port. Each uses two of the job's threads.
const MAX_CONNECTIONS: usize = 64;
/// Stack size of a thread that only copies.
const THREAD_STACK_BYTES: usize = 64 << 10;

/// A listening port and its target socket.
pub(crate) struct PortListener {
    listener: TcpListener,
    socket: PathBuf,
}

impl PortListener {
    /// Binds the port.
    pub(crate) fn new(port: u16, socket: PathBuf) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::bind((Ipv4Addr::LOCALHOST, port))?, socket })
    }

    /// Serves connections in background threads.
    pub(crate) fn serve_connections(self) -> io::Result<()> {
        spawn_thread(move || {
            let busy = Arc::new(AtomicUsize::new(0));
            for incoming in self.listener.incoming().flatten() {
                // A connection above the limit is closed, which the client sees.
                if busy.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
                    busy.fetch_sub(1, Ordering::Relaxed);
                    continue;
                }
                let guard = ConnectionSlot(Arc::clone(&busy));
                let socket = self.socket.clone();
                // If no thread can be started, the connection is dropped together with its guard.
                let _ = spawn_thread(move || {
                    let _guard = guard;
                    let _ = relay_connection(&incoming, &socket);
                });
            }
        })
    }
}

/// Guard that counts a connection while it lives.
struct ConnectionSlot(Arc<AtomicUsize>);

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn spawn_thread(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().stack_size(THREAD_STACK_BYTES).spawn(work).map(|_| ())
}

/// Copies in both directions until both have ended.
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

/// Copies to the end of the stream, or until one side is closed.
fn copy_stream(mut from: impl Read, mut to: impl Write) {
    let mut buffer = [0; 16 << 10];
    while let Ok(read) = from.read(&mut buffer) {
        if read == 0 || to.write_all(&buffer[..read]).is_err() {
            return;
        }
    }
}
