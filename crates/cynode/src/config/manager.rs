use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use super::reader::ConfigReader;

/// The project manager.
#[derive(Debug)]
pub(crate) struct ManagerConfig {
    /// The chat address of an external one.
    pub(crate) url: Option<String>,
    /// The file with its credential.
    pub(crate) credential_file: Option<PathBuf>,
    /// The certificate authority of an external one, if the machine does not trust it.
    pub(crate) ca_file: Option<PathBuf>,
    /// The instructions of the manager and the analysts that `up` starts.
    pub(crate) instructions: Option<PathBuf>,
    /// Listen address of the manager of `up`.
    pub(crate) listen: SocketAddr,
    /// Listen address of its analyst.
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
            ca_file: reader.optional_text("manager.ca_file").map(PathBuf::from),
            instructions: reader.optional_text("manager.instructions").map(PathBuf::from),
            listen: reader.parse_value("manager.listen", loopback_address(12088)),
            analyst_listen: reader.parse_value("manager.analyst_listen", loopback_address(12089)),
        }
    }
}
