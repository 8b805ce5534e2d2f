//! Explains routing: which model would be called, and why no other.

use std::time::{Duration, Instant};

use cynode_core::{
    agents::AgentRole,
    ids::{ProjectId, TaskId},
    models::{BudgetScope, OWN_MODEL_PREFIX, ProviderKind, Tier},
    roles::UserRole,
    sync::lock_unpoisoned,
};
use cynode_db::models::budgets;
use cynode_models::routing::{ProviderRoute, RoutingPreferences};
use cynode_wire::models::{ModelChoice, ModelChoices, TierChoice};
use time::OffsetDateTime;

use super::{
    InferenceRuntime, format_timestamp,
    key_parks::KeyTenant,
    latest_registry,
    request::render_if_exhausted,
    routes::{AnswerSource, ModelRegistry, RoutedModel, UpstreamRoute},
};
use crate::{
    App, Error, OperationRequest, models::budgets as ceilings, platform::operation,
    tasks::projects::VisibleProjects,
};

/// Circumstances of the explained routing.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoutingSubject {
    /// Project of the call.
    pub project: Option<ProjectId>,
    /// Task of the call: its project and its author count.
    pub task: Option<TaskId>,
    /// Role of the calling agent. Without it the caller is a person.
    pub role: Option<AgentRole>,
    /// Only this tier.
    pub tier: Option<Tier>,
}

/// Explains which model would be called for each tier, which would follow as fallbacks, and why the rest would not be
/// called. It uses the same registry, preferences and order as a real call.
#[tracing::instrument(name = "app.inference.explain_routing", skip_all)]
#[operation]
pub async fn explain_routing(
    app: &App,
    request: &OperationRequest,
    subject: RoutingSubject,
) -> Result<ModelChoices, Error> {
    let caller = request.caller.ok_or(Error::Unauthenticated)?;
    let models = app.inference_runtime()?;
    let (user, project, blockers, visible) = app
        .read(request, |ctx| {
            Box::pin(async move {
                let (user, project) = match (subject.task, subject.project) {
                    (Some(id), _) => {
                        let task = crate::tasks::get_task(ctx, id).await?;
                        (task.created_by, Some(task.project))
                    }
                    (None, Some(project)) => {
                        ctx.require_project_role(project, UserRole::Viewer).await?;
                        (caller.user, Some(project))
                    }
                    (None, None) => (caller.user, None),
                };
                let scopes = [Some(BudgetScope::Installation), Some(BudgetScope::User(user))];
                let scopes = scopes.into_iter().chain([
                    project.map(BudgetScope::Project),
                    subject.task.map(BudgetScope::Task),
                ]);
                let (mut blockers, now) = (Vec::new(), ctx.now);
                for scope in scopes.flatten() {
                    for ceiling in budgets::list_scope_budgets(ctx.conn(), scope, now).await? {
                        blockers.extend(render_if_exhausted(&ceilings::to_budget_view(&ceiling)));
                    }
                }
                let visible = VisibleProjects::load_for_caller(ctx).await?;
                Ok((user, project, blockers, visible))
            })
        })
        .await?;
    let registry = latest_registry(app, models).await?;
    let wisher = (subject.role, user, project, subject.task);
    registry.drop_cached_preferences(app, wisher).await?;
    let wishes = registry.routing_preferences(app, wisher).await?;
    let look = RoutingExplainer {
        models,
        registry: &registry,
        wishes: &wishes.preferences,
        project,
        visible,
        tenant: KeyTenant::of_user(user, project),
        now: app.environment().now(),
    };
    let tiers =
        Tier::ALL.iter().copied().filter(|tier| subject.tier.is_none_or(|one| one == *tier));
    Ok(ModelChoices {
        project_id: project,
        agent_role: subject.role.map(|role| role.as_str().to_owned()),
        tiers: tiers.map(|tier| look.explain_tier(tier)).collect(),
        blockers,
    })
}

/// Inputs of the routing.
struct RoutingExplainer<'a> {
    models: &'a InferenceRuntime,
    registry: &'a ModelRegistry,
    wishes: &'a RoutingPreferences,
    project: Option<ProjectId>,
    /// Projects whose models the caller may know of.
    visible: VisibleProjects,
    tenant: KeyTenant,
    now: OffsetDateTime,
}

impl RoutingExplainer<'_> {
    fn explain_tier(&self, tier: Tier) -> TierChoice {
        let choices = self.list_choices(tier);
        // Internal agents use the nearest available tier, then the default model of the installation.
        let offered =
            |tier: &Tier| self.list_choices(*tier).iter().any(|choice| choice.position.is_some());
        let selected = choices.iter().find(|choice| choice.selected).cloned();
        let fallback_tier = match selected {
            Some(_) => None,
            None => tier.fallback_order().into_iter().filter(|near| *near != tier).find(offered),
        };
        let model = selected.map(|choice| choice.model).or_else(|| match fallback_tier {
            Some(near) => {
                self.list_choices(near).into_iter().find(|it| it.selected).map(|it| it.model)
            }
            None => self.default_model(),
        });
        TierChoice { tier, model_id: tier.tier_model_id(), model, fallback_tier, choices }
    }

    /// Returns the default model of the installation, for use when no tier is available.
    fn default_model(&self) -> Option<String> {
        let default =
            self.registry.default.as_ref().filter(|id| !id.starts_with(OWN_MODEL_PREFIX))?;
        let model = self.registry.models.get(default)?;
        model.is_usable_in(self.project).then(|| default.clone())
    }

    /// Lists every model of the tier: the usable ones in order, then the others.
    fn list_choices(&self, tier: Tier) -> Vec<ModelChoice> {
        let ways = self.registry.list_routes(&tier.tier_model_id(), self.project);
        let known: Vec<ProviderRoute<'_>> =
            ways.iter().map(|(model, way)| model.to_routing_option(way)).collect();
        let (mut choices, mut has_selected) = (Vec::new(), false);
        for (position, at) in self.wishes.rank_routes(&known).into_iter().enumerate() {
            let (model, way) = ways[at];
            let rests = self.skip_reason(way);
            let mut reason = match (model.project, &rests) {
                (_, Some(why)) => why.clone(),
                (Some(_), None) => "the project's own model goes before a general one".to_owned(),
                (None, None) => "a general model, for every project".to_owned(),
            };
            if !model.tools {
                reason.push_str("; it calls no tools, which coding agents need (`--tools`)");
            }
            let chosen = rests.is_none() && !has_selected;
            has_selected |= chosen;
            choices.push(ModelChoice {
                position: u32::try_from(position + 1).ok(),
                selected: chosen,
                ..to_model_choice(model, Some(way), reason)
            });
        }
        let forbidden =
            known.iter().enumerate().filter(|(_, way)| !self.wishes.allows_route(**way));
        for (at, way) in forbidden {
            let reason = format!(
                "provider `{}` is outside and not in the preference `model_routing.allowed_external_providers`",
                way.provider
            );
            choices.push(to_model_choice(ways[at].0, Some(ways[at].1), reason));
        }
        let mut others: Vec<&RoutedModel> = self.registry.models.values().collect();
        others.retain(|model| model.tier == Some(tier) && !model.is_usable_in(self.project));
        others.retain(|model| {
            model.project.is_none_or(|project| self.visible.includes_project(project))
        });
        others.sort_by(|a, b| a.id.cmp(&b.id));
        choices.extend(others.into_iter().map(|model| {
            let confined = model.project.is_some() && model.project != self.project;
            let reason = if confined {
                "it answers in another project alone".to_owned()
            } else if model.archived {
                "its project is archived".to_owned()
            } else if !model.enabled {
                format!(
                    "it is switched off: `cynork model set {} …` without --disabled offers it",
                    model.id
                )
            } else {
                "its provider is switched off or gone: `cynork provider list` shows them".to_owned()
            };
            to_model_choice(model, None, reason)
        }));
        choices
    }

    /// Returns why a usable route would be skipped now.
    fn skip_reason(&self, way: &UpstreamRoute) -> Option<String> {
        let provider = &way.provider;
        let paid = matches!(provider.kind, ProviderKind::OpenAi | ProviderKind::Anthropic);
        if paid && !provider.has_key() && matches!(provider.source, AnswerSource::Network(_)) {
            return Some(format!(
                "provider `{0}` has no key: `cynork provider add-key {0} --label first`",
                provider.name
            ));
        }
        if let Err(until) = provider.usable_key(self.now, &self.models.tenant_parks, self.tenant) {
            let until = format_timestamp(until);
            return Some(format!("the keys of provider `{}` rest until {until}", provider.name));
        }
        let breaker = lock_unpoisoned(&self.models.breakers).get(&provider.id).copied()?;
        let pause = breaker.retry_after(Instant::now())?;
        let seconds = pause.max(Duration::from_secs(1)).as_secs();
        Some(format!(
            "provider `{}` keeps failing: its circuit breaker is open for {seconds} s",
            provider.name
        ))
    }
}

fn to_model_choice(
    model: &RoutedModel,
    way: Option<&UpstreamRoute>,
    reason: String,
) -> ModelChoice {
    ModelChoice {
        model: model.id.clone(),
        provider: way.map(|way| way.provider.name.clone()),
        upstream: way.map(|way| way.upstream.clone()),
        project_specific: model.project.is_some(),
        position: None,
        selected: false,
        reason,
    }
}
