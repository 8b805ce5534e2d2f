//! Audit entry: the content of one record about one call.

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{KeyedDigest, hex};

/// Reason code of an outcome that is recorded because the real outcome of the call will never be known.
pub const CUT_OFF_REASON: &str = "cut_off";

/// Maximum number of rules that an entry names.
const MAX_RULES: usize = 16;

/// Error: a text is not one of the words of an enum.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not one of the known words")]
pub struct UnknownWord;

/// Defines enums whose variants have one fixed byte in the encoding and one fixed word in text.
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $code:literal, $word:literal;)+ })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// All variants.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the word of the variant, as used in database columns and in JSON.
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
    /// Which of the two records of a call a record is.
    Phase {
        /// The policy decision, written before the call is forwarded.
        Decision = 1, "decision";
        /// The end of the call.
        Outcome = 2, "outcome";
    }

    /// Policy decision about a call.
    Verdict {
        /// The call is allowed.
        Allow = 1, "allow";
        /// The call is denied.
        Deny = 2, "deny";
        /// The call is allowed once a person has approved it.
        NeedsApproval = 3, "needs_approval";
    }

    /// Outcome of a call.
    Outcome {
        /// The tool returned a result.
        Success = 1, "success";
        /// The tool returned an error.
        ToolError = 2, "tool_error";
        /// The tool server returned a protocol error.
        ProtocolError = 3, "protocol_error";
        /// No response came in time.
        Timeout = 4, "timeout";
        /// The caller cancelled the call.
        Cancelled = 5, "cancelled";
        /// The caller or the tool server disconnected.
        Disconnected = 6, "disconnected";
        /// The caller's authorization was revoked during the call.
        Revoked = 7, "revoked";
        /// The call was not forwarded to a tool.
        NotForwarded = 8, "not_forwarded";
        /// The outcome is unknown: the process that made the call died before it wrote the outcome.
        Unknown = 9, "unknown";
    }
}

/// The agent that made a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentFacts {
    /// Id of the agent's token, never the secret.
    pub token: Uuid,
    /// Kind of agent.
    pub kind: String,
    /// Role that the agent acts in.
    pub role: String,
    /// User that the agent works for.
    pub user: Option<Uuid>,
    /// Project that the agent works in.
    pub project: Option<Uuid>,
    /// Task that the agent works on.
    pub task: Option<Uuid>,
    /// Run of that task.
    pub run: Option<Uuid>,
    /// Job of that run.
    pub job: Option<Uuid>,
    /// Profile that the agent works under. Records of earlier releases have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
}

/// Content of one record.
///
/// No field can hold an argument or a result: every text is short, uses a fixed alphabet and is written by CyNode. So no payload can get
/// into the log by mistake, and the log needs no redaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditEntry {
    /// Id of the call. The decision and the outcome of a call have the same id.
    pub call: Uuid,
    /// Time of the event, in whole microseconds.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// Which of the two records of the call this is.
    pub phase: Phase,
    /// The policy decision.
    pub decision: Verdict,
    /// Reason of the decision, as a short stable code.
    pub reason: String,
    /// Rules that decided.
    pub rules: Vec<String>,
    /// Rules in shadow mode that would have denied the call.
    pub shadow: Vec<String>,
    /// Outcome of the call, if it has ended.
    pub outcome: Option<Outcome>,
    /// The caller. `None` if the caller could not be identified.
    pub agent: Option<AgentFacts>,
    /// MCP method.
    pub method: String,
    /// Canonical name of the tool. Only known tools are named: text that the caller chose is not recorded.
    pub tool: Option<String>,
    /// Digest of the tool's definition.
    #[serde(with = "hex::optional")]
    pub definition: Option<[u8; 32]>,
    /// Tool server that offers the tool.
    pub server: Option<Uuid>,
    /// Node that the call came from.
    pub node: Option<Uuid>,
    /// Digest of the policy that decided.
    #[serde(with = "hex")]
    pub policy: [u8; 32],
    /// Digest of the tool catalogue at that time.
    #[serde(with = "hex")]
    pub catalogue: [u8; 32],
    /// Id of the trace that the call belongs to.
    pub trace: String,
    /// Digest of the arguments.
    pub arguments: Option<KeyedDigest>,
    /// Size of the arguments in bytes.
    pub arguments_size: u32,
    /// Digest of the result.
    pub result: Option<KeyedDigest>,
    /// Size of the result in bytes.
    pub result_size: u32,
    /// Duration of the call, in microseconds.
    pub duration_us: u64,
}

/// Reason for rejecting an entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadEntry {
    /// The time has a fraction of a microsecond, which storage would lose.
    #[error("the time of an entry has whole microseconds")]
    Time,
    /// A text is too long or has a character outside its alphabet.
    #[error("`{0}` has a length or a character that it may not have")]
    Text(&'static str),
    /// The entry names too many rules.
    #[error("`{0}` has more than {MAX_RULES} rules")]
    Rules(&'static str),
    /// A record of phase `Outcome` has no outcome.
    #[error("the record of an outcome has an outcome")]
    OutcomeMissing,
    /// A denied call has an outcome that only a forwarded call can have.
    #[error("a call that was not allowed ends as not forwarded")]
    OutcomeOfRefused,
}

impl AuditEntry {
    /// Validates every field.
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
            if let Some(profile) = &agent.profile {
                let is_name_byte = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-');
                validate_text("agent.profile", profile, 63, is_name_byte)?;
            }
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

    /// Returns whether a second record, the outcome, must follow this one.
    pub fn expects_outcome(&self) -> bool {
        self.phase == Phase::Decision && self.decision == Verdict::Allow && self.outcome.is_none()
    }

    /// Creates the outcome record of this decision's call when the real outcome will never be known.
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

/// Truncates a time to whole microseconds. A database would drop the fraction silently.
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
