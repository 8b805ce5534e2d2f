//! The search provider of the installation.

use cynode_core::settings::registry::WEB_SEARCH_URL_SETTING;

use crate::{
    Ctx, Error,
    platform::{operation, settings},
};

/// Returns the address of the search provider, if an admin has set one.
#[tracing::instrument(name = "app.web_search.search_provider", skip_all)]
#[operation]
pub async fn search_provider(ctx: &mut Ctx) -> Result<Option<String>, Error> {
    ctx.caller()?;
    let set = settings::setting_value(ctx.conn(), WEB_SEARCH_URL_SETTING).await?;
    Ok(set.and_then(|value| value.as_str().map(str::to_owned)))
}
