use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use super::reader::ConfigReader;

/// The project manager.
#[derive(Debug)]
pub(crate) struct ManagerConfig {
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

const fn loopback_address(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

impl ManagerConfig {
    pub(super) fn read_section(reader: &mut ConfigReader) -> Self {
        Self {
            url: reader.optional_text("manager.url"),
            credential_file: reader.optional_text("manager.credential_file").map(PathBuf::from),
            instructions: reader.optional_text("manager.instructions").map(PathBuf::from),
            listen: reader.parse_value("manager.listen", loopback_address(12088)),
            analyst_listen: reader.parse_value("manager.analyst_listen", loopback_address(12089)),
        }
    }
}
