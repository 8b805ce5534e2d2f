//! Reviews: a person has looked at what an agent wrote.

use axum::http::StatusCode;
use cynode_app::workflow::reviews;
use cynode_wire::workflow::reviews::ReviewContent;

use crate::{
    error::ApiError,
    extract::{MutationCall, MutationResponse},
};

/// Records that the caller has reviewed a skill, a schedule or a task that an agent wrote. It is no longer marked as unreviewed.
#[utoipa::path(post, path = "/v1/reviews", tag = "skills", request_body = ReviewContent,
    responses((status = NO_CONTENT)))]
pub(crate) async fn review_content(
    call: MutationCall<ReviewContent>,
) -> Result<MutationResponse, ApiError> {
    let MutationCall { app, request, body } = call;
    let done = app.mutate(&request, |ctx| reviews::review_content(ctx, body));
    Ok(MutationResponse(StatusCode::NO_CONTENT, done.await?))
}
