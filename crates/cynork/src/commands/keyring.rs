//! `cynork keyring`: the keys of the installation with their age and use.

use cynode_wire::platform::keys::{KeyView, KeyringView, MasterKeyView};

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
    let mut text = render_table(look.paint, heads, rows);
    if let Some(master) = &it.master_key {
        text.push_str("\n\n");
        text.push_str(&describe_master_key(master, look));
    }
    if it.rotating {
        text.push_str("\n\na rotation is under way; ");
        text.push_str(&describe_rotation(it));
    }
    text
}

fn describe_rotation(it: &KeyringView) -> String {
    if it.waiting_for.is_empty() {
        return format!("{} secrets and tokens name an old key", it.remaining);
    }
    let processes = it.waiting_for.join(", ");
    format!("it waits for processes that have not loaded the new key: {processes}")
}

fn describe_master_key(it: &MasterKeyView, look: &ValueFormatter) -> String {
    let version = it.version.as_deref().unwrap_or("the first one");
    let since = look.format_optional_time(it.since);
    let end = match (it.unfinished, &it.problem) {
        (true, _) => {
            "\nthe end of its rotation is missing: an admin runs `cynode admin rotate-key master` on the server"
                .to_owned()
        }
        (false, Some(problem)) => format!("\nit does not answer: {problem}"),
        (false, None) => String::new(),
    };
    format!("master key in {}: {version}, since {since}{end}", it.place)
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
