//! Model registry: providers, their sealed keys, and models.

use cynode_core::{
    ids::{ProjectId, ProviderId, ProviderKeyId, UserId},
    models::{Dialect, ModelPrices, ProviderKind, Tier},
};
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Conn, DbError, platform::error::corrupt_column};

/// A place where models are.
#[derive(Clone, Debug, PartialEq)]
pub struct ProviderRecord {
    /// Its id.
    pub id: ProviderId,
    /// What people call it.
    pub name: String,
    /// What kind of place it is.
    pub kind: ProviderKind,
    /// How it is spoken to.
    pub dialect: Dialect,
    /// What is not secret: an address, a script, a name of cassettes.
    pub place: Value,
    /// Whether nothing leaves what the person owns.
    pub local: bool,
    /// Whether it is used.
    pub enabled: bool,
}

/// A key of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderKey {
    /// Its id.
    pub id: ProviderKeyId,
    /// Whose it is.
    pub provider: ProviderId,
    /// What people call it.
    pub label: String,
    /// The key itself, encrypted.
    pub sealed: Vec<u8>,
    /// Until when it rests.
    pub parked_until: Option<OffsetDateTime>,
    /// Why.
    pub parked_reason: Option<String>,
    /// Who gave it.
    pub created_by: UserId,
    /// When.
    pub created_at: OffsetDateTime,
}

/// A model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a thing that a model can do or not")]
pub struct ModelRecord {
    /// The id that clients use.
    pub id: String,
    /// What people call it.
    pub title: String,
    /// How able it is.
    pub tier: Option<Tier>,
    /// Most tokens of a conversation.
    pub context_tokens: i64,
    /// Most tokens of an answer.
    pub max_output_tokens: i64,
    /// Whether it calls tools.
    pub tools: bool,
    /// Whether it sees images.
    pub images: bool,
    /// Whether it keeps to a schema.
    pub json_schema: bool,
    /// Whether it takes skills.
    pub skills: bool,
    /// Whether it is offered.
    pub enabled: bool,
    /// The only project it is offered to; all when there is none.
    pub project: Option<ProjectId>,
    /// Whether that project is archived: nobody can ask it then.
    pub archived: bool,
    /// How many seconds an answer may take; what holds for all models when there is none.
    pub think_seconds: Option<i32>,
    /// When it was added.
    pub created_at: OffsetDateTime,
    /// The ways to it, in order.
    pub routes: Vec<ModelRoute>,
}

/// A way to a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelRoute {
    /// Where it is.
    pub provider: ProviderId,
    /// What it is called there.
    pub upstream: String,
    /// What it costs there.
    pub prices: ModelPrices,
}

/// The number that every change raises, those of the gate included: its servers have secrets too.
pub async fn get_registry_epoch(conn: &mut Conn) -> Result<i64, DbError> {
    let epoch = sqlx::query_scalar!(
        r#"SELECT m.epoch + g.epoch AS "epoch!" FROM routing_epoch m, policy_epoch g"#
    );
    Ok(epoch.fetch_one(conn).await?)
}

/// Notes, in the transaction of the change, that every replica must look again.
#[tracing::instrument(name = "db.models.bump_registry_epoch", skip_all)]
pub async fn bump_registry_epoch(conn: &mut Conn) -> Result<(), DbError> {
    sqlx::query!("UPDATE routing_epoch SET epoch = epoch + 1").execute(conn).await?;
    Ok(())
}

struct ProviderRow {
    provider_id: Uuid,
    name: String,
    kind: String,
    dialect: String,
    endpoint: Value,
    local: bool,
    enabled: bool,
}

impl TryFrom<ProviderRow> for ProviderRecord {
    type Error = DbError;

    fn try_from(row: ProviderRow) -> Result<Self, DbError> {
        let wrong = |column| DbError::Corrupt { table: "model_providers", column };
        Ok(Self {
            id: ProviderId::from_uuid(row.provider_id),
            name: row.name,
            kind: ProviderKind::from_name(&row.kind).ok_or_else(|| wrong("kind"))?,
            dialect: Dialect::from_name(&row.dialect).ok_or_else(|| wrong("dialect"))?,
            place: row.endpoint,
            local: row.local,
            enabled: row.enabled,
        })
    }
}

/// Every provider, by name.
#[tracing::instrument(name = "db.models.list_providers", skip_all)]
pub async fn list_providers(conn: &mut Conn) -> Result<Vec<ProviderRecord>, DbError> {
    let rows = sqlx::query_as!(
        ProviderRow,
        "SELECT provider_id, name, kind, dialect, endpoint, local, enabled FROM model_providers ORDER BY name",
    );
    rows.fetch_all(conn).await?.into_iter().map(ProviderRecord::try_from).collect()
}

/// The provider of that name, locked until the transaction ends.
pub async fn lock_provider(conn: &mut Conn, name: &str) -> Result<Option<ProviderRecord>, DbError> {
    let row = sqlx::query_as!(
        ProviderRow,
        "
        SELECT provider_id, name, kind, dialect, endpoint, local, enabled FROM model_providers
        WHERE name = $1 FOR UPDATE
        ",
        name,
    );
    row.fetch_optional(conn).await?.map(ProviderRecord::try_from).transpose()
}

/// Stores a provider, or what is new about it.
#[tracing::instrument(name = "db.models.set_provider", skip_all)]
pub async fn set_provider(
    conn: &mut Conn,
    provider: &ProviderRecord,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO model_providers (provider_id, name, kind, dialect, endpoint, local, enabled, created_at, updated_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8)
        ON CONFLICT (provider_id) DO UPDATE
        SET kind = $3, dialect = $4, endpoint = $5, local = $6, enabled = $7, updated_at = $8
        ",
        provider.id.as_uuid(),
        provider.name,
        provider.kind.as_str(),
        provider.dialect.as_str(),
        provider.place,
        provider.local,
        provider.enabled,
        now,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Removes a provider with its keys and the ways that lead to it.
#[tracing::instrument(name = "db.models.remove_provider", skip_all)]
pub async fn remove_provider(conn: &mut Conn, id: ProviderId) -> Result<(), DbError> {
    sqlx::query!("DELETE FROM model_providers WHERE provider_id = $1", id.as_uuid())
        .execute(conn)
        .await?;
    Ok(())
}

/// Every key, oldest first.
#[tracing::instrument(name = "db.models.list_provider_keys", skip_all)]
pub async fn list_provider_keys(conn: &mut Conn) -> Result<Vec<ProviderKey>, DbError> {
    let rows = sqlx::query!(
        "
        SELECT key_id, provider_id, label, sealed_key, parked_until, parked_reason, created_by, created_at
        FROM provider_keys ORDER BY created_at, key_id
        ",
    );
    let rows = rows.fetch_all(conn).await?.into_iter();
    Ok(rows
        .map(|row| ProviderKey {
            id: ProviderKeyId::from_uuid(row.key_id),
            provider: ProviderId::from_uuid(row.provider_id),
            label: row.label,
            sealed: row.sealed_key,
            parked_until: row.parked_until,
            parked_reason: row.parked_reason,
            created_by: UserId::from_uuid(row.created_by),
            created_at: row.created_at,
        })
        .collect())
}

/// Stores a new key.
#[tracing::instrument(name = "db.models.insert_provider_key", skip_all)]
pub async fn insert_provider_key(conn: &mut Conn, key: &ProviderKey) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO provider_keys (key_id, provider_id, label, sealed_key, created_by, created_at)
        VALUES ($1, $2, $3, $4, $5, $6)
        ",
        key.id.as_uuid(),
        key.provider.as_uuid(),
        key.label,
        key.sealed,
        key.created_by.as_uuid(),
        key.created_at,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Seals a key anew, if it is still sealed as it was.
pub async fn reseal_provider_key(
    conn: &mut Conn,
    id: ProviderKeyId,
    was: &[u8],
    sealed: &[u8],
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "UPDATE provider_keys SET sealed_key = $3 WHERE key_id = $1 AND sealed_key = $2",
        id.as_uuid(),
        was,
        sealed,
    );
    Ok(done.execute(conn).await?.rows_affected() == 1)
}

/// Removes a key. Gives whether it was there.
#[tracing::instrument(name = "db.models.remove_provider_key", skip_all)]
pub async fn remove_provider_key(
    conn: &mut Conn,
    provider: ProviderId,
    id: ProviderKeyId,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "DELETE FROM provider_keys WHERE provider_id = $1 AND key_id = $2",
        provider.as_uuid(),
        id.as_uuid(),
    );
    Ok(done.execute(conn).await?.rows_affected() == 1)
}

/// Lets a key rest for everybody, if it does not rest already: of many who find it out one tells.
#[tracing::instrument(name = "db.models.park_provider_key", skip_all)]
pub async fn park_provider_key(
    conn: &mut Conn,
    id: ProviderKeyId,
    until: OffsetDateTime,
    reason: &str,
    now: OffsetDateTime,
) -> Result<bool, DbError> {
    let done = sqlx::query!(
        "
        UPDATE provider_keys SET parked_until = $2, parked_reason = $3
        WHERE key_id = $1 AND (parked_until IS NULL OR parked_until <= $4)
        ",
        id.as_uuid(),
        until,
        reason,
        now,
    );
    Ok(done.execute(conn).await?.rows_affected() == 1)
}

/// Every model with its routes, by id.
#[tracing::instrument(name = "db.models.list_models", skip_all)]
pub async fn list_models(conn: &mut Conn) -> Result<Vec<ModelRecord>, DbError> {
    let rows = sqlx::query!(
        r#"
        SELECT model_id, m.title, tier, context_tokens, max_output_tokens, tools, images, json_schema, skills, enabled,
            m.project_id, think_seconds, m.created_at,
            (SELECT p.archived_at FROM projects p WHERE p.project_id = m.project_id) AS "archived_at?"
        FROM models m ORDER BY model_id
        "#,
    )
    .fetch_all(&mut *conn)
    .await?;
    let routes = sqlx::query!(
        "
        SELECT model_id, provider_id, upstream, input_price, cached_price, cache_write_price, output_price
        FROM model_routes ORDER BY model_id, position
        ",
    )
    .fetch_all(conn)
    .await?;
    let mut models = Vec::with_capacity(rows.len());
    let mut routes = routes.into_iter().peekable();
    for row in rows {
        let mut own = Vec::new();
        while let Some(route) = routes.next_if(|route| route.model_id == row.model_id) {
            own.push(ModelRoute {
                provider: ProviderId::from_uuid(route.provider_id),
                upstream: route.upstream,
                prices: ModelPrices {
                    input: route.input_price.unsigned_abs(),
                    cached: route.cached_price.unsigned_abs(),
                    cache_write: route.cache_write_price.unsigned_abs(),
                    output: route.output_price.unsigned_abs(),
                },
            });
        }
        let tier = row.tier.map(|name| {
            Tier::from_name(&name).ok_or(DbError::Corrupt { table: "models", column: "tier" })
        });
        models.push(ModelRecord {
            id: row.model_id,
            title: row.title,
            tier: tier.transpose()?,
            context_tokens: row.context_tokens,
            max_output_tokens: row.max_output_tokens,
            tools: row.tools,
            images: row.images,
            json_schema: row.json_schema,
            skills: row.skills,
            enabled: row.enabled,
            project: row.project_id.map(ProjectId::from_uuid),
            archived: row.archived_at.is_some(),
            think_seconds: row.think_seconds,
            created_at: row.created_at,
            routes: own,
        });
    }
    Ok(models)
}

/// Stores a model and the ways to it, instead of what there was.
#[tracing::instrument(name = "db.models.set_model", skip_all)]
pub async fn set_model(
    conn: &mut Conn,
    model: &ModelRecord,
    now: OffsetDateTime,
) -> Result<(), DbError> {
    sqlx::query!(
        "
        INSERT INTO models (model_id, title, tier, context_tokens, max_output_tokens, tools, images, json_schema, skills,
            enabled, created_at, updated_at, project_id, think_seconds)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
        ON CONFLICT (model_id) DO UPDATE
        SET title = $2, tier = $3, context_tokens = $4, max_output_tokens = $5, tools = $6, images = $7, json_schema = $8,
            skills = $9, enabled = $10, updated_at = $12, project_id = $13, think_seconds = $14
        ",
        model.id,
        model.title,
        model.tier.map(Tier::as_str),
        model.context_tokens,
        model.max_output_tokens,
        model.tools,
        model.images,
        model.json_schema,
        model.skills,
        model.enabled,
        model.created_at,
        now,
        model.project.map(ProjectId::as_uuid),
        model.think_seconds,
    )
    .execute(&mut *conn)
    .await?;
    sqlx::query!("DELETE FROM model_routes WHERE model_id = $1", model.id)
        .execute(&mut *conn)
        .await?;
    for (position, route) in model.routes.iter().enumerate() {
        let number =
            |price: u64| i64::try_from(price).map_err(corrupt_column("model_routes", "price"));
        sqlx::query!(
            "
            INSERT INTO model_routes (model_id, position, provider_id, upstream, input_price, cached_price,
                cache_write_price, output_price)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
            ",
            model.id,
            i32::try_from(position).map_err(corrupt_column("model_routes", "position"))?,
            route.provider.as_uuid(),
            route.upstream,
            number(route.prices.input)?,
            number(route.prices.cached)?,
            number(route.prices.cache_write)?,
            number(route.prices.output)?,
        )
        .execute(&mut *conn)
        .await?;
    }
    Ok(())
}

/// Removes a model. Gives whether it was there.
#[tracing::instrument(name = "db.models.remove_model", skip_all)]
pub async fn remove_model(conn: &mut Conn, id: &str) -> Result<bool, DbError> {
    let done = sqlx::query!("DELETE FROM models WHERE model_id = $1", id);
    Ok(done.execute(conn).await?.rows_affected() == 1)
}
