//! Launch specs on standard input: a length of four bytes, then JSON. They are read unbuffered, so that the following bytes are
//! left for the command.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    path::PathBuf,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Marker that the first process writes to standard error when all restrictions are in effect and the command is about to start.
/// All output after it is the command's.
pub const STARTED_MARKER: &[u8] = b"\0cynode started\n";

/// Maximum size of a launch spec. A larger one is an error.
const MAX_SPEC_BYTES: u32 = 4 << 20;

/// Error of reading or writing a launch spec.
#[derive(Debug, thiserror::Error)]
pub enum LaunchSpecError {
    /// The pipe is broken, or the node has exited.
    #[error("the node has sent no launch spec")]
    Io(#[from] io::Error),
    /// The JSON is invalid.
    #[error("the launch spec cannot be read")]
    Json(#[from] serde_json::Error),
    /// The launch spec is too long.
    #[error("the launch spec is too long")]
    Long,
}

/// Launch spec of `enter`, outside of the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnterSpec {
    /// Process id of the parent. `enter` exits if its parent is another one.
    pub parent: u32,
    /// Cgroup files to which the process writes its id.
    pub cgroups: Vec<PathBuf>,
    /// User and group id to switch to.
    pub user: Option<u32>,
    /// Limits per process.
    pub limits: ProcessLimits,
    /// Directory below which the mount points of `mounts` are. It is used only if there are mounts.
    pub mount_dir: PathBuf,
    /// Mounts that only the program and its descendants see.
    pub mounts: Vec<LayerMount>,
    /// Program to execute.
    pub program: PathBuf,
    /// Arguments of the program.
    pub arguments: Vec<String>,
}

/// Limits per process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessLimits {
    /// Maximum size of a file.
    pub file_bytes: u64,
    /// Maximum number of open files.
    pub open_files: u64,
}

/// Directory that is put together from layers. Paths contain neither `:` nor `,` nor a backslash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerMount {
    /// Read-only layers, the topmost first; at least one. One layer without an upper one is bind-mounted.
    pub lower: Vec<PathBuf>,
    /// Layer that takes the changes. Without it nothing can be changed.
    pub upper: Option<UpperLayer>,
    /// Mount point, an entry of the mount directory.
    pub point: PathBuf,
}

/// Writable layer of an overlay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpperLayer {
    /// Directory with the changes.
    pub changes: PathBuf,
    /// Empty directory for the kernel, on the same file system.
    pub scratch: PathBuf,
}

/// Launch spec of `run`, inside the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitSpec {
    /// Command and arguments.
    pub argv: Vec<String>,
    /// Complete environment of the command.
    pub env: BTreeMap<String, String>,
    /// Working directory of the command.
    pub cwd: PathBuf,
    /// Sockets to forward.
    pub doors: Vec<PortForward>,
    /// Writable paths.
    pub writable: Vec<PathBuf>,
    /// Liveness socket: if it closes, the first process exits. For backends in which a sandbox could outlive its node.
    pub life: Option<PathBuf>,
    /// Limits per process, where `enter` did not set them.
    pub limits: Option<ProcessLimits>,
}

/// A Unix socket of the node, forwarded from a port of 127.0.0.1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortForward {
    /// Path of the socket inside the sandbox.
    pub socket: PathBuf,
    /// Port on 127.0.0.1.
    pub port: u16,
}

/// Encodes a launch spec with a length prefix.
pub fn encode_launch_spec(spec: &impl Serialize) -> Result<Vec<u8>, LaunchSpecError> {
    let text = serde_json::to_vec(spec)?;
    let length = u32::try_from(text.len()).ok().filter(|length| *length <= MAX_SPEC_BYTES);
    let mut bytes = length.ok_or(LaunchSpecError::Long)?.to_be_bytes().to_vec();
    bytes.extend(text);
    Ok(bytes)
}

/// Reads exactly one launch spec and no further byte.
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
