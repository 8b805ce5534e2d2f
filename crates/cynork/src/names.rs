//! Resolution of names to ids. If the API takes a name, it is passed on; otherwise it is looked up in the list that the person
//! may see.

use clap::Args;
use serde_json::Value;

use crate::{
    answers::fetch_all_pages,
    client::ApiRequest,
    commands::task,
    context::CliContext,
    failure::{CliError, CliErrorKind, Result},
    operations::{self, Operation},
};

/// A kind of object that is found by its name in a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamedResource {
    /// Noun for messages.
    what: &'static str,
    /// Prefix of its ids.
    prefix: &'static str,
    /// Operation that lists it.
    list: Operation,
    /// Field of its name.
    name: &'static str,
    /// Field of its id.
    id: &'static str,
    /// Whether the list has pages.
    paged: bool,
}

/// A user.
pub(crate) const USER: NamedResource = NamedResource {
    what: "user",
    prefix: "usr_",
    list: operations::LIST_USERS,
    name: "handle",
    id: "id",
    paged: true,
};

/// A group of users.
pub(crate) const GROUP: NamedResource = NamedResource {
    what: "group",
    prefix: "grp_",
    list: operations::LIST_GROUPS,
    name: "name",
    id: "id",
    paged: true,
};

/// A tool server.
pub(crate) const SERVER: NamedResource = NamedResource {
    what: "tool server",
    prefix: "srv_",
    list: operations::LIST_SERVERS,
    name: "name",
    id: "server_id",
    paged: false,
};

/// A node.
pub(crate) const NODE: NamedResource = NamedResource {
    what: "node",
    prefix: "nod_",
    list: operations::LIST_NODES,
    name: "name",
    id: "node_id",
    paged: false,
};

/// A schedule.
pub(crate) const SCHEDULE: NamedResource = NamedResource {
    what: "schedule",
    prefix: "sch_",
    list: operations::LIST_SCHEDULES,
    name: "name",
    id: "schedule_id",
    paged: true,
};

/// A notification channel.
pub(crate) const CHANNEL: NamedResource = NamedResource {
    what: "channel",
    prefix: "cnl_",
    list: operations::LIST_CHANNELS,
    name: "name",
    id: "channel_id",
    paged: true,
};

/// An API key.
pub(crate) const API_KEY: NamedResource = NamedResource {
    what: "API key",
    prefix: "key_",
    list: operations::LIST_API_KEYS,
    name: "name",
    id: "id",
    paged: true,
};

/// A token of a directory.
pub(crate) const SCIM_TOKEN: NamedResource = NamedResource {
    what: "token of a directory",
    prefix: "sct_",
    list: operations::LIST_SCIM_TOKENS,
    name: "name",
    id: "id",
    paged: false,
};

impl NamedResource {
    /// Resolves a name to an id; an id is returned unchanged.
    pub(crate) async fn resolve_id(self, context: &CliContext, named: &str) -> Result<String> {
        if named.starts_with(self.prefix) {
            return Ok(named.to_owned());
        }
        let call = ApiRequest::for_operation(self.list);
        let list = if self.paged {
            fetch_all_pages(context, &call).await?
        } else {
            context.send_request(&call).await?
        };
        self.find_id_in_list(&list, named)
    }

    /// Finds the id of a name in a list. A duplicate name is ambiguous and refused.
    fn find_id_in_list(self, list: &Value, named: &str) -> Result<String> {
        let items = list["items"].as_array().into_iter().flatten();
        let alive = items.filter(|item| item["revoked_at"].is_null());
        let mut found = alive.filter(|item| item[self.name].as_str() == Some(named));
        let (first, second) = (found.next(), found.next());
        match (first.and_then(|item| item[self.id].as_str()), second) {
            (Some(id), None) => Ok(id.to_owned()),
            (Some(_), Some(_)) => Err(CliError::new(
                CliErrorKind::Conflict,
                format!("more than one {} is called `{named}`", self.what),
            )
            .with_fix("name it by its id; the list has them with --json")),
            (None, _) => Err(CliError::new(
                CliErrorKind::NotFound,
                format!("there is no {} called `{named}`, or not for you", self.what),
            )),
        }
    }
}

/// The project.
#[derive(Args, Clone, Debug)]
pub(crate) struct ProjectSelector {
    /// Project, by name or id; defaults to the project of the repository, then to the one chosen with `cynork project use`.
    #[arg(long, short)]
    pub(crate) project: Option<String>,
}

impl CliContext {
    /// Resolves a user: a handle, an id, or `me`.
    pub(crate) async fn user_id(&self, named: &str) -> Result<String> {
        if named == "me" {
            let me = self.send_request(&ApiRequest::for_operation(operations::ME)).await?;
            return id_from_value(&me["user"]["id"]);
        }
        USER.resolve_id(self, named).await
    }

    /// Resolves a project: a name or an id.
    pub(crate) async fn project_id(&self, named: &str) -> Result<String> {
        if named.starts_with("prj_") {
            return Ok(named.to_owned());
        }
        let project = self
            .send_request(&ApiRequest::with_path_params(operations::GET_PROJECT, [named]))
            .await?;
        id_from_value(&project["id"])
    }

    /// Resolves an optional project.
    pub(crate) async fn optional_project_id(&self, named: Option<&str>) -> Result<Option<String>> {
        match named {
            Some(named) => self.project_id(named).await.map(Some),
            None => Ok(None),
        }
    }

    /// Resolves a task: a name in the current project, an id or a prefix of one, or `last`.
    pub(crate) async fn task_id(&self, named: &str, project: Option<String>) -> Result<String> {
        task::TaskSelector::new(named, project).resolve_task_id(self).await
    }

    /// Resolves an optional task.
    pub(crate) async fn optional_task_id(
        &self,
        named: Option<&str>,
        project: Option<&str>,
    ) -> Result<Option<String>> {
        match named {
            Some(named) => self.task_id(named, project.map(str::to_owned)).await.map(Some),
            None => Ok(None),
        }
    }

    /// Resolves an optional user.
    pub(crate) async fn optional_user_id(&self, named: Option<&str>) -> Result<Option<String>> {
        match named {
            Some(named) => self.user_id(named).await.map(Some),
            None => Ok(None),
        }
    }
}

fn id_from_value(value: &Value) -> Result<String> {
    let id = value.as_str().map(str::to_owned);
    id.ok_or_else(|| CliError::internal_error("the answer has no id in it"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_name_means_one_thing_or_it_is_asked_for_an_id() {
        let list = json!({ "items": [
            { "name": "ci", "id": "key_1", "revoked_at": "2026-01-01T00:00:00Z" },
            { "name": "ci", "id": "key_2" },
            { "name": "twin", "id": "key_3" },
            { "name": "twin", "id": "key_4" },
        ] });
        assert_eq!(API_KEY.find_id_in_list(&list, "ci").unwrap(), "key_2");
        assert_eq!(
            API_KEY.find_id_in_list(&list, "twin").unwrap_err().kind,
            CliErrorKind::Conflict
        );
        assert_eq!(
            API_KEY.find_id_in_list(&list, "none").unwrap_err().kind,
            CliErrorKind::NotFound
        );
    }
}
