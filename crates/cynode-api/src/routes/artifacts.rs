//! Artifacts for people: files that jobs and agents stored.

use std::ops::Range;

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use cynode_app::tools::artifacts::{self, Artifact};
use cynode_core::ids::ArtifactId;
use cynode_wire::delivery::artifacts::ArtifactView;
use data_encoding::HEXLOWER;

use super::{
    tasks::{ProjectQuery, TaskPathParam, resolve_task},
    tools::UnpagedList,
};
use crate::{
    error::ApiError,
    extract::{AuthenticatedCall, Json, Path, Query},
};

fn to_artifact_view(artifact: Artifact) -> ArtifactView {
    ArtifactView {
        id: artifact.id,
        project_id: artifact.project,
        task_id: artifact.task,
        job_id: artifact.job,
        name: artifact.name,
        media_type: artifact.media_type,
        sha256: HEXLOWER.encode(&artifact.digest),
        bytes: u64::try_from(artifact.size).unwrap_or_default(),
        created_at: artifact.created_at,
    }
}

/// Lists the artifacts of a task, oldest first.
#[utoipa::path(get, path = "/v1/tasks/{task}/artifacts", tag = "tasks",
    params(("task" = String, Path), ProjectQuery), responses((status = OK, body = UnpagedList<ArtifactView>)))]
pub(crate) async fn list_artifacts(
    call: AuthenticatedCall,
    Path(task): Path<TaskPathParam>,
    Query(ProjectQuery { project }): Query<ProjectQuery>,
) -> Result<Json<UnpagedList<ArtifactView>>, ApiError> {
    let found = call.app.read(&call.request, |ctx| {
        Box::pin(async move {
            let id = resolve_task(ctx, task, project.map(|name| name.0)).await?;
            artifacts::list_task_artifacts(ctx, id).await
        })
    });
    let shown = found.await?.into_iter().map(to_artifact_view);
    Ok(Json(UnpagedList::new(shown.collect())))
}

/// Returns the bytes of an artifact, as a download that no browser interprets. One range of bytes can be asked for.
#[utoipa::path(get, path = "/v1/artifacts/{artifact}", tag = "tasks",
    params(("artifact" = String, Path), ("Range" = Option<String>, Header)),
    responses((status = OK, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = PARTIAL_CONTENT, body = Vec<u8>, content_type = "application/octet-stream")))]
pub(crate) async fn get_artifact(
    call: AuthenticatedCall,
    Path(artifact): Path<ArtifactId>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let found = call.app.read(&call.request, |ctx| artifacts::get_artifact(ctx, artifact)).await?;
    let size = u64::try_from(found.size).unwrap_or_default();
    let etag = format!("\"{}\"", HEXLOWER.encode(&found.digest));
    let range = requested_range(&headers, &etag, size);
    let bytes = artifacts::open_artifact_bytes(&call.app, &found, range.clone()).await?;
    let (status, length) = match &range {
        Some(range) => (StatusCode::PARTIAL_CONTENT, range.end - range.start),
        None => (StatusCode::OK, size),
    };
    let fields = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, length.to_string()),
        (header::CONTENT_DISPOSITION, attachment_disposition(&found.name)),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (header::CACHE_CONTROL, "private, no-cache".to_owned()),
        (header::ACCEPT_RANGES, "bytes".to_owned()),
        (header::ETAG, etag),
    ];
    let mut response = (status, fields, Body::from_stream(bytes)).into_response();
    if let Some(Range { start, end }) = range
        && let Ok(value) =
            HeaderValue::from_str(&format!("bytes {start}-{}/{size}", end.saturating_sub(1)))
    {
        response.headers_mut().insert(header::CONTENT_RANGE, value);
    }
    Ok(response)
}

/// Returns the range of bytes that the request asks for. A range that cannot be served is ignored, as HTTP allows: the answer is then the
/// whole file.
fn requested_range(headers: &HeaderMap, etag: &str, size: u64) -> Option<Range<u64>> {
    let is_other = |value: &HeaderValue| value.as_bytes() != etag.as_bytes();
    if headers.get(header::IF_RANGE).is_some_and(is_other) {
        return None;
    }
    let wanted = headers.get(header::RANGE)?.to_str().ok()?.strip_prefix("bytes=")?;
    let (first, last) = wanted.split_once('-')?;
    let range = match (first.trim(), last.trim()) {
        ("", last) => size.saturating_sub(last.parse().ok()?)..size,
        (first, "") => first.parse().ok()?..size,
        (first, last) => first.parse().ok()?..last.parse::<u64>().ok()?.saturating_add(1).min(size),
    };
    (range.start < range.end).then_some(range)
}

/// Returns the value of `Content-Disposition`, with the name in the form of RFC 8187.
fn attachment_disposition(name: &str) -> String {
    let mut value = "attachment; filename*=UTF-8''".to_owned();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.') {
            value.push(char::from(byte));
        } else {
            value.push('%');
            value.push_str(&data_encoding::HEXUPPER.encode(&[byte]));
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_of_bytes_is_served_and_any_other_wish_is_the_whole_file() {
        let range = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::RANGE, text.parse().unwrap());
            requested_range(&headers, "\"a\"", 10)
        };
        assert_eq!(range("bytes=0-3"), Some(0..4));
        assert_eq!(range("bytes=4-"), Some(4..10));
        assert_eq!(range("bytes=-3"), Some(7..10));
        assert_eq!(range("bytes=-30"), Some(0..10));
        assert_eq!(range("bytes=8-30"), Some(8..10));
        for whole in
            ["bytes=10-", "bytes=5-4", "bytes=-0", "bytes=0-1,4-5", "lines=1-2", "bytes=x-"]
        {
            assert_eq!(range(whole), None, "{whole}");
        }
        let mut headers = HeaderMap::new();
        headers.insert(header::RANGE, "bytes=0-3".parse().unwrap());
        headers.insert(header::IF_RANGE, "\"b\"".parse().unwrap());
        assert_eq!(requested_range(&headers, "\"a\"", 10), None);
    }

    #[test]
    fn a_name_cannot_leave_its_place_in_the_header() {
        assert_eq!(
            attachment_disposition("a b\";\r\n/ü.log"),
            "attachment; filename*=UTF-8''a%20b%22%3B%0D%0A%2F%C3%BC.log"
        );
    }
}
