//! `cynork image`: allowed images of sandboxes.

use clap::Subcommand;
use serde_json::json;

use crate::{client::ApiRequest, context::CliContext, failure::Result, operations};

#[derive(Subcommand)]
pub(crate) enum ImageCommand {
    /// List the images allowed for sandboxes.
    #[command(after_help = "Example: cynork image list")]
    List,
    /// Allow an image for sandboxes.
    #[command(after_help = "Example: cynork image allow docker.io/library/rust:1.95")]
    Allow {
        /// Image, with its tag or digest.
        image: String,
    },
    /// Disallow an image for sandboxes.
    #[command(after_help = "Example: cynork image disallow docker.io/library/rust:1.95")]
    Disallow {
        /// Image, with its tag or digest.
        image: String,
    },
}

impl ImageCommand {
    pub(crate) async fn run(self, context: &CliContext) -> Result<()> {
        match self {
            Self::List => {
                let call = ApiRequest::for_operation(operations::LIST_IMAGES);
                context
                    .show_list(&call, None, String::clone, ["image"], |image: &String, _| {
                        [image.clone()]
                    })
                    .await
            }
            Self::Allow { image } => {
                let call = ApiRequest::for_operation(operations::ALLOW_IMAGE)
                    .with_json_body(&json!({ "image": image }));
                context
                    .send_and_confirm(&call, &format!("sandboxes may be made from {image}"))
                    .await
            }
            Self::Disallow { image } => {
                let call = ApiRequest::for_operation(operations::DISALLOW_IMAGE)
                    .with_query("image", Some(&image));
                context
                    .send_and_confirm(&call, &format!("no more sandboxes are made from {image}"))
                    .await
            }
        }
    }
}
