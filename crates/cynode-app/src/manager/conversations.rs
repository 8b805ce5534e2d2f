//! Chat threads with the project manager. Only the user who wrote a thread reads it.

use cynode_core::{
    ids::ThreadId,
    paging::{Page, PageRequest},
};
use cynode_db::manager::conversations;
use cynode_wire::manager::handoffs::{ChatTurn, ThreadView};

use crate::{Ctx, Error, platform::operation};

/// Lists the caller's threads, newest first.
#[tracing::instrument(name = "app.chat.list_threads", skip_all)]
#[operation]
pub async fn list_threads(ctx: &mut Ctx, page: PageRequest) -> Result<Page<ThreadView>, Error> {
    let user = ctx.caller()?.user;
    let found = conversations::list_threads(ctx.conn(), user, page).await?;
    let page = page.into_page(found, |thread| thread.id.as_uuid());
    let items = page.items.into_iter().map(|thread| ThreadView {
        thread_id: thread.id,
        project_id: thread.project,
        title: thread.title,
        profile: thread.profile,
        created_at: thread.created_at,
        updated_at: thread.updated_at,
    });
    Ok(Page { items: items.collect(), next_cursor: page.next_cursor })
}

/// Lists the messages of one of the caller's threads. Threads of others do not exist for the caller.
#[tracing::instrument(name = "app.chat.list_messages", skip_all)]
#[operation]
pub async fn list_messages(ctx: &mut Ctx, id: ThreadId) -> Result<Vec<ChatTurn>, Error> {
    let user = ctx.caller()?.user;
    let thread =
        conversations::get_thread(ctx.conn(), id).await?.filter(|thread| thread.user == user);
    thread.ok_or_else(|| Error::not_found("conversation", id))?;
    let found = conversations::list_thread_messages(ctx.conn(), id).await?;
    let turns = found.into_iter().map(|message| ChatTurn {
        number: message.number,
        role: message.role,
        content: message.content,
        state: message.state,
        at: message.created_at,
    });
    Ok(turns.collect())
}
