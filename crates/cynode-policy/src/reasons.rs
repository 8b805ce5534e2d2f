//! Why a call is refused, in words for a program, for a person and for a model.

use std::fmt;

use cynode_core::agents::{AgentRole, ToolScope};

/// The questions of the gate, in the order in which they are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DecisionStage {
    /// Is the caller an agent of ours whose token works now?
    Token,
    /// Is there such a tool for this caller, with the definition that was accepted?
    Tool,
    /// Is it switched on?
    Enabled,
    /// Is the caller on the right side?
    Scope,
    /// Is it on the list of the caller's role and of its token?
    Allowlist,
    /// Do the caller's profile and the person it works for permit what the tool needs?
    Profile,
    /// Do the ids of the call belong to the token, and do the arguments fit the schema?
    Arguments,
    /// Do the rules of people leave it be?
    Rules,
    /// Are rates and quotas kept?
    Limits,
    /// Can it be recorded?
    Audit,
}

impl DecisionStage {
    /// Every step, in order.
    pub const ALL: [Self; 10] = [
        Self::Token,
        Self::Tool,
        Self::Enabled,
        Self::Scope,
        Self::Allowlist,
        Self::Profile,
        Self::Arguments,
        Self::Rules,
        Self::Limits,
        Self::Audit,
    ];

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Tool => "tool",
            Self::Enabled => "enabled",
            Self::Scope => "scope",
            Self::Allowlist => "allowlist",
            Self::Profile => "profile",
            Self::Arguments => "arguments",
            Self::Rules => "rules",
            Self::Limits => "limits",
            Self::Audit => "audit",
        }
    }
}

/// Why a call is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// No token, or none of ours.
    InvalidToken,
    /// The token has ended.
    TokenExpired,
    /// The token was revoked.
    TokenRevoked,
    /// There is no such tool, or not for this caller.
    UnknownTool,
    /// The server changed the tool's definition and nobody has accepted the change.
    DefinitionChanged,
    /// A person switched it off.
    Disabled,
    /// A part of the installation that it needs is not there.
    Unavailable(&'static str),
    /// The tool is for the other side.
    WrongScope(ToolScope),
    /// The role may not use it.
    NotAllowlisted(AgentRole),
    /// The role may use it only when a setting says so, and it does not.
    DisabledBySetting(&'static str),
    /// The token is good for other tools only.
    NotGrantedByToken,
    /// The profile forbids the network.
    NetworkDenied,
    /// The person whom the caller works for may only read.
    UserLacksPermission,
    /// An id that the call must carry is missing.
    MissingId(&'static str),
    /// An id belongs to something else than what the token is for.
    WrongId(&'static str),
    /// The token is for no task, run or job, and the tool needs one.
    UnboundToken(&'static str),
    /// The caller says it has a role that its token does not give.
    WrongRole,
    /// The arguments do not fit the schema.
    InvalidArguments(String),
    /// Rules of people refuse it.
    DeniedByRule(Vec<String>),
    /// A rule could not be decided, which counts as a refusal.
    RuleFailed(Vec<String>),
    /// A person must approve this very call.
    NeedsApproval(Vec<String>),
    /// A person said no to this very call.
    ApprovalDenied,
    /// A person must approve this very call, and too many calls wait for one already.
    TooManyPendingApprovals,
    /// Too many calls in too little time.
    RateLimited,
    /// The same call again and again.
    DuplicateCall,
    /// The calls of the hour are used up: of the task, or of a token without one.
    QuotaExceeded,
    /// It cannot be recorded, so it is not done.
    AuditUnavailable,
    /// What the gate knows is too old to decide by.
    StalePolicy,
}

impl RefusalReason {
    /// The stable name: in audit records, metrics and answers.
    pub const fn reason_code(&self) -> &'static str {
        match self {
            Self::InvalidToken => "invalid_token",
            Self::TokenExpired => "token_expired",
            Self::TokenRevoked => "token_revoked",
            Self::UnknownTool => "unknown_tool",
            Self::DefinitionChanged => "definition_changed",
            Self::Disabled => "disabled",
            Self::Unavailable(_) => "unavailable",
            Self::WrongScope(_) => "wrong_scope",
            Self::NotAllowlisted(_) => "not_allowlisted",
            Self::DisabledBySetting(_) => "disabled_by_setting",
            Self::NotGrantedByToken => "not_granted_by_token",
            Self::NetworkDenied => "network_denied",
            Self::UserLacksPermission => "user_lacks_permission",
            Self::MissingId(_) => "missing_id",
            Self::WrongId(_) => "wrong_id",
            Self::UnboundToken(_) => "unbound_token",
            Self::WrongRole => "wrong_role",
            Self::InvalidArguments(_) => "invalid_arguments",
            Self::DeniedByRule(_) => "denied_by_rule",
            Self::RuleFailed(_) => "rule_failed",
            Self::NeedsApproval(_) => "needs_approval",
            Self::ApprovalDenied => "approval_denied",
            Self::TooManyPendingApprovals => "too_many_pending_approvals",
            Self::RateLimited => "rate_limited",
            Self::DuplicateCall => "duplicate_call",
            Self::QuotaExceeded => "quota_exceeded",
            Self::AuditUnavailable => "audit_unavailable",
            Self::StalePolicy => "stale_policy",
        }
    }

    /// The question that was answered with no.
    pub const fn decision_stage(&self) -> DecisionStage {
        match self {
            Self::InvalidToken | Self::TokenExpired | Self::TokenRevoked | Self::StalePolicy => {
                DecisionStage::Token
            }
            Self::UnknownTool | Self::DefinitionChanged => DecisionStage::Tool,
            Self::Disabled | Self::Unavailable(_) => DecisionStage::Enabled,
            Self::WrongScope(_) => DecisionStage::Scope,
            Self::NotAllowlisted(_) | Self::DisabledBySetting(_) | Self::NotGrantedByToken => {
                DecisionStage::Allowlist
            }
            Self::NetworkDenied | Self::UserLacksPermission => DecisionStage::Profile,
            Self::MissingId(_)
            | Self::WrongId(_)
            | Self::UnboundToken(_)
            | Self::WrongRole
            | Self::InvalidArguments(_) => DecisionStage::Arguments,
            Self::DeniedByRule(_)
            | Self::RuleFailed(_)
            | Self::NeedsApproval(_)
            | Self::ApprovalDenied => DecisionStage::Rules,
            Self::TooManyPendingApprovals
            | Self::RateLimited
            | Self::DuplicateCall
            | Self::QuotaExceeded => DecisionStage::Limits,
            Self::AuditUnavailable => DecisionStage::Audit,
        }
    }

    /// What the caller should do, in words that a model follows too.
    pub const fn caller_advice(&self) -> &'static str {
        match self {
            Self::InvalidToken | Self::TokenExpired | Self::TokenRevoked => {
                "Stop. Ask the orchestrator for a new token."
            }
            Self::InvalidArguments(_) | Self::MissingId(_) => {
                "Correct the arguments by the tool's schema, then call again."
            }
            Self::WrongId(_) | Self::WrongRole => {
                "Use the ids that you were given with the task. Do not try other ids."
            }
            Self::NeedsApproval(_) => {
                "A person must approve this exact call. Wait, then repeat it unchanged."
            }
            Self::TooManyPendingApprovals => {
                "Wait until people have answered what you asked for before, then repeat it unchanged."
            }
            Self::RateLimited | Self::QuotaExceeded => "Wait until the time given, then go on.",
            Self::DuplicateCall => {
                "The answer will not change. Do something else, or report that you are blocked."
            }
            Self::AuditUnavailable | Self::StalePolicy => "Try again in a moment.",
            Self::UnknownTool => "Call only tools that tools/list shows.",
            Self::DefinitionChanged
            | Self::Disabled
            | Self::Unavailable(_)
            | Self::WrongScope(_)
            | Self::NotAllowlisted(_)
            | Self::DisabledBySetting(_)
            | Self::NotGrantedByToken
            | Self::NetworkDenied
            | Self::UserLacksPermission
            | Self::UnboundToken(_)
            | Self::DeniedByRule(_)
            | Self::RuleFailed(_)
            | Self::ApprovalDenied => {
                "This is final. Do not call it again; report that you are blocked and why."
            }
        }
    }

    /// The rules that decided, if rules did.
    pub fn deciding_rules(&self) -> &[String] {
        match self {
            Self::DeniedByRule(rules) | Self::RuleFailed(rules) | Self::NeedsApproval(rules) => {
                rules
            }
            _ => &[],
        }
    }
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidToken => f.write_str("the token is missing or is none of ours"),
            Self::TokenExpired => f.write_str("the token has ended"),
            Self::TokenRevoked => f.write_str("the token was revoked"),
            Self::UnknownTool => f.write_str("there is no such tool for you"),
            Self::DefinitionChanged => f.write_str(
                "the tool's definition changed on its server and no person has accepted the change",
            ),
            Self::Disabled => f.write_str("an admin switched this tool off"),
            Self::Unavailable(why) => write!(f, "the tool cannot work here: {why}"),
            Self::WrongScope(scope) => {
                let side = match scope {
                    ToolScope::Pm => "agents of the orchestrator",
                    ToolScope::Sandbox => "agents in sandboxes",
                    ToolScope::Both => "everybody",
                };
                write!(f, "the tool is for {side} only")
            }
            Self::NotAllowlisted(role) => {
                write!(f, "the role {} may not use this tool", role.as_str())
            }
            Self::DisabledBySetting(key) => {
                write!(f, "the system setting `{key}` does not permit it")
            }
            Self::NotGrantedByToken => f.write_str("the token is good for other tools only"),
            Self::NetworkDenied => f.write_str("the profile does not permit the network"),
            Self::UserLacksPermission => {
                f.write_str("whoever you work for may only read in this project")
            }
            Self::MissingId(name) => write!(f, "the argument `{name}` is missing"),
            Self::WrongId(name) => {
                write!(f, "the argument `{name}` is not what the token is for")
            }
            Self::UnboundToken(name) => write!(f, "the token is for no {name}"),
            Self::WrongRole => f.write_str("the role in the arguments is not the token's role"),
            Self::InvalidArguments(why) => write!(f, "the arguments are wrong: {why}"),
            Self::DeniedByRule(rules) => write!(f, "refused by rule {}", rules.join(", ")),
            Self::RuleFailed(rules) => {
                write!(f, "rule {} could not be decided, which refuses", rules.join(", "))
            }
            Self::NeedsApproval(rules) => {
                write!(f, "rule {} wants a person's approval", rules.join(", "))
            }
            Self::ApprovalDenied => f.write_str("a person did not approve this call"),
            Self::TooManyPendingApprovals => f.write_str(
                "it needs a person's approval, and too many of your calls wait for one already",
            ),
            Self::RateLimited => f.write_str("too many calls in too little time"),
            Self::DuplicateCall => f.write_str("the same call was made again and again"),
            Self::QuotaExceeded => f.write_str("the calls of this hour are used up"),
            Self::AuditUnavailable => {
                f.write_str("calls cannot be recorded now, so none is carried out")
            }
            Self::StalePolicy => {
                f.write_str("the gate does not know whether this is still permitted")
            }
        }
    }
}
