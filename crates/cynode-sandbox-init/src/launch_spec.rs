//! Launch specs on standard input: a length in four bytes, then JSON. They are read without a buffer, so that what follows is
//! left for the command.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    path::PathBuf,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// What the first process writes to standard error when it is locked in and is about to start the command. All that follows is the command's.
pub const STARTED_MARKER: &[u8] = b"\0cynode started\n";

/// Launch specs are small; a longer one is a mistake.
const MAX_SPEC_BYTES: u32 = 4 << 20;

/// Why a launch spec could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LaunchSpecError {
    /// The node is gone, or the pipe is broken.
    #[error("the node has sent no launch spec")]
    Io(#[from] io::Error),
    /// It is not the expected JSON.
    #[error("the launch spec cannot be read")]
    Json(#[from] serde_json::Error),
    /// It is too long.
    #[error("the launch spec is too long")]
    Long,
}

/// What `enter` does outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnterSpec {
    /// The process that started it; without that one it ends.
    pub parent: u32,
    /// The files of cgroups to write itself into.
    pub cgroups: Vec<PathBuf>,
    /// The user and group to become.
    pub user: Option<u32>,
    /// Limits of a process.
    pub limits: ProcessLimits,
    /// The program to become.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
}

/// Limits that a process has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessLimits {
    /// Most bytes of a file.
    pub file_bytes: u64,
    /// Most open files.
    pub open_files: u64,
}

/// What `run` does inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitSpec {
    /// The command.
    pub argv: Vec<String>,
    /// Its whole environment.
    pub env: BTreeMap<String, String>,
    /// Where it starts.
    pub cwd: PathBuf,
    /// The sockets to offer.
    pub doors: Vec<PortForward>,
    /// Where files may be changed.
    pub writable: Vec<PathBuf>,
    /// The socket whose end ends everything; for backends in which a sandbox could outlive its node.
    pub life: Option<PathBuf>,
    /// Limits of a process, where `enter` was not there to set them.
    pub limits: Option<ProcessLimits>,
}

/// A socket of the node, offered on a port of 127.0.0.1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortForward {
    /// The socket, inside.
    pub socket: PathBuf,
    /// The port.
    pub port: u16,
}

/// Encodes a launch spec with its length in front.
pub fn encode_launch_spec(spec: &impl Serialize) -> Result<Vec<u8>, LaunchSpecError> {
    let text = serde_json::to_vec(spec)?;
    let length = u32::try_from(text.len()).ok().filter(|length| *length <= MAX_SPEC_BYTES);
    let mut bytes = length.ok_or(LaunchSpecError::Long)?.to_be_bytes().to_vec();
    bytes.extend(text);
    Ok(bytes)
}

/// Reads a launch spec and not one byte more.
pub fn decode_launch_spec<T: DeserializeOwned>(mut from: impl Read) -> Result<T, LaunchSpecError> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length);
    if length > MAX_SPEC_BYTES {
        return Err(LaunchSpecError::Long);
    }
    let mut text = vec![0; length as usize];
    from.read_exact(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn a_launch_spec_is_read_to_its_end_and_the_rest_is_left() {
        let spec = InitSpec {
            argv: vec!["echo".into(), "a b\0ü".into()],
            env: BTreeMap::from([("KEY".into(), "value\nwith lines".into())]),
            cwd: "/work".into(),
            doors: vec![PortForward { socket: "/run/cynode/llm.sock".into(), port: 4001 }],
            writable: vec!["/work".into()],
            life: None,
            limits: None,
        };
        let mut bytes = encode_launch_spec(&spec).unwrap();
        bytes.extend(b"for the command");
        let mut from = Cursor::new(bytes);
        let read: InitSpec = decode_launch_spec(&mut from).unwrap();
        let mut rest = String::new();
        from.read_to_string(&mut rest).unwrap();
        assert_eq!((read, rest.as_str()), (spec, "for the command"));
    }

    #[test]
    fn a_launch_spec_that_is_cut_or_endless_is_refused() {
        let cut = encode_launch_spec(&"abc").unwrap();
        assert!(matches!(
            decode_launch_spec::<String>(&cut[..cut.len() - 1]),
            Err(LaunchSpecError::Io(_))
        ));
        assert!(matches!(
            decode_launch_spec::<String>(&u32::MAX.to_be_bytes()[..]),
            Err(LaunchSpecError::Long)
        ));
    }
}
