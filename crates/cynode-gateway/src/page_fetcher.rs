//! Pages for memory: people ingest them through the same guarded egress that agents use.

use cynode_app::memory::ingest::{FetchedPage, PageFetch, PageFetchError, PageFetcher};
use cynode_policy::agents::AgentProfile;
use futures::future::BoxFuture;
use reqwest::{Method, header::ACCEPT};

use crate::egress::{EgressClient, EgressError, EgressRequest};

/// Media types that the worker can read.
const ACCEPTED_TYPES: &str = "text/html, text/markdown, text/plain, application/json;q=0.5";

impl PageFetcher for EgressClient {
    fn fetch_page(&self, page: PageFetch) -> BoxFuture<'_, Result<FetchedPage, PageFetchError>> {
        Box::pin(async move {
            let request = EgressRequest {
                method: Method::GET,
                url: page.url,
                headers: vec![(ACCEPT.as_str().to_owned(), ACCEPTED_TYPES.to_owned())],
                body: None,
                policies: page.policies,
                profile: AgentProfile::from(page.profile),
            };
            let response =
                self.send_request(request).await.map_err(|error| to_fetch_error(&error))?;
            match response.status {
                200..=299 => Ok(FetchedPage {
                    url: response.url,
                    media_type: response.media_type,
                    body: response.body,
                }),
                status @ (408 | 425 | 429 | 500..=599) => {
                    Err(PageFetchError::Unavailable(format!("the server answered {status}")))
                }
                status => Err(PageFetchError::Refused(format!("the server answered {status}"))),
            }
        })
    }
}

/// Says whether a repeat may help.
fn to_fetch_error(error: &EgressError) -> PageFetchError {
    match error {
        EgressError::Refused(_) | EgressError::ProfileDenied(_) | EgressError::PolicyDenied(_) => {
            PageFetchError::Refused(error.to_string())
        }
        EgressError::Unreachable | EgressError::Timeout => {
            PageFetchError::Unavailable(error.to_string())
        }
    }
}
