//! Why a call is refused, in words for a program, for a person and for a model.

use std::{fmt, sync::Arc};

use cynode_core::agents::{AgentRole, ToolScope};

/// The questions of a policy decision, in the order in which they are asked.
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

/// What is known of a reason without the call that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusalSpec {
    /// The stable name: in audit records, metrics and answers.
    pub code: &'static str,
    /// The question that was answered with no.
    pub stage: DecisionStage,
    /// What happened, in one sentence.
    pub summary: &'static str,
    /// What the caller should do, in words that a model follows too.
    pub advice: &'static str,
}

const RENEW_TOKEN: &str = "Stop. Ask the orchestrator for a new token.";
const LIST_TOOLS: &str = "Call only tools that tools/list shows.";
const FINAL_REFUSAL: &str =
    "This is final. Do not call it again; report that you are blocked and why.";
const CORRECT_ARGUMENTS: &str = "Correct the arguments by the tool's schema, then call again.";
const USE_OWN_IDS: &str = "Use the ids that you were given with the task. Do not try other ids.";
const AWAIT_APPROVAL: &str =
    "A person must approve this exact call. Wait, then repeat it unchanged.";
const AWAIT_ANSWERS: &str =
    "Wait until people have answered what you asked for before, then repeat it unchanged.";
const WAIT_UNTIL_TIME: &str = "Wait until the time given, then go on.";
const AVOID_REPEATS: &str =
    "The answer will not change. Do something else, or report that you are blocked.";
const RETRY_SOON: &str = "Try again in a moment.";

macro_rules! refusal_reasons {
    ($(
        #[doc = $summary:literal]
        $name:ident $(($payload:ty))? = $code:literal, $stage:ident, $advice:ident;
    )+) => {
        /// Why a call is refused.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum RefusalReason {
            $(#[doc = $summary] $name $(($payload))?,)+
        }

        impl RefusalReason {
            /// What is known of the reason without the call that it is about.
            pub const fn refusal_spec(&self) -> RefusalSpec {
                match self {
                    $(Self::$name { .. } => RefusalSpec {
                        code: $code,
                        stage: DecisionStage::$stage,
                        summary: $summary.trim_ascii(),
                        advice: $advice,
                    },)+
                }
            }
        }

        /// Every reason, in the order in which the questions are asked.
        pub static REFUSALS: &[RefusalSpec] = &[
            $(RefusalSpec {
                code: $code,
                stage: DecisionStage::$stage,
                summary: $summary.trim_ascii(),
                advice: $advice,
            },)+
        ];
    };
}

refusal_reasons! {
    /// The token is missing or unknown.
    InvalidToken = "invalid_token", Token, RENEW_TOKEN;
    /// The token has expired.
    TokenExpired = "token_expired", Token, RENEW_TOKEN;
    /// The token was revoked.
    TokenRevoked = "token_revoked", Token, RENEW_TOKEN;
    /// The profile that the caller works under does not exist any more.
    UnknownProfile = "unknown_profile", Token, FINAL_REFUSAL;
    /// The policy cache of the gateway is too old to decide by.
    StalePolicy = "stale_policy", Token, RETRY_SOON;
    /// The tool does not exist, or not for this caller.
    UnknownTool = "unknown_tool", Tool, LIST_TOOLS;
    /// The tool server changed the tool's definition and nobody has accepted the change.
    DefinitionChanged = "definition_changed", Tool, FINAL_REFUSAL;
    /// An admin disabled the tool.
    Disabled = "disabled", Enabled, FINAL_REFUSAL;
    /// The tool is for the other side: for agents of the orchestrator, or for agents in sandboxes.
    WrongScope(ToolScope) = "wrong_scope", Scope, FINAL_REFUSAL;
    /// The allowlist of the caller's role does not have the tool.
    NotAllowlisted(AgentRole) = "not_allowlisted", Allowlist, FINAL_REFUSAL;
    /// The role may use the tool only when a setting permits it, and the setting does not.
    DisabledBySetting(&'static str) = "disabled_by_setting", Allowlist, FINAL_REFUSAL;
    /// The token is restricted to other tools.
    NotGrantedByToken = "not_granted_by_token", Allowlist, FINAL_REFUSAL;
    /// The caller's profile does not have the tool.
    NotInProfile(Arc<str>) = "not_in_profile", Profile, FINAL_REFUSAL;
    /// The caller's profile denies the network.
    NetworkDenied = "network_denied", Profile, FINAL_REFUSAL;
    /// The person whom the caller works for may only read in this project.
    UserLacksPermission = "user_lacks_permission", Profile, FINAL_REFUSAL;
    /// An id that the call must carry is missing.
    MissingId(&'static str) = "missing_id", Arguments, CORRECT_ARGUMENTS;
    /// An id in the arguments belongs to something else than what the token is for.
    WrongId(&'static str) = "wrong_id", Arguments, USE_OWN_IDS;
    /// The token is for no task, run or job, and the tool needs one.
    UnboundToken(&'static str) = "unbound_token", Arguments, FINAL_REFUSAL;
    /// The role in the arguments is not the role of the token.
    WrongRole = "wrong_role", Arguments, USE_OWN_IDS;
    /// The arguments do not fit the schema.
    InvalidArguments(String) = "invalid_arguments", Arguments, CORRECT_ARGUMENTS;
    /// A rule denies the call.
    DeniedByRule(Vec<String>) = "denied_by_rule", Rules, FINAL_REFUSAL;
    /// A rule could not be evaluated, which counts as a denial.
    RuleFailed(Vec<String>) = "rule_failed", Rules, FINAL_REFUSAL;
    /// A rule requires that a person approves this call.
    NeedsApproval(Vec<String>) = "needs_approval", Rules, AWAIT_APPROVAL;
    /// A person denied this call.
    ApprovalDenied = "approval_denied", Rules, FINAL_REFUSAL;
    /// The call needs an approval, and too many calls of the caller wait for one already.
    TooManyPendingApprovals = "too_many_pending_approvals", Limits, AWAIT_ANSWERS;
    /// The caller exceeded the rate limit.
    RateLimited = "rate_limited", Limits, WAIT_UNTIL_TIME;
    /// The caller repeated the same call too often.
    DuplicateCall = "duplicate_call", Limits, AVOID_REPEATS;
    /// The hourly quota of calls is used up, of the task or of a token without a task.
    QuotaExceeded = "quota_exceeded", Limits, WAIT_UNTIL_TIME;
    /// The call cannot be recorded in the audit log, so it is not carried out.
    AuditUnavailable = "audit_unavailable", Audit, RETRY_SOON;
}

impl RefusalReason {
    /// The stable name: in audit records, metrics and answers.
    pub const fn reason_code(&self) -> &'static str {
        self.refusal_spec().code
    }

    /// The question that was answered with no.
    pub const fn decision_stage(&self) -> DecisionStage {
        self.refusal_spec().stage
    }

    /// What the caller should do, in words that a model follows too.
    pub const fn caller_advice(&self) -> &'static str {
        self.refusal_spec().advice
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
            Self::UnknownProfile => {
                f.write_str("the profile that you work under does not exist any more")
            }
            Self::UnknownTool => f.write_str("there is no such tool for you"),
            Self::DefinitionChanged => f.write_str(
                "the tool's definition changed on its server and no person has accepted the change",
            ),
            Self::Disabled => f.write_str("an admin switched this tool off"),
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
            Self::NotInProfile(name) => {
                write!(f, "the profile `{name}` that you work under does not have this tool")
            }
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn reasons_are_ordered_by_question_and_each_is_there_once() {
        assert!(REFUSALS.windows(2).all(|pair| pair[0].stage <= pair[1].stage));
        let codes: BTreeSet<_> = REFUSALS.iter().map(|spec| spec.code).collect();
        assert_eq!(codes.len(), REFUSALS.len());
    }
}
