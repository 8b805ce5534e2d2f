use std::{convert::Infallible, time::Duration};

use axum::{
    extract::State,
    http::HeaderMap,
    response::sse::{Event, KeepAlive, Sse},
};
use cynode_app::events::{self, Start, Wanted};
use cynode_core::ids::{ProjectId, TaskId};
use cynode_wire::events::{EventView, Position};
use futures::{Stream, StreamExt};
use serde::Deserialize;

use crate::{
    AppState,
    error::ApiError,
    extract::{Call, Query},
};

/// Which events are wanted.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventQuery {
    /// Only of this project.
    #[param(value_type = Option<String>)]
    project_id: Option<ProjectId>,
    /// Only of this task.
    #[param(value_type = Option<String>)]
    task_id: Option<TaskId>,
    /// Begin behind this event, like `Last-Event-ID`; `0.0` begins with the first that is kept.
    #[param(value_type = Option<String>)]
    after: Option<Position>,
}

/// What happens, as server-sent events. A client that comes back with `Last-Event-ID` misses nothing.
#[utoipa::path(get, path = "/v1/events", tag = "events",
    params(EventQuery, ("Last-Event-ID" = Option<String>, Header)),
    responses((status = OK, body = EventView, content_type = "text/event-stream")))]
pub(crate) async fn follow_events(
    State(state): State<AppState>,
    call: Call,
    headers: HeaderMap,
    Query(query): Query<EventQuery>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    let wanted = Wanted { project: query.project_id, task: query.task_id };
    let start = start(&headers, query.after)?;
    let position =
        call.app.read(&call.request, |ctx| Box::pin(events::begin(ctx, wanted, start))).await?;
    let events = events::follow(&call.app, call.shown, wanted, position)
        .take_until(state.stop.cancelled_owned())
        // A failure ends the stream; the client comes back with its position and is told why.
        .take_while(|event| std::future::ready(event.is_ok()))
        .filter_map(|event| std::future::ready(event.ok().and_then(|event| frame(&event))));
    Ok(Sse::new(events.map(Ok)).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))))
}

fn start(headers: &HeaderMap, after: Option<Position>) -> Result<Start, ApiError> {
    let last = headers.get("last-event-id").map(|value| value.to_str().unwrap_or_default());
    let last: Option<Position> =
        last.map(str::parse).transpose().map_err(|error: cynode_wire::events::PositionError| {
            ApiError::Malformed(format!("Last-Event-ID: {error}"))
        })?;
    Ok(last.or(after).map_or(Start::Now, Start::After))
}

fn frame(event: &EventView) -> Option<Event> {
    Event::default().id(event.id.to_string()).event(&event.kind).json_data(event).ok()
}
