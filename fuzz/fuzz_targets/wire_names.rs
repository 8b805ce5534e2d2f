//! Any text is a name or is refused; a name leads back to itself and never to another.
#![no_main]

use cynode_policy::tool_names::{MAX_WIRE_NAME_LEN, ToolName};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(name) = ToolName::from_wire_name(text) {
        let wire = name.to_wire_name();
        assert!(wire.len() <= MAX_WIRE_NAME_LEN);
        assert!(wire.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-'));
        assert_eq!(ToolName::from_wire_name(&wire), Ok(name.clone()));
        assert_eq!(name.as_str().parse(), Ok(name));
    }
    // Two texts that are both names on the wire are one name only if they are written alike but for dots.
    if let Some((one, other)) = text.split_once('\n')
        && let (Ok(a), Ok(b)) = (one.parse::<ToolName>(), other.parse::<ToolName>())
    {
        assert_eq!(a == b, a.to_wire_name() == b.to_wire_name());
    }
});
