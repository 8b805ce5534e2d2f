//! Renders the skills that a handoff is given: what people wrote about how something is done.

use std::fmt::Write as _;

use cynode_core::skills::SelectedSkill;

use super::fence::quote_untrusted;

/// Maximum size of one skill and of all of them in a prompt.
const MAX_ONE_SKILL_BYTES: usize = 8 * 1024;
const MAX_SKILLS_BYTES: usize = 24 * 1024;

/// Renders the skills with name and version, each line behind the bar of the fence; nothing without skills.
pub(super) fn render_skills(skills: &[SelectedSkill]) -> String {
    let mut out = String::new();
    let mut room = MAX_SKILLS_BYTES;
    for skill in skills {
        if room == 0 {
            break;
        }
        let mut text = format!("skill: {}, version {}", skill.name, skill.version);
        if skill.untrusted {
            text.push_str(", written by an agent and reviewed by a person");
        }
        let _ =
            write!(text, "\nof use: {}\n{}", skill.one_line_description(), skill.body.trim_end());
        let quoted = quote_untrusted(&text, MAX_ONE_SKILL_BYTES.min(room));
        room = room.saturating_sub(quoted.len());
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(&quoted);
    }
    out
}
