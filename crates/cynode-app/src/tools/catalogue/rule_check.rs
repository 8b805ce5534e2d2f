//! Rules before they hold: the check of a rule, what rules can speak of, and the versions that a rule had.

use std::collections::BTreeSet;

use cynode_core::{agents::AgentRole, roles::UserRole};
use cynode_db::tools::policy;
use cynode_policy::{
    catalogue::{CatalogueTool, ToolOrigin},
    rules::{self, MAX_RULE_BYTES, RuleMode, RuleProblem},
};
use cynode_wire::tools::{
    SetRule,
    rules::{
        CheckRule, RuleCheckView, RuleErrorView, RuleModeView, RuleVersionView, RuleVocabulary,
        VocabularyArgument, VocabularyField, VocabularyOperator, VocabularyServer, VocabularyTool,
    },
};

use super::{StoredPolicy, parse_rule};
use crate::{Ctx, Error, GatewayParts, platform::operation};

/// Name of a rule that has none yet.
pub(super) const DRAFT_NAME: &str = "draft";

/// Name by which rules call the tools of the product.
const NATIVE_SERVER: &str = "native";

/// Checks a rule as [`super::set_rule`] does, and reports every error with its place. It stores nothing.
#[tracing::instrument(name = "app.gate.check_rule", skip_all)]
#[operation]
pub async fn check_rule(
    ctx: &mut Ctx,
    parts: &GatewayParts,
    body: &CheckRule,
) -> Result<RuleCheckView, Error> {
    ctx.require_role(UserRole::Viewer)?;
    let set = SetRule { mode: body.mode.clone(), text: body.text.clone() };
    let rule = parse_rule(body.name.as_deref().unwrap_or(DRAFT_NAME), &set)?;
    let described = StoredPolicy::load_from_database(ctx.conn()).await?;
    let (catalogue, _) = described.build_catalogue(&parts.native);
    let check = rules::check_rule(&rule, &catalogue);
    Ok(RuleCheckView {
        valid: check.problems.is_empty(),
        errors: check
            .problems
            .into_iter()
            .map(|problem| to_error_view(&rule.text, problem))
            .collect(),
        reads_arguments: check.reads_arguments,
        tools: check.tools.iter().map(ToString::to_string).collect(),
        roles: check.roles.iter().map(|role| role.as_str().to_owned()).collect(),
    })
}

/// A place in a text.
struct TextPosition {
    line: u32,
    column: u32,
    utf16_offset: u32,
}

impl TextPosition {
    /// Returns the position of a byte. Fails when there is no character at it.
    fn of_byte(text: &str, at: usize) -> Option<Self> {
        let before = text.get(..at)?;
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let column = before.get(line_start..)?.chars().count() + 1;
        Some(Self {
            line: u32::try_from(before.matches('\n').count() + 1).ok()?,
            column: u32::try_from(column).ok()?,
            utf16_offset: u32::try_from(before.encode_utf16().count()).ok()?,
        })
    }
}

fn to_error_view(text: &str, problem: RuleProblem) -> RuleErrorView {
    let span = problem.span.as_ref();
    let start = span.and_then(|span| TextPosition::of_byte(text, span.start));
    let end = span.and_then(|span| TextPosition::of_byte(text, span.end));
    RuleErrorView {
        code: problem.code.to_owned(),
        message: problem.message,
        help: problem.help,
        line: start.as_ref().map(|at| at.line),
        column: start.as_ref().map(|at| at.column),
        end_line: end.as_ref().map(|at| at.line),
        end_column: end.as_ref().map(|at| at.column),
        start: start.map(|at| at.utf16_offset),
        end: end.map(|at| at.utf16_offset),
    }
}

/// Lists all that a rule can speak of: tools with their arguments, roles, groups, servers and facts.
#[tracing::instrument(name = "app.gate.describe_rule_vocabulary", skip_all)]
#[operation]
pub async fn describe_rule_vocabulary(
    ctx: &mut Ctx,
    parts: &GatewayParts,
) -> Result<RuleVocabulary, Error> {
    ctx.require_role(UserRole::Viewer)?;
    let described = StoredPolicy::load_from_database(ctx.conn()).await?;
    let (catalogue, _) = described.build_catalogue(&parts.native);
    let groups: BTreeSet<String> =
        catalogue.iter_tools().flat_map(|tool| tool.definition.name.group_patterns()).collect();
    let native = VocabularyServer { id: NATIVE_SERVER.to_owned(), name: NATIVE_SERVER.to_owned() };
    let installed = described
        .servers
        .iter()
        .map(|server| VocabularyServer { id: server.id.to_string(), name: server.name.clone() });
    Ok(RuleVocabulary {
        modes: RuleMode::ALL.into_iter().map(to_mode_view).collect(),
        roles: AgentRole::ALL.iter().map(|role| role.as_str().to_owned()).collect(),
        groups: groups.into_iter().collect(),
        servers: std::iter::once(native).chain(installed).collect(),
        fields: rules::list_context_fields().into_iter().map(to_field_view).collect(),
        operators: rules::list_operators().iter().map(to_operator_view).collect(),
        tools: catalogue.iter_tools().map(|tool| to_vocabulary_tool(tool)).collect(),
        max_bytes: u32::try_from(MAX_RULE_BYTES).unwrap_or(u32::MAX),
    })
}

fn to_mode_view(mode: RuleMode) -> RuleModeView {
    RuleModeView { name: mode.as_str().to_owned(), summary: mode.summary().to_owned() }
}

fn to_field_view(field: rules::ContextField) -> VocabularyField {
    VocabularyField {
        path: field.path.to_owned(),
        kind: field.kind.to_owned(),
        summary: field.summary.to_owned(),
        values: field.values.into_iter().map(str::to_owned).collect(),
    }
}

fn to_operator_view(operator: &rules::RuleOperator) -> VocabularyOperator {
    VocabularyOperator {
        name: operator.name.to_owned(),
        example: operator.example.to_owned(),
        summary: operator.summary.to_owned(),
    }
}

fn to_vocabulary_tool(tool: &CatalogueTool) -> VocabularyTool {
    let definition = &tool.definition;
    let (visible, hidden_arguments) = rules::describe_arguments(&definition.input);
    let arguments = visible.into_iter().map(|argument| VocabularyArgument {
        path: argument.path,
        kind: argument.kind,
        required: argument.required,
        summary: argument.summary,
    });
    VocabularyTool {
        name: definition.name.to_string(),
        title: definition.title.clone(),
        server: match &definition.origin {
            ToolOrigin::Native => NATIVE_SERVER.to_owned(),
            ToolOrigin::Server { id, .. } => id.to_string(),
        },
        groups: definition.name.group_patterns().collect(),
        arguments: arguments.collect(),
        hidden_arguments,
    }
}

/// Lists the versions of a rule, newest first, with who wrote each.
#[tracing::instrument(name = "app.gate.list_rule_versions", skip_all)]
#[operation]
pub async fn list_rule_versions(ctx: &mut Ctx, name: &str) -> Result<Vec<RuleVersionView>, Error> {
    ctx.require_role(UserRole::Viewer)?;
    let versions = policy::list_rule_versions(ctx.conn(), name).await?;
    if versions.is_empty() {
        return Err(Error::not_found("rule", name));
    }
    Ok(versions.into_iter().map(to_version_view).collect())
}

fn to_version_view(version: policy::RuleVersion) -> RuleVersionView {
    let deleted = version.rule.is_none();
    let (mode, text) = version.rule.unzip();
    RuleVersionView {
        version: version.version,
        mode: mode.map(|mode| mode.as_str().to_owned()),
        text,
        changed_by: version.changed_by,
        changed_at: version.changed_at,
        deleted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_told_in_lines_characters_and_code_units() {
        let text = "é😀\nab";
        let at = |byte| {
            TextPosition::of_byte(text, byte).map(|at| (at.line, at.column, at.utf16_offset))
        };
        assert_eq!(at(0), Some((1, 1, 0)));
        assert_eq!(at(6), Some((1, 3, 3)));
        assert_eq!(at(8), Some((2, 2, 5)));
        assert_eq!(at(9), Some((2, 3, 6)));
        assert_eq!((at(1), at(10)), (None, None));
    }
}
