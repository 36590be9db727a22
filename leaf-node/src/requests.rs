//! What operators ask of tags, worker ids and clocks, as JSON: a server reads it, `leaf` and other programs
//! write it.
//!
//! A field that is not given differs from one that is `null`, which takes a limit of a tag away and is refused elsewhere.

use leaf_core::Step;
use leaf_segment::admin::{ShapeName, TagAdminError, TagChange, TagSpec};
use leaf_segment::meaning::{Order, Period};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Makes a tag: the body of `POST /v1/tags`. What is not given has the default of `leaf tag create`; what the fields
/// mean, [`TagSpec`] says.
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
    /// Its name.
    pub tag: String,
    /// Not in strict order.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,
    /// `relaxed` or `strict`.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// Which ids the numbers stand for.
    #[serde(default)]
    pub shape: ShapeName,
    /// Like `2/8`.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub slice: Option<String>,
    /// 63 or 53.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub slice_bits: Option<u8>,
    /// When the numbers begin again.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub reset: Option<Period>,
    /// Of midnight and of dates.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// The template of texts.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The first number.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub first: Option<Number>,
    /// What it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Whether it is a family.
    #[serde(default)]
    pub family: bool,
    /// Of a family.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub max_members: Option<u32>,
    /// Of a family, for each node.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub members_per_second: Option<u32>,
}

impl CreateTag {
    /// Which tag is to be made, and how.
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

/// Changes a tag: the body of `PATCH /v1/tags/{tag}`. What is not given stays; `null` takes a limit away, so that the
/// servers' own holds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeTag {
    /// Not in strict order.
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
    /// Of a family.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub max_members: Option<u32>,
    /// Of a family, for each node.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub members_per_second: Option<u32>,
}

impl ChangeTag {
    /// What is to be changed.
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

/// Raises a tag's next number: the body of `POST /v1/tags/{tag}/advance`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdvanceTag {
    /// The next number, at least.
    pub at_least: Number,
    /// Yes, that far.
    #[serde(default)]
    pub far: bool,
}

/// Frees what a dead node holds: the body of `POST /v1/workers/{worker}/release`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleaseWorker {
    /// Yes, no process goes on with it, nor will one be started again on its data directory.
    pub holder_is_dead: bool,
}

/// Takes a worker id out of service: the body of `POST /v1/workers/{worker}/retire`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetireWorker {
    /// Yes, for good.
    pub for_good: bool,
}

/// Lets snowflake ids follow a clock that jumped ahead: the body of `POST /v1/clock/accept`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceptClock {
    /// Yes, the clock of that host shows the right time.
    pub clock_is_right: bool,
}

/// A number of 64 bits: it is read from a string of digits or a number, and written as a string, since JavaScript
/// loses digits above 2^53.
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

/// What is given; `null` is no value but where it means something.
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
