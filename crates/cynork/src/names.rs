//! What people call things, and the ids behind it. Where the interface takes a name it is passed on; elsewhere it is looked
//! for in the list that the person may see.

use clap::Args;
use serde_json::Value;

use crate::{
    answers::whole,
    client::Call,
    context::Context,
    failure::{Failure, Kind, Result},
    operations::{self, Operation},
};

/// A kind of thing that is found by its name in a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    /// What it is.
    what: &'static str,
    /// What its ids begin with.
    prefix: &'static str,
    /// The list.
    list: Operation,
    /// Where its name is.
    name: &'static str,
    /// Where its id is.
    id: &'static str,
    /// Whether the list has pages.
    paged: bool,
}

/// A person.
pub(crate) const USER: Named = Named {
    what: "user",
    prefix: "usr_",
    list: operations::LIST_USERS,
    name: "handle",
    id: "id",
    paged: true,
};

/// A group of people.
pub(crate) const GROUP: Named = Named {
    what: "group",
    prefix: "grp_",
    list: operations::LIST_GROUPS,
    name: "name",
    id: "id",
    paged: true,
};

/// A tool server.
pub(crate) const SERVER: Named = Named {
    what: "tool server",
    prefix: "srv_",
    list: operations::LIST_SERVERS,
    name: "name",
    id: "server_id",
    paged: false,
};

/// A node.
pub(crate) const NODE: Named = Named {
    what: "node",
    prefix: "nod_",
    list: operations::LIST_NODES,
    name: "name",
    id: "node_id",
    paged: false,
};

/// A schedule.
pub(crate) const SCHEDULE: Named = Named {
    what: "schedule",
    prefix: "sch_",
    list: operations::LIST_SCHEDULES,
    name: "name",
    id: "schedule_id",
    paged: true,
};

/// A channel of notices.
pub(crate) const CHANNEL: Named = Named {
    what: "channel",
    prefix: "cnl_",
    list: operations::LIST_CHANNELS,
    name: "name",
    id: "channel_id",
    paged: true,
};

/// An API key.
pub(crate) const API_KEY: Named = Named {
    what: "API key",
    prefix: "key_",
    list: operations::LIST_API_KEYS,
    name: "name",
    id: "id",
    paged: true,
};

impl Named {
    /// The id behind a name; an id is taken as it is.
    pub(crate) async fn id(self, context: &Context, named: &str) -> Result<String> {
        if named.starts_with(self.prefix) {
            return Ok(named.to_owned());
        }
        let call = Call::of(self.list);
        let list =
            if self.paged { whole(context, &call).await? } else { context.ask(&call).await? };
        self.among(&list, named)
    }

    /// The id behind a name in a list. Of two with the same name neither is meant.
    fn among(self, list: &Value, named: &str) -> Result<String> {
        let items = list["items"].as_array().into_iter().flatten();
        let alive = items.filter(|item| item["revoked_at"].is_null());
        let mut found = alive.filter(|item| item[self.name].as_str() == Some(named));
        let (first, second) = (found.next(), found.next());
        match (first.and_then(|item| item[self.id].as_str()), second) {
            (Some(id), None) => Ok(id.to_owned()),
            (Some(_), Some(_)) => Err(Failure::new(
                Kind::Conflict,
                format!("more than one {} is called `{named}`", self.what),
            )
            .fix("name it by its id; the list has them with --json")),
            (None, _) => Err(Failure::new(
                Kind::NotFound,
                format!("there is no {} called `{named}`, or not for you", self.what),
            )),
        }
    }
}

/// In which project.
#[derive(Args, Clone, Debug)]
pub(crate) struct In {
    /// The project, by name or id; else that of the repository that is meant, else the one chosen with `cynork project use`.
    #[arg(long, short)]
    pub(crate) project: Option<String>,
}

impl Context {
    /// The id of a user: a handle, an id, or `me`.
    pub(crate) async fn user(&self, named: &str) -> Result<String> {
        if named == "me" {
            let me = self.ask(&Call::of(operations::ME)).await?;
            return text(&me["user"]["id"]);
        }
        USER.id(self, named).await
    }

    /// The id of a project: a name or an id.
    pub(crate) async fn project_id(&self, named: &str) -> Result<String> {
        if named.starts_with("prj_") {
            return Ok(named.to_owned());
        }
        let project = self.ask(&Call::to(operations::GET_PROJECT, [named])).await?;
        text(&project["id"])
    }

    /// The ids of something optional.
    pub(crate) async fn project_id_if(&self, named: Option<&str>) -> Result<Option<String>> {
        match named {
            Some(named) => self.project_id(named).await.map(Some),
            None => Ok(None),
        }
    }

    /// The id of a task: an id, or a name in the project that is meant.
    pub(crate) async fn task_id(&self, named: &str, project: Option<String>) -> Result<String> {
        if named.starts_with("tsk_") {
            return Ok(named.to_owned());
        }
        let project = self.project(project)?;
        let call = Call::to(operations::GET_TASK, [named]).query("project", Some(project));
        let task = self.ask(&call).await?;
        text(&task["id"])
    }

    /// The same, of something optional.
    pub(crate) async fn task_id_if(
        &self,
        named: Option<&str>,
        project: Option<&str>,
    ) -> Result<Option<String>> {
        match named {
            Some(named) => self.task_id(named, project.map(str::to_owned)).await.map(Some),
            None => Ok(None),
        }
    }

    /// The id of a user, if one was named.
    pub(crate) async fn user_if(&self, named: Option<&str>) -> Result<Option<String>> {
        match named {
            Some(named) => self.user(named).await.map(Some),
            None => Ok(None),
        }
    }
}

fn text(value: &Value) -> Result<String> {
    let id = value.as_str().map(str::to_owned);
    id.ok_or_else(|| Failure::internal("the answer has no id in it"))
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
        assert_eq!(API_KEY.among(&list, "ci").unwrap(), "key_2");
        assert_eq!(API_KEY.among(&list, "twin").unwrap_err().kind, Kind::Conflict);
        assert_eq!(API_KEY.among(&list, "none").unwrap_err().kind, Kind::NotFound);
    }
}
