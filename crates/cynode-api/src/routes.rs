//! Every route, in one list.

mod accounts;
mod answer;
mod artifacts;
mod audit;
mod environments;
mod estimates;
mod events;
mod groups;
mod handoffs;
mod keyring;
mod memories;
mod memory_ingests;
mod models;
mod nodes;
mod notifications;
mod operation;
mod policies;
mod preferences;
mod profiles;
mod projects;
mod pull_requests;
mod remotes;
mod repositories;
mod reviews;
mod rules;
mod schedules;
mod settings;
mod signals;
mod single_sign_on;
mod skills;
mod tasks;
mod tools;
mod workflow;

use axum::{Router, body::Bytes, http::header, response::Response, routing::get};
use utoipa::{OpenApi as _, openapi::OpenApi};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    AppState,
    document::{InternalDocument, PublicDocument},
    error::problem_response,
    problems,
};

// One function per area: a build without optimisation keeps every step of such a chain on the stack.
pub(crate) fn public_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(PublicDocument::openapi())
        .merge(account_routes())
        .merge(sign_on_routes())
        .merge(environment_routes())
        .merge(ingest_routes())
        .merge(task_routes())
        .merge(resource_routes())
}

/// Routes of accounts, projects, settings and preferences.
fn account_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(operation::home))
        .routes(routes!(operation::healthz))
        .routes(routes!(operation::readyz))
        .routes(routes!(operation::readiness))
        .routes(routes!(operation::diagnose))
        .routes(routes!(operation::list_certificates))
        .routes(routes!(operation::list_processes))
        .routes(routes!(operation::list_backups))
        .routes(routes!(operation::metrics))
        .routes(routes!(accounts::bootstrap))
        .routes(routes!(accounts::login, single_sign_on::list_sessions))
        .routes(routes!(accounts::logout))
        .routes(routes!(accounts::me))
        .routes(routes!(accounts::redeem_break_glass))
        .routes(routes!(accounts::change_password))
        .routes(routes!(accounts::get_second_factor, accounts::begin_second_factor))
        .routes(routes!(accounts::confirm_second_factor))
        .routes(routes!(accounts::verify_second_factor))
        .routes(routes!(accounts::issue_recovery_codes))
        .routes(routes!(accounts::delete_second_factor))
        .routes(routes!(accounts::create_scim_token, accounts::list_scim_tokens))
        .routes(routes!(accounts::revoke_scim_token))
        .routes(routes!(accounts::create_api_key, accounts::list_api_keys))
        .routes(routes!(accounts::revoke_api_key))
        .routes(routes!(accounts::create_user, accounts::list_users))
        .routes(routes!(accounts::get_user, accounts::update_user))
        .routes(routes!(groups::create_group, groups::list_groups))
        .routes(routes!(groups::update_group))
        .routes(routes!(projects::create_project, projects::list_projects))
        .routes(routes!(projects::get_project, projects::update_project, projects::delete_project))
        .routes(routes!(projects::archive_project))
        .routes(routes!(projects::unarchive_project))
        .routes(routes!(projects::list_members))
        .routes(routes!(projects::set_member, projects::remove_member))
        .routes(routes!(projects::set_group_role))
        .routes(routes!(settings::list_settings))
        .routes(routes!(settings::get_setting, settings::set_setting, settings::delete_setting))
        .routes(routes!(settings::setting_history))
        .routes(routes!(preferences::list_preferences))
        .routes(routes!(
            preferences::get_preference,
            preferences::set_preference,
            preferences::delete_preference
        ))
        .routes(routes!(preferences::preference_history))
        .routes(routes!(preferences::effective_preferences))
        .routes(routes!(policies::list_policies))
        .routes(routes!(policies::set_policy, policies::delete_policy))
        .routes(routes!(policies::effective_policies))
}

/// Routes of identity providers, linked accounts, sessions and logins of devices.
fn sign_on_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(single_sign_on::login_options))
        .routes(routes!(single_sign_on::start_provider_login))
        .routes(routes!(single_sign_on::finish_provider_login))
        .routes(routes!(single_sign_on::backchannel_logout))
        .routes(routes!(single_sign_on::list_identity_providers))
        .routes(routes!(
            single_sign_on::set_identity_provider,
            single_sign_on::delete_identity_provider
        ))
        .routes(routes!(single_sign_on::test_identity_provider))
        .routes(routes!(single_sign_on::list_identities, single_sign_on::link_identity))
        .routes(routes!(single_sign_on::unlink_identity))
        .routes(routes!(single_sign_on::list_user_identities))
        .routes(routes!(single_sign_on::remove_user_identity))
        .routes(routes!(single_sign_on::end_session))
        .routes(routes!(single_sign_on::provider_logout))
        .routes(routes!(single_sign_on::begin_device_login))
        .routes(routes!(single_sign_on::redeem_device_code))
        .routes(routes!(single_sign_on::get_device_login, single_sign_on::decide_device_login))
}

/// Routes of environments, their secrets and fetched packages.
fn environment_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(environments::list_environments, environments::propose_environment))
        .routes(routes!(environments::accepted_environment))
        .routes(routes!(environments::try_environment))
        .routes(routes!(environments::get_environment))
        .routes(routes!(environments::accept_environment))
        .routes(routes!(environments::reject_environment))
        .routes(routes!(environments::list_secrets))
        .routes(routes!(environments::set_secret, environments::delete_secret))
        .routes(routes!(environments::list_packages))
}

/// Routes of ingests into memory.
fn ingest_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(memory_ingests::create_ingest, memory_ingests::list_ingests))
        .routes(routes!(memory_ingests::get_ingest))
        .routes(routes!(memory_ingests::cancel_ingest))
}

/// Routes of tasks, their results, and notifications.
fn task_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(tasks::create_task, tasks::list_tasks))
        .routes(routes!(tasks::get_task))
        .routes(routes!(tasks::cancel_task))
        .routes(routes!(tasks::task_diff))
        .routes(routes!(tasks::retry_task))
        .routes(routes!(signals::instruct_task))
        .routes(routes!(signals::approve_task))
        .routes(routes!(signals::answer_task))
        .routes(routes!(signals::task_timeline))
        .routes(routes!(signals::task_evidence))
        .routes(routes!(signals::rerun_evidence))
        .routes(routes!(artifacts::list_artifacts))
        .routes(routes!(estimates::estimate_task))
        .routes(routes!(schedules::create_schedule, schedules::list_schedules))
        .routes(routes!(
            schedules::get_schedule,
            schedules::update_schedule,
            schedules::delete_schedule
        ))
        .routes(routes!(schedules::run_schedule))
        .routes(routes!(events::follow_events))
        .routes(routes!(handoffs::list_handoffs))
        .routes(routes!(handoffs::get_handoff))
        .routes(routes!(handoffs::get_prompt))
        .routes(routes!(handoffs::list_reports))
        .routes(routes!(handoffs::list_threads))
        .routes(routes!(handoffs::list_messages))
        .routes(routes!(pull_requests::list_pull_requests))
        .routes(routes!(pull_requests::get_pull_request))
        .routes(routes!(pull_requests::comment_pull_request))
        .routes(routes!(pull_requests::review_pull_request))
        .routes(routes!(pull_requests::close_pull_request))
        .routes(routes!(notifications::list_inbox))
        .routes(routes!(notifications::view_inbox_item))
        .routes(routes!(notifications::create_channel, notifications::list_channels))
        .routes(routes!(
            notifications::get_channel,
            notifications::update_channel,
            notifications::delete_channel
        ))
        .routes(routes!(notifications::test_channel))
        .routes(routes!(notifications::web_push_key))
        .routes(routes!(notifications::subscribe_browser))
        .routes(routes!(notifications::list_notifications))
        .routes(routes!(notifications::replay_notification))
        .routes(routes!(answer::look, answer::answer))
}

/// Routes of tools, models and nodes.
fn resource_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(tools::issue_agent_token, tools::list_agent_tokens))
        .routes(routes!(tools::revoke_agent_token))
        .routes(routes!(tools::list_tools))
        .routes(routes!(tools::tool_stats))
        .routes(routes!(tools::set_tool))
        .routes(routes!(tools::list_allowlists))
        .routes(routes!(tools::list_rules))
        .routes(routes!(tools::set_rule, tools::delete_rule))
        .routes(routes!(rules::backtest_rule))
        .routes(routes!(rules::check_rule))
        .routes(routes!(rules::rule_vocabulary))
        .routes(routes!(rules::rule_history))
        .routes(routes!(rules::draft_rule))
        .routes(routes!(rules::explain_recorded_call))
        .routes(routes!(tools::explain))
        .routes(routes!(profiles::list_profiles, profiles::create_profile))
        .routes(routes!(profiles::get_profile, profiles::update_profile, profiles::delete_profile))
        .routes(routes!(profiles::list_profile_versions))
        .routes(routes!(profiles::check_profile))
        .routes(routes!(tools::install_server, tools::list_servers))
        .routes(routes!(tools::get_server, tools::update_server, tools::uninstall_server))
        .routes(routes!(tools::refresh_server))
        .routes(routes!(tools::accept_tools))
        .routes(routes!(tools::annotate_tool))
        .routes(routes!(tools::list_approvals))
        .routes(routes!(tools::get_approval, tools::decide_approval))
        .routes(routes!(audit::search_audit))
        .routes(routes!(audit::audit_heads))
        .routes(routes!(keyring::list_audit_sinks))
        .routes(routes!(keyring::set_audit_sink, keyring::delete_audit_sink))
        .routes(routes!(keyring::get_keyring))
        .routes(routes!(tools::list_images, tools::allow_image, tools::disallow_image))
        .routes(routes!(memories::create_memory, memories::list_memories))
        .routes(routes!(memories::get_memory, memories::update_memory, memories::delete_memory))
        .routes(routes!(memories::accept_memory))
        .routes(routes!(memories::reject_memory))
        .routes(routes!(memories::search_memories))
        .routes(routes!(memories::forget_memories))
        .routes(routes!(skills::create_skill, skills::list_skills))
        .routes(routes!(skills::import_skill))
        .routes(routes!(skills::get_skill, skills::update_skill, skills::delete_skill))
        .routes(routes!(skills::export_skill))
        .routes(routes!(skills::list_skill_versions))
        .routes(routes!(skills::get_skill_version))
        .routes(routes!(reviews::review_content))
        .routes(routes!(models::list_providers))
        .routes(routes!(models::set_provider, models::delete_provider))
        .routes(routes!(models::add_provider_key))
        .routes(routes!(models::delete_provider_key))
        .routes(routes!(models::list_registry))
        .routes(routes!(models::explain_models))
        .routes(routes!(models::set_model, models::delete_model))
        .routes(routes!(models::list_budgets, models::set_budget))
        .routes(routes!(models::delete_budget))
        .routes(routes!(models::get_park, models::unpark))
        .routes(routes!(models::sum_usage))
        .routes(routes!(models::usage_series))
        .routes(routes!(models::list_calls))
        .routes(routes!(nodes::issue_join_token))
        .routes(routes!(nodes::list_nodes))
        .routes(routes!(nodes::get_node, nodes::update_node, nodes::delete_node))
        .routes(routes!(nodes::job_events))
        .routes(routes!(nodes::follow_job_events))
}

/// Returns the routes of the internal port.
pub(crate) fn internal_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(InternalDocument::openapi())
        .routes(routes!(operation::healthz))
        .routes(routes!(workflow::start_workflow))
        .routes(routes!(workflow::resume_workflow))
        .routes(routes!(workflow::checkpoint_workflow))
        .routes(routes!(workflow::renew_lease))
        .routes(routes!(workflow::release_lease))
        .routes(routes!(workflow::claim_jobs))
        .routes(routes!(workflow::keep_job))
        .routes(routes!(workflow::report_job))
        .routes(routes!(nodes::join))
        .routes(routes!(nodes::challenge))
        .routes(routes!(nodes::token))
        .routes(routes!(nodes::verify))
        .routes(routes!(nodes::certificate))
        .routes(routes!(nodes::report))
        .routes(routes!(nodes::claim))
        .routes(routes!(nodes::heartbeat))
        .routes(routes!(nodes::tell))
        .routes(routes!(nodes::ask_permission))
        .routes(routes!(repositories::advertise))
}

/// Returns the routes of the user-facing port that transfer many bytes, or wait for git or a model.
pub(crate) fn long_running_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(repositories::get_repository, repositories::import_repository))
        .routes(routes!(repositories::project_refs))
        .routes(routes!(repositories::project_pack))
        .routes(routes!(remotes::get_remote, remotes::set_remote, remotes::delete_remote))
        .routes(routes!(environments::detect_environment))
        .routes(routes!(artifacts::get_artifact))
        .routes(routes!(remotes::list_issues))
        .routes(routes!(remotes::receive_hook))
        .routes(routes!(pull_requests::diff_pull_request))
        .routes(routes!(pull_requests::pull_request_files))
        .routes(routes!(pull_requests::merge_pull_request))
        .routes(routes!(audit::verify_audit))
        .routes(routes!(audit::prove_call))
        .routes(routes!(handoffs::list_replays, handoffs::replay_decision))
        .routes(routes!(audit::audit_consistency))
        .routes(routes!(audit::export_audit))
        .routes(routes!(memories::export_memories))
}

/// Returns the routes of the internal port that transfer many bytes or wait for git.
pub(crate) fn internal_long_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(nodes::store_blob))
        .routes(routes!(nodes::result))
        .routes(routes!(repositories::upload_pack))
}

/// Serves the OpenAPI document, which cannot describe itself. It is serialised once: a route is cloned for every
/// connection, and this one must not carry a megabyte along.
pub(crate) fn document_route(document: &OpenApi) -> Router<AppState> {
    let text = Bytes::from(serde_json::to_vec(document).unwrap_or_default());
    let json = [(header::CONTENT_TYPE, "application/json")];
    Router::new().route("/v1/openapi.json", get(|| async move { (json, text) }))
}

pub(crate) async fn path_not_found() -> Response {
    let fix = Some("`/v1/openapi.json` lists every path".to_owned());
    problem_response(problems::PATH_NOT_FOUND, "there is nothing at this path".into(), fix)
}

pub(crate) async fn method_not_allowed() -> Response {
    let fix = Some("`/v1/openapi.json` lists the methods of every path".to_owned());
    let detail = "this path does not take this method".into();
    problem_response(problems::METHOD_NOT_ALLOWED, detail, fix)
}
