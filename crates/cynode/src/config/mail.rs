use anyhow::Context;
use cynode_notify::MailServer;
use secrecy::SecretString;

use super::reader::ConfigReader;

/// Outgoing mail.
#[derive(Debug)]
pub(crate) struct MailConfig {
    server: Option<String>,
    from: Option<String>,
    user: Option<String>,
    password: Option<SecretString>,
}

impl MailConfig {
    pub(super) fn read_section(reader: &mut ConfigReader) -> Self {
        Self {
            server: reader.optional_text("mail.server"),
            from: reader.optional_text("mail.from"),
            user: reader.optional_text("mail.user"),
            password: reader.read_secret(
                "mail.password",
                "mail.password_file",
                "CYNODE_MAIL_PASSWORD",
            ),
        }
    }

    /// Returns the outgoing mail server, if there is one.
    pub(crate) fn mail_server(&self) -> anyhow::Result<Option<MailServer>> {
        let Some(server) = &self.server else { return Ok(None) };
        let from = self.from.clone().context("mail.server is set and mail.from is not")?;
        let server = server.parse().context("mail.server is no address")?;
        let (user, password) = (self.user.clone(), self.password.clone());
        Ok(Some(MailServer { server, user, password, from }))
    }
}
