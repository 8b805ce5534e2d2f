//! `cynork image`: what sandboxes may be made from.

use clap::Subcommand;
use serde_json::json;

use crate::{client::Call, context::Context, failure::Result, operations};

#[derive(Subcommand)]
pub(crate) enum Image {
    /// Lists the images that sandboxes may be made from.
    #[command(after_help = "Example: cynork image list")]
    List,
    /// Allows sandboxes to be made from an image.
    #[command(after_help = "Example: cynork image allow docker.io/library/rust:1.95")]
    Allow {
        /// The image, with its tag or digest.
        image: String,
    },
    /// Allows no more sandboxes from an image.
    #[command(after_help = "Example: cynork image forbid docker.io/library/rust:1.95")]
    Forbid {
        /// The image, with its tag or digest.
        image: String,
    },
}

impl Image {
    pub(crate) async fn run(self, context: &Context) -> Result<()> {
        match self {
            Self::List => {
                let call = Call::of(operations::LIST_IMAGES);
                context
                    .list(
                        &call,
                        None,
                        String::clone,
                        ["image"],
                        |image: &String, _| [image.clone()],
                    )
                    .await
            }
            Self::Allow { image } => {
                let call = Call::of(operations::ADD_IMAGE).body(&json!({ "image": image }));
                context.done(&call, &format!("sandboxes may be made from {image}")).await
            }
            Self::Forbid { image } => {
                let call = Call::of(operations::REMOVE_IMAGE).query("image", Some(&image));
                context.done(&call, &format!("no more sandboxes are made from {image}")).await
            }
        }
    }
}
