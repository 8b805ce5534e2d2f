//! Backtest: what a rule would have done to the recorded calls of the last days.
//!
//! A record names caller and tool and holds no arguments. Calls that are alike in all that a record shows are therefore decided alike, and
//! the database counts them. A rule that depends on what no record shows is undecidable for the call, and the report says so.

use std::collections::{BTreeMap, HashMap};

use cynode_core::{
    agents::AgentRole,
    ids::{AgentTokenId, CallId, ProjectId, TaskId, UserId},
    roles::UserRole,
};
use cynode_db::tools::{
    agent_tokens,
    audit::{self, DecisionGroup},
};
use cynode_policy::{
    agents::{AgentIdentity, AgentProfile},
    catalogue::ToolCatalogue,
    reasons::{DecisionStage, REFUSALS},
    rules::{MissingFact, RuleMode, RuleTrial, TrialResult},
};
use cynode_wire::tools::{
    SetRule,
    rules::{
        BacktestEffects, BacktestReport, BacktestRule, BacktestSample, BacktestTool,
        DecisionChange, UndecidableCalls,
    },
};
use time::{Duration, OffsetDateTime};
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::{StoredPolicy, parse_rule, rule_check::DRAFT_NAME};
use crate::{Ctx, Error, GatewayParts, platform::operation};

/// Maximum number of recorded calls that a backtest looks at.
const MAX_CALLS: u64 = 200_000;

/// Maximum number of days that a backtest looks back.
const MAX_DAYS: u8 = 30;

/// Number of days that a backtest looks back unless it is told otherwise.
const DEFAULT_DAYS: u8 = 7;

/// Maximum number of sample calls in a report.
const MAX_SAMPLES: usize = 20;

/// Maximum number of tools in a report.
const MAX_TOOLS: usize = 100;

/// Maximum number of backtests that run at once in this process.
static BACKTEST_PERMITS: Semaphore = Semaphore::const_new(2);

/// Tries a rule on the recorded calls of the last days. It stores nothing.
#[tracing::instrument(name = "app.gate.backtest_rule", skip_all)]
#[operation]
pub async fn backtest_rule(
    ctx: &mut Ctx,
    parts: &GatewayParts,
    body: &BacktestRule,
) -> Result<BacktestReport, Error> {
    ctx.require_role(UserRole::Viewer)?;
    let days = body.days.unwrap_or(DEFAULT_DAYS);
    if !(1..=MAX_DAYS).contains(&days) {
        return Err(Error::Invalid(format!("`days` is 1 to {MAX_DAYS}")));
    }
    let set = SetRule { mode: body.mode.clone(), text: body.text.clone() };
    let rule = parse_rule(body.name.as_deref().unwrap_or(DRAFT_NAME), &set)?;
    let _permit = BACKTEST_PERMITS.try_acquire().map_err(|_| Error::Overloaded)?;
    let described = StoredPolicy::load_from_database(ctx.conn()).await?;
    let (catalogue, _) = described.build_catalogue(&parts.native);
    let trial = RuleTrial::load_rule(&rule, &catalogue)
        .map_err(|error| Error::Invalid(format!("rule `{}`: {error}", rule.name)))?;
    let recorded = RecordedCalls::load_from_database(ctx, body.project_id, days).await?;
    let backtest = Backtest {
        trial,
        catalogue,
        agents: recorded.agents,
        mode: rule.mode,
        replaces: body.name.clone(),
    };
    let (since, until, complete) = (recorded.since, recorded.until, recorded.complete);
    let groups = recorded.groups;
    // Thousands of evaluations would hold up the requests of others.
    let tally = tokio::task::spawn_blocking(move || {
        let mut tally = BacktestTally::default();
        for group in &groups {
            tally.add_calls(group, &backtest);
        }
        tally
    });
    let tally = tally.await.map_err(|error| Error::Internal(error.into()))?;
    Ok(tally.into_report(since, until, complete))
}

/// The recorded calls of some days.
struct RecordedCalls {
    since: OffsetDateTime,
    until: OffsetDateTime,
    complete: bool,
    groups: Vec<DecisionGroup>,
    /// Agents whose tokens are still stored.
    agents: HashMap<Uuid, AgentIdentity>,
}

impl RecordedCalls {
    /// Reads a day, then two days before it, then four: the limit leaves out older calls, and few queries read all.
    async fn load_from_database(
        ctx: &mut Ctx,
        project: Option<ProjectId>,
        days: u8,
    ) -> Result<Self, Error> {
        let until = ctx.now;
        let oldest = until - Duration::days(days.into());
        let project = project.map(ProjectId::as_uuid);
        let (mut since, mut complete) = (oldest, true);
        let (mut groups, mut calls) = (Vec::new(), 0);
        // A record of this very moment belongs to it, too.
        let mut end = until + Duration::MICROSECOND;
        let mut window = Duration::DAY;
        while end > oldest {
            let start = (end - window).max(oldest);
            window += window;
            let rest = i64::try_from(MAX_CALLS.saturating_sub(calls)).unwrap_or(i64::MAX);
            let found = audit::group_decisions(ctx.conn(), project, start, end, rest).await?;
            calls += found.iter().map(|group| group.calls.unsigned_abs()).sum::<u64>();
            groups.extend(found);
            if calls >= MAX_CALLS {
                (since, complete) = (start, false);
                break;
            }
            end = start;
        }
        let mut tokens: Vec<Uuid> =
            groups.iter().filter_map(|group| group.agent_token_id).collect();
        tokens.sort_unstable();
        tokens.dedup();
        let stored = agent_tokens::find_tokens_by_id(ctx.conn(), &tokens).await?;
        let agents =
            stored.into_iter().map(|token| (token.agent.token.as_uuid(), token.agent)).collect();
        Ok(Self { since, until, complete, groups, agents })
    }
}

/// A rule and all that is needed to try it.
struct Backtest {
    trial: RuleTrial,
    catalogue: ToolCatalogue,
    agents: HashMap<Uuid, AgentIdentity>,
    mode: RuleMode,
    /// Name of the rule that this one would replace.
    replaces: Option<String>,
}

/// What the rule does to recorded calls.
#[derive(Clone, Copy)]
enum BacktestResult {
    Hit,
    Miss,
    NotReached,
    Undecidable(UndecidableReason),
}

/// Reason why a recorded call cannot be decided.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum UndecidableReason {
    ArgumentsNotRecorded,
    AgentNotRecorded,
    ToolGone,
}

impl UndecidableReason {
    const fn as_str(self) -> &'static str {
        match self {
            Self::ArgumentsNotRecorded => "arguments_not_recorded",
            Self::AgentNotRecorded => "agent_not_recorded",
            Self::ToolGone => "tool_gone",
        }
    }

    const fn detail(self) -> &'static str {
        match self {
            Self::ArgumentsNotRecorded => {
                "The rule looks at arguments, and the audit log keeps only their size and a keyed digest."
            }
            Self::AgentNotRecorded => {
                "The rule looks at the profile, the network or the handoff of the agent, and its token is no longer stored."
            }
            Self::ToolGone => "The tool is no longer in the catalogue.",
        }
    }
}

impl Backtest {
    fn evaluate_group(&self, group: &DecisionGroup) -> BacktestResult {
        let stage = REFUSALS.iter().find(|spec| spec.code == group.reason).map(|spec| spec.stage);
        let refused_before =
            group.decision == "deny" && stage.is_some_and(|stage| stage < DecisionStage::Rules);
        let Some(tool) = group.tool.as_deref().filter(|_| !refused_before) else {
            return BacktestResult::NotReached;
        };
        let Some(tool) = self.catalogue.find_by_wire_name(tool) else {
            return BacktestResult::Undecidable(UndecidableReason::ToolGone);
        };
        let stored = group.agent_token_id.and_then(|token| self.agents.get(&token));
        let result = if let Some(agent) = stored {
            self.trial.evaluate_call(agent, tool, true)
        } else if let Some(agent) = agent_of_record(group) {
            self.trial.evaluate_call(&agent, tool, false)
        } else {
            TrialResult::Undecidable(MissingFact::Agent)
        };
        match result {
            TrialResult::Applies => BacktestResult::Hit,
            TrialResult::DoesNotApply => BacktestResult::Miss,
            TrialResult::Undecidable(MissingFact::Arguments) => {
                BacktestResult::Undecidable(UndecidableReason::ArgumentsNotRecorded)
            }
            TrialResult::Undecidable(MissingFact::Agent) => {
                BacktestResult::Undecidable(UndecidableReason::AgentNotRecorded)
            }
        }
    }

    /// Returns whether only the rule that would be replaced stopped these calls.
    fn is_stopped_by_replaced(&self, group: &DecisionGroup) -> bool {
        group.decision != "allow"
            && self.replaces.as_ref().is_some_and(|name| group.rules == [name.as_str()])
    }

    /// Returns the decision about calls that the rule applies to.
    fn decision_of_hit<'a>(&self, group: &'a DecisionGroup) -> &'a str {
        match (self.mode, group.decision.as_str()) {
            (RuleMode::Refuse, _) => "deny",
            // A person was asked and said yes, and would be asked once for both rules.
            (RuleMode::Approve, "allow") if group.reason != "approved" => "needs_approval",
            (RuleMode::Approve | RuleMode::Shadow, then) => then,
        }
    }
}

/// Returns the agent as far as a record shows it.
fn agent_of_record(group: &DecisionGroup) -> Option<AgentIdentity> {
    Some(AgentIdentity {
        token: AgentTokenId::from_uuid(group.agent_token_id?),
        role: AgentRole::from_name(group.agent_role.as_deref()?)?,
        user: group.user_id.map(UserId::from_uuid),
        project: group.project_id.map(ProjectId::from_uuid),
        task: group.task_id.map(TaskId::from_uuid),
        run: None,
        job: None,
        handoff: None,
        profile: AgentProfile::default(),
        tools: None,
        operates: true,
        expires_at: None,
    })
}

/// Counts of a backtest.
#[derive(Default)]
struct BacktestTally {
    calls: u64,
    hits: u64,
    misses: u64,
    not_reached: u64,
    released: u64,
    effects: BacktestEffects,
    undecidable: BTreeMap<UndecidableReason, u64>,
    decisions: BTreeMap<(String, String), u64>,
    tools: BTreeMap<String, BacktestTool>,
    hit_samples: Vec<BacktestSample>,
    released_samples: Vec<BacktestSample>,
    undecidable_samples: Vec<BacktestSample>,
}

impl BacktestTally {
    fn add_calls(&mut self, group: &DecisionGroup, backtest: &Backtest) {
        let calls = group.calls.unsigned_abs();
        self.calls += calls;
        let name = group.tool.clone().unwrap_or_default();
        let tool = self.tools.entry(name.clone()).or_insert_with(|| BacktestTool {
            tool: name,
            calls: 0,
            hits: 0,
            undecidable: 0,
        });
        tool.calls += calls;
        match backtest.evaluate_group(group) {
            BacktestResult::Hit => {
                tool.hits += calls;
                self.add_hit(group, backtest);
            }
            BacktestResult::NotReached => self.not_reached += calls,
            BacktestResult::Undecidable(reason) => {
                tool.undecidable += calls;
                *self.undecidable.entry(reason).or_default() += calls;
                add_sample(&mut self.undecidable_samples, group, "undecidable", None);
            }
            BacktestResult::Miss => {
                self.misses += calls;
                if backtest.is_stopped_by_replaced(group) {
                    self.released += calls;
                    self.count_decision(group, "allow");
                    add_sample(&mut self.released_samples, group, "released", Some("allow"));
                }
            }
        }
    }

    fn add_hit(&mut self, group: &DecisionGroup, backtest: &Backtest) {
        let calls = group.calls.unsigned_abs();
        self.hits += calls;
        let effect = match backtest.mode {
            RuleMode::Refuse => &mut self.effects.refuse,
            RuleMode::Approve => &mut self.effects.approve,
            RuleMode::Shadow => &mut self.effects.shadow,
        };
        *effect += calls;
        let now = backtest.decision_of_hit(group);
        self.count_decision(group, now);
        add_sample(&mut self.hit_samples, group, "hit", Some(now));
    }

    fn count_decision(&mut self, group: &DecisionGroup, now: &str) {
        let change = (group.decision.clone(), now.to_owned());
        *self.decisions.entry(change).or_default() += group.calls.unsigned_abs();
    }

    fn into_report(
        self,
        since: OffsetDateTime,
        until: OffsetDateTime,
        complete: bool,
    ) -> BacktestReport {
        let mut by_tool: Vec<_> = self.tools.into_values().collect();
        // The sort is stable: equal tools stay ordered by name.
        by_tool.sort_by_key(|tool| std::cmp::Reverse((tool.hits, tool.undecidable, tool.calls)));
        by_tool.truncate(MAX_TOOLS);
        let samples = self.hit_samples.into_iter().chain(self.released_samples);
        let samples = samples.chain(self.undecidable_samples).take(MAX_SAMPLES);
        let reasons = self.undecidable.iter().map(|(reason, calls)| UndecidableCalls {
            reason: reason.as_str().to_owned(),
            calls: *calls,
            detail: reason.detail().to_owned(),
        });
        let decisions = self.decisions.into_iter();
        BacktestReport {
            since,
            until,
            complete,
            calls: self.calls,
            hits: self.hits,
            misses: self.misses,
            not_reached: self.not_reached,
            undecidable: self.undecidable.values().sum(),
            undecidable_reasons: reasons.collect(),
            effects: self.effects,
            decisions: decisions
                .map(|((then, now), calls)| DecisionChange { then, now, calls })
                .collect(),
            released: self.released,
            by_tool,
            samples: samples.collect(),
        }
    }
}

/// Adds the newest of these calls to the samples, while there are few.
fn add_sample(
    samples: &mut Vec<BacktestSample>,
    group: &DecisionGroup,
    result: &str,
    now: Option<&str>,
) {
    if samples.len() >= MAX_SAMPLES {
        return;
    }
    samples.push(BacktestSample {
        call_id: CallId::from_uuid(group.last_call),
        at: group.last_at,
        tool: group.tool.clone().unwrap_or_default(),
        agent_role: group.agent_role.clone(),
        agent_token_id: group.agent_token_id.map(AgentTokenId::from_uuid),
        project_id: group.project_id.map(ProjectId::from_uuid),
        task_id: group.task_id.map(TaskId::from_uuid),
        result: result.to_owned(),
        calls: group.calls.unsigned_abs(),
        then: group.decision.clone(),
        reason_then: group.reason.clone(),
        now: now.map(str::to_owned),
    });
}
