//! Export: all records of a scope, one JSON object per line.

use cynode_core::{
    memory::MemoryScope,
    paging::{Cursor, PageRequest},
};
use cynode_db::memory::records::RecordFilter;
use futures::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};

use crate::{
    App, Error, OperationRequest,
    memory::records::{list_memories, to_memory_view},
    platform::operation,
};

/// Records that are in memory at once.
const EXPORT_PAGE_SIZE: u16 = 100;

/// Where an export goes on.
struct ExportPosition {
    app: App,
    request: OperationRequest,
    scope: MemoryScope,
    /// `None`: the last page was read.
    next: Option<PageRequest>,
}

/// Exports the records of a scope, newest first and corrected ones too, as JSON lines. The first page is read before it returns, so that a
/// caller without the role gets an error and no stream.
#[tracing::instrument(name = "app.memory.export_memories", skip_all)]
#[operation]
pub async fn export_memories(
    app: &App,
    request: &OperationRequest,
    scope: &MemoryScope,
) -> Result<BoxStream<'static, Result<Vec<u8>, Error>>, Error> {
    let mut position = ExportPosition {
        app: app.clone(),
        request: request.clone(),
        scope: scope.clone(),
        next: Some(PageRequest { after: None, limit: EXPORT_PAGE_SIZE }),
    };
    let first = read_page(&mut position).await?.unwrap_or_default();
    let others = stream::try_unfold(position, |mut position| async move {
        let page = read_page(&mut position).await;
        page.map(|lines| lines.map(|lines| (lines, position)))
    });
    let whole = stream::once(async move { Ok::<_, Error>(first) }).chain(others);
    Ok(whole.try_filter(|lines| std::future::ready(!lines.is_empty())).boxed())
}

/// Reads the lines of the next page; `None` after the last.
async fn read_page(position: &mut ExportPosition) -> Result<Option<Vec<u8>>, Error> {
    let Some(page) = position.next.take() else { return Ok(None) };
    let filter = RecordFilter { with_superseded: true, ..RecordFilter::default() };
    let ExportPosition { app, request, scope, .. } = &*position;
    let found = list_memories(app, request, scope, &filter, page).await?;
    let after: Option<Cursor> = found.next_cursor;
    position.next = after.map(|after| PageRequest { after: Some(after), ..page });
    let mut lines = Vec::new();
    for record in &found.items {
        let line = serde_json::to_vec(&to_memory_view(record));
        lines.extend(line.map_err(|error| Error::Internal(error.into()))?);
        lines.push(b'\n');
    }
    Ok(Some(lines))
}
