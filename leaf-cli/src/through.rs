//! Administration through a server: runs `leaf tag`, `leaf worker`, `leaf cut tag` and
//! `leaf decode --tag` by the ops listener of a server, if stores and registry cannot be reached
//! from here.
//!
//! Invariant: a command prints the same, with or without a server. A command that a server has no
//! route for is refused, and the error says what to do.

use anyhow::{Result, anyhow};
use hyper::{Method, Uri};
use leaf_node::config::ConfigError;
use leaf_node::records::{
    AdvancedShown, CutShown, DeletedShown, FreedShown, TagIdShown, TagShown, TagsShown,
    WorkersShown,
};
use leaf_node::requests::{AdvanceTag, Number, ReleaseWorker, ReopenTag, RetireWorker};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cli::{DryRun, OfRegistry, Output, Reopen, Ruled, Servers, Tag, Worker};
use crate::remote::{self, Asking, encoded};
use crate::worker::{self, Act};
use crate::{Done, ask, output, tag};

/// The servers through which commands run: the first that can be reached is used.
pub(crate) struct Server {
    asking: Asking,
    named: Vec<Uri>,
}

/// The path of a tag's route; `rest` is the part after the tag.
fn path(tag: &str, rest: &str) -> Result<String> {
    Ok(format!("/v1/tags/{}{rest}", encoded(tag::name(tag)?.as_str())))
}

/// Adds the parameter `dry_run` to a path if this is a dry run.
fn dry_path(path: String, dry: DryRun) -> String {
    match dry.dry_run {
        true if path.contains('?') => path + "&dry_run=true",
        true => path + "?dry_run=true",
        false => path,
    }
}

/// The error for a command that a server has no route for.
pub(crate) fn refuse<T>(what: &str) -> Result<T> {
    let text = format!(
        "{what} needs the store or the registry itself: name it by --config or --store instead of --server; these also \
         win over LEAF_SERVER"
    );
    Err(ConfigError::new(text).into())
}

impl Server {
    /// Reads the token and the URLs. No server is asked yet.
    ///
    /// # Errors
    /// [`ConfigError`]: the token or a URL is invalid.
    pub(crate) fn new(servers: &Servers) -> Result<Self> {
        let named = remote::named(servers, remote::OPS)?;
        Ok(Self { asking: Asking::new(servers)?, named })
    }

    /// The option `--server` with the first server that was named, for commands that the output
    /// suggests.
    fn way(&self) -> String {
        let named = self.named.first().map(Uri::to_string).unwrap_or_default();
        format!(" --server {}", named.trim_end_matches('/'))
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.asking.first(&self.named, Method::GET, path, None).await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T> {
        self.asking.first(&self.named, method, path, body).await
    }

    /// Runs a command on tags.
    ///
    /// # Errors
    /// The server does not answer, or refuses; [`ConfigError`] if it has no route for the command.
    pub(crate) async fn tag(&self, command: Tag, output: Output) -> Result<Done> {
        match command {
            Tag::List { after, family, limit } => {
                let family = family.map(|family| tag::family_name(&family)).transpose()?;
                let mut path =
                    format!("/v1/tags?limit={limit}&after={}", encoded(&after.to_string()));
                if let Some(family) = &family {
                    path += &format!("&family={}", encoded(family.as_str()));
                }
                let TagsShown { tags, next, failed } = self.get(&path).await?;
                let text =
                    tag::part(&tags, next, family.as_ref(), limit.into(), &self.way(), output);
                let failed = failed.into_iter().next_back();
                Ok(Done::but(text, failed.map(|it| anyhow!("{}: {}", it.store, it.detail))))
            }
            Tag::Show { tag } => {
                let shown: TagShown = self.get(&path(&tag, "")?).await?;
                Ok(tag::shown(shown, DryRun::default(), output))
            }
            Tag::Create(new) => {
                let dry = new.dry;
                let (path, asked) = (dry_path("/v1/tags".into(), dry), tag::asked(new)?);
                let shown = self.send(Method::POST, &path, Some(&json!(asked))).await?;
                Ok(tag::shown(shown, dry, output))
            }
            Tag::Set(set) => {
                let dry = set.dry;
                let (tag, change) = tag::change(set);
                let path = dry_path(path(&tag, "")?, dry);
                let shown = self.send(Method::PATCH, &path, Some(&json!(change))).await?;
                Ok(tag::shown(shown, dry, output))
            }
            Tag::Rekey { tag, yes, dry } => {
                if !yes && !dry.dry_run {
                    let why = "a server does not ask the others whether they have the key: say --yes if all have it, or ask \
                               them without --server";
                    return Err(ConfigError::new(why).into());
                }
                let path = dry_path(path(&tag, "/rekey")?, dry);
                Ok(tag::shown(self.send(Method::POST, &path, None).await?, dry, output))
            }
            Tag::Advance { tag, at_least, yes, dry } => {
                let path = dry_path(path(&tag, "/advance")?, dry);
                let advance = async |far: bool| {
                    let asked = json!(AdvanceTag { at_least: Number(at_least), far });
                    self.send::<AdvancedShown>(Method::POST, &path, Some(&asked)).await
                };
                let advanced =
                    ask::confirmed(yes || dry.dry_run, tag::ADVANCE, tag::THEN_YES, advance)
                        .await?;
                tag::advanced(advanced, dry, output)
            }
            Tag::Reopen(reopen) => self.reopen(reopen, output).await,
            Tag::Delete { tag, family: false, yes, dry } => {
                self.delete(&tag, yes, dry, output).await
            }
            Tag::Delete { family: true, .. } => refuse("`leaf tag delete --family`"),
            Tag::Import { .. } => refuse("`leaf tag import`"),
        }
    }

    /// Reopens a tag that a wrong clock has closed.
    async fn reopen(&self, reopen: Reopen, output: Output) -> Result<Done> {
        let Reopen { tag, above, first_taken, yes, dry } = reopen;
        let path = dry_path(path(&tag, "/reopen")?, dry);
        let reopen = async |sure: bool| {
            let [above, first_taken] = [above, first_taken].map(|it| it.map(Number));
            let asked = json!(ReopenTag { above, first_taken, sure });
            self.send(Method::POST, &path, Some(&asked)).await
        };
        let reopened =
            ask::confirmed(yes || dry.dry_run, tag::REOPEN, tag::THEN_YES, reopen).await?;
        Ok(tag::shown(reopened, dry, output))
    }

    /// Removes a tag.
    async fn delete(&self, tag: &str, yes: bool, dry: DryRun, output: Output) -> Result<Done> {
        let (path, how) = (path(tag, "")?, tag::how_to_delete(tag));
        let delete = async |yes: bool| {
            let confirm = format!("?confirm={}", encoded(tag));
            let path = if yes { path.clone() + &confirm } else { path.clone() };
            let path = dry_path(path, dry);
            self.send::<DeletedShown>(Method::DELETE, &path, None).await
        };
        let deleted = ask::confirmed(yes, tag::DELETE, &how, delete).await?;
        Ok(tag::gone(deleted, dry, &self.way(), output))
    }

    /// Cuts a tag if `cut` is true; else removes its cut.
    ///
    /// # Errors
    /// As [`Self::tag`].
    pub(crate) async fn cut(
        &self,
        of: Ruled,
        cut: bool,
        dry: DryRun,
        output: Output,
    ) -> Result<Done> {
        let Ruled::Tag { tag } = of else { return refuse("a rule for a caller") };
        if tag.ends_with('*') {
            return refuse("a rule for several tags");
        }
        let method = if cut { Method::PUT } else { Method::DELETE };
        let path = dry_path(path(&tag, "/cut")?, dry);
        let shown: CutShown = self.send(method, &path, None).await?;
        dry.tell();
        let is = if dry.dry_run { "would be" } else { "is" };
        let text = match &shown.by {
            Some(by) => format!("tag {tag:?} {is} cut, by the rule of {by:?}"),
            None => format!("tag {tag:?} {is} free of a cut"),
        };
        let still = shown.by.as_ref().filter(|_| !cut).map(|by| {
            anyhow!(
                "its own rule is gone, that of {by:?} is not: `leaf allow tag '{by}'` takes it away"
            )
        });
        Ok(Done::but(output::one(&shown, text, output), still))
    }

    /// Runs a command on the worker ids of the registry.
    ///
    /// # Errors
    /// As [`Self::tag`]; the command is not confirmed.
    async fn workers(&self, command: OfRegistry, output: Output) -> Result<Done> {
        if matches!(command, OfRegistry::Repair { .. }) {
            return refuse("`leaf worker repair`");
        }
        let Some((act, worker, dry)) = worker::asked(command)? else {
            let all: WorkersShown = self.get("/v1/workers").await?;
            return Ok(output::rows(&all.workers, output).into());
        };
        let path = |act: &str| dry_path(format!("/v1/workers/{worker}/{act}"), dry);
        let free: Option<FreedShown> = if act == Act::Retire {
            let body = json!(RetireWorker { for_good: true });
            let _: Value = self.send(Method::POST, &path("retire"), Some(&body)).await?;
            None
        } else {
            let body = json!(ReleaseWorker { holder_is_dead: true });
            Some(self.send(Method::POST, &path("release"), Some(&body)).await?)
        };
        Ok(worker::done(act, worker, free.as_ref(), dry, output))
    }
}

/// Takes an id of a tag apart.
///
/// # Errors
/// As [`Server::tag`]; [`ConfigError`] if `tag` is `None`: a snowflake id is decoded without a
/// server.
pub(crate) async fn decode(
    servers: &Servers,
    id: &str,
    tag: Option<String>,
    output: Output,
) -> Result<Done> {
    let Some(tag) = tag else {
        return refuse("a snowflake id is taken apart here, by the layout of --config, and");
    };
    let path = path(&tag, &format!("/ids/{}", encoded(id)))?;
    let told: TagIdShown = Server::new(servers)?.get(&path).await?;
    Ok(tag::decoded(&told, output))
}

/// Runs a command on the worker ids of the servers.
///
/// # Errors
/// As [`Server::tag`]; [`ConfigError`] with a namespace, and for `leaf worker run`: no server can
/// do these.
pub(crate) async fn workers(
    servers: &Servers,
    namespace: Option<String>,
    command: Worker,
    output: Output,
) -> Result<Done> {
    match command {
        Worker::Of(command) if namespace.is_none() => {
            Server::new(servers)?.workers(command, output).await
        }
        _ => refuse("`leaf worker run`, like every command with --namespace,"),
    }
}
