//! What one record says about one call.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{KeyedDigest, hex};

/// The reason of the outcome that is written for a call whose real outcome nobody will know.
pub const CUT_OFF_REASON: &str = "cut_off";

/// How many rules an entry names at most.
const MAX_RULES: usize = 16;

/// A text that is none of the words of an enum.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not one of the known words")]
pub struct UnknownWord;

/// Enums whose variants have one fixed byte in the encoding and one fixed word in text.
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $code:literal, $word:literal;)+ })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// Every variant.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word for it, as it stands in a column and in JSON.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }

            pub(crate) const fn code(self) -> u8 {
                match self {
                    $(Self::$variant => $code,)+
                }
            }

            pub(crate) const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }

        impl std::str::FromStr for $name {
            type Err = UnknownWord;

            fn from_str(text: &str) -> Result<Self, UnknownWord> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(UnknownWord),
                }
            }
        }
    )+};
}

words! {
    /// Which of the two records of a call this is.
    Phase {
        /// What was decided, written before the call is forwarded.
        Decision = 1, "decision";
        /// How the call ended.
        Outcome = 2, "outcome";
    }

    /// What was decided about a call.
    Verdict {
        /// It may be made.
        Allow = 1, "allow";
        /// It may not be made.
        Deny = 2, "deny";
        /// It may be made once a person has approved it.
        NeedsApproval = 3, "needs_approval";
    }

    /// How a call ended.
    Outcome {
        /// The tool answered.
        Success = 1, "success";
        /// The tool answered that it failed.
        ToolError = 2, "tool_error";
        /// The tool's server answered with an error of the protocol.
        ProtocolError = 3, "protocol_error";
        /// No answer came in time.
        Timeout = 4, "timeout";
        /// The caller gave it up.
        Cancelled = 5, "cancelled";
        /// The caller or the tool's server went away.
        Disconnected = 6, "disconnected";
        /// The caller's right ended while the call was under way.
        Revoked = 7, "revoked";
        /// It never reached a tool.
        NotForwarded = 8, "not_forwarded";
        /// Nobody knows: the process that made the call died before it wrote the outcome.
        Unknown = 9, "unknown";
    }
}

/// Who made a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentFacts {
    /// The token it showed; the id, never the secret.
    pub token: Uuid,
    /// The kind of agent.
    pub kind: String,
    /// The role it acts in.
    pub role: String,
    /// For whom it works.
    pub user: Option<Uuid>,
    /// The project it works in.
    pub project: Option<Uuid>,
    /// The task it works on.
    pub task: Option<Uuid>,
    /// The run of that task.
    pub run: Option<Uuid>,
    /// The job of that run.
    pub job: Option<Uuid>,
}

/// What one record says.
///
/// There is no field that could hold an argument or a result: every text is short, from a fixed
/// alphabet and written by us. So no payload can get into the log by mistake, and nothing has to
/// be cleaned out of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditEntry {
    /// The call; its decision and its outcome have the same.
    pub call: Uuid,
    /// When it happened, in whole microseconds.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// Which of the two records of the call this is.
    pub phase: Phase,
    /// What was decided.
    pub decision: Verdict,
    /// Why, as a short stable code.
    pub reason: String,
    /// The rules that decided.
    pub rules: Vec<String>,
    /// The rules on trial that would have refused.
    pub shadow: Vec<String>,
    /// How it ended, if it has ended.
    pub outcome: Option<Outcome>,
    /// Who called; absent if the caller could not be told.
    pub agent: Option<AgentFacts>,
    /// The method of the protocol.
    pub method: String,
    /// The canonical name of the tool. Only of a known one: a caller's own words stay out.
    pub tool: Option<String>,
    /// The digest of the tool's definition.
    #[serde(with = "hex::optional")]
    pub definition: Option<[u8; 32]>,
    /// The server the tool is on.
    pub server: Option<Uuid>,
    /// The node the call came from.
    pub node: Option<Uuid>,
    /// The digest of the policy that decided.
    #[serde(with = "hex")]
    pub policy: [u8; 32],
    /// The digest of the catalogue of tools at that time.
    #[serde(with = "hex")]
    pub catalogue: [u8; 32],
    /// The trace it belongs to.
    pub trace: String,
    /// The digest of the arguments.
    pub arguments: Option<KeyedDigest>,
    /// How many bytes the arguments had.
    pub arguments_size: u32,
    /// The digest of the result.
    pub result: Option<KeyedDigest>,
    /// How many bytes the result had.
    pub result_size: u32,
    /// How long it took, in microseconds.
    pub duration_us: u64,
}

/// Why an entry is not one that may be kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadEntry {
    /// The time has a fraction of a microsecond, which would be lost on the way.
    #[error("the time of an entry has whole microseconds")]
    Time,
    /// A text is too long or has a character outside its alphabet.
    #[error("`{0}` has a length or a character that it may not have")]
    Text(&'static str),
    /// There are too many rules.
    #[error("`{0}` has more than {MAX_RULES} rules")]
    Rules(&'static str),
    /// A record of an outcome has none.
    #[error("the record of an outcome has an outcome")]
    OutcomeMissing,
    /// A refused call has an outcome that only a forwarded call can have.
    #[error("a call that was not allowed ends as not forwarded")]
    OutcomeOfRefused,
}

impl AuditEntry {
    /// Whether every field holds what it may hold.
    pub fn validate_fields(&self) -> Result<(), BadEntry> {
        if self.at != truncate_to_micros(self.at) {
            return Err(BadEntry::Time);
        }
        validate_text("reason", &self.reason, 64, is_code_byte)?;
        validate_rules("rules", &self.rules)?;
        validate_rules("shadow", &self.shadow)?;
        validate_text("method", &self.method, 40, |b| matches!(b, b'a'..=b'z' | b'/' | b'_'))?;
        if let Some(tool) = &self.tool {
            validate_text("tool", tool, 128, |b| b.is_ascii_alphanumeric() || b"._-".contains(&b))?;
        }
        if let Some(agent) = &self.agent {
            validate_text("agent.kind", &agent.kind, 64, is_code_byte)?;
            validate_text("agent.role", &agent.role, 64, is_code_byte)?;
        }
        validate_text("trace", &self.trace, 32, |b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))?;
        if self.trace.len() != 32 {
            return Err(BadEntry::Text("trace"));
        }
        self.check_outcome()
    }

    fn check_outcome(&self) -> Result<(), BadEntry> {
        match (self.phase, self.decision, self.outcome) {
            (Phase::Outcome, _, None) => Err(BadEntry::OutcomeMissing),
            (_, Verdict::Deny | Verdict::NeedsApproval, Some(outcome))
                if outcome != Outcome::NotForwarded =>
            {
                Err(BadEntry::OutcomeOfRefused)
            }
            _ => Ok(()),
        }
    }

    /// Whether a second record, the outcome, must follow this one.
    pub fn expects_outcome(&self) -> bool {
        self.phase == Phase::Decision && self.decision == Verdict::Allow && self.outcome.is_none()
    }

    /// The outcome of the call decided here, when nobody will know the real one.
    pub(crate) fn to_unknown_outcome(&self, at: OffsetDateTime) -> Self {
        Self {
            at: truncate_to_micros(at),
            phase: Phase::Outcome,
            outcome: Some(Outcome::Unknown),
            reason: CUT_OFF_REASON.to_owned(),
            result: None,
            result_size: 0,
            duration_us: 0,
            ..self.clone()
        }
    }
}

/// The same moment without the fraction of a microsecond, which a database would drop unasked.
pub fn truncate_to_micros(at: OffsetDateTime) -> OffsetDateTime {
    let fraction = i64::from(at.nanosecond() % 1_000);
    at.checked_sub(time::Duration::nanoseconds(fraction)).unwrap_or(at)
}

fn validate_rules(field: &'static str, ids: &[String]) -> Result<(), BadEntry> {
    if ids.len() > MAX_RULES {
        return Err(BadEntry::Rules(field));
    }
    ids.iter().try_for_each(|id| validate_text(field, id, 64, is_code_byte))
}

fn is_code_byte(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b':' | b'-')
}

fn validate_text(
    field: &'static str,
    value: &str,
    longest: usize,
    allowed: impl Fn(u8) -> bool,
) -> Result<(), BadEntry> {
    let good = (1..=longest).contains(&value.len()) && value.bytes().all(allowed);
    if good { Ok(()) } else { Err(BadEntry::Text(field)) }
}
