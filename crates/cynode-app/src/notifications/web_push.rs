//! Web push: the key that identifies the installation to push services, and browsers as notification channels.

use cynode_core::{accounts::CallerCredential, ids::ChannelId, notifications::ChannelKind};
use cynode_db::{
    Conn,
    notifications::{self, ChannelOwner, NotificationChannel, web_push},
};
use cynode_notify::{BrowserKeys, PushTarget, VapidKey};
use cynode_wire::notifications::{ChannelView, SubscribeBrowser, WebPushKeyView};
use url::Url;

use super::{
    MAX_USER_CHANNELS, NotificationParts, check_address_length, invalid_input, load_egress_scope,
    record_channel_event, require_person, to_channel_view, validate_channel_name,
    validate_event_kinds, validate_web_address,
};
use crate::{
    AuthenticatedCaller, Ctx, Error, GatewayParts,
    platform::{keys::InstallationKeys, operation},
};

/// How often random bytes may fail to be a key. One in four billion does.
const MAX_KEY_ATTEMPTS: usize = 8;

/// Contact of an installation without a public URL.
const LOCAL_SUBJECT: &str = "mailto:admin@localhost";

/// Returns the public key with which browsers subscribe. The first caller creates the key of the installation.
#[tracing::instrument(name = "app.notices.get_web_push_key", skip_all)]
#[operation]
pub async fn get_web_push_key(ctx: &mut Ctx, gate: &GatewayParts) -> Result<WebPushKeyView, Error> {
    require_person(ctx)?;
    let key = match load_vapid_key(ctx.conn(), &gate.keys).await? {
        Some(key) => key,
        None => create_vapid_key(ctx, &gate.keys).await?,
    };
    Ok(WebPushKeyView { public_key: key.encode_public_key() })
}

async fn load_vapid_key(
    conn: &mut Conn,
    keys: &InstallationKeys,
) -> Result<Option<VapidKey>, Error> {
    let Some(sealed) = web_push::find_web_push_key(conn).await? else { return Ok(None) };
    unseal_vapid_key(keys, &sealed).map(Some)
}

fn unseal_vapid_key(keys: &InstallationKeys, sealed: &[u8]) -> Result<VapidKey, Error> {
    let key = VapidKey::from_bytes(&keys.unseal_web_push_key(sealed)?);
    key.ok_or_else(|| Error::Internal(anyhow::anyhow!("the key of web push cannot be read")))
}

/// Creates the key of the installation. Of several callers at once, all get the key of the first.
async fn create_vapid_key(ctx: &mut Ctx, keys: &InstallationKeys) -> Result<VapidKey, Error> {
    let missing = || Error::Internal(anyhow::anyhow!("no key of web push was made"));
    let bytes = generate_scalar(ctx).ok_or_else(missing)?;
    let sealed = keys.seal_web_push_key(ctx.environment(), &bytes)?;
    let now = ctx.now;
    web_push::insert_web_push_key(ctx.conn(), &sealed, now).await?;
    load_vapid_key(ctx.conn(), keys).await?.ok_or_else(missing)
}

fn generate_scalar(ctx: &Ctx) -> Option<[u8; 32]> {
    let mut candidates = (0..MAX_KEY_ATTEMPTS).map(|_| ctx.environment().random_bytes::<32>());
    candidates.find(|bytes| VapidKey::from_bytes(bytes).is_some())
}

/// Subscribes a browser to the notifications of the caller. A browser that is subscribed already is renewed. A browser
/// that another user had subscribed is that user's no more: nobody but the browser knows its endpoint.
#[tracing::instrument(name = "app.notices.subscribe_browser", skip_all)]
#[operation]
pub async fn subscribe_browser(
    ctx: &mut Ctx,
    gate: &GatewayParts,
    body: SubscribeBrowser,
) -> Result<ChannelView, Error> {
    let caller = require_person(ctx)?;
    let egress = load_egress_scope(ctx.conn()).await?;
    let url = validate_web_address("endpoint", &body.endpoint, egress)?;
    let address = check_address_length("endpoint", url.into())?;
    let keys = BrowserKeys::parse_keys(&body.p256dh, &body.auth.0)
        .map_err(|error| Error::Invalid(format!("`p256dh`, `auth`: {error}")))?;
    let known = take_over_browser(ctx, caller, &address).await?;
    let change = if known.is_some() { "changed" } else { "added" };
    let mut channel = match known {
        Some(channel) => channel,
        None => build_browser_channel(ctx, caller, address).await?,
    };
    channel.name = validate_channel_name(&body.name)?;
    if body.kinds.is_some() {
        channel.kinds = validate_event_kinds(body.kinds)?;
    }
    let secret = keys.to_secret_text();
    channel.sealed = Some(gate.keys.seal_channel_secret(ctx.environment(), channel.id, &secret)?);
    (channel.enabled, channel.disabled_reason) = (true, None);
    let now = ctx.now;
    match notifications::set_channel(ctx.conn(), &channel, now).await {
        Err(error) if error.is_refused_by("notification_channels_browser_unique") => {
            return Err(Error::Conflict("the browser is being subscribed already: try again"));
        }
        stored => stored?,
    }
    let session = match caller.credential {
        CallerCredential::Session(session) => Some(session),
        _ => None,
    };
    web_push::bind_channel_session(ctx.conn(), channel.id, session).await?;
    // Bumping the epoch makes every redactor load the new secret.
    ctx.invalidate_models().await?;
    record_channel_event(ctx, &channel, change).await?;
    Ok(to_channel_view(channel))
}

/// Returns the caller's channel of the browser. Removes the channel of another user.
async fn take_over_browser(
    ctx: &mut Ctx,
    caller: AuthenticatedCaller,
    address: &str,
) -> Result<Option<NotificationChannel>, Error> {
    let known = web_push::lock_browser_channel(ctx.conn(), address).await?;
    let Some(channel) = known else { return Ok(None) };
    if channel.owner == ChannelOwner::User(caller.user) {
        return Ok(Some(channel));
    }
    notifications::remove_channel(ctx.conn(), channel.id).await?;
    record_channel_event(ctx, &channel, "removed").await?;
    Ok(None)
}

/// Builds a new channel of a browser, without its name and its secret.
async fn build_browser_channel(
    ctx: &mut Ctx,
    caller: AuthenticatedCaller,
    address: String,
) -> Result<NotificationChannel, Error> {
    if notifications::count_channels(ctx.conn(), caller.user).await? >= MAX_USER_CHANNELS {
        return invalid_input(format!("one person makes at most {MAX_USER_CHANNELS} channels"));
    }
    Ok(NotificationChannel {
        id: ChannelId::from_uuid(ctx.new_uuid()),
        owner: ChannelOwner::User(caller.user),
        name: String::new(),
        kind: ChannelKind::WebPush,
        address,
        sealed: None,
        old: None,
        kinds: validate_event_kinds(None)?,
        min_gap_seconds: 0,
        enabled: true,
        disabled_reason: None,
        created_by: caller.user,
        created_at: ctx.now,
    })
}

/// Unseals what a message to a browser needs.
pub(super) fn open_push_target(
    keys: &InstallationKeys,
    parts: &NotificationParts,
    endpoint: Url,
    browser: Option<&str>,
    sealed_key: Option<&[u8]>,
) -> Result<PushTarget, &'static str> {
    let browser = browser.ok_or("the browser has no keys")?;
    let sealed_key = sealed_key.ok_or("the installation has no key for web push")?;
    Ok(PushTarget {
        endpoint,
        keys: BrowserKeys::parse_secret(browser).map_err(|_| "the keys of the browser are none")?,
        vapid: unseal_vapid_key(keys, sealed_key)
            .map_err(|_| "the key of the installation cannot be opened")?,
        subject: contact_subject(parts.public_url.as_ref()),
    })
}

/// Returns the contact that push services are told: the public URL, if it is one that they accept.
fn contact_subject(public_url: Option<&Url>) -> String {
    match public_url {
        Some(url) if url.scheme() == "https" => url.to_string(),
        Some(_) | None => LOCAL_SUBJECT.to_owned(),
    }
}
