//! The JSON bodies of administration requests about tags, worker ids and clocks. A server reads
//! them; `leaf` and other programs write them.
//!
//! An absent field differs from `null`: `null` removes a limit of a tag, and is refused in other
//! fields (only `description` may be `null`).

use leaf_core::Step;
use leaf_segment::admin::{Reopening, ShapeName, TagAdminError, TagChange, TagSpec};
use leaf_shape::{Order, Period};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The body of `POST /v1/tags`, which makes a tag. Absent fields have the defaults of
/// `leaf tag create`; [`TagSpec`] explains the fields.
///
/// ```
/// use leaf_node::requests::CreateTag;
///
/// let asked: CreateTag = serde_json::from_str(r#"{"tag":"orders","step":5000}"#)?;
/// let (tag, spec) = asked.read()?;
/// assert_eq!((tag.as_str(), spec.step.map(|step| step.get())), ("orders", Some(5000)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateTag {
    /// The tag's name.
    pub tag: String,
    /// How many ids a fetch reserves; only in relaxed order.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,
    /// `relaxed` or `strict`.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// The shape, that is, how ids are computed from numbers.
    #[serde(default)]
    pub shape: ShapeName,
    /// The part of all ids that the tag gets, like `2/8`.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub slice: Option<String>,
    /// The ids of all slices together are below 2 to the power of this: 63 or 53.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub slice_bits: Option<u8>,
    /// When the numbers begin at 1 again: each day, month or year.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub reset: Option<Period>,
    /// The time zone of midnight and of the date in texts.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// The template of texts.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The first number.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub first: Option<Number>,
    /// What the tag is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Whether to make a family instead of a tag.
    #[serde(default)]
    pub family: bool,
    /// How many members the family may have.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub max_members: Option<u32>,
    /// How many members of the family each node makes in a second at most.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub members_per_second: Option<u32>,
}

impl CreateTag {
    /// Returns the name of the tag, and its [`TagSpec`].
    ///
    /// # Errors
    /// `Refused` if the step is not 1 to [`Step::MAX`].
    pub fn read(self) -> Result<(String, TagSpec), TagAdminError> {
        let spec = TagSpec {
            step: self.step.map(|value| step("step", value)).transpose()?,
            order: self.order,
            shape: self.shape,
            slice: self.slice,
            slice_bits: self.slice_bits,
            reset: self.reset,
            time_zone: self.time_zone,
            text: self.text,
            first: self.first.map(|Number(first)| first),
            description: self.description,
            family: self.family,
            max_members: self.max_members,
            members_per_second: self.members_per_second,
        };
        Ok((self.tag, spec))
    }
}

/// The body of `PATCH /v1/tags/{tag}`, which changes a tag. Absent fields stay unchanged. `null`
/// removes a limit, so that the servers' own setting applies.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeTag {
    /// How many ids a fetch reserves; only in relaxed order.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,
    /// Whether ids are handed out.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// The dynamic step never falls below this.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub min_step: Option<Option<i64>>,
    /// The dynamic step grows up to this.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub max_step: Option<Option<i64>>,
    /// The most ids that one call takes.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub max_take: Option<Option<i64>>,
    /// How many members the family may have.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub max_members: Option<u32>,
    /// How many members of the family each node makes in a second at most.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub members_per_second: Option<u32>,
}

impl ChangeTag {
    /// Returns the requested change.
    ///
    /// # Errors
    /// `Refused` if a step or limit is not 1 to [`Step::MAX`].
    pub fn read(self) -> Result<TagChange, TagAdminError> {
        let limit = |name: &str, value: Option<Option<i64>>| match value {
            None => Ok(None),
            Some(None) => Ok(Some(None)),
            Some(Some(value)) => step(name, value).map(|step| Some(Some(step))),
        };
        Ok(TagChange {
            step: self.step.map(|value| step("step", value)).transpose()?,
            enabled: self.enabled,
            min_step: limit("min_step", self.min_step)?,
            max_step: limit("max_step", self.max_step)?,
            max_take: limit("max_take", self.max_take)?,
            max_members: self.max_members,
            members_per_second: self.members_per_second,
        })
    }
}

/// The body of `POST /v1/tags/{tag}/advance`, which raises a tag's next number.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdvanceTag {
    /// The least value that the next number gets.
    pub at_least: Number,
    /// Confirms a raise by more than 10^12 or 200 periods, or by more than half of the failover
    /// margin.
    #[serde(default)]
    pub far: bool,
}

/// The body of `POST /v1/tags/{tag}/reopen`, which opens a tag again that a wrong clock has closed.
/// [`Reopening`] explains the fields.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReopenTag {
    /// The greatest id of the present period that may have been issued.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub above: Option<Number>,
    /// The first period that a wrong clock opened.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub first_taken: Option<Number>,
    /// Confirms that the tag goes on above `above`. Without this the request is refused, and the
    /// answer says what reopening means.
    #[serde(default)]
    pub sure: bool,
}

impl From<ReopenTag> for Reopening {
    fn from(asked: ReopenTag) -> Self {
        let number = |given: Option<Number>| given.map(|Number(number)| number);
        Self { above: number(asked.above), first_taken: number(asked.first_taken) }
    }
}

/// The body of `POST /v1/workers/{worker}/release`, which frees the worker id of a dead node.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleaseWorker {
    /// Confirms that no process uses the worker id any more, and that none will be started again on
    /// the holder's data directory.
    pub holder_is_dead: bool,
}

/// The body of `POST /v1/workers/{worker}/retire`, which takes a worker id out of service for good.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetireWorker {
    /// Confirms that the worker id is never used again.
    pub for_good: bool,
}

/// The body of `POST /v1/clock/accept`, which lets snowflake ids follow a clock that jumped ahead.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceptClock {
    /// Confirms that the clock of the node's host shows the right time.
    pub clock_is_right: bool,
}

/// A number of 64 bits: it is read from a string of digits or a number, and written as a string,
/// since JavaScript loses digits above 2^53.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Number(pub i64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "an id: a string of digits, or a number")]
        enum Written {
            Text(String),
            Number(i64),
        }
        match Written::deserialize(from)? {
            Written::Number(number) => Ok(Self(number)),
            Written::Text(text) => text.parse().map(Self).map_err(serde::de::Error::custom),
        }
    }
}

/// Reads a field that is given. `null` is an error, unless `T` itself has a meaning for it.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

fn step(name: &str, value: i64) -> Result<Step, TagAdminError> {
    let refuse = |_| TagAdminError::Refused(format!("{name}: give 1 to {}", Step::MAX));
    Step::new(value).map_err(refuse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let change = ChangeTag { step: Some(5), min_step: Some(None), ..ChangeTag::default() };
        let text = serde_json::to_string(&change).unwrap();
        assert_eq!(text, r#"{"step":5,"min_step":null}"#);
        let read: ChangeTag = serde_json::from_str(&text).unwrap();
        assert_eq!(read.read().unwrap(), change.read().unwrap());

        let first = Some(Number(i64::MAX));
        let create = CreateTag { tag: "a/b".into(), first, family: true, ..CreateTag::default() };
        let text = serde_json::to_string(&create).unwrap();
        let expected =
            r#"{"tag":"a/b","shape":"plain","first":"9223372036854775807","family":true}"#;
        assert_eq!(text, expected);
        let (tag, spec) = serde_json::from_str::<CreateTag>(&text).unwrap().read().unwrap();
        assert_eq!((tag.as_str(), spec.first, spec.family), ("a/b", Some(i64::MAX), true));
        assert!(serde_json::from_str::<CreateTag>(r#"{"tag":"a","step":null}"#).is_err());
        assert!(serde_json::from_str::<AdvanceTag>(r#"{"at_least":1.5}"#).is_err());
    }
}
