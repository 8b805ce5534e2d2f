use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::HeaderMap,
    response::sse::{Event, KeepAlive, Sse},
};
use cynode_app::{
    Error,
    tasks::events::{self, EventSelection, LoggedEvent, StreamStart},
};
use cynode_core::{
    events::{EventPosition, EventView},
    ids::{ProjectId, TaskId},
};
use cynode_wire::tasks::events::STREAM_FAILED_KIND;
use futures::{Stream, StreamExt};
use serde::Deserialize;

use crate::{
    AppState,
    error::ApiError,
    extract::{AuthenticatedCall, Query, RequestSource},
};

/// Filter of events.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventQuery {
    /// Only events of this project.
    #[param(value_type = Option<String>)]
    project_id: Option<ProjectId>,
    /// Only events of this task.
    #[param(value_type = Option<String>)]
    task_id: Option<TaskId>,
    /// Begin after this event, like `Last-Event-ID`; `0.0` begins with the first event that is stored.
    #[param(value_type = Option<String>)]
    after: Option<EventPosition>,
}

/// Streams events as server-sent events. A client that reconnects with `Last-Event-ID` misses nothing.
/// A failure ends the stream with the event `stream.failed`, whose data is a problem and which has no id. An account has at most 16
/// streams.
#[utoipa::path(get, path = "/v1/events", tag = "events",
    params(EventQuery, ("Last-Event-ID" = Option<String>, Header)),
    responses((status = OK, body = EventView, content_type = "text/event-stream")))]
pub(crate) async fn follow_events(
    State(state): State<AppState>,
    call: AuthenticatedCall,
    RequestSource(source): RequestSource,
    headers: HeaderMap,
    Query(query): Query<EventQuery>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    let wanted = EventSelection { project: query.project_id, task: query.task_id };
    let start = parse_stream_start(&headers, query.after)?;
    let position =
        call.app.read(&call.request, |ctx| events::authorize_stream(ctx, wanted, start)).await?;
    let caller = call.request.caller.ok_or(Error::Unauthenticated)?;
    let permit = call.app.open_event_stream(caller.user, source)?;
    let events = events::follow_events(&call.app, call.shown, wanted, position, permit)
        .take_until(state.stop.cancelled_owned())
        .filter_map(|event| std::future::ready(to_sse_event(event)));
    Ok(Sse::new(events.map(Ok)).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))))
}

fn parse_stream_start(
    headers: &HeaderMap,
    after: Option<EventPosition>,
) -> Result<StreamStart, ApiError> {
    let last = headers.get("last-event-id").map(|value| value.to_str().unwrap_or_default());
    let last: Option<EventPosition> = last.map(str::parse).transpose().map_err(
        |error: cynode_core::events::EventPositionError| {
            ApiError::Malformed(format!("Last-Event-ID: {error}"))
        },
    )?;
    Ok(last.or(after).map_or(StreamStart::Now, StreamStart::After))
}

fn to_sse_event(event: Result<Arc<LoggedEvent>, Error>) -> Option<Event> {
    match event {
        Ok(event) => {
            let view = &event.view;
            Event::default().id(view.id.to_string()).event(&view.kind).json_data(view)
        }
        Err(error) => {
            Event::default().event(STREAM_FAILED_KIND).json_data(ApiError::from(error).to_problem())
        }
    }
    .ok()
}
