use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use super::reader::Reader;

/// The project manager.
#[derive(Debug)]
pub(crate) struct Manager {
    /// Where one that runs elsewhere answers chats.
    pub(crate) url: Option<String>,
    /// A file that holds what it is shown.
    pub(crate) credential_file: Option<PathBuf>,
    /// What the manager and the analysts that `up` starts are told to be.
    pub(crate) instructions: Option<PathBuf>,
    /// Where the manager of `up` listens.
    pub(crate) listen: SocketAddr,
    /// Where its analyst does.
    pub(crate) analyst_listen: SocketAddr,
}

const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

impl Manager {
    pub(super) fn read(reader: &mut Reader) -> Self {
        Self {
            url: reader.optional("manager.url"),
            credential_file: reader.optional("manager.credential_file").map(PathBuf::from),
            instructions: reader.optional("manager.instructions").map(PathBuf::from),
            listen: reader.value("manager.listen", loopback(12088)),
            analyst_listen: reader.value("manager.analyst_listen", loopback(12089)),
        }
    }
}
