//! Administration of the model registry: providers, their keys, models and routes.

use cynode_core::settings::registry::THINK_TIMEOUT_SECONDS_RANGE;
use cynode_core::{
    events::EventKind,
    ids::{ProviderId, ProviderKeyId},
    models::{Dialect, OWN_MODEL_PREFIX, ProviderKind},
    roles::UserRole,
};
use cynode_db::{
    DbError,
    models::registry::{self, ModelRecord, ModelRoute, ProviderKey, ProviderRecord},
};
use cynode_net::ssrf::{is_localhost_name, is_private_host};
use cynode_wire::models::{
    AddProviderKey, ModelView, ProviderKeyView, ProviderView, RouteView, SetModel, SetProvider,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use url::Url;

use crate::{
    Ctx, Error, GatewayParts,
    platform::{context::EventDraft, operation},
    tasks::projects::VisibleProjects,
};

/// Maximum size of a script.
const MAX_SCRIPT_BYTES: usize = 512 * 1024;

/// Maximum number of routes of one model.
const MAX_MODEL_ROUTES: usize = 16;

/// Endpoint of a provider, as stored in its row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProviderEndpoint {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) base_url: Option<Url>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) script: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) recorded_provider: Option<ProviderId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cassette: Option<String>,
}

impl ProviderEndpoint {
    /// Parses the stored endpoint of a provider.
    pub(crate) fn from_provider(provider: &ProviderRecord) -> Result<Self, Error> {
        serde_json::from_value(provider.place.clone())
            .map_err(|_| DbError::Corrupt { table: "model_providers", column: "endpoint" }.into())
    }
}

/// Returns the associated data of a sealed key: the key belongs to one kind of provider at one origin. A key that is
/// moved to another place in the database cannot be opened there.
pub(crate) fn provider_key_associated_data(
    id: ProviderKeyId,
    provider: &ProviderRecord,
) -> Result<Vec<u8>, Error> {
    let audience = key_audience(provider)?;
    Ok([b"provider-key/".as_slice(), id.as_uuid().as_bytes(), audience.as_bytes()].concat())
}

/// Returns who receives the keys of a provider: its kind and its origin (scheme, host and port).
fn key_audience(provider: &ProviderRecord) -> Result<String, Error> {
    let endpoint = ProviderEndpoint::from_provider(provider)?;
    let origin = endpoint.base_url.map(|url| url.origin().ascii_serialization());
    Ok(format!("{}/{}", provider.kind.as_str(), origin.unwrap_or_default()))
}

/// Requires an admin of the installation who is a person. Nobody else decides where prompts are sent.
fn require_admin(ctx: &mut Ctx) -> Result<(), Error> {
    ctx.require_role(UserRole::Admin).map(|_| ())
}

fn invalid_input<T>(told: impl Into<String>) -> Result<T, Error> {
    Err(Error::Invalid(told.into()))
}

/// Creates or replaces a provider. Its keys stay only while its kind and its origin stay: a key that was given for
/// one host is never sent to another.
#[tracing::instrument(name = "app.models.set_provider", skip_all)]
#[operation]
pub async fn set_provider(
    ctx: &mut Ctx,
    name: &str,
    body: SetProvider,
) -> Result<ProviderView, Error> {
    require_admin(ctx)?;
    let good = name.len() <= 31
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if !good {
        return invalid_input(
            "a provider's name has 1 to 31 of a-z, 0-9 and `-`, and begins with a letter",
        );
    }
    let there = registry::lock_provider(ctx.conn(), name).await?;
    let (place, dialect) = validate_provider(ctx, &body).await?;
    let local = body.local.unwrap_or_else(|| match &place.base_url {
        Some(url) => is_private(url),
        None => body.kind != ProviderKind::Record,
    });
    let id = match &there {
        Some(provider) => provider.id,
        None => ProviderId::from_uuid(ctx.new_uuid()),
    };
    let provider = ProviderRecord {
        id,
        name: name.to_owned(),
        kind: body.kind,
        dialect,
        place: serde_json::to_value(place).map_err(|error| Error::Internal(error.into()))?,
        local,
        enabled: body.enabled.unwrap_or(true),
    };
    let now = ctx.now;
    match registry::set_provider(ctx.conn(), &provider, now).await {
        Err(error) if error.is_refused_by("model_providers_name_unique") => {
            return Err(Error::AlreadyExists {
                what: "a provider with the name",
                name: provider.name,
            });
        }
        result => result?,
    }
    record_registry_change(
        ctx,
        EventKind::ProviderSet,
        json!({ "provider": name, "change": "set" }),
    )
    .await?;
    let dropped_keys = match &there {
        Some(before) if key_audience(before)? != key_audience(&provider)? => {
            drop_provider_keys(ctx, &provider).await?
        }
        _ => Vec::new(),
    };
    Ok(ProviderView { dropped_keys, ..to_provider_view(ctx, provider).await? })
}

/// Drops every key of a provider and returns their labels.
async fn drop_provider_keys(
    ctx: &mut Ctx,
    provider: &ProviderRecord,
) -> Result<Vec<String>, Error> {
    let mut labels = Vec::new();
    for key in registry::list_provider_keys(ctx.conn()).await? {
        if key.provider != provider.id {
            continue;
        }
        registry::remove_provider_key(ctx.conn(), provider.id, key.id).await?;
        let data = json!({ "provider": provider.name, "key_id": key.id, "change": "dropped" });
        record_registry_change(ctx, EventKind::ProviderKeySet, data).await?;
        labels.push(key.label);
    }
    Ok(labels)
}

/// Returns whether the host of a URL is this machine or in a private network, judged by the URL alone.
pub(crate) fn is_private(url: &Url) -> bool {
    is_private_host(url) || is_localhost_name(url)
}

async fn validate_provider(
    ctx: &mut Ctx,
    body: &SetProvider,
) -> Result<(ProviderEndpoint, Dialect), Error> {
    let kind = body.kind;
    let address = |default: Option<&str>| {
        let text = body.base_url.as_deref().or(default);
        let Some(text) = text else { return invalid_input("`base_url` is missing") };
        let url: Url = text
            .trim_end_matches('/')
            .parse()
            .map_err(|_| Error::Invalid("`base_url` is no address".into()))?;
        let good = matches!(url.scheme(), "http" | "https")
            && url.host().is_some()
            && url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none();
        if !good {
            return invalid_input(
                "`base_url` is http(s)://host[:port]/path, without a password or a query",
            );
        }
        // A key must not be sent without encryption.
        if url.scheme() == "http" && !is_private(&url) {
            return invalid_input("a public `base_url` is https");
        }
        Ok(Some(url))
    };
    let (usual, place) = match kind {
        ProviderKind::Compatible => (
            Dialect::Chat,
            ProviderEndpoint { base_url: address(None)?, ..ProviderEndpoint::default() },
        ),
        ProviderKind::OpenAi => {
            let base_url = address(Some("https://api.openai.com/v1"))?;
            (Dialect::Responses, ProviderEndpoint { base_url, ..ProviderEndpoint::default() })
        }
        ProviderKind::Anthropic => {
            let base_url = address(Some("https://api.anthropic.com/v1"))?;
            (Dialect::Messages, ProviderEndpoint { base_url, ..ProviderEndpoint::default() })
        }
        ProviderKind::Scripted => {
            let Some(script) = &body.script else { return invalid_input("`script` is missing") };
            if script.to_string().len() > MAX_SCRIPT_BYTES {
                return invalid_input(format!("`script` has at most {MAX_SCRIPT_BYTES} bytes"));
            }
            cynode_models::script::ModelScript::parse_script(script)
                .map_err(|error| Error::Invalid(format!("`script`: {error}")))?;
            (
                Dialect::Chat,
                ProviderEndpoint { script: Some(script.clone()), ..ProviderEndpoint::default() },
            )
        }
        ProviderKind::Record | ProviderKind::Replay => {
            let Some(cassette) = &body.cassette else {
                return invalid_input("`cassette` is missing");
            };
            let good = (1..=60).contains(&cassette.len())
                && cassette
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
            if !good {
                return invalid_input("`cassette` has 1 to 60 of a-z, 0-9 and `-`");
            }
            let (recorded_provider, usual) = match (&body.recorded_provider, kind) {
                (Some(name), ProviderKind::Record) => {
                    let found = registry::lock_provider(ctx.conn(), name).await?;
                    let found = found.ok_or_else(|| Error::not_found("provider", name))?;
                    if matches!(found.kind, ProviderKind::Record | ProviderKind::Replay) {
                        return invalid_input(
                            "`recorded_provider` names a provider that keeps answers itself",
                        );
                    }
                    (Some(found.id), found.dialect)
                }
                (None, ProviderKind::Record) => {
                    return invalid_input("`recorded_provider` is missing");
                }
                (_, _) => (None, Dialect::Chat),
            };
            (
                usual,
                ProviderEndpoint {
                    recorded_provider,
                    cassette: Some(cassette.clone()),
                    ..ProviderEndpoint::default()
                },
            )
        }
    };
    Ok((place, body.dialect.unwrap_or(usual)))
}

async fn record_registry_change(ctx: &mut Ctx, kind: EventKind, data: Value) -> Result<(), Error> {
    ctx.invalidate_models().await?;
    ctx.record_event(EventDraft::new(kind, data)).await
}

/// Deletes a provider with its keys. Models without another provider are left without a route.
#[tracing::instrument(name = "app.models.delete_provider", skip_all)]
#[operation]
pub async fn delete_provider(ctx: &mut Ctx, name: &str) -> Result<(), Error> {
    require_admin(ctx)?;
    let provider = lock_provider(ctx, name).await?;
    registry::remove_provider(ctx.conn(), provider.id).await?;
    record_registry_change(
        ctx,
        EventKind::ProviderSet,
        json!({ "provider": name, "change": "removed" }),
    )
    .await
}

async fn lock_provider(ctx: &mut Ctx, name: &str) -> Result<ProviderRecord, Error> {
    let provider = registry::lock_provider(ctx.conn(), name).await?;
    provider.ok_or_else(|| Error::not_found("provider", name))
}

/// Lists all providers.
#[tracing::instrument(name = "app.models.list_providers", skip_all)]
#[operation]
pub async fn list_providers(ctx: &mut Ctx) -> Result<Vec<ProviderView>, Error> {
    ctx.require_role(UserRole::Viewer)?;
    let mut views = Vec::new();
    for provider in registry::list_providers(ctx.conn()).await? {
        views.push(to_provider_view(ctx, provider).await?);
    }
    Ok(views)
}

async fn to_provider_view(ctx: &mut Ctx, provider: ProviderRecord) -> Result<ProviderView, Error> {
    let place = ProviderEndpoint::from_provider(&provider)?;
    let keys = registry::list_provider_keys(ctx.conn()).await?.into_iter();
    let keys = keys.filter(|key| key.provider == provider.id).map(to_key_view).collect();
    let recorded_provider = match place.recorded_provider {
        Some(id) => {
            let all = registry::list_providers(ctx.conn()).await?;
            all.into_iter().find(|other| other.id == id).map(|other| other.name)
        }
        None => None,
    };
    Ok(ProviderView {
        provider_id: provider.id,
        name: provider.name,
        kind: provider.kind,
        dialect: provider.dialect,
        base_url: place.base_url.map(String::from),
        recorded_provider,
        cassette: place.cassette,
        local: provider.local,
        enabled: provider.enabled,
        keys,
        dropped_keys: Vec::new(),
    })
}

fn to_key_view(key: ProviderKey) -> ProviderKeyView {
    ProviderKeyView {
        key_id: key.id,
        label: key.label,
        parked_until: key.parked_until,
        parked_reason: key.parked_reason,
        created_at: key.created_at,
    }
}

/// Adds a key to a provider. With several keys, one in cooldown is skipped. To rotate a key, add the new one and
/// delete the old.
#[tracing::instrument(name = "app.models.add_provider_key", skip_all)]
#[operation]
pub async fn add_provider_key(
    ctx: &mut Ctx,
    parts: &GatewayParts,
    name: &str,
    body: AddProviderKey,
) -> Result<ProviderKeyView, Error> {
    require_admin(ctx)?;
    let provider = lock_provider(ctx, name).await?;
    let visible = body.key.0.bytes().all(|b| (0x21..0x7f).contains(&b));
    if !(1..=4096).contains(&body.key.0.len()) || !visible {
        return invalid_input("`key` has 1 to 4096 visible ASCII characters and no space");
    }
    if body.label.trim().is_empty() || body.label.chars().count() > 100 {
        return invalid_input("`label` has 1 to 100 characters");
    }
    let id = ProviderKeyId::from_uuid(ctx.new_uuid());
    let place = provider_key_associated_data(id, &provider)?;
    let sealed = parts.keys.seal_secret(ctx.environment(), &place, body.key.0.as_bytes())?;
    let key = ProviderKey {
        id,
        provider: provider.id,
        label: body.label,
        sealed,
        parked_until: None,
        parked_reason: None,
        created_by: ctx.caller()?.user,
        created_at: ctx.now,
    };
    match registry::insert_provider_key(ctx.conn(), &key).await {
        Err(error) if error.is_refused_by("provider_keys_label_unique") => {
            return Err(Error::AlreadyExists { what: "a key with the label", name: key.label });
        }
        result => result?,
    }
    let data = json!({ "provider": name, "key_id": key.id, "change": "added" });
    record_registry_change(ctx, EventKind::ProviderKeySet, data).await?;
    Ok(to_key_view(key))
}

/// Deletes a key. The next call no longer uses it.
#[tracing::instrument(name = "app.models.delete_provider_key", skip_all)]
#[operation]
pub async fn delete_provider_key(
    ctx: &mut Ctx,
    name: &str,
    id: ProviderKeyId,
) -> Result<(), Error> {
    require_admin(ctx)?;
    let provider = lock_provider(ctx, name).await?;
    if !registry::remove_provider_key(ctx.conn(), provider.id, id).await? {
        return Err(Error::not_found("key of this provider", id));
    }
    let data = json!({ "provider": name, "key_id": id, "change": "removed" });
    record_registry_change(ctx, EventKind::ProviderKeySet, data).await
}

/// Creates or replaces a model.
#[tracing::instrument(name = "app.models.set_model", skip_all)]
#[operation]
pub async fn set_model(ctx: &mut Ctx, id: &str, body: SetModel) -> Result<ModelView, Error> {
    require_admin(ctx)?;
    let good = (1..=128).contains(&id.len())
        && id.starts_with(|c: char| c.is_ascii_alphanumeric())
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:/@+-".contains(&b));
    if !good || id.to_ascii_lowercase().starts_with(OWN_MODEL_PREFIX) {
        return invalid_input(format!(
            "a model's id has 1 to 128 of A-Z, a-z, 0-9 and `._:/@+-`, and does not begin with `{OWN_MODEL_PREFIX}`"
        ));
    }
    if !(1..=100_000_000).contains(&body.context_tokens)
        || !(1..=10_000_000).contains(&body.max_output_tokens)
    {
        return invalid_input(
            "`context_tokens` is 1 to 100000000, `max_output_tokens` 1 to 10000000",
        );
    }
    if body
        .think_seconds
        .is_some_and(|seconds| !THINK_TIMEOUT_SECONDS_RANGE.contains(&i64::from(seconds)))
    {
        let (least, most) =
            (THINK_TIMEOUT_SECONDS_RANGE.start(), THINK_TIMEOUT_SECONDS_RANGE.end());
        return invalid_input(format!("`think_seconds` is {least} to {most}"));
    }
    if body.routes.is_empty() || body.routes.len() > MAX_MODEL_ROUTES {
        return invalid_input(format!("a model has 1 to {MAX_MODEL_ROUTES} routes"));
    }
    let providers = registry::list_providers(ctx.conn()).await?;
    let route = |route: &RouteView| {
        let prices = route.prices;
        let dearest = prices.input.max(prices.cached).max(prices.cache_write).max(prices.output);
        if dearest > 1_000_000_000_000 {
            return invalid_input("a price is at most 1000000000000");
        }
        if !(1..=200).contains(&route.upstream.chars().count()) {
            return invalid_input("`upstream` has 1 to 200 characters");
        }
        let provider = providers.iter().find(|provider| provider.name == route.provider);
        let provider = provider.ok_or_else(|| Error::not_found("provider", &route.provider))?.id;
        Ok(ModelRoute { provider, upstream: route.upstream.clone(), prices })
    };
    let routes = body.routes.iter().map(route).collect::<Result<Vec<_>, Error>>()?;
    let title = body.title.unwrap_or_else(|| id.to_owned());
    if !(1..=200).contains(&title.chars().count()) {
        return invalid_input("`title` has 1 to 200 characters");
    }
    if let Some(project) = body.project_id
        && cynode_db::tasks::projects::get_project(ctx.conn(), project).await?.is_none()
    {
        return Err(Error::not_found("project", project));
    }
    let model = ModelRecord {
        id: id.to_owned(),
        title,
        tier: body.tier,
        context_tokens: body.context_tokens,
        max_output_tokens: body.max_output_tokens,
        tools: body.tools,
        images: body.images,
        json_schema: body.json_schema,
        skills: body.skills,
        enabled: body.enabled.unwrap_or(true),
        project: body.project_id,
        archived: false,
        think_seconds: body.think_seconds,
        created_at: ctx.now,
        routes,
    };
    let now = ctx.now;
    registry::set_model(ctx.conn(), &model, now).await?;
    record_registry_change(ctx, EventKind::ModelSet, json!({ "model": id, "change": "set" }))
        .await?;
    Ok(to_model_view(model, &providers))
}

/// Deletes a model.
#[tracing::instrument(name = "app.models.delete_model", skip_all)]
#[operation]
pub async fn delete_model(ctx: &mut Ctx, id: &str) -> Result<(), Error> {
    require_admin(ctx)?;
    if !registry::remove_model(ctx.conn(), id).await? {
        return Err(Error::not_found("model", id));
    }
    record_registry_change(ctx, EventKind::ModelSet, json!({ "model": id, "change": "removed" }))
        .await
}

/// Lists the models that the caller may use, with their prices and routes: the general ones and those of the
/// caller's projects.
#[tracing::instrument(name = "app.models.list_models", skip_all)]
#[operation]
pub async fn list_models(ctx: &mut Ctx) -> Result<Vec<ModelView>, Error> {
    let visible = VisibleProjects::load_for_caller(ctx).await?;
    let providers = registry::list_providers(ctx.conn()).await?;
    let found = registry::list_models(ctx.conn()).await?.into_iter();
    let found =
        found.filter(|model| model.project.is_none_or(|project| visible.includes_project(project)));
    Ok(found.map(|model| to_model_view(model, &providers)).collect())
}

fn to_model_view(model: ModelRecord, providers: &[ProviderRecord]) -> ModelView {
    let named = |id: ProviderId| {
        providers.iter().find(|provider| provider.id == id).map(|provider| provider.name.clone())
    };
    let routes = model.routes.into_iter().map(|route| RouteView {
        provider: named(route.provider).unwrap_or_default(),
        upstream: route.upstream,
        prices: route.prices,
    });
    ModelView {
        id: model.id,
        title: model.title,
        tier: model.tier,
        context_tokens: model.context_tokens,
        max_output_tokens: model.max_output_tokens,
        tools: model.tools,
        images: model.images,
        json_schema: model.json_schema,
        skills: model.skills,
        enabled: model.enabled,
        project_id: model.project,
        think_seconds: model.think_seconds,
        routes: routes.collect(),
    }
}
