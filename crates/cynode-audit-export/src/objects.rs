//! Object stores that speak S3. One object per batch, as lines of JSON. A repeated batch has the name of the first: it overwrites the
//! same bytes, or adds a version of them in a bucket with object lock.

use std::time::Duration;

use object_store::{
    ClientOptions, ObjectStoreExt, PutPayload, RetryConfig, aws::AmazonS3Builder, path::Path,
};
use secrecy::{ExposeSecret, SecretString};
use time::OffsetDateTime;

use crate::{ExportBatch, ExportError, SinkTarget};

pub(crate) async fn send_batch(
    target: &SinkTarget,
    secret: &SecretString,
    batch: &ExportBatch,
) -> Result<(), ExportError> {
    let SinkTarget::ObjectStore { endpoint, region, bucket, prefix, access_key_id } = target else {
        return Err(ExportError::new("it is no object store"));
    };
    // The exporter repeats a batch itself, with its own backoff.
    let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let plain = endpoint.as_ref().is_some_and(|url| url.scheme() == "http");
    let options = ClientOptions::new()
        .with_allow_http(plain)
        .with_connect_timeout(Duration::from_secs(10))
        .with_timeout(Duration::from_secs(25));
    let mut builder = AmazonS3Builder::new()
        .with_region(region)
        .with_bucket_name(bucket)
        .with_access_key_id(access_key_id)
        .with_secret_access_key(secret.expose_secret())
        .with_retry(retry)
        .with_client_options(options);
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint.as_str().trim_end_matches('/'));
    }
    let store = builder.build().map_err(|_| ExportError::new("it is not configured"))?;
    let path = Path::from(object_name(prefix, batch));
    let payload = PutPayload::from(batch.to_lines());
    // The error of the library names the URL and the answer, which may repeat the request.
    store.put(&path, payload).await.map(drop).map_err(|error| {
        ExportError::new(match error {
            object_store::Error::Unauthenticated { .. }
            | object_store::Error::PermissionDenied { .. } => "the access key was refused",
            object_store::Error::NotFound { .. } => "there is no such bucket",
            _ => "the object was not stored",
        })
    })
}

/// Returns the name of the object of a batch.
fn object_name(prefix: &str, batch: &ExportBatch) -> String {
    let prefix = prefix.trim_matches('/');
    let base = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
    let day = |at: OffsetDateTime| {
        format!("{:04}/{:02}/{:02}", at.year(), u8::from(at.month()), at.day())
    };
    match (batch.records.first(), batch.records.last(), batch.heads.first()) {
        (Some(first), Some(last), _) => format!(
            "{base}records/{}/{}/{:012}-{:012}.ndjson",
            day(first.entry.at),
            first.chain,
            first.seq,
            last.seq
        ),
        (_, _, Some(head)) => {
            format!("{base}heads/{}/{}.ndjson", day(head.at), batch.batch_id())
        }
        _ => format!("{base}empty.ndjson"),
    }
}
