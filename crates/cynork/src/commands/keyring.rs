//! `cynork keyring`: the keys of the installation with their age and use.

use cynode_wire::platform::keys::{KeyView, KeyringView};

use crate::{
    client::ApiRequest, context::CliContext, failure::Result, format::ValueFormatter, operations,
    output::render_table,
};

/// Shows the keys. Their secrets never leave the server.
pub(crate) async fn show_keyring(context: &CliContext) -> Result<()> {
    let call = ApiRequest::for_operation(operations::GET_KEYRING);
    let value = context.send_request(&call).await?;
    let names = |it: &KeyringView| it.keys.iter().map(|key| key.key_id.clone()).collect::<Vec<_>>();
    context.show_answer(&value, names, render_keyring)
}

fn render_keyring(it: &KeyringView, look: &ValueFormatter) -> String {
    let heads = ["key", "for", "state", "created", "retired", "named by"];
    let rows = it.keys.iter().map(|key| key_row(key, look)).collect();
    let table = render_table(look.paint, heads, rows);
    if it.rotating {
        let rest = it.remaining;
        return format!(
            "{table}\n\na rotation is under way; {rest} secrets and tokens name an old key"
        );
    }
    table
}

fn key_row(key: &KeyView, look: &ValueFormatter) -> [String; 6] {
    let uses = key.uses.iter().map(|named| format!("{} {}", named.count, named.kind));
    [
        look.style_dim(&key.key_id),
        look.style_bold(&key.purpose),
        look.style_state(&key.state),
        look.format_relative_time(key.created_at),
        look.format_optional_time(key.retired_at),
        uses.collect::<Vec<_>>().join(", "),
    ]
}
